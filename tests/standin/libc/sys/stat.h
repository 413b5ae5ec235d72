#pragma once
#pragma clang system_header
#include <stddef.h>

typedef long long off_t;
struct stat {
  unsigned st_mode;
  off_t st_size;
};
int stat(const char *path, struct stat *found);
int mkdir(const char *path, unsigned mode);
#define S_ISDIR(mode) (((mode) & 0170000) == 0040000)
