#include "library.h"
#include "compiler.h"
#include "status.h"
#include "validate.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static mps_status no_memory(void) {
  return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a pipeline");
}

/* The values with the indices of their constants, by name or by index as they were given: in a library made of several
 * sources one name may have several indices, and one index several names. */
static void match_constants(const mps_library *library, const mps_pipeline_desc *desc, mps_constant_value *matched) {
  for (uint32_t number = 0; number < desc->constant_count; number++) {
    const mps_constant_value *value = &desc->constants[number];
    const mps_constant_info *constant = mps_library_find_constant(library, value);
    matched[number] = (mps_constant_value){value->name, constant->index, constant->data_type, value->value};
  }
}

/* ---- the kernel ---- */

static mps_status build(const mps_library *library, const char *kernel, const mps_constant_value *constants,
                        uint32_t constant_count, host_image **out_image) {
  const host_library *own = library->impl;
  mps_compile_request request = {
      .struct_size = sizeof request,
      .source = own->source,
      .source_length = own->source_length,
      .kernel = kernel,
      .options = &own->options,
      .constants = constants,
      .constant_count = constant_count,
  };
  host_answer answer;
  MPS_TRY(host_compiler_ask(&request, &answer));
  mps_status status = host_image_open_file(answer.result.text, out_image);
  host_answer_free(&answer);
  return status;
}

/* The values themselves, behind the list: captures write them down. */
static mps_status keep_constants(host_kernel *own, const mps_constant_value *constants, uint32_t count) {
  const size_t room = 32; /* the longest constant, four times 8 bytes */
  own->constants = malloc((count + (size_t)1) * (sizeof *constants + room));
  if (own->constants == NULL) {
    return no_memory();
  }
  own->constant_count = count;
  char *values = (char *)(own->constants + count);
  for (uint32_t number = 0; number < count; number++, values += room) {
    own->constants[number] = constants[number];
    own->constants[number].name = NULL;
    own->constants[number].value =
        memcpy(values, constants[number].value, host_constant_size(constants[number].data_type));
  }
  return MPS_STATUS_OK;
}

static mps_status build_with_constants(const mps_library *library, const mps_pipeline_desc *desc, host_kernel *own,
                                       host_image **out_image) {
  mps_constant_value *constants = calloc(desc->constant_count + (size_t)1, sizeof *constants);
  if (constants == NULL) {
    return no_memory();
  }
  match_constants(library, desc, constants);
  mps_status status = keep_constants(own, constants, desc->constant_count);
  if (status == MPS_STATUS_OK) {
    status = build(library, desc->kernel, constants, desc->constant_count, out_image);
  }
  free(constants);
  return status;
}

/* A reference to the image that holds the kernel. */
static mps_status find_image(const mps_library *library, const mps_pipeline_desc *desc, host_kernel *own,
                             host_image **out_image) {
  const host_library *from = library->impl;
  if (from->image == NULL) {
    return build_with_constants(library, desc, own, out_image);
  }
  host_image_hold(from->image);
  *out_image = from->image;
  return MPS_STATUS_OK;
}

/* ---- threadgroup memory ---- */

/* Kernels of one library may share slots, and others may run while one more is opened: a slot that has its place
 * already is not written again. */
static void place_slot(mslc_threadgroup_slot *slot, unsigned offset) {
  if (slot->offset != offset) {
    slot->offset = offset;
  }
}

/* In the arena, or for a validated kernel in what stands for it, where variables lie far apart. */
static uint64_t place_of(const mslc_kernel *kernel, const mslc_threadgroup_slot *slot, uint64_t bytes) {
  return kernel->flags & MSLC_KERNEL_VALIDATED ? host_validate_place((uint64_t)(slot - kernel->slots)) : bytes;
}

/* Give each threadgroup variable its place. */
static mps_status place_slots(const mslc_kernel *kernel, uint32_t *out_bytes) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  uint64_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (mslc_threadgroup_slot *slot = kernel->slots; slot != kernel->slots_end; slot++) {
    uint64_t align = slot->align != 0 ? slot->align : 1;
    bytes = (bytes + align - 1) / align * align;
    if (bytes + slot->size <= MSLC_THREADGROUP_BYTES) {
      place_slot(slot, (unsigned)place_of(kernel, slot, bytes));
    }
    bytes += slot->size;
  }
  pthread_mutex_unlock(&lock);
  bytes = (bytes + 15) & ~UINT64_C(15);
  if (bytes > MSLC_THREADGROUP_BYTES) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "kernel '%s' declares %" PRIu64 " bytes of threadgroup memory, and the limit is %d", kernel->name,
                    bytes, MSLC_THREADGROUP_BYTES);
  }
  *out_bytes = (uint32_t)bytes;
  return MPS_STATUS_OK;
}

/* ---- arguments ---- */

