"""Precompiled kernels run as their source would: AIR of our own, against NumPy and plain Python."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from air_modules import Body, Constant, Kernel, Parameter, assembled, constant, device, given, metallib, threadgroup

import mpscffi
from mpscffi import errors
from mpscffi._ffi import ffi, lib
from mpscffi.mslc.air.translate import translate
from mpscffi.mslc.errors import CompileError, CompilerMissing
from mpscffi.mslc.metallib import build, emit
from mpscffi.mslc.metallib.writer import FunctionEntry, write_metallib
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("its compiler")]
try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))

INDEX = given("thread_position_in_grid")
DTYPES = {"float": np.float32, "half": np.float16, "bfloat": ml_dtypes.bfloat16, "i8": np.int8, "i16": np.int16}
DTYPES |= {"i32": np.int32, "i64": np.int64}
UNSIGNED = {"i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64}
METAL = {
    "float": "float",
    "half": "half",
    "bfloat": "bfloat",
    "i8": "char",
    "i16": "short",
    "i32": "int",
    "i64": "long",
}
SHORT = {"float": "f32", "half": "f16", "bfloat": "bf16"}


@pytest.fixture(autouse=True)
def host() -> None:
    mpscffi.set_device("host")


def run(
    kernel: Kernel, *arguments: np.ndarray | float, threads: int | Sequence[int], **options: object
) -> list[np.ndarray]:
    """Run a kernel; the arrays as they are afterwards."""
    constants = options.pop("constants", None)
    function = mpscffi.load_metallib(metallib([kernel]))[kernel.name]
    if constants:
        function = function.specialize(constants)
    arrays = [
        mpscffi.asarray(item.view(np.uint16) if item.dtype == ml_dtypes.bfloat16 else item)
        if isinstance(item, np.ndarray)
        else item
        for item in arguments
    ]
    function(*arrays, threads=threads, **options)
    return [
        array.numpy().copy().view(item.dtype)
        for array, item in zip(arrays, arguments, strict=True)
        if isinstance(item, np.ndarray)
    ]


def columns(kind: str, inputs: Sequence[np.ndarray], calls: Sequence[Callable[[Body, list[str]], str]]) -> np.ndarray:
    """Results of some calls, a row each, for columns of operands: one kernel computes them all."""
    body = Body()
    operands = [body.load(kind, f"%{1 + number}", "%4") for number in range(len(inputs))]
    count = len(inputs[0])
    for row, call in enumerate(calls):
        place = body.value(f"add i32 %4, {row * count}")
        body.store(kind, call(body, operands), "%0", place)
    parameters = [
        device("out", 0, METAL[kind]),
        *(device(f"in{n}", n + 1, METAL[kind], "read") for n in range(3)),
        INDEX,
    ]
    kernel = Kernel("columns", parameters, body.text, body.top)
    filled = [*inputs, *[inputs[0]] * (3 - len(inputs))]
    out = np.zeros((len(calls), count), inputs[0].dtype)
    return run(kernel, out, *filled, threads=count)[0]


def call(name: str, kind: str, *more: str) -> Callable[[Body, list[str]], str]:
    return lambda body, operands: body.call(name, kind, *(f"{kind} {operand}" for operand in operands), *more)


# ---------------------------------------------------------------- arithmetic

# By the operands: x and q are in (-1, 1), p is in (1, 3).
FUNCTIONS: dict[str, tuple[str, Callable[..., float]]] = {
    "acos": ("x", math.acos), "asin": ("x", math.asin), "atan": ("x", math.atan), "asinh": ("x", math.asinh),
    "atanh": ("x", math.atanh), "acosh": ("p", math.acosh), "ceil": ("p", math.ceil), "cos": ("x", math.cos),
    "cosh": ("x", math.cosh), "exp": ("x", math.exp), "exp2": ("x", lambda x: 2.0**x),
    "exp10": ("x", lambda x: 10.0**x),
    "fabs": ("x", abs), "floor": ("p", math.floor), "fract": ("x", lambda x: x - math.floor(x)), "log": ("p", math.log),
    "log2": ("p", math.log2), "log10": ("p", math.log10), "rint": ("p", round),
    "round": ("p", lambda x: math.floor(x + 0.5)), "rsqrt": ("p", lambda x: 1 / math.sqrt(x)), "sqrt": ("p", math.sqrt),
    "saturate": ("x", lambda x: min(max(x, 0.0), 1.0)), "sign": ("x", lambda x: float((x > 0) - (x < 0))),
    "sin": ("x", math.sin), "sinh": ("x", math.sinh), "sinpi": ("x", lambda x: math.sin(math.pi * x)),
    "cospi": ("x", lambda x: math.cos(math.pi * x)), "tan": ("x", math.tan), "tanh": ("x", math.tanh),
    "trunc": ("p", math.trunc), "atan2": ("xq", math.atan2), "copysign": ("xq", math.copysign),
    "fdim": ("xq", lambda x, y: max(x - y, 0.0)), "fmax": ("xq", max), "fmin": ("xq", min), "fmod": ("px", math.fmod),
    "pow": ("px", math.pow), "powr": ("px", math.pow), "step": ("xq", lambda edge, x: float(x >= edge)),
    "fma": ("xqp", lambda x, y, z: x * y + z), "clamp": ("xqp", lambda x, low, high: min(max(x, low), high)),
    "fmax3": ("xqp", max), "fmin3": ("xqp", min), "fmedian3": ("xqp", lambda *xs: sorted(xs)[1]),
    "mix": ("xqp", lambda x, y, z: x + (y - x) * z),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_floating_point_functions(kind: str) -> None:
    chance = np.random.default_rng(5)
    x, q = (chance.uniform(-0.9, 0.9, 40).astype(DTYPES[kind]) for _ in range(2))
    inputs = {"x": x, "q": q, "p": chance.uniform(1.05, 2.9, 40).astype(DTYPES[kind])}
    calls: list[Callable[[Body, list[str]], str]] = []
    expected = []
    for name, (operands, function) in FUNCTIONS.items():
        speeds = ("", "fast_", "precise_") if kind == "float" and len(operands) == 1 else ("",)
        for speed in speeds:
            places = ["xqp".index(operand) for operand in operands]
            calls.append(
                lambda body, values, name=speed + name, places=places: call(f"air.{name}.{SHORT[kind]}", kind)(
                    body, [values[place] for place in places]
                )
            )
            rows = zip(*(inputs[operand].astype(np.float64).tolist() for operand in operands), strict=True)
            expected.append([float(function(*row)) for row in rows])
    found = columns(kind, list(inputs.values()), calls).astype(np.float64)
    tolerance = {"float": 4e-6, "half": 2e-3, "bfloat": 1.6e-2}[kind]
    np.testing.assert_allclose(found, np.array(expected), rtol=tolerance, atol=tolerance)


def test_special_values() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.5, -2.5, 1e38], np.float32)
    y = np.array([np.nan] * 8, np.float32)
    names = ["fmax", "fmin", "sqrt", "exp", "log", "rint", "fract", "round"]
    calls = [
        lambda body, operands, name=name: call(f"air.{name}.f32", "float")(body, operands[: 2 if "m" in name else 1])
        for name in names
    ]
    found = columns("float", [x, y], calls)
    inf, nan = np.inf, np.nan
    expected = np.array([
        [0, -0.0, inf, -inf, nan, 2.5, -2.5, 1e38],  # what is a number wins
        [0, -0.0, inf, -inf, nan, 2.5, -2.5, 1e38],
        [0, -0.0, inf, nan, nan, math.sqrt(2.5), nan, 1e19],
        [1, 1, inf, 0, nan, math.exp(2.5), math.exp(-2.5), inf],
        [-inf, -inf, inf, nan, nan, math.log(2.5), nan, math.log(1e38)],
        [0, -0.0, inf, -inf, nan, 2, -2, 1e38],
        [0, 0, nan, nan, nan, 0.5, 0.5, 0],
        [0, -0.0, inf, -inf, nan, 3, -3, 1e38],
    ])  # fmt: skip
    fractions = names.index("fract")
    found[fractions, 2:5] = expected[fractions, 2:5]  # of infinity and NaN it may be anything
    np.testing.assert_allclose(found, expected, rtol=3e-7)


SIGNED_BINARY: dict[str, Callable[[int, int, int], int]] = {
    "min": lambda a, b, _: min(a, b), "max": lambda a, b, _: max(a, b), "abs_diff": lambda a, b, _: abs(a - b),
    "hadd": lambda a, b, _: (a + b) >> 1, "rhadd": lambda a, b, _: (a + b + 1) >> 1,
    "mul_hi": lambda a, b, bits: (a * b) >> bits,
}  # fmt: skip


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64"])
def test_integer_functions(kind: str, signed: bool) -> None:
    bits = int(kind[1:])
    dtype = DTYPES[kind] if signed else UNSIGNED[kind]
    info = np.iinfo(dtype)
    chance = np.random.default_rng(bits)
    edges = [info.min, info.min + 1, 0, 1, info.max - 1, info.max, 3, 7]
    pairs = list(itertools.product(edges, edges))
    a, b = (np.array([pair[side] for pair in pairs], dtype) for side in range(2))
    c = chance.integers(info.min, info.max, len(a), dtype, endpoint=True)
    sign = "s" if signed else "u"
    calls: list[Callable[[Body, list[str]], str]] = []
    expected: list[list[int]] = []

    def add(name: str, operands: int, function: Callable[..., int], suffix: str = f".{sign}", *more: str) -> None:
        calls.append(lambda body, values: call(f"air.{name}{suffix}.{kind}", kind, *more)(body, values[:operands]))
        expected.append([function(*row) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)])

    def limited(value: int) -> int:
        return min(max(value, int(info.min)), int(info.max))

    mask = (1 << bits) - 1
    for name, function in SIGNED_BINARY.items():
        add(name, 2, lambda a, b, _, function=function: function(a, b, bits))
    add("add_sat", 2, lambda a, b, _: limited(a + b))
    add("sub_sat", 2, lambda a, b, _: limited(a - b))
    add("mad_sat", 3, lambda a, b, c: limited(a * b + c))
    add("mad_hi", 3, lambda a, b, c: ((a * b) >> bits) + c)
    add("max3", 3, max)
    add("min3", 3, min)
    add("median3", 3, lambda *xs: sorted(xs)[1])
    add("abs", 1, lambda a, *_: abs(a))
    add("popcount", 1, lambda a, *_: (a & mask).bit_count(), "")
    add("clz", 1, lambda a, *_: bits - (a & mask).bit_length(), "", "i1 false")
    add("ctz", 1, lambda a, *_: bits if a & mask == 0 else (a & -a).bit_length() - 1, "", "i1 false")
    add("reverse_bits", 1, lambda a, *_: int(f"{a & mask:0{bits}b}"[::-1], 2), "")
    add("rotate", 2, lambda a, b, _: (a & mask) << (b % bits) | (a & mask) >> (bits - b % bits) if b % bits else a, "")
    found = columns(kind, [a, b, c], calls)
    for row, values in zip(found.tolist(), expected, strict=True):
        assert [value & mask for value in row] == [value & mask for value in values]


def test_bit_fields() -> None:
    body = Body()
    x = body.load("i32", "%1", "%2")
    for row, (offset, bits) in enumerate([(0, 32), (4, 8), (31, 1), (5, 0)]):
        operands = [f"i32 {x}", f"i32 {offset}", f"i32 {bits}"]
        for column, name in enumerate(["air.extract_bits.s.i32", "air.extract_bits.u.i32"]):
            place = body.value(f"add i32 %2, {(3 * row + column) * 4}")
            body.store("i32", body.call(name, "i32", *operands), "%0", place)
        inserted = body.call("air.insert_bits.i32", "i32", operands[0], "i32 -1", *operands[1:])
        body.store("i32", inserted, "%0", body.value(f"add i32 %2, {(3 * row + 2) * 4}"))
    values = np.array([0x12345678, 0x7FFFFFFF, -1, -0x76543211], np.int32)
    kernel = Kernel("fields", [device("out", 0, "int"), device("x", 1, "int"), INDEX], body.text, body.top)
    found = run(kernel, np.zeros((12, 4), np.int32), values, threads=4)[0].view(np.uint32)
    for row, (offset, bits) in enumerate([(0, 32), (4, 8), (31, 1), (5, 0)]):
        mask = (1 << bits) - 1
        for column, value in enumerate(values.view(np.uint32).tolist()):
            field = value >> offset & mask
            signed = field - (1 << bits) if bits and field >> (bits - 1) else field
            expected = [signed & 0xFFFFFFFF, field, (value | mask << offset) & 0xFFFFFFFF]
            assert found[3 * row : 3 * row + 3, column].tolist() == expected


CONVERSIONS = ["float", "half", "bfloat", "i8", "i16", "i32", "i64"]


@pytest.mark.parametrize("source", CONVERSIONS)
def test_conversions(source: str) -> None:
    """To every type, signed and unsigned, scalar and in vectors; to integers it saturates."""
    is_float = source in SHORT
    values = [0.0, 1.0, -1.0, 2.5, -2.5, 127.0, 130.0, -200.0, 60000.0, -60000.0, 1e9, -1e9, np.inf, -np.inf, np.nan]
    if not is_float:
        values = [0, 1, -1, 3, 127, -128, 100, -100, 5, 6, 7, 8, 9, 10, 11]
    with np.errstate(over="ignore"):
        data = np.array([*values, 0], np.float64).astype(DTYPES[source])
    for target in CONVERSIONS:
        for signed in (True, False):
            _check_conversion(source, target, signed, data)


def _check_conversion(source: str, target: str, signed: bool, data: np.ndarray) -> None:
    from_float, to_float = source in SHORT, target in SHORT
    if (to_float and not signed and from_float) or (not from_float and not to_float):
        return
    sign = "s" if signed else "u"
    to_name = f"f.{SHORT[target]}" if to_float else f"{sign}.{target}"
    from_name = f"f.{SHORT[source]}" if from_float else f"{sign}.{source}"
    body = Body()
    x = body.load(source, "%1", "%2")
    body.store(target, body.call(f"air.convert.{to_name}.{from_name}", target, f"{source} {x}"), "%0", "%2")
    pair = body.value(f"insertelement <2 x {source}> poison, {source} {x}, i32 0")
    pair = body.value(f"insertelement <2 x {source}> {pair}, {source} {x}, i32 1")
    (a, b), (c, d) = to_name.split("."), from_name.split(".")
    result = body.call(f"air.convert.{a}.v2{b}.{c}.v2{d}", f"<2 x {target}>", f"<2 x {source}> {pair}")
    place = body.value(f"add i32 %2, {len(data)}")
    body.store(target, body.value(f"extractelement <2 x {target}> {result}, i32 1"), "%0", place)
    kernel = Kernel(
        "convert", [device("out", 0, METAL[target]), device("x", 1, METAL[source]), INDEX], body.text, body.top
    )
    dtype = DTYPES[target] if to_float or signed else UNSIGNED[target]
    found = run(kernel, np.zeros((2, len(data)), dtype), data, threads=len(data))[0]
    exact = data if from_float or signed else data.view(UNSIGNED[source])
    if to_float:
        with np.errstate(all="ignore"):
            expected = exact.astype(np.float32).astype(dtype).astype(np.float64)
        found = found.astype(np.float64)
    else:
        info = np.iinfo(dtype)
        expected = np.array(
            [0 if math.isnan(x) else int(min(max(x, info.min), info.max)) for x in exact.astype(np.float64).tolist()],
            dtype,
        )
    np.testing.assert_array_equal(found[0], expected, f"{from_name} to {to_name}")
    np.testing.assert_array_equal(found[1], expected, f"{from_name} to {to_name}, vector")


def test_conversions_to_and_from_bool() -> None:
    body = Body()
    x = body.load("float", "%1", "%2")
    truth = body.call("air.convert.u.i1.f.f32", "i1", f"float {x}")
    body.store("float", body.call("air.convert.f.f32.u.i1", "float", f"i1 {truth}"), "%0", "%2")
    kernel = Kernel("truths", [device("out", 0), device("x", 1), INDEX], body.text, body.top)
    data = np.array([0.0, -0.0, 0.25, np.nan, -3.0], np.float32)
    assert run(kernel, np.zeros(5, np.float32), data, threads=5)[0].tolist() == [0, 0, 1, 1, 1]


def test_vectors() -> None:
    """Component by component, and what makes one value of many."""
    body = Body()
    place = body.place("<4 x float>", "%1", "%2")
    v = body.value(f"load <4 x float>, ptr addrspace(1) {place}, align 16")
    total = body.call("air.dot.v4f32", "float", f"<4 x float> {v}", f"<4 x float> {v}")
    exponents = body.value("freeze <4 x i32> <i32 1, i32 2, i32 -1, i32 0>")
    scaled = body.call("air.ldexp.v4f32", "<4 x float>", f"<4 x float> {v}", f"<4 x i32> {exponents}")
    negative = body.value(f"fcmp olt <4 x float> {v}, zeroinitializer")
    some = body.call("air.any.v4i1", "i1", f"<4 x i1> {negative}")
    every = body.call("air.all.v4i1", "i1", f"<4 x i1> {negative}")
    base = body.value("mul i32 %2, 7")
    for number in range(4):
        body.store("float", body.value(f"extractelement <4 x float> {scaled}, i32 {number}"), "%0", base)
        base = body.value(f"add i32 {base}, 1")
    for value in (total, body.value(f"uitofp i1 {some} to float"), body.value(f"uitofp i1 {every} to float")):
        body.store("float", value, "%0", base)
        base = body.value(f"add i32 {base}, 1")
    kernel = Kernel("vectors", [device("out", 0), device("v", 1, "float4", "read"), INDEX], body.text, body.top)
    data = np.array([[1, 2, 3, 4], [-1, 2, -3, 4], [-1, -2, -3, -4]], np.float32)
    found = run(kernel, np.zeros((3, 7), np.float32), data, threads=3)[0]
    for row, values in zip(found.tolist(), data.tolist(), strict=True):
        a, b, c, d = values
        assert row == [2 * a, 4 * b, c / 2, d, sum(x * x for x in values), min(values) < 0, max(values) < 0]


@pytest.mark.parametrize("offset", [0, 4, 8, 16])
def test_vectors_at_any_element(offset: int) -> None:
    body = Body()
    for name, source in (("in", "%1"), ("out", "%0")):
        start = body.value(f"getelementptr inbounds i8, ptr addrspace(1) {source}, i64 {offset}")
        place = body.place("<4 x float>", start, "%2")
        if name == "in":
            values = body.value(f"load <4 x float>, ptr addrspace(1) {place}, align 16")
        else:
            doubled = body.value(f"fadd <4 x float> {values}, {values}")
            body.lines.append(f"  store <4 x float> {doubled}, ptr addrspace(1) {place}, align 16")
    parameters = [device("out", 0, "float4"), device("in", 1, "float4", "read"), INDEX]
    kernel = Kernel("doubles", parameters, body.text, body.top)
    data, start = np.arange(36, dtype=np.float32), offset // 4
    out = run(kernel, np.zeros(36, np.float32), data, threads=4)[0]
    np.testing.assert_array_equal(out[start : start + 16], 2 * data[start : start + 16])


def test_second_results() -> None:
    body = Body()
    x = body.load("float", "%1", "%2")
    room = body.value("alloca [2 x float], align 4")
    whole = body.value("alloca float, align 4")
    power = body.value("alloca i32, align 4")
    body.store("float", body.call("air.sincos.f32", "float", f"float {x}", f"ptr {room}"), "%0", "%2")
    body.call("air.modf.f32", "float", f"float {x}", f"ptr {whole}")
    mantissa = body.call("air.frexp.f32", "float", f"float {x}", f"ptr {power}")
    values = [body.value(f"load float, ptr {room}"), body.value(f"load float, ptr {whole}"), mantissa]
    exponent = body.value(f"load i32, ptr {power}")
    values.append(body.value(f"sitofp i32 {exponent} to float"))
    for row, value in enumerate(values, 1):
        body.store("float", value, "%0", body.value(f"add i32 %2, {4 * row}"))
    kernel = Kernel("pairs", [device("out", 0), device("x", 1), INDEX], body.text, body.top)
    data = np.array([0.3, -2.75, 5.5, 100.0], np.float32)
    sine, cosine, whole_part, mantissas, exponents = run(kernel, np.zeros((5, 4), np.float32), data, threads=4)[0]
    np.testing.assert_allclose(sine, np.sin(data.astype(np.float64)), atol=1e-6)
    np.testing.assert_allclose(cosine, np.cos(data.astype(np.float64)), atol=1e-6)
    assert whole_part.tolist() == [0, -2, 5, 100]
    assert [(m, e) for m, e in zip(mantissas.tolist(), exponents.tolist(), strict=True)] == [
        math.frexp(float(x)) for x in data
    ]


# ---------------------------------------------------------------- where a thread is

ROLES_3 = [
    "thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid", "threads_per_grid",
    "threadgroups_per_grid", "threads_per_threadgroup", "dispatch_threads_per_threadgroup", "grid_origin", "grid_size",
]  # fmt: skip
ROLES_1 = [
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "threads_per_simdgroup",
    "simdgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup", "thread_execution_width",
    "thread_index_in_quadgroup", "quadgroup_index_in_threadgroup", "quadgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup",
]  # fmt: skip


@pytest.mark.parametrize("fibers", [False, True], ids=["rows", "fibers"])
def test_positions(fibers: bool) -> None:
    """Of every kind, as 16 and 32 bits, in a grid whose threadgroups at the edges are smaller."""
    grid, group = (11, 5, 3), (4, 3, 2)
    parameters = [device("out", 0, "uint"), *(given(role, "<3 x i32>") for role in ROLES_3)]
    parameters += [given(role, "i16" if number % 2 else "i32") for number, role in enumerate(ROLES_1)]
    count = 3 * len(ROLES_3) + len(ROLES_1)
    body = Body()
    x, y, z = (body.value(f"extractelement <3 x i32> %1, i32 {axis}") for axis in range(3))
    row = body.value(f"add i32 {body.value(f'mul i32 {z}, {grid[1]}')}, {y}")
    thread = body.value(f"add i32 {body.value(f'mul i32 {row}, {grid[0]}')}, {x}")
    place = body.value(f"mul i32 {thread}, {count}")

    def put(value: str) -> None:
        nonlocal place
        body.store("i32", value, "%0", place)
        place = body.value(f"add i32 {place}, 1")

    for number in range(1, 1 + len(ROLES_3)):
        for axis in range(3):
            put(body.value(f"extractelement <3 x i32> %{number}, i32 {axis}"))
    for number in range(len(ROLES_1)):
        register = f"%{1 + len(ROLES_3) + number}"
        put(body.value(f"zext i16 {register} to i32") if number % 2 else register)
    if fibers:
        body.call("air.wg.barrier", "void", "i32 1", "i32 1")
    kernel = Kernel("where", parameters, body.text, body.top)
    out = np.zeros((grid[2], grid[1], grid[0], count), np.uint32)
    found = run(kernel, out, threads=grid, group_size=group)[0]
    for z, y, x in np.ndindex(*grid[::-1]):
        position = (x, y, z)
        at = [p // g for p, g in zip(position, group, strict=True)]
        inside = [p % g for p, g in zip(position, group, strict=True)]
        groups = [-(-n // g) for n, g in zip(grid, group, strict=True)]
        size = [min(g, n - p * g) for n, g, p in zip(grid, group, at, strict=True)]
        index = (inside[2] * size[1] + inside[1]) * size[0] + inside[0]
        total, full = math.prod(size), math.prod(group)
        expected = [*position, *inside, *at, *grid, *groups, *size, *group, 0, 0, 0, *grid]
        expected += [index, index % 32, index // 32, 32, -(-total // 32), -(-full // 32), 32]
        expected += [index % 4, index // 4, -(-total // 4), -(-full // 4)]
        assert found[z, y, x].tolist() == expected


def test_position_of_two_components() -> None:
    body = Body()
    x, y = (body.value(f"extractelement <2 x i16> %1, i32 {axis}") for axis in range(2))
    x, y = (body.value(f"zext i16 {value} to i32") for value in (x, y))
    place = body.value(f"add i32 {body.value(f'mul i32 {y}, 7')}, {x}")
    body.store("i32", body.value(f"add i32 {body.value(f'mul i32 {x}, 100')}, {y}"), "%0", place)
    kernel = Kernel("two", [device("out", 0, "int"), given("thread_position_in_grid", "<2 x i16>")], body.text)
    found = run(kernel, np.zeros((3, 7), np.int32), threads=(7, 3))[0]
    assert found.tolist() == [[100 * x + y for x in range(7)] for y in range(3)]


# ---------------------------------------------------------------- threads that meet


def meeting(
    kind: str, calls: Sequence[Callable[[Body, str], str]], data: np.ndarray, threads: int, group: int
) -> np.ndarray:
    """What each thread gets from some calls, a row for each; its operand is the element of `data` of its number."""
    body = Body()
    x = body.load(kind, "%1", "%2")
    for row, make in enumerate(calls):
        body.store(kind, make(body, x), "%0", body.value(f"add i32 %2, {row * threads}"))
    kernel = Kernel("meet", [device("out", 0, METAL[kind]), device("x", 1, METAL[kind]), INDEX], body.text, body.top)
    out = np.zeros((len(calls), threads), data.dtype)
    return run(kernel, out, data, threads=threads, group_size=group)[0]


@pytest.mark.parametrize("width", [32, 4], ids=["simd", "quad"])
@pytest.mark.parametrize("kind", ["i8", "i32", "float", "half"])
def test_reductions_and_scans(kind: str, width: int) -> None:
    """Also in the last group, which is not full."""
    prefix = "simd_" if width == 32 else "quad_"
    threads = 75
    data = np.random.default_rng(3).integers(1, 3, threads).astype(DTYPES[kind])
    suffix = SHORT.get(kind, f"s.{kind}")
    names = ["sum", "product", "min", "max", "prefix_inclusive_sum", "prefix_exclusive_sum"]
    names += ["prefix_inclusive_product", "prefix_exclusive_product", "broadcast_first"]
    names += [] if kind in SHORT else ["and", "or", "xor"]
    calls = [
        lambda body, x, name=name: body.call(f"air.{prefix}{name}.{suffix}", kind, f"{kind} {x}") for name in names
    ]
    found = meeting(kind, calls, data, threads, 70)
    rows = {name: found[number] for number, name in enumerate(names)}
    with np.errstate(over="ignore"):
        for start in [*range(0, 70, width), *range(70, threads, width)]:
            stop = min(start + width, 70 if start < 70 else threads)
            part = data[start:stop]
            sums, products = np.cumsum(part, dtype=data.dtype), np.cumprod(part, dtype=data.dtype)
            expected = {
                "sum": np.full_like(part, sums[-1]),
                "product": np.full_like(part, products[-1]),
                "min": np.full_like(part, part.min()),
                "max": np.full_like(part, part.max()),
                "prefix_inclusive_sum": sums,
                "prefix_exclusive_sum": np.concatenate([np.zeros(1, data.dtype), sums[:-1]]),
                "prefix_inclusive_product": products,
                "prefix_exclusive_product": np.concatenate([np.ones(1, data.dtype), products[:-1]]),
                "broadcast_first": np.full_like(part, part[0]),
            }
            if kind not in SHORT:
                expected |= {
                    "and": np.full_like(part, np.bitwise_and.reduce(part)),
                    "or": np.full_like(part, np.bitwise_or.reduce(part)),
                    "xor": np.full_like(part, np.bitwise_xor.reduce(part)),
                }
            for name, values in expected.items():
                np.testing.assert_array_equal(rows[name][start:stop], values, name)


def test_shuffles() -> None:
    def shuffle(name: str, *more: str) -> Callable[[Body, str], str]:
        return lambda body, x: body.call(f"air.{name}", "i32", f"i32 {x}", *more)

    data = np.arange(100, 132, dtype=np.int32)
    calls = [
        shuffle("simd_shuffle.s.i32", "i16 5"),
        shuffle("simd_broadcast.s.i32", "i16 31"),
        shuffle("simd_shuffle_xor.s.i32", "i16 1"),
        shuffle("simd_shuffle_up.s.i32", "i16 3"),
        shuffle("simd_shuffle_down.s.i32", "i16 3"),
        shuffle("simd_shuffle_rotate_up.s.i32", "i16 3"),
        shuffle("simd_shuffle_rotate_down.s.i32", "i16 3"),
        shuffle("simd_shuffle_and_fill_up.s.i32", "i32 -7", "i16 2", "i16 32"),
        shuffle("simd_shuffle_and_fill_down.s.i32", "i32 -7", "i16 2", "i16 8"),
        shuffle("quad_shuffle_xor.s.i32", "i16 2"),
        shuffle("quad_broadcast.s.i32", "i16 1"),
    ]
    found = meeting("i32", calls, data, 32, 32)
    lane = np.arange(32)
    assert found[0].tolist() == [105] * 32
    assert found[1].tolist() == [131] * 32
    assert found[2].tolist() == data[lane ^ 1].tolist()
    assert found[3, 3:].tolist() == data[:-3].tolist()
    assert found[4, :-3].tolist() == data[3:].tolist()
    assert found[5].tolist() == data[(lane - 3) % 32].tolist()
    assert found[6].tolist() == data[(lane + 3) % 32].tolist()
    assert found[7].tolist() == [-7, -7, *data[:-2].tolist()]
    expected = [data[i + 2] if i % 8 < 6 else -7 for i in range(32)]
    assert found[8].tolist() == expected
    assert found[9].tolist() == data[lane ^ 2].tolist()
    assert found[10].tolist() == data[lane // 4 * 4 + 1].tolist()


def test_votes() -> None:
    def truth(name: str, limit: int) -> Callable[[Body, str], str]:
        def make(body: Body, x: str) -> str:
            below = body.value(f"icmp slt i32 {x}, {limit}")
            return body.value(f"zext i1 {body.call(f'air.{name}', 'i1', f'i1 {below}')} to i32")

        return make

    def ballot(body: Body, x: str) -> str:
        below = body.value(f"icmp slt i32 {x}, 3")
        return body.value(f"trunc i64 {body.call('air.simd_ballot.i64', 'i64', f'i1 {below}')} to i32")

    calls = [truth("simd_all", 20), truth("simd_any", 1), truth("quad_all", 6), truth("quad_any", 6), ballot]
    calls += [
        lambda body, _: body.value(f"zext i1 {body.call('air.simd_is_first', 'i1')} to i32"),
        lambda body, _: body.value(f"trunc i64 {body.call('air.simd_active_threads_mask.i64', 'i64')} to i32"),
        lambda body, _: body.value(f"zext i16 {body.call('air.get_thread_index_in_simdgroup.i16', 'i16')} to i32"),
        lambda body, _: body.call("air.get_simdgroup_size.i32", "i32"),
    ]
    found = meeting("i32", calls, np.arange(20, dtype=np.int32), 20, 20)
    lane = np.arange(20)
    expected = [[1] * 20, [1] * 20, lane < 4, lane < 8, [7] * 20, lane == 0, [(1 << 20) - 1] * 20, lane, [32] * 20]
    for row, values in zip(found, expected, strict=True):
        assert row.tolist() == np.array(values, np.int32).tolist()


def test_vectors_go_from_lane_to_lane() -> None:
    body = Body()
    x = body.load("float", "%1", "%2")
    pair = body.value(f"insertelement <2 x float> poison, float {x}, i32 0")
    pair = body.value(f"insertelement <2 x float> {pair}, float {body.value(f'fneg float {x}')}, i32 1")
    moved = body.call("air.simd_shuffle_xor.v2f32", "<2 x float>", f"<2 x float> {pair}", "i16 4")
    total = body.call("air.simd_sum.v2f32", "<2 x float>", f"<2 x float> {pair}")
    for row, vector in enumerate((moved, total)):
        for side in range(2):
            value = body.value(f"extractelement <2 x float> {vector}, i32 {side}")
            body.store("float", value, "%0", body.value(f"add i32 %2, {(2 * row + side) * 32}"))
    kernel = Kernel("pairs", [device("out", 0), device("x", 1), INDEX], body.text, body.top)
    data = np.arange(32, dtype=np.float32)
    found = run(kernel, np.zeros((4, 32), np.float32), data, threads=32)[0]
    assert found[0].tolist() == data[np.arange(32) ^ 4].tolist()
    assert found[1].tolist() == (-data[np.arange(32) ^ 4]).tolist()
    assert found[2].tolist() == [496] * 32
    assert found[3].tolist() == [-496] * 32


DIVERGENT = """
  %lane = and i32 %2, 31
  %few = icmp ult i32 %lane, 5
  %wide = zext i32 %2 to i64
  %from = getelementptr inbounds i32, ptr addrspace(1) %1, i64 %wide
  %x = load i32, ptr addrspace(1) %from
  br i1 %few, label %left, label %right
