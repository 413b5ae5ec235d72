#include "heap.h"

#include "device.h"
#include "status.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* An automatic heap is cut into blocks without gaps. All of them are linked by address, so that a freed one finds its
 * neighbours, and the free ones are linked once more, so that a search does not pass the others. */
typedef struct heap_block {
  uint64_t offset;
  uint64_t size;
  bool is_free;
  struct heap_block *before, *after;
  struct heap_block *free_before, *free_after;
} heap_block;

typedef struct host_heap {
  pthread_mutex_t lock;
  char *pages;
  uint64_t size; /* of the pages */
  uint64_t used;
  mps_purgeable_state state;
  heap_block *free; /* of an automatic heap */
} host_heap;

void host_heap_size_and_align(mps_device *device, const mps_buffer_desc *desc, uint64_t *size, uint64_t *align) {
  (void)device;
  *size = host_round_up(desc->length, HOST_BUFFER_ALIGN);
  *align = HOST_BUFFER_ALIGN;
}

/* ---- free blocks ---- */

static void free_add(host_heap *heap, heap_block *block) {
  block->is_free = true;
  block->free_before = NULL;
  block->free_after = heap->free;
  if (heap->free) {
    heap->free->free_before = block;
  }
  heap->free = block;
}

static void free_remove(host_heap *heap, heap_block *block) {
  block->is_free = false;
  if (block->free_before) {
    block->free_before->free_after = block->free_after;
  } else {
    heap->free = block->free_after;
  }
  if (block->free_after) {
    block->free_after->free_before = block->free_before;
  }
}

/* Cut a free block to `size`; what is left over becomes a block of its own. false when there is no memory for that. */
static bool block_split(host_heap *heap, heap_block *block, uint64_t size) {
  if (block->size == size) {
    return true;
  }
  heap_block *rest = malloc(sizeof *rest);
  if (!rest) {
    return false;
  }
  rest->offset = block->offset + size;
  rest->size = block->size - size;
  rest->before = block;
  rest->after = block->after;
  if (rest->after) {
    rest->after->before = rest;
  }
  block->after = rest;
  block->size = size;
  free_add(heap, rest);
  return true;
}

/* Join a block with the one after it, which is freed. */
static void block_join(host_heap *heap, heap_block *block) {
  heap_block *next = block->after;
  free_remove(heap, next);
  block->size += next->size;
  block->after = next->after;
  if (next->after) {
    next->after->before = block;
  }
  free(next);
}

/* ---- heaps ---- */

mps_status host_heap_open(mps_heap *heap) {
  uint64_t size = host_round_up(heap->size, HOST_PAGE);
  if (size < heap->size) {
    size = heap->size; /* the sum overflowed: more than there is, which the reservation says */
  }
  MPS_TRY(host_memory_reserve("heap", size));
  host_heap *impl = calloc(1, sizeof *impl);
  heap_block *block = calloc(1, sizeof *block);
  char *pages = impl && block ? host_pages_map(size) : NULL;
  if (!pages) {
    free(impl);
    free(block);
    host_memory_unreserve(size);
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY,
                    "the system has no memory for a heap of %" PRIu64 " bytes; the host device holds %" PRIu64 " bytes",
                    heap->size, host_memory_reserved());
  }
  pthread_mutex_init(&impl->lock, NULL);
  impl->pages = pages;
  impl->size = size;
  impl->state = MPS_PURGEABLE_NON_VOLATILE;
  block->size = size;
  free_add(impl, block);
  heap->impl = impl;
  heap->size = size;
  return MPS_STATUS_OK;
}

/* Every buffer of the heap holds it, so that by now all of it is one free block again. */
void host_heap_close(mps_heap *heap) {
  host_heap *impl = heap->impl;
  host_pages_unmap(impl->pages, impl->size);
  host_memory_unreserve(impl->size);
  pthread_mutex_destroy(&impl->lock);
  free(impl->free);
  free(impl);
}

uint64_t host_heap_used(mps_heap *heap) {
  host_heap *impl = heap->impl;
  pthread_mutex_lock(&impl->lock);
  uint64_t used = impl->used;
  pthread_mutex_unlock(&impl->lock);
  return used;
}

/* Nothing takes volatile memory away here, as no system call could give it back with what it held; but its owner may
 * say that the contents are not needed, and then the system gets the pages at once. */
mps_purgeable_state host_heap_set_purgeable(mps_heap *heap, mps_purgeable_state state) {
  host_heap *impl = heap->impl;
  pthread_mutex_lock(&impl->lock);
  mps_purgeable_state previous = impl->state;
  if (state != MPS_PURGEABLE_KEEP_CURRENT) {
    impl->state = state;
  }
  if (state == MPS_PURGEABLE_EMPTY) {
    madvise(impl->pages, impl->size, MADV_DONTNEED);
  }
  pthread_mutex_unlock(&impl->lock);
  return previous;
}

/* ---- buffers ---- */

static heap_block *first_fit(host_heap *heap, uint64_t size) {
  heap_block *block = heap->free;
  while (block && block->size < size) {
    block = block->free_after;
  }
  return block;
}

static mps_status heap_full(mps_heap *heap, uint64_t size) {
  host_heap *impl = heap->impl;
  uint64_t largest = 0;
  for (heap_block *block = impl->free; block; block = block->free_after) {
    largest = block->size > largest ? block->size : largest;
  }
  return mps_fail(MPS_STATUS_OUT_OF_MEMORY,
                  "the heap of %" PRIu64 " bytes has no room for a buffer that takes %" PRIu64 ": %" PRIu64
                  " are used, and the largest free range is %" PRIu64,
                  heap->size, size, impl->used, largest);
}

mps_status host_heap_take(mps_buffer *buffer, void **out_address) {
  host_heap *heap = buffer->heap->impl;
  uint64_t size = host_round_up(buffer->length, HOST_BUFFER_ALIGN);
  pthread_mutex_lock(&heap->lock);
  if (buffer->heap->type == MPS_HEAP_AUTOMATIC) {
    heap_block *block = first_fit(heap, size);
    if (!block || !block_split(heap, block, size)) {
      mps_status status = heap_full(buffer->heap, size);
      pthread_mutex_unlock(&heap->lock);
      return status;
    }
    free_remove(heap, block);
    buffer->impl = block;
    *out_address = heap->pages + block->offset;
  } else {
    *out_address = heap->pages + buffer->heap_offset;
  }
  heap->used += size;
  pthread_mutex_unlock(&heap->lock);
  return MPS_STATUS_OK;
}

void host_heap_give(mps_buffer *buffer) {
  host_heap *heap = buffer->heap->impl;
  heap_block *block = buffer->impl;
  pthread_mutex_lock(&heap->lock);
  heap->used -= host_round_up(buffer->length, HOST_BUFFER_ALIGN);
  if (block) {
    free_add(heap, block);
    if (block->after && block->after->is_free) {
      block_join(heap, block);
    }
    if (block->before && block->before->is_free) {
      block_join(heap, block->before);
    }
  }
  pthread_mutex_unlock(&heap->lock);
}
