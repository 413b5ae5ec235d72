/* What the files of the Metal device share.
 *
 * Manual retain and release: an object that a struct keeps is owned, +1, and released where the struct ends. Entry
 * points that send messages run inside metal_guard, or have an autorelease pool of their own if they cannot fail. */
#ifndef MPS_METAL_H
#define MPS_METAL_H

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include "backend.h"
#include "status.h"

#if __has_feature(objc_arc)
#error "the Metal device retains and releases by hand: build it with -fno-objc-arc"
#endif

/* ---- error.m ---- */

/* Run `body` with an autorelease pool, and turn an exception that the system's frameworks raise into
 * MPS_STATUS_INTERNAL. `doing` completes "while ...". */
mps_status metal_guard(const char *doing, mps_status (^body)(void));

/* Fail with the text of a system error after `what`. */
mps_status metal_fail(mps_status status, const char *what, NSError *error);

/* What a system error says, as long as the current autorelease pool; never NULL. */
const char *metal_error_text(NSError *error);

/* An autoreleased string of C text; nil, which the system's functions do not take, if that is no UTF-8. */
NSString *metal_string(const char *text, size_t length);

/* ---- device.m ---- */

typedef struct metal_archive metal_archive;
typedef struct metal_bytes metal_bytes;

/* What mps_device.impl points to. */
typedef struct metal_device {
  id<MTLDevice> gpu;
  metal_archive *archive; /* pipelines compiled before; NULL without a cache */
  metal_bytes *bytes;     /* kernels that move what blits cannot; NULL where blits can move everything */
} metal_device;

uint32_t metal_device_count(void);
const char *metal_device_unavailable_reason(void);
mps_status metal_device_open(mps_device *device);
void metal_device_close(mps_device *device);
uint64_t metal_device_allocated_size(mps_device *device);
void metal_device_timestamps(mps_device *device, uint64_t *cpu, uint64_t *gpu);
void *metal_device_native(mps_device *device);

static inline id<MTLDevice> metal_gpu(const mps_device *device) {
  return ((const metal_device *)device->impl)->gpu;
}

/* ---- heap.m, buffer.m; impl is the MTLHeap, the MTLBuffer ---- */

MTLResourceOptions metal_resource_options(uint32_t storage_mode, uint32_t cache_mode, uint32_t hazard_mode);

void metal_heap_size_and_align(mps_device *device, const mps_buffer_desc *desc, uint64_t *size, uint64_t *align);
mps_status metal_heap_open(mps_heap *heap);
void metal_heap_close(mps_heap *heap);
uint64_t metal_heap_used(mps_heap *heap);
mps_purgeable_state metal_heap_set_purgeable(mps_heap *heap, mps_purgeable_state state);

mps_status metal_buffer_open(mps_buffer *buffer);
mps_status metal_buffer_open_in_heap(mps_buffer *buffer);
mps_status metal_buffer_open_no_copy(mps_buffer *buffer);
mps_status metal_buffer_open_native(mps_buffer *buffer, void *native);
void metal_buffer_close(mps_buffer *buffer);
void *metal_buffer_native(mps_buffer *buffer);

/* ---- library.m, pipeline.m, archive.m; impl is the MTLLibrary, the MTLComputePipelineState ---- */

mps_status metal_library_from_source(mps_library *library, const char *source, size_t length,
                                     const mps_compile_options *options);
mps_status metal_library_from_file(mps_library *library, const char *path);
mps_status metal_library_from_data(mps_library *library, const void *data, size_t size);
void metal_library_close(mps_library *library);

mps_status metal_pipeline_open(mps_pipeline *pipeline, const mps_pipeline_desc *desc);
void metal_pipeline_close(mps_pipeline *pipeline);

/* The cache of compiled pipelines of a GPU, or NULL if there can be none. */
metal_archive *metal_archive_open(id<MTLDevice> gpu);
void metal_archive_close(metal_archive *archive);

/* A pipeline state, +1, from the archive if it is there; else it is compiled, and put into the archive in the
 * background. nil and an error otherwise. `archive` may be NULL. */
id<MTLComputePipelineState> metal_archive_make(metal_archive *archive, id<MTLDevice> gpu,
                                               MTLComputePipelineDescriptor *descriptor,
                                               MTLComputePipelineReflection **reflection, NSError **error);

/* ---- log.m ---- */

/* Have what is compiled log, where Metal can. */
void metal_log_enable(MTLCompileOptions *options);

/* ---- data_type.m ---- */

/* mps_data_base | lanes << 8 of Metal's type, 0 for what has none. */
uint32_t metal_data_type_from(MTLDataType type);

/* The other way round; MTLDataTypeNone for what is no scalar and no vector. */
MTLDataType metal_data_type_to(uint32_t data_type);

/* As MSL spells it, "float4"; "" for what is no scalar and no vector. Static. */
const char *metal_data_type_name(MTLDataType type);

/* ---- capture.m, signpost.m ---- */

bool metal_capture_supported(mps_device *device);
mps_status metal_capture_start(mps_device *device, const mps_capture_desc *desc);
mps_status metal_capture_stop(mps_device *device);
bool metal_capture_active(mps_device *device);

void metal_signpost_event(mps_signpost_category category, const char *message);
void metal_signpost_begin(mps_signpost_category category, const char *message, uint64_t id);
void metal_signpost_end(mps_signpost_category category, const char *message, uint64_t id);

#endif
