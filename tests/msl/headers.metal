// Metal's headers one by one, in no order.
#include <metal_math>
#include <metal_atomic>
#include <simd/simd.h>
#include <metal_simdgroup>

kernel void headers(device float *x) {
  x[0] = metal::sin(x[0]);
}
