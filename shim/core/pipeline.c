#include "backend.h"
#include "check.h"
#include "trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* Names that an error lists before it says how many more there are. */
enum { LISTED_KERNELS = 20 };

static mps_status no_kernel(const mps_library *library, const char *kernel) {
  if (library->kernel_count == 0) {
    return mps_fail(MPS_STATUS_NOT_FOUND, "there is no kernel '%s': the library has no kernels", kernel);
  }
  uint32_t listed = library->kernel_count < LISTED_KERNELS ? library->kernel_count : LISTED_KERNELS;
  char *text = NULL;
  size_t size = 0;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) {
    return mps_fail(MPS_STATUS_NOT_FOUND, "there is no kernel '%s' in the library", kernel);
  }
  for (uint32_t i = 0; i < listed; i++) {
    fprintf(stream, "%s%s", i > 0 ? ", " : "", library->kernel_names[i]);
  }
  if (listed < library->kernel_count) {
    fprintf(stream, " and %" PRIu32 " more", library->kernel_count - listed);
  }
  bool written = fclose(stream) == 0;
  mps_fail(MPS_STATUS_NOT_FOUND, "there is no kernel '%s' in the library, which has %s", kernel,
           written ? text : "other kernels");
  free(text);
  return MPS_STATUS_NOT_FOUND;
}

static bool has_kernel(const mps_library *library, const char *kernel) {
  for (uint32_t i = 0; i < library->kernel_count; i++) {
    if (strcmp(library->kernel_names[i], kernel) == 0) {
      return true;
    }
  }
  return false;
}

/* A scalar or a vector: what a function constant can be. */
static bool is_constant_type(uint32_t data_type) {
  uint32_t base = data_type & 0xff, lanes = data_type >> 8;
  return base >= MPS_DATA_BOOL && base <= MPS_DATA_FLOAT && lanes >= 1 && lanes <= 4;
}

static mps_status check_desc(const mps_library *library, const mps_pipeline_desc *desc) {
  if (desc->kernel == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_pipeline_create: kernel must not be NULL");
  }
  if (desc->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_pipeline_create: the reserved field must be 0");
  }
  if (desc->constant_count > 0 && desc->constants == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_pipeline_create: constant_count is %" PRIu32 ", but constants is NULL", desc->constant_count);
  }
  for (uint32_t i = 0; i < desc->constant_count; i++) {
    const mps_constant_value *constant = &desc->constants[i];
    if (constant->value == NULL) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_pipeline_create: the value of constants[%" PRIu32 "] is NULL",
                      i);
    }
    if (!is_constant_type(constant->data_type)) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "mps_pipeline_create: data_type of constants[%" PRIu32 "] is 0x%" PRIx32
                      ", not an mps_data_base from MPS_DATA_BOOL to MPS_DATA_FLOAT with 1 to 4 lanes << 8",
                      i, constant->data_type);
    }
  }
  MPS_TRY(mps_library_check_constants(library, desc->constants, desc->constant_count));
  return has_kernel(library, desc->kernel) ? MPS_STATUS_OK : no_kernel(library, desc->kernel);
}

static void free_pipeline(mps_pipeline *pipeline) {
  for (uint32_t i = 0; i < pipeline->info.argument_count; i++) {
    free((char *)pipeline->arguments[i].name);
    free((char *)pipeline->arguments[i].type_name);
  }
  free(pipeline->arguments);
  free(pipeline->label);
  free(pipeline->kernel);
  mps_object_free(pipeline, MPS_KIND_PIPELINE);
}

