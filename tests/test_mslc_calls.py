"""What a kernel reaches, however it is called: threads that must meet do, and what may not end is queued."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import numpy as np
import pytest

import mpscffi
from mpscffi.mslc.rewrite import Rewriter

pytestmark = [pytest.mark.host_only("its compiler"), pytest.mark.usefixtures("device")]


HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
PLACES = "uint i [[thread_position_in_grid]], uint l [[thread_position_in_threadgroup]]"
KERNEL = f"kernel void k(device float *o, {PLACES}) "


def flags(source: str) -> tuple[bool, bool]:
    """Whether kernel k needs fibers, and whether it is bounded."""
    rewritten = Rewriter("using namespace metal;\n" + source)
    kernel = rewritten.entries["k"].kernel.function
    return rewritten.calls.needs_fibers(kernel), rewritten.calls.is_bounded(kernel)


# ---------------------------------------------------------------- threads that meet

SUMS = {
    "a constructor of a member": "struct Q { float v; Q(float x) : v(simd_sum(x)) {} };"
    "struct H { Q q; H(float x) : q(x) {} };" + KERNEL + "{ H h(i); o[i] = h.q.v; }",
    "a constructor of a base": "struct B { float v; B(float x) : v(simd_sum(x)) {} };"
    "struct H : B { H(float x) : B(x) {} }; using R = H;" + KERNEL + "{ R r(i); o[i] = r.v; }",
    "an initializer of a member": "struct Q { float x; float v = simd_sum(x); };"
    + KERNEL
    + "{ Q q{float(i)}; o[i] = q.v; }",
    "a destructor of a member": "struct Q { device float *p; float x; ~Q() { *p = simd_sum(x); } };"
    "struct H { Q q; };" + KERNEL + "{ H h{{o + i, float(i)}}; }",
    "a class without a name": "typedef struct { float sum(float x) { return simd_sum(x); } } Q;"
    + KERNEL
    + "{ Q q; o[i] = q.sum(i); }",
    "a lambda outside of functions": "constant auto sum = [](float x) { return simd_sum(x); };"
    + KERNEL
    + "{ o[i] = sum(i); }",
    "a function as an argument": "float sum(float x) { return simd_sum(x); }"
    "template <class F> float apply(F f, float x) { return f(x); }" + KERNEL + "{ o[i] = apply(sum, i); }",
    "a function as a template's argument": "float sum(float x) { return simd_sum(x); }"
    "template <float (*f)(float)> float apply(float x) { return f(x); }" + KERNEL + "{ o[i] = apply<sum>(i); }",
    "a pointer to a function": KERNEL + "{ auto f = static_cast<float (*)(float)>(simd_sum); o[i] = f(i); }",
    "parentheses": KERNEL + "{ o[i] = (metal::simd_sum<float>)(i); }",
    "a kernel template's argument": "struct Op { float v; Op(float x) : v(simd_sum(x)) {} };"
    f"template <class T> kernel void any(device float *o, {PLACES}) {{ T t(i); o[i] = t.v; }}"
    'template [[host_name("k")]] kernel void any<Op>(device float *, uint, uint);',
}


@pytest.mark.parametrize("how", SUMS)
def test_lanes_meet_in(how: str) -> None:
    assert flags(SUMS[how])[0]
    out = mpscffi.zeros(64, dtype="f4")
    mpscffi.compile_shader(HEAD + SUMS[how]).k(out, threads=64, group_size=64)
    # 0 + 1 + ... + 31, and 32 more for each lane of the next SIMD-group
    np.testing.assert_array_equal(out.numpy(), np.repeat([496.0, 1520.0], 32))


TEMPLATES = """
constant int size [[function_constant(0)]];
template <typename T> kernel void sums(device T *o, PLACES) { o[i] = simd_sum(T(i)) + size; }
typedef decltype(sums<float>) sums_t;
template [[host_name("sums_f")]] kernel sums_t sums<float>;
template <typename T> kernel void copies(device T *o, PLACES) { o[i] = T(i); }
typedef decltype(copies<float>) copies_t;
template [[host_name("k")]] INSTANTIATION copies<float>;
""".replace("PLACES", PLACES)


@pytest.mark.parametrize("instantiation", ["kernel copies_t", "[[kernel]] decltype(copies<float>)"])
def test_a_template_reaches_no_other_templates(instantiation: str) -> None:
    source = TEMPLATES.replace("INSTANTIATION", instantiation)
    assert not flags(source)[0]
    out = mpscffi.zeros(8)
    mpscffi.compile_shader(HEAD + source).k(out)  # which needs no value for the other's constant
    assert out.tolist() == list(range(8))


SWAPS = {
    "a constructor by another name": """template <typename T> struct Swap {
  T v;
  Swap(T x, threadgroup T *t, uint l) { t[l] = x; threadgroup_barrier(mem_flags::mem_threadgroup); v = t[l ^ 1]; }
};
typedef Swap<float> R;
kernel void k(device float *o, PLACES) { threadgroup float t[64]; R r(float(l), t, l); o[i] = r.v; }""",
    "parentheses": """kernel void k(device float *o, PLACES) {
  threadgroup float t[64];
  t[l] = l;
  (threadgroup_barrier)(mem_flags::mem_threadgroup);
  o[i] = t[l ^ 1];
}""",
    "a lambda outside of functions": """constant auto meet = [] { threadgroup_barrier(mem_flags::mem_threadgroup); };
