#include "metal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- function constants ---- */

static const mps_constant_value *find_value(const mps_pipeline_desc *desc, const mps_constant_info *constant) {
  for (uint32_t i = 0; i < desc->constant_count; i++) {
    const mps_constant_value *value = &desc->constants[i];
    if (value->name != NULL ? strcmp(value->name, constant->name) == 0 : value->index == constant->index) {
      return value;
    }
  }
  return NULL;
}

/* Metal's form of the values, which the core has found to be those of the library's constants. */
static MTLFunctionConstantValues *constant_values(const mps_library *library, const mps_pipeline_desc *desc) {
  MTLFunctionConstantValues *values = [[[MTLFunctionConstantValues alloc] init] autorelease];
  for (uint32_t i = 0; i < desc->constant_count; i++) {
    const mps_constant_value *value = &desc->constants[i];
    const mps_constant_info *constant = mps_library_find_constant(library, value);
    [values setConstantValue:value->value type:metal_data_type_to(value->data_type) atIndex:constant->index];
  }
  return values;
}

static mps_status check_required(const mps_pipeline_desc *desc, id<MTLFunction> function) {
  NSDictionary<NSString *, MTLFunctionConstant *> *constants = [function functionConstantsDictionary];
  for (NSString *name in constants) {
    MTLFunctionConstant *constant = [constants objectForKey:name];
    mps_constant_info info = {.name = [name UTF8String], .index = (uint32_t)[constant index]};
    if ([constant required] && find_value(desc, &info) == NULL) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "kernel '%s' needs a value for function constant '%s' (index %" PRIu32 ")", desc->kernel,
                      info.name, info.index);
    }
  }
  return MPS_STATUS_OK;
}

/* The function with its constants' values. */
static mps_status find_function(const mps_library *library, const mps_pipeline_desc *desc,
                                id<MTLFunction> *out_function) {
  id<MTLLibrary> impl = library->impl;
  NSString *name = metal_string(desc->kernel, strlen(desc->kernel));
  id<MTLFunction> function = [[impl newFunctionWithName:name] autorelease];
  if (function == nil) {
    return mps_fail(MPS_STATUS_NOT_FOUND, "Metal no longer finds the kernel '%s' in its library", desc->kernel);
  }
  MPS_TRY(check_required(desc, function));
  if ([[function functionConstantsDictionary] count] > 0) {
    MTLFunctionConstantValues *values = constant_values(library, desc);
    NSError *error = nil;
    function = [[impl newFunctionWithName:name constantValues:values error:&error] autorelease];
    if (function == nil) {
      return mps_fail(MPS_STATUS_COMPILE_FAILED, "kernel '%s' does not compile with these function constants: %s",
                      desc->kernel, metal_error_text(error));
    }
  }
  *out_function = function;
  return MPS_STATUS_OK;
}

/* ---- reflection ---- */

static uint32_t access_of(MTLBindingAccess access) {
  return access == MTLBindingAccessReadOnly ? MPS_ACCESS_READ : MPS_ACCESS_READ_WRITE;
}

/* Metal tells what a binding points to, but neither how the source spells it nor whether it is a reference. */
static void describe_buffer(id<MTLBufferBinding> binding, mps_argument_info *info) {
  info->kind = MPS_ARGUMENT_BUFFER;
  info->data_type = metal_data_type_from([binding bufferDataType]);
  info->data_size = (uint32_t)[binding bufferDataSize];
  info->data_align = (uint32_t)[binding bufferAlignment];
  info->type_name = mps_text_copy(metal_data_type_name([binding bufferDataType]));
}

static void describe_threadgroup(id<MTLThreadgroupBinding> binding, mps_argument_info *info) {
  info->kind = MPS_ARGUMENT_THREADGROUP;
  info->data_size = (uint32_t)[binding threadgroupMemoryDataSize];
  info->data_align = (uint32_t)[binding threadgroupMemoryAlignment];
  info->type_name = mps_text_copy("");
}

static void note_slot(mps_pipeline *pipeline, const mps_argument_info *info, uint32_t number) {
  uint32_t bit = UINT32_C(1) << info->index;
  if (info->kind == MPS_ARGUMENT_THREADGROUP) {
    pipeline->threadgroup_slots |= bit;
  } else {
    pipeline->buffer_slots |= bit;
    pipeline->slot_argument[info->index] = (uint8_t)number;
  }
}

