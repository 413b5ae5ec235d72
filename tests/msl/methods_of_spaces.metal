// Methods and functions for each address space.
#include <metal_stdlib>
using namespace metal;

struct Complex {
  float re, im;
  Complex(float x) thread : re(x), im(0) {}
  Complex(float x) constant : re(x), im(0) {}
  float norm() const thread {
    return re * re + im * im;
  }
  float norm() const device {
    return re * re + im * im;
  }
  float norm() const constant {
    return re * re + im * im;
  }
  float norm() const threadgroup {
    return re * re + im * im;
  }
};

float first(device const float *x) {
  return x[0];
}
float first(threadgroup const float *x) {
  return x[0];
}
float first(constant float *x) {
  return x[0];
}

constant Complex one(1.0);
constant float table[3] = {1.0, 2.0, 3.0};

kernel void methods(device float *x, constant float *y) {
  threadgroup float z[1];
  Complex c(2.0);
  z[0] = first(x);
  x[0] = c.norm() + one.norm() + first(y) + first(z) + table[2];
}
