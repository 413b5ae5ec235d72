// Variables in threadgroup memory, in scopes within scopes.
#include <metal_stdlib>
using namespace metal;

struct Pair {
  float a;
  half b;
};

kernel void nested(device float *x, uint i [[thread_index_in_threadgroup]]) {
  for (int n = 0; n < 2; n++) {
    threadgroup float first[64];
    first[i] = x[i];
    if (n) {
      alignas(16) threadgroup half second[2][32];
      threadgroup Pair pairs[64], one;
      second[i % 2][i / 2] = half(first[i]);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      threadgroup Pair *p = &pairs[i];
      p->a = second[1][0];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (i == 0) {
        one = pairs[63];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      x[i] = one.a;
    }
  }
}
