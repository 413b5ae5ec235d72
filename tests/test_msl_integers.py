"""Integer functions of the Metal library, limits and packing, against Python integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msl_kernels import DTYPES, evaluate, signed, values_of

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("kind", ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"])
def test_integer_functions(kind: str) -> None:
    dtype = np.dtype(DTYPES[kind])
    bits, is_signed = dtype.itemsize * 8, dtype.kind == "i"
    info = np.iinfo(dtype)
    rng = np.random.default_rng(9)
    edges = [info.min, info.max, 0, 1, 2, info.max // 2, info.max - 1, info.min + 1]
    x = np.array(edges * 8 + [int(v) for v in rng.integers(info.min, info.max, 100, dtype)], dtype)
    y = np.array(
        [e for e in edges for _ in range(8)] + [int(v) for v in rng.integers(info.min, info.max, 100, dtype)], dtype
    )
    z = x[::-1].copy()

    def clamped(value: int) -> int:
        return min(max(value, int(info.min)), int(info.max))

    def unsigned(value: int) -> int:
        return value & ((1 << bits) - 1)

    def rotated(value: int, amount: int) -> int:
        k = unsigned(amount) % bits
        return unsigned(value) << k | unsigned(value) >> (bits - k) if k else value

    def extract(value: int) -> int:
        return signed(unsigned(value) >> 2, 5, is_signed)

    def insert(base: int, field: int) -> int:
        return unsigned(base) & ~(0x1F << 2) | (unsigned(field) & 0x1F) << 2

    functions: dict[str, Callable[[int, int, int], int]] = {
        f"popcount({kind}(x))": lambda a, b, c: bin(unsigned(a)).count("1"),
        f"clz({kind}(x))": lambda a, b, c: bits - unsigned(a).bit_length(),
        f"ctz({kind}(x))": lambda a, b, c: (unsigned(a) & -unsigned(a)).bit_length() - 1 if a else bits,
        f"reverse_bits({kind}(x))": lambda a, b, c: int(f"{unsigned(a):0{bits}b}"[::-1], 2),
        "abs(x)": lambda a, b, c: abs(a),
        "addsat(x, y)": lambda a, b, c: clamped(a + b),
        "subsat(x, y)": lambda a, b, c: clamped(a - b),
        "hadd(x, y)": lambda a, b, c: (a + b) >> 1,
        "rhadd(x, y)": lambda a, b, c: (a + b + 1) >> 1,
        "mulhi(x, y)": lambda a, b, c: (a * b) >> bits,
        "madhi(x, y, z)": lambda a, b, c: ((a * b) >> bits) + c,
        "madsat(x, y, z)": lambda a, b, c: clamped(a * b + c),
        "rotate(x, y)": lambda a, b, c: rotated(a, b),
        "absdiff(x, y)": lambda a, b, c: abs(a - b),
        "min(x, y)": lambda a, b, c: min(a, b),
        "max(x, y)": lambda a, b, c: max(a, b),
        "min3(x, y, z)": lambda a, b, c: min(a, b, c),
        "median3(x, y, z)": lambda a, b, c: sorted((a, b, c))[1],
        "max3(x, y, z)": lambda a, b, c: max(a, b, c),
        "extract_bits(x, 2, 5)": lambda a, b, c: extract(a),
        "insert_bits(x, y, 2, 5)": lambda a, b, c: insert(a, b),
        f"popcount({kind}3(x)).y": lambda a, b, c: bin(unsigned(a)).count("1"),
        f"mulhi({kind}2(x), {kind}2(y)).x": lambda a, b, c: (a * b) >> bits,
    }
    got = evaluate(kind, list(functions), (kind, x), (kind, y), (kind, z))
    for text, values in zip(functions, got, strict=True):
        expected = [
            signed(functions[text](int(a), int(b), int(c)), bits, is_signed) for a, b, c in zip(x, y, z, strict=True)
        ]
        assert values.tolist() == expected, text


def test_multiplication_of_24_bits() -> None:
    x = np.array([0, 1, -1, 8388607, -8388608, 12345], "i4")
    got = evaluate("int", ["mul24(x, 3)", "mad24(x, 3, 4)"], ("int", x))
    np.testing.assert_array_equal(got, [x * 3, x * 3 + 4])


def test_numeric_limits() -> None:
    cases = {
        "numeric_limits<float>::max() == FLT_MAX": 1,
        "numeric_limits<float>::min() == FLT_MIN": 1,
        "numeric_limits<float>::lowest() == -FLT_MAX": 1,
        "numeric_limits<float>::epsilon() == 1.1920929e-7f": 1,
        "isinf(numeric_limits<float>::infinity())": 1,
        "isnan(numeric_limits<half>::quiet_NaN())": 1,
        "float(numeric_limits<half>::max()) == 65504.0f": 1,
        "float(numeric_limits<half>::epsilon()) == 0.0009765625f": 1,
        "as_type<ushort>(numeric_limits<bfloat>::max()) == 0x7f7f": 1,
        "as_type<ushort>(HALF_MAX) == 0x7bff": 1,
        "numeric_limits<int>::min() == INT_MIN && numeric_limits<int>::max() == 2147483647": 1,
        "numeric_limits<uint>::max() == 4294967295u": 1,
        "numeric_limits<long>::min() == -9223372036854775807l - 1": 1,
        "numeric_limits<ulong>::max() == 18446744073709551615ul": 1,
        "numeric_limits<char>::min() == -128 && numeric_limits<uchar>::max() == 255": 1,
        "numeric_limits<short>::digits == 15 && numeric_limits<float>::digits == 24": 1,
        "numeric_limits<half>::digits == 11 && numeric_limits<bfloat>::digits == 8": 1,
        "isinf(INFINITY) && isnan(NAN) && M_PI_F > 3.14159f": 1,
    }
    assert values_of("int", cases) == cases


def test_unpacking() -> None:
    p = np.array([0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x12345678, 0x80008000, 0x7FFF8001], "u4")
    b = [(p >> shift) & 0xFF for shift in (0, 8, 16, 24)]
    s = [part.astype("u1").view("i1").astype("f8") for part in b]
    h = [p & 0xFFFF, p >> 16]
    hs = [part.astype("u2").view("i2").astype("f8") for part in h]

    def linear(c: np.ndarray) -> np.ndarray:
        return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)

    cases = {
        "unpack_unorm4x8_to_float(x).z": b[2] / 255,
        "unpack_snorm4x8_to_float(x).y": np.maximum(s[1] / 127, -1),
        "unpack_unorm4x8_srgb_to_float(x).x": linear(b[0] / 255),
        "unpack_unorm4x8_srgb_to_float(x).w": b[3] / 255,
        "unpack_unorm2x16_to_float(x).y": h[1] / 65535,
        "unpack_snorm2x16_to_float(x).x": np.maximum(hs[0] / 32767, -1),
        "unpack_unorm10a2_to_float(x).y": ((p >> 10) & 1023) / 1023,
        "unpack_unorm10a2_to_float(x).w": (p >> 30) / 3,
        "unpack_unorm565_to_float(ushort(x)).x": ((p >> 11) & 31) / 31,
        "unpack_unorm565_to_float(ushort(x)).y": ((p >> 5) & 63) / 63,
        "float(unpack_unorm4x8_to_half(x).w)": b[3] / 255,
    }
    got = evaluate("float", list(cases), ("uint", p))
    for text, values in zip(cases, got, strict=True):
        np.testing.assert_allclose(values, cases[text], rtol=5e-4 if "half" in text else 1e-6, err_msg=text)


def test_packing_is_the_inverse_and_rounds() -> None:
    p = np.random.default_rng(10).integers(0, 2**32, 200, "u4")
    p &= 0xFFFEFEFE  # -128 and -127 stand for the same
    round_trips = ["pack_float_to_unorm4x8(unpack_unorm4x8_to_float(x))",
                   "pack_float_to_unorm2x16(unpack_unorm2x16_to_float(x))",
                   "pack_float_to_unorm10a2(unpack_unorm10a2_to_float(x))",
                   "pack_float_to_srgb_unorm4x8(unpack_unorm4x8_srgb_to_float(x))"]  # fmt: skip
    np.testing.assert_array_equal(evaluate("uint", round_trips, ("uint", p)), [p] * 4)
    cases = {
        "pack_float_to_unorm4x8(float4(-1, 0.5f, 2, NAN))": 0x00FF8000,
        "pack_float_to_snorm4x8(float4(-2, -1, 0.5f, 1))": 0x7F408181,
        "pack_float_to_snorm2x16(float2(-1, 1))": 0x7FFF8001,
        "pack_float_to_unorm565(float3(1, 0, 1))": 0xF81F,
        "pack_half_to_unorm4x8(half4(1, 0, 1, 0))": 0x00FF00FF,
    }
    assert values_of("uint", cases) == cases


def test_bits_that_there_are_not_give_some_number() -> None:
    preface = """constexpr constant uint extracted = extract_bits(uchar(7), 3u, 9u) + extract_bits(5u, 40u, 50u);
constexpr constant uint inserted = insert_bits(5u, 6u, 70u, 3u);"""
    rows = evaluate("uint", ["extracted", "inserted", "extract_bits(0xabcdu, 4u, 8u)"], preface=preface)[:, 0]
    assert rows[2] == 0xBC
