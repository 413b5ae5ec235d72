"""The allocator of one device: what is given back is kept for the next request.

A block that is given back goes on the list of its size, and is given out again at once. If queued work may still use
it, only a request whose first use is on the same stream gets it, because that work runs later by the stream's order;
others get a block that is idle. When no block of the size is left, memory is looked for in this order: free ranges of
heaps, smallest fit first; idle cached blocks, joined with their neighbours; a new heap; and if the limit or the driver
has no room for one, what every step of :attr:`Allocator.STEPS` gets back.

Giving back runs in finalizers, at any point of any thread: it appends to a list and adds to a counter, and takes no
lock. A finalizer or a signal handler may also allocate while its thread is inside the allocator: it then gets a heap
of its own, because nothing else may be in a state to be looked at.

A signal handler may also raise an exception, at any call that the allocator makes. What it was changing is put right
by the next thread that enters it (:meth:`Allocator._inside_of`). A block that is on its way to its owner is counted as
in use from before it leaves its list, so that one that never arrives counts until it is found: when memory is put
right, when it is scarce, and when the cache is emptied (:meth:`Allocator._find_lost`).
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import warnings

from mpscffi.errors import OutOfMemoryError
from mpscffi.memory import sizes
from mpscffi.memory.block import Counters, HeapBlock, give_back
from mpscffi.memory.heap import Heap
from mpscffi.memory.pool import TRIES, Pending, Pool, SizeClass
from mpscffi.memory.sizes import MIB, readable, round_up

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpscffi.memory.block import Custody
    from mpscffi.memory.source import MemorySource

    #: Told what happens: its kind, the block or heap or None, and a number that belongs to it.
    Watcher = Callable[[str, Any, int], object]

#: How long an allocation that finds no room waits for queued work to give up its memory.
OUT_OF_MEMORY_SECONDS = 10.0
#: Requested sizes whose class is remembered.
REMEMBERED_SIZES = 4096
#: Small cached blocks are joined only when more than this many times the peak in use is reserved, or these bytes.
SLACK = 2
MIN_SLACK = 64 * MIB
#: Bytes of blocks of one size that are made in advance.
MAX_ROW = 64 << 10
#: Blocks of several streams that an allocation looks at.
SWEPT = 16
#: A heap that is shared by many blocks takes no more than this part of the room below the limit.
SHARE_OF_ROOM = 4


#: References are counted exactly, without other threads changing them meanwhile.
_COUNTS_REFERENCES: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Tally:
    """How often things happened.

    Attributes
    ----------
    heaps_created, heaps_released : int
        Heaps.
    collections, collected : int
        Runs of the collection under the low watermark, and the bytes that they got back.
    retries, failures : int
        Allocations that had to make room, and those that found none.
    """

    __slots__ = ("collected", "collections", "failures", "heaps_created", "heaps_released", "retries")

    def __init__(self) -> None:
        self.heaps_created = self.heaps_released = 0
        self.collections = self.collected = 0
        self.retries = self.failures = 0


class Allocator:
    """The memory of one device.

    Parameters
    ----------
    source : MemorySource
        Where it takes memory from.
    high_ratio, low_ratio : float
        The watermarks, as shares of the recommended working set; 0 for none.
    """

    __slots__ = (
        "_cache_limit",
        "_dirty",
        "_heap_numbers",
        "_high_ratio",
        "_host_bound",
        "_inside",
        "_is_over",
        "_private",
        "_reason",
        "_shared",
        "_told",
        "_trim_above",
        "accumulated_before",
        "counters",
        "failure_callbacks",
        "large",
        "lock",
        "low_ratio",
        "pending",
        "pools",
        "private_large",
        "private_small",
        "reserved",
        "reserved_peak",
        "scalar",
        "small",
        "source",
        "tally",
        "watchers",
    )

    def __init__(self, source: MemorySource, high_ratio: float, low_ratio: float) -> None:
        self.source = source
        self._high_ratio = high_ratio
        self.low_ratio = low_ratio
        #: Whether the driver held more than the limit when that was lowered, and still did at the last look.
        self._is_over = False
        self.counters = Counters()
        #: Bytes of heaps: in use, or cached.
        self.reserved = 0
        self.reserved_peak = 0
        self.tally = Tally()
        #: What sums were when they were last reset, by their names in the statistics.
        self.accumulated_before: dict[str, int] = {}
        self.pending = pending = Pending()
        self.small = Pool("small", source, pending)
        self.large = Pool("large", source, pending, is_large=True)
        self.scalar = Pool("scalar", source, pending, is_tracked=False)
        self.private_small = Pool("private small", source, pending, is_private=True)
        self.private_large = Pool("private large", source, pending, is_large=True, is_private=True)
        self.pools = (self.small, self.large, self.scalar, self.private_small, self.private_large)
        self.failure_callbacks: list[Callable[[int], object]] = []
        self._cache_limit: int | None = None
        self._trim_above = 0
        self.watchers: tuple[Watcher, ...] = ()
        # Classes by what was asked for. Left empty while somebody watches, so that each allocation is told, and while
        # the driver holds more than a lowered limit, so that each is checked.
        self._shared: dict[int, SizeClass] = {}
        self._host_bound: dict[int, SizeClass] = {}
        self._private: dict[int, SizeClass] = {}
        self._heap_numbers = itertools.count(1)
        #: What gives blocks back that somebody has to be told of: they count until then.
        self._told: Custody = (Counters(), self._give)
        # Re-entrant: a finalizer or a signal handler may allocate while this thread does.
        self.lock = threading.RLock()
        self._inside = False
        # Whether pools may be half changed. Set while they are, so that an exception leaves it behind.
        self._dirty = False
        self._reason = ""

    # ---- limits

    @property
    def limit(self) -> int | None:
        """The most that the driver may hold for this process, in bytes; None for no limit."""
        return int(self.high_ratio * self.source.recommended) if self.high_ratio else None

    @property
    def high_ratio(self) -> float:
        """The limit as a share of the recommended working set; 0 for none."""
        return self._high_ratio

    @high_ratio.setter
    def high_ratio(self, ratio: float) -> None:
        with self.lock:
            # Until it is known, so that the limit holds from the moment that it is set.
            self._is_over = True
            self._forget_sizes()
            self._high_ratio = ratio
            limit = self.limit
            self._is_over = limit is not None and self.source.allocated() > limit
            if self._is_over:
                # What is encoded and not submitted would keep its memory for nothing.
                self.source.commit()
                self._inside_of(self._sweep_and_shrink)

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
    def cache_limit(self) -> int | None:
        """The most that is kept without being in use, in bytes; None for no limit."""
        return self._cache_limit

    @cache_limit.setter
    def cache_limit(self, limit: int | None) -> None:
        with self.lock:
            self._cache_limit = limit
            self._renew_custody()
            if limit is not None:
                self._inside_of(self._trim, limit)

    @property
    def cached(self) -> int:
        """Bytes that are kept without being in use."""
        return self.reserved - self.counters.current

    # ---- giving out

    def take(self, size: int, host_bound: bool = False, private: bool = False) -> HeapBlock:
        """Give out a block.

        Parameters
        ----------
        size : int
            Bytes, at least 1.
        host_bound : bool
            Whether the CPU is going to write it, so that no queued work may use it any more.
        private : bool
            Memory that the CPU cannot see, which only copies and kernels reach.

        Returns
        -------
        HeapBlock
            The caller's, until it gives it back.
        """
        counters = self.counters
        try:
            size_class = (self._private if private else self._host_bound if host_bound else self._shared)[size]
            counters.current = current = counters.current + size_class.size
            block = size_class.free.pop()
        except KeyError:
            return self._find(size, host_bound, private)
        except IndexError:
            counters.current -= size_class.size
            return self._find(size, host_bound, private)
        block.zeroed = False
        if block.stream is not None and not self._reusable(block, host_bound):
            size_class.put_last(block, counters)
            return self._find(size, host_bound, private)
        size_class.taken += 1
        if current > counters.peak:
            counters.peak = current
        return block

    def _reusable(self, block: HeapBlock, host_bound: bool) -> bool:
        """Whether a cached block that work has used can be given out now; notes what that means for its next user."""
        if not host_bound and block.stream is self.source.current_stream():
            block.inherited = True
        elif block.in_use():
            return False
        else:
            block.stream = None
            block.inherited = False
        return True

    def _class_for(self, size: int, host_bound: bool, private: bool) -> SizeClass:
        table = self._private if private else self._host_bound if host_bound else self._shared
        found = table.get(size)
        if found is not None:
            return found
        longest = self.source.longest
        if size >= longest:
            raise OutOfMemoryError(
                f"Invalid buffer size: one array of {size} bytes ({readable(size)}); on this device it must be less "
                f"than {longest} bytes ({readable(longest)})"
            )
        taken, align = self.source.size_and_align(size, private)
        rounded = sizes.rounded_size(taken, self.source.page, longest)
        is_small = rounded <= sizes.MAX_SMALL
        if private:
            pool = self.private_small if is_small else self.private_large
        elif host_bound and size <= sizes.MAX_SCALAR:
            pool = self.scalar
        else:
            pool = self.small if is_small else self.large
        found = pool.classes.setdefault(rounded, SizeClass(pool, rounded, align))
        with self.lock:
            if not self.watchers and not self._is_over:
                if len(table) >= REMEMBERED_SIZES:
                    table.clear()
                table[size] = found
        return found

    def _find(self, size: int, host_bound: bool, private: bool) -> HeapBlock:
        """Give out a block that is not simply the last one that was given back."""
        size_class = self._class_for(size, host_bound, private)
        block = self._attempt(size_class, host_bound)
        if block is None:
            self.tally.retries += 1
            block = self._make_room(size, size_class, host_bound)
        block.home.taken += 1
        counters = self.counters
        counters.peak = max(counters.peak, counters.current)
        if self.watchers:
            self.tell("allocate", block, size)
        return block

    def _make_room(self, size: int, size_class: SizeClass, host_bound: bool) -> HeapBlock:
        """Give out a block once one of the steps has got memory back."""
        failure: Exception | None = None
        for step in self.STEPS:
            self.tell(step.__name__.strip("_"), None, size)
            try:
                step(self, size_class)
            except Exception as error:  # a callback's: the caller is to hear of the memory first
                failure = failure or error
            block = self._attempt(size_class, host_bound)
            if block is not None:
                return block
        self.tally.failures += 1
        self.tell("out_of_memory", None, size)
        raise OutOfMemoryError(self._explain(size_class)) from failure

    def _attempt(self, size_class: SizeClass, host_bound: bool) -> HeapBlock | None:
        with self.lock:
            if self._inside:
                return self._place_apart(size_class)
            found: HeapBlock | None = self._inside_of(self._search, size_class, host_bound)
            return found

    def _search(self, size_class: SizeClass, host_bound: bool) -> HeapBlock | None:
        self._sweep(SWEPT)
        if self._is_over:
            self._shrink()
            if self._is_over and not self._fits(size_class.size):
                return None
        return (
            self._from_cache(size_class, host_bound) or self._from_ranges(size_class) or self._from_new_heap(size_class)
        )

    def _fits(self, size: int) -> bool:
        """Return whether so many bytes more in arrays stay within the limit."""
        limit = self.limit
        return limit is None or self.counters.current + size <= limit

    def _from_cache(self, size_class: SizeClass, host_bound: bool) -> HeapBlock | None:
        counters = self.counters
        for candidates in (size_class, *size_class.pool.near_fits(size_class.size)):
            if self._is_over and not self._fits(candidates.size):
                break
            for _ in range(min(TRIES, len(candidates.free))):
                block = candidates.pop(counters)
                if block is None:
                    break
                if block.stream is None or self._reusable(block, host_bound):
                    block.zeroed = False
                    return block
                candidates.put_last(block, counters)
        return None

    def _from_ranges(self, size_class: SizeClass) -> HeapBlock | None:
        pool = size_class.pool
        # Near the limit, memory has to go back to the driver in pieces: no heap of one block is cut into many.
        only_whole = pool.is_large and not self._may_share(sizes.tier(size_class.size), self._room())
        for prepare in (None, pool.flush):
            if prepare is not None:
                if self._may_grow(pool):
                    return None
                prepare()
            found = pool.best_fit(size_class.size, size_class.align, only_whole)
            if found is not None:
                return self._occupy(found, size_class)
        return None

    def _occupy(self, free: HeapBlock, size_class: SizeClass) -> HeapBlock:
        """Make a buffer in a free range, which is cut to its size."""
        pool = size_class.pool
        block = pool.carve(free, size_class.size, size_class.align)
        self._make_buffer(block, size_class)
        self.counters.current += size_class.size
        size_class.held.pop()
        count = min(size_class.made // 4, MAX_ROW // size_class.size)
        if count and block.after is not None and block.after.pointer is None:
            self._add_row(block.after, size_class, count)
        return block

    def _make_buffer(self, block: HeapBlock, size_class: SizeClass) -> None:
        """Make a buffer in a free range of its size, which the size class holds then."""
        heap, source = block.heap, self.source
        end = block.offset + block.size
        pointer, address = source.create_buffer(heap, block.offset, block.size, heap.pool.is_private)
        zeroed = source.is_zeroed and block.offset >= heap.touched
        heap.touched = max(heap.touched, end)
        block.occupy(pointer, address, size_class, self._custody_of(size_class), zeroed)

    def _add_row(self, free: HeapBlock, size_class: SizeClass, count: int) -> None:
        """Make blocks of one size in advance, one after the other: where there are many, more are wanted."""
        pool, size = size_class.pool, size_class.size
        pool.remove_range(free)
        while count and free.size > size and not free.offset % size_class.align:
            block, free = free, Heap.split(free, size)
            self._make_buffer(block, size_class)
            count -= 1
        pool.insert(free)
        size_class.let_go()

    def _custody_of(self, size_class: SizeClass) -> Custody:
        """Return what gives blocks of a size back."""
        if self.watchers or self._cache_limit is not None:
            return self._told
        return self.counters, size_class.free.append

    # ---- new heaps

    def _may_grow(self, pool: Pool) -> bool:
        """Return whether a new heap is better than the memory of cached blocks.

        Programs that use small blocks of different sizes by turns would otherwise make them anew each time.
        """
        if pool.is_large:
            return False
        reserved = self.reserved + sizes.SMALL_HEAP
        return reserved <= max(SLACK * self.counters.peak, MIN_SLACK) and self._may_share(
            sizes.SMALL_HEAP, self._room()
        )

    def _room(self) -> int | None:
        """Return the bytes below the limit; None for no limit."""
        limit = self.limit
        return None if limit is None else max(0, limit - self.source.allocated())

    def _may_share(self, heap_size: int, room: int | None) -> bool:
        """Return whether there is room for a heap that is not needed as a whole."""
        return self._cache_takes(heap_size) and (room is None or heap_size <= room // SHARE_OF_ROOM)

    def _heap_sizes(self, size: int, pressure: bool) -> list[tuple[int, bool]]:
        """Return what heaps a block may be cut from, the best first, and whether it shares them with others."""
        room = self._room()
        page = self.source.page
        best = sizes.tier(size, pressure)
        found = []
        if best > round_up(size, sizes.ROUND_LARGE):
            if self._may_share(best, room):
                found.append((best, True))
            elif size <= sizes.MAX_SMALL:
                spare = room if room is not None else best
                if self._cache_limit is not None:
                    spare = min(spare, max(0, self._cache_limit - self.cached))
                found.append((spare // SHARE_OF_ROOM // page * page, True))
        if size > sizes.MAX_SMALL:
            found.append((round_up(size, sizes.ROUND_LARGE), False))
        found.append((round_up(size, page), False))
        least = found[-1][0]
        return [
            (heap, shared)
            for heap, shared in found
            if heap >= size and (room is None or heap <= room) and (heap == least or self._cache_takes(heap - size))
        ]

    def _cache_takes(self, size: int) -> bool:
        """Return whether the cache may grow by so many bytes."""
        return self._cache_limit is None or self.cached + size <= self._cache_limit

    def _from_new_heap(self, size_class: SizeClass) -> HeapBlock | None:
        pool, size = size_class.pool, size_class.size
        pressure = False
        low = self.low_limit
        if low is not None:
            total = self.source.allocated()
            if low - total <= MIB:
                # What is encoded and not submitted would keep its memory for nothing.
                self.source.commit()
            pressure = pool.is_large and low - total < MIB
            if pressure and size < pool.free_bytes:
                self._collect(pool, total - low)
        self._reason = ""
        for heap_size, is_shared in self._heap_sizes(size, pressure):
            try:
                heap = self._create_heap(pool, heap_size, is_shared)
            except MemoryError as error:
                self._reason = str(error)
                continue
            pool.add_range(heap.first)
            return self._occupy(heap.first, size_class)
        return None

    def _create_heap(self, pool: Pool, size: int, is_shared: bool) -> Heap:
        heap = pool.add_heap(next(self._heap_numbers), size, is_shared)
        size = heap.size
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.tally.heaps_created += 1
        self.tell("create_heap", heap, size)
        return heap

    def _place_apart(self, size_class: SizeClass) -> HeapBlock | None:
        """Make a heap for one block while this thread is inside the allocator already."""
        size = round_up(size_class.size, self.source.page)
        room = self._room()
        if room is not None and size > room:
            return None
        try:
            heap = self._create_heap(size_class.pool, size, is_shared=False)
        except MemoryError:
            return None
        block = heap.first
        home = heap.pool.classes.setdefault(block.size, SizeClass(heap.pool, block.size, size_class.align))
        self._make_buffer(block, home)
        self.counters.current += block.size
        return home.held.pop()

    # ---- giving back to the driver

    def _drop(self, heap: Heap) -> None:
        heap.pool.drop_heap(heap)
        self.reserved -= heap.size
        self.tally.heaps_released += 1
        self.tell("release_heap", heap, heap.size)

    def _drop_until(self, pool: Pool, enough: int) -> int:
        """Give wholly free heaps back, oldest first, until that is `enough`; return how many bytes it is."""
        got = 0
        for heap in pool.wholly_free():
            if got >= enough:
                break
            got += heap.size
            self._drop(heap)
        return got

    def _collect(self, pool: Pool, excess: int) -> None:
        """Bring the driver's total down to the low watermark, as far as this pool's free heaps go."""
        if excess > 0:
            pool.flush()
            got = self._drop_until(pool, excess)
            self.tally.collections += 1
            self.tally.collected += got
            self.tell("collect", None, got)

    def _sweep_and_shrink(self) -> None:
        self._sweep(len(self.pending.blocks))
        self._shrink()

    def _shrink(self) -> None:
        """Bring the driver's total down to a limit that was lowered, as far as free heaps go."""
        limit = self.limit
        for pool in self.pools:
            excess = 0 if limit is None else self.source.allocated() - limit
            if excess <= 0:
                self._is_over = False
                return
            pool.flush()
            self._drop_until(pool, excess)
        self._is_over = limit is not None and self.source.allocated() > limit

    def release_cached(self, only_idle: bool = False) -> None:
        """Give the heaps that nothing is in back to the driver. Inside of an allocation it does nothing.

        Parameters
        ----------
        only_idle : bool
            Keep those that queued work still uses, since their memory would not come back now.
        """
        self._inside_of(self._release, only_idle)

    def _release(self, only_idle: bool) -> None:
        self._find_lost()
        self._sweep(len(self.pending.blocks))
        for pool in self.pools:
            pool.flush(busy_too=not only_idle)
            self._drop_until(pool, self.reserved + 1)

    def _trim(self, limit: int) -> None:
        """Give back what the cache holds beyond its limit, as far as heaps are free."""
        for pool in self.pools:
            if self.cached > limit:
                pool.flush()
                self._drop_until(pool, self.cached - limit)
        # What cannot go back is not tried again at every block that is given back.
        self._trim_above = max(limit, self.cached)

    def _give(self, block: HeapBlock) -> None:
        """Where blocks are pushed to while somebody watches, or the cache has a limit; they still count as in use."""
        if self.watchers:
            self.tell("free", block, block.size)
        self.counters.current -= block.size
        block.home.free.append(block)
        limit = self._cache_limit
        if limit is None or self.cached <= max(limit, self._trim_above):
            return
        # Released in any case: an exception may come between the call and the test of its result.
        try:
            if self.lock.acquire(blocking=False):
                self._inside_of(self._trim, limit)
        finally:
            try:  # noqa: SIM105 - making a suppress object is a call, which may not get done
                self.lock.release()
            except RuntimeError:
                pass  # another thread has it

    def _renew_custody(self) -> None:
        """Let all blocks be given back in the way that holds now."""
        was_dirty, self._dirty = self._dirty, True
        deferred = self.pending.custody
        for pool in self.pools:
            for heap in list(pool.heaps.values()):
                for block in heap:
                    if block.pointer is not None and block.push != deferred[1]:
                        custody = self._custody_of(block.home)
                        block.counters, block.push = custody
        self._dirty = was_dirty

    def sweep(self) -> None:
        """Take back the blocks that were given back while several streams used them, where those are done."""
        if self.pending.blocks or self._dirty:
            self._inside_of(self._sweep, len(self.pending.blocks))

    def _sweep(self, most: int) -> None:
        pending = self.pending
        for _ in range(min(most, len(pending.blocks))):
            block = pending.blocks.pop(0)
            if block.in_use():
                pending.blocks.append(block)
                continue
            custody = self._custody_of(block.home)
            block.stream = None
            block.others = None
            block.inherited = False
            block.counters, block.push = custody
            give_back(block)

    # ---- exceptions of signal handlers

    def _inside_of(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do work that changes pools, alone; nothing if this thread is inside of such work already."""
        with self.lock:
            if self._inside:
                return None
            self._inside = True
            try:
                if self._dirty:
                    self._rebuild()
                self._dirty = True
                result = work(*arguments)
                self._dirty = False
                return result
            finally:
                self._inside = False

    def _rebuild(self) -> None:
        """Put right what an exception left half done."""
        while True:
            created = self.tally.heaps_created
            for pool in self.pools:
                pool.rebuild()
            reserved = sum(pool.reserved for pool in self.pools)
            if created == self.tally.heaps_created:
                break
            # A signal handler has allocated meanwhile.
        self.reserved = reserved
        self.reserved_peak = max(self.reserved_peak, reserved)
        self._renew_custody()
        self._find_lost()

    def _find_lost(self) -> None:
        """Give back, as their owners would have, the blocks that never came to one."""
        if _COUNTS_REFERENCES:
            for pool in self.pools:
                for block in pool.lost():
                    give_back(block)

    # ---- making room

    def _run_callbacks(self, size_class: SizeClass) -> None:
        failures = []
        for callback in list(self.failure_callbacks):
            try:
                callback(size_class.size)
            except Exception as error:
                failures.append(error)
        for failure in failures:
            from mpscffi._warning import outside

            warnings.warn(f"a callback for failed allocations raised {failure!r}", RuntimeWarning, stacklevel=outside())
        if failures:
            raise failures[0]

    def _release_pool(self, size_class: SizeClass) -> None:
        self._inside_of(self._release_heaps, size_class)

    def _release_heaps(self, size_class: SizeClass) -> None:
        size_class.pool.flush()
        self._drop_until(size_class.pool, size_class.size)

    def _release_all(self, size_class: SizeClass) -> None:
        self.source.wait(OUT_OF_MEMORY_SECONDS)
        self.release_cached()

    def _collect_garbage(self, size_class: SizeClass) -> None:
        # Arrays in reference cycles.
        gc.collect()
        self.source.wait(OUT_OF_MEMORY_SECONDS)
        self.release_cached()

    #: What is done, one after the other, until there is room. Waiting is done without the lock.
    STEPS = (_run_callbacks, _release_pool, _release_all, _collect_garbage)

    def _explain(self, size_class: SizeClass) -> str:
        size = size_class.size
        total = self.source.allocated()
        kind = "private" if size_class.pool.is_private else "shared"
        text = (
            f"out of memory: {size} bytes ({readable(size)}) of {kind} memory asked for; in arrays "
            f"{readable(self.counters.current)}, cached {readable(max(0, self.cached))}, "
            f"other allocations {readable(max(0, total - self.reserved))}"
        )
        if self.limit is not None:
            text += (
                f", limit {readable(self.limit)} ({self.high_ratio} of the recommended "
                f"{readable(self.source.recommended)}). Raise the limit with "
                "mpscffi.set_per_process_memory_fraction, or set PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 before the start "
                "for none, which may bring the system down"
            )
        text += ". See mpscffi.memory_summary() for where the memory is"
        return f"{text}. {self._reason}" if self._reason else text

    # ---- watching

    def watch(self, watcher: Watcher) -> None:
        """Tell a function everything that happens from now on."""
        with self.lock:
            self.watchers = (*self.watchers, watcher)
            self._forget_sizes()
            self._renew_custody()

    def _forget_sizes(self) -> None:
        for table in (self._shared, self._host_bound, self._private):
            table.clear()

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no more."""
        with self.lock:
            self.watchers = tuple(one for one in self.watchers if one != watcher)
            self._renew_custody()

    def tell(self, kind: str, subject: Any, number: int) -> None:
        """Tell the watchers that something happened."""
        for watcher in self.watchers:
            watcher(kind, subject, number)
