/* The trace: what each command carries from its encoding to its end, and the ring that it ends in.
 *
 * Without a trace a command pays for one load. With one it is described where it is encoded, by the functions that take
 * an mps_traced, which the backend keeps with the command and hands back when it is done. */
#ifndef MPS_CORE_TRACE_H
#define MPS_CORE_TRACE_H

#include "now.h"
#include "object.h"

/* MPS_TRACE_* of the trace that runs, and this bit; 0 without one. */
#define MPS_TRACE_RUNNING 0x80000000u
extern _Atomic uint32_t mps_trace_state;

static inline uint32_t mps_trace_flags(void) {
  return atomic_load_explicit(&mps_trace_state, memory_order_relaxed);
}

/* A command, or a range, on its way. record.kind is 0 if it is not traced. */
typedef struct mps_traced {
  mps_trace_record record;
  mps_trace_name *name;  /* of record.name, which counts its runs */
  uint32_t signposts;    /* flags at the time of encoding */
  bool interval_is_open; /* an interval of signposts was begun */
} mps_traced;

/* ---- commands: the backend's way through their life ---- */

void mps_trace_encode_dispatch(mps_traced *traced, mps_queue *queue, const mps_dispatch *dispatch,
                               const uint32_t grid[3], const uint32_t group[3]);
void mps_trace_encode_matmul(mps_traced *traced, mps_queue *queue, const mps_matmul *matmul);
void mps_trace_encode_copy(mps_traced *traced, mps_queue *queue, mps_buffer *source, mps_buffer *target,
                           uint64_t bytes);
void mps_trace_encode_fill(mps_traced *traced, mps_queue *queue, mps_buffer *buffer, uint64_t bytes);
void mps_trace_encode(mps_traced *traced, mps_queue *queue, mps_trace_kind kind, uint64_t bytes);

static inline void mps_trace_dispatch(mps_traced *traced, mps_queue *queue, const mps_dispatch *dispatch,
                                      const uint32_t grid[3], const uint32_t group[3]) {
  traced->record.kind = 0;
  if (mps_trace_flags() != 0) {
    mps_trace_encode_dispatch(traced, queue, dispatch, grid, group);
  }
}

static inline void mps_trace_matmul(mps_traced *traced, mps_queue *queue, const mps_matmul *matmul) {
  traced->record.kind = 0;
  if (mps_trace_flags() != 0) {
    mps_trace_encode_matmul(traced, queue, matmul);
  }
}

/* `bytes`: the value of a signal or wait. */
static inline void mps_trace_command(mps_traced *traced, mps_queue *queue, mps_trace_kind kind, uint64_t bytes) {
  traced->record.kind = 0;
  if (mps_trace_flags() != 0) {
    mps_trace_encode(traced, queue, kind, bytes);
  }
}

static inline void mps_trace_copy(mps_traced *traced, mps_queue *queue, mps_buffer *source, mps_buffer *target,
                                  uint64_t bytes) {
  traced->record.kind = 0;
  if (mps_trace_flags() != 0) {
    mps_trace_encode_copy(traced, queue, source, target, bytes);
  }
}

static inline void mps_trace_fill(mps_traced *traced, mps_queue *queue, mps_buffer *buffer, uint64_t bytes) {
  traced->record.kind = 0;
  if (mps_trace_flags() != 0) {
    mps_trace_encode_fill(traced, queue, buffer, bytes);
  }
}

/* The device begins it; not needed before mps_trace_end. */
void mps_trace_begin(mps_traced *traced);

/* The device is done with it, or could not even begin: then both times are that of giving up. */
void mps_trace_end(mps_traced *traced, uint64_t start, uint64_t end, mps_status status);

/* ---- all else ---- */

/* The start of something that the caller waits for; 0 without a trace. */
static inline uint64_t mps_trace_start_time(void) {
  return mps_trace_flags() != 0 ? mps_now() : 0;
}

/* The end of it: recorded if `start` is not 0. */
void mps_trace_call(mps_trace_kind kind, const char *name, uint64_t start, mps_status status);

/* A heap or buffer is made or given back. */
void mps_trace_memory_event(mps_trace_kind kind, const void *object, const char *label, uint64_t bytes);

static inline void mps_trace_memory(mps_trace_kind kind, const void *object, const char *label, uint64_t bytes) {
  if (mps_trace_flags() != 0) {
    mps_trace_memory_event(kind, object, label, bytes);
  }
}

/* What signposts mark. The record is filled in by the first and put into the ring by the second, which also mark a
 * fallback if the trace asks for it. */
void mps_trace_open_range(mps_traced *traced, mps_trace_kind kind, const char *name);
void mps_trace_close_range(mps_traced *traced);

/* The next of the numbers that tell commands and signposts apart. */
uint64_t mps_trace_next_id(void);

/* ---- trace_names.c ---- */

/* A text that lives as long as the library, the same for equal texts. */
struct mps_trace_name {
  mps_trace_name *next;
  uint64_t hash;
  uint32_t number;       /* counted from 1 */
  _Atomic uint64_t runs; /* commands of that name that were traced */
  const char *text;
};

/* Never NULL: "?" when there is no memory, or when a program has made too many names. */
mps_trace_name *mps_trace_name_of(const char *text);

/* The same, looked for only once. */
mps_trace_name *mps_trace_name_kept(_Atomic(mps_trace_name *) *kept, const char *text);

#endif
