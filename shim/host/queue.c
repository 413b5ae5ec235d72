/* The callers' side of a queue: encoding, committing, waiting. */
#include "queue.h"

#include "capture.h"
#include "clock.h"
#include "matmul.h"
#include "status.h"
#include "stream.h"
#include "thread.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A commit waits while max_command_buffers are under way, as with a GPU, so that a loop without waits does not fill the
 * memory. But a queue that hangs must not make its callers hang: after this time commits go through. */
#define PATIENCE_NS 250000000u

static mps_status no_memory(const char *what) {
  return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory to encode a %s", what);
}

/* ---- life ---- */

static void stream_free(host_stream *stream) {
  if (stream->failure) {
    host_failure_drop(stream->failure);
  }
  free(stream->label);
  free(stream);
}

mps_status host_queue_open(mps_queue *queue) {
  host_stream *stream = calloc(1, sizeof *stream);
  if (stream) {
    stream->label = mps_text_copy(queue->label);
    stream->failure = host_failure_new();
  }
  if (!stream || !stream->label || !stream->failure) {
    if (stream) {
      stream_free(stream);
    }
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a queue");
  }
  if (host_cond_init(&stream->work) != 0 || host_cond_init(&stream->done) != 0) {
    stream_free(stream);
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a queue");
  }
  pthread_mutex_init(&stream->lock, NULL);
  stream->references = 1;
  stream->max_in_flight = queue->max_command_buffers;
  stream->committed_end = &stream->committed;
  queue->impl = stream;
  return MPS_STATUS_OK;
}

void host_stream_drop(host_stream *stream) {
  if (atomic_fetch_sub_explicit(&stream->references, 1, memory_order_acq_rel) == 1) {
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->done);
    pthread_mutex_destroy(&stream->lock);
    stream_free(stream);
  }
}

/* ---- what runs at once ---- */

/* With the lock held: nothing is before a command that is encoded now, so that it may run here. */
static bool is_free(const host_stream *stream) {
  return !stream->open && atomic_load_explicit(&stream->in_flight, memory_order_relaxed) == 0;
}

static void count_encoded(host_stream *stream) {
  uint64_t encoded = atomic_load_explicit(&stream->encoded, memory_order_relaxed);
  atomic_store_explicit(&stream->encoded, encoded + 1, memory_order_relaxed);
}

/* A command that takes no time: gives the moment at which it ran. */
static uint64_t pass_now(host_stream *stream) {
  uint64_t now = mps_now();
  count_encoded(stream);
  if (!stream->encoding.start) {
    stream->encoding.start = now;
  }
  stream->encoding.end = now;
  return now;
}

static void run_now(host_stream *stream, const host_work *work, mps_traced *traced) {
  count_encoded(stream);
  if (!stream->encoding.start) {
    stream->encoding.start = mps_now();
  }
  if (stream->encoding.failed) {
    mps_trace_end(traced, stream->encoding.end, stream->encoding.end, MPS_STATUS_EXECUTION_FAILED);
  } else {
    stream->encoding.failed = !host_stream_run(stream, work, NULL, traced, stream->encoding_failure);
  }
  stream->encoding.end = mps_now();
}

/* ---- what the worker runs ---- */

/* With the lock held: the command buffer being encoded, which from here on has something for the worker. */
static mps_status open_command_buffer(host_stream *stream, host_command_buffer **out_buffer) {
  if (!stream->open) {
    int error = host_stream_start(stream);
    if (error) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "cannot start a thread for queue '%s': %s", stream->label,
                      strerror(error));
    }
    host_command_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer) {
      return no_memory("command buffer");
    }
    buffer->record = stream->encoding;
    if (buffer->record.failed) {
      memcpy(buffer->failure, stream->encoding_failure, sizeof buffer->failure);
    }
    buffer->commands_end = &buffer->commands;
    buffer->handlers_end = &buffer->handlers;
    stream->open = buffer;
  }
  *out_buffer = stream->open;
  return MPS_STATUS_OK;
}

/* A command that will not run after all: its signposts have to come to an end. */
static mps_status give_up(mps_traced *traced, mps_status status) {
  if (traced->record.kind != 0) {
    uint64_t now = mps_now();
    mps_trace_end(traced, now, now, status);
  }
  return status;
}

