#include "fiber.h"
#include "thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* Enough for a handler that was there before ours and is called by it, such as one that prints a traceback. */
#define SIGNAL_STACK_BYTES ((size_t)64 << 10)

_Thread_local host_worker *host_self HOST_TLS;

static pthread_key_t at_thread_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;

/* Faults on a fiber's exhausted stack have to be handled on another one. A stack that the thread already has is as
 * good. */
static void install_signal_stack(host_worker *worker) {
  stack_t present;
  if (sigaltstack(NULL, &present) != 0 || !(present.ss_flags & SS_DISABLE)) {
    return;
  }
  stack_t ours = {.ss_sp = worker->signal_stack, .ss_size = SIGNAL_STACK_BYTES};
  worker->signal_stack_installed = sigaltstack(&ours, NULL) == 0;
}

static void remove_signal_stack(host_worker *worker) {
  stack_t present;
  if (worker->signal_stack_installed && sigaltstack(NULL, &present) == 0 && present.ss_sp == worker->signal_stack) {
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE, .ss_size = SIGNAL_STACK_BYTES}, NULL);
  }
}

/* A fault whose signal is blocked ends the process, whatever handlers there are. */
static void unblock_faults(void) {
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV);
  sigaddset(&faults, SIGBUS);
  sigaddset(&faults, SIGFPE);
  sigaddset(&faults, SIGILL);
  sigaddset(&faults, SIGTRAP);
  pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
}

static size_t in_pages(size_t size, size_t page) {
  return (size + page - 1) & ~(page - 1);
}

/* The parts of a worker's mapping, in this order, with a page before and after each that cannot be touched: an overrun
 * of one shall not reach the next. */
typedef struct layout {
  size_t page, worker, signal_stack, arena, total;
} layout;

static layout mapping_layout(void) {
  layout at = {.page = (size_t)sysconf(_SC_PAGESIZE)};
  at.worker = at.page;
  at.signal_stack = at.worker + in_pages(sizeof(host_worker), at.page) + at.page;
  at.arena = at.signal_stack + in_pages(SIGNAL_STACK_BYTES, at.page) + at.page;
  at.total = at.arena + in_pages(MSLC_THREADGROUP_BYTES, at.page) + at.page;
  return at;
}

static bool make_usable(char *part, size_t size, size_t page) {
  return mprotect(part, in_pages(size, page), PROT_READ | PROT_WRITE) == 0;
}

static host_worker *map_worker(void) {
  layout at = mapping_layout();
  char *mapping = mmap(NULL, at.total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return NULL;
  }
  if (!make_usable(mapping + at.worker, sizeof(host_worker), at.page) ||
      !make_usable(mapping + at.signal_stack, SIGNAL_STACK_BYTES, at.page) ||
      !make_usable(mapping + at.arena, MSLC_THREADGROUP_BYTES, at.page)) {
    munmap(mapping, at.total);
    return NULL;
  }
  host_worker *worker = (host_worker *)(void *)(mapping + at.worker);
  worker->mapping = mapping;
  worker->signal_stack = mapping + at.signal_stack;
  worker->arena = mapping + at.arena;
  return worker;
}

/* Only for kernels that use it: it is much bigger than all the rest. */
void *host_worker_scratch(void) {
  host_worker *worker = host_self;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (worker->scratch == NULL) {
    char *scratch = mmap(NULL, MSLC_SCRATCH_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (scratch != MAP_FAILED && !make_usable(scratch + page, MSLC_SCRATCH_BYTES, page)) {
      munmap(scratch, MSLC_SCRATCH_BYTES + 2 * page);
      scratch = MAP_FAILED;
    }
    if (scratch == MAP_FAILED) {
      worker->trap = (host_trap){.stop = HOST_STOP_NO_SCRATCH};
      host_fiber_resume(worker->recover);
    }
    worker->scratch = scratch;
  }
  return worker->scratch + page;
}

static void worker_close(void *pointer) {
  host_worker *worker = pointer;
  host_self = NULL;
  remove_signal_stack(worker);
  host_fibers_close(worker);
  if (worker->scratch != NULL) {
    munmap(worker->scratch, MSLC_SCRATCH_BYTES + 2 * (size_t)sysconf(_SC_PAGESIZE));
  }
  munmap(worker->mapping, mapping_layout().total);
}

static void begin(void) {
  if (pthread_key_create(&at_thread_exit, worker_close) != 0) {
    return;
  }
  host_pin_library();
  host_fault_handlers_install();
  ready = true;
}

host_worker *host_worker_open(void) {
  if (host_self != NULL) {
    return host_self;
  }
  pthread_once(&once, begin);
  if (!ready) {
    return NULL;
  }
  host_worker *worker = map_worker();
  if (worker == NULL) {
    return NULL;
  }
  if (pthread_setspecific(at_thread_exit, worker) != 0) {
    munmap(worker->mapping, mapping_layout().total);
    return NULL;
  }
  install_signal_stack(worker);
  unblock_faults();
  host_self = worker;
  return worker;
}
