#include "backend.h"
#include "check.h"
#include "log.h"

#include <stdlib.h>

enum { DEFAULT_COMMAND_BUFFERS = 64 };

mps_status mps_queue_create(mps_device *device, const mps_queue_desc *given, mps_queue **out_queue) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_queue);
  mps_queue_desc desc;
  MPS_READ(mps_queue_desc, max_command_buffers, &desc, given);
  if (desc.reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_queue_create: the reserved field must be 0");
  }
  mps_queue *queue = mps_object_new(MPS_KIND_QUEUE, sizeof *queue);
  if (queue == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  static _Atomic uint64_t queues;
  queue->number = atomic_fetch_add_explicit(&queues, 1, memory_order_relaxed) + 1;
  queue->device = device;
  queue->max_command_buffers = desc.max_command_buffers != 0 ? desc.max_command_buffers : DEFAULT_COMMAND_BUFFERS;
  queue->label = mps_text_copy(desc.label != NULL ? desc.label : "queue");
  mps_status status = queue->label != NULL ? device->backend->queue_open(queue)
                                           : mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for the label of a queue");
  if (status != MPS_STATUS_OK) {
    free(queue->label);
    mps_object_free(queue, MPS_KIND_QUEUE);
    return status;
  }
  mps_device_hold(device);
  *out_queue = queue;
  return MPS_STATUS_OK;
}

mps_status mps_queue_retain(mps_queue *queue) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  mps_object_retain(queue, MPS_KIND_QUEUE);
  return MPS_STATUS_OK;
}

mps_status mps_queue_release(mps_queue *queue) {
  if (queue == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  if (!mps_object_release(queue, MPS_KIND_QUEUE)) {
    return MPS_STATUS_OK;
  }
  /* Here and not in queue_close: something else may hold the queue, and nobody could commit any more. */
  uint64_t serial;
  mps_status status = queue->device->backend->commit(queue, &serial);
  mps_queue_drop(queue);
  return status;
}

void mps_queue_hold(mps_queue *queue) {
  mps_object_hold(queue);
}

void mps_queue_drop(mps_queue *queue) {
  if (!mps_object_drop(queue)) {
    return;
  }
  mps_device *device = queue->device;
  device->backend->queue_close(queue);
  free(queue->label);
  mps_object_free(queue, MPS_KIND_QUEUE);
  mps_device_drop(device);
}

mps_status mps_queue_commit(mps_queue *queue, uint64_t *out_serial) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  uint64_t serial;
  MPS_TRY(queue->device->backend->commit(queue, &serial));
  if (out_serial != NULL) {
    *out_serial = serial;
  }
  return MPS_STATUS_OK;
}

mps_status mps_queue_wait(mps_queue *queue, uint64_t timeout) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_TRY(mps_log_check_wait(__func__));
  mps_status status = queue->device->backend->queue_wait(queue, timeout);
  mps_log_flush();
  return status;
}

mps_status mps_queue_is_idle(mps_queue *queue, uint32_t *out_idle) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_REQUIRE(out_idle);
  *out_idle = queue->device->backend->queue_is_idle(queue);
  return MPS_STATUS_OK;
}

mps_status mps_queue_add_handler(mps_queue *queue, mps_handler_kind kind, mps_handler_fn handler, void *user) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_REQUIRE(handler);
  if (kind != MPS_HANDLER_SCHEDULED && kind != MPS_HANDLER_COMPLETED) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "mps_queue_add_handler: kind is %d, not MPS_HANDLER_SCHEDULED (1) or MPS_HANDLER_COMPLETED (2)",
                    (int)kind);
  }
  return queue->device->backend->add_handler(queue, kind, handler, user);
}

mps_status mps_queue_callback(mps_queue *queue, mps_callback_fn callback, void *user) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_REQUIRE(callback);
  return queue->device->backend->encode_callback(queue, callback, user);
}

mps_status mps_queue_get_command_info(mps_queue *queue, uint64_t serial, mps_command_info *info) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_CHECK_RESULT(mps_command_info, message, info);
  mps_command_info result = {.struct_size = sizeof result};
  MPS_TRY(queue->device->backend->queue_command_info(queue, serial, &result));
  result.message = NULL;
  mps_struct_write(info, &result, sizeof result);
  return MPS_STATUS_OK;
}
