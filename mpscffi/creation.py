"""Arrays of given shapes and contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from mpscffi import device as _device
from mpscffi._ffi import check, lib
from mpscffi._warning import casting
from mpscffi.array import Array, _allocate, _contents, _filled_from, _is_private, _new
from mpscffi.dtypes import DEFAULT, device_dtype
from mpscffi.errors import InvalidArgumentError
from mpscffi.stream import current_stream

__all__ = ["asarray", "empty", "full", "ones", "zeros"]

#: What Python's own numbers become.
_SINGLE = {"float64": np.dtype("float32"), "complex128": np.dtype("complex64")}


def empty(
    shape: SupportsIndex | Sequence[SupportsIndex] = (),
    /,
    *more: SupportsIndex,
    dtype: npt.DTypeLike | None = None,
    storage: str = "shared",
) -> Array:
    """Return an array with undefined contents.

    Parameters
    ----------
    shape, *more : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    storage : str
        "shared": seen by CPU and device alike. "private": the device's alone; contents come and go by
        :meth:`Array.copy_from`, :meth:`Array.copy` and :meth:`Array.to_host`.
    """
    if dtype is not None or storage != "shared":
        return _allocate((shape, *more), device_dtype(dtype), "empty", private=_is_private(storage, "empty"))
    device = _device._current
    if more or device is None or (allocator := device._allocator) is None:
        return _allocate((shape, *more), DEFAULT, "empty")
    last, size, size_class = allocator.last
    if shape is not last:
        array = _allocate((shape,), DEFAULT, "empty")
        if array.shape is shape:
            allocator.remember(shape, array.size)
        return array
    # In a loop, where the shape is the very same tuple again: what _allocate and Allocator.take do then, without calls.
    nbytes = size_class.size
    total, counters = allocator.counters, size_class.counters
    total.current = current = total.current + nbytes
    counters.current = in_pool = counters.current + nbytes
    try:
        block = size_class.free.pop()
    except IndexError:
        total.current -= nbytes
        counters.current -= nbytes
        return _allocate((shape,), DEFAULT, "empty")
    if block.stream is not None and not allocator.reusable(block):
        size_class.put_last(block)
        return _allocate((shape,), DEFAULT, "empty")
    block.zeroed = False
    size_class.taken += 1
    if current > total.peak:
        total.peak = current
    if in_pool > counters.peak:
        counters.peak = in_pool
    array = _new(Array)
    array._owned = array._block = block
    array._base = array._memory = array._seen = array._strides = None
    array._offset = 0
    array._writable = array._plain = True
    array.dtype = DEFAULT
    array.shape = shape
    array.size = size
    return array


def zeros(
    *shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike | None = None, storage: str = "shared"
) -> Array:
    """Return an array of zeros.

    Parameters
    ----------
    *shape : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    storage : str
        As for :func:`empty`.
    """
    array = _allocate(shape, device_dtype(dtype), "zeros", private=_is_private(storage, "zeros"))
    block = array._block
    stream = current_stream()
    if not array.size:
        return array
    if stream._recording is not None:
        stream._recording.take_fill_byte(array, 0)
    elif not block.zeroed:
        if block.stream is not stream:
            stream._adopt(block)
        check(lib.mps_queue_fill(stream._pointer, block.pointer, 0, array.nbytes, 0))
    return array


def full(
    shape: SupportsIndex | Sequence[SupportsIndex], fill_value: Any, *, dtype: npt.DTypeLike | None = None
) -> Array:
    """Return an array with all elements equal.

    Parameters
    ----------
    shape : int or sequence of int
        Elements along each axis.
    fill_value : number
        What each element is.
    dtype : dtype-like, optional
        float32 by default.
    """
    array = _allocate((shape,), device_dtype(dtype), "full", host_bound=True)
    try:
        if array.size:
            with casting("full"):
                _contents(array)[...] = fill_value
    except OverflowError as error:
        raise InvalidArgumentError(f"full: {error}") from None
    return array


def ones(*shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike | None = None) -> Array:
    """Return an array of ones.

    Parameters
    ----------
    *shape : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    """
    array = _allocate(shape, device_dtype(dtype), "ones", host_bound=True)
    if array.size:
        _contents(array).fill(1)
    return array


def asarray(obj: Any, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None) -> Array:
    """Return an array with the contents of anything that NumPy takes.

    Parameters
    ----------
    obj : Array or array-like
        An :class:`Array` of the wanted dtype is returned as it is, unless a copy is asked for. Python's own numbers
        become float32 and complex64 where NumPy would make float64 and complex128 of them.
    dtype : dtype-like, optional
        What to convert to. By default the object's own, which Metal must have.
    copy : bool, optional
        True: always copy. False: never; see :func:`from_numpy`. None: only an :class:`Array` is not copied.
    """
    if isinstance(obj, Array):
        if dtype is not None and obj.dtype != device_dtype(dtype):
            if copy is False:
                raise InvalidArgumentError(f"asarray: {obj.dtype} cannot become {device_dtype(dtype)} without a copy")
            return obj.astype(dtype)
        return obj.copy() if copy else obj
    if copy is False:
        values = np.asarray(obj)
        if dtype is not None and values.dtype != device_dtype(dtype):
            raise InvalidArgumentError(f"asarray: {values.dtype} cannot become {device_dtype(dtype)} without a copy")
        from mpscffi.adopt import from_numpy

        return from_numpy(values, copy=False)
    try:
        values = np.asarray(obj)
    except ValueError as error:
        raise InvalidArgumentError(f"asarray: {error}") from None
    if dtype is not None:
        with casting("asarray"):
            return _filled_from(values.astype(device_dtype(dtype)))
    if not isinstance(obj, (np.ndarray, np.generic)) and not hasattr(obj, "__array_interface__"):
        with casting("asarray"):
            values = values.astype(_SINGLE.get(values.dtype.name, values.dtype))
    return _filled_from(values)
