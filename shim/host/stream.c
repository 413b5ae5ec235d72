/* The thread of a queue: runs command buffers in order. */
#include "stream.h"

#include "capture.h"
#include "capture_call.h"
#include "clock.h"
#include "log.h"
#include "matmul.h"
#include "thread.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local const host_stream *self;

bool host_stream_is_self(const host_stream *stream) {
  return self == stream;
}

/* ---- commands ---- */

static void describe_failure(const host_work *work, const host_fault *fault, char failure[HOST_FAILURE_BYTES]) {
  char extent[128];
  if (work->name) {
    host_work_describe_size(work, extent, sizeof extent);
    snprintf(failure, HOST_FAILURE_BYTES, "kernel '%.128s' failed: %s; %s", work->name, fault->text, extent);
  } else {
    host_work_describe(work, extent, sizeof extent);
    snprintf(failure, HOST_FAILURE_BYTES, "%s failed: %s", extent, fault->text);
  }
}

static void fail(host_stream *stream, const host_work *work, const host_fault *fault,
                 char failure[HOST_FAILURE_BYTES]) {
  describe_failure(work, fault, failure);
  host_failure_put(stream->failure, failure);
}

bool host_stream_run(host_stream *stream, const host_work *work, host_call *call, mps_traced *traced,
                     char failure[HOST_FAILURE_BYTES]) {
  host_capturing capturing;
  bool is_captured = host_capture_begin(&capturing, stream, call);
  bool is_traced = traced->record.kind != 0;
  if (is_traced) {
    mps_trace_begin(traced);
  }
  uint64_t start = is_traced ? mps_now() : 0;
  host_fault fault;
  bool ok = host_work_run(work, &fault);
  if (is_traced) {
    mps_trace_end(traced, start, mps_now(), ok ? MPS_STATUS_OK : MPS_STATUS_EXECUTION_FAILED);
  }
  if (is_captured) {
    char what[256];
    host_work_describe(work, what, sizeof what);
    host_capture_end(&capturing, stream->label, what, ok ? NULL : fault.text);
  }
  if (!ok) {
    fail(stream, work, &fault, failure);
  }
  return ok;
}

static bool run_matmul(host_stream *stream, const mps_matmul *matmul, host_call *call, mps_traced *traced,
                       char failure[HOST_FAILURE_BYTES]) {
  char what[128], why[256];
  host_capturing capturing;
  bool is_captured = host_capture_begin(&capturing, stream, call);
  mps_trace_begin(traced);
  uint64_t start = mps_now();
  bool ok = host_matmul_run(matmul, why, sizeof why);
  mps_trace_end(traced, start, mps_now(), ok ? MPS_STATUS_OK : MPS_STATUS_EXECUTION_FAILED);
  host_matmul_describe(matmul, what, sizeof what);
  if (is_captured) {
    host_capture_end(&capturing, stream->label, what, ok ? NULL : why);
  }
  if (!ok) {
    snprintf(failure, HOST_FAILURE_BYTES, "%s failed: %s", what, why);
    host_failure_put(stream->failure, failure);
  }
  return ok;
}

/* After a failure the rest of the command buffer's work is skipped, but who waits for its signals still gets them. */
static void run_command(host_stream *stream, host_command_buffer *buffer, host_command *command) {
  mps_traced *traced = &command->traced;
  uint64_t start = traced->record.kind != 0 ? mps_now() : 0;
  switch (command->kind) {
  case HOST_COMMAND_WORK:
    if (buffer->record.failed) {
      mps_trace_end(traced, start, start, MPS_STATUS_EXECUTION_FAILED);
    } else {
      buffer->record.failed = !host_stream_run(stream, &command->work, command->call, traced, buffer->failure);
    }
    return;
  case HOST_COMMAND_MATMUL:
    if (buffer->record.failed) {
      mps_trace_end(traced, start, start, MPS_STATUS_EXECUTION_FAILED);
    } else {
      buffer->record.failed = !run_matmul(stream, &command->matmul, command->call, traced, buffer->failure);
    }
    return;
  case HOST_COMMAND_SIGNAL:
    host_event_raise(command->event, command->value, mps_now());
    break;
  case HOST_COMMAND_WAIT:
    host_event_wait_until(command->event, command->value, MPS_FOREVER);
    break;
  case HOST_COMMAND_CALLBACK:
    command->callback(command->user);
    break;
  }
  if (traced->record.kind != 0) {
    mps_trace_end(traced, start, mps_now(), MPS_STATUS_OK);
  }
}

/* ---- command buffers ---- */

static void store_record(host_stream *stream, const host_command_buffer *buffer) {
  host_record *place = &stream->records[buffer->record.serial % HOST_REMEMBERED];
  if (place->serial == buffer->record.serial) {
    *place = buffer->record;
  }
}

static void call_handlers(host_command_buffer *buffer, mps_handler_kind kind) {
  const host_record *record = &buffer->record;
  mps_command_info info = {.struct_size = sizeof info,
                           .serial = record->serial,
                           .start = record->start,
                           .end = record->end,
                           .status = record->failed ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK,
                           .scheduled = record->scheduled,
                           .message = buffer->failure};
  for (host_handler *handler = buffer->handlers; handler; handler = handler->next) {
    if (handler->kind == kind) {
      handler->handler(handler->user, &info);
    }
  }
}