kernel void k(device float *o, PLACES) { threadgroup float t[64]; t[l] = l; meet(); o[i] = t[l ^ 1]; }""",
}


@pytest.mark.parametrize("how", SWAPS)
def test_a_threadgroup_meets_in(how: str) -> None:
    source = SWAPS[how].replace("PLACES", PLACES)
    assert flags(source)[0]
    out = mpscffi.zeros(128, dtype="f4")
    mpscffi.compile_shader(HEAD + source).k(out, threads=128, group_size=64)
    np.testing.assert_array_equal(out.numpy().reshape(2, 32, 2), [np.arange(64).reshape(32, 2)[:, ::-1]] * 2)


# ---------------------------------------------------------------- what may not end

ENDLESS = {
    "a constructor by another name": "struct Q { Q(device float *x) { while (true) x[0] += 1; } }; using R = Q;"
    "kernel void k(device float *o) { R r(o); }",
    "a lambda that is given itself": "kernel void k(device float *o) {"
    "auto l = [](auto self, device float *x) -> void { x[0] += 1; self(self, x); }; l(l, o); }",
    "such a lambda outside of functions": "constant auto l = [](auto self, device float *x) -> void {"
    "x[0] += 1; self(self, x); }; kernel void k(device float *o) { l(l, o); }",
    "two calls each": "__attribute__((noinline)) void f46(device float *x) { x[0] += 1; }"
    + "".join(
        f"__attribute__((noinline)) void f{n}(device float *x) {{ f{n + 1}(x); f{n + 1}(x); }}"
        for n in range(45, -1, -1)
    )
    + "kernel void k(device float *o) { f0(o); }",
}
WAIT = """
import json, os
import mpscffi
mpscffi.set_device("host")
kernel = mpscffi.compile_shader(json.loads({source!r})).k
kernel(mpscffi.zeros(1, dtype="f4"), threads=1)
try:
    mpscffi.synchronize(timeout=0.3)
except mpscffi.Error as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how", ENDLESS)
def test_the_caller_can_give_up_waiting_for(how: str, python: Callable[..., CompletedProcess[str]]) -> None:
    assert flags(ENDLESS[how]) == (False, False)
    done = python(WAIT.format(source=json.dumps(HEAD + ENDLESS[how])))
    assert done.stdout.strip() == "TimeoutError", done.stderr


