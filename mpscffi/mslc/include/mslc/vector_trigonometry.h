// Inverse trigonometric functions, written out as in vector_math.h. All stay below 3 units in the last place.
#pragma once
#pragma clang system_header
#include <metal_types>

namespace mslc {

constexpr float half_pi = 1.57079637f;
constexpr float half_pi_rest = -4.37113883e-8f; // what the float before lacks
constexpr float pi = 3.14159274f;
constexpr float pi_rest = -8.74227766e-8f;

// For |x| <= 1.
MSLC_FUNC float atan_of_unit(float x) {
  const float z = x * x;
  float p = 2.9206886e-03f;
  p = p * z - 1.6367914e-02f;
  p = p * z + 4.3211836e-02f;
  p = p * z - 7.5522125e-02f;
  p = p * z + 1.0666004e-01f;
  p = p * z - 1.4211056e-01f;
  p = p * z + 1.9993773e-01f;
  p = p * z - 3.3333153e-01f;
  return x + x * z * p;
}

MSLC_FUNC float atan(float x) {
  const float size = __builtin_fabsf(x);
  const bool is_steep = size > 1.0f;
  const float near = atan_of_unit(is_steep ? 1.0f / size : size);
  return __builtin_copysignf(is_steep ? (half_pi - near) + half_pi_rest : near, x);
}

MSLC_FUNC float atan2(float y, float x) {
  const float height = __builtin_fabsf(y);
  const float width = __builtin_fabsf(x);
  const float larger = height > width ? height : width;
  const float smaller = height > width ? width : height;
  // Of two zeros the ratio counts as 0, of two infinities as 1.
  const float ratio = larger == 0.0f ? 0.0f : smaller == larger ? 1.0f : smaller / larger;
  float angle = atan_of_unit(ratio);
  angle = height > width ? (half_pi - angle) + half_pi_rest : angle;
  angle = __builtin_bit_cast(int, x) < 0 ? (pi - angle) + pi_rest : angle;
  return x == x && y == y ? __builtin_copysignf(angle, y) : x + y;
}

// asin(x) = x + x z p(z) for z = x x, |x| <= 1/2.
MSLC_FUNC float asin_near_zero(float x, float z) {
  float p = 4.2218566e-02f;
  p = p * z + 2.4147602e-02f;
  p = p * z + 4.54771e-02f;
  p = p * z + 7.4952416e-02f;
  p = p * z + 1.6666754e-01f;
  return x + x * z * p;
}

MSLC_FUNC float asin(float x) {
  const float size = __builtin_fabsf(x);
  const bool is_steep = size > 0.5f;
  const float z = is_steep ? (1.0f - size) * 0.5f : x * x;
  const float near = asin_near_zero(is_steep ? __builtin_sqrtf(z) : size, z);
  const float steep = (half_pi - 2.0f * near) + half_pi_rest;
  return __builtin_copysignf(is_steep ? steep : near, x);
}

MSLC_FUNC float acos(float x) {
  const float size = __builtin_fabsf(x);
  const bool is_steep = size > 0.5f;
  const float z = is_steep ? (1.0f - size) * 0.5f : x * x;
  const float near = asin_near_zero(is_steep ? __builtin_sqrtf(z) : x, z);
  const float of_negative = (pi - 2.0f * near) + pi_rest;
  const float steep = x < 0.0f ? of_negative : 2.0f * near;
  return is_steep ? steep : (half_pi - near) + half_pi_rest;
}

} // namespace mslc
