#include "event.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

/* Someone who waits for a value: a thread, on whose stack this lies, or a block. */
typedef struct event_waiter {
  struct event_waiter *next;
  uint64_t value;
  dispatch_semaphore_t wake; /* nil for a block */
  dispatch_queue_t queue;    /* held */
  dispatch_block_t block;    /* held */
} event_waiter;

typedef struct metal_event {
  id<MTLSharedEvent> shared;
  pthread_mutex_t lock; /* of all below */
  uint64_t value;
  uint64_t time;
  event_waiter *waiters;
  uint32_t source_count;
  metal_failure **sources; /* of the queues that signal the event */
} metal_event;

id<MTLSharedEvent> metal_event_shared(const mps_event *event) {
  return ((const metal_event *)event->impl)->shared;
}

mps_status metal_event_open(mps_event *event) {
  return metal_guard("creating an event", ^mps_status {
    metal_event *impl = calloc(1, sizeof *impl);
    id<MTLSharedEvent> shared = [metal_gpu(event->device) newSharedEvent];
    if (impl == NULL || shared == nil) {
      free(impl);
      [shared release];
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for an event");
    }
    impl->shared = shared;
    pthread_mutex_init(&impl->lock, NULL);
    event->impl = impl;
    return MPS_STATUS_OK;
  });
}

static void free_waiter(event_waiter *waiter) {
  [(id)waiter->queue release];
  Block_release(waiter->block);
  free(waiter);
}

void metal_event_close(mps_event *event) {
  metal_event *impl = event->impl;
  while (impl->waiters != NULL) {
    event_waiter *next = impl->waiters->next;
    free_waiter(impl->waiters); /* a block: a thread that waits has a handle */
    impl->waiters = next;
  }
  for (uint32_t i = 0; i < impl->source_count; i++) {
    metal_failure_drop(impl->sources[i]);
  }
  @autoreleasepool {
    [impl->shared release];
  }
  pthread_mutex_destroy(&impl->lock);
  free(impl->sources);
  free(impl);
}

/* ---- value ---- */

bool metal_event_reached(const mps_event *event, uint64_t value) {
  metal_event *impl = event->impl;
  pthread_mutex_lock(&impl->lock);
  bool reached = impl->value >= value;
  pthread_mutex_unlock(&impl->lock);
  return reached;
}

void metal_event_info(mps_event *event, mps_event_info *info) {
  metal_event *impl = event->impl;
  pthread_mutex_lock(&impl->lock);
  info->value = impl->value;
  info->time = impl->time;
  pthread_mutex_unlock(&impl->lock);
}

/* Wake who waits for a value that is reached. With the lock held. */
static void wake_reached(metal_event *event) {
  event_waiter **link = &event->waiters;
  while (*link != NULL) {
    event_waiter *waiter = *link;
    if (waiter->value > event->value) {
      link = &waiter->next;
      continue;
    }
    *link = waiter->next;
    if (waiter->wake != NULL) {
      dispatch_semaphore_signal(waiter->wake);
      continue;
    }
    dispatch_async(waiter->queue, waiter->block);
    free_waiter(waiter);
  }
}

void metal_event_raise(mps_event *event, uint64_t value, uint64_t time) {
  metal_event *impl = event->impl;
  @autoreleasepool {
    pthread_mutex_lock(&impl->lock);
    if (impl->value < value) {
      impl->value = value;
      impl->time = time;
    }
    /* The GPU signals what it was told, also a value that is lower than the one before. */
    if ([impl->shared signaledValue] < impl -> value) {
      [impl->shared setSignaledValue:impl->value];
    }
    wake_reached(impl);
    pthread_mutex_unlock(&impl->lock);
  }
}

mps_status metal_event_signal(mps_event *event, uint64_t value) {
  metal_event_raise(event, value, 0);
  return MPS_STATUS_OK;
}

/* ---- failures of the queues behind an event ---- */

