#include "capture.h"

void host_signpost_event(mps_signpost_category category, const char *message) {
  if (host_capture_is_on()) {
    host_capture_signpost("event", category, 0, message);
  }
}

void host_signpost_begin(mps_signpost_category category, const char *message, uint64_t id) {
  if (host_capture_is_on()) {
    host_capture_signpost("begin", category, id, message);
  }
}

void host_signpost_end(mps_signpost_category category, const char *message, uint64_t id) {
  if (host_capture_is_on()) {
    host_capture_signpost("end", category, id, message ? message : "");
  }
}
