#ifndef STANDIN_SYSCTL_H
#define STANDIN_SYSCTL_H

#include <stddef.h>

int sysctlbyname(const char *name, void *old, size_t *old_length, void *new_value, size_t new_length);

#endif
