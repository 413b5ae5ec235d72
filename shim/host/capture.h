/* A capture: a directory with what is needed to run each command again, and to compare; docs/capture.md. */
#ifndef MPS_HOST_CAPTURE_H
#define MPS_HOST_CAPTURE_H

#include "command.h"

/* Read before anything is made up for a capture, so that none costs no more than this. */
extern _Atomic bool host_capture_running;

static inline bool host_capture_is_on(void) {
  return atomic_load_explicit(&host_capture_running, memory_order_relaxed);
}

/* Run work of a queue as host_work_run does; if a capture wants it, alone among the captured, with the contents of its
 * buffers before and after. `queue` is mps_queue.impl. */
bool host_capture_run(const void *queue, const char *label, const host_work *work, host_fault *fault);

void host_capture_signpost(const char *what, mps_signpost_category category, uint64_t id, const char *message);

bool host_capture_supported(mps_device *device);
mps_status host_capture_start(mps_device *device, const mps_capture_desc *desc);
mps_status host_capture_stop(mps_device *device);
bool host_capture_active(mps_device *device);

void host_signpost_event(mps_signpost_category category, const char *message);
void host_signpost_begin(mps_signpost_category category, const char *message, uint64_t id);
void host_signpost_end(mps_signpost_category category, const char *message, uint64_t id);

#endif
