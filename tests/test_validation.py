"""Validated kernels: what is wrong is told with its place, what is right runs as ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from failures import failure, passes

import mpscffi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.host_only("Metal validates by itself")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
THREAD = "uint i [[thread_position_in_grid]]"
LANE = "uint l [[thread_position_in_threadgroup]]"


@pytest.fixture(autouse=True)
def _host() -> Iterator[None]:
    before = mpscffi.current_device()
    mpscffi.set_device("host")
    yield
    mpscffi.set_device(before)


def kernel(source: str, **options: Any) -> Any:
    """The only kernel of a source, whose first line is the third of what is compiled."""
    library = mpscffi.compile_shader(HEAD + source, validate=True, **options)
    (name,) = library
    return getattr(library, name)


# ---------------------------------------------------------------- bounds


def test_a_read_behind_a_buffer_is_told_in_full() -> None:
    over = kernel(f"kernel void over(device float* out, device const float* x, {THREAD}) {{\n  out[i] = x[i + 1];\n}}")
    out = mpscffi.zeros(64)
    text = failure(lambda: over(out, mpscffi.ones(64), threads=64, group_size=32))
    assert (
        "kernel 'over' failed: read 4 bytes at program_source:4, outside of buffer 'x' (index 1) of 256 bytes" in text
    )
    assert "offset 256; thread (63, 0, 0) of threadgroup (1, 0, 0);" in text
    assert "more" not in text
    assert out.numpy().tolist() == [1.0] * 63 + [0.0]  # all others have run; what cannot be read is zero


def test_writes_outside_do_not_happen_and_are_counted() -> None:
    over = kernel(f"kernel void over(device int* out, {THREAD}) {{\n  out[2 * i] = 7;\n}}")
    around = mpscffi.zeros(3 * 64, dtype="int32")
    middle = around[64:128]
    whole = mpscffi.zeros(64, dtype="int32")
    text = failure(lambda: over(whole, threads=64, group_size=8))
    assert "wrote 4 bytes at program_source:4, outside of buffer 'out' (index 0) of 256 bytes: offset 256" in text
    assert "thread (32, 0, 0) of threadgroup (4, 0, 0); and 31 more;" in text
    assert whole.numpy().tolist() == [7, 0] * 32
    passes(lambda: over(middle, threads=64))  # the buffer goes on behind a view
    assert around.numpy().sum() == 64 * 7


def test_before_the_start() -> None:
    under = kernel(f"kernel void under(device char* out, {THREAD}) {{ out[int(i) - 1] = 1; }}")
    text = failure(lambda: under(mpscffi.zeros(5, dtype="int8"), threads=5))
    assert "wrote 1 bytes at program_source:3, outside of buffer 'out' (index 0) of 5 bytes: offset -1" in text


@pytest.mark.parametrize("far", [1 << 20, 1 << 30, 1 << 38, -(1 << 38)])
def test_far_outside_is_told_of_the_right_buffer(far: int) -> None:
    over = kernel("kernel void over(device char* a, device char* b, constant long& far) { a[0] = b[far]; }")
    a, b = mpscffi.zeros(16, dtype="int8"), mpscffi.zeros(16, dtype="int8")
    assert f"buffer 'b' (index 1) of 16 bytes: offset {far};" in failure(lambda: over(a, b, far, threads=1))


def test_a_vector_that_is_partly_outside() -> None:
    over = kernel(f"kernel void over(device float4* out, {THREAD}) {{ out[i] = float4(1); }}")
    text = failure(lambda: over(mpscffi.zeros(7), threads=2))
    assert "wrote 16 bytes" in text
    assert "of 28 bytes: offset 16" in text


def test_inline_bytes_have_their_length() -> None:
    over = kernel(f"kernel void over(device int* out, constant int* values, {THREAD}) {{ out[i] = values[i]; }}")
    out = mpscffi.zeros(4, dtype="int32")
    passes(lambda: over(out, [1, 2, 3, 4], threads=4))
    assert out.numpy().tolist() == [1, 2, 3, 4]
    text = failure(lambda: over(out, [1, 2, 3], threads=4))
    assert "read 4 bytes at program_source:3, outside of buffer 'values' (index 1) of 12 bytes: offset 12" in text


def test_buffers_behind_a_table_of_addresses() -> None:
    gather = kernel(
        f"kernel void gather(device float* out, device const float* const* in, {THREAD}) {{\n"
        "  out[i] = in[0][i] + in[1][i];\n}"
    )
    out = mpscffi.zeros(8)
    passes(lambda: gather(out, [mpscffi.ones(8), mpscffi.ones(8)], threads=8))
    assert out.numpy().tolist() == [2.0] * 8
    text = failure(lambda: gather(out, [mpscffi.ones(8), mpscffi.ones(4)], threads=8))
    assert "a buffer in the table 'in' (index 1) of 16 bytes: offset 16" in text


def test_threadgroup_memory_is_bounded_by_variable() -> None:
    over = kernel(
        f"kernel void over(device float* out, {THREAD}, {LANE}) {{\n"
        "  threadgroup float a[32];\n  threadgroup float b[32];\n  a[l] = i;\n  b[l] = i;\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  out[i] = a[l + 1] + b[l];\n}"
    )
    text = failure(lambda: over(mpscffi.zeros(32), threads=32, group_size=32))
    assert "read 4 bytes at program_source:9, outside of threadgroup variable 0 of 128 bytes: offset 128" in text


def test_threadgroup_arguments_have_their_length() -> None:
    over = kernel(
        f"kernel void over(device float* out, threadgroup float* t [[threadgroup(0)]], {THREAD}, {LANE}) {{\n"
        "  t[l] = i;\n  threadgroup_barrier(mem_flags::mem_threadgroup);\n  out[i] = t[31 - l];\n}"
    )
    out = mpscffi.zeros(64)
    passes(lambda: over(out, threads=64, group_size=32, threadgroup_memory=128))
    assert out.numpy().tolist() == [*range(31, -1, -1), *range(63, 31, -1)]
    text = failure(lambda: over(out, threads=64, group_size=32, threadgroup_memory=64))
    assert "wrote 4 bytes at program_source:4, outside of threadgroup argument 't' (index 0) of 64 bytes" in text
    text = failure(lambda: over(out, threads=32, group_size=32, threadgroup_memory=0))
    assert "wrote 4 bytes at program_source:4, outside of threadgroup argument 't' (index 0) of 0 bytes" in text


def test_addresses_that_are_nobodys() -> None:
    wild = kernel("kernel void wild(device int* out, constant long& at) {\n  out[0] = *(device int*)at;\n}")
    for address in (0, 64, 1 << 60):
        text = failure(lambda: wild(mpscffi.zeros(1, dtype="int32"), address, threads=1))  # noqa: B023
        assert f"read 4 bytes at program_source:4, at address 0x{address:x}, which belongs to nothing" in text


def test_addresses_that_are_in_the_code() -> None:
    wild = kernel("kernel void wild(device int* out) {\n  *(device volatile int*)4096 = out[0];\n}")
    text = failure(lambda: wild(mpscffi.zeros(1, dtype="int32"), threads=1))
    assert "wrote 4 bytes at program_source:4, at address 0x1000, which belongs to nothing" in text


@pytest.mark.parametrize("way", ["array", "end", "table"])
def test_an_array_without_elements_has_no_bytes(way: str) -> None:
    if way == "table":
        over = kernel(
            "kernel void over(device int* out, constant const device int* const* in) {\n  out[0] = in[0][0];\n}"
        )
        text = failure(lambda: over(mpscffi.zeros(1, dtype="int32"), [mpscffi.ones(0, dtype="int32")], threads=1))
        assert "outside of a buffer in the table 'in' (index 1) of 0 bytes: offset 0" in text
        return
    empty = mpscffi.ones(0, dtype="int32") if way == "array" else mpscffi.ones(4, dtype="int32")[4:]
    over = kernel("kernel void over(device int* x) {\n  x[0] = 1;\n}")
    text = failure(lambda: over(empty, threads=1))
    assert "wrote 4 bytes at program_source:4, outside of buffer 'x' (index 0) of 0 bytes: offset 0" in text


def test_a_loop_that_waits_for_what_it_cannot_read_ends() -> None:
    hang = kernel("kernel void hang(device volatile int* p) {\n  int n = 0;\n  while (p[4 + n % 2] == 0) { n++; }\n}")
    assert "and 99999 more, then stopped" in failure(lambda: hang(mpscffi.zeros(1, dtype="int32"), threads=1))


def test_an_included_header_has_lines_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "reads.h").write_text("\ntemplate <class T> T first_behind(device T* p, uint n) {\n  return p[n];\n}\n")
    over = kernel(
        '#include "reads.h"\nkernel void over(device float* out) {\n  out[0] = first_behind(out, 4);\n}',
        include_dirs=[tmp_path],
    )
    text = failure(lambda: over(mpscffi.zeros(4), threads=1))
    assert re.search(r"read 4 bytes at \S*reads\.h:3, outside of buffer 'out'", text)


# ---------------------------------------------------------------- memory that nobody has written


def test_unset_threadgroup_memory() -> None:
    unset = kernel(
        f"kernel void unset(device float* out, {THREAD}, {LANE}) {{\n"
        "  threadgroup float t[32];\n  if (l < 16) { t[l] = i; }\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  out[i] = t[l];\n}"
    )
    text = failure(lambda: unset(mpscffi.zeros(64), threads=64, group_size=32))
    assert (
        "read 4 bytes at program_source:7 that no thread has written yet: offset 64 in threadgroup variable 0" in text
    )
    assert "thread (16, 0, 0) of threadgroup (0, 0, 0); and 1 more" in text  # the first of each threadgroup


def test_what_another_threadgroup_left_does_not_count() -> None:
    unset = kernel(
        "kernel void unset(device float* out, uint g [[threadgroup_position_in_grid]]) {\n"
        "  threadgroup float t;\n  if (g == 0) { t = 1; }\n  out[g] = t;\n}"
    )
    assert "thread (1, 0, 0) of threadgroup (1, 0, 0);" in failure(
        lambda: unset(mpscffi.zeros(2), threads=2, group_size=1)
    )


# ---------------------------------------------------------------- races

MISSING_BARRIER = f"""kernel void exchange(device float* out, {THREAD}, {LANE}) {{
  threadgroup float t[64];
  t[l] = i;
  t[l + 32] = 0;
  BARRIER
  out[i] = t[31 - l] + t[32 + l];
  t[l] = 0;
}}"""


def test_a_missing_barrier() -> None:
    exchange = kernel(MISSING_BARRIER.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_threadgroup);"))
    text = failure(lambda: exchange(mpscffi.zeros(32), threads=32, group_size=32))
    # The second one: each thread overwrites what another reads.
    assert re.search(r"(wrote|read) 4 bytes at program_source:[89], a data race: offset \d+ in threadgroup var", text)
    assert "with no barrier between" in text


def test_two_threads_and_two_lines() -> None:
    race = kernel(
        f"kernel void race(device int* out, {THREAD}) {{\n  if (i == 3) {{\n    out[1] = 5;\n  }}\n"
        "  if (i == 40) {\n    out[2] = out[1];\n  }\n}"
    )
    text = failure(lambda: race(mpscffi.zeros(4, dtype="int32"), threads=64, group_size=64))
    assert "read 4 bytes at program_source:8, a data race: offset 4 in buffer 'out' (index 0) of 16 bytes" in text
    assert "which thread (3, 0, 0) of threadgroup (0, 0, 0) wrote at program_source:5 with no barrier between" in text
    assert "; thread (40, 0, 0) of threadgroup (0, 0, 0);" in text


def test_threadgroups_have_no_order() -> None:
    race = kernel(
        "kernel void race(device int* out, uint g [[threadgroup_position_in_grid]]) {\n"
        "  if (g == 0) { out[0] = 1; }\n  if (g == 2) { out[1] = out[0]; }\n}"
    )
    text = failure(lambda: race(mpscffi.zeros(2, dtype="int32"), threads=3, group_size=1))
    assert "read 4 bytes at program_source:5, a data race" in text
    assert "threadgroup (0, 0, 0) wrote at program_source:4: threadgroups have no order" in text


def test_atomic_and_plain_do_not_mix() -> None:
    race = kernel(
        f"kernel void race(device atomic_int* a, device int* out, {THREAD}) {{\n"
        "  atomic_fetch_add_explicit(a, 1, memory_order_relaxed);\n  out[i] = *(device int*)a;\n}"
    )
    text = failure(lambda: race(mpscffi.zeros(1, dtype="int32"), mpscffi.zeros(8, dtype="int32"), threads=8))
    assert "a data race" in text


def test_a_simdgroup_barrier_orders_one_simdgroup_alone() -> None:
    source = f"""kernel void shift(device float* out, {THREAD}, {LANE}) {{
  threadgroup float t[64];
  t[l] = i;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = t[l ^ MASK];
}}"""
    near = kernel(source.replace("MASK", "31"))
    out = mpscffi.zeros(64)
    passes(lambda: near(out, threads=64, group_size=64))
    assert out.numpy().tolist() == [i ^ 31 for i in range(64)]
    far = kernel(source.replace("MASK", "32"))
    text = failure(lambda: far(out, threads=64, group_size=64))
    assert "data race" in text or "no thread has written yet" in text


# ---------------------------------------------------------------- right kernels

TREE = f"""kernel void tree(device float* out, device const float* x, {THREAD}, {LANE},
                 uint g [[threadgroup_position_in_grid]], uint n [[threads_per_threadgroup]]) {{
  threadgroup float t[256];
  t[l] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = n / 2; step > 0; step /= 2) {{
    if (l < step) {{ t[l] += t[l + step]; }}
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }}
  if (l == 0) {{ out[g] = t[0]; }}
}}"""
SIMD = f"""kernel void sums(device float* out, device const float* x, {THREAD},
                 uint lane [[thread_index_in_simdgroup]], uint s [[simdgroup_index_in_threadgroup]],
                 uint g [[threadgroup_position_in_grid]], uint n [[simdgroups_per_threadgroup]]) {{
  threadgroup float t[32];
  float sum = simd_sum(x[i]);
  if (lane == 0) {{ t[s] = sum; }}
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (s == 0) {{
    sum = simd_sum(lane < n ? t[lane] : 0.0f);
    if (lane == 0) {{ out[g] = sum; }}
  }}
}}"""


@pytest.mark.parametrize("source", [TREE, SIMD])
def test_reductions(source: str) -> None:
    values = np.arange(1024, dtype=np.float32)
    out = mpscffi.zeros(4)
    passes(lambda: kernel(source)(out, mpscffi.asarray(values), threads=1024, group_size=256))
    assert out.numpy().tolist() == values.reshape(4, 256).sum(axis=1).tolist()


def test_a_histogram() -> None:
    histogram = kernel(
        f"kernel void histogram(device atomic_uint* out, device const uchar* x, {THREAD}, {LANE}) {{\n"
        "  threadgroup atomic_uint t[16];\n"
        "  if (l < 16) { atomic_store_explicit(&t[l], 0, memory_order_relaxed); }\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  atomic_fetch_add_explicit(&t[x[i] % 16], 1, memory_order_relaxed);\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  if (l < 16) {\n"
        "    uint n = atomic_load_explicit(&t[l], memory_order_relaxed);\n"
        "    atomic_fetch_add_explicit(&out[l], n, memory_order_relaxed);\n  }\n}"
    )
    values = np.random.default_rng(1).integers(0, 256, 2048).astype(np.uint8)
    out = mpscffi.zeros(16, dtype="uint32")
    passes(lambda: histogram(out, mpscffi.asarray(values), threads=2048, group_size=128))
    assert out.numpy().tolist() == np.bincount(values % 16, minlength=16).tolist()


def test_the_last_threadgroup_adds_up() -> None:
    total = kernel(
        "kernel void total(device float* out, device float* parts, device atomic_uint* done,\n"
        "    uint g [[threadgroup_position_in_grid]], uint n [[threadgroups_per_grid]]) {\n"
        "  parts[g] = g;\n  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);\n"
        "  if (atomic_fetch_add_explicit(done, 1, memory_order_relaxed) == n - 1) {\n"
        "    float sum = 0;\n    for (uint k = 0; k < n; k++) { sum += parts[k]; }\n    out[0] = sum;\n  }\n}"
    )
    out = mpscffi.zeros(1)
    passes(lambda: total(out, mpscffi.zeros(50), mpscffi.zeros(1, dtype="uint32"), threads=50, group_size=1))
    assert out.item() == sum(range(50))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32", "int64"])
def test_neighbours_do_not_race(dtype: str) -> None:
    name = {"uint8": "uchar", "int16": "short", "float16": "half", "float32": "float", "int64": "long"}[dtype]
    add = kernel(f"kernel void add(device {name}* out, {THREAD}) {{ out[i] += {name}(i % 100); }}")
    out = mpscffi.ones(1000, dtype=dtype)
    passes(lambda: add(out, threads=1000, group_size=64))
    assert (out.numpy() == np.arange(1000) % 100 + 1).all()


def test_vectors_structs_stacks_and_constants() -> None:
    mixed = kernel(
        "constant float table[4] = {1, 2, 3, 4};\n"
        "struct pair { char tag; float3 v; };\n"
        f"kernel void mixed(device float3* a, device packed_float3* b, device float* out, {THREAD}, {LANE}) {{\n"
        "  threadgroup pair t[32];\n"
        "  t[l] = pair{char(l), a[i]};\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  pair p = t[31 - l];\n"
        "  float local[4];\n"
        "  for (uint k = 0; k < 4; k++) { local[(k + i) % 4] = table[k]; }\n"
        "  b[i] = p.v;\n"
        "  out[i] = local[i % 4] + p.tag;\n}"
    )
    a = mpscffi.asarray(np.arange(128, dtype=np.float32))
    b, out = mpscffi.zeros(96), mpscffi.zeros(32)
    passes(lambda: mixed(a, b, out, threads=32, group_size=32))
    assert (b.numpy().reshape(32, 3) == np.arange(128).reshape(32, 4)[::-1, :3]).all()
    assert out.numpy().tolist() == [1.0 + 31 - i for i in range(32)]


def test_variables_that_begin_as_zeros() -> None:
    zeros = kernel(
        f"kernel void zeros(device int* out, {THREAD}, {LANE}) {{\n"
        "  threadgroup int t[32] = {0};\n  out[i] = t[l];\n}"
    )
    out = mpscffi.ones(64, dtype="int32")
    passes(lambda: zeros(out, threads=64, group_size=32))
    assert not out.numpy().any()


def test_one_memory_in_two_arguments() -> None:
    double = kernel(f"kernel void twice(device float* out, device const float* x, {THREAD}) {{ out[i] = 2 * x[i]; }}")
    values = mpscffi.ones(100)
    passes(lambda: double(values, values, threads=100))
    assert values.numpy().tolist() == [2.0] * 100
    shifted = kernel(f"kernel void next(device float* out, device const float* x, {THREAD}) {{ out[i] = x[i + 1]; }}")
    assert "a data race" in failure(lambda: shifted(values, values, threads=99))


# ---------------------------------------------------------------- barriers that not all threads reach

GROUP_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
LANES_BARRIER = "simdgroup_barrier(mem_flags::mem_threadgroup);"


def meet(body: str, threads: int = 32) -> Callable[[], Any]:
    """A run of a kernel whose `body` begins in line 4, with n = 20."""
    meets = kernel(f"kernel void meets(device int* out, constant int& n, {THREAD}, {LANE}) {{\n{body}\n}}")
    return lambda: meets(mpscffi.zeros(threads, dtype="int32"), 20, threads=threads, group_size=32)


@pytest.mark.parametrize("barrier", [GROUP_BARRIER, LANES_BARRIER], ids=["threadgroup", "simdgroup"])
@pytest.mark.parametrize(
    ("body", "waits", "waiting", "other", "where"),
    [
        ("if (int(i) >= n) return;\nBARRIER", 5, 0, 20, "had returned"),
        ("if (l & 1) {\n  BARRIER\n  out[i] = 1;\n}", 5, 1, 0, "had returned"),
        ("for (uint j = 0; j < l; j++) {\n  BARRIER\n  out[i] += j;\n}", 5, 1, 0, "had returned"),
    ],
    ids=["early return", "one branch", "loop count"],
)
def test_a_barrier_that_some_threads_miss(
    barrier: str, body: str, waits: int, waiting: int, other: int, where: str
) -> None:
    text = failure(meet(body.replace("BARRIER", barrier)))
    assert (
        f"kernel 'meets' failed: waited at the {barrier.partition('(')[0]} at program_source:{waits}, which not all "
        f"threads reach: thread ({other}, 0, 0) of threadgroup (0, 0, 0) {where}; "
        f"thread ({waiting}, 0, 0) of threadgroup (0, 0, 0);" in text
    )
    assert "more" not in text  # once for a threadgroup


@pytest.mark.parametrize("barrier", [GROUP_BARRIER, LANES_BARRIER], ids=["threadgroup", "simdgroup"])
def test_different_barriers(barrier: str) -> None:
    text = failure(meet(f"if (l & 1) {{\n  {barrier}\n  out[i] = 1;\n}} else {{\n  {barrier}\n  out[i] = 2;\n}}"))
    assert " at program_source:5" in text
    assert " at program_source:8" in text
    assert "which not all threads reach" in text


def test_a_missed_barrier_is_counted_for_each_threadgroup() -> None:
    body = f"if (l == 31) return;\n{GROUP_BARRIER}\nout[i] = 1;\n{GROUP_BARRIER}"
    text = failure(meet(body, threads=96))
    assert "thread (31, 0, 0) of threadgroup (0, 0, 0) had returned; thread (0, 0, 0)" in text
    assert "; and 2 more;" in text


@pytest.mark.parametrize("barrier", [GROUP_BARRIER, LANES_BARRIER], ids=["threadgroup", "simdgroup"])
@pytest.mark.parametrize(
    "body",
    [
        "if (i >= 64) return;\nBARRIER\nout[i] = 1;",
        "for (int j = 0; j < n; j++) {\n  BARRIER\n  out[i] += j;\n}",
        "for (int j = 0; j < 3; j++) {\n  out[i] += j;\n  BARRIER\n}",
        "out[i] = l & 1 ? simd_sum(l) : simd_max(l);\nBARRIER",
        "if (l > 7) {\n  for (uint j = 0; j < l; j++) out[i] += simd_sum(j);\n}\nBARRIER\nout[i] += 1;\nBARRIER",
    ],
    ids=["whole threadgroups return", "uniform loop", "unrolled", "divergent reductions", "divergent loop"],
)
def test_barriers_that_all_threads_reach(body: str, barrier: str) -> None:
    passes(meet(body.replace("BARRIER", barrier), threads=96))
    passes(meet(body.replace("BARRIER", barrier), threads=40))  # the last threadgroup is smaller


def test_a_barrier_in_a_helper_is_one_barrier() -> None:
    meets = kernel(
        f"void meet() {{\n  {GROUP_BARRIER}\n}}\n"
        f"kernel void meets(device int* out, {THREAD}) {{\n  if (i & 1) meet(); else meet();\n  out[i] = i;\n}}"
    )
    out = mpscffi.zeros(32, dtype="int32")
    passes(lambda: meets(out, threads=32, group_size=32))
    assert out.numpy().tolist() == list(range(32))


# ---------------------------------------------------------------- how it is asked for


def test_pointers_to_one_memory_are_equal() -> None:
    same = kernel("kernel void k(device int *out, const device float *x, const device float *y) { out[0] = x == y; }")
    x, out = mpscffi.zeros(8), mpscffi.zeros(1, dtype="int32")
    for other, expected in ((x, 1), (mpscffi.zeros(8), 0), (x, 1)):
        passes(lambda other=other: same(out, x, other, threads=1))
        assert out.item() == expected


@pytest.mark.unvalidated("without a wish nothing is validated")
def test_it_is_off_unless_asked_for() -> None:
    source = f"{HEAD}kernel void race(device int* out, {THREAD}) {{ out[0] = i; }}"
    race = mpscffi.compile_shader(source).race
    passes(lambda: race(mpscffi.zeros(1, dtype="int32"), threads=64))
    text = failure(
        lambda: mpscffi.compile_shader(source, validate=True).race(mpscffi.zeros(1, dtype="int32"), threads=64)
    )
    assert "; and 62 more" in text


def test_the_environment_asks_for_it(tmp_path: Path) -> None:
    program = (
        "import mpscffi\n"
        "source = 'kernel void over(device int* out) { out[1] = 1; }'\n"
        "for validate in (None, False):\n"
        "    try:\n"
        "        mpscffi.compile_shader(source, validate=validate).over(mpscffi.zeros(1, dtype='int32'), threads=1)\n"
        "        mpscffi.synchronize()\n"
        "        print('passes')\n"
        "    except mpscffi.errors.ExecutionError as error:\n"
        "        print(error)\n"
    )
    environment = {**os.environ, "MPSCFFI_SHADER_VALIDATION": "1", "MPSCFFI_DEVICE": "host"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,  # not the source tree, whose package is not built
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    checked, unchecked = done.stdout.splitlines()
    assert "outside of buffer 'out' (index 0) of 4 bytes: offset 4" in checked
    assert unchecked == "passes"
