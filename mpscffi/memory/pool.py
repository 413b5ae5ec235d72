"""Pools: heaps of one kind, their free ranges, and the cached blocks by size."""

from __future__ import annotations

from bisect import bisect_left, insort

from mpscffi.memory.block import Counters, HeapBlock
from mpscffi.memory.heap import Heap
from mpscffi.memory.sizes import MIB, ROUND_LARGE

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mpscffi.memory.source import MemorySource

#: A cached block above 1 MiB serves a smaller request as it is if less than this is left over.
MIN_SPLIT = MIB
#: Free blocks of one size that are tried before memory is looked for elsewhere.
TRIES = 8


class Pending:
    """Blocks that were given back while several streams may use them.

    Attributes
    ----------
    blocks : list of HeapBlock
        They count as in use.
    counters : Counters
        ``current`` is minus their bytes.
    """

    __slots__ = ("blocks", "counters")

    def __init__(self) -> None:
        self.blocks: list[HeapBlock] = []
        self.counters = Counters()


class SizeClass:
    """The blocks of one size.

    Attributes
    ----------
    pool : Pool
        Where they lie.
    size, align : int
        Bytes of each, and what its offset in a heap is a multiple of.
    free : list of HeapBlock
        Those that nobody owns. Finalizers append to it, so that it is changed by ``append`` and ``pop`` alone.
    made : int
        How many there are.
    taken : int
        How often one was given out.
    """

    __slots__ = ("align", "free", "made", "pool", "size", "taken")

    def __init__(self, pool: Pool, size: int, align: int) -> None:
        self.pool = pool
        self.size = size
        self.align = align
        self.free: list[HeapBlock] = []
        self.made = 0
        self.taken = 0


class Pool:
    """Heaps of one kind.

    Parameters
    ----------
    name : str
        For statistics and error texts.
    source : MemorySource
        Where heaps come from.
    pending : Pending
        Of the allocator.
    is_large : bool
        For blocks above 1 MiB.
    is_private : bool
        Whether the CPU cannot see the memory.
    is_tracked : bool
        Whether the device orders work on the same memory by itself.

    Attributes
    ----------
    heaps : dict of int to Heap
        By number, oldest first.
    classes : dict of int to SizeClass
        By size.
    """

    __slots__ = (
        "_ranges",
        "_sizes",
        "classes",
        "free_bytes",
        "heaps",
        "is_large",
        "is_private",
        "is_tracked",
        "name",
        "pending",
        "source",
    )

    def __init__(
        self,
        name: str,
        source: MemorySource,
        pending: Pending,
        is_large: bool = False,
        is_private: bool = False,
        is_tracked: bool = True,
    ) -> None:
        self.name = name
        self.source = source
        self.pending = pending
        self.is_large = is_large
        self.is_private = is_private
        self.is_tracked = is_tracked
        self.heaps: dict[int, Heap] = {}
        self.classes: dict[int, SizeClass] = {}
        #: Bytes of ranges without a buffer.
        self.free_bytes = 0
        # Free ranges by size, and the sizes that there are, sorted.
        self._ranges: dict[int, dict[HeapBlock, None]] = {}
        self._sizes: list[int] = []

    @property
    def reserved(self) -> int:
        """Bytes of its heaps."""
        return sum(heap.size for heap in list(self.heaps.values()))

    def cached(self) -> Iterator[SizeClass]:
        """Return the classes that have free blocks."""
        return (size_class for size_class in list(self.classes.values()) if size_class.free)

    # ---- ranges without a buffer

    def add_range(self, block: HeapBlock) -> None:
        """Take up a free range, and join it with free neighbours."""
        before, after = block.before, block.after
        if after is not None and after.pointer is None:
            self.remove_range(after)
            Heap.absorb(block, after)
        if before is not None and before.pointer is None:
            self.remove_range(before)
            Heap.absorb(before, block)
            block = before
        self.insert(block)

    def insert(self, block: HeapBlock) -> None:
        """Take up a free range without free neighbours."""
        self.free_bytes += block.size
        same = self._ranges.get(block.size)
        if same is None:
            same = self._ranges[block.size] = {}
            insort(self._sizes, block.size)
        same[block] = None

    def remove_range(self, block: HeapBlock) -> None:
        """Take a range out of the free ones."""
        self.free_bytes -= block.size
        same = self._ranges[block.size]
        del same[block]
        if not same:
            del self._ranges[block.size]
            del self._sizes[bisect_left(self._sizes, block.size)]

    def best_fit(self, size: int, align: int, only_shared: bool = False) -> HeapBlock | None:
        """Return the smallest free range that a buffer fits into.

        Parameters
        ----------
        size, align : int
            The buffer's.
        only_shared : bool
            Leave heaps alone that were made for one block, so that they can go back as a whole.
        """
        for place in range(bisect_left(self._sizes, size), len(self._sizes)):
            # One of each size: they differ in alignment alone.
            block = next(iter(self._ranges[self._sizes[place]]))
            gap = -block.offset % align
            if gap + size <= block.size and (
                block.heap.is_shared or not only_shared or block.size - size < ROUND_LARGE
            ):
                return block
        return None

    def carve(self, block: HeapBlock, size: int, align: int) -> HeapBlock:
        """Cut a range of `size` from a free one, and take it out of the free ranges."""
        self.remove_range(block)
        gap = -block.offset % align
        if gap:
            rest = Heap.split(block, gap)
            self.insert(block)
            block = rest
        if block.size > size:
            self.insert(Heap.split(block, size))
        return block

    # ---- heaps

    def add_heap(self, number: int, handle: Any, size: int, is_shared: bool) -> Heap:
        """Take up a new heap, which is one range that is not among the free ones yet."""
        heap = self.heaps[number] = Heap(self, number, handle, size, is_shared)
        return heap

    def drop_heap(self, heap: Heap) -> None:
        """Give a wholly free heap back to the driver."""
        self.remove_range(heap.first)
        del self.heaps[heap.number]
        self.source.release_heap(heap.handle)

    # ---- cached blocks

    def flush(self) -> list[HeapBlock]:
        """Make free ranges of the cached blocks that no work uses.

        Returns
        -------
        list of HeapBlock
            Those that work uses; they are cached as before.
        """
        busy: list[HeapBlock] = []
        idle: list[HeapBlock] = []
        for size_class in self.cached():
            # Each pop makes a block this function's own, whatever other threads take and give back meanwhile.
            for _ in range(len(size_class.free)):
                try:
                    block = size_class.free.pop()
                except IndexError:
                    break
                if block.stream is not None and block.in_use():
                    busy.append(block)
                else:
                    idle.append(block)
        # Ranges of one size are used in this order: old heaps are filled, so that new ones become free.
        for block in sorted(idle, key=_place):
            self.add_range(block.vacate())
        for block in busy:
            block.home.free.append(block)
        return busy

    def wholly_free(self) -> list[Heap]:
        """Return the heaps without a buffer, oldest first."""
        return [heap for heap in list(self.heaps.values()) if not heap.placed]

    def near_fits(self, size: int) -> list[SizeClass]:
        """Return the classes with free blocks that are too large by less than is worth a cut, smallest first."""
        if not self.is_large:
            return []
        below = size + MIN_SPLIT
        return sorted((found for found in self.cached() if size < found.size < below), key=lambda found: found.size)


def _place(block: HeapBlock) -> tuple[int, int]:
    return block.heap.number, block.offset
