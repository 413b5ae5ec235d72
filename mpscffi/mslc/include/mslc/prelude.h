// What stands before every Metal source: the standard library and what runs kernels. mslc compiles it once for each set
// of flags, and every unit starts from the result.
//
// One header for each of Metal's, by Metal's name; below mslc/ what they share:
//
//   lanes.h, vector.h     scalars and vectors alike; vec<T, N>
//   collective.h          SIMD-group functions: gather the lanes' operands, let one lane do the work
//   runtime.h             what a kernel asks of the host device, by jumps through a table
//   reflection.h          parameters of a kernel, as the types say
//   launch.h              the loop over threads or fibers around a kernel, and the library that holds it
//   gang.h                SIMD-groups whose lanes are loops
//   split.h               what kernels are written with that are loops between barriers
//   number_helpers.h      conversions that the compiler calls by name
//
// The source that follows is C++17 with clang's extensions: mslc has erased the address spaces, removed the attributes
// and made every literal a float. It includes nothing of the system, as there are no headers but these; `metal` is the
// library's namespace and `mslc` the prelude's own, of which no user's name is to be found by accident: names that must
// stand in a user's class or at global scope start with mslc_ or MSLC_.
#pragma once
#include <metal_stdlib>
#include <simd/simd.h>
#include <mslc/gang.h>
#include <mslc/launch.h>
#include <mslc/split.h>
