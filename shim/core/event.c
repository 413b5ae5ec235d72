#include "backend.h"
#include "check.h"
#include "log.h"

mps_status mps_event_create(mps_device *device, mps_event **out_event) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_event);
  mps_event *event = mps_object_new(MPS_KIND_EVENT, sizeof *event);
  if (event == NULL) {
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  event->device = device;
  mps_status status = device->backend->event_open(event);
  if (status != MPS_STATUS_OK) {
    mps_object_free(event, MPS_KIND_EVENT);
    return status;
  }
  mps_device_hold(device);
  *out_event = event;
  return MPS_STATUS_OK;
}

mps_status mps_event_retain(mps_event *event) {
  MPS_ENTER(event, MPS_KIND_EVENT);
  mps_object_retain(event, MPS_KIND_EVENT);
  return MPS_STATUS_OK;
}

mps_status mps_event_release(mps_event *event) {
  if (event == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(event, MPS_KIND_EVENT);
  if (mps_object_release(event, MPS_KIND_EVENT)) {
    mps_event_drop(event);
  }
  return MPS_STATUS_OK;
}

void mps_event_hold(mps_event *event) {
  mps_object_hold(event);
}

void mps_event_drop(mps_event *event) {
  if (!mps_object_drop(event)) {
    return;
  }
  mps_device *device = event->device;
  device->backend->event_close(event);
  mps_object_free(event, MPS_KIND_EVENT);
  mps_device_drop(device);
}

mps_status mps_queue_signal(mps_queue *queue, mps_event *event, uint64_t value) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_TRY(mps_object_check(event, MPS_KIND_EVENT, __func__));
  MPS_TRY(mps_check_same_device(__func__, queue->device, "event", event->device));
  return queue->device->backend->encode_signal(queue, event, value);
}

mps_status mps_queue_wait_event(mps_queue *queue, mps_event *event, uint64_t value) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  MPS_TRY(mps_object_check(event, MPS_KIND_EVENT, __func__));
  MPS_TRY(mps_check_same_device(__func__, queue->device, "event", event->device));
  return queue->device->backend->encode_wait(queue, event, value);
}

mps_status mps_event_signal(mps_event *event, uint64_t value) {
  MPS_ENTER(event, MPS_KIND_EVENT);
  return event->device->backend->event_signal(event, value);
}

mps_status mps_event_wait(mps_event *event, uint64_t value, uint64_t timeout) {
  MPS_ENTER(event, MPS_KIND_EVENT);
  MPS_TRY(mps_log_check_wait(__func__));
  mps_status status = event->device->backend->event_wait(event, value, timeout);
  mps_log_flush();
  return status;
}

mps_status mps_event_get_info(mps_event *event, mps_event_info *info) {
  MPS_ENTER(event, MPS_KIND_EVENT);
  MPS_CHECK_RESULT(mps_event_info, time, info);
  mps_event_info result = {.struct_size = sizeof result};
  event->device->backend->event_info(event, &result);
  mps_struct_write(info, &result, sizeof result);
  return MPS_STATUS_OK;
}

mps_status mps_event_notify(mps_event *event, uint64_t value, mps_callback_fn callback, void *user) {
  MPS_ENTER(event, MPS_KIND_EVENT);
  MPS_REQUIRE(callback);
  return event->device->backend->event_notify(event, value, callback, user);
}
