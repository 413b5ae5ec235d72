"""Pools: heaps of one kind, their free ranges, and the cached blocks by size."""

from __future__ import annotations

from bisect import bisect_left, insort
from sys import getrefcount

from mpscffi.memory.block import Custody, HeapBlock
from mpscffi.memory.counters import Counters
from mpscffi.memory.heap import Heap
from mpscffi.memory.sizes import MIB, ROUND_LARGE

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpscffi.memory.source import MemorySource

#: A cached block above 1 MiB serves a smaller request as it is if less than this is left over.
MIN_SPLIT = MIB
#: Free blocks of one size that are tried before memory is looked for elsewhere.
TRIES = 8


def move(source: list[HeapBlock], target: list[HeapBlock]) -> None:
    """Move all blocks, the last one first.

    In one call in C: each is in one of the lists, whenever a signal handler raises an exception, and whatever other
    threads put in or take.
    """
    try:
        target.extend(iter(source.pop, None))
    except IndexError:
        return


class Pending:
    """Blocks that were given back while several streams may use them.

    Attributes
    ----------
    blocks : list of HeapBlock
        They count as in use.
    custody : Custody
        Brings such a block here.
    """

    __slots__ = ("blocks", "custody")

    def __init__(self) -> None:
        self.blocks: list[HeapBlock] = []
        self.custody = Custody.uncounted(self.blocks)


