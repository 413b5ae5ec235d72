#include "bytes.h"

#include <pthread.h>
#include <stdlib.h>

static NSString *const kernels = @"#include <metal_stdlib>\n"
                                 @"using namespace metal;\n"
                                 @"kernel void mps_copy_bytes(device const uchar *source [[buffer(0)]],\n"
                                 @"                           device uchar *target [[buffer(1)]],\n"
                                 @"                           constant ulong2 &offsets [[buffer(2)]],\n"
                                 @"                           uint i [[thread_position_in_grid]]) {\n"
                                 @"  target[offsets.y + i] = source[offsets.x + i];\n"
                                 @"}\n"
                                 @"kernel void mps_fill_bytes(device uchar *target [[buffer(0)]],\n"
                                 @"                           constant ulong2 &offset_and_value [[buffer(1)]],\n"
                                 @"                           uint i [[thread_position_in_grid]]) {\n"
                                 @"  target[offset_and_value.x + i] = uchar(offset_and_value.y);\n"
                                 @"}\n";

/* Threads of one dispatch: their number is 32 bits wide. */
static const uint64_t PIECE = UINT64_C(1) << 30;

struct metal_bytes {
  pthread_mutex_t lock;
  id<MTLComputePipelineState> copy;
  id<MTLComputePipelineState> fill;
};

metal_bytes *metal_bytes_new(void) {
  metal_bytes *bytes = calloc(1, sizeof *bytes);
  if (bytes != NULL) {
    pthread_mutex_init(&bytes->lock, NULL);
  }
  return bytes;
}

void metal_bytes_free(metal_bytes *bytes) {
  if (bytes == NULL) {
    return;
  }
  [bytes->copy release];
  [bytes->fill release];
  pthread_mutex_destroy(&bytes->lock);
  free(bytes);
}

static id<MTLComputePipelineState> make(id<MTLDevice> gpu, id<MTLLibrary> library, NSString *name, NSError **error) {
  id<MTLFunction> function = [[library newFunctionWithName:name] autorelease];
  return function != nil ? [gpu newComputePipelineStateWithFunction:function error:error] : nil;
}

static mps_status compile(metal_bytes *bytes, id<MTLDevice> gpu) {
  NSError *error = nil;
  id<MTLLibrary> library = [[gpu newLibraryWithSource:kernels options:nil error:&error] autorelease];
  bytes->copy = make(gpu, library, @"mps_copy_bytes", &error);
  bytes->fill = make(gpu, library, @"mps_fill_bytes", &error);
  if (bytes->copy != nil && bytes->fill != nil) {
    return MPS_STATUS_OK;
  }
  [bytes->copy release];
  [bytes->fill release];
  bytes->copy = bytes->fill = nil;
  return metal_fail(MPS_STATUS_COMPILE_FAILED, "the kernels that copy and fill single bytes do not compile", error);
}

mps_status metal_bytes_prepare(metal_bytes *bytes, id<MTLDevice> gpu) {
  pthread_mutex_lock(&bytes->lock);
  mps_status status = bytes->copy != nil ? MPS_STATUS_OK : metal_guard("compiling kernels of its own", ^mps_status {
    return compile(bytes, gpu);
  });
  pthread_mutex_unlock(&bytes->lock);
  return status;
}

static void dispatch_bytes(id<MTLComputeCommandEncoder> encoder, id<MTLComputePipelineState> state, uint64_t count) {
  NSUInteger group = [state maxTotalThreadsPerThreadgroup];
  [encoder dispatchThreads:MTLSizeMake(count, 1, 1)
      threadsPerThreadgroup:MTLSizeMake(count < group ? count : group, 1, 1)];
}

void metal_bytes_copy(metal_bytes *bytes, id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> source,
                      uint64_t source_offset, id<MTLBuffer> target, uint64_t target_offset, uint64_t length) {
  [encoder setComputePipelineState:bytes->copy];
  [encoder setBuffer:source offset:0 atIndex:0];
  [encoder setBuffer:target offset:0 atIndex:1];
  for (uint64_t done = 0; done < length; done += PIECE) {
    uint64_t offsets[2] = {source_offset + done, target_offset + done};
    [encoder setBytes:offsets length:sizeof offsets atIndex:2];
    dispatch_bytes(encoder, bytes->copy, length - done < PIECE ? length - done : PIECE);
  }
}

void metal_bytes_fill(metal_bytes *bytes, id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> target, uint64_t offset,
                      uint64_t length, uint8_t value) {
  [encoder setComputePipelineState:bytes->fill];
  [encoder setBuffer:target offset:0 atIndex:0];
  for (uint64_t done = 0; done < length; done += PIECE) {
    uint64_t offset_and_value[2] = {offset + done, value};
    [encoder setBytes:offset_and_value length:sizeof offset_and_value atIndex:1];
    dispatch_bytes(encoder, bytes->fill, length - done < PIECE ? length - done : PIECE);
  }
}
