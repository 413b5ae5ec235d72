#include "event.h"

#include "clock.h"
#include "notifier.h"
#include "status.h"
#include "thread.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_event {
  pthread_mutex_t lock;
  pthread_cond_t raised;
  uint32_t sleepers; /* threads in a wait for `raised` */
  /* Value and time change together, under the lock and while the sequence is odd: readers need no lock. */
  _Atomic uint32_t sequence;
  _Atomic uint64_t value;
  _Atomic uint64_t time;
  host_notification *notifications; /* by value */
  uint32_t source_count;
  host_failure **sources;              /* of the queues that signal the event, held */
  host_failure *_Atomic latest_source; /* one of them, so that a queue that signals again needs no lock */
} host_event;

mps_status host_event_open(mps_event *event) {
  host_event *impl = calloc(1, sizeof *impl);
  if (!impl || host_cond_init(&impl->raised) != 0) {
    free(impl);
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for an event");
  }
  pthread_mutex_init(&impl->lock, NULL);
  event->impl = impl;
  return MPS_STATUS_OK;
}

void host_event_close(mps_event *event) {
  host_event *impl = event->impl;
  while (impl->notifications) {
    host_notification *next = impl->notifications->next;
    free(impl->notifications);
    impl->notifications = next;
  }
  for (uint32_t i = 0; i < impl->source_count; i++) {
    host_failure_drop(impl->sources[i]);
  }
  free(impl->sources);
  pthread_cond_destroy(&impl->raised);
  pthread_mutex_destroy(&impl->lock);
  free(impl);
}

/* ---- value ---- */

bool host_event_reached(const mps_event *event, uint64_t value) {
  const host_event *impl = event->impl;
  return atomic_load_explicit(&impl->value, memory_order_acquire) >= value;
}

void host_event_info(mps_event *event, mps_event_info *info) {
  host_event *impl = event->impl;
  uint32_t before, after;
  do {
    before = atomic_load_explicit(&impl->sequence, memory_order_acquire);
    info->value = atomic_load_explicit(&impl->value, memory_order_acquire);
    info->time = atomic_load_explicit(&impl->time, memory_order_acquire);
    after = atomic_load_explicit(&impl->sequence, memory_order_relaxed);
  } while (before != after || before & 1);
}

/* Cut off the notifications that `value` reaches. */
static host_notification *take_reached(host_event *event, uint64_t value) {
  host_notification *reached = event->notifications;
  host_notification **end = &event->notifications;
  while (*end && (*end)->value <= value) {
    end = &(*end)->next;
  }
  if (end == &event->notifications) {
    return NULL;
  }
  event->notifications = *end;
  *end = NULL;
  return reached;
}

void host_event_raise(mps_event *event, uint64_t value, uint64_t time) {
  host_event *impl = event->impl;
  pthread_mutex_lock(&impl->lock);
  if (atomic_load_explicit(&impl->value, memory_order_relaxed) < value) {
    uint32_t sequence = atomic_load_explicit(&impl->sequence, memory_order_relaxed);
    atomic_store_explicit(&impl->sequence, sequence + 1, memory_order_relaxed);
    atomic_store_explicit(&impl->value, value, memory_order_release);
    atomic_store_explicit(&impl->time, time, memory_order_release);
    atomic_store_explicit(&impl->sequence, sequence + 2, memory_order_release);
    if (impl->sleepers) {
      pthread_cond_broadcast(&impl->raised);
    }
    host_notification *reached = take_reached(impl, value);
    if (reached) {
      host_notifier_post(reached);
    }
  }
  pthread_mutex_unlock(&impl->lock);
}

bool host_event_wait_until(mps_event *event, uint64_t value, uint64_t deadline) {
  bool in_time = true;
  for (int i = 0; i < HOST_YIELDS && in_time; i++) {
    if (host_event_reached(event, value)) {
      return true;
    }
    in_time = host_yield(deadline);
  }
  host_event *impl = event->impl;
  pthread_mutex_lock(&impl->lock);
  impl->sleepers++;
  while (!host_event_reached(event, value) && in_time) {
    in_time = host_cond_wait(&impl->raised, &impl->lock, deadline);
  }
  impl->sleepers--;
  pthread_mutex_unlock(&impl->lock);
  return host_event_reached(event, value);
}