left:
  %a = call i32 @{call}(i32 %x) #0
  br label %join
right:
  %odd = and i32 %lane, 1
  %is = icmp eq i32 %odd, 1
  br i1 %is, label %leave, label %stay
leave:
  ret void
stay:
  %b = call i32 @{call}(i32 %x) #0
  br label %join
join:
  %sum = phi i32 [ %a, %left ], [ %b, %stay ]
  call void @air.wg.barrier(i32 1, i32 1) #0
  %after = call i32 @air.simd_sum.s.i32(i32 1) #0
  %both = shl i32 %after, 16
  %result = add i32 %both, %sum
  %to = getelementptr inbounds i32, ptr addrspace(1) %0, i64 %wide
  store i32 %result, ptr addrspace(1) %to
"""
DECLARED = "declare i32 @air.simd_sum.s.i32(i32) #0\ndeclare void @air.wg.barrier(i32, i32) #0\n"


@pytest.mark.unvalidated("barriers that not all threads reach")
@pytest.mark.parametrize("through", ["air.simd_sum.s.i32", "helper"])
def test_lanes_that_went_different_ways_do_not_meet(through: str) -> None:
    """Also through a function of the module's, and with lanes that have returned before a barrier."""
    helper = "define i32 @helper(i32 %x) #0 {\n  %r = call i32 @air.simd_sum.s.i32(i32 %x) #0\n  ret i32 %r\n}\n"
    top = DECLARED + (helper if through == "helper" else "")
    parameters = [device("out", 0, "int"), device("x", 1, "int", "read"), INDEX]
    kernel = Kernel("divergent", parameters, DIVERGENT.format(call=through), top)
    data = np.arange(64, dtype=np.int32)
    found = run(kernel, np.zeros(64, np.int32), data, threads=64, group_size=64)[0]
    for start in (0, 32):
        few, stay = list(range(start, start + 5)), list(range(start + 6, start + 32, 2))
        for thread in range(start, start + 32):
            expected = 0
            if thread in few or thread in stay:
                expected = sum(few if thread in few else stay) + (len(few + stay) << 16)
            assert found[thread] == expected


