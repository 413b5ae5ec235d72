"""Arrays over memory that was there before: of NumPy, behind a foreign pointer, in a file.

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

from mpscffi._callbacks import ReleaseFunction, check_callable, discard, due, keep
from mpscffi._ffi import check, ffi, lib
from mpscffi._warning import outside
from mpscffi.array import Array, Lease, _allocate, _check_layout, _filled_from, _sizes, array_over
from mpscffi.device import Device, current_device
from mpscffi.dtypes import device_dtype, storable
from mpscffi.errors import ArgumentTypeError, CopyWarning, FileError, InvalidArgumentError, file_error
from mpscffi.memory.block import Block, Custody, Taker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

__all__ = ["from_file", "from_numpy", "from_pointer"]

_MODES = {"r": (lib.MPSCFFI_READ, os.O_RDONLY), "r+": (lib.MPSCFFI_WRITE, os.O_RDWR),
          "c": (lib.MPSCFFI_COPY_ON_WRITE, os.O_RDONLY)}  # fmt: skip


def block_over(device: Device, address: int, length: int, release: Any, user: Any) -> Block:
    """Return a block over host memory; it counts for nothing in the statistics.

    Parameters
    ----------
    device : Device
        What is to use it.
    address, length : int
        Whole pages.
    release : cdata
        An ``mps_release_fn`` to be called when nobody uses the memory any more; not if this raises.
    user : cdata
        What it is called with.
    """
    desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": length})
    out = ffi.new("mps_buffer **")
    check(lib.mps_buffer_create_no_copy(device._pointer, ffi.cast("void *", address), desc, release, user, out))
    return Block(device, out[0], length, Custody.uncounted(Taker(Block.release)), 0)


def _block_of(owner: object, device: Device, address: int, length: int) -> tuple[Block, Any]:
    """Return a block over host memory that a Python object owns, and C's user pointer for that."""
    user = keep(owner)
    try:
        return block_over(device, address, length, lib.mpscffi_let_go, user), user
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
    block, _ = _block_of(array, device, array.ctypes.data, array.nbytes)
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
    if release is None:
        block = block_over(device, start, length, ffi.NULL, ffi.NULL)
    else:
        block = _block_to_release(device, start, length, release)
    return array_over(block, element, sizes, writable=bool(writable))


def _block_to_release(device: Device, address: int, length: int, release: Callable[[], object]) -> Block:
    block, user = _block_of(ReleaseFunction(release), device, address, length)
    token = int(ffi.cast("uintptr_t", user))

    def give_back(block: Block) -> None:
        # From now on only queued work delays the call: the interpreter's exit waits for it.
        due.add(token)
        block.release()

    block.custody = Custody.uncounted(Taker(give_back))
    return block


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
        address = lib.mpscffi_map(file, offset - head, head + nbytes, page, access)
        if address == ffi.NULL:
            raise FileError(ffi.errno, os.strerror(ffi.errno), os.fspath(path))
    finally:
        os.close(file)
    length = -(-(head + nbytes) // page) * page
    try:
        block = block_over(device, int(ffi.cast("uintptr_t", address)), length, lib.mpscffi_unmap, ffi.NULL)
    except BaseException:
        lib.mpscffi_unmap(ffi.NULL, address, length)
        raise
    return array_over(block, element, sizes, head, writable=mode != "r")


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
