/* The calling thread's error text, and the checks that begin every public function. */
#ifndef MPS_CORE_STATUS_H
#define MPS_CORE_STATUS_H

#include "mpsshim.h"

#if defined(__GNUC__)
#define MPS_PRINTF(text, first) __attribute__((format(printf, text, first), cold))
#else
#define MPS_PRINTF(text, first)
#endif

/* Set the calling thread's error text. */
void mps_error_set(const char *format, ...) MPS_PRINTF(1, 2);

/* The same, with `status` as the value, so that a failure is one return statement. A macro, so that the compiler sees
 * that what comes back is no success. */
#define mps_fail(status, ...) mps_failed((mps_error_set(__VA_ARGS__), (status)))

static inline mps_status mps_failed(mps_status status) {
  return status;
}

/* The same with a ready text of any length, which is copied. */
mps_status mps_fail_text(mps_status status, const char *text, size_t length);

/* OK, or FORKED in a child of a process that uses a device; fork.c. */
mps_status mps_fork_check(void);

/* Install the fork guard; called when the first device is opened. */
void mps_fork_guard(void);

/* Copy of a text; NULL when there is no memory, or for NULL. */
char *mps_text_copy(const char *text);

#define MPS_TRY(expression)                                                                                            \
  do {                                                                                                                 \
    mps_status try_status_ = (expression);                                                                             \
    if (try_status_ != MPS_STATUS_OK) {                                                                                \
      return try_status_;                                                                                              \
    }                                                                                                                  \
  } while (0)

#endif
