/* Heaps, buffers, events, fences. */
#include "gpu.h"

#include "resources.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 16384, HEAP_ALIGN = 256 };

static NSUInteger round_up(NSUInteger value, NSUInteger multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/* ---- pages ---- */

static _Atomic NSUInteger allocated;

NSUInteger standin_allocated(void) {
  return atomic_load(&allocated);
}

NSUInteger standin_capacity(void) {
  static _Atomic NSUInteger capacity;
  if (atomic_load(&capacity) == 0) {
    atomic_store(&capacity, host_limits_memory() / 4 * 3 / PAGE * PAGE);
  }
  return atomic_load(&capacity);
}

static char *map_pages(NSUInteger size) {
  if (atomic_fetch_add(&allocated, size) + size > standin_capacity()) {
    atomic_fetch_sub(&allocated, size);
    return NULL;
  }
  char *start = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    atomic_fetch_sub(&allocated, size);
    return NULL;
  }
  size_t head = -(uintptr_t)start & (PAGE - 1);
  if (head > 0) {
    munmap(start, head);
  }
  if (PAGE - head > 0) {
    munmap(start + head + size, PAGE - head);
  }
  return start + head;
}

static void unmap_pages(char *bytes, NSUInteger size) {
  munmap(bytes, size);
  atomic_fetch_sub(&allocated, size);
}

/* ---- what all resources have ---- */

@implementation StandinResource
- (void)setLabel:(NSString *)text {
  STANDIN_RULE(text != nil, "a label is nil");
  [text retain];
  [label release];
  label = text;
}
- (NSString *)label {
  return label != nil ? label : @"";
}
- (void)dealloc {
  STANDIN_RULE(atomic_load(&uses) == 0, "'%s' is released while a command buffer uses it", [[self label] UTF8String]);
  [label release];
  [super dealloc];
}
@end

/* ---- heaps ---- */

typedef struct heap_part {
  struct heap_part *next;
  NSUInteger offset, size;
  StandinBuffer *buffer; /* not retained */
} heap_part;

@implementation MTLHeapDescriptor
- (instancetype)init {
  storageMode = MTLStorageModePrivate; /* Metal's default */
  return self;
}
- (void)setSize:(NSUInteger)bytes {
  size = bytes;
}
- (void)setType:(MTLHeapType)kind_of_heap {
  type = kind_of_heap;
}
- (void)setStorageMode:(MTLStorageMode)mode {
  storageMode = mode;
}
- (void)setCpuCacheMode:(MTLCPUCacheMode)mode {
  cpuCacheMode = mode;
}
- (void)setHazardTrackingMode:(MTLHazardTrackingMode)mode {
  hazardTrackingMode = mode;
}
@end

MTLSizeAndAlign standin_heap_room(NSUInteger length) {
  return (MTLSizeAndAlign){round_up(length, HEAP_ALIGN), HEAP_ALIGN};
}

StandinHeap *standin_new_heap(MTLHeapDescriptor *descriptor) {
  STANDIN_RULE(descriptor->size > 0, "a heap of no bytes");
  NSUInteger size = round_up(descriptor->size, PAGE);
  char *bytes = standin_take("fail_heaps") || size < descriptor->size ? NULL : map_pages(size);
  if (bytes == NULL) {
    return nil;
  }
  StandinHeap *heap = [StandinHeap new];
  heap->size = size;
  heap->bytes = bytes;
  heap->descriptor = [descriptor retain];
  heap->purgeable = MTLPurgeableStateNonVolatile;
  pthread_mutex_init(&heap->lock, NULL);
  return heap;
}

static void check_heap_options(StandinHeap *heap, NSUInteger length, MTLResourceOptions options) {
  STANDIN_RULE(length > 0, "a buffer of no bytes");
  STANDIN_RULE((options >> 4 & 15) == heap->descriptor->storageMode, "a buffer's storage mode is not its heap's");
  STANDIN_RULE((options & 15) == heap->descriptor->cpuCacheMode, "a buffer's cache mode is not its heap's");
  STANDIN_RULE((options >> 8 & 3) == 0 || (options >> 8 & 3) == [heap hazardTrackingMode],
               "a buffer's hazard tracking is not its heap's");
}

