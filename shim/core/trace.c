#include "trace.h"

#include "check.h"
#include "signpost.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { DEFAULT_CAPACITY = 262144, MOST_CAPACITY = 1 << 24 };

static const uint32_t KNOWN_FLAGS = MPS_TRACE_COMMANDS | MPS_TRACE_WAITS | MPS_TRACE_BUFFERS | MPS_TRACE_ENCODED |
                                    MPS_TRACE_SIGNPOST_EVENTS | MPS_TRACE_SIGNPOST_INTERVALS |
                                    MPS_TRACE_SIGNPOST_ENCODED | MPS_TRACE_SIGNPOST_KERNELS |
                                    MPS_TRACE_SIGNPOST_COPIES | MPS_TRACE_SIGNPOST_FALLBACKS;

_Atomic uint32_t mps_trace_state;

/* ---- the ring: under its lock, which is held for moments ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mps_trace_record *ring; /* NULL before the first trace; kept after the last, for commands under way */
static uint32_t ring_capacity, first, filled;
static uint64_t dropped;

static void put(const mps_trace_record *record) {
  pthread_mutex_lock(&lock);
  if (filled == ring_capacity) {
    dropped++;
  } else {
    uint64_t place = (uint64_t)first + filled++;
    ring[place < ring_capacity ? place : place - ring_capacity] = *record;
  }
  pthread_mutex_unlock(&lock);
}

/* With the lock held. The memory is touched as it fills. */
static mps_status start(uint32_t capacity, uint32_t flags) {
  if (mps_trace_flags() != 0) {
    return mps_fail(MPS_STATUS_INVALID_STATE, "mps_trace_start: a trace is running: stop it first");
  }
  if (capacity != ring_capacity) {
    mps_trace_record *fresh = malloc(capacity * sizeof *fresh);
    if (fresh == NULL) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "mps_trace_start: no memory for %" PRIu32 " records of %zu bytes",
                      capacity, sizeof *fresh);
    }
    free(ring);
    ring = fresh;
    ring_capacity = capacity;
  }
  first = filled = 0;
  dropped = 0;
  atomic_store_explicit(&mps_trace_state, flags | MPS_TRACE_RUNNING, memory_order_relaxed);
  return MPS_STATUS_OK;
}

mps_status mps_trace_start(const mps_trace_desc *given) {
  MPS_TRY(mps_fork_check());
  mps_trace_desc desc;
  MPS_READ(mps_trace_desc, flags, &desc, given);
  if ((desc.flags & ~KNOWN_FLAGS) != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_trace_start: flags is 0x%" PRIx32 ", which has bits beside 0x%x",
                    desc.flags, KNOWN_FLAGS);
  }
  if (desc.capacity > MOST_CAPACITY) {
    return mps_fail(MPS_STATUS_LIMIT_EXCEEDED, "mps_trace_start: capacity is %" PRIu32 ", the limit is %d",
                    desc.capacity, MOST_CAPACITY);
  }
  mps_fork_guard();
  pthread_mutex_lock(&lock);
  mps_status status = start(desc.capacity != 0 ? desc.capacity : DEFAULT_CAPACITY, desc.flags);
  pthread_mutex_unlock(&lock);
  return status;
}

mps_status mps_trace_stop(void) {
  MPS_TRY(mps_fork_check());
  if (atomic_exchange_explicit(&mps_trace_state, 0, memory_order_relaxed) == 0) {
    return mps_fail(MPS_STATUS_INVALID_STATE, "mps_trace_stop: no trace is running");
  }
  return MPS_STATUS_OK;
}

mps_status mps_trace_read(void *records, size_t record_size, uint32_t capacity, uint32_t *out_count,
                          uint64_t *out_dropped) {
  MPS_TRY(mps_fork_check());
  MPS_REQUIRE(out_count);
  if (records == NULL && capacity > 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_trace_read: capacity is %" PRIu32 ", but records is NULL",
                    capacity);
  }
  if (record_size < MPS_SIZE_THROUGH(mps_trace_record, reserved)) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_trace_read: record_size is %zu, at least %zu is expected: give sizeof(mps_trace_record)",
                    record_size, MPS_SIZE_THROUGH(mps_trace_record, reserved));
  }
  size_t common = record_size < sizeof *ring ? record_size : sizeof *ring;
  pthread_mutex_lock(&lock);
  uint32_t count = filled < capacity ? filled : capacity;
  for (uint32_t i = 0; i < count; i++) {
    char *to = (char *)records + i * record_size;
    memcpy(to, &ring[first], common);
    memset(to + common, 0, record_size - common);
    first = first + 1 < ring_capacity ? first + 1 : 0;
  }
  filled -= count;
  if (out_dropped != NULL) {
    *out_dropped = dropped;
    dropped = 0;
  }
  pthread_mutex_unlock(&lock);
  *out_count = count;
  return MPS_STATUS_OK;
}

