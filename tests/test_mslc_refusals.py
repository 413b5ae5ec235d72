"""What Metal refuses is refused: with the user's line, and in Metal's terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpscffi.mslc import provider
from mpscffi.mslc.provider import CompileError, CompilerMissing
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("its compiler")]
try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = "kernel void k(device int *x [[buffer(0)]], uint i [[thread_position_in_grid]])"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path / "cache"))


def errors(source: str) -> list[str]:
    """The messages about a source, without "program_source:"."""
    try:
        provider.check(HEAD + source)
    except CompileError as error:
        return [
            line.removeprefix("program_source:")
            for line in error.log.splitlines()
            if line.startswith("program_source:")
        ]
    return []


def in_kernel(body: str) -> str:
    return f"{KERNEL} {{\n{body}\n}}"


SPACE = "must reside in the constant address space"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("int g = 3;", f"3:5: error: program scope variable 'g' {SPACE}"),
        ("int g = 3 * 4;", f"3:5: error: program scope variable 'g' {SPACE}"),
        ("const int g = 3;", f"3:11: error: program scope variable 'g' {SPACE}"),
        ("constexpr int g = 3;", f"3:15: error: program scope variable 'g' {SPACE}"),
        ("namespace n { static float table[2] = {1, 2}; }", f"3:28: error: program scope variable 'table' {SPACE}"),
        ("threadgroup float shared[32];", f"3:19: error: program scope variable 'shared' {SPACE}"),
        ("struct { int x; } g;", f"3:19: error: program scope variable 'g' {SPACE}"),
        ("struct S { static int n; };", f"3:23: error: static member 'n' {SPACE}"),
        ("int f() { static int n = 0; return n; }", f"3:22: error: static local variable 'n' {SPACE}"),
        ("int f() { const static int n = 0; return n; }", f"3:28: error: static local variable 'n' {SPACE}"),
        ("void f() { threadgroup int n; }", "3:12: error: a variable in the threadgroup address space can be declared"),
    ],
)
def test_address_spaces_of_variables(source: str, message: str) -> None:
    found = errors(source)
    assert len(found) == 1
    assert found[0].startswith(message)


def test_variables_that_metal_takes() -> None:
    source = """
