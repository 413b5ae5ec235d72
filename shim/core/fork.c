#include "status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static pthread_once_t guard_once = PTHREAD_ONCE_INIT;
static _Atomic bool forked;

static void in_child(void) {
  atomic_store_explicit(&forked, true, memory_order_relaxed);
}

static void install_guard(void) {
  pthread_atfork(NULL, NULL, in_child);
}

void mps_fork_guard(void) {
  pthread_once(&guard_once, install_guard);
}

mps_status mps_fork_check(void) {
  if (atomic_load_explicit(&forked, memory_order_relaxed)) {
    return mps_fail(
        MPS_STATUS_FORKED,
        "this process was forked from one that had opened a device, whose threads and queues do not live on "
        "here: start it with spawn instead (multiprocessing.get_context(\"spawn\"), posix_spawn, or fork and "
        "exec), or open the device only after the fork");
  }
  return MPS_STATUS_OK;
}
