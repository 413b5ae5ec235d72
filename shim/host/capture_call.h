/* What a command keeps for the capture that runs when it is encoded: its arguments as they were given. */
#ifndef MPS_HOST_CAPTURE_CALL_H
#define MPS_HOST_CAPTURE_CALL_H

#include "backend.h"

typedef enum host_call_kind { HOST_CALL_DISPATCH, HOST_CALL_COPY, HOST_CALL_FILL, HOST_CALL_MATMUL } host_call_kind;

/* A buffer that the command is given, and which of its contents it met and left. */
typedef struct host_call_buffer {
  mps_buffer *buffer;
  int64_t before, after; /* versions in the capture; negative if they could not be stored */
} host_call_buffer;

typedef struct host_call {
  host_call_kind kind;
  mps_pipeline *pipeline; /* DISPATCH */
  uint8_t value;          /* FILL */
  uint64_t length;        /* COPY, FILL: bytes */
  uint64_t grid[3], group[3];
  mps_matmul matmul;         /* MATMUL */
  uint32_t argument_count;   /* of COPY: source and target, of FILL: target, of MATMUL: left, right and result; each a
                                BUFFER argument */
  mps_argument *arguments;   /* what their `data` points to is the call's own */
  uint32_t buffer_count;     /* each once */
  host_call_buffer *buffers; /* the command holds them, as it does the pipeline */
} host_call;

/* NULL when there is no memory. To be freed by free(). */
host_call *host_call_dispatch(const mps_dispatch *dispatch, const uint32_t grid[3], const uint32_t group[3]);
host_call *host_call_copy(mps_buffer *source, uint64_t source_offset, mps_buffer *target, uint64_t target_offset,
                          uint64_t length);
host_call *host_call_fill(mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value);
host_call *host_call_matmul(const mps_matmul *matmul);

#endif
