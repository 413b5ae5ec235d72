/* What kernels log: kept until the work is done that it is from, then given to whoever asked for it. */
#ifndef MPS_CORE_LOG_H
#define MPS_CORE_LOG_H

#include "mpsshim.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Subsystem, category and text are cut to this many bytes, as in Metal. */
enum { MPS_LOG_TEXT = 1024 };

/* Whether a message of that level is wanted: the rest need not be made. */
bool mps_log_wants(uint32_t level);

/* Keep a message, on any thread and whatever locks are held. One for which there is no room is counted. */
void mps_log_add(const mps_log_message *message);

/* Bytes that are kept at most. */
uint64_t mps_log_room(void);

/* Give what is kept to the handler. With no lock held, as this calls foreign code. */
void mps_log_deliver(void);

/* INVALID_STATE in a handler of messages: what it would wait for may wait for it. */
mps_status mps_log_check_wait(const char *function);

extern _Atomic uint32_t mps_log_pending; /* not 0 if there is something to deliver */

static inline void mps_log_flush(void) {
  if (atomic_load_explicit(&mps_log_pending, memory_order_relaxed) != 0) {
    mps_log_deliver();
  }
}

#endif
