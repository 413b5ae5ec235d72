"""What a kernel is told of its place in the grid, threadgroup memory, constants by reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msl_kernels import run

import mpscffi

pytestmark = pytest.mark.usefixtures("device")

GRIDS = [((7,), (3,)), ((10, 6), (4, 4)), ((5, 4, 3), (2, 3, 2)), ((257,), (256,)), ((8, 1, 2), (8, 1, 1))]


@pytest.mark.parametrize("fibers", [False, True])
@pytest.mark.parametrize(("grid", "group"), GRIDS)
def test_positions(grid: tuple[int, ...], group: tuple[int, ...], fibers: bool) -> None:
    size = [*grid, *[1] * (3 - len(grid))]
    full = [*group, *[1] * (3 - len(group))]
    names = ["thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
             "threads_per_grid", "threadgroups_per_grid", "threads_per_threadgroup",
             "dispatch_threads_per_threadgroup"]  # fmt: skip
    scalars = ["thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
               "simdgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup", "threads_per_simdgroup",
               "thread_index_in_quadgroup", "quadgroup_index_in_threadgroup"]  # fmt: skip
    total = math.prod(size)
    out = np.zeros((total, 32), "u4")
    parameters = "".join(f", uint3 v{i} [[{name}]]" for i, name in enumerate(names))
    parameters += "".join(f", ushort s{i} [[{name}]]" for i, name in enumerate(scalars))
    body = "".join(f"o[{3 * i + k}] = v{i}[{k}]; " for i in range(len(names)) for k in range(3))
    body += "".join(f"o[{21 + i}] = s{i}; " for i in range(len(scalars)))
    barrier = "threadgroup_barrier(mem_flags::mem_none);" if fibers else ""
    place = "device uint *o = out + ((v0.z * v3.y + v0.y) * v3.x + v0.x) * 32;"
    run(f"kernel void test(device uint *out{parameters}) {{ {place} {barrier} {body} }}", [out], grid, group)
    groups = [-(-a // b) for a, b in zip(size, full, strict=True)]
    for number in range(total):
        at = [number % size[0], number // size[0] % size[1], number // size[0] // size[1]]
        where = [a // b for a, b in zip(at, full, strict=True)]
        inside = [a % b for a, b in zip(at, full, strict=True)]
        actual = [min(b, s - w * b) for b, s, w in zip(full, size, where, strict=True)]
        index = (inside[2] * actual[1] + inside[1]) * actual[0] + inside[0]
        expected = at + inside + where + size + groups + actual + full
        expected += [
            index,
            index % 32,
            index // 32,
            -(-math.prod(actual) // 32),
            -(-math.prod(full) // 32),
            32,
            index % 4,
            index // 4,
        ]
        assert out[number, : len(expected)].tolist() == expected


@pytest.mark.parametrize("kind", ["uint", "ushort", "uint2", "ushort2", "uint3", "ushort3"])
def test_positions_of_any_type(kind: str) -> None:
    out = np.zeros((3, 4), "u4")
    position = "i" if kind[-1] not in "23" else "i.y * 4 + i.x"
    run(f"kernel void test(device uint *out, {kind} i [[thread_position_in_grid]]) {{ out[{position}] += 1; }}",
        [out], (4, 3) if kind[-1] in "23" else (12,), (2, 2) if kind[-1] in "23" else (5,))  # fmt: skip
    assert (out == 1).all()


def test_threadgroup_variables_have_their_own_places() -> None:
    out = np.zeros((4, 64), "f4")
    source = """
struct Pair { float3 a; half b; };
kernel void test(device float *out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup uchar odd[3];
  threadgroup float line[64];
  threadgroup Pair pairs[64], other;
  odd[i % 3] = 7;
  line[i] = i;
  pairs[i].a = float3(i, i + 1, i + 2);
  pairs[i].b = 5;
  if (i == 0) {
    other.a = float3(9);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = line[63 - i];
  out[64 + i] = pairs[63 - i].a.z + pairs[i].b;
  out[128 + i] = odd[0] + odd[1] + odd[2] + other.a.y;
  out[192 + i] = ulong(&pairs[0]) % 16 == 0;
}"""
    run(source, [out], 64)
    i = np.arange(64)
    np.testing.assert_array_equal(out, [63 - i, 63 - i + 2 + 5, [30] * 64, [1] * 64])


def test_constants_by_reference() -> None:
    source = """
struct Small { float3 a; int b; };
struct Large { float values[200]; };
kernel void test(device float *out, constant Small &s, constant Large &l, constant float4x4 &m, constant uint &n,
                 device float &sum, uint i [[thread_position_in_grid]]) {
  out[i] = s.a.z + s.b + l.values[i] + m[3][2] + n;
  if (i == 0) {
    sum = 3;
  }
}"""
    small = np.array([1, 2, 3, 0, 0], "f4")
    small[4:].view("i4")[:] = 40
    small = np.concatenate([small, np.zeros(3, "f4")])
    out, large, m = np.zeros(200, "f4"), np.arange(200, dtype="f4"), np.arange(16, dtype="f4")
    n, total = np.array([1000], "u4"), np.zeros(1, "f4")
    run(source, [out, small, large, m, n, total], 200, 64)
    np.testing.assert_array_equal(out, 3 + 40 + large + 14 + 1000)
    assert total[0] == 3


@pytest.mark.host_only("Metal does not tell how the source spells a type")
def test_reflection_knows_deduced_types(device: mpscffi.Device) -> None:
    source = """
#include <metal_stdlib>
using namespace metal;
struct Extent { int width; };
template <typename T>
kernel void fill(device T *a, constant Extent &extent, const device uint32_t *n, device packed_float3 *p,
                 device float4x4 *m, device atomic_uint *count, constant float (&weights)[4], device void *any,
                 threadgroup T *t [[threadgroup(1)]], device const half4 &last, uint i [[thread_position_in_grid]]) {}
template [[host_name("fill")]] kernel void fill<bfloat>(
    device bfloat *, constant Extent &, const device uint32_t *, device packed_float3 *, device float4x4 *,
    device atomic_uint *, constant float (&)[4], device void *, threadgroup bfloat *, device const half4 &, uint);
"""
    rows = [
        (a.name, a.kind, a.index, a.access, a.type_name, a.data_type, a.data_size, a.data_align, a.is_reference)
        for a in mpscffi.compile_shader(source)["fill"].arguments
    ]
    assert rows == [
        ("a", "buffer", 0, "read_write", "bfloat", "bfloat", 2, 2, False),
        ("extent", "buffer", 1, "read", "Extent", "", 4, 4, True),
        ("n", "buffer", 2, "read", "uint", "uint", 4, 4, False),
        ("p", "buffer", 3, "read_write", "packed_float3", "float3", 12, 4, False),
        ("m", "buffer", 4, "read_write", "float4x4", "", 64, 16, False),
        ("count", "buffer", 5, "read_write", "atomic_uint", "uint", 4, 4, False),
        ("weights", "buffer", 6, "read", "float", "float", 4, 4, False),
        ("any", "buffer", 7, "read_write", "void", "", 1, 1, False),
        ("t", "threadgroup", 1, "read_write", "bfloat", "bfloat", 2, 2, False),
        ("last", "buffer", 8, "read", "half4", "half4", 8, 8, True),
    ]
