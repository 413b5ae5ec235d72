#include "clock.h"

#include "mpsshim.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#define NANOSECONDS 1000000000u

uint64_t host_deadline(uint64_t timeout) {
  uint64_t now = mps_now();
  return timeout > MPS_FOREVER - now ? MPS_FOREVER : now + timeout;
}

int host_cond_init(pthread_cond_t *condition) {
#ifdef __APPLE__
  return pthread_cond_init(condition, NULL);
#else
  pthread_condattr_t attributes;
  int error = pthread_condattr_init(&attributes);
  if (error) {
    return error;
  }
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  error = pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
  return error;
#endif
}

bool host_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline) {
  if (deadline == MPS_FOREVER) {
    pthread_cond_wait(condition, lock);
    return true;
  }
#ifdef __APPLE__
  uint64_t now = mps_now();
  uint64_t left = deadline > now ? deadline - now : 0;
  struct timespec time = {.tv_sec = (time_t)(left / NANOSECONDS), .tv_nsec = (long)(left % NANOSECONDS)};
  return pthread_cond_timedwait_relative_np(condition, lock, &time) != ETIMEDOUT;
#else
  struct timespec time = {.tv_sec = (time_t)(deadline / NANOSECONDS), .tv_nsec = (long)(deadline % NANOSECONDS)};
  return pthread_cond_timedwait(condition, lock, &time) != ETIMEDOUT;
#endif
}

bool host_yield(uint64_t deadline) {
  sched_yield();
  return deadline == MPS_FOREVER || mps_now() < deadline;
}