struct Pair { static constant constexpr int n = 2; int x; };
constant int a = 3; constexpr constant int b[2] = {1, 2}; static constant float c = 1;
constant struct Pair d = {4}; constant struct Other { int y; } e = {5};
template <typename T> constant constexpr T one = T(1);
struct Pair; typedef struct { int z; } Named; using Alias = Pair; enum Color { red };
int twice(int v); struct Pair pair_of(int v);
struct Deleted { Deleted() = default; Deleted(const thread Deleted &) = delete; };
int twice(int v) { static constexpr int two = 2; return two * v; }
kernel void k(device int *x) {
  static constant int four = 4;
  threadgroup int shared[2];
  struct Local { static int f() { return 1; } };
  shared[0] = four;
  x[0] = a + b[0] + int(c) + d.x + e.y + one<int> + Pair::n + twice(shared[0]) + Local::f();
}
"""
    assert errors(source) == []


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("int *p = new int;", "new"),
        ("delete x;", "delete"),
        ("goto end; end: ;", "goto"),
        ("thread_local int n;", "thread_local"),
        ("struct S { virtual void f() {} };", "virtual"),
        ("x[0] = *dynamic_cast<int *>(x);", "dynamic_cast"),
        ("x[0] = typeid(x) == typeid(x);", "typeid"),
        ("try { } catch (...) { }", "try"),
        ("throw 1;", "throw"),
        ('asm volatile("nop");', "asm"),
        ("__int128 n = 1; x[0] = n;", "__int128"),
        ("long double d = 1; x[0] = d;", "double"),
    ],
)
def test_words_that_metal_has_not(body: str, word: str) -> None:
    assert any(text.endswith(f"error: '{word}' is not supported in Metal") for text in errors(in_kernel(body)))
    assert all(text.startswith("4:") for text in errors(in_kernel(body)))


@pytest.mark.parametrize("number", ["1.0l", "1.L", ".5l", "2e3L", "1e-3l", "0x1p3l"])
def test_long_double_numbers(number: str) -> None:
    assert errors(in_kernel(f"x[0] = {number};")) == [
        f"4:8: error: 'long double' is not supported in Metal: write {number[:-1]}f"
    ]


def test_numbers_that_metal_takes() -> None:
    assert errors(in_kernel("x[0] = 1l + 0xel + 1L + int(1.5f + 2e3f + 1.5h); x[1] = 0x1EL;")) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel int k(device int *x) { return 1; }", "3:12: error: kernel 'k' returns 'int': it must return void"),
        ("[[kernel]] device int *k(device int *x) { return x; }", "3:24: error: kernel 'k' returns 'device int *'"),
        ("kernel void *k(device int *x) { return x; }", "3:14: error: kernel 'k' returns 'void *'"),
        (
            "kernel void k(float x [[buffer(0)]]) {}",
            "3:25: error: type 'float' is not valid for attribute 'buffer': it takes a pointer or reference, "
            "as in 'constant float &'",
        ),
        ("struct P { int n; };\nkernel void k(P p [[buffer(0)]]) {}", "4:21: error: type 'P' is not valid for"),
        ("kernel void k(float x [[threadgroup(0)]]) {}", "3:25: error: type 'float' is not valid for attribute"),
    ],
)
def test_kernels(source: str, message: str) -> None:
    found = errors(source)
    assert len(found) == 1
    assert found[0].startswith(message)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel void k(float *x [[buffer(0)]]) {}",
         "3:15: error: pointer type must have an explicit address space, as in 'device float *'"),
        ("kernel void k(float *x) {}", "3:15: error: pointer type must"),
        ("kernel void k(const float &x, device float *y) {}",
         "3:15: error: reference type must have an explicit address space, as in 'constant const float &'"),
        ("struct P { int n; };\nkernel void k(P *x) {}", "4:15: error: pointer type must"),
        ("kernel void k(device int *x) { int *p = x; }",
         "3:32: error: pointer type must have an explicit address space, as in 'thread int *'"),
        ("kernel void k(device int *x) { for (const metal::int2 *p = 0; p; ) {} }", "3:37: error: pointer type must"),
        ("kernel void k(device int *x) { x[0] = *(int *)x; }", "3:41: error: pointer type must"),
        ("void f(int, float4 *) {}", "3:13: error: pointer type must"),
        ("static unsigned int const *f(constant int *x);", "3:8: error: pointer type must"),
        ("struct S { packed_float3 *x; };", "3:12: error: pointer type must"),
        ("struct S { S(const S &) = delete; };", "3:14: error: reference type must"),
        ("typedef void *handle;", "3:9: error: pointer type must"),
        ("void f(atomic_uint *x) {}", "3:8: error: pointer type must"),
        ("kernel void k(vec<float, 4> *x) {}",
         "3:15: error: pointer type must have an explicit address space, as in 'device vec<float, 4> *'"),
        ("kernel void k(metal::array<half2, 3> &x) {}", "3:15: error: reference type must"),
        ("using Number = const float;\nkernel void k(Number *x) {}", "4:15: error: pointer type must"),
        ("struct P { int n; };\ntypedef P Other;\nvoid f(Other &x) {}", "5:8: error: reference type must"),
        ("template <typename T> T f(T x) { float &y = x; return y; }", "3:34: error: reference type must"),
    ],
)  # fmt: skip
def test_pointers_without_an_address_space(source: str, message: str) -> None:
    found = errors(source)
    assert len(found) == 1
    assert found[0].startswith(message)


def test_pointers_that_metal_takes() -> None:
    source = """
struct S { int n; device float *x; float constant *y; thread S &operator=(thread const S &) thread = default; };
struct Size { uint n; }; struct Other { uint Size; };
template <typename Size> uint product(Size a, Size b) { return a * b; }
template <typename T> void fill(T x, volatile coherent(device) device float *y) { auto *p = x; auto &q = *p; q = y[0]; }
typedef device float *Pointer; using Shared = threadgroup float; typedef uint Count;
template <typename T> void sum(thread T &x, thread vec<T, 4> *y, Shared *z) { vec<float, 4> Number = 0; y[0].x = x; }
template <typename Count> Count product(Count a, int b, constant Count &c) { Count *d = 0; return d ? a * b : c; }
int twice(thread int &x, Pointer, thread const packed_float3 *z) { return x * 2; }
kernel void k(device S *s, constant uint &n, device float *x, uint i [[thread_position_in_grid]]) {
  Other Other; Other.Size = n; int a = int(n) & int(sizeof(S) * n);
  thread int *p = &a; threadgroup float *shared = 0; device float *y = x, *z = y;
  Size size{n}; uint Weight = size.n * Other.Size; Weight *= n; bool is_same = is_same_v<float *, int *>;
  thread int4 *v = 0; if (a > *p && vec<int, 4>(a).x > *p) { a = a < 3 ? 1 : a > *p; }
  y[i] = *(device const float *)z + float(v != 0) + float(twice(*p, x, 0)) + product(n, Weight) + is_same;
  y[i] += shared != 0;
}
"""
    assert errors(source) == []


def test_a_buffer_by_value_under_another_name() -> None:
    source = HEAD + "using number = float;\nkernel void k(number x [[buffer(0)]]) {}"
    with pytest.raises(CompileError, match="program_source:4:.*takes its buffers as pointers or references"):
        provider.build(source, None, "k")


def test_ways_to_say_that_a_kernel_returns_nothing() -> None:
    source = """
