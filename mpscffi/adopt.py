"""Arrays over memory that was there before: of NumPy, behind a foreign pointer, of another Metal program, in a file.

A device can take over whole pages only, so address and length have to be multiples of its page size, 16384 bytes.
"""

from __future__ import annotations

import math
import operator
import os
import stat
import warnings
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from mpscffi._callbacks import ReleaseFunction, check_callable, discard, due, keep, new_user
from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle
from mpscffi._warning import outside
from mpscffi.array import Array, Lease, _allocate, _check_layout, _filled_from, _sizes, array_over
from mpscffi.device import Device, current_device
from mpscffi.dtypes import device_dtype, storable
from mpscffi.errors import ArgumentTypeError, CopyWarning, FileError, InvalidArgumentError, file_error
from mpscffi.memory.block import Block, Custody, Taker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    #: Creates a buffer. Takes the ``mps_release_fn`` to be called at its end, not if this fails; the user pointer for
    #: that; and where the buffer comes to. Returns the ``mps_status``.
    Create = Callable[[Any, Any, Any], int]

__all__ = ["from_file", "from_native", "from_numpy", "from_pointer"]

_MODES = {"r": (lib.MPSCFFI_READ, os.O_RDONLY), "r+": (lib.MPSCFFI_WRITE, os.O_RDWR),
          "c": (lib.MPSCFFI_COPY_ON_WRITE, os.O_RDONLY)}  # fmt: skip


def over_memory(device: Device, address: int, length: int) -> Create:
    """Return what creates a buffer over host memory: whole pages."""
    desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": length})
    pointer = ffi.cast("void *", address)
    return lambda release, user, out: lib.mps_buffer_create_no_copy(device._pointer, pointer, desc, release, user, out)


def over_native(device: Device, native: int) -> Create:
    """Return what creates a buffer over one of the device's own, by its address."""
    pointer = ffi.cast("void *", native)
    return lambda release, user, out: lib.mps_buffer_create_from_native(device._pointer, pointer, release, user, out)


def block_over(device: Device, buffer: Handle) -> Block:
    """Return a block over a buffer that was created; it counts for nothing in the statistics."""
    return Block(device, buffer, Custody.uncounted(Taker(Block.release)), 0)


def _block_of(owner: object, device: Device, create: Create) -> tuple[Block, Any]:
    """Return a block over memory that a Python object owns, and C's user pointer for that."""
    buffer, user = Handle("buffer"), new_user()
    try:
        keep(user, owner)
        check(create(lib.mpscffi_let_go, user, buffer.out))
        return block_over(device, buffer), user
    except BaseException:
        discard(user)
        raise


def page_fault(address: int, length: int, page: int) -> str:
    """Return why memory cannot be taken over; empty if it can."""
    if length and address % page == 0 and length % page == 0:
        return ""
    return f"its address {address:#x} and length {length} are not multiples of {page}, the page size"


def note_copy(function: str, obstacle: str) -> None:
    """Warn that what shares memory elsewhere was copied here."""
    warnings.warn(
        f"{function}: copied, since {obstacle}; changes of one are not seen in the other. Where that is meant, "
        "say copy=True",
        CopyWarning,
        stacklevel=outside(),
    )


# ---- NumPy


def from_numpy(array: npt.NDArray[Any], *, copy: bool | None = None) -> Array:
    """Return an array over the memory of a NumPy array, or, with a :class:`~mpscffi.errors.CopyWarning`, a copy.

    Memory can be shared if the NumPy array is in C order and native byte order, and its address and byte length are
    multiples of the device's page size (16384 bytes): that of ``mmap``, seldom that of ``numpy.empty``.
    :attr:`Array.is_alias` tells. The memory of another :class:`Array` is shared in any layout, as a view of it.

    Parameters
    ----------
    array : numpy.ndarray
        Of a dtype that Metal has. A read-only one gives a read-only array.
    copy : bool, optional
        True: always copy. False: raise where memory cannot be shared. None: copy then, and warn.
    """
    if not isinstance(array, np.ndarray):
        raise ArgumentTypeError(f"from_numpy: got {type(array).__name__}, expected a numpy.ndarray")
    dtype = storable(array.dtype)
    device = current_device()
    if copy:
        return _filled_from(array)
    if array.dtype.isnative and (own := _view_of_own(array, device)) is not None:
        return own
    obstacle = ""
    if not array.flags.c_contiguous:
        obstacle = f"its strides {array.strides} are not those of C order"
    elif not array.dtype.isnative:
        obstacle = f"its byte order {array.dtype.byteorder!r} is not the device's"
    else:
        obstacle = page_fault(array.ctypes.data, array.nbytes, device.page_size)
    if obstacle:
        if copy is False:
            raise InvalidArgumentError(f"from_numpy: the memory cannot be used without a copy: {obstacle}")
        if array.size:
            note_copy("from_numpy", obstacle)
        return _filled_from(array)
    block, _ = _block_of(array, device, over_memory(device, array.ctypes.data, array.nbytes))
    return array_over(block, dtype, array.shape, writable=array.flags.writeable)


