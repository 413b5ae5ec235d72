"""Devices: the GPU of a Mac through Metal, and the CPU of any machine."""

from __future__ import annotations

import os
import threading

from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle, ProcessBound
from mpscffi.errors import ArgumentTypeError, ForkedError, InvalidArgumentError, UnavailableError

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from mpscffi.memory.allocator import Allocator
    from mpscffi.stream import Stream

__all__ = [
    "Device",
    "current_device",
    "device_count",
    "devices",
    "get_core_count",
    "get_name",
    "is_available",
    "set_device",
    "why_unavailable",
]

_KINDS = {"metal": lib.MPS_DEVICE_METAL, "host": lib.MPS_DEVICE_HOST}
_allocated_size = lib.mpscffi_allocated_size
#: What it returns after an error.
_NO_SIZE = (1 << 64) - 1


class Device(ProcessBound):
    """A device that runs Metal kernels. There is one object for each; see :func:`devices` and :func:`current_device`.

    Attributes
    ----------
    backend : str
        "metal" for a GPU, "host" for the CPU.
    index : int
        Its number among the devices of its backend.
    name : str
        As the system calls it.
    core_count : int
        GPU cores, or the CPU cores that this process may use.
    registry_id : int
        Tells devices apart until the next boot.
    recommended_max_working_set : int
        Bytes that can be used without hurting the system.
    max_buffer_length : int
        Bytes that one array can have.
    max_threads_per_threadgroup : tuple of int
        Limit of each dimension of ``group_size``.
    max_total_threads_per_threadgroup : int
        Limit of their product; a kernel's own may be lower.
    max_threadgroup_memory : int
        Bytes, static and dynamic together.
    thread_execution_width : int
        Threads of a SIMD-group.
    max_buffer_slots : int
        Buffer arguments that a kernel can have.
    max_inline_bytes : int
        Bytes of a scalar or list argument.
    page_size : int
        Alignment of address and length of host memory that can be used without a copy.
    has_unified_memory : bool
        Whether CPU and device share one memory.
    """

    __slots__ = (
        "_allocator",
        "_default_stream",
        "_handle",
        "_pointer",
        "backend",
        "core_count",
        "has_unified_memory",
        "index",
        "max_buffer_length",
        "max_buffer_slots",
        "max_inline_bytes",
        "max_threadgroup_memory",
        "max_threads_per_threadgroup",
        "max_total_threads_per_threadgroup",
        "name",
        "page_size",
        "recommended_max_working_set",
        "registry_id",
        "thread_execution_width",
    )

    # Set by the modules that own them, at first use.
    _allocator: Allocator | None
    _default_stream: Stream | None

    def __init__(self, backend: str, index: int = 0) -> None:
        if not isinstance(backend, str) or not hasattr(index, "__index__"):
            raise ArgumentTypeError(
                f"Device: got a backend of type {type(backend).__name__} and an index of type {type(index).__name__}, "
                "expected a str and an int"
            )
        if backend not in _KINDS:
            raise InvalidArgumentError(f'Device: got backend {backend!r}, expected "metal" or "host"')
        if index < 0:
            raise InvalidArgumentError(f"Device: got index {index}, expected 0 or more")
        self._handle = Handle("device")
        check(lib.mps_device_create(_KINDS[backend], index, self._handle.out))
        self._pointer = self._handle.pointer
        self._allocator = None
        self._default_stream = None
        info = ffi.new("mps_device_info *", {"struct_size": ffi.sizeof("mps_device_info")})
        check(lib.mps_device_get_info(self._pointer, info))
        self.backend = backend
        self.index = index
        self.name: str = ffi.string(info.name).decode("utf-8", "replace")
        self.max_threads_per_threadgroup: tuple[int, int, int] = tuple(info.max_threads_per_threadgroup)
        self.has_unified_memory = bool(info.has_unified_memory)
        self.core_count: int = info.core_count
        self.registry_id: int = info.registry_id
        self.recommended_max_working_set: int = info.recommended_max_working_set
        self.max_buffer_length: int = info.max_buffer_length
        self.max_total_threads_per_threadgroup: int = info.max_total_threads_per_threadgroup
        self.max_threadgroup_memory: int = info.max_threadgroup_memory
        self.thread_execution_width: int = info.thread_execution_width
        self.max_buffer_slots: int = info.max_buffer_slots
        self.max_inline_bytes: int = info.max_inline_bytes
        self.page_size: int = info.page_size

    def __repr__(self) -> str:
        return f"<mpscffi.Device {self.backend}:{self.index} {self.name!r}>"

    @property
    def handle(self) -> Any:
        """The ``mps_device *`` of the C library, borrowed, for other bindings of it."""
        return self._pointer

    def allocated_size(self) -> int:
        """Return the bytes that the device holds for this process now, by whomever allocated."""
        size: int = _allocated_size(self._pointer)
        if size == _NO_SIZE:
            # Once more, for the error.
            check(lib.mps_device_allocated_size(self._pointer, ffi.new("uint64_t *")))
        return size

    def timestamps(self) -> tuple[int, int]:
        """Return one moment on the CPU's monotonic clock and on the device's, in nanoseconds."""
        out = ffi.new("uint64_t[2]")
        check(lib.mps_device_timestamps(self._pointer, out, out + 1))
        return out[0], out[1]


