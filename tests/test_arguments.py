"""Arguments by name, what kernels say of their parameters, dtypes that cannot match, templates, shared libraries."""

from __future__ import annotations

import ctypes
import gc
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import errors, shader_cache

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void saxpy(device float* y, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  y[i] = a * x[i] + y[i];
}
kernel void gaps(device float* out [[buffer(0)]], constant float& a [[buffer(3)]], constant float& b [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {
  out[i] = a - b;
}
kernel void clash(device float* out, constant float& threads, uint i [[thread_position_in_grid]]) { out[i] = threads; }
kernel void spread(device float* out, threadgroup float* part, uint i [[thread_position_in_grid]]) {
  part[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = part[1];
}
template <typename T, int N> kernel void scale(device T* x, constant T& by, uint i [[thread_position_in_grid]]) {
  x[i] = x[i] * by * N;
}
"""


@pytest.fixture
def library(compiled: Any) -> Any:
    return compiled(SOURCE)


# ---- by name


@pytest.mark.parametrize("positional", [0, 1, 2, 3])
def test_arguments_by_name(library: Any, positional: int) -> None:
    y, x = mpscffi.asarray([1.0, 2.0]), mpscffi.asarray([10.0, 20.0])
    values = {"y": y, "x": x, "a": 0.5}
    named = dict(list(values.items())[positional:][::-1])
    library.saxpy(*list(values.values())[:positional], **named)
    assert y.tolist() == [6, 12]


def test_names_for_slots_with_gaps(library: Any) -> None:
    for args, named in (((), "out a b"), ((None,), "a b"), ((None, None), "a b"), ((None, None, 1.0), "a")):
        out = mpscffi.zeros(2)
        values = {"out": out, "a": 5.0, "b": 1.0}
        given = tuple(out if i == 0 else value for i, value in enumerate(args))
        library.gaps(*given, **{name: values[name] for name in named.split()})
        assert out.tolist() == [4, 4]


def test_a_parameter_called_as_a_keyword_of_the_call(library: Any) -> None:
    out = mpscffi.zeros(3)
    library.clash(out, 7.0, threads=2)
    assert out.tolist() == [7, 7, 0]


def test_wrong_names(library: Any) -> None:
    x = mpscffi.ones(2)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'b'; its buffers are: 0 y, 1 x, 2 a"):
        library.saxpy(x, x, 1.0, b=2)
    with pytest.raises(TypeError, match="'x' is given by position and by name"):
        library.saxpy(x, x, 1.0, x=x)
    with pytest.raises(ValueError, match="missing 'x'"):
        library.saxpy(x, a=1.0)
    library.saxpy(x, x, 1.0)
    assert x.tolist() == [2, 2]


def test_threadgroup_memory_and_casts_by_name(library: Any) -> None:
    out = mpscffi.zeros(4)
    library.spread(out, threadgroup_memory={"part": 16}, group_size=4)
    assert out.tolist() == [1] * 4
    with pytest.raises(ValueError, match="no threadgroup parameter 'out', but part"):
        library.spread(out, threadgroup_memory={"out": 16}, group_size=4)


def test_no_bytes_of_threadgroup_memory_are_none(library: Any, compiled: Any) -> None:
    x = mpscffi.ones(2)
    library.saxpy(x, x, 1.0, threadgroup_memory=0)
    assert x.tolist() == [2, 2]
    unused = compiled("kernel void idle(device float* out, threadgroup float* part [[threadgroup(1)]]) { *out = 3; }")
    unused.idle(x, threads=1, threadgroup_memory=[0, 0])
    assert x.tolist() == [3, 2]
    with pytest.raises(ValueError, match="slot 2"):
        library.saxpy(x, x, 1.0, threadgroup_memory=[0, 0, 16])


def test_casts_by_slot_and_name(compiled: Any) -> None:
    kernel = compiled("""
        kernel void low(device int* out, constant short* a [[buffer(2)]], constant int* b [[buffer(4)]]) {
          out[0] = a[0]; out[1] = b[0];
        }
    """).low
    for casts in ({2: "int16", 4: "int32"}, {"a": "int16", "b": "int32"}):
        out = mpscffi.zeros(2, dtype=np.int32)
        kernel(out, None, [2**16 + 3], None, [2**32 + 4], arg_casts=casts, threads=1)
        assert out.tolist() == [3, 4]
    with pytest.raises(ValueError, match="no buffer argument 1: 0 out, 2 a, 4 b"):
        kernel(out, None, 1, None, 1, arg_casts={1: "int16"}, threads=1)


# ---- what a kernel says of itself


def test_signature(compiled: Any, device: mpscffi.Device) -> None:
    kernel = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        struct Cell { float3 at; half weight; int links[2]; };
        kernel void walk(device Cell* cells, constant Cell& first, device const uchar* mask [[buffer(5)]],
                         threadgroup float* part) { cells[0].weight = first.weight + mask[0] + part[0]; }
    """).walk
    assert repr(kernel) == "<mpscffi.Kernel 'walk'>"
    text = kernel.signature
    if device.backend != "host":
        assert text.startswith("walk(\n")
        return
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "walk(",
        "Cell* cells // buffer 0, read_write, 32 bytes",
        "const Cell& first // buffer 1, read, 32 bytes",
        "const uchar* mask // buffer 5, read",
        "threadgroup float* part // threadgroup 0, read_write",
        ")",
        "struct Cell { // 32 bytes, aligned to 16",
        "float3 at; // at 0",
        "half weight; // at 16",
        "int links[2]; // at 20",
        "};",
    ]
    assert repr(kernel) == "<mpscffi.Kernel walk(Cell* cells, const Cell& first, const uchar* mask, float* part)>"


LAYOUTS = {
    "struct S { packed_float3 p; float3 v; };": [("p", 0), ("v", 16)],
    "struct S { bool a; ulong b; uchar c; packed_short3 d; };": [("a", 0), ("b", 8), ("c", 16), ("d", 18)],
    "struct T { int n; float x[2]; }; struct S { char c; T t[3]; half2 h; };": [("c", 0), ("t", 4), ("h", 40)],
    "struct S { float3x3 m; half4x2 n; float2x4 o; };": [("m", 0), ("n", 48), ("o", 64)],
    "constant constexpr int N = 3; struct S { int a[N][2], b; };": [("a", 0), ("b", 24)],
    "namespace n { struct In { short a; char b; }; } struct S { n::In in[2]; float z; };": [("in", 0), ("z", 8)],
    "typedef struct { uint8_t a; unsigned int b; } S;": [("a", 0), ("b", 4)],
    "struct S { atomic_uint a; device float* p; vec<half, 3> v; };": [("a", 0), ("p", 8), ("v", 16)],
    "struct S { static constant constexpr int K = 2; int a = K; float f() const { return a; } bfloat b; };": [
        ("a", 0),
        ("b", 4),
    ],
}


@pytest.mark.parametrize("declaration", LAYOUTS)
@pytest.mark.host_only("layouts are read by the host device's compiler")
def test_layouts_of_structs_are_those_of_the_compiler(declaration: str, device: mpscffi.Device) -> None:
    expected = LAYOUTS[declaration]
    offsets = "".join(f"out[{i}] = __builtin_offsetof(S, {name});" for i, (name, _) in enumerate(expected))
    library: Any = mpscffi.compile_shader(f"""
        #include <metal_stdlib>
        using namespace metal;
        {declaration}
        kernel void offsets(device uint* out, device S* s) {{ {offsets} out[9] = sizeof(S); out[10] = alignof(S); }}
    """)
    out = mpscffi.zeros(11, dtype=np.uint32)
    library.offsets(out, mpscffi.zeros(64), threads=1)
    struct = library.offsets.arguments[1].struct
    assert [(field.name, field.offset) for field in struct.fields] == expected
    assert out.tolist()[: len(expected)] == [offset for _, offset in expected]
    assert (struct.size, struct.align) == tuple(out.tolist()[9:])


@pytest.mark.parametrize(
    "declaration",
    [
        "struct B { int a; }; struct S : B { float b; };",
        "struct alignas(32) S { int a; };",
        "struct S { int a : 3; int b : 5; };",
        "union S { int a; float b; };",
        "struct alignas(8) B { int a; }; struct S { B b; };",
        "template <typename T> struct W { T a; }; using S = W<int>;",
        "namespace one { struct S { int a; }; } namespace two { struct S { float a; }; } using two::S;",
    ],
)
def test_other_structs_are_left_alone(declaration: str) -> None:
    library: Any = mpscffi.compile_shader(f"""
        #include <metal_stdlib>
        using namespace metal;
        {declaration}
        kernel void size(device uint* out, device S* s) {{ out[0] = sizeof(S); }}
    """)
    assert library.size.arguments[1].struct is None
    out = mpscffi.zeros(1, dtype=np.uint32)
    library.size(out, mpscffi.zeros(8, dtype=np.dtype([("x", "f4"), ("y", "i4")])), threads=1)
    assert out.item() in (4, 8, 32)


# ---- dtypes

TYPES = ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "float2", "uint3")
DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 complex64".split()
#: The dtypes that each type takes; those of one byte take anything.
TAKEN = {
    "bool": "bool int8 uint8", "char": " ".join(DTYPES), "uchar": " ".join(DTYPES), "short": "int16 uint16",
    "ushort": "int16 uint16", "int": "int32 uint32", "uint": "int32 uint32", "long": "int64 uint64",
    "ulong": "int64 uint64", "half": "float16", "float": "float32 complex64", "float2": "float32 complex64",
    "uint3": "int32 uint32",
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_that_cannot_match(compiled: Any, name: str, dtype: str) -> None:
    source = "".join(
        f"kernel void take_{t}(device {t}* x, device const {t}* y, device uint* n) {{ n[0] = 1; }}\n" for t in TYPES
    )
    kernel = compiled("#include <metal_stdlib>\nusing namespace metal;\n" + source)[f"take_{name}"]
    ran = mpscffi.zeros(1, dtype=np.uint32)
    good = mpscffi.zeros(16, dtype=TAKEN[name].split()[0])
    given = mpscffi.zeros(16, dtype=dtype)
    if dtype in TAKEN[name].split():
        for pair in ((given, good), (good, given), (given, given)):
            kernel(*pair, ran, threads=1)
        assert ran.item() == 1
        return
    for pair in ((given, good), (good, given), (good, given)):
        with pytest.raises(errors.ArgumentTypeError, match=rf"of dtype {dtype}, but the kernel takes {name}: convert"):
            kernel(*pair, ran, threads=1)
    assert ran.item() == 0
    kernel(given.view(np.uint8).view(good.dtype), good, ran, threads=1)
    assert ran.item() == 1


def test_what_to_do_is_said(library: Any) -> None:
    x = mpscffi.zeros(2, dtype=np.int32)
    with pytest.raises(TypeError, match=r"'x' .*int32.*takes float: convert by .astype\('float32'\), or pass .view\("):
        library.saxpy(mpscffi.zeros(2), x, 1.0)
    with pytest.raises(TypeError, match="float64.*astype"):
        mpscffi.asarray(np.zeros(2), dtype=np.float64)


def test_atomics_have_the_type_of_their_values(compiled: Any) -> None:
    count = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void count(device atomic_uint* n) { atomic_fetch_add_explicit(n, 1u, memory_order_relaxed); }
    """).count
    with pytest.raises(TypeError, match="float32, but the kernel takes uint"):
        count(mpscffi.zeros(1), threads=1)


STRUCTS = """
#include <metal_stdlib>
using namespace metal;
struct Inner { int n; float x[2]; };
struct Ray { float3 at; float t; Inner inner; uchar flag; };
kernel void rays(device float* out, device const Ray* r, uint i [[thread_position_in_grid]]) {
  out[i] = r[i].at.z + 10 * r[i].t + 100 * r[i].inner.n + 1000 * r[i].inner.x[1] + 10000 * r[i].flag;
}
kernel void inner(device float* out, constant Inner& p) { out[0] = p.n + p.x[1]; }
"""
INNER = np.dtype([("n", "i4"), ("x", "f4", 2)])


def ray(**changes: Any) -> np.dtype[Any]:
    fields = {"at": (("f4", 3), 0), "t": ("f4", 16), "inner": (INNER, 20), "flag": ("u1", 32), **changes}
    fields = {name: value for name, value in fields.items() if name != "itemsize"}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": changes.get("itemsize", 48),
        }
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"at": (("f4", 4), 0)}, {"flag": ("?", 32)}, {"inner": (np.dtype([("n", "u4"), ("x", "f4", 2)]), 20)},
     {"pad": (("u1", 8), 36)}],
)  # fmt: skip
def test_structs_are_taken(compiled: Any, changes: Any) -> None:
    rays = np.zeros(3, ray(**changes))
    rays["at"][:, 2], rays["t"], rays["inner"]["n"], rays["inner"]["x"][:, 1], rays["flag"] = [1, 2, 3], 2, 3, 4, 1
    out = mpscffi.zeros(3)
    compiled(STRUCTS).rays(out, mpscffi.asarray(rays))
    assert out.tolist() == [14321, 14322, 14323]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t": ("f4", 12)}, r"field 't' is float32 at offset 12, but struct Ray has 't' at offset 16"),
        ({"t": ("i4", 16)}, r"field 't' is int32 at offset 16, but struct Ray has 't' there, float"),
        ({"t": ("f2", 16)}, r"field 't' is float16"),
        ({"inner": (np.dtype([("m", "f4"), ("x", "f4", 2)]), 20)}, r"'inner.m' is float32.*'inner.n' there, int"),
        ({"extra": ("f4", 30)}, None),
        ({"itemsize": 64}, r"dtype of 64 bytes, but struct Ray has 48"),
    ],
)
@pytest.mark.host_only("layouts are read by the host device's compiler")
def test_structs_that_lie_otherwise_are_refused(
    compiled: Any, device: mpscffi.Device, changes: Any, message: str | None
) -> None:
    out = mpscffi.zeros(2)
    with pytest.raises(TypeError, match=message or "extra"):
        compiled(STRUCTS).rays(out, mpscffi.zeros(2, dtype=ray(**changes)))
    assert out.tolist() == [0, 0]


def test_structured_scalars_are_checked_too(compiled: Any, device: mpscffi.Device) -> None:
    kernel = compiled(STRUCTS).inner
    out = mpscffi.zeros(1)
    kernel(out, np.array((1, (2, 3)), INNER)[()], threads=1)
    assert out.item() == 4
    kernel(out, p=np.array((2, (2, 3)), INNER.newbyteorder(">")), threads=1)
    assert out.item() == 5
    if device.backend == "host":
        with pytest.raises(TypeError, match="field 'n' is float32.*'n' there, int"):
            kernel(out, np.array((1, (2, 3)), [("n", "f4"), ("x", "f4", 2)]), threads=1)


# ---- templates and constants


def test_templates_by_text(library: Any) -> None:
    x = mpscffi.asarray([1.0, 2.0])
    library["scale<float, 3>"](x, by=2)
    assert x.tolist() == [6, 12]
    y = mpscffi.asarray(np.array([3, 4], np.int32))
    library["scale<int, 2>"](y, 5)
    assert y.tolist() == [30, 40]
    assert library["scale<int, 2>"] is library["scale<int, 2>"]
    assert "scale<int, 2>" not in library
    assert len(library) == 4


def test_templates_that_are_not_there(library: Any) -> None:
    for name in ("shift<int>", "scale<int", "scale<int>; kernel void f() {} <int>", "scale", 3):
        with pytest.raises(errors.KernelNotFoundError, match="there is no kernel"):
            library[name]
    for name, word in (("scale<flot, 1>", "flot"), ("scale<double, 2>", "double"), ("scale<int>", "does not take")):
        with pytest.raises(SyntaxError, match=rf"kernel '{name}': (?!.*mslc_).*{word}.*template <typename T, int N>"):
            library[name]


def test_source(library: Any, compiled: Any) -> None:
    assert library.source == SOURCE
    assert "source" not in dir(library)
    kernel = compiled("kernel void source(device int* out) { out[0] = 3; }").source
    out = mpscffi.zeros(1, dtype=np.int32)
    kernel(out)
    assert out.item() == 3


def test_function_constants_as_keywords(compiled: Any) -> None:
    kernel = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        constant int count [[function_constant(0)]];
        constant float2 pair [[function_constant(3)]];
        kernel void show(device float* out) { out[0] = count; out[1] = pair.y; }
    """).show
    out = mpscffi.zeros(2)
    for made in (
        kernel.specialize(count=7, pair=(1, 2)),
        kernel.specialize({0: 7}, pair=(1, 2)),
        kernel.specialize({"count": 1, 3: (1, 2)}).specialize(count=7),
    ):
        out.fill_(0)
        made(out, threads=1)
        assert out.tolist() == [7, 2]
    with pytest.raises(LookupError, match="no function constant 'cuont'"):
        kernel.specialize(cuont=7, pair=(1, 2))(out, threads=1)


