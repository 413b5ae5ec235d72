// What stands before every Metal source: the standard library and what runs kernels. mslc compiles it once for each set
// of flags.
#pragma once
#include <metal_stdlib>
#include <simd/simd.h>
#include <mslc/launch.h>
