// Parameters that function constants leave out.
#include <metal_stdlib>
using namespace metal;

constant bool has_bias [[function_constant(0)]];
constant bool biased = is_function_constant_defined(has_bias) && has_bias;

kernel void add(device float *x [[buffer(0)]], device const float *bias [[buffer(1), function_constant(biased)]],
                constant float &scale [[buffer(2), function_constant(biased)]],
                uint i [[thread_position_in_grid]]) {
  if (biased) {
    x[i] += bias[i] * scale;
  } else {
    x[i] += 1;
  }
}
