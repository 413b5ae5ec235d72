#include "backend.h"
#include "check.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const char SUFFIX[] = ".gputrace";

mps_status mps_capture_is_supported(mps_device *device, uint32_t *out_supported) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_supported);
  *out_supported = device->backend->capture_supported(device);
  return MPS_STATUS_OK;
}

static mps_status check_path(const char *path) {
  if (path == NULL) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_capture_start: path must not be NULL");
  }
  size_t length = strlen(path), suffix = sizeof SUFFIX - 1;
  if (length <= suffix || strcmp(path + length - suffix, SUFFIX) != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "mps_capture_start: path '%s' does not end in \"%s\"", path, SUFFIX);
  }
  struct stat found;
  if (lstat(path, &found) == 0) {
    return mps_fail(MPS_STATUS_IO, "mps_capture_start: '%s' exists already: give the name of a new document", path);
  }
  if (errno != ENOENT) {
    return mps_fail(MPS_STATUS_IO, "mps_capture_start: '%s' cannot be written: %s", path, strerror(errno));
  }
  return MPS_STATUS_OK;
}

mps_status mps_capture_start(mps_device *device, const mps_capture_desc *given) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  mps_capture_desc desc;
  MPS_READ(mps_capture_desc, queue, &desc, given);
  desc.struct_size = sizeof desc;
  if (desc.queue != NULL) {
    MPS_TRY(mps_object_check(desc.queue, MPS_KIND_QUEUE, __func__));
    MPS_TRY(mps_check_same_device(__func__, device, "queue", desc.queue->device));
  }
  MPS_TRY(check_path(desc.path));
  if (!device->backend->capture_supported(device)) {
    return mps_fail(
        MPS_STATUS_UNSUPPORTED,
        "mps_capture_start: this process cannot capture: on macOS start it with MTL_CAPTURE_ENABLED=1 in the "
        "environment");
  }
  if (device->backend->capture_active(device)) {
    return mps_fail(MPS_STATUS_INVALID_STATE, "mps_capture_start: a capture of device '%s' is running: stop it first",
                    device->info.name);
  }
  return device->backend->capture_start(device, &desc);
}

mps_status mps_capture_stop(mps_device *device) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  if (!device->backend->capture_active(device)) {
    return mps_fail(MPS_STATUS_INVALID_STATE, "mps_capture_stop: no capture of device '%s' is running",
                    device->info.name);
  }
  return device->backend->capture_stop(device);
}

mps_status mps_capture_is_active(mps_device *device, uint32_t *out_active) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_active);
  *out_active = device->backend->capture_active(device);
  return MPS_STATUS_OK;
}
