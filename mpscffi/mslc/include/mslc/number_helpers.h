// What the compiler calls by name where the CPU has no instruction for it: conversions of half and bfloat, and integer
// powers, which it makes of `pow` in the fast math mode. They belong to a compiler's support library; a kernel library
// links against none, so each brings its own.
#pragma once
#pragma clang system_header
#include <metal_types>

namespace mslc {

inline float half_to_float(ushort half_bits) {
  const uint sign = (half_bits & 0x8000u) << 16;
  const uint magnitude = half_bits & 0x7fffu;
  uint bits;
  if (magnitude >= 0x7c00u) { // infinity and NaN
    bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + ((127u - 15u) << 23);
  } else { // zero, and denormals, which are exact multiples of 2^-24
    bits = __builtin_bit_cast(uint, static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
  }
  return __builtin_bit_cast(float, sign | bits);
}

inline ushort float_to_half(float value) {
  const uint bits = __builtin_bit_cast(uint, value);
  const uint sign = bits >> 16 & 0x8000u;
  const uint magnitude = bits & 0x7fffffffu;
  uint result;
  if (magnitude > 0x7f800000u) { // NaN, made quiet
    result = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) { // rounds to 2^16 or more
    result = 0x7c00u;
  } else if (magnitude >= 0x38800000u) { // to nearest, ties to even
    result = (magnitude - ((127u - 15u) << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else if (magnitude < 0x33000000u) { // less than half of the smallest denormal
    result = 0;
  } else {
    const uint shift = 126u - (magnitude >> 23); // 14 to 24
    const uint mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint dropped = mantissa & ((1u << shift) - 1u);
    const uint tie = 1u << (shift - 1u);
    result = mantissa >> shift;
    result += dropped > tie || (dropped == tie && (result & 1u)) ? 1u : 0u;
  }
  return static_cast<ushort>(sign | result);
}

inline ushort float_to_bfloat(float value) {
  const uint bits = __builtin_bit_cast(uint, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<ushort>(bits >> 16 | 0x40u);
  }
  return static_cast<ushort>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// In double, so that the products' errors do not show.
inline float integer_power(float base, int exponent) {
  double result = 1.0;
  double square = base;
  for (uint left = exponent < 0 ? 0u - static_cast<uint>(exponent) : static_cast<uint>(exponent); left != 0;
       left >>= 1) {
    if (left & 1u) {
      result *= square;
    }
    square *= square;
  }
  return static_cast<float>(exponent < 0 ? 1.0 / result : result);
}

} // namespace mslc

#define MSLC_NUMBER_HELPER(type, name, parameter, ...)                                                                 \
  extern "C" __attribute__((weak, visibility("hidden"))) type name(parameter value) {                                  \
    return __builtin_bit_cast(type, __VA_ARGS__);                                                                      \
  }

#if defined(__F16C__) || defined(__aarch64__)
#define MSLC_HALF_HELPERS
#else
#define MSLC_HALF_HELPERS                                                                                              \
  MSLC_NUMBER_HELPER(float, __extendhfsf2, half, mslc::half_to_float(__builtin_bit_cast(ushort, value)))               \
  MSLC_NUMBER_HELPER(half, __truncsfhf2, float, mslc::float_to_half(value))
#endif

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
#define MSLC_BFLOAT_HELPERS
#else
#define MSLC_BFLOAT_HELPERS MSLC_NUMBER_HELPER(bfloat, __truncsfbf2, float, mslc::float_to_bfloat(value))
#endif

#define MSLC_POWER_HELPER                                                                                              \
  extern "C" __attribute__((weak, visibility("hidden"))) float __powisf2(float base, int exponent) {                   \
    return mslc::integer_power(base, exponent);                                                                        \
  }

#define MSLC_NUMBER_HELPERS MSLC_HALF_HELPERS MSLC_BFLOAT_HELPERS MSLC_POWER_HELPER
