"""Floating point functions of the Metal library against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msl_kernels import evaluate, from_bfloat, run, to_bfloat, values_of

import mpscffi

pytestmark = pytest.mark.usefixtures("device")

UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[float, float]]] = {
    "acos": (np.arccos, (-1, 1)),
    "acosh": (np.arccosh, (1, 100)),
    "asin": (np.arcsin, (-1, 1)),
    "asinh": (np.arcsinh, (-100, 100)),
    "atan": (np.arctan, (-100, 100)),
    "atanh": (np.arctanh, (-0.99, 0.99)),
    "ceil": (np.ceil, (-9, 9)),
    "cos": (np.cos, (-20, 20)),
    "cosh": (np.cosh, (-9, 9)),
    "cospi": (lambda x: np.cos(np.pi * x), (-3, 3)),
    "exp": (np.exp, (-80, 80)),
    "exp2": (np.exp2, (-100, 100)),
    "exp10": (lambda x: 10**x, (-30, 30)),
    "fabs": (np.abs, (-9, 9)),
    "abs": (np.abs, (-9, 9)),
    "floor": (np.floor, (-9, 9)),
    "fract": (lambda x: x - np.floor(x), (-9, 9)),
    "log": (np.log, (1e-6, 1e6)),
    "log2": (np.log2, (1e-6, 1e6)),
    "log10": (np.log10, (1e-6, 1e6)),
    "rint": (np.rint, (-9, 9)),
    "round": (lambda x: np.trunc(x + np.copysign(0.5, x)), (-9, 9)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (1e-6, 1e6)),
    "sign": (np.sign, (-9, 9)),
    "sin": (np.sin, (-20, 20)),
    "sinh": (np.sinh, (-9, 9)),
    "sinpi": (lambda x: np.sin(np.pi * x), (-3, 3)),
    "sqrt": (np.sqrt, (0, 1e6)),
    "tan": (np.tan, (-1.5, 1.5)),
    "tanh": (np.tanh, (-9, 9)),
    "tanpi": (lambda x: np.tan(np.pi * x), (-0.45, 0.45)),
    "trunc": (np.trunc, (-9, 9)),
    "saturate": (lambda x: np.clip(x, 0, 1), (-2, 2)),
}
BINARY: dict[str, tuple[Callable[..., np.ndarray], tuple[float, float]]] = {
    "atan2": (np.arctan2, (-9, 9)),
    "copysign": (np.copysign, (-9, 9)),
    "divide": (np.divide, (0.1, 9)),
    "fdim": (lambda x, y: np.maximum(x - y, 0), (-9, 9)),
    "fmax": (np.fmax, (-9, 9)),
    "fmin": (np.fmin, (-9, 9)),
    "max": (np.fmax, (-9, 9)),
    "min": (np.fmin, (-9, 9)),
    "fmod": (np.fmod, (-9, 9)),
    "pow": (np.power, (0.1, 9)),
    "powr": (np.power, (0.1, 9)),
    "step": (lambda x, y: (y >= x).astype("f8"), (-9, 9)),
}


@pytest.mark.parametrize("space", ["", "precise::", "fast::"])
def test_unary_functions(space: str) -> None:
    names = list(UNARY)
    rng = np.random.default_rng(3)
    x = np.array([rng.uniform(*UNARY[name][1], 256) for name in names], "f4")
    got = np.zeros((2, *x.shape), "f4")
    calls = "".join(
        f"  out[{row * 256} + i] = {space}{name}(in[{row * 256} + i]);\n"
        f"  out[{x.size + row * 256} + i] = {space}{name}(float3(0.5f, in[{row * 256} + i], 1)).y;\n"
        for row, name in enumerate(names)
    )
    parameters = "device float *out, device const float *in, uint i [[thread_position_in_grid]]"
    run(f"kernel void test({parameters}) {{\n{calls}}}", [got, x], 256, 64)
    for row, name in enumerate(names):
        expected = UNARY[name][0](x[row].astype("f8"))
        np.testing.assert_allclose(got[0, row], expected, rtol=1e-6, atol=2e-7, err_msg=name)
        np.testing.assert_allclose(got[1, row], expected, rtol=1e-6, atol=2e-7, err_msg=f"{name} of a vector")


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_unary_functions_of_16_bits(kind: str) -> None:
    rng = np.random.default_rng(4)
    x = np.array([rng.uniform(max(low, -3), min(high, 3), 64) for _, (low, high) in UNARY.values()], "f4")
    bits = x.astype("f2").view("u2") if kind == "half" else to_bfloat(x)
    got = np.zeros_like(bits)
    calls = "".join(f"  out[{row * 64} + i] = {name}(in[{row * 64} + i]);\n" for row, name in enumerate(UNARY))
    parameters = f"device {kind} *out, device const {kind} *in, uint i [[thread_position_in_grid]]"
    given = [array.view("f2") if kind == "half" else array for array in (got, bits)]
    run(f"kernel void test({parameters}) {{\n{calls}}}", given, 64)
    wide = bits.view("f2").astype("f8") if kind == "half" else from_bfloat(bits).astype("f8")
    back = got.view("f2").astype("f8") if kind == "half" else from_bfloat(got).astype("f8")
    step = 2.0**-11 if kind == "half" else 2.0**-8
    for row, (name, (function, _)) in enumerate(UNARY.items()):
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(back[row], function(wide[row]), rtol=1.01 * step, atol=2.0**-24, err_msg=name)


def test_binary_functions() -> None:
    rng = np.random.default_rng(5)
    texts, expected = [], []
    low, high = 0.1, 9.0
    x, y = rng.uniform(low, high, (2, 200)).astype("f4")
    for sign in (1, -1):
        for name, (function, (first, _)) in BINARY.items():
            if sign < 0 and first > 0:
                continue
            prefix = "" if sign > 0 else "-"
            texts += [f"{name}({prefix}x, y)", f"{name}(float2({prefix}x), float2(y)).y"]
            expected += [function(sign * x.astype("f8"), y.astype("f8"))] * 2
    got = evaluate("float", texts, ("float", x), ("float", y))
    for text, values, wanted in zip(texts, got, expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-6, err_msg=text)


# Units in the last place that a result may be off, for any float.
ERRORS = {
    "acos": 2, "acosh": 3, "asin": 3, "asinh": 4, "atan": 2, "atanh": 4, "cos": 4, "cosh": 4, "exp": 4, "exp2": 2,
    "exp10": 4, "log": 4, "log2": 2, "log10": 3, "rsqrt": 2, "sin": 4, "sinh": 4, "sqrt": 1, "tan": 4, "tanh": 3,
    "atan2": 3, "pow": 4,
}  # fmt: skip
EDGES = np.float32(
    [0, -0.0, 1, -1, 0.5, -0.5, 2, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1.2e-38, -1.2e-38, 88.7, 89.5, -104, 1e9,
     1.0000001, 0.99999994, 80, 80.000008, 0.65, 1.5, 1e-10, 20, 1000, 16777216]
)  # fmt: skip


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How far results are off, in units of the last place; 0 where they are the same NaN, infinity or zero."""
    tiny = np.finfo("f4").tiny
    rounded = exact.astype("f4").astype("f8")
    flushed = np.where(np.abs(rounded) < tiny, 0, rounded)
    special = np.isnan(exact) | np.isinf(flushed) | (flushed == 0)
    # A result between the smallest normal number and zero may be either.
    same = np.where(np.isnan(exact), np.isnan(got), (got == flushed) | ((flushed == 0) & (np.abs(got) <= tiny)))
    near_overflow = np.isinf(flushed) & (np.abs(got) > 3.4e38)
    unit = np.spacing(np.maximum(np.abs(rounded), tiny).astype("f4")).astype("f8")
    off = np.abs(got.astype("f8") - exact) / unit
    off = np.where((np.abs(got) <= tiny) & (np.abs(exact) <= 2 * tiny), 0, off)
    return np.where(special, np.where(same | near_overflow, 0, np.inf), off)


