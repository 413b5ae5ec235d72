"""Functions of SIMD-groups and quadgroups, simdgroup_matrix, atomics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from msl_kernels import DTYPES, evaluate_in_group, run, signed, to_bfloat

pytestmark = pytest.mark.usefixtures("device")


def test_integer_atomics() -> None:
    n = 1000
    source = """
kernel void test(device atomic_uint *u, device atomic_int *s, device atomic_float *f, device atomic_ulong *l,
                 device atomic_bool *b, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&u[0], i, memory_order_relaxed);
  atomic_fetch_sub_explicit(&u[1], 1, memory_order_relaxed);
  atomic_fetch_min_explicit(&u[2], i + 5, memory_order_relaxed);
  atomic_fetch_max_explicit(&u[3], i, memory_order_relaxed);
  atomic_fetch_and_explicit(&u[4], ~(1u << (i % 31)), memory_order_relaxed);
  atomic_fetch_or_explicit(&u[5], 1u << (i % 31), memory_order_relaxed);
  atomic_fetch_xor_explicit(&u[6], i, memory_order_relaxed);
  uint seen = atomic_load_explicit(&u[7], memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&u[7], &seen, seen + 2, memory_order_relaxed, memory_order_relaxed)) {
  }
  atomic_fetch_min_explicit(&s[0], -int(i), memory_order_relaxed);
  atomic_fetch_max_explicit(&s[1], -int(i) - 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&f[0], 0.5f, memory_order_relaxed);
  atomic_fetch_sub_explicit(&f[1], 0.25f, memory_order_relaxed);
  atomic_max_explicit(&l[0], ulong(i) << 40, memory_order_relaxed);
  atomic_min_explicit(&l[1], ulong(i) << 40, memory_order_relaxed);
  atomic_fetch_or_explicit(&b[0], i == 700, memory_order_relaxed);
  if (i == 3) {
    atomic_store_explicit(&b[1], true, memory_order_relaxed);
    uint old = atomic_exchange_explicit(&u[8], 77u, memory_order_relaxed);
    atomic_store_explicit(&u[9], old, memory_order_relaxed);
  }
}"""
    u = np.array([0, n, 2**32 - 1, 0, 2**32 - 1, 0, 0, 0, 11, 0], "u4")
    s = np.array([5, -(2**31)], "i4")
    f = np.zeros(2, "f4")
    long = np.array([0, 2**63], "u8")
    b = np.zeros(2, bool)
    run(source, [u, s, f, long, b], n, 100)
    parity = 0
    for i in range(n):
        parity ^= i
    assert u.tolist() == [n * (n - 1) // 2, 0, 5, n - 1, 1 << 31, 2**31 - 1, parity, 2 * n, 77, 11]
    assert s.tolist() == [1 - n, -1]
    assert f.tolist() == [n / 2, -n / 4]
    assert long.tolist() == [(n - 1) << 40, 0]
    assert b.tolist() == [True, True]


GROUPS = [1, 3, 31, 32, 33, 64, 250, 256]


def segments(count: int, width: int) -> list[range]:
    return [range(first, min(first + width, count)) for first in range(0, count, width)]


@pytest.mark.parametrize("prefix", ["simd", "quad"])
@pytest.mark.parametrize("count", GROUPS)
def test_group_reductions_and_scans(prefix: str, count: int) -> None:
    width = {"simd": 32, "quad": 4}[prefix]
    x = np.random.default_rng(11).integers(-9, 9, count).astype("i4")
    names = ["sum", "product", "min", "max", "and", "or", "xor", "prefix_inclusive_sum", "prefix_exclusive_sum",
             "prefix_inclusive_product", "prefix_exclusive_product"]  # fmt: skip
    got = evaluate_in_group([f"{prefix}_{name}(x)" for name in names], x)
    expected = np.zeros_like(got)
    for part in segments(count, width):
        values = [int(x[i]) for i in part]
        total = {"sum": 0, "product": 1}
        fold = {"min": min(values), "max": max(values), "sum": sum(values), "product": math.prod(values)}
        for name, neutral, op in (("and", -1, int.__and__), ("or", 0, int.__or__), ("xor", 0, int.__xor__)):
            fold[name] = neutral
            for value in values:
                fold[name] = op(fold[name], value)
        for row, name in enumerate(names[:7]):
            expected[row, list(part)] = signed(fold[name], 32, True)
        for i, value in zip(part, values, strict=True):
            expected[8, i], expected[10, i] = total["sum"], signed(total["product"], 32, True)
            total["sum"] += value
            total["product"] *= value
            expected[7, i], expected[9, i] = total["sum"], signed(total["product"], 32, True)
    for row, name in enumerate(names):
        np.testing.assert_array_equal(got[row], expected[row], err_msg=f"{prefix}_{name}")


@pytest.mark.parametrize("prefix", ["simd", "quad"])
@pytest.mark.parametrize("count", GROUPS)
def test_group_shuffles(prefix: str, count: int) -> None:
    width = {"simd": 32, "quad": 4}[prefix]
    x = np.arange(100, 100 + count, dtype="i4")
    moves: dict[str, Callable[[int], int]] = {
        "shuffle(x, 1)": lambda me: 1,
        "shuffle(x, me ^ 2)": lambda me: me ^ 2,
        "shuffle_up(x, 1)": lambda me: me - 1,
        "shuffle_down(x, 2)": lambda me: me + 2,
        "shuffle_xor(x, 3)": lambda me: me ^ 3,
        "shuffle_rotate_up(x, 1)": lambda me: (me - 1) % width,
        "shuffle_rotate_down(x, 3)": lambda me: (me + 3) % width,
        "broadcast(x, 2)": lambda me: 2,
        "broadcast_first(x)": lambda me: 0,
    }
    setup = f"ushort me = i % {width};"
    got = evaluate_in_group([f"{prefix}_{text}" for text in moves], x, setup=setup)
    for row, (text, move) in zip(got, moves.items(), strict=True):
        for part in segments(count, width):
            for i in part:
                source = move(i - part.start)
                if 0 <= source < len(part):  # what comes from elsewhere is undefined
                    assert row[i] == x[part.start + source], (text, i)


@pytest.mark.parametrize("kind", ["half", "float", "long", "uchar"])
def test_shuffles_of_other_types(kind: str) -> None:
    x = np.arange(32).astype(DTYPES[kind])
    got = evaluate_in_group(["simd_shuffle_xor(x, 5)", "simd_sum(x)", "simd_max(x)"], x, kind)
    assert got[0].tolist() == [float(i ^ 5) for i in range(32)]
    assert set(got[1].astype(int)) == {sum(range(32)) % (256 if kind == "uchar" else 2**31)}
    assert set(got[2].astype(int)) == {31}
    vectors = evaluate_in_group([f"simd_shuffle_down({kind}3(x, 1, 2), 1).x", f"simd_sum({kind}2(x)).y"], x, kind)
    assert vectors[0, :31].tolist() == [float(i + 1) for i in range(31)]
    assert vectors[1].tolist() == got[1].tolist()


def test_shuffle_and_fill() -> None:
    x = np.arange(100, 132, dtype="i4")
    got = evaluate_in_group(
        ["simd_shuffle_and_fill_up(x, -x, 3)", "simd_shuffle_and_fill_down(x, -x, 3)",
         "simd_shuffle_and_fill_up(x, -x, 1, 8)", "simd_shuffle_and_fill_down(x, -x, 1, 8)"], x)  # fmt: skip
    me = np.arange(32)
    assert got[0].tolist() == [x[i - 3] if i >= 3 else -x[29 + i] for i in me]
    assert got[1].tolist() == [x[i + 3] if i < 29 else -x[i - 29] for i in me]
    assert got[2].tolist() == [x[i - 1] if i % 8 else -x[i + 7] for i in me]
    assert got[3].tolist() == [x[i + 1] if i % 8 < 7 else -x[i - 7] for i in me]


@pytest.mark.parametrize("count", GROUPS)
def test_votes(count: int) -> None:
    x = (np.arange(count) % 3 == 0).astype("i4")
    texts = ["int(ulong(simd_ballot(x != 0)))", "simd_any(x != 0)", "simd_all(x != 0)", "simd_all(x < 2)",
             "int(ulong(simd_active_threads_mask()))", "simd_is_first()", "simd_ballot(x < 2).all()",
             "quad_any(x != 0)", "quad_all(x != 0)", "int(uint(quad_ballot(x != 0)))", "quad_is_first()"]  # fmt: skip
    got = evaluate_in_group(texts, x)
    for part in segments(count, 32):
        values = x[list(part)]
        full = (1 << len(part)) - 1
        ballot = sum(int(v) << k for k, v in enumerate(values))
        rows = [signed(ballot, 32, True), values.any(), values.all(), 1, signed(full, 32, True), None, len(part) == 32]
        for row, value in zip(got[:7], rows, strict=True):
            if value is not None:
                assert set(row[list(part)]) == {int(value)}
        assert got[5, list(part)].tolist() == [1] + [0] * (len(part) - 1)
    for part in segments(count, 4):
        values = x[list(part)]
        assert set(got[7, list(part)]) == {int(values.any())}
        assert set(got[8, list(part)]) == {int(values.all())}
        assert set(got[9, list(part)]) == {sum(int(v) << k for k, v in enumerate(values))}
        assert got[10, list(part)].tolist() == [1] + [0] * (len(part) - 1)


def test_only_active_lanes_take_part() -> None:
    x = np.arange(32, dtype="i4")
    setup = """
  int a = 0, b = 0, c = 0;
  if (i % 2) { a = simd_sum(x); c = simd_is_first(); } else { a = simd_max(x); b = simd_broadcast_first(x); }"""
    got = evaluate_in_group(["a", "b", "c"], x, setup=setup)
    odd, even = range(1, 32, 2), range(0, 32, 2)
    assert set(got[0, list(odd)]) == {sum(odd)}
    assert set(got[0, list(even)]) == {30}
    assert set(got[1, list(even)]) == {0}
    assert got[2, list(odd)].tolist() == [1] + [0] * 15


def test_same_function_in_both_branches_is_two_places() -> None:
    x = np.arange(32, dtype="i4")
    setup = "int a; if (i < 10) { a = simd_sum(x); } else { a = simd_sum(x); }"
    got = evaluate_in_group(["a"], x, setup=setup)[0]
    assert got.tolist() == [sum(range(10))] * 10 + [sum(range(10, 32))] * 22


def test_loops_with_different_trip_counts() -> None:
    x = np.arange(32, dtype="i4")
    setup = "int a = 0; for (int k = 0; k <= x; k++) { a += simd_sum(1); }"
    got = evaluate_in_group(["a"], x, setup=setup)[0]
    assert got.tolist() == [sum(32 - k for k in range(i + 1)) for i in range(32)]


def test_lanes_that_returned_do_not_take_part() -> None:
    x = np.arange(32, dtype="i4")
    got = evaluate_in_group(["simd_sum(1)"], x, setup="if (i >= 20) { return; }")[0]
    assert got.tolist() == [20] * 20 + [0] * 12


def lane_elements(lane: int) -> tuple[int, int]:
    """Row and first column of a lane's two elements: quads of lanes tile the matrix in 4x4 blocks."""
    return (lane // 4 & 4) + lane // 2 % 4, (lane // 4 & 2) * 2 + lane % 2 * 2


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_matrix_product(kind: str) -> None:
    rng = np.random.default_rng(12)
    values = rng.integers(-4, 5, (3, 8, 8)).astype("f4")
    out = np.zeros((8, 8), "f4")
    as_kind = {"float": np.float32, "half": np.float16, "bfloat": to_bfloat}[kind]
    arrays = [out, *(as_kind(value) for value in values)]
    source = f"""
kernel void test(device float *out, device const {kind} *a, device const {kind} *b, device const {kind} *c) {{
  simdgroup_matrix<{kind}, 8, 8> A, B;
  simdgroup_matrix<{kind}, 8, 8> C, D;
  simdgroup_load(A, a);
  simdgroup_load(B, b, 8);
  simdgroup_load(C, c, 8, ulong2(0), false);
  simdgroup_multiply_accumulate(D, A, B, C);
  simdgroup_float8x8 R;
  R.thread_elements()[0] = D.thread_elements()[0];
  R.thread_elements()[1] = D.thread_elements()[1];
  simdgroup_store(R, out);
}}"""
    run(source, arrays, 32)
    np.testing.assert_array_equal(out, values[0] @ values[1] + values[2])


def test_matrix_load_store_stride_origin_transpose() -> None:
    m = np.arange(20 * 24, dtype="f4").reshape(20, 24)
    out = np.zeros((3, 20, 24), "f4")
    source = """
kernel void test(device float *out, device const float *m) {
  simdgroup_float8x8 a, b;
  simdgroup_load(a, m, 24, ulong2(3, 5));
  simdgroup_store(a, out, 24, ulong2(1, 2));
  simdgroup_load(b, m + 24, 24, ulong2(0), true);
  simdgroup_store(b, out + 480, 24);
  simdgroup_store(a, out + 960, 24, ulong2(0), true);
}"""
    source = source.replace(", threadgroup float *t [[threadgroup(0)]]", "")
    run(source, [out, m], 32)
    expected = np.zeros_like(out)
    block = m[5:13, 3:11]
    expected[0, 2:10, 1:9] = block
    expected[1, :8, :8] = m[1:9, :8].T
    expected[2, :8, :8] = block.T
    np.testing.assert_array_equal(out, expected)


def test_matrix_layout_fill_diagonal_and_threadgroup_memory() -> None:
    out = np.zeros((4, 8, 8), "f4")
    source = """
kernel void test(device float *out, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 m;
  m.thread_elements()[0] = lane * 2;
  m.thread_elements()[1] = lane * 2 + 1;
  simdgroup_store(m, out);
  simdgroup_store(simdgroup_float8x8(3.0f), out + 64);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(4.0f), tile);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 a;
  simdgroup_load(a, tile);
  simdgroup_store(a, out + 128);
  simdgroup_multiply(a, simdgroup_float8x8(2.0f), m);
  simdgroup_store(a, out + 192);
}"""
    run(source, [out], 32)
    layout = np.zeros((8, 8), "f4")
    for lane in range(32):
        row, column = lane_elements(lane)
        layout[row, column : column + 2] = lane * 2, lane * 2 + 1
    np.testing.assert_array_equal(out, [layout, 3 * np.eye(8), np.full((8, 8), 4), 2 * layout])


# ---------------------------------------------------------------- barriers


@pytest.mark.parametrize("count", [1, 32, 33, 256])
def test_code_around_barriers_runs_once_for_each_thread(count: int) -> None:
    source = """
constant int ROUNDS = 3;
void wait(bool really) {
  if (really) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
kernel void test(device int *before, device int *inner, device int *after, device const int *rounds,
                 uint i [[thread_position_in_threadgroup]]) {
  for (int outer = 0; outer < rounds[0]; outer++) {
    before[i]++;
    for (int k = 0; k < ROUNDS; k++) {
      wait(k % 2 == 0);
      inner[i]++;
      if (rounds[1] != 0) {
        threadgroup_barrier(mem_flags::mem_device);
        inner[i]++;
      }
    }
    after[i]++;
    threadgroup_barrier(mem_flags::mem_none);
  }
}"""
    before, inner, after = np.zeros((3, count), "i4")
    run(source, [before, inner, after, np.array([4, 1], "i4")], count)
    assert set(before) == set(after) == {4}
    assert set(inner) == {24}


@pytest.mark.parametrize("group", [1, 32, 33, 256])
def test_block_of_thread_zero_runs_once_for_each_threadgroup(group: int) -> None:
    source = """
kernel void test(device atomic_uint *counts, uint i [[thread_index_in_threadgroup]]) {
  if (i == 0) { atomic_fetch_add_explicit(&counts[0], 1, memory_order_relaxed); }
  threadgroup_barrier(mem_flags::mem_device);
  if (i == 0) { atomic_fetch_add_explicit(&counts[1], 1, memory_order_relaxed); }
  threadgroup_barrier(mem_flags::mem_device);
  if (i == 0) { atomic_fetch_add_explicit(&counts[2], 1, memory_order_relaxed); }
}"""
    counts = np.zeros(3, "u4")
    run(source, [counts], 5 * group, group)
    assert counts.tolist() == [5, 5, 5]


def test_values_pass_through_threadgroup_memory_in_each_round() -> None:
    source = """
kernel void test(device int *out, uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  threadgroup int line[100];
  line[i] = i;
  for (uint k = 0; k < n; k++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int next = line[(i + 1) % n];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    line[i] = next + 1;
  }
  out[i] = line[i];
}"""
    out = np.zeros(100, "i4")
    run(source, [out], 100)
    assert out.tolist() == [i + 100 for i in range(100)]
