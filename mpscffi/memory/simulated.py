"""A device that is not there: the allocator's policy runs on it without memory, for tests and for replays of logs."""

from __future__ import annotations

import itertools

from mpscffi.memory.sizes import round_up

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from mpscffi.memory.block import Block
    from mpscffi.memory.heap import Heap

GIB = 1 << 30


class SimulatedStream:
    """A stream of a simulated device. Its work runs until :meth:`SimulatedMemory.finish`.

    Parameters
    ----------
    memory : SimulatedMemory
        Of the device.
    label : str
        Its name.
    """

    __slots__ = ("label", "memory", "uses")

    def __init__(self, memory: SimulatedMemory, label: str) -> None:
        self.memory = memory
        self.label = label
        self.uses: set[int] = set()

    def use(self, block: Block) -> None:
        """Give it work with a block; as :class:`mpscffi.Stream` notes it."""
        last: Any = block.stream
        if last is not self:
            if last is not None:
                block.inherited = False
                block.others = (block.others or frozenset()) - {self} | {last}
                block.shared_by_streams()
            block.stream = self  # type: ignore[assignment]
        self.uses.add(block.pointer)


class SimulatedMemory:
    """A memory source that only counts.

    Parameters
    ----------
    recommended : int
        Bytes that can be used without hurting the system.
    capacity : int, optional
        Bytes that there are: a heap beyond them is refused. As many as wanted by default.
    longest : int, optional
        Bytes of the largest buffer.
    page, align : int
        The page size, and what places in heaps are multiples of.

    Attributes
    ----------
    heaps : dict of int to int
        Size by handle.
    buffers : dict of int to tuple of int
        Heap, offset and size by pointer.
    calls : list of str
        What was asked for besides memory: "commit" and "wait".
    """

    def __init__(
        self,
        recommended: int = 16 * GIB,
        capacity: int | None = None,
        longest: int | None = None,
        page: int = 16384,
        align: int = 256,
    ) -> None:
        self.device: Any = self
        self.backend, self.index, self.name = "simulated", 0, "Simulated device"
        self.recommended = recommended
        self.capacity = capacity
        self.longest = longest or recommended
        self.page = page
        self.align = align
        self.is_zeroed = True
        self.heaps: dict[int, int] = {}
        self.buffers: dict[int, tuple[int, int, int]] = {}
        self.calls: list[str] = []
        #: Bytes that others have taken from the device.
        self.foreign = 0
        self.default = SimulatedStream(self, "default")
        self.streams = [self.default]
        self.current = self.default
        self._held = 0
        self._numbers = itertools.count(1)

    def stream(self, label: str) -> SimulatedStream:
        """Return a new stream."""
        stream = SimulatedStream(self, label)
        self.streams.append(stream)
        return stream

    def finish(self, stream: SimulatedStream | None = None) -> None:
        """Complete the work of a stream, or of all."""
        for one in self.streams if stream is None else [stream]:
            one.uses.clear()

    # ---- what the allocator asks

    def allocated(self) -> int:
        """Return the bytes that the driver holds for this process."""
        return self._held + self.foreign

    def size_and_align(self, length: int, is_private: bool) -> tuple[int, int]:
        """Return the bytes that a buffer takes in a heap, and what its offset is a multiple of."""
        return round_up(length, self.align), self.align

    def create_heap(self, heap: Heap, size: int, is_private: bool, is_tracked: bool) -> tuple[int, int]:
        """Return a handle for a heap and its size; MemoryError when there is none left."""
        if self.capacity is not None and self.allocated() + size > self.capacity:
            raise MemoryError(f"the simulated device has no room for a heap of {size} bytes")
        handle = next(self._numbers)
        self.heaps[handle] = size
        self._held += size
        heap.making = [handle]
        return handle, size

    def release_heap(self, handle: int | None) -> None:
        """Give a heap back."""
        if handle is not None:
            self._held -= self.heaps.pop(handle)

    def create_buffers(
        self, heap: Heap, offset: int, size: int, count: int, is_private: bool
    ) -> tuple[list[int], list[int]]:
        """Return buffers, one after the other, and their addresses, 0 in private memory."""
        if offset % self.align or offset + count * size > self.heaps[heap.handle]:
            raise ValueError(
                f"{count} times {size} bytes at {offset} do not lie in heap {heap.handle}, of {heap.size} bytes"
            )
        pointers = [next(self._numbers) for _ in range(count)]
        for number, pointer in enumerate(pointers):
            self.buffers[pointer] = heap.handle, offset + number * size, size
        heap.making = list(pointers)
        # Far apart, so that no two heaps meet.
        start = (heap.handle << 44) + offset
        return pointers, [0 if is_private else start + number * size for number in range(count)]

    def release_buffer(self, pointer: int | None) -> None:
        """Give a buffer back."""
        if pointer is not None:
            del self.buffers[pointer]

    def drop_buffers(self, making: list[int], count: int) -> None:
        """Give those back that :meth:`create_buffers` has made so far."""
        for pointer in making[:count]:
            del self.buffers[pointer]
        making.clear()

    def in_use(self, pointer: int) -> bool:
        """Return whether work uses a buffer."""
        return any(pointer in stream.uses for stream in self.streams)

    def current_stream(self) -> SimulatedStream:
        """Return the stream that work goes to."""
        return self.current

    def commit(self) -> None:
        """Note the call."""
        self.calls.append("commit")

    def wait(self, seconds: float) -> None:
        """Complete all work."""
        self.calls.append("wait")
        self.finish()


__all__ = ["SimulatedMemory", "SimulatedStream"]
