/* The part of Metal Performance Shaders that the Metal device uses, declared by us with Apple's selectors and values.
 */
#ifndef STANDIN_METALPERFORMANCESHADERS_H
#define STANDIN_METALPERFORMANCESHADERS_H

#import <Metal/Metal.h>

MTL_ENUM(uint32_t, MPSDataType){
    MPSDataTypeFloatBit = 0x10000000,
    MPSDataTypeFloat32 = MPSDataTypeFloatBit | 32,
    MPSDataTypeFloat16 = MPSDataTypeFloatBit | 16,
};

BOOL MPSSupportsMTLDevice(id<MTLDevice> device);

@interface MPSMatrixDescriptor : NSObject {
@public
  NSUInteger rows, columns, matrices, rowBytes, matrixBytes;
  MPSDataType dataType;
}
+ (instancetype)matrixDescriptorWithRows:(NSUInteger)rows
                                 columns:(NSUInteger)columns
                                matrices:(NSUInteger)matrices
                                rowBytes:(NSUInteger)rowBytes
                             matrixBytes:(NSUInteger)matrixBytes
                                dataType:(MPSDataType)dataType;
@end

@interface MPSMatrix : NSObject {
@public
  id<MTLBuffer> buffer;
  NSUInteger offset;
  MPSMatrixDescriptor *descriptor;
  id use; /* what a command buffer counts */
}
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer
                        offset:(NSUInteger)offset
                    descriptor:(MPSMatrixDescriptor *)descriptor;
@end

@interface MPSKernel : NSObject {
@public
  NSString *label;
}
- (void)setLabel:(NSString *)label;
@end

@interface MPSMatrixMultiplication : MPSKernel {
@public
  BOOL transposeLeft, transposeRight;
  NSUInteger resultRows, resultColumns, interiorColumns;
  id use;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 transposeLeft:(BOOL)transposeLeft
                transposeRight:(BOOL)transposeRight
                    resultRows:(NSUInteger)resultRows
                 resultColumns:(NSUInteger)resultColumns
               interiorColumns:(NSUInteger)interiorColumns
                         alpha:(double)alpha
                          beta:(double)beta;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   leftMatrix:(MPSMatrix *)leftMatrix
                  rightMatrix:(MPSMatrix *)rightMatrix
                 resultMatrix:(MPSMatrix *)resultMatrix;
@end

#endif
