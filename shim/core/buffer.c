#include "backend.h"
#include "check.h"
#include "trace.h"

#include <inttypes.h>
#include <stdlib.h>

/* Read and check what every kind of buffer needs. */
static mps_status read_desc(const char *function, const mps_device *device, const mps_buffer_desc *given,
                            mps_buffer_desc *desc) {
  MPS_TRY(mps_struct_read(function, "mps_buffer_desc", desc, sizeof *desc, given,
                          MPS_SIZE_THROUGH(mps_buffer_desc, label)));
  if (desc->length == 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: length must be at least 1 byte", function);
  }
  if (desc->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: the reserved field must be 0", function);
  }
  if (desc->length > device->info.max_buffer_length) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED,
                    "%s: a buffer of %" PRIu64 " bytes exceeds the limit of device '%s', which is %" PRIu64 " bytes",
                    function, desc->length, device->info.name, device->info.max_buffer_length);
  }
  return mps_check_modes(function, desc->storage_mode, desc->cache_mode, desc->hazard_mode);
}

static mps_buffer *new_buffer(mps_device *device, const mps_buffer_desc *desc) {
  mps_buffer *buffer = mps_object_new(MPS_KIND_BUFFER, sizeof *buffer);
  if (buffer == NULL) {
    return NULL;
  }
  buffer->label = mps_text_copy(desc->label);
  if (desc->label != NULL && buffer->label == NULL) {
    mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for the label of a buffer");
    mps_object_free(buffer, MPS_KIND_BUFFER);
    return NULL;
  }
  buffer->device = device;
  buffer->length = desc->length;
  buffer->storage_mode = desc->storage_mode;
  buffer->cache_mode = desc->cache_mode;
  buffer->hazard_mode = desc->hazard_mode;
  return buffer;
}

/* Give the buffer to the caller if the backend could open it. */
static mps_status finish(mps_buffer *buffer, mps_status opened, mps_buffer **out_buffer) {
  if (opened != MPS_STATUS_OK) {
    free(buffer->label);
    mps_object_free(buffer, MPS_KIND_BUFFER);
    return opened;
  }
  mps_device_hold(buffer->device);
  if (buffer->heap != NULL) {
    mps_heap_hold(buffer->heap);
  }
  mps_trace_memory(MPS_TRACE_BUFFER_CREATE, buffer, buffer->label, buffer->length);
  *out_buffer = buffer;
  return MPS_STATUS_OK;
}

/* The same for a buffer over what somebody else owns. */
static mps_status finish_taken(mps_buffer *buffer, void *taken, mps_status opened, mps_release_fn release, void *user,
                               mps_buffer **out_buffer) {
  if (opened == MPS_STATUS_OK) {
    buffer->taken = taken;
    buffer->release = release;
    buffer->release_user = user;
  }
  return finish(buffer, opened, out_buffer);
}

mps_status mps_device_heap_size_and_align(mps_device *device, const mps_buffer_desc *given, uint64_t *out_size,
                                          uint64_t *out_align) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_size);
  MPS_REQUIRE(out_align);
  mps_buffer_desc desc;
  MPS_TRY(read_desc(__func__, device, given, &desc));
  device->backend->heap_size_and_align(device, &desc, out_size, out_align);
  return MPS_STATUS_OK;
}

mps_status mps_buffer_create(mps_device *device, const mps_buffer_desc *given, mps_buffer **out_buffer) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_buffer);
  mps_buffer_desc desc;
  MPS_TRY(read_desc(__func__, device, given, &desc));
  mps_buffer *buffer = new_buffer(device, &desc);
  if (buffer == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  return finish(buffer, device->backend->buffer_open(buffer), out_buffer);
}

static mps_status check_placement(const mps_heap *heap, const mps_buffer_desc *desc, uint64_t offset) {
  if (heap->storage_mode != desc->storage_mode || heap->cache_mode != desc->cache_mode) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_buffer_create_in_heap: storage mode %" PRIu32 " and cache mode %" PRIu32
                    " are not those of the heap, %" PRIu32 " and %" PRIu32,
                    desc->storage_mode, desc->cache_mode, heap->storage_mode, heap->cache_mode);
  }
  if (heap->type == MPS_HEAP_AUTOMATIC) {
    if (offset != 0) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "mps_buffer_create_in_heap: offset is %" PRIu64
                      ", but only a placement heap takes one: give 0 for an automatic heap",
                      offset);
    }
    return MPS_STATUS_OK;
  }
  uint64_t size, align;
  heap->device->backend->heap_size_and_align(heap->device, desc, &size, &align);
  if (offset % align != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_buffer_create_in_heap: offset %" PRIu64 " is no multiple of the alignment, %" PRIu64, offset,
                    align);
  }
  if (offset > heap->size || size > heap->size - offset) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_buffer_create_in_heap: %" PRIu64 " bytes at offset %" PRIu64
                    " do not fit into the heap of %" PRIu64 " bytes",
                    size, offset, heap->size);
  }
  return MPS_STATUS_OK;
}

