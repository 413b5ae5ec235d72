/* Products of matrices: what Metal Performance Shaders refuse, and the commands that are run later. */
#include "gpu.h"

#import <MetalPerformanceShaders/MetalPerformanceShaders.h>

#include <stdlib.h>
#include <string.h>

static NSUInteger size_of(MPSDataType type) {
  return (type & 0xff) / 8;
}

BOOL MPSSupportsMTLDevice(id<MTLDevice> device) {
  STANDIN_RULE(device != nil, "a device of nil");
  return standin_get("matrices") != 0;
}

@implementation MPSMatrixDescriptor
+ (instancetype)matrixDescriptorWithRows:(NSUInteger)rows
                                 columns:(NSUInteger)columns
                                matrices:(NSUInteger)matrices
                                rowBytes:(NSUInteger)rowBytes
                             matrixBytes:(NSUInteger)matrixBytes
                                dataType:(MPSDataType)dataType {
  STANDIN_RULE(rows > 0 && columns > 0 && matrices > 0, "a matrix without elements");
  NSUInteger size = size_of(dataType);
  STANDIN_RULE(rowBytes % size == 0 && rowBytes >= columns * size, "%lu bytes for a row of %lu elements of %lu",
               rowBytes, columns, size);
  STANDIN_RULE(matrixBytes % rowBytes == 0 && matrixBytes >= rows * rowBytes,
               "%lu bytes for a matrix of %lu rows of %lu", matrixBytes, rows, rowBytes);
  MPSMatrixDescriptor *made = [[self new] autorelease];
  made->rows = rows;
  made->columns = columns;
  made->matrices = matrices;
  made->rowBytes = rowBytes;
  made->matrixBytes = matrixBytes;
  made->dataType = dataType;
  return made;
}
@end

@implementation MPSMatrix
- (instancetype)initWithBuffer:(id<MTLBuffer>)given offset:(NSUInteger)first descriptor:(MPSMatrixDescriptor *)shape {
  STANDIN_RULE(given != nil && shape != nil, "a matrix of nil");
  if (standin_take("fail_matrices")) {
    [self release];
    return nil;
  }
  NSUInteger bytes = (shape->matrices - 1) * shape->matrixBytes + shape->rows * shape->rowBytes;
  NSUInteger length = ((StandinBuffer *)given)->length;
  STANDIN_RULE(first % size_of(shape->dataType) == 0, "offset %lu of a matrix", first);
  STANDIN_RULE(first <= length && bytes <= length - first, "a matrix of %lu bytes at %lu in a buffer of %lu", bytes,
               first, length);
  buffer = [given retain];
  offset = first;
  descriptor = [shape retain];
  use = [StandinResource new];
  return self;
}
- (void)dealloc {
  [use release]; /* which looks whether a command buffer uses it */
  [descriptor release];
  [buffer release];
  [super dealloc];
}
@end

@implementation MPSKernel
- (void)setLabel:(NSString *)text {
  STANDIN_RULE(text != nil, "a label is nil");
  [text retain];
  [label release];
  label = text;
}
- (void)dealloc {
  [label release];
  [super dealloc];
}
@end

/* ---- the command ---- */

typedef struct product {
  NSUInteger rows, columns, inner, count;
  BOOL half;
  struct {
    NSUInteger row, column, matrix; /* bytes from one to the next, transposition done */
  } left, right, result;
} product;

enum { LEFT, RIGHT, RESULT }; /* slots */

static float element(const char *at, BOOL half) {
  if (half) {
    _Float16 value;
    memcpy(&value, at, sizeof value);
    return (float)value;
  }
  float value;
  memcpy(&value, at, sizeof value);
  return value;
}

static void multiply(const product *p, const char *left, const char *right, char *result) {
  for (NSUInteger i = 0; i < p->rows; i++) {
    for (NSUInteger j = 0; j < p->columns; j++) {
      float sum = 0;
      for (NSUInteger k = 0; k < p->inner; k++) {
        sum += element(left + i * p->left.row + k * p->left.column, p->half) *
               element(right + k * p->right.row + j * p->right.column, p->half);
      }
      _Float16 rounded = (_Float16)sum;
      char *at = result + i * p->result.row + j * p->result.column;
      memcpy(at, p->half ? (void *)&rounded : (void *)&sum, p->half ? sizeof rounded : sizeof sum);
    }
  }
}

/* The product lies behind the first slots' pointers: it is the command's storage. */
static void run(const mslc_launch *launch, unsigned long first, unsigned long last) {
  (void)first;
  (void)last;
  const product *p = launch->buffers[RESULT + 1];
  for (NSUInteger i = 0; i < p->count; i++) {
    multiply(p, (const char *)launch->buffers[LEFT] + i * p->left.matrix,
             (const char *)launch->buffers[RIGHT] + i * p->right.matrix,
             (char *)launch->buffers[RESULT] + i * p->result.matrix);
  }
}

