#include "check.h"
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

uint32_t mps_abi_version(void) {
  return MPS_ABI_VERSION;
}

const char *mps_version(void) {
  return MPS_VERSION;
}

mps_status mps_get_live_objects(mps_live_objects *counts) {
  MPS_CHECK_RESULT(mps_live_objects, pending_commands, counts);
  mps_live_objects result = {
      .devices = mps_object_live(MPS_KIND_DEVICE),
      .heaps = mps_object_live(MPS_KIND_HEAP),
      .buffers = mps_object_live(MPS_KIND_BUFFER),
      .queues = mps_object_live(MPS_KIND_QUEUE),
      .events = mps_object_live(MPS_KIND_EVENT),
      .libraries = mps_object_live(MPS_KIND_LIBRARY),
      .pipelines = mps_object_live(MPS_KIND_PIPELINE),
      .pending_commands = atomic_load_explicit(&mps_pending_commands, memory_order_relaxed),
  };
  mps_struct_write(counts, &result, sizeof result);
  return MPS_STATUS_OK;
}

const char *mps_build_info(void) {
  return "version=" MPS_VERSION "\n"
         "compiler=" MPS_COMPILER "\n"
         "target=" MPS_TARGET "\n"
         "buildtype=" MPS_BUILDTYPE "\n"
         "sanitize=" MPS_SANITIZE "\n"
#ifdef MPS_WITH_METAL
         "devices=metal,host\n";
#else
         "devices=host\n";
#endif
}

static pthread_once_t path_once = PTHREAD_ONCE_INIT;
static const char *path;

/* Made absolute at the first call: what the loader gives may be relative to the directory of that time. */
static void find_path(void) {
  Dl_info info;
  if (dladdr((const void *)&path_once, &info) == 0 || info.dli_fname == NULL) {
    path = "";
    return;
  }
  path = realpath(info.dli_fname, NULL);
  if (path == NULL) {
    path = info.dli_fname;
  }
}

const char *mps_shim_path(void) {
  pthread_once(&path_once, find_path);
  return path;
}
