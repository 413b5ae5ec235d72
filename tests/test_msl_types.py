"""Types of the Metal language: layout, constructors, conversions, swizzles, operators, constants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msl_kernels import evaluate, from_bfloat, to_bfloat, values_of

import mpscffi
from mpscffi.mslc import generate_swizzles

pytestmark = pytest.mark.usefixtures("device")

SIZES = {
    "bool": (1, 1), "bool2": (2, 2), "bool3": (4, 4), "bool4": (4, 4),
    "char2": (2, 2), "char3": (4, 4), "char4": (4, 4), "uchar3": (4, 4),
    "short2": (4, 4), "short3": (8, 8), "short4": (8, 8), "ushort3": (8, 8),
    "int2": (8, 8), "int3": (16, 16), "int4": (16, 16), "uint3": (16, 16),
    "long": (8, 8), "long2": (16, 16), "long3": (32, 32), "long4": (32, 32), "ulong3": (32, 32),
    "half": (2, 2), "half2": (4, 4), "half3": (8, 8), "half4": (8, 8),
    "bfloat": (2, 2), "bfloat2": (4, 4), "bfloat3": (8, 8), "bfloat4": (8, 8),
    "float": (4, 4), "float2": (8, 8), "float3": (16, 16), "float4": (16, 16),
    "packed_char3": (3, 1), "packed_uchar4": (4, 1), "packed_short3": (6, 2), "packed_int3": (12, 4),
    "packed_float2": (8, 4), "packed_float3": (12, 4), "packed_float4": (16, 4), "packed_half3": (6, 2),
    "packed_long3": (24, 8), "packed_bfloat3": (6, 2), "packed_bool3": (3, 1),
    "float2x2": (16, 8), "float3x3": (48, 16), "float4x4": (64, 16), "float2x3": (32, 16), "float3x2": (24, 8),
    "float2x4": (32, 16), "float4x3": (64, 16), "half3x3": (24, 8), "half4x4": (32, 8), "half2x2": (8, 4),
    "atomic_int": (4, 4), "atomic_uint": (4, 4), "atomic_float": (4, 4), "atomic_bool": (1, 1), "atomic_ulong": (8, 8),
    "size_t": (8, 8), "ptrdiff_t": (8, 8), "uint8_t": (1, 1), "int64_t": (8, 8),
    "simd_float3": (16, 16), "vector_float4": (16, 16), "matrix_float3x3": (48, 16),
}  # fmt: skip


def test_sizes_and_alignments() -> None:
    texts = [f"{word}({kind})" for kind in SIZES for word in ("sizeof", "alignof")]
    values = evaluate("uint", texts, preface="#include <simd/simd.h>")[:, 0].reshape(-1, 2)
    assert {kind: tuple(map(int, pair)) for kind, pair in zip(SIZES, values, strict=True)} == SIZES


def test_struct_layout_is_metals() -> None:
    preface = "struct S { float a; float3 b; half c; packed_float3 d; char e; ushort2 f; bool3 g; float2x2 h; };"
    texts = [f"__builtin_offsetof(S, {field})" for field in "abcdefgh"] + ["sizeof(S)"]
    values = evaluate("uint", texts, preface=preface)[:, 0]
    assert values.tolist() == [0, 16, 32, 36, 48, 52, 56, 64, 80]


def test_vector_constructors_and_conversions() -> None:
    cases = {
        "float4(1, 2, 3, 4).w": 4,
        "float4(7.0f).z": 7,
        "float4(float2(1, 2), 3, 4).y": 2,
        "float4(1, float2(2, 3), 4).z": 3,
        "float4(float3(1, 2, 3), 4).w": 4,
        "float4(1, float3(2, 3, 4)).w": 4,
        "float4(float2(1, 2), float2(3, 4)).z": 3,
        "float4(int4(1, -2, 3, 4)).y": -2,
        "((float4)int4(1, -2, 3, 4)).y": -2,
        "vec<float, 4>(1, 2, 3, 4).y": 2,
        "float(int3(2.9f).x)": 2,
        "float(int3(-2.9f).x)": -2,
        "float(uint2(3.99f).y)": 3,
        "float(half2(0.1f).x)": float(np.float16(0.1)),
        "float(bfloat2(0.1f).x)": float(from_bfloat(to_bfloat(np.float32([0.1])))[0]),
        "float(bfloat4(half4(0.5f)).x)": 0.5,
        "float(half4(bfloat4(0.5f)).x)": 0.5,
        "float(bool4(0.0f, 0.5f, -1, 0).y)": 1,
        "float(bool4(int4(0, 256, 0, 0)).y)": 1,
        "float(int4(bool4(true)).x)": 1,
        "float(uchar4(300, 1, 2, 3).x)": 44,
        "float4(packed_float3(1, 2, 3), 4).z": 3,
        "packed_float4(1, 2, 3, 4)[2]": 3,
        "float3(packed_half3(half3(1, 2, 3))).y": 2,
        "float4(true, 2u, half(3), 4).z": 3,
    }
    assert values_of("float", cases) == cases


def test_swizzles_read_and_write() -> None:
    preface = """
