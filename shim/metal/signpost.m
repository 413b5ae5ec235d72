/* Marks for Instruments, under the subsystem "mpscffi". Names of signposts are constants of the program, so what the
 * caller says travels as a public argument. */
#include "metal.h"

#include <os/log.h>
#include <os/signpost.h>

static os_log_t log_of(mps_signpost_category category) {
  static os_log_t events, intervals;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    events = os_log_create("mpscffi", "Events");
    intervals = os_log_create("mpscffi", "Intervals");
  });
  return category == MPS_SIGNPOST_EVENTS ? events : intervals;
}

void metal_signpost_event(mps_signpost_category category, const char *message) {
  os_log_t log = log_of(category);
  os_signpost_event_emit(log, OS_SIGNPOST_ID_EXCLUSIVE, "event", "%{public}s", message);
}

void metal_signpost_begin(mps_signpost_category category, const char *message, uint64_t id) {
  os_log_t log = log_of(category);
  os_signpost_interval_begin(log, (os_signpost_id_t)id, "interval", "%{public}s", message);
}

void metal_signpost_end(mps_signpost_category category, const char *message, uint64_t id) {
  os_log_t log = log_of(category);
  os_signpost_interval_end(log, (os_signpost_id_t)id, "interval", "%{public}s", message);
}