static mps_status open_pipeline(mps_pipeline *pipeline, const mps_pipeline_desc *desc) {
  const mps_device *device = pipeline->library->device;
  pipeline->kernel = mps_text_copy(desc->kernel);
  pipeline->label = mps_text_copy(desc->label != NULL ? desc->label : desc->kernel);
  if (pipeline->kernel == NULL || pipeline->label == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for the name of a kernel");
  }
  mps_status status = device->backend->pipeline_open(pipeline, desc);
  if (status != MPS_STATUS_OK) {
    pipeline->info.argument_count = 0;
    pipeline->arguments = NULL;
    return status;
  }
  pipeline->info.struct_size = sizeof pipeline->info;
  pipeline->info.kernel = pipeline->kernel;
  if (pipeline->info.static_threadgroup_memory > device->info.max_threadgroup_memory) {
    mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
             "kernel '%s' has %" PRIu32 " bytes of threadgroup memory, the limit of device '%s' is %" PRIu32 " bytes",
             pipeline->kernel, pipeline->info.static_threadgroup_memory, device->info.name,
             device->info.max_threadgroup_memory);
    device->backend->pipeline_close(pipeline);
    return MPS_STATUS_LIMIT_EXCEEDED;
  }
  return MPS_STATUS_OK;
}

mps_status mps_pipeline_create(mps_library *library, const mps_pipeline_desc *given, mps_pipeline **out_pipeline) {
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  MPS_REQUIRE(out_pipeline);
  mps_pipeline_desc desc;
  MPS_READ(mps_pipeline_desc, label, &desc, given);
  desc.struct_size = sizeof desc;
  MPS_TRY(check_desc(library, &desc));
  mps_pipeline *pipeline = mps_object_new(MPS_KIND_PIPELINE, sizeof *pipeline);
  if (pipeline == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  pipeline->library = library;
  uint64_t start = mps_trace_start_time();
  mps_status status = open_pipeline(pipeline, &desc);
  mps_trace_call(MPS_TRACE_PIPELINE, desc.label != NULL ? desc.label : desc.kernel, start, status);
  if (status != MPS_STATUS_OK) {
    free_pipeline(pipeline);
    return status;
  }
  mps_library_hold(library);
  *out_pipeline = pipeline;
  return MPS_STATUS_OK;
}

mps_status mps_pipeline_retain(mps_pipeline *pipeline) {
  MPS_ENTER(pipeline, MPS_KIND_PIPELINE);
  mps_object_retain(pipeline, MPS_KIND_PIPELINE);
  return MPS_STATUS_OK;
}

mps_status mps_pipeline_release(mps_pipeline *pipeline) {
  if (pipeline == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(pipeline, MPS_KIND_PIPELINE);
  if (mps_object_release(pipeline, MPS_KIND_PIPELINE)) {
    mps_pipeline_drop(pipeline);
  }
  return MPS_STATUS_OK;
}

void mps_pipeline_hold(mps_pipeline *pipeline) {
  mps_object_hold(pipeline);
}

void mps_pipeline_drop(mps_pipeline *pipeline) {
  if (!mps_object_drop(pipeline)) {
    return;
  }
  mps_library *library = pipeline->library;
  library->device->backend->pipeline_close(pipeline);
  free_pipeline(pipeline);
  mps_library_drop(library);
}

mps_status mps_pipeline_get_info(mps_pipeline *pipeline, mps_pipeline_info *info) {
  MPS_ENTER(pipeline, MPS_KIND_PIPELINE);
  MPS_CHECK_RESULT(mps_pipeline_info, argument_count, info);
  mps_struct_write(info, &pipeline->info, sizeof pipeline->info);
  return MPS_STATUS_OK;
}

mps_status mps_pipeline_argument(mps_pipeline *pipeline, uint32_t number, mps_argument_info *info) {
  MPS_ENTER(pipeline, MPS_KIND_PIPELINE);
  MPS_CHECK_RESULT(mps_argument_info, is_used, info);
  if (number >= pipeline->info.argument_count) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_pipeline_argument: number is %" PRIu32 ", but kernel '%s' has %" PRIu32 " arguments", number,
                    pipeline->kernel, pipeline->info.argument_count);
  }
  mps_struct_write(info, &pipeline->arguments[number], sizeof pipeline->arguments[number]);
  return MPS_STATUS_OK;
}
