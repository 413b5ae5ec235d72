#include "metal.h"

#include "bytes.h"

#include <IOKit/IOKitLib.h>
#include <mach/mach_time.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysctl.h>
#include <unistd.h>

/* What Metal lets every GPU do that this library runs on, and has no query for. */
enum { BUFFER_SLOTS = 31, INLINE_BYTES = 4096, SIMD_WIDTH = 32 };

/* ---- the GPUs of this machine, looked for once ---- */

static pthread_once_t found = PTHREAD_ONCE_INIT;
static NSArray<id<MTLDevice>> *gpus; /* those with unified memory */
static char reason[512];
static pid_t finder;

/* 1 for a process of x86-64 code on an Apple GPU's machine. */
static int runs_under_rosetta(void) {
  int translated = 0;
  size_t size = sizeof translated;
  return sysctlbyname("sysctl.proc_translated", &translated, &size, NULL, 0) == 0 && translated == 1;
}

static void explain_absence(NSArray<id<MTLDevice>> *all) {
  NSProcessInfo *process = [NSProcessInfo processInfo];
  const char *rosetta = runs_under_rosetta() ? "; this process runs under Rosetta: use a native arm64 one" : "";
  if ([all count] > 0) {
    snprintf(reason, sizeof reason, "the GPU '%s' has no unified memory, which this library needs%s",
             [[[all objectAtIndex:0] name] UTF8String], rosetta);
  } else {
    snprintf(
        reason, sizeof reason,
        "Metal finds no GPU on this machine (macOS %s): it may be a virtual machine or a login without access to it%s",
        [[process operatingSystemVersionString] UTF8String], rosetta);
  }
}

static NSArray<id<MTLDevice>> *all_gpus(void) {
  NSArray<id<MTLDevice>> *all = [MTLCopyAllDevices() autorelease];
  if ([all count] > 0) {
    return all;
  }
  /* Some virtual machines list none, and yet have a default one. */
  id<MTLDevice> one = [MTLCreateSystemDefaultDevice() autorelease];
  return one != nil ? [NSArray arrayWithObject:one] : [NSArray array];
}

static void find_gpus(void) {
  finder = getpid();
  metal_guard("looking for GPUs", ^mps_status {
    NSOperatingSystemVersion oldest = {13, 0, 0};
    NSProcessInfo *process = [NSProcessInfo processInfo];
    if (![process isOperatingSystemAtLeastVersion:oldest]) {
      snprintf(reason, sizeof reason, "this library needs macOS 13 or newer, and this is %s",
               [[process operatingSystemVersionString] UTF8String]);
      return MPS_STATUS_OK;
    }
    NSArray<id<MTLDevice>> *all = all_gpus();
    NSMutableArray<id<MTLDevice>> *fit = [[NSMutableArray alloc] init];
    for (id<MTLDevice> gpu in all) {
      if ([gpu hasUnifiedMemory]) {
        [fit addObject:gpu];
      }
    }
    gpus = fit;
    if ([fit count] == 0) {
      explain_absence(all);
    }
    return MPS_STATUS_OK;
  });
  if (gpus == nil && reason[0] == '\0') {
    snprintf(reason, sizeof reason, "%s", mps_error_message());
  }
}

uint32_t metal_device_count(void) {
  pthread_once(&found, find_gpus);
  return (uint32_t)[gpus count];
}

const char *metal_device_unavailable_reason(void) {
  pthread_once(&found, find_gpus);
  return reason;
}

/* ---- one of them ---- */

/* 0 where the driver does not say, as those of Intel's GPUs. */
static uint32_t core_count(id<MTLDevice> gpu) {
  io_service_t service = IOServiceGetMatchingService(kIOMainPortDefault, IORegistryEntryIDMatching([gpu registryID]));
  if (service == IO_OBJECT_NULL) {
    return 0;
  }
  id count = [(id)IORegistryEntryCreateCFProperty(service, (CFStringRef) @"gpu-core-count", kCFAllocatorDefault, 0)
      autorelease];
  IOObjectRelease(service);
  return [count isKindOfClass:[NSNumber class]] ? (uint32_t)[count unsignedIntegerValue] : 0;
}

static void fill_info(id<MTLDevice> gpu, mps_device_info *info) {
  MTLSize threads = [gpu maxThreadsPerThreadgroup];
  *info = (mps_device_info){
      .struct_size = sizeof *info,
      .kind = MPS_DEVICE_METAL,
      .core_count = core_count(gpu),
      .registry_id = [gpu registryID],
      .recommended_max_working_set = [gpu recommendedMaxWorkingSetSize],
      .max_buffer_length = [gpu maxBufferLength],
      .max_threads_per_threadgroup = {(uint32_t)threads.width, (uint32_t)threads.height, (uint32_t)threads.depth},
      .max_total_threads_per_threadgroup = (uint32_t)threads.width,
      .max_threadgroup_memory = (uint32_t)[gpu maxThreadgroupMemoryLength],
      .thread_execution_width = SIMD_WIDTH,
      .max_buffer_slots = BUFFER_SLOTS,
      .max_inline_bytes = INLINE_BYTES,
      .page_size = (uint32_t)NSPageSize(),
      .has_unified_memory = 1,
  };
  snprintf(info->name, sizeof info->name, "%s", [[gpu name] UTF8String]);
}

mps_status metal_device_open(mps_device *device) {
  /* The system's connection to the GPU does not live on in a child. */
  if (finder != getpid()) {
    return mps_fail(MPS_STATUS_FORKED,
                    "this process was forked from one that had looked for GPUs: start it with spawn instead");
  }
  return metal_guard("opening a device", ^mps_status {
    metal_device *impl = calloc(1, sizeof *impl);
    if (impl == NULL) {
      return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "no memory for a device");
    }
    impl->gpu = [[gpus objectAtIndex:device->index] retain];
    fill_info(impl->gpu, &device->info);
    impl->archive = metal_archive_open(impl->gpu);
    device->impl = impl;
    /* The GPUs of Apple copy and fill any bytes, others only whole words. */
    if (![impl->gpu supportsFamily:MTLGPUFamilyApple7]) {
      impl->bytes = metal_bytes_new();
    }
    return MPS_STATUS_OK;
  });
}

void metal_device_close(mps_device *device) {
  metal_device *impl = device->impl;
  @autoreleasepool {
    metal_archive_close(impl->archive);
    metal_bytes_free(impl->bytes);
    [impl->gpu release];
  }
  free(impl);
}

uint64_t metal_device_allocated_size(mps_device *device) {
  @autoreleasepool {
    return [metal_gpu(device) currentAllocatedSize];
  }
}

/* Metal tells a command buffer's times on the clock of mach_absolute_time: both clocks are one. */
void metal_device_timestamps(mps_device *device, uint64_t *cpu, uint64_t *gpu) {
  (void)device;
  mach_timebase_info_data_t base;
  mach_timebase_info(&base);
  uint64_t ticks = mach_absolute_time();
  *cpu = *gpu = ticks / base.denom * base.numer + ticks % base.denom * base.numer / base.denom;
}

void *metal_device_native(mps_device *device) {
  return metal_gpu(device);
}
