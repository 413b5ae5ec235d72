/* Commands of the host device, from their encoding to their end. */
#ifndef MPS_HOST_COMMAND_H
#define MPS_HOST_COMMAND_H

#include "event.h"
#include "kernel.h"
#include "trace.h"

#include <stddef.h>

/* How long what a validated kernel is given is, by slot. */
typedef struct host_bounds {
  uint64_t buffers[MSLC_BUFFER_SLOTS];
  uint32_t threadgroup[MSLC_BUFFER_SLOTS];
  uint32_t table_entries[MSLC_BUFFER_SLOTS]; /* of a table of addresses */
  const uint64_t *tables[MSLC_BUFFER_SLOTS]; /* the length behind each of its addresses */
} host_bounds;

/* A run of a kernel. Copies and fills are runs of kernels too, of our own: so they share the threads, and a bad address
 * in memory that was taken over without a copy is a failure as in any kernel. */
typedef struct host_work {
  const mslc_kernel *kernel;
  const char *name;    /* of the pipeline; NULL for our own kernels */
  host_bounds *bounds; /* NULL if the kernel is not validated */
  uint64_t groups;     /* threadgroups, or pieces */
  uint64_t threads;    /* in all; bytes for our own kernels */
  mslc_launch launch;  /* of its slots, only those that the kernel has are set */
} host_work;

/* Room for what a launch points to when no command is made of it. */
#define HOST_SCRATCH_BYTES 1024

/* Bytes of storage that a launch needs. */
size_t host_work_storage(const mps_dispatch *dispatch);

/* Prepare a launch. Inline bytes and address tables go to `storage`, which is aligned to 16. With `borrow`, bytes that
 * the kernel only reads stay with the caller if they are aligned. false if `size` is too small. */
bool host_work_bind(host_work *work, const mps_dispatch *dispatch, const uint32_t grid[3], const uint32_t group[3],
                    bool borrow, char *storage, size_t size);
void host_work_copy(host_work *work, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                    uint64_t target_offset, uint64_t length);
void host_work_fill(host_work *work, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value);

/* Is it sure to end soon, so that a caller's thread may run it? */
bool host_work_is_small(const host_work *work);

/* Nanoseconds that it surely ends within; UINT64_MAX if nobody knows. */
uint64_t host_work_cost(const host_work *work);

/* Run it, with the pool's help if that pays. false and `fault` if it failed. */
bool host_work_run(const host_work *work, host_fault *fault);

/* "grid 1024 x 1 x 1, group 256 x 1 x 1", of a kernel that is not our own. */
void host_work_describe_size(const host_work *work, char *text, size_t size);

/* The same with its name, "kernel 'saxpy'; grid ...", or "copy of 100 bytes". */
void host_work_describe(const host_work *work, char *text, size_t size);

typedef enum host_command_kind {
  HOST_COMMAND_WORK,
  HOST_COMMAND_MATMUL,
  HOST_COMMAND_SIGNAL,
  HOST_COMMAND_WAIT,
  HOST_COMMAND_CALLBACK
} host_command_kind;

typedef struct host_command {
  struct host_command *next;
  host_command_kind kind;
  uint32_t buffer_count;
  mps_buffer **buffers;   /* in use until the command is freed */
  struct host_call *call; /* for the capture, owned; NULL without one: capture_call.h */
  mps_traced traced;
  union {
    struct {
      mps_event *event; /* held */
      uint64_t value;
    };
    struct {
      mps_callback_fn callback;
      void *user;
    };
    struct {
      mps_pipeline *pipeline; /* held; NULL for our own kernels */
      host_work work;
    };
    mps_matmul matmul;
  };
} host_command;

/* NULL when there is no memory. Each holds what it uses, and is counted as pending until it is freed. */
host_command *host_command_dispatch(const mps_dispatch *dispatch, const uint32_t grid[3], const uint32_t group[3]);
host_command *host_command_copy(mps_buffer *source, uint64_t source_offset, mps_buffer *target, uint64_t target_offset,
                                uint64_t length);
host_command *host_command_fill(mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value);
host_command *host_command_matmul(const mps_matmul *matmul);
host_command *host_command_event(host_command_kind kind, mps_event *event, uint64_t value);
host_command *host_command_callback(mps_callback_fn callback, void *user);
void host_command_free(host_command *command);

/* Nanoseconds that the thread that waits for it would run it for, at most; UINT64_MAX if it is not for that thread. */
uint64_t host_command_cost(const host_command *command);

#endif
