/* Pages and their accounting, and buffers of their own. Those in a heap are in heap.c, small ones in slab.c. */
#include "device.h"

#include "heap.h"
#include "resources.h"
#include "slab.h"
#include "status.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/* ---- accounting ---- */

static _Atomic uint64_t reserved;
static uint64_t capacity;
static pthread_once_t capacity_known = PTHREAD_ONCE_INIT;

static void find_capacity(void) {
  capacity = host_limits_memory();
}

mps_status host_memory_reserve(const char *what, uint64_t size) {
  pthread_once(&capacity_known, find_capacity);
  uint64_t held = atomic_load_explicit(&reserved, memory_order_relaxed);
  do {
    if (size > capacity || held > capacity - size) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY,
                      "no memory for a %s of %" PRIu64 " bytes: the host device already holds %" PRIu64
                      " bytes, and this process may use %" PRIu64,
                      what, size, held, capacity);
    }
  } while (!atomic_compare_exchange_weak_explicit(&reserved, &held, held + size, memory_order_relaxed,
                                                  memory_order_relaxed));
  return MPS_STATUS_OK;
}

void host_memory_unreserve(uint64_t size) {
  atomic_fetch_sub_explicit(&reserved, size, memory_order_relaxed);
}

uint64_t host_memory_reserved(void) {
  return atomic_load_explicit(&reserved, memory_order_relaxed);
}

/* ---- pages ---- */

#define HUGE_PAGE ((uint64_t)2 << 20)

/* Map more than is asked for, and give back what stands over on both sides of the aligned part. */
static void *map_aligned(uint64_t size, uint64_t align) {
  uint64_t room = size + align;
  char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    return NULL;
  }
  uint64_t head = -(uintptr_t)start & (align - 1);
  uint64_t tail = room - head - size;
  if (head) {
    munmap(start, head);
  }
  if (tail) {
    munmap(start + head + size, tail);
  }
  return start + head;
}

void *host_pages_map(uint64_t size) {
  if (size < HUGE_PAGE) {
    return map_aligned(size, HOST_PAGE);
  }
  void *pages = map_aligned(size, HUGE_PAGE);
#ifdef MADV_HUGEPAGE
  /* The first touch of small pages costs more than most kernels. Only a hint: nothing is lost if it is refused. */
  if (pages) {
    madvise(pages, size, MADV_HUGEPAGE);
  }
#endif
  return pages;
}

void host_pages_unmap(void *pages, uint64_t size) {
  munmap(pages, size);
}

/* ---- buffers ---- */

static void set_address(mps_buffer *buffer, void *address) {
  buffer->gpu_address = (uintptr_t)address;
  buffer->contents = buffer->storage_mode == MPS_STORAGE_PRIVATE ? NULL : address;
}

static void *buffer_address(const mps_buffer *buffer) {
  return (void *)(uintptr_t)buffer->gpu_address;
}

static uint64_t own_size(const mps_buffer *buffer) {
  return buffer->length <= HOST_SLAB_MAX ? host_slab_size(buffer->length) : host_round_up(buffer->length, HOST_PAGE);
}

/* impl of a buffer over the caller's memory. That of others outside a heap is their slab, or NULL if they have pages of
 * their own. */
static char no_copy;

mps_status host_buffer_open(mps_buffer *buffer) {
  uint64_t size = own_size(buffer);
  MPS_TRY(host_memory_reserve("buffer", size));
  void *address;
  if (buffer->length <= HOST_SLAB_MAX) {
    host_slab *slab;
    address = host_slab_take(buffer->length, &slab);
    buffer->impl = slab;
    if (address) {
      memset(address, 0, size);
    }
  } else {
    address = host_pages_map(size);
  }
  if (!address) {
    host_memory_unreserve(size);
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY,
                    "the system has no memory for a buffer of %" PRIu64 " bytes; the host device holds %" PRIu64
                    " bytes",
                    buffer->length, host_memory_reserved());
  }
  set_address(buffer, address);
  return MPS_STATUS_OK;
}

mps_status host_buffer_open_in_heap(mps_buffer *buffer) {
  void *address;
  MPS_TRY(host_heap_take(buffer, &address));
  set_address(buffer, address);
  return MPS_STATUS_OK;
}

mps_status host_buffer_open_no_copy(mps_buffer *buffer) {
  buffer->gpu_address = (uintptr_t)buffer->contents;
  buffer->impl = &no_copy;
  return MPS_STATUS_OK;
}

mps_status host_buffer_open_native(mps_buffer *buffer, void *native) {
  (void)buffer;
  return mps_fail(MPS_STATUS_UNSUPPORTED,
                  "mps_buffer_create_from_native: the host device has no buffers of another's making, and cannot use "
                  "%p: only a Metal device takes an id<MTLBuffer>; for memory there is mps_buffer_create_no_copy",
                  native);
}

void host_buffer_close(mps_buffer *buffer) {
  if (buffer->heap) {
    host_heap_give(buffer);
  } else if (buffer->impl != &no_copy) {
    if (buffer->impl) {
      host_slab_give(buffer->impl, buffer_address(buffer));
    } else {
      host_pages_unmap(buffer_address(buffer), own_size(buffer));
    }
    host_memory_unreserve(own_size(buffer));
  }
}

void *host_buffer_native(mps_buffer *buffer) {
  (void)buffer;
  return NULL;
}