static void add_cost(host_command_buffer *buffer, uint64_t cost) {
  if (__builtin_add_overflow(buffer->cost, cost, &buffer->cost)) {
    buffer->cost = UINT64_MAX;
  }
}

/* With the lock held. The command is freed on failure. */
static mps_status append(host_stream *stream, host_command *command, mps_traced *traced, const char *what) {
  if (!command) {
    return give_up(traced, no_memory(what));
  }
  host_command_buffer *buffer;
  mps_status status = open_command_buffer(stream, &buffer);
  if (status != MPS_STATUS_OK) {
    host_command_free(command);
    return give_up(traced, status);
  }
  if (traced->record.kind != 0) {
    command->traced = *traced;
  }
  *buffer->commands_end = command;
  buffer->commands_end = &command->next;
  add_cost(buffer, host_command_cost(command));
  count_encoded(stream);
  return MPS_STATUS_OK;
}

static mps_status append_locked(host_stream *stream, host_command *command, mps_traced *traced, const char *what) {
  pthread_mutex_lock(&stream->lock);
  mps_status status = append(stream, command, traced, what);
  pthread_mutex_unlock(&stream->lock);
  return status;
}

/* ---- encoding ---- */

/* Threadgroups are numbered by 64 bits, and no grid of more threads would ever come to its end. */
static mps_status check_volume(const uint32_t grid[3]) {
  uint64_t threads;
  if (__builtin_mul_overflow((uint64_t)grid[0] * grid[1], grid[2], &threads)) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED, "a grid of %u x %u x %u threads has more than 2^64 - 1", grid[0],
                    grid[1], grid[2]);
  }
  return MPS_STATUS_OK;
}

/* true if it was run. What is captured goes to the worker: it holds what the capture writes down. */
static bool try_now(host_stream *stream, const host_work *work, mps_traced *traced) {
  if (!host_work_is_small(work) || host_capture_is_on()) {
    return false;
  }
  pthread_mutex_lock(&stream->lock);
  bool now = is_free(stream);
  if (now) {
    run_now(stream, work, traced);
  }
  pthread_mutex_unlock(&stream->lock);
  return now;
}

mps_status host_encode_dispatch(mps_queue *queue, const mps_dispatch *dispatch, const uint32_t grid[3],
                                const uint32_t group[3]) {
  MPS_TRY(check_volume(grid));
  host_stream *stream = queue->impl;
  mps_traced traced;
  mps_trace_dispatch(&traced, queue, dispatch, grid, group);
  host_work work;
  _Alignas(16) char scratch[HOST_SCRATCH_BYTES];
  if (host_work_bind(&work, dispatch, grid, group, true, scratch, sizeof scratch) && try_now(stream, &work, &traced)) {
    return MPS_STATUS_OK;
  }
  return append_locked(stream, host_command_dispatch(dispatch, grid, group), &traced, "dispatch");
}

mps_status host_encode_copy(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                            uint64_t target_offset, uint64_t length) {
  host_stream *stream = queue->impl;
  host_work work;
  host_work_copy(&work, source, source_offset, target, target_offset, length);
  mps_traced traced;
  mps_trace_copy(&traced, queue, source, target, length);
  if (try_now(stream, &work, &traced)) {
    return MPS_STATUS_OK;
  }
  return append_locked(stream, host_command_copy(source, source_offset, target, target_offset, length), &traced,
                       "copy");
}

mps_status host_encode_fill(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value) {
  host_stream *stream = queue->impl;
  host_work work;
  host_work_fill(&work, buffer, offset, length, value);
  mps_traced traced;
  mps_trace_fill(&traced, queue, buffer, length);
  if (try_now(stream, &work, &traced)) {
    return MPS_STATUS_OK;
  }
  return append_locked(stream, host_command_fill(buffer, offset, length, value), &traced, "fill");
}

/* Not as it is encoded: the function is the caller's, and may do what cannot be done with the lock held. But the thread
 * that waits for it may run it: host_queue_wait. */
mps_status host_encode_matmul(mps_queue *queue, const mps_matmul *matmul) {
  mps_traced traced;
  mps_trace_matmul(&traced, queue, matmul);
  return append_locked(queue->impl, host_command_matmul(matmul), &traced, "matmul");
}

