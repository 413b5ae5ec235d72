#include "resources.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <sched.h>
#endif

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* ---- control groups ---- */

/* Up to `count` numbers of a file; "max" and negative ones (which mean no limit) read as UINT64_MAX. */
static bool read_numbers(const char *path, uint64_t *numbers, int count) {
  FILE *file = fopen(path, "re");
  if (!file) {
    return false;
  }
  int n = 0;
  char word[32];
  while (n < count && fscanf(file, "%31s", word) == 1) {
    char *end;
    unsigned long long number = strtoull(word, &end, 10);
    numbers[n++] = end == word || word[0] == '-' ? UINT64_MAX : number;
  }
  fclose(file);
  return n == count;
}

/* Reads the limit that is set in one group's directory; UINT64_MAX for none. */
typedef uint64_t (*group_reader)(const char *directory);

static uint64_t read_memory(const char *directory) {
  static const char *const names[] = {"memory.max", "memory.high", "memory.limit_in_bytes"};
  uint64_t limit = UINT64_MAX;
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", directory, names[i]);
    uint64_t number;
    if (read_numbers(path, &number, 1)) {
      limit = least(limit, number);
    }
  }
  return limit;
}

static uint64_t read_cores(const char *directory) {
  char path[PATH_MAX + 64];
  uint64_t numbers[2]; /* microseconds of quota in a period */
  snprintf(path, sizeof path, "%s/cpu.max", directory);
  if (!read_numbers(path, numbers, 2)) {
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
    if (!read_numbers(path, &numbers[0], 1)) {
      return UINT64_MAX;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (!read_numbers(path, &numbers[1], 1)) {
      return UINT64_MAX;
    }
  }
  if (numbers[0] == UINT64_MAX || numbers[1] == 0 || numbers[1] == UINT64_MAX) {
    return UINT64_MAX;
  }
  uint64_t cores = numbers[0] / numbers[1] + (numbers[0] % numbers[1] != 0);
  return cores ? cores : 1;
}

/* The least limit of a group and all groups above it: each of them binds. Inside a container the path may name groups
 * that only exist outside of it; then those that can be seen count. */
static uint64_t read_upwards(const char *mount, const char *group, group_reader read) {
  char directory[PATH_MAX];
  int length = snprintf(directory, sizeof directory, "%s%s", mount, group);
  if (length < 0 || (size_t)length >= sizeof directory) {
    return read(mount);
  }
  uint64_t limit = UINT64_MAX;
  size_t top = strlen(mount);
  for (;;) {
    limit = least(limit, read(directory));
    char *slash = strrchr(directory, '/');
    if (!slash || (size_t)(slash - directory) < top) {
      return limit;
    }
    *slash = '\0';
  }
}

static bool list_has(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *found = list; (found = strstr(found, word)); found += length) {
    bool begins = found == list || found[-1] == ',';
    if (begins && (found[length] == ',' || found[length] == '\0')) {
      return true;
    }
  }
  return false;
}

/* Lines are "0::/group" for version 2, "N:controller,controller:/group" for version 1. */
static uint64_t read_groups(const char *groups, const char *root, const char *controller, group_reader read) {
  FILE *file = fopen(groups, "re");
  if (!file) {
    return UINT64_MAX;
  }
  uint64_t limit = UINT64_MAX;
  char line[PATH_MAX];
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) {
      continue;
    }
    *group++ = '\0';
    controllers++;
    char mount[PATH_MAX];
    if (*controllers == '\0') {
      snprintf(mount, sizeof mount, "%s", root);
    } else if (list_has(controllers, controller)) {
      snprintf(mount, sizeof mount, "%s/%s", root, controller);
    } else {
      continue;
    }
    limit = least(limit, read_upwards(mount, group, read));
  }
  fclose(file);
  return limit;
}

uint64_t host_limits_group_memory(const char *groups, const char *root) {
  return read_groups(groups, root, "memory", read_memory);
}

uint64_t host_limits_group_cores(const char *groups, const char *root) {
  return read_groups(groups, root, "cpu", read_cores);
}

/* ---- the process ---- */

static uint64_t physical_memory(void) {
#ifdef __APPLE__
  uint64_t bytes = 0;
  size_t size = sizeof bytes;
  return sysctlbyname("hw.memsize", &bytes, &size, NULL, 0) == 0 && bytes ? bytes : (uint64_t)1 << 30;
#else
  long pages = sysconf(_SC_PHYS_PAGES);
  long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30;
#endif
}

static uint64_t process_limit(int resource) {
  struct rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return UINT64_MAX;
  }
  return limit.rlim_cur;
}

uint64_t host_limits_memory(void) {
  uint64_t limit = physical_memory();
#ifdef RLIMIT_AS
  limit = least(limit, process_limit(RLIMIT_AS));
#endif
  limit = least(limit, process_limit(RLIMIT_DATA));
  return least(limit, host_limits_group_memory("/proc/self/cgroup", "/sys/fs/cgroup"));
}

uint32_t host_limits_cores(void) {
  uint64_t cores = 0;
#ifndef __APPLE__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    cores = (uint64_t)CPU_COUNT(&set);
  }
#endif
  if (cores == 0) { /* more processors than a cpu_set_t holds, or another system */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    cores = online > 0 ? (uint64_t)online : 1;
  }
  return (uint32_t)least(cores, host_limits_group_cores("/proc/self/cgroup", "/sys/fs/cgroup"));
}