static const mslc_kernel kernel = {.name = "matmul", .run = run};

@implementation MPSMatrixMultiplication
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 transposeLeft:(BOOL)left
                transposeRight:(BOOL)right
                    resultRows:(NSUInteger)rows
                 resultColumns:(NSUInteger)columns
               interiorColumns:(NSUInteger)inner
                         alpha:(double)alpha
                          beta:(double)beta {
  STANDIN_RULE(MPSSupportsMTLDevice(device), "Metal Performance Shaders on a GPU that they do not support");
  STANDIN_RULE(rows > 0 && columns > 0 && inner > 0, "a product without elements");
  STANDIN_RULE(alpha == 1 && beta == 0, "the stand-in multiplies by nothing else and adds nothing");
  if (standin_take("fail_products")) {
    [self release];
    return nil;
  }
  transposeLeft = left;
  transposeRight = right;
  resultRows = rows;
  resultColumns = columns;
  interiorColumns = inner;
  use = [StandinResource new];
  return self;
}
- (void)check:(MPSMatrix *)matrix is:(NSUInteger)rows by:(NSUInteger)columns transposed:(BOOL)transposed {
  const MPSMatrixDescriptor *shape = matrix->descriptor;
  STANDIN_RULE(shape->dataType == MPSDataTypeFloat32 || shape->dataType == MPSDataTypeFloat16,
               "matrices of data type %#x are not multiplied", shape->dataType);
  STANDIN_RULE(shape->rows == (transposed ? columns : rows) && shape->columns == (transposed ? rows : columns),
               "a matrix of %lu x %lu where %lu x %lu is expected", shape->rows, shape->columns, rows, columns);
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)given
                   leftMatrix:(MPSMatrix *)left
                  rightMatrix:(MPSMatrix *)right
                 resultMatrix:(MPSMatrix *)result {
  STANDIN_RULE(given != nil && left != nil && right != nil && result != nil, "a product of nil");
  [self check:left is:resultRows by:interiorColumns transposed:transposeLeft];
  [self check:right is:interiorColumns by:resultColumns transposed:transposeRight];
  [self check:result is:resultRows by:resultColumns transposed:NO];
  const MPSMatrixDescriptor *shapes[3] = {left->descriptor, right->descriptor, result->descriptor};
  STANDIN_RULE(shapes[0]->matrices == shapes[2]->matrices && shapes[1]->matrices == shapes[2]->matrices,
               "batches of %lu, %lu and %lu matrices", shapes[0]->matrices, shapes[1]->matrices, shapes[2]->matrices);
  STANDIN_RULE(shapes[0]->dataType == shapes[1]->dataType && shapes[0]->dataType == shapes[2]->dataType,
               "the stand-in mixes no data types");
  if (standin_take("raise_products")) {
    [[NSException exceptionWithName:@"StandinException" reason:@"told to raise" userInfo:nil] raise];
  }
  StandinCommandBuffer *commands = (StandinCommandBuffer *)given;
  StandinEncoder *encoder = [commands openEncoder:[[StandinEncoder new] autorelease]];
  encoder->family = self;
  [encoder setLabel:label != nil ? label : @"MPSMatrixMultiplication"];
  standin_use(commands, use);
  gpu_command *command = [encoder addCommand];
  command->kernel = &kernel;
  command->launch.groups[0] = command->launch.groups[1] = command->launch.groups[2] = 1;
  MPSMatrix *matrices[3] = {left, right, result};
  for (int i = 0; i < 3; i++) {
    StandinBuffer *buffer = (StandinBuffer *)matrices[i]->buffer;
    standin_touch(encoder, buffer);
    standin_use(commands, matrices[i]->use);
    command->launch.buffers[i] = buffer->bytes + matrices[i]->offset;
  }
  NSUInteger size = size_of(shapes[0]->dataType);
  product *p = command->launch.buffers[RESULT + 1] = command->storage = malloc(sizeof *p);
  *p = (product){
      .rows = resultRows,
      .columns = resultColumns,
      .inner = interiorColumns,
      .count = shapes[2]->matrices,
      .half = shapes[0]->dataType == MPSDataTypeFloat16,
      .left = {transposeLeft ? size : shapes[0]->rowBytes, transposeLeft ? shapes[0]->rowBytes : size,
               shapes[0]->matrixBytes},
      .right = {transposeRight ? size : shapes[1]->rowBytes, transposeRight ? shapes[1]->rowBytes : size,
                shapes[1]->matrixBytes},
      .result = {shapes[2]->rowBytes, size, shapes[2]->matrixBytes},
  };
  [encoder endEncoding];
}
- (void)dealloc {
  [use release]; /* which looks whether a command buffer uses it */
  [super dealloc];
}
@end
