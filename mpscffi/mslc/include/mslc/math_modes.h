// The namespaces that choose between accuracy and speed. The host device's functions are as accurate as `precise` asks
// for in all of them, so both hold the functions of `metal` itself.
#pragma once
#pragma clang system_header
#include <metal_geometric>
#include <metal_integer>
#include <metal_relational>

// clang-format off
#define MSLC_MATH_FUNCTIONS(USE) \
  USE(acos) USE(acosh) USE(asin) USE(asinh) USE(atan) USE(atan2) USE(atanh) USE(ceil) USE(copysign) USE(cos) \
  USE(cosh) USE(cospi) USE(divide) USE(exp) USE(exp10) USE(exp2) USE(fabs) USE(fdim) USE(floor) USE(fma) USE(fmax) \
  USE(fmax3) USE(fmedian3) USE(fmin) USE(fmin3) USE(fmod) USE(fract) USE(frexp) USE(ilogb) USE(ldexp) USE(log) \
  USE(log10) USE(log2) USE(modf) USE(nextafter) USE(pow) USE(powr) USE(rint) USE(round) USE(rsqrt) USE(saturate) \
  USE(sign) USE(sin) USE(sincos) USE(sinh) USE(sinpi) USE(sqrt) USE(step) USE(tan) USE(tanh) USE(tanpi) USE(trunc) \
  USE(isnan) USE(isinf) USE(isfinite) USE(isnormal) USE(signbit) USE(abs) USE(clamp) USE(max) USE(max3) \
  USE(median3) USE(min) USE(min3) USE(mix) USE(smoothstep) USE(distance) USE(distance_squared) USE(dot) \
  USE(length) USE(length_squared) USE(normalize) USE(reflect) USE(refract) USE(faceforward) USE(cross)
// clang-format on

namespace metal {

#define MSLC_USE(name) using metal::name;
namespace precise {
MSLC_MATH_FUNCTIONS(MSLC_USE)
}
namespace fast {
MSLC_MATH_FUNCTIONS(MSLC_USE)
}
#undef MSLC_USE

} // namespace metal

#undef MSLC_MATH_FUNCTIONS
