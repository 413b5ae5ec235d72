#include "backend.h"
#include "check.h"
#include "trace.h"

#include <inttypes.h>

mps_status mps_heap_create(mps_device *device, const mps_heap_desc *given, mps_heap **out_heap) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_heap);
  mps_heap_desc desc;
  MPS_READ(mps_heap_desc, hazard_mode, &desc, given);
  if (desc.size == 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_heap_create: size must be at least 1 byte");
  }
  if (desc.type > MPS_HEAP_PLACEMENT) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_heap_create: type is %" PRIu32 ", not MPS_HEAP_AUTOMATIC (0) or MPS_HEAP_PLACEMENT (1)",
                    desc.type);
  }
  MPS_TRY(mps_check_modes(__func__, desc.storage_mode, desc.cache_mode, desc.hazard_mode));

  mps_heap *heap = mps_object_new(MPS_KIND_HEAP, sizeof *heap);
  if (heap == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  heap->device = device;
  heap->size = desc.size;
  heap->type = desc.type;
  heap->storage_mode = desc.storage_mode;
  heap->cache_mode = desc.cache_mode;
  heap->hazard_mode = desc.hazard_mode;
  mps_status status = device->backend->heap_open(heap);
  if (status != MPS_STATUS_OK) {
    mps_object_free(heap, MPS_KIND_HEAP);
    return status;
  }
  mps_device_hold(device);
  mps_trace_memory(MPS_TRACE_HEAP_CREATE, heap, NULL, heap->size);
  *out_heap = heap;
  return MPS_STATUS_OK;
}

mps_status mps_heap_retain(mps_heap *heap) {
  MPS_TRY(mps_fork_check());
  MPS_TRY(mps_object_check_borrowed(heap, MPS_KIND_HEAP, __func__)); /* as mps_buffer_get_info gives it */
  mps_object_retain(heap, MPS_KIND_HEAP);
  return MPS_STATUS_OK;
}

mps_status mps_heap_release(mps_heap *heap) {
  if (heap == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(heap, MPS_KIND_HEAP);
  if (mps_object_release(heap, MPS_KIND_HEAP)) {
    mps_heap_drop(heap);
  }
  return MPS_STATUS_OK;
}

void mps_heap_hold(mps_heap *heap) {
  mps_object_hold(heap);
}

void mps_heap_drop(mps_heap *heap) {
  if (!mps_object_drop(heap)) {
    return;
  }
  mps_device *device = heap->device;
  mps_trace_memory(MPS_TRACE_HEAP_RELEASE, heap, NULL, heap->size);
  device->backend->heap_close(heap);
  mps_object_free(heap, MPS_KIND_HEAP);
  mps_device_drop(device);
}

mps_status mps_heap_get_size(mps_heap *heap, uint64_t *out_size, uint64_t *out_used) {
  MPS_ENTER(heap, MPS_KIND_HEAP);
  MPS_REQUIRE(out_size);
  MPS_REQUIRE(out_used);
  *out_size = heap->size;
  *out_used = heap->device->backend->heap_used(heap);
  return MPS_STATUS_OK;
}

mps_status mps_heap_set_purgeable(mps_heap *heap, mps_purgeable_state state, mps_purgeable_state *out_previous) {
  MPS_ENTER(heap, MPS_KIND_HEAP);
  MPS_REQUIRE(out_previous);
  if (state < MPS_PURGEABLE_KEEP_CURRENT || state > MPS_PURGEABLE_EMPTY) {
    return mps_fail(
        MPS_STATUS_INVALID_ARGUMENT,
        "mps_heap_set_purgeable: state is %d, not MPS_PURGEABLE_KEEP_CURRENT (1) to MPS_PURGEABLE_EMPTY (4)",
        (int)state);
  }
  *out_previous = heap->device->backend->heap_set_purgeable(heap, state);
  return MPS_STATUS_OK;
}
