"""The allocator of one device: what is given back is kept for the next request.

A block that is given back goes on the list of its size, and is given out again at once. If queued work may still use
it, only a request whose first use is on the same stream gets it, because that work runs later by the stream's order;
others get a block that is idle. When no block of the size is left, memory is looked for in this order: free ranges of
heaps, smallest fit first; idle cached blocks, joined with their neighbours; a new heap; and if the limit or the driver
has no room for one, what every step of :mod:`mpscffi.memory.rescue` gets back.

Giving back runs in finalizers, at any point of any thread: it appends to a list and adds to a counter, and takes no
lock. A finalizer or a signal handler may also allocate while its thread is inside the allocator: it then gets a heap
of its own, because nothing else may be in a state to be looked at.

A signal handler may also raise an exception, at any call that the allocator makes. What it was changing is put right
by the next thread that enters it (:meth:`Allocator._inside_of`). A block that is on its way to its owner is counted as
in use from before it leaves its list, so that one that never arrives counts until it is found: when memory is put
right, when it is scarce, and when the cache is emptied (:meth:`Allocator._find_lost`).
"""

from __future__ import annotations

import itertools
import sys
import threading

from mpscffi.errors import OutOfMemoryError
from mpscffi.memory import sizes
from mpscffi.memory.block import HeapBlock, Taker, give_back
from mpscffi.memory.budget import Budget
from mpscffi.memory.counters import Counters, Tally
from mpscffi.memory.pool import TRIES, Pending, Pool, SizeClass
from mpscffi.memory.rescue import make_room
from mpscffi.memory.sizes import MIB, readable, round_up

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpscffi.memory.heap import Heap
    from mpscffi.memory.source import MemorySource

    #: Told what happens: its kind, the block or heap or None, and a number that belongs to it.
    Watcher = Callable[[str, Any, int], object]

#: Requested sizes whose class is remembered.
REMEMBERED_SIZES = 4096
#: Bytes of blocks of one size that are made at a time, and how many blocks.
MAX_ROW = MIB
MAX_IN_ROW = 256
#: Blocks of several streams that an allocation looks at.
SWEPT = 16
#: In the place of a shape that was never asked for: nobody else has this tuple.
_NO_SHAPE = (-1,)

