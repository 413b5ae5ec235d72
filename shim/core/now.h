/* The clock of both devices and of records. */
#ifndef MPS_CORE_NOW_H
#define MPS_CORE_NOW_H

#include <stdint.h>

/* Nanoseconds: on Linux of CLOCK_MONOTONIC, on macOS of the clock that GPU times are on. */
uint64_t mps_now(void);

#endif
