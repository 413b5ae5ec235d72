/* Buffers in heaps. */
#ifndef MPS_HOST_HEAP_H
#define MPS_HOST_HEAP_H

#include "object.h"

/* A place in buffer->heap for the buffer: at its heap_offset in a placement heap, else wherever there is one. */
mps_status host_heap_take(mps_buffer *buffer, void **out_address);
void host_heap_give(mps_buffer *buffer);

#endif
