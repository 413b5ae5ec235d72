#include "metal.h"

#include <inttypes.h>

_Static_assert(MPS_STORAGE_SHARED == (int)MTLStorageModeShared, "storage modes are Metal's");
_Static_assert(MPS_STORAGE_PRIVATE == (int)MTLStorageModePrivate, "storage modes are Metal's");
_Static_assert(MPS_CACHE_DEFAULT == (int)MTLCPUCacheModeDefaultCache, "cache modes are Metal's");
_Static_assert(MPS_CACHE_WRITE_COMBINED == (int)MTLCPUCacheModeWriteCombined, "cache modes are Metal's");
_Static_assert(MPS_HAZARD_DEFAULT == (int)MTLHazardTrackingModeDefault, "hazard modes are Metal's");
_Static_assert(MPS_HAZARD_UNTRACKED == (int)MTLHazardTrackingModeUntracked, "hazard modes are Metal's");
_Static_assert(MPS_HAZARD_TRACKED == (int)MTLHazardTrackingModeTracked, "hazard modes are Metal's");
_Static_assert(MPS_HEAP_AUTOMATIC == (int)MTLHeapTypeAutomatic, "heap types are Metal's");
_Static_assert(MPS_HEAP_PLACEMENT == (int)MTLHeapTypePlacement, "heap types are Metal's");
_Static_assert(MPS_PURGEABLE_KEEP_CURRENT == (int)MTLPurgeableStateKeepCurrent, "purgeable states are Metal's");
_Static_assert(MPS_PURGEABLE_NON_VOLATILE == (int)MTLPurgeableStateNonVolatile, "purgeable states are Metal's");
_Static_assert(MPS_PURGEABLE_VOLATILE == (int)MTLPurgeableStateVolatile, "purgeable states are Metal's");
_Static_assert(MPS_PURGEABLE_EMPTY == (int)MTLPurgeableStateEmpty, "purgeable states are Metal's");

MTLResourceOptions metal_resource_options(uint32_t storage_mode, uint32_t cache_mode, uint32_t hazard_mode) {
  return (MTLResourceOptions)cache_mode << MTLResourceCPUCacheModeShift |
         (MTLResourceOptions)storage_mode << MTLResourceStorageModeShift |
         (MTLResourceOptions)hazard_mode << MTLResourceHazardTrackingModeShift;
}

void metal_heap_size_and_align(mps_device *device, const mps_buffer_desc *desc, uint64_t *size, uint64_t *align) {
  @autoreleasepool {
    MTLResourceOptions options = metal_resource_options(desc->storage_mode, desc->cache_mode, MPS_HAZARD_DEFAULT);
    MTLSizeAndAlign room = [metal_gpu(device) heapBufferSizeAndAlignWithLength:desc->length options:options];
    *size = room.size;
    *align = room.align;
  }
}

mps_status metal_heap_open(mps_heap *heap) {
  return metal_guard("creating a heap", ^mps_status {
    MTLHeapDescriptor *descriptor = [[[MTLHeapDescriptor alloc] init] autorelease];
    [descriptor setSize:heap->size];
    [descriptor setType:(MTLHeapType)heap->type];
    [descriptor setStorageMode:(MTLStorageMode)heap->storage_mode];
    [descriptor setCpuCacheMode:(MTLCPUCacheMode)heap->cache_mode];
    [descriptor setHazardTrackingMode:(MTLHazardTrackingMode)heap->hazard_mode];
    id<MTLHeap> impl = [metal_gpu(heap->device) newHeapWithDescriptor:descriptor];
    if (impl == nil) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal has no memory for a heap of %" PRIu64 " bytes on '%s'",
                      heap->size, heap->device->info.name);
    }
    heap->impl = impl;
    heap->size = [impl size];
    return MPS_STATUS_OK;
  });
}

void metal_heap_close(mps_heap *heap) {
  @autoreleasepool {
    [(id<MTLHeap>)heap->impl release];
  }
}

uint64_t metal_heap_used(mps_heap *heap) {
  @autoreleasepool {
    return [(id<MTLHeap>)heap->impl usedSize];
  }
}

mps_purgeable_state metal_heap_set_purgeable(mps_heap *heap, mps_purgeable_state state) {
  @autoreleasepool {
    return (mps_purgeable_state)[(id<MTLHeap>)heap->impl setPurgeableState:(MTLPurgeableState)state];
  }
}