def _view_of_own(array: npt.NDArray[Any], device: Device) -> Array | None:
    """Return the view of an array of ours, if the memory is one's."""
    memory: Any = array
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    lease = memory.base
    if not isinstance(lease, Lease) or lease._block.device is not device or not array.size:
        return None
    offset = array.ctypes.data - lease._block.address
    strides = None if array.flags.c_contiguous else array.strides
    # The Lease owns the block.
    view = array_over(lease._block, array.dtype, array.shape, offset, strides, array.flags.writeable, owned=False)
    view._memory = memory
    return view


# ---- foreign memory


def from_pointer(
    address: SupportsIndex,
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: npt.DTypeLike | None = None,
    *,
    length: int | None = None,
    release: Callable[[], object] | None = None,
    writable: bool = True,
) -> Array:
    """Return an array over memory that somebody else allocated, without a copy.

    Parameters
    ----------
    address : int
        Where the memory begins: a multiple of the device's page size, 16384 bytes.
    shape : int or sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    length : int, optional
        Bytes that the memory has, a multiple of the page size too; by default just what the elements take.
    release : callable, optional
        Called once, without arguments, when nobody uses the memory any more: neither an array or export of it nor work
        that was queued. It is called on any thread, must not wait for work, and what it raises goes to
        ``sys.unraisablehook``. It is not called if this function raises, nor for arrays that live to the end of the
        process.
    writable : bool
        Whether arrays over it may be written.
    """
    try:
        start = operator.index(address)
    except TypeError:
        raise ArgumentTypeError(
            f"from_pointer: got an address of type {type(address).__name__}, expected an integer"
        ) from None
    if release is not None:
        check_callable(release, 0, "from_pointer: release")
    sizes = _sizes((shape,), "from_pointer")
    element = device_dtype(dtype)
    _check_layout(sizes, element, "from_pointer")
    needed = math.prod(sizes) * element.itemsize
    try:
        length = needed if length is None else operator.index(length)
    except TypeError:
        raise ArgumentTypeError(
            f"from_pointer: got a length of type {type(length).__name__}, expected an integer"
        ) from None
    device = current_device()
    page = device.page_size
    if start <= 0 or start % page or start >= 1 << 64:
        raise InvalidArgumentError(
            f"from_pointer: got the address {start:#x}, expected a multiple of {page}, the device's page size: "
            "allocate by mmap, or by posix_memalign with that alignment"
        )
    if length % page or length <= 0:
        raise InvalidArgumentError(
            f"from_pointer: got a length of {length} bytes, expected a multiple of {page}, the device's page size: "
            "if the memory is longer than its elements, say by length= how long"
        )
    if start + length > 1 << 64:
        raise InvalidArgumentError(
            f"from_pointer: got a length of {length} bytes, but from {start:#x} there are {(1 << 64) - start} addresses"
        )
    if length < needed:
        raise InvalidArgumentError(
            f"from_pointer: shape {sizes} of {element} takes {needed} bytes, but length says {length}"
        )
    block = _block_to_release(device, over_memory(device, start, length), release)
    return array_over(block, element, sizes, writable=bool(writable))


def _block_to_release(device: Device, create: Create, release: Callable[[], object] | None) -> Block:
    if release is None:
        buffer = Handle("buffer")
        check(create(ffi.NULL, ffi.NULL, buffer.out))
        return block_over(device, buffer)
    block, user = _block_of(ReleaseFunction(release), device, create)
    token = int(ffi.cast("uintptr_t", user))

    def give_back(block: Block) -> None:
        # From now on only queued work delays the call: the interpreter's exit waits for it.
        due.add(token)
        block.release()

    block.custody = Custody.uncounted(Taker(give_back))
    return block


# ---- Metal buffers


