/* Failures of commands that no wait has reported yet. A queue has one of these, shared with the events that it signals,
 * so that it outlives the queue. */
#ifndef MPS_HOST_FAILURE_H
#define MPS_HOST_FAILURE_H

#include "status.h"

#include <stdbool.h>

typedef struct host_failure host_failure;

host_failure *host_failure_new(void); /* one reference; NULL when there is no memory */
void host_failure_hold(host_failure *failure);
void host_failure_drop(host_failure *failure);

/* A command failed: keep the first text, and count the ones that follow before anybody asks. */
void host_failure_put(host_failure *failure, const char *text);

/* OK, or EXECUTION_FAILED with what has been put since the last call: each failure is given out once. */
mps_status host_failure_take(host_failure *failure);

/* Nobody but the caller holds it, and nothing is left to report: it can be dropped without a loss. */
bool host_failure_is_over(host_failure *failure);

#endif
