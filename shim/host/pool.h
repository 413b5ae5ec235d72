/* The process's threads for big grids, shared by all queues. */
#ifndef MPS_HOST_POOL_H
#define MPS_HOST_POOL_H

#include "kernel.h"

/* Threads that can take part in a launch: the caller and the pool's. */
uint32_t host_pool_width(void);

/* Run the threadgroups [0, groups) of a launch on the calling thread and on as many of the pool's as are free, `chunk`
 * at a time, and return when all have run. The caller goes on alone if the pool hangs in another queue's kernel. false
 * and `fault` if the kernel failed; then some threadgroups may not have run. */
bool host_pool_run(const mslc_kernel *kernel, const mslc_launch *launch, uint64_t groups, uint64_t chunk,
                   host_fault *fault);

#endif
