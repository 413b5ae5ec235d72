#include "queue.h"

#include "bytes.h"
#include "event.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of one blit: some drivers count them in 32 bits with a sign. */
static const uint64_t BLIT_PIECE = UINT64_C(1) << 30;

/* Run `body` with the queue's encoding lock. */
static mps_status encode(metal_queue *queue, const char *doing, mps_status (^body)(void)) {
  pthread_mutex_lock(&queue->encoding);
  mps_status status = metal_guard(doing, body);
  pthread_mutex_unlock(&queue->encoding);
  return status;
}

static void trace_command(metal_segment *segment, mps_trace_kind kind, uint64_t bytes) {
  mps_traced traced;
  mps_trace_command(&traced, segment->queue->handle, kind, bytes);
  metal_segment_trace(segment, &traced);
}

/* ---- dispatch ---- */

/* Whether a list, "a, b", has an entry. */
static bool is_listed(const char *list, const char *entry) {
  size_t length = strlen(entry);
  for (const char *found = strstr(list, entry); found != NULL; found = strstr(found + 1, entry)) {
    bool begins = found == list || found[-1] == ' ';
    if (begins && (found[length] == '\0' || found[length] == ',')) {
      return true;
    }
  }
  return false;
}

/* Whether the open encoder's list of kernels has, or has room for, one more. */
static bool has_room(const metal_queue *queue, const char *label) {
  return is_listed(queue->kernels, label) ||
         strlen(queue->kernels) + strlen(label) + sizeof ", " <= sizeof queue->kernels;
}

/* Remember for the encoder's label what it runs. Alone in an encoder, a name that is too long is cut. */
static void note_kernel(metal_queue *queue, const char *label) {
  size_t used = strlen(queue->kernels);
  if (!is_listed(queue->kernels, label)) {
    snprintf(queue->kernels + used, sizeof queue->kernels - used, "%s%s", used > 0 ? ", " : "", label);
  }
}

/* How many things the arguments keep alive. */
static size_t count_holds(const mps_dispatch *dispatch) {
  size_t count = 0;
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    count += argument->kind == MPS_ARGUMENT_ADDRESSES ? argument->length + 1 : 1;
  }
  return count;
}

/* The table's buffers are in no slot: Metal has to be told that the kernel uses them. */
static mps_status bind_addresses(metal_segment *segment, id<MTLComputeCommandEncoder> encoder, const mps_device *device,
                                 const mps_argument *argument) {
  const mps_address *entries = argument->data;
  size_t size = argument->length * sizeof(uint64_t);
  id<MTLBuffer> table = [[metal_gpu(device) newBufferWithLength:size options:MTLResourceStorageModeShared] autorelease];
  if (table == nil) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "Metal has no memory for a table of %zu addresses",
                    size / sizeof(uint64_t));
  }
  uint64_t *addresses = [table contents];
  for (uint64_t i = 0; i < argument->length; i++) {
    addresses[i] = entries[i].buffer->gpu_address + entries[i].offset;
    [encoder useResource:(id<MTLBuffer>)entries[i].buffer->impl usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    metal_segment_hold_buffer(segment, entries[i].buffer);
  }
  [encoder setBuffer:table offset:0 atIndex:argument->index];
  metal_segment_hold_native(segment, table);
  return MPS_STATUS_OK;
}

static mps_status bind(metal_segment *segment, id<MTLComputeCommandEncoder> encoder, const mps_device *device,
                       const mps_argument *argument) {
  switch (argument->kind) {
  case MPS_ARGUMENT_BUFFER:
    metal_segment_hold_buffer(segment, argument->buffer);
    [encoder setBuffer:(id<MTLBuffer>)argument->buffer->impl offset:argument->offset atIndex:argument->index];
    return MPS_STATUS_OK;
  case MPS_ARGUMENT_BYTES:
    [encoder setBytes:argument->data length:argument->length atIndex:argument->index];
    return MPS_STATUS_OK;
  case MPS_ARGUMENT_THREADGROUP:
    /* Metal wants some bytes for each slot of a kernel, and the caller says that this one is not used. */
    [encoder setThreadgroupMemoryLength:argument->length > 0 ? argument->length : 16 atIndex:argument->index];
    return MPS_STATUS_OK;
  default:
    return bind_addresses(segment, encoder, device, argument);
  }
}

