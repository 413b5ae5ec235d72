"""Arrays in device memory, with NumPy's dtypes, shapes and views.

On a device with unified memory an array's bytes are seen by CPU and device alike: :meth:`Array.numpy` is a view of
them, not a copy. Work that kernels do on an array is asynchronous; what looks at the contents here waits for it.
"""

from __future__ import annotations

import itertools
import math
import operator
import reprlib
import threading
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from mpscffi import device as _device
from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle
from mpscffi._warning import casting
from mpscffi.allocator import allocator_of
from mpscffi.device import Device, current_device
from mpscffi.dtypes import DEFAULT, device_dtype, storable
from mpscffi.errors import (
    ArgumentTypeError,
    BufferError,
    ExecutionError,
    InvalidArgumentError,
    UnsupportedError,
)
from mpscffi.memory.block import Block, Custody, Taker, give_back
from mpscffi.stream import current_stream, recordings, refuse_in_recording, wait_for_block
from mpscffi.tracing import cpu_copy

__all__ = ["Array", "array_over", "span"]

#: Stands for the address of private memory where NumPy computes layouts, which touches nothing.
NOWHERE = 1 << 20
#: As many as every NumPy has, and as the newest one has.
MANY_AXES, MOST_AXES = 32, 64
#: Ends the errors about read-only arrays.
HOW_TO_WRITE = (
    "map a file with mode='c', so that writes stay in this process, or mode='r+', so that they go to the file; or "
    "write to a .copy()"
)