/* Where `size` bytes lie free, by first fit; the heap's size if nowhere. With the lock. */
static heap_part **find_room(StandinHeap *heap, NSUInteger size, NSUInteger *offset) {
  heap_part **link = &heap->parts;
  *offset = 0;
  while (*link != NULL && (*link)->offset - *offset < size) {
    *offset = (*link)->offset + (*link)->size;
    link = &(*link)->next;
  }
  return link;
}

static StandinBuffer *place_buffer(StandinHeap *heap, NSUInteger length, NSUInteger offset, heap_part **link) {
  StandinBuffer *buffer = [StandinBuffer new];
  heap_part *part = calloc(1, sizeof *part);
  *part = (heap_part){.next = *link, .offset = offset, .size = standin_heap_room(length).size, .buffer = buffer};
  *link = part;
  buffer->bytes = heap->bytes + offset;
  buffer->length = length;
  buffer->storage = heap->descriptor->storageMode;
  buffer->tracked = [heap hazardTrackingMode] == MTLHazardTrackingModeTracked;
  buffer->heap = [heap retain];
  buffer->heapOffset = offset;
  return buffer;
}

@implementation StandinHeap
- (NSUInteger)size {
  return size;
}
- (NSUInteger)usedSize {
  NSUInteger used = 0, end = 0;
  pthread_mutex_lock(&lock);
  for (heap_part *part = parts; part != NULL; part = part->next) {
    NSUInteger from = part->offset > end ? part->offset : end;
    NSUInteger to = part->offset + part->size;
    used += to > from ? to - from : 0;
    end = to > end ? to : end;
  }
  pthread_mutex_unlock(&lock);
  return used;
}
- (MTLHazardTrackingMode)hazardTrackingMode {
  return descriptor->hazardTrackingMode == MTLHazardTrackingModeDefault ? MTLHazardTrackingModeUntracked
                                                                        : descriptor->hazardTrackingMode;
}
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state {
  MTLPurgeableState before = purgeable;
  if (state == MTLPurgeableStateEmpty) {
    memset(bytes, 0, size);
  }
  purgeable = state == MTLPurgeableStateKeepCurrent ? before : state;
  return before;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  STANDIN_RULE(descriptor->type == MTLHeapTypeAutomatic, "a placement heap wants an offset");
  check_heap_options(self, length, options);
  StandinBuffer *buffer = nil;
  pthread_mutex_lock(&lock);
  NSUInteger offset, needed = standin_heap_room(length).size;
  heap_part **link = find_room(self, needed, &offset);
  if (needed <= size && offset <= size - needed) {
    buffer = place_buffer(self, length, offset, link);
  }
  pthread_mutex_unlock(&lock);
  return buffer;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options offset:(NSUInteger)offset {
  STANDIN_RULE(descriptor->type == MTLHeapTypePlacement, "an automatic heap takes no offset");
  check_heap_options(self, length, options);
  MTLSizeAndAlign room = standin_heap_room(length);
  STANDIN_RULE(offset % room.align == 0 && room.size <= size && offset <= size - room.size,
               "a buffer does not fit at offset %lu", offset);
  pthread_mutex_lock(&lock);
  heap_part **link = &parts;
  while (*link != NULL && (*link)->offset < offset) {
    link = &(*link)->next;
  }
  StandinBuffer *buffer = place_buffer(self, length, offset, link);
  pthread_mutex_unlock(&lock);
  return buffer;
}
- (void)dealloc {
  STANDIN_RULE(parts == NULL, "a heap dies before its buffers");
  unmap_pages(bytes, size);
  [descriptor release];
  pthread_mutex_destroy(&lock);
  [super dealloc];
}
@end

/* ---- buffers ---- */

static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;
static StandinBuffer **buffers;
static NSUInteger buffer_count, buffer_room;

static void list_buffer(StandinBuffer *buffer) {
  pthread_mutex_lock(&buffers_lock);
  if (buffer_count == buffer_room) {
    buffer_room = buffer_room != 0 ? 2 * buffer_room : 64;
    buffers = realloc(buffers, buffer_room * sizeof *buffers);
  }
  buffers[buffer_count++] = buffer;
  pthread_mutex_unlock(&buffers_lock);
}

static void unlist_buffer(StandinBuffer *buffer) {
  pthread_mutex_lock(&buffers_lock);
  for (NSUInteger i = buffer_count; i-- > 0;) {
    if (buffers[i] == buffer) {
      buffers[i] = buffers[--buffer_count];
      break;
    }
  }
  pthread_mutex_unlock(&buffers_lock);
}

static void set_options(StandinBuffer *buffer, NSUInteger length, MTLResourceOptions options) {
  buffer->length = length;
  buffer->storage = options >> 4 & 15;
  buffer->tracked = (options >> 8 & 3) != MTLHazardTrackingModeUntracked;
  STANDIN_RULE(buffer->storage == MTLStorageModeShared || buffer->storage == MTLStorageModePrivate,
               "a buffer of storage mode %lu", buffer->storage);
}

StandinBuffer *standin_new_buffer(NSUInteger length, MTLResourceOptions options) {
  STANDIN_RULE(length > 0 && length <= standin_capacity(), "a buffer of %lu bytes", length);
  char *bytes = standin_take("fail_buffers") ? NULL : map_pages(round_up(length, PAGE));
  if (bytes == NULL) {
    return nil;
  }
  StandinBuffer *buffer = [StandinBuffer new];
  buffer->bytes = bytes;
  set_options(buffer, length, options);
  return buffer;
}

StandinBuffer *standin_new_borrowed_buffer(void *pointer, NSUInteger length, MTLResourceOptions options) {
  STANDIN_RULE((uintptr_t)pointer % PAGE == 0 && length > 0 && length % PAGE == 0,
               "memory at %p of %lu bytes is not made of whole pages", pointer, length);
  if (standin_take("fail_buffers")) {
    return nil;
  }
  StandinBuffer *buffer = [StandinBuffer new];
  buffer->bytes = pointer;
  buffer->borrowed = YES;
  set_options(buffer, length, options);
  STANDIN_RULE(buffer->storage == MTLStorageModeShared, "the caller's memory is made private");
  return buffer;
}

@implementation StandinBuffer
- (instancetype)init {
  list_buffer(self);
  return self;
}
- (id<MTLDevice>)device {
  return standin_owner();
}
- (MTLStorageMode)storageMode {
  return standin_get("managed_buffers") != 0 ? 1 : storage;
}
- (NSUInteger)length {
  return length;
}
- (void *)contents {
  return storage == MTLStorageModePrivate ? NULL : bytes;
}
- (uint64_t)gpuAddress {
  return (uint64_t)(uintptr_t)bytes;
}
- (void)dealloc {
  unlist_buffer(self);
  if (heap != nil) {
    pthread_mutex_lock(&heap->lock);
    heap_part **link = &heap->parts;
    while ((*link)->buffer != self) {
      link = &(*link)->next;
    }
    heap_part *part = *link;
    *link = part->next;
    free(part);
    pthread_mutex_unlock(&heap->lock);
    [heap release];
  } else if (!borrowed) {
    unmap_pages(bytes, round_up(length, PAGE));
  }
  [super dealloc];
}
@end

/* ---- events and fences ---- */

@implementation StandinEvent
- (instancetype)init {
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&changed, NULL);
  return self;
}
- (uint64_t)signaledValue {
  pthread_mutex_lock(&lock);
  uint64_t now = value;
  pthread_mutex_unlock(&lock);
  return now;
}
- (void)setSignaledValue:(uint64_t)target {
  pthread_mutex_lock(&lock);
  value = target;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}
- (void)waitFor:(uint64_t)target {
  pthread_mutex_lock(&lock);
  while (value < target) {
    pthread_cond_wait(&changed, &lock);
  }
  pthread_mutex_unlock(&lock);
}
- (void)dealloc {
  pthread_cond_destroy(&changed);
  pthread_mutex_destroy(&lock);
  [super dealloc];
}
@end

@implementation StandinFence
@end
