/* Stackful fibers: the threads of a threadgroup, all on one thread of the system.
 *
 * Everything here concerns the calling thread alone, so there is no lock and no atomic. The functions that run on a
 * fiber's stack are marked HOST_ON_FIBER: sanitizers keep notes about a thread's stack that a switch would confuse. */
#ifndef MPS_HOST_FIBER_H
#define MPS_HOST_FIBER_H

#include "worker.h"

#if defined(__clang__)
#define HOST_ON_FIBER __attribute__((disable_sanitizer_instrumentation))
#else
#define HOST_ON_FIBER __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))
#endif

/* Bytes from one fiber's stack to the next, its guard page included. Only pages that are touched take memory. Valgrind
 * needs --max-stackframe=100000 to tell a switch from a big frame. */
#define HOST_FIBER_STACK ((size_t)128 << 10)

/* ---- fiber_switch.S ---- */

/* Save the running context, its stack pointer in *save, and go on with the one saved as `to`. */
void host_fiber_switch(void **save, void *to);

/* Go on with the context saved as `to`, and forget the running one. If that is host_fiber_guard's, it returns 1. */
_Noreturn void host_fiber_resume(void *to);

/* Save the running context and call `entry`, which must not return, on the stack that ends at `top`. */
void host_fiber_start(void **save, void *top, void (*entry)(void));

/* Call run(launch, first, last) and return 0; or return 1 after a host_fiber_resume(*save) during the call, from
 * whatever stack, even out of a signal handler. */
int host_fiber_guard(void **save, void (*run)(const mslc_launch *, unsigned long, unsigned long),
                     const mslc_launch *launch, unsigned long first, unsigned long last);

/* ---- fiber.c ---- */

/* mslc_runtime.run_fibers */
void host_run_fibers(mslc_thread_fn thread, const void *context, unsigned threads);

/* Which thread's turn it is: that of a lane of a SIMD-group. */
typedef struct host_turn {
  host_simdgroup *group;
  unsigned lane;
} host_turn;

/* Let that thread, which may be the running one, go on instead of it. Returns when it is this one's turn again. */
void host_fiber_pass(host_worker *worker, host_turn turn);

/* After the kernel was left by host_fiber_resume: no fiber runs any more. */
void host_fibers_abandon(host_worker *worker);

/* true if `address` lies in the guard page of one of the worker's fiber stacks. */
bool host_fiber_guards(const host_worker *worker, uintptr_t address);

void host_fibers_close(host_worker *worker);

/* ---- simdgroup.c ---- */

/* Before the first fiber of a threadgroup of `threads` threads runs. */
void host_simdgroups_begin(host_worker *worker, unsigned threads);

/* No fiber is left: the worker's thread is in no SIMD-group. */
void host_simdgroups_end(host_worker *worker);

/* The running thread has returned: whose turn is it? At least one must be left. */
host_turn host_simdgroups_leave(host_worker *worker);

extern const mslc_runtime host_runtime;

#endif
