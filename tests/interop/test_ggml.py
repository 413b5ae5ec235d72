"""The Metal kernels of ggml, as llama.cpp has them, give what NumPy gives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packages
import pytest

import mpscffi

pytestmark = pytest.mark.interop

VERSION = "0.3.36"  # of llama-cpp-python, whose source distribution holds llama.cpp
BLOCK = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "q2_K": 256, "q4_K": 256, "q5_K": 256, "q6_K": 256}
FIELDS = {"bool": "?", "int16_t": "i2", "int32_t": "i4", "int64_t": "i8", "uint64_t": "u8", "float": "f4"}


class Ggml:
    """Its kernels on the device under test, called as ggml itself does it: tensors and launch follow from shapes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "ggml-metal" / "kernels"
        self._includes = [self._folder, folder / "ggml-metal", folder]
        self._libraries: dict[tuple[str, bool], mpscffi.ShaderLibrary] = {}

    def kernel(self, file: str, name: str, constants: dict[int, int] | None = None, *, validate: bool = False) -> Any:
        library = self._libraries.get((file, validate))
        if library is None:
            source = (self._folder / f"{file}.metal").read_text()
            defines = {"GGML_METAL_HAS_BF16": "1"}
            library = mpscffi.compile_shader(
                source, include_dirs=self._includes, defines=defines, math_mode="fast", validate=validate
            )
            self._libraries[file, validate] = library
        kernel = library[name]
        return kernel.specialize(constants) if constants else kernel


@pytest.fixture(scope="session")
def sources() -> Path:
    return packages.source_of("llama-cpp-python", VERSION, "vendor/llama.cpp/ggml/src")


@pytest.fixture(scope="session")
def libraries() -> dict[str, Ggml]:
    return {}


@pytest.fixture
def ggml(sources: Path, libraries: dict[str, Ggml], device: mpscffi.Device) -> Ggml:
    return libraries.setdefault(device.name, Ggml(sources))


def tensor(prefix: str, array: np.ndarray, columns: int | None = None) -> dict[str, int]:
    """Extents and strides of an array as ggml names them: the last axis first, four in all."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    extents = [*array.shape[::-1]]
    if columns is not None:
        extents[0] = columns
    found = {f"ne{prefix}{axis}": extent for axis, extent in enumerate(extents)}
    return found | {f"nb{prefix}{axis}": stride for axis, stride in enumerate(array.strides[::-1])}


def record(kernel: Any, tensors: dict[str, int], **values: Any) -> np.ndarray:
    """The kernel's first argument, its struct of numbers."""
    struct = kernel.arguments[0].struct
    dtype = np.dtype(
        {
            "names": [field.name for field in struct.fields],
            "formats": [
                (FIELDS[field.type_name], field.count) if field.count > 1 else FIELDS[field.type_name]
                for field in struct.fields
            ],
            "offsets": [field.offset for field in struct.fields],
            "itemsize": struct.size,
        }
    )
    assert set(values) <= set(dtype.names), f"{struct.name} has no {set(values) - set(dtype.names)}"
    arguments = np.zeros((), dtype)
    for name in dtype.names:
        arguments[name] = values[name] if name in values else tensors[name]
    return arguments


def on_device(array: np.ndarray) -> mpscffi.Array:
    return mpscffi.asarray(np.ascontiguousarray(array))


def call(
    kernel: Any,
    arguments: np.ndarray,
    arrays: Sequence[np.ndarray],
    out: np.ndarray,
    groups: tuple[int, ...],
    threads: int | tuple[int, ...],
    memory: int = 0,
) -> np.ndarray:
    """Run a kernel over whole threadgroups; what it has written to its last buffer."""
    size = (threads, 1, 1) if isinstance(threads, int) else threads
    result = on_device(out)
    slots = [parameter for parameter in kernel.arguments if parameter.kind == "threadgroup" and parameter.is_used]
    options = {"threadgroup_memory": {0: memory}} if slots else {}
    given = {id(array): on_device(array) for array in arrays}  # ggml leaves out a tensor by giving another one again
    inputs = [given[id(array)] for array in arrays]
    kernel(
        arguments,
        *(_as(kernel, slot, array) for slot, array in enumerate([*inputs, result], 1)),
        threadgroups=groups,
        group_size=size,
        **options,
    )
    return result.numpy().copy()


