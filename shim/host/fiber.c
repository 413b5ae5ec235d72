#include "fiber.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif

#if defined(WITH_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* Stacks begin in different cache sets: equal distances of a power of two would make them all share a few. */
#define STACK_STAGGER 320
#define STACK_STAGGERS 32

static HOST_ON_FIBER char *stack_bottom(const host_worker *worker, unsigned number) {
  return worker->stacks + number * HOST_FIBER_STACK;
}

static HOST_ON_FIBER void *stack_top(const host_worker *worker, unsigned number) {
  return stack_bottom(worker, number) + HOST_FIBER_STACK - 64 - number % STACK_STAGGERS * STACK_STAGGER;
}

/* ---- what AddressSanitizer has to be told, in this order: leaving, the switch, arrived ---- */

#if defined(WITH_ASAN)

/* fake_stack: where the fiber that is left keeps its notes, NULL if it ends. */
static HOST_ON_FIBER void leaving(void **fake_stack, const void *bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}

static HOST_ON_FIBER void arrived(void *fake_stack) {
  __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
}

static HOST_ON_FIBER void arrived_first(host_worker *worker) {
  __sanitizer_finish_switch_fiber(NULL, &worker->own_stack, &worker->own_stack_size);
}

static void forget_frames(host_worker *worker) {
  __asan_unpoison_memory_region(worker->stacks, worker->guarded * HOST_FIBER_STACK);
}

#else

static inline HOST_ON_FIBER void leaving(void **fake_stack, const void *bottom, size_t size) {
  (void)fake_stack, (void)bottom, (void)size;
}

static inline HOST_ON_FIBER void arrived(void *fake_stack) {
  (void)fake_stack;
}

static inline HOST_ON_FIBER void arrived_first(host_worker *worker) {
  (void)worker;
}

static void forget_frames(host_worker *worker) {
  (void)worker;
}

#endif

/* ---- stacks ---- */

/* Guard pages that split the address space into separate mappings, of which a process may have some 65000. Linux before
 * 6.13 makes no others. With hundreds of workers the last ones then do without. */
#define SPLITTING_GUARDS 16384

static _Atomic unsigned splitting_guards;

/* Make the lowest page of a stack untouchable. */
static bool guard_stack(char *bottom, size_t page) {
#if defined(__linux__)
  const int guard_install = 102; /* MADV_GUARD_INSTALL */
  if (madvise(bottom, page, guard_install) == 0) {
    return true;
  }
#endif
  if (atomic_fetch_add(&splitting_guards, 1) >= SPLITTING_GUARDS) {
    atomic_fetch_sub(&splitting_guards, 1);
    return true;
  }
  return mprotect(bottom, page, PROT_NONE) == 0;
}

static bool open_stacks(host_worker *worker, unsigned count) {
  if (worker->stacks == NULL) {
    void *stacks = mmap(NULL, MSLC_MAX_GROUP_THREADS * HOST_FIBER_STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
      return false;
    }
    worker->stacks = stacks;
  }
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  while (worker->guarded < count) {
    if (!guard_stack(stack_bottom(worker, worker->guarded), page)) {
      return false;
    }
    worker->guarded++;
  }
  return true;
}

bool host_fiber_guards(const host_worker *worker, uintptr_t address) {
  uintptr_t from_start = address - (uintptr_t)worker->stacks;
  return worker->stacks != NULL && from_start < worker->guarded * HOST_FIBER_STACK &&
         from_start % HOST_FIBER_STACK < (uintptr_t)sysconf(_SC_PAGESIZE);
}

void host_fibers_close(host_worker *worker) {
  if (worker->stacks != NULL) {
    munmap(worker->stacks, MSLC_MAX_GROUP_THREADS * HOST_FIBER_STACK);
  }
}

/* ---- running ---- */

/* Make it that thread's turn; true if it has not begun. */
static inline HOST_ON_FIBER bool take_turn(host_worker *worker, host_turn turn) {
  uint32_t lane = UINT32_C(1) << turn.lane;
  worker->group = turn.group;
  worker->lane = turn.lane;
  if ((turn.group->fresh & lane) == 0) {
    return false;
  }
  turn.group->fresh &= ~lane;
  return true;
}

/* Runs a thread that has not begun; then, on the same stack, further such threads for as long as it is their turn. */
static HOST_ON_FIBER void fiber_main(void) {
  host_worker *worker = host_self;
  arrived_first(worker);
  for (;;) {
    worker->thread(worker->context, worker->group->first + worker->lane);
    if (--worker->live == 0) {
      leaving(NULL, worker->own_stack, worker->own_stack_size);
      host_fiber_resume(worker->caller);
    }
    host_turn turn = host_simdgroups_leave(worker);
    if (!take_turn(worker, turn)) {
      leaving(NULL, stack_bottom(worker, turn.group->first + turn.lane), HOST_FIBER_STACK);
      host_fiber_resume(turn.group->saved[turn.lane]);
    }
  }
}

HOST_ON_FIBER void host_fiber_pass(host_worker *worker, host_turn turn) {
  void **save = &worker->group->saved[worker->lane];
  if (turn.group == worker->group && turn.lane == worker->lane) {
    return;
  }
  void *fake_stack = NULL;
  leaving(&fake_stack, stack_bottom(worker, turn.group->first + turn.lane), HOST_FIBER_STACK);
  if (take_turn(worker, turn)) {
    host_fiber_start(save, stack_top(worker, turn.group->first + turn.lane), fiber_main);
  } else {
    host_fiber_switch(save, turn.group->saved[turn.lane]);
  }
  arrived(fake_stack);
}

HOST_ON_FIBER void host_run_fibers(mslc_thread_fn thread, const void *context, unsigned threads) {
  host_worker *worker = host_self;
  if (threads == 0) {
    return;
  }
  if (threads > worker->guarded && !open_stacks(worker, threads)) {
    worker->trap = (host_trap){.stop = HOST_STOP_NO_STACKS};
    host_fiber_resume(worker->recover);
  }
  worker->thread = thread;
  worker->context = context;
  host_simdgroups_begin(worker, threads);
  take_turn(worker, (host_turn){worker->groups, 0});
  leaving(&worker->own_fake_stack, stack_bottom(worker, 0), HOST_FIBER_STACK);
  host_fiber_start(&worker->caller, stack_top(worker, 0), fiber_main);
  arrived(worker->own_fake_stack);
  host_simdgroups_end(worker);
}

void host_fibers_abandon(host_worker *worker) {
  if (worker->live == 0) {
    return;
  }
  host_simdgroups_end(worker);
  leaving(NULL, worker->own_stack, worker->own_stack_size);
  arrived(worker->own_fake_stack);
  forget_frames(worker);
}
