"""Heaps: memory of the driver's, cut into blocks without gaps."""

from __future__ import annotations

from mpscffi.memory.block import HeapBlock

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mpscffi.memory.pool import Pool


class Heap:
    """Memory that was taken from the driver in one piece, and goes back in one piece.

    Attributes
    ----------
    pool : Pool
        The pool that it belongs to.
    number : int
        Counts up from 1, never used again.
    handle : object
        What the memory source calls it.
    size : int
        Bytes.
    is_shared : bool
        Made to be cut into many blocks, not for one.
    first : HeapBlock
        The one at offset 0.
    placed : int
        How many blocks have a buffer.
    touched : int
        Nothing from this offset on was ever part of a buffer.
    """

    __slots__ = ("first", "handle", "is_shared", "number", "placed", "pool", "size", "touched")

    def __init__(self, pool: Pool, number: int, handle: Any, size: int, is_shared: bool) -> None:
        self.pool = pool
        self.number = number
        self.handle = handle
        self.size = size
        self.is_shared = is_shared
        self.placed = 0
        self.touched = 0
        self.first = HeapBlock(self, 0, size)

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
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        block.size = block.length = size
        return rest

    @staticmethod
    def absorb(block: HeapBlock, after: HeapBlock) -> None:
        """Add a free block's free neighbour to it; the neighbour exists no more."""
        block.size += after.size
        block.length = block.size
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        after.before = after.after = None
