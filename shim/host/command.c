#include "command.h"

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
  return command;
}

static host_command *command_of_own_kernel(const host_work *work, mps_buffer *first, mps_buffer *second) {
  host_command *command = command_new(HOST_COMMAND_WORK, 2, 0);
  if (command) {
    command->pipeline = NULL;
    command->work = *work;
    use_buffer(command, first);
    if (second) {
      use_buffer(command, second);
    }
  }
  return command;
}

host_command *host_command_copy(const host_work *work, mps_buffer *source, mps_buffer *target) {
  return command_of_own_kernel(work, source, target);
}

host_command *host_command_fill(const host_work *work, mps_buffer *buffer) {
  return command_of_own_kernel(work, buffer, NULL);
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
  if (command->kind == HOST_COMMAND_WORK && command->pipeline) {
    mps_pipeline_drop(command->pipeline);
  } else if (command->kind == HOST_COMMAND_SIGNAL || command->kind == HOST_COMMAND_WAIT) {
    mps_event_drop(command->event);
  }
  free(command);
  atomic_fetch_sub_explicit(&mps_pending_commands, 1, memory_order_relaxed);
}
