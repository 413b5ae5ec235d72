#pragma METAL fp contract(off)
#include <metal_stdlib>
#include <metal_logging>
using namespace metal;

#if __METAL_VERSION__ < 200 || !defined(__METAL__)
#error not Metal
#endif

kernel void unrolled(device float *x) {
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; i++) {
    x[i] = M_PI_F;
  }
  os_log_default.log("x is %f", x[0]);
}
