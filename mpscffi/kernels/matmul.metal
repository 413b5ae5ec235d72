// Products of matrices of any layout: each threadgroup computes a tile of one result, by products of 8 x 8 matrices
// summed in float.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

// Rows and columns of a tile, and how far it goes along the inner dimension at once.
constant constexpr uint TILE = 32;
constant constexpr uint DEPTH = 16;
// Four SIMD-groups, each with a quarter of the tile: 2 x 2 matrices.
constant constexpr uint THREADS = 128;
constant constexpr uint QUARTER = 16;

// The first element's place, and elements from one to the next along each dimension.
struct strides {
  long first, batch, row, column;
};

struct product {
  uint rows, columns, inner, reserved;
  strides left, right, result;
};

// Bring a part of a matrix, `width` columns of it, into threadgroup memory, as floats; what lies outside as zeros,
// which change no sum. Neighbouring threads read neighbouring elements, whichever way the matrix lies.
template <typename T>
inline void load(device const T *from, strides step, uint2 first, uint2 size, threadgroup float *to, uint height,
                 uint width, uint thread_index) {
  const bool by_rows = step.column == 1;
  for (uint i = thread_index; i < height * width; i += THREADS) {
    const uint row = by_rows ? i / width : i % height;
    const uint column = by_rows ? i % width : i / height;
    const uint2 at = first + uint2(row, column);
    const bool inside = at.x < size.x && at.y < size.y;
    to[row * width + column] = inside ? float(from[long(at.x) * step.row + long(at.y) * step.column]) : 0.0f;
  }
}

template <typename T>
[[kernel]] void matmul(device const T *left [[buffer(0)]], device const T *right [[buffer(1)]],
                       device T *result [[buffer(2)]], constant product &p [[buffer(3)]],
                       uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float a[TILE * DEPTH];
  threadgroup float b[DEPTH * TILE];
  threadgroup float c[TILE * TILE];
  const uint2 first = uint2(group.y, group.x) * TILE; // row and column of the tile
  const uint2 quarter = uint2(simdgroup / 2, simdgroup % 2) * QUARTER;
  left += p.left.first + long(group.z) * p.left.batch;
  right += p.right.first + long(group.z) * p.right.batch;
  result += p.result.first + long(group.z) * p.result.batch;

  simdgroup_float8x8 sums[2][2];
  for (uint i = 0; i < 2; i++) {
    for (uint j = 0; j < 2; j++) {
      sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  for (uint k = 0; k < p.inner; k += DEPTH) {
    load(left, p.left, uint2(first.x, k), uint2(p.rows, p.inner), a, TILE, DEPTH, thread_index);
    load(right, p.right, uint2(k, first.y), uint2(p.inner, p.columns), b, DEPTH, TILE, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint inner = 0; inner < DEPTH; inner += 8) {
      simdgroup_float8x8 x[2], y[2];
      for (uint i = 0; i < 2; i++) {
        simdgroup_load(x[i], a + (quarter.x + 8 * i) * DEPTH + inner, DEPTH);
        simdgroup_load(y[i], b + inner * TILE + quarter.y + 8 * i, TILE);
      }
      for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 2; j++) {
          simdgroup_multiply_accumulate(sums[i][j], x[i], y[j], sums[i][j]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = 0; i < 2; i++) {
    for (uint j = 0; j < 2; j++) {
      simdgroup_store(sums[i][j], c + (quarter.x + 8 * i) * TILE + quarter.y + 8 * j, TILE);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < TILE * TILE; i += THREADS) {
    const uint2 at = first + uint2(i / TILE, i % TILE);
    if (at.x < p.rows && at.y < p.columns) {
      result[long(at.x) * p.result.row + long(at.y) * p.result.column] = T(c[i]);
    }
  }
}

template [[host_name("matmul_float")]] [[kernel]] void matmul<float>(device const float *, device const float *,
                                                                     device float *, constant product &, uint3, uint,
                                                                     uint);
template [[host_name("matmul_half")]] [[kernel]] void matmul<half>(device const half *, device const half *,
                                                                   device half *, constant product &, uint3, uint,
                                                                   uint);
#if __METAL_VERSION__ >= 310
template [[host_name("matmul_bfloat")]] [[kernel]] void matmul<bfloat>(device const bfloat *, device const bfloat *,
                                                                       device bfloat *, constant product &, uint3,
                                                                       uint, uint);
#endif