__attribute__((unused)) kernel void a(device int *x) {}
[[kernel]] inline void b(device int *x) {}
void kernel c(device int *x) {}
kernel auto d(device int *x) -> void {}
"""
    assert errors(source) == []


def test_a_kernel_may_have_the_name_of_what_it_calls() -> None:
    source = """
kernel void max(device float *x, uint i [[thread_position_in_grid]]) { x[i] = max(x[i], 0.0f); }
template <typename T> kernel void sum(device T *x) { auto sum = [&](T y) { return x[0] + y; }; x[0] = sum(1); }
template [[host_name("sum_int")]] kernel void sum<int>(device int *);
typedef decltype(sum<int>) sum_type;
"""
    assert errors(source) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("int n[i]; x[0] = n[0];", "variable length arrays are not supported in Metal"),
        ("x[0] = min(i, 1);", "call to 'min' is ambiguous"),
        ("x[0] = max(short(1), x[0]);", "call to 'max' is ambiguous"),
        ("x[0] = clamp(i, 0, 1);", "call to 'clamp' is ambiguous"),
        ("device atomic_ulong *l = (device atomic_ulong *)x; atomic_fetch_add_explicit(l, 1ul, memory_order_relaxed);",
         "atomic_fetch_add is not of this type"),
        ("device atomic_float *f = (device atomic_float *)x; atomic_fetch_max_explicit(f, 1.0f, memory_order_relaxed);",
         "atomic_fetch_max is not of this type"),
        ("atomic_max_explicit((device atomic_uint *)x, 1u, memory_order_relaxed);", "atomic_max is of ulong alone"),
        ("x[0] = atomic_load_explicit((device atomic_int *)x, memory_order_acquire);", "memory_order_relaxed is"),
        ("atomic_store_explicit((device atomic_int *)x, 1, memory_order_seq_cst);", "memory_order_relaxed is"),
    ],
)  # fmt: skip
def test_calls(body: str, message: str) -> None:
    found = [text for text in errors(in_kernel(body)) if "error" in text]
    assert len(found) == 1
    assert found[0].startswith("4:")
    assert message in found[0]


def test_calls_that_metal_takes() -> None:
    body = """x[0] = min(i, 1u) + min(x[1], 1) + int(max(1.0f, 2.0f)) + clamp(x[0], 0, 1);
      x[1] = min(int2(1), 3).x;
      atomic_fetch_min_explicit((device atomic_int *)x, 1, memory_order_relaxed);
      atomic_max_explicit((device atomic_ulong *)x, 1ul, memory_order_relaxed);
      atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);"""
    assert errors(in_kernel(body)) == []


@pytest.mark.parametrize(
    "source",
    [
        "kernel void probe_me(device int *x) { x[0] = 1; }\nkernel void b(device int *x) { probe_me(x); }",
        "template <class T> kernel void probe_me(device T *x) { }\nkernel void b(device int *x) { probe_me<int>(x); }",
        "fragment void probe_me(device int *x) { x[0] = 1; }\nkernel void b(device int *x) { ::probe_me(x); }",
    ],
)
def test_kernels_call_no_kernels(source: str) -> None:
    (found,) = errors(source)
    assert found.startswith("4:")
    assert "error: kernel 'b' cannot call 'probe_me', which is called by Metal alone" in found


def test_functions_that_have_the_name_of_a_kernel_may_be_called() -> None:
    source = "int a(int x) { return x; }\nkernel void a(device int *x) { x[0] = a(1); }\n"
    source += "kernel void b(device int *x) { int a = 2; x[0] = a; }"
    assert errors(source) == []


def test_all_that_is_refused_is_told_at_once() -> None:
    assert errors("int g = 1;\nkernel int k(device int *x) { static int n = 0; return n; }") == [
        f"3:5: error: program scope variable 'g' {SPACE}",
        "4:12: error: kernel 'k' returns 'int': it must return void",
        f"4:42: error: static local variable 'n' {SPACE}",
    ]


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("thread_position_in_gird", "is unknown; did you mean 'thread_position_in_grid'?"),
        ("thread_index_in_simd_group", "is unknown; did you mean 'thread_index_in_simdgroup'?"),
        ("bufer(0)", "is unknown; did you mean 'buffer'?"),
        ("amplification_id", "is not supported on the host device"),
    ],
)
def test_misspelt_attributes(attribute: str, message: str) -> None:
    name = attribute.partition("(")[0]
    found = errors(f"kernel void k(device int *x [[{attribute}]]) {{}}")
    assert len(found) == 1
    assert found[0].endswith(f"error: attribute '{name}' of parameter 'x' {message}")
