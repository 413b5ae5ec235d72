#include "queue.h"

#include "event.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Metal blocks whoever wants one command buffer more than a queue may have in flight, which a caller that would have to
 * signal an event first could wait for in vain. So Metal is told more than is ever needed, and the caller's own number
 * is kept here: a commit waits while so many are in flight, lest a loop without waits fills the memory, but not for
 * ever, and once in vain is enough until something is done. */
enum { ROOM = 2048 };
#define PATIENCE_NS 250000000u

_Thread_local metal_queue *metal_queue_calling;

/* ---- life ---- */

static void free_queue(metal_queue *queue) {
  @autoreleasepool {
    [queue->commands release];
    [queue->descriptor release];
    [queue->log_state release];
    [queue->fence release];
    [queue->resume release];
    [queue->label release];
    if (queue->handler_queue != NULL) {
      dispatch_release(queue->handler_queue);
    }
  }
  if (queue->failure != NULL) {
    metal_failure_drop(queue->failure);
  }
  pthread_mutex_destroy(&queue->encoding);
  pthread_mutex_destroy(&queue->progress);
  free(queue);
}

void metal_queue_ref(metal_queue *queue) {
  atomic_fetch_add_explicit(&queue->references, 1, memory_order_relaxed);
}

void metal_queue_unref(metal_queue *queue) {
  if (atomic_fetch_sub_explicit(&queue->references, 1, memory_order_acq_rel) == 1) {
    free_queue(queue);
  }
}

/* Everything that a queue is made of; false if some of it could not be had. */
static bool fill_queue(metal_queue *queue, const mps_queue *handle) {
  id<MTLDevice> gpu = metal_gpu(handle->device);
  NSString *label = metal_string(handle->label, strlen(handle->label));
  queue->label = [(label != nil ? label : @"queue") retain];
  queue->max_in_flight = handle->max_command_buffers;
  queue->gpu = gpu;
  queue->commands = [gpu newCommandQueueWithMaxCommandBufferCount:ROOM];
  queue->fence = [gpu newFence];
  queue->resume = [gpu newSharedEvent];
  queue->failure = metal_failure_new();
  queue->handler_queue = dispatch_queue_create("mpscffi.handlers", DISPATCH_QUEUE_SERIAL);
  queue->descriptor = [[MTLCommandBufferDescriptor alloc] init];
  [queue->descriptor setRetainedReferences:NO];
  [queue->descriptor setErrorOptions:MTLCommandBufferErrorOptionEncoderExecutionStatus];
  [queue->commands setLabel:queue->label];
  return queue->commands != nil && queue->fence != nil && queue->resume != nil && queue->failure != NULL;
}

mps_status metal_queue_open(mps_queue *handle) {
  return metal_guard("creating a queue", ^mps_status {
    metal_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a queue");
    }
    atomic_init(&queue->references, 1);
    queue->handle = handle;
    pthread_mutex_init(&queue->encoding, NULL);
    pthread_mutex_init(&queue->progress, NULL);
    if (!fill_queue(queue, handle)) {
      free_queue(queue);
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal gives no queue on '%s'", handle->device->info.name);
    }
    handle->impl = queue;
    return MPS_STATUS_OK;
  });
}

/* What was encoded is committed already; a segment that is still open has no command in it. */
void metal_queue_close(mps_queue *handle) {
  metal_queue *queue = handle->impl;
  metal_guard("closing a queue", ^mps_status {
    if (queue->open != NULL) {
      metal_segment_submit(queue);
    }
    return MPS_STATUS_OK;
  });
  metal_queue_unref(queue);
}

/* ---- waiting ---- */

static void remove_waiter(metal_queue *queue, metal_queue_waiter *waiter) {
  for (metal_queue_waiter **link = &queue->waiters; *link != NULL; link = &(*link)->next) {
    if (*link == waiter) {
      *link = waiter->next;
      return;
    }
  }
}

/* Wait until all but the last `rest` segments that are submitted by now are done with. */
static bool wait_for_submitted(metal_queue *queue, uint64_t rest, uint64_t timeout) {
  pthread_mutex_lock(&queue->progress);
  metal_queue_waiter waiter = {.number = queue->submitted > rest ? queue->submitted - rest : 0};
  bool done = queue->retired >= waiter.number;
  if (!done && timeout > 0) {
    waiter.wake = dispatch_semaphore_create(0);
    waiter.next = queue->waiters;
    queue->waiters = &waiter;
    pthread_mutex_unlock(&queue->progress);
    metal_semaphore_wait(waiter.wake, timeout);
    pthread_mutex_lock(&queue->progress);
    remove_waiter(queue, &waiter);
    done = queue->retired >= waiter.number;
    dispatch_release(waiter.wake);
  }
  pthread_mutex_unlock(&queue->progress);
  return done;
}

/* ---- command buffers ---- */

