/* What is behind a queue of the host device: the part that queue.c (the callers' side) and stream.c (the thread that
 * runs what callers do not run themselves) share. */
#ifndef MPS_HOST_STREAM_H
#define MPS_HOST_STREAM_H

#include "command.h"
#include "failure.h"

#include <pthread.h>

#define HOST_FAILURE_BYTES 768
#define HOST_REMEMBERED 64 /* command buffers whose times and status a queue keeps */

typedef struct host_handler {
  struct host_handler *next;
  mps_handler_kind kind;
  mps_handler_fn handler;
  void *user;
} host_handler;

/* What became of a command buffer. */
typedef struct host_record {
  uint64_t serial; /* 0 in a place that was never used */
  uint64_t start;  /* 0 before its first command */
  uint64_t end;    /* 0 before all are complete */
  bool scheduled;
  bool failed;
} host_record;

/* A command buffer with something left to run when it is committed. */
typedef struct host_command_buffer {
  struct host_command_buffer *next;
  host_record record;
  mps_traced traced; /* at its commit */
  host_command *commands, **commands_end;
  host_handler *handlers, **handlers_end;
  uint64_t cost;                    /* nanoseconds that a thread that waits for it would run it for, at most */
  char failure[HOST_FAILURE_BYTES]; /* "" or of the command that failed */
} host_command_buffer;

typedef struct host_stream {
  _Atomic uint32_t references; /* of the mps_queue and of the worker */
  uint32_t max_in_flight;
  char *label;
  host_failure *failure;
  pthread_mutex_t lock; /* for all that follows; those that are atomic are read without it */
  pthread_cond_t work;  /* the worker has something to do */
  pthread_cond_t done;  /* a command buffer is complete */
  bool has_worker;
  bool worker_sleeps;
  bool has_helper; /* a thread that waits runs a command buffer in the worker's place */
  bool closed;
  bool stalled; /* nothing has been completed for so long that commits no longer wait for it */
  uint32_t done_sleepers;

  /* The command buffer being encoded. As long as the queue has nothing else to do, small commands run as they are
   * encoded, and it is no more than this record; `open` comes with the first command that cannot. */
  host_record encoding;
  char encoding_failure[HOST_FAILURE_BYTES]; /* of a command that failed, if the record says so */
  _Atomic uint64_t encoded;                  /* commands and handlers in it, also those that have run */
  host_command_buffer *open;

  uint64_t serial; /* of the last commit */
  host_command_buffer *committed, **committed_end;
  _Atomic uint64_t in_flight;
  _Atomic uint64_t completed; /* serial up to which all are complete */
  host_record records[HOST_REMEMBERED];
} host_stream;

void host_stream_drop(host_stream *stream);

/* Run work from the calling thread; if it fails, write why to `failure` and leave it for the next wait. */
bool host_stream_run(host_stream *stream, const host_work *work, struct host_call *call, mps_traced *traced,
                     char failure[HOST_FAILURE_BYTES]);

/* With the lock held: the one command buffer that is under way, if it has not begun and surely takes no longer than
 * `timeout`. The caller runs it in the worker's place, by host_stream_help without the lock. Else NULL. */
host_command_buffer *host_stream_take(host_stream *stream, uint64_t timeout);
void host_stream_help(host_stream *stream, host_command_buffer *buffer);

/* Start the stream's worker if it has none: 0 or an errno. The lock is held. */
int host_stream_start(host_stream *stream);

/* Is the calling thread the stream's worker, or in its place: in a handler, a callback or a function for products? */
bool host_stream_is_self(const host_stream *stream);

#endif