# ---- what is kept


def test_a_library_in_use_is_shared() -> None:
    compiled = partial(mpscffi.compile_shader, validate=False)
    source = "kernel void shared(device int* x) { x[0] = 11; }"
    first = compiled(source)
    before = shader_cache.stats()
    assert compiled(source) is first
    assert shader_cache.stats().hits == before.hits + 1
    others = [
        compiled(source, defines=["A"]),
        compiled(source, math_mode="fast"),
        compiled(source, language_version=(3, 1)),
        compiled(source + "\n"),
    ]
    assert len({id(library) for library in [first, *others]}) == 5
    del first, others
    gc.collect()
    assert shader_cache.stats().libraries <= before.libraries - 1


@pytest.mark.host_only("Metal compiles one text")
def test_sources_with_headers_are_not_shared(tmp_path: Path, device: mpscffi.Device) -> None:
    out = mpscffi.zeros(1, dtype=np.int32)
    header = tmp_path / "value.h"
    kept = []
    for value in (1, 2):
        header.write_text(f"#define VALUE {value}\n")
        for source, folders in (
            ('#include "value.h"\nkernel void f(device int* x) { x[0] = VALUE; }', [tmp_path]),
            (f'#include "{header}"\nkernel void f(device int* x) {{ x[0] = VALUE; }}', []),
        ):
            library: Any = mpscffi.compile_shader(source, include_dirs=folders)
            kept.append(library)
            library.f(out, threads=1)
            assert out.item() == value


