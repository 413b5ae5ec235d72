// Functions of the graphics pipeline are no business of this compiler's; the kernel is.
#include <metal_stdlib>
using namespace metal;

struct Varyings {
  float4 position [[position]];
  float2 uv [[user(locn0)]];
};

vertex Varyings project(uint i [[vertex_id]], constant float4 *positions [[buffer(0)]]) {
  return {positions[i], float2(0)};
}

fragment half4 shade(Varyings in [[stage_in]]) {
  return half4(1);
}

kernel void compute(device float *x) {
  x[0] = 2;
}
