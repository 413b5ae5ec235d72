/* Waiting with a deadline. */
#ifndef MPS_HOST_CLOCK_H
#define MPS_HOST_CLOCK_H

#include "now.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The moment `timeout` nanoseconds from now; MPS_FOREVER stays what it is. */
uint64_t host_deadline(uint64_t timeout);

/* A condition variable that host_cond_wait can wait for. 0 or an errno. */
int host_cond_init(pthread_cond_t *condition);

/* Wait for the condition or the deadline: false once the deadline has passed. */
bool host_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline);

/* Give the core away once while spinning: false once the deadline has passed. */
bool host_yield(uint64_t deadline);

#endif
