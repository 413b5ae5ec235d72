"""Whether an array's dtype can be what a kernel's parameter takes. Refused is only what is wrong for certain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mpscffi.scalars import SCALARS

if TYPE_CHECKING:
    import numpy as np

    from mpscffi.mslc.layout import Struct
    from mpscffi.reflection import Argument
    from mpscffi.scalars import Scalar

__all__ = ["dtype_fault", "numpy_name"]

_BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}
#: Parameters of these types take the bytes of anything.
_BYTES = ("char", "uchar")


def dtype_fault(argument: Argument, scalar: Scalar | None, dtype: np.dtype[Any]) -> str:
    """Return what is wrong with a dtype for a parameter; "" if nothing is known to be.

    Parameters
    ----------
    argument : Argument
    scalar : Scalar or None
        What the elements of the parameter consist of; None if it is no scalar or vector.
    dtype : numpy.dtype
        Of the array, or of the structured scalar, that is given.
    """
    if not argument.is_used:
        return ""
    if scalar is not None:
        if dtype.fields is not None or scalar.name in _BYTES or _fits(scalar, dtype):
            return ""
        return f"of dtype {dtype}, but the kernel takes {argument.data_type}: {_remedy(scalar, dtype)}"
    if dtype.fields is None:
        return ""
    struct = argument.struct
    return _struct_fault(struct, dtype) if struct is not None else ""


def _fits(scalar: Scalar, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "c":
        return scalar.name == "float"
    if dtype.itemsize != scalar.size:
        return False
    if scalar.name == "bfloat":  # whose bits are 16-bit integers where ml_dtypes is missing
        return dtype.name == "bfloat16" or dtype.kind in "iu"
    if scalar.is_float:
        return dtype.kind == "f"
    return dtype.kind in "iub"


def _remedy(scalar: Scalar, dtype: np.dtype[Any]) -> str:
    name = numpy_name(scalar)
    if dtype.itemsize == scalar.size:
        return f"convert by .astype('{name}'), or pass .view('{name}') if its bits are meant"
    return f"convert by .astype('{name}')"


def numpy_name(scalar: Scalar) -> str:
    """Return what NumPy calls a scalar type."""
    if scalar.is_float:
        return {"half": "float16", "bfloat": "bfloat16"}.get(scalar.name, "float32")
    if scalar.name == "bool":
        return "bool"
    return f"{'int' if scalar.low else 'uint'}{scalar.size * 8}"


# ---- structs


class _Leaf(NamedTuple):
    """A scalar in a struct."""

    path: str
    offset: int
    size: int
    #: A Scalar for the kernel's struct, None for a pointer; a dtype for NumPy's.
    kind: Any


def _struct_fault(struct: Struct, dtype: np.dtype[Any]) -> str:
    leaves = list(_struct_leaves(struct, "", 0))
    by_offset = {leaf.offset: leaf for leaf in leaves}
    by_path = {leaf.path: leaf for leaf in leaves}
    used = [(leaf.offset, leaf.offset + leaf.size) for leaf in leaves]
    for given in _dtype_leaves(dtype, "", 0):
        wanted = by_path.get(given.path)
        there = by_offset.get(given.offset)
        what = (
            f"of a dtype whose field '{given.path}' is {given.kind} at offset {given.offset}, but struct {struct.name} "
        )
        if wanted is not None and wanted.offset != given.offset:
            return f"{what}has '{wanted.path}' at offset {wanted.offset}"
        if there is not None and (there.size == given.size if there.kind is None else _fits(there.kind, given.kind)):
            continue
        if there is None and all(given.offset + given.size <= start or stop <= given.offset for start, stop in used):
            continue  # padding
        if there is None:
            return f"{what}has no field at that offset"
        return f"{what}has '{there.path}' there, {'a pointer' if there.kind is None else there.kind.name}"
    if dtype.itemsize != struct.size:
        return f"of a dtype of {dtype.itemsize} bytes, but struct {struct.name} has {struct.size}"
    return ""


def _struct_leaves(struct: Struct, path: str, base: int) -> Iterator[_Leaf]:
    for field in struct.fields:
        for i in range(field.count):
            name = f"{path}{field.name}" + (f"[{i}]" if field.count > 1 else "")
            offset = base + field.offset + i * field.stride
            if field.struct is not None:
                yield from _struct_leaves(field.struct, f"{name}.", offset)
            elif not field.scalar:
                yield _Leaf(name, offset, 8, None)
            else:
                scalar = _BY_NAME[field.scalar]
                for column in range(field.columns):
                    for lane in range(field.lanes):
                        place = offset + column * field.column_stride + lane * scalar.size
                        # NumPy's name for an element of an array of vectors counts numbers, not vectors.
                        is_first = not column + lane and (field.count == 1 or field.lanes * field.columns == 1)
                        yield _Leaf(name if is_first else f"{name}+", place, scalar.size, scalar)


def _dtype_leaves(dtype: np.dtype[Any], path: str, base: int) -> Iterator[_Leaf]:
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        element = field.base
        count = field.itemsize // element.itemsize if element.itemsize else 0
        for i in range(count):
            full = f"{path}{name}" + (f"[{i}]" if count > 1 else "")
            place = base + offset + i * element.itemsize
            if element.fields is not None:
                yield from _dtype_leaves(element, f"{full}.", place)
            else:
                yield _Leaf(full, place, element.itemsize, element)
