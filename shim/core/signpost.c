#include "backend.h"
#include "check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct interval {
  uint64_t id;
  mps_signpost_category category;
} interval;

/* The open intervals, the youngest last: intervals mostly nest, so the one that ends is found at the first look. */
static pthread_mutex_t intervals_lock = PTHREAD_MUTEX_INITIALIZER;
static interval *intervals;
static size_t interval_count, interval_capacity;
static uint64_t last_id;

static mps_status check_mark(const char *function, mps_signpost_category category, const char *message) {
  MPS_TRY(mps_fork_check());
  if (category != MPS_SIGNPOST_EVENTS && category != MPS_SIGNPOST_INTERVALS) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: category is %d, not MPS_SIGNPOST_EVENTS (1) or MPS_SIGNPOST_INTERVALS (2)", function,
                    (int)category);
  }
  if (message == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: message must not be NULL", function);
  }
  return MPS_STATUS_OK;
}

mps_status mps_signpost_event(mps_signpost_category category, const char *message) {
  MPS_TRY(check_mark(__func__, category, message));
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    (*backend)->signpost_event(category, message);
  }
  return MPS_STATUS_OK;
}

/* The id of a new open interval; 0 when there is no memory. */
static uint64_t add_interval(mps_signpost_category category) {
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
    id = ++last_id;
    intervals[interval_count++] = (interval){.id = id, .category = category};
  }
  pthread_mutex_unlock(&intervals_lock);
  return id;
}

static bool remove_interval(uint64_t id, mps_signpost_category *category) {
  bool found = false;
  pthread_mutex_lock(&intervals_lock);
  for (size_t i = interval_count; i-- > 0;) {
    if (intervals[i].id == id) {
      *category = intervals[i].category;
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
  uint64_t id = add_interval(category);
  if (id == 0) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "mps_signpost_begin: no memory for one more open interval");
  }
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    (*backend)->signpost_begin(category, message, id);
  }
  *out_id = id;
  return MPS_STATUS_OK;
}

mps_status mps_signpost_end(uint64_t id, const char *message) {
  MPS_TRY(mps_fork_check());
  MPS_REQUIRE(message);
  mps_signpost_category category;
  if (!remove_interval(id, &category)) {
    return mps_fail(MPS_STATUS_NOT_FOUND, "mps_signpost_end: %" PRIu64 " is no open interval", id);
  }
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    (*backend)->signpost_end(category, message, id);
  }
  return MPS_STATUS_OK;
}
