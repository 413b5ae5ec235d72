/* The part of Metal that the Metal device uses, declared by us with Apple's selectors and values. */
#ifndef STANDIN_METAL_H
#define STANDIN_METAL_H

#import <Foundation/Foundation.h>

#define MTL_ENUM(type, name)                                                                                           \
  typedef type name;                                                                                                   \
  enum : type

MTL_ENUM(NSUInteger, MTLStorageMode){MTLStorageModeShared = 0, MTLStorageModePrivate = 2};
MTL_ENUM(NSUInteger, MTLCPUCacheMode){MTLCPUCacheModeDefaultCache = 0, MTLCPUCacheModeWriteCombined = 1};
MTL_ENUM(NSUInteger, MTLHazardTrackingMode){
    MTLHazardTrackingModeDefault = 0,
    MTLHazardTrackingModeUntracked = 1,
    MTLHazardTrackingModeTracked = 2,
};
MTL_ENUM(NSUInteger, MTLResourceOptions){
    MTLResourceCPUCacheModeWriteCombined = 1,   MTLResourceStorageModeShared = 0,
    MTLResourceStorageModePrivate = 32,         MTLResourceHazardTrackingModeUntracked = 256,
    MTLResourceHazardTrackingModeTracked = 512,
};
#define MTLResourceCPUCacheModeShift 0
#define MTLResourceStorageModeShift 4
#define MTLResourceHazardTrackingModeShift 8
MTL_ENUM(NSUInteger, MTLPurgeableState){
    MTLPurgeableStateKeepCurrent = 1,
    MTLPurgeableStateNonVolatile = 2,
    MTLPurgeableStateVolatile = 3,
    MTLPurgeableStateEmpty = 4,
};
MTL_ENUM(NSInteger, MTLHeapType){MTLHeapTypeAutomatic = 0, MTLHeapTypePlacement = 1};
MTL_ENUM(NSInteger, MTLGPUFamily){MTLGPUFamilyApple7 = 1007};
MTL_ENUM(NSUInteger, MTLResourceUsage){MTLResourceUsageRead = 1, MTLResourceUsageWrite = 2};

MTL_ENUM(NSUInteger, MTLCommandBufferStatus){
    MTLCommandBufferStatusNotEnqueued = 0, MTLCommandBufferStatusEnqueued = 1,  MTLCommandBufferStatusCommitted = 2,
    MTLCommandBufferStatusScheduled = 3,   MTLCommandBufferStatusCompleted = 4, MTLCommandBufferStatusError = 5,
};
MTL_ENUM(NSUInteger, MTLCommandBufferError){
    MTLCommandBufferErrorInternal = 1,
    MTLCommandBufferErrorTimeout = 2,
    MTLCommandBufferErrorPageFault = 3,
    MTLCommandBufferErrorOutOfMemory = 8,
};
MTL_ENUM(NSUInteger, MTLCommandBufferErrorOption){
    MTLCommandBufferErrorOptionNone = 0,
    MTLCommandBufferErrorOptionEncoderExecutionStatus = 1,
};
MTL_ENUM(NSInteger, MTLCommandEncoderErrorState){
    MTLCommandEncoderErrorStateUnknown = 0,  MTLCommandEncoderErrorStateCompleted = 1,
    MTLCommandEncoderErrorStateAffected = 2, MTLCommandEncoderErrorStatePending = 3,
    MTLCommandEncoderErrorStateFaulted = 4,
};

MTL_ENUM(NSUInteger, MTLLanguageVersion){
    MTLLanguageVersion3_0 = (3 << 16) + 0,
    MTLLanguageVersion3_1 = (3 << 16) + 1,
    MTLLanguageVersion3_2 = (3 << 16) + 2,
};
MTL_ENUM(NSInteger, MTLMathMode){MTLMathModeSafe = 0, MTLMathModeRelaxed = 1, MTLMathModeFast = 2};
MTL_ENUM(NSUInteger, MTLFunctionType){MTLFunctionTypeVertex = 1, MTLFunctionTypeKernel = 3};
MTL_ENUM(NSUInteger, MTLLibraryError){
    MTLLibraryErrorUnsupported = 1,      MTLLibraryErrorInternal = 2,     MTLLibraryErrorCompileFailure = 3,
    MTLLibraryErrorFunctionNotFound = 5, MTLLibraryErrorFileNotFound = 6,
};
MTL_ENUM(NSUInteger, MTLPipelineOption){
    MTLPipelineOptionNone = 0,
    MTLPipelineOptionBufferTypeInfo = 2,
    MTLPipelineOptionFailOnBinaryArchiveMiss = 4,
};
MTL_ENUM(NSUInteger, MTLBinaryArchiveError){MTLBinaryArchiveErrorInvalidFile = 1,
                                            MTLBinaryArchiveErrorInternalError = 4};
MTL_ENUM(NSInteger, MTLBindingType){MTLBindingTypeBuffer = 0, MTLBindingTypeThreadgroupMemory = 1,
                                    MTLBindingTypeTexture = 2};
