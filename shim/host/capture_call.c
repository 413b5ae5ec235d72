#include "capture_call.h"

#include <stdlib.h>
#include <string.h>

static size_t align16(size_t size) {
  return (size + 15) & ~(size_t)15;
}

static size_t data_size(const mps_argument *argument) {
  switch ((mps_argument_kind)argument->kind) {
  case MPS_ARGUMENT_BYTES:
    return argument->length;
  case MPS_ARGUMENT_ADDRESSES:
    return argument->length * sizeof(mps_address);
  case MPS_ARGUMENT_BUFFER:
  case MPS_ARGUMENT_THREADGROUP:
    break;
  }
  return 0;
}

static size_t buffers_of(const mps_argument *argument) {
  switch ((mps_argument_kind)argument->kind) {
  case MPS_ARGUMENT_BUFFER:
    return 1;
  case MPS_ARGUMENT_ADDRESSES:
    return argument->length;
  case MPS_ARGUMENT_BYTES:
  case MPS_ARGUMENT_THREADGROUP:
    break;
  }
  return 0;
}

static void add_buffer(host_call *call, mps_buffer *buffer) {
  for (uint32_t i = 0; i < call->buffer_count; i++) {
    if (call->buffers[i].buffer == buffer) {
      return;
    }
  }
  call->buffers[call->buffer_count++] = (host_call_buffer){.buffer = buffer};
}

static void add_buffers(host_call *call, const mps_argument *argument) {
  if (argument->kind == MPS_ARGUMENT_BUFFER) {
    add_buffer(call, argument->buffer);
  } else if (argument->kind == MPS_ARGUMENT_ADDRESSES) {
    const mps_address *addresses = argument->data;
    for (uint64_t i = 0; i < argument->length; i++) {
      if (addresses[i].buffer) {
        add_buffer(call, addresses[i].buffer);
      }
    }
  }
}

/* The call, its arguments, its buffers, then what the arguments point to: one piece of memory. */
static host_call *call_new(host_call_kind kind, const mps_argument *arguments, uint32_t count) {
  size_t list = align16(sizeof(host_call)), buffers = 0, data = 0;
  for (uint32_t i = 0; i < count; i++) {
    buffers += buffers_of(&arguments[i]);
    data += align16(data_size(&arguments[i]));
  }
  size_t table = list + align16(count * sizeof *arguments);
  size_t bytes = table + align16(buffers * sizeof(host_call_buffer));
  char *place = malloc(bytes + data);
  if (!place) {
    return NULL;
  }
  host_call *call = (host_call *)(void *)place;
  *call = (host_call){.kind = kind, .argument_count = count};
  call->arguments = (mps_argument *)(void *)(place + list);
  call->buffers = (host_call_buffer *)(void *)(place + table);
  char *next = place + bytes;
  for (uint32_t i = 0; i < count; i++) {
    call->arguments[i] = arguments[i];
    size_t size = data_size(&arguments[i]);
    if (size) {
      memcpy(next, arguments[i].data, size);
      call->arguments[i].data = next;
      next += align16(size);
    }
    add_buffers(call, &arguments[i]);
  }
  return call;
}

host_call *host_call_dispatch(const mps_dispatch *dispatch, const uint32_t grid[3], const uint32_t group[3]) {
  host_call *call = call_new(HOST_CALL_DISPATCH, dispatch->arguments, dispatch->argument_count);
  if (call) {
    call->pipeline = dispatch->pipeline;
    for (int i = 0; i < 3; i++) {
      call->grid[i] = grid[i];
      call->group[i] = group[i];
    }
  }
  return call;
}

static mps_argument range(mps_buffer *buffer, uint64_t offset) {
  return (mps_argument){.kind = MPS_ARGUMENT_BUFFER, .buffer = buffer, .offset = offset};
}

host_call *host_call_copy(mps_buffer *source, uint64_t source_offset, mps_buffer *target, uint64_t target_offset,
                          uint64_t length) {
  const mps_argument ranges[] = {range(source, source_offset), range(target, target_offset)};
  host_call *call = call_new(HOST_CALL_COPY, ranges, 2);
  if (call) {
    call->length = length;
  }
  return call;
}

host_call *host_call_fill(mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  const mps_argument target = range(buffer, offset);
  host_call *call = call_new(HOST_CALL_FILL, &target, 1);
  if (call) {
    call->length = length;
    call->value = value;
  }
  return call;
}

host_call *host_call_matmul(const mps_matmul *matmul) {
  const mps_argument matrices[] = {range(matmul->left.buffer, matmul->left.offset),
                                   range(matmul->right.buffer, matmul->right.offset),
                                   range(matmul->result.buffer, matmul->result.offset)};
  host_call *call = call_new(HOST_CALL_MATMUL, matrices, 3);
  if (call) {
    call->matmul = *matmul;
  }
  return call;
}
