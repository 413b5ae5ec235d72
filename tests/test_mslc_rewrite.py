"""The rewriter: Metal's tokens to C++'s, without a compiler."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpscffi.mslc.listing import listing_of
from mpscffi.mslc.numbers import integer_value
from mpscffi.mslc.preprocess import from_preprocessor, normalized, without_preprocessor
from mpscffi.mslc.provider import CompileError, Listing
from mpscffi.mslc.rewrite import RewriteError, Rewriter
from mpscffi.mslc.tokens import SourceError, Tokens
from mpscffi.mslc.values import data_type, literal

pytestmark = pytest.mark.host_only("its compiler")


def cpp(source: str) -> str:
    """The source as C++, runs of blanks made one."""
    rewriter = Rewriter(source)
    return " ".join(rewriter.tokens.rendered(rewriter.output(None)).split())


def roles(source: str, kernel: str) -> list[str]:
    return [parameter.role.replace("mslc::", "") for parameter in Rewriter(source).entries[kernel].kernel.parameters]


# ---------------------------------------------------------------- tokens


@given(st.text(alphabet="ab1.<>:=&|+-*/\"' \n\\(){}[];#é", max_size=60))
def test_tokens_keep_every_character(text: str) -> None:
    try:
        tokens = Tokens(text)
    except SourceError:
        return
    assert tokens.rendered(tokens.text) == text


@given(st.text(alphabet="ab1.<>:=&|+-*/ \n(){}[];kernel void device float*", max_size=80))
def test_any_text_is_rewritten_or_refused(text: str) -> None:
    found: SourceError | RewriteError | None = None
    try:
        Rewriter(text)
    except (SourceError, RewriteError) as error:
        found = error
    assert found is None or (str(found) and 0 <= found.offset <= len(text))


@pytest.mark.parametrize("text", ["(", "}", "a[)", "{(})"])
def test_brackets_that_do_not_pair(text: str) -> None:
    with pytest.raises(SourceError):
        Tokens(text)


def test_places_of_a_rendered_text_lead_back() -> None:
    rewriter = Rewriter("kernel void k(device float *x [[buffer(0)]]) {\n  /* é */ x[0] = 1.0; x[1] = wrong;\n}")
    output = rewriter.output(None)
    rendered = rewriter.tokens.rendered(output).split("\n")
    column = len(rendered[1][: rendered[1].index("wrong")].encode()) + 1
    found = rewriter.tokens.at(output, 2, column + 2)
    assert found is not None
    assert (rewriter.tokens.text[found[0]], found[1]) == ("wrong", 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("0x1F", 31), ("100 + 3", 103), ("(1u << 4) | 1", 17), ("010", 8), ("7 * 3 - 1", 20)],
)
def test_integer_values(text: str, value: int) -> None:
    assert integer_value(text) == value


@pytest.mark.parametrize("text", ["", "x", "1.5", "f(2)", "1 <<", "1 << 900", "__import__('os')"])
def test_texts_without_an_integer_value(text: str) -> None:
    assert integer_value(text) is None


# ---------------------------------------------------------------- lexical rules


@pytest.mark.parametrize(
    ("metal", "expected"),
    [
        ("constant auto x = 1.0;", "const auto x = 1.0f;"),
        ("constant auto x = 1.;", "const auto x = 1.f;"),
        ("constant auto x = .5e-3;", "const auto x = .5e-3f;"),
        ("constant auto x = 1e9;", "const auto x = 1e9f;"),
        ("constant auto x = 2.5f;", "const auto x = 2.5f;"),
        ("constant auto x = 0x1p-3;", "const auto x = 0x1p-3f;"),
        ("constant auto x = 0xEE + 1u;", "const auto x = 0xEE + 1u;"),
        ("constant auto x = 1.5h;", "const auto x = ((half)1.5f);"),
        ("constant auto x = 2h;", "const auto x = ((half)2.0f);"),
        ("constant auto x = 1.5bf;", "const auto x = ((bfloat)1.5f);"),
        ("constant auto x = 3;", "const auto x = 3;"),
    ],
)
def test_literals(metal: str, expected: str) -> None:
    assert cpp(metal) == expected


@pytest.mark.parametrize(
    ("metal", "expected"),
    [
        ("void f(device float *p);", "void f( float *p);"),
        ("void f(const device float *p);", "void f(const float *p);"),
        ("void f(constant float &x);", "void f(const float &x);"),
        ("constant float pi = 3.0;", "const float pi = 3.0f;"),
        ("struct S { float f() const device; };", "struct S { float f() const ; };"),
        ("struct S { float f() const constant; };", "struct S { float f() const ; };"),
        ("struct S { float f() constant; };", "struct S { float f() const; };"),
        ("struct S { S(float) constant; };", "struct S { S(float) ; };"),
        ("void f(volatile device int *p);", "void f( int *p);"),
        ("void f(device float *restrict p);", "void f( float *__restrict p);"),
        ("void f(coherent(device) device float *p);", "void f( float *p);"),
        ("[[maybe_unused]] int x();", "int x();"),
    ],
)
def test_address_spaces_and_attributes(metal: str, expected: str) -> None:
    assert cpp(metal) == expected


@pytest.mark.parametrize(
    ("scope", "first", "second"),
    [
        ("{}", "float f(device float *p) { return *p; }", "float f(threadgroup float *p) { return *p; }"),
        (
            "{}",
            "template <class T> T g(device T *q) { return *q; }",
            "template <class T> T g(thread T *p) { return *p; }",
        ),
        ("struct S {{ {} }};", "S(device int &x) : y(x) {}", "S(thread int &x) : y(x) {}"),
        ("struct S {{ {} }};", "S(int x) thread;", "S(int x) constant;"),
        ("struct S {{ {} }};", "int f() const device { return 1; }", "int f() const threadgroup { return 1; }"),
        (
            "{}",
            "template <class T> struct P<device T *> { int x; };",
            "template <class T> struct P<thread T *> { int x; };",
        ),
    ],
)
def test_of_declarations_that_differ_in_the_space_alone_the_first_stays(scope: str, first: str, second: str) -> None:
    assert cpp(scope.format(f"{first} {second}")) == cpp(scope.format(f"{first} "))


def test_overloads_of_constness_stay() -> None:
    assert cpp("struct S { int f() constant { return 1; } int f() device { return 2; } };").count("return") == 2


@pytest.mark.parametrize(
    ("metal", "expected"),
    [
        ("constant half x = half(y);", "const half x = half(::mslc::cast_operand<half>(y));"),
        ("constant half x = (half)y.z[1] * 2;", "const half x = (half)::mslc::cast_operand<half>(y.z[1]) * 2;"),
        ("constant bfloat x = (bfloat)-f(y);", "const bfloat x = (bfloat)::mslc::cast_operand<bfloat>(-f(y));"),
        ("constant auto x = static_cast<T>(y);", "const auto x = static_cast<T>(::mslc::cast_operand<T>(y));"),
        ("constant auto x = static_cast<device T *>(y);", "const auto x = static_cast< T *>(y);"),
        (
            "typedef half storage; constant auto x = storage(y);",
            "typedef half storage; const auto x = storage(::mslc::cast_operand<storage>(y));",
        ),
        ("half f(half x);", "half f(half x);"),
        ("half (*p)(half);", "half (*p)(half);"),
    ],
)
def test_casts_between_half_and_bfloat(metal: str, expected: str) -> None:
    assert cpp(metal) == expected


def test_lengths_of_vectors_are_deduced() -> None:
    assert cpp("template <uint N, uint M> void f(vec<float, N> v, array<int, M> a) {}").startswith(
        "template <int N, uint M>"
    )


def test_functions_of_other_stages_are_dropped() -> None:
    source = (
        "vertex float4 v(uint i [[vertex_id]]) { return 0; } [[fragment]] half4 f() { return 0; } kernel void k() {}"
    )
    assert cpp(source) == "void k() {}"


# ---------------------------------------------------------------- kernels


def test_parameters_and_their_roles() -> None:
    source = """
    kernel void k(device float *a [[buffer(2)]], constant uint &n [[buffer(0)]], device int *b, constant float *c,
                  threadgroup float *t [[threadgroup(1)]], threadgroup int *u,
                  uint3 p [[thread_position_in_grid]], ushort l [[thread_index_in_simdgroup]]) {}
    """
    assert roles(source, "k") == [
        "buffer, 2",
        "constant_reference, 0",
        "buffer, 1",
        "buffer, 3",
        "threadgroup_buffer, 1",
        "threadgroup_buffer, 0",
        "thread_position_in_grid",
        "thread_index_in_simdgroup",
    ]


@pytest.mark.parametrize(
    ("parameter", "name", "type_name"),
    [
        ("device float *out", "out", "float"),
        ("const device packed_float3 *", "", "packed_float3"),
        ("device const vec<half, 4> *x [[buffer(0)]]", "x", "vec<half, 4>"),
        ("constant Params &params", "params", "Params"),
        ("device unsigned int *x", "x", "unsigned int"),
        ("constant float (&table)[16]", "table", "float"),
        ("device metal::atomic_uint &count", "count", "metal::atomic_uint"),
        ("device float const *x", "x", "float"),
        ("const device float4x4 * const m", "m", "float4x4"),
        ("device array<float, 4> &a", "a", "array<float, 4>"),
    ],
)
def test_names_and_types_of_parameters(parameter: str, name: str, type_name: str) -> None:
    found = Rewriter(f"kernel void k({parameter}) {{}}").entries["k"].kernel.parameters[0]
    assert (found.name, found.type_name) == (name, type_name)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("kernel void b() {} kernel void a() {}", ["b", "a"]),
        ("[[kernel]] void lambda() {}", ["lambda"]),
        ("namespace n { kernel void k() {} }", ["k"]),
        ('[[host_name("other")]] kernel void k() {}', ["other"]),
        ("template <typename T> kernel void k(device T *x) {}", []),
        (
            "template <typename T> kernel void k(device T *x) {}"
            'template [[host_name("k_f")]] kernel void k<float>(device float *);'
            'template [[host_name("k" "_i")]] [[kernel]] decltype(k<int>) k<int>;',
            ["k_f", "k_i"],
        ),
        (
            "template <typename T> kernel void k(device T *x) {} typedef decltype(k<int>) k_t; "
            'template [[host_name("k_i")]] kernel k_t k<int>;',
            ["k_i"],
        ),
        ("float f() { return 1; }", []),
        ("", []),
    ],
)
def test_which_kernels_there_are(source: str, names: list[str]) -> None:
    assert listing_of(Rewriter(source)).kernels == names


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel void k(device double *x) {}", "'double' is not supported in Metal"),
        ("kernel void k(texture2d<float> t [[texture(0)]]) {}", "'t' of type 'texture2d': textures are not supported"),
        ("kernel void k(sampler s [[sampler(0)]]) {}", "'s' of type 'sampler': samplers are not supported"),
        ("kernel void k(raytracing::intersector<> i) {}", "ray tracing is not supported"),
        ("kernel void k(device float *x [[buffer(31)]]) {}", "31, must be between 0 and 30"),
        ("kernel void k(device float *x [[buffer(1)]], device int *y [[buffer(1)]]) {}", "buffer index 1 is taken"),
        ("kernel void k(threadgroup float *x [[threadgroup(31)]]) {}", "31, must be between 0 and 30"),
        ("kernel void k(float x) {}", "'float x' of kernel 'k' needs an attribute"),
        ("kernel void k(float x [[thread_position_in_grid]]) {}", "type 'float' is not valid for attribute"),
        ("kernel void k(uint2 x [[thread_index_in_threadgroup]]) {}", "it takes ushort or uint"),
        ("kernel void k(uint x [[vertex_id]]) {}", "attribute 'vertex_id' of parameter 'x' is not supported"),
        ('kernel void k() {} [[host_name("k")]] kernel void l() {}', "two kernels are named 'k'"),
        ("kernel void k() { threadgroup int x = 1; }", "can be initialized with zeros alone"),
        ("constant int x [[function_constant(n)]];", "must be a number from 0 to 65535"),
        ("kernel void k() { is_function_constant_defined(x); }", "'x' is no function constant"),
        ('template [[host_name("x")]] kernel void k<int>(device int *);', "'k', which is no kernel template"),
    ],
)
def test_what_is_refused(source: str, message: str) -> None:
    with pytest.raises(RewriteError) as caught:
        Rewriter(source)
    assert message in str(caught.value)


def test_the_number_of_buffers_is_limited() -> None:
    def source(count: int) -> str:
        return f"kernel void k({', '.join(f'device float *x{i}' for i in range(count))}) {{}}"

    assert roles(source(31), "k")[-1] == "buffer, 30"
    with pytest.raises(RewriteError, match="kernel 'k' takes more than 31 buffers"):
        Rewriter(source(32))


def test_parameters_that_depend_on_a_function_constant() -> None:
    source = (
        "constant bool has [[function_constant(0)]];"
        "kernel void k(device float *a [[buffer(0), function_constant(has)]], "
        "device int *b [[buffer(0), function_constant(has)]]) {}"
    )
    assert roles(source, "k") == ["(has) ? buffer : absent, 0"] * 2


def test_threadgroup_variables_become_references() -> None:
    text = cpp("kernel void k() { threadgroup float a[4][2], b; const threadgroup float *p = a[0]; }")
    assert "struct mslc_threadgroup_0_type { float a[4][2], b; };" in text
    assert "threadgroup_variable<0, mslc_threadgroup_0_type>()" in text
    assert "auto &a = mslc_threadgroup_0.a; auto &b = mslc_threadgroup_0.b;" in text
    assert "const float *p = a[0];" in text


@pytest.mark.parametrize(
    "declaration", ["threadgroup int x[2] = {0};", "threadgroup int x = 0;", "threadgroup int x{};"]
)
def test_threadgroup_variables_that_begin_as_zero(declaration: str) -> None:
    assert "_type, true>()" in cpp(f"kernel void k() {{ {declaration} }}")


@pytest.mark.parametrize(
    "declaration",
    [
        "alignas(16) threadgroup char x[8];",
        "float threadgroup x[8];",
        "threadgroup vec<float, 4> x[8];",
        "{ threadgroup T x; }",
    ],
)
def test_forms_of_threadgroup_variables(declaration: str) -> None:
    assert "auto &x = mslc_threadgroup_0.x;" in cpp(f"kernel void k() {{ {declaration} }}")


@pytest.mark.parametrize(
    ("body", "fibers", "bounded"),
    [
        ("x[0] = 1;", False, True),
        ("threadgroup_barrier(mem_flags::mem_none);", True, True),
        ("x[0] = simd_sum(x[0]);", True, True),
        ("simdgroup_float8x8 m;", True, True),
        ("helper(x);", True, True),
        ("for (int i = 0; i < 3; i++) x[i] = 0;", False, False),
        ("looping(x);", False, False),
        ("again(x);", False, False),
        ("do { x[0]++; } while (x[0] < 3);", False, False),
        ("while (atomic_load_explicit(a, memory_order_relaxed) == 0) {}", True, False),
        ("while (!atomic_compare_exchange_weak_explicit(a, &e, 1, r, r)) {}", True, False),
        ("while (!atomic_compare_exchange_weak_explicit(a, &e, e + 1, r, r)) {}", False, False),
        ("uint simd_lane = 0; x[simd_lane] = 1;", False, True),
        ("x[0] = simd_float4(1).x;", False, True),
    ],
)
def test_what_a_kernel_may_reach(body: str, fibers: bool, bounded: bool) -> None:
    rewriter = Rewriter(
        "void helper(device float *x) { x[0] = simd_max(x[0]); }"
        "void looping(device float *x) { while (x[0] < 1) x[0]++; }"
        "void again(device float *x) { if (x[0] < 1) again(x); }"
        f"kernel void k(device float *x) {{ {body} }}"
    )
    kernel = rewriter.entries["k"].kernel.function
    assert rewriter.calls.needs_fibers(kernel) is fibers
    assert rewriter.calls.is_bounded(kernel) is bounded


def work(source: str) -> int:
    return Rewriter(source).entries["k"].kernel.work


def test_work_that_an_author_tells() -> None:
    loop = "kernel void k(device float *x) { while (x[0] < 1) x[0]++; }"
    assert work(loop) == 0
    assert work(f"[[thread_work(16)]] {loop}") == 16
    assert work(f"[[max_total_threads_per_threadgroup(64), thread_work(1 << 4)]] {loop}") == 16


def test_work_of_a_template_is_that_of_its_kernels() -> None:
    template = "template <typename T> [[thread_work(5)]] kernel void f(device T *x) { for (;;) x[0]++; }"
    instance = 'template [[host_name("k")]] kernel void f<float>(device float *);'
    assert work(f"{template} {instance}") == 5


@pytest.mark.parametrize("value", ["", "0", "16385", "-1", "N"])
def test_work_that_cannot_be(value: str) -> None:
    with pytest.raises(RewriteError, match=f"'thread_work' takes a number from 1 to 16384, not '{value}'"):
        Rewriter(f"[[thread_work({value})]] kernel void k(device float *x) {{}}")


def test_loops_that_wait_yield() -> None:
    text = cpp("kernel void k(device atomic_int *a) { while (atomic_load_explicit(a, r) == 0) {} }")
    assert "while (::mslc::yield(), atomic_load_explicit(a, r) == 0)" in text


# ---------------------------------------------------------------- function constants


def test_function_constants() -> None:
    rewriter = Rewriter(
        "constant int tile [[function_constant(3)]]; constant float2 scale [[function_constant(100 + 1)]];"
        "constant bool on = is_function_constant_defined(flag) ? flag : true;"
        "constant bool flag [[function_constant(7)]];"
        "kernel void a(device int *x) { x[0] = tile; } kernel void b(device int *x) { if (on) x[0] = scale.x; }"
    )
    listing = listing_of(rewriter)
    assert [(c.index, c.data_type, c.required, c.name) for c in listing.constants] == [
        (3, 6 | 1 << 8, True, "tile"),
        (101, 12 | 2 << 8, True, "scale"),
        (7, 1 | 1 << 8, False, "flag"),
    ]
    used = {name: {c.name for c in rewriter.used_constants(e.kernel.function)} for name, e in rewriter.entries.items()}
    assert used == {"a": {"tile"}, "b": {"scale", "flag"}}


@pytest.mark.parametrize(
    ("type_name", "number"),
    [
        ("bool", 1 | 1 << 8),
        ("uint8_t", 3 | 1 << 8),
        ("unsigned int", 7 | 1 << 8),
        ("metal::half4", 10 | 4 << 8),
        ("float3", 12 | 3 << 8),
        ("Params", 0),
        ("float5", 0),
    ],
)
def test_data_types(type_name: str, number: int) -> None:
    assert data_type(type_name) == number


@pytest.mark.parametrize(
    ("given_type", "data", "text"),
    [
        ("bool", b"\1", "true"),
        ("int", (-5).to_bytes(4, "little", signed=True), "static_cast<int>(4294967291u)"),
        ("ulong", b"\xff" * 8, "static_cast<ulong>(18446744073709551615ul)"),
        ("float", b"\0\0\x80\x3f", "__builtin_bit_cast(float, static_cast<uint>(1065353216u))"),
        ("uint2", b"\1\0\0\0\2\0\0\0", "metal::vec<uint, 2>(static_cast<uint>(1u), static_cast<uint>(2u))"),
    ],
)
def test_values_of_constants(given_type: str, data: bytes, text: str) -> None:
    assert literal("c", given_type, data_type(given_type), data) == text


# ---------------------------------------------------------------- directives


def test_sources_that_need_no_preprocessor() -> None:
    source = "#include <metal_stdlib>\n#pragma clang loop unroll(full)\n#include <simd/simd.h> // vectors\nint x;\n"
    text = without_preprocessor(source, {"metal_stdlib", "simd/simd.h"}.__contains__)
    assert text is not None
    assert text.text.split("\n") == ["", "", "", "int x;", ""]


@pytest.mark.parametrize(
    "line",
    [
        "#define X 1",
        "#include <stdio.h>",
        "#include <metal_raytracing>",
        '#include "own.h"',
        "#if 1",
        "int x = __LINE__;",
        "#pragma once",
        "a \\\n b",
    ],
)
def test_sources_that_need_the_preprocessor(line: str) -> None:
    assert without_preprocessor(f"{line}\n", {"metal_stdlib"}.__contains__) is None


def test_contraction_is_passed_on() -> None:
    text = without_preprocessor("#pragma METAL fp contract(off)\nint x;", set().__contains__)
    assert text is not None
    assert text.text.split("\n")[0] == '_Pragma("clang fp contract(off)")'


def test_what_the_preprocessor_prints_is_told_by_file() -> None:
    output = (
        '# 1 "program_source"\n# 1 "/lib/metal_math" 1\nint hidden;\n# 2 "program_source" 2\nint a;\n'
        '# 1 "/my \\"h\\".h" 1\nint b;\n'
    )
    text = from_preprocessor(output, [], lambda path: path.startswith("/lib"))
    assert text.text.split("\n") == ["int a;", "int b;", ""]
    assert text.origins[:2] == [("program_source", 2), ('/my "h".h', 1)]


def test_line_ends_and_byte_order_marks() -> None:
    assert normalized("\ufeffa\r\nb\rc\n") == "a\nb\nc\n"
    with pytest.raises(CompileError, match="program_source:2: error: the source has a NUL byte"):
        normalized("a\nb\0")


def test_listings_as_text() -> None:
    text = "kernel a\nkernel b\nconstant 3 263 1 tile\n"
    assert Listing.from_text(text).text() == text


def test_a_build_declares_the_other_kernels() -> None:
    rewriter = Rewriter(
        "kernel void a() {\n int x; } void h() { a(); } kernel void b() {\n h(); }\nkernel void c() { int y; }"
    )
    output: Any = rewriter.output(rewriter.entries["b"].kernel)
    text = rewriter.tokens.rendered(output)
    assert "int x" in text
    assert "int y" not in text
    assert text.count("\n") == 3
