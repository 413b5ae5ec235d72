"""The caching allocator: memory that is given up is kept for the next request of its size.

A freed block is given out again at once. If queued work may still use it, only a request whose first use is on the same
stream gets it, because that work runs later by the stream's order; others get a block that is idle.

Freeing runs in finalizers, at any point of any thread: it appends to a list and adds to a counter, and takes no lock.
"""

from __future__ import annotations

import gc
import math
import threading
import time

from mpscffi._ffi import check, error_message, ffi, lib
from mpscffi.device import Device, current_device
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError, OutOfMemoryError
from mpscffi.stream import Stream, current_stream, live_streams

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "current_allocated_memory",
    "driver_allocated_memory",
    "empty_cache",
    "recommended_max_memory",
    "set_per_process_memory_fraction",
]

#: Sizes are multiples of this.
GRANULE = 16
#: From here on, sizes are steps of 1/32 of a power of two instead of 1/8.
LARGE = 1 << 20
#: Free blocks of one size that are tried before a new one is made.
TRIES = 8
#: How long an allocation that finds no room waits for queued work to give up its memory.
OUT_OF_MEMORY_SECONDS = 10.0
#: Requested sizes whose class is remembered.
REMEMBERED_SIZES = 4096


class Counters:
    """Numbers that blocks change when they are given back.

    Attributes
    ----------
    current : int
        Bytes of blocks in use.
    """

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = 0


