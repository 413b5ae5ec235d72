/* Marks for Instruments. Subsystem, categories and names are those of torch.mps, for the tools that look for them.
 * Names of signposts are constants of the program, so what the caller says travels as a public argument. */
#include "metal.h"

#include <os/log.h>
#include <os/signpost.h>

static os_log_t log_of(mps_signpost_category category) {
  static os_log_t events, intervals;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    events = os_log_create("PyTorchMPS", "Events");
    intervals = os_log_create("PyTorchMPS", "Intervals");
  });
  return (category & MPS_SIGNPOST_EVENTS) != 0 ? events : intervals;
}

static uint32_t what(mps_signpost_category category) {
  return category & ~(uint32_t)(MPS_SIGNPOST_EVENTS | MPS_SIGNPOST_INTERVALS);
}

void metal_signpost_event(mps_signpost_category category, const char *message) {
  os_log_t log = log_of(category);
  const os_signpost_id_t id = OS_SIGNPOST_ID_EXCLUSIVE;
  switch (what(category)) {
  case MPS_SIGNPOST_KERNELS:
    os_signpost_event_emit(log, id, "PyTorchOperationEvents", "%{public}s", message);
    break;
  case MPS_SIGNPOST_COPIES:
    os_signpost_event_emit(log, id, "PyTorchCopyEvents", "%{public}s", message);
    break;
  case MPS_SIGNPOST_FALLBACKS:
    os_signpost_event_emit(log, id, "PyTorchCPUFallbacksEvents", "%{public}s", message);
    break;
  default:
    os_signpost_event_emit(log, id, "event", "%{public}s", message);
  }
}

void metal_signpost_begin(mps_signpost_category category, const char *message, uint64_t number) {
  os_log_t log = log_of(category);
  os_signpost_id_t id = (os_signpost_id_t)number;
  switch (what(category)) {
  case MPS_SIGNPOST_KERNELS:
    os_signpost_interval_begin(log, id, "PyTorchOperationIntervals", "%{public}s", message);
    break;
  case MPS_SIGNPOST_COPIES:
    os_signpost_interval_begin(log, id, "PyTorchCopyIntervals", "%{public}s", message);
    break;
  case MPS_SIGNPOST_FALLBACKS:
    os_signpost_interval_begin(log, id, "PyTorchCPUFallbackIntervals", "%{public}s", message);
    break;
  default:
    os_signpost_interval_begin(log, id, "interval", "%{public}s", message);
  }
}

void metal_signpost_end(mps_signpost_category category, const char *message, uint64_t number) {
  os_log_t log = log_of(category);
  os_signpost_id_t id = (os_signpost_id_t)number;
  switch (what(category)) {
  case MPS_SIGNPOST_KERNELS:
    os_signpost_interval_end(log, id, "PyTorchOperationIntervals", "%{public}s", message);
    break;
  case MPS_SIGNPOST_COPIES:
    os_signpost_interval_end(log, id, "PyTorchCopyIntervals", "%{public}s", message);
    break;
  case MPS_SIGNPOST_FALLBACKS:
    os_signpost_interval_end(log, id, "PyTorchCPUFallbackIntervals", "%{public}s", message);
    break;
  default:
    os_signpost_interval_end(log, id, "interval", "%{public}s", message);
  }
}
