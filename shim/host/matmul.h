/* Products of matrices, which a function of the caller's computes. */
#ifndef MPS_HOST_MATMUL_H
#define MPS_HOST_MATMUL_H

#include "backend.h"

/* UNSUPPORTED if there is no function. */
mps_status host_matmul_check(const mps_device *device, const mps_matmul *matmul);

/* Nanoseconds that the product takes at most on a thread that waits for it; UINT64_MAX if that may not run it. */
uint64_t host_matmul_cost(const mps_matmul *matmul);

/* Run the function; false and why in `failure` if it failed, or is there no longer. */
bool host_matmul_run(const mps_matmul *matmul, char *failure, size_t size);

/* "matmul of 3 x 4 by 4 x 5, float", transpositions done. */
void host_matmul_describe(const mps_matmul *matmul, char *text, size_t size);

#endif