mps_status host_encode_signal(mps_queue *queue, mps_event *event, uint64_t value) {
  host_stream *stream = queue->impl;
  MPS_TRY(host_event_add_source(event, stream->failure));
  mps_traced traced;
  mps_trace_command(&traced, queue, MPS_TRACE_SIGNAL, value);
  mps_status status = MPS_STATUS_OK;
  pthread_mutex_lock(&stream->lock);
  if (is_free(stream)) {
    uint64_t now = pass_now(stream);
    mps_trace_end(&traced, now, now, MPS_STATUS_OK);
    host_event_raise(event, value, now);
  } else {
    status = append(stream, host_command_event(HOST_COMMAND_SIGNAL, event, value), &traced, "signal");
  }
  pthread_mutex_unlock(&stream->lock);
  return status;
}

mps_status host_encode_wait(mps_queue *queue, mps_event *event, uint64_t value) {
  host_stream *stream = queue->impl;
  mps_traced traced;
  mps_trace_command(&traced, queue, MPS_TRACE_WAIT, value);
  mps_status status = MPS_STATUS_OK;
  pthread_mutex_lock(&stream->lock);
  if (is_free(stream) && host_event_reached(event, value)) {
    uint64_t now = pass_now(stream);
    mps_trace_end(&traced, now, now, MPS_STATUS_OK);
  } else {
    status = append(stream, host_command_event(HOST_COMMAND_WAIT, event, value), &traced, "wait");
  }
  pthread_mutex_unlock(&stream->lock);
  return status;
}

mps_status host_add_handler(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user) {
  host_stream *stream = queue->impl;
  host_handler *entry = malloc(sizeof *entry);
  if (!entry) {
    return no_memory("handler");
  }
  *entry = (host_handler){.kind = kind, .handler = handler, .user = user};
  pthread_mutex_lock(&stream->lock);
  host_command_buffer *buffer;
  mps_status status = open_command_buffer(stream, &buffer);
  if (status == MPS_STATUS_OK) {
    *buffer->handlers_end = entry;
    buffer->handlers_end = &entry->next;
    buffer->cost = UINT64_MAX; /* handlers run on a thread of the library's */
    count_encoded(stream);
  } else {
    free(entry);
  }
  pthread_mutex_unlock(&stream->lock);
  return status;
}

/* ---- committing ---- */

/* With the lock held. The serial of what is committed, or of the last command buffer if nothing was encoded. Somebody
 * has to run it: see wake_worker. */
static uint64_t commit(mps_queue *queue) {
  host_stream *stream = queue->impl;
  if (atomic_load_explicit(&stream->encoded, memory_order_relaxed) == 0) {
    return stream->serial;
  }
  uint64_t serial = ++stream->serial;
  host_command_buffer *buffer = stream->open;
  host_record *record = buffer ? &buffer->record : &stream->encoding;
  record->serial = serial;
  mps_traced traced;
  mps_trace_command(&traced, queue, MPS_TRACE_COMMAND_BUFFER, 0);
  traced.record.serial = serial;
  if (buffer) {
    buffer->traced = traced;
    record->end = 0;
    *stream->committed_end = buffer;
    stream->committed_end = &buffer->next;
    atomic_fetch_add_explicit(&stream->in_flight, 1, memory_order_relaxed);
  } else {
    record->scheduled = true;
    mps_trace_end(&traced, record->start, record->end, record->failed ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK);
    atomic_store_explicit(&stream->completed, serial, memory_order_release);
  }
  stream->records[serial % HOST_REMEMBERED] = *record;
  stream->encoding = (host_record){0};
  stream->open = NULL;
  /* Release: who reads 0 here also sees what is in flight, and what has run. */
  atomic_store_explicit(&stream->encoded, 0, memory_order_release);
  return serial;
}

/* With the lock held. */
static void wake_worker(host_stream *stream) {
  if (stream->committed && stream->worker_sleeps) {
    pthread_cond_signal(&stream->work);
  }
}

mps_status host_encode_callback(mps_queue *queue, mps_callback_fn callback, void *user) {
  host_stream *stream = queue->impl;
  mps_traced traced;
  mps_trace_command(&traced, queue, MPS_TRACE_CALLBACK, 0);
  pthread_mutex_lock(&stream->lock);
  mps_status status = append(stream, host_command_callback(callback, user), &traced, "callback");
  if (status == MPS_STATUS_OK) {
    commit(queue);
    wake_worker(stream);
  }
  pthread_mutex_unlock(&stream->lock);
  return status;
}