static mps_status encode_dispatch(metal_queue *queue, const mps_device *device, const mps_dispatch *dispatch,
                                  const uint32_t grid[3], const uint32_t group[3]) {
  mps_pipeline *pipeline = dispatch->pipeline;
  metal_segment *segment;
  MPS_TRY(metal_segment_open(queue, &segment));
  MPS_TRY(metal_segment_reserve(segment, 1 + count_holds(dispatch)));
  if (!has_room(queue, pipeline->label)) {
    metal_end_encoder(queue); /* so that a failure names all kernels that there were */
  }
  id<MTLComputeCommandEncoder> encoder = metal_compute_encoder(queue);
  if (encoder == nil) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  id<MTLComputePipelineState> state = pipeline->impl;
  if (queue->bound != state) {
    [encoder setComputePipelineState:state];
    queue->bound = state;
  }
  metal_segment_hold_pipeline(segment, pipeline);
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    MPS_TRY(bind(segment, encoder, device, &dispatch->arguments[i]));
  }
  [encoder dispatchThreads:MTLSizeMake(grid[0], grid[1], grid[2])
      threadsPerThreadgroup:MTLSizeMake(group[0], group[1], group[2])];
  note_kernel(queue, pipeline->label);
  mps_traced traced;
  mps_trace_dispatch(&traced, queue->handle, dispatch, grid, group);
  metal_segment_trace(segment, &traced);
  metal_segment_count(queue);
  metal_segment_bound(queue);
  return MPS_STATUS_OK;
}

mps_status metal_encode_dispatch(mps_queue *handle, const mps_dispatch *dispatch, const uint32_t grid[3],
                                 const uint32_t group[3]) {
  metal_queue *queue = handle->impl;
  return encode(queue, "encoding a dispatch", ^mps_status {
    return encode_dispatch(queue, handle->device, dispatch, grid, group);
  });
}

/* ---- copy and fill ---- */

/* True if a blit cannot take these numbers of bytes, and kernels have to. */
static bool needs_kernel(const mps_device *device, uint64_t bytes) {
  return ((const metal_device *)device->impl)->bytes != NULL && bytes % 4 != 0;
}

/* The compute encoder for one of the kernels above; whatever was bound is not any more. */
static mps_status byte_encoder(metal_queue *queue, const mps_device *device,
                               id<MTLComputeCommandEncoder> *out_encoder) {
  const metal_device *impl = device->impl;
  MPS_TRY(metal_bytes_prepare(impl->bytes, impl->gpu));
  if (!has_room(queue, METAL_BLIT_LABEL)) {
    metal_end_encoder(queue);
  }
  *out_encoder = metal_compute_encoder(queue);
  queue->bound = nil;
  note_kernel(queue, METAL_BLIT_LABEL);
  return *out_encoder != nil ? MPS_STATUS_OK : MPS_STATUS_OUT_OF_MEMORY;
}

static void blit_copy(id<MTLBlitCommandEncoder> encoder, id<MTLBuffer> source, uint64_t source_offset,
                      id<MTLBuffer> target, uint64_t target_offset, uint64_t length) {
  for (uint64_t done = 0; done < length; done += BLIT_PIECE) {
    [encoder copyFromBuffer:source
               sourceOffset:source_offset + done
                   toBuffer:target
          destinationOffset:target_offset + done
                       size:length - done < BLIT_PIECE ? length - done : BLIT_PIECE];
  }
}

static void blit_fill(id<MTLBlitCommandEncoder> encoder, id<MTLBuffer> target, uint64_t offset, uint64_t length,
                      uint8_t value) {
  for (uint64_t done = 0; done < length; done += BLIT_PIECE) {
    uint64_t piece = length - done < BLIT_PIECE ? length - done : BLIT_PIECE;
    [encoder fillBuffer:target range:NSMakeRange(offset + done, piece) value:value];
  }
}

static mps_status encode_copy(metal_queue *queue, const mps_device *device, mps_buffer *source, uint64_t source_offset,
                              mps_buffer *target, uint64_t target_offset, uint64_t length) {
  metal_segment *segment;
  MPS_TRY(metal_segment_open(queue, &segment));
  MPS_TRY(metal_segment_reserve(segment, 2));
  metal_segment_hold_buffer(segment, source);
  metal_segment_hold_buffer(segment, target);
  if (needs_kernel(device, source_offset | target_offset | length)) {
    id<MTLComputeCommandEncoder> encoder;
    MPS_TRY(byte_encoder(queue, device, &encoder));
    metal_bytes_copy(((const metal_device *)device->impl)->bytes, encoder, source->impl, source_offset, target->impl,
                     target_offset, length);
  } else {
    id<MTLBlitCommandEncoder> encoder = metal_blit_encoder(queue);
    if (encoder == nil) {
      return MPS_STATUS_OUT_OF_MEMORY;
    }
    blit_copy(encoder, source->impl, source_offset, target->impl, target_offset, length);
  }
  mps_traced traced;
  mps_trace_copy(&traced, segment->queue->handle, source, target, length);
  metal_segment_trace(segment, &traced);
  metal_segment_count(queue);
  metal_segment_bound(queue);
  return MPS_STATUS_OK;
}

mps_status metal_encode_copy(mps_queue *handle, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                             uint64_t target_offset, uint64_t length) {
  metal_queue *queue = handle->impl;
  return encode(queue, "encoding a copy", ^mps_status {
    return encode_copy(queue, handle->device, source, source_offset, target, target_offset, length);
  });
}

