/* The order in which the threads of a threadgroup run, and what they wait for.
 *
 * SIMD-groups take turns. In its turn a SIMD-group runs every lane that can run, in order, until each has come to a
 * wait or returned; then one collective is done, and it is the next one's turn. Kernels that were written for a GPU
 * lean on this near-lockstep where they lack a barrier: running each SIMD-group as far as it goes breaks them.
 *
 * Nothing can get stuck: a SIMD-group whose turn ends has a lane that is ready, unless all its lanes are at the barrier
 * or have returned; and a barrier opens as soon as every thread that is left is at it. */
#include "fiber.h"
#include "kernel_log.h"
#include "validate.h"

#include <sched.h>

/* Yields before the system's other threads get a turn: the thread waited for may be one of theirs. */
#define YIELDS_PER_TURN 64

static inline HOST_ON_FIBER unsigned lowest_bit(uint32_t mask) {
  return (unsigned)__builtin_ctz(mask);
}

/* Of some waiting lanes, those in the collective that comes first in the code: of lanes that took different ways, those
 * behind catch up before those ahead go on. */
static HOST_ON_FIBER uint32_t first_collective(const host_simdgroup *group, uint32_t waiting) {
  unsigned first = lowest_bit(waiting);
  uint32_t lanes = 0;
  for (uint32_t left = waiting; left != 0; left &= left - 1) {
    unsigned lane = lowest_bit(left);
    bool same = group->sites[lane] == group->sites[first] && group->operations[lane] == group->operations[first];
    if (same) {
      lanes |= UINT32_C(1) << lane;
    } else if (group->sites[lane] < group->sites[first] ||
               (group->sites[lane] == group->sites[first] &&
                (uintptr_t)group->operations[lane] < (uintptr_t)group->operations[first])) {
      first = lane;
      lanes = UINT32_C(1) << lane;
    }
  }
  return lanes;
}

/* No lane of the group can go on: do one collective, and let lanes that yielded try again. */
static HOST_ON_FIBER void end_turn(host_worker *worker, host_simdgroup *group) {
  group->ready |= group->yielded;
  group->yielded = 0;
  if (group->waiting == 0) {
    return;
  }
  uint32_t candidates = worker->validator != NULL ? host_validate_candidates(worker, group) : group->waiting;
  uint32_t lanes = group->mixed ? first_collective(group, candidates) : group->waiting;
  if (worker->validator != NULL) {
    host_validate_lanes(worker, group, lanes);
  }
  group->waiting &= ~lanes;
  group->ready |= lanes;
  group->mixed = group->mixed && group->waiting != 0;
  group->collectives++;
  group->operations[lowest_bit(lanes)](group->operands, lanes);
}

static inline HOST_ON_FIBER host_turn first_ready(host_simdgroup *group) {
  return (host_turn){group, lowest_bit(group->ready)};
}

/* Another SIMD-group's turn, or the same one's again. */
static HOST_ON_FIBER host_turn next_group(host_worker *worker) {
  host_simdgroup *group = worker->group;
  if (group->ready != 0) {
    return first_ready(group);
  }
  end_turn(worker, group);
  do {
    group = group + 1 == worker->groups_end ? worker->groups : group + 1;
  } while (group->ready == 0);
  return first_ready(group);
}

/* Whose turn it is when the running thread cannot go on. Some thread must be neither at the barrier nor have returned.
 */
static inline HOST_ON_FIBER host_turn next_thread(host_worker *worker) {
  uint32_t following = worker->group->ready & (~UINT32_C(1) << worker->lane);
  return following != 0 ? (host_turn){worker->group, lowest_bit(following)} : next_group(worker);
}

/* Open the barrier; the first thread at it goes on. */
static HOST_ON_FIBER host_turn open_barrier(host_worker *worker) {
  if (worker->validator != NULL) {
    host_validate_group(worker);
  }
  host_simdgroup *first = NULL;
  for (host_simdgroup *group = worker->groups_end; group-- != worker->groups;) {
    group->ready |= group->arrived;
    group->arrived = 0;
    first = group->ready != 0 ? group : first;
  }
  worker->arrived = 0;
  worker->barriers++;
  return first_ready(first);
}

static inline HOST_ON_FIBER host_turn after_arrival_or_return(host_worker *worker) {
  return worker->arrived == worker->live ? open_barrier(worker) : next_thread(worker);
}

