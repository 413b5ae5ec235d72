/* Command queues and command buffers: each queue has a thread that runs what is committed, in order. */
#include "gpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

NSErrorDomain const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";
NSErrorUserInfoKey const MTLCommandBufferEncoderInfoErrorKey = @"MTLCommandBufferEncoderInfoErrorKey";

static CFTimeInterval seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

@implementation MTLCommandBufferDescriptor
- (instancetype)init {
  retainedReferences = YES;
  return self;
}
- (void)setRetainedReferences:(BOOL)retained {
  retainedReferences = retained;
}
- (void)setErrorOptions:(MTLCommandBufferErrorOption)options {
  errorOptions = options;
}
- (void)setLogState:(id<MTLLogState>)state {
  STANDIN_RULE(standin_get("os_major") >= 15, "setLogState: is of macOS 15");
  [state retain];
  [logState release];
  logState = state;
}
- (void)dealloc {
  [logState release];
  [super dealloc];
}
@end

/* ---- queue ---- */

/* One for all queues, as Metal may have it: a handler that blocks there blocks everybody's. */
static dispatch_queue_t completion_queue(void) {
  static dispatch_queue_t queue;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    queue = standin_immortal(dispatch_queue_create("standin.completions", DISPATCH_QUEUE_SERIAL));
  });
  return queue;
}

id<MTLCommandQueue> standin_new_queue(NSUInteger room) {
  STANDIN_RULE(room > 0, "a queue for no command buffer");
  if (standin_take("fail_queues")) {
    return nil;
  }
  StandinQueue *queue = [StandinQueue new];
  queue->room = room;
  queue->worker = dispatch_queue_create("standin.queue", DISPATCH_QUEUE_SERIAL);
  queue->completions = completion_queue();
  pthread_mutex_init(&queue->lock, NULL);
  pthread_cond_init(&queue->freed, NULL);
  return queue;
}

static void free_room(StandinCommandBuffer *commands) {
  if (commands->counted) {
    commands->counted = NO;
    pthread_mutex_lock(&commands->queue->lock);
    commands->queue->outstanding--;
    pthread_cond_signal(&commands->queue->freed);
    pthread_mutex_unlock(&commands->queue->lock);
  }
}

@implementation StandinQueue
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor *)descriptor {
  if (standin_take("fail_command_buffers")) {
    return nil;
  }
  pthread_mutex_lock(&lock);
  while (outstanding == room) {
    pthread_cond_wait(&freed, &lock);
  }
  outstanding++;
  pthread_mutex_unlock(&lock);
  StandinCommandBuffer *commands = [[StandinCommandBuffer new] autorelease];
  commands->queue = [self retain];
  commands->counted = YES;
  commands->logState = [(StandinLogState *)descriptor->logState retain];
  commands->loggedEnd = &commands->logged;
  commands->retains = descriptor->retainedReferences;
  commands->tellsEncoders = descriptor->errorOptions == MTLCommandBufferErrorOptionEncoderExecutionStatus;
  return commands;
}
- (void)dealloc {
  pthread_mutex_destroy(&lock);
  pthread_cond_destroy(&freed);
  dispatch_release(worker);
  [super dealloc];
}
@end

/* ---- what a command buffer uses ---- */

void standin_use(StandinCommandBuffer *commands, StandinResource *resource) {
  if (commands->usedCount == commands->usedRoom) {
    commands->usedRoom = commands->usedRoom != 0 ? 2 * commands->usedRoom : 16;
    commands->used = realloc(commands->used, commands->usedRoom * sizeof *commands->used);
  }
  commands->used[commands->usedCount++] = commands->retains ? [resource retain] : resource;
  atomic_fetch_add(&resource->uses, 1);
}

static void end_uses(StandinCommandBuffer *commands) {
  for (NSUInteger i = 0; i < commands->usedCount; i++) {
    atomic_fetch_sub(&commands->used[i]->uses, 1);
    if (commands->retains) {
      [commands->used[i] release];
    }
  }
  commands->usedCount = 0;
}

@implementation StandinEntry
- (void)dealloc {
  [encoder release];
  [super dealloc];
}
@end

/* ---- errors ---- */

@interface StandinEncoderInfo : NSObject <MTLCommandBufferEncoderInfo> {
@public
  NSString *label;
  MTLCommandEncoderErrorState errorState;
}
@end

@implementation StandinEncoderInfo
- (NSString *)label {
  return label;
}
- (MTLCommandEncoderErrorState)errorState {
  return errorState;
}
- (void)dealloc {
  [label release];
  [super dealloc];
}
@end

static NSError *make_error(StandinCommandBuffer *commands, NSInteger code, const char *text) {
  NSMutableDictionary *info = [NSMutableDictionary dictionary];
  [info setObject:[NSString stringWithUTF8String:text] forKey:NSLocalizedDescriptionKey];
  if (commands->tellsEncoders && standin_get("silent_errors") == 0) {
    NSMutableArray *infos = [NSMutableArray array];
    for (StandinEntry *entry in commands->entries) {
      if (entry->encoder != nil) {
        StandinEncoderInfo *told = [[StandinEncoderInfo new] autorelease];
        told->label = [[entry->encoder label] retain];
        told->errorState = entry->encoder->state;
        [infos addObject:told];
      }
    }
    [info setObject:infos forKey:MTLCommandBufferEncoderInfoErrorKey];
  }
  return [NSError errorWithDomain:MTLCommandBufferErrorDomain code:code userInfo:info];
}

/* ---- command buffer ---- */

