#include "device.h"

#include "clock.h"
#include "kernel_abi.h"
#include "resources.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

uint32_t host_device_count(void) {
  return 1;
}

const char *host_device_unavailable_reason(void) {
  return "";
}

#ifdef __linux__
/* The value of the first line "key : value" of /proc/cpuinfo. */
static bool read_cpuinfo(const char *key, char *value, size_t size) {
  FILE *file = fopen("/proc/cpuinfo", "re");
  if (!file) {
    return false;
  }
  char line[512];
  bool found = false;
  size_t length = strlen(key);
  while (!found && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (colon && strncmp(line, key, length) == 0 && isspace((unsigned char)line[length])) {
      char *text = colon + 1 + strspn(colon + 1, " \t");
      text[strcspn(text, "\n")] = '\0';
      found = *text != '\0';
      snprintf(value, size, "%s", text);
    }
  }
  fclose(file);
  return found;
}
#endif

static void processor_name(char *name, size_t size) {
#ifdef __APPLE__
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, NULL, 0) == 0) {
    return;
  }
#elif defined(__linux__)
  if (read_cpuinfo("model name", name, size)) {
    return;
  }
#endif
#if defined(__aarch64__)
  snprintf(name, size, "ARM64 processor");
#else
  snprintf(name, size, "Host processor");
#endif
}

mps_status host_device_open(mps_device *device) {
  uint64_t share = host_limits_memory() / 4 * 3 & ~(uint64_t)(HOST_PAGE - 1);
  mps_device_info *info = &device->info;
  info->kind = MPS_DEVICE_HOST;
  info->core_count = host_limits_cores();
  processor_name(info->name, sizeof info->name);
  info->registry_id = 1 + device->index;
  info->recommended_max_working_set = share;
  info->max_buffer_length = share;
  for (int i = 0; i < 3; i++) {
    info->max_threads_per_threadgroup[i] = MSLC_MAX_GROUP_THREADS;
  }
  info->max_total_threads_per_threadgroup = MSLC_MAX_GROUP_THREADS;
  info->max_threadgroup_memory = MSLC_THREADGROUP_BYTES;
  info->thread_execution_width = MSLC_SIMD_WIDTH;
  info->max_buffer_slots = MSLC_BUFFER_SLOTS;
  info->max_inline_bytes = 4096;
  info->page_size = HOST_PAGE;
  info->has_unified_memory = 1;
  return MPS_STATUS_OK;
}

void host_device_close(mps_device *device) {
  (void)device;
}

uint64_t host_device_allocated_size(mps_device *device) {
  (void)device;
  return host_memory_reserved();
}

void host_device_timestamps(mps_device *device, uint64_t *cpu, uint64_t *gpu) {
  (void)device;
  *cpu = *gpu = mps_now();
}

void *host_device_native(mps_device *device) {
  (void)device;
  return NULL;
}
