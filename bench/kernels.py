"""Kernels with barriers and SIMD-group functions: reductions, softmax, matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import Case, Report, finish, measure

import mpscffi as mps

COUNT = 4 << 20
ROWS, COLUMNS = 4096, 1024
SIDE = 1024

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void tree(device const float *in, device float *out, uint at [[thread_position_in_grid]],
                 uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
                 uint size [[threads_per_threadgroup]]) {
  threadgroup float sums[256];
  sums[t] = in[at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint s = size / 2; s > 0; s >>= 1) {
    if (t < s) { sums[t] += sums[t + s]; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) { out[group] = sums[0]; }
}

kernel void softmax(device const float *in, device float *out, constant uint &n,
                    uint row [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                    uint size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float shared[32];
  device const float *x = in + row * n;
  device float *y = out + row * n;
  float largest = -INFINITY;
  for (uint i = t; i < n; i += size) { largest = max(largest, x[i]); }
  largest = simd_max(largest);
  if (lane == 0) { shared[simdgroup] = largest; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  largest = simd_max(lane < simdgroups ? shared[lane] : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint i = t; i < n; i += size) {
    float e = exp(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  sum = simd_sum(sum);
  if (lane == 0) { shared[simdgroup] = sum; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = simd_sum(lane < simdgroups ? shared[lane] : 0);
  for (uint i = t; i < n; i += size) { y[i] /= sum; }
}

kernel void tiled(device const float *a, device const float *b, device float *c, constant uint &n,
                  uint2 at [[thread_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float left[16][16], right[16][16];
  float sum = 0;
  for (uint k = 0; k < n; k += 16) {
    left[t.y][t.x] = a[at.y * n + k + t.x];
    right[t.y][t.x] = b[(k + t.y) * n + at.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 16; i++) { sum += left[t.y][i] * right[i][t.x]; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  c[at.y * n + at.x] = sum;
}

kernel void blocked(device const float *a, device const float *b, device float *c, constant uint &n,
                    uint2 group [[threadgroup_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float left[64][16], right[16][64];
  float sum[4][4] = {};
  for (uint k = 0; k < n; k += 16) {
    for (uint i = t.y * 16 + t.x; i < 1024; i += 256) {
      left[i / 16][i % 16] = a[(group.y * 64 + i / 16) * n + k + i % 16];
      right[i / 64][i % 64] = b[(k + i / 64) * n + group.x * 64 + i % 64];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 16; i++) {
      for (uint r = 0; r < 4; r++) {
        for (uint q = 0; q < 4; q++) { sum[r][q] += left[t.y * 4 + r][i] * right[i][t.x * 4 + q]; }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint r = 0; r < 4; r++) {
    for (uint q = 0; q < 4; q++) { c[(group.y * 64 + t.y * 4 + r) * n + group.x * 64 + t.x * 4 + q] = sum[r][q]; }
  }
}
"""

# The same kernels; OpenCL 1.2 has no functions of subgroups, so softmax reduces by trees.
OPENCL = """
kernel void tree(global const float *in, global float *out) {
  local float sums[256];
  uint t = get_local_id(0);
  sums[t] = in[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint s = get_local_size(0) / 2; s > 0; s >>= 1) {
    if (t < s) { sums[t] += sums[t + s]; }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (t == 0) { out[get_group_id(0)] = sums[0]; }
}

kernel void softmax(global const float *in, global float *out, uint n) {
  local float shared[256];
  uint t = get_local_id(0), size = get_local_size(0);
  global const float *x = in + get_group_id(0) * n;
  global float *y = out + get_group_id(0) * n;
  float part = -INFINITY;
  for (uint i = t; i < n; i += size) { part = fmax(part, x[i]); }
  shared[t] = part;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint s = size / 2; s > 0; s >>= 1) {
    if (t < s) { shared[t] = fmax(shared[t], shared[t + s]); }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  float largest = shared[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  for (uint i = t; i < n; i += size) {
    float e = exp(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  shared[t] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint s = size / 2; s > 0; s >>= 1) {
    if (t < s) { shared[t] += shared[t + s]; }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (uint i = t; i < n; i += size) { y[i] /= shared[0]; }
}

kernel void tiled(global const float *a, global const float *b, global float *c, uint n) {
  local float left[16][16], right[16][16];
  uint x = get_local_id(0), y = get_local_id(1), at_x = get_global_id(0), at_y = get_global_id(1);
  float sum = 0;
  for (uint k = 0; k < n; k += 16) {
    left[y][x] = a[at_y * n + k + x];
    right[y][x] = b[(k + y) * n + at_x];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < 16; i++) { sum += left[y][i] * right[i][x]; }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c[at_y * n + at_x] = sum;
}

kernel void blocked(global const float *a, global const float *b, global float *c, uint n) {
  local float left[64][16], right[16][64];
  uint x = get_local_id(0), y = get_local_id(1), from_x = get_group_id(0) * 64, from_y = get_group_id(1) * 64;
  float sum[4][4] = {{0}};
  for (uint k = 0; k < n; k += 16) {
    for (uint i = y * 16 + x; i < 1024; i += 256) {
      left[i / 16][i % 16] = a[(from_y + i / 16) * n + k + i % 16];
      right[i / 64][i % 64] = b[(k + i / 64) * n + from_x + i % 64];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < 16; i++) {
      for (uint r = 0; r < 4; r++) {
        for (uint q = 0; q < 4; q++) { sum[r][q] += left[y * 4 + r][i] * right[i][x * 4 + q]; }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (uint r = 0; r < 4; r++) {
    for (uint q = 0; q < 4; q++) { c[(from_y + y * 4 + r) * n + from_x + x * 4 + q] = sum[r][q]; }
  }
}
"""


