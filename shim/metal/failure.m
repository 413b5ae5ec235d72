#include "failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct metal_failure {
  _Atomic uint32_t references;
  pthread_mutex_t lock;
  char *text;
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
    free(failure->text);
    free(failure);
  }
}

void metal_failure_store(metal_failure *failure, char *text) {
  pthread_mutex_lock(&failure->lock);
  if (failure->text == NULL) {
    failure->text = text;
    text = NULL;
  }
  pthread_mutex_unlock(&failure->lock);
  free(text);
}

mps_status metal_failure_take(metal_failure *failure) {
  pthread_mutex_lock(&failure->lock);
  char *text = failure->text;
  failure->text = NULL;
  pthread_mutex_unlock(&failure->lock);
  if (text == NULL) {
    return MPS_STATUS_OK;
  }
  mps_fail_text(MPS_STATUS_EXECUTION_FAILED, text, strlen(text));
  free(text);
  return MPS_STATUS_EXECUTION_FAILED;
}
