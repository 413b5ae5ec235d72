"""Load a .safetensors file without a copy: its tensors are arrays over the mapped file.

    python examples/load_safetensors.py model.safetensors

Nothing is read before a kernel, or the CPU, uses it. The file's own words are not trusted: each is checked against the
file before memory is touched.

The format (https://github.com/huggingface/safetensors): eight bytes with the header's length, the header in JSON, and
the data. The header gives each tensor's dtype, shape, and the range of its bytes, counted from the end of the header.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from typing import Any, NamedTuple

import mpscffi as mps

#: What the format calls them. It has more, as F64 and the eight-bit floats, which Metal lacks.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "C64": "complex64",
}
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F16": 2, "BF16": 2,
         "F32": 4, "C64": 8}  # fmt: skip

#: As other readers have it.
MAX_HEADER = 100_000_000


class FormatError(ValueError):
    """The file is not what it should be."""


class Tensor(NamedTuple):
    """One tensor's place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int


def read_header(path: str | os.PathLike[str]) -> tuple[list[Tensor], dict[str, str]]:
    """Return the tensors of a file, in the order of their bytes, and its metadata.

    Raises
    ------
    FormatError
        If anything in the header contradicts the format or the file's length.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise FormatError(f"the header is said to have {length} bytes, but the file has {size}")
        if length > MAX_HEADER:
            raise FormatError(f"the header has {length} bytes, more than {MAX_HEADER}")
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise FormatError(f"the header is a {type(header).__name__}, expected an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError("__metadata__ is no object of strings")
    start = 8 + length
    tensors = sorted((_tensor(name, entry, start) for name, entry in header.items()), key=lambda t: (t.begin, t.end))
    reached = start
    for tensor in tensors:
        if tensor.begin != reached:
            fault = "overlap those of the one before" if tensor.begin < reached else "leave a gap before them"
            raise FormatError(f"tensor {tensor.name!r}: its bytes, from {tensor.begin - start} on, {fault}")
        reached = tensor.end
    if reached != size:
        raise FormatError(f"the tensors take {reached - start} bytes, but the file has {size - start}")
    return tensors, metadata


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name comes twice")
    return entries


def _tensor(name: str, entry: Any, start: int) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"tensor {name!r}: got {entry!r:.100}, expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"tensor {name!r}: its dtype is {dtype!r:.50}, expected one of {', '.join(DTYPES)}")
    for key, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or not all(type(number) is int and 0 <= number < 1 << 63 for number in value):
            raise FormatError(f"tensor {name!r}: {key} is {value!r:.100}, expected a list of natural numbers")
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * SIZES[dtype]:
        raise FormatError(
            f"tensor {name!r}: data_offsets are {offsets}, but shape {shape} of {dtype} takes "
            f"{math.prod(shape) * SIZES[dtype]} bytes"
        )
    return Tensor(name, dtype, tuple(shape), start + offsets[0], start + offsets[1])


def load(path: str | os.PathLike[str], *, writable: bool = False) -> dict[str, mps.Array]:
    """Return the tensors of a file, by name, as arrays over it.

    Parameters
    ----------
    path : path-like
        It must not get shorter while they live.
    writable : bool
        Let them be written; that changes memory, not the file. Otherwise they are read-only, but for those that had to
        be copied.
    """
    tensors, _ = read_header(path)
    file = mps.from_file(path, "uint8", mode="c" if writable else "r")
    arrays = {}
    for tensor in tensors:
        array = file[tensor.begin : tensor.end]
        if tensor.begin % SIZES[tensor.dtype]:
            # A writer that does not align. A kernel could not read it there.
            array = array.copy()
        try:
            arrays[tensor.name] = array.view(DTYPES[tensor.dtype]).reshape(tensor.shape)
        except mps.errors.InvalidArgumentError as error:  # too many axes, or lengths that are absurd beside one of 0
            raise FormatError(f"tensor {tensor.name!r}: {error}") from None
    return arrays


def main() -> None:
    """Print what a file has."""
    parser = argparse.ArgumentParser(description="List the tensors of a .safetensors file.")
    parser.add_argument("path")
    options = parser.parse_args()
    try:
        arrays = load(options.path)
    except (FormatError, OSError) as error:
        parser.error(f"{options.path}: {error}")
    for name, array in arrays.items():
        place = "mapped" if array.is_alias or not array.size else "copied"
        print(f"{name}: {array.dtype} {list(array.shape)}, {array.nbytes} bytes, {place}")


if __name__ == "__main__":
    main()