class Lease:
    """Owns an array's block in its stead once NumPy has been shown the memory; every such view keeps it alive."""

    __slots__ = ("__array_interface__", "_block", "_owned")

    # What __del__ gives back; None until the array hands it over.
    _owned: Block | None

    def __init__(self, block: Block, writable: bool) -> None:
        self._owned = None
        self._block = block
        self.__array_interface__ = {
            "shape": (block.length,),
            "typestr": "|u1",
            # NumPy lets no view of read-only memory be made writable, and the pages may not be.
            "data": (block.address or NOWHERE, not writable),
            "version": 3,
        }

    def __del__(self) -> None:
        try:
            block = self._owned
        except AttributeError:  # an exception of a signal handler came before it was made
            return
        if block is not None:
            give_back(block)


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
        "_seen",
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
    # This array as NumPy sees it; None until asked for.
    _seen: npt.NDArray[Any] | None
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
        raise ArgumentTypeError(
            "Array: make one by empty, zeros, ones, full, asarray, from_numpy, from_dlpack, from_pointer, "
            "from_native or from_file"
        )

    def __del__(self) -> None:
        try:
            block = self._owned
        except AttributeError:  # as of a Lease
            return
        if block is not None:
            # As give_back does, without its call.
            custody = block.custody
            size = block.size
            custody.total.current -= size
            custody.pool.current -= size
            custody.bin.append(block)

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
    def storage(self) -> str:
        """Whether the CPU sees the memory too, "shared", or the device alone, "private"."""
        return "shared" if self._block.address else "private"

    @property
    def handle(self) -> Any:
        """The ``mps_buffer *`` of the C library, borrowed; the array begins :attr:`offset` bytes into it."""
        return self._block.pointer

    @property
    def native(self) -> int | None:
        """The address of the device's own buffer, an ``id<MTLBuffer>`` on Metal; None on the host device.

        Borrowed: keep the array, or retain the object. The array begins :attr:`offset` bytes into it. What is encoded
        elsewhere does not wait for the work of streams: call :func:`~mpscffi.synchronize` first.
        """
        out = ffi.new("void **")
        check(lib.mps_buffer_native(self._block.pointer, out))
        return int(ffi.cast("uintptr_t", out[0])) or None

    def __repr__(self) -> str:
        # Metadata only: the contents may not be there yet, or never.
        text = f"<mpscffi.Array shape={self.shape} dtype={self.dtype}"
        if self._strides is not None:
            text += f" strides={self._strides}"
        if self.storage != "shared":
            text += f" storage={self.storage}"
        return f"{text} device={self.device.backend}:{self.device.index}>"

    def __str__(self) -> str:
        """Return the contents as NumPy prints them, after the work that uses the array; of private memory the repr.

        While a graph is recorded it is the repr as well, since the contents are not there yet.
        """
        if self.storage != "shared" or (recordings and current_stream()._recording is not None):
            return repr(self)
        return str(self.numpy())

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.shape:
            raise ArgumentTypeError(
                f"format: got the format {spec!r} for an array of shape {self.shape}, expected one element, as x[0]; "
                "for a whole array there is numpy.array2string(x.numpy())"
            )
        return format(self.item(), spec)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of an array without axes")
        return self.shape[0]

    # ---- views

    def _view(self, of: npt.NDArray[Any]) -> Array:
        """Make the view that a NumPy view of this array's memory stands for."""
        start = self._block.address or NOWHERE
        offset = of.__array_interface__["data"][0] - start if of.size else self._offset
        strides = None if of.flags.c_contiguous else of.strides
        return array_over(self._block, of.dtype, of.shape, offset, strides, self._writable, self)

    def __getitem__(self, key: Any) -> Array:
        """Return a view: by integers, slices, ``...`` and None. With an integer for each axis it has no axes left."""
        return self._view(self._select(key))

    def _select(self, key: Any) -> npt.NDArray[Any]:
        keys = key if isinstance(key, tuple) else (key,)
        for part in keys:
            if not (part is None or part is Ellipsis or isinstance(part, slice)) and (
                isinstance(part, (bool, np.bool_, np.ndarray, Array)) or not hasattr(part, "__index__")
            ):
                raise ArgumentTypeError(
                    f"Array: got an index of type {type(part).__name__}, expected integers, slices, ... or None; "
                    "for other indices use .numpy()"
                )
        if Ellipsis not in keys:
            # So that NumPy returns a view even when no axis is left.
            keys = (*keys, Ellipsis)
        view: npt.NDArray[Any] = self._layout()[keys]
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a number or an array-like, on the CPU, after the work that uses the array."""
        self._assign(key, value, "assignment to elements")

    def _assign(self, key: Any, value: Any, function: str) -> None:
        """Do what `function` is called for."""
        self._check_writable()
        if recordings:
            refuse_in_recording("an assignment to elements", "use .fill_(0) or .copy_from(array, non_blocking=True)")
        if self.storage != "shared":
            self[key].copy_from(value)
            return
        target = self._select(key)
        source = value.numpy() if isinstance(value, Array) else value
        wait_for_block(self._block)
        is_many = getattr(source, "ndim", 0) or isinstance(source, (list, tuple))
        with casting(function), cpu_copy("host to shared" if is_many else "fill", target.nbytes):
            target[...] = source

    def __contains__(self, value: Any) -> bool:
        """Return whether an element equals a value, after the work that uses the array."""
        return value in self.numpy()

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> Array:
        """Return a view of another shape; one length may be -1. Raises where only a copy could have that shape."""
        before = self._layout()
        if self._strides is not None:
            # NumPy copies, which it must not, where there is no such view.
            self._check_visible("reshape")
        sizes = _sizes(shape, "reshape", -1)
        try:
            after = before.reshape(sizes)
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
            return self._view(self._layout().transpose(*axes))
        except ValueError as error:
            raise InvalidArgumentError(f"transpose: {error}") from None
        except TypeError as error:
            raise ArgumentTypeError(
                f"transpose: got {reprlib.repr(axes)}, expected the numbers of axes: {error}"
            ) from None

    @property
    def T(self) -> Array:
        """The view with its axes reversed."""
        return self.transpose()

    def view(self, dtype: npt.DTypeLike) -> Array:
        """Return a view that takes the same bytes as elements of another type."""
        try:
            return self._view(self._layout().view(device_dtype(dtype)))
        except ValueError as error:
            raise InvalidArgumentError(f"view: {error}") from None

    def __matmul__(self, other: Any) -> Array:
        """Return the product of matrices, as :func:`~mpscffi.matmul`."""
        if not isinstance(other, Array):
            raise _no_product(other)
        from mpscffi.linalg import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        raise _no_product(other)

    # ---- comparisons, and functions of NumPy's

    def __eq__(self, other: object) -> bool:
        """Refuse, since no kernel compares; None, and what is neither array nor number, never equals an array."""
        if isinstance(other, (np.ndarray, np.generic)):
            return NotImplemented  # NumPy compares the elements
        if isinstance(other, (Array, Number, list, tuple, range)) or hasattr(other, "__array__"):
            raise ArgumentTypeError(
                "Array: == and != do not compare the contents of arrays: let NumPy do it, as in "
                "(x.numpy() == y.numpy()).all(), or ask by `is` for the same object"
            )
        return NotImplemented

    # By identity.
    __hash__ = object.__hash__

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Let NumPy compute on the contents. A product with a NumPy array is refused: ``@`` is the device's."""
        if function is np.matmul:
            for operand in inputs:
                if not isinstance(operand, Array):
                    raise _no_product(operand)
        if "out" in keywords:
            keywords["out"] = tuple(map(_as_numpy, keywords["out"]))
        return getattr(function, method)(*map(_as_numpy, inputs), **keywords)

    # ---- contents

    def _layout(self) -> npt.NDArray[Any]:
        """Return this array as NumPy sees it; of private memory only what touches no element."""
        if self._seen is not None and not _device.forked:
            return self._seen
        if _device.forked:
            _device.refuse_fork()
        owner = self if self._base is None else self._base
        memory = owner._memory
        if memory is None:
            with _lease_lock:
                memory = owner._memory
                if memory is None:
                    lease = Lease(owner._block, owner._writable)
                    memory = np.asarray(lease)
                    # From here on the Lease gives the block back. No exception of a signal handler comes in between.
                    owner._memory, lease._owned, owner._owned = memory, owner._owned, None
        view: npt.NDArray[Any] = np.ndarray(self.shape, self.dtype, memory, self._offset, self._strides)
        if not self._writable:
            view.flags.writeable = False
        self._seen = view
        return view

    def _check_visible(self, function: str) -> None:
        if self.storage != "shared":
            raise UnsupportedError(
                f"{function}: the CPU does not see private memory; make a copy that it sees, by .copy() for an "
                "mpscffi.Array or .to_host() for a NumPy array, and write by .copy_from(...)"
            )

    def _host(self) -> npt.NDArray[Any]:
        """Return NumPy's view of the memory, without waiting. It is kept: a caller that gives it away makes another."""
        self._check_visible("numpy")
        return self._layout()

    def numpy(self) -> npt.NDArray[Any]:
        """Return a NumPy array of the same memory, without a copy, after the work that uses it.

        Work given afterwards is not waited for: call :func:`~mpscffi.synchronize` before looking again.

        Raises
        ------
        ExecutionError
            If that work failed and no wait has said so yet.
        UnsupportedError
            If the memory is private.
        """
        block = self._block
        if block.stream is not None or recordings:
            wait_for_block(block)
        seen = self._seen
        if seen is None or _device.forked or not block.address:
            seen = self._host()
        # Another one each time, since its shape and flags are the caller's to change.
        return seen[...]  # type: ignore[no-any-return, unused-ignore]

    def to_host(self) -> npt.NDArray[Any]:
        """Return a NumPy array with a copy of the contents, also of private memory."""
        if self.storage == "shared":
            return np.array(self.numpy())
        return self.copy().numpy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        view = self.numpy()
        if dtype is not None and view.dtype != dtype:
            if copy is False:
                raise InvalidArgumentError(
                    f"an array of {view.dtype} has no view of dtype {np.dtype(dtype)}: use copy=None"
                )
            return view.astype(dtype)
        return view.copy() if copy else view

    def __buffer__(self, flags: int) -> memoryview:
        """Export by the buffer protocol, from Python 3.12 on, after the work that uses the array."""
        try:
            view = self.numpy()
        except ExecutionError as failure:
            # Some callers, NumPy among them, drop what is raised here and ask for the contents in another way. So that
            # it is not lost, the stream's next wait raises it once more.
            if self._block.stream is not None:
                self._block.stream._callback_errors.append(failure)
            raise
        if self.dtype.kind == "V" and self.dtype.fields is None:
            raise BufferError(f"{self.dtype} has no buffer format: take .view('uint16')")
        del flags  # the memoryview's own export obeys them
        return view.data

    @property
    def __array_interface__(self) -> dict[str, Any]:
        view = self.numpy()
        if view.dtype.kind == "V" and view.dtype.fields is None:
            # bfloat16 would come out as two bytes of nothing in particular. NumPy asks __array__ then.
            raise AttributeError(f"{view.dtype} has no typestr")
        interface: dict[str, Any] = view.__array_interface__
        return interface

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export as DLPack, after the work that uses the array.

        Parameters
        ----------
        stream : None
            The CPU has no streams, and those of Metal no numbers.
        max_version : tuple of int, optional
            From (1, 0) on the capsule is a versioned one, which read-only arrays need.
        dl_device : tuple of int, optional
            (1, 0): as CPU memory, the default. (8, index): as the device's ``MTLBuffer`` and an offset, on Metal.
        copy : bool, optional
            True: always export a copy. False, None: never.
        """
        from mpscffi.dlpack import export

        return export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        from mpscffi.dlpack import default_device

        return default_device(self)

    def item(self, *index: SupportsIndex) -> Any:
        """Return one element as a Python number; without an index the array must have exactly one."""
        try:
            return self.numpy().item(*index)
        except ValueError as error:
            raise InvalidArgumentError(f"item: {error}") from None
        except TypeError as error:
            raise ArgumentTypeError(
                f"item: got {reprlib.repr(index)}, expected integers as an index: {error}"
            ) from None

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self.numpy().tolist()

    def copy(self, *, storage: str = "shared") -> Array:
        """Return a new array in C order with the same contents.

        Parameters
        ----------
        storage : str
            "shared" or "private", whatever this one's is.
        """
        from mpscffi.copies import duplicate

        return duplicate(self, "private" if _is_private(storage, "copy") else "shared")

    def astype(self, dtype: npt.DTypeLike) -> Array:
        """Return a new array in C order with the elements converted, as NumPy does it."""
        with casting("astype"):
            return _filled_from(self.numpy().astype(device_dtype(dtype)))

    def copy_from(self, source: Any, non_blocking: bool = False) -> Array:
        """Copy the contents of an array or array-like of the same shape, or of one that broadcasts to it.

        Parameters
        ----------
        source : Array or array-like
            Host memory may be changed as soon as this returns, also when it does not block. So may an Array, by what
            waits or is queued through this package; before its ``numpy()`` view is written to, synchronize. It may be
            given up at once in any case.
        non_blocking : bool
            Queue the copy on the current stream instead of waiting for it. Views with gaps are copied by the CPU, which
            waits all the same.

        Returns
        -------
        Array
            This one.
        """
        from mpscffi.copies import copy_into

        self._check_writable()
        copy_into(self, source, non_blocking)
        return self

    def fill_(self, value: Any) -> Array:
        """Set all elements to a number, on the CPU, after the work that uses the array; return the array."""
        recording = current_stream()._recording
        if recording is None:
            self._assign(..., value, "fill_")
        else:
            self._check_writable()
            recording.take_fill(self, value)
        return self

    def _check_writable(self) -> None:
        if _device.forked:
            _device.refuse_fork()
        if not self._writable:
            raise InvalidArgumentError(f"the array is read-only, as the host memory that it lies over: {HOW_TO_WRITE}")

    # ---- scalars and copies

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.shape or self.dtype.kind not in "biu":
            raise ArgumentTypeError(
                f"Array: got shape {self.shape} and dtype {self.dtype} where an index is wanted, expected an integer "
                "without axes"
            )
        return int(self.item())

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle, or a copy, holds the contents; it is made anew on the device in use where it is loaded.
        if self.storage != "shared":
            return _private_from, (self.to_host(),)
        contents = np.ascontiguousarray(self.numpy()).reshape(self.shape)
        return _filled_from, (contents,)


_new: Callable[[type[Array]], Array] = object.__new__


def _no_product(other: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"matmul: got {type(other).__name__} beside an mpscffi.Array, expected two of those: make one of it by "
        "mpscffi.asarray, or let NumPy multiply, by x.numpy()"
    )


def _as_numpy(operand: Any) -> Any:
    return operand.numpy() if isinstance(operand, Array) else operand


def array_over(
    block: Block,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
    writable: bool = True,
    view_of: Array | None = None,
    owned: bool = True,
) -> Array:
    """Return an array over a block, which it owns unless it is a view.

    Parameters
    ----------
    block : Block
        Of which the array's memory is a part.
    dtype, shape, offset, strides, writable
        As the array has them; strides None for C order.
    view_of : Array, optional
        What keeps the block alive.
    owned : bool
        False if something else keeps it alive, and owns it.
    """
    array = _new(Array)
    array._base = view_of if view_of is None or view_of._base is None else view_of._base
    array._block = block
    array._owned = block if owned and view_of is None else None
    array._memory = array._seen = None
    array._offset = offset
    array._strides = strides
    array._writable = writable
    array._plain = writable and strides is None
    array.dtype = dtype
    array.shape = shape
    array.size = math.prod(shape)
    return array


def span(array: Array, dtype: np.dtype[Any]) -> tuple[Array, int]:
    """Return the memory that holds an array's elements, for kernels that compute their places themselves.

    Parameters
    ----------
    array : Array
        Has elements.
    dtype : numpy.dtype
        What the memory is seen as, along one axis.

    Returns
    -------
    (Array, int)
        The memory, and bytes from its start to the array's first element.
    """
    reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(min(0, step) for step in reach)
    behind = sum(max(0, step) for step in reach) + array.itemsize
    shape = ((before + behind) // dtype.itemsize,)
    memory = array_over(array._block, dtype, shape, array._offset - before, None, array._writable, array)
    return memory, before


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
        # No more than is needed of what may have no end, as a range.
        sizes = tuple(int(operator.index(size)) for size in itertools.islice(shape, MOST_AXES + 1))
    except TypeError:
        raise ArgumentTypeError(
            f"{function}: got the shape {reprlib.repr(shape)}, expected integers or one sequence of them"
        ) from None
    if len(sizes) > MOST_AXES:
        raise InvalidArgumentError(f"{function}: got a shape of more than {MOST_AXES} axes, which no array can have")
    for size in sizes:
        if size < least:
            raise InvalidArgumentError(f"{function}: got the shape {sizes}, expected no length below {least}")
    return sizes


def _check_layout(shape: tuple[int, ...], dtype: np.dtype[Any], function: str) -> None:
    """Refuse what NumPy could not show: too many axes, or lengths that are too large even beside one of 0."""
    try:
        np.ndarray(shape, dtype, bytes(dtype.itemsize), 0, (0,) * len(shape))
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{function}: no array can have the shape {shape}: {error}") from None


def _allocate(
    shape: tuple[Any, ...], dtype: np.dtype[Any], function: str, host_bound: bool = False, private: bool = False
) -> Array:
    """Make an array with undefined contents.

    `shape` is as the caller gave it to the public `function`; the usual forms cost no further call.
    """
    if len(shape) == 1 and type(shape[0]) is tuple:
        shape = shape[0]
    size = 1
    for length in shape:
        if type(length) is not int or length < 0:
            return _allocate(_sizes(shape, function), dtype, function, host_bound, private)
        size *= length
    nbytes = size * (4 if dtype is DEFAULT else dtype.itemsize)
    if not nbytes or len(shape) > MANY_AXES:
        _check_layout(shape, dtype, function)
    if host_bound and recordings:
        refuse_in_recording("an array with contents that the CPU writes")
    device = _device._current or current_device()
    allocator = device._allocator or allocator_of(device)
    owned = allocator.take(nbytes, host_bound, private) if nbytes else None
    array = _new(Array)
    array._owned = owned
    array._block = owned or _no_bytes(device)
    array._base = array._memory = array._seen = array._strides = None
    array._offset = 0
    array._writable = array._plain = True
    array.dtype = dtype
    array.shape = shape
    array.size = size
    return array


def _is_private(storage: str, function: str) -> bool:
    if storage not in ("shared", "private"):
        raise InvalidArgumentError(f"{function}: got storage={storage!r}, expected 'shared' or 'private'")
    return storage == "private"


def _private_from(values: npt.NDArray[Any]) -> Array:
    return _filled_from(values).copy(storage="private")


_empty_blocks: dict[Device, Block] = {}


def _no_bytes(device: Device) -> Block:
    """Return the block that arrays without elements share, so that kernels can be given them."""
    block = _empty_blocks.get(device)
    if block is None:
        desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": 16})
        handle = Handle("buffer")
        check(lib.mps_buffer_create(device._pointer, desc, handle.out))
        # It counts for nothing, and stays.
        block = Block(device, handle, Custody.uncounted(Taker(_keep)), 0)
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


def _host_alias_storage(array: Array) -> npt.NDArray[np.uint8]:
    """Return an array's bytes as NumPy sees them, without a copy and without a wait.

    What ``torch.mps`` has for an UntypedStorage. The caller synchronizes before and after looking at them. They keep
    their memory alive, and cannot be resized.

    Parameters
    ----------
    array : Array
        In C order, of shared memory.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        raise InvalidArgumentError(
            f"_host_alias_storage: got a {type(array).__name__}, which lies in host memory already, expected an MPS "
            "storage: an mpscffi.Array"
        )
    if not isinstance(array, Array):
        raise ArgumentTypeError(
            f"_host_alias_storage: got {type(array).__name__}, expected an mpscffi.Array, which stands for torch's "
            "UntypedStorage here"
        )
    array._check_visible("_host_alias_storage")
    if array._strides is not None:
        raise InvalidArgumentError(
            f"_host_alias_storage: the bytes of an array with strides {array.strides} do not lie together: take those "
            "of the whole array"
        )
    return array._layout().reshape(-1).view(np.uint8)
