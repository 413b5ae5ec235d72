/* What kernels log: mslc_runtime.log. */
#ifndef MPS_HOST_KERNEL_LOG_H
#define MPS_HOST_KERNEL_LOG_H

#include "kernel_abi.h"
#include "mpsshim.h"

/* Make a message of a call and hand it on. Runs on fibers. */
void host_log(const mslc_log_call *call);

/* Write the text of a call, cut to `size` bytes with its end. A conversion that does not fit its value takes the
 * value's own; one without a value stays as it is. */
void host_log_format(char *text, size_t size, const mslc_log_call *call);

/* Who gets the messages: mps_log_add unless tests have put themselves between. */
typedef void (*host_log_fn)(const mps_log_message *message);
extern _Atomic(host_log_fn) host_log_to;

#endif