@pytest.mark.host_only("mslc is the host device's")
def test_the_disk_cache(python: Any, tmp_path: Path, device: mpscffi.Device) -> None:
    run = python(
        """
        import os
        import mpscffi
        from mpscffi import shader_cache
        kept = []
        for i in range(3):
            kept.append(mpscffi.compile_shader(f"kernel void f(device int* x) {{ x[0] = {i}; }}"))
            kept[-1].f(mpscffi.zeros(1, dtype="int32"), threads=1)
        stats = shader_cache.stats()
        assert stats.directory == os.environ["MPSCFFI_CACHE_DIR"], stats
        assert stats.files >= 6 and stats.size > 1000 and stats.limit == 1 << 30 and stats.libraries == 3, stats
        shader_cache.set_limit(stats.size - 1)
        less = shader_cache.stats()
        assert less.limit == stats.size - 1 and less.size <= less.limit and less.files < stats.files, less
        for wrong in (-1, 1.5, True, "1"):
            try:
                shader_cache.set_limit(wrong)
            except (TypeError, ValueError):
                continue
            raise AssertionError(wrong)
        shader_cache.set_limit(None)
        assert shader_cache.stats().limit == 1 << 30
        shader_cache.clear()
        assert shader_cache.stats()[1:3] == (0, 0) and shader_cache.stats().libraries == 0
        x = mpscffi.zeros(1, dtype="int32")
        kept[2].f(x, threads=1)
        mpscffi.compile_shader("kernel void f(device int* x) { x[0] += 5; }").f(x, threads=1)
        assert x.item() == 7
        """,
        MPSCFFI_CACHE_DIR=str(tmp_path / "cache"),
        MPSCFFI_DEVICE="host",
        MPSCFFI_SHADER_VALIDATION="0",
    )
    assert (run.returncode, run.stderr) == (0, "")


