/* Encoders: what Metal would refuse, and the commands that are run later. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INLINE_BYTES = 4096, ARENA_ALIGN = 16 };

@implementation StandinEncoder
- (instancetype)init {
  end = &commands;
  state = MTLCommandEncoderErrorStatePending;
  return self;
}
- (void)checkOpen {
  STANDIN_RULE(!ended, "an encoder is told more after its end");
}
- (gpu_command *)addCommand {
  [self checkOpen];
  gpu_command *added = calloc(1, sizeof *added);
  *end = added;
  end = &added->next;
  return added;
}
- (void)endEncoding {
  [self checkOpen];
  ended = YES;
  owner->open = nil;
}
- (void)updateFence:(id<MTLFence>)given {
  [self checkOpen];
  StandinFence *fence = given;
  standin_use(owner, fence);
  fence->queue = owner->queue;
  /* Only an encoder that itself waited for all before it covers them. */
  fence->order = covered == order - 1 ? order : covered;
}
- (void)waitForFence:(id<MTLFence>)given {
  [self checkOpen];
  StandinFence *fence = given;
  STANDIN_RULE(fence->queue != NULL, "an encoder waits for a fence that none updates");
  standin_use(owner, fence);
  covered = fence->queue == owner->queue && fence->order > covered ? fence->order : covered;
}
- (void)dealloc {
  STANDIN_RULE(ended, "an encoder dies before its end");
  while (commands != NULL) {
    gpu_command *next = commands->next;
    free(commands->storage);
    free(commands);
    commands = next;
  }
  [super dealloc];
}
@end

void standin_touch(StandinEncoder *encoder, StandinBuffer *buffer) {
  standin_use(encoder->owner, buffer);
  if (buffer->heap != nil && !buffer->tracked) {
    void *queue = encoder->owner->queue;
    bool related = encoder->family != nil && encoder->family == buffer->lastFamily;
    STANDIN_RULE(buffer->lastQueue != queue || buffer->lastOrder == encoder->order ||
                     buffer->lastOrder <= encoder->covered || related,
                 "an encoder uses untracked memory, and waits for no fence since the encoder that used it before");
    buffer->lastQueue = queue;
    buffer->lastOrder = encoder->order;
    buffer->lastFamily = encoder->family;
  }
}

/* ---- compute ---- */

@implementation StandinComputeEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)given {
  [self checkOpen];
  STANDIN_RULE(given != nil, "a pipeline of nil");
  pipeline = given;
  standin_use(owner, pipeline);
}
- (void)checkSlot:(NSUInteger)index {
  [self checkOpen];
  STANDIN_RULE(index < MSLC_BUFFER_SLOTS, "slot %lu", index);
}
- (void)setBuffer:(id<MTLBuffer>)given offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [self checkSlot:index];
  StandinBuffer *buffer = given;
  STANDIN_RULE(buffer != nil && offset < buffer->length, "offset %lu is not in the buffer", offset);
  standin_touch(self, buffer);
  buffers[index] = buffer;
  offsets[index] = offset;
  byteCounts[index] = 0;
}
- (void)setBytes:(const void *)given length:(NSUInteger)length atIndex:(NSUInteger)index {
  [self checkSlot:index];
  STANDIN_RULE(given != NULL && length > 0 && length <= INLINE_BYTES, "%lu inline bytes", length);
  if (bytes[index] == NULL) {
    bytes[index] = malloc(INLINE_BYTES);
  }
  memcpy(bytes[index], given, length);
  byteCounts[index] = length;
  buffers[index] = nil;
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  [self checkSlot:index];
  STANDIN_RULE(length % 16 == 0, "%lu bytes of threadgroup memory are no multiple of 16", length);
  threadgroupLengths[index] = length;
}
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage {
  [self checkOpen];
  STANDIN_RULE(usage != 0, "a resource is used for nothing");
  standin_touch(self, (StandinBuffer *)resource);
}