def numpy_softmax(x: np.ndarray, out: np.ndarray) -> None:
    """Softmax of each row, with as few temporaries as NumPy allows."""
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=1, keepdims=True)


def ours(values: dict[str, np.ndarray]) -> dict[str, Callable[[], mps.Array]]:
    """Return what runs each kernel to its end and gives its result."""
    library = mps.compile_shader(SOURCE)
    long, rows, a, b = (mps.asarray(values[name]) for name in ("long", "rows", "a", "b"))
    sums, soft, product = mps.empty(COUNT // 256), mps.empty((ROWS, COLUMNS)), mps.empty((SIDE, SIDE))

    def runner(kernel: mps.Kernel, out: mps.Array, *arguments: Any, **sizes: Any) -> Callable[[], mps.Array]:
        def run() -> mps.Array:
            kernel(*arguments, **sizes)
            mps.synchronize()
            return out

        return run

    square: dict[str, Any] = {"group_size": (16, 16)}
    return {
        "tree": runner(library.tree, sums, long, sums, threads=COUNT, group_size=256),
        "softmax": runner(library.softmax, soft, rows, soft, COLUMNS, threads=ROWS * 256, group_size=256),
        "tiled": runner(library.tiled, product, a, b, product, SIDE, threads=(SIDE, SIDE), **square),
        "blocked": runner(library.blocked, product, a, b, product, SIDE, threads=(SIDE // 4, SIDE // 4), **square),
    }


def pocl(values: dict[str, np.ndarray]) -> dict[str, Callable[[], None]]:
    """Return what runs each kernel to its end on PoCL, or raise ImportError."""
    from peers import pocl as connect

    peer = connect()
    cl, flags = peer.cl, peer.cl.mem_flags.READ_WRITE
    program = cl.Program(peer.context, OPENCL).build()
    inputs = {
        name: cl.Buffer(peer.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=host) for name, host in values.items()
    }
    out = cl.Buffer(peer.context, flags, COUNT * 4)

    def runner(
        name: str, names: tuple[str, ...], side: int, threads: tuple[int, ...], group: tuple[int, ...]
    ) -> Callable[[], None]:
        kernel = cl.Kernel(program, name)
        arguments = [*(inputs[item] for item in names), out, *([np.uint32(side)] if side else [])]

        def run() -> None:
            kernel.set_args(*arguments)  # which does not keep them
            cl.enqueue_nd_range_kernel(peer.queue, kernel, threads, group)
            peer.queue.finish()

        return run

    return {
        "tree": runner("tree", ("long",), 0, (COUNT,), (256,)),
        "softmax": runner("softmax", ("rows",), COLUMNS, (ROWS * 256,), (256,)),
        "tiled": runner("tiled", ("a", "b"), SIDE, (SIDE, SIDE), (16, 16)),
        "blocked": runner("blocked", ("a", "b"), SIDE, (SIDE // 4, SIDE // 4), (16, 16)),
    }


def main() -> None:
    """Measure and print."""
    report = Report("Kernels with barriers: 4M sums, softmax 4096x1024, matrix products of 1024")
    rng = np.random.default_rng(1)
    values = {
        "long": rng.random(COUNT, dtype=np.float32),
        "rows": rng.standard_normal((ROWS, COLUMNS), dtype=np.float32),
        "a": rng.random((SIDE, SIDE), dtype=np.float32),
        "b": rng.random((SIDE, SIDE), dtype=np.float32),
    }
    soft = np.empty_like(values["rows"])
    numpy: dict[str, Callable[[], object]] = {
        "tree": lambda: values["long"].reshape(-1, 256).sum(axis=1),
        "softmax": lambda: numpy_softmax(values["rows"], soft),
        "tiled": lambda: values["a"] @ values["b"],
    }
    numpy["blocked"] = numpy["tiled"]
    kernels = ours(values)
    for name, run in kernels.items():
        expected = numpy[name]()
        np.testing.assert_allclose(run().numpy(), soft if expected is None else expected, rtol=1e-4)
    try:
        peers = pocl(values)
    except ImportError as error:
        report.skip("PoCL", error)
        peers = {}
    targets = {"softmax": 5.0}
    for name, run in kernels.items():
        cases = [
            Case(name, run, peer=f"numpy {name}", target=targets.get(name)),
            Case(f"numpy {name}", numpy[name]),
        ]
        if name in peers:
            cases += [
                Case(f"PoCL {name}", peers[name]),
                Case(f"{name} again", run, peer=f"PoCL {name}", target=1.0),
            ]
        report.add(measure(cases, rounds=9, slice_seconds=0.05))
    finish(report)


if __name__ == "__main__":
    main()