# ---- errors say what to do


GRID = """
// kernel void commented(device float* out, uint2 p [[thread_position_in_grid]]) { }
kernel void flat(device float* out, uint2 g [[threads_per_grid]], uint p [[thread_position_in_grid]]) { out[p] = 1; }
kernel void commented(device float* out, /* uint2 p [[thread_position_in_grid]] */ uint p [[thread_position_in_grid]]) {
  out[p] = 2;
}
kernel void pixels(device float* out, uint2 p [[thread_position_in_grid]], uint2 n [[threads_per_grid]]) {
  out[p.y * n.x + p.x] = 10 * p.y + p.x;
}
[[kernel]] void cells(device float* out, ushort3 p [[ thread_position_in_grid ]]) { out[p.z] = p.z; }
"""


def test_a_position_in_two_dimensions_needs_threads(compiled: Any) -> None:
    library = compiled(GRID)
    out = mpscffi.zeros(2, 3)
    for function, sizes in ((library.pixels, r"\(W, H\)"), (library.cells, r"\(W, H, D\)")):
        with pytest.raises(errors.InvalidArgumentError, match=rf"threads={sizes} for an array of shape \((D, )?H, W\)"):
            function(out)
    assert not out.numpy().any()
    library.pixels(out, threads=(3, 2))  # x first
    assert out.tolist() == [[0, 1, 2], [10, 11, 12]]
    library.flat(out)
    assert out.tolist() == [[1] * 3] * 2
    library.commented(out)
    assert out.tolist() == [[2] * 3] * 2


