"""Where heaps come from: the device's driver. The allocator's policy knows it by this interface alone."""

from __future__ import annotations

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

        def create_buffer(self, heap: Heap, offset: int, size: int, is_private: bool) -> tuple[Any, int]:
            """Return a buffer and its address, 0 in private memory.

            The buffer is ``heap.making[0]`` from the moment that it exists.
            """

        # Of a real device, these two are functions in C, which no exception of a signal handler keeps from their job.

        def release_heap(self, handle: Any, /) -> object:
            """Give a heap's handle back, if there is one. Its memory stays until work has done with its buffers."""

        def release_buffer(self, pointer: Any, /) -> object:
            """Give a buffer back, if there is one. It stays until work has done with it."""

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

    @staticmethod
    def _buffer_desc(length: int, is_private: bool) -> Any:
        desc = ffi.new("mps_buffer_desc *")
        desc.struct_size = _DESC_SIZE
        desc.length = length
        if is_private:
            desc.storage_mode = lib.MPS_STORAGE_PRIVATE
        return desc

    def size_and_align(self, length: int, is_private: bool) -> tuple[int, int]:
        """Return the bytes that a buffer takes in a heap, and what its offset is a multiple of."""
        out = ffi.new("uint64_t[2]")
        check(
            lib.mps_device_heap_size_and_align(
                self.device._pointer, self._buffer_desc(length, is_private), out, out + 1
            )
        )
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

    def create_buffer(self, heap: Heap, offset: int, size: int, is_private: bool) -> tuple[Any, int]:
        """Return a buffer and its address, 0 in private memory."""
        heap.making = out = ffi.new("mps_buffer **")
        status = _create_in_heap(heap.handle, self._buffer_desc(size, is_private), offset, out)
        if status:
            check(status)
        pointer = out[0]
        if is_private:
            return pointer, 0
        address = ffi.new("uintptr_t *")
        status = _contents(pointer, ffi.cast(_VOID_OUT, address))
        if status:
            check(status)
        return pointer, address[0]

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
        wait_unnoticed(self._streams(), seconds)


_DESC_SIZE = ffi.sizeof("mps_buffer_desc")
_VOID_OUT = ffi.typeof("void **")
_create_in_heap = lib.mps_buffer_create_in_heap
_contents = lib.mps_buffer_contents
