/* A capture: a directory with one text file, a line for each command that ran and each signpost. */
#ifndef MPS_HOST_CAPTURE_H
#define MPS_HOST_CAPTURE_H

#include "backend.h"

/* Read before anything is made up for a line, so that no capture costs no more than this. */
extern _Atomic bool host_capture_running;

static inline bool host_capture_is_on(void) {
  return atomic_load_explicit(&host_capture_running, memory_order_relaxed);
}

/* `queue` is mps_queue.impl. `failure` is NULL for a command that succeeded. */
void host_capture_command(const void *queue, const char *label, const char *what, uint64_t start, uint64_t end,
                          const char *failure);
void host_capture_signpost(const char *what, mps_signpost_category category, uint64_t id, const char *message);

bool host_capture_supported(mps_device *device);
mps_status host_capture_start(mps_device *device, const mps_capture_desc *desc);
mps_status host_capture_stop(mps_device *device);
bool host_capture_active(mps_device *device);

void host_signpost_event(mps_signpost_category category, const char *message);
void host_signpost_begin(mps_signpost_category category, const char *message, uint64_t id);
void host_signpost_end(mps_signpost_category category, const char *message, uint64_t id);

#endif
