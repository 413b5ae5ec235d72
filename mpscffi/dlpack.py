"""Exchange of arrays with other packages by DLPack: legacy and versioned capsules, both ways.

Memory is unified, so an array is exported as the CPU's unless its Metal buffer is asked for. What is imported lies
where the CPU sees it, or is a Metal buffer of the device in use.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpscffi import device as _device
from mpscffi._callbacks import discard, keep, new_user
from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle
from mpscffi.adopt import block_over, native_length, note_copy, over_memory, over_native, page_fault
from mpscffi.array import Array, _c_strides, _filled_from, array_over
from mpscffi.device import current_device
from mpscffi.dtypes import device_dtype
from mpscffi.errors import ArgumentTypeError, BufferError, InvalidArgumentError, OutOfMemoryError
from mpscffi.stream import wait_for_block

if TYPE_CHECKING:
    import numpy.typing as npt

    from mpscffi.adopt import Create
    from mpscffi.memory.block import Block

__all__ = ["default_device", "export", "from_dlpack"]

CPU = 1
METAL = 8
READ_ONLY = 1
IS_COPIED = 2
MAJOR = 1

#: DLDataTypeCode and bits of each dtype.
_CODES = {
    "bool": (6, 8),
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    "float16": (2, 16),
    "float32": (2, 32),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
}
_NAMES = {code: name for name, code in _CODES.items()}
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "opaque handle ", 4: "bfloat", 5: "complex", 6: "bool"}
_DEVICES = {2: "CUDA", 3: "CUDA host", 4: "OpenCL", 7: "Vulkan", METAL: "Metal", 10: "ROCm", 13: "CUDA managed"}

# Names of capsules, as addresses: a capsule does not copy its name.
_PLAIN, _VERSIONED, _USED, _USED_VERSIONED = (
    int(ffi.cast("uintptr_t", name))
    for name in (lib.mpscffi_name, lib.mpscffi_name_versioned, lib.mpscffi_used, lib.mpscffi_used_versioned)
)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    # A prototype of our own: those of ctypes.pythonapi are everybody's.
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_capsule_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_capsule_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


def _own(name: str, result: Any, argument: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, argument)(int(ffi.cast("uintptr_t", ffi.addressof(lib, name))))


# These take and return Python objects, as no function of cffi's does.
_capsule_with = _own("mpscffi_capsule", ctypes.py_object, ctypes.c_void_p)
_capsule_spend = _own("mpscffi_capsule_spend", None, ctypes.py_object)


# ---- out


def default_device(array: Array) -> tuple[int, int]:
    """Return the DLPack device as which an array is exported unless told otherwise."""
    if _device.forked:
        _device.refuse_fork()
    if array.storage == "shared":
        return CPU, 0
    if array.device.backend == "metal":
        return METAL, array.device.index
    raise BufferError("__dlpack_device__: private memory of the host device is no DLPack device's: export .copy()")


def export(array: Array, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> Any:
    """Return a capsule; see :meth:`Array.__dlpack__`."""
    if stream is not None:
        raise InvalidArgumentError(f"__dlpack__: got stream={stream!r}, expected None: the work is waited for")
    versioned = max_version is not None and _pair(max_version, "max_version")[0] >= MAJOR
    device = default_device(array) if dl_device is None else _pair(dl_device, "dl_device")
    if device not in ((CPU, 0), (METAL, array.device.index)):
        raise BufferError(f"__dlpack__: got dl_device={device}, expected (1, 0) for the CPU or (8, index) for Metal")
    if device[0] == METAL and array.device.backend != "metal":
        raise BufferError(
            f"__dlpack__: got dl_device={device}, but the array is on the host device, not on a Metal one"
        )
    if copy:
        array = array.copy(storage="shared" if device[0] == CPU else array.storage)
    if device[0] == CPU:
        array._check_visible("__dlpack__")
    if not array._writable and not versioned:
        raise BufferError(
            "__dlpack__: a capsule before DLPack 1.0 cannot say that an array is read-only: ask by max_version=(1, 0), "
            "or for a copy"
        )
    code, bits = _code_of(array.dtype)
    numbers = ffi.new("int64_t[]", [*array.shape, *_in_elements(array)])
    data, offset = array._block.address + array._offset, 0
    if device[0] == METAL:
        data, offset = array.native or 0, array._offset
    elif not array.size:
        data = 0
    wait_for_block(array._block)
    flags = (0 if array._writable else READ_ONLY) | (IS_COPIED if copy else 0)
    user, cell = new_user(), ffi.gc(ffi.new("mpscffi_tensor *"), lib.mpscffi_drop_tensor)
    try:
        keep(user, array)
        if not lib.mpscffi_new_tensor(
            cell, versioned, flags, _dl_device(device), code, bits, data, offset, array.ndim, numbers, user
        ):
            raise OutOfMemoryError("__dlpack__: no memory for a DLPack tensor")
        return _capsule_with(int(ffi.cast("uintptr_t", cell)))
    except BaseException:
        discard(user)
        raise


@functools.cache
def _dl_device(device: tuple[int, int]) -> Any:
    return ffi.new("DLDevice *", device)[0]


@functools.cache
def _code_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    code = _CODES.get(dtype.name)
    if code is None:
        raise BufferError(f"__dlpack__: DLPack has no type for elements of {dtype}")
    return code


def _in_elements(array: Array) -> list[int]:
    """Return the strides as DLPack counts them."""
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        raise BufferError(f"__dlpack__: the strides {array.strides} are no multiples of an element's {size} bytes")
    return [stride // size for stride in array.strides]


def _pair(value: Any, name: str) -> tuple[int, int]:
    try:
        first, second = value
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"__dlpack__: got {name}={value!r}, expected two integers") from None


# ---- in


class _Layout(NamedTuple):
    """Where the elements of a tensor lie."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    before: int  # bytes in front of the first element
    length: int  # bytes from the lowest element's start to the highest one's end; 0 without elements

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in C order."""
        expected = _c_strides(self.shape, self.dtype.itemsize)
        return not self.length or all(
            n == 1 or a == b for n, a, b in zip(self.shape, self.strides, expected, strict=True)
        )


class _Tensor:
    """What a capsule holds. It stays the capsule's until :meth:`hand_over` or :meth:`spend`."""

    __slots__ = ("_names", "capsule", "device", "pointer", "tensor", "versioned")

    def __init__(self, capsule: Any) -> None:
        for names, kind in (
            ((_VERSIONED, _USED_VERSIONED), "DLManagedTensorVersioned *"),
            ((_PLAIN, _USED), "DLManagedTensor *"),
        ):
            if _capsule_is_valid(capsule, names[0]):
                self.capsule = capsule
                self.pointer = ffi.cast(kind, _capsule_pointer(capsule, names[0]))
                self._names = names
                self.versioned = names[0] == _VERSIONED
                break
        else:
            raise BufferError(
                f"from_dlpack: got {capsule!r}, expected a capsule named 'dltensor' or 'dltensor_versioned' that "
                "nobody has consumed"
            )
        if self.versioned and self.pointer.version.major != MAJOR:
            version = self.pointer.version
            raise BufferError(f"from_dlpack: got DLPack {version.major}.{version.minor}, expected {MAJOR}.x")
        self.tensor = self.pointer.dl_tensor
        self.device = self.tensor.device.device_type, self.tensor.device.device_id
        _check_device(self.device)

    @property
    def flags(self) -> int:
        """The flags; a legacy tensor has none."""
        return int(self.pointer.flags) if self.versioned else 0

    def hand_over(self, create: Create) -> Block:
        """Let a buffer own the tensor; the capsule does so until there is one."""
        release = ffi.addressof(lib, "mpscffi_delete_versioned" if self.versioned else "mpscffi_delete_tensor")
        buffer = Handle("buffer")
        try:
            _capsule_rename(self.capsule, self._names[1])
            check(create(release, self.pointer, buffer.out))
            return block_over(current_device(), buffer)
        except BaseException:
            if not buffer.pointer:
                _capsule_rename(self.capsule, self._names[0])
            raise

    def spend(self) -> None:
        """Take the tensor from the capsule, and end it."""
        _capsule_spend(self.capsule)

    def layout(self) -> _Layout:
        """Check all that the tensor says of itself, and return where its elements lie."""
        tensor = self.tensor
        dtype = _dtype_of(tensor.dtype)
        if tensor.ndim < 0 or (tensor.ndim and tensor.shape == ffi.NULL):
            raise BufferError(f"from_dlpack: the tensor says that it has {tensor.ndim} axes, and no shape")
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        if min(shape, default=0) < 0:
            raise BufferError(f"from_dlpack: the tensor's shape is {shape}, expected no length below 0")
        if tensor.strides == ffi.NULL:
            strides = _c_strides(shape, dtype.itemsize)
        else:
            strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
        if 0 in shape:
            return _Layout(dtype, shape, strides, 0, 0)
        if tensor.data == ffi.NULL:
            raise BufferError(f"from_dlpack: the tensor of shape {shape} has no memory")
        reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        before = -sum(min(0, step) for step in reach)
        return _Layout(dtype, shape, strides, before, before + sum(max(0, step) for step in reach) + dtype.itemsize)

    def seen(self, layout: _Layout) -> npt.NDArray[Any]:
        """Return NumPy's view of the CPU's memory."""
        if not layout.length:
            return np.empty(layout.shape, layout.dtype)
        start = ffi.cast("char *", self.tensor.data) + self.tensor.byte_offset - layout.before
        memory = ffi.buffer(start, layout.length)
        view: npt.NDArray[Any] = np.ndarray(layout.shape, layout.dtype, memory, layout.before, layout.strides)
        return view


