"""Kernels in one line: how the tests of the Metal library run expressions of the language and get their values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import mpscffi

DTYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "long": "i8",
    "ulong": "u8",
    "half": "f2",
    "float": "f4",
    "bool": "?",
}


def run(source: str, arrays: list[np.ndarray], threads: int | tuple[int, ...], group_size: object = None) -> None:
    """Run the kernel `test` of a source over arrays, which then hold what it has written."""
    library = mpscffi.compile_shader("#include <metal_stdlib>\nusing namespace metal;\n" + source)
    buffers = [mpscffi.asarray(array) for array in arrays]
    library.test(*buffers, threads=threads, group_size=threads if group_size is None else group_size)
    for array, buffer in zip(arrays, buffers, strict=True):
        array[...] = buffer.numpy()


def evaluate(
    result_type: str, expressions: list[str], *inputs: tuple[str, np.ndarray], preface: str = ""
) -> np.ndarray:
    """Each expression of x, y, z (an element of each input) in a row of its own."""
    count = len(inputs[0][1]) if inputs else 1
    out = np.zeros((len(expressions), count), DTYPES[result_type])
    names = "xyz"[: len(inputs)]
    parameters = "".join(f", device const {kind} *in_{name}" for name, (kind, _) in zip(names, inputs, strict=True))
    loads = "".join(f"  {kind} {name} = in_{name}[i];\n" for name, (kind, _) in zip(names, inputs, strict=True))
    stores = "".join(f"  out[{row * count} + i] = {text};\n" for row, text in enumerate(expressions))
    source = (
        f"{preface}\nkernel void test(device {result_type} *out{parameters}, uint i [[thread_position_in_grid]]) {{\n"
        f"{loads}{stores}}}\n"
    )
    run(source, [out, *(np.ascontiguousarray(values) for _, values in inputs)], count, min(count, 64))
    return out


def values_of(kind: str, expressions: Iterable[str], preface: str = "") -> dict[str, object]:
    """Value of each expression."""
    texts = list(expressions)
    return dict(zip(texts, evaluate(kind, texts, preface=preface)[:, 0].tolist(), strict=True))


def to_bfloat(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat, ties to even."""
    bits = np.asarray(values, "f4").view("u4").astype("u8")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("u2")


def from_bfloat(bits: np.ndarray) -> np.ndarray:
    return (np.asarray(bits).astype("u4") << 16).view("f4")


def evaluate_in_group(expressions: list[str], x: np.ndarray, result_type: str = "int", setup: str = "") -> np.ndarray:
    """Each expression of x, with all threads in one threadgroup."""
    count = len(x)
    out = np.zeros((len(expressions), count), DTYPES[result_type])
    kind = next(name for name, code in DTYPES.items() if np.dtype(code) == x.dtype)
    stores = "".join(f"  out[{row * count} + i] = {text};\n" for row, text in enumerate(expressions))
    source = f"""
kernel void test(device {result_type} *out, device const {kind} *in, uint i [[thread_position_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint n [[threads_per_threadgroup]]) {{
  {kind} x = in[i];
  {setup}
{stores}}}"""
    run(source, [out, x], count)
    return out


def signed(value: int, bits: int, is_signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value
