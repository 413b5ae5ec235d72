/* Queues: ordered streams of commands. */
#ifndef MPS_HOST_QUEUE_H
#define MPS_HOST_QUEUE_H

#include "backend.h"

mps_status host_queue_open(mps_queue *queue);
void host_queue_close(mps_queue *queue);
mps_status host_encode_dispatch(mps_queue *queue, const mps_dispatch *dispatch, const uint32_t grid[3],
                                const uint32_t group[3]);
mps_status host_encode_copy(mps_queue *queue, mps_buffer *source, uint64_t source_offset, mps_buffer *target,
                            uint64_t target_offset, uint64_t length);
mps_status host_encode_fill(mps_queue *queue, mps_buffer *buffer, uint64_t offset, uint64_t length, uint8_t value);
mps_status host_submit(mps_queue *queue, const mps_work *works, uint32_t count);
mps_status host_encode_matmul(mps_queue *queue, const mps_matmul *matmul);
mps_status host_encode_signal(mps_queue *queue, mps_event *event, uint64_t value);
mps_status host_encode_wait(mps_queue *queue, mps_event *event, uint64_t value);
mps_status host_encode_callback(mps_queue *queue, mps_callback_fn callback, void *user);
mps_status host_add_handler(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user);
mps_status host_commit(mps_queue *queue, uint64_t *serial);
mps_status host_queue_wait(mps_queue *queue, uint64_t timeout);
bool host_queue_is_idle(mps_queue *queue);
mps_status host_queue_command_info(mps_queue *queue, uint64_t serial, mps_command_info *info);

#endif
