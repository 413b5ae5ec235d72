// Functions that LLVM has no vector form for and that kernels call in inner loops: written out, so that they are
// vectorized with the code around them. The polynomials are minimax fits of their own interval; all stay below 2 units
// in the last place.
#pragma once
#pragma clang system_header
#include <metal_types>

namespace mslc {

// 2^n for -126 <= n <= 127.
MSLC_FUNC float power_of_two(int n) {
  return __builtin_bit_cast(float, (n + 127) << 23);
}

MSLC_FUNC float exp2(float x) {
  // Beyond these the result is infinite or zero. NaN passes.
  float in_range = x > 129.0f ? 129.0f : x;
  in_range = in_range < -151.0f ? -151.0f : in_range;
  const float whole = __builtin_rintf(in_range);
  const float f = in_range - whole; // [-1/2, 1/2]
  float p = 1.53533606e-04f;
  p = p * f + 1.33988749e-03f;
  p = p * f + 9.61843737e-03f;
  p = p * f + 5.55033247e-02f;
  p = p * f + 2.40226479e-01f;
  p = p * f + 6.93147203e-01f;
  p = p * f + 1.0f;
  const int n = static_cast<int>(whole); // in two steps, as 2^n alone need not be a float
  return p * power_of_two(n >> 1) * power_of_two(n - (n >> 1));
}

MSLC_FUNC float log2(float x) {
  const int bits = __builtin_bit_cast(int, x);
  // x = m 2^n with m in [sqrt(1/2), sqrt(2)): exact for powers of two, and no cancellation near 1.
  const int n = (bits - 0x3f3504f3) >> 23;
  const float t = __builtin_bit_cast(float, bits - (n << 23)) - 1.0f;
  float p = -0.10994806f;
  p = p * t + 0.18617414f;
  p = p * t - 0.19106297f;
  p = p * t + 0.20460077f;
  p = p * t - 0.23961739f;
  p = p * t + 0.2885674f;
  p = p * t - 0.36069665f;
  p = p * t + 0.48089824f;
  p = p * t - 0.72134735f;
  p = p * t + 1.44269504f;
  const float result = static_cast<float>(n) + t * p;
  const float infinity = __builtin_inff();
  const float special = x < 0.0f ? __builtin_nanf("") : x < 0x1p-126f ? -infinity : x; // denormals count as zero
  return x >= 0x1p-126f && x < infinity ? result : special;
}

MSLC_FUNC float tanh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = -0.00552862f;
  p = p * z + 0.02048331f;
  p = p * z - 0.05369296f;
  p = p * z + 0.133309f;
  p = p * z - 0.33333263f;
  const float near_zero = x + x * z * p;
  const float far = __builtin_copysignf(1.0f - 2.0f / (__builtin_expf(2.0f * size) + 1.0f), x);
  return size < 0.65f ? near_zero : far;
}

} // namespace mslc
