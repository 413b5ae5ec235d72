#include "failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct host_failure {
  _Atomic uint32_t references;
  _Atomic uint32_t count; /* of failures not reported; written under the lock */
  pthread_mutex_t lock;
  char text[768];
};

host_failure *host_failure_new(void) {
  host_failure *failure = calloc(1, sizeof *failure);
  if (failure) {
    failure->references = 1;
    pthread_mutex_init(&failure->lock, NULL);
  }
  return failure;
}

void host_failure_hold(host_failure *failure) {
  atomic_fetch_add_explicit(&failure->references, 1, memory_order_relaxed);
}

void host_failure_drop(host_failure *failure) {
  if (atomic_fetch_sub_explicit(&failure->references, 1, memory_order_acq_rel) == 1) {
    pthread_mutex_destroy(&failure->lock);
    free(failure);
  }
}

void host_failure_put(host_failure *failure, const char *text) {
  pthread_mutex_lock(&failure->lock);
  uint32_t count = atomic_load_explicit(&failure->count, memory_order_relaxed);
  if (count == 0) {
    snprintf(failure->text, sizeof failure->text, "%s", text);
  }
  if (count < UINT32_MAX) {
    atomic_store_explicit(&failure->count, count + 1, memory_order_release);
  }
  pthread_mutex_unlock(&failure->lock);
}

mps_status host_failure_take(host_failure *failure) {
  if (atomic_load_explicit(&failure->count, memory_order_acquire) == 0) {
    return MPS_STATUS_OK;
  }
  char text[sizeof failure->text];
  pthread_mutex_lock(&failure->lock);
  uint32_t count = atomic_load_explicit(&failure->count, memory_order_relaxed);
  snprintf(text, sizeof text, "%s", failure->text);
  atomic_store_explicit(&failure->count, 0, memory_order_release);
  pthread_mutex_unlock(&failure->lock);
  switch (count) {
  case 0: /* another thread was told first */
    return MPS_STATUS_OK;
  case 1:
    return mps_fail(MPS_STATUS_EXECUTION_FAILED, "%s", text);
  default:
    return mps_fail(MPS_STATUS_EXECUTION_FAILED, "%s (the first of %u failed commands)", text, count);
  }
}

bool host_failure_is_over(host_failure *failure) {
  return atomic_load_explicit(&failure->references, memory_order_acquire) == 1 &&
         atomic_load_explicit(&failure->count, memory_order_acquire) == 0;
}
