/* The order in which the threads of a threadgroup run, and what they wait for.
 *
 * SIMD-groups take turns. In its turn a SIMD-group runs every lane that can run, in order, until each has come to a
 * wait or returned; then one collective is done, and it is the next one's turn. Kernels that were written for a GPU
 * lean on this near-lockstep where they lack a barrier: running each SIMD-group as far as it goes breaks them.
 *
 * Nothing can get stuck: a SIMD-group whose turn ends has a lane that is ready, unless all its lanes are at the barrier
 * or have returned; and a barrier opens as soon as every thread that is left is at it. */
#include "fiber.h"

#include <sched.h>

/* Yields before the system's other threads get a turn: the thread waited for may be one of theirs. */
#define YIELDS_PER_TURN 64

static inline HOST_ON_FIBER unsigned lowest_bit(uint32_t mask) {
  return (unsigned)__builtin_ctz(mask);
}

/* The lanes that wait in the collective that comes first in the code: of lanes that took different ways, those behind
 * catch up before those ahead go on. */
static HOST_ON_FIBER uint32_t first_collective(const host_simdgroup *group) {
  unsigned first = lowest_bit(group->waiting);
  uint32_t lanes = 0;
  for (uint32_t left = group->waiting; left != 0; left &= left - 1) {
    unsigned lane = lowest_bit(left);
    bool same = group->sites[lane] == group->sites[first] && group->operations[lane] == group->operations[first];
    if (same) {
      lanes |= 1u << lane;
    } else if (group->sites[lane] < group->sites[first] ||
               (group->sites[lane] == group->sites[first] &&
                (uintptr_t)group->operations[lane] < (uintptr_t)group->operations[first])) {
      first = lane;
      lanes = 1u << lane;
    }
  }
  return lanes;
}

/* No lane of the group can go on: do one collective, and let lanes that yielded try again. */
static HOST_ON_FIBER void end_turn(host_simdgroup *group) {
  group->ready |= group->yielded;
  group->yielded = 0;
  if (group->waiting == 0) {
    return;
  }
  uint32_t lanes = group->mixed ? first_collective(group) : group->waiting;
  group->waiting &= ~lanes;
  group->ready |= lanes;
  group->mixed = group->mixed && group->waiting != 0;
  group->operations[lowest_bit(lanes)](group->operands, lanes);
}

static inline HOST_ON_FIBER unsigned first_ready(const host_worker *worker, unsigned number) {
  return number * MSLC_SIMD_WIDTH + lowest_bit(worker->simdgroup[number].ready);
}

/* Which thread goes on when the running one cannot. Some thread must be neither at the barrier nor have returned. */
static HOST_ON_FIBER unsigned next_thread(host_worker *worker) {
  unsigned number = worker->running / MSLC_SIMD_WIDTH;
  unsigned lane = worker->running % MSLC_SIMD_WIDTH;
  host_simdgroup *group = &worker->simdgroup[number];
  uint32_t following = group->ready & (~UINT32_C(1) << lane);
  if (following != 0) {
    return number * MSLC_SIMD_WIDTH + lowest_bit(following);
  }
  if (group->ready != 0) {
    return first_ready(worker, number);
  }
  end_turn(group);
  do {
    number = number + 1 == worker->simdgroups ? 0 : number + 1;
  } while (worker->simdgroup[number].ready == 0);
  return first_ready(worker, number);
}

/* Open the barrier; the first thread at it goes on. */
static HOST_ON_FIBER unsigned open_barrier(host_worker *worker) {
  unsigned first = worker->simdgroups;
  for (unsigned number = worker->simdgroups; number-- > 0;) {
    host_simdgroup *group = &worker->simdgroup[number];
    group->ready |= group->arrived;
    group->arrived = 0;
    first = group->ready != 0 ? number : first;
  }
  worker->arrived = 0;
  return first_ready(worker, first);
}

static HOST_ON_FIBER unsigned after_arrival_or_return(host_worker *worker) {
  return worker->arrived == worker->live ? open_barrier(worker) : next_thread(worker);
}

HOST_ON_FIBER void host_simdgroups_begin(host_worker *worker, unsigned threads) {
  worker->live = threads;
  worker->arrived = 0;
  worker->running = 0;
  worker->simdgroups = (threads + MSLC_SIMD_WIDTH - 1) / MSLC_SIMD_WIDTH;
  for (unsigned number = 0; number < worker->simdgroups; number++) {
    host_simdgroup *group = &worker->simdgroup[number];
    unsigned lanes = threads - number * MSLC_SIMD_WIDTH;
    group->ready = lanes < MSLC_SIMD_WIDTH ? (1u << lanes) - 1 : UINT32_MAX;
    group->fresh = group->ready;
    group->waiting = group->arrived = group->yielded = 0;
    group->mixed = false;
  }
}

HOST_ON_FIBER unsigned host_simdgroups_leave(host_worker *worker) {
  worker->simdgroup[worker->running / MSLC_SIMD_WIDTH].ready &= ~(1u << worker->running % MSLC_SIMD_WIDTH);
  return after_arrival_or_return(worker);
}

static HOST_ON_FIBER void *arena(void) {
  return host_self->arena;
}

static HOST_ON_FIBER unsigned lane_number(void) {
  return host_self->running % MSLC_SIMD_WIDTH;
}

static HOST_ON_FIBER void threadgroup_barrier(void) {
  host_worker *worker = host_self;
  host_simdgroup *group = &worker->simdgroup[worker->running / MSLC_SIMD_WIDTH];
  uint32_t lane = 1u << worker->running % MSLC_SIMD_WIDTH;
  group->ready &= ~lane;
  group->arrived |= lane;
  worker->arrived++;
  host_fiber_yield_to(worker, after_arrival_or_return(worker));
}

/* noinline: the return address is the kernel's call. */
static HOST_ON_FIBER __attribute__((noinline)) void collective(void *operand, mslc_collective_fn operation) {
  host_worker *worker = host_self;
  host_simdgroup *group = &worker->simdgroup[worker->running / MSLC_SIMD_WIDTH];
  unsigned lane = worker->running % MSLC_SIMD_WIDTH;
  uintptr_t site = (uintptr_t)__builtin_return_address(0);
  if (group->waiting != 0) {
    unsigned other = lowest_bit(group->waiting);
    group->mixed |= group->sites[other] != site || group->operations[other] != operation;
  }
  group->operands[lane] = operand;
  group->sites[lane] = site;
  group->operations[lane] = operation;
  group->ready &= ~(1u << lane);
  group->waiting |= 1u << lane;
  host_fiber_yield_to(worker, next_thread(worker));
}

static HOST_ON_FIBER void yield(void) {
  host_worker *worker = host_self;
  if (worker->live == 0 || ++worker->yields % YIELDS_PER_TURN == 0) {
    sched_yield();
  }
  if (worker->live == 0) {
    return;
  }
  host_simdgroup *group = &worker->simdgroup[worker->running / MSLC_SIMD_WIDTH];
  uint32_t lane = 1u << worker->running % MSLC_SIMD_WIDTH;
  group->ready &= ~lane;
  group->yielded |= lane;
  host_fiber_yield_to(worker, next_thread(worker));
}

const mslc_runtime host_runtime = {
    .size = sizeof(mslc_runtime),
    .run_fibers = host_run_fibers,
    .arena = arena,
    .threadgroup_barrier = threadgroup_barrier,
    .collective = collective,
    .lane = lane_number,
    .yield = yield,
};