def test_refusals_of_calls_name_keywords(library: Any) -> None:
    x = mpscffi.zeros(2048)
    with pytest.raises(errors.LimitExceededError, match=r"'saxpy': group_size=\(2048,\) is 2048 threads.* 1024 in all"):
        library.saxpy(x, x, 1.0, group_size=2048)
    with pytest.raises(errors.LimitExceededError, match=r"group_size=\(64, 32\) is 2048 threads.* 1024 in all"):
        library.saxpy(x, x, 1.0, threads=(64, 32), group_size=(64, 32))
    with pytest.raises(errors.InvalidArgumentError, match=r"'part' \(slot 0\).*threadgroup_memory=\{'part': 1024\}"):
        library.spread(mpscffi.zeros(2))


def test_a_missing_constant_says_how_it_is_given(compiled: Any) -> None:
    library = compiled("constant int q [[function_constant(0)]]; kernel void k(device int* x) { x[0] = q; }")
    with pytest.raises(errors.InvalidArgumentError, match=r"'q'.*\.specialize\(q=\.\.\.\)"):
        library.k(mpscffi.zeros(1, dtype="i4"))


def test_matrices_by_value(compiled: Any, device: mpscffi.Device) -> None:
    library = compiled("""
        #include <metal_stdlib>
        using namespace metal;
        kernel void k(device float* out, constant float4x4& m, constant half2x3& n) {
          out[0] = m[1][3];
          out[1] = n[1][2];
        }
    """)
    rows = np.arange(16).reshape(4, 4)
    out, small = mpscffi.zeros(2), np.zeros((2, 4), "f2")
    small[1, 2] = 5
    if device.backend == "host":  # Metal does not tell the size of a matrix
        with pytest.raises(
            errors.ArgumentTypeError,
            match=r"list of 16 values, expected 64 bytes.*columns.*asarray\(rows, 'float32'\).T",
        ):
            library.k(out, rows.ravel().tolist(), small.tobytes(), threads=1)
        with pytest.raises(errors.ArgumentTypeError, match=r"16 bytes.*fourth number.*'float16'"):
            library.k(out, rows.astype("f4").tobytes(), [0.0] * 6, threads=1)
    library.k(out, np.asarray(rows, "float32").T.tobytes(), small.tobytes(), threads=1)
    assert out.tolist() == [rows[3, 1], 5]


def test_a_template_is_asked_for_by_an_instantiation(library: Any) -> None:
    with pytest.raises(errors.KernelNotFoundError, match="'scale'.*it is a template.*'scale<float>'"):
        library.scale  # noqa: B018


@pytest.mark.parametrize("source", ["saxpy.metal", "kernels/saxpy.metal", Path("saxpy.metal")])
def test_a_file_is_no_source(source: Any) -> None:
    with pytest.raises(errors.Error, match=r"compile_shader: got .*saxpy\.metal.*Path\('.*saxpy\.metal'\)\.read_text"):
        mpscffi.compile_shader(source)


@pytest.mark.parametrize("version", [(3, 1), [3, 1], "3.1"])
def test_language_versions(version: Any) -> None:
    library = mpscffi.compile_shader(
        "kernel void k(device int* x) { x[0] = __METAL_VERSION__; }", language_version=version
    )
    out = mpscffi.zeros(1, dtype="i4")
    library.k(out)
    assert out.item() == 310


