"""Compiles Metal kernels, runs them on the device in use and checks what they compute against NumPy.

Run it as ``python -m mpscffi.demo``; it exits with 1 if a result is wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mpscffi
from mpscffi.memory.sizes import readable

__all__ = ["main"]

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void full(device float* out, constant float& value, uint i [[thread_position_in_grid]]) {
  out[i] = value;
}

kernel void saxpy(device float* y, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  y[i] = a * x[i] + y[i];
}

// One sum for each threadgroup of 256.
kernel void group_sum(device float* out, device const float* in, uint i [[thread_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]], uint g [[threadgroup_position_in_grid]]) {
  threadgroup float part[256];
  part[t] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 128; step > 0; step /= 2) {
    if (t < step) {
      part[t] += part[t + step];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) {
    out[g] = part[0];
  }
}

// Each SIMD-group has a row of 32.
kernel void softmax(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  float e = exp(in[i] - simd_max(in[i]));
  out[i] = e / simd_sum(e);
}

constant constexpr uint TILE = 16;
kernel void matmul(device float* c, device const float* a, device const float* b, constant uint& n,
                   uint2 p [[thread_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float ta[TILE][TILE], tb[TILE][TILE];
  float sum = 0;
  for (uint first = 0; first < n; first += TILE) {
    ta[t.y][t.x] = a[p.y * n + first + t.x];
    tb[t.y][t.x] = b[(first + t.y) * n + p.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < TILE; k++) {
      sum += ta[t.y][k] * tb[k][t.x];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  c[p.y * n + p.x] = sum;
}

kernel void histogram(device atomic_uint* bins, device const uchar* in, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[in[i]], 1u, memory_order_relaxed);
}
"""


class Case(NamedTuple):
    """One kernel: how to queue it, what it writes, and what NumPy says that is."""

    name: str
    run: Callable[[], None]
    result: mpscffi.Array
    expected: Any
    tolerance: float


def cases(library: Any) -> list[Case]:
    """Return the kernels with their data."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    x, y = (rng.standard_normal(1_000_003).astype(np.float32) for _ in range(2))
    values = rng.integers(-8, 8, 256 * 400).astype(np.float32)
    rows = rng.standard_normal((3000, 32)).astype(np.float32)
    data = rng.integers(0, 256, 500_000, dtype=np.uint8)
    exponentials = np.exp(rows.astype(np.float64))
    da, db, dx, dv, dr, dd = map(mpscffi.asarray, (a, b, x, values, rows, data))
    c, sums, soft = mpscffi.empty(256, 256), mpscffi.empty(400), mpscffi.empty(3000, 32)
    filled, dy, bins = mpscffi.empty(16), mpscffi.asarray(y), mpscffi.zeros(256, dtype="uint32")
    return [
        Case("full", lambda: library.full(filled, 3.14), filled, np.full(16, 3.14, np.float32), 0),
        Case("saxpy", lambda: library.saxpy(dy, dx, 0.5), dy, 0.5 * x.astype(np.float64) + y, 1e-6),
        Case(
            "group_sum",
            lambda: library.group_sum(sums, dv, threads=dv.size, group_size=256),
            sums,
            values.reshape(400, 256).sum(axis=1),
            0,
        ),
        Case(
            "softmax",
            lambda: library.softmax(soft, dr, group_size=256),
            soft,
            exponentials / exponentials.sum(axis=1, keepdims=True),
            1e-6,
        ),
        Case(
            "matmul",
            lambda: library.matmul(c, da, db, 256, threads=(256, 256), group_size=(16, 16)),
            c,
            a.astype(np.float64) @ b.astype(np.float64),
            1e-4,
        ),
        Case(
            "histogram",
            lambda: library.histogram(bins, dd, threads=data.size),
            bins,
            np.bincount(data, minlength=256),
            0,
        ),
    ]


def main() -> int:
    """Run the demo; return 0 if all results are right."""
    device = mpscffi.current_device()
    print(f"device     {device.backend}: {device.name}, {device.core_count} cores")
    if not mpscffi.is_available():
        print(f"metal      not available: {mpscffi.why_unavailable()}")
    begin = time.perf_counter()
    library = mpscffi.compile_shader(SOURCE)
    print(f"source     {len(SOURCE.splitlines())} lines checked in {(time.perf_counter() - begin) * 1e3:.1f} ms")
    print(f"\n{'kernel':<12}{'elements':>10}{'compile':>12}{'run':>12}  result")
    right = 0
    all_cases = cases(library)
    for case in all_cases:
        begin = time.perf_counter()
        limit = library[case.name].max_threads_per_threadgroup  # asking makes the kernel ready
        compiled = time.perf_counter() - begin
        start, end = mpscffi.Event(enable_timing=True), mpscffi.Event(enable_timing=True)
        start.record()
        case.run()
        end.record()
        elapsed = start.elapsed_time(end)
        error = float(np.abs(case.result.numpy() - case.expected).max())
        is_right = error <= case.tolerance and limit > 0
        right += is_right
        print(
            f"{case.name:<12}{case.result.size:>10}{compiled * 1e3:>9.1f} ms{elapsed:>9.3f} ms  "
            f"{'right' if is_right else 'WRONG'}, largest error {error:.1e}"
        )
    print(
        f"\n{len(library)} kernels compiled, {right} of {len(all_cases)} results right; in arrays "
        f"{readable(mpscffi.current_allocated_memory())}, held by the driver "
        f"{readable(mpscffi.driver_allocated_memory())} of {readable(mpscffi.recommended_max_memory())}"
    )
    return 0 if right == len(all_cases) else 1


if __name__ == "__main__":
    sys.exit(main())
