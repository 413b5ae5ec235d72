/* The one device of the host backend, and the accounting of its memory. */
#ifndef MPS_HOST_DEVICE_H
#define MPS_HOST_DEVICE_H

#include "backend.h"

#define HOST_PAGE                                                                                                      \
  16384u /* what the GPUs' systems use: alignment of mappings and of memory taken over without a copy                  \
          */
#define HOST_BUFFER_ALIGN 256u /* of every buffer, in a heap or not */

/* Take `size` bytes of the process's share, or fail with OUT_OF_MEMORY and the numbers. `what` is the noun. */
mps_status host_memory_reserve(const char *what, uint64_t size);
void host_memory_unreserve(uint64_t size);
uint64_t host_memory_reserved(void);

/* Anonymous pages, aligned to HOST_PAGE and zero-filled; `size` is a multiple of it. NULL when the system refuses. */
void *host_pages_map(uint64_t size);
void host_pages_unmap(void *pages, uint64_t size);

uint32_t host_device_count(void);
const char *host_device_unavailable_reason(void);
mps_status host_device_open(mps_device *device);
void host_device_close(mps_device *device);
uint64_t host_device_allocated_size(mps_device *device);
void host_device_timestamps(mps_device *device, uint64_t *cpu, uint64_t *gpu);
void *host_device_native(mps_device *device);

void host_heap_size_and_align(mps_device *device, const mps_buffer_desc *desc, uint64_t *size, uint64_t *align);
mps_status host_heap_open(mps_heap *heap);
void host_heap_close(mps_heap *heap);
uint64_t host_heap_used(mps_heap *heap);
mps_purgeable_state host_heap_set_purgeable(mps_heap *heap, mps_purgeable_state state);

mps_status host_buffer_open(mps_buffer *buffer);
mps_status host_buffer_open_in_heap(mps_buffer *buffer);
mps_status host_buffer_open_no_copy(mps_buffer *buffer);
mps_status host_buffer_open_native(mps_buffer *buffer, void *native);
void host_buffer_close(mps_buffer *buffer);
void *host_buffer_native(mps_buffer *buffer);

static inline uint64_t host_round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) & ~(multiple - 1);
}

#endif
