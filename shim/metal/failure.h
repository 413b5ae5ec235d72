/* The failure of a queue's work that no wait has reported yet. Counted, because events outlive the queues that signal
 * them. */
#ifndef MPS_METAL_FAILURE_H
#define MPS_METAL_FAILURE_H

#include "status.h"

typedef struct metal_failure metal_failure;

metal_failure *metal_failure_new(void);
void metal_failure_hold(metal_failure *failure);
void metal_failure_drop(metal_failure *failure);

/* Takes `text` over. Only the first text is kept: what fails after it mostly fails because of it. */
void metal_failure_store(metal_failure *failure, char *text);

/* EXECUTION_FAILED with the text, which is forgotten then; OK if there is none. */
mps_status metal_failure_take(metal_failure *failure);

#endif
