"""Faults that users of such libraries met with grids, groups, barriers, SIMD-groups and limits. One test a fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mps.ShaderLibrary]

GRIDS = """
#include <metal_stdlib>
using namespace metal;
kernel void count(device atomic_uint *visits, device uint *sizes, uint3 p [[thread_position_in_grid]],
                  uint3 n [[threads_per_grid]], uint3 actual [[threads_per_threadgroup]],
                  uint3 asked [[dispatch_threads_per_threadgroup]], uint3 g [[threadgroup_position_in_grid]]) {
  uint at = (p.z * n.y + p.y) * n.x + p.x;
  atomic_fetch_add_explicit(&visits[at], 1u, memory_order_relaxed);
  uint3 rest = n - g * asked;
  sizes[at] = all(actual == min(rest, asked));
}
[[max_total_threads_per_threadgroup(64)]] kernel void narrow(device uint *out, uint i [[thread_position_in_grid]]) {
  out[i] = i;
}
kernel void ids(device uint *out, uint i [[thread_position_in_grid]]) { out[i] = i + 1; }
"""


@pytest.mark.parametrize("group", [1025, (1024, 2, 1), 0, -1, (0, 1)])
def test_group_beyond_the_limit_raises_and_runs_nothing(compiled: Compile, group: Any) -> None:
    out = mps.zeros(4096, dtype=np.uint32)
    dimensions = len(group) if isinstance(group, tuple) else 1
    limit = "1024" if group not in (0, -1, (0, 1)) else "1|positive"
    with pytest.raises(ValueError, match=limit):
        compiled(GRIDS).ids(out, threads=(4096, 2, 1)[:dimensions], group_size=group)
    assert not out.numpy().any()


def test_kernels_own_limit_is_known_and_kept(compiled: Compile) -> None:
    kernel, out = compiled(GRIDS).narrow, mps.zeros(200, dtype=np.uint32)
    assert kernel.max_threads_per_threadgroup == 64
    with pytest.raises(ValueError, match="64"):
        kernel(out, group_size=65)
    kernel(out)
    np.testing.assert_array_equal(out.numpy(), np.arange(200))


@pytest.mark.parametrize("threads", [1, 31, 257, (24, 512, 1), (7, 5, 3), (1000, 3)])
@pytest.mark.parametrize("group", [None, 256, (8, 8, 4), 1])
def test_threads_count_threads_and_edge_groups_are_smaller(compiled: Compile, threads: Any, group: Any) -> None:
    shape = threads if isinstance(threads, tuple) else (threads,)
    if group is not None:
        group = (group if isinstance(group, tuple) else (group, 1, 1))[: len(shape)]
    total = int(np.prod(shape))
    visits, sizes = mps.zeros(total, dtype=np.uint32), mps.zeros(total, dtype=np.uint32)
    compiled(GRIDS).count(visits, sizes, threads=threads, group_size=group)
    assert (visits.numpy() == 1).all() and sizes.numpy().all()


def test_code_between_barriers_in_loops_runs_once_a_thread(compiled: Compile) -> None:
    library = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void loops(device uint *counts, constant uint &rounds, uint l [[thread_position_in_threadgroup]]) {
          for (uint i = 0; i < rounds; i++) {
            counts[l * 4] += 1;
            threadgroup_barrier(mem_flags::mem_device);
            for (uint k = 0; k < i; k++) {
              if (rounds > 2) {
                counts[l * 4 + 1] += 1;
                threadgroup_barrier(mem_flags::mem_device);
                counts[l * 4 + 2] += 1;
              }
            }
            threadgroup_barrier(mem_flags::mem_device);
            counts[l * 4 + 3] += 1;
          }
        }
    """)
    for size in (1, 32, 33, 256):
        counts = mps.zeros(size, 4, dtype=np.uint32)
        library.loops(counts, 5, threads=size, group_size=size)
        np.testing.assert_array_equal(counts.numpy(), np.tile([5, 10, 10, 5], (size, 1)))


