// Hyperbolic functions and their inverses, written out as in vector_math.h. All stay below 4 units in the last place.
#pragma once
#pragma clang system_header
#include <mslc/vector_math.h>

namespace mslc {

constexpr float ln_2 = 0.693147182f;

MSLC_FUNC float tanh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = -0.00552862f;
  p = p * z + 0.02048331f;
  p = p * z - 0.05369296f;
  p = p * z + 0.133309f;
  p = p * z - 0.33333263f;
  const float near_zero = size + size * z * p;
  const power of((size > 20.0f ? 20.0f : size) * 2.88539008f); // e^(2 size); of more it is 1 anyhow
  const float far = 1.0f - 2.0f / (of.p * power_of_two(of.n) + 1.0f);
  return __builtin_copysignf(size < 0.65f ? near_zero : far, x);
}

MSLC_FUNC float sinh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = 2.8174395e-06f;
  p = p * z + 1.9836066e-04f;
  p = p * z + 8.3333505e-03f;
  p = p * z + 1.6666667e-01f;
  const float near_zero = x + x * z * p;
  const float half_of_exp = power_of_e(size).shifted(-1); // may be a float where e^x is too large for one
  const float far = half_of_exp - 0.25f / half_of_exp;
  return size < 1.0f ? near_zero : __builtin_copysignf(far, x);
}

MSLC_FUNC float cosh(float x) {
  const float half_of_exp = power_of_e(__builtin_fabsf(x)).shifted(-1);
  return half_of_exp + 0.25f / half_of_exp;
}

constexpr float square_is_all = 0x1p30f; // x x + 1 and x x - 1 are the same float as x x

MSLC_FUNC float asinh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = 9.175388e-03f;
  p = p * z - 1.9985635e-02f;
  p = p * z + 3.00145e-02f;
  p = p * z - 4.4613443e-02f;
  p = p * z + 7.49989e-02f;
  p = p * z - 1.6666666e-01f;
  const float near_zero = size + size * z * p;
  const bool is_big = size > square_is_all;
  const float far = log(is_big ? size : size + __builtin_sqrtf(z + 1.0f)) + (is_big ? ln_2 : 0.0f);
  return __builtin_copysignf(size < 0.5f ? near_zero : far, x);
}

MSLC_FUNC float acosh(float x) {
  const float t = x - 1.0f;
  float p = 1.4336545e-04f;
  p = p * t - 6.245511e-04f;
  p = p * t + 1.8759063e-03f;
  p = p * t - 5.5766804e-03f;
  p = p * t + 1.8749725e-02f;
  p = p * t - 8.333333e-02f;
  const float root = __builtin_sqrtf(2.0f * t);
  const float near_one = root + root * t * p;
  const bool is_big = x > square_is_all;
  const float far = log(is_big ? x : x + __builtin_sqrtf(t * (x + 1.0f))) + (is_big ? ln_2 : 0.0f);
  return x < 1.5f ? near_one : far;
}

MSLC_FUNC float atanh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = 1.7719647e-01f;
  p = p * z + 5.098552e-02f;
  p = p * z + 1.183396e-01f;
  p = p * z + 1.4221486e-01f;
  p = p * z + 2.0002587e-01f;
  p = p * z + 3.33333e-01f;
  const float near_zero = x + x * z * p;
  const float far = 0.5f * log((1.0f + size) / (1.0f - size));
  return size < 0.5f ? near_zero : __builtin_copysignf(far, x);
}

} // namespace mslc
