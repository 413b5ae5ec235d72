/* Kernels written by hand against kernel_abi.h, as a kernel library: what a compiler would make of Metal sources that
 * use barriers, SIMD-group functions and threadgroup memory, or that fault. All grids are flat. */
#include "kernel_abi.h"

#include <stddef.h>
#include <stdint.h>

static const mslc_runtime *runtime;

/* ---- what the prelude does in real kernels ---- */

typedef struct place {
  const mslc_launch *launch;
  uint32_t group;
  uint32_t start;   /* of the group, in the grid */
  uint32_t threads; /* of this group */
} place;

static void run_groups(const mslc_launch *launch, unsigned long first, unsigned long last, mslc_thread_fn thread) {
  for (unsigned long group = first; group < last; group++) {
    place at = {launch, (uint32_t)group, (uint32_t)group * launch->group[0], launch->group[0]};
    if (launch->grid[0] - at.start < at.threads) {
      at.threads = launch->grid[0] - at.start;
    }
    runtime->run_fibers(thread, &at, at.threads);
  }
}

static uint32_t *words(const place *at, unsigned slot) {
  return at->launch->buffers[slot];
}

static void add_active(void *const *operands, unsigned mask) {
  uint32_t sum = 0;
  for (unsigned lane = 0; lane < 32; lane++) {
    sum += mask >> lane & 1 ? *(uint32_t *)operands[lane] : 0;
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    if (mask >> lane & 1) {
      *(uint32_t *)operands[lane] = sum;
    }
  }
}

static void give_mask(void *const *operands, unsigned mask) {
  for (unsigned lane = 0; lane < 32; lane++) {
    if (mask >> lane & 1) {
      *(uint32_t *)operands[lane] = mask;
    }
  }
}

#define BUFFER(name, slot, type) {name, #type, 1, slot, 3, 7 | 1 << 8, sizeof(type), _Alignof(type), 0}

static const mslc_argument out_in[] = {BUFFER("out", 0, uint32_t), BUFFER("in", 1, uint32_t)};

#define KERNEL(name, flags)                                                                                            \
  static void name##_run(const mslc_launch *launch, unsigned long first, unsigned long last) {                         \
    run_groups(launch, first, last, name##_thread);                                                                    \
  }                                                                                                                    \
  static const mslc_kernel name##_kernel = {#name, name##_run, flags, 1024, 2, 0, out_in, NULL, NULL}

#define THREAD(name) static void name##_thread(const void *context, unsigned thread)

/* ---- barriers ---- */

/* out = in, reversed within each threadgroup, by way of dynamic threadgroup memory */
THREAD(reverse) {
  const place *at = context;
  uint32_t *shared = (void *)((char *)runtime->arena() + at->launch->threadgroup_offset[0]);
  shared[thread] = words(at, 1)[at->start + thread];
  runtime->threadgroup_barrier();
  words(at, 0)[at->start + thread] = shared[at->threads - 1 - thread];
}
static const mslc_argument reverse_arguments[] = {
    BUFFER("out", 0, uint32_t), BUFFER("in", 1, uint32_t), {"shared", "uint", 3, 0, 3, 7 | 1 << 8, 4, 4, 0}};
static void reverse_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  run_groups(launch, first, last, reverse_thread);
}
static const mslc_kernel reverse_kernel = {"reverse", reverse_run, MSLC_KERNEL_FIBERS, 1024, 3, 0, reverse_arguments,
                                           NULL,      NULL};

/* out[group] = sum of the group's part of in, by a tree */
THREAD(tree) {
  const place *at = context;
  volatile uint32_t *shared = runtime->arena();
  shared[thread] = words(at, 1)[at->start + thread];
  runtime->threadgroup_barrier();
  for (unsigned live = at->threads; live > 1; live = (live + 1) / 2) {
    unsigned half = (live + 1) / 2;
    if (thread + half < live) {
      shared[thread] += shared[thread + half];
    }
    runtime->threadgroup_barrier();
  }
  if (thread == 0) {
    words(at, 0)[at->group] = shared[0];
  }
}
KERNEL(tree, MSLC_KERNEL_FIBERS);

/* Threads from in[0] on return before the barrier; the others count themselves, and all see the whole count behind it.
 */
