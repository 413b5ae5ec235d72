#include "signpost.h"

#include "backend.h"
#include "check.h"
#include "trace.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct interval {
  uint64_t id;
  mps_signpost_category category;
  mps_traced traced; /* what a trace gets at its end */
} interval;

/* The open intervals, the youngest last: intervals mostly nest, so the one that ends is found at the first look. */
static pthread_mutex_t intervals_lock = PTHREAD_MUTEX_INITIALIZER;
static interval *intervals;
static size_t interval_count, interval_capacity;

/* ---- on every backend ---- */

void mps_signpost_emit_event(uint32_t category, const char *message) {
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    (*backend)->signpost_event(category, message);
  }
}

void mps_signpost_emit_begin(uint32_t category, const char *message, uint64_t id) {
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    (*backend)->signpost_begin(category, message, id);
  }
}

void mps_signpost_emit_end(uint32_t category, const char *message, uint64_t id) {
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    (*backend)->signpost_end(category, message, id);
  }
}

/* ---- the caller's own ---- */

enum { WHEN = 0xF, WHAT = 0x30 };

static mps_status check_mark(const char *function, mps_signpost_category category, const char *message) {
  MPS_TRY(mps_fork_check());
  uint32_t when = category & WHEN;
  if ((when != MPS_SIGNPOST_EVENTS && when != MPS_SIGNPOST_INTERVALS) || (category & ~(uint32_t)(WHEN | WHAT)) != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: category is %d, not MPS_SIGNPOST_EVENTS (1) or MPS_SIGNPOST_INTERVALS (2), with or without "
                    "one of MPS_SIGNPOST_KERNELS (0x10), _COPIES (0x20) and _FALLBACKS (0x30)",
                    function, (int)category);
  }
  if (message == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: message must not be NULL", function);
  }
  return MPS_STATUS_OK;
}

/* Those are marked as the running trace asks for. */
static bool is_fallback(uint32_t category) {
  return (category & WHAT) == MPS_SIGNPOST_FALLBACKS;
}

mps_status mps_signpost_event(mps_signpost_category category, const char *message) {
  MPS_TRY(check_mark(__func__, category, message));
  mps_traced traced;
  mps_trace_open_range(&traced, MPS_TRACE_MARK, message);
  mps_trace_close_range(&traced);
  mps_signpost_emit_event(category, message);
  return MPS_STATUS_OK;
}

/* The id of a new open interval; 0 when there is no memory. */
static uint64_t add_interval(mps_signpost_category category, const mps_traced *traced) {
  uint64_t id = 0;
  pthread_mutex_lock(&intervals_lock);
  if (interval_count == interval_capacity) {
    size_t capacity = interval_capacity * 2 + 16;
    interval *grown = realloc(intervals, capacity * sizeof *grown);
    if (grown != NULL) {
      intervals = grown;
      interval_capacity = capacity;
    }
  }
  if (interval_count < interval_capacity) {
    id = mps_trace_next_id();
    intervals[interval_count++] = (interval){.id = id, .category = category, .traced = *traced};
  }
  pthread_mutex_unlock(&intervals_lock);
  return id;
}

static bool remove_interval(uint64_t id, interval *removed) {
  bool found = false;
  pthread_mutex_lock(&intervals_lock);
  for (size_t i = interval_count; i-- > 0;) {
    if (intervals[i].id == id) {
      *removed = intervals[i];
      memmove(&intervals[i], &intervals[i + 1], (interval_count - i - 1) * sizeof *intervals);
      interval_count--;
      found = true;
      break;
    }
  }
  pthread_mutex_unlock(&intervals_lock);
  return found;
}

mps_status mps_signpost_begin(mps_signpost_category category, const char *message, uint64_t *out_id) {
  MPS_TRY(check_mark(__func__, category, message));
  MPS_REQUIRE(out_id);
  mps_traced traced;
  mps_trace_open_range(&traced, is_fallback(category) ? MPS_TRACE_FALLBACK : MPS_TRACE_RANGE, message);
  uint64_t id = add_interval(category, &traced);
  if (id == 0) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "mps_signpost_begin: no memory for one more open interval");
  }
  if (!is_fallback(category)) {
    mps_signpost_emit_begin(category, message, id);
  }
  *out_id = id;
  return MPS_STATUS_OK;
}

mps_status mps_signpost_end(uint64_t id, const char *message) {
  MPS_TRY(mps_fork_check());
  MPS_REQUIRE(message);
  interval ended;
  if (!remove_interval(id, &ended)) {
    return mps_fail(MPS_STATUS_NOT_FOUND, "mps_signpost_end: %" PRIu64 " is no open interval", id);
  }
  mps_trace_close_range(&ended.traced);
  if (!is_fallback(ended.category)) {
    mps_signpost_emit_end(ended.category, message, id);
  }
  return MPS_STATUS_OK;
}