FUNCTOR = (
    "template <typename T, typename Op> kernel void any(device T *a, uint i [[thread_position_in_grid]]) {"
    "Op op; a[i] = op(a[i], T(2)) + Op()(a[i], (T)(a[i])); }"
    'template [[host_name("k")]] [[kernel]] decltype(any<float, F>) any<float, F>;'
)
UNBOUNDED = {
    "a functor with a loop": "struct F { template <typename T> T operator()(T x, T y) {"
    "while (x < y) x += x; return x; } };" + FUNCTOR,
    "a functor that calls itself": "struct F { float operator()(float x, float y) { return (*this)(y, x); } };"
    + FUNCTOR,
    "a functor that calls another one of its kind": "struct F { template <typename T> T operator()(T x, T y) {"
    "F other; return other(y, x); } };" + FUNCTOR,
    "functors in turns": "template <class G> float apply(G g, float x) { return g(x, x); }"
    "struct F { float operator()(float x, float y) { return apply(F{}, x) + y; } };" + FUNCTOR,
    "a functor that is constructed": "struct F { float s; F() : s(2) {}"
    "float operator()(float x, float y) { return x * s + y; } };" + FUNCTOR,
    "a functor that calls a function which does not end": "float f(float x) { return f(x) + 1; }"
    "struct F { float operator()(float x, float y) { return f(x) + y; } };" + FUNCTOR,
    "a method in turns": "struct S { float a; float f(float x) { return g(x); } float g(float x) { return f(x); } };"
    "kernel void k(device float *o) { S s{1}; o[0] = s.f(2); }",
    "recursion": "void f(device float *x) { x[0] += 1; f(x); } kernel void k(device float *o) { f(o); }",
    "recursion in turns": "void g(device float *); void f(device float *x) { g(x); } void g(device float *x) { f(x); }"
    "kernel void k(device float *o) { f(o); }",
    "recursion of a class in a function": "kernel void k(device float *o) {"
    "struct L { static void f(device float *x) { x[0] += 1; f(x); } }; L::f(o); }",
    "a lambda behind a condition": "kernel void k(device float *o) { if (o[0] > 1) [&] { o[0] = 1; }(); }",
    "an operator": "struct V { float x; }; V operator+(V a, V b) { return a + b; }"
    "kernel void k(device float *o) { V v{1}; v = v + v; }",
    "an operator that is a word": "struct V { float x; bool operator&&(V o) { while (x < 5) ; return true; } };"
    "kernel void k(device float *o) { V v{1}; o[0] = v and v; }",
    "an operator that is declared by a word": "struct V { float x; V operator compl() { while (x < 5) ; return V{1}; }"
    "};"
    "kernel void k(device float *o) { V v{1}; o[0] = (~v).x; }",
    "a literal": 'float operator""_k(unsigned long long x) { while (x) ; return 1; }'
    "kernel void k(device float *o) { o[0] = 5_k; }",
    "a name that is written in two ways": "float \\u00e9(float x) { while (x < 1) ; return x; }"
    "kernel void k(device float *o) { o[0] = \u00e9(1); }",
    "a friend operator": "struct V { float x; friend V operator+(V a, V b) { return a + b; } };"
    "kernel void k(device float *o) { V v{1}; v = v + v; }",
    "a function as an argument": "void g(device float *x) { x[0] += 1; }"
    "template <class F> void f(F h, device float *x) { h(h, x); } kernel void k(device float *o) { f(g, o); }",
    "a pointer to a function": "kernel void k(device float *o) { ((void (*)(device float *))(ulong)o[0])(o); }",
    "do": "kernel void k(device float *o) { do { o[0] += 1; } while (o[0] < 9); }",
}


@pytest.mark.parametrize("how", UNBOUNDED)
def test_what_may_not_end_is_not_taken_for_short(how: str) -> None:
    assert flags(UNBOUNDED[how]) == (False, False)