def _check_device(device: Any) -> None:
    kind, number = _pair(device, "__dlpack_device__()")
    current = current_device()
    expected = "the CPU's (1): bring it there first"
    if kind == CPU or (kind == METAL and (current.backend, current.index) == ("metal", number)):
        return
    if current.backend == "metal":
        expected = f"the CPU's (1), or that of the Metal device in use ({METAL}), number {current.index}"
    elif kind == METAL:
        expected = "the CPU's (1), since the host device is in use: bring it there first, or use the Metal device"
    raise BufferError(
        f"from_dlpack: got memory of DLPack device {kind} ({_DEVICES.get(kind, 'unknown')}), number {number}, "
        f"expected {expected}"
    )


def _dtype_of(described: Any) -> np.dtype[Any]:
    name = _NAMES.get((described.code, described.bits))
    if name is None or described.lanes != 1:
        text = f"{_KINDS.get(described.code, f'type {described.code}, ')}{described.bits}"
        if described.lanes != 1:
            text += f" x {described.lanes}"
        raise ArgumentTypeError(f"from_dlpack: got elements of {text}, expected one of {', '.join(_CODES)}")
    return device_dtype(name)


def from_dlpack(obj: Any, *, copy: bool | None = None) -> Array:
    """Return an array over the memory of another package's, or, with a :class:`~mpscffi.errors.CopyWarning`, a copy.

    Memory of the CPU's can be shared as by :func:`from_numpy`, a Metal buffer of the device in use always. A capsule
    whose contents cannot be taken is left as it was.

    Parameters
    ----------
    obj : object
        Has ``__dlpack__`` and ``__dlpack_device__``, or is a capsule of theirs. What it has queued that writes its
        memory is not waited for: say ``torch.mps.synchronize()``, ``mlx.core.eval(...)`` first.
    copy : bool, optional
        True: always copy. False: raise where memory cannot be shared. None: copy then, and warn.
    """
    if isinstance(obj, Array):
        return obj.copy(storage=obj.storage) if copy else obj
    if type(obj).__name__ == "PyCapsule":
        capsule = obj
    elif hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        _check_device(obj.__dlpack_device__())
        capsule = _capsule_of(obj, copy)
    else:
        raise ArgumentTypeError(f"from_dlpack: got {type(obj).__name__}, expected an object with __dlpack__")
    tensor = _Tensor(capsule)
    layout = tensor.layout()
    if copy is False and tensor.flags & IS_COPIED:
        raise InvalidArgumentError("from_dlpack: copy=False, but the producer made a copy")
    if tensor.device[0] == METAL and layout.length:
        return _from_metal(tensor, layout, bool(copy))
    return _from_memory(tensor, layout, copy)