mps_status metal_event_add_source(mps_event *event, metal_failure *failure) {
  metal_event *impl = event->impl;
  pthread_mutex_lock(&impl->lock);
  for (uint32_t i = 0; i < impl->source_count; i++) {
    if (impl->sources[i] == failure) {
      pthread_mutex_unlock(&impl->lock);
      return MPS_STATUS_OK;
    }
  }
  metal_failure **sources = realloc(impl->sources, (impl->source_count + 1) * sizeof *sources);
  if (sources != NULL) {
    impl->sources = sources;
    impl->sources[impl->source_count++] = failure;
    metal_failure_hold(failure);
  }
  pthread_mutex_unlock(&impl->lock);
  return sources != NULL ? MPS_STATUS_OK
                         : mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to encode the signal of an event");
}

static mps_status report_failure(metal_event *event) {
  mps_status status = MPS_STATUS_OK;
  pthread_mutex_lock(&event->lock);
  for (uint32_t i = 0; i < event->source_count && status == MPS_STATUS_OK; i++) {
    status = metal_failure_take(event->sources[i]);
  }
  pthread_mutex_unlock(&event->lock);
  return status;
}

/* ---- waiting ---- */

bool metal_semaphore_wait(dispatch_semaphore_t semaphore, uint64_t timeout) {
  dispatch_time_t end =
      timeout > INT64_MAX ? DISPATCH_TIME_FOREVER : dispatch_time(DISPATCH_TIME_NOW, (int64_t)timeout);
  return dispatch_semaphore_wait(semaphore, end) == 0;
}

static void remove_waiter(metal_event *event, event_waiter *waiter) {
  for (event_waiter **link = &event->waiters; *link != NULL; link = &(*link)->next) {
    if (*link == waiter) {
      *link = waiter->next;
      return;
    }
  }
}

static bool wait_for_value(metal_event *event, uint64_t value, uint64_t timeout) {
  event_waiter waiter = {.value = value};
  pthread_mutex_lock(&event->lock);
  bool reached = event->value >= value;
  if (!reached && timeout > 0) {
    waiter.wake = dispatch_semaphore_create(0);
    waiter.next = event->waiters;
    event->waiters = &waiter;
    pthread_mutex_unlock(&event->lock);
    metal_semaphore_wait(waiter.wake, timeout);
    pthread_mutex_lock(&event->lock);
    remove_waiter(event, &waiter);
    reached = event->value >= value;
    dispatch_release(waiter.wake);
  }
  pthread_mutex_unlock(&event->lock);
  return reached;
}

mps_status metal_event_wait(mps_event *event, uint64_t value, uint64_t timeout) {
  metal_event *impl = event->impl;
  @autoreleasepool {
    if (!wait_for_value(impl, value, timeout)) {
      mps_event_info now;
      metal_event_info(event, &now);
      return mps_fail(MPS_STATUS_TIMEOUT,
                      "the event has not reached %" PRIu64 " within %" PRIu64 " ns: it is at %" PRIu64
                      "; is the signal encoded and its queue committed?",
                      value, timeout, now.value);
    }
    return report_failure(impl);
  }
}

bool metal_event_when_reached(mps_event *event, uint64_t value, dispatch_queue_t queue, dispatch_block_t block) {
  metal_event *impl = event->impl;
  event_waiter *waiter = calloc(1, sizeof *waiter);
  pthread_mutex_lock(&impl->lock);
  bool waits = impl->value < value && waiter != NULL;
  if (waits) {
    *waiter = (event_waiter){.next = impl->waiters,
                             .value = value,
                             .queue = (dispatch_queue_t)[(id)queue retain],
                             .block = Block_copy(block)};
    impl->waiters = waiter;
  }
  pthread_mutex_unlock(&impl->lock);
  if (!waits) {
    free(waiter);
  }
  return waits;
}

/* Callbacks have a thread of their own, one for all events, so that they may wait for any queue. */
static dispatch_queue_t callback_queue(void) {
  static dispatch_queue_t queue;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    queue = dispatch_queue_create("mpscffi.events", DISPATCH_QUEUE_SERIAL);
  });
  return queue;
}

mps_status metal_event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user) {
  @autoreleasepool {
    if (!metal_event_when_reached(event, value, callback_queue(), ^{
          callback(user);
        })) {
      callback(user);
    }
  }
  return MPS_STATUS_OK;
}
