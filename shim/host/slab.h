/* Small buffers, cut from shared pages: a buffer of 16 bytes should cost neither a page nor a system call. */
#ifndef MPS_HOST_SLAB_H
#define MPS_HOST_SLAB_H

#include <stdint.h>

#define HOST_SLAB_MAX 16384u /* longest buffer that comes from here */

typedef struct host_slab host_slab;

/* Bytes that a buffer of `length` takes: the next power of two, and at least HOST_BUFFER_ALIGN. */
uint64_t host_slab_size(uint64_t length);

/* A place for `length` bytes with undefined contents, and the slab that it is in; NULL when there is no memory. */
void *host_slab_take(uint64_t length, host_slab **out_slab);
void host_slab_give(host_slab *slab, void *place);

#endif
