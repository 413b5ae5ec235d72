#include "metal.h"

#include <inttypes.h>
#include <string.h>

/* Take over a reference to an MTLBuffer. */
static void set_impl(mps_buffer *buffer, id<MTLBuffer> impl) {
  buffer->impl = impl;
  buffer->contents = buffer->storage_mode == MPS_STORAGE_PRIVATE ? NULL : [impl contents];
  buffer->gpu_address = [impl gpuAddress];
  NSString *label = buffer->label != NULL ? metal_string(buffer->label, strlen(buffer->label)) : nil;
  if (label != nil) {
    [impl setLabel:label];
  }
}

/* Metal fills it with zeros. */
mps_status metal_buffer_open(mps_buffer *buffer) {
  return metal_guard("creating a buffer", ^mps_status {
    MTLResourceOptions options = metal_resource_options(buffer->storage_mode, buffer->cache_mode, buffer->hazard_mode);
    id<MTLBuffer> impl = [metal_gpu(buffer->device) newBufferWithLength:buffer->length options:options];
    if (impl == nil) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal has no memory for a buffer of %" PRIu64 " bytes on '%s'",
                      buffer->length, buffer->device->info.name);
    }
    set_impl(buffer, impl);
    return MPS_STATUS_OK;
  });
}

mps_status metal_buffer_open_in_heap(mps_buffer *buffer) {
  return metal_guard("creating a buffer in a heap", ^mps_status {
    mps_heap *heap = buffer->heap;
    id<MTLHeap> home = heap->impl;
    /* Tracking is the heap's business: Metal tracks a heap as a whole. */
    MTLResourceOptions options =
        metal_resource_options(buffer->storage_mode, buffer->cache_mode, (uint32_t)[home hazardTrackingMode]);
    id<MTLBuffer> impl = heap->type == MPS_HEAP_PLACEMENT
                             ? [home newBufferWithLength:buffer->length options:options offset:buffer->heap_offset]
                             : [home newBufferWithLength:buffer->length options:options];
    if (impl == nil) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY,
                      "the heap of %" PRIu64 " bytes has no room for a buffer of %" PRIu64 " bytes: %" PRIu64
                      " bytes are in use",
                      heap->size, buffer->length, (uint64_t)[home usedSize]);
    }
    set_impl(buffer, impl);
    return MPS_STATUS_OK;
  });
}

/* No deallocator: the core calls the caller's function when the last reference is gone, and command buffers hold none
 * of their own. */
mps_status metal_buffer_open_no_copy(mps_buffer *buffer) {
  return metal_guard("taking over memory", ^mps_status {
    MTLResourceOptions options = metal_resource_options(buffer->storage_mode, buffer->cache_mode, buffer->hazard_mode);
    id<MTLBuffer> impl = [metal_gpu(buffer->device) newBufferWithBytesNoCopy:buffer->contents
                                                                      length:buffer->length
                                                                     options:options
                                                                 deallocator:nil];
    if (impl == nil) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY,
                      "Metal cannot take over the %" PRIu64
                      " bytes at %p: they must be one mapping that can be written",
                      buffer->length, buffer->contents);
    }
    set_impl(buffer, impl);
    return MPS_STATUS_OK;
  });
}

/* Refuse what cannot be an object, as the sum of an object's address and an offset often is. */
static mps_status check_object(void *native) {
  bool is_aligned = (uintptr_t)native % 16 == 0; /* as malloc gives it */
  if (is_aligned && [(id)native respondsToSelector:@selector(gpuAddress)]) {
    return MPS_STATUS_OK;
  }
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_buffer_create_from_native: %p is %s, expected an id<MTLBuffer>",
                  native, is_aligned ? "an object of another kind" : "no address of an object");
}

mps_status metal_buffer_open_native(mps_buffer *buffer, void *native) {
  return metal_guard("taking over a buffer", ^mps_status {
    MPS_TRY(check_object(native));
    id<MTLBuffer> impl = native;
    if ([[impl device] registryID] != buffer->device->info.registry_id) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                      "mps_buffer_create_from_native: the MTLBuffer %p belongs to the GPU '%s' (registry id %" PRIu64
                      "), expected one of '%s' (%" PRIu64 ")",
                      native, [[[impl device] name] UTF8String], [[impl device] registryID], buffer->device->info.name,
                      buffer->device->info.registry_id);
    }
    MTLStorageMode storage_mode = [impl storageMode];
    if (storage_mode != MTLStorageModeShared && storage_mode != MTLStorageModePrivate) {
      return mps_fail(MPS_STATUS_UNSUPPORTED,
                      "mps_buffer_create_from_native: the MTLBuffer %p has storage mode %lu, expected shared (0) or "
                      "private (2)",
                      native, (unsigned long)storage_mode);
    }
    buffer->storage_mode = (uint32_t)storage_mode;
    buffer->length = [impl length];
    set_impl(buffer, [impl retain]);
    return MPS_STATUS_OK;
  });
}

void metal_buffer_close(mps_buffer *buffer) {
  @autoreleasepool {
    [(id<MTLBuffer>)buffer->impl release];
  }
}

void *metal_buffer_native(mps_buffer *buffer) {
  return buffer->impl;
}