@pytest.mark.parametrize("version", ["3", "new", 3.1, (3,), (3, 1, 0), ("3", "1"), (3, -1), 3])
def test_language_versions_that_are_none(version: Any) -> None:
    with pytest.raises(errors.Error, match=r"language_version=.*\(3, 1\) or a text as \"3\.1\""):
        mpscffi.compile_shader("kernel void k() {}", language_version=version)


def test_errors_of_a_source_show_no_frames_of_the_package(library: Any) -> None:
    for call in (
        lambda: mpscffi.compile_shader("kernel void k(device int* x) { x[0] = what; }"),
        lambda: library["scale<what, 1>"],
    ):
        with pytest.raises(errors.CompileError) as caught:
            call()
        files = [entry.path.name for entry in caught.traceback]
        assert set(files[1:]) <= {Path(__file__).name, "shader.py"}
        assert "_ffi.py" not in files


# ---- vectors of three

DTYPE_OF = {
    "float": "float32", "half": "float16", "int": "int32", "uint": "uint32", "short": "int16", "char": "int8",
}  # fmt: skip
VECTORS = """
#include <metal_stdlib>
using namespace metal;
template <typename V> kernel void sums(device float* out, device const V* v, uint i [[thread_position_in_grid]]) {
  out[i] = float(v[i].x) + 10 * float(v[i].y) + 100 * float(v[i].z);
}
kernel void one(device float* out, constant float3& v) { out[0] = v.x + 10 * v.y + 100 * v.z; }
kernel void move(device float3* v, uint i [[thread_position_in_grid]]) { v[i] += 1; }
"""
VECTORS += "".join(
    f'template [[host_name("{name}")]] kernel void sums<{name}>(device float*, device const {name}*, uint);\n'
    for base in DTYPE_OF for name in (f"{base}3", f"packed_{base}3", f"{base}4")
)  # fmt: skip


@pytest.mark.parametrize("base", DTYPE_OF)
def test_vectors_of_three_are_padded_or_packed(compiled: Any, base: str) -> None:
    kernels = compiled(VECTORS)
    rows = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 0, 2]]).astype(DTYPE_OF[base])
    expected = [321, 654, 987, 201]
    out = mpscffi.full(4, -1)
    kernels[f"packed_{base}3"](out, mpscffi.asarray(rows), threads=4)
    assert out.tolist() == expected
    padded = mpscffi.asarray(np.pad(rows, ((0, 0), (0, 1))))
    for name in (f"{base}3", f"{base}4"):
        for array in (padded, padded.reshape(-1), padded.view("int8").reshape(-1).view(DTYPE_OF[base])):
            out.fill_(-1)
            kernels[name](out, array, threads=4)
            assert out.tolist() == expected
    for wrong in (rows, rows[0], rows.reshape(2, 2, 3), rows.reshape(-1)[:7], np.repeat(rows, 4, 0)):
        with pytest.raises(
            mpscffi.errors.InvalidArgumentError, match=rf"'v' .*each {base}3 takes.*pad .* packed_{base}3$"
        ):
            kernels[f"{base}3"](out, mpscffi.asarray(wrong), threads=1)
    assert out.tolist() == expected


def test_vectors_of_three_in_other_places(compiled: Any) -> None:
    kernels = compiled(VECTORS)
    out, rows = mpscffi.full(1, -1), mpscffi.ones(4, 3)
    for call in (lambda: kernels.move(rows, threads=4), lambda: kernels.one(out, rows[0])):
        with pytest.raises(mpscffi.errors.InvalidArgumentError, match="packed_float3"):
            call()
    assert rows.tolist() == [[1] * 3] * 4
    kernels.one(out, [1.0, 2.0, 3.0])
    assert out.item() == 321
    record = np.dtype({"names": ["v"], "formats": [("f4", 3)], "itemsize": 16})
    kernels.move(mpscffi.zeros(3, dtype=record), threads=3)  # elements of 16 bytes, three of them
    mpscffi.synchronize()


ENDLESS = range(10**30)  # more than any memory holds, if somebody makes a tuple of it


@pytest.mark.parametrize(
    "call",
    [
        lambda: mpscffi.empty(ENDLESS),
        lambda: mpscffi.full(ENDLESS, 0),
        lambda: mpscffi.rand(ENDLESS),
        lambda: mpscffi.randint(0, 5, ENDLESS),
        lambda: mpscffi.ones(1).reshape(ENDLESS),
    ],
)
def test_shapes_without_an_end(call: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="got a shape of more than 64 axes"):
        call()