static void free_handlers(host_command_buffer *buffer) {
  while (buffer->handlers) {
    host_handler *next = buffer->handlers->next;
    free(buffer->handlers);
    buffer->handlers = next;
  }
}

static void update_record(host_stream *stream, const host_command_buffer *buffer) {
  pthread_mutex_lock(&stream->lock);
  store_record(stream, buffer);
  pthread_mutex_unlock(&stream->lock);
}

static void run_command_buffer(host_stream *stream, host_command_buffer *buffer) {
  buffer->record.scheduled = true;
  call_handlers(buffer, MPS_HANDLER_SCHEDULED);
  if (!buffer->record.start) {
    buffer->record.start = mps_now();
  }
  update_record(stream, buffer);
  while (buffer->commands) {
    host_command *command = buffer->commands;
    run_command(stream, buffer, command);
    buffer->commands = command->next;
    host_command_free(command);
  }
  buffer->record.end = mps_now();
  mps_trace_end(&buffer->traced, buffer->record.start, buffer->record.end,
                buffer->record.failed ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK);
  mps_log_flush();
  if (buffer->handlers) {
    update_record(stream, buffer); /* for handlers that ask for it */
    call_handlers(buffer, MPS_HANDLER_COMPLETED);
    free_handlers(buffer);
  }
}

/* ---- the thread ---- */

static bool has_work(const host_stream *stream) {
  return atomic_load_explicit(&stream->in_flight, memory_order_relaxed) != 0;
}

/* With the lock held. */
static host_command_buffer *pop(host_stream *stream) {
  host_command_buffer *buffer = stream->committed;
  if (buffer) {
    stream->committed = buffer->next;
    if (!stream->committed) {
      stream->committed_end = &stream->committed;
    }
  }
  return buffer;
}

/* The next command buffer, or NULL once the queue is closed and none is left. Called and returns with the lock held. */
static host_command_buffer *next_command_buffer(host_stream *stream) {
  if (!stream->committed && !stream->closed) {
    pthread_mutex_unlock(&stream->lock);
    for (int i = 0; i < HOST_YIELDS && !has_work(stream); i++) {
      sched_yield();
    }
    pthread_mutex_lock(&stream->lock);
  }
  while (stream->has_helper || (!stream->committed && !stream->closed)) {
    stream->worker_sleeps = true;
    pthread_cond_wait(&stream->work, &stream->lock);
    stream->worker_sleeps = false;
  }
  return pop(stream);
}

static void complete(host_stream *stream, host_command_buffer *buffer) {
  store_record(stream, buffer);
  stream->stalled = false;
  atomic_fetch_sub_explicit(&stream->in_flight, 1, memory_order_release);
  atomic_store_explicit(&stream->completed, buffer->record.serial, memory_order_release);
  if (stream->done_sleepers) {
    pthread_cond_broadcast(&stream->done);
  }
}

static void *worker_run(void *argument) {
  host_stream *stream = argument;
  self = stream;
  pthread_mutex_lock(&stream->lock);
  for (;;) {
    host_command_buffer *buffer = next_command_buffer(stream);
    if (!buffer) {
      break;
    }
    pthread_mutex_unlock(&stream->lock);
    run_command_buffer(stream, buffer);
    pthread_mutex_lock(&stream->lock);
    complete(stream, buffer);
    free(buffer);
  }
  pthread_mutex_unlock(&stream->lock);
  host_stream_drop(stream);
  return NULL;
}

/* ---- in its place ---- */

host_command_buffer *host_stream_take(host_stream *stream, uint64_t timeout) {
  bool is_alone = atomic_load_explicit(&stream->in_flight, memory_order_relaxed) == 1;
  const host_command_buffer *next = stream->committed;
  if (!is_alone || !next || next->cost == UINT64_MAX || next->cost > timeout) {
    return NULL;
  }
  stream->has_helper = true;
  /* The caller's handle may be released meanwhile. */
  atomic_fetch_add_explicit(&stream->references, 1, memory_order_relaxed);
  return pop(stream);
}

void host_stream_help(host_stream *stream, host_command_buffer *buffer) {
  const host_stream *before = self; /* a callback of another stream may be what waits */
  self = stream;
  run_command_buffer(stream, buffer);
  self = before;
  pthread_mutex_lock(&stream->lock);
  complete(stream, buffer);
  stream->has_helper = false;
  if (stream->committed || stream->closed) {
    pthread_cond_signal(&stream->work);
  }
  pthread_mutex_unlock(&stream->lock);
  free(buffer);
  host_stream_drop(stream);
}

int host_stream_start(host_stream *stream) {
  if (stream->has_worker) {
    return 0;
  }
  atomic_fetch_add_explicit(&stream->references, 1, memory_order_relaxed);
  int error = host_thread_start("mps-queue", worker_run, stream);
  if (error) {
    atomic_fetch_sub_explicit(&stream->references, 1, memory_order_relaxed);
  }
  stream->has_worker = error == 0;
  return error;
}
