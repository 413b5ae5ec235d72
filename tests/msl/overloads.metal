// Kernels that share their names with functions and with each other.
#include <metal_stdlib>
using namespace metal;

void write(device float *x, float value) {
  x[0] = value;
}
kernel void write(device float *x) {
  write(x, 1.0);
}

template <typename T> kernel void put(device T *x, constant T &value) {
  x[0] = value;
}
template <typename T> kernel void put(device T *x) {
  x[0] = T(0);
}
template [[host_name("put_value")]] kernel void put<int>(device int *, constant int &);
template [[host_name("put_zero")]] kernel void put<int>(device int *);
