#include "queue.h"

#import <MetalPerformanceShaders/MetalPerformanceShaders.h>

/* Products of matrices by Metal Performance Shaders, which bring their own encoders.
 *
 * What they refuse they refuse by ending the process, so nothing may get there that they might not take: they know no
 * bfloat, on any system so far. */

/* The matrices of a batch that one call can take: apart by whole rows, and not lying in each other. */
static bool is_regular(const mps_matrix *matrix) {
  return matrix->matrix_bytes % matrix->row_bytes == 0 && matrix->matrix_bytes >= matrix->rows * matrix->row_bytes;
}

/* `count` matrices from number `first` on, +1. */
static MPSMatrix *make_matrix(const mps_matrix *matrix, MPSDataType type, uint64_t first, uint64_t count) {
  MPSMatrixDescriptor *descriptor =
      [MPSMatrixDescriptor matrixDescriptorWithRows:matrix->rows
                                            columns:matrix->columns
                                           matrices:count
                                           rowBytes:matrix->row_bytes
                                        matrixBytes:count > 1 ? matrix->matrix_bytes : matrix->rows * matrix->row_bytes
                                           dataType:type];
  return [[MPSMatrix alloc] initWithBuffer:(id<MTLBuffer>)matrix->buffer->impl
                                    offset:matrix->offset + first * matrix->matrix_bytes
                                descriptor:descriptor];
}

static MPSMatrixMultiplication *make_kernel(const mps_device *device, const mps_matmul *matmul) {
  const mps_matrix *left = &matmul->left;
  MPSMatrixMultiplication *kernel =
      [[MPSMatrixMultiplication alloc] initWithDevice:metal_gpu(device)
                                        transposeLeft:left->transposed != 0
                                       transposeRight:matmul->right.transposed != 0
                                           resultRows:matmul->result.rows
                                        resultColumns:matmul->result.columns
                                      interiorColumns:left->transposed != 0 ? left->rows : left->columns
                                                alpha:1
                                                 beta:0];
  [kernel setLabel:@"matmul"];
  return kernel;
}

/* Encode `count` of the products; the matrices live as long as the segment. */
static mps_status encode_products(metal_segment *segment, MPSMatrixMultiplication *kernel, const mps_matmul *matmul,
                                  uint64_t first, uint64_t count) {
  MPSDataType type = matmul->data_type == MPS_DATA_FLOAT ? MPSDataTypeFloat32 : MPSDataTypeFloat16;
  const mps_matrix *operands[3] = {&matmul->left, &matmul->right, &matmul->result};
  MPSMatrix *matrices[3];
  for (int i = 0; i < 3; i++) {
    matrices[i] = [make_matrix(operands[i], type, first, count) autorelease];
    if (matrices[i] == nil) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal Performance Shaders give no matrix");
    }
    metal_segment_hold_native(segment, matrices[i]);
  }
  [kernel encodeToCommandBuffer:segment->commands
                     leftMatrix:matrices[0]
                    rightMatrix:matrices[1]
                   resultMatrix:matrices[2]];
  return MPS_STATUS_OK;
}

/* Encode all of them, `at_once` by each call. They do not depend on each other: no barriers between. */
static mps_status encode_all(metal_segment *segment, MPSMatrixMultiplication *kernel, const mps_matmul *matmul,
                             uint64_t at_once) {
  for (uint64_t first = 0; first < matmul->count; first += at_once) {
    MPS_TRY(encode_products(segment, kernel, matmul, first, at_once));
  }
  return MPS_STATUS_OK;
}

/* With the encoding lock, in a pool. */
mps_status metal_encode_matmul_locked(metal_queue *queue, const mps_device *device, const mps_matmul *matmul) {
  bool regular = is_regular(&matmul->left) && is_regular(&matmul->right) && is_regular(&matmul->result);
  uint64_t at_once = regular ? matmul->count : 1;
  metal_segment *segment;
  MPS_TRY(metal_segment_open(queue, &segment));
  MPS_TRY(metal_segment_reserve(segment, 4 + 3 * (matmul->count / at_once)));
  MPSMatrixMultiplication *kernel = [make_kernel(device, matmul) autorelease];
  if (kernel == nil) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal Performance Shaders give no product of matrices");
  }
  metal_segment_hold_native(segment, kernel);
  metal_segment_hold_buffer(segment, matmul->left.buffer);
  metal_segment_hold_buffer(segment, matmul->right.buffer);
  metal_segment_hold_buffer(segment, matmul->result.buffer);
  metal_segment_barrier(queue);
  mps_status status = encode_all(segment, kernel, matmul, at_once);
  metal_segment_barrier(queue);
  mps_traced traced;
  mps_trace_matmul(&traced, queue->handle, matmul);
  metal_segment_trace(segment, &traced);
  metal_segment_count(queue);
  metal_segment_bound(queue);
  return status;
}

mps_status metal_check_matmul(const mps_device *device, const mps_matmul *matmul) {
  if (matmul->data_type == MPS_DATA_BFLOAT) {
    return mps_fail(MPS_STATUS_UNSUPPORTED,
                    "mps_queue_matmul: Metal Performance Shaders multiply no matrices of MPS_DATA_BFLOAT, only "
                    "MPS_DATA_FLOAT and MPS_DATA_HALF: run a kernel of your own");
  }
  if (!MPSSupportsMTLDevice(metal_gpu(device))) {
    return mps_fail(MPS_STATUS_UNSUPPORTED, "mps_queue_matmul: Metal Performance Shaders do not support '%s'",
                    device->info.name);
  }
  return MPS_STATUS_OK;
}

mps_status metal_encode_matmul(mps_queue *handle, const mps_matmul *matmul) {
  metal_queue *queue = handle->impl;
  pthread_mutex_lock(&queue->encoding);
  mps_status status = metal_guard("encoding a product of matrices", ^mps_status {
    return metal_encode_matmul_locked(queue, handle->device, matmul);
  });
  pthread_mutex_unlock(&queue->encoding);
  return status;
}
