#include "command.h"

#include "capture.h"
#include "capture_call.h"
#include "matmul.h"

#include <stdlib.h>
#include <string.h>

static size_t align16(size_t size) {
  return (size + 15) & ~(size_t)15;
}

/* A command, then the list of its buffers, then what its launch points to. */
static host_command *command_new(host_command_kind kind, size_t buffers, size_t storage) {
  size_t list = align16(sizeof(host_command));
  size_t table = align16(buffers * sizeof(mps_buffer *));
  host_command *command = malloc(list + table + storage);
  if (!command) {
    return NULL;
  }
  command->next = NULL;
  command->kind = kind;
  command->buffer_count = 0;
  command->call = NULL;
  command->traced.record.kind = 0;
  command->buffers = (mps_buffer **)(void *)((char *)command + list);
  atomic_fetch_add_explicit(&mps_pending_commands, 1, memory_order_relaxed);
  return command;
}

static void use_buffer(host_command *command, mps_buffer *buffer) {
  mps_buffer_begin_use(buffer);
  command->buffers[command->buffer_count++] = buffer;
}

static void use_table(host_command *command, const mps_argument *argument) {
  const mps_address *addresses = argument->data;
  for (uint64_t i = 0; i < argument->length; i++) {
    if (addresses[i].buffer) {
      use_buffer(command, addresses[i].buffer);
    }
  }
}

/* The command with what a capture wants of it; NULL if there was no memory for that. */
static host_command *with_call(host_command *command, host_call *call) {
  if (!call) {
    host_command_free(command);
    return NULL;
  }
  command->call = call;
  return command;
}

host_command *host_command_dispatch(const mps_dispatch *dispatch, const uint32_t grid[3], const uint32_t group[3]) {
  size_t buffers = 0;
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    if (argument->kind == MPS_ARGUMENT_BUFFER) {
      buffers++;
    } else if (argument->kind == MPS_ARGUMENT_ADDRESSES) {
      buffers += argument->length;
    }
  }
  size_t storage = host_work_storage(dispatch);
  host_command *command = command_new(HOST_COMMAND_WORK, buffers, storage);
  if (!command) {
    return NULL;
  }
  char *place = (char *)command->buffers + align16(buffers * sizeof(mps_buffer *));
  host_work_bind(&command->work, dispatch, grid, group, false, place, storage);
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    if (argument->kind == MPS_ARGUMENT_BUFFER) {
      use_buffer(command, argument->buffer);
    } else if (argument->kind == MPS_ARGUMENT_ADDRESSES) {
      use_table(command, argument);
    }
  }
  command->pipeline = dispatch->pipeline;
  mps_pipeline_hold(command->pipeline);
  return host_capture_is_on() ? with_call(command, host_call_dispatch(dispatch, grid, group)) : command;
}

host_command *host_command_copy(mps_buffer *source, uint64_t source_offset, mps_buffer *target, uint64_t target_offset,
                                uint64_t length) {
  host_command *command = command_new(HOST_COMMAND_WORK, 2, 0);
  if (!command) {
    return NULL;
  }
  command->pipeline = NULL;
  host_work_copy(&command->work, source, source_offset, target, target_offset, length);
  use_buffer(command, source);
  use_buffer(command, target);
  return host_capture_is_on() ? with_call(command, host_call_copy(source, source_offset, target, target_offset, length))
                              : command;
}

host_command *host_command_fill(mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  host_command *command = command_new(HOST_COMMAND_WORK, 1, 0);
  if (!command) {
    return NULL;
  }
  command->pipeline = NULL;
  host_work_fill(&command->work, buffer, offset, length, value);
  use_buffer(command, buffer);
  return host_capture_is_on() ? with_call(command, host_call_fill(buffer, offset, length, value)) : command;
}

host_command *host_command_matmul(const mps_matmul *matmul) {
  host_command *command = command_new(HOST_COMMAND_MATMUL, 3, 0);
  if (command) {
    command->matmul = *matmul;
    use_buffer(command, matmul->left.buffer);
    use_buffer(command, matmul->right.buffer);
    use_buffer(command, matmul->result.buffer);
  }
  return command && host_capture_is_on() ? with_call(command, host_call_matmul(matmul)) : command;
}

host_command *host_command_event(host_command_kind kind, mps_event *event, uint64_t value) {
  host_command *command = command_new(kind, 0, 0);
  if (command) {
    command->event = event;
    command->value = value;
    mps_event_hold(event);
  }
  return command;
}

host_command *host_command_callback(mps_callback_fn callback, void *user) {
  host_command *command = command_new(HOST_COMMAND_CALLBACK, 0, 0);
  if (command) {
    command->callback = callback;
    command->user = user;
  }
  return command;
}

void host_command_free(host_command *command) {
  for (uint32_t i = 0; i < command->buffer_count; i++) {
    mps_buffer_end_use(command->buffers[i]);
  }
  free(command->call);
  if (command->kind == HOST_COMMAND_WORK && command->pipeline) {
    mps_pipeline_drop(command->pipeline);
  } else if (command->kind == HOST_COMMAND_SIGNAL || command->kind == HOST_COMMAND_WAIT) {
    mps_event_drop(command->event);
  }
  free(command);
  atomic_fetch_sub_explicit(&mps_pending_commands, 1, memory_order_relaxed);
}

uint64_t host_command_cost(const host_command *command) {
  if (command->call) {
    return UINT64_MAX; /* it waits for its turn: capture.c */
  }
  switch (command->kind) {
  case HOST_COMMAND_WORK:
    return host_work_cost(&command->work);
  case HOST_COMMAND_MATMUL:
    return host_matmul_cost(&command->matmul);
  case HOST_COMMAND_SIGNAL:
    return 0;
  default:
    return UINT64_MAX; /* they take as long as others like, or want a thread of the library's */
  }
}
