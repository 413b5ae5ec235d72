/* Settings, and the small parts of the system: process info, IOKit, sysctl, the clock, signposts. */
#import "private.h"

#include <IOKit/IOKitLib.h>
#include <errno.h>
#include <mach/mach_time.h>
#include <os/signpost.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysctl.h>
#include <time.h>
#include <unistd.h>

/* ---- settings ---- */

static struct setting {
  const char *name;
  _Atomic long value;
} settings[] = {
    {"os_major", 15},        /* the system's version */
    {"devices", 1},          /* GPUs, 0 or 1 */
    {"listed_devices", 1},   /* 0: only the default one is found */
    {"unified_memory", 1},   /* of the GPU */
    {"apple_family", 1},     /* 0: a GPU that is not Apple's */
    {"rosetta", 0},          /* 1: the process is translated */
    {"io_registry", 1},      /* 0: it does not know the GPU; 2: nor its cores */
    {"other_gpu", 0},        /* 1: buffers say that they belong to another GPU */
    {"managed_buffers", 0},  /* 1: buffers say that their storage is neither shared nor private */
    {"kept_commands", 0},    /* 1: command buffers are not taken from the queue until it is 0 again */
    {"missing_argument", 0}, /* 1: reflection tells of a texture too */
    {"fail_buffers", 0},     /* these fail so many times */
    {"fail_heaps", 0},       {"fail_events", 0},
    {"fail_queues", 0},      {"fail_command_buffers", 0},
    {"fail_encoders", 0},    {"fail_functions", 0},
    {"fail_archives", 0},    {"raise_devices", 0}, /* these raise an exception so many times */
    {"raise_dispatch", 0},   {"raise_commit", 0},
    {"raise_products", 0},   {"fail_products", 0},
    {"fail_matrices", 0},    {"matrices", 1}, /* 0: a GPU that Metal Performance Shaders do not support */
    {"fail_commands", 0},                     /* command buffers that fail before they begin, so many times */
    {"silent_errors", 0},                     /* 1: their error does not name encoders */
    {"signposts", 0},                         /* counted up by each */
};

enum { SETTINGS = sizeof settings / sizeof settings[0] };

static struct setting *find(const char *name) {
  for (int i = 0; i < SETTINGS; i++) {
    if (strcmp(settings[i].name, name) == 0) {
      return &settings[i];
    }
  }
  standin_broken("there is no setting '%s'", name);
}

__attribute__((constructor)) static void read_environment(void) {
  for (int i = 0; i < SETTINGS; i++) {
    char variable[64] = "STANDIN_";
    for (size_t at = strlen(variable), from = 0; settings[i].name[from] != '\0'; from++) {
      char c = settings[i].name[from];
      variable[at++] = (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
    const char *value = getenv(variable);
    if (value != NULL) {
      atomic_store(&settings[i].value, strtol(value, NULL, 10));
    }
  }
}

void standin_set(const char *name, long value) {
  atomic_store(&find(name)->value, value);
}

long standin_get(const char *name) {
  return atomic_load(&find(name)->value);
}

bool standin_take(const char *name) {
  struct setting *setting = find(name);
  long value = atomic_load(&setting->value);
  while (value > 0 && !atomic_compare_exchange_weak(&setting->value, &value, value - 1)) {
  }
  return value > 0;
}

/* ---- system ---- */

@implementation NSProcessInfo
+ (NSProcessInfo *)processInfo {
  static _Atomic(void *) shared;
  if (atomic_load(&shared) == NULL) {
    NSProcessInfo *made = standin_immortal([self new]);
    void *none = NULL;
    if (!atomic_compare_exchange_strong(&shared, &none, (void *)made)) {
      free(made);
    }
  }
  return atomic_load(&shared);
}
- (NSString *)operatingSystemVersionString {
  char text[64];
  snprintf(text, sizeof text, "Version %ld.0 (Build 24A000)", standin_get("os_major"));
  return [NSString stringWithUTF8String:text];
}
- (BOOL)isOperatingSystemAtLeastVersion:(NSOperatingSystemVersion)version {
  return standin_get("os_major") >= version.majorVersion;
}
@end

/* Of Apple's GPUs' systems. */
NSUInteger NSPageSize(void) {
  return 16384;
}

int sysctlbyname(const char *name, void *old, size_t *old_length, void *new_value, size_t new_length) {
  STANDIN_RULE(new_value == NULL && new_length == 0, "sysctl %s is set", name);
  if (strcmp(name, "sysctl.proc_translated") != 0 || *old_length != sizeof(int)) {
    errno = ENOENT;
    return -1;
  }
  *(int *)old = (int)standin_get("rosetta");
  return 0;
}

int mach_timebase_info(mach_timebase_info_data_t *info) {
  *info = (mach_timebase_info_data_t){1, 1};
  return 0;
}

uint64_t mach_absolute_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- IOKit: one entry, with its cores ---- */

CFMutableDictionaryRef IORegistryEntryIDMatching(uint64_t entryID) {
  STANDIN_RULE(entryID != 0, "a registry entry is looked for by no id");
  return (CFMutableDictionaryRef)[NSNumber new];
}

io_service_t IOServiceGetMatchingService(mach_port_t mainPort, CFDictionaryRef matching) {
  STANDIN_RULE(mainPort == kIOMainPortDefault, "another port than the main one");
  [(id)matching release];
  return standin_get("io_registry") != 0 ? 77 : IO_OBJECT_NULL;
}

CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t entry, CFStringRef key, CFAllocatorRef allocator,
                                          IOOptionBits options) {
  (void)allocator;
  (void)options;
  if (entry != 77 || strcmp([(NSString *)key UTF8String], "gpu-core-count") != 0 || standin_get("io_registry") == 2) {
    return NULL;
  }
  return [[NSNumber numberWithUnsignedInteger:8] retain];
}

kern_return_t IOObjectRelease(io_object_t object) {
  STANDIN_RULE(object == 77, "an IOKit object is released that there is not");
  return 0;
}

/* ---- signposts ---- */

struct standin_log {
  char name[64];
};

static pthread_mutex_t signpost_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_signpost[512];

os_log_t os_log_create(const char *subsystem, const char *category) {
  static struct standin_log logs[4];
  static int count;
  STANDIN_RULE(count < 4, "more logs are created than there are");
  snprintf(logs[count].name, sizeof logs[count].name, "%s/%s", subsystem, category);
  return &logs[count++];
}

void standin_signpost(const char *type, os_log_t log, os_signpost_id_t id, const char *name, const char *format, ...) {
  STANDIN_RULE(id != 0 && id != ~(os_signpost_id_t)0, "a signpost has the id that means none");
  char text[256];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  pthread_mutex_lock(&signpost_lock);
  snprintf(last_signpost, sizeof last_signpost, "%s %s %llu %s: %s", type, log->name, (unsigned long long)id, name,
           text);
  pthread_mutex_unlock(&signpost_lock);
  atomic_fetch_add(&find("signposts")->value, 1);
}

const char *standin_last_signpost(void) {
  return last_signpost;
}
