#pragma once
#pragma clang system_header
#include <stdint.h>
#define PRIu32 "u"
#define PRIu64 "llu"
