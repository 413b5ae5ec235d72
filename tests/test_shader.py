"""Metal kernels: results against NumPy, forms of calls, refusals."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpscffi
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

BASICS = """
#include <metal_stdlib>
using namespace metal;

kernel void full(device float* out, constant float& value, uint i [[thread_position_in_grid]]) { out[i] = value; }

kernel void saxpy(device float* y, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  y[i] = a * x[i] + y[i];
}

kernel void copy(device float* out, device const float* in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }

// Where each thread of a grid was, and how often.
kernel void visit1(device atomic_uint* count, uint p [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&count[p], 1u, memory_order_relaxed);
}
kernel void visit2(device atomic_uint* count, uint2 p [[thread_position_in_grid]], uint2 n [[threads_per_grid]]) {
  atomic_fetch_add_explicit(&count[p.y * n.x + p.x], 1u, memory_order_relaxed);
}
kernel void visit3(device atomic_uint* count, uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]]) {
  atomic_fetch_add_explicit(&count[(p.z * n.y + p.y) * n.x + p.x], 1u, memory_order_relaxed);
}

kernel void group_shape(device uint* actual, device uint* asked, uint p [[thread_position_in_grid]],
                        uint n [[threads_per_threadgroup]], uint d [[dispatch_threads_per_threadgroup]]) {
  actual[p] = n;
  asked[p] = d;
}

kernel void gather(device float* out, device const float* const* in, constant uint& count,
                   uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint k = 0; k < count; k++) {
    sum += in[k][i];
  }
  out[i] = sum;
}

kernel void gaps(device float* out [[buffer(0)]], constant float& a [[buffer(3)]], constant float& b [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {
  out[i] = a - b;
}

kernel void no_arguments(uint i [[thread_position_in_grid]]) {}

kernel void lists(device float* out, constant float* f, constant int* n, uint i [[thread_position_in_grid]]) {
  out[i] = f[i] + n[i];
}

kernel void lists16(device float* out, device const half* h, device const short* s,
                    uint i [[thread_position_in_grid]]) {
  out[i] = float(h[i]) + s[i];
}

kernel void vectors(device float* out, constant float3& a, constant float2& b, constant packed_float3& c) {
  out[0] = a.x; out[1] = a.y; out[2] = a.z; out[3] = b.x; out[4] = b.y; out[5] = c[0]; out[6] = c[1]; out[7] = c[2];
}

struct Pair { int n; float x[2]; };
kernel void structs(device float* out, constant Pair& p) { out[0] = p.n; out[1] = p.x[0]; out[2] = p.x[1]; }

kernel void lambda_(device int* out, uint i [[thread_position_in_grid]]) { out[i] = 1; }
[[host_name("lambda")]] kernel void lambda_2(device int* out, uint i [[thread_position_in_grid]]) { out[i] = 2; }
[[host_name("keys")]] kernel void keys_(device int* out, uint i [[thread_position_in_grid]]) { out[i] = 3; }
[[host_name("__class__")]] kernel void class_(device int* out, uint i [[thread_position_in_grid]]) { out[i] = 4; }

[[max_total_threads_per_threadgroup(64)]] kernel void small_groups(device float* out,
                                                                   uint i [[thread_position_in_grid]]) { out[i] = 1; }
"""

GROUPS = """
#include <metal_stdlib>
using namespace metal;

// The sum of a threadgroup's values by a tree, for any number of threads.
kernel void tree_sum(device float* out, device const float* in, threadgroup float* part [[threadgroup(0)]],
                     uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]],
                     uint g [[threadgroup_position_in_grid]], uint n [[threads_per_threadgroup]]) {
  part[t] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint left = n; left > 1;) {
    uint half_ = (left + 1) / 2;
    if (t < left / 2) {
      part[t] += part[t + half_];
    }
    left = half_;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) {
    out[g] = part[0];
  }
}

// One row of 32 columns for each SIMD-group.
kernel void softmax(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  float x = in[i];
  float e = exp(x - simd_max(x));
  out[i] = e / simd_sum(e);
}