FORK = """
  %few = icmp ult i32 %2, 5
  %wide = zext i32 %2 to i64
  br i1 %few, label %left, label %right
left:
  %a = call i32 @air.simd_sum.s.i32(i32 1) #0
  br label %join
right:
  %b = call i32 @air.simd_sum.s.i32(i32 1) #0
  br label %join
join:
  %sum = phi i32 [ %a, %left ], [ %b, %right ]
  %to = getelementptr inbounds i32, ptr addrspace(1) %0, i64 %wide
  store i32 %sum, ptr addrspace(1) %to
"""


def test_the_same_call_in_two_branches_is_not_made_one() -> None:
    kernel = Kernel("fork", [device("out", 0, "int"), device("x", 1, "int"), INDEX], FORK, DECLARED)
    found = run(kernel, np.zeros(32, np.int32), np.zeros(32, np.int32), threads=32)[0]
    assert found.tolist() == [5] * 5 + [27] * 27


def test_big_frames_do_not_step_over_the_guard() -> None:
    """An array beyond the end of the stack is a fault that is told, whatever lies there."""
    body = Body()
    room = body.value("alloca [400000 x i32], align 4")
    place = body.value(f"getelementptr i32, ptr {room}, i32 %1")
    body.lines.append(f"  store volatile i32 %1, ptr {place}")
    body.call("air.wg.barrier", "void", "i32 1", "i32 1")
    body.store("i32", body.value(f"load volatile i32, ptr {place}"), "%0", "%1")
    kernel = Kernel("big", [device("out", 0, "int"), INDEX], body.text, body.top)
    function = mpscffi.load_metallib(metallib([kernel])).big
    function(mpscffi.zeros(64, dtype="int32"), threads=64)
    with pytest.raises(errors.Error, match="'big'.* stack"):
        mpscffi.synchronize()