static mps_status encode_fill(metal_queue *queue, const mps_device *device, mps_buffer *buffer, uint64_t offset,
                              uint64_t length, uint8_t value) {
  metal_segment *segment;
  MPS_TRY(metal_segment_open(queue, &segment));
  MPS_TRY(metal_segment_reserve(segment, 1));
  metal_segment_hold_buffer(segment, buffer);
  if (needs_kernel(device, offset | length)) {
    id<MTLComputeCommandEncoder> encoder;
    MPS_TRY(byte_encoder(queue, device, &encoder));
    metal_bytes_fill(((const metal_device *)device->impl)->bytes, encoder, buffer->impl, offset, length, value);
  } else {
    id<MTLBlitCommandEncoder> encoder = metal_blit_encoder(queue);
    if (encoder == nil) {
      return MPS_STATUS_OUT_OF_MEMORY;
    }
    blit_fill(encoder, buffer->impl, offset, length, value);
  }
  mps_traced traced;
  mps_trace_fill(&traced, segment->queue->handle, buffer, length);
  metal_segment_trace(segment, &traced);
  metal_segment_count(queue);
  metal_segment_bound(queue);
  return MPS_STATUS_OK;
}

mps_status metal_encode_fill(mps_queue *handle, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  metal_queue *queue = handle->impl;
  return encode(queue, "encoding a fill", ^mps_status {
    return encode_fill(queue, handle->device, buffer, offset, length, value);
  });
}

/* ---- lists of commands ---- */

static mps_status encode_work(metal_queue *queue, const mps_device *device, const mps_work *work) {
  switch (work->kind) {
  case MPS_COMMAND_COPY:
    return encode_copy(queue, device, work->copy.source, work->copy.source_offset, work->copy.target,
                       work->copy.target_offset, work->copy.length);
  case MPS_COMMAND_FILL:
    return encode_fill(queue, device, work->fill.buffer, work->fill.offset, work->fill.length,
                       (uint8_t)work->fill.value);
  case MPS_COMMAND_MATMUL: {
    mps_matmul matmul = mps_matmul_complete(work->matmul);
    return metal_encode_matmul_locked(queue, device, &matmul);
  }
  default:
    return encode_dispatch(queue, device, work->dispatch, work->grid, work->group);
  }
}

mps_status metal_submit(mps_queue *handle, const mps_work *works, uint32_t count) {
  metal_queue *queue = handle->impl;
  MPS_TRY(encode(queue, "encoding a list of commands", ^mps_status {
    mps_status status = MPS_STATUS_OK;
    for (uint32_t i = 0; i < count && status == MPS_STATUS_OK; i++) {
      status = encode_work(queue, handle->device, &works[i]);
    }
    MPS_TRY(metal_queue_close_command(queue));
    return status;
  }));
  metal_queue_hold_back(queue);
  return MPS_STATUS_OK;
}

/* ---- order among queues, and the CPU ---- */

mps_status metal_encode_signal(mps_queue *handle, mps_event *event, uint64_t value) {
  metal_queue *queue = handle->impl;
  return encode(queue, "encoding a signal", ^mps_status {
    metal_segment *segment;
    MPS_TRY(metal_segment_open(queue, &segment));
    MPS_TRY(metal_event_add_source(event, queue->failure));
    metal_end_encoder(queue);
    /* A value that is not greater changes nothing, but Metal would set it. */
    if (!metal_event_reached(event, value)) {
      [segment->commands encodeSignalEvent:metal_event_shared(event) value:value];
    }
    mps_event_hold(event);
    segment->event = event;
    segment->event_value = value;
    trace_command(segment, MPS_TRACE_SIGNAL, value);
    metal_segment_count(queue);
    metal_segment_submit(queue);
    return MPS_STATUS_OK;
  });
}

mps_status metal_encode_wait(mps_queue *handle, mps_event *event, uint64_t value) {
  metal_queue *queue = handle->impl;
  return encode(queue, "encoding a wait", ^mps_status {
    metal_segment *segment;
    MPS_TRY(metal_segment_open(queue, &segment));
    MPS_TRY(metal_segment_reserve(segment, 1));
    metal_end_encoder(queue);
    metal_segment_hold_event(segment, event, value);
    [segment->commands encodeWaitForEvent:metal_event_shared(event) value:value];
    trace_command(segment, MPS_TRACE_WAIT, value);
    metal_segment_count(queue);
    return MPS_STATUS_OK;
  });
}

mps_status metal_encode_callback(mps_queue *handle, mps_callback_fn callback, void *user) {
  metal_queue *queue = handle->impl;
  return encode(queue, "encoding a callback", ^mps_status {
    metal_segment *segment;
    MPS_TRY(metal_segment_open(queue, &segment));
    segment->callback = callback;
    segment->callback_user = user;
    segment->resume_value = ++queue->resume_value;
    mps_trace_command(&segment->traced_callback, handle, MPS_TRACE_CALLBACK, 0);
    metal_segment_count(queue);
    MPS_TRY(metal_queue_close_command(queue));
    queue->resume_pending = true;
    return MPS_STATUS_OK;
  });
}
