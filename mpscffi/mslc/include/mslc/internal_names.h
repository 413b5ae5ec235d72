// Names of Apple's library that its own headers hide and that published kernels call all the same.
#pragma once
#pragma clang system_header
#include <metal_integer>
#include <metal_quadgroup>
#include <metal_simdgroup>

// Those of mathematics end with the math mode, which here makes no difference.
#define MSLC_INTERNAL_1(name)                                                                                          \
  template <class T> MSLC_FUNC T __metal_##name(T a, bool = false) {                                                   \
    return metal::name(a);                                                                                             \
  }
#define MSLC_INTERNAL_2(name)                                                                                          \
  template <class T> MSLC_FUNC T __metal_##name(T a, T b, bool = false) {                                              \
    return metal::name(a, b);                                                                                          \
  }
#define MSLC_INTERNAL_3(name)                                                                                          \
  template <class T> MSLC_FUNC T __metal_##name(T a, T b, T c, bool = false) {                                         \
    return metal::name(a, b, c);                                                                                       \
  }
MSLC_INTERNAL_1(acos)
MSLC_INTERNAL_1(acosh)
MSLC_INTERNAL_1(asin)
MSLC_INTERNAL_1(asinh)
MSLC_INTERNAL_1(atan)
MSLC_INTERNAL_1(atanh)
MSLC_INTERNAL_1(ceil)
MSLC_INTERNAL_1(cos)
MSLC_INTERNAL_1(cosh)
MSLC_INTERNAL_1(cospi)
MSLC_INTERNAL_1(exp)
MSLC_INTERNAL_1(exp10)
MSLC_INTERNAL_1(exp2)
MSLC_INTERNAL_1(fabs)
MSLC_INTERNAL_1(floor)
MSLC_INTERNAL_1(fract)
MSLC_INTERNAL_1(log)
MSLC_INTERNAL_1(log10)
MSLC_INTERNAL_1(log2)
MSLC_INTERNAL_1(rint)
MSLC_INTERNAL_1(round)
MSLC_INTERNAL_1(rsqrt)
MSLC_INTERNAL_1(sin)
MSLC_INTERNAL_1(sinh)
MSLC_INTERNAL_1(sinpi)
MSLC_INTERNAL_1(sqrt)
MSLC_INTERNAL_1(tan)
MSLC_INTERNAL_1(tanh)
MSLC_INTERNAL_1(tanpi)
MSLC_INTERNAL_1(trunc)
MSLC_INTERNAL_2(atan2)
MSLC_INTERNAL_2(divide)
MSLC_INTERNAL_2(fmax)
MSLC_INTERNAL_2(fmin)
MSLC_INTERNAL_2(fmod)
MSLC_INTERNAL_2(nextafter)
MSLC_INTERNAL_2(pow)
MSLC_INTERNAL_2(powr)
MSLC_INTERNAL_3(fma)
MSLC_INTERNAL_3(fmax3)
MSLC_INTERNAL_3(fmedian3)
MSLC_INTERNAL_3(fmin3)
#undef MSLC_INTERNAL_1
#undef MSLC_INTERNAL_2
#undef MSLC_INTERNAL_3

template <class T, class E> MSLC_FUNC T __metal_ldexp(T a, E exponent, bool = false) {
  return metal::ldexp(a, exponent);
}
template <class T, class E> MSLC_FUNC T __metal_frexp(T a, E &exponent, bool = false) {
  return metal::frexp(a, exponent);
}
template <class T, class E> MSLC_FUNC T __metal_frexp(T a, E *exponent, bool = false) {
  return metal::frexp(a, *exponent);
}

#define MSLC_INTERNAL_GROUP(name)                                                                                      \
  template <class... A> MSLC_FUNC auto __metal_##name(A... arguments) {                                                \
    return metal::name(arguments...);                                                                                  \
  }
MSLC_INTERNAL_GROUP(simd_broadcast)
MSLC_INTERNAL_GROUP(simd_shuffle)
MSLC_INTERNAL_GROUP(simd_shuffle_and_fill_down)
MSLC_INTERNAL_GROUP(simd_shuffle_and_fill_up)
MSLC_INTERNAL_GROUP(simd_shuffle_down)
MSLC_INTERNAL_GROUP(simd_shuffle_rotate_down)
MSLC_INTERNAL_GROUP(simd_shuffle_rotate_up)
MSLC_INTERNAL_GROUP(simd_shuffle_up)
MSLC_INTERNAL_GROUP(simd_shuffle_xor)
MSLC_INTERNAL_GROUP(simd_max)
MSLC_INTERNAL_GROUP(simd_min)
MSLC_INTERNAL_GROUP(simd_product)
MSLC_INTERNAL_GROUP(simd_sum)
MSLC_INTERNAL_GROUP(simd_prefix_exclusive_product)
MSLC_INTERNAL_GROUP(simd_prefix_exclusive_sum)
MSLC_INTERNAL_GROUP(simd_prefix_inclusive_product)
MSLC_INTERNAL_GROUP(simd_prefix_inclusive_sum)
MSLC_INTERNAL_GROUP(quad_broadcast)
MSLC_INTERNAL_GROUP(quad_shuffle)
MSLC_INTERNAL_GROUP(quad_shuffle_down)
MSLC_INTERNAL_GROUP(quad_shuffle_up)
MSLC_INTERNAL_GROUP(quad_shuffle_xor)
#undef MSLC_INTERNAL_GROUP

// By these names, unlike by those of the library, floats have bits too.
#define MSLC_INTERNAL_BITS(name)                                                                                       \
  template <class T> MSLC_FUNC T __metal_##name(T value) {                                                             \
    if constexpr (mslc::is_floating<T>) {                                                                              \
      using bits = mslc::conditional_t<sizeof(mslc::element_of<T>) == 4, int, short>;                                  \
      return metal::as_type<T>(metal::name(metal::as_type<mslc::with_element<T, bits>>(value)));                       \
    } else {                                                                                                           \
      return metal::name(value);                                                                                       \
    }                                                                                                                  \
  }
MSLC_INTERNAL_BITS(simd_and)
MSLC_INTERNAL_BITS(simd_or)
MSLC_INTERNAL_BITS(simd_xor)
#undef MSLC_INTERNAL_BITS

MSLC_FUNC ushort __metal_get_simdgroup_size(ushort = 0) {
  return MSLC_SIMD_WIDTH;
}

template <class T> struct __is_valid_simdgroup_type : metal::bool_constant<mslc::is_value<T>> {};