# ---------------------------------------------------------------- threadgroup memory

TILE = "@tile = internal unnamed_addr addrspace(3) global [64 x i32] undef, align 4\n"
TILE += "@extra = internal addrspace(3) global { i32, [3 x i16] } zeroinitializer, align 8\n"
REVERSE = """
  %wide = zext i32 %1 to i64
  %at = getelementptr inbounds [64 x i32], ptr addrspace(3) @tile, i64 0, i64 %wide
  %twice = mul i32 %1, 2
  store i32 %twice, ptr addrspace(3) %at
  %zero = icmp eq i32 %1, 0
  br i1 %zero, label %first, label %all
first:
  store i16 7, ptr addrspace(3) getelementptr ({ i32, [3 x i16] }, ptr addrspace(3) @extra, i64 0, i32 1, i64 2)
  store i32 5, ptr addrspace(3) @extra
  br label %all
all:
  call void @air.wg.barrier(i32 2, i32 1) #0
  %back = sub i64 63, %wide
  %other = getelementptr inbounds [64 x i32], ptr addrspace(3) @tile, i64 0, i64 %back
  %value = load i32, ptr addrspace(3) %other
  %short = load i16, ptr addrspace(3) getelementptr ({ i32, [3 x i16] }, ptr addrspace(3) @extra, i64 0, i32 1, i64 2)
  %wider = zext i16 %short to i32
  %fourth = load i32, ptr addrspace(3) getelementptr inbounds (i8, ptr addrspace(3) @tile, i64 12)
  %plain = load i32, ptr addrspace(3) @extra
  %integer = ptrtoint ptr addrspace(3) @extra to i64
  %low = and i64 %integer, 7
  %odd = trunc i64 %low to i32
  %sum = add i32 %value, %wider
  %sums = add i32 %sum, %plain
  %most.sums = add i32 %sums, %fourth
  %all.sums = add i32 %most.sums, %odd
  %to = getelementptr inbounds i32, ptr addrspace(1) %0, i64 %wide
  store i32 %all.sums, ptr addrspace(1) %to
"""