def test_sizes_without_an_end(compiled: Any) -> None:
    kernels = compiled(SOURCE)
    x = mpscffi.ones(4)
    for sizes in (
        {"threads": ENDLESS},
        {"threads": 4, "group_size": ENDLESS},
        {"threadgroups": ENDLESS, "group_size": 1},
    ):
        with pytest.raises(errors.InvalidArgumentError, match="got more dimensions, expected one to three"):
            kernels.spread(x, threadgroup_memory=16, **sizes)
    with pytest.raises(errors.InvalidArgumentError, match="expected at most 31"):
        kernels.spread(x, threads=4, threadgroup_memory=ENDLESS)
    assert x.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("fill_", lambda x: x.fill_("abc")),
        ("fill_", lambda x: x.fill_([1, 2, 3])),
        ("fill_", lambda x: x.fill_(object())),
        ("assignment to elements", lambda x: x.__setitem__(0, print)),
        ("copy_from", lambda x: x.copy_from(print)),
        ("copy_from", lambda x: x.copy_from("\ud800", non_blocking=True)),
        ("full", lambda x: mpscffi.full(4, print)),
        ("asarray", lambda x: mpscffi.asarray("abc", "float32")),
        ("item", lambda x: x.item("a")),
        ("transpose", lambda x: x.transpose("a")),
        ("dtype", lambda x: x.astype("\ud800")),
        ("set_limit", lambda x: shader_cache.set_limit(np.zeros(3))),
        ("include_dirs", lambda x: mpscffi.compile_shader(SOURCE, include_dirs="include")),
        ("include_dirs", lambda x: mpscffi.compile_shader(SOURCE, include_dirs=1.5)),
        ("specialize", lambda x: mpscffi.compile_shader(SOURCE).saxpy.specialize("K")),
        ("unexpected argument", lambda x: mpscffi.compile_shader(SOURCE).saxpy.slot_of(np.zeros(2))),
        ("threadgroup_memory", lambda x: mpscffi.compile_shader(SOURCE).spread(x, threads=4, threadgroup_memory=1.5)),
        ("level", lambda x: mpscffi.set_shader_log(level=np.zeros(2))),
        ("Device", lambda x: mpscffi.Device([])),
        ("synchronize", lambda x: mpscffi.synchronize(timeout=np.zeros(2))),
    ],
)
def test_errors_name_the_call_that_was_given_the_wrong_thing(name: str, call: Any) -> None:
    x = mpscffi.ones(4)
    with pytest.raises((errors.ArgumentTypeError, errors.InvalidArgumentError), match=name):
        call(x)
    assert x.tolist() == [1, 1, 1, 1]


PARTS = """
#include <metal_stdlib>
using namespace metal;
enum class Op : uint { Add, Mul };
enum Plain { A, B };
struct Size { uint width, height, stride; };
struct Step { Op op; uint n; float f; };
struct Nest { Size size; float2 at[2]; float3 v; enum Plain plain; bool on; };
kernel void op(device uint* out, constant Op& op) { out[0] = uint(op) + 10; }
kernel void size(device uint* out, constant Size& s) { out[0] = s.width; out[1] = s.height; out[2] = s.stride; }
kernel void step(device float* out, constant Step& t) { out[0] = float(uint(t.op)); out[1] = t.n; out[2] = t.f; }
kernel void nest(device float* out, constant Nest& q) {
  out[0] = q.size.stride; out[1] = q.at[1].y; out[2] = q.v.z; out[3] = float(q.plain); out[4] = q.on;
}
kernel void weights(device float* out, constant float* w, constant float4x4& m) { out[0] = w[3]; out[1] = m[1][3]; }
"""


class _Size(ctypes.Structure):
    _fields_ = [("width", ctypes.c_uint32), ("height", ctypes.c_uint32), ("stride", ctypes.c_uint32)]


@pytest.mark.parametrize("value", [1, np.uint32(1)])
def test_enumerations_are_their_integers(compiled: Any, value: Any) -> None:
    out = mpscffi.zeros(1, dtype="u4")
    compiled(PARTS).op(out, value, threads=1)
    assert out.item() == 11


@pytest.mark.parametrize(
    "value",
    [
        (16, 17, 18),
        [16, 17, 18],
        {"stride": 18, "width": 16, "height": 17},
        _Size(16, 17, 18),
        np.array([16, 17, 18], "u4"),
        np.array((16, 17, 18), "u4,u4,u4"),
        struct.pack("3I", 16, 17, 18),
    ],
    ids=["tuple", "list", "dict", "ctypes", "array", "structured", "bytes"],
)
def test_structs_by_their_fields(compiled: Any, value: Any) -> None:
    out = mpscffi.zeros(3, dtype="u4")
    compiled(PARTS).size(out, value, threads=1)
    assert out.tolist() == [16, 17, 18]


def test_structs_in_structs(compiled: Any) -> None:
    out = mpscffi.zeros(5)
    value = {"size": (1, 2, 3), "at": [(4, 5), (6, 7)], "v": [8, 9, 10], "plain": 1, "on": True}
    compiled(PARTS).nest(out, value, threads=1)
    assert out.tolist() == [3, 7, 10, 1, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), "got 2 values, expected 3, one for each field of Size: width, height, stride"),
        ({"width": 1, "height": 2}, "no value for 'stride'"),
        ({"width": 1, "height": 2, "stride": 3, "depth": 4}, "got a field 'depth'"),
        ((1, -2, 3), "height: got -2, expected 0 to 4294967295 for uint"),
        ((1, 2.5, 3), "height: got 2.5, expected a whole number"),
        ((1, "2", 3), "height: got str, expected a number"),
        ({}, "no value for 'width', 'height', 'stride'"),
    ],
)
def test_structs_that_do_not_fit(compiled: Any, value: Any, message: str) -> None:
    out = mpscffi.zeros(3, dtype="u4")
    with pytest.raises((errors.InvalidArgumentError, errors.ArgumentTypeError), match=message):
        compiled(PARTS).size(out, value, threads=1)
    assert out.tolist() == [0, 0, 0]


