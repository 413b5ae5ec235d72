/* A queue, and the segments that its commands are cut into.
 *
 * A segment is one MTLCommandBuffer. A command buffer of the public interface, which has a serial and handlers, is one
 * segment or several: a segment also ends at a signal, so that its end is the signal's time, and after some operations,
 * so that the GPU starts before the caller commits.
 *
 * Two locks. `encoding` is held while Metal is told what to do, which may block until the GPU is done with older work.
 * `progress` is held for moments only, by whoever looks at work under way; nothing is called with it held. */
#ifndef MPS_METAL_QUEUE_H
#define MPS_METAL_QUEUE_H

#include "failure.h"
#include "metal.h"
#include "trace.h"

#include <pthread.h>

typedef struct metal_queue metal_queue;
typedef struct metal_segment metal_segment;

typedef struct metal_handler {
  struct metal_handler *next;
  mps_handler_kind kind;
  mps_handler_fn call;
  void *user;
} metal_handler;

/* Something that a segment keeps alive until it is complete. Metal does not: its command buffers retain nothing. */
typedef enum metal_hold_kind {
  METAL_HOLD_BUFFER,
  METAL_HOLD_PIPELINE,
  METAL_HOLD_EVENT,
  METAL_HOLD_NATIVE
} metal_hold_kind;

typedef struct metal_hold {
  metal_hold_kind kind;
  void *object;
  uint64_t value; /* that an event is waited for */
} metal_hold;

struct metal_segment {
  metal_segment *next; /* the one that was submitted after it */
  metal_queue *queue;  /* held */
  id<MTLCommandBuffer> commands;
  uint64_t number; /* 1 for a queue's first segment, then counting up */
  uint64_t serial; /* of the command buffer that it belongs to */
  uint32_t operations;
  metal_hold *holds;
  size_t hold_count, hold_room;
  mps_traced *traced; /* those of its commands that are traced, in order */
  size_t traced_count, traced_room;
  mps_traced traced_whole;    /* the segment itself */
  mps_traced traced_callback; /* the callback below */
  mps_event *event;           /* signalled at the end, or NULL; held */
  uint64_t event_value;
  /* Made on the queue's handler thread: handlers of the command buffer that ends here, and a callback in its place
   * among the commands, which the next segment waits for. */
  metal_handler *handlers;
  mps_callback_fn callback;
  void *callback_user;
  uint64_t resume_value;
  bool scheduled_called; /* on the handler thread only */
  /* With the queue's progress lock. */
  bool complete;
  bool calls_posted, calls_made;
};

#define METAL_BLIT_LABEL "copy or fill" /* of what runs no kernel of the caller's */

enum { METAL_REMEMBERED = 64 }; /* command buffers whose times a queue keeps */

typedef struct metal_queue_waiter {
  struct metal_queue_waiter *next;
  uint64_t number; /* the last segment that is waited for */
  dispatch_semaphore_t wake;
} metal_queue_waiter;

struct metal_queue {
  _Atomic uint32_t references; /* the handle's, and one of each segment */
  mps_queue *handle;           /* borrowed: valid as long as anything can be encoded */
  id<MTLDevice> gpu;           /* of the handle's device, which outlives the queue */
  id<MTLCommandQueue> commands;
  MTLCommandBufferDescriptor *descriptor;
  id log_state;              /* of a queue that runs kernels that log; nil before macOS 15 */
  id<MTLFence> fence;        /* orders the encoders of this queue, whatever Metal tracks */
  id<MTLSharedEvent> resume; /* signalled when a callback has returned */
  dispatch_queue_t handler_queue;
  uint32_t max_in_flight;
  metal_failure *failure;
  NSString *label;

  pthread_mutex_t encoding;
  metal_segment *open;
  id<MTLComputeCommandEncoder> compute; /* at most one of these two is open */
  id<MTLBlitCommandEncoder> blit;
  id<MTLComputePipelineState> bound; /* by the open compute encoder; borrowed */
  char kernels[256];                 /* names of all that the open encoder runs */
  bool fence_updated;
  uint64_t segment_number;
  uint64_t serial;         /* of the command buffer being encoded, or of the last one */
  metal_handler *handlers; /* of the command buffer being encoded, the first one first */
  uint64_t resume_value;   /* of the last callback or barrier */
  bool resume_pending;     /* the next segment waits for it */