template <typename T> T moved(T v) { v.xy = v.yx; v.w += v.x; v.zw *= 2; return v; }
float4 edited(float4 v) { v.xyz = float3(9, 8, 7); v.b = 6; v.ra = v.ar; v[1] = 5; int k = 0; v[k] += 0.5f; return v; }
float3 named(float3 v) { v.rgb = v.bgr; v.gb += float2(1); return v; }
packed_float3 packed(packed_float3 v) { v.xy = v.yx; v.z = 4; v *= 2; return v; }
"""
    values = "float4(1, 2, 3, 4)"
    cases = {
        f"{values}.wzyx.x": 4,
        f"{values}.xxyy.w": 2,
        f"{values}.bgra.x": 3,
        f"{values}.yzw.z": 4,
        f"{values}.ga.y": 4,
        f"moved({values}).x": 2,
        f"moved({values}).z": 6,
        f"moved({values}).w": 12,
        f"edited({values}).x": 4.5,
        f"edited({values}).y": 5,
        f"edited({values}).z": 6,
        f"edited({values}).w": 9,
        "named(float3(1, 2, 3)).x": 3,
        "named(float3(1, 2, 3)).y": 3,
        "named(float3(1, 2, 3)).z": 2,
        "packed(packed_float3(1, 2, 3)).x": 4,
        "packed(packed_float3(1, 2, 3)).y": 2,
        "packed(packed_float3(1, 2, 3)).z": 8,
        "packed_float3(1, 2, 3).zyx.x": 3,
    }
    assert values_of("float", cases, preface) == cases


def test_vector_operators() -> None:
    cases = {
        "all((int4(7, -7, 7, -7) / int4(2, 2, -2, -2)) == int4(3, -3, -3, 3))": 1,
        "all((int4(7, -7, 7, -7) % int4(2, 2, -2, -2)) == int4(1, -1, 1, -1))": 1,
        "all((uint3(1, 2, 3) << uint3(1, 33, 2)) == uint3(2, 4, 12))": 1,
        "all((int2(-8) >> 1) == int2(-4))": 1,
        "all((uint2(0x80000000u) >> 31) == uint2(1))": 1,
        "all((~uchar2(0x0f)) == uchar2(0xf0))": 1,
        "all((char2(127) + char2(1)) == char2(-128))": 1,
        "all((ushort4(1, 2, 3, 4) & ushort4(6)) == ushort4(0, 2, 2, 4))": 1,
        "all((int3(1, 2, 3) ^ 1) == int3(0, 3, 2))": 1,
        "all((2.0f - float2(1, 3)) == float2(1, -1))": 1,
        "all((float3(1, 2, 3) * 2) == float3(2, 4, 6))": 1,
        "all((float2(1, 2) < float2(2, 1)) == bool2(true, false))": 1,
        "all(!bool2(true, false) == bool2(false, true))": 1,
        "any(bool3(true, false, true) && bool3(false, true, false))": 0,
        "all(bool3(true, false, true) || bool3(false, true, false))": 1,
        "all((bool2(true, false) ^ bool2(true)) == bool2(false, true))": 1,
        "all(-half2(1, -2) == half2(-1, 2))": 1,
        "all((bfloat2(1, 2) + bfloat2(2)) == bfloat2(3, 4))": 1,
        "all((packed_float3(1, 2, 3) + float3(1)) == float3(2, 3, 4))": 1,
        "all((2 * packed_half3(half3(1, 2, 3))) == half3(2, 4, 6))": 1,
        "all((packed_uint2(1, 2) << 2) == uint2(4, 8))": 1,
        "packed_int3(1, 2, 3)[1]": 2,
        "all(sqrt(packed_float3(1, 4, 9)) == float3(1, 2, 3))": 1,
        "all(max(packed_float2(1, 4), 2.0f) == float2(2, 4))": 1,
        "all(abs(packed_int2(-1, 4)) == int2(1, 4))": 1,
        "all(popcount(packed_uint2(3u, 255u)) == uint2(2, 8))": 1,
    }
    assert values_of("int", cases) == cases


def test_vector_increments() -> None:
    preface = """
