/* The one GPU, and another one that only buffers may say to belong to. */
#include "gpu.h"

#include "status.h"

#include <stdlib.h>

@interface StandinDevice : NSObject <MTLDevice>
@end

static StandinDevice *shared_device(void) {
  static StandinDevice *device;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    device = standin_immortal([StandinDevice new]);
  });
  return device;
}

NSArray<id<MTLDevice>> *MTLCopyAllDevices(void) {
  if (standin_take("raise_devices")) {
    [[NSException exceptionWithName:@"StandinException" reason:@"told to raise" userInfo:nil] raise];
  }
  NSMutableArray *all = [NSMutableArray new];
  if (standin_get("devices") > 0 && standin_get("listed_devices") > 0) {
    [all addObject:shared_device()];
  }
  return all;
}

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  return standin_get("devices") > 0 ? [shared_device() retain] : nil;
}

@interface StandinOtherDevice : StandinDevice
@end

@implementation StandinOtherDevice
- (NSString *)name {
  return @"Other GPU";
}
- (uint64_t)registryID {
  return 4712;
}
@end

id<MTLDevice> standin_owner(void) {
  if (standin_get("other_gpu") == 0) {
    return shared_device();
  }
  static StandinOtherDevice *other;
  static dispatch_once_t once;
  dispatch_once(&once, ^{
    other = standin_immortal([StandinOtherDevice new]);
  });
  return other;
}

@implementation StandinDevice
- (NSString *)name {
  return @"Stand-in GPU";
}
- (uint64_t)registryID {
  return 4711;
}
- (BOOL)hasUnifiedMemory {
  return standin_get("unified_memory") != 0;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  return family == MTLGPUFamilyApple7 && standin_get("apple_family") != 0;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return standin_capacity();
}
- (NSUInteger)currentAllocatedSize {
  return standin_allocated();
}
- (NSUInteger)maxBufferLength {
  return standin_capacity();
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return MSLC_THREADGROUP_BYTES;
}
- (MTLSize)maxThreadsPerThreadgroup {
  return MTLSizeMake(MSLC_MAX_GROUP_THREADS, MSLC_MAX_GROUP_THREADS, MSLC_MAX_GROUP_THREADS);
}
- (MTLSizeAndAlign)heapBufferSizeAndAlignWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  (void)options;
  return standin_heap_room(length);
}
- (id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor *)descriptor {
  return standin_new_heap(descriptor);
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  return standin_new_buffer(length, options);
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator {
  STANDIN_RULE(deallocator == NULL, "deallocators are not among what the stand-in knows");
  return standin_new_borrowed_buffer(pointer, length, options);
}
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count {
  return standin_new_queue(count);
}
- (id<MTLFence>)newFence {
  return [StandinFence new];
}
- (id<MTLLogState>)newLogStateWithDescriptor:(MTLLogStateDescriptor *)descriptor error:(NSError **)error {
  STANDIN_RULE(standin_get("os_major") >= 15, "log states are of macOS 15");
  STANDIN_RULE(descriptor->bufferSize >= 1 << 10 && descriptor->bufferSize <= 1 << 30, "a log state of %ld bytes",
               (long)descriptor->bufferSize);
  (void)error;
  StandinLogState *state = [StandinLogState new];
  state->bufferSize = descriptor->bufferSize;
  return state;
}
- (id<MTLSharedEvent>)newSharedEvent {
  return standin_take("fail_events") ? nil : [StandinEvent new];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
  return standin_new_library(source, options, error);
}
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error {
  return standin_open_library([[url path] UTF8String], error);
}
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)error {
  size_t size;
  const void *bytes = standin_data_bytes(data, &size);
  return standin_read_library(bytes, size, error);
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
  return standin_new_pipeline((StandinFunction *)function, nil, NULL, error);
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:(MTLComputePipelineReflection **)reflection
                                                               error:(NSError **)error {
  StandinFunction *function = (StandinFunction *)descriptor->computeFunction;
  STANDIN_RULE((options & 1) != 0 || reflection == NULL, "reflection is wanted, and not asked for");
  if ((options & MTLPipelineOptionFailOnBinaryArchiveMiss) != 0) {
    STANDIN_RULE(descriptor->binaryArchives != nil, "no archive to find a pipeline in");
    NSString *key = standin_pipeline_key(function);
    bool found = false;
    for (id<MTLBinaryArchive> archive in descriptor->binaryArchives) {
      found |= standin_archive_has(archive, key);
    }
    if (!found) {
      return nil;
    }
  }
  return standin_new_pipeline(function, descriptor->label, reflection, error);
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor
                                                 error:(NSError **)error {
  return standin_new_archive(descriptor, error);
}
@end