mps_status mps_buffer_create_in_heap(mps_heap *heap, const mps_buffer_desc *given, uint64_t offset,
                                     mps_buffer **out_buffer) {
  MPS_ENTER(heap, MPS_KIND_HEAP);
  MPS_REQUIRE(out_buffer);
  mps_device *device = heap->device;
  mps_buffer_desc desc;
  MPS_TRY(read_desc(__func__, device, given, &desc));
  MPS_TRY(check_placement(heap, &desc, offset));
  mps_buffer *buffer = new_buffer(device, &desc);
  if (buffer == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  buffer->heap = heap;
  buffer->heap_offset = offset;
  return finish(buffer, device->backend->buffer_open_in_heap(buffer), out_buffer);
}

mps_status mps_buffer_create_no_copy(mps_device *device, void *pointer, const mps_buffer_desc *given,
                                     mps_release_fn release, void *user, mps_buffer **out_buffer) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(pointer);
  MPS_REQUIRE(out_buffer);
  mps_buffer_desc desc;
  MPS_TRY(read_desc(__func__, device, given, &desc));
  uint32_t page = device->info.page_size;
  if ((uintptr_t)pointer % page != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_buffer_create_no_copy: address %p is no multiple of the page size, %" PRIu32 " bytes", pointer,
                    page);
  }
  if (desc.length % page != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_buffer_create_no_copy: length %" PRIu64 " is no multiple of the page size, %" PRIu32 " bytes",
                    desc.length, page);
  }
  if (desc.storage_mode != MPS_STORAGE_SHARED) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_buffer_create_no_copy: the caller's memory can only be MPS_STORAGE_SHARED");
  }
  mps_buffer *buffer = new_buffer(device, &desc);
  if (buffer == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  buffer->contents = pointer;
  return finish_taken(buffer, pointer, device->backend->buffer_open_no_copy(buffer), release, user, out_buffer);
}

mps_status mps_buffer_create_from_native(mps_device *device, void *native, mps_release_fn release, void *user,
                                         mps_buffer **out_buffer) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(native);
  MPS_REQUIRE(out_buffer);
  mps_buffer_desc desc = {.struct_size = sizeof desc};
  mps_buffer *buffer = new_buffer(device, &desc);
  if (buffer == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  return finish_taken(buffer, native, device->backend->buffer_open_native(buffer, native), release, user, out_buffer);
}

mps_status mps_buffer_retain(mps_buffer *buffer) {
  MPS_ENTER(buffer, MPS_KIND_BUFFER);
  mps_object_retain(buffer, MPS_KIND_BUFFER);
  return MPS_STATUS_OK;
}

mps_status mps_buffer_release(mps_buffer *buffer) {
  if (buffer == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(buffer, MPS_KIND_BUFFER);
  if (mps_object_release(buffer, MPS_KIND_BUFFER)) {
    mps_buffer_drop(buffer);
  }
  return MPS_STATUS_OK;
}

void mps_buffer_hold(mps_buffer *buffer) {
  mps_object_hold(buffer);
}

void mps_buffer_drop(mps_buffer *buffer) {
  if (!mps_object_drop(buffer)) {
    return;
  }
  mps_device *device = buffer->device;
  mps_heap *heap = buffer->heap;
  mps_release_fn release = buffer->release;
  void *user = buffer->release_user, *taken = buffer->taken;
  uint64_t length = buffer->length;
  mps_trace_memory(MPS_TRACE_BUFFER_RELEASE, buffer, buffer->label, length);
  device->backend->buffer_close(buffer);
  free(buffer->label);
  mps_object_free(buffer, MPS_KIND_BUFFER);
  if (heap != NULL) {
    mps_heap_drop(heap);
  }
  mps_device_drop(device);
  /* Last: the caller's function may do anything, releasing the device included. */
  if (release != NULL) {
    release(user, taken, length);
  }
}

void mps_buffer_begin_use(mps_buffer *buffer) {
  mps_object_hold(buffer);
  atomic_fetch_add_explicit(&buffer->uses, 1, memory_order_relaxed);
}

void mps_buffer_end_use(mps_buffer *buffer) {
  /* Release: who reads 0 uses also sees what the command wrote. */
  atomic_fetch_sub_explicit(&buffer->uses, 1, memory_order_release);
  mps_buffer_drop(buffer);
}

mps_status mps_buffer_get_info(mps_buffer *buffer, mps_buffer_info *info) {
  MPS_ENTER(buffer, MPS_KIND_BUFFER);
  MPS_CHECK_RESULT(mps_buffer_info, in_use, info);
  mps_buffer_info result = {
      .length = buffer->length,
      .contents = buffer->contents,
      .gpu_address = buffer->gpu_address,
      .heap_offset = buffer->heap != NULL && buffer->heap->type == MPS_HEAP_PLACEMENT ? buffer->heap_offset : 0,
      .heap = buffer->heap,
      .storage_mode = buffer->storage_mode,
      .in_use = atomic_load_explicit(&buffer->uses, memory_order_acquire) > 0,
  };
  mps_struct_write(info, &result, sizeof result);
  return MPS_STATUS_OK;
}

mps_status mps_buffer_contents(mps_buffer *buffer, void **out_contents) {
  MPS_ENTER(buffer, MPS_KIND_BUFFER);
  MPS_REQUIRE(out_contents);
  if (buffer->storage_mode == MPS_STORAGE_PRIVATE) {
    return mps_fail(MPS_STATUS_UNSUPPORTED,
                    "mps_buffer_contents: the CPU cannot see a buffer of private storage: copy it to a shared one");
  }
  *out_contents = buffer->contents;
  return MPS_STATUS_OK;
}

mps_status mps_buffer_native(mps_buffer *buffer, void **out_native) {
  MPS_ENTER(buffer, MPS_KIND_BUFFER);
  MPS_REQUIRE(out_native);
  *out_native = buffer->device->backend->buffer_native(buffer);
  return MPS_STATUS_OK;
}