PLAIN = {
    "functors": "struct F { template <typename T> T operator()(T x, T y) { return x + y; } };" + FUNCTOR,
    "a functor that calls functions": "float half_of(float x) { return x / 2; }"
    "struct F { float operator()(float x, float y) {"
    "return (x < y) ? metal::max(half_of(x), metal::precise::exp(y))"
    " : static_cast<float>(fma(x, (float)(y), 1.0f)); } };" + FUNCTOR,
    "a functor beside other classes": "struct C { float x, y; C(float a) : x(a), y(0) {}"
    "operator float() const { return x; } };"
    "C operator+(C a, C b) { while (a.x < b.x) a.x += 1; return a; }"
    "struct Loop { float operator()(float x, float y) { while (x < y) x += 1; return x; } };"
    "struct F { float operator()(float x, float y) { return x + y; } };" + FUNCTOR,
    "operators and methods": "struct V { float x, y; float dot(V o) { return x * o.x + y * o.y; } };"
    "V operator-(V a, V b) { return V{a.x + b.x, a.y + b.y}; }"
    "kernel void k(device float *o, uint i [[thread_position_in_grid]]) { V v{o[i], 1}; o[i] = (v - v).dot(v); }",
    "one line": "kernel void k(device float *x, constant float &value, uint i [[thread_position_in_grid]])"
    "{ x[i] = value; }",
    "mathematics": "kernel void k(device float *x, uint i [[thread_position_in_grid]]) {"
    "x[i] = metal::precise::exp((float)x[i]) + fma(x[i], 2.0f, -sqrt(x[i])); }",
    "functions and plain data": "constant float SCALE = 2; struct Args { float a; packed_float3 b; };"
    "static inline float scaled(float x) { return exp(x) * SCALE; }"
    "kernel void k(device float *x, constant Args &args, uint i [[thread_position_in_grid]]) {"
    "float t[3] = {1, 2, 3}; if (i < 3 && (x[i] > 2 || x[i] < 1)) { x[i] = scaled(t[1]) * args.a; } }",
    "an instantiation": "template <typename T> T square(T x) { return x * x; }"
    "template <typename T> kernel void any(device T *x, uint i [[thread_position_in_grid]]) {"
    "x[i] = square<T>(x[i]) + square(x[i]); }"
    'template [[host_name("k")]] [[kernel]] decltype(any<float>) any<float>;',
    "names that begin as those of collectives": "kernel void k(device float *o,"
    "uint simd_id [[thread_index_in_simdgroup]],"
    "uint threadgroup_size [[threads_per_threadgroup]]) { simd_float4 v = simd_float4(0); o[0] = v.x + simd_id; }",
    "a few hundred calls": "void f8(device float *x) { x[0] += 1; }"
    + "".join(f"void f{n}(device float *x) {{ f{n + 1}(x); f{n + 1}(x); }}" for n in range(7, -1, -1))
    + "kernel void k(device float *o) { f0(o); }",
}


@pytest.mark.parametrize("how", PLAIN)
def test_what_surely_ends_runs_at_once(how: str) -> None:
    assert flags(PLAIN[how]) == (False, True)


@pytest.mark.unvalidated("validated kernels are queued")
@pytest.mark.parametrize(
    "body", ["return x * y;", "while (y > 1) { x += x; y -= 1; } return x;"], ids=["short", "loop"]
)
def test_an_idle_queue_runs_short_launches_of_functors_at_once(device: mpscffi.Device, body: str) -> None:
    source = f"struct F {{ template <typename T> T operator()(T x, T y) {{ {body} }} }};" + FUNCTOR
    kernel = mpscffi.compile_shader(HEAD + source).k
    x = mpscffi.asarray(np.ones(8, dtype="f4"))
    view = x.numpy()
    kernel(x)
    # Nothing was committed or waited for yet: only what ran in this thread is over.
    assert view.tolist() == ([3] * 8 if "while" not in body else [1] * 8)
    mpscffi.synchronize()
    assert view.tolist() == [3] * 8
