/* What this process may use of the machine. */
#ifndef MPS_HOST_RESOURCES_H
#define MPS_HOST_RESOURCES_H

#include <stdint.h>

/* Bytes of memory: the least of what is built in, what the control groups allow, and the process's own limits. */
uint64_t host_limits_memory(void);

/* Processors: those that the process may run on, or fewer if the control groups' quota is less. At least 1. */
uint32_t host_limits_cores(void);

/* The control groups' part alone, for the groups listed in the file `groups` ("/proc/self/cgroup") of the hierarchies
 * mounted at `root` ("/sys/fs/cgroup"), version 1 or 2. UINT64_MAX when there is no limit. */
uint64_t host_limits_group_memory(const char *groups, const char *root);
uint64_t host_limits_group_cores(const char *groups, const char *root);

#endif