/* ---- who ---- */

static uint64_t thread_number(void) {
  static _Thread_local uint64_t number;
  if (number == 0) {
#if defined(__APPLE__)
    pthread_threadid_np(NULL, &number);
#elif defined(__linux__)
    number = (uint64_t)syscall(SYS_gettid);
#else
    number = (uint64_t)(uintptr_t)pthread_self();
#endif
  }
  return number;
}

uint64_t mps_trace_next_id(void) {
  static _Atomic uint64_t last;
  return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

/* ---- signposts of commands and fallbacks ---- */

/* 0 for one that has none. */
static uint32_t signpost_type(const mps_traced *traced) {
  switch (traced->record.kind) {
  case MPS_TRACE_DISPATCH:
  case MPS_TRACE_MATMUL:
    return (traced->signposts & MPS_TRACE_SIGNPOST_KERNELS) != 0 ? MPS_SIGNPOST_KERNELS : 0;
  case MPS_TRACE_COPY:
  case MPS_TRACE_FILL:
    return (traced->signposts & MPS_TRACE_SIGNPOST_COPIES) != 0 ? MPS_SIGNPOST_COPIES : 0;
  case MPS_TRACE_FALLBACK:
    return (traced->signposts & MPS_TRACE_SIGNPOST_FALLBACKS) != 0 ? MPS_SIGNPOST_FALLBACKS : 0;
  default:
    return 0;
  }
}

static void describe(const mps_traced *traced, char *text, size_t size) {
  const mps_trace_record *record = &traced->record;
  uint64_t runs = atomic_load_explicit(&traced->name->runs, memory_order_relaxed);
  if (record->kind == MPS_TRACE_COPY || record->kind == MPS_TRACE_FILL) {
    snprintf(text, size, "Blit: %s, length=%" PRIu64 ", run=%" PRIu64, record->name, record->bytes, runs);
  } else if (record->kind == MPS_TRACE_FALLBACK) {
    snprintf(text, size, "mps::%.128s (id=C%u, run=%" PRIu64 ")", record->name, traced->name->number, runs);
  } else {
    snprintf(text, size, "mps::%.128s:[%u, %u, %u] (id=K%u, run=%" PRIu64 ")", record->name, record->grid[0],
             record->grid[1], record->grid[2], traced->name->number, runs);
  }
}

static void open_interval(mps_traced *traced) {
  uint32_t type = signpost_type(traced);
  if (type != 0 && (traced->signposts & MPS_TRACE_SIGNPOST_INTERVALS) != 0 && !traced->interval_is_open) {
    char text[256];
    describe(traced, text, sizeof text);
    mps_signpost_emit_begin(type | MPS_SIGNPOST_INTERVALS, text, traced->record.id);
    traced->interval_is_open = true;
  }
}

static void emit_end(mps_traced *traced) {
  uint32_t type = signpost_type(traced);
  bool event = type != 0 && (traced->signposts & MPS_TRACE_SIGNPOST_EVENTS) != 0;
  if (!event && !traced->interval_is_open) {
    return;
  }
  const mps_trace_record *record = &traced->record;
  char text[384];
  describe(traced, text, sizeof text);
  size_t length = strlen(text);
  double cpu = (double)(record->end - record->encoded) / 1e6;
  if (record->kind == MPS_TRACE_FALLBACK) {
    snprintf(text + length, sizeof text - length, ", cpu=%.3f ms", cpu);
  } else {
    snprintf(text + length, sizeof text - length, ", gpu=%.3f ms, cpu=%.3f ms",
             (double)(record->end - record->start) / 1e6, cpu);
  }
  if (event) {
    mps_signpost_emit_event(type | MPS_SIGNPOST_EVENTS, text);
  }
  if (traced->interval_is_open) {
    mps_signpost_emit_end(type | MPS_SIGNPOST_INTERVALS, text, record->id);
  }
}

/* ---- commands ---- */

static void encode(mps_traced *traced, mps_queue *queue, mps_trace_kind kind, mps_trace_name *name) {
  uint32_t flags = mps_trace_flags();
  *traced = (mps_traced){
      .record =
          {
              .kind = kind,
              .id = mps_trace_next_id(),
              .thread = thread_number(),
              .queue = queue->number,
              .queue_name = mps_trace_name_kept(&queue->trace_name, queue->label)->text,
              .name = name->text,
              .encoded = mps_now(),
              .together = 1,
          },
      .name = name,
      .signposts = flags,
  };
  atomic_fetch_add_explicit(&name->runs, 1, memory_order_relaxed);
}

static void encoded(mps_traced *traced) {
  if ((traced->signposts & MPS_TRACE_ENCODED) != 0) {
    put(&traced->record);
  }
  if ((traced->signposts & MPS_TRACE_SIGNPOST_ENCODED) != 0) {
    open_interval(traced);
  }
}

static void put_buffer(const mps_traced *traced, const mps_buffer *buffer, uint64_t offset, uint32_t slot) {
  if ((traced->signposts & MPS_TRACE_BUFFERS) == 0) {
    return;
  }
  mps_trace_record record = traced->record;
  record.kind = MPS_TRACE_ARGUMENT;
  record.name = mps_trace_name_of(buffer->label != NULL ? buffer->label : "")->text;
  record.bytes = buffer->length - offset;
  record.serial = slot;
  record.grid[0] = atomic_load_explicit(&buffer->object.references, memory_order_relaxed);
  record.object = (uintptr_t)buffer;
  put(&record);
}

static void put_buffers(const mps_traced *traced, const mps_dispatch *dispatch) {
  for (uint32_t i = 0; i < dispatch->argument_count; i++) {
    const mps_argument *argument = &dispatch->arguments[i];
    if (argument->kind == MPS_ARGUMENT_BUFFER) {
      put_buffer(traced, argument->buffer, argument->offset, argument->index);
    } else if (argument->kind == MPS_ARGUMENT_ADDRESSES) {
      const mps_address *addresses = argument->data;
      for (uint64_t n = 0; n < argument->length; n++) {
        if (addresses[n].buffer != NULL) {
          put_buffer(traced, addresses[n].buffer, addresses[n].offset, argument->index);
        }
      }
    }
  }
}

void mps_trace_encode_dispatch(mps_traced *traced, mps_queue *queue, const mps_dispatch *dispatch,
                               const uint32_t grid[3], const uint32_t group[3]) {
  mps_pipeline *pipeline = dispatch->pipeline;
  encode(traced, queue, MPS_TRACE_DISPATCH, mps_trace_name_kept(&pipeline->trace_name, pipeline->label));
  memcpy(traced->record.grid, grid, sizeof traced->record.grid);
  memcpy(traced->record.group, group, sizeof traced->record.group);
  if ((traced->signposts & MPS_TRACE_BUFFERS) != 0) {
    put_buffers(traced, dispatch);
  }
  encoded(traced);
}

static mps_trace_name *name_of_kind(mps_trace_kind kind) {
  static _Atomic(mps_trace_name *) names[MPS_TRACE_COMMAND_BUFFER + 1];
  static const char *const texts[MPS_TRACE_COMMAND_BUFFER + 1] = {[MPS_TRACE_COPY] = "copy",
                                                                  [MPS_TRACE_FILL] = "fill",
                                                                  [MPS_TRACE_MATMUL] = "matmul",
                                                                  [MPS_TRACE_SIGNAL] = "signal",
                                                                  [MPS_TRACE_WAIT] = "wait",
                                                                  [MPS_TRACE_CALLBACK] = "callback",
                                                                  [MPS_TRACE_COMMAND_BUFFER] = "command buffer"};
  return mps_trace_name_kept(&names[kind], texts[kind]);
}

void mps_trace_encode_matmul(mps_traced *traced, mps_queue *queue, const mps_matmul *matmul) {
  encode(traced, queue, MPS_TRACE_MATMUL, name_of_kind(MPS_TRACE_MATMUL));
  traced->record.grid[0] = (uint32_t)matmul->result.columns;
  traced->record.grid[1] = (uint32_t)matmul->result.rows;
  traced->record.grid[2] = matmul->count < UINT32_MAX ? (uint32_t)matmul->count : UINT32_MAX;
  const mps_matrix *matrices[] = {&matmul->left, &matmul->right, &matmul->result};
  for (uint32_t i = 0; i < 3; i++) {
    put_buffer(traced, matrices[i]->buffer, matrices[i]->offset, i);
  }
  encoded(traced);
}

void mps_trace_encode_copy(mps_traced *traced, mps_queue *queue, mps_buffer *source, mps_buffer *target,
                           uint64_t bytes) {
  encode(traced, queue, MPS_TRACE_COPY, name_of_kind(MPS_TRACE_COPY));
  traced->record.bytes = bytes;
  traced->record.grid[0] = source->storage_mode;
  traced->record.grid[1] = target->storage_mode;
  put_buffer(traced, source, 0, 0);
  put_buffer(traced, target, 0, 1);
  encoded(traced);
}

void mps_trace_encode_fill(mps_traced *traced, mps_queue *queue, mps_buffer *buffer, uint64_t bytes) {
  encode(traced, queue, MPS_TRACE_FILL, name_of_kind(MPS_TRACE_FILL));
  traced->record.bytes = bytes;
  put_buffer(traced, buffer, 0, 0);
  encoded(traced);
}

void mps_trace_encode(mps_traced *traced, mps_queue *queue, mps_trace_kind kind, uint64_t bytes) {
  encode(traced, queue, kind, name_of_kind(kind));
  traced->record.bytes = bytes;
  if (kind != MPS_TRACE_COMMAND_BUFFER) {
    encoded(traced);
  }
}

void mps_trace_begin(mps_traced *traced) {
  if (traced->record.kind != 0) {
    open_interval(traced);
  }
}

void mps_trace_end(mps_traced *traced, uint64_t start_time, uint64_t end_time, mps_status status) {
  if (traced->record.kind == 0) {
    return;
  }
  traced->record.start = start_time;
  traced->record.end = end_time;
  traced->record.status = status;
  open_interval(traced); /* if it ended before anyone could say that it began */
  emit_end(traced);
  put(&traced->record);
}

/* ---- all else ---- */

static mps_trace_record record_of(mps_trace_kind kind, const char *name) {
  uint64_t now = mps_now();
  return (mps_trace_record){.kind = kind,
                            .id = mps_trace_next_id(),
                            .thread = thread_number(),
                            .queue_name = "",
                            .name = mps_trace_name_of(name != NULL ? name : "")->text,
                            .encoded = now,
                            .start = now,
                            .end = now,
                            .together = 1};
}

void mps_trace_call(mps_trace_kind kind, const char *name, uint64_t start_time, mps_status status) {
  if (start_time != 0) {
    mps_trace_record record = record_of(kind, name);
    record.status = status;
    record.encoded = record.start = start_time;
    put(&record);
  }
}

void mps_trace_memory_event(mps_trace_kind kind, const void *object, const char *label, uint64_t bytes) {
  mps_trace_record record = record_of(kind, label);
  record.bytes = bytes;
  record.object = (uintptr_t)object;
  put(&record);
}

void mps_trace_open_range(mps_traced *traced, mps_trace_kind kind, const char *name) {
  *traced = (mps_traced){0};
  uint32_t flags = mps_trace_flags();
  if (flags == 0) {
    return;
  }
  traced->record = record_of(kind, name);
  if (kind == MPS_TRACE_FALLBACK) {
    traced->name = mps_trace_name_of(name);
    traced->signposts = flags;
    atomic_fetch_add_explicit(&traced->name->runs, 1, memory_order_relaxed);
    open_interval(traced);
  }
}

void mps_trace_close_range(mps_traced *traced) {
  if (traced->record.kind != 0) {
    if (traced->record.kind != MPS_TRACE_MARK) {
      traced->record.end = mps_now();
    }
    emit_end(traced);
    put(&traced->record);
  }
}
