"""What Metal source means, shown by running it: the rules by which it is rewritten keep its meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mpscffi.ShaderLibrary]
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
MSL = Path(__file__).with_name("msl")


def values(
    library: Any, name: str, count: int, dtype: Any = np.float32, *more: Any, **keywords: Any
) -> np.ndarray[Any, Any]:
    out = mpscffi.zeros(count, dtype=dtype)
    library[name](out, *more, **keywords)
    return out.numpy().copy()


def evaluated(
    compiled: Compile, body: str, count: int, dtype: str = "float", declarations: str = "", **keywords: Any
) -> list[Any]:
    """What one thread writes to `out`."""
    library = compiled(f"{HEAD}{declarations}\nkernel void k(device {dtype} *out) {{ {body} }}")
    kind = {"float": np.float32, "int": np.int32, "uint": np.uint32, "half": np.float16}[dtype]
    return values(library, "k", count, kind, threads=1, **keywords).tolist()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- literals, casts, constants


def test_literals_are_floats(compiled: Compile) -> None:
    body = "out[0] = sizeof(1.0); out[1] = sizeof(1.5h); out[2] = sizeof(1.5bf); out[3] = 16777217.0;"
    assert evaluated(compiled, body, 4) == [4, 2, 2, 16777216]


def test_casts_between_half_and_bfloat(compiled: Compile) -> None:
    body = (
        "bfloat b = 3.0bf; half h = 1.5h; bfloat c = (bfloat)h; half g = half(b);"
        "out[0] = float((half)b + h); out[1] = float(c); out[2] = float(g); out[3] = float(static_cast<bfloat>(-h));"
    )
    assert evaluated(compiled, body, 4) == [4.5, 1.5, 3, -1.5]


def test_constants_and_tables(compiled: Compile) -> None:
    declarations = (
        "constant float table[4] = {1.0, 2.5, -3.0, 4.0}; constant constexpr int n = 4; constant float2 v = {7, 8};"
    )
    assert evaluated(compiled, "for (int i = 0; i < n; i++) out[i] = table[i] * v.y;", 4, "float", declarations) == [
        8,
        20,
        -24,
        32,
    ]


def test_vectors_are_converted_not_reinterpreted(compiled: Compile) -> None:
    body = (
        "int4 i = int4(1, -2, 3, 4); float4 f = float4(i); uint2 u = (uint2)f.xz; bool4 b = i > 0;"
        "out[0] = f.y; out[1] = u.y; out[2] = select(10.0, 20.0, b.y); out[3] = dot(f, float4(1));"
        "out[4] = float3(2).zyx.x;"
    )
    assert evaluated(compiled, body, 5) == [-2, 3, 10, 6, 2]


def test_integers_have_metals_widths(compiled: Compile) -> None:
    body = (
        "out[0] = sizeof(long); out[1] = sizeof(size_t); out[2] = sizeof(bool); out[3] = sizeof(float3);"
        "out[4] = sizeof(packed_float3); out[5] = int(uchar(300)); out[6] = int(as_type<uint>(1.0f) >> 23);"
    )
    assert evaluated(compiled, body, 7, "int") == [8, 8, 1, 16, 12, 44, 127]


# ---------------------------------------------------------------- functions


def test_functions_and_methods_of_each_space(compiled: Compile) -> None:
    library = compiled((MSL / "methods_of_spaces.metal").read_text())
    x, y = mpscffi.asarray(np.float32([5, 0])), mpscffi.asarray(np.float32([7, 0]))
    library.methods(x, y, threads=1)
    assert x.numpy()[0] == 4 + 1 + 7 + 5 + 3


def test_templates_and_host_names(compiled: Compile) -> None:
    library = compiled((MSL / "namespaces.metal").read_text())
    assert dir(library) == sorted(["in_namespaces", "of_half", "of_float"])
    assert values(library, "of_half", 1, np.float16) == [1]
    assert values(library, "of_float", 1) == [1]


def test_overloaded_kernels(compiled: Compile) -> None:
    library = compiled((MSL / "overloads.metal").read_text())
    assert values(library, "write", 1) == [1]
    assert values(library, "put_value", 1, np.int32, 9) == [9]
    assert values(library, "put_zero", 1, np.int32) == [0]


def test_limits_that_depend_on_template_parameters(compiled: Compile) -> None:
    library = compiled((MSL / "limits_of_templates.metal").read_text())
    names = ("limited_4", "limited_8", "limited_64")
    assert [getattr(library, name).max_threads_per_threadgroup for name in names] == [128, 256, 64]


def test_lambdas_and_recursion(compiled: Compile) -> None:
    declarations = "int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }"
    body = "auto add = [&](int a) { return a + out[1]; }; out[1] = 2; out[0] = add(40); out[2] = factorial(6);"
    assert evaluated(compiled, body, 3, "int", declarations) == [42, 2, 720]


def test_kernels_of_sources_with_graphics(compiled: Compile) -> None:
    library = compiled((MSL / "other_stages.metal").read_text())
    assert dir(library) == ["compute"]
    assert values(library, "compute", 1) == [2]


# ---------------------------------------------------------------- threadgroup memory and waiting


def test_memory_in_nested_scopes(compiled: Compile) -> None:
    library = compiled((MSL / "nested_memory.metal").read_text())
    x = mpscffi.asarray(np.arange(64, dtype=np.float32))
    library.nested(x, threads=64, group_size=64)
    assert x.numpy().tolist() == [1] * 64  # second[1][0] is the first element of thread 1


def test_each_threadgroup_begins_with_zeros_where_the_source_says_so(compiled: Compile) -> None:
    library = compiled(
        HEAD + "kernel void k(device int *out, uint i [[thread_position_in_grid]],\n"
        "                uint t [[thread_index_in_threadgroup]]) {\n"
        "  threadgroup int sums[4] = {0};\n  threadgroup atomic_int *a = (threadgroup atomic_int *)sums;\n"
        "  atomic_fetch_add_explicit(&a[t % 4], 1 + int(t), memory_order_relaxed);\n"
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  out[i] = sums[t % 4];\n}"
    )
    expected = [sum(1 + u for u in range(40) if u % 4 == t % 4) for t in range(40)] * 3
    assert values(library, "k", 120, np.int32, threads=120, group_size=40).tolist() == expected


def test_a_thread_that_waits_lets_the_others_run(compiled: Compile) -> None:
    library = compiled(
        HEAD + "kernel void k(device int *out, uint t [[thread_index_in_threadgroup]]) {\n"
        "  threadgroup atomic_int turn[1] = {0};\n"
        "  while (atomic_load_explicit(turn, memory_order_relaxed) != 63 - int(t)) {}\n"
        "  out[t] = 63 - t;\n  atomic_fetch_add_explicit(turn, 1, memory_order_relaxed);\n}"
    )
    assert values(library, "k", 64, np.int32, threads=64, group_size=64).tolist() == list(range(63, -1, -1))


@pytest.mark.unvalidated("barriers that not all threads reach")
def test_a_lock_within_a_threadgroup(compiled: Compile) -> None:
    library = compiled(
        HEAD + "kernel void k(device int *out, device atomic_int *lock, uint t [[thread_index_in_threadgroup]]) {\n"
        "  int expected = 0;\n"
        "  while (!atomic_compare_exchange_weak_explicit(lock, &expected, 1, memory_order_relaxed,\n"
        "                                                memory_order_relaxed))\n    expected = 0;\n"
        "  int before = out[0];\n  simdgroup_barrier(mem_flags::mem_none);\n  out[0] = before + 1;\n"
        "  atomic_store_explicit(lock, 0, memory_order_relaxed);\n}"
    )
    lock = mpscffi.zeros(1, dtype=np.int32)
    assert values(library, "k", 1, np.int32, lock, threads=100, group_size=100) == [100]


# ---------------------------------------------------------------- function constants


def test_parameters_that_function_constants_leave_out(compiled: Compile) -> None:
    library = compiled((MSL / "optional_buffers.metal").read_text())
    x = mpscffi.zeros(4)
    library.add(x)
    assert x.numpy().tolist() == [1, 1, 1, 1]


# ---------------------------------------------------------------- math


@pytest.mark.parametrize("math_mode", ["safe", "relaxed", "fast"])
def test_infinities_and_nan_in_every_math_mode(math_mode: str, device: mpscffi.Device) -> None:
    source = HEAD + (
        "kernel void k(device const float *x, device float *out) { out[0] = isnan(x[0]); out[1] = x[0] != x[0];"
        "out[2] = isinf(x[1]); out[3] = max(-INFINITY, x[2]); out[4] = isnan(x[1] - x[1]); }"
    )
    library = mpscffi.compile_shader(source, math_mode=math_mode)
    x, out = mpscffi.asarray(np.float32([np.nan, np.inf, 3])), mpscffi.zeros(5)
    library.k(x, out, threads=1)
    assert out.numpy().tolist() == [1, 1, 1, 3, 1]


def test_the_safe_mode_keeps_zeros_signs_and_the_order_of_sums(device: mpscffi.Device) -> None:
    source = HEAD + (
        "kernel void k(device const float *x, device float *out) { out[0] = 1 / (x[0] * -1); float s = 0;"
        "for (int i = 1; i < 33; i++) s += x[i]; out[1] = s; out[2] = (x[1] + x[2]) - x[1]; }"
    )
    rng = np.random.default_rng(5)
    given = np.concatenate([np.float32([0]), (rng.random(32) * 10.0 ** rng.integers(-3, 9, 32)).astype(np.float32)])
    total = np.float32(0)
    for value in given[1:]:
        total += value
    out = mpscffi.zeros(3)
    mpscffi.compile_shader(source, math_mode="safe").k(mpscffi.asarray(given), out, threads=1)
    assert out.numpy().tolist() == [-np.inf, total, (given[1] + given[2]) - given[1]]


@pytest.mark.parametrize(("pragma", "expected"), [("off", 0.0), ("fast", 2.0**-24)])
def test_contraction_as_the_source_asks(pragma: str, expected: float, compiled: Compile) -> None:
    library = compiled(
        f"#pragma METAL fp contract({pragma})\n{HEAD}kernel void k(device float *out, constant float &a) "
        "{ out[0] = a * a - (1 + 2 * (a - 1)); }"
    )
    a = 1 + 2.0**-12  # a * a is 1 + 2^-11 + 2^-24, the last of which does not fit a float
    assert values(library, "k", 1, np.float32, a, threads=1) == [expected]