THREAD(early_return) {
  const place *at = context;
  volatile uint32_t *shared = runtime->arena();
  if (thread == 0) {
    shared[0] = 0;
  }
  if (thread >= words(at, 1)[0]) {
    words(at, 0)[at->start + thread] = 7;
    return;
  }
  runtime->threadgroup_barrier();
  shared[0]++;
  runtime->threadgroup_barrier();
  words(at, 0)[at->start + thread] = shared[0];
}
KERNEL(early_return, MSLC_KERNEL_FIBERS);

/* do { barrier; } while (flag): out = number of rounds, which thread 0 ends after in[0] of them */
THREAD(rounds) {
  const place *at = context;
  volatile uint32_t *shared = runtime->arena();
  uint32_t count = 0;
  uint32_t again;
  do {
    if (thread == 0) {
      shared[0] = count + 1 < words(at, 1)[0];
    }
    runtime->threadgroup_barrier();
    again = shared[0];
    count++;
    runtime->threadgroup_barrier();
  } while (again);
  words(at, 0)[at->start + thread] = count;
}
KERNEL(rounds, MSLC_KERNEL_FIBERS);

/* ---- SIMD-groups ---- */

/* out = sum of in over the SIMD-group */
THREAD(simd_sum) {
  const place *at = context;
  uint32_t value = words(at, 1)[at->start + thread];
  runtime->collective(&value, add_active);
  words(at, 0)[at->start + thread] = value;
}
KERNEL(simd_sum, MSLC_KERNEL_FIBERS);

/* out = the lanes that came to the same of two call sites, and those that came to the one behind both */
THREAD(divergent) {
  const place *at = context;
  uint32_t mask = 0, all = 0;
  if (thread % 3 == 0) {
    runtime->collective(&mask, give_mask);
  } else {
    runtime->collective(&mask, give_mask);
  }
  runtime->collective(&all, give_mask);
  words(at, 0)[2 * (at->start + thread)] = mask;
  words(at, 0)[2 * (at->start + thread) + 1] = all;
}
KERNEL(divergent, MSLC_KERNEL_FIBERS);

/* Lane n stays in the loop for n % 8 + 1 rounds; out = the mask that it saw in its last one. */
THREAD(trip_counts) {
  const place *at = context;
  uint32_t mask = 0;
  for (unsigned round = 0; round <= thread % 8; round++) {
    runtime->collective(&mask, give_mask);
  }
  words(at, 0)[at->start + thread] = mask;
}
KERNEL(trip_counts, MSLC_KERNEL_FIBERS);

/* Even lanes wait at the barrier while the odd ones do a collective, then meet them there; out = mask */
THREAD(barrier_and_collective) {
  const place *at = context;
  uint32_t mask = 0;
  if (thread % 2 == 1) {
    runtime->collective(&mask, give_mask);
  }
  runtime->threadgroup_barrier();
  uint32_t both = 0;
  runtime->collective(&both, give_mask);
  words(at, 0)[at->start + thread] = mask ^ both;
}
KERNEL(barrier_and_collective, MSLC_KERNEL_FIBERS);

/* The first lane of each SIMD-group writes its number behind each of four collectives into the list out. */
THREAD(turns) {
  const place *at = context;
  volatile uint32_t *next = runtime->arena();
  if (thread == 0) {
    *next = 0;
  }
  runtime->threadgroup_barrier();
  for (unsigned round = 0; round < 4; round++) {
    uint32_t mask = 0;
    runtime->collective(&mask, give_mask);
    if (runtime->lane() == 0) {
      words(at, 0)[(*next)++] = thread / 32;
    }
  }
}
KERNEL(turns, MSLC_KERNEL_FIBERS);

/* Every thread but the last waits, yielding, for the next one's word in out; the last writes 1, each other one more. */
THREAD(chain) {
  const place *at = context;
  volatile uint32_t *out = words(at, 0);
  if (thread + 1 < at->threads) {
    while (out[thread + 1] == 0) {
      runtime->yield();
    }
    out[thread] = out[thread + 1] + 1;
  } else {
    uint32_t mask = 0;
    runtime->collective(&mask, give_mask);
    out[thread] = 1;
  }
}
KERNEL(chain, MSLC_KERNEL_FIBERS);

/* ---- floating point ---- */

/* out = in * 0.5, as floats */
static void halve_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  float *out = launch->buffers[0];
  const float *in = launch->buffers[1];
  (void)first, (void)last;
  for (unsigned thread = 0; thread < launch->grid[0]; thread++) {
    out[thread] = in[thread] * 0.5f;
  }
}
static const mslc_kernel halve_kernel = {"halve", halve_run, MSLC_KERNEL_BOUNDED, 1024, 2, 0, out_in, NULL, NULL};

