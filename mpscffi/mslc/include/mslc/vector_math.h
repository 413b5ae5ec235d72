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

// 2^x as p 2^n, for |x| < 2^22.
struct power {
  float p; // [sqrt(1/2), sqrt(2)]
  int n;

  MSLC_FUNC explicit power(float x) {
    const float whole = __builtin_rintf(x);
    const float f = x - whole; // [-1/2, 1/2]
    p = 1.53533606e-04f;
    p = p * f + 1.33988749e-03f;
    p = p * f + 9.61843737e-03f;
    p = p * f + 5.55033247e-02f;
    p = p * f + 2.40226479e-01f;
    p = p * f + 6.93147203e-01f;
    p = p * f + 1.0f;
    n = __builtin_bit_cast(int, whole + 0x1.8p23f) - 0x4b400000; // the integer in the last bits of a float of that size
  }
};

MSLC_FUNC float exp2(float x) {
#pragma clang fp reassociate(off) // the product of both powers might be infinite where the result is not
  // Beyond these the result is infinite or zero. NaN passes.
  float in_range = x > 129.0f ? 129.0f : x;
  in_range = in_range < -151.0f ? -151.0f : in_range;
  const power of(in_range);
  return of.p * power_of_two(of.n >> 1) * power_of_two(of.n - (of.n >> 1)); // as 2^n alone need not be a float
}

// x = m 2^n with m in [sqrt(1/2), sqrt(2)): exact for powers of two, and no cancellation near 1.
struct logarithm {
  float n;
  float of_m; // log2(m)

  MSLC_FUNC explicit logarithm(float x) {
    const int bits = __builtin_bit_cast(int, x);
    const int power = (bits - 0x3f3504f3) >> 23;
    const float t = __builtin_bit_cast(float, bits - (power << 23)) - 1.0f;
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
    n = static_cast<float>(power);
    of_m = t * p;
  }
};

// `result`, where it is the logarithm of x; denormals count as zero.
MSLC_FUNC float if_logarithm(float x, float result) {
  const float infinity = __builtin_inff();
  const float special = x < 0.0f ? __builtin_nanf("") : x < 0x1p-126f ? -infinity : x;
  return x >= 0x1p-126f && x < infinity ? result : special;
}

MSLC_FUNC float log2(float x) {
  const logarithm of(x);
  return if_logarithm(x, of.n + of.of_m);
}

MSLC_FUNC float log10(float x) {
  const logarithm of(x);
  // log10(2) in two parts, of which the first times n is exact.
  const float first = 0x1.344p-2f;
  const float rest = 4.60503898e-6f;
  return if_logarithm(x, of.n * first + (of.n * rest + of.of_m * 0.301029987f));
}

} // namespace mslc