def test_threadgroup_variables() -> None:
    """Each threadgroup has its own, aligned; also by constant expressions."""
    top = TILE + "declare void @air.wg.barrier(i32, i32) #0\n"
    kernel = Kernel("reverse", [device("out", 0, "int"), given("thread_index_in_threadgroup")], REVERSE, top)
    library = mpscffi.load_metallib(metallib([kernel]))
    out = mpscffi.zeros(64, dtype="int32")
    library.reverse(out, threads=64, group_size=64)
    assert out.tolist() == [2 * (63 - i) + 2 * 3 + 5 + 7 for i in range(64)]
    assert library.reverse.static_thread_group_memory_length == 64 * 4 + 16


def test_code_of_gangs_that_clang_refuses_is_left_to_fibers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("mpscffi.mslc.air.build.ganged", lambda text, function, prefix: "no code")
    test_threadgroup_arguments()


def test_threadgroup_arguments() -> None:
    body = Body()
    body.store("float", body.load("float", "%0", "%2"), "%1", "%2", 3)
    body.call("air.wg.barrier", "void", "i32 2", "i32 1")
    back = body.value("sub i32 31, %2")
    body.store("float", body.load("float", "%1", back, 3), "%0", "%2")
    kernel = Kernel("flip", [device("x", 0), threadgroup("scratch", 0), INDEX], body.text, body.top)
    function = mpscffi.load_metallib(metallib([kernel])).flip
    assert [(item.name, item.kind) for item in function.arguments][1][0] == "scratch"
    x = mpscffi.asarray(np.arange(32, dtype=np.float32))
    function(x, threads=32, group_size=32, threadgroup_memory={0: 128})
    assert x.tolist() == list(range(31, -1, -1))


def test_addresses_of_threadgroup_memory_in_tables_are_refused() -> None:
    top = TILE + "@table = internal addrspace(2) constant [1 x ptr addrspace(3)] [ptr addrspace(3) @tile]\n"
    kernel = Kernel("k", [device("out", 0)], "", top)
    with pytest.raises(CompileError, match="'table' holds the address of a variable in threadgroup memory"):
        translate(kernel.text(), "k", {})


# ---------------------------------------------------------------- matrices


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
@pytest.mark.parametrize("new", [False, True], ids=["up to 2.7", "from 2.8"])
def test_matrices(kind: str, new: bool) -> None:
    """d = a b' + c, the second transposed on its way, from and to places within larger matrices."""
    short, matrix = SHORT[kind], f"<64 x {kind}>"
    body = Body()

    def operands(stride: int, x: int, y: int, transposed: bool) -> list[str]:
        if new:
            strides = f"<i64 {stride}, i64 1>" if transposed else f"<i64 1, i64 {stride}>"
            pair = (y, x) if transposed else (x, y)
            values = [f"<i64 {stride}, i64 8>", strides, f"<i64 {pair[0]}, i64 {pair[1]}>"]
            return [f"<2 x i64> {body.value(f'freeze <2 x i64> {value}')}" for value in values]
        origin = body.value(f"freeze <2 x i64> <i64 {x}, i64 {y}>")
        return [f"i64 {stride}", f"<2 x i64> {origin}", f"i1 {str(transposed).lower()}"]

    def load(pointer: str, stride: int, x: int, y: int, transposed: bool = False) -> str:
        name = f"air.simdgroup_matrix_8x8_load.v64{short}.p1{short}"
        return body.call(name, matrix, f"ptr addrspace(1) {pointer}", *operands(stride, x, y, transposed))

    a, b, c = load("%1", 10, 2, 1), load("%2", 9, 1, 0, True), load("%3", 8, 0, 0)
    multiply = f"air.simdgroup_matrix_8x8_multiply_accumulate.v64{short}.v64{short}.v64{short}.v64{short}"
    d = body.call(multiply, matrix, *(f"{matrix} {value}" for value in (a, b, c)))
    store = f"air.simdgroup_matrix_8x8_store.v64{short}.p1{short}"
    body.call(store, "void", f"{matrix} {d}", "ptr addrspace(1) %0", *operands(12, 3, 2, False))
    parameters = [device(name, number, METAL[kind]) for number, name in enumerate(("d", "a", "b", "c"))]
    kernel = Kernel("gemm", parameters, body.text, body.top)
    chance = np.random.default_rng(9)
    given_ = [chance.integers(-4, 5, shape).astype(DTYPES[kind]) for shape in ((9, 10), (9, 9), (8, 8))]
    found = run(kernel, np.zeros((10, 12), DTYPES[kind]), *given_, threads=32)[0].astype(np.float64)
    left, right, third = (item.astype(np.float64) for item in given_)
    # Transposed, a column of the matrix is a row of memory; where it begins is counted in memory either way.
    expected = np.zeros((10, 12))
    expected[2:, 3:11] = left[1:9, 2:10] @ right[0:8, 1:9].T + third
    np.testing.assert_array_equal(found, expected)