static mps_status check_argument(const mslc_kernel *kernel, const mslc_argument *argument) {
  if (argument->kind != MPS_ARGUMENT_BUFFER && argument->kind != MPS_ARGUMENT_THREADGROUP) {
    return mps_fail(MPS_STATUS_UNSUPPORTED, "argument '%s' of kernel '%s' is of the unknown kind %u", argument->name,
                    kernel->name, argument->kind);
  }
  if (argument->index >= MSLC_BUFFER_SLOTS) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "argument '%s' of kernel '%s' is in slot %u, and a kernel has %d slots, 0 to %d", argument->name,
                    kernel->name, argument->index, MSLC_BUFFER_SLOTS, MSLC_BUFFER_SLOTS - 1);
  }
  return MPS_STATUS_OK;
}

static void free_arguments(mps_pipeline *pipeline) {
  for (uint32_t number = 0; number < pipeline->info.argument_count; number++) {
    free((char *)pipeline->arguments[number].name);
    free((char *)pipeline->arguments[number].type_name);
  }
  free(pipeline->arguments);
  pipeline->arguments = NULL;
  pipeline->info.argument_count = 0;
}

static bool copy_argument(mps_argument_info *info, const mslc_argument *argument) {
  *info = (mps_argument_info){
      .struct_size = sizeof *info,
      .name = mps_text_copy(argument->name != NULL ? argument->name : ""),
      .type_name = mps_text_copy(argument->type_name != NULL ? argument->type_name : ""),
      .kind = argument->kind,
      .index = argument->index,
      .access = argument->access,
      .data_type = argument->data_type,
      .data_size = argument->data_size,
      .data_align = argument->data_align,
      .is_reference = argument->is_reference,
      .is_used = argument->access != MPS_ACCESS_NONE,
  };
  return info->name != NULL && info->type_name != NULL;
}

static void take_slot(mps_pipeline *pipeline, uint32_t number) {
  const mps_argument_info *argument = &pipeline->arguments[number];
  uint32_t bit = UINT32_C(1) << argument->index;
  if (argument->kind == MPS_ARGUMENT_THREADGROUP) {
    pipeline->threadgroup_slots |= bit;
    return;
  }
  pipeline->buffer_slots |= bit;
  pipeline->reference_slots |= argument->is_reference ? bit : 0;
  pipeline->slot_argument[argument->index] = (uint8_t)number;
}

static mps_status take_arguments(mps_pipeline *pipeline, const mslc_kernel *kernel) {
  pipeline->arguments = calloc(kernel->argument_count + (size_t)1, sizeof *pipeline->arguments);
  if (pipeline->arguments == NULL) {
    return no_memory();
  }
  for (unsigned number = 0; number < kernel->argument_count; number++) {
    MPS_TRY(check_argument(kernel, &kernel->arguments[number]));
    pipeline->info.argument_count++;
    if (!copy_argument(&pipeline->arguments[number], &kernel->arguments[number])) {
      return no_memory();
    }
    take_slot(pipeline, number);
  }
  return MPS_STATUS_OK;
}

/* ---- opening and closing ---- */

static mps_status take_kernel(mps_pipeline *pipeline, host_kernel *own) {
  const mslc_kernel *kernel = host_image_kernel(own->library, pipeline->kernel);
  if (kernel == NULL) {
    return mps_fail(MPS_STATUS_INTERNAL, "the Metal compiler has built a library without the kernel '%s'",
                    pipeline->kernel);
  }
  own->kernel = kernel;
  MPS_TRY(place_slots(kernel, &own->static_bytes));
  MPS_TRY(take_arguments(pipeline, kernel));
  uint32_t most = kernel->max_total_threads;
  pipeline->info.max_total_threads_per_threadgroup =
      most == 0 || most > MSLC_MAX_GROUP_THREADS ? MSLC_MAX_GROUP_THREADS : most;
  pipeline->info.thread_execution_width = MSLC_SIMD_WIDTH;
  pipeline->info.static_threadgroup_memory = own->static_bytes;
  return MPS_STATUS_OK;
}

static void free_kernel(host_kernel *own) {
  if (own->library != NULL) {
    host_image_drop(own->library);
  }
  free(own->constants);
  free(own);
}

mps_status host_pipeline_open(mps_pipeline *pipeline, const mps_pipeline_desc *desc) {
  host_kernel *own = calloc(1, sizeof *own);
  if (own == NULL) {
    return no_memory();
  }
  host_image *image = NULL;
  mps_status status = find_image(pipeline->library, desc, own, &image);
  own->library = image;
  if (status == MPS_STATUS_OK) {
    status = take_kernel(pipeline, own);
  }
  if (status != MPS_STATUS_OK) {
    free_arguments(pipeline);
    free_kernel(own);
    return status;
  }
  pipeline->impl = own;
  return MPS_STATUS_OK;
}

/* The arguments belong to the pipeline, which frees them. */
void host_pipeline_close(mps_pipeline *pipeline) {
  free_kernel(pipeline->impl);
}