def _as(kernel: Any, slot: int, array: mpscffi.Array) -> Any:
    (parameter,) = (item for item in kernel.arguments if item.kind == "buffer" and item.index == slot)
    return array if parameter.is_used else None


def random(*shape: int, low: float = -2, high: float = 2, dtype: Any = np.float32) -> np.ndarray:
    seed = sum(extent * 31**axis for axis, extent in enumerate(shape))
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Close in relation to the size of all numbers: sums are added in another order."""
    assert np.isfinite(actual).all()
    scale = float(np.sqrt(np.mean(np.square(expected, dtype=float))))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


# ---- one number at a time


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_quick(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(1.702 * x)


UNARY: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    10: lambda x: 1.5 * x + 0.25,
    11: lambda x: np.full_like(x, 3),
    12: lambda x: np.clip(x, -0.5, 0.75),
    13: np.square,
    14: np.sqrt,
    15: np.sin,
    16: np.cos,
    17: np.log,
    18: lambda x: np.where(x > 0, x, 0.1 * x),
    100: np.tanh,
    101: lambda x: np.maximum(x, 0),
    102: sigmoid,
    103: gelu,
    104: gelu_erf,
    105: gelu_quick,
    106: lambda x: x * sigmoid(x),
    107: lambda x: np.where(x > 0, x, np.expm1(x)),
    108: np.negative,
    109: np.abs,
    110: np.sign,
    111: lambda x: (x > 0).astype(x.dtype),
    112: lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    113: lambda x: np.clip(x / 6 + 0.5, 0, 1),
    114: np.exp,
    115: lambda x: np.log1p(np.exp(x)),
    116: np.expm1,
    117: np.floor,
    118: np.ceil,
    119: lambda x: np.trunc(x + np.copysign(0.5, x)),
    120: np.trunc,
}
POSITIVE = {14, 17}


@pytest.mark.parametrize("columns", [64, 37])
@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("operation", UNARY)
def test_unary(operation: int, kind: str, columns: int, ggml: Ggml) -> None:
    x = random(5, 3, columns, low=0.1 if operation in POSITIVE else -4, high=4)
    x = x.astype({"f32": np.float32, "f16": np.float16}[kind])
    wide = 4 if columns % 4 == 0 else 1
    kernel = ggml.kernel("unary", f"kernel_unary_{kind}_{kind}{'_4' if wide == 4 else ''}", {1200: operation, 1201: 0})
    numbers = {"slope": 0.1, "scale": 1.5, "bias": 0.25, "val": 3.0, "min": -0.5, "max": 0.75}
    tensors = tensor("0", x, columns // wide) | tensor("", x, columns // wide)
    out = call(kernel, record(kernel, tensors, **numbers), [x], np.empty_like(x), (3, 5, 1), columns // wide)
    assert_close(out, UNARY[operation](x.astype(float)), 2e-6 if kind == "f32" else 2e-3)


GATES = {
    "reglu": lambda x: np.maximum(x, 0),
    "geglu": gelu,
    "swiglu": lambda x: x * sigmoid(x),
    "geglu_erf": gelu_erf,
    "geglu_quick": gelu_quick,
}


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("gate", GATES)
def test_gated(gate: str, kind: str, ggml: Ggml) -> None:
    dtype = {"f32": np.float32, "f16": np.float16}[kind]
    x, y = random(7, 66, dtype=dtype), random(7, 66, low=-1, dtype=dtype)
    kernel = ggml.kernel("unary", f"kernel_{gate}_{kind}")
    tensors = tensor("0", x) | tensor("1", y) | tensor("", x)
    arguments = record(kernel, tensors, i00=0, i10=0, alpha=0.0, limit=0.0)
    out = call(kernel, arguments, [x, y], np.empty_like(x), (7, 1, 1), 33)
    assert_close(out, GATES[gate](x.astype(float)) * y.astype(float), 2e-6 if kind == "f32" else 2e-3)


BINARY = {0: np.add, 1: np.subtract, 2: np.multiply, 3: np.divide}


@pytest.mark.parametrize("columns", [40, 39])
@pytest.mark.parametrize("operation", BINARY)
def test_binary(operation: int, columns: int, ggml: Ggml) -> None:
    x, y = random(4, 3, columns), random(1, 3, columns, low=0.5)
    wide = 4 if columns % 4 == 0 else 1
    kernel = ggml.kernel(
        "binbcast",
        f"kernel_bin_fuse_f32_f32_f32{'_4' if wide == 4 else ''}",
        {1300: operation, 1301: 1, 1302: 0, 1303: 0},
    )
    tensors = tensor("0", x, columns // wide) | tensor("1", y, columns // wide) | tensor("", x, columns // wide)
    arguments = record(kernel, tensors, offs=0, o1=[0] * 8)
    out = call(kernel, arguments, [x, y], np.empty_like(x), (3, 4, 1), columns // wide)
    assert_close(out, BINARY[operation](x, y), 1e-6)


# ---- rows


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("bias", [0.0, 8.0])
@pytest.mark.parametrize("mask", ["f32", "f16"])
@pytest.mark.parametrize(("columns", "threads"), [(128, 32), (1000, 256), (33, 32), (515, 128)])
def test_soft_max(columns: int, threads: int, mask: str, bias: float, ggml: Ggml) -> None:
    x = random(2, 4, 3, columns, low=-5, high=5)
    masks = random(1, 1, 3, columns, low=-1, high=1, dtype={"f32": np.float32, "f16": np.float16}[mask])
    kernel = ggml.kernel("softmax", f"kernel_soft_max_{mask}{'_4' if columns % 4 == 0 else ''}")
    tensors = tensor("0", x) | tensor("1", masks) | tensor("", x)
    first, second = 2 ** (-bias / 4), 2 ** (-bias / 2 / 4)  # of four heads
    arguments = record(kernel, tensors, scale=0.5, max_bias=bias, m0=first, m1=second, n_head_log2=4)
    out = call(kernel, arguments, [x, masks, x], np.empty_like(x), (3, 4, 2), threads, 128)
    slopes = np.array([first ** (head + 1) if bias else 1 for head in range(4)]).reshape(4, 1, 1)
    assert_close(out, softmax(0.5 * x.astype(float) + slopes * masks), 3e-6)


@pytest.mark.parametrize("columns", [64, 1000, 33, 515])
@pytest.mark.parametrize("terms", ["", "_mul", "_mul_add"])
@pytest.mark.parametrize("name", ["norm", "rms_norm"])
def test_norms(name: str, terms: str, columns: int, ggml: Ggml) -> None:
    x, factor, term = random(2, 5, columns), random(columns), random(columns, low=-1)
    wide = 4 if columns % 4 == 0 else 1
    kernel = ggml.kernel("norm", f"kernel_{name}{terms}_f32{'_4' if wide == 4 else ''}", {1700: 0})
    size = columns * 4
    rows = {"nef1": [5, 1, 1], "nef2": [2, 1, 1], "nef3": [1, 1, 1]}
    steps = {"nbf1": [size] * 3, "nbf2": [size * 5, size, size], "nbf3": [size * 10, size, size]}
    tensors = tensor("0", x) | tensor("", x)
    arguments = record(kernel, tensors, ne00_t=columns // wide, eps=1e-5, scale=1.0, **rows, **steps)
    threads = 32
    while threads < columns // wide and threads < 1024:
        threads *= 2
    out = call(kernel, arguments, [x, factor, term], np.empty_like(x), (5, 2, 1), threads, 128)
    exact = x.astype(float)
    centred = exact - exact.mean(axis=-1, keepdims=True) if name == "norm" else exact
    expected = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
    expected = expected * factor if terms else expected
    assert_close(out, expected + term if terms == "_mul_add" else expected, 3e-6)


@pytest.mark.parametrize("columns", [64, 33])
def test_l2_norm(columns: int, ggml: Ggml) -> None:
    x = random(2, 5, columns)
    wide = 4 if columns % 4 == 0 else 1
    kernel = ggml.kernel("norm", f"kernel_l2_norm_f32_f32{'_4' if wide == 4 else ''}")
    tensors = tensor("0", x, columns // wide) | tensor("", x, columns // wide)
    out = call(kernel, record(kernel, tensors, eps=1e-6), [x], np.empty_like(x), (5, 2, 1), 32, 128)
    assert_close(out, x / np.linalg.norm(x, axis=-1, keepdims=True), 2e-6)


@pytest.mark.parametrize("columns", [64, 37])
@pytest.mark.parametrize("operation", [10, 11])
def test_sums_and_means_of_rows(operation: int, columns: int, ggml: Ggml) -> None:
    x, out = random(2, 5, columns), np.zeros((2, 5, 1), np.float32)
    wide = 4 if columns % 4 == 0 else 1
    kernel = ggml.kernel("reduce", f"kernel_sum_rows_f32_f32{'_4' if wide == 4 else ''}", {1400: operation})
    tensors = tensor("0", x, columns // wide) | tensor("", out)
    found = call(kernel, record(kernel, tensors), [x], out, (5, 2, 1), min(32, columns // wide), 512)
    expected = x.sum(axis=-1, keepdims=True, dtype=float)
    assert_close(found, expected if operation == 10 else expected / columns, 3e-6)


@pytest.mark.parametrize("columns", [1, 60, 128, 1000])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_argsort(order: str, columns: int, ggml: Ggml) -> None:
    x = np.random.default_rng(columns).permutation(3 * columns).reshape(3, columns).astype(np.float32)
    out = np.zeros((3, columns), np.int32)
    threads = 1 << (columns - 1).bit_length()
    kernel = ggml.kernel("argsort", f"kernel_argsort_f32_i32_{order}")
    arguments = record(kernel, tensor("0", x) | tensor("", out), top_k=threads)
    found = call(kernel, arguments, [x], out, (3, 1, 1), threads, max(16, 4 * threads))
    np.testing.assert_array_equal(found, np.argsort(x if order == "asc" else -x, axis=-1))


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("style", ["norm", "neox"])
def test_rope(style: str, kind: str, ggml: Ggml) -> None:
    x = random(5, 3, 32, dtype={"f32": np.float32, "f16": np.float16}[kind])
    at = np.array([0, 1, 7, 100, 1000], np.int32)
    rotated = 24
    kernel = ggml.kernel("rope", f"kernel_rope_{style}_{kind}", {800: 0, 801: 0})
    numbers = {"n_past": 0, "n_dims": rotated, "n_offs": 0, "n_ctx_orig": 0, "freq_base": 10000.0, "freq_scale": 0.5}
    numbers |= {"ext_factor": 0.0, "attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "src2": 0, "inplace": 0}
    numbers |= {f"sect_{number}": 0 for number in range(4)}
    arguments = record(kernel, tensor("0", x) | tensor("", x), **numbers)
    out = call(kernel, arguments, [x, at, x], np.empty_like(x), (3, 5, 1), 32)
    angles = 0.5 * at[:, None, None] * 10000.0 ** (-np.arange(0, rotated, 2) / rotated)
    low, high = (slice(0, rotated, 2), slice(1, rotated, 2)) if style == "norm" else (slice(0, 12), slice(12, 24))
    expected, exact = x.astype(float), x.astype(float)
    expected[..., low] = exact[..., low] * np.cos(angles) - exact[..., high] * np.sin(angles)
    expected[..., high] = exact[..., low] * np.sin(angles) + exact[..., high] * np.cos(angles)
    assert_close(out, expected, 1e-4 if kind == "f32" else 2e-3)  # angles of 500 are floats, too


# ---- images


@pytest.mark.parametrize("how", ["max", "avg"])
def test_pool(how: str, ggml: Ggml) -> None:
    x, out = random(2, 3, 13, 17), np.zeros((2, 3, 6, 8), np.float32)
    kernel = ggml.kernel("pool", f"kernel_pool_2d_{how}_f32")
    arguments = record(kernel, {}, k0=3, k1=3, s0=2, s1=2, p0=0, p1=0, IH=13, IW=17, OH=6, OW=8, np=out.size)
    found = call(kernel, arguments, [x], out, (1, 1, 1), out.size)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    assert_close(found, windows.max(axis=(4, 5)) if how == "max" else windows.mean(axis=(4, 5)), 2e-6)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_im2col(kind: str, ggml: Ggml) -> None:
    x = random(2, 3, 10, 12)
    out = np.zeros((2, 5, 6, 27), {"f32": np.float32, "f16": np.float16}[kind])
    kernel = ggml.kernel("conv", f"kernel_im2col_{kind}")
    sizes = {"IW": 12, "IH": 10, "CHW": 27, "N": 2, "KH": 3, "KW": 3, "KHW": 9, "ofs0": 360, "ofs1": 120}
    steps = {"s0": 2, "s1": 2, "p0": 1, "p1": 1, "d0": 1, "d1": 1}
    found = call(kernel, record(kernel, {}, **sizes, **steps), [x], out, (3, 5, 6), (2, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    assert_close(found, windows.transpose(0, 2, 3, 1, 4, 5).reshape(out.shape).astype(out.dtype), 1e-6)


# ---- quantized numbers


def quantized(kind: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random blocks as bytes, and the numbers that they stand for."""
    count = rows * columns // BLOCK[kind]
    chance = np.random.default_rng(count)

    def some(size: int, dtype: Any = np.uint8) -> np.ndarray:
        return chance.integers(0, 256, (count, size), np.uint8).view(dtype)

    def halves(low: float = 0.01) -> np.ndarray:
        return chance.uniform(low, 0.1, (count, 1)).astype(np.float16)

    parts, numbers = QUANTIZED[kind](some, halves)
    encoded = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
    return encoded.reshape(rows, -1), numbers.reshape(rows, columns)