int run(int4 v) {
  int4 a = v++, b = ++v, c = v--;
  --v;
  return a.x * 1000 + b.y * 100 + c.z * 10 + v.w;
}
"""
    assert evaluate("int", ["run(int4(1))"], preface=preface)[0, 0] == 1331


def test_constants_and_deduction() -> None:
    preface = """
constant float4 table[2] = {float4(1, 2, 3, 4), {5, 6, 7, 8}};
constant float3x3 identity = float3x3(1.0f);
template <typename T, int N> constexpr int width(vec<T, N>) { return N; }
"""
    cases = {
        "int(table[1].z)": 7,
        "int(identity[1][1]) + int(identity[1][0])": 1,
        "width(half3(0))": 3,
        "width(vec(1.0f, 2.0f))": 2,
        "int(is_same_v<decltype(float4(1).xy), float2>)": 1,
        "int(is_same_v<vec<float, 3>, float3>)": 1,
    }
    assert values_of("int", cases, preface) == cases


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_conversions_of_16_bits_round_to_nearest_even(kind: str) -> None:
    special = [0.0, -0.0, 1.0, 65504.0, 65519.0, 65520.0, 1e6, -1e6, math.inf, -math.inf, math.nan, 6.1e-5]
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8]
    rng = np.random.default_rng(1)
    x = np.concatenate([special, ties, rng.normal(size=500), rng.normal(size=500) * 100]).astype("f4")
    bits = evaluate("ushort", [f"as_type<ushort>({kind}(x))", f"as_type<ushort>({kind}4(x).y)"], ("float", x))
    with np.errstate(over="ignore"):
        expected = x.astype("f2").view("u2") if kind == "half" else to_bfloat(x)
    number = ~np.isnan(x)
    for row in bits:
        np.testing.assert_array_equal(row[number], expected[number])
        back = row.view("f2") if kind == "half" else from_bfloat(row)
        assert np.isnan(back[~number]).all()
    back = evaluate(
        "float", [f"float(as_type<{kind}>(x))", f"float4({kind}4(as_type<{kind}>(x))).z"], ("ushort", expected)
    )
    wide = expected.view("f2").astype("f4") if kind == "half" else from_bfloat(expected)
    np.testing.assert_array_equal(back, [wide, wide])


def test_arithmetic_of_16_bits_is_rounded() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 300)).astype("f2")
    got = evaluate("half", ["x + y", "x * y", "x - y", "(half4(x) * half4(y)).y"], ("half", x), ("half", y))
    np.testing.assert_array_equal(got, [x + y, x * y, x - y, x * y])
    a, b = to_bfloat(x.astype("f4")), to_bfloat(y.astype("f4"))
    wide_a, wide_b = from_bfloat(a), from_bfloat(b)
    texts = ["x + y", "x * y", "(vec<bfloat, 3>(x) * vec<bfloat, 3>(y)).z"]
    got = evaluate("ushort", [f"as_type<ushort>(bfloat({text}))" for text in texts], ("bfloat", a), ("bfloat", b))
    np.testing.assert_array_equal(got, [to_bfloat(wide_a + wide_b)] + [to_bfloat(wide_a * wide_b)] * 2)


def test_float_to_integer_saturates() -> None:
    x = np.float32([0, 1.9, -1.9, 3e9, -3e9, 1e20, -1e20, np.inf, -np.inf, np.nan, 255.5, -0.9])
    low, high = -(2**31), 2**31 - 1
    to_int = [0, 1, -1, high, low, high, low, high, low, 0, 255, 0]
    np.testing.assert_array_equal(evaluate("int", ["int(x)", "int4(x).y"], ("float", x)), [to_int] * 2)
    top = 2**32 - 1
    to_uint = [0, 1, 0, 3000000000, 0, top, 0, top, 0, 0, 255, 0]
    np.testing.assert_array_equal(evaluate("uint", ["uint(x)", "uint2(x).y"], ("float", x)), [to_uint] * 2)


@pytest.mark.parametrize("offset", [0, 4, 8, 12, 16, 20])
@pytest.mark.parametrize("validate", [False, pytest.param(True, marks=pytest.mark.host_only("its validation"))])
def test_vectors_at_any_element(offset: int, validate: bool) -> None:
    source = """
    #include <metal_stdlib>
    using namespace metal;
    struct S { float4 v; float4x4 m; };
    kernel void test(device char *out, device const char *in, constant uint &offset, threadgroup float4 *t,
                     uint i [[thread_position_in_grid]]) {
      device const float4 &from = *(device const float4 *)(in + offset + 16 * i);
      t[i] = from;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      *(device float4 *)(out + offset + 16 * i) = t[31 - i] + from;
    }
    kernel void structs(device char *out, device const char *in, constant uint &offset,
                        uint i [[thread_position_in_grid]]) {
      S s = *(device const S *)(in + offset + 80 * i);
      s.v = s.m * s.v;
      *(device S *)(out + offset + 80 * i) = s;
    }"""
    library = mpscffi.compile_shader(source, validate=validate)
    values = np.arange(200, dtype=np.float32)
    start = offset // 4
    out, array = mpscffi.zeros(200), mpscffi.asarray(values)
    library.test(out.view("uint8"), array.view("uint8"), offset, threads=32, threadgroup_memory={"t": 512})
    rows = values[start : start + 128].reshape(32, 4)
    np.testing.assert_array_equal(out.numpy()[start : start + 128].reshape(32, 4), rows + rows[::-1])
    library.structs(out.view("uint8"), array.view("uint8"), offset, threads=2)
    rows = values[start : start + 40].reshape(2, 20).copy()
    rows[:, :4] = np.einsum("scr,sc->sr", rows[:, 4:].reshape(2, 4, 4), rows[:, :4])
    np.testing.assert_array_equal(out.numpy()[start : start + 40].reshape(2, 20), rows)


def test_as_type_keeps_the_bits() -> None:
    x = np.uint32([0, 1, 0x3F800000, 0x80000000, 0x7FC00001, 0xFFFFFFFF])
    got = evaluate("uint", ["as_type<uint>(as_type<float>(x))", "as_type<uint>(as_type<uchar4>(x).wzyx)",
                            "as_type<uint>(as_type<half2>(x).yx)"], ("uint", x))  # fmt: skip
    np.testing.assert_array_equal(got, [x, x.byteswap(), (x >> 16) | (x << 16)])


def test_swizzles_are_as_generated() -> None:
    assert generate_swizzles.TARGET.read_text(encoding="utf-8") == generate_swizzles.render()
