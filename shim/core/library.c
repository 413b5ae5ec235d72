#include "backend.h"
#include "check.h"
#include "trace.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>

/* "NAME" or "NAME=VALUE". */
static bool is_define(const char *text) {
  if (!isalpha((unsigned char)*text) && *text != '_') {
    return false;
  }
  size_t length = 1;
  while (isalnum((unsigned char)text[length]) || text[length] == '_') {
    length++;
  }
  return text[length] == '\0' || text[length] == '=';
}

static mps_status check_options(const char *function, const mps_compile_options *options) {
  if (options->math_mode > MPS_MATH_FAST) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: math_mode is %" PRIu32 ", not MPS_MATH_SAFE (0), _RELAXED (1) or _FAST (2)", function,
                    options->math_mode);
  }
  if ((options->flags & ~(uint32_t)(MPS_COMPILE_VALIDATE | MPS_COMPILE_LOGGING)) != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: flags is 0x%" PRIx32
                    ", which has bits other than MPS_COMPILE_VALIDATE (1) and MPS_COMPILE_LOGGING (2)",
                    function, options->flags);
  }
  if (options->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: the reserved field must be 0", function);
  }
  if (options->define_count > 0 && options->defines == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: define_count is %" PRIu32 ", but defines is NULL", function,
                    options->define_count);
  }
  for (uint32_t i = 0; i < options->define_count; i++) {
    if (options->defines[i] == NULL || !is_define(options->defines[i])) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: defines[%" PRIu32 "] is '%s', not NAME or NAME=VALUE", function,
                      i, options->defines[i] != NULL ? options->defines[i] : "NULL");
    }
  }
  if (options->include_dir_count > 0 && options->include_dirs == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: include_dir_count is %" PRIu32 ", but include_dirs is NULL",
                    function, options->include_dir_count);
  }
  for (uint32_t i = 0; i < options->include_dir_count; i++) {
    if (options->include_dirs[i] == NULL || options->include_dirs[i][0] == '\0') {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: include_dirs[%" PRIu32 "] is %s", function, i,
                      options->include_dirs[i] != NULL ? "empty" : "NULL");
    }
  }
  return MPS_STATUS_OK;
}

static void free_texts(mps_library *library) {
  for (uint32_t i = 0; i < library->kernel_count; i++) {
    free(library->kernel_names[i]);
  }
  free(library->kernel_names);
  for (uint32_t i = 0; i < library->constant_count; i++) {
    free((char *)library->constants[i].name);
  }
  free(library->constants);
}

static mps_library *new_library(mps_device *device) {
  mps_library *library = mps_object_new(MPS_KIND_LIBRARY, sizeof *library);
  if (library != NULL) {
    library->device = device;
  }
  return library;
}

static mps_status finish(mps_library *library, mps_status opened, mps_library **out_library) {
  if (opened != MPS_STATUS_OK) {
    mps_object_free(library, MPS_KIND_LIBRARY);
    return opened;
  }
  mps_device_hold(library->device);
  *out_library = library;
  return MPS_STATUS_OK;
}

mps_status mps_library_create_from_source(mps_device *device, const char *source, size_t length,
                                          const mps_compile_options *given, mps_library **out_library) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(source);
  MPS_REQUIRE(out_library);
  mps_compile_options options;
  MPS_READ(mps_compile_options, include_dir_count, &options, given);
  options.struct_size = sizeof options;
  MPS_TRY(check_options(__func__, &options));
  mps_library *library = new_library(device);
  if (library == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  uint64_t start = mps_trace_start_time();
  mps_status status = device->backend->library_from_source(library, source, length, &options);
  mps_trace_call(MPS_TRACE_LIBRARY, "source", start, status);
  return finish(library, status, out_library);
}

mps_status mps_library_create_from_file(mps_device *device, const char *path, mps_library **out_library) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(path);
  MPS_REQUIRE(out_library);
  mps_library *library = new_library(device);
  if (library == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  uint64_t start = mps_trace_start_time();
  mps_status status = device->backend->library_from_file(library, path);
  mps_trace_call(MPS_TRACE_LIBRARY, path, start, status);
  return finish(library, status, out_library);
}

mps_status mps_library_create_from_data(mps_device *device, const void *data, size_t size, mps_library **out_library) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(data);
  MPS_REQUIRE(out_library);
  mps_library *library = new_library(device);
  if (library == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  uint64_t start = mps_trace_start_time();
  mps_status status = device->backend->library_from_data(library, data, size);
  mps_trace_call(MPS_TRACE_LIBRARY, "data", start, status);
  return finish(library, status, out_library);
}

mps_status mps_library_retain(mps_library *library) {
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  mps_object_retain(library, MPS_KIND_LIBRARY);
  return MPS_STATUS_OK;
}

mps_status mps_library_release(mps_library *library) {
  if (library == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  if (mps_object_release(library, MPS_KIND_LIBRARY)) {
    mps_library_drop(library);
  }
  return MPS_STATUS_OK;
}

void mps_library_hold(mps_library *library) {
  mps_object_hold(library);
}

void mps_library_drop(mps_library *library) {
  if (!mps_object_drop(library)) {
    return;
  }
  mps_device *device = library->device;
  device->backend->library_close(library);
  free_texts(library);
  mps_object_free(library, MPS_KIND_LIBRARY);
  mps_device_drop(device);
}

mps_status mps_library_kernel_count(mps_library *library, uint32_t *out_count) {
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  MPS_REQUIRE(out_count);
  *out_count = library->kernel_count;
  return MPS_STATUS_OK;
}

mps_status mps_library_kernel_name(mps_library *library, uint32_t number, const char **out_name) {
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  MPS_REQUIRE(out_name);
  if (number >= library->kernel_count) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_library_kernel_name: number is %" PRIu32 ", but there are %" PRIu32 " kernels", number,
                    library->kernel_count);
  }
  *out_name = library->kernel_names[number];
  return MPS_STATUS_OK;
}

mps_status mps_library_constant_count(mps_library *library, uint32_t *out_count) {
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  MPS_REQUIRE(out_count);
  *out_count = library->constant_count;
  return MPS_STATUS_OK;
}

mps_status mps_library_constant(mps_library *library, uint32_t number, mps_constant_info *info) {
  MPS_ENTER(library, MPS_KIND_LIBRARY);
  MPS_CHECK_RESULT(mps_constant_info, required, info);
  if (number >= library->constant_count) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_library_constant: number is %" PRIu32 ", but there are %" PRIu32 " constants", number,
                    library->constant_count);
  }
  mps_struct_write(info, &library->constants[number], sizeof library->constants[number]);
  return MPS_STATUS_OK;
}
