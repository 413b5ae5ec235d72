/* A backend that does nothing but remember what the core asked of it, so that the core is tested by itself. It has two
 * devices; its library has the kernels that fake.c lists. */
#ifndef MPS_TESTS_FAKE_H
#define MPS_TESTS_FAKE_H

#include "backend.h"

typedef struct fake_state {
  mps_status fail_open; /* what the next open of anything returns, once */
  _Atomic int opened;   /* objects that are open, of any kind */
  int commits;
  int dispatches, copies, fills, matmuls, waits;
  mps_matmul matmul;    /* the last one */
  bool lacks_half;      /* for products */
  mps_status fail_wait; /* what the next wait of a queue returns, once */
  uint32_t grid[3], group[3];
  mps_queue *closed_queue;
  bool capturing;
  _Atomic uint64_t signpost_id; /* of the last interval that began or ended */
  _Atomic uint32_t signpost_category;
} fake_state;

extern fake_state fake;

enum { FAKE_WORKING_MAX = 1u << 30, FAKE_PAGE = 16384 };

/* "saxpy": x (float, read), y (float, read and write), a (float T&), n (uint T&), in slots 0 to 3.
 * "reduce": x in slot 0 (float, read), out in slot 5 (unknown type, read and write), shared in threadgroup slot 0,
 *           and slot 7, unused, of which nothing is known; 1024 bytes of threadgroup memory of its own; 256 threads.
 * "gather": table in slot 2, 8 bytes T&, read.
 * "greedy": more threadgroup memory than the device has. */
#define FAKE_KERNELS "saxpy", "reduce", "gather", "greedy"

#endif
