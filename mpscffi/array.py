"""Arrays in device memory, with NumPy's dtypes, shapes and views.

On a device with unified memory an array's bytes are seen by CPU and device alike: :meth:`Array.numpy` is a view of
them, not a copy. Work that kernels do on an array is asynchronous; what looks at the contents here waits for it.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from mpscffi import device as _device
from mpscffi._callbacks import discard, keep
from mpscffi._ffi import check, ffi, lib
from mpscffi.allocator import Block, Counters, allocator_of
from mpscffi.device import Device, current_device
from mpscffi.dtypes import DEFAULT, device_dtype, storable
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.stream import current_stream, wait_for_block

__all__ = ["Array", "asarray", "empty", "from_dlpack", "from_numpy", "full", "ones", "zeros"]


class Lease:
    """Owns an array's block in its stead once NumPy has been shown the memory; every such view keeps it alive."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: Block) -> None:
        self._block = block
        self.__array_interface__ = {
            "shape": (block.length,),
            "typestr": "|u1",
            "data": (block.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        block = self._block
        block.counters.current -= block.size
        block.push(block)


#: Held while an array hands its block over to a Lease. Re-entrant, since finalizers run at any point.
_lease_lock = threading.RLock()


class Array:
    """An n-dimensional array in device memory; see :func:`empty`, :func:`zeros`, :func:`asarray` and others.

    Slices are views of the same memory, which lives as long as any view of it, NumPy's included.

    Attributes
    ----------
    shape : tuple of int
        Elements along each axis.
    dtype : numpy.dtype
        Type of an element.
    size : int
        Number of elements.
    """

    __slots__ = (
        "_base",
        "_block",
        "_memory",
        "_offset",
        "_owned",
        "_plain",
        "_strides",
        "_writable",
        "dtype",
        "shape",
        "size",
    )

    # The array that owns the block, for a view; None for the owner itself.
    _base: Array | None
    _block: Block
    # What __del__ gives back; None for views, and once a Lease owns it.
    _owned: Block | None
    # All bytes of the block as NumPy sees them, owned by the Lease; None until asked for.
    _memory: npt.NDArray[np.uint8] | None
    # In bytes, from the block's start.
    _offset: int
    # In bytes; None for C order.
    _strides: tuple[int, ...] | None
    _writable: bool
    # In C order and writable: a kernel can take it without a closer look.
    _plain: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int

    def __new__(cls, *args: Any, **keywords: Any) -> Array:
        """Refuse: arrays are made by functions."""
        raise ArgumentTypeError("Array: make one by empty, zeros, ones, full, asarray, from_numpy or from_dlpack")

    def __del__(self) -> None:
        block = self._owned
        if block is not None:
            block.counters.current -= block.size
            block.push(block)

    # ---- what it is

    @property
    def device(self) -> Device:
        """The device whose memory it lies in."""
        return self._block.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return self._strides if self._strides is not None else _c_strides(self.shape, self.dtype.itemsize)

    @property
    def offset(self) -> int:
        """Bytes from the start of the buffer to the first element."""
        return self._offset

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in C order, as kernels take them."""
        return self._strides is None

    @property
    def is_writable(self) -> bool:
        """Whether the contents may be changed."""
        return self._writable

    @property
    def is_alias(self) -> bool:
        """Whether it lies over memory of the host program's, without a copy."""
        return self._block.size == 0 and self.size > 0

    @property
    def handle(self) -> Any:
        """The ``mps_buffer *`` of the C library, borrowed; the array begins :attr:`offset` bytes into it."""
        return self._block.pointer

    def __repr__(self) -> str:
        # Metadata only: the contents may not be there yet, or never.
        text = f"<mpscffi.Array shape={self.shape} dtype={self.dtype}"
        if self._strides is not None:
            text += f" strides={self._strides}"
        return f"{text} device={self.device.backend}:{self.device.index}>"

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of an array without axes")
        return self.shape[0]

    # ---- views

    def _view(self, of: npt.NDArray[Any]) -> Array:
        """Make the view that a NumPy view of this array's memory stands for."""
        offset = of.__array_interface__["data"][0] - self._block.address if of.size else self._offset
        view = _new(Array)
        view._base = self if self._base is None else self._base
        view._block = self._block
        view._owned = None
        view._memory = None
        view._offset = offset
        view._strides = None if of.flags.c_contiguous else of.strides
        view._writable = self._writable
        view._plain = self._writable and view._strides is None
        view.dtype = of.dtype
        view.shape = of.shape
        view.size = of.size
        return view

    def __getitem__(self, key: Any) -> Array:
        """Return a view: by integers, slices, ``...`` and None. With an integer for each axis it has no axes left."""
        return self._view(self._select(key))

    def _select(self, key: Any) -> npt.NDArray[Any]:
        keys = key if isinstance(key, tuple) else (key,)
        for part in keys:
            if not (part is None or part is Ellipsis or isinstance(part, slice)) and (
                isinstance(part, (bool, np.bool_)) or not hasattr(part, "__index__") or isinstance(part, np.ndarray)
            ):
                raise ArgumentTypeError(
                    f"Array: got an index of type {type(part).__name__}, expected integers, slices, ... or None; "
                    "for other indices use .numpy()"
                )
        if Ellipsis not in keys:
            # So that NumPy returns a view even when no axis is left.
            keys = (*keys, Ellipsis)
        view: npt.NDArray[Any] = self._host()[keys]
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a number or an array-like, on the CPU, after the work that uses the array."""
        self._check_writable()
        target = self._select(key)
        source = value.numpy() if isinstance(value, Array) else value
        wait_for_block(self._block)
        target[...] = source

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> Array:
        """Return a view of another shape; one length may be -1. Raises where only a copy could have that shape."""
        before = self._host()
        try:
            after = before.reshape(_sizes(shape, "reshape", -1))
        except ValueError as error:
            raise InvalidArgumentError(f"reshape: {error}") from None
        if after.size and not np.may_share_memory(before, after):
            raise InvalidArgumentError(
                f"reshape: an array of shape {self.shape} with strides {self.strides} has no view of shape "
                f"{after.shape}; make a copy first: .copy().reshape(...)"
            )
        return self._view(after)

    def transpose(self, *axes: SupportsIndex) -> Array:
        """Return a view with the axes in another order, reversed by default."""
        try:
            return self._view(self._host().transpose(*axes))
        except ValueError as error:
            raise InvalidArgumentError(f"transpose: {error}") from None

    @property
    def T(self) -> Array:
        """The view with its axes reversed."""
        return self.transpose()

    def view(self, dtype: npt.DTypeLike) -> Array:
        """Return a view that takes the same bytes as elements of another type."""
        try:
            return self._view(self._host().view(device_dtype(dtype)))
        except ValueError as error:
            raise InvalidArgumentError(f"view: {error}") from None

    # ---- contents

    def _host(self) -> npt.NDArray[Any]:
        """Return NumPy's view of the memory, without waiting."""
        if _device.forked:
            _device.refuse_fork()
        owner = self if self._base is None else self._base
        memory = owner._memory
        if memory is None:
            with _lease_lock:
                memory = owner._memory
                if memory is None:
                    memory = np.asarray(Lease(owner._block))
                    owner._memory = memory
                    # From here on the Lease gives the block back. An empty array's block is not its own.
                    owner._owned = None
        view: npt.NDArray[Any] = np.ndarray(self.shape, self.dtype, memory, self._offset, self._strides)
        return view

    def numpy(self) -> npt.NDArray[Any]:
        """Return a NumPy array of the same memory, without a copy, after the work that uses it.

        Work given afterwards is not waited for: call :func:`~mpscffi.synchronize` before looking again.

        Raises
        ------
        ExecutionError
            If that work failed and no wait has said so yet.
        """
        wait_for_block(self._block)
        view = self._host()
        if not self._writable:
            view.flags.writeable = False
        return view

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        view = self.numpy()
        if dtype is not None and view.dtype != dtype:
            if copy is False:
                raise InvalidArgumentError(
                    f"an array of {view.dtype} has no view of dtype {np.dtype(dtype)}: use copy=None"
                )
            return view.astype(dtype)
        return view.copy() if copy else view

    # No __buffer__: NumPy, asking for it first, would drop what a wait raises and take the contents all the same. Write
    # memoryview(array.numpy()).

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.numpy().__array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        """Export as DLPack, of CPU memory, after the work that uses the array; options as NumPy's."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._host().__dlpack_device__()

    def item(self, *index: SupportsIndex) -> Any:
        """Return one element as a Python number; without an index the array must have exactly one."""
        try:
            return self.numpy().item(*index)
        except ValueError as error:
            raise InvalidArgumentError(f"item: {error}") from None

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self.numpy().tolist()

    def copy(self) -> Array:
        """Return a new array in C order with the same contents."""
        return _filled_from(self.numpy())

    def astype(self, dtype: npt.DTypeLike) -> Array:
        """Return a new array in C order with the elements converted, as NumPy does it."""
        return _filled_from(self.numpy().astype(device_dtype(dtype)))

    def copy_from(self, source: Any, non_blocking: bool = False) -> Array:
        """Copy the contents of an array or array-like of the same shape, or of one that broadcasts to it.

        Parameters
        ----------
        source : Array or array-like
            May be changed as soon as this returns, also when it does not block.
        non_blocking : bool
            Queue the copy on the current stream instead of waiting for it.

        Returns
        -------
        Array
            This one.
        """
        self._check_writable()
        if isinstance(source, Array) and source.dtype == self.dtype and source.shape == self.shape:
            staged = source
        else:
            values = source.numpy() if isinstance(source, Array) else np.asarray(source)
            try:
                values = np.broadcast_to(values, self.shape)
            except ValueError:
                raise InvalidArgumentError(
                    f"copy_from: got a source of shape {values.shape}, expected {self.shape} or one that "
                    "broadcasts to it"
                ) from None
            if not non_blocking:
                wait_for_block(self._block)
                np.copyto(self._host(), values, casting="unsafe")
                return self
            staged = _filled_from(values.astype(self.dtype))
        if self._strides is None and staged._strides is None:
            if staged._block is self._block and 0 < abs(staged._offset - self._offset) < self.nbytes:
                staged = staged.copy()
            self._queue_copy(staged)
            if not non_blocking:
                wait_for_block(self._block)
        else:
            values = staged.numpy()
            wait_for_block(self._block)
            np.copyto(self._host(), values)
        return self

    def _queue_copy(self, source: Array) -> None:
        if not self.size or (source._block is self._block and source._offset == self._offset):
            return
        stream = current_stream()
        for block in (source._block, self._block):
            if block.stream is not stream:
                stream._adopt(block)
        check(
            lib.mps_queue_copy(
                stream._pointer, source._block.pointer, source._offset, self._block.pointer, self._offset, self.nbytes
            )
        )
        check(lib.mps_queue_commit(stream._pointer, ffi.NULL))

    def fill_(self, value: Any) -> Array:
        """Set all elements to a number, on the CPU, after the work that uses the array; return the array."""
        self[...] = value
        return self

    def _check_writable(self) -> None:
        if not self._writable:
            raise InvalidArgumentError("the array is read-only, as the host memory that it lies over")

    # ---- scalars and copies

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle, or a copy, holds the contents; it is made anew on the device in use where it is loaded.
        contents = np.ascontiguousarray(self.numpy()).reshape(self.shape)
        return _filled_from, (contents,)


_new: Callable[[type[Array]], Array] = object.__new__


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _sizes(shape: tuple[Any, ...], function: str, least: int = 0) -> tuple[int, ...]:
    """Read sizes given one by one or as one sequence."""
    if len(shape) == 1 and hasattr(shape[0], "__len__"):
        shape = shape[0]
    try:
        sizes = tuple(int(operator.index(size)) for size in shape)
    except TypeError:
        raise ArgumentTypeError(
            f"{function}: got the shape {shape!r}, expected integers or one sequence of them"
        ) from None
    for size in sizes:
        if size < least:
            raise InvalidArgumentError(f"{function}: got the shape {sizes}, expected no length below {least}")
    return sizes


def _allocate(shape: tuple[Any, ...], dtype: np.dtype[Any], function: str, host_bound: bool = False) -> Array:
    """Make an array with undefined contents.

    `shape` is as the caller gave it to the public `function`; the usual forms cost no further call.
    """
    if len(shape) == 1 and type(shape[0]) is tuple:
        shape = shape[0]
    size = 1
    for length in shape:
        if type(length) is not int or length < 0:
            return _allocate(_sizes(shape, function), dtype, function, host_bound)
        size *= length
    nbytes = size * dtype.itemsize
    device = _device._current or current_device()
    allocator = device._allocator or allocator_of(device)
    owned = allocator.take(nbytes, host_bound) if nbytes else None
    array = _new(Array)
    array._owned = owned
    array._block = owned or _no_bytes(device)
    array._base = None
    array._memory = None
    array._offset = 0
    array._strides = None
    array._writable = True
    array._plain = True
    array.dtype = dtype
    array.shape = shape
    array.size = size
    return array


_empty_blocks: dict[Device, Block] = {}


def _no_bytes(device: Device) -> Block:
    """Return the block that arrays without elements share, so that kernels can be given them."""
    block = _empty_blocks.get(device)
    if block is None:
        desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": 16})
        out = ffi.new("mps_buffer **")
        check(lib.mps_buffer_create(device._pointer, desc, out))
        # It counts for nothing, and stays.
        block = Block(device, out[0], 16, Counters(), _keep, 0)
        block = _empty_blocks.setdefault(device, block)
    return block


def _keep(block: Block) -> None:
    del block


def _contents(array: Array) -> npt.NDArray[Any]:
    """Return NumPy's view of a new array for the time of one function, which spares the Lease."""
    block = array._block
    memory = ffi.buffer(ffi.cast("char *", block.address), block.length)
    return np.ndarray(array.shape, array.dtype, memory)  # type: ignore[call-overload,no-any-return,unused-ignore]


def _filled_from(values: npt.NDArray[Any]) -> Array:
    array = _allocate(values.shape, storable(values.dtype), "asarray", host_bound=True)
    if array.size:
        np.copyto(_contents(array), values)
    return array


def empty(*shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike | None = None) -> Array:
    """Return an array with undefined contents.

    Parameters
    ----------
    *shape : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    """
    return _allocate(shape, DEFAULT if dtype is None else device_dtype(dtype), "empty")


def zeros(*shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike | None = None) -> Array:
    """Return an array of zeros.

    Parameters
    ----------
    *shape : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    """
    array = _allocate(shape, device_dtype(dtype), "zeros")
    block = array._block
    if array.size and not block.zeroed:
        stream = current_stream()
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
            _contents(array)[...] = fill_value
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(f"full: {error}") from None
    except TypeError as error:
        raise ArgumentTypeError(f"full: {error}") from None
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
        return from_numpy(values, copy=False)
    try:
        values = np.asarray(obj)
    except ValueError as error:
        raise InvalidArgumentError(f"asarray: {error}") from None
    if dtype is not None:
        return _filled_from(values.astype(device_dtype(dtype)))
    if not isinstance(obj, (np.ndarray, np.generic)) and not hasattr(obj, "__array_interface__"):
        values = values.astype({"float64": np.float32, "complex128": np.complex64}.get(values.dtype.name, values.dtype))
    return _filled_from(values)


def from_numpy(array: npt.NDArray[Any], *, copy: bool | None = None) -> Array:
    """Return an array over the memory of a NumPy array, or a copy where that is not possible.

    Memory can be shared if the NumPy array is in C order and native byte order, and its address and byte length are
    multiples of the device's page size (16384 bytes): that of ``mmap`` or of another :class:`Array`, seldom that of
    ``numpy.empty``. :attr:`Array.is_alias` tells.

    Parameters
    ----------
    array : numpy.ndarray
        Of a dtype that Metal has. A read-only one gives a read-only array.
    copy : bool, optional
        True: always copy. False: raise where memory cannot be shared. None: copy then.
    """
    if not isinstance(array, np.ndarray):
        raise ArgumentTypeError(f"from_numpy: got {type(array).__name__}, expected a numpy.ndarray")
    dtype = storable(array.dtype)
    page = current_device().page_size
    obstacle = ""
    if not array.flags.c_contiguous:
        obstacle = f"its strides {array.strides} are not those of C order"
    elif not array.dtype.isnative:
        obstacle = f"its byte order {array.dtype.byteorder!r} is not the device's"
    elif not array.size or array.ctypes.data % page or array.nbytes % page:
        obstacle = (
            f"its address {array.ctypes.data:#x} and length {array.nbytes} are not multiples of {page}, the page size"
        )
    if copy is False and obstacle:
        raise InvalidArgumentError(f"from_numpy: the memory cannot be used without a copy: {obstacle}")
    if copy or obstacle:
        return _filled_from(array)
    alias = _new(Array)
    alias._base = None
    alias._block = alias._owned = _alias_block(array)
    alias._memory = None
    alias._offset = 0
    alias._strides = None
    alias._writable = alias._plain = array.flags.writeable
    alias.dtype = dtype
    alias.shape = array.shape
    alias.size = array.size
    return alias


def _alias_block(array: npt.NDArray[Any]) -> Block:
    device = current_device()
    user = keep(array)
    desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": array.nbytes})
    out = ffi.new("mps_buffer **")
    pointer = ffi.cast("void *", array.ctypes.data)
    status = lib.mps_buffer_create_no_copy(device._pointer, pointer, desc, lib.mpscffi_release, user, out)
    if status:
        discard(user)
        check(status)
    return Block(device, out[0], array.nbytes, Counters(), Block.release, 0)


def from_dlpack(obj: Any, *, copy: bool | None = None) -> Array:
    """Return an array from an object with ``__dlpack__`` in CPU memory; memory is shared as by :func:`from_numpy`.

    Parameters
    ----------
    obj : object
        As ``numpy.from_dlpack`` takes it.
    copy : bool, optional
        As for :func:`from_numpy`.
    """
    if isinstance(obj, Array):
        return obj.copy() if copy else obj
    if not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        raise ArgumentTypeError(f"from_dlpack: got {type(obj).__name__}, expected an object with __dlpack__")
    return from_numpy(np.from_dlpack(obj), copy=copy)
