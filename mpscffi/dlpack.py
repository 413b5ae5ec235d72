"""Exchange of arrays with other packages by DLPack: legacy and versioned capsules, both ways.

Memory is unified, so an array is exported as the CPU's unless its Metal buffer is asked for. What is imported has to
lie where the CPU sees it.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpscffi import device as _device
from mpscffi._callbacks import discard, keep
from mpscffi._ffi import check, ffi, lib
from mpscffi.adopt import block_over, note_copy, page_fault
from mpscffi.array import Array, _c_strides, _filled_from, array_over
from mpscffi.device import current_device
from mpscffi.dtypes import device_dtype
from mpscffi.errors import ArgumentTypeError, BufferError, InvalidArgumentError, OutOfMemoryError
from mpscffi.stream import wait_for_block

if TYPE_CHECKING:
    import numpy.typing as npt

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


_capsule_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_capsule_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_capsule_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_capsule_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_capsule_end = int(ffi.cast("uintptr_t", ffi.addressof(lib, "mpscffi_capsule_end")))


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
        native = ffi.new("void **")
        check(lib.mps_buffer_native(array._block.pointer, native))
        data, offset = int(ffi.cast("uintptr_t", native[0])), array._offset
    elif not array.size:
        data = 0
    wait_for_block(array._block)
    flags = (0 if array._writable else READ_ONLY) | (IS_COPIED if copy else 0)
    token = keep(array)
    tensor = lib.mpscffi_new_tensor(
        versioned, flags, _dl_device(device), code, bits, data, offset, array.ndim, numbers, token
    )
    if not tensor:
        discard(token)
        raise OutOfMemoryError("__dlpack__: no memory for a DLPack tensor")
    return _capsule_new(int(ffi.cast("uintptr_t", tensor)), _VERSIONED if versioned else _PLAIN, _capsule_end)


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


class _Tensor:
    """What a capsule holds. It stays the capsule's until :meth:`consume`."""

    __slots__ = ("capsule", "pointer", "used", "versioned")

    def __init__(self, capsule: Any) -> None:
        for name, used, kind in (
            (_VERSIONED, _USED_VERSIONED, "DLManagedTensorVersioned *"),
            (_PLAIN, _USED, "DLManagedTensor *"),
        ):
            if _capsule_is_valid(capsule, name):
                self.capsule = capsule
                self.pointer = ffi.cast(kind, _capsule_pointer(capsule, name))
                self.used = used
                self.versioned = name == _VERSIONED
                return
        raise BufferError(
            f"from_dlpack: got {capsule!r}, expected a capsule named 'dltensor' or 'dltensor_versioned' that nobody "
            "has consumed"
        )

    @property
    def release(self) -> Any:
        """The function that ends the tensor, as an ``mps_release_fn``; the pointer is its user."""
        name = "mpscffi_delete_versioned" if self.versioned else "mpscffi_delete_tensor"
        return ffi.addressof(lib, name)

    @property
    def flags(self) -> int:
        """The flags; a legacy tensor has none."""
        return int(self.pointer.flags) if self.versioned else 0

    def consume(self) -> None:
        """Take the tensor from the capsule."""
        _capsule_rename(self.capsule, self.used)

    def delete(self) -> None:
        """End a tensor that was consumed."""
        self.release(self.pointer, ffi.NULL, 0)

    def seen(self) -> npt.NDArray[Any]:
        """Check all that the tensor says of itself, and return NumPy's view of its memory."""
        if self.versioned and self.pointer.version.major != MAJOR:
            version = self.pointer.version
            raise BufferError(f"from_dlpack: got DLPack {version.major}.{version.minor}, expected {MAJOR}.x")
        tensor = self.pointer.dl_tensor
        _check_device((tensor.device.device_type, tensor.device.device_id))
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
            return np.empty(shape, dtype)
        reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        before = sum(min(0, step) for step in reach)
        behind = sum(max(0, step) for step in reach) + dtype.itemsize
        if tensor.data == ffi.NULL:
            raise BufferError(f"from_dlpack: the tensor of shape {shape} has no memory")
        first = ffi.cast("char *", tensor.data) + tensor.byte_offset
        view: npt.NDArray[Any] = np.ndarray(shape, dtype, ffi.buffer(first + before, behind - before), -before, strides)
        return view


def _check_device(device: Any) -> None:
    kind, number = _pair(device, "__dlpack_device__()")
    if kind != CPU:
        raise BufferError(
            f"from_dlpack: got memory of DLPack device {kind} ({_DEVICES.get(kind, 'unknown')}), number {number}, "
            "expected the CPU's (1): bring it there first"
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

    Memory can be shared as by :func:`from_numpy`. A capsule whose contents cannot be taken is left as it was.

    Parameters
    ----------
    obj : object
        Has ``__dlpack__`` and ``__dlpack_device__``, or is a capsule of theirs. Its memory is the CPU's.
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
    values = tensor.seen()
    if copy is False and tensor.flags & IS_COPIED:
        raise InvalidArgumentError("from_dlpack: copy=False, but the producer made a copy")
    if not values.flags.c_contiguous:
        obstacle = f"its strides {values.strides} are not those of C order"
    else:
        obstacle = page_fault(values.ctypes.data, values.nbytes, current_device().page_size)
    if copy is False and obstacle:
        raise InvalidArgumentError(f"from_dlpack: the memory cannot be used without a copy: {obstacle}")
    if copy or obstacle:
        if not copy and values.size and not tensor.flags & IS_COPIED:
            note_copy("from_dlpack", obstacle)
        array = _filled_from(values)
        tensor.consume()
        tensor.delete()
        return array
    block = block_over(current_device(), values.ctypes.data, values.nbytes, tensor.release, tensor.pointer)
    tensor.consume()
    return array_over(block, values.dtype, values.shape, writable=not tensor.flags & READ_ONLY)


def _capsule_of(obj: Any, copy: bool | None) -> Any:
    """Ask for a capsule, a versioned one if the producer knows those."""
    try:
        # A copy is made here, where it is needed, rather than there, where it would be copied again.
        return obj.__dlpack__(max_version=(MAJOR, 0), **({"copy": False} if copy is False else {}))
    except TypeError:
        # A producer from before DLPack 1.0.
        return obj.__dlpack__()
