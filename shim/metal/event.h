/* Events: a MTLSharedEvent orders the queues among themselves; what the CPU knows of it is kept beside it.
 *
 * The CPU's side follows the completion of the command buffer that signals, not the shared event: when a wait returns,
 * the times of the work are known, its failure is stored, and its buffers are free. A command buffer that fails may
 * never signal, so its completion does it in its place. */
#ifndef MPS_METAL_EVENT_H
#define MPS_METAL_EVENT_H

#include "failure.h"
#include "metal.h"

id<MTLSharedEvent> metal_event_shared(const mps_event *event);

/* A queue will signal the event: a wait for it then reports the queue's failures. */
mps_status metal_event_add_source(mps_event *event, metal_failure *failure);

/* Set the event to `value` unless it is there already, and wake who waits; `time` is 0 for a signal by the CPU. */
void metal_event_raise(mps_event *event, uint64_t value, uint64_t time);

/* Run `block` on a dispatch queue when the event gets to `value`. false, and it is not run, if the event is there. */
bool metal_event_when_reached(mps_event *event, uint64_t value, dispatch_queue_t queue, dispatch_block_t block);

bool metal_event_reached(const mps_event *event, uint64_t value);

/* Wait for a semaphore; false once `timeout` nanoseconds have passed. */
bool metal_semaphore_wait(dispatch_semaphore_t semaphore, uint64_t timeout);

mps_status metal_event_open(mps_event *event);
void metal_event_close(mps_event *event);
mps_status metal_event_signal(mps_event *event, uint64_t value);
mps_status metal_event_wait(mps_event *event, uint64_t value, uint64_t timeout);
void metal_event_info(mps_event *event, mps_event_info *info);
mps_status metal_event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user);

#endif
