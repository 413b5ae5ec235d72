/* Threads of the library's own. */
#ifndef MPS_HOST_THREAD_H
#define MPS_HOST_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>

/* Start a detached thread that takes no signals but those of its own faults. 0 or an errno. The first one pins this
 * library in memory: nobody ever joins these threads, so its code must outlive them. */
int host_thread_start(const char *name, void *(*run)(void *), void *argument);

/* Keep this library in memory from here on: threads, handlers of signals and functions for the end of a thread may call
 * it at any time. */
void host_pin_library(void);

/* How often a waiter gives its core away before it sleeps. Sleeping and being woken costs several microseconds, which
 * back-to-back work should not pay; spinning without yielding could hold the very core that the work needs. */
#define HOST_YIELDS 50

#endif