def test_matrices_made_of_numbers() -> None:
    body = Body()
    full = body.call("air.simdgroup_matrix_8x8_init_filled.v64f32.f32", "<64 x float>", "float 2.0")
    diagonal = body.call("air.simdgroup_matrix_8x8_init_diag.v64f32.f32", "<64 x float>", "float 3.0")
    name = "air.simdgroup_matrix_8x8_multiply_accumulate.v64f32.v64f32.v64f32.v64f32"
    operands = [f"<64 x float> {item}" for item in (full, diagonal, diagonal)]
    result = body.call(name, "<64 x float>", *operands)
    for element in range(2):
        place = body.value(f"add i32 {body.value('shl i32 %1, 1')}, {element}")
        body.store("float", body.value(f"extractelement <64 x float> {result}, i32 {element}"), "%0", place)
    kernel = Kernel("make", [device("out", 0), INDEX], body.text, body.top)
    found = run(kernel, np.zeros(64, np.float32), threads=32)[0]
    whole = np.zeros((8, 8))
    for lane in range(32):
        row, column = (lane // 4 & 4) + lane // 2 % 4, (lane // 4 & 2) * 2 + lane % 2 * 2
        whole[row, column : column + 2] = found[2 * lane : 2 * lane + 2]
    assert whole.tolist() == (np.full((8, 8), 2.0) @ np.diag([3.0] * 8) + np.diag([3.0] * 8)).tolist()


# ---------------------------------------------------------------- atomics


def test_atomic_operations() -> None:
    """By many threads of many threadgroups at once."""
    threads = 5000
    body = Body()

    def fetch(name: str, place: int, value: str, kind: str = "i32") -> None:
        pointer = body.value(f"getelementptr {kind}, ptr addrspace(1) %0, i64 {place}")
        order = ["i32 0", "i32 2", "i1 true"]
        body.call(f"air.atomic.global.{name}", kind, f"ptr addrspace(1) {pointer}", f"{kind} {value}", *order)

    number = body.value("add i32 %1, 0")
    negative = body.value("sub i32 0, %1")
    bit = body.value(f"shl i32 1, {body.value('and i32 %1, 15')}")
    for place, (name, value) in enumerate([
        ("add.s.i32", "3"), ("sub.u.i32", "1"), ("max.s.i32", number), ("min.s.i32", negative), ("or.u.i32", bit),
        ("and.u.i32", "-256"), ("xor.u.i32", "1"), ("max.u.i32", negative), ("xchg.i32", "77"),
    ]):  # fmt: skip
        fetch(name, place, value)
    fetch("add.f32", 9, "0.5", "float")
    kernel = Kernel("count", [device("out", 0, "int"), INDEX], body.text, body.top)
    out = np.array([0, 0, -5, 5, 0, 0x1234, 0, 0, 0, 0], np.int32)
    found = run(kernel, out, threads=threads, group_size=64)[0]
    expected = [3 * threads, -threads, threads - 1, -(threads - 1), 0xFFFF, 0x1200, 0, -1, 77]
    assert found[:9].tolist() == expected
    assert found.view(np.float32)[9] == threads / 2


EXCHANGE = """
  %room = alloca i32, align 4
  %first = call i32 @air.atomic.global.load.i32(ptr addrspace(1) %0, i32 0, i32 2, i1 true) #0
  br label %again
again:
  %seen = phi i32 [ %first, %1 ], [ %left, %again ]
  %triple = mul i32 %seen, 3
  %next = add i32 %triple, 1
  store i32 %seen, ptr %room
  %old = call i32 {exchange}(ptr addrspace(1) %0, ptr %room, i32 %next, i32 0, i32 0, i32 2, i1 true) #0
  %left = load i32, ptr %room
  %done = icmp eq i32 %old, %seen
  br i1 %done, label %out, label %again
out:
  call void @air.atomic.fence(i32 1, i32 0, i32 2) #0
  %place = getelementptr inbounds i32, ptr addrspace(1) %0, i64 1
  call void @air.atomic.global.store.i32(ptr addrspace(1) %place, i32 9, i32 0, i32 2, i1 true) #0
"""


def test_compare_and_exchange() -> None:
    top = "declare i32 @air.atomic.global.load.i32(ptr addrspace(1), i32, i32, i1) #0\n"
    top += "declare void @air.atomic.global.store.i32(ptr addrspace(1), i32, i32, i32, i1) #0\n"
    top += "declare void @air.atomic.fence(i32, i32, i32) #0\n"
    exchange = "@air.atomic.global.cmpxchg.weak.i32"
    top += f"declare i32 {exchange}(ptr addrspace(1), ptr, i32, i32, i32, i32, i1) #0\n"
    kernel = Kernel("step", [device("x", 0, "int")], EXCHANGE.format(exchange=exchange), top)
    found = run(kernel, np.zeros(2, np.int32), threads=40, group_size=8)[0]
    expected = 0
    for _ in range(40):
        expected = (3 * expected + 1) & 0xFFFFFFFF
    assert found.view(np.uint32).tolist() == [expected, 9]


def test_atomics_of_threadgroup_memory_and_of_64_bits() -> None:
    body = Body()
    order = ["i32 0", "i32 1", "i1 true"]
    zero = body.value("icmp eq i32 %2, 0")
    start = body.value(f"select i1 {zero}, i32 10, i32 0")
    body.call("air.atomic.local.store.i32", "void", "ptr addrspace(3) %1", "i32 0", *order)
    body.call("air.wg.barrier", "void", "i32 2", "i32 1")
    body.call("air.atomic.local.add.u.i32", "i32", "ptr addrspace(3) %1", f"i32 {start}", *order)
    body.call("air.atomic.local.add.u.i32", "i32", "ptr addrspace(3) %1", "i32 1", *order)
    body.call("air.wg.barrier", "void", "i32 2", "i32 1")
    total = body.call("air.atomic.local.load.i32", "i32", "ptr addrspace(3) %1", *order)
    wide = body.value(f"zext i32 {total} to i64")
    high = body.value(f"or i64 {wide}, {1 << 40}")
    body.call("air.atomic.global.max.u.i64", "void", "ptr addrspace(1) %0", f"i64 {high}", *order)
    kernel = Kernel("both", [device("x", 0, "ulong"), threadgroup("count", 0, "uint"), INDEX], body.text, body.top)
    function = mpscffi.load_metallib(metallib([kernel])).both
    x = mpscffi.zeros(1, dtype="uint64")
    function(x, threads=48, group_size=48, threadgroup_memory={0: 16})
    assert x.item() == (1 << 40 | 58)


# ---------------------------------------------------------------- function constants

SIZE = Constant("size", 4, "i32", "int", 29)
FLAG = Constant("flag", 3)
SCALE = Constant("scale", 5, "float", "float", 3)
CONDITION = (
    "@condition = internal addrspace(2) global i8 0, align 1\n@copy = internal addrspace(2) global i8 undef, align 1\n"
)
CONSTRUCTOR = (
    CONDITION
    + """
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @init, ptr null }]
declare i8 @air.normalize_function_constant_predicate.i8(i8)
define internal void @init() section "air.static_init" {
  %flag = load i8, ptr addrspace(2) @_Z1flag.MTL_FC_INIT_3_b, align 1
  store i8 %flag, ptr addrspace(2) @copy, align 1
  %size = load i32, ptr addrspace(2) @_Z1size.MTL_FC_INIT_4_b, align 4
  %big = icmp ne i32 %size, 0
  %bit = zext i1 %big to i8
  %both = and i8 %bit, %flag
  %is = call i8 @air.normalize_function_constant_predicate.i8(i8 %both)
  store i8 %is, ptr addrspace(2) @condition, align 1
  ret void
}
"""
)
CONSTANTS_BODY = """
  %wide = zext i32 %2 to i64
  %to = getelementptr inbounds float, ptr addrspace(1) %0, i64 %wide
  %size = load i32, ptr addrspace(2) @_Z1size.MTL_FC_INIT_4_b
  %scale = load float, ptr addrspace(2) @_Z1scale.MTL_FC_INIT_5_b
  %number = sitofp i32 %size to float
  %product = fmul float %number, %scale
  %is = load i8, ptr addrspace(2) @condition
  %there = icmp ne i8 %is, 0
  br i1 %there, label %more, label %done
more:
  %from = getelementptr inbounds float, ptr addrspace(1) %1, i64 %wide
  %x = load float, ptr addrspace(1) %from
  br label %done
done:
  %extra = phi float [ 0.0, %3 ], [ %x, %more ]
  %sum = fadd float %product, %extra
  store float %sum, ptr addrspace(1) %to
"""


@pytest.fixture(scope="module")
def specialized() -> mpscffi.ShaderLibrary:
    parameters = [device("out", 0), device("extra", 1, access="read", condition="@condition"), INDEX]
    constants = [SIZE, FLAG, SCALE]
    mpscffi.set_device("host")
    kernel = Kernel("special", parameters, CONSTANTS_BODY, CONSTRUCTOR, constants)
    return mpscffi.load_metallib(metallib([kernel]))


def test_function_constants(specialized: mpscffi.ShaderLibrary) -> None:
    """Their values are in the code, and an argument is there only if they say so."""
    out = mpscffi.zeros(3)
    extra = mpscffi.asarray([1.0, 2.0, 3.0])
    without = specialized.special.specialize({"size": 4, "flag": False, "scale": 0.25})
    assert [argument.name for argument in without.arguments] == ["out"]
    without(out, threads=3)
    assert out.tolist() == [1, 1, 1]
    both = specialized.special.specialize({"size": -8, "flag": True, "scale": 0.5})
    assert [argument.name for argument in both.arguments] == ["out", "extra"]
    both(out, extra, threads=3)
    assert out.tolist() == [-3, -2, -1]


def test_function_constants_that_are_missing_or_wrong(specialized: mpscffi.ShaderLibrary) -> None:
    out = mpscffi.zeros(3)
    with pytest.raises(errors.Error, match="needs a value for function constant 'size'"):
        specialized.special(out, threads=3)
    with pytest.raises(errors.Error, match="'scale' \\(index 5\\)"):
        specialized.special.specialize({"size": 1, "flag": True})(out, threads=3)
    with pytest.raises((errors.Error, LookupError, TypeError), match="nothing"):
        specialized.special.specialize({"size": 1, "flag": True, "scale": 1, "nothing": 2})(out, threads=3)


def test_a_condition_that_is_not_understood_is_told() -> None:
    top = CONSTRUCTOR.replace("%both = and i8 %bit, %flag", "%both = sdiv i8 %bit, %flag")
    parameters = [device("out", 0), device("extra", 1, condition="@condition"), INDEX]
    kernel = Kernel("special", parameters, CONSTANTS_BODY, top, [SIZE, FLAG, SCALE])
    values = {3: (1 | 1 << 8, b"\1"), 4: (6 | 1 << 8, b"\1\0\0\0"), 5: (12 | 1 << 8, bytes(4))}
    with pytest.raises(CompileError, match="parameter 'extra': whether it is there"):
        translate(kernel.text(), "special", values)


# ---------------------------------------------------------------- reflection


def test_reflection() -> None:
    parameters = [
        device("out", 3, "half"),
        constant("scale", 0, "float"),
        device("table", 7, "Row", "read"),
        device("never", 5, unused=True),
        device("old", 6, "int", "read", says_space=False),
        device("indirect", 8, "Handle", "read", role="indirect_buffer"),
        given("thread_position_in_grid"),
    ]
    kernel = Kernel("shown", parameters, "", max_threads=256)
    function = mpscffi.load_metallib(metallib([kernel])).shown
    assert function.max_threads_per_threadgroup == 256
    shown = [(item.name, item.type_name, item.index, item.access, item.is_reference) for item in function.arguments]
    assert shown[:3] == [
        ("out", "half", 3, "read_write", False),
        ("scale", "float", 0, "read", True),
        ("table", "Row", 7, "read", False),
    ]
    assert [item[:3] for item in shown[3:]] == [("never", "float", 5), ("old", "int", 6), ("indirect", "Handle", 8)]
    info = ffi.new("mps_argument_info *", {"struct_size": ffi.sizeof("mps_argument_info")})
    used = []
    for number in range(len(shown)):
        assert lib.mps_pipeline_argument(function.handle, number, info) == 0
        used.append(info.is_used)
    assert used == [1, 1, 1, 0, 1, 1]


# ---------------------------------------------------------------- what is refused


def refused(kernel: Kernel, text: str) -> None:
    with pytest.raises(CompileError, match=text) as raised:
        translate(kernel.text(), kernel.name, {})
    assert f"kernel '{kernel.name}'" in str(raised.value)


def simple(body: str, top: str = "", parameters: Sequence[Parameter] = ()) -> Kernel:
    return Kernel("k", [device("out", 0), *parameters], body, top)


@pytest.mark.parametrize(
    ("function", "declared", "text"),
    [
        ("air.unheard_of.f32", "float (float)", "calls 'air.unheard_of.f32', which is not supported"),
        ("air.exp.f64", "double (double)", "'air.exp.f64', which is not supported"),
        ("air.exp.f32", "float (float, float)", r"'air.exp.f32' as float \(float, float\), and .* float \(float\)"),
        (
            "air.min.f32",
            "float (float, float)",
            "'air.min.f32', which is not supported on the host device for this type",
        ),
        ("air.wg.barrier", "void (i32)", r"as void \(i32\)"),
        ("__tensorops_impl_matmul2d_op_run", "void (i32)", "'__tensorops_impl_matmul2d_op_run', which no function"),
        ("system", "i32 (i32)", "'system', which no function"),
        ("air.sample_texture_2d.v4f32", "float (i32)", "'air.sample_texture_2d.v4f32', which is not supported"),
        ("air.convert.s.i32.f.f64", "i32 (double)", "not supported"),
        ("air.atomic.global.add.u.i64", "i64 (ptr, i64, i32, i32, i1)", "'air.atomic.global.add.u.i64', which is not"),
        ("air.atomic.global.cmpxchg.weak.i64", "i64 (ptr, ptr, i64, i32, i32, i32, i1)", "which is not supported"),
        ("air.simdgroup_matrix_8x8_load.v16f32.p1f32", "<16 x float> (i32)", "no matrix"),
    ],
)
def test_unknown_functions(function: str, declared: str, text: str) -> None:
    result, _, rest = declared.partition(" (")
    types = rest.rstrip(")").split(", ")
    zeros = {"i": "0", "p": "null"}
    operands = ", ".join(f"{kind} {zeros.get(kind[0], '0.0')}" for kind in types)
    refused(
        simple(f"  call {result} @{function}({operands})", f"declare {result} @{function}({', '.join(types)})"), text
    )


def test_functions_that_are_not_reached_do_not_count() -> None:
    top = "declare void @air.unheard_of()\ndefine void @other() {\n  call void @air.unheard_of()\n  ret void\n}\n"
    assert "unheard" not in translate(simple("", top).text(), "k", {})


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("texture", "parameter 'p': textures are not supported"),
        ("sampler", "parameter 'p': 'sampler' is not supported"),
        ("made_up", "'made_up' is not supported"),
    ],
)
def test_unknown_parameters(role: str, text: str) -> None:
    refused(simple("", parameters=[given(role, "ptr addrspace(1)", "p")]), text)