/* Give each inline argument its place in the command's storage. */
- (void)bindTo:(gpu_command *)command {
  size_t size = 0;
  for (int i = 0; i < MSLC_BUFFER_SLOTS; i++) {
    size += (byteCounts[i] + 15) & ~(size_t)15;
  }
  char *place = command->storage = size > 0 ? aligned_alloc(256, (size + 255) & ~(size_t)255) : NULL;
  for (int i = 0; i < MSLC_BUFFER_SLOTS; i++) {
    if (byteCounts[i] > 0) {
      memcpy(place, bytes[i], byteCounts[i]);
      command->launch.buffers[i] = place;
      place += (byteCounts[i] + 15) & ~(size_t)15;
    } else if (buffers[i] != nil) {
      command->launch.buffers[i] = buffers[i]->bytes + offsets[i];
    }
  }
}
- (void)placeThreadgroupMemory:(mslc_launch *)launch {
  const mps_pipeline *kernel = pipeline->contents;
  unsigned arena = (kernel->info.static_threadgroup_memory + ARENA_ALIGN - 1u) & ~(ARENA_ALIGN - 1u);
  for (unsigned i = 0; i < MSLC_BUFFER_SLOTS; i++) {
    if ((kernel->threadgroup_slots >> i & 1) != 0) {
      STANDIN_RULE(threadgroupLengths[i] > 0, "threadgroup slot %u of '%s' has no length", i, kernel->kernel);
      launch->threadgroup_offset[i] = arena;
      arena += (unsigned)threadgroupLengths[i];
    }
  }
  STANDIN_RULE(arena <= MSLC_THREADGROUP_BYTES, "%u bytes of threadgroup memory", arena);
}
- (void)checkBound {
  const mps_pipeline *kernel = pipeline->contents;
  for (int i = 0; i < MSLC_BUFFER_SLOTS; i++) {
    STANDIN_RULE((kernel->buffer_slots >> i & 1) == 0 || buffers[i] != nil || byteCounts[i] > 0,
                 "buffer slot %d of '%s' is not bound", i, kernel->kernel);
  }
}
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)group {
  [self checkOpen];
  if (standin_take("raise_dispatch")) {
    [[NSException exceptionWithName:@"StandinException" reason:@"told to raise" userInfo:nil] raise];
  }
  STANDIN_RULE(pipeline != nil, "a dispatch without a pipeline");
  STANDIN_RULE(threads.width * threads.height * threads.depth > 0, "a grid of no threads");
  NSUInteger total = group.width * group.height * group.depth;
  STANDIN_RULE(total > 0 && total <= [pipeline maxTotalThreadsPerThreadgroup], "a threadgroup of %lu threads", total);
  [self checkBound];
  gpu_command *command = [self addCommand];
  command->logs = pipeline->library->logs;
  const NSUInteger grid[3] = {threads.width, threads.height, threads.depth};
  const NSUInteger size[3] = {group.width, group.height, group.depth};
  for (int i = 0; i < 3; i++) {
    command->launch.grid[i] = (unsigned)grid[i];
    command->launch.group[i] = (unsigned)size[i];
    command->launch.groups[i] = (unsigned)((grid[i] + size[i] - 1) / size[i]);
  }
  command->kernel = ((const host_kernel *)pipeline->contents->impl)->kernel;
  [self bindTo:command];
  [self placeThreadgroupMemory:&command->launch];
}
- (void)dealloc {
  for (int i = 0; i < MSLC_BUFFER_SLOTS; i++) {
    free(bytes[i]);
  }
  [super dealloc];
}
@end

/* ---- blits ----
 *
 * As kernels, so that one that touches memory which is gone fails as a kernel does. */

enum { SOURCE, TARGET, SIZE, VALUE }; /* slots; the last two hold numbers */

static size_t number(const mslc_launch *launch, int slot) {
  return (uintptr_t)launch->buffers[slot];
}

static void run_copy(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first;
  (void)last;
  memcpy(launch->buffers[TARGET], launch->buffers[SOURCE], number(launch, SIZE));
}

static void run_fill(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first;
  (void)last;
  memset(launch->buffers[TARGET], (int)number(launch, VALUE), number(launch, SIZE));
}

static const mslc_kernel copy_kernel = {.name = "copy", .run = run_copy};
static const mslc_kernel fill_kernel = {.name = "fill", .run = run_fill};

static void check_range(StandinBuffer *buffer, NSUInteger offset, NSUInteger size) {
  STANDIN_RULE(buffer != nil && size > 0 && offset <= buffer->length && size <= buffer->length - offset,
               "a blit of %lu bytes at %lu is not inside its buffer", size, offset);
  STANDIN_RULE(size <= INT32_MAX, "a blit of %lu bytes", size);
  STANDIN_RULE(standin_get("apple_family") != 0 || (offset | size) % 4 == 0,
               "a blit of %lu bytes at %lu is not made of whole words", size, offset);
}

@implementation StandinBlitEncoder
- (gpu_command *)addBlit:(const mslc_kernel *)kernel to:(char *)target size:(NSUInteger)size {
  gpu_command *command = [self addCommand];
  command->kernel = kernel;
  command->launch.groups[0] = command->launch.groups[1] = command->launch.groups[2] = 1;
  command->launch.buffers[TARGET] = target;
  command->launch.buffers[SIZE] = (void *)(uintptr_t)size;
  return command;
}
- (void)copyFromBuffer:(id<MTLBuffer>)source
          sourceOffset:(NSUInteger)sourceOffset
              toBuffer:(id<MTLBuffer>)target
     destinationOffset:(NSUInteger)targetOffset
                  size:(NSUInteger)size {
  StandinBuffer *from = source, *to = target;
  check_range(from, sourceOffset, size);
  check_range(to, targetOffset, size);
  STANDIN_RULE(from != to || sourceOffset + size <= targetOffset || targetOffset + size <= sourceOffset,
               "a blit's ranges overlap");
  standin_touch(self, from);
  standin_touch(self, to);
  gpu_command *command = [self addBlit:&copy_kernel to:to->bytes + targetOffset size:size];
  command->launch.buffers[SOURCE] = from->bytes + sourceOffset;
}
- (void)fillBuffer:(id<MTLBuffer>)target range:(NSRange)range value:(uint8_t)value {
  StandinBuffer *to = target;
  check_range(to, range.location, range.length);
  standin_touch(self, to);
  gpu_command *command = [self addBlit:&fill_kernel to:to->bytes + range.location size:range.length];
  command->launch.buffers[VALUE] = (void *)(uintptr_t)value;
}
@end

/* ---- running, on the queue's thread ---- */

bool standin_run_encoder(StandinEncoder *encoder, NSInteger *code, char *text, size_t size) {
  for (const gpu_command *command = encoder->commands; command != NULL; command = command->next) {
    const unsigned *groups = command->launch.groups;
    host_fault fault;
    standin_log_from(command->logs ? encoder->owner : nil);
    if (!host_kernel_run(command->kernel, &command->launch, 0, (uint64_t)groups[0] * groups[1] * groups[2], &fault)) {
      encoder->state = MTLCommandEncoderErrorStateFaulted;
      *code = MTLCommandBufferErrorPageFault;
      snprintf(text, size, "%s", fault.text);
      return false;
    }
  }
  encoder->state = MTLCommandEncoderErrorStateCompleted;
  return true;
}
