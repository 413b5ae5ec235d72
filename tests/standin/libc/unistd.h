#pragma once
#pragma clang system_header
#include <stddef.h>

typedef int pid_t;
pid_t getpid(void);
int unlink(const char *path);
int access(const char *path, int mode);
enum { R_OK = 4 };