def test_other_things_that_no_kernel_has() -> None:
    refused(simple('  call void asm sideeffect "nop", ""()'), "assembly")
    refused(simple("", 'module asm "nop"'), "no such thing in a module")
    refused(simple("", "@a = alias i32, ptr @b\n@b = global i32 0"), "no such thing in a module")
    refused(simple("  store i32 0, ptr @g", "@g = external global i32"), "variable 'g' has no value")
    refused(simple("", parameters=[device("far", 31)]), "has index 31, and indices go from 0 to 30")
    refused(
        simple("", parameters=[given("thread_position_in_grid", "i64", "wide")]), "'wide' is of the unknown type i64"
    )


def test_modules_that_say_too_little() -> None:
    text = simple("").text()
    for damaged, message in [
        (text.replace("!air.kernel", "!air.vertex"), "a vertex function; only kernels can be run"),
        (text.replace("!air.kernel", "!air.other"), "no kernel of that name"),
        (text.replace('!"air.location_index", i32 0', '!"air.location_index", !"x"'), "unknown form"),
        (text.replace("!0 = !{i32 0", "!0 = !{i32 9"), "does not have"),
        (text.replace("!0 = !{i32 0", "!0 = !{}\n;"), "does not have"),
        (text.replace('!"air.arg_type_size", i32 4', '!"air.arg_type_size", i32 -4'), "unknown form"),
        (text.replace("!2 = !{!0}", "!2 = !{}"), "other parameters than its function has"),
        (text.replace("!2 = !{!0}", "!2 = !{!77}"), "!77 that is not there"),
    ]:
        with pytest.raises(CompileError, match=message):
            translate(damaged, "k", {})


