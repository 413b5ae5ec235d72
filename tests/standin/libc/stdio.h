/* The C library as far as the Metal device uses it, for a compiler that checks it for macOS without macOS. */
#pragma once
#pragma clang system_header
#include <stddef.h>

typedef struct file FILE;
int snprintf(char *text, size_t size, const char *format, ...);
int asprintf(char **text, const char *format, ...);
int rename(const char *from, const char *to);
