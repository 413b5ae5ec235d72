#pragma once
#pragma clang system_header
#include <stddef.h>

extern int errno;
enum { ENOENT = 2, EEXIST = 17, ENOTDIR = 20 };
