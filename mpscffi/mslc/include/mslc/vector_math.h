// Functions that LLVM has no vector form for and that kernels call in inner loops: written out, so that they are
// vectorized with the code around them. The polynomials are minimax fits of their own interval; all stay below 4 units
// in the last place.
#pragma once
#pragma clang system_header
#include <metal_types>

namespace mslc {

// 2^n for -126 <= n <= 127.
MSLC_FUNC float power_of_two(int n) {
  return __builtin_bit_cast(float, (n + 127) << 23);
}

// 2^x as p 2^n.
struct power {
  float p; // [sqrt(1/2), sqrt(2)]
  int n;

  // For |x| < 2^22.
  MSLC_FUNC explicit power(float x) : power(__builtin_rintf(x), x - __builtin_rintf(x)) {
  }
  // For x in two parts: an integer, and f in [-1/2, 1/2].
  MSLC_FUNC power(float whole, float f) {
    p = 1.53533606e-04f;
    p = p * f + 1.33988749e-03f;
    p = p * f + 9.61843737e-03f;
    p = p * f + 5.55033247e-02f;
    p = p * f + 2.40226479e-01f;
    p = p * f + 6.93147203e-01f;
    p = p * f + 1.0f;
    n = __builtin_bit_cast(int, whole + 0x1.8p23f) - 0x4b400000; // the integer in the last bits of a float of that size
  }

  // p 2^(n + shift), for a sum between -151 and 129. 2^n alone need not be a float.
  MSLC_FUNC float shifted(int shift) const {
#pragma clang fp reassociate(off) // the product of both powers might be infinite where the result is not
    const int sum = n + shift;
    return p * power_of_two(sum >> 1) * power_of_two(sum - (sum >> 1));
  }
};

// x, or the nearest float between two others. NaN passes.
MSLC_FUNC float limited(float x, float low, float high) {
  const float not_above = x > high ? high : x;
  return not_above < low ? low : not_above;
}

// Where the result is infinite or zero anyhow, the argument may be any other with such a result.
MSLC_FUNC float exp2(float x) {
  return power(limited(x, -151.0f, 129.0f)).shifted(0);
}

// b^x as a power of two, with log2(b), and log_b(2) in two parts, of which the first times an integer is exact.
MSLC_FUNC power power_of_base(float x, float log2_of_base, float first, float rest) {
#pragma clang fp reassociate(off)
  const float whole = __builtin_rintf(x * log2_of_base);
  return power(whole, ((x - whole * first) - whole * rest) * log2_of_base);
}
constexpr float log2_of_e = 1.44269504f;
constexpr float ln_2_first = 0x1.62e4p-1f;
constexpr float ln_2_rest = 1.42860677e-06f;
constexpr float log2_of_10 = 3.32192809f;
constexpr float log10_of_2_first = 0x1.344p-2f;
constexpr float log10_of_2_rest = 4.60503898e-6f;

MSLC_FUNC power power_of_e(float x) {
  return power_of_base(limited(x, -104.0f, 89.5f), log2_of_e, ln_2_first, ln_2_rest);
}
MSLC_FUNC float exp(float x) {
  return power_of_e(x).shifted(0);
}
MSLC_FUNC float exp10(float x) {
  return power_of_base(limited(x, -45.0f, 38.6f), log2_of_10, log10_of_2_first, log10_of_2_rest).shifted(0);
}

// x = m 2^n with m in [sqrt(1/2), sqrt(2)): exact for powers of two, and no cancellation near 1.
struct logarithm {
  float n;
  float of_m; // log2(m)

  MSLC_FUNC explicit logarithm(float x) {
    // The CPU takes denormals for zero, but their bits tell the multiple of 2^-149.
    const int given = __builtin_bit_cast(int, x);
    const bool is_denormal = static_cast<uint>(given) < 0x00800000u;
    const int bits = is_denormal ? __builtin_bit_cast(int, static_cast<float>(given)) : given;
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
    n = static_cast<float>(power - (is_denormal ? 149 : 0));
    of_m = t * p;
  }

  // To another base b, with log_b(2) as a whole and in two parts, of which the first times n is exact.
  MSLC_FUNC float to_base(float log_of_2, float first, float rest) const {
    return n * first + (n * rest + of_m * log_of_2);
  }
};

// `result`, where it is the logarithm of x: of a number above zero.
MSLC_FUNC float if_logarithm(float x, float result) {
  const float special = x < 0.0f ? __builtin_nanf("") : x == 0.0f ? -__builtin_inff() : x;
  return __builtin_bit_cast(uint, x) - 1u < 0x7f7fffffu ? result : special;
}

MSLC_FUNC float log2(float x) {
  const logarithm of(x);
  return if_logarithm(x, of.n + of.of_m);
}
MSLC_FUNC float log(float x) {
  return if_logarithm(x, logarithm(x).to_base(0.693147182f, ln_2_first, ln_2_rest));
}
MSLC_FUNC float log10(float x) {
  return if_logarithm(x, logarithm(x).to_base(0.301029987f, log10_of_2_first, log10_of_2_rest));
}

} // namespace mslc
