"""Where heaps come from: the device's driver. The allocator's policy knows it by this interface alone."""

from __future__ import annotations

from mpscffi._callbacks import _running
from mpscffi._ffi import check, error_message, ffi, lib
from mpscffi.memory.block import buffer_in_use
from mpscffi.stream import current_stream, live_streams, wait_unnoticed

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any, Protocol

    from mpscffi.device import Device
    from mpscffi.memory.heap import Heap
    from mpscffi.stream import Stream

    class MemorySource(Protocol):
        """What the allocator asks of a device, a real or a simulated one."""

        device: Any
        recommended: int  # bytes that can be used without hurting the system
        longest: int  # bytes of the largest buffer
        page: int
        #: Whether a new heap is all zeros.
        is_zeroed: bool

        def allocated(self) -> int:
            """Return the bytes that the driver holds for this process."""

        def size_and_align(self, length: int, is_private: bool) -> tuple[int, int]:
            """Return the bytes that a buffer takes in a heap, and what its offset is a multiple of."""

        def create_heap(self, heap: Heap, size: int, is_private: bool, is_tracked: bool) -> tuple[Any, int]:
            """Return a handle for a heap and its size; MemoryError when the driver has none.

            The handle is ``heap.making[0]`` from the moment that it exists.
            """

        def create_buffers(
            self, heap: Heap, offset: int, size: int, count: int, is_private: bool
        ) -> tuple[list[Any], list[int]]:
            """Return buffers, one after the other, and their addresses, 0 in private memory.

            They are in ``heap.making`` from the moment that they exist.
            """

        # Of a real device, these are functions in C, which no exception of a signal handler keeps from their job.

        def release_heap(self, handle: Any, /) -> object:
            """Give a heap's handle back, if there is one. Its memory stays until work has done with its buffers."""

        def release_buffer(self, pointer: Any, /) -> object:
            """Give a buffer back, if there is one. It stays until work has done with it."""

        def drop_buffers(self, making: Any, count: int, /) -> object:
            """Give those back that :meth:`create_buffers` has made so far."""

        def in_use(self, pointer: Any) -> bool:
            """Return whether queued or running work uses a buffer."""

        def current_stream(self) -> Any:
            """Return the stream that the calling thread's work goes to."""

        def commit(self) -> None:
            """Submit all work."""

        def wait(self, seconds: float) -> None:
            """Submit all work and wait until it is complete, for so long at most. Takes no failure away."""


class DriverMemory:
    """The memory of a device, by the C library.

    Parameters
    ----------
    device : Device
        Whose.
    """

    __slots__ = ("device", "is_zeroed", "longest", "page", "recommended")

    release_heap = staticmethod(lib.mps_heap_release)
    release_buffer = staticmethod(lib.mps_buffer_release)
    drop_buffers = staticmethod(lib.mpscffi_drop_buffers)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recommended = device.recommended_max_working_set
        self.longest = device.max_buffer_length
        self.page = device.page_size
        # New pages of the system's; Metal leaves them undefined.
        self.is_zeroed = device.backend == "host"

    def allocated(self) -> int:
        """Return the bytes that the driver holds for this process."""
        return self.device.allocated_size()

    def size_and_align(self, length: int, is_private: bool) -> tuple[int, int]:
        """Return the bytes that a buffer takes in a heap, and what its offset is a multiple of."""
        desc = ffi.new(
            "mps_buffer_desc *",
            {
                "struct_size": ffi.sizeof("mps_buffer_desc"),
                "length": length,
                "storage_mode": lib.MPS_STORAGE_PRIVATE if is_private else lib.MPS_STORAGE_SHARED,
            },
        )
        out = ffi.new("uint64_t[2]")
        check(lib.mps_device_heap_size_and_align(self.device._pointer, desc, out, out + 1))
        return out[0], out[1]

    def create_heap(self, heap: Heap, size: int, is_private: bool, is_tracked: bool) -> tuple[Any, int]:
        """Return a handle for a heap and its size; MemoryError when the driver has none."""
        desc = ffi.new(
            "mps_heap_desc *",
            {
                "struct_size": ffi.sizeof("mps_heap_desc"),
                "size": size,
                "type": lib.MPS_HEAP_PLACEMENT,
                "storage_mode": lib.MPS_STORAGE_PRIVATE if is_private else lib.MPS_STORAGE_SHARED,
                "hazard_mode": lib.MPS_HAZARD_TRACKED if is_tracked else lib.MPS_HAZARD_UNTRACKED,
            },
        )
        heap.making = out = ffi.new("mps_heap **")
        status = lib.mps_heap_create(self.device._pointer, desc, out)
        if status == lib.MPS_STATUS_OUT_OF_MEMORY:
            raise MemoryError(error_message())
        check(status)
        sizes = ffi.new("uint64_t[2]")
        check(lib.mps_heap_get_size(out[0], sizes, sizes + 1))
        return out[0], sizes[0]

    def create_buffers(
        self, heap: Heap, offset: int, size: int, count: int, is_private: bool
    ) -> tuple[list[Any], list[int]]:
        """Return buffers, one after the other, and their addresses, 0 in private memory."""
        heap.making = buffers = ffi.new(_BUFFERS, count)
        addresses = ffi.new(_ADDRESSES, count)
        status = _make_buffers(heap.handle, offset, size, is_private, count, buffers, addresses)
        if status:
            check(status)
        if count == 1:
            return [buffers[0]], [addresses[0]]
        return ffi.unpack(buffers, count), ffi.unpack(addresses, count)

    def in_use(self, pointer: Any) -> bool:
        """Return whether queued or running work uses a buffer."""
        return buffer_in_use(pointer)

    def current_stream(self) -> Any:
        """Return the stream that the calling thread's work goes to."""
        return current_stream()

    def _streams(self) -> list[Stream]:
        return [stream for stream in live_streams() if stream.device is self.device]

    def commit(self) -> None:
        """Submit all work."""
        for stream in self._streams():
            stream.commit()

    def wait(self, seconds: float) -> None:
        """Submit all work and wait until it is complete, for so long at most. Takes no failure away."""
        # Later work of a stream waits for its callback, which may be the one that asks.
        wait_unnoticed([stream for stream in self._streams() if stream is not _running.stream], seconds)


_BUFFERS = ffi.typeof("mps_buffer *[]")
_ADDRESSES = ffi.typeof("uintptr_t[]")
_make_buffers = lib.mpscffi_make_buffers