@pytest.mark.parametrize("mode", ["safe", "fast"])
@pytest.mark.parametrize("name", ERRORS)
def test_errors_for_any_float(name: str, mode: str) -> None:
    rng = np.random.default_rng(9)
    bits = rng.integers(0, 2**32, 4000, dtype="u4").view("f4")
    x = np.concatenate([EDGES, bits, rng.normal(size=2000).astype("f4"), rng.uniform(-100, 100, 2000).astype("f4")])
    x = np.where((x > 0) & (name in EXACT_OF_DENORMALS), x, flushed(x)).astype("f4")  # as the device counts denormals
    y = np.roll(x, 7)
    if name == "pow":
        x = np.abs(x)
    x, y = (np.ascontiguousarray(value) for value in (x, y))
    function = {**BINARY, **UNARY}[name][0]
    arguments = "(x[i], y[i])" if name in BINARY else "(x[i])"
    library = mpscffi.compile_shader(
        "#include <metal_stdlib>\nusing namespace metal;\nkernel void test(device float *out, device const float *x, "
        f"device const float *y, uint i [[thread_position_in_grid]]) {{ out[i] = {name}{arguments}; }}",
        math_mode=mode,
    )
    out = mpscffi.zeros(x.size)
    library.test(out, mpscffi.asarray(x), mpscffi.asarray(y), threads=x.size)
    with np.errstate(all="ignore"):
        exact = function(x.astype("f8"), y.astype("f8")) if name in BINARY else function(x.astype("f8"))
        off = errors(out.numpy(), exact)
    worst = int(np.argmax(off))
    assert off[worst] <= ERRORS[name], f"{name}({x[worst]!r}, {y[worst]!r}) = {out.numpy()[worst]!r}, {exact[worst]!r}"