static void call_handlers(StandinCommandBuffer *commands, NSMutableArray *handlers) {
  for (id handler in handlers) {
    ((MTLCommandBufferHandler)handler)(commands);
  }
}

/* What comes after the failing command is not run, signals included. */
static bool run_entries(StandinCommandBuffer *commands, NSInteger *code, char *text, size_t size) {
  for (StandinEntry *entry in commands->entries) {
    if (entry->encoder != nil) {
      if (!standin_run_encoder(entry->encoder, code, text, size)) {
        return false;
      }
    } else if (entry->signals) {
      [entry->event setSignaledValue:entry->value];
    } else {
      [entry->event waitFor:entry->value];
    }
  }
  return true;
}

/* On the queue's thread. */
static void run(StandinCommandBuffer *commands) {
  while (standin_get("kept_commands") != 0) {
    usleep(500);
  }
  commands->status = MTLCommandBufferStatusScheduled;
  dispatch_async(commands->queue->completions, ^{
    @autoreleasepool {
      call_handlers(commands, commands->scheduledHandlers);
    }
  });
  char text[512] = "";
  NSInteger code = MTLCommandBufferErrorInternal;
  commands->started = seconds();
  bool failed = false;
  if (standin_take("fail_commands")) {
    strcpy(text, "the stand-in was told to fail");
    failed = true;
  } else {
    failed = !run_entries(commands, &code, text, sizeof text);
  }
  commands->ended = seconds();
  if (failed) {
    commands->error = [make_error(commands, code, text) retain];
  }
  commands->status = failed ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
  end_uses(commands);
  free_room(commands);
  dispatch_async(commands->queue->completions, ^{
    @autoreleasepool {
      standin_log_deliver(commands);
      call_handlers(commands, commands->completedHandlers);
      standin_captured(commands);
    }
    standin_end_work();
  });
}

@implementation StandinCommandBuffer
- (instancetype)init {
  entries = [NSMutableArray new];
  scheduledHandlers = [NSMutableArray new];
  completedHandlers = [NSMutableArray new];
  return self;
}
- (void)checkOpen {
  STANDIN_RULE(status == MTLCommandBufferStatusNotEnqueued, "a committed command buffer is told more");
  STANDIN_RULE(open == nil, "a command buffer is told more while an encoder of it is open");
}
- (id)openEncoder:(StandinEncoder *)encoder {
  [self checkOpen];
  StandinEntry *entry = [[StandinEntry new] autorelease];
  entry->encoder = [encoder retain];
  [entries addObject:entry];
  encoder->owner = self;
  encoder->order = ++queue->encoders;
  encoder->covered = queue->covered;
  open = encoder;
  return encoder;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return standin_take("fail_encoders") ? nil : [self openEncoder:[[StandinComputeEncoder new] autorelease]];
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  return standin_take("fail_encoders") ? nil : [self openEncoder:[[StandinBlitEncoder new] autorelease]];
}
- (void)addEvent:(id<MTLEvent>)event value:(uint64_t)value signals:(BOOL)signals {
  [self checkOpen];
  STANDIN_RULE(event != nil, "a signal of nil");
  StandinEntry *entry = [[StandinEntry new] autorelease];
  entry->event = (StandinEvent *)event;
  entry->value = value;
  entry->signals = signals;
  [entries addObject:entry];
  standin_use(self, entry->event);
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  [self addEvent:event value:value signals:YES];
  StandinEvent *signalled = (StandinEvent *)event;
  pthread_mutex_lock(&signalled->lock);
  signalled->signalQueue = queue;
  signalled->signalValue = value;
  signalled->signalOrder = queue->encoders;
  pthread_mutex_unlock(&signalled->lock);
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  [self addEvent:event value:value signals:NO];
  StandinEvent *awaited = (StandinEvent *)event;
  pthread_mutex_lock(&awaited->lock);
  if (awaited->signalQueue == queue && awaited->signalValue == value) {
    queue->covered = awaited->signalOrder;
  }
  pthread_mutex_unlock(&awaited->lock);
}
- (void)addScheduledHandler:(MTLCommandBufferHandler)handler {
  STANDIN_RULE(status == MTLCommandBufferStatusNotEnqueued, "a handler comes after the commit");
  handler = Block_copy(handler);
  [scheduledHandlers addObject:(id)handler];
  Block_release(handler);
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
  STANDIN_RULE(status == MTLCommandBufferStatusNotEnqueued, "a handler comes after the commit");
  handler = Block_copy(handler);
  [completedHandlers addObject:(id)handler];
  Block_release(handler);
}
- (void)commit {
  [self checkOpen];
  if (standin_take("raise_commit")) {
    [[NSException exceptionWithName:@"StandinException" reason:@"told to raise" userInfo:nil] raise];
  }
  status = MTLCommandBufferStatusCommitted;
  standin_begin_work();
  dispatch_async(queue->worker, ^{
    @autoreleasepool {
      run(self);
    }
  });
}
- (MTLCommandBufferStatus)status {
  return status;
}
- (NSError *)error {
  return error;
}
- (CFTimeInterval)GPUStartTime {
  return started;
}
- (CFTimeInterval)GPUEndTime {
  return ended;
}
- (void)dealloc {
  STANDIN_RULE(open == nil, "a command buffer dies with an open encoder");
  end_uses(self);
  free_room(self);
  free(used);
  [entries release];
  [scheduledHandlers release];
  [completedHandlers release];
  [logState release];
  [error release];
  [queue release];
  [super dealloc];
}
@end
