/* Barriers in validated kernels: all threads must come to the same one. */
#include "validate.h"

#include "fiber.h"

#include <string.h>

HOST_ON_FIBER void host_validate_arrive(const mslc_site *site) {
  host_worker *worker = host_self;
  if (worker->validator != NULL && worker->live != 0) {
    worker->validator->barriers[worker->group->first + worker->lane] = site;
  }
}

/* By the line, since inlining and unrolling make several of one barrier. */
static HOST_ON_FIBER bool is_same(const mslc_site *one, const mslc_site *other) {
  return one == other ||
         (one->line == other->line && one->file != NULL && other->file != NULL && strcmp(one->file, other->file) == 0);
}

static HOST_ON_FIBER void add_missed(host_worker *worker, unsigned thread, unsigned other) {
  const host_validator *validator = worker->validator;
  host_error error = {.kind = HOST_ERROR_BARRIER,
                      .site = validator->barriers[thread],
                      .other = {.thread = (uint16_t)other},
                      .other_barrier = validator->barriers[other]};
  host_validate_add(worker, thread, error);
}

static HOST_ON_FIBER uint32_t all_lanes(const host_worker *worker, const host_simdgroup *group) {
  unsigned lanes = worker->threads - group->first;
  return lanes < MSLC_SIMD_WIDTH ? (UINT32_C(1) << lanes) - 1 : UINT32_MAX;
}

/* A thread that has returned misses each barrier from then on: that is told once. */
static HOST_ON_FIBER void add_returned(host_worker *worker, unsigned thread, unsigned other) {
  if (!worker->validator->group_returned) {
    worker->validator->group_returned = true;
    add_missed(worker, thread, other);
  }
}

HOST_ON_FIBER void host_validate_group(host_worker *worker) {
  host_validator *validator = worker->validator;
  const mslc_site **barriers = validator->barriers;
  unsigned first = 0;
  while (first < worker->threads && barriers[first] == NULL) {
    first++;
  }
  bool differs = false;
  for (unsigned thread = 0; thread < worker->threads && first < worker->threads; thread++) {
    if (barriers[thread] == NULL) {
      add_returned(worker, first, thread);
    } else if (!differs && !is_same(barriers[thread], barriers[first])) {
      differs = true;
      add_missed(worker, first, thread);
    }
  }
  memset(barriers, 0, worker->threads * sizeof *barriers);
}

static HOST_ON_FIBER uint32_t at_barriers(const host_worker *worker, const host_simdgroup *group, uint32_t lanes) {
  uint32_t found = 0;
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    unsigned lane = (unsigned)__builtin_ctz(left);
    found |= worker->validator->barriers[group->first + lane] != NULL ? UINT32_C(1) << lane : 0;
  }
  return found;
}

HOST_ON_FIBER uint32_t host_validate_candidates(const host_worker *worker, const host_simdgroup *group) {
  uint32_t others = group->waiting & ~at_barriers(worker, group, group->waiting);
  return others != 0 ? others : group->waiting;
}

/* Lanes that yielded may still come. */
HOST_ON_FIBER void host_validate_lanes(host_worker *worker, const host_simdgroup *group, uint32_t lanes) {
  const mslc_site **barriers = worker->validator->barriers + group->first;
  unsigned first = (unsigned)__builtin_ctz(lanes);
  if (barriers[first] == NULL) {
    return;
  }
  bool differs = false;
  for (uint32_t left = all_lanes(worker, group) & ~lanes & ~group->ready; left != 0; left &= left - 1) {
    unsigned lane = (unsigned)__builtin_ctz(left);
    if (barriers[lane] == NULL) {
      add_returned(worker, group->first + first, group->first + lane);
    } else if (!differs && !is_same(barriers[lane], barriers[first])) {
      differs = true;
      add_missed(worker, group->first + first, group->first + lane);
    }
  }
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    barriers[__builtin_ctz(left)] = NULL;
  }
}