# The places where formulas end.
SPECIAL = np.float32(
    [*EDGES, 1e-45, -1e-45, 1e-40, -1e-40, 1.17e-38, -1.17e-38, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 3, -3, 1e20,
     -1e20, 8388607.5, -8388607.5, 4194304.5, 88.8, -88.8, -88, 127.9, 128, -126.5, -150, 710, -710]
)  # fmt: skip


def turns(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of pi times its argument, which loses nothing where that is large."""
    return lambda x: function(np.pi * np.fmod(x, 2))


UNARY_SPECIAL = {
    **{name: function for name, (function, _) in UNARY.items()},
    "cospi": lambda x: np.where(np.abs(np.fmod(x, 2)) % 1 == 0.5, 0, turns(np.cos)(x)),
    "fract": lambda x: np.minimum(x - np.floor(x), np.nextafter(np.float32(1), np.float32(0))),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "sinpi": lambda x: np.where(np.fmod(x, 1) == 0, 0 * x, turns(np.sin)(x)),
    "ldexp": lambda x: x * 8,
    "modf_whole": np.trunc,
    "modf_rest": lambda x: np.modf(x)[0],
    "sincos_sin": np.sin,
    "sincos_cos": np.cos,
    "frexp_fraction": lambda x: np.frexp(x)[0],
}
del UNARY_SPECIAL["tanpi"]  # is what the two others are, divided
BINARY_SPECIAL = {
    **{name: function for name, (function, _) in BINARY.items() if name != "powr"},
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0)),
    "step": lambda x, y: np.where(y < x, 0.0, 1.0),
}
# To all other functions a denormal may be zero, but nothing between the two.
EXACT_OF_DENORMALS = {"log", "log2", "log10", "frexp_fraction"}
SEVERAL_RESULTS = """
float ldexp(float x) { return metal::ldexp(x, 3); }
float modf_whole(float x) { float w; modf(x, w); return w; }
float modf_rest(float x) { float w; return modf(x, w); }
float sincos_sin(float x) { float c; return sincos(x, c); }
float sincos_cos(float x) { float c; sincos(x, c); return c; }
float frexp_fraction(float x) { int e; return frexp(x, e); }
"""


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.finfo("f4").tiny, np.copysign(0.0, x), x)


@pytest.mark.parametrize("group_size", [1, 64], ids=["one at a time", "many at once"])
@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_special_arguments(mode: str, group_size: int) -> None:
    n = SPECIAL.size
    pairs = [np.ascontiguousarray(axis.ravel()) for axis in np.meshgrid(SPECIAL, SPECIAL)]
    ones = "".join(f"  out[{row * n} + i] = {name}(x[i]);\n" for row, name in enumerate(UNARY_SPECIAL))
    twos = "".join(f"  out[{row * n * n} + i] = {name}(x[i], y[i]);\n" for row, name in enumerate(BINARY_SPECIAL))
    head = "device float *out, device const float *x"
    library = mpscffi.compile_shader(
        f"#include <metal_stdlib>\nusing namespace metal;\n{SEVERAL_RESULTS}"
        f"kernel void of_one({head}, uint i [[thread_position_in_grid]]) {{\n{ones}}}\n"
        f"kernel void of_two({head}, device const float *y, uint i [[thread_position_in_grid]]) {{\n{twos}}}\n",
        math_mode=mode,
    )
    one, two = mpscffi.zeros((len(UNARY_SPECIAL), n)), mpscffi.zeros((len(BINARY_SPECIAL), n * n))
    library.of_one(one, mpscffi.asarray(SPECIAL), threads=n, group_size=group_size)
    library.of_two(two, *map(mpscffi.asarray, pairs), threads=n * n, group_size=group_size)
    results = [*one.numpy(), *two.numpy()]
    wrong = []
    for (name, function), got in zip([*UNARY_SPECIAL.items(), *BINARY_SPECIAL.items()], results, strict=True):
        given = pairs if name in BINARY_SPECIAL else [SPECIAL]
        wide = [x.astype("f8") for x in given]
        with np.errstate(all="ignore"):
            off = errors(got, function(*wide))
            off_flushed = errors(got, function(*map(flushed, wide)))
            off = np.where((given[0] > 0) & (name in EXACT_OF_DENORMALS), off, np.minimum(off, off_flushed))
        wrong += [
            f"{name}({', '.join(repr(float(x[at])) for x in given)}) = {got[at]!r}"
            for at in np.flatnonzero(off > ERRORS.get(name, 2))
        ]
    assert not wrong, "\n".join(wrong)


def test_zero_keeps_its_sign() -> None:
    names = "sin tan asin atan sinh tanh asinh atanh sqrt floor ceil rint trunc round sinpi tanpi".split()
    expressions = [f"{name}(x)" for name in names]
    scalars = evaluate("float", expressions, ("float", np.float32([0.0, -0.0] * 16)))
    of_vectors = evaluate("float", [f"{name}(float4(x)).y" for name in names], ("float", np.float32([0.0, -0.0] * 16)))
    for got in (scalars, of_vectors):
        assert not got.any()
        np.testing.assert_array_equal(np.signbit(got), [[False, True] * 16] * len(names), err_msg=str(names))


@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_powers_of_two_up_to_the_largest_float(mode: str) -> None:
    x = np.float32([127.5, 127.99, 128.0, -125.5, 126.4999])
    source = "#include <metal_stdlib>\nusing namespace metal;\n"
    source += "kernel void test(device float *x, uint i [[thread_position_in_grid]]) { x[i] = exp2(x[i]); }"
    library = mpscffi.compile_shader(source, math_mode=mode)
    array = mpscffi.asarray(x)
    library.test(array)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(array.numpy(), np.exp2(x.astype("f8")).astype("f4"), rtol=3e-7)


@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_integer_powers(mode: str) -> None:
    source = """
    #include <metal_stdlib>
    kernel void test(device float *y, device const float *x, device const int *n, uint i [[thread_position_in_grid]]) {
      y[i] = metal::pow(x[i], n[i]);
    }"""
    base, exponent = (axis.ravel() for axis in np.meshgrid([-2, -1, -0.5, 0.1, 1, 1.5, 3], np.arange(-36, 37)))
    base, exponent = base.astype(np.float32), exponent.astype(np.int32)
    out = mpscffi.empty(len(base))
    library = mpscffi.compile_shader(source, math_mode=mode)
    library.test(out, mpscffi.asarray(base), mpscffi.asarray(exponent))
    np.testing.assert_allclose(out.numpy(), base.astype(float) ** exponent, rtol=5e-7)


def test_functions_of_multiples_of_pi_are_exact() -> None:
    x = np.float32([0, 0.5, 1, 1.5, 2, -0.5, -1, 1e6, 1e6 + 0.5, 16777216.0])
    sin, cos = evaluate("float", ["sinpi(x)", "cospi(x)"], ("float", x))
    assert sin.tolist() == [0, 1, 0, -1, 0, -1, 0, 0, 1, 0]
    assert cos.tolist() == [1, 0, -1, 0, 1, 0, -1, 1, 0, 1]


def test_functions_with_two_results() -> None:
    preface = """
float frexp_fraction(float x) { int e; return frexp(x, e); }
int frexp_exponent(float4 x) { int4 e; frexp(x, e); return e.z; }
float modf_whole(float x) { float w; modf(x, w); return w; }
float modf_rest(float x) { float w; return modf(x, w); }
float sincos_sin(float x) { float c; return sincos(x, c); }
float sincos_cos(float x) { float c; sincos(x, c); return c; }
"""
    x = np.float32([0.75, -3.5, 1024, 0.1, -1e-3])
    got = evaluate("float", ["frexp_fraction(x)", "frexp_exponent(x)", "modf_whole(x)", "modf_rest(x)", "sincos_sin(x)",
                             "sincos_cos(x)", "ldexp(x, 5)", "ilogb(x)"], ("float", x), preface=preface)  # fmt: skip
    wide = x.astype("f8")
    fraction, exponent = np.frexp(wide)
    rest, whole = np.modf(wide)
    expected = [fraction, exponent, whole, rest, np.sin(wide), np.cos(wide), wide * 32, exponent - 1]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_frexp_takes_denormals_apart() -> None:
    x = np.float32([0, -0.0, 1e-45, -1e-45, 1e-40, 1.17e-38, 1.1754944e-38, 3.4028235e38, np.inf, -np.inf, np.nan])
    preface = "float exponent(float x) { int e; frexp(x, e); return e; }"
    preface += "float fraction(float x) { int e; return frexp(x, e); }"
    got = evaluate("float", ["fraction(x)", "exponent(x)", "ilogb(x)"], ("float", x), preface=preface)
    np.testing.assert_array_equal(got[:2], np.frexp(x))
    numbers = np.isfinite(x) & (x != 0)
    np.testing.assert_array_equal(got[2, numbers], np.frexp(x)[1][numbers] - 1)
    np.testing.assert_array_equal(np.signbit(got[0]), np.signbit(x))


def test_functions_of_three() -> None:
    rng = np.random.default_rng(6)
    x, y, z = rng.normal(size=(3, 100)).astype("f4")
    wide = [value.astype("f8") for value in (x, y, z)]
    ordered = np.sort(wide, axis=0)
    t = np.clip((wide[2] + 1) / 3, 0, 1)
    cases = {
        "fma(x, y, z)": wide[0] * wide[1] + wide[2],
        "clamp(x, -0.5f, 0.5f)": np.clip(wide[0], -0.5, 0.5),
        "min3(x, y, z)": ordered[0],
        "median3(x, y, z)": ordered[1],
        "max3(x, y, z)": ordered[2],
        "fmin3(x, y, z)": ordered[0],
        "fmedian3(x, y, z)": ordered[1],
        "fmax3(x, y, z)": ordered[2],
        "mix(x, y, z)": wide[0] + (wide[1] - wide[0]) * wide[2],
        "mix(float3(x), float3(y), 0.25f).y": wide[0] + (wide[1] - wide[0]) * 0.25,
        "smoothstep(-1.0f, 2.0f, z)": t * t * (3 - 2 * t),
    }
    got = evaluate("float", list(cases), ("float", x), ("float", y), ("float", z))
    for text, values in zip(cases, got, strict=True):
        np.testing.assert_allclose(values, cases[text], rtol=1e-5, atol=1e-6, err_msg=text)


def test_nextafter() -> None:
    x = np.float32([0, -0.0, 1, -1, np.inf, 1e-40])
    up, down = evaluate("float", ["nextafter(x, INFINITY)", "nextafter(x, -INFINITY)"], ("float", x))
    assert up[2] == np.nextafter(np.float32(1), np.float32(2))
    assert down[3] == np.nextafter(np.float32(-1), np.float32(-2))
    h = np.float16([1, -1, 2, 0.5, 65472])
    got = evaluate("half", ["nextafter(x, half(HUGE_VALH))", "nextafter(x, half(0))"], ("half", h))
    np.testing.assert_array_equal(got, [np.nextafter(h, np.float16(np.inf)), np.nextafter(h, np.float16(0))])


def test_questions_about_numbers() -> None:
    x = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1.2e-38])
    got = evaluate("bool", ["isnan(x)", "isinf(x)", "isfinite(x)", "isnormal(x)", "signbit(x)", "isnan(float2(x)).y",
                            "isordered(x, 1.0f)", "isunordered(x, 1.0f)"], ("float", x))  # fmt: skip
    nan, normal = np.isnan(x), np.array([0, 0, 1, 1, 0, 0, 0, 1], bool)
    expected = [nan, np.isinf(x), np.isfinite(x), normal, np.signbit(x), nan, ~nan, nan]
    np.testing.assert_array_equal(got, expected)
    h = np.array([0x0000, 0x0001, 0x0400, 0x7C00, 0x7E00, 0x8001], "u2")
    got = evaluate("bool", ["isnormal(as_type<half>(x))", "isnan(as_type<half>(x))"], ("ushort", h))
    np.testing.assert_array_equal(got, [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]])


def test_min_and_max_prefer_numbers_to_nan() -> None:
    nan = np.float32([np.nan, 1, np.nan])
    y = np.float32([2, np.nan, np.nan])
    got = evaluate("float", ["fmin(x, y)", "fmax(x, y)", "min(x, y)", "max(x, y)"], ("float", nan), ("float", y))
    np.testing.assert_array_equal(got, [[2, 1, np.nan]] * 4)


def test_min_and_max_of_bfloats_prefer_numbers_to_nan() -> None:
    x, y = (to_bfloat(np.float32(values)) for values in ([np.nan, 1, np.nan, -3, 5], [2, np.nan, np.nan, 4, -np.inf]))
    got = np.zeros((4, 5), np.uint16)
    lines = "".join(
        f"out[{row * 5} + i] = {name}(x[i], y[i]); " for row, name in enumerate(["fmin", "min", "fmax", "max"])
    )
    parameters = (
        "device bfloat *out, device const bfloat *x, device const bfloat *y, uint i [[thread_position_in_grid]]"
    )
    run(f"kernel void test({parameters}) {{ {lines} }}", [got, x, y], 5)
    smaller, larger = [2, 1, np.nan, -3, -np.inf], [2, 1, np.nan, 4, 5]
    np.testing.assert_array_equal(from_bfloat(got), [smaller, smaller, larger, larger])


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_every_number_of_16_bits(kind: str) -> None:
    """The nearest one, or in a few cases of near ties its neighbour."""
    names = [name for name in ERRORS if name in UNARY]
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = np.zeros((len(names), bits.size), np.uint16)
    calls = "".join(f"out[{row * bits.size} + i] = {name}(in[i]);\n" for row, name in enumerate(names))
    given = [array.view("f2") if kind == "half" else array for array in (got, bits)]
    parameters = f"device {kind} *out, device const {kind} *in, uint i [[thread_position_in_grid]]"
    run(f"kernel void test({parameters}) {{\n{calls}}}", given, bits.size, 256)
    with np.errstate(invalid="ignore"):  # signaling NaN
        x = bits.view("f2").astype("f8") if kind == "half" else from_bfloat(bits).astype("f8")
    for name, row in zip(names, got, strict=True):
        with np.errstate(all="ignore"):
            exact = UNARY[name][0](x if name in EXACT_OF_DENORMALS or kind == "half" else flushed(x))
            nearest = exact.astype("f2").view("u2") if kind == "half" else to_bfloat(exact.astype("f4"))
        magnitude, is_nan = (row & 0x7FFF).astype(int), np.isnan(exact)
        # Denormal results of bfloat may be zero, and logarithms of its negative denormals those of zero.
        is_free = (kind == "bfloat") & (
            ((np.abs(exact) < 2.0**-126) & (magnitude <= 0x80)) | ((x < 0) & (flushed(x) == 0) & is_nan)
        )
        assert (magnitude[is_nan & ~is_free] > (0x7C00 if kind == "half" else 0x7F80)).all(), name
        apart = np.abs(row.astype("i2").astype(int) - nearest.astype("i2").astype(int))[~is_nan & ~is_free]
        assert apart.max() <= 1, name
        assert np.count_nonzero(apart) < 40, name


def test_select() -> None:
    cases = {
        "select(1.0f, 2.0f, true)": 2,
        "select(1.0f, 2.0f, false)": 1,
        "select(float2(1, 2), float2(3, 4), bool2(true, false)).x": 3,
        "select(float2(1, 2), float2(3, 4), bool2(true, false)).y": 2,
        "float(select(int3(1), int3(2), int3(5, 6, 7) > 5).z)": 2,
    }
    assert values_of("float", cases) == cases


def test_geometry() -> None:
    rng = np.random.default_rng(7)
    x, y, z = rng.normal(size=(3, 50)).astype("f4")
    preface = """
float3 a(float x, float y, float z) { return float3(x, y, z); }
float3 b(float x, float y, float z) { return float3(z, x, -y); }
"""
    texts = ["dot(A, B)", "length(A)", "length_squared(A)", "distance(A, B)", "distance_squared(A, B)",
             "cross(A, B).x", "cross(A, B).y", "cross(A, B).z", "normalize(A).y", "reflect(A, B).x",
             "faceforward(A, B, A).z", "refract(normalize(A), normalize(B), 0.5f).x",
             "dot(packed_float3(A), packed_float3(B))"]  # fmt: skip
    calls = [text.replace("A", "a(x, y, z)").replace("B", "b(x, y, z)") for text in texts]
    got = evaluate("float", calls, ("float", x), ("float", y), ("float", z), preface=preface)
    a = np.stack([x, y, z]).astype("f8")
    b = np.stack([z, x, -y]).astype("f8")
    dot = (a * b).sum(0)
    length = np.sqrt((a * a).sum(0))
    cross = np.cross(a.T, b.T).T
    na, nb = a / length, b / length
    cosine = (na * nb).sum(0)
    k = 1 - 0.25 * (1 - cosine**2)
    expected = [dot, length, length**2, np.sqrt(((a - b) ** 2).sum(0)), ((a - b) ** 2).sum(0), *cross, na[1],
                (a - 2 * dot * b)[0], np.where(dot < 0, a[2], -a[2]),
                np.where(k < 0, 0, 0.5 * na[0] - (0.5 * cosine + np.sqrt(np.maximum(k, 0))) * nb[0]), dot]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (3, 3), (4, 4), (2, 3), (4, 3), (3, 4)])
def test_matrices(columns: int, rows: int) -> None:
    rng = np.random.default_rng(8)
    m = rng.normal(size=(columns, rows)).astype("f4")  # by columns
    n = rng.normal(size=(columns, rows)).astype("f4")
    vector = np.zeros(4, "f4")
    vector[:] = rng.normal(size=4)
    lengths = [rows, columns, rows * rows, columns * rows, columns * rows, 1]
    out = np.zeros(sum(lengths), "f4")

    def stores(text: str, size: int, width: int | None) -> str:
        if width is None:
            return "".join(f"*out++ = ({text})[{i}]; " for i in range(size))
        return "".join(f"*out++ = ({text})[{i // width}][{i % width}]; " for i in range(size))

    elements = ", ".join(f"a[{i}]" for i in range(columns * rows))
    others = elements.replace("a[", "b[")
    wide, high = ["", "", "xy", "xyz", "xyzw"][columns], ["", "", "xy", "xyz", "xyzw"][rows]
    kind = f"float{columns}x{rows}"
    det = "*out = determinant(m);" if columns == rows else "*out = m == m ? 1.0f : 0.0f;"
    source = f"""
kernel void test(device float *out, device const float *a, device const float *b, device const float4 *v) {{
  {kind} m({elements}), n({others});
  {stores(f"m * v[0].{wide}", rows, None)}
  {stores(f"v[0].{high} * m", columns, None)}
  {stores("m * transpose(n)", rows * rows, rows)}
  {stores("m + n * 2.0f", columns * rows, rows)}
  {stores("-m - n / 4.0f", columns * rows, rows)}
  {det}
}}"""
    run(source, [out, m, n, vector], 1)
    a, b = m.T.astype("f8"), n.T.astype("f8")
    expected = [a @ vector[:columns], vector[:rows] @ a, (a @ b.T).T, (a + 2 * b).T, (-a - b / 4).T,
                np.array([np.linalg.det(a) if columns == rows else 1])]  # fmt: skip
    np.testing.assert_allclose(out, np.concatenate([part.ravel() for part in expected]), rtol=1e-4, atol=1e-5)