MTL_ENUM(NSUInteger, MTLBindingAccess){
    MTLBindingAccessReadOnly = 0,
    MTLBindingAccessReadWrite = 1,
    MTLBindingAccessWriteOnly = 2,
};
MTL_ENUM(NSUInteger, MTLDataType){
    MTLDataTypeNone = 0,  MTLDataTypeStruct = 1, MTLDataTypeFloat = 3,    MTLDataTypeHalf = 16,
    MTLDataTypeInt = 29,  MTLDataTypeUInt = 33,  MTLDataTypeShort = 37,   MTLDataTypeUShort = 41,
    MTLDataTypeChar = 45, MTLDataTypeUChar = 49, MTLDataTypeBool = 53,    MTLDataTypePointer = 60,
    MTLDataTypeLong = 81, MTLDataTypeULong = 85, MTLDataTypeBFloat = 121,
};
MTL_ENUM(NSInteger, MTLCaptureDestination){
    MTLCaptureDestinationDeveloperTools = 1,
    MTLCaptureDestinationGPUTraceDocument = 2,
};
MTL_ENUM(NSInteger, MTLCaptureError){
    MTLCaptureErrorNotSupported = 1,
    MTLCaptureErrorAlreadyCapturing = 2,
    MTLCaptureErrorInvalidDescriptor = 3,
};

extern NSErrorDomain const MTLCommandBufferErrorDomain;
extern NSErrorDomain const MTLLibraryErrorDomain;
extern NSErrorDomain const MTLBinaryArchiveDomain;
extern NSErrorDomain const MTLCaptureErrorDomain;
extern NSErrorUserInfoKey const MTLCommandBufferEncoderInfoErrorKey;

typedef struct {
  NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  return (MTLSize){width, height, depth};
}

typedef struct {
  NSUInteger size;
  NSUInteger align;
} MTLSizeAndAlign;

@protocol MTLBinaryArchive;
@protocol MTLBuffer;
@protocol MTLDevice;
@protocol MTLCommandBuffer;
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);

/* ---- descriptors ---- */

@interface MTLHeapDescriptor : NSObject {
@public
  NSUInteger size;
  MTLHeapType type;
  MTLStorageMode storageMode;
  MTLCPUCacheMode cpuCacheMode;
  MTLHazardTrackingMode hazardTrackingMode;
}
- (void)setSize:(NSUInteger)size;
- (void)setType:(MTLHeapType)type;
- (void)setStorageMode:(MTLStorageMode)mode;
- (void)setCpuCacheMode:(MTLCPUCacheMode)mode;
- (void)setHazardTrackingMode:(MTLHazardTrackingMode)mode;
@end

MTL_ENUM(NSInteger, MTLLogLevel){
    MTLLogLevelUndefined = 0, MTLLogLevelDebug = 1, MTLLogLevelInfo = 2,
    MTLLogLevelNotice = 3,    MTLLogLevelError = 4, MTLLogLevelFault = 5,
};

@interface MTLLogStateDescriptor : NSObject {
@public
  MTLLogLevel level;
  NSInteger bufferSize;
}
- (void)setLevel:(MTLLogLevel)level;
- (void)setBufferSize:(NSInteger)size;
@end

@protocol MTLLogState <NSObject>
- (void)addLogHandler:(void (^)(NSString *subsystem, NSString *category, MTLLogLevel level, NSString *message))block;
@end

@interface MTLCommandBufferDescriptor : NSObject {
@public
  BOOL retainedReferences;
  MTLCommandBufferErrorOption errorOptions;
  id<MTLLogState> logState;
}
- (void)setLogState:(id<MTLLogState>)state;
- (void)setRetainedReferences:(BOOL)retained;
- (void)setErrorOptions:(MTLCommandBufferErrorOption)options;
@end

@interface MTLCompileOptions : NSObject {
@public
  MTLLanguageVersion languageVersion;
  MTLMathMode mathMode;
  BOOL enableLogging;
  NSDictionary *preprocessorMacros;
}
- (void)setEnableLogging:(BOOL)enabled;
- (void)setLanguageVersion:(MTLLanguageVersion)version;
- (void)setMathMode:(MTLMathMode)mode;
- (void)setFastMathEnabled:(BOOL)enabled;
- (void)setPreprocessorMacros:(NSDictionary<NSString *, NSObject *> *)macros;
@end

@interface MTLFunctionConstant : NSObject {
@public
  NSString *name;
  MTLDataType type;
  NSUInteger index;
  BOOL required;
}
- (NSString *)name;
- (MTLDataType)type;
- (NSUInteger)index;
- (BOOL)required;
@end

