/* Events: counters that grow, and whoever waits for them. */
#ifndef MPS_HOST_EVENT_H
#define MPS_HOST_EVENT_H

#include "backend.h"
#include "failure.h"

/* Set the event to `value` unless it is there already, and wake who waits. `time` is 0 for a signal by the CPU. Runs no
 * callback: those run on a thread of their own. Lock order: a queue's lock may be held, nothing of the event's. */
void host_event_raise(mps_event *event, uint64_t value, uint64_t time);

bool host_event_reached(const mps_event *event, uint64_t value);

/* Wait without looking at failures: false once the deadline has passed. */
bool host_event_wait_until(mps_event *event, uint64_t value, uint64_t deadline);

/* A queue will signal the event: a wait for it then reports the queue's failures. */
mps_status host_event_add_source(mps_event *event, host_failure *failure);

mps_status host_event_open(mps_event *event);
void host_event_close(mps_event *event);
mps_status host_event_signal(mps_event *event, uint64_t value);
mps_status host_event_wait(mps_event *event, uint64_t value, uint64_t timeout);
void host_event_info(mps_event *event, mps_event_info *info);
mps_status host_event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user);

#endif