HOST_ON_FIBER void host_simdgroups_begin(host_worker *worker, unsigned threads) {
  worker->live = worker->threads = threads;
  worker->arrived = 0;
  worker->barriers = 0;
  worker->group = worker->groups;
  worker->lane = 0;
  worker->groups_end = worker->groups + (threads + MSLC_SIMD_WIDTH - 1) / MSLC_SIMD_WIDTH;
  unsigned first = 0;
  for (host_simdgroup *group = worker->groups; group != worker->groups_end; group++, first += MSLC_SIMD_WIDTH) {
    unsigned lanes = threads - first;
    group->first = first;
    group->ready = lanes < MSLC_SIMD_WIDTH ? (UINT32_C(1) << lanes) - 1 : UINT32_MAX;
    group->fresh = group->ready;
    group->waiting = group->arrived = group->yielded = 0;
    group->collectives = 0;
    group->mixed = false;
  }
}

void host_simdgroups_end(host_worker *worker) {
  worker->live = 0;
  worker->arrived = 0;
  worker->group = NULL;
  worker->lane = 0;
  worker->groups_end = worker->groups;
}

HOST_ON_FIBER host_turn host_simdgroups_leave(host_worker *worker) {
  worker->group->ready &= ~(UINT32_C(1) << worker->lane);
  return after_arrival_or_return(worker);
}

static HOST_ON_FIBER void *arena(void) {
  return host_self->arena;
}

/* The worker, whose running thread is a fiber. A kernel without fibers has none that could wait: it ends here. */
static inline HOST_ON_FIBER host_worker *on_fiber(void) {
  host_worker *worker = host_self;
  if (worker->live == 0) {
    worker->trap = (host_trap){.stop = HOST_STOP_NO_FIBERS};
    host_fiber_resume(worker->recover);
  }
  return worker;
}

static HOST_ON_FIBER unsigned lane_number(void) {
  return on_fiber()->lane;
}

static HOST_ON_FIBER void threadgroup_barrier(void) {
  host_worker *worker = on_fiber();
  host_simdgroup *group = worker->group;
  uint32_t lane = UINT32_C(1) << worker->lane;
  group->ready &= ~lane;
  group->arrived |= lane;
  worker->arrived++;
  host_fiber_pass(worker, after_arrival_or_return(worker));
}

/* noinline: the return address is the kernel's call. */
static HOST_ON_FIBER __attribute__((noinline)) void collective(void *operand, mslc_collective_fn operation) {
  host_worker *worker = on_fiber();
  host_simdgroup *group = worker->group;
  unsigned lane = worker->lane;
  uintptr_t site = (uintptr_t)__builtin_return_address(0);
  if (group->waiting != 0) {
    unsigned other = lowest_bit(group->waiting);
    group->mixed |= group->sites[other] != site || group->operations[other] != operation;
  }
  group->operands[lane] = operand;
  group->sites[lane] = site;
  group->operations[lane] = operation;
  group->ready &= ~(UINT32_C(1) << lane);
  group->waiting |= UINT32_C(1) << lane;
  host_fiber_pass(worker, next_thread(worker));
}

/* Let all others go on first. */
static HOST_ON_FIBER void give_way(host_worker *worker) {
  host_simdgroup *group = worker->group;
  uint32_t lane = UINT32_C(1) << worker->lane;
  group->ready &= ~lane;
  group->yielded |= lane;
  host_fiber_pass(worker, next_thread(worker));
}

static HOST_ON_FIBER void yield(void) {
  host_worker *worker = host_self;
  if (worker->live == 0 || ++worker->yields % YIELDS_PER_TURN == 0) {
    sched_yield();
  }
  if (worker->live != 0) {
    give_way(worker);
  }
}

static HOST_ON_FIBER void turn(void) {
  host_worker *worker = on_fiber();
  if (worker->live > 1) {
    give_way(worker);
  }
}

const mslc_runtime host_runtime = {
    .size = sizeof(mslc_runtime),
    .run_fibers = host_run_fibers,
    .arena = arena,
    .threadgroup_barrier = threadgroup_barrier,
    .collective = collective,
    .lane = lane_number,
    .yield = yield,
    .check = host_validate_check,
    .copy = host_validate_copy,
    .fill = host_validate_fill,
    .scratch = host_worker_scratch,
    .log = host_log,
    .turn = turn,
    .arrive = host_validate_arrive,
};
