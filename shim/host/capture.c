#include "capture.h"

#include "clock.h"
#include "status.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Atomic bool host_capture_running;

/* Under the lock; `file` is NULL when none runs. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static mps_queue *only; /* the queue that is captured, held; NULL for all */
static char directory[PATH_MAX];

#define FILE_NAME "commands.txt"

bool host_capture_supported(mps_device *device) {
  (void)device;
  return true;
}

bool host_capture_active(mps_device *device) {
  (void)device;
  return host_capture_is_on();
}

static mps_status io_error(const char *what, const char *path, int error) {
  return mps_fail(MPS_STATUS_IO, "cannot %s '%s': %s", what, path, strerror(error));
}

/* Makes the directory and opens the file in it; the lock is held. */
static mps_status open_document(const char *path) {
  if (strlen(path) + sizeof "/" FILE_NAME > sizeof directory) {
    return io_error("make the capture", path, ENAMETOOLONG);
  }
  if (mkdir(path, 0777) != 0) {
    return io_error("make the capture", path, errno);
  }
  snprintf(directory, sizeof directory, "%s", path);
  char name[PATH_MAX + sizeof "/" FILE_NAME];
  snprintf(name, sizeof name, "%s/" FILE_NAME, path);
  FILE *opened = fopen(name, "wxe");
  if (!opened) {
    int error = errno;
    rmdir(path);
    return io_error("write the capture", name, error);
  }
  fprintf(opened, "# mpsshim capture 1; times in nanoseconds of the device's clock\nstart %" PRIu64 "\n", host_now());
  file = opened;
  return MPS_STATUS_OK;
}

mps_status host_capture_start(mps_device *device, const mps_capture_desc *desc) {
  (void)device;
  pthread_mutex_lock(&lock);
  mps_status status;
  if (file) {
    status =
        mps_fail(MPS_STATUS_INVALID_STATE, "a capture to '%s' is running: stop it before starting another", directory);
  } else {
    status = open_document(desc->path);
  }
  if (status == MPS_STATUS_OK) {
    only = desc->queue;
    if (only) {
      mps_queue_hold(only);
    }
    atomic_store(&host_capture_running, true);
  }
  pthread_mutex_unlock(&lock);
  return status;
}

mps_status host_capture_stop(mps_device *device) {
  (void)device;
  pthread_mutex_lock(&lock);
  atomic_store(&host_capture_running, false);
  FILE *closing = file;
  mps_queue *held = only;
  file = NULL;
  only = NULL;
  mps_status status = MPS_STATUS_OK;
  if (!closing) {
    status = mps_fail(MPS_STATUS_INVALID_STATE, "no capture is running");
  } else {
    fprintf(closing, "stop %" PRIu64 "\n", host_now());
    bool written = !ferror(closing);
    if (fclose(closing) != 0 || !written) {
      status = io_error("write the capture", directory, errno ? errno : EIO);
    }
  }
  pthread_mutex_unlock(&lock);
  if (held) {
    mps_queue_drop(held);
  }
  return status;
}

/* A label or message as one quoted word of a line. */
static void write_quoted(const char *text) {
  fputc('"', file);
  for (const char *c = text; *c; c++) {
    if (*c == '"' || *c == '\\') {
      fputc('\\', file);
      fputc(*c, file);
    } else if ((unsigned char)*c < ' ') {
      fprintf(file, "\\x%02x", (unsigned char)*c);
    } else {
      fputc(*c, file);
    }
  }
  fputc('"', file);
}

void host_capture_command(const void *queue, const char *label, const char *what, uint64_t start, uint64_t end,
                          const char *failure) {
  pthread_mutex_lock(&lock);
  if (file && (!only || only->impl == queue)) {
    fprintf(file, "command %" PRIu64 " %" PRIu64 " queue ", start, end);
    write_quoted(label);
    fprintf(file, " %s", what);
    if (failure) {
      fputs(" failed ", file);
      write_quoted(failure);
    }
    fputc('\n', file);
  }
  pthread_mutex_unlock(&lock);
}

void host_capture_signpost(const char *what, mps_signpost_category category, uint64_t id, const char *message) {
  pthread_mutex_lock(&lock);
  if (file) {
    fprintf(file, "signpost %" PRIu64 " %s %s %" PRIu64 " ", host_now(), what,
            category == MPS_SIGNPOST_INTERVALS ? "intervals" : "events", id);
    write_quoted(message);
    fputc('\n', file);
  }
  pthread_mutex_unlock(&lock);
}