@interface MTLFunctionConstantValues : NSObject {
@public
  NSMutableArray *values;
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@protocol MTLFunction;

@interface MTLComputePipelineDescriptor : NSObject {
@public
  id<MTLFunction> computeFunction;
  NSString *label;
  NSArray *binaryArchives;
}
- (void)setComputeFunction:(id<MTLFunction>)function;
- (void)setLabel:(NSString *)label;
- (void)setBinaryArchives:(NSArray<id<MTLBinaryArchive>> *)archives;
@end

@interface MTLBinaryArchiveDescriptor : NSObject {
@public
  NSURL *url;
}
- (void)setUrl:(NSURL *)url;
@end

@protocol MTLBinding;

@interface MTLComputePipelineReflection : NSObject {
@public
  NSMutableArray *bindings;
}
- (NSArray<id<MTLBinding>> *)bindings;
@end

/* ---- resources ---- */

@protocol MTLResource <NSObject>
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (MTLStorageMode)storageMode;
@end

@protocol MTLBuffer <MTLResource>
- (NSUInteger)length;
- (void *)contents;
- (uint64_t)gpuAddress;
@end

@protocol MTLHeap <NSObject>
- (NSUInteger)size;
- (NSUInteger)usedSize;
- (MTLHazardTrackingMode)hazardTrackingMode;
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options offset:(NSUInteger)offset;
@end

@protocol MTLFence <NSObject>
@end

@protocol MTLEvent <NSObject>
@end

@protocol MTLSharedEvent <MTLEvent>
- (uint64_t)signaledValue;
- (void)setSignaledValue:(uint64_t)value;
@end

/* ---- libraries and pipelines ---- */

@protocol MTLFunction <NSObject>
- (NSString *)name;
- (MTLFunctionType)functionType;
- (NSDictionary<NSString *, MTLFunctionConstant *> *)functionConstantsDictionary;
@end

@protocol MTLLibrary <NSObject>
- (NSArray<NSString *> *)functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString *)name;
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error;
@end

@protocol MTLComputePipelineState <NSObject>
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (NSUInteger)threadExecutionWidth;
- (NSUInteger)staticThreadgroupMemoryLength;
@end

@protocol MTLBinaryArchive <NSObject>
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor error:(NSError **)error;
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error;
@end

@protocol MTLBinding <NSObject>
- (NSString *)name;
- (MTLBindingType)type;
- (MTLBindingAccess)access;
- (NSUInteger)index;
- (BOOL)isUsed;
- (BOOL)isArgument;
@end

@protocol MTLBufferBinding <MTLBinding>
- (NSUInteger)bufferAlignment;
- (NSUInteger)bufferDataSize;
- (MTLDataType)bufferDataType;
@end

@protocol MTLThreadgroupBinding <MTLBinding>
- (NSUInteger)threadgroupMemoryAlignment;
- (NSUInteger)threadgroupMemoryDataSize;
@end

/* ---- commands ---- */

@protocol MTLCommandEncoder <NSObject>
- (void)setLabel:(NSString *)label;
- (void)endEncoding;
@end

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
@end

@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)copyFromBuffer:(id<MTLBuffer>)source
          sourceOffset:(NSUInteger)sourceOffset
              toBuffer:(id<MTLBuffer>)target
     destinationOffset:(NSUInteger)targetOffset
                  size:(NSUInteger)size;
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end

@protocol MTLCommandBufferEncoderInfo <NSObject>
- (NSString *)label;
- (MTLCommandEncoderErrorState)errorState;
@end

@protocol MTLCommandBuffer <NSObject>
- (void)setLabel:(NSString *)label;
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)addScheduledHandler:(MTLCommandBufferHandler)handler;
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler;
- (void)commit;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
- (CFTimeInterval)GPUStartTime;
- (CFTimeInterval)GPUEndTime;
@end

@protocol MTLCommandQueue <NSObject>
- (void)setLabel:(NSString *)label;
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor *)descriptor;
@end

/* ---- device ---- */

@protocol MTLDevice <NSObject>
- (NSString *)name;
- (uint64_t)registryID;
- (BOOL)hasUnifiedMemory;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (uint64_t)recommendedMaxWorkingSetSize;
- (NSUInteger)currentAllocatedSize;
- (NSUInteger)maxBufferLength;
- (NSUInteger)maxThreadgroupMemoryLength;
- (MTLSize)maxThreadsPerThreadgroup;
- (MTLSizeAndAlign)heapBufferSizeAndAlignWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor *)descriptor;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator;
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count;
- (id<MTLFence>)newFence;
- (id<MTLLogState>)newLogStateWithDescriptor:(MTLLogStateDescriptor *)descriptor error:(NSError **)error;
- (id<MTLSharedEvent>)newSharedEvent;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:(MTLComputePipelineReflection **)reflection
                                                               error:(NSError **)error;
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor error:(NSError **)error;
@end

NSArray<id<MTLDevice>> *MTLCopyAllDevices(void) __attribute__((ns_returns_retained));
id<MTLDevice> MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained));

/* ---- capture ---- */

@interface MTLCaptureDescriptor : NSObject {
@public
  id captureObject;
  MTLCaptureDestination destination;
  NSURL *outputURL;
}
- (void)setCaptureObject:(id)object;
- (void)setDestination:(MTLCaptureDestination)destination;
- (void)setOutputURL:(NSURL *)url;
@end

@interface MTLCaptureManager : NSObject
+ (MTLCaptureManager *)sharedCaptureManager;
- (BOOL)supportsDestination:(MTLCaptureDestination)destination;
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor *)descriptor error:(NSError **)error;
- (void)stopCapture;
- (BOOL)isCapturing;
@end

#endif