void metal_queue_begin_command(metal_queue *queue) {
  if (queue->begun) {
    return;
  }
  queue->serial++;
  pthread_mutex_lock(&queue->progress);
  queue->begun = true;
  *metal_queue_info(queue, queue->serial) =
      (mps_command_info){.struct_size = sizeof(mps_command_info), .serial = queue->serial};
  pthread_mutex_unlock(&queue->progress);
}

mps_status metal_queue_close_command(metal_queue *queue) {
  if (!queue->begun) {
    return MPS_STATUS_OK;
  }
  /* Its last commands may be on their way already: then an empty segment carries its handlers. */
  metal_segment *segment;
  MPS_TRY(metal_segment_open(queue, &segment));
  segment->handlers = queue->handlers;
  queue->handlers = NULL;
  pthread_mutex_lock(&queue->progress);
  queue->begun = false;
  queue->committed = queue->serial;
  pthread_mutex_unlock(&queue->progress);
  metal_segment_submit(queue);
  return MPS_STATUS_OK;
}

mps_status metal_add_handler(mps_queue *handle, mps_handler_kind kind, mps_handler_fn call, void *user) {
  metal_queue *queue = handle->impl;
  metal_handler *handler = malloc(sizeof *handler);
  if (handler == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a handler");
  }
  *handler = (metal_handler){.kind = kind, .call = call, .user = user};
  pthread_mutex_lock(&queue->encoding);
  metal_handler **end = &queue->handlers;
  while (*end != NULL) {
    end = &(*end)->next;
  }
  *end = handler;
  metal_queue_begin_command(queue);
  pthread_mutex_unlock(&queue->encoding);
  return MPS_STATUS_OK;
}

static mps_status commit(metal_queue *queue, uint64_t *serial) {
  pthread_mutex_lock(&queue->encoding);
  mps_status status = metal_guard("committing", ^mps_status {
    return metal_queue_close_command(queue);
  });
  *serial = queue->serial;
  pthread_mutex_unlock(&queue->encoding);
  return status;
}

void metal_queue_hold_back(metal_queue *queue) {
  pthread_mutex_lock(&queue->progress);
  bool waits = metal_queue_calling != queue && !queue->stalled;
  pthread_mutex_unlock(&queue->progress);
  @autoreleasepool {
    if (waits && !wait_for_submitted(queue, queue->max_in_flight, PATIENCE_NS)) {
      pthread_mutex_lock(&queue->progress);
      queue->stalled = true;
      pthread_mutex_unlock(&queue->progress);
    }
  }
}

mps_status metal_commit(mps_queue *handle, uint64_t *serial) {
  metal_queue *queue = handle->impl;
  MPS_TRY(commit(queue, serial));
  metal_queue_hold_back(queue);
  return MPS_STATUS_OK;
}

/* With `progress` held. A command buffer may be several of Metal's, of which the first ones tell of their times. */
static bool is_complete(const metal_queue *queue, uint64_t serial) {
  for (const metal_segment *segment = queue->first; segment != NULL && segment->serial <= serial;
       segment = segment->next) {
    if (!segment->complete) {
      return false;
    }
  }
  return true;
}

mps_status metal_queue_command_info(mps_queue *handle, uint64_t serial, mps_command_info *info) {
  metal_queue *queue = handle->impl;
  pthread_mutex_lock(&queue->progress);
  uint64_t last = queue->committed;
  *info = *metal_queue_info(queue, serial);
  if (!is_complete(queue, serial)) {
    info->end = 0;
  }
  pthread_mutex_unlock(&queue->progress);
  if (serial == 0 || serial > last || info->serial != serial) {
    return mps_fail(MPS_STATUS_NOT_FOUND,
                    "queue '%s' knows nothing of command buffer %" PRIu64 ": its last one is %" PRIu64
                    ", and it remembers %d",
                    handle->label, serial, last, METAL_REMEMBERED);
  }
  return MPS_STATUS_OK;
}

bool metal_queue_is_idle(mps_queue *handle) {
  metal_queue *queue = handle->impl;
  pthread_mutex_lock(&queue->progress);
  bool idle = !queue->begun && queue->first == NULL;
  pthread_mutex_unlock(&queue->progress);
  return idle;
}

mps_status metal_queue_wait(mps_queue *handle, uint64_t timeout) {
  metal_queue *queue = handle->impl;
  uint64_t serial;
  MPS_TRY(commit(queue, &serial));
  if (metal_queue_calling == queue && !metal_queue_is_idle(handle)) {
    return mps_fail(
        MPS_STATUS_INVALID_STATE,
        "queue '%s' cannot be waited for in one of its own handlers or callbacks: it goes on when they return",
        handle->label);
  }
  @autoreleasepool {
    if (!wait_for_submitted(queue, 0, timeout)) {
      return mps_fail(MPS_STATUS_TIMEOUT,
                      "queue '%s' is not done within %" PRIu64 " ns: command buffer %" PRIu64
                      " or one before it is still queued or running",
                      handle->label, timeout, serial);
    }
  }
  return metal_failure_take(queue->failure);
}