static bool is_crowded(const host_stream *stream) {
  return atomic_load_explicit(&stream->in_flight, memory_order_relaxed) >= stream->max_in_flight && !stream->stalled;
}

/* With the lock held. */
static void await_room(host_stream *stream) {
  if (is_crowded(stream) && !host_stream_is_self(stream)) {
    uint64_t deadline = host_deadline(PATIENCE_NS);
    stream->done_sleepers++;
    while (is_crowded(stream)) {
      stream->stalled = !host_cond_wait(&stream->done, &stream->lock, deadline);
    }
    stream->done_sleepers--;
  }
}

mps_status host_commit(mps_queue *queue, uint64_t *serial) {
  host_stream *stream = queue->impl;
  pthread_mutex_lock(&stream->lock);
  uint64_t committed = commit(queue);
  wake_worker(stream);
  await_room(stream);
  pthread_mutex_unlock(&stream->lock);
  if (serial) {
    *serial = committed;
  }
  return MPS_STATUS_OK;
}

/* ---- lists of commands ---- */

/* Of one list, at most so many run on the caller's thread, which has the lock all the while. */
#define INLINE_WORKS 1024u

/* false if it cannot run here, or does not fit into the scratch. */
static bool bind_work(host_work *work, const mps_work *given, char scratch[HOST_SCRATCH_BYTES]) {
  switch (given->kind) {
  case MPS_COMMAND_COPY:
    host_work_copy(work, given->copy.source, given->copy.source_offset, given->copy.target, given->copy.target_offset,
                   given->copy.length);
    return true;
  case MPS_COMMAND_FILL:
    host_work_fill(work, given->fill.buffer, given->fill.offset, given->fill.length, (uint8_t)given->fill.value);
    return true;
  case MPS_COMMAND_MATMUL:
    return false; /* see host_encode_matmul */
  default:
    return host_work_bind(work, given->dispatch, given->grid, given->group, true, scratch, HOST_SCRATCH_BYTES);
  }
}

static host_command *make_command(const mps_work *given) {
  switch (given->kind) {
  case MPS_COMMAND_COPY:
    return host_command_copy(given->copy.source, given->copy.source_offset, given->copy.target,
                             given->copy.target_offset, given->copy.length);
  case MPS_COMMAND_FILL:
    return host_command_fill(given->fill.buffer, given->fill.offset, given->fill.length, (uint8_t)given->fill.value);
  case MPS_COMMAND_MATMUL: {
    mps_matmul matmul = mps_matmul_complete(given->matmul);
    return host_command_matmul(&matmul);
  }
  default:
    return host_command_dispatch(given->dispatch, given->grid, given->group);
  }
}

static void trace_work(mps_traced *traced, mps_queue *queue, const mps_work *given) {
  switch (given->kind) {
  case MPS_COMMAND_COPY:
    mps_trace_copy(traced, queue, given->copy.source, given->copy.target, given->copy.length);
    break;
  case MPS_COMMAND_FILL:
    mps_trace_fill(traced, queue, given->fill.buffer, given->fill.length);
    break;
  case MPS_COMMAND_MATMUL:
    mps_trace_matmul(traced, queue, given->matmul);
    break;
  default:
    mps_trace_dispatch(traced, queue, given->dispatch, given->grid, given->group);
  }
}

/* With the lock held. true if it was run. */
static bool try_work_now(host_stream *stream, const mps_work *given, mps_traced *traced) {
  host_work work;
  _Alignas(16) char scratch[HOST_SCRATCH_BYTES];
  if (!is_free(stream) || !bind_work(&work, given, scratch) || !host_work_is_small(&work)) {
    return false;
  }
  run_now(stream, &work, traced);
  return true;
}

/* With the lock held. Once one of them cannot run here, those behind it cannot either. */
static mps_status encode_list(mps_queue *queue, const mps_work *works, uint32_t count) {
  host_stream *stream = queue->impl;
  uint32_t most = host_capture_is_on() ? 0 : INLINE_WORKS; /* see try_now */
  for (uint32_t i = 0; i < count; i++) {
    mps_traced traced;
    trace_work(&traced, queue, &works[i]);
    if (i >= most || !try_work_now(stream, &works[i], &traced)) {
      MPS_TRY(append(stream, make_command(&works[i]), &traced, "list of commands"));
    }
  }
  return MPS_STATUS_OK;
}