class Block:
    """A buffer of the device.

    Whoever owns it gives it back by ``block.counters.current -= block.size; block.push(block)``.

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
        "counters",
        "device",
        "inherited",
        "length",
        "others",
        "pointer",
        "push",
        "size",
        "stream",
        "zeroed",
    )

    def __init__(
        self, device: Device, pointer: Any, length: int, counters: Counters, push: Callable[[Block], object], size: int
    ) -> None:
        info = ffi.new("mps_buffer_info *", {"struct_size": _INFO_SIZE})
        check(_get_info(pointer, info))
        self.device = device
        self.pointer = pointer
        self.length = length
        self.address = int(ffi.cast("uintptr_t", info.contents))
        self.counters = counters
        self.push = push
        self.size = size
        self.stream: Stream | None = None
        self.others: frozenset[Stream] | None = None
        self.inherited = False
        self.zeroed = True

    def in_use(self) -> bool:
        """Return whether queued or running work uses the buffer."""
        info = ffi.new("mps_buffer_info *", {"struct_size": _INFO_SIZE})
        check(_get_info(self.pointer, info))
        return bool(info.in_use)

    def release(self) -> None:
        """Give the memory back to the driver, which keeps it until queued work has done with it."""
        pointer, self.pointer = self.pointer, ffi.NULL
        lib.mps_buffer_release(pointer)


_get_info = lib.mps_buffer_get_info
_INFO_SIZE = ffi.sizeof("mps_buffer_info")


class SizeClass:
    """The blocks of one size.

    Attributes
    ----------
    size : int
        Bytes of each.
    free : list of Block
        Those that nobody owns.
    """

    __slots__ = ("free", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free: list[Block] = []


def rounded_size(size: int, page: int) -> int:
    """Return the size of the block for a request.

    Growing requests come to the same size for a while, at a waste of at most 1/8, or 1/32 for large ones.

    Parameters
    ----------
    size : int
        Bytes asked for, at least 1.
    page : int
        The device's page size: what large sizes are multiples of.
    """
    power = 1 << (size.bit_length() - 1)
    step = max(power // 8, GRANULE) if size <= LARGE else max(power // 32, page)
    return -(-size // step) * step


class Allocator:
    """The memory of one device.

    Parameters
    ----------
    device : Device
        Where it takes memory from.
    """

    __slots__ = ("_by_request", "_by_size", "_lock", "counters", "device", "high_ratio", "low_ratio", "reserved")

    def __init__(self, device: Device) -> None:
        from mpscffi.config import settings

        self.device = device
        self.counters = Counters()
        #: Bytes taken from the driver: in use, or cached.
        self.reserved = 0
        self.high_ratio = settings().high_watermark_ratio
        self.low_ratio = settings().low_watermark_ratio
        self._by_request: dict[int, SizeClass] = {}
        self._by_size: dict[int, SizeClass] = {}
        # Re-entrant: a finalizer or a signal handler may allocate while this thread does.
        self._lock = threading.RLock()

    @property
    def limit(self) -> int | None:
        """The most that the driver may hold for this process, in bytes; None for no limit."""
        return int(self.high_ratio * self.device.recommended_max_working_set) if self.high_ratio else None

    def take(self, size: int, host_bound: bool = False) -> Block:
        """Give out a block.

        Parameters
        ----------
        size : int
            Bytes, at least 1.
        host_bound : bool
            Whether the CPU is going to write it, so that no queued work may use it any more.

        Returns
        -------
        Block
            The caller's, until it gives it back.
        """
        try:
            block = self._by_request[size].free.pop()
        except (KeyError, IndexError):
            block = self._choose(self._class_for(size), host_bound)
        else:
            block.zeroed = False
            if block.stream is not None and not _reusable(block, host_bound):
                block = self._choose(self._class_for(size), host_bound, block)
        self.counters.current += block.size
        return block

    def _class_for(self, size: int) -> SizeClass:
        found = self._by_request.get(size)
        if found is not None:
            return found
        if size > self.device.max_buffer_length:
            raise OutOfMemoryError(
                f"one array of {size} bytes ({readable(size)}) is more than this device's largest buffer, "
                f"{self.device.max_buffer_length} bytes ({readable(self.device.max_buffer_length)})"
            )
        with self._lock:
            rounded = min(rounded_size(size, self.device.page_size), self.device.max_buffer_length)
            found = self._by_size.setdefault(rounded, SizeClass(rounded))
            if len(self._by_request) >= REMEMBERED_SIZES:
                self._by_request.clear()
            self._by_request[size] = found
            return found

    def _choose(self, size_class: SizeClass, host_bound: bool, rejected: Block | None = None) -> Block:
        """Find a free block, or make one; `rejected` was taken from the free ones and will not do."""
        busy = [] if rejected is None else [rejected]
        try:
            for _ in range(TRIES):
                try:
                    block = size_class.free.pop()
                except IndexError:
                    break
                if block.stream is None or _reusable(block, host_bound):
                    block.zeroed = False
                    return block
                busy.append(block)
        finally:
            # Where they are tried last.
            size_class.free[:0] = busy
        return self._make(size_class)

    def _make(self, size_class: SizeClass) -> Block:
        with self._lock:
            size = size_class.size
            pointer = self._driver_buffer(size)
            self.reserved += size
            return Block(self.device, pointer, size, self.counters, size_class.free.append, size)

    def _driver_buffer(self, size: int) -> Any:
        """Take a buffer from the driver; make room first, step by step, where the limit or the driver wants it."""
        low = self.low_ratio * self.device.recommended_max_working_set
        if low and self.device.allocated_size() + size > low:
            self.release_cached(only_idle=True)
        for make_room in (None, self.release_cached, self._wait_and_release, self._collect_and_release):
            if make_room is not None:
                make_room()
            if self._within_limit(size):
                desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": size})
                out = ffi.new("mps_buffer **")
                status = lib.mps_buffer_create(self.device._pointer, desc, out)
                if status == lib.MPS_STATUS_OK:
                    return out[0]
                if status != lib.MPS_STATUS_OUT_OF_MEMORY:
                    check(status)
                reason = error_message()
            else:
                reason = ""
        raise OutOfMemoryError(self._explain(size, reason))

    def _within_limit(self, size: int) -> bool:
        return self.limit is None or self.device.allocated_size() + size <= self.limit

    def _explain(self, size: int, reason: str) -> str:
        total = self.device.allocated_size()
        text = (
            f"out of memory: {size} bytes ({readable(size)}) of shared memory asked for; in arrays "
            f"{readable(self.counters.current)}, cached {readable(self.reserved - self.counters.current)}, "
            f"other allocations {readable(max(0, total - self.reserved))}"
        )
        if self.limit is not None:
            text += (
                f", limit {readable(self.limit)} ({self.high_ratio} of the recommended "
                f"{readable(self.device.recommended_max_working_set)}). Raise the limit with "
                "mpscffi.set_per_process_memory_fraction, or set PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 before the start "
                "for none, which may bring the system down"
            )
        return f"{text}. {reason}" if reason else text

    def release_cached(self, only_idle: bool = False) -> None:
        """Give cached blocks back to the driver.

        Parameters
        ----------
        only_idle : bool
            Keep those that queued work still uses, since their memory would not come back now.
        """
        with self._lock:
            for size_class in list(self._by_size.values()):
                kept = []
                while size_class.free:
                    block = size_class.free.pop()
                    if only_idle and block.stream is not None and block.in_use():
                        kept.append(block)
                    else:
                        self.reserved -= block.size
                        block.release()
                size_class.free.extend(kept)

    def _wait_and_release(self) -> None:
        # By asking, since a wait would take a failure that is not this caller's; for a while only, since a kernel may
        # never end.
        deadline = time.monotonic() + OUT_OF_MEMORY_SECONDS
        busy = [stream for stream in live_streams() if stream.device is self.device]
        for stream in busy:
            stream.commit()
            while not stream.query() and time.monotonic() < deadline:
                time.sleep(0.001)
        self.release_cached()

    def _collect_and_release(self) -> None:
        gc.collect()
        self.release_cached()


def _reusable(block: Block, host_bound: bool) -> bool:
    """Whether a free block that work has used can be given out now; notes what that means for its next user."""
    if not host_bound and block.others is None and block.stream is current_stream():
        block.inherited = True
    elif block.in_use():
        return False
    else:
        block.stream = None
        block.others = None
        block.inherited = False
    return True


def readable(size: int) -> str:
    """Return a size for people, as "1.50 GiB"."""
    if size <= 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.2f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


_open_lock = threading.RLock()


def allocator_of(device: Device) -> Allocator:
    """Return a device's allocator, made at first use."""
    found = device._allocator
    if found is None:
        with _open_lock:
            found = device._allocator = device._allocator or Allocator(device)
    return found