def _from_metal(tensor: _Tensor, layout: _Layout, copy: bool) -> Array:
    create = over_native(current_device(), int(ffi.cast("uintptr_t", tensor.tensor.data)))
    length, offset = native_length(current_device(), create), tensor.tensor.byte_offset
    start = offset - layout.before
    if start < 0 or start + layout.length > length:
        raise BufferError(
            f"from_dlpack: the tensor of shape {layout.shape} takes bytes {start} to {start + layout.length} of a "
            f"Metal buffer that has {length}"
        )
    array = array_over(
        tensor.hand_over(create),
        layout.dtype,
        layout.shape,
        offset,
        None if layout.is_contiguous else layout.strides,
        not tensor.flags & READ_ONLY,
    )
    return array.copy(storage=array.storage) if copy else array


def _from_memory(tensor: _Tensor, layout: _Layout, copy: bool | None) -> Array:
    values = tensor.seen(layout)
    if not layout.is_contiguous:
        obstacle = f"its strides {values.strides} are not those of C order"
    else:
        obstacle = page_fault(values.ctypes.data, values.nbytes, current_device().page_size)
    if copy is False and obstacle:
        raise InvalidArgumentError(f"from_dlpack: the memory cannot be used without a copy: {obstacle}")
    if copy or obstacle:
        if not copy and values.size and not tensor.flags & IS_COPIED:
            note_copy("from_dlpack", obstacle)
        array = _filled_from(values)
        tensor.spend()
        return array
    block = tensor.hand_over(over_memory(current_device(), values.ctypes.data, values.nbytes))
    return array_over(block, layout.dtype, layout.shape, writable=not tensor.flags & READ_ONLY)


def _capsule_of(obj: Any, copy: bool | None) -> Any:
    """Ask for a capsule, a versioned one if the producer knows those."""
    try:
        # A copy is made here, where it is needed, rather than there, where it would be copied again.
        return obj.__dlpack__(max_version=(MAJOR, 0), **({"copy": False} if copy is False else {}))
    except TypeError:
        # A producer from before DLPack 1.0.
        return obj.__dlpack__()
