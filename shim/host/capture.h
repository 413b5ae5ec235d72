/* A capture: a directory with what is needed to run each command again, and to compare; docs/capture.md. */
#ifndef MPS_HOST_CAPTURE_H
#define MPS_HOST_CAPTURE_H

#include "command.h"

/* Read before anything is made up for a capture, so that none costs no more than this. */
extern _Atomic bool host_capture_running;

static inline bool host_capture_is_on(void) {
  return atomic_load_explicit(&host_capture_running, memory_order_relaxed);
}

/* A command that is being captured. */
typedef struct host_capturing {
  struct capture *to;
  struct host_call *call;
  uint64_t start;
} host_capturing;

/* Before a command of a queue runs: if a capture wants it, true, and from here to its end it runs alone among the
 * captured, with the contents of its buffers stored before and after. `queue` is mps_queue.impl; `call` is NULL for
 * what was encoded before the capture began. */
bool host_capture_begin(host_capturing *capturing, const void *queue, struct host_call *call);

/* `what` is for people; `failure` is NULL for a command that succeeded. */
void host_capture_end(host_capturing *capturing, const char *label, const char *what, const char *failure);

void host_capture_signpost(const char *what, mps_signpost_category category, uint64_t id, const char *message);

bool host_capture_supported(mps_device *device);
mps_status host_capture_start(mps_device *device, const mps_capture_desc *desc);
mps_status host_capture_stop(mps_device *device);
bool host_capture_active(mps_device *device);

void host_signpost_event(mps_signpost_category category, const char *message);
void host_signpost_begin(mps_signpost_category category, const char *message, uint64_t id);
void host_signpost_end(mps_signpost_category category, const char *message, uint64_t id);

#endif
