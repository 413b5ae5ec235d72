/* The failures of a queue's work that no wait has reported yet. Counted, because events outlive the queues that signal
 * them. */
#ifndef MPS_METAL_FAILURE_H
#define MPS_METAL_FAILURE_H

#include "status.h"

enum { METAL_FAILURE_BYTES = 1024 }; /* of a failure's text; more is cut off */

typedef struct metal_failure metal_failure;

metal_failure *metal_failure_new(void);
void metal_failure_hold(metal_failure *failure);
void metal_failure_drop(metal_failure *failure);

/* Only the first text is kept: what fails after it mostly fails because of it. */
void metal_failure_put(metal_failure *failure, const char *text);

/* EXECUTION_FAILED with the text, which is forgotten then; OK if there is none. */
mps_status metal_failure_take(metal_failure *failure);

#endif