static void forget_arguments(mps_pipeline *pipeline) {
  for (uint32_t i = 0; i < pipeline->info.argument_count; i++) {
    free((char *)pipeline->arguments[i].name);
    free((char *)pipeline->arguments[i].type_name);
  }
  free(pipeline->arguments);
  pipeline->arguments = NULL;
  pipeline->info.argument_count = 0;
}

static mps_status add_argument(mps_pipeline *pipeline, id<MTLBinding> binding) {
  uint32_t number = pipeline->info.argument_count;
  mps_argument_info *info = &pipeline->arguments[number];
  switch ([binding type]) {
  case MTLBindingTypeBuffer:
    describe_buffer((id<MTLBufferBinding>)binding, info);
    break;
  case MTLBindingTypeThreadgroupMemory:
    describe_threadgroup((id<MTLThreadgroupBinding>)binding, info);
    break;
  default:
    return mps_fail(MPS_STATUS_UNSUPPORTED,
                    "argument '%s' of kernel '%s' is a texture, a sampler or a table: only buffers, values and "
                    "threadgroup memory can be bound",
                    [[binding name] UTF8String], pipeline->kernel);
  }
  info->struct_size = sizeof *info;
  info->name = mps_text_copy([[binding name] UTF8String]);
  info->index = (uint32_t)[binding index];
  info->access = access_of([binding access]);
  info->is_used = [binding isUsed] ? 1 : 0;
  pipeline->info.argument_count++;
  note_slot(pipeline, info, number);
  return info->name != NULL && info->type_name != NULL
             ? MPS_STATUS_OK
             : mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for the arguments of kernel '%s'", pipeline->kernel);
}

/* Threadgroup memory that the kernel declares itself is listed too, as an argument that is none. */
static mps_status list_arguments(mps_pipeline *pipeline, MTLComputePipelineReflection *reflection) {
  NSArray<id<MTLBinding>> *bindings = [reflection bindings];
  pipeline->arguments = calloc([bindings count] + 1, sizeof *pipeline->arguments);
  if (pipeline->arguments == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for the arguments of kernel '%s'", pipeline->kernel);
  }
  for (id<MTLBinding> binding in bindings) {
    mps_status status = [binding isArgument] ? add_argument(pipeline, binding) : MPS_STATUS_OK;
    if (status != MPS_STATUS_OK) {
      forget_arguments(pipeline);
      return status;
    }
  }
  return MPS_STATUS_OK;
}

/* ---- pipeline ---- */

static mps_status open_pipeline(mps_pipeline *pipeline, const mps_pipeline_desc *desc) {
  const mps_library *library = pipeline->library;
  const metal_device *device = library->device->impl;
  id<MTLFunction> function;
  MPS_TRY(find_function(library, desc, &function));
  MTLComputePipelineDescriptor *descriptor = [[[MTLComputePipelineDescriptor alloc] init] autorelease];
  [descriptor setComputeFunction:function];
  NSString *label = metal_string(pipeline->label, strlen(pipeline->label));
  if (label != nil) {
    [descriptor setLabel:label];
  }
  MTLComputePipelineReflection *reflection = nil;
  NSError *error = nil;
  id<MTLComputePipelineState> state = metal_archive_make(device->archive, device->gpu, descriptor, &reflection, &error);
  if (state == nil) {
    /* Metal has no number for this error. */
    const char *text = metal_error_text(error);
    bool too_large = strstr(text, "hreadgroup memory") != NULL;
    return mps_fail(too_large ? MPS_STATUS_LIMIT_EXCEEDED : MPS_STATUS_COMPILE_FAILED,
                    "kernel '%s' cannot be made ready for '%s': %s", pipeline->kernel, library->device->info.name,
                    text);
  }
  mps_status status = list_arguments(pipeline, reflection);
  if (status != MPS_STATUS_OK) {
    [state release];
    return status;
  }
  pipeline->info.max_total_threads_per_threadgroup = (uint32_t)[state maxTotalThreadsPerThreadgroup];
  pipeline->info.thread_execution_width = (uint32_t)[state threadExecutionWidth];
  pipeline->info.static_threadgroup_memory = (uint32_t)[state staticThreadgroupMemoryLength];
  pipeline->impl = state;
  return MPS_STATUS_OK;
}

mps_status metal_pipeline_open(mps_pipeline *pipeline, const mps_pipeline_desc *desc) {
  return metal_guard("creating a pipeline", ^mps_status {
    return open_pipeline(pipeline, desc);
  });
}

void metal_pipeline_close(mps_pipeline *pipeline) {
  @autoreleasepool {
    [(id<MTLComputePipelineState>)pipeline->impl release];
  }
}
