#include <metal_stdlib>
using namespace metal;

#define INDEX uint i [[thread_position_in_grid]]
#define INCREMENT(name, T)                                                                                             \
  kernel void name(device T *x, INDEX) {                                                                               \
    x[i] += T(1);                                                                                                      \
  }
INCREMENT(increment_float, float)
INCREMENT(increment_half, half)
INCREMENT(increment_bfloat, bfloat)
#undef INDEX