mps_status host_submit(mps_queue *queue, const mps_work *works, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (works[i].kind == MPS_COMMAND_DISPATCH) {
      MPS_TRY(check_volume(works[i].grid));
    }
  }
  host_stream *stream = queue->impl;
  pthread_mutex_lock(&stream->lock);
  mps_status status = encode_list(queue, works, count);
  commit(queue);
  wake_worker(stream);
  await_room(stream);
  pthread_mutex_unlock(&stream->lock);
  return status;
}

void host_queue_close(mps_queue *queue) {
  host_stream *stream = queue->impl;
  pthread_mutex_lock(&stream->lock);
  commit(queue);
  stream->closed = true;
  pthread_cond_signal(&stream->work);
  pthread_mutex_unlock(&stream->lock);
  host_stream_drop(stream);
}

/* ---- waiting ---- */

static bool is_complete(const host_stream *stream, uint64_t serial) {
  return atomic_load_explicit(&stream->completed, memory_order_acquire) >= serial;
}

static bool await_completion(host_stream *stream, uint64_t serial, uint64_t timeout) {
  uint64_t deadline = host_deadline(timeout);
  bool in_time = timeout > 0;
  for (int i = 0; i < HOST_YIELDS && in_time; i++) {
    if (is_complete(stream, serial)) {
      return true;
    }
    in_time = host_yield(deadline);
  }
  pthread_mutex_lock(&stream->lock);
  stream->done_sleepers++;
  while (!is_complete(stream, serial) && in_time) {
    in_time = host_cond_wait(&stream->done, &stream->lock, deadline);
  }
  stream->done_sleepers--;
  pthread_mutex_unlock(&stream->lock);
  return is_complete(stream, serial);
}

/* What surely ends in time runs on the thread that waits: that saves waking the worker and being woken by it. */
mps_status host_queue_wait(mps_queue *queue, uint64_t timeout) {
  host_stream *stream = queue->impl;
  pthread_mutex_lock(&stream->lock);
  uint64_t serial = commit(queue);
  host_command_buffer *buffer = host_stream_take(stream, timeout);
  if (!buffer) {
    wake_worker(stream);
  }
  pthread_mutex_unlock(&stream->lock);
  if (buffer) {
    host_stream_help(stream, buffer);
  }
  if (!is_complete(stream, serial)) {
    if (host_stream_is_self(stream)) {
      return mps_fail(MPS_STATUS_INVALID_STATE,
                      "queue '%s' cannot be waited for in one of its own handlers or callbacks: it goes on when they "
                      "return",
                      stream->label);
    }
    if (!await_completion(stream, serial, timeout)) {
      return mps_fail(MPS_STATUS_TIMEOUT,
                      "queue '%s' was not done within %" PRIu64 " ns: %" PRIu64 " command buffers are under way",
                      stream->label, timeout, atomic_load_explicit(&stream->in_flight, memory_order_relaxed));
    }
  }
  return host_failure_take(stream->failure);
}

bool host_queue_is_idle(mps_queue *queue) {
  const host_stream *stream = queue->impl;
  return atomic_load_explicit(&stream->encoded, memory_order_acquire) == 0 &&
         atomic_load_explicit(&stream->in_flight, memory_order_acquire) == 0;
}

mps_status host_queue_command_info(mps_queue *queue, uint64_t serial, mps_command_info *info) {
  host_stream *stream = queue->impl;
  pthread_mutex_lock(&stream->lock);
  host_record record = stream->records[serial % HOST_REMEMBERED];
  uint64_t last = stream->serial;
  pthread_mutex_unlock(&stream->lock);
  if (serial == 0 || record.serial != serial) {
    return mps_fail(MPS_STATUS_NOT_FOUND,
                    "queue '%s' knows nothing of command buffer %" PRIu64 ": its last one is %" PRIu64
                    ", and it remembers %d",
                    stream->label, serial, last, HOST_REMEMBERED);
  }
  info->serial = serial;
  info->start = record.start;
  info->end = record.end;
  info->status = record.failed ? MPS_STATUS_EXECUTION_FAILED : MPS_STATUS_OK;
  info->scheduled = record.scheduled;
  info->message = NULL;
  return MPS_STATUS_OK;
}
