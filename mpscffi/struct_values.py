"""Python values as the bytes of a kernel's structs and matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mpscffi.array import Array
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.scalars import SCALARS

if TYPE_CHECKING:
    from mpscffi.mslc.layout import Field, Struct

__all__ = ["pack_field", "pack_struct", "plain_number"]

_BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}
_NUMBERS = (bool, int, float)


def plain_number(value: Any) -> bool | int | float | None:
    """Return a value that is one number, as a number of Python; None if it is something else."""
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, (str, bytes, Array)):
        return None
    if hasattr(value, "shape"):  # an array or a scalar of NumPy or of another package
        if len(value.shape) or not hasattr(value, "item"):
            return None
        number = value.item()
        if isinstance(number, _NUMBERS):
            return number
        dtype = getattr(value, "dtype", None)
        # What item() leaves as it is: a long double, a bfloat16 of ml_dtypes.
        is_real = getattr(dtype, "kind", "") == "f" or getattr(dtype, "name", "") == "bfloat16"
        return float(number) if is_real else None
    if hasattr(value, "__index__"):
        return int(value.__index__())
    return float(value) if hasattr(value, "__float__") else None


def pack_struct(struct: Struct, value: Any) -> bytes:
    """Return the bytes of a struct.

    Parameters
    ----------
    struct : Struct
    value : Mapping or sequence
        Its fields by name or in order: numbers; sequences for arrays, vectors and matrices; for structs the like again.
    """
    data = bytearray(struct.size)
    _put_struct(data, 0, struct, value, "")
    return bytes(data)


def pack_field(field: Field, value: Any) -> bytes:
    """Return the bytes of a value that is laid out as a field."""
    data = bytearray(field.stride * field.count)
    _put_field(data, 0, field, value, field.name)
    return bytes(data)


def _put_struct(data: bytearray, place: int, struct: Struct, value: Any, path: str) -> None:
    where = f"{path}: " if path else ""
    names = [field.name for field in struct.fields]
    if isinstance(value, np.void) and value.dtype.names is not None:
        value = {name: value[name] for name in value.dtype.names}
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in names]
        missing = [name for name in names if name not in value]
        if unknown or missing:
            fault = f"got a field {unknown[0]!r}" if unknown else f"no value for {', '.join(map(repr, missing))}"
            raise InvalidArgumentError(f"{where}{fault}, expected the fields of {struct.name}: {', '.join(names)}")
        values = [value[name] for name in names]
    else:
        items = _items(value)
        if items is None:
            raise ArgumentTypeError(
                f"{where}got {type(value).__name__}, expected a dict, or a tuple in the order of the fields of "
                f"{struct.name}: {', '.join(names)}"
            )
        values = items
        if len(values) != len(names):
            raise InvalidArgumentError(
                f"{where}got {len(values)} values, expected {len(names)}, one for each field of {struct.name}: "
                f"{', '.join(names)}"
            )
    for field, part in zip(struct.fields, values, strict=True):
        _put_field(data, place + field.offset, field, part, f"{path}.{field.name}" if path else field.name)


def _put_field(data: bytearray, place: int, field: Field, value: Any, path: str) -> None:
    if field.struct is not None:
        parts = _of_length(value, field.count, path) if field.count > 1 else [value]
        for i, part in enumerate(parts):
            where = f"{path}[{i}]" if field.count > 1 else path
            _put_struct(data, place + i * field.stride, field.struct, part, where)
        return
    if not field.scalar:
        raise ArgumentTypeError(
            f"{path} is a pointer, which only bytes can give: pass the arrays as parameters of their own"
        )
    scalar = _BY_NAME[field.scalar]
    shape = [length for length in (field.count, field.columns, field.lanes) if length > 1]
    numbers = iter(_numbers(value, shape, path))
    for i in range(field.count):
        for column in range(field.columns):
            for lane in range(field.lanes):
                start = place + i * field.stride + column * field.column_stride + lane * scalar.size
                try:
                    data[start : start + scalar.size] = scalar.pack(next(numbers))
                except InvalidArgumentError as error:
                    raise InvalidArgumentError(f"{path}: {error}" if path else str(error)) from None


def _numbers(value: Any, shape: list[int], path: str) -> list[bool | int | float]:
    """Return the numbers of nested sequences of a shape, one after the other."""
    if not shape:
        number = plain_number(value)
        if number is None:
            where = f"{path}: " if path else ""
            raise ArgumentTypeError(f"{where}got {type(value).__name__}, expected a number")
        return [number]
    items = _items(value)
    if items is not None and len(items) != shape[0] and all(_items(item) is not None for item in items):
        items = [part for item in items for part in _items(item) or ()]  # as of an array [2][3]
    parts = _of_length(value if items is None else items, shape[0], path)
    return [
        number for i, part in enumerate(parts) for number in _numbers(part, shape[1:], f"{path}[{i}]" if path else path)
    ]


def _of_length(value: Any, length: int, path: str) -> list[Any]:
    items = _items(value)
    where = f"{path}: " if path else ""
    if items is None:
        raise ArgumentTypeError(f"{where}got {type(value).__name__}, expected a sequence of {length}")
    if len(items) != length:
        raise InvalidArgumentError(f"{where}got {len(items)} values, expected {length}")
    return items


def _items(value: Any) -> list[Any] | None:
    """Return what a sequence has; None if it is none."""
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return list(value)
    return None