_lock = threading.RLock()
_opened: dict[tuple[str, int], Device] = {}
_current: Device | None = None
#: True in a process that was forked from one that uses a device.
forked = False


def refuse_fork() -> NoReturn:
    """Raise what every use of a device raises in such a process; for answers that need no call of the C library."""
    raise ForkedError("this process was forked from one that uses a device: start it by spawn instead")


def _count(backend: str) -> int:
    out = ffi.new("uint32_t *")
    check(lib.mps_device_count(_KINDS[backend], out))
    count: int = out[0]
    return count


def _open(backend: str, index: int = 0) -> Device:
    with _lock:
        device = _opened.get((backend, index))
        if device is None:
            device = _opened[backend, index] = Device(backend, index)
            if len(_opened) == 1:
                _profile_from_environment()
        return device


def _profile_from_environment() -> None:
    from mpscffi.config import settings

    wanted = settings()
    if wanted.log_profile_info or wanted.trace_signposts:
        from mpscffi.profile_log import begin

        begin(wanted.log_profile_info, wanted.trace_signposts)


def device_count() -> int:
    """Return the number of Metal devices: 0 without Metal. Never raises."""
    try:
        return _count("metal")
    except ForkedError:
        return 0


def is_available() -> bool:
    """Return whether there is a Metal device. Without one everything runs on the host device."""
    return device_count() > 0


def why_unavailable() -> str:
    """Return why there is no Metal device, in a sentence; empty if there is one."""
    reason: bytes = ffi.string(lib.mps_device_unavailable_reason(lib.MPS_DEVICE_METAL))
    return reason.decode("utf-8", "replace")


def devices() -> list[Device]:
    """Return all devices of this machine, Metal's first."""
    return [_open(backend, index) for backend in _KINDS for index in range(_count(backend))]


def current_device() -> Device:
    """Return the device in use: the one that was set, else what ``MPSCFFI_DEVICE`` asks for, else the best one."""
    return _current or _open_current()


def _open_current() -> Device:
    from mpscffi.config import settings

    global _current
    wanted = settings().device
    backend = ("metal" if _count("metal") else "host") if wanted == "auto" else wanted
    if not _count(backend):
        raise UnavailableError(f"MPSCFFI_DEVICE={wanted}, but there is no such device: {why_unavailable()}")
    with _lock:
        if _current is None:
            _current = _open(backend)
        return _current


def set_device(device: Device | str) -> None:
    """Set the device in use, for all threads.

    Parameters
    ----------
    device : Device or str
        A device, or "metal" or "host" for the first of that kind. Arrays, streams and libraries stay with the device
        that they were made for.
    """
    global _current
    if isinstance(device, str):
        device = _open(device)
    if not isinstance(device, Device):
        raise ArgumentTypeError(f'set_device: got {type(device).__name__}, expected a Device, "metal" or "host"')
    _current = device


def get_name() -> str:
    """Return the name of the device in use."""
    return current_device().name


def get_core_count() -> int:
    """Return the number of cores of the device in use."""
    return current_device().core_count


def _after_fork_in_child() -> None:
    # The C library refuses every call in such a child; forget the open device, so that each entry comes to such a call.
    global _current, _lock, forked
    _lock = threading.RLock()
    if _opened:
        forked = True
        _current = None
        _opened.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