class SizeClass:
    """The blocks of one size.

    Attributes
    ----------
    pool : Pool
        Where they lie.
    total, counters : Counters
        Bytes in use: all, and the pool's.
    custody : Custody
        Who gets them back.
    size, align : int
        Bytes of each, and what its offset in a heap is a multiple of.
    free : list of HeapBlock
        Those that nobody owns. Finalizers append to it, so that each change is one call of a method of the list.
    held : list of HeapBlock
        Those that nobody owns either, while the thread that is inside of the allocator looks at them.
    made : int
        How many there are.
    taken : int
        How often one was given out.
    """

    __slots__ = ("align", "counters", "custody", "free", "held", "made", "pool", "size", "taken", "total")

    def __init__(self, pool: Pool, size: int, align: int) -> None:
        self.pool = pool
        self.total = pool.total
        self.counters = pool.counters
        self.size = size
        self.align = align
        self.free: list[HeapBlock] = []
        self.custody = Custody(pool.total, pool.counters, self.free)
        self.held: list[HeapBlock] = []
        self.made = 0
        self.taken = 0

    def pop(self, blocks: list[HeapBlock]) -> HeapBlock | None:
        """Take the last of `free` or `held`; it counts as in use before anything can lose it. None if there is none."""
        # No call, and so no exception of a signal handler, comes between the sums.
        self.total.current += self.size
        self.counters.current += self.size
        try:
            return blocks.pop()
        except IndexError:
            self.total.current -= self.size
            self.counters.current -= self.size
            return None

    def put_last(self, block: HeapBlock) -> None:
        """Put back what was taken, where it is tried last."""
        self.total.current -= self.size
        self.counters.current -= self.size
        self.free.insert(0, block)

    def hold(self) -> None:
        """Hold all free blocks, so that no other thread takes them meanwhile."""
        move(self.free, self.held)

    def let_go(self) -> None:
        """Make the blocks that are held free, the first one the next."""
        self.held[:] = [block for block in self.held if block.pointer is not None]
        move(self.held, self.free)


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
    total : Counters
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
    counters : Counters
        Bytes of its blocks in use.
    reserved : Counters
        Bytes of its heaps.
    classes : dict of int to SizeClass
        By size.
    """

    __slots__ = (
        "_ranges",
        "_sizes",
        "classes",
        "counters",
        "free_bytes",
        "heaps",
        "is_large",
        "is_private",
        "is_tracked",
        "name",
        "pending",
        "reserved",
        "source",
        "total",
    )

    def __init__(
        self,
        name: str,
        source: MemorySource,
        pending: Pending,
        total: Counters,
        is_large: bool = False,
        is_private: bool = False,
        is_tracked: bool = True,
    ) -> None:
        self.name = name
        self.source = source
        self.pending = pending
        self.total = total
        self.counters = Counters()
        self.reserved = Counters()
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

    def carve(self, free: HeapBlock, home: SizeClass, count: int) -> None:
        """Make up to `count` blocks in a free range, one after the other. The first is the last that `home` holds."""
        size = home.size
        self.remove_range(free)
        gap = -free.offset % home.align
        if gap:
            rest = Heap.split(free, gap)
            self.insert(free)
            free = rest
        left = self.fill(free, home, min(count, free.size // size))
        if left is not None:
            self.insert(left)

    def fill(self, free: HeapBlock, home: SizeClass, count: int) -> HeapBlock | None:
        """The same in a range that is not among the free ones. Returned is what is left of it."""
        size = home.size
        # Where the size is no multiple of the alignment, the second one would lie wrong.
        count = 1 if size % home.align else count
        pointers, addresses = self.source.create_buffers(free.heap, free.offset, size, count, self.is_private)
        return Heap.occupy(free, size, pointers, addresses, home)

    # ---- heaps

    def add_heap(self, number: int, size: int, is_shared: bool) -> Heap:
        """Make a heap, which is one range that is not among the free ones yet."""
        heap = self.heaps[number] = Heap(self, number, is_shared)
        try:
            heap.opened(*self.source.create_heap(heap, size, self.is_private, self.is_tracked))
        except MemoryError:
            self._forget(heap)
            raise
        self.reserved.current += heap.size
        self.reserved.note_peak()
        return heap

    def drop_heap(self, heap: Heap) -> None:
        """Give a wholly free heap back to the driver."""
        self.remove_range(heap.first)
        handle, heap.handle = heap.handle, None
        self.source.release_heap(handle)
        self.reserved.current -= heap.size
        del self.heaps[heap.number]

    # ---- cached blocks

    def flush(self, busy_too: bool = False) -> bool:
        """Make free ranges of the cached blocks that no work uses.

        Parameters
        ----------
        busy_too : bool
            And of those that work uses, if then nothing is left in their heap.

        Returns
        -------
        bool
            Whether any of those were, so that their memory only comes back when the work is complete.
        """
        for size_class in self.cached():
            size_class.hold()
        busy: list[HeapBlock] = []
        idle: list[HeapBlock] = []
        for size_class in list(self.classes.values()):
            for block in size_class.held:
                (busy if block.stream is not None and block.in_use() else idle).append(block)
        # Ranges of one size are used in this order: old heaps are filled, so that new ones become free.
        joined: HeapBlock | None = None
        for block in sorted(idle, key=_place):
            free = block.vacate()
            if joined is not None and joined.after is free:
                Heap.absorb(joined, free)
                continue
            if joined is not None:
                self.add_range(joined)
            joined = free
        if joined is not None:
            self.add_range(joined)
        vacated = busy_too and self._vacate_busy(busy)
        self._let_go()
        return vacated

    def _vacate_busy(self, busy: list[HeapBlock]) -> bool:
        """Make heaps wholly free in which all that is left are cached blocks of queued work; tell if there were any."""
        vacated = False
        by_heap: dict[Heap, list[HeapBlock]] = {}
        for block in busy:
            by_heap.setdefault(block.heap, []).append(block)
        for heap, blocks in by_heap.items():
            if len(blocks) == heap.placed:
                vacated = True
                for block in blocks:
                    self.add_range(block.vacate())
        return vacated

    def _let_go(self) -> None:
        for size_class in list(self.classes.values()):
            if size_class.held:
                size_class.let_go()

    def rebuild(self) -> None:
        """Put right what an exception left half done: all follows from the chains of the heaps."""
        for heap in list(self.heaps.values()):
            if heap.handle is None:
                self._forget(heap)
            else:
                heap.rebuild()
        self.reserved.current = sum(heap.size for heap in list(self.heaps.values()))
        self.reserved.note_peak()
        self._ranges, self._sizes, self.free_bytes = {}, [], 0
        made: dict[SizeClass, int] = {}
        for heap in list(self.heaps.values()):
            for block in heap:
                if block.pointer is None:
                    self.insert(block)
                else:
                    made[block.home] = made.get(block.home, 0) + 1
        for size_class in list(self.classes.values()):
            size_class.made = made.get(size_class, 0)
        self._let_go()

    def lost(self) -> list[HeapBlock]:
        """Return the blocks in use that nobody has: an exception came before they were stored, or in a finalizer.

        Who is going to give a block back refers to it, and so does who looks at it now.
        """
        found: list[HeapBlock] = []
        for heap in list(self.heaps.values()):
            block: HeapBlock | None = heap.first
            while block is not None:
                after = block.after
                # The two neighbours refer to it: `first` or `after` of the one, `before` of the other.
                if block.pointer is not None and getrefcount(block) == _LOCAL + (1 if after is None else 2):
                    found.append(block)
                block = after
        return found

    def _forget(self, heap: Heap) -> None:
        """Forget a heap that was never quite made, or is given back already."""
        if heap.making is not None:
            handle, heap.making = heap.making[0], None
            self.source.release_heap(handle)
        del self.heaps[heap.number]

    def wholly_free(self) -> list[Heap]:
        """Return the heaps without a buffer, oldest first."""
        return [heap for heap in list(self.heaps.values()) if not heap.placed]

    def near_fits(self, size: int) -> list[SizeClass]:
        """Return the classes with free blocks that are too large by less than is worth a cut, smallest first."""
        if not self.is_large:
            return []
        below = size + MIN_SPLIT
        return sorted((found for found in self.cached() if size < found.size < below), key=lambda found: found.size)


def _references_of_a_local() -> int:
    """Return how many references of an object ``getrefcount(local)`` tells if only one local variable refers to it."""
    local = object()
    return getrefcount(local)


_LOCAL = _references_of_a_local()


def _place(block: HeapBlock) -> tuple[int, int]:
    return block.heap.number, block.offset
