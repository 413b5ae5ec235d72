"""What would run outside of kernels, or be lost silently, is an error; what only looks like it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi.errors import CompileError, LimitExceededError

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mpscffi.ShaderLibrary]
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def values(compiled: Compile, body: str, count: int, declarations: str = "") -> list[int]:
    """What one thread writes to `o`."""
    library: Any = compiled(f"{HEAD}{declarations}\nkernel void k(device int *o) {{ {body} }}")
    out = mpscffi.zeros(count, dtype=np.int32)
    library.k(out, threads=1)
    return out.numpy().tolist()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- code at loading


@pytest.mark.parametrize(
    "declarations",
    [
        "struct S { int v; S() { v = *(volatile thread int *)8; } }; constant S s;",
        "int f() { while (true); return 1; } constant int s = f();",
        "struct S { int v; ~S() { while (true); } }; constant S s = {3};",
        "int f() { while (true); return 1; } template <class T> constant int v = f(); int g() { return v<int>; }",
    ],
)
def test_no_code_runs_when_a_library_is_loaded(declarations: str, compiled: Compile) -> None:
    use = "g()" if "g()" in declarations else "s" if "constant int s" in declarations else "s.v"
    with pytest.raises(CompileError, match=r"program_source:3:\d+: error: .* needs a constant expression"):
        values(compiled, f"o[0] = {use};", 1, declarations)


@pytest.mark.parametrize("attribute", ["constructor", "destructor(101)", "__constructor__", 'section(".init_array")'])
def test_attributes_of_loading_are_refused(attribute: str, compiled: Compile) -> None:
    name = attribute.partition("(")[0]
    with pytest.raises(CompileError, match=f"program_source:3:.*error: attribute '{name}' is not supported in Metal"):
        values(compiled, "o[0] = 1;", 1, f"__attribute__((used, {attribute})) void f() {{ while (true); }}")


def test_initializers_that_become_constants_are_taken(compiled: Compile) -> None:
    declarations = (
        "constant float4 a = float4(1, 2, 3, 4); constant float3 b = a.xyz * 2; constant float c = a.y;"
        "constant float2x2 m = float2x2(float2(1, 2), float2(3, 4)); constant array<int, 3> t = {1, 2, 3};"
        "constant packed_float3 p[2] = {packed_float3(1, 2, 3), {4, 5, 6}}; constant float r = sqrt(4.0f);"
        "constant int n [[function_constant(0)]]; constant int d = is_function_constant_defined(n) ? n : 5;"
    )
    body = "o[0] = b.z + c; o[1] = m[1][0] + t[2]; o[2] = p[1].z; o[3] = r; o[4] = d;"
    assert values(compiled, body, 5, declarations) == [8, 6, 6, 2, 5]


# ---------------------------------------------------------------- threadgroup memory


@pytest.mark.parametrize(
    "variables", ["threadgroup int a[1073741824];", "threadgroup float a[1 << 28], b[1 << 28], c[1 << 28], d[1 << 28];"]
)
def test_threadgroup_memory_beyond_what_can_be_counted(variables: str, compiled: Compile) -> None:
    with pytest.raises(CompileError, match="program_source:5:.*error: .*threadgroup memory.* 32768 bytes"):
        values(compiled, f"\n{variables} a[0] = 3; o[0] = a[0];", 1)


def test_threadgroup_memory_beyond_the_limit(compiled: Compile) -> None:
    assert values(compiled, "threadgroup int a[8192]; a[8191] = 3; o[0] = a[8191];", 1) == [3]
    for variables in ("threadgroup int a[8193];", "threadgroup int a[1 << 29], b[1 << 28], c[1 << 27];"):
        with pytest.raises(LimitExceededError, match="32768"):
            values(compiled, f"{variables} a[0] = 3; o[0] = a[0];", 1)
    halves = "threadgroup int a[1 << 29]; threadgroup int b[1 << 29]; a[0] = b[0] = 3; o[0] = a[0];"  # 2**32 bytes
    with pytest.raises(LimitExceededError, match="4294967296 bytes"):
        values(compiled, halves, 1)


# ---------------------------------------------------------------- inputs


def test_inputs_may_spell_their_types_in_several_words(compiled: Compile) -> None:
    library: Any = compiled(
        f"{HEAD}kernel void k(device int *o, unsigned int i [[thread_position_in_grid]],"
        "const unsigned int n [[threads_per_grid]], unsigned short const l [[thread_index_in_threadgroup]],"
        "short unsigned int s [[thread_index_in_simdgroup]]) { o[i] = n * 1000 + l * 10 + s; }"
    )
    out = mpscffi.zeros(40, dtype=np.int32)
    library.k(out, threads=40, group_size=40)
    assert out.numpy()[[0, 3, 39]].tolist() == [40000, 40033, 40397]


@pytest.mark.parametrize("kind", ["unsigned long", "unsigned char", "signed int", "const int"])
def test_inputs_of_other_types_are_refused(kind: str) -> None:
    with pytest.raises(CompileError, match=f"type '{kind}' is not valid for attribute 'thread_position_in_grid'"):
        mpscffi.compile_shader(f"kernel void k(device int *o, {kind} i [[thread_position_in_grid]]) {{ o[i] = 1; }}")


# ---------------------------------------------------------------- writes to copies


@pytest.mark.parametrize(
    "statement",
    [
        "v.xyz.xw = 0;",
        "v.xxy.xy = 0;",
        "v.xyx.xzy = 0;",
        "v.xyz[1] = 9;",
        "v.xy[0] += 1;",
        "(v + v) = v;",
        "(v + v).xy = 1;",
        "(v + v)[0] = 1;",
        "p.xyz.yy = 1;",
        "p.xy[0] = 1;",
        "(m * m)[0] = 1;",
        "(m * m)[0].x = 1;",
        "(m * m)[0][0] = 1;",
    ],
)
def test_a_write_to_a_copy_is_an_error(statement: str, compiled: Compile) -> None:
    with pytest.raises(CompileError, match="program_source:5:.*error: "):
        values(compiled, f"float4 v(1, 2, 3, 4); packed_float3 p(7, 8, 9); float2x2 m(1);\n{statement} o[0] = v.x;", 1)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("v.xyz.xy = 0;", [0, 0, 3, 4]),
        ("v.wx.yx = float2(8, 9);", [8, 2, 3, 9]),
        ("v.zyx.yx += float2(10, 20);", [1, 12, 23, 4]),
        ("v.xyz.xy++;", [2, 3, 3, 4]),
        ("++v.rgb.b;", [1, 2, 4, 4]),
        ("v.wzyx.yzw.zx *= 10;", [10, 2, 30, 4]),
        ("v.xyz.z = v.xyz.xy.y = 7;", [1, 7, 7, 4]),
        ("a[1].zw.y = 7; v = a[1];", [1, 1, 1, 7]),
        ("q->yz.x -= 2; v = *q;", [1, 0, 3, 4]),
        ("p.zyx.x = 5; v.xyz = p;", [7, 8, 5, 4]),
        ("s.xyz.x = 6; v = s.xyz;", [6, 0, 0, 0]),
    ],
)
def test_writes_through_swizzles_of_swizzles(statement: str, expected: list[int], compiled: Compile) -> None:
    setup = "float4 v(1, 2, 3, 4); packed_float3 p(7, 8, 9); float4 a[2] = {1, 1}; thread float4* q = &v;"
    declaration = ""
    if "s." in statement:
        declaration, setup = "struct S { float4 xyz; };", setup + "S s = {float4(0)};"
    write = "o[0] = v.x; o[1] = v.y; o[2] = v.z; o[3] = v.w;"
    assert values(compiled, f"{setup} {statement} {write}", 4, declaration) == expected


def test_writes_to_vectors_and_reads_of_copies(compiled: Compile) -> None:
    setup = "float4 v(1, 2, 3, 4); packed_float3 p(7, 8, 9); float2x2 m(2); "
    write = "o[0] = v.x; o[1] = v.y; o[2] = v.z; o[3] = v.w;"
    body = setup + "v.xy = v.xyz.yx; v.w = v.xyz[2]; v.z = (v + v)[1]; v.y = (m * m)[0][0];" + write
    assert values(compiled, body, 4) == [2, 4, 2, 3]
    body = setup + "p.zx = v.xy; v.x = (p + p)[2]; v.zw += 1; v[1] *= 5; ++v.w; v.zw = v.wz;" + write
    assert values(compiled, body, 4) == [2, 10, 6, 4]
    body = setup + "m[0].xy = 5; m[1] = float2(3, 4); m[1].yx += 1; m[0][1] = 7; v = float4(m[0], m[1]);" + write
    assert values(compiled, body, 4) == [5, 7, 4, 5]


# ---------------------------------------------------------------- overloads


def test_overloads_without_names_of_parameters(compiled: Compile) -> None:
    declarations = (
        "int f(unsigned char) { return 1; } int f(unsigned int) { return 2; } int f(unsigned short) { return 3; }"
        "int g(const char) { return 4; } int g(const int) { return 5; } int g(long const) { return 6; }"
        "struct A { int x; }; struct B { int x; }; int h(struct A) { return 7; } int h(struct B) { return 8; }"
    )
    body = (
        "o[0] = f(uchar(1)); o[1] = f(1u); o[2] = f(ushort(1)); o[3] = g(char(1)); o[4] = g(1); o[5] = g(1l);"
        "A a; B b; o[6] = h(a); o[7] = h(b);"
    )
    assert values(compiled, body, 8, declarations) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_overloads_that_do_the_same_for_each_address_space(compiled: Compile) -> None:
    declarations = (
        "int f(const thread int *p) { const thread int *q = p; return q[0] + 1; }"
        "int f(const device int *x) { const device int *q = x; return q[0] + 1; }"
        "int f(constant int *y [[maybe_unused]]) { constant int *q = y; return q[0] + 1; }"
        "int near(thread int *p) { return *p * 2; } int far(device int *x) { return *x * 2; }"
        "int g(thread int *p) { return near(p); } int g(device int *p) { return far(p); }"
        "template <class T> struct S; template <class T> struct S<device T *> { static constant int n = 3; };"
        "template <class T> struct S<thread T *> { static constant int n = 3; };"
    )
    body = "int x = 3; o[1] = 7; o[0] = f(&x); o[1] = f(o + 1); o[2] = S<device int *>::n; o[3] = g(&x) + g(o);"
    assert values(compiled, body, 4, declarations) == [4, 8, 3, 14]


@pytest.mark.parametrize(
    "declarations",
    [
        "int f(thread float *) { return 10; }\nint f(device float *) { return 20; }",
        "int f(thread int *p, int n) { return p[n]; }\nint f(device int *n, int p) { return p + n[p]; }",
        "int a() { return 1; } int b() { return 2; }"
        "int f(thread int *) { return a(); }\nint f(device int *) { return b(); }",
        "struct S { int f() thread { return 1; }\nint f() device { return 2; } };",
        "template <class T> struct f; template <class T> struct f<device T *> { static constant int n = 1; };\n"
        "template <class T> struct f<thread T *> { static constant int n = 2; };",
    ],
)
def test_what_differs_by_address_space_is_refused(declarations: str, compiled: Compile) -> None:
    with pytest.raises(CompileError, match="program_source:4:.*error: this 'f' differs .* one address space"):
        values(compiled, "o[0] = 1;", 1, declarations)


@pytest.mark.parametrize(
    "declarations",
    ["int f(int a) {{ return a; }}\nint f(int b) {{ return {}; }}", "struct f {{ int x; }};\nstruct f {{ int {}; }};"],
)
@pytest.mark.parametrize("second", ["b", "x"])
def test_what_is_defined_twice_is_refused(declarations: str, second: str, compiled: Compile) -> None:
    with pytest.raises(CompileError, match="program_source:4:.*error: redefinition of 'f'"):
        values(compiled, "o[0] = 1;", 1, declarations.format(second))


def test_operators_that_end_like_a_template(compiled: Compile) -> None:
    declarations = (
        "struct S { int x; }; bool operator>(S a, S b) { return a.x > b.x; }"
        "int operator>>(S a, int n) { return a.x >> n; } int operator<(S a, int n) { return a.x - n; }"
    )
    assert values(compiled, "S a = {9}, b = {4}; o[0] = a > b; o[1] = a >> 1; o[2] = a < 7;", 3, declarations) == [
        1,
        4,
        2,
    ]


# ---------------------------------------------------------------- lengths of vectors


def test_lengths_of_vectors_keep_their_type(compiled: Compile) -> None:
    declarations = (
        "template <uint N> int f(vec<float, N> v) { return (N - 5 > 0) ? 1 : 0; }"
        "template <typename T, unsigned int N> int g(vec<T, N> v) {"
        "  vec<T, N> w = v * 2; T s = 0; for (uint i = 0; i < N; i++) s += v[i]; return s + w[N - 1] + (N - 5 > 0); }"
        "template <size_t N, class T> int h(vec<T, N> v) { return sizeof(N); }"
        "template <ushort N> int i(vec<float, N> v) { return N - 5; }"
        "template <uint N> struct S { vec<int, N> v; int f() { return v[N - 1] + (N - 5 > 0); } };"
    )
    body = (
        "o[0] = f(float4(1)); o[1] = f(float2(1)); o[2] = g(float4(1)); o[3] = g(int3(2)); o[4] = h(half2(1));"
        "o[5] = i(float3(1)); S<3> s; s.v = int3(1, 2, 3); o[6] = s.f();"
    )
    assert values(compiled, body, 7, declarations) == [1, 1, 7, 11, 8, -2, 4]
