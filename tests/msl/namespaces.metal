#include <metal_stdlib>
using namespace metal;

namespace outer {
namespace inner {
kernel void in_namespaces(device float *x) {
  x[0] = 1;
}
} // namespace inner

template <typename T> [[kernel]] void of_type(device T *x) {
  x[0] = T(1);
}
template [[host_name("of_half")]] [[kernel]] void of_type<half>(device half *);
} // namespace outer

template [[host_name("of_float")]] [[kernel]] void outer::of_type<float>(device float *);
