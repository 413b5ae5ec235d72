/* The classes behind the stand-in's Metal, as its files see them. */
#ifndef STANDIN_GPU_H
#define STANDIN_GPU_H

#import <Metal/Metal.h>

#include "kernel.h"
#include "private.h"

#include <pthread.h>

/* ---- memory.m ---- */

/* Anything that a command can use. A command buffer that retains nothing must find it alive at its end. */
@interface StandinResource : NSObject {
@public
  _Atomic long uses; /* by command buffers that are not complete */
  NSString *label;
}
- (void)setLabel:(NSString *)text;
- (NSString *)label;
@end

@interface StandinHeap : StandinResource <MTLHeap> {
@public
  NSUInteger size;
  MTLHeapDescriptor *descriptor;
  char *bytes;
  pthread_mutex_t lock;
  struct heap_part *parts; /* of live buffers, by offset */
  MTLPurgeableState purgeable;
}
@end

@interface StandinBuffer : StandinResource <MTLBuffer> {
@public
  char *bytes;
  NSUInteger length;
  MTLStorageMode storage;
  BOOL tracked;
  StandinHeap *heap; /* retained, or nil */
  NSUInteger heapOffset;
  BOOL borrowed; /* the bytes are the caller's */
  /* The queue and the encoder that used the buffer last: for the rule on untracked memory. */
  void *lastQueue;
  uint64_t lastOrder;
  id lastFamily;
}
@end

@interface StandinEvent : StandinResource <MTLSharedEvent> {
@public
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t value;
  /* The last signal that was encoded: all encoders of the queue up to this one come before it. */
  void *signalQueue;
  uint64_t signalValue, signalOrder;
}
- (void)waitFor:(uint64_t)target;
@end

@interface StandinFence : StandinResource <MTLFence> {
@public
  void *queue;
  uint64_t order; /* all encoders of the queue up to this one are covered */
}
@end

StandinHeap *standin_new_heap(MTLHeapDescriptor *descriptor);
StandinBuffer *standin_new_buffer(NSUInteger length, MTLResourceOptions options);
StandinBuffer *standin_new_borrowed_buffer(void *pointer, NSUInteger length, MTLResourceOptions options);
MTLSizeAndAlign standin_heap_room(NSUInteger length);

/* The GPU that buffers belong to; device.m. */
id<MTLDevice> standin_owner(void);
NSUInteger standin_allocated(void);
NSUInteger standin_capacity(void);

/* ---- library.m, pipeline.m ---- */

@interface StandinLibrary : NSObject <MTLLibrary> {
@public
  mps_library *contents; /* opened by the host device's functions, on no device of the core's */
  BOOL logs;
  char *source;      /* NULL for a library that was compiled before */
  uint64_t identity; /* of the text or the bytes */
}
@end

@interface StandinFunction : NSObject <MTLFunction> {
@public
  StandinLibrary *library;
  NSString *name;
  MTLFunctionConstantValues *values; /* nil before it is specialised */
}
@end

@interface StandinPipelineState : StandinResource <MTLComputePipelineState> {
@public
  mps_pipeline *contents;
  StandinLibrary *library;
}
@end

@interface StandinConstantValue : NSObject {
@public
  MTLDataType type;
  NSUInteger index;
  unsigned char bytes[32];
}
@end

/* The size of a constant's value; 0 for a type that none can have. */
size_t standin_constant_size(MTLDataType type);
uint32_t standin_data_type(MTLDataType type);
MTLDataType standin_metal_type(uint32_t data_type);

/* Whether the kernel can reach the constant, by a look at the source's names. */
bool standin_reaches(const char *source, const char *kernel, const char *name);

id<MTLLibrary> standin_new_library(NSString *source, MTLCompileOptions *options, NSError **error);
id<MTLLibrary> standin_open_library(const char *path, NSError **error);
id<MTLLibrary> standin_read_library(const void *data, size_t size, NSError **error);
const void *standin_data_bytes(dispatch_data_t data, size_t *size);

StandinPipelineState *standin_new_pipeline(StandinFunction *function, NSString *label,
                                           MTLComputePipelineReflection **reflection, NSError **error);

