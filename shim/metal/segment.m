#include "queue.h"

#include "event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Operations of a segment, after which the GPU gets it. */
enum { MAX_OPERATIONS = 64 };

/* ---- opening ---- */

mps_status metal_segment_open(metal_queue *queue, metal_segment **out_segment) {
  if (queue->open != NULL) {
    *out_segment = queue->open;
    return MPS_STATUS_OK;
  }
  metal_segment *segment = calloc(1, sizeof *segment);
  if (segment == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a command buffer");
  }
  metal_log_attach(queue);
  /* Blocks while as many command buffers as the queue may have are in flight. */
  segment->commands = [[queue->commands commandBufferWithDescriptor:queue->descriptor] retain];
  if (segment->commands == nil) {
    free(segment);
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal gives no command buffer");
  }
  [segment->commands setLabel:queue->label];
  if (queue->resume_pending) {
    [segment->commands encodeWaitForEvent:queue->resume value:queue->resume_value];
    queue->resume_pending = false;
  }
  segment->queue = queue;
  metal_queue_ref(queue);
  queue->open = segment;
  *out_segment = segment;
  return MPS_STATUS_OK;
}

mps_status metal_segment_reserve(metal_segment *segment, size_t count) {
  size_t needed = segment->hold_count + count;
  if (needed <= segment->hold_room) {
    return MPS_STATUS_OK;
  }
  size_t room = needed > 2 * segment->hold_room ? needed : 2 * segment->hold_room;
  metal_hold *holds = realloc(segment->holds, room * sizeof *holds);
  if (holds == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to encode a command");
  }
  segment->holds = holds;
  segment->hold_room = room;
  return MPS_STATUS_OK;
}

static void add_hold(metal_segment *segment, metal_hold_kind kind, void *object, uint64_t value) {
  segment->holds[segment->hold_count++] = (metal_hold){.kind = kind, .object = object, .value = value};
}

void metal_segment_hold_buffer(metal_segment *segment, mps_buffer *buffer) {
  mps_buffer_begin_use(buffer);
  add_hold(segment, METAL_HOLD_BUFFER, buffer, 0);
}

void metal_segment_hold_pipeline(metal_segment *segment, mps_pipeline *pipeline) {
  mps_pipeline_hold(pipeline);
  add_hold(segment, METAL_HOLD_PIPELINE, pipeline, 0);
}

void metal_segment_hold_event(metal_segment *segment, mps_event *event, uint64_t value) {
  mps_event_hold(event);
  add_hold(segment, METAL_HOLD_EVENT, event, value);
}

void metal_segment_hold_native(metal_segment *segment, id object) {
  add_hold(segment, METAL_HOLD_NATIVE, [object retain], 0);
}

static void release_holds(metal_segment *segment) {
  for (size_t i = 0; i < segment->hold_count; i++) {
    void *object = segment->holds[i].object;
    switch (segment->holds[i].kind) {
    case METAL_HOLD_BUFFER:
      mps_buffer_end_use(object);
      break;
    case METAL_HOLD_PIPELINE:
      mps_pipeline_drop(object);
      break;
    case METAL_HOLD_EVENT:
      mps_event_drop(object);
      break;
    case METAL_HOLD_NATIVE:
      [(id)object release];
      break;
    }
  }
  free(segment->holds);
  segment->holds = NULL;
  segment->hold_count = segment->hold_room = 0;
}

static void free_segment(metal_segment *segment) {
  while (segment->handlers != NULL) {
    metal_handler *next = segment->handlers->next;
    free(segment->handlers);
    segment->handlers = next;
  }
  metal_queue *queue = segment->queue;
  [segment->commands release];
  free(segment->traced);
  free(segment);
  metal_queue_unref(queue);
}

/* ---- encoders ----
 *
 * Each one waits for the fence that the one before has updated. Metal by itself orders only what it tracks, and memory
 * of heaps it does not track unless told to. */

void metal_end_encoder(metal_queue *queue) {
  id<MTLCommandEncoder> encoder = queue->compute != nil ? (id<MTLCommandEncoder>)queue->compute : queue->blit;
  if (encoder == nil) {
    return;
  }
  if (queue->compute != nil) {
    [queue->compute updateFence:queue->fence];
    NSString *label = metal_string(queue->kernels, strlen(queue->kernels));
    if (label != nil) {
      [queue->compute setLabel:label];
    }
  } else {
    [queue->blit updateFence:queue->fence];
    [queue->blit setLabel:@METAL_BLIT_LABEL];
  }
  [encoder endEncoding];
  [encoder release];
  queue->fence_updated = true;
  queue->compute = nil;
  queue->blit = nil;
  queue->bound = nil;
  queue->kernels[0] = '\0';
}