def empty_cache() -> None:
    """Give all cached memory back to the driver. Never touches arrays, never waits.

    What queued work still uses comes back when that work is complete.
    """
    allocator = allocator_of(current_device())
    for stream in live_streams():
        if stream.device is allocator.device:
            stream.commit()
    allocator.release_cached()


def set_per_process_memory_fraction(fraction: float) -> None:
    """Limit the memory that the driver may hold for this process.

    Parameters
    ----------
    fraction : float
        Of :func:`recommended_max_memory`, 0.0 to 2.0; 0.0 for no limit, which may bring the system down.
    """
    from mpscffi.config import MAX_RATIO

    if not isinstance(fraction, float):
        raise ArgumentTypeError(f"set_per_process_memory_fraction: got {type(fraction).__name__}, expected a float")
    if math.isnan(fraction) or not 0 <= fraction <= MAX_RATIO:
        raise InvalidArgumentError(
            f"set_per_process_memory_fraction: got {fraction}, expected a value in the range 0 to 2"
        )
    allocator = allocator_of(current_device())
    allocator.high_ratio = float(fraction)


def current_allocated_memory() -> int:
    """Return the bytes that arrays hold, cached memory not counted."""
    return allocator_of(current_device()).counters.current


def driver_allocated_memory() -> int:
    """Return the bytes that the driver holds for this process, caches included."""
    return current_device().allocated_size()


def recommended_max_memory() -> int:
    """Return the bytes that the device can use without hurting the system."""
    return current_device().recommended_max_working_set