# ---------------------------------------------------------------- how it is run

LOOP = """
  br label %again
again:
  %i = phi i32 [ 0, %1 ], [ %next, %again ]
  %next = add i32 %i, 1
  %end = icmp eq i32 %next, 10
  br i1 %end, label %out, label %again
out:
"""
RECURSION = """
define void @even() {
  call void @odd()
  ret void
}
define void @odd() {
  call void @even()
  ret void
}
"""
BARRIER = "declare void @air.wg.barrier(i32, i32) #0"


@pytest.mark.parametrize(
    ("body", "top", "flags"),
    [
        ("", "", 2),
        (LOOP, "", 0),
        ("  call void @even()", RECURSION, 0),
        ("  call void @air.wg.barrier(i32 1, i32 1) #0", BARRIER, 3),
        (f"{LOOP}  call void @air.wg.barrier(i32 1, i32 1) #0", BARRIER, 1),
    ],
    ids=["plain", "loop", "recursion", "barrier", "both"],
)
def test_flags(body: str, top: str, flags: int) -> None:
    """Bit 0: it needs fibers. Bit 1: it ends whatever its arguments are."""
    text = translate(simple(body, top).text(), "k", {})
    assert f"i32 {flags}, i32 1024, i32 1, i32 0, ptr @mslc.arguments" in text


def test_kernels_without_barriers_become_vector_code(tmp_path: Path) -> None:
    body = Body()
    x = body.load("float", "%1", "%3")
    value = body.value("load float, ptr addrspace(2) %2")
    body.store("float", body.value(f"fmul float {x}, {value}"), "%0", "%3")
    parameters = [device("y", 0), device("x", 1, access="read"), constant("a", 2, "float"), INDEX]
    kernel = Kernel("scale", parameters, body.text)
    output = tmp_path / "scale.ll"
    emit(metallib([kernel]), "scale", {}, "llvm", str(output))
    text = output.read_text()
    assert re.search(r"fmul <(?:4|8|16) x float>", text)
    x_data = np.arange(1003, dtype=np.float32)
    found = run(kernel, np.zeros(1003, np.float32), x_data, 2.0, threads=1003)[0]
    assert found.tolist() == (2 * x_data).tolist()


@pytest.mark.unvalidated("threads that race")
def test_the_same_buffer_twice() -> None:
    """Apple's compiler takes buffers for distinct; callers do pass one twice."""
    body = Body()
    body.store("float", body.load("float", "%1", "%2"), "%0", body.value("add i32 %2, 1"))
    kernel = Kernel("shift", [device("out", 0), device("x", 1, access="read"), INDEX], body.text)
    plain, distinct = "ptr addrspace(1)", "ptr addrspace(1) noalias"
    text = kernel.text().replace(f"({plain}, {plain}, i32)", f"({distinct}, {distinct}, i32)")
    assert text.count("noalias") == 2
    function = mpscffi.load_metallib(write_metallib([FunctionEntry("shift", assembled(text))])).shift
    x = mpscffi.asarray(np.arange(50, dtype=np.float32))
    function(x, x, threads=49)
    # Each thread reads what the one before it has written.
    assert x.tolist() == [0.0] * 50


def test_fast_math_knows_infinity_and_nan() -> None:
    body = Body()
    x = body.load("float", "%1", "%2")
    above = body.value(f"fcmp fast ogt float {x}, 0xFFF0000000000000")
    larger = body.value(f"select fast i1 {above}, float {x}, float 0xFFF0000000000000")
    is_nan = body.value(f"fcmp nnan ninf uno float {x}, 0.0")
    number = body.value(f"select i1 {is_nan}, float -1.0, float {larger}")
    body.store("float", body.value(f"fadd fast float {number}, 1.0"), "%0", "%2")
    kernel = Kernel("fast", [device("out", 0), device("x", 1, access="read"), INDEX], body.text)
    data = np.array([2, np.inf, -np.inf, np.nan], np.float32)
    assert run(kernel, np.zeros(4, np.float32), data, threads=4)[0].tolist() == [3, np.inf, -np.inf, 0]


def test_texts_in_constants_stay_as_they_are() -> None:
    """Whatever they look like."""
    words = ', section "x, !tbaa !3, addrspace(1) @k'
    data = words.encode() + b"\0"
    escaped = "".join(f"\\{byte:02X}" if chr(byte) in '"\\' or byte < 32 else chr(byte) for byte in data)
    top = f'@words = internal addrspace(2) constant [{len(data)} x i8] c"{escaped}", section "air.x", align 1\n'
    body = Body()
    place = body.place("i8", "@words", "%1", 2)
    body.store("i8", body.value(f"load i8, ptr addrspace(2) {place}"), "%0", "%1")
    kernel = Kernel("k", [device("out", 0, "uchar"), INDEX], body.text, top)
    found = run(kernel, np.zeros(len(data), np.uint8), threads=len(data))[0]
    assert found.tobytes() == data


def test_names_of_all_sorts() -> None:
    """Names of functions that LLVM must quote, or that the C library has, too."""
    for name in ("expf", "main", "mslc_kernel_library", "a.b$c"):
        body = Body()
        body.store("float", "2.5", "%0", "%1")
        kernel = Kernel(name, [device("x", 0), INDEX], body.text)
        assert run(kernel, np.zeros(1, np.float32), threads=1)[0].tolist() == [2.5]


def test_texts_of_any_bytes() -> None:
    """UTF-8 comes through; what is none gets a name that can be written."""
    body = Body()
    body.store("float", "2.5", "%0", "%1")
    text = Kernel("place", [device("\\CE\\B1", 0), INDEX], body.text).text().replace("@place", '@"pl\\FFce"')
    library = mpscffi.load_metallib(write_metallib([FunctionEntry("pl\udcffce", assembled(text))]))
    assert dir(library) == ["pl\\xffce"]
    kernel = library["pl\\xffce"]
    assert kernel.arguments[0].name == "\N{GREEK SMALL LETTER ALPHA}"
    x = mpscffi.zeros(1)
    kernel(x, threads=1)
    assert x.item() == 2.5


def test_faults_are_told() -> None:
    kernel = Kernel(
        "wild", [device("x", 0), INDEX], "  store float 1.0, ptr addrspace(1) inttoptr (i64 64 to ptr addrspace(1))"
    )
    function = mpscffi.load_metallib(metallib([kernel])).wild
    function(mpscffi.zeros(1), threads=1)
    with pytest.raises(errors.Error, match="'wild'.* wrote .*address 0x40"):
        mpscffi.synchronize()


def test_a_library_built_twice_is_built_once() -> None:
    data = metallib([simple("", parameters=[INDEX])])
    assert build(data, "k") == build(data, "k")


def test_parameters_that_are_not_used_need_not_be_given() -> None:
    body = Body()
    body.store("float", "2.0", "%1", "%2")
    parameters = [device("never", 0, unused=True), device("x", 1), given("thread_position_in_grid")]
    kernel = mpscffi.load_metallib(metallib([Kernel("k", parameters, body.text)])).k
    x = mpscffi.zeros(4)
    kernel(None, x, threads=1)
    kernel(x=x[1:], threads=1)
    kernel(x, x[2:], threads=1)
    kernel(1.5, x[3:], threads=1)
    assert x.tolist() == [2, 2, 2, 2]
    with pytest.raises(TypeError, match="is None, but the kernel uses it"):
        kernel(x, None, threads=1)
