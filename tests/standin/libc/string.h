#pragma once
#pragma clang system_header
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t size);
size_t strlen(const char *text);
int strcmp(const char *a, const char *b);
char *strchr(const char *text, int c);
char *strrchr(const char *text, int c);
char *strstr(const char *text, const char *part);
char *strndup(const char *text, size_t size);
char *strerror(int error);