def test_a_struct_with_an_enumeration_has_a_layout(compiled: Any) -> None:
    kernel, out = compiled(PARTS).step, mpscffi.zeros(3)
    kernel(out, (1, 2, 0.5), threads=1)
    assert out.tolist() == [1, 2, 0.5]
    with pytest.raises(errors.ArgumentTypeError, match="field 'f1' is float32 at offset 4"):
        kernel(out, np.array((1, 0.5, 2), "u4,f4,i4")[()], threads=1)


def test_dtypes_of_structs(compiled: Any) -> None:
    out = mpscffi.zeros(5)
    kernel = compiled(PARTS).nest
    dtype = kernel.arguments[1].struct.dtype
    offsets = {name: dtype.fields[name][1] for name in dtype.names}
    assert offsets == {"size": 0, "at": 16, "v": 32, "plain": 48, "on": 52}
    assert dtype.itemsize == 64
    value = np.zeros((), dtype)
    value["size"]["stride"], value["at"][1, 1], value["v"][2], value["plain"], value["on"] = 3, 7, 10, 1, True
    kernel(out, value, threads=1)
    assert out.tolist() == [3, 7, 10, 1, 1]


def test_small_numpy_arrays_by_value(compiled: Any) -> None:
    kernel, out = compiled(PARTS).weights, mpscffi.zeros(2)
    m = np.arange(16, dtype="f4").reshape(4, 4)
    for matrix in (m, m.tolist()):
        kernel(out, np.array([1, 2, 3, 4], "f4"), matrix, threads=1)
        assert out.tolist() == [4, 7]
    with pytest.raises(errors.ArgumentTypeError, match=r"dtype float64, expected float32.*astype\('float32'\)"):
        kernel(out, np.ones(4), m, threads=1)
    with pytest.raises(errors.ArgumentTypeError, match="host memory"):
        kernel(out, np.ones(1025, "f4"), m, threads=1)


def test_layouts_that_are_not_known_are_said(device: mpscffi.Device, compiled: Any) -> None:
    if device.backend != "host":
        return
    text = compiled("struct S { int a : 3; int b : 5; }; kernel void k(device int* o, constant S& s) { *o = s.a; }")
    assert "layout unknown: checked by size only" in text.k.signature
    assert "layout unknown" not in compiled(PARTS).weights.signature


class _Tensor:
    """What a tensor of another package looks like."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape = self.values.shape

    def __dlpack__(self) -> None: ...

    def item(self) -> Any:
        return self.values.item()


def test_tensors_of_other_packages(library: Any) -> None:
    x, y = mpscffi.ones(2), mpscffi.zeros(2)
    library.saxpy(y, x, _Tensor(2.5))
    assert y.tolist() == [2.5, 2.5]
    with pytest.raises(errors.ArgumentTypeError, match=r"argument 1 'x'.*_Tensor of shape \(2,\).*from_dlpack"):
        library.saxpy(y, _Tensor([1.0, 2.0]), 1.0)
    with pytest.raises(errors.ArgumentTypeError, match="'x'.* is None, but the kernel uses it"):
        library.saxpy(y, None, 1.0)


def test_constants_are_checked_at_once(compiled: Any) -> None:
    kernel = compiled("""
        constant float gain [[function_constant(0)]];
        constant uint channels [[function_constant(1)]];
        constant bool use [[function_constant(2)]];
        kernel void k(device float* x) { x[0] = use ? gain : channels; }
    """).k
    with pytest.raises(errors.NotFoundError, match="'gian'.*gain"):
        kernel.specialize(gian=1)
    for wrong in ({"channels": 1.5}, {"use": 2}, {"channels": -1}, {"gain": "1"}):
        with pytest.raises(errors.InvalidArgumentError, match=f"function constant '{next(iter(wrong))}'"):
            kernel.specialize(**wrong)
    text = kernel.specialize(gain=2.0).signature
    assert "constant uint channels [[function_constant(1)]];" in text
    assert "constant float gain [[function_constant(0)]] = 2.0;" in text
    assert "x" in kernel.specialize(gain=2.0, channels=3, use=True).signature


def test_sources_are_no_metallibs(tmp_path: Path) -> None:
    (tmp_path / "k.metal").write_text("kernel void k(device float* x) { x[0] = 1; }")
    with pytest.raises(errors.InvalidArgumentError, match="Metal source: use compile_shader"):
        mpscffi.load_metallib(tmp_path / "k.metal")


def test_group_sizes_of_other_dimensions(library: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="expected 1 dimension, as many as the grid has, threads=8"):
        library.saxpy(mpscffi.zeros(8), mpscffi.ones(8), 1.0, threads=8, group_size=(2, 2))