id<MTLComputeCommandEncoder> metal_compute_encoder(metal_queue *queue) {
  if (queue->compute == nil) {
    metal_end_encoder(queue);
    queue->compute = [[queue->open->commands computeCommandEncoder] retain];
    if (queue->compute == nil) {
      mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal gives no compute encoder");
    } else if (queue->fence_updated) {
      [queue->compute waitForFence:queue->fence];
    }
  }
  return queue->compute;
}

id<MTLBlitCommandEncoder> metal_blit_encoder(metal_queue *queue) {
  if (queue->blit == nil) {
    metal_end_encoder(queue);
    queue->blit = [[queue->open->commands blitCommandEncoder] retain];
    if (queue->blit == nil) {
      mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal gives no blit encoder");
    } else if (queue->fence_updated) {
      [queue->blit waitForFence:queue->fence];
    }
  }
  return queue->blit;
}

void metal_segment_barrier(metal_queue *queue) {
  metal_end_encoder(queue);
  queue->resume_value++;
  [queue->open->commands encodeSignalEvent:queue->resume value:queue->resume_value];
  [queue->open->commands encodeWaitForEvent:queue->resume value:queue->resume_value];
}

/* ---- what a trace gets to know ---- */

void metal_segment_trace(metal_segment *segment, const mps_traced *traced) {
  if (traced->record.kind == 0) {
    return;
  }
  if (segment->traced_count == segment->traced_room) {
    size_t room = 2 * segment->traced_room + 4;
    mps_traced *grown = realloc(segment->traced, room * sizeof *grown);
    if (grown == NULL) {
      return; /* the command is more important than its record */
    }
    segment->traced = grown;
    segment->traced_room = room;
  }
  segment->traced[segment->traced_count++] = *traced;
}

static void trace_scheduled(metal_segment *segment) {
  for (size_t i = 0; i < segment->traced_count; i++) {
    mps_trace_begin(&segment->traced[i]);
  }
}

static bool takes_time(const mps_traced *traced) {
  return traced->record.kind != MPS_TRACE_SIGNAL && traced->record.kind != MPS_TRACE_WAIT;
}

/* Metal times a command buffer, not its commands: they share its times, and the record says with how many. */
static void trace_complete(metal_segment *segment, bool failed, uint64_t start, uint64_t end) {
  if (segment->traced_count == 0 && segment->traced_whole.record.kind == 0) {
    return;
  }
  mps_status status = failed ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK;
  start = start != 0 ? start : mps_now(); /* of a command buffer that never ran */
  end = end != 0 ? end : start;
  uint32_t together = 0;
  for (size_t i = 0; i < segment->traced_count; i++) {
    together += takes_time(&segment->traced[i]);
  }
  for (size_t i = 0; i < segment->traced_count; i++) {
    mps_traced *traced = &segment->traced[i];
    if (takes_time(traced)) {
      traced->record.together = together;
      mps_trace_end(traced, start, end, status);
    } else {
      uint64_t moment = traced->record.kind == MPS_TRACE_SIGNAL ? end : start;
      mps_trace_end(traced, moment, moment, status);
    }
  }
  segment->traced_whole.record.serial = segment->serial;
  mps_trace_end(&segment->traced_whole, start, end, status);
}

/* ---- completion, on a thread of Metal's ---- */

/* Labels of the encoders in a state, as "a, b"; "" if Metal names none. */
static const char *encoders_in(NSError *error, MTLCommandEncoderErrorState state) {
  NSMutableArray<NSString *> *labels = [NSMutableArray array];
  for (id<MTLCommandBufferEncoderInfo> info in [[error userInfo] objectForKey:MTLCommandBufferEncoderInfoErrorKey]) {
    if ([info errorState] == state && [[info label] length] > 0) {
      [labels addObject:[info label]];
    }
  }
  return [[labels componentsJoinedByString:@", "] UTF8String];
}

/* Why a command buffer failed. Metal tells which encoders did, or else which ones may have, but not which of their
 * kernels: an encoder's label is the list of them. */
static void describe_failure(const metal_segment *segment, char text[METAL_FAILURE_BYTES]) {
  NSError *error = [segment->commands error];
  const char *kernels = encoders_in(error, MTLCommandEncoderErrorStateFaulted);
  if (kernels[0] == '\0') {
    kernels = encoders_in(error, MTLCommandEncoderErrorStateAffected);
  }
  bool blit = strcmp(kernels, METAL_BLIT_LABEL) == 0;
  const char *before = kernels[0] == '\0'      ? "a command buffer"
                       : blit                  ? "a "
                       : strstr(kernels, ", ") ? "one of the kernels '"
                                               : "kernel '";
  snprintf(text, METAL_FAILURE_BYTES, "%s%s%s failed: %s (Metal's error %ld, queue '%s')", before, kernels,
           kernels[0] == '\0' || blit ? "" : "'", metal_error_text(error), (long)[error code],
           [segment->queue->label UTF8String]);
}