mps_status host_event_signal(mps_event *event, uint64_t value) {
  host_event_raise(event, value, 0);
  return MPS_STATUS_OK;
}

/* ---- failures of the queues behind an event ---- */

/* The sources of queues that are gone and have nothing to report: an event may outlive any number of them. The latest
 * may be among them, and another queue's could come to lie where it was. */
static void drop_old_sources(host_event *event) {
  uint32_t kept = 0;
  atomic_store_explicit(&event->latest_source, NULL, memory_order_relaxed);
  for (uint32_t i = 0; i < event->source_count; i++) {
    if (host_failure_is_over(event->sources[i])) {
      host_failure_drop(event->sources[i]);
    } else {
      event->sources[kept++] = event->sources[i];
    }
  }
  event->source_count = kept;
}

static bool has_source(const host_event *event, const host_failure *failure) {
  for (uint32_t i = 0; i < event->source_count; i++) {
    if (event->sources[i] == failure) {
      return true;
    }
  }
  return false;
}

static bool add_source(host_event *event, host_failure *failure) {
  drop_old_sources(event);
  host_failure **sources = realloc(event->sources, (event->source_count + 1) * sizeof(host_failure *));
  if (!sources) {
    return false;
  }
  event->sources = sources;
  event->sources[event->source_count++] = failure;
  host_failure_hold(failure);
  return true;
}

mps_status host_event_add_source(mps_event *event, host_failure *failure) {
  host_event *impl = event->impl;
  if (atomic_load_explicit(&impl->latest_source, memory_order_relaxed) == failure) {
    return MPS_STATUS_OK;
  }
  pthread_mutex_lock(&impl->lock);
  bool added = has_source(impl, failure) || add_source(impl, failure);
  if (added) {
    atomic_store_explicit(&impl->latest_source, failure, memory_order_relaxed);
  }
  pthread_mutex_unlock(&impl->lock);
  return added ? MPS_STATUS_OK : mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to encode the signal of an event");
}

static mps_status report_failure(host_event *event) {
  mps_status status = MPS_STATUS_OK;
  pthread_mutex_lock(&event->lock);
  for (uint32_t i = 0; i < event->source_count && status == MPS_STATUS_OK; i++) {
    status = host_failure_take(event->sources[i]);
  }
  pthread_mutex_unlock(&event->lock);
  return status;
}

mps_status host_event_wait(mps_event *event, uint64_t value, uint64_t timeout) {
  bool reached = host_event_reached(event, value);
  if (!reached && timeout) {
    reached = host_event_wait_until(event, value, host_deadline(timeout));
  }
  if (!reached) {
    return mps_fail(MPS_STATUS_TIMEOUT,
                    "the event has not reached %" PRIu64 " within %" PRIu64 " ns: it is at %" PRIu64
                    "; is the signal encoded and its queue committed?",
                    value, timeout, atomic_load_explicit(&((host_event *)event->impl)->value, memory_order_relaxed));
  }
  return report_failure(event->impl);
}

/* ---- notifications ---- */

mps_status host_event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user) {
  host_event *impl = event->impl;
  host_notification *notification = NULL;
  if (!host_event_reached(event, value)) {
    int error = host_notifier_start();
    if (error) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "cannot start the thread that calls back for events: %s",
                      strerror(error));
    }
    notification = malloc(sizeof *notification);
    if (!notification) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for an event's callback");
    }
    *notification = (host_notification){.value = value, .callback = callback, .user = user};
  }
  pthread_mutex_lock(&impl->lock);
  bool reached = host_event_reached(event, value);
  if (!reached) {
    host_notification **place = &impl->notifications;
    while (*place && (*place)->value <= value) {
      place = &(*place)->next;
    }
    notification->next = *place;
    *place = notification;
  }
  pthread_mutex_unlock(&impl->lock);
  if (reached) {
    free(notification);
    callback(user);
  }
  return MPS_STATUS_OK;
}