/* ---- faults: what goes wrong is chosen by in[0], for the thread in[1] ---- */

static uint32_t recurse(volatile uint32_t *out, uint32_t depth) {
  volatile uint32_t local[64];
  local[depth % 64] = depth;
  return depth == 0 ? *out : recurse(out, depth - 1) + local[depth % 64];
}

static void go_wrong(uint32_t *out, const uint32_t *in) {
  volatile uint32_t zero = 0;
  switch (in[0]) {
  case 0:
    *(volatile uint32_t *)(uintptr_t)in[2] = 1;
    break;
  case 1:
    out[0] = *(volatile uint32_t *)(uintptr_t)in[2];
    break;
  case 2:
    out[0] = *(volatile uint32_t *)((uintptr_t)in[2] << 32);
    break;
  case 3:
    out[0] = in[0] / zero;
    break;
  case 4:
    out[0] = recurse(out, 1u << 30);
    break;
  case 5:
    __builtin_trap();
  default:
    break;
  }
}

static void fault_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first, (void)last;
  go_wrong(launch->buffers[0], launch->buffers[1]);
}
static const mslc_kernel fault_kernel = {"fault", fault_run, 0, 1024, 2, 0, out_in, NULL, NULL};

/* A kernel without fibers that waits for other threads: which no compiler should make. */
static void wait_alone_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first, (void)last;
  uint32_t *out = launch->buffers[0];
  const uint32_t *in = launch->buffers[1];
  if (in[0] == 0) {
    runtime->threadgroup_barrier();
  } else if (in[0] == 1) {
    runtime->collective(out, give_mask);
  } else {
    out[0] = runtime->lane();
  }
  out[1] = 1;
}
static const mslc_kernel wait_alone_kernel = {"wait_alone", wait_alone_run, 0, 1024, 2, 0, out_in, NULL, NULL};

THREAD(fiber_fault) {
  const place *at = context;
  uint32_t mask = 0;
  runtime->threadgroup_barrier();
  runtime->collective(&mask, give_mask);
  if (thread == words(at, 1)[1]) {
    go_wrong(words(at, 0), words(at, 1));
  }
  runtime->threadgroup_barrier();
}
KERNEL(fiber_fault, MSLC_KERNEL_FIBERS);

/* ---- static threadgroup memory ---- */

static mslc_threadgroup_slot slots[] = {{4, 4, 12345, 0}, {100, 16, 12345, 0}, {1, 1, 12345, 0}};

/* out[n] = where slot n lies */
static void places_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first, (void)last;
  for (unsigned number = 0; number < 3; number++) {
    ((uint32_t *)launch->buffers[0])[number] = slots[number].offset;
  }
}
static const mslc_kernel places_kernel = {"places", places_run, MSLC_KERNEL_BOUNDED, 256, 2, 0, out_in,
                                          slots,    slots + 3};

static mslc_threadgroup_slot big_slots[] = {{20000, 4, 0, 0}, {20000, 4, 0, 0}};
static const mslc_kernel big_kernel = {"too_much_memory", places_run,   MSLC_KERNEL_BOUNDED, 1024, 2, 0, out_in,
                                       big_slots,         big_slots + 2};

static const mslc_argument far_argument[] = {BUFFER("thirty_second", 31, uint32_t)};
static const mslc_kernel far_kernel = {
    "too_many_buffers", places_run, MSLC_KERNEL_BOUNDED, 1024, 1, 0, far_argument, NULL, NULL};

/* ---- the library ---- */

static const mslc_kernel *const kernels[] = {
    &reverse_kernel,     &tree_kernel,      &early_return_kernel, &rounds_kernel,
    &simd_sum_kernel,    &divergent_kernel, &trip_counts_kernel,  &barrier_and_collective_kernel,
    &turns_kernel,       &chain_kernel,     &halve_kernel,        &fault_kernel,
    &fiber_fault_kernel, &places_kernel,    &big_kernel,          &far_kernel,
    &wait_alone_kernel,
};

__attribute__((visibility("default"))) const mslc_library mslc_kernel_library = {
    MSLC_LIBRARY_MAGIC, MSLC_KERNEL_ABI, sizeof kernels / sizeof kernels[0], 0, kernels, &runtime};