@pytest.mark.parametrize("size", [1, 32, 33, 256])
def test_block_of_thread_zero_runs_once_a_group(compiled: Compile, size: int) -> None:
    library = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void leader(device atomic_uint *counts, uint l [[thread_position_in_threadgroup]]) {
          if (l == 0) { atomic_fetch_add_explicit(&counts[0], 1u, memory_order_relaxed); }
          threadgroup_barrier(mem_flags::mem_threadgroup);
          if (l == 0) { atomic_fetch_add_explicit(&counts[1], 1u, memory_order_relaxed); }
          threadgroup_barrier(mem_flags::mem_threadgroup);
          if (l == 0) { atomic_fetch_add_explicit(&counts[2], 1u, memory_order_relaxed); }
        }
    """)
    counts = mps.zeros(3, dtype=np.uint32)
    library.leader(counts, threads=size * 7, group_size=size)
    assert counts.tolist() == [7, 7, 7]


def test_nothing_of_size_zero_is_an_error_or_disturbs_what_follows(compiled: Compile) -> None:
    kernel = compiled(GRIDS).ids
    out = mps.zeros(8, dtype=np.uint32)
    for empty in (mps.empty(0, dtype=np.uint32), mps.asarray(np.empty((0, 3), np.uint32))):
        kernel(empty)
        kernel(empty, threads=0)
        assert empty.numpy().shape == empty.shape and empty[:0].size == 0
        assert np.from_dlpack(empty).shape == empty.shape
        empty.copy_from(np.empty(empty.shape, np.uint32))
        empty.fill_(3)
    for threads in (0, (4, 0, 1)):
        kernel(out, threads=threads)
    mps.synchronize()
    assert not out.numpy().any()
    kernel(out)
    np.testing.assert_array_equal(out.numpy(), np.arange(1, 9))


@pytest.mark.parametrize("size", [1, 31, 32, 33, 256])
def test_simdgroups_are_32_wide_with_a_partial_last_one(compiled: Compile, size: int) -> None:
    library = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void widths(device uint *out, uint l [[thread_position_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint groups [[simdgroups_per_threadgroup]],
                         uint group [[simdgroup_index_in_threadgroup]]) {
          out[l * 6] = simd_sum(1u);
          out[l * 6 + 1] = lane;
          out[l * 6 + 2] = groups;
          out[l * 6 + 3] = group;
          out[l * 6 + 4] = simd_shuffle_down(l, 1);
          out[l * 6 + 5] = uint(ulong(simd_ballot(lane % 3 == 0)));
        }
    """)
    out = mps.zeros(size, 6, dtype=np.uint32)
    library.widths(out, threads=size, group_size=size)
    result, index = out.numpy(), np.arange(size)
    active = np.minimum(32, size - index // 32 * 32)
    np.testing.assert_array_equal(result[:, 0], active)
    np.testing.assert_array_equal(result[:, 1], index % 32)
    np.testing.assert_array_equal(result[:, 2], (size + 31) // 32)
    np.testing.assert_array_equal(result[:, 3], index // 32)
    inner = index % 32 + 1 < active  # the last lane's neighbour is undefined
    np.testing.assert_array_equal(result[inner, 4], index[inner] + 1)
    ballot = [sum(1 << lane for lane in range(0, n, 3)) for n in active]
    np.testing.assert_array_equal(result[:, 5], ballot)


def test_more_than_31_buffers_are_refused_by_number(compiled: Compile) -> None:
    def source(count: int) -> str:
        parameters = ", ".join(f"device float *b{i}" for i in range(count))
        return f"kernel void many({parameters}) {{ {' '.join(f'b{i}[0] = {i};' for i in range(count))} }}"

    arrays = [mps.zeros(1) for _ in range(31)]
    compiled(source(31)).many(*arrays, threads=1)
    assert [array.item() for array in arrays] == list(range(31))
    with pytest.raises(errors.Error, match="31"):
        _ = mps.compile_shader(source(32)).many.arguments
    with pytest.raises(errors.Error, match="31"):
        _ = mps.compile_shader("kernel void high(device float *x [[buffer(31)]]) { x[0] = 1; }").high.arguments


def test_indices_with_gaps_and_out_of_order_bind_where_they_say(compiled: Compile) -> None:
    library = compiled("""
        kernel void order(device float *out [[buffer(5)]], constant float &a [[buffer(2)]],
                          constant float &b [[buffer(0)]], constant float &c [[buffer(30)]]) {
          out[0] = a; out[1] = b; out[2] = c;
        }
    """)
    out = mps.zeros(3)
    arguments: list[Any] = [None] * 31
    arguments[5], arguments[2], arguments[0], arguments[30] = out, 2.0, 1.0, 3.0
    library.order(*arguments, threads=1)
    assert out.tolist() == [2.0, 1.0, 3.0]


def test_threadgroup_memory_ends_at_32_kib(compiled: Compile) -> None:
    def source(count: int) -> str:
        return f"""
            kernel void fixed(device float *out, uint l [[thread_position_in_threadgroup]]) {{
              threadgroup float a[{count}];
              for (uint i = l; i < {count}; i += 32) {{ a[i] = i; }}
              out[l] = a[{count - 32} + l];
            }}"""

    out = mps.zeros(32)
    kernel = compiled(source(8192)).fixed
    assert kernel.static_thread_group_memory_length == 32768
    kernel(out, group_size=32)
    np.testing.assert_array_equal(out.numpy(), np.arange(8160, 8192))
    with pytest.raises(errors.LimitExceededError, match="32768"):
        _ = mps.compile_shader(source(8193)).fixed.static_thread_group_memory_length


@pytest.mark.parametrize(("length", "works"), [(16, True), (32768, True), (32784, False), (8, False)])
def test_dynamic_threadgroup_memory_is_checked(compiled: Compile, length: int, works: bool) -> None:
    library = compiled("""
        kernel void dynamic(device uint *out, threadgroup uint *scratch [[threadgroup(0)]], constant uint &n) {
          for (uint i = 0; i < n; i++) { scratch[i] = i; }
          uint sum = 0;
          for (uint i = 0; i < n; i++) { sum += scratch[i]; }
          out[0] = sum;
        }
    """)
    out, count = mps.zeros(1, dtype=np.uint32), length // 4
    if works:
        library.dynamic(out, count, threads=1, threadgroup_memory=length)
        assert out.item() == count * (count - 1) // 2
    else:
        with pytest.raises(errors.Error, match=str(length)):
            library.dynamic(out, count, threads=1, threadgroup_memory=length)


def test_indices_beyond_32_bits_reach_their_bytes(compiled: Compile) -> None:
    length = 2**32 + 2**29
    if mps.recommended_max_memory() < 3 * length:
        pytest.skip("less memory than the test takes")
    library = compiled("""
        kernel void mark(device uchar *bytes, device ulong *at, uint i [[thread_position_in_grid]]) {
          bytes[at[i]] = uchar(i + 1);
        }
    """)
    marks = [0, 2**31, 2**32, 2**32 + 7]
    array = mps.empty(length, dtype=np.uint8)
    library.mark(array, mps.asarray(np.array(marks, np.uint64)), threads=len(marks))
    host = array.numpy()
    assert [int(host[mark]) for mark in marks] == [1, 2, 3, 4]
    array[2**32 + 9 :][:3].copy_from(np.array([7, 8, 9], np.uint8))
    assert host[2**32 + 9 : 2**32 + 12].tolist() == [7, 8, 9]
    assert array[2**32 + 7].item() == 4
    del host, array
    mps.empty_cache()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2**31, 2**31, 2**31), "memory|size|large"),
        ((2**62, 4), "memory|size|large"),
        (-1, "-1"),
        ((4, -1), "-1"),
        (2**63, str(2**63)),
        (2**64, str(2**64)),
    ],
)
def test_sizes_that_overflow_are_refused_with_the_true_size(shape: Any, expected: str) -> None:
    with pytest.raises((ValueError, MemoryError), match=re.compile(expected, re.IGNORECASE)):
        mps.empty(shape, dtype=np.uint8)


def test_sizes_are_integers() -> None:
    with pytest.raises(TypeError):
        mps.empty(1.5)  # type: ignore[arg-type]


def test_buffer_above_the_devices_maximum_says_both_sizes(device: mps.Device) -> None:
    before = mps.current_allocated_memory()
    too_long = device.max_buffer_length + 1
    with pytest.raises(MemoryError, match=str(device.max_buffer_length)):
        mps.empty(too_long, dtype=np.uint8)
    assert mps.current_allocated_memory() == before
    assert mps.full(3, 2.0).tolist() == [2, 2, 2]
