/* A kernel library written by hand against kernel_abi.h, for the tests of the host device's queues. */
#include "kernel_abi.h"

#include <stddef.h>
#include <stdint.h>

static const mslc_runtime *runtime;

#define BUFFER(name, slot, type, mode) {name, #type, 1, slot, mode, 0, sizeof(type), _Alignof(type), 0}
enum { READ = 1, READ_WRITE = 3 };

/* Threads of one threadgroup along x: the tests use flat grids. */
static unsigned group_threads(const mslc_launch *launch, unsigned long group) {
  unsigned long start = group * launch->group[0];
  return launch->grid[0] - start < launch->group[0] ? (unsigned)(launch->grid[0] - start) : launch->group[0];
}

/* y[i] += x[0] */
static void add_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  uint32_t *y = launch->buffers[0];
  const uint32_t *x = launch->buffers[1];
  for (unsigned long group = first; group < last; group++) {
    unsigned threads = group_threads(launch, group);
    for (unsigned i = 0; i < threads; i++) {
      y[group * launch->group[0] + i] += *x;
    }
  }
}

static const mslc_argument add_arguments[] = {BUFFER("y", 0, uint32_t, READ_WRITE), BUFFER("x", 1, uint32_t, READ)};
static const mslc_kernel add = {"add", add_run, MSLC_KERNEL_BOUNDED, 1024, 2, 0, add_arguments, NULL, NULL};

/* The same, but not known to end: so the queue's thread runs it. */
static const mslc_kernel add_loop = {"add_loop", add_run, 0, 1024, 2, 0, add_arguments, NULL, NULL};

/* The same, each thread of which counts as a thousand. */
static const mslc_kernel add_heavy = {"add_heavy", add_run, MSLC_KERNEL_BOUNDED, 1024, 2, 1000, add_arguments,
                                      NULL,        NULL};

/* out[i] = sum of the first words of the buffers in the table, which 0 ends */
static void gather_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  uint32_t *out = launch->buffers[0];
  const uint64_t *table = launch->buffers[1];
  for (unsigned long group = first; group < last; group++) {
    for (unsigned i = 0; i < group_threads(launch, group); i++) {
      uint32_t sum = 0;
      for (const uint64_t *entry = table; entry < table + 4; entry++) {
        sum += *(const uint32_t *)(uintptr_t)*entry;
      }
      out[group * launch->group[0] + i] = sum;
    }
  }
}

static const mslc_argument gather_arguments[] = {BUFFER("out", 0, uint32_t, READ_WRITE),
                                                 BUFFER("table", 1, uint64_t, READ)};
static const mslc_kernel gather = {"gather", gather_run, MSLC_KERNEL_BOUNDED, 1024, 2, 0, gather_arguments, NULL, NULL};

/* out[0] and out[1] = where the two threadgroup arguments lie in the arena, out[2] = the slot's place */
static mslc_threadgroup_slot slots[] = {{40, 8, 0, 0}};

static void places_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first;
  (void)last;
  uint32_t *out = launch->buffers[0];
  out[0] = launch->threadgroup_offset[0];
  out[1] = launch->threadgroup_offset[1];
  out[2] = slots[0].offset;
}

static const mslc_argument places_arguments[] = {BUFFER("out", 0, uint32_t, READ_WRITE),
                                                 {"a", "float", 3, 0, READ_WRITE, 0, 4, 4, 0},
                                                 {"b", "float", 3, 1, READ_WRITE, 0, 4, 4, 0}};
static const mslc_kernel places = {"places", places_run, MSLC_KERNEL_BOUNDED, 1024, 3, 0, places_arguments,
                                   slots,    slots + 1};

/* Never ends. */
static void forever_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  volatile uint32_t *out = launch->buffers[0];
  (void)first;
  (void)last;
  for (;;) {
    *out = 1;
  }
}

static const mslc_argument out_arguments[] = {BUFFER("out", 0, uint32_t, READ_WRITE)};
static const mslc_kernel forever = {"forever", forever_run, 0, 1024, 1, 0, out_arguments, NULL, NULL};

/* out[group] = 1, the last of them after much longer than the others. */
static void uneven_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  uint32_t *out = launch->buffers[0];
  for (unsigned long group = first; group < last; group++) {
    unsigned rounds = group + 1 == launch->groups[0] ? 300000 : 30000;
    for (volatile unsigned i = 0; i < rounds; i++) {
    }
    out[group] = 1;
  }
}

static const mslc_kernel uneven = {"uneven", uneven_run, 0, 1024, 1, 0, out_arguments, NULL, NULL};

/* Ends when out[0] is not 0. */
static void gate_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  const uint32_t *out = launch->buffers[0];
  (void)first;
  (void)last;
  while (__atomic_load_n(out, __ATOMIC_ACQUIRE) == 0) {
  }
}

static const mslc_kernel gate = {"gate", gate_run, 0, 1024, 1, 0, out_arguments, NULL, NULL};

/* Writes where there is no memory. */
static void wild_run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)launch;
  (void)first;
  (void)last;
  *(volatile uint32_t *)16 = 1;
}

static const mslc_kernel wild = {"wild", wild_run, MSLC_KERNEL_BOUNDED, 1024, 0, 0, NULL, NULL, NULL};
static const mslc_kernel wild_loop = {"wild_loop", wild_run, 0, 1024, 0, 0, NULL, NULL, NULL};

static const mslc_kernel *const kernels[] = {&add,     &add_loop, &add_heavy, &gather, &places,
                                             &forever, &uneven,   &gate,      &wild,   &wild_loop};

__attribute__((visibility("default"))) const mslc_library mslc_kernel_library = {
    MSLC_LIBRARY_MAGIC, MSLC_KERNEL_ABI, sizeof kernels / sizeof *kernels, 0, kernels, &runtime};