#: References are counted exactly, without other threads changing them meanwhile.
_COUNTS_REFERENCES: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


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
        "_dirty",
        "_heap_numbers",
        "_host_bound",
        "_inside",
        "_is_over",
        "_private",
        "_shared",
        "_told",
        "_trim_above",
        "accumulated_before",
        "budget",
        "counters",
        "failure_callbacks",
        "large",
        "last",
        "lock",
        "pending",
        "pools",
        "private_large",
        "private_small",
        "reason",
        "reserved",
        "scalar",
        "small",
        "source",
        "tally",
        "watchers",
    )

    def __init__(self, source: MemorySource, high_ratio: float, low_ratio: float) -> None:
        self.source = source
        #: Bytes of blocks in use.
        self.counters = total = Counters()
        #: Bytes of heaps: in use, or cached.
        self.reserved = Counters()
        self.budget = Budget(source, high_ratio, low_ratio, total, self.reserved)
        #: Whether the driver held more than the limit when that was lowered, and still did at the last look.
        self._is_over = False
        self.tally = Tally()
        #: What sums were when they were last reset, by their names in the statistics.
        self.accumulated_before: dict[str, int] = {}
        self.pending = pending = Pending()
        self.small = Pool("small", source, pending, total)
        self.large = Pool("large", source, pending, total, is_large=True)
        self.scalar = Pool("scalar", source, pending, total, is_tracked=False)
        self.private_small = Pool("private small", source, pending, total, is_private=True)
        self.private_large = Pool("private large", source, pending, total, is_large=True, is_private=True)
        self.pools = (self.small, self.large, self.scalar, self.private_small, self.private_large)
        self.failure_callbacks: list[Callable[[int], object]] = []
        self._trim_above = 0
        self.watchers: tuple[Watcher, ...] = ()
        # Classes by what was asked for. Left empty while somebody watches, so that each allocation is told, and while
        # the driver holds more than a lowered limit, so that each is checked.
        self._shared: dict[int, SizeClass] = {}
        self._host_bound: dict[int, SizeClass] = {}
        self._private: dict[int, SizeClass] = {}
        #: The last shape of single-precision numbers that was asked for, its elements, and the class. Empty as those.
        self.last: tuple[tuple[int, ...], int, Any] = (_NO_SHAPE, 0, None)
        self._heap_numbers = itertools.count(1)
        #: Gets blocks back that somebody has to be told of.
        self._told = Taker(self._give)
        # Re-entrant: a finalizer or a signal handler may allocate while this thread does.
        self.lock = threading.RLock()
        self._inside = False
        # Whether pools may be half changed. Set while they are, so that an exception leaves it behind.
        self._dirty = False
        #: What the driver said when it had no heap.
        self.reason = ""

    # ---- limits

    @property
    def high_ratio(self) -> float:
        """The limit as a share of the recommended working set; 0 for none."""
        return self.budget.high_ratio

    @high_ratio.setter
    def high_ratio(self, ratio: float) -> None:
        with self.lock:
            # Until it is known, so that the limit holds from the moment that it is set.
            self._is_over = True
            self._forget_sizes()
            self.budget.set_high_ratio(ratio)
            limit = self.budget.limit
            self._is_over = limit is not None and self.source.allocated() > limit
            if self._is_over:
                # What is encoded and not submitted would keep its memory for nothing.
                self.source.commit()
                self._inside_of(self._sweep_and_shrink)

    @property
    def cache_limit(self) -> int | None:
        """The most that is kept without being in use, in bytes; None for no limit."""
        return self.budget.cache_limit

    @cache_limit.setter
    def cache_limit(self, limit: int | None) -> None:
        with self.lock:
            self.budget.cache_limit = limit
            self._renew_custody()
            if limit is not None:
                self._inside_of(self._trim, limit)

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
        total = self.counters
        try:
            size_class = (self._private if private else self._host_bound if host_bound else self._shared)[size]
            total.current = current = total.current + size_class.size
            counters = size_class.counters
            counters.current = in_pool = counters.current + size_class.size
            block = size_class.free.pop()
        except KeyError:
            return self._find(size, self._class_for(size, host_bound, private), host_bound)
        except IndexError:
            total.current -= size_class.size
            counters.current -= size_class.size
            return self._find(size, size_class, host_bound)
        block.zeroed = False
        if block.stream is not None and not self.reusable(block, host_bound):
            size_class.put_last(block)
            return self._find(size, size_class, host_bound)
        size_class.taken += 1
        if current > total.peak:
            total.peak = current
        if in_pool > counters.peak:
            counters.peak = in_pool
        return block

    def remember(self, shape: tuple[int, ...], size: int) -> None:
        """Note what shape of single-precision numbers was asked for: in a loop it comes again."""
        size_class = self._shared.get(4 * size)
        if size_class is not None:
            self.last = shape, size, size_class
            if 4 * size not in self._shared:  # another thread has forgotten all sizes meanwhile
                self.last = (_NO_SHAPE, 0, None)

    def reusable(self, block: HeapBlock, host_bound: bool = False) -> bool:
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
        with self.lock:
            found = self._class_of(pool, rounded, align)
            if not self.watchers and not self._is_over:
                if len(table) >= REMEMBERED_SIZES:
                    table.clear()
                table[size] = found
        return found

    def _class_of(self, pool: Pool, size: int, align: int) -> SizeClass:
        found = pool.classes.get(size)
        if found is None:
            found = SizeClass(pool, size, align)
            self._renew(found)
            pool.classes[size] = found
        return found

    def _find(self, size: int, size_class: SizeClass, host_bound: bool) -> HeapBlock:
        """Give out a block that is not simply the last one that was given back."""
        block = self.attempt(size_class, host_bound)
        if block is None:
            self.tally.retries += 1
            block = make_room(self, size, size_class, host_bound)
        home = block.home
        home.taken += 1
        total, counters = self.counters, home.counters
        if total.current > total.peak:
            total.peak = total.current
        if counters.current > counters.peak:
            counters.peak = counters.current
        if self.watchers:
            self.tell("allocate", block, size)
        return block

    def attempt(self, size_class: SizeClass, host_bound: bool) -> HeapBlock | None:
        """Give out a block if one is cached, or can be made; else None."""
        with self.lock:
            found: HeapBlock | None = (
                self._place_apart(size_class) if self._inside else self._alone(self._search, size_class, host_bound)
            )
            return found

    def _search(self, size_class: SizeClass, host_bound: bool) -> HeapBlock | None:
        if self.pending.blocks:
            self._sweep(SWEPT)
        if self._is_over:
            self._shrink()
            if self._is_over and not self.budget.fits(size_class.size):
                return None
        found = None
        if size_class.free or size_class.pool.is_large:
            found = self._from_cache(size_class, host_bound)
        return found or self._from_ranges(size_class) or self._from_new_heap(size_class)

    def _from_cache(self, size_class: SizeClass, host_bound: bool) -> HeapBlock | None:
        for candidates in (size_class, *size_class.pool.near_fits(size_class.size)):
            if self._is_over and not self.budget.fits(candidates.size):
                break
            for _ in range(min(TRIES, len(candidates.free))):
                block = candidates.pop(candidates.free)
                if block is None:
                    break
                if block.stream is None or self.reusable(block, host_bound):
                    block.zeroed = False
                    return block
                candidates.put_last(block)
        return None

    def _from_ranges(self, size_class: SizeClass) -> HeapBlock | None:
        pool = size_class.pool
        # Near the limit, memory has to go back to the driver in pieces: no heap of one block is cut into many.
        only_whole = pool.is_large and not self.budget.may_share(sizes.tier(size_class.size), self.budget.room())
        found = pool.best_fit(size_class.size, size_class.align, only_whole)
        if found is None:
            if self.budget.may_grow(pool):
                return None
            pool.flush()
            found = pool.best_fit(size_class.size, size_class.align, only_whole)
        return None if found is None else self._occupy(found, size_class)

    def _occupy(self, free: HeapBlock, size_class: SizeClass) -> HeapBlock | None:
        """Make a buffer in a free range, and some more after it: where there are many of a size, more are wanted."""
        more = size_class.made // 4
        if more:
            more = min(more, MAX_ROW // size_class.size, MAX_IN_ROW)
        size_class.pool.carve(free, size_class, 1 + more)
        block = size_class.pop(size_class.held)
        if more:
            size_class.let_go()
        return block

    # ---- new heaps

    def _from_new_heap(self, size_class: SizeClass) -> HeapBlock | None:
        pool, size = size_class.pool, size_class.size
        pressure = False
        low = self.budget.low_limit
        if low is not None:
            total = self.source.allocated()
            if low - total <= MIB:
                # What is encoded and not submitted would keep its memory for nothing.
                self.source.commit()
            pressure = pool.is_large and low - total < MIB
            if pressure and size < pool.free_bytes:
                self._collect(pool, total - low)
        self.reason = ""
        for heap_size, is_shared in self.budget.heap_sizes(size, pressure):
            try:
                heap = self._create_heap(pool, heap_size, is_shared)
            except MemoryError as error:
                self.reason = str(error)
                continue
            pool.add_range(heap.first)
            return self._occupy(heap.first, size_class)
        return None

    def _create_heap(self, pool: Pool, size: int, is_shared: bool) -> Heap:
        heap = pool.add_heap(next(self._heap_numbers), size, is_shared)
        size = heap.size
        self.reserved.current += size
        self.reserved.note_peak()
        self.tally.heaps_created += 1
        self.tell("create_heap", heap, size)
        return heap

    def _place_apart(self, size_class: SizeClass) -> HeapBlock | None:
        """Make a heap for one block while this thread is inside the allocator already."""
        size = round_up(size_class.size, self.source.page)
        room = self.budget.room()
        pool = size_class.pool
        if room is not None and size > room:
            return None
        try:
            heap = self._create_heap(pool, size, is_shared=False)
        except MemoryError:
            return None
        home = self._class_of(pool, heap.size, size_class.align)
        pool.fill(heap.first, home, 1)
        return home.pop(home.held)

    # ---- giving back to the driver

    def _drop(self, heap: Heap) -> None:
        heap.pool.drop_heap(heap)
        self.reserved.current -= heap.size
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
        limit = self.budget.limit
        for pool in self.pools:
            excess = 0 if limit is None else self.source.allocated() - limit
            if excess <= 0:
                self._is_over = False
                return
            pool.flush()
            self._drop_until(pool, excess)
        self._is_over = limit is not None and self.source.allocated() > limit

    def release_cached(self, only_idle: bool = False) -> bool:
        """Give the heaps that nothing is in back to the driver. Inside of an allocation it does nothing.

        Parameters
        ----------
        only_idle : bool
            Keep those that queued work still uses, since their memory would not come back now.

        Returns
        -------
        bool
            Whether there is memory that comes back when queued work is complete.
        """
        return bool(self._inside_of(self._release, only_idle))

    def _release(self, only_idle: bool) -> bool:
        self._find_lost()
        self._sweep(len(self.pending.blocks))
        awaited = bool(self.pending.blocks)
        for pool in self.pools:
            awaited = pool.flush(busy_too=not only_idle) or awaited
            self._drop_until(pool, self.reserved.current + 1)
        return awaited

    def release_from(self, pool: Pool, enough: int) -> None:
        """Give free heaps of a pool back, oldest first, until that is `enough` bytes."""
        self._inside_of(self._release_from, pool, enough)

    def _release_from(self, pool: Pool, enough: int) -> None:
        pool.flush()
        self._drop_until(pool, enough)

    def _trim(self, limit: int) -> None:
        """Give back what the cache holds beyond its limit, as far as heaps are free."""
        for pool in self.pools:
            if self.budget.cached > limit:
                self._release_from(pool, self.budget.cached - limit)
        # What cannot go back is not tried again at every block that is given back.
        self._trim_above = max(limit, self.budget.cached)

    def _give(self, block: HeapBlock) -> None:
        """Take a block back while somebody watches, or the cache has a limit; until here it counts as in use."""
        if self.watchers:
            self.tell("free", block, block.size)
        home, size = block.home, block.size
        self.counters.current -= size
        home.counters.current -= size
        home.free.append(block)
        limit = self.budget.cache_limit
        if limit is None or self.budget.cached <= max(limit, self._trim_above):
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
        for pool in self.pools:
            for size_class in list(pool.classes.values()):
                self._renew(size_class)
        self._dirty = was_dirty

    def _renew(self, size_class: SizeClass) -> None:
        custody = size_class.custody
        if self.watchers or self.budget.cache_limit is not None:
            # Counted by _give. No call, and so no finalizer, comes between these.
            uncounted = Counters()
            custody.total, custody.pool, custody.bin = uncounted, uncounted, self._told
        else:
            custody.total, custody.pool, custody.bin = size_class.total, size_class.counters, size_class.free

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
            block.stream = None
            block.others = None
            block.inherited = False
            block.custody = block.home.custody
            give_back(block)

    # ---- exceptions of signal handlers

    def _inside_of(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do work that changes pools, alone; nothing if this thread is inside of such work already."""
        with self.lock:
            result = None if self._inside else self._alone(work, *arguments)
            # Stored first: a call as the last thing in a with is followed by an instruction that is no longer in it.
            return result  # noqa: RET504

    def _alone(self, work: Callable[..., Any], *arguments: Any) -> Any:
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
            reserved = sum(pool.reserved.current for pool in self.pools)
            if created == self.tally.heaps_created:
                break
            # A signal handler has allocated meanwhile.
        self.reserved.current = reserved
        self.reserved.note_peak()
        self._renew_custody()
        self._find_lost()

    def _find_lost(self) -> None:
        """Give back, as their owners would have, the blocks that never came to one."""
        if _COUNTS_REFERENCES:
            for pool in self.pools:
                for block in pool.lost():
                    give_back(block)

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
        self.last = (_NO_SHAPE, 0, None)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no more."""
        with self.lock:
            self.watchers = tuple(one for one in self.watchers if one != watcher)
            self._renew_custody()

    def tell(self, kind: str, subject: Any, number: int) -> None:
        """Tell the watchers that something happened."""
        for watcher in self.watchers:
            watcher(kind, subject, number)
