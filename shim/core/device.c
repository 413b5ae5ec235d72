#include "backend.h"
#include "check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

/* The devices that are open. The lock is held while one is opened, found or closed, so that a device that is just being
 * closed cannot be given out. */
typedef struct open_device {
  mps_device *device;
  struct open_device *next;
} open_device;

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static open_device *open_devices;

static bool known_kind(mps_device_kind kind) {
  return kind == MPS_DEVICE_METAL || kind == MPS_DEVICE_HOST;
}

static mps_status unknown_kind(const char *function, mps_device_kind kind) {
  return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: kind is %d, not MPS_DEVICE_METAL (1) or MPS_DEVICE_HOST (2)",
                  function, (int)kind);
}

static const mps_backend *find_backend(mps_device_kind kind) {
  for (const mps_backend *const *backend = mps_backends; *backend != NULL; backend++) {
    if ((*backend)->kind == kind) {
      return *backend;
    }
  }
  return NULL;
}

mps_status mps_device_count(mps_device_kind kind, uint32_t *out_count) {
  MPS_TRY(mps_fork_check());
  MPS_REQUIRE(out_count);
  if (!known_kind(kind)) {
    return unknown_kind(__func__, kind);
  }
  const mps_backend *backend = find_backend(kind);
  *out_count = backend != NULL ? backend->device_count() : 0;
  return MPS_STATUS_OK;
}

const char *mps_device_unavailable_reason(mps_device_kind kind) {
  if (!known_kind(kind)) {
    return "there is no such kind of device";
  }
  const mps_backend *backend = find_backend(kind);
  if (backend != NULL) {
    return backend->unavailable_reason();
  }
#ifdef __APPLE__
  return "this libmpsshim was built without the Metal device";
#else
  return "Metal needs macOS, and this is another system";
#endif
}

/* With the lock held. */
static mps_device *find_open(mps_device_kind kind, uint32_t index) {
  for (open_device *entry = open_devices; entry != NULL; entry = entry->next) {
    if (entry->device->backend->kind == kind && entry->device->index == index) {
      return entry->device;
    }
  }
  return NULL;
}

/* With the lock held. */
static mps_status open_new(const mps_backend *backend, uint32_t index, mps_device **out_device) {
  open_device *entry = malloc(sizeof *entry);
  if (entry == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "mps_device_create: no memory for a device");
  }
  mps_device *device = mps_object_new(MPS_KIND_DEVICE, sizeof *device);
  if (device == NULL) {
    free(entry);
    return MPS_STATUS_OUT_OF_MEMORY;
  }
  device->backend = backend;
  device->index = index;
  mps_fork_guard();
  mps_status status = backend->device_open(device);
  if (status != MPS_STATUS_OK) {
    mps_object_free(device, MPS_KIND_DEVICE);
    free(entry);
    return status;
  }
  device->info.struct_size = sizeof device->info;
  entry->device = device;
  entry->next = open_devices;
  open_devices = entry;
  *out_device = device;
  return MPS_STATUS_OK;
}

mps_status mps_device_create(mps_device_kind kind, uint32_t index, mps_device **out_device) {
  MPS_TRY(mps_fork_check());
  MPS_REQUIRE(out_device);
  if (!known_kind(kind)) {
    return unknown_kind(__func__, kind);
  }
  const mps_backend *backend = find_backend(kind);
  uint32_t count = backend != NULL ? backend->device_count() : 0;
  if (count == 0) {
    return mps_fail(MPS_STATUS_UNAVAILABLE, "%s", mps_device_unavailable_reason(kind));
  }
  if (index >= count) {
    return mps_fail(MPS_STATUS_UNAVAILABLE, "mps_device_create: there is no %s device %" PRIu32 ", only %" PRIu32,
                    backend->name, index, count);
  }
  pthread_mutex_lock(&devices_lock);
  mps_status status = MPS_STATUS_OK;
  mps_device *device = find_open(kind, index);
  if (device != NULL) {
    mps_object_retain(device, MPS_KIND_DEVICE);
  } else {
    status = open_new(backend, index, &device);
  }
  pthread_mutex_unlock(&devices_lock);
  if (status == MPS_STATUS_OK) {
    *out_device = device;
  }
  return status;
}

mps_status mps_device_retain(mps_device *device) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  mps_object_retain(device, MPS_KIND_DEVICE);
  return MPS_STATUS_OK;
}

mps_status mps_device_release(mps_device *device) {
  if (device == NULL) {
    return MPS_STATUS_OK;
  }
  MPS_ENTER(device, MPS_KIND_DEVICE);
  /* Under the lock, lest mps_device_create revive a handle between its end and the wiping of its magic. */
  pthread_mutex_lock(&devices_lock);
  bool last = mps_object_release(device, MPS_KIND_DEVICE);
  pthread_mutex_unlock(&devices_lock);
  if (last) {
    mps_device_drop(device);
  }
  return MPS_STATUS_OK;
}

void mps_device_hold(mps_device *device) {
  mps_object_hold(device);
}

void mps_device_drop(mps_device *device) {
  if (mps_object_drop_shared(device)) {
    return;
  }
  pthread_mutex_lock(&devices_lock);
  if (mps_object_drop(device)) {
    open_device **link = &open_devices;
    while ((*link)->device != device) {
      link = &(*link)->next;
    }
    open_device *entry = *link;
    *link = entry->next;
    free(entry);
    device->backend->device_close(device);
    mps_object_free(device, MPS_KIND_DEVICE);
  }
  pthread_mutex_unlock(&devices_lock);
}

mps_status mps_device_get_info(mps_device *device, mps_device_info *info) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_CHECK_RESULT(mps_device_info, has_unified_memory, info);
  mps_struct_write(info, &device->info, sizeof device->info);
  return MPS_STATUS_OK;
}

mps_status mps_device_allocated_size(mps_device *device, uint64_t *out_bytes) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_bytes);
  *out_bytes = device->backend->device_allocated_size(device);
  return MPS_STATUS_OK;
}

mps_status mps_device_timestamps(mps_device *device, uint64_t *out_cpu, uint64_t *out_device) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_cpu);
  MPS_REQUIRE(out_device);
  device->backend->device_timestamps(device, out_cpu, out_device);
  return MPS_STATUS_OK;
}

mps_status mps_device_native(mps_device *device, void **out_native) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(out_native);
  *out_native = device->backend->device_native(device);
  return MPS_STATUS_OK;
}
