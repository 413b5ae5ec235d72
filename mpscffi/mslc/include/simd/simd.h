// <simd/simd.h>, which code shared with the CPU includes: the vectors and matrices under its names.
#pragma once
#pragma clang system_header
#include <metal_matrix>
#include <metal_packed_vector>

#define MSLC_SIMD_VECTORS(T)                                                                                           \
  using vector_##T##2 = metal::T##2;                                                                                   \
  using vector_##T##3 = metal::T##3;                                                                                   \
  using vector_##T##4 = metal::T##4;                                                                                   \
  using simd_##T##2 = metal::T##2;                                                                                     \
  using simd_##T##3 = metal::T##3;                                                                                     \
  using simd_##T##4 = metal::T##4;                                                                                     \
  namespace simd {                                                                                                     \
  using metal::T##2;                                                                                                   \
  using metal::T##3;                                                                                                   \
  using metal::T##4;                                                                                                   \
  }
MSLC_SIMD_VECTORS(char)
MSLC_SIMD_VECTORS(uchar)
MSLC_SIMD_VECTORS(short)
MSLC_SIMD_VECTORS(ushort)
MSLC_SIMD_VECTORS(int)
MSLC_SIMD_VECTORS(uint)
MSLC_SIMD_VECTORS(long)
MSLC_SIMD_VECTORS(ulong)
MSLC_SIMD_VECTORS(half)
MSLC_SIMD_VECTORS(float)
#undef MSLC_SIMD_VECTORS

#define MSLC_SIMD_MATRIX(T, size)                                                                                      \
  using matrix_##T##size = metal::T##size;                                                                             \
  using simd_##T##size = metal::T##size;                                                                               \
  namespace simd {                                                                                                     \
  using metal::T##size;                                                                                                \
  }
#define MSLC_SIMD_MATRICES(T)                                                                                          \
  MSLC_SIMD_MATRIX(T, 2x2)                                                                                             \
  MSLC_SIMD_MATRIX(T, 2x3)                                                                                             \
  MSLC_SIMD_MATRIX(T, 2x4)                                                                                             \
  MSLC_SIMD_MATRIX(T, 3x2)                                                                                             \
  MSLC_SIMD_MATRIX(T, 3x3)                                                                                             \
  MSLC_SIMD_MATRIX(T, 3x4)                                                                                             \
  MSLC_SIMD_MATRIX(T, 4x2)                                                                                             \
  MSLC_SIMD_MATRIX(T, 4x3)                                                                                             \
  MSLC_SIMD_MATRIX(T, 4x4)
MSLC_SIMD_MATRICES(half)
MSLC_SIMD_MATRICES(float)
#undef MSLC_SIMD_MATRIX
#undef MSLC_SIMD_MATRICES