def nibbles(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(float)


def fifth_bits(packed: np.ndarray) -> np.ndarray:
    return 16.0 * np.unpackbits(packed, axis=1, bitorder="little")


Encoded = tuple[list[np.ndarray], np.ndarray]


def q4_0(some: Any, halves: Any) -> Encoded:
    d, q = halves(), some(16)
    return [d, q], d.astype(float) * (nibbles(q) - 8)


def q4_1(some: Any, halves: Any) -> Encoded:
    d, m, q = halves(), halves(-0.1), some(16)
    return [d, m, q], d.astype(float) * nibbles(q) + m


def q5_0(some: Any, halves: Any) -> Encoded:
    d, high, q = halves(), some(4), some(16)
    return [d, high, q], d.astype(float) * (nibbles(q) + fifth_bits(high) - 16)


def q5_1(some: Any, halves: Any) -> Encoded:
    d, m, high, q = halves(), halves(-0.1), some(4), some(16)
    return [d, m, high, q], d.astype(float) * (nibbles(q) + fifth_bits(high)) + m


def q8_0(some: Any, halves: Any) -> Encoded:
    d, q = halves(), some(32, np.int8)
    return [d, q], d.astype(float) * q


def q2_k(some: Any, halves: Any) -> Encoded:
    scales, q, d, least = some(16), some(64), halves(), halves()
    bits = np.stack([q.reshape(-1, 2, 32) >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 16, 16)
    factors = d.astype(float) * (scales & 15)
    offsets = least.astype(float) * (scales >> 4)
    return [scales, q, d, least], factors[:, :, None] * bits - offsets[:, :, None]


def six_bit_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    offsets = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    return scales.astype(float), offsets.astype(float)


def q4_k(some: Any, halves: Any) -> Encoded:
    d, least, packed, q = halves(), halves(), some(12), some(128)
    scales, offsets = six_bit_scales(packed)
    bits = np.stack([q.reshape(-1, 4, 32) & 15, q.reshape(-1, 4, 32) >> 4], axis=2).reshape(-1, 8, 32)
    numbers = (d.astype(float) * scales)[:, :, None] * bits - (least.astype(float) * offsets)[:, :, None]
    return [d, least, packed, q], numbers


def q5_k(some: Any, halves: Any) -> Encoded:
    d, least, packed, high, q = halves(), halves(), some(12), some(32), some(128)
    scales, offsets = six_bit_scales(packed)
    bits = np.stack([q.reshape(-1, 4, 32) & 15, q.reshape(-1, 4, 32) >> 4], axis=2).reshape(-1, 8, 32)
    bits = bits + 16.0 * np.stack([high >> shift & 1 for shift in range(8)], axis=1)
    numbers = (d.astype(float) * scales)[:, :, None] * bits - (least.astype(float) * offsets)[:, :, None]
    return [d, least, packed, high, q], numbers


def q6_k(some: Any, halves: Any) -> Encoded:
    low, high, scales, d = some(128), some(64), some(16, np.int8), halves()
    parts = low.reshape(-1, 2, 2, 32)
    four = np.concatenate([parts & 15, parts >> 4], axis=2)  # of each half: 4 times 32
    two = np.stack([high.reshape(-1, 2, 32) >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    bits = (four | two << 4).astype(float).reshape(-1, 16, 16) - 32
    return [low, high, scales, d], (d.astype(float) * scales)[:, :, None] * bits


QUANTIZED: dict[str, Callable[[Any, Any], Encoded]] = {
    "q4_0": q4_0, "q4_1": q4_1, "q5_0": q5_0, "q5_1": q5_1, "q8_0": q8_0,
    "q2_K": q2_k, "q4_K": q4_k, "q5_K": q5_k, "q6_K": q6_k,
}  # fmt: skip
PLAIN = {"f32": np.float32, "f16": np.float16}


def weights(kind: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix of any type as bytes, and its numbers."""
    if kind in QUANTIZED:
        return quantized(kind, rows, columns)
    values = random(rows, columns, dtype=PLAIN[kind])
    return values.view(np.uint8), values.astype(float)


@pytest.mark.parametrize("kind", [*PLAIN, *QUANTIZED])
def test_get_rows(kind: str, ggml: Ggml) -> None:
    table, numbers = weights(kind, 20, 512)
    rows = np.array([[3, 0, 19, 7, 7]], np.int32)
    out = np.zeros((5, 512), np.float32)
    kernel = ggml.kernel("quantize", f"kernel_get_rows_{kind}")
    tensors = tensor("0", table, 512) | tensor("1", rows) | tensor("", out)
    steps = 32 if kind in QUANTIZED else 512
    found = call(kernel, record(kernel, tensors, ne00t=steps), [table, rows], out, (5, 1, 1), steps)
    assert_close(found, numbers[rows[0]], 2e-6)


#: SIMD-groups of a threadgroup, and rows of the matrix for each of these, as ggml-metal-impl.h has them.
VECTOR_LAUNCH = {
    "f32": (4, 2), "f16": (4, 2), "q4_0": (2, 4), "q4_1": (2, 4), "q5_0": (2, 4), "q5_1": (2, 4), "q8_0": (4, 2),
    "q2_K": (2, 4), "q4_K": (2, 2), "q5_K": (2, 1), "q6_K": (2, 2),
}  # fmt: skip


@pytest.mark.parametrize("rows", [32, 27])
@pytest.mark.parametrize("kind", VECTOR_LAUNCH)
def test_matrix_times_vector(kind: str, rows: int, ggml: Ggml) -> None:
    matrix, numbers = weights(kind, rows, 512)
    vector, out = random(1, 512, low=-1, high=1), np.zeros((1, rows), np.float32)
    groups, each = VECTOR_LAUNCH[kind]
    suffix = "_4" if kind in PLAIN else ""
    constants = {600: groups, 602: 1, 603: 1, 604: 1, 605: 0}
    kernel = ggml.kernel("mul_mv", f"kernel_mul_mv_{kind}_f32{suffix}", constants)
    tensors = tensor("0", matrix, 512) | tensor("1", vector) | tensor("", out)
    arguments = record(kernel, tensors, nr0=each, r2=1, r3=1)
    together = each if kind in PLAIN or kind == "q8_0" else each * groups
    launch = (-(-rows // together), 1, 1)
    found = call(kernel, arguments, [matrix, vector], out, launch, (32, groups, 1), 512)
    assert_close(found, vector.astype(float) @ numbers.T, 3e-5)


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (50, 45)])
@pytest.mark.parametrize("kind", [*PLAIN, *QUANTIZED])
def test_matrix_times_matrix(kind: str, rows: int, columns: int, ggml: Ggml) -> None:
    matrix, numbers = weights(kind, rows, 256)
    other, out = random(columns, 256, low=-1, high=1), np.zeros((columns, rows), np.float32)
    partial = rows % 64 != 0 or columns % 32 != 0
    constants = {700: 0, 701: int(partial), 702: 1, 703: 1, 704: 1, 705: 1}
    kernel = ggml.kernel("mul_mm", f"kernel_mul_mm_{kind}_f32", constants)
    tensors = tensor("0", matrix, 256) | tensor("1", other) | tensor("", out)
    launch = (-(-columns // 32), -(-rows // 64), 1)
    arguments = record(kernel, tensors, r2=1, r3=1)
    found = call(kernel, arguments, [matrix, other], out, launch, (32, 4, 1), 8192 if partial else 6144)
    assert_close(found, other.astype(float) @ numbers.T, 2e-3)  # the tiles are of half


# ---- attention


@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("has_mask", [False, True])
def test_flash_attention(has_mask: bool, head: int, ggml: Ggml) -> None:
    queries, heads, cached = 20, 2, 128
    q = random(heads, queries, head)
    k, v = (random(heads, cached, head, low=-low, dtype=np.float16) for low in (1, 2))
    mask = np.triu(np.full((24, cached), -np.inf, np.float16), 100) if has_mask else np.zeros((1, 1), np.float16)
    out = np.zeros((queries, heads, head), np.float32)
    blocks = np.zeros((3, 2), np.uint8)
    if has_mask:
        marks = ggml.kernel("fa_aux", "kernel_flash_attn_ext_blk", {224: 8, 225: 64})
        arguments = record(marks, tensor("0", q) | tensor("3", mask))
        blocks = call(marks, arguments, [mask], blocks, (2, 3, 1), 32)
    constants = {300: int(has_mask), 301: 0, 302: 0, 303: 0, 304: 0, 310: 0, 320: head, 321: head, 322: 4}
    kernel = ggml.kernel("fa_f16", f"kernel_flash_attn_ext_f16_dk{head}_dv{head}", constants)
    tensors = tensor("0", q) | tensor("1", k) | tensor("2", v) | tensor("3", mask) | tensor("", out)
    numbers = {"scale": 0.125, "max_bias": 0.0, "m0": 1.0, "m1": 1.0, "n_head_log2": 2, "logit_softcap": 0.0}
    arguments = record(kernel, tensors, ne_12_2=heads, ne_12_3=1, ns10=head, ns20=head, **numbers)
    memory = 2 * 8 * (head + 2 * head + 4 * 64)
    arrays = [q, k, v, mask, q, q, blocks]
    found = call(kernel, arguments, arrays, out, (3, heads, 1), (32, 4, 1), memory)
    scores = 0.125 * q.astype(float) @ k.astype(float).transpose(0, 2, 1) + (mask[:queries] if has_mask else 0)
    assert_close(found, (softmax(scores) @ v.astype(float)).transpose(1, 0, 2), 4e-3)


# ---- validation


@pytest.mark.host_only("its validation")
@pytest.mark.parametrize("case", ["soft_max", "rms_norm", "q4_0", "q6_K", "argsort", "mul_mm"])
def test_validation_finds_nothing(case: str, ggml: Ggml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ggml, "kernel", functools.partialmethod(Ggml.kernel, validate=True))
    match case:
        case "soft_max":
            test_soft_max(515, 128, "f16", 8.0, ggml)
        case "rms_norm":
            test_norms("rms_norm", "_mul_add", 1000, ggml)
        case "argsort":
            test_argsort("asc", 60, ggml)
        case "mul_mm":
            test_matrix_times_matrix("f16", 50, 45, ggml)
        case kind:  # rows that fill the threadgroups: of others these kernels do read beyond the end
            test_matrix_times_vector(kind, 32, ggml)
    mpscffi.synchronize()