static uint64_t nanoseconds(CFTimeInterval seconds) {
  return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

/* What became of the segment becomes part of what became of its command buffer. */
static void note_outcome(metal_segment *segment, const char *failure, uint64_t start, uint64_t end) {
  metal_queue *queue = segment->queue;
  pthread_mutex_lock(&queue->progress);
  mps_command_info *info = metal_queue_info(queue, segment->serial);
  if (info->serial == segment->serial) {
    info->start = info->start == 0 || (start != 0 && start < info->start) ? start : info->start;
    info->end = end > info->end ? end : info->end;
    info->status = failure != NULL ? MPS_STATUS_EXECUTION_FAILED : info->status;
  }
  if (failure != NULL && queue->failed_serial != segment->serial) {
    queue->failed_serial = segment->serial;
    snprintf(queue->failed_text, sizeof queue->failed_text, "%s", failure);
  }
  pthread_mutex_unlock(&queue->progress);
  if (failure != NULL) {
    metal_failure_put(queue->failure, failure);
  }
}

static bool has_calls(const metal_segment *segment) {
  return segment->handlers != NULL || segment->callback != NULL;
}

static void call_handlers(metal_segment *segment, mps_handler_kind kind) {
  metal_queue *queue = segment->queue;
  char failure[METAL_FAILURE_BYTES] = "";
  pthread_mutex_lock(&queue->progress);
  mps_command_info info = *metal_queue_info(queue, segment->serial);
  if (kind == MPS_HANDLER_COMPLETED && queue->failed_serial == segment->serial) {
    snprintf(failure, sizeof failure, "%s", queue->failed_text);
  }
  pthread_mutex_unlock(&queue->progress);
  info.scheduled = 1;
  info.message = failure;
  if (kind == MPS_HANDLER_SCHEDULED) {
    info.start = info.end = 0;
  }
  for (metal_handler *handler = segment->handlers; handler != NULL; handler = handler->next) {
    if (handler->kind == kind) {
      handler->call(handler->user, &info);
    }
  }
}

/* On the handler thread. */
static void call_scheduled(metal_segment *segment) {
  if (!segment->scheduled_called) {
    segment->scheduled_called = true;
    call_handlers(segment, MPS_HANDLER_SCHEDULED);
  }
}

static void retire(metal_queue *queue);

/* On the handler thread, when all segments before are done with. */
static void make_calls(metal_segment *segment) {
  metal_queue *queue = segment->queue;
  metal_queue_calling = queue;
  call_scheduled(segment);
  if (segment->callback != NULL) {
    uint64_t start = mps_now();
    segment->callback(segment->callback_user);
    mps_trace_end(&segment->traced_callback, start, mps_now(), MPS_STATUS_OK);
    [queue->resume setSignaledValue:segment->resume_value];
  }
  call_handlers(segment, MPS_HANDLER_COMPLETED);
  metal_queue_calling = NULL;
  metal_queue_ref(queue); /* as in complete() */
  pthread_mutex_lock(&queue->progress);
  segment->calls_made = true;
  pthread_mutex_unlock(&queue->progress);
  retire(queue);
  metal_queue_unref(queue);
}

/* With the progress lock. */
static void wake_waiters(metal_queue *queue) {
  metal_queue_waiter **link = &queue->waiters;
  while (*link != NULL) {
    metal_queue_waiter *waiter = *link;
    if (waiter->number > queue->retired) {
      link = &waiter->next;
      continue;
    }
    *link = waiter->next;
    dispatch_semaphore_signal(waiter->wake);
  }
}

/* Be done with the segments at the head of the queue that are complete, in their order. */
static void retire(metal_queue *queue) {
  metal_segment *done = NULL;
  pthread_mutex_lock(&queue->progress);
  while (queue->first != NULL && queue->first->complete) {
    metal_segment *segment = queue->first;
    if (has_calls(segment) && !segment->calls_made) {
      if (!segment->calls_posted) {
        segment->calls_posted = true;
        dispatch_async(queue->handler_queue, ^{
          @autoreleasepool {
            make_calls(segment);
          }
        });
      }
      break;
    }
    queue->first = segment->next;
    if (queue->first == NULL) {
      queue->last = NULL;
    }
    queue->retired = segment->number;
    queue->stalled = false;
    atomic_fetch_sub_explicit(&mps_pending_commands, segment->operations, memory_order_relaxed);
    segment->next = done;
    done = segment;
  }
  wake_waiters(queue);
  pthread_mutex_unlock(&queue->progress);
  while (done != NULL) {
    metal_segment *next = done->next;
    free_segment(done);
    done = next;
  }
}

/* `failure` is NULL if all went well. */
static void complete(metal_segment *segment, const char *failure, uint64_t start, uint64_t end) {
  metal_queue *queue = segment->queue;
  note_outcome(segment, failure, start, end);
  trace_complete(segment, failure != NULL, start, end);
  release_holds(segment);
  if (segment->event != NULL) {
    metal_event_raise(segment->event, segment->event_value, end);
    mps_event_drop(segment->event);
  }
  /* From here on another thread may be done with the segment, and with the queue that it holds. */
  metal_queue_ref(queue);
  pthread_mutex_lock(&queue->progress);
  segment->complete = true;
  pthread_mutex_unlock(&queue->progress);
  retire(queue);
  metal_queue_unref(queue);
}

static void completed(metal_segment *segment);

/* The GPU signals an event before Metal tells that the command buffer with the signal is complete. So a segment that
 * has waited for one may be told of first: then it waits again, that whoever sees it complete sees complete what it
 * followed. true if it has to, and completed() is called again. */
static bool follows_incomplete(metal_segment *segment) {
  for (size_t i = 0; i < segment->hold_count; i++) {
    const metal_hold *hold = &segment->holds[i];
    if (hold->kind == METAL_HOLD_EVENT &&
        metal_event_when_reached(hold->object, hold->value, segment->queue->handler_queue, ^{
          completed(segment);
        })) {
      return true;
    }
  }
  return false;
}

static void completed(metal_segment *segment) {
  @autoreleasepool {
    if (follows_incomplete(segment)) {
      return;
    }
    char failure[METAL_FAILURE_BYTES];
    bool failed = [segment->commands status] == MTLCommandBufferStatusError;
    if (failed) {
      describe_failure(segment, failure);
    }
    complete(segment, failed ? failure : NULL, nanoseconds([segment->commands GPUStartTime]),
             nanoseconds([segment->commands GPUEndTime]));
  }
}

static void scheduled(metal_segment *segment) {
  metal_queue *queue = segment->queue;
  trace_scheduled(segment);
  pthread_mutex_lock(&queue->progress);
  mps_command_info *info = metal_queue_info(queue, segment->serial);
  if (info->serial == segment->serial) {
    info->scheduled = 1;
  }
  bool calls = segment->handlers != NULL && !segment->calls_posted;
  if (calls) {
    dispatch_async(queue->handler_queue, ^{
      @autoreleasepool {
        metal_queue_calling = queue;
        call_scheduled(segment);
        metal_queue_calling = NULL;
      }
    });
  }
  pthread_mutex_unlock(&queue->progress);
}

/* ---- submission ---- */

void metal_segment_count(metal_queue *queue) {
  queue->open->operations++;
  atomic_fetch_add_explicit(&mps_pending_commands, 1, memory_order_relaxed);
  metal_queue_begin_command(queue);
}

void metal_segment_bound(metal_queue *queue) {
  if (queue->open->operations >= MAX_OPERATIONS || (mps_trace_flags() & MPS_TRACE_COMMANDS) != 0) {
    metal_segment_submit(queue);
  }
}

static void link_segment(metal_queue *queue, metal_segment *segment) {
  pthread_mutex_lock(&queue->progress);
  if (queue->last != NULL) {
    queue->last->next = segment;
  } else {
    queue->first = segment;
  }
  queue->last = segment;
  queue->submitted = segment->number;
  pthread_mutex_unlock(&queue->progress);
}

/* Metal would not take the segment, and calls no handler: who waits for it must not wait for ever. */
static void abandon(metal_segment *segment, NSException *exception) {
  NSString *reason = [exception reason];
  [segment->commands release];
  segment->commands = nil;
  dispatch_async(segment->queue->handler_queue, ^{
    @autoreleasepool {
      char failure[METAL_FAILURE_BYTES];
      snprintf(failure, sizeof failure, "a command buffer could not be submitted: %s", [reason UTF8String]);
      complete(segment, failure, 0, 0);
    }
  });
}

void metal_segment_submit(metal_queue *queue) {
  metal_end_encoder(queue);
  metal_segment *segment = queue->open;
  queue->open = NULL;
  segment->number = ++queue->segment_number;
  segment->serial = queue->serial;
  mps_trace_command(&segment->traced_whole, queue->handle, MPS_TRACE_COMMAND_BUFFER, 0);
  link_segment(queue, segment);
  [segment->commands addScheduledHandler:^(id<MTLCommandBuffer> commands) {
    (void)commands;
    scheduled(segment);
  }];
  [segment->commands addCompletedHandler:^(id<MTLCommandBuffer> commands) {
    (void)commands;
    completed(segment);
  }];
  @try {
    [segment->commands commit];
  } @catch (NSException *exception) {
    abandon(segment, exception);
  }
}
