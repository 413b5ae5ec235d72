"""What an allocator may take from the driver: the limits, and the sizes of heaps that keep within them."""

from __future__ import annotations

from mpscffi.memory import sizes
from mpscffi.memory.sizes import MIB, round_up

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from mpscffi.memory.counters import Counters
    from mpscffi.memory.pool import Pool
    from mpscffi.memory.source import MemorySource

#: Small cached blocks are joined only when more than this many times the peak in use is reserved, or these bytes.
SLACK = 2
MIN_SLACK = 64 * MIB
#: A heap that is shared by many blocks takes no more than this part of the room below the limit.
SHARE_OF_ROOM = 4


class Budget:
    """The limits of an allocator.

    Parameters
    ----------
    source : MemorySource
        Where memory comes from.
    high_ratio, low_ratio : float
        The watermarks, as shares of the recommended working set; 0 for none.
    in_use, reserved : Counters
        Bytes of blocks and of heaps.

    Attributes
    ----------
    limit : int or None
        The most that the driver may hold for this process, in bytes; None for no limit.
    cache_limit : int or None
        The most that is kept without being in use, in bytes; None for no limit.
    """

    __slots__ = ("_in_use", "_reserved", "cache_limit", "high_ratio", "limit", "low_ratio", "source")

    def __init__(
        self, source: MemorySource, high_ratio: float, low_ratio: float, in_use: Counters, reserved: Counters
    ) -> None:
        self.source = source
        self.low_ratio = low_ratio
        self.cache_limit: int | None = None
        self._in_use = in_use
        self._reserved = reserved
        self.set_high_ratio(high_ratio)

    def set_high_ratio(self, ratio: float) -> None:
        """Set the limit as a share of the recommended working set; 0 for none."""
        limit = int(ratio * self.source.recommended) if ratio else None
        self.high_ratio, self.limit = ratio, limit

    @property
    def low_ratio_in_force(self) -> float:
        """The low ratio, or the high one where that is lower."""
        return min(self.low_ratio, self.high_ratio) if self.high_ratio else self.low_ratio

    @property
    def low_limit(self) -> int | None:
        """From how many bytes of the driver's on memory is scarce; None for never."""
        low = self.low_ratio_in_force
        return int(low * self.source.recommended) if low else None

    @property
    def cached(self) -> int:
        """Bytes that are kept without being in use."""
        return self._reserved.current - self._in_use.current

    def fits(self, size: int) -> bool:
        """Return whether so many bytes more in arrays stay within the limit."""
        return self.limit is None or self._in_use.current + size <= self.limit

    def room(self) -> int | None:
        """Return the bytes below the limit; None for no limit."""
        return None if self.limit is None else max(0, self.limit - self.source.allocated())

    def may_grow(self, pool: Pool) -> bool:
        """Return whether a new heap is better than the memory of cached blocks.

        Programs that use small blocks of different sizes by turns would otherwise make them anew each time.
        """
        if pool.is_large:
            return False
        reserved = self._reserved.current + sizes.SMALL_HEAP
        return reserved <= max(SLACK * self._in_use.peak, MIN_SLACK) and self.may_share(sizes.SMALL_HEAP, self.room())

    def may_share(self, heap_size: int, room: int | None) -> bool:
        """Return whether there is room for a heap that is not needed as a whole."""
        return self.cache_takes(heap_size) and (room is None or heap_size <= room // SHARE_OF_ROOM)

    def cache_takes(self, size: int) -> bool:
        """Return whether the cache may grow by so many bytes."""
        return self.cache_limit is None or self.cached + size <= self.cache_limit

    def heap_sizes(self, size: int, pressure: bool) -> list[tuple[int, bool]]:
        """Return what heaps a block may be cut from, the best first, and whether it shares them with others."""
        room = self.room()
        page = self.source.page
        best = sizes.tier(size, pressure)
        found = []
        if best > round_up(size, sizes.ROUND_LARGE):
            if self.may_share(best, room):
                found.append((best, True))
            elif size <= sizes.MAX_SMALL:
                spare = room if room is not None else best
                if self.cache_limit is not None:
                    spare = min(spare, max(0, self.cache_limit - self.cached))
                found.append((spare // SHARE_OF_ROOM // page * page, True))
        if size > sizes.MAX_SMALL:
            found.append((round_up(size, sizes.ROUND_LARGE), False))
        found.append((round_up(size, page), False))
        least = found[-1][0]
        return [
            (heap, shared)
            for heap, shared in found
            if heap >= size and (room is None or heap <= room) and (heap == least or self.cache_takes(heap - size))
        ]
