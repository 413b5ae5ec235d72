#include "failure.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct metal_failure {
  _Atomic uint32_t references;
  pthread_mutex_t lock;
  uint64_t count; /* not reported yet */
  char text[METAL_FAILURE_BYTES];
};

metal_failure *metal_failure_new(void) {
  metal_failure *failure = calloc(1, sizeof *failure);
  if (failure != NULL) {
    atomic_init(&failure->references, 1);
    pthread_mutex_init(&failure->lock, NULL);
  }
  return failure;
}

void metal_failure_hold(metal_failure *failure) {
  atomic_fetch_add_explicit(&failure->references, 1, memory_order_relaxed);
}

void metal_failure_drop(metal_failure *failure) {
  if (atomic_fetch_sub_explicit(&failure->references, 1, memory_order_acq_rel) == 1) {
    pthread_mutex_destroy(&failure->lock);
    free(failure);
  }
}

void metal_failure_put(metal_failure *failure, const char *text) {
  pthread_mutex_lock(&failure->lock);
  if (failure->count++ == 0) {
    snprintf(failure->text, sizeof failure->text, "%s", text);
  }
  pthread_mutex_unlock(&failure->lock);
}

mps_status metal_failure_take(metal_failure *failure) {
  char text[METAL_FAILURE_BYTES];
  pthread_mutex_lock(&failure->lock);
  uint64_t count = failure->count;
  failure->count = 0;
  snprintf(text, sizeof text, "%s", failure->text);
  pthread_mutex_unlock(&failure->lock);
  switch (count) {
  case 0:
    return MPS_STATUS_OK;
  case 1:
    return mps_fail(MPS_STATUS_EXECUTION_FAILED, "%s", text);
  default:
    return mps_fail(MPS_STATUS_EXECUTION_FAILED, "%s (the first of %" PRIu64 " failed commands)", text, count);
  }
}