def from_native(
    native: SupportsIndex,
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: npt.DTypeLike | None = None,
    offset: int = 0,
    *,
    release: Callable[[], object] | None = None,
    writable: bool = True,
) -> Array:
    """Return an array over an ``id<MTLBuffer>`` that somebody else made on the Metal device in use, without a copy.

    The buffer is retained as long as the array, an export of it or queued work needs it. What somebody else has queued
    that uses it is not waited for.

    Parameters
    ----------
    native : int
        Address of the live object: ``objc.pyobjc_id(buffer)`` with PyObjC, :attr:`Array.native` of an array.
    shape : int or sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    offset : int
        Bytes before the first element. Kernels need a multiple of the element's size.
    release : callable, optional
        As for :func:`from_pointer`.
    writable : bool
        Whether arrays over it may be written.

    Raises
    ------
    InvalidArgumentError
        If it is no buffer, of another device, or too short.
    UnsupportedError
        If the host device is in use, or the buffer's storage is neither shared nor private.
    """
    values = []
    for name, value in (("an address", native), ("an offset", offset)):
        try:
            values.append(operator.index(value))
        except TypeError:
            raise ArgumentTypeError(
                f"from_native: got {name} of type {type(value).__name__}, expected an integer"
            ) from None
    address, offset = values
    if not 0 < address < 1 << 64:
        raise InvalidArgumentError(f"from_native: got the address {address:#x}, expected that of an id<MTLBuffer>")
    if release is not None:
        check_callable(release, 0, "from_native: release")
    sizes = _sizes((shape,), "from_native")
    element = device_dtype(dtype)
    _check_layout(sizes, element, "from_native")
    device = current_device()
    create = over_native(device, address)
    needed, length = math.prod(sizes) * element.itemsize, native_length(device, create)
    if not 0 <= offset <= length - needed:
        raise InvalidArgumentError(
            f"from_native: shape {sizes} of {element} takes {needed} bytes, but from offset {offset} on the buffer of "
            f"{length} bytes does not have so many"
        )
    block = _block_to_release(device, create, release)
    return array_over(block, element, sizes, offset, writable=bool(writable))


def native_length(device: Device, create: Create) -> int:
    """Return the bytes of a buffer of the device's own, which is let go of at once."""
    buffer = Handle("buffer")
    check(create(ffi.NULL, ffi.NULL, buffer.out))
    return block_over(device, buffer).length


# ---- files


def from_file(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
    offset: int = 0,
    *,
    mode: str = "r",
) -> Array:
    """Return an array over a file that is mapped into memory: nothing is read before it is used.

    Parameters
    ----------
    path : path-like
        An existing file. It must not get shorter while the array lives.
    dtype : dtype-like, optional
        float32 by default.
    shape : int or sequence of int, optional
        Elements along each axis. By default one axis, to the end of the file.
    offset : int
        Bytes before the first element. Kernels need a multiple of the element's size.
    mode : str
        "r": the array is read-only. "r+": writes go to the file. "c": writes stay in this process.
    """
    element = device_dtype(dtype)
    if mode not in _MODES:
        raise InvalidArgumentError(f"from_file: got the mode {mode!r}, expected one of {', '.join(map(repr, _MODES))}")
    try:
        offset = operator.index(offset)
    except TypeError:
        raise ArgumentTypeError(
            f"from_file: got an offset of type {type(offset).__name__}, expected an integer"
        ) from None
    access, flags = _MODES[mode]
    try:
        # Not blocking, since a named pipe would otherwise wait here for somebody who writes to it.
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise file_error(error, os.fspath(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise InvalidArgumentError(f"from_file: {os.fspath(path)!r} is no regular file, and cannot be mapped")
        sizes = _sizes_in_file(path, os.fstat(file).st_size, element, shape, offset)
        nbytes = math.prod(sizes) * element.itemsize
        if not nbytes:
            return _allocate(sizes, element, "from_file")
        device = current_device()
        page = max(device.page_size, os.sysconf("SC_PAGESIZE"))
        head = offset % page
        buffer = Handle("buffer")
        status = lib.mpscffi_map_buffer(device._pointer, file, offset - head, head + nbytes, page, access, buffer.out)
        if status < 0:
            raise FileError(ffi.errno, os.strerror(ffi.errno), os.fspath(path))
        check(status)
    finally:
        os.close(file)
    return array_over(block_over(device, buffer), element, sizes, head, writable=mode != "r")


def _sizes_in_file(
    path: str | os.PathLike[str], file_size: int, element: np.dtype[Any], shape: Any, offset: int
) -> tuple[int, ...]:
    """Return the array's shape, after checks that the file has all of it."""
    name = os.fspath(path)
    if not 0 <= offset <= file_size:
        raise InvalidArgumentError(f"from_file: got offset {offset}, but {name!r} has {file_size} bytes")
    if shape is None:
        count, rest = divmod(file_size - offset, element.itemsize)
        if rest:
            raise InvalidArgumentError(
                f"from_file: the {file_size - offset} bytes of {name!r} from offset {offset} are no multiple of "
                f"{element.itemsize}, the size of a {element}: say the shape"
            )
        return (count,)
    sizes = _sizes((shape,), "from_file")
    end = offset + math.prod(sizes) * element.itemsize
    if end > file_size:
        raise InvalidArgumentError(
            f"from_file: shape {sizes} of {element} from offset {offset} ends at byte {end}, but {name!r} has "
            f"{file_size}"
        )
    return sizes