/* What tells a specialised kernel from all others, in an archive; autoreleased. */
NSString *standin_pipeline_key(StandinFunction *function);
id<MTLBinaryArchive> standin_new_archive(MTLBinaryArchiveDescriptor *descriptor, NSError **error);
bool standin_archive_has(id<MTLBinaryArchive> archive, NSString *key);

/* ---- command.m, encoder.m ---- */

@class StandinCommandBuffer, StandinEncoder;

/* ---- logs.m ---- */

@interface StandinLogState : NSObject <MTLLogState> {
@public
  NSMutableArray *handlers;
  NSInteger bufferSize;
}
@end

/* What the host device's kernels log on this thread goes to the command buffer from here on; nil: nowhere. */
void standin_log_from(StandinCommandBuffer *commands);

/* Give what was logged to the handlers. */
void standin_log_deliver(StandinCommandBuffer *commands);

@interface StandinQueue : StandinResource <MTLCommandQueue> {
@public
  NSUInteger room;
  dispatch_queue_t worker;
  dispatch_queue_t completions;
  pthread_mutex_t lock;
  pthread_cond_t freed;
  NSUInteger outstanding; /* command buffers that exist and are not complete */
  uint64_t encoders;      /* counted up as they are opened */
  uint64_t covered;       /* encoders up to this one are waited for by all to come */
}
@end

typedef struct gpu_command {
  struct gpu_command *next;
  bool logs;
  const mslc_kernel *kernel; /* a blit is a kernel too, of our own */
  mslc_launch launch;
  void *storage; /* of inline bytes */
} gpu_command;

/* Something in a command buffer, in order: an encoder, or a signal, or a wait. */
@interface StandinEntry : NSObject {
@public
  StandinEncoder *encoder;
  StandinEvent *event;
  uint64_t value;
  BOOL signals;
}
@end

@interface StandinEncoder : StandinResource {
@public
  StandinCommandBuffer *owner; /* not retained: it retains the encoder */
  BOOL ended;
  uint64_t order;
  uint64_t covered; /* earlier encoders of the queue up to this one are waited for */
  id family;        /* encoders of one family, if it is not nil, do not depend on each other */
  gpu_command *commands;
  gpu_command **end;
  MTLCommandEncoderErrorState state;
}
- (gpu_command *)addCommand;
- (void)endEncoding;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end

@interface StandinComputeEncoder : StandinEncoder <MTLComputeCommandEncoder> {
@public
  StandinPipelineState *pipeline;
  StandinBuffer *buffers[MSLC_BUFFER_SLOTS];
  NSUInteger offsets[MSLC_BUFFER_SLOTS];
  char *bytes[MSLC_BUFFER_SLOTS];
  NSUInteger byteCounts[MSLC_BUFFER_SLOTS];
  NSUInteger threadgroupLengths[MSLC_BUFFER_SLOTS];
}
@end

@interface StandinBlitEncoder : StandinEncoder <MTLBlitCommandEncoder>
@end

@interface StandinCommandBuffer : StandinResource <MTLCommandBuffer> {
@public
  StandinQueue *queue;
  MTLCommandBufferStatus status;
  BOOL retains;
  BOOL tellsEncoders;
  NSMutableArray *entries;
  StandinEncoder *open; /* borrowed */
  NSMutableArray *scheduledHandlers;
  NSMutableArray *completedHandlers;
  StandinResource **used;
  NSUInteger usedCount, usedRoom;
  NSError *error;
  CFTimeInterval started, ended;
  StandinLogState *logState; /* nil: messages are dropped */
  struct log_line *logged, **loggedEnd;
  BOOL counted; /* among the queue's outstanding ones */
}
- (id)openEncoder:(StandinEncoder *)encoder;
@end

/* The command buffer uses something until it is complete. */
void standin_use(StandinCommandBuffer *commands, StandinResource *resource);

/* The encoder uses memory: what another encoder did with it before must be waited for. */
void standin_touch(StandinEncoder *encoder, StandinBuffer *buffer);

id<MTLCommandQueue> standin_new_queue(NSUInteger room);

/* Run the commands of an encoder; false with an error's code and text if one fails. */
bool standin_run_encoder(StandinEncoder *encoder, NSInteger *code, char *text, size_t size);

/* A command buffer is complete: for a capture. */
void standin_captured(StandinCommandBuffer *commands);

#endif
