// Limits of threadgroups that depend on a template's parameters.
#include <metal_stdlib>
using namespace metal;

template <typename T, int N> [[kernel, max_total_threads_per_threadgroup(N * 32)]] void limited(device T *x) {
  x[0] = T(N);
}
template [[host_name("limited_4")]] [[kernel]] void limited<float, 4>(device float *);
template [[host_name("limited_8")]] [[kernel]] decltype(limited<half, 8>) limited<half, 8>;

[[kernel]] [[max_total_threads_per_threadgroup(64)]] void limited_64(device float *x) {
  x[0] = 64;
}
