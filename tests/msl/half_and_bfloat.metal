#include <metal_stdlib>
using namespace metal;

typedef bfloat storage;

kernel void convert(device half *h, device bfloat *b, uint i [[thread_position_in_grid]]) {
  h[0] = half(b[0]);
  b[1] = (bfloat)h[1];
  h[2] = static_cast<half>(b[2] * 2.0bf);
  b[3] = storage(h[3]);
  h[4] = (half)-b[4 + i] + 1.5h;
}
