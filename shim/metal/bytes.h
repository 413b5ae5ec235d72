/* Copies and fills of bytes that are no whole words, by kernels: the blits of GPUs that are not Apple's move words
 * only. */
#ifndef MPS_METAL_BYTES_H
#define MPS_METAL_BYTES_H

#include "metal.h"

metal_bytes *metal_bytes_new(void);
void metal_bytes_free(metal_bytes *bytes);

/* Compile the kernels if that is not done yet. */
mps_status metal_bytes_prepare(metal_bytes *bytes, id<MTLDevice> gpu);

void metal_bytes_copy(metal_bytes *bytes, id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> source,
                      uint64_t source_offset, id<MTLBuffer> target, uint64_t target_offset, uint64_t length);
void metal_bytes_fill(metal_bytes *bytes, id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> target, uint64_t offset,
                      uint64_t length, uint8_t value);

#endif
