"""Blocks: what the allocator gives out, and gets back from finalizers."""

from __future__ import annotations

from mpscffi._ffi import check, ffi, lib
from mpscffi.memory.counters import Counters

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpscffi._handle import Handle
    from mpscffi.device import Device
    from mpscffi.memory.heap import Heap
    from mpscffi.stream import Stream

_get_info = lib.mps_buffer_get_info
_INFO_SIZE = ffi.sizeof("mps_buffer_info")


class Custody:
    """Who gets a block when its owner gives it back.

    Attributes
    ----------
    total, pool : Counters
        What its bytes are taken off: all blocks in use, and those of its pool.
    bin : list of Block or Taker
        Its ``append`` takes the block.
    """

    __slots__ = ("bin", "pool", "total")

    def __init__(self, total: Counters, pool: Counters, bin: list[Any] | Taker) -> None:
        self.total = total
        self.pool = pool
        self.bin = bin

    @classmethod
    def uncounted(cls, bin: list[Any] | Taker) -> Custody:
        """Return one that leaves all counting to `bin`."""
        return cls(Counters(), Counters(), bin)


class Taker:
    """A function in the place of a list, for :attr:`Custody.bin`."""

    __slots__ = ("append",)

    def __init__(self, take: Callable[[Any], object]) -> None:
        self.append = take


class Block:
    """A buffer of the device.

    Whoever owns it gives it back as :func:`give_back` does.

    Attributes
    ----------
    pointer : cdata
        The ``mps_buffer *``.
    size : int
        Bytes that it counts for in the statistics.
    length : int
        Bytes that it has.
    address : int
        Where the CPU sees them; 0 if it does not.
    custody : Custody
        Who gets it when it is given back.
    device : Device
        Where it lies.
    stream : Stream or None
        The stream that used it last; None if its contents are idle for certain.
    others : frozenset of Stream or None
        Other streams that have used it since it was given out.
    inherited : bool
        Given out while `stream` may still work on what it was before.
    zeroed : bool
        Fresh from the driver, all zeros.
    """

    __slots__ = (
        "address",
        "custody",
        "device",
        "handle",
        "inherited",
        "length",
        "others",
        "pointer",
        "size",
        "stream",
        "zeroed",
    )

    def __init__(self, device: Device, handle: Handle, custody: Custody, size: int) -> None:
        info = ffi.new("mps_buffer_info *", {"struct_size": _INFO_SIZE})
        check(_get_info(handle.pointer, info))
        self.device = device
        #: Owns the buffer; None when it was given back, and for ranges of a heap, which own theirs in another way.
        self.handle: Handle | None = handle
        self.pointer = handle.pointer
        self.length: int = info.length
        self.address = int(ffi.cast("uintptr_t", info.contents))
        self.custody = custody
        self.size = size
        self.stream: Stream | None = None
        self.others: frozenset[Stream] | None = None
        self.inherited = False
        self.zeroed = True

    def in_use(self) -> bool:
        """Return whether queued or running work uses the buffer."""
        return buffer_in_use(self.pointer)

    def release(self) -> None:
        """Give the memory back to the driver, which keeps it until queued work has done with it."""
        self.pointer = ffi.NULL
        self.handle = None

    def shared_by_streams(self) -> None:
        """Note that several streams use it."""


def give_back(block: Block) -> None:
    """Give a block back. Arrays' finalizers do the same without the call."""
    custody = block.custody
    size = block.size
    custody.total.current -= size
    custody.pool.current -= size
    custody.bin.append(block)


def buffer_in_use(pointer: Any) -> bool:
    """Return whether queued or running work uses a buffer."""
    info = ffi.new("mps_buffer_info *", {"struct_size": _INFO_SIZE})
    check(_get_info(pointer, info))
    return bool(info.in_use)


class HeapBlock(Block):
    """A range of a heap: with a buffer, in use or cached; or without one, free for any buffer.

    Attributes
    ----------
    heap : Heap
        Where it lies.
    offset : int
        Bytes from the heap's start.
    before, after : HeapBlock or None
        Its neighbours.
    home : SizeClass or None
        Where it is kept when nobody owns it; None without a buffer.
    """

    __slots__ = ("after", "before", "heap", "home", "offset")

    pointer: Any
    home: Any  # of the SizeClass; None without a buffer

    def __init__(self, heap: Heap, offset: int, size: int) -> None:
        self.heap = heap
        self.device = heap.pool.source.device
        self.offset = offset
        self.size = self.length = size
        self.before: HeapBlock | None = None
        self.after: HeapBlock | None = None
        self.pointer = None
        self.home = None
        self.stream = None
        self.others = None
        self.inherited = False

    def vacate(self) -> HeapBlock:
        """Release the buffer, and return the range, which is free.

        It is another block: who has seen this one, as a kernel that it was bound to, knows the buffer by it.
        """
        free = HeapBlock(self.heap, self.offset, self.size)
        free.before, free.after = self.before, self.after
        # No exception of a signal handler comes between the two: the source's function is C.
        pointer, self.pointer = self.pointer, None
        self.heap.pool.source.release_buffer(pointer)
        if free.before is None:
            self.heap.first = free
        else:
            free.before.after = free
        if free.after is not None:
            free.after.before = free
        self.before = self.after = None
        self.home.made -= 1
        self.heap.placed -= 1
        self.home = None
        self.stream = None  # which it would keep
        self.others = None
        return free

    def in_use(self) -> bool:
        """Return whether queued or running work uses the buffer."""
        return self.heap.pool.source.in_use(self.pointer)

    def shared_by_streams(self) -> None:
        """Note that several streams use it: given back, it counts as in use until all of them have done with it."""
        self.custody = self.heap.pool.pending.custody
