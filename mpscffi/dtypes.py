"""Element types: NumPy dtypes that Metal has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpscffi import fallback
from mpscffi.errors import ArgumentTypeError

__all__ = ["DEFAULT", "device_dtype", "storable"]

DEFAULT = np.dtype(np.float32)

_NAMES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "complex64",
)  # fmt: skip
#: What an array may hold for the CPU's sake alone.
_ON_CPU = ("float64", "complex128")
#: bfloat16 joins them when the first array has it, so that ml_dtypes is imported only by those who use it.
_SUPPORTED = {np.dtype(name) for name in _NAMES}

#: dtype arguments as given, and what they mean; only what is supported, so it stays small.
_known: dict[object, np.dtype[Any]] = {}


def device_dtype(dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the dtype that an argument means, in native byte order.

    Parameters
    ----------
    dtype : dtype-like or None
        None for float32; "bfloat16" if ml_dtypes is installed; structured dtypes whose fields are aligned as in C.

    Returns
    -------
    numpy.dtype
        One that Metal has.
    """
    if dtype is None:
        return DEFAULT
    try:
        return _known[dtype]
    except (KeyError, TypeError):
        pass
    if isinstance(dtype, str) and dtype == "bfloat16":
        found = storable(_bfloat16())
    else:
        try:
            found = np.dtype(dtype)
        except (TypeError, ValueError) as error:  # ValueError: a str that cannot be encoded
            raise ArgumentTypeError(f"got dtype {dtype!r}, expected a NumPy dtype: {error}") from None
        found = storable(found)
    try:
        if len(_known) < 1024 and found.name not in _ON_CPU:
            _known[dtype] = found
    except TypeError:
        # Not hashable, as a list of fields.
        pass
    return found


def storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in native byte order if a device can hold it, else raise.

    Parameters
    ----------
    dtype : numpy.dtype
        Any.

    Returns
    -------
    numpy.dtype
        The same, in native byte order.
    """
    native: np.dtype[Any] = dtype.newbyteorder("=")
    if dtype in _SUPPORTED:
        return dtype
    if dtype.fields is not None:
        _check_fields(dtype, str(dtype))
        return native
    if native in _SUPPORTED:
        return native
    if native.name == "bfloat16":
        _SUPPORTED.add(native)
        return native
    if native.name in _ON_CPU and fallback.allows("an array", native):
        return native
    hint = {"float64": "float32", "longdouble": "float32", "complex128": "complex64"}.get(dtype.name)
    raise ArgumentTypeError(
        f"dtype {dtype} is not one that Metal has"
        + (f": convert to {hint} first, as by astype" if hint else f"; expected one of {', '.join(_NAMES)}, bfloat16")
    )


def _bfloat16() -> np.dtype[Any]:
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ArgumentTypeError("dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None
    dtype: np.dtype[Any] = np.dtype(bfloat16)
    return dtype


def _check_fields(dtype: np.dtype[Any], whole: str) -> None:
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        base = field.base
        if base.fields is not None:
            _check_fields(base, whole)
            continue
        element = storable(base)
        if offset % element.alignment:
            raise ArgumentTypeError(
                f"dtype {whole}: field {name!r} lies at offset {offset}, but a Metal struct aligns a {element} to "
                f"{element.alignment} bytes; make the dtype with align=True"
            )