  pthread_mutex_t progress;
  bool begun;                  /* commands were encoded since the last commit; changed with both locks */
  metal_segment *first, *last; /* submitted, and not done with */
  uint64_t submitted, retired; /* numbers of segments */
  bool stalled;                /* nothing was retired for so long that commits no longer wait for it */
  uint64_t committed;          /* the last serial that was committed */
  metal_queue_waiter *waiters;
  mps_command_info infos[METAL_REMEMBERED];
  uint64_t failed_serial; /* of the last command buffer that failed, and why */
  char failed_text[METAL_FAILURE_BYTES];
};

void metal_queue_ref(metal_queue *queue);
void metal_queue_unref(metal_queue *queue);

/* The info of a serial, whether committed or not. With the progress lock. */
static inline mps_command_info *metal_queue_info(metal_queue *queue, uint64_t serial) {
  return &queue->infos[serial % METAL_REMEMBERED];
}

/* ---- segment.m: with the encoding lock held, except where it says otherwise ---- */

/* The open segment; a new one if there is none. */
mps_status metal_segment_open(metal_queue *queue, metal_segment **out_segment);

/* Make sure that `count` more things can be held. */
mps_status metal_segment_reserve(metal_segment *segment, size_t count);

/* Keep something alive, for which room was reserved. */
void metal_segment_hold_buffer(metal_segment *segment, mps_buffer *buffer);
void metal_segment_hold_pipeline(metal_segment *segment, mps_pipeline *pipeline);
void metal_segment_hold_event(metal_segment *segment, mps_event *event, uint64_t value);
void metal_segment_hold_native(metal_segment *segment, id object);

/* The open encoder of a kind, which ends the other one; nil with an error set if Metal gives none. */
id<MTLComputeCommandEncoder> metal_compute_encoder(metal_queue *queue);
id<MTLBlitCommandEncoder> metal_blit_encoder(metal_queue *queue);
void metal_end_encoder(metal_queue *queue);

/* Order what the system's libraries encode, which know nothing of the queue's fence, behind all that was encoded
 * before; and what is encoded later behind them. */
void metal_segment_barrier(metal_queue *queue);

/* An operation was encoded into the open segment. */
void metal_segment_count(metal_queue *queue);

/* Keep what a trace wants to know of it, copied. */
void metal_segment_trace(metal_segment *segment, const mps_traced *traced);

/* Submit the open segment if it has as many operations as one should. */
void metal_segment_bound(metal_queue *queue);

/* Submit the open segment. */
void metal_segment_submit(metal_queue *queue);

/* ---- queue.m ---- */

/* Something belongs to the command buffer that is being encoded: give it a serial if it has none. With the encoding
 * lock. */
void metal_queue_begin_command(metal_queue *queue);

/* End the command buffer that is being encoded. With the encoding lock. */
mps_status metal_queue_close_command(metal_queue *queue);

/* Wait until no more are in flight than may be, or until patience ends. Without the encoding lock. */
void metal_queue_hold_back(metal_queue *queue);

/* The queue whose handler or callback the calling thread runs, or NULL. */
extern _Thread_local metal_queue *metal_queue_calling;

mps_status metal_queue_open(mps_queue *queue);
void metal_queue_close(mps_queue *queue);
mps_status metal_add_handler(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user);
mps_status metal_commit(mps_queue *queue, uint64_t *serial);
mps_status metal_queue_wait(mps_queue *queue, uint64_t timeout);
bool metal_queue_is_idle(mps_queue *queue);
mps_status metal_queue_command_info(mps_queue *queue, uint64_t serial, mps_command_info *info);

/* ---- command.m ---- */

mps_status metal_encode_dispatch(mps_queue *queue, const mps_dispatch *dispatch, const uint32_t grid[3],
                                 const uint32_t group[3]);
mps_status metal_encode_copy(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                             uint64_t target_offset, uint64_t length);
mps_status metal_encode_fill(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value);
mps_status metal_submit(mps_queue *queue, const mps_work *works, uint32_t count);
mps_status metal_check_matmul(const mps_device *device, const mps_matmul *matmul);
mps_status metal_encode_matmul_locked(metal_queue *queue, const mps_device *device, const mps_matmul *matmul);
mps_status metal_encode_matmul(mps_queue *queue, const mps_matmul *matmul); /* matmul.m */
mps_status metal_encode_signal(mps_queue *queue, mps_event *event, uint64_t value);
mps_status metal_encode_wait(mps_queue *queue, mps_event *event, uint64_t value);
mps_status metal_encode_callback(mps_queue *queue, mps_callback_fn callback, void *user);

/* ---- log.m ---- */

/* Before a command buffer is made: give the queue a log state if kernels may log. */
void metal_log_attach(metal_queue *queue);

#endif