constant constexpr uint TILE = 8;
kernel void matmul(device float* c, device const float* a, device const float* b, constant uint3& mnk,
                   uint2 p [[thread_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float ta[TILE][TILE];
  threadgroup float tb[TILE][TILE];
  uint m = mnk.x, n = mnk.y, k = mnk.z;
  float sum = 0;
  for (uint first = 0; first < k; first += TILE) {
    ta[t.y][t.x] = p.y < m && first + t.x < k ? a[p.y * k + first + t.x] : 0.0f;
    tb[t.y][t.x] = p.x < n && first + t.y < k ? b[(first + t.y) * n + p.x] : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < TILE; i++) {
      sum += ta[t.y][i] * tb[i][t.x];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (p.y < m && p.x < n) {
    c[p.y * n + p.x] = sum;
  }
}

kernel void histogram(device atomic_uint* bins, device atomic_float* weights, device const uint* bin,
                      device const float* weight, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[bin[i]], 1u, memory_order_relaxed);
  atomic_fetch_add_explicit(&weights[bin[i]], weight[i], memory_order_relaxed);
}

kernel void matrix8(device float* c, device const float* a, device const float* b) {
  simdgroup_float8x8 ma, mb, mc = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_load(ma, a, 8);
  simdgroup_load(mb, b, 8);
  simdgroup_multiply_accumulate(mc, ma, mb, mc);
  simdgroup_store(mc, c, 8);
}

// Threads from `limit` on leave before the barrier.
kernel void early_return(device uint* out, constant uint& limit, threadgroup uint* seen [[threadgroup(0)]],
                         uint t [[thread_index_in_threadgroup]], uint g [[threadgroup_position_in_grid]]) {
  if (t >= limit) {
    return;
  }
  seen[t] = t + 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) {
    uint sum = 0;
    for (uint i = 0; i < limit; i++) {
      sum += seen[i];
    }
    out[g] = sum;
  }
}

// Rounds until every thread has counted down; the flag is the whole group's.
kernel void until_flag(device uint* rounds, device const uint* start, uint i [[thread_position_in_grid]],
                       uint t [[thread_index_in_threadgroup]], uint g [[threadgroup_position_in_grid]]) {
  threadgroup atomic_uint busy;
  uint left = start[i], done = 0;
  bool more;
  do {
    if (t == 0) {
      atomic_store_explicit(&busy, 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (left > 0) {
      left--;
      atomic_fetch_or_explicit(&busy, 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    more = atomic_load_explicit(&busy, memory_order_relaxed) != 0;
    done++;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } while (more);
  if (t == 0) {
    rounds[g] = done;
  }
}
"""

SCALARS = {
    "bool": np.bool_,
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "long": np.int64,
    "ulong": np.uint64,
    "half": np.float16,
    "float": np.float32,
}
SCALAR_SOURCE = "#include <metal_stdlib>\nusing namespace metal;\n" + "".join(
    f"kernel void echo_{name}(device {name}* out, constant {name}& value) {{ out[0] = value; }}\n"
    for name in (*SCALARS, "bfloat")
)


@pytest.fixture
def basics(compiled: Any) -> mpscffi.ShaderLibrary:
    return compiled(BASICS)


@pytest.fixture
def groups(compiled: Any) -> mpscffi.ShaderLibrary:
    return compiled(GROUPS)


@pytest.fixture
def scalars(compiled: Any) -> mpscffi.ShaderLibrary:
    return compiled(SCALAR_SOURCE)


rng = np.random.default_rng(7)


# ---- results


def test_full_on_sixteen_floats(basics: Any) -> None:
    x = mpscffi.zeros(16)
    basics.full(x, 3.14)
    assert x.numpy().tolist() == [np.float32(3.14)] * 16


@pytest.mark.parametrize("size", [1, 2, 31, 33, 255, 1023, 1025, 100_003])
def test_saxpy_of_odd_sizes(basics: Any, size: int) -> None:
    x, y = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    dx, dy = mpscffi.asarray(x), mpscffi.asarray(y)
    basics.saxpy(dy, dx, 0.5)
    # Either rounding is right: Metal may contract the product and the sum.
    exact = np.float64(0.5) * x + y
    np.testing.assert_allclose(dy.numpy(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("threads", "group"),
    [(1, 1), (31, 32), (257, 256), (1000, 3), (5, None), ((24, 512), (8, 4)), ((7, 5), (4, 4)), ((33, 2), None),
     (np.array([4, 5]), [2, 2]), (np.int64(9), np.uint8(4)), ([6], (3,)), ((7, 5, 3), (8, 8, 4)),
     ((2, 3, 70), (1, 2, 64)), ((1, 1, 1), None)],
)  # fmt: skip
def test_every_thread_of_a_grid_runs_once(basics: Any, threads: Any, group: Any) -> None:
    sizes = tuple(np.reshape(threads, -1))
    count = mpscffi.zeros(int(np.prod(sizes)) + 1, dtype=np.uint32)
    basics[f"visit{len(sizes)}"](count, threads=threads, group_size=group)
    assert count.numpy().tolist() == [1] * int(np.prod(sizes)) + [0]


@pytest.mark.parametrize(("groups", "size"), [(3, 32), ((2, 3), (4, 5)), ((2, 1, 3), (3, 2, 1)), (1, 1), (0, 4)])
def test_a_grid_of_whole_threadgroups(basics: Any, groups: Any, size: Any) -> None:
    total = int(np.prod(groups) * np.prod(size))
    kernel = basics[f"visit{np.size(groups)}"]
    for keywords in ({"threadgroups": groups}, {"threads": tuple(np.multiply(groups, size).reshape(-1))}) * 2:
        count = mpscffi.zeros(total + 1, dtype=np.uint32)
        kernel(count, group_size=size if "threadgroups" in keywords else tuple(np.reshape(size, -1)), **keywords)
        assert count.tolist() == [1] * total + [0]
    for keywords in ({}, {"threads": 3, "group_size": size}):
        with pytest.raises(ValueError, match="threadgroups: expected group_size beside it"):
            kernel(count, threadgroups=groups, **keywords)
    with pytest.raises(ValueError, match="threadgroups: got -1"):
        basics.visit1(count, threadgroups=-1, group_size=3)


def test_groups_at_the_edge_are_smaller(basics: Any) -> None:
    actual, asked = mpscffi.zeros(70, dtype=np.uint32), mpscffi.zeros(70, dtype=np.uint32)
    basics.group_shape(actual, asked, threads=70, group_size=32)
    assert actual.tolist() == [32] * 64 + [6] * 6
    assert asked.tolist() == [32] * 70


@pytest.mark.parametrize("size", [1, 31, 32, 33, 256, 1024])
def test_tree_reduction_with_barriers(groups: Any, size: int) -> None:
    values = rng.integers(-1000, 1000, 3 * size).astype(np.float32)
    out = mpscffi.zeros(3)
    groups.tree_sum(
        out, mpscffi.asarray(values), threads=3 * size, group_size=size, threadgroup_memory=-(-4 * size // 16) * 16
    )
    assert out.tolist() == values.reshape(3, size).sum(axis=1).tolist()


def test_softmax_with_simd_functions(groups: Any) -> None:
    x = rng.standard_normal((40, 32)).astype(np.float32) * 5
    out = mpscffi.empty(40, 32)
    groups.softmax(out, mpscffi.asarray(x), group_size=64)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out.numpy(), e / e.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(8, 8, 8), (1, 1, 1), (17, 9, 33), (64, 40, 24)])
def test_tiled_matmul(groups: Any, m: int, n: int, k: int) -> None:
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    c = mpscffi.zeros(m, n)
    grid = (-(-n // 8) * 8, -(-m // 8) * 8)
    groups.matmul(c, mpscffi.asarray(a), mpscffi.asarray(b), [m, n, k], threads=grid, group_size=(8, 8))
    np.testing.assert_allclose(c.numpy(), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_atomic_histogram(groups: Any) -> None:
    bins = rng.integers(0, 50, 20_000).astype(np.uint32)
    weights = rng.integers(1, 8, 20_000).astype(np.float32)  # whole numbers, so that any order gives the same sum
    counts, sums = mpscffi.zeros(50, dtype=np.uint32), mpscffi.zeros(50)
    groups.histogram(counts, sums, mpscffi.asarray(bins), mpscffi.asarray(weights), threads=20_000)
    assert counts.tolist() == np.bincount(bins, minlength=50).tolist()
    assert sums.tolist() == np.bincount(bins, weights, minlength=50).tolist()


def test_simdgroup_matrix_multiply(groups: Any) -> None:
    a, b = (rng.integers(-9, 9, (8, 8)).astype(np.float32) for _ in range(2))
    c = mpscffi.zeros(8, 8)
    groups.matrix8(c, mpscffi.asarray(a), mpscffi.asarray(b), threads=32, group_size=32)
    assert (c.numpy() == a @ b).all()


@pytest.mark.unvalidated("barriers that not all threads reach")
@pytest.mark.parametrize(("size", "limit"), [(32, 1), (64, 33), (256, 255), (1024, 7)])
def test_early_return_before_a_barrier(groups: Any, size: int, limit: int) -> None:
    out = mpscffi.zeros(2, dtype=np.uint32)
    memory = -(-4 * limit // 16) * 16
    groups.early_return(out, limit, threads=2 * size, group_size=size, threadgroup_memory=memory)
    assert out.tolist() == [limit * (limit + 1) // 2] * 2


@pytest.mark.parametrize("size", [1, 31, 33, 256])
def test_barriers_in_a_loop_until_a_flag(groups: Any, size: int) -> None:
    start = rng.integers(0, 9, 2 * size).astype(np.uint32)
    rounds = mpscffi.zeros(2, dtype=np.uint32)
    groups.until_flag(rounds, mpscffi.asarray(start), threads=2 * size, group_size=size)
    assert rounds.tolist() == (start.reshape(2, size).max(axis=1) + 1).tolist()


def test_sixty_four_buffers_through_one_list(basics: Any) -> None:
    parts = [rng.integers(0, 100, 10).astype(np.float32) for _ in range(64)]
    out = mpscffi.empty(10)
    # Parts of bigger arrays, which are kept alive by the queue alone.
    basics.gather(out, [mpscffi.asarray(np.concatenate([[-1], part]).astype(np.float32))[1:] for part in parts], 64)
    assert out.tolist() == np.sum(parts, axis=0).tolist()


# ---- numbers


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize(
    "value", [0, 1, True, False, -1, 127, 128, 255, -129, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40,
              -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64, 0.0, 1.0, 3.0, 0.5, -2.0, 1e10, 1e300]
)  # fmt: skip
def test_python_numbers_round_trip_or_raise(scalars: Any, name: str, value: float) -> None:
    dtype = np.dtype(SCALARS[name])
    out = mpscffi.zeros(1, dtype=dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            expected = np.array(float(value)).astype(dtype)
        fits = bool(np.isfinite(expected))
    elif dtype.kind == "b":
        fits, expected = value in (0, 1), bool(value)
    else:
        fits = value == int(value) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        expected = int(value)
    if fits:
        scalars[f"echo_{name}"](out, value, threads=1)
        assert out.item() == expected
    else:
        # Metal does not tell references from pointers.
        with pytest.raises(errors.InvalidArgumentError, match=rf"argument 1 'value' \({name}[&*]\).*{name}"):
            scalars[f"echo_{name}"](out, value, threads=1)


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("kind", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "g", ">i4", ">f8", ">u2"])
@pytest.mark.parametrize("shape", ["scalar", "array"])
def test_numpy_scalars_of_every_type(scalars: Any, name: str, kind: str, shape: str) -> None:
    value: Any = np.array(1 if kind == "?" else 100, dtype=kind)
    if shape == "scalar":
        value = value[()]
    out = mpscffi.zeros(1, dtype=SCALARS[name])
    if name == "bool" and kind != "?":
        with pytest.raises(errors.InvalidArgumentError, match="expected 0 to 1 for bool"):
            scalars.echo_bool(out, value)
    else:
        scalars[f"echo_{name}"](out, value)
        assert out.item() == (1 if kind == "?" else 100)


@given(st.floats(width=32))
def test_floats_keep_their_bits(scalars_now: Any, value: float) -> None:
    out = mpscffi.empty(1)
    scalars_now.echo_float(out, value)
    assert out.numpy().view(np.uint32)[0] == np.float32(value).view(np.uint32) or np.isnan(value) == np.isnan(
        out.item()
    )


@given(st.floats(allow_nan=False))
def test_bfloat_is_rounded_to_nearest_even(scalars_now: Any, value: float) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    out = mpscffi.empty(1, dtype=np.uint16)
    finite = np.arange(2**16, dtype=np.uint32)[:0x7F80]  # the bits of zero and all finite positive ones
    finite = (finite << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    limit = float(np.float64(3.3895313892515355e38) + 2.0**119)  # half a step above the largest
    if abs(value) >= limit and np.isfinite(value):
        with pytest.raises(errors.InvalidArgumentError, match="too large for bfloat"):
            scalars_now.echo_bfloat(out, value)
        return
    scalars_now.echo_bfloat(out, value)
    got = float(out.numpy().view(bfloat16)[0])
    if np.isinf(value):
        assert got == value
    else:
        distance = np.abs(finite - abs(value))
        assert abs(abs(got) - abs(value)) == distance.min()
        nearest = np.flatnonzero(distance == distance.min())
        assert len(nearest) == 1 or int(np.array(got, np.float32).view(np.uint32) >> 16) % 2 == 0


@pytest.fixture(scope="module")
def scalars_now() -> mpscffi.ShaderLibrary:
    return mpscffi.compile_shader(SCALAR_SOURCE)


@pytest.mark.parametrize("value", ["1", None, object(), np.datetime64(1, "s"), np.str_("x"), {}, 1j])
def test_values_that_are_no_numbers(scalars: Any, value: object) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="argument 1 'value'"):
        scalars.echo_float(mpscffi.zeros(1), value)


def test_lists_take_the_kernels_types(basics: Any) -> None:
    out = mpscffi.zeros(3)
    basics.lists(out, [0.5, 1, 2.5], (1, 2.0, np.int8(3)))
    assert out.tolist() == [1.5, 3.0, 5.5]


def test_casts(basics: Any) -> None:
    out = mpscffi.zeros(2)
    basics.lists16(out, [0.5, 1.5], [1, 2], arg_casts={1: "fp16", 2: "int16"})
    assert out.tolist() == [1.5, 3.5]
    basics.lists(out, [0.5, 1.5], [2**32 + 7, -1], arg_casts={2: "int32"})
    assert out.tolist() == [7.5, 0.5]
    # A cast is for one call.
    with pytest.raises(errors.InvalidArgumentError, match="for int"):
        basics.lists(out, [0.5, 1.5], [2**32 + 7, -1])


def test_a_call_that_fails_leaves_no_casts_behind(basics: Any) -> None:
    out = mpscffi.zeros(1)
    for first, casts in ((out, {0: "fp16", 1: "uint8", 2: "uint8"}), ("wrong", "uint8")):
        with contextlib.suppress(errors.ArgumentTypeError):
            basics.lists(first, mpscffi.ones(1) if first is out else [1.5], [300, 0, 0, 0], arg_casts=casts)
        basics.lists(out, [1.5], [300])
        assert out.item() == 301.5


def test_numbers_that_cannot_be_cast(basics: Any) -> None:
    """NaN and infinities are no integers in C either, where anything may come of it."""
    out = mpscffi.zeros(1)
    for number in (float("nan"), float("inf"), np.float32("-inf")):
        for numbers in ([1, number], [number]):
            with pytest.raises(errors.InvalidArgumentError, match="argument 2 .*: got .*no int can"):
                basics.lists(out, [1.5], numbers, arg_casts={2: "int32"})
    basics.lists(out, [1.5], [300])
    assert out.item() == 301.5
    for number in (10**400, -(10**400)):
        with pytest.raises(errors.InvalidArgumentError, match="too large for float"):
            basics.lists(out, [number], [1])


@pytest.mark.parametrize("casts", ["fp32", {1: "double"}, {9: "fp16"}, {-1: "fp16"}])
def test_unknown_casts(basics: Any, casts: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="arg_casts"):
        basics.lists(mpscffi.zeros(1), [1.0], [1], arg_casts=casts)


def test_casts_of_the_wrong_type(basics: Any) -> None:
    with pytest.raises(RuntimeError, match="arg_casts: got int"):
        basics.lists(mpscffi.zeros(1), [1.0], [1], arg_casts=3)


def test_vectors(basics: Any) -> None:
    out = mpscffi.zeros(8)
    basics.vectors(out, [1, 2, 3], 4 + 5j, (6.0, 7.0, 8.0), threads=1)
    assert out.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(errors.InvalidArgumentError, match="multiple of 3"):
        basics.vectors(out, [1, 2], 4 + 5j, [6, 7, 8], threads=1)
    with pytest.raises(errors.ArgumentTypeError, match="expected a list of 3"):
        basics.vectors(out, 1.0, 4 + 5j, [6, 7, 8], threads=1)


def test_structs(basics: Any, device: mpscffi.Device) -> None:
    dtype = np.dtype([("n", "i4"), ("x", "f4", 2)])
    big = dtype.newbyteorder(">")
    value = np.array((7, (0.5, 1.5)), dtype)
    out = mpscffi.zeros(3)
    for given_ in (
        value,
        value[()],
        value.astype(big),
        value.astype(big)[()],
        value.tobytes(),
        memoryview(value.tobytes()),
    ):
        out.fill_(0)
        basics.structs(out, given_, threads=1)
        assert out.tolist() == [7, 0.5, 1.5]
    basics.structs(out, mpscffi.asarray(value), threads=1)
    with pytest.raises(errors.ArgumentTypeError, match="structured NumPy scalar of 12 bytes"):
        basics.structs(out, 7, threads=1)
    if device.backend == "host":  # Metal does not tell that it is no pointer, of which nothing might be read
        with pytest.raises(errors.InvalidArgumentError, match=r"given 4 bytes, but the kernel reads 12"):
            basics.structs(out, b"1234", threads=1)
        with pytest.raises(errors.InvalidArgumentError, match=r"array of 8 bytes, but the kernel reads 12"):
            basics.structs(out, mpscffi.zeros(2), threads=1)


def test_long_inline_data_is_refused(basics: Any) -> None:
    out = mpscffi.zeros(1)
    basics.lists(out, [1.0] * 1024, [1], threads=1)
    with pytest.raises(errors.LimitExceededError, match="4100 bytes, the limit .* 4096"):
        basics.lists(out, [1.0] * 1025, [1], threads=1)


def test_numbers_for_what_the_kernel_writes_are_refused(basics: Any) -> None:
    for value in (1.0, [1.0], b"1234"):
        with pytest.raises(errors.InvalidArgumentError, match="written by the kernel: expected an Array"):
            basics.full(value, 1.0, threads=1)


# ---- arrays as arguments


def test_views_are_bound_at_their_offset(basics: Any) -> None:
    x = mpscffi.asarray(np.arange(8, dtype=np.float32))
    for view in (x[4:5], x[4:5].reshape(()), x[4], x[2:][1:][1:2]):
        out = mpscffi.zeros(4)
        basics.copy(out[1:2], view)
        assert out.tolist() == [0, 4, 0, 0]
        basics.full(out[2:3], view)
        assert out.tolist() == [0, 4, 4, 0]


@pytest.mark.parametrize(
    ("make", "layout"),
    [
        (lambda a: a.T, r"shape \(6, 4\) with strides \(4, 24\)"),
        (lambda a: a[:, ::2], r"strides \(24, 8\)"),
        (lambda a: a[::-1], r"strides \(-24, 4\)"),
        (lambda a: a[1:, ::2].T, r"strides \(8, 24\)"),
    ],
)
def test_layouts_that_kernels_do_not_see_are_refused(basics: Any, make: Any, layout: str) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = make(mpscffi.asarray(host))
    out = mpscffi.zeros(view.shape)
    with pytest.raises(errors.InvalidArgumentError, match=layout):
        basics.copy(out, view)
    basics.copy(out, view.copy())
    assert (out.numpy() == make(host)).all()


def test_numpy_arrays_are_refused(basics: Any) -> None:
    with pytest.raises(RuntimeError, match=r"NumPy array of shape \(3,\).*asarray"):
        basics.copy(mpscffi.zeros(3), np.zeros(3, np.float32))


def test_arrays_without_elements(basics: Any) -> None:
    nothing = mpscffi.empty(0, 3)
    basics.copy(nothing, nothing)
    basics.full(nothing, 1.0)
    out = mpscffi.zeros(2)
    basics.full(out, 1.0, threads=0)
    basics.visit3(mpscffi.zeros(1, dtype=np.uint32), threads=(4, 0, 1))
    mpscffi.synchronize()
    assert out.tolist() == [0, 0]
    basics.full(out, 1.0)
    assert out.tolist() == [1, 1]


def test_temporaries_live_until_the_kernel_has_run(basics: Any) -> None:
    out = [mpscffi.empty(1000) for _ in range(50)]
    for i, one in enumerate(out):
        basics.copy(one, mpscffi.full(1000, i))
        mpscffi.full(1000, -1)
    assert [one[999].item() for one in out] == list(range(50))


def test_input_and_output_may_be_the_same(basics: Any) -> None:
    x = mpscffi.asarray(np.arange(5, dtype=np.float32))
    basics.saxpy(x, x, 2.0)
    assert x.tolist() == [0, 3, 6, 9, 12]


# ---- refusals of calls


@pytest.mark.parametrize("group", [1025, (1024, 2, 1)])
def test_groups_above_the_limit(basics: Any, group: Any) -> None:
    threads = 2048 if isinstance(group, int) else (2048, 2, 1)
    count = mpscffi.zeros(4096, dtype=np.uint32)
    kernel = basics.visit1 if isinstance(group, int) else basics.visit3
    with pytest.raises(ValueError, match="1024"):
        kernel(count, threads=threads, group_size=group)
    mpscffi.synchronize()
    assert not count.numpy().any()


@pytest.mark.parametrize("group", [0, -1, (0,), ()])
def test_groups_without_threads(basics: Any, group: Any) -> None:
    with pytest.raises(ValueError, match="group_size"):
        basics.full(mpscffi.zeros(4), 1.0, group_size=group)


def test_the_kernels_own_group_limit(basics: Any) -> None:
    assert basics.small_groups.max_threads_per_threadgroup == 64
    out = mpscffi.zeros(65)
    with pytest.raises(ValueError, match="at most 64"):
        basics.small_groups(out, group_size=65)
    basics.small_groups(out)
    assert out.tolist() == [1] * 65


@pytest.mark.parametrize(
    ("threads", "group", "error"),
    [
        (-1, None, errors.InvalidArgumentError),
        ((), None, errors.InvalidArgumentError),
        ((1, 1, 1, 1), None, errors.InvalidArgumentError),
        (1.5, None, errors.ArgumentTypeError),
        ("12", None, errors.ArgumentTypeError),
        ((2, 2), 2, errors.InvalidArgumentError),
        (4, (2, 2), errors.InvalidArgumentError),
        (2**32, None, errors.Error),
        (2**64, None, errors.InvalidArgumentError),
    ],
)
def test_bad_grids(basics: Any, threads: Any, group: Any, error: type[Exception]) -> None:
    out = mpscffi.zeros(4)
    with pytest.raises(error):
        basics.full(out, 1.0, threads=threads, group_size=group)
    # The kernel goes on to work, with the sizes of the next call alone.
    basics.full(out, 2.0)
    assert out.tolist() == [2.0] * 4


def test_threads_must_be_given_without_an_array(basics: Any) -> None:
    with pytest.raises(RuntimeError, match="threads"):
        basics.no_arguments()
    basics.no_arguments(threads=3)


def test_unknown_keywords(basics: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        basics.full(mpscffi.zeros(1), 1.0, block=3)


@pytest.mark.parametrize("args", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_the_number_of_arguments(basics: Any, args: Any) -> None:
    given_ = (mpscffi.zeros(1), *args)[: len(args)] if len(args) != 1 else (mpscffi.zeros(1),)
    with pytest.raises(
        errors.InvalidArgumentError, match=f"got {len(given_)} buffer arguments, expected 2: 0 out, 1 value"
    ):
        basics.full(*given_, threads=1)


def test_empty_lists(basics: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="empty list"):
        basics.lists(mpscffi.zeros(1), [], [1])


def test_mixed_lists_of_arrays(basics: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="element 1 is of type int"):
        basics.gather(mpscffi.zeros(1), [mpscffi.zeros(1), 3], 2)
    with pytest.raises(errors.ArgumentTypeError, match="is of type Array"):
        basics.lists(mpscffi.zeros(1), [1.0, mpscffi.zeros(1)], [1])


def test_slots_with_gaps(basics: Any) -> None:
    out = mpscffi.zeros(2)
    basics.gaps(out, None, 1.0, 5.0)
    assert out.tolist() == [4, 4]
    with pytest.raises(errors.InvalidArgumentError, match="slot 1, which the kernel does not have"):
        basics.gaps(out, 1.0, 1.0, 5.0)


def test_threadgroup_memory(groups: Any, device: mpscffi.Device) -> None:
    out, x = mpscffi.zeros(1), mpscffi.ones(4)
    for memory in ([16], {0: 16}, 32768):
        out.fill_(0)
        groups.tree_sum(out, x, threads=4, group_size=4, threadgroup_memory=memory)
        assert out.tolist() == [4]
    for memory in (None, -16, 8, 32784, [16, 16], {1: 16}, "16"):
        with pytest.raises(RuntimeError, match="threadgroup"):
            groups.tree_sum(out, x, threads=4, group_size=4, threadgroup_memory=memory)
    with pytest.raises(errors.LimitExceededError, match=str(device.max_threadgroup_memory)):
        groups.tree_sum(out, x, threads=4, group_size=4, threadgroup_memory=32784)


# ---- libraries


def test_names_of_a_library(basics: Any) -> None:
    assert "lambda" in basics
    assert sorted(dir(basics)) == dir(basics)
    assert set(dir(basics)) == set(basics) == {
        "full", "saxpy", "copy", "visit1", "visit2", "visit3", "group_shape", "gather", "gaps", "no_arguments", "lists",
        "lists16", "vectors", "structs", "lambda_", "lambda", "keys", "__class__", "small_groups",
    }  # fmt: skip
    assert len(basics) == 19


@pytest.mark.parametrize(("name", "value"), [("lambda_", 1), ("lambda", 2), ("keys", 3), ("__class__", 4)])
def test_names_that_python_uses(basics: Any, name: str, value: int) -> None:
    out = mpscffi.zeros(1, dtype=np.int32)
    basics[name](out)
    assert out.item() == value


def test_missing_kernels(basics: Any) -> None:
    for kind in (RuntimeError, AttributeError):
        with pytest.raises(kind, match="no kernel 'nothing'.*saxpy"):
            basics.nothing  # noqa: B018
    with pytest.raises(LookupError):
        basics["nothing"]
    assert not hasattr(basics, "nothing")


def test_what_a_kernel_says_of_itself(basics: Any, groups: Any, device: mpscffi.Device) -> None:
    kernel = groups.matmul
    assert kernel.max_threads_per_threadgroup == 1024
    assert kernel.thread_execution_width == 32
    assert kernel.static_thread_group_memory_length == 2 * 8 * 8 * 4
    names = [(a.name, a.kind, a.index, a.access, a.data_type) for a in kernel.arguments]
    assert names == [
        ("c", "buffer", 0, "read_write", "float"),
        ("a", "buffer", 1, "read", "float"),
        ("b", "buffer", 2, "read", "float"),
        ("mnk", "buffer", 3, "read", "uint3"),
    ]
    on_host = device.backend == "host"  # Metal does not tell references from pointers
    assert [a.is_reference for a in kernel.arguments] == [False, False, False, on_host]
    assert basics.full is basics["full"]


def test_function_constants(compiled: Any) -> None:
    library = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        constant int count [[function_constant(0)]];
        constant float2 pair [[function_constant(3)]];
        constant bool flag [[function_constant(1)]];
        constant bool has_flag = is_function_constant_defined(flag);
        kernel void constants(device float* out) {
          out[0] = count; out[1] = pair.x; out[2] = pair.y; out[3] = has_flag;
        }
    """)
    out = mpscffi.zeros(4)
    library.constants.specialize({"count": 7, 3: (0.5, 1.5)})(out, threads=1)
    assert out.tolist() == [7, 0.5, 1.5, 0]
    library.constants.specialize({"count": 8, "pair": [2, 3], "flag": True})(out, threads=1)
    assert out.tolist() == [8, 2, 3, 1]
    with pytest.raises(errors.NotFoundError, match=r"'nope'.*count \(0\)"):
        library.constants.specialize({"nope": 1})(out, threads=1)
    with pytest.raises(errors.InvalidArgumentError, match="count.*whole number"):
        library.constants.specialize({"count": 1.5, "pair": [2, 3]})(out, threads=1)
    with pytest.raises(errors.InvalidArgumentError, match="pair.*expected 2 numbers"):
        library.constants.specialize({"count": 1, "pair": [2, 3, 4]})(out, threads=1)
    with pytest.raises(RuntimeError, match="count"):
        library.constants(out, threads=1)


def test_libraries_with_the_same_kernel_name(device: mpscffi.Device) -> None:
    source = "kernel void probe(device int* out) {{ out[0] = out[0] * 10 + {}; }}"
    one, two = (mpscffi.compile_shader(source.format(digit)) for digit in (1, 2))
    out = mpscffi.zeros(1, dtype=np.int32)
    for library in (one, two, one, two, two):
        library.probe(out, threads=1)
    assert out.item() == 12122


def test_syntax_errors(device: mpscffi.Device) -> None:
    source = (
        "#include <metal_stdlib>\n" + "// line\n" * 5 + "kernel void broken(device float* out) { out[0] = What; }\n"
    )
    with pytest.raises(SyntaxError, match=r"program_source:7:") as caught:
        mpscffi.compile_shader(source)
    assert isinstance(caught.value, RuntimeError)
    assert "What" in str(caught.value)


@pytest.mark.parametrize("source", [None, b"kernel void f() {}", 3])
def test_sources_that_are_no_text(source: Any) -> None:
    with pytest.raises(TypeError, match="expected str"):
        mpscffi.compile_shader(source)


def test_sources_without_kernels(device: mpscffi.Device) -> None:
    for source in ("", "// nothing\n", "float twice(float x) { return 2 * x; }"):
        library = mpscffi.compile_shader(source)
        assert dir(library) == []
        with pytest.raises(AttributeError, match="which has none"):
            library.anything  # noqa: B018


def test_options(device: mpscffi.Device, tmp_path: Path) -> None:
    (tmp_path / "shared.h").write_text("#define OFFSET 100\n")
    on_host = device.backend == "host"
    folders = [tmp_path] if on_host else []  # Metal compiles one text
    source = f"""
        {'#include "shared.h"' if on_host else "#define OFFSET 100"}
        kernel void value(device int* out) {{ out[0] = OFFSET + STEP + __METAL_VERSION__ * 0; }}
    """
    for defines in ({"STEP": 5}, ["STEP=5"]):
        library = mpscffi.compile_shader(source, defines=defines, include_dirs=folders, language_version=(3, 1))
        out = mpscffi.zeros(1, dtype=np.int32)
        library.value(out, threads=1)
        assert out.item() == 105
    with pytest.raises(errors.InvalidArgumentError, match="math_mode='exact', expected safe, relaxed, fast"):
        mpscffi.compile_shader(source, math_mode="exact")
    with pytest.raises(errors.ArgumentTypeError, match="defines"):
        mpscffi.compile_shader(source, defines="STEP=5")


@pytest.mark.host_only("mslc is the host device's")
def test_a_fault_of_the_compiler_is_an_error(device: mpscffi.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpscffi.mslc import provider

    def fail(*_: object) -> Any:
        raise ZeroDivisionError("in the compiler")

    library = mpscffi.compile_shader("kernel void f(device int* x) { x[0] = 1; }")
    for name in ("check", "build"):
        monkeypatch.setattr(provider, name, fail)
    with pytest.raises(errors.InternalError, match="ZeroDivisionError: in the compiler"):
        mpscffi.compile_shader("kernel void f(device int* x) { x[0] = 2; }")
    with pytest.raises(errors.InternalError, match="ZeroDivisionError: in the compiler"):
        library.f(mpscffi.zeros(1, dtype=np.int32), threads=1)
    monkeypatch.undo()
    x = mpscffi.zeros(1, dtype=np.int32)
    library.f(x, threads=1)
    assert x.item() == 1


def test_double_is_refused(device: mpscffi.Device) -> None:
    with pytest.raises(SyntaxError, match="program_source:1:.*double"):
        mpscffi.compile_shader("kernel void f(device float* x) { double y = x[0]; x[0] = y; }")


@pytest.mark.parametrize("source", [3, None, memoryview(b"MTLB"), [b"MTLB"]])
def test_metallib_of_another_type(source: Any) -> None:
    with pytest.raises(TypeError, match=f"got {type(source).__name__}"):
        mpscffi.load_metallib(source)


def test_bad_metallibs(device: mpscffi.Device, tmp_path: Path) -> None:
    missing = tmp_path / "missing.metallib"
    for path in (missing, str(missing)):
        with pytest.raises(FileNotFoundError, match=r"missing\.metallib") as caught:
            mpscffi.load_metallib(path)
        assert isinstance(caught.value, RuntimeError)
    garbage = tmp_path / "garbage.metallib"
    for data in (b"", b"garbage" * 100, b"\x7fELF" + bytes(60)):
        with pytest.raises(RuntimeError):
            mpscffi.load_metallib(data)
        garbage.write_bytes(data)
        with pytest.raises(RuntimeError):
            mpscffi.load_metallib(garbage)
    with pytest.raises(RuntimeError):
        mpscffi.load_metallib(tmp_path)


@pytest.mark.host_only("kernel libraries of mslc are the host device's")
def test_kernel_libraries_from_path_and_bytes(device: mpscffi.Device, tmp_path: Path) -> None:
    from mpscffi.mslc import provider

    source = "kernel void square(device float* x, uint i [[thread_position_in_grid]]) { x[i] = x[i] * x[i]; }"
    path = Path(provider.build(source, None, "square"))
    for given_ in (path, str(path), path.read_bytes(), bytearray(path.read_bytes())):
        library = mpscffi.load_metallib(given_)
        assert dir(library) == ["square"]
        x = mpscffi.asarray([1.0, 2.0, 3.0])
        library.square(x)
        assert x.tolist() == [1, 4, 9]


def test_a_missing_kernel_is_told_with_some_of_those_there_are(device: mpscffi.Device) -> None:
    library = mpscffi.compile_shader("".join(f"kernel void k{n}(device float *a) {{}}\n" for n in range(25)))
    with pytest.raises(AttributeError) as caught:
        library["other"]
    assert "k0, k1" in str(caught.value)
    assert str(caught.value).endswith("k19 and 5 more")
