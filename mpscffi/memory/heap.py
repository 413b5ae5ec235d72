"""Heaps: memory of the driver's, cut into blocks without gaps.

A signal handler may raise an exception at any call, so that any change may stop half way. What a heap is made of then
is its chain from `first` on by `after`, which changes by one store at a time: where each block begins, and whether it
has a buffer. All else follows from that, and :meth:`Heap.rebuild` makes it anew.
"""

from __future__ import annotations

from mpscffi.memory.block import HeapBlock

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mpscffi.memory.pool import Pool, SizeClass


class Heap:
    """Memory that was taken from the driver in one piece, and goes back in one piece.

    Attributes
    ----------
    pool : Pool
        The pool that it belongs to.
    number : int
        Counts up from 1, never used again.
    handle : object
        What the memory source calls it; None until it is made, and after it was given back.
    making : object
        Where the driver writes the heap's handle, and later its buffers, until they are known by another name; None at
        rest.
    size : int
        Bytes; 0 until it is made.
    is_shared : bool
        Made to be cut into many blocks, not for one.
    first : HeapBlock
        The one at offset 0.
    placed : int
        How many blocks have a buffer.
    touched : int
        Nothing from this offset on was ever part of a buffer.
    """

    __slots__ = ("first", "handle", "is_shared", "making", "number", "placed", "pool", "size", "touched")

    def __init__(self, pool: Pool, number: int, is_shared: bool) -> None:
        self.pool = pool
        self.number = number
        self.handle: Any = None
        self.making: Any = None
        self.size = 0
        self.is_shared = is_shared
        self.placed = 0
        self.touched = 0
        self.first = HeapBlock(self, 0, 0)

    def opened(self, handle: Any, size: int) -> None:
        """Take over the memory that was made for it: one free range."""
        self.size = self.first.size = self.first.length = size
        self.handle, self.making = handle, None

    def __iter__(self) -> Iterator[HeapBlock]:
        block: HeapBlock | None = self.first
        while block is not None:
            yield block
            block = block.after

    @staticmethod
    def split(block: HeapBlock, size: int) -> HeapBlock:
        """Cut a free block down to `size`, and return the rest of it."""
        rest = HeapBlock(block.heap, block.offset + size, block.size - size)
        rest.before = block
        rest.after = block.after
        block.after = rest
        block.size = block.length = size
        if rest.after is not None:
            rest.after.before = rest
        return rest

    @staticmethod
    def occupy(
        free: HeapBlock, size: int, pointers: list[Any], addresses: list[int], home: SizeClass
    ) -> HeapBlock | None:
        """Take over buffers that were made one after the other in a free range, which becomes the first one's block.

        `home` holds the blocks, the first one last. Returned is what is left of the range, or None.
        """
        heap, custody, count = free.heap, home.custody, len(pointers)
        end = free.offset + size * count
        is_zeroed = heap.pool.source.is_zeroed and free.offset >= heap.touched
        after = free.after
        left = None
        if free.offset + free.size > end:
            left = HeapBlock(heap, end, free.offset + free.size - end)
            left.after = after
            if after is not None:
                after.before = left
            after = left
        row = []
        if count > 1:
            # From the last to the first, so that the chain changes by one store.
            for number in range(count - 1, 0, -1):
                block = HeapBlock(heap, free.offset + size * number, size)
                block.pointer = pointers[number]
                block.address = addresses[number]
                block.home = home
                block.custody = custody
                block.zeroed = is_zeroed
                block.after = after
                if after is not None:
                    after.before = block
                after = block
                row.append(block)
            row.reverse()
        row.append(free)
        if after is not None:
            after.before = free
        free.size = free.length = size
        free.address = addresses[0]
        free.home = home
        free.custody = custody
        free.zeroed = is_zeroed
        if end > heap.touched:
            heap.touched = end
        # No exception of a signal handler comes before the blocks are held, since that is the next call.
        free.after, free.pointer, heap.making = after, pointers[0], None
        heap.placed += count
        home.made += count
        home.held.extend(row)
        return left

    @staticmethod
    def absorb(block: HeapBlock, after: HeapBlock) -> None:
        """Add a free block's free neighbour to it; the neighbour exists no more."""
        block.after = after.after
        block.size += after.size
        block.length = block.size
        if after.after is not None:
            after.after.before = block
        after.before = after.after = None

    def rebuild(self) -> None:
        """Put right what an exception left half done. Free ranges are joined, and are other blocks from now on."""
        if self.making is not None:
            self.pool.source.drop_buffers(self.making, len(self.making))
            self.making = None
        before: HeapBlock | None = None
        block: HeapBlock | None = self.first
        placed = 0
        while block is not None:
            if block.pointer is None:
                block = self._joined(block)
                if before is None:
                    self.first = block
                else:
                    before.after = block
            else:
                placed += 1
            block.before = before
            before, block = block, block.after
        self.placed = placed

    def _joined(self, block: HeapBlock) -> HeapBlock:
        """Return a free range in the place of a free block and the free blocks after it."""
        after = block.after
        block.before = None
        while after is not None and after.pointer is None:
            after.before = None  # or they would keep each other
            after = after.after
        joined = HeapBlock(self, block.offset, (self.size if after is None else after.offset) - block.offset)
        joined.after = after
        return joined
