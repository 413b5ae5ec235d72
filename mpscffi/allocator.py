"""Memory: how much there is and is used, limits, the cache."""

from __future__ import annotations

import threading

from mpscffi import device as _device
from mpscffi._callbacks import check_callable
from mpscffi.device import Device, current_device
from mpscffi.memory.allocator import Allocator
from mpscffi.memory.source import DriverMemory

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from typing import Any

    from mpscffi.memory.limits import MemoryLimits

__all__ = [
    "add_allocation_failure_callback",
    "current_allocated_memory",
    "driver_allocated_memory",
    "empty_cache",
    "get_cache_limit",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "memory_limits",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "recommended_max_memory",
    "record_memory_history",
    "remove_allocation_failure_callback",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "save_memory_snapshot",
    "set_cache_limit",
    "set_low_watermark_ratio",
    "set_per_process_memory_fraction",
]

_open_lock = threading.RLock()


def allocator_of(device: Device) -> Allocator:
    """Return a device's allocator, made at first use."""
    found = device._allocator
    if found is None:
        with _open_lock:
            found = device._allocator = device._allocator or _open(device)
    return found


def _open(device: Device) -> Allocator:
    from mpscffi.config import settings

    chosen = settings()
    allocator = Allocator(DriverMemory(device), chosen.high_watermark_ratio, chosen.low_watermark_ratio)
    if chosen.debug_allocator:
        from mpscffi.memory.verbosity import Verbosity

        allocator.watch(Verbosity(allocator, chosen.debug_allocator))
    return allocator


# ---- numbers


def current_allocated_memory() -> int:
    """Return the bytes that arrays hold, cached memory not counted."""
    device = _device._current or current_device()
    allocator = device._allocator or allocator_of(device)
    if allocator.pending.blocks:
        allocator.sweep()
    return allocator.counters.current


def max_memory_allocated() -> int:
    """Return the most bytes that arrays have held at a time since the start, or since the peak was reset."""
    device = _device._current or current_device()
    return (device._allocator or allocator_of(device)).counters.peak


def driver_allocated_memory() -> int:
    """Return the bytes that the driver holds for this process, caches included."""
    return (_device._current or current_device()).allocated_size()


def recommended_max_memory() -> int:
    """Return the bytes that the device can use without hurting the system."""
    return current_device().recommended_max_working_set


def memory_stats() -> dict[str, int]:
    """Return all statistics of the device in use, under names as ``torch.cuda.memory_stats`` has them.

    See the page on memory for what each counts.
    """
    from mpscffi.memory.statistics import statistics

    return statistics(allocator_of(current_device()))


def memory_summary() -> str:
    """Return the statistics as a table for people."""
    from mpscffi.memory.statistics import summary

    return summary(allocator_of(current_device()))


def reset_peak_memory_stats() -> None:
    """Let peaks start again from what is in use now."""
    from mpscffi.memory.statistics import reset_peaks

    reset_peaks(allocator_of(current_device()))


def reset_accumulated_memory_stats() -> None:
    """Let the sums and counts of :func:`memory_stats` start again from 0."""
    from mpscffi.memory.statistics import reset_accumulated

    reset_accumulated(allocator_of(current_device()))


# ---- the cache and limits


def empty_cache() -> None:
    """Give all cached memory back to the driver. Never touches arrays.

    Memory goes back in whole heaps, so that an array keeps the heap that it lies in. If queued work still uses some of
    it, this waits for work, for 10 seconds at most: what is used then comes back when that work is complete.
    """
    from mpscffi.memory import rescue

    rescue.empty_cache(allocator_of(current_device()))


def set_cache_limit(limit: int | None) -> None:
    """Limit the memory that is kept for later without being in use.

    Parameters
    ----------
    limit : int or None
        Bytes; 0 to keep nothing, None (the default) for as much as the other limits allow.
    """
    from mpscffi.memory.limits import check_cache_limit

    allocator_of(current_device()).cache_limit = check_cache_limit(limit)


def get_cache_limit() -> int | None:
    """Return what :func:`set_cache_limit` has set."""
    return allocator_of(current_device()).cache_limit


def set_per_process_memory_fraction(fraction: float) -> None:
    """Limit the memory that the driver may hold for this process.

    It takes effect at once, and goes before ``PYTORCH_MPS_HIGH_WATERMARK_RATIO``. Lowering it gives free heaps back;
    arrays that exist stay as they are.

    Parameters
    ----------
    fraction : float
        Of :func:`recommended_max_memory`, 0.0 to 2.0; 0.0 for no limit, which may bring the system down.
    """
    from mpscffi.memory.limits import check_ratio

    value = check_ratio(fraction, "set_per_process_memory_fraction")
    allocator_of(current_device()).high_ratio = value


def get_per_process_memory_fraction() -> float:
    """Return the limit in force, as a share of :func:`recommended_max_memory`; 0.0 for none."""
    return allocator_of(current_device()).high_ratio


def set_low_watermark_ratio(ratio: float | None) -> None:
    """Set from which memory use on cached memory is given back before more is taken.

    It takes effect at once, and goes before ``PYTORCH_MPS_LOW_WATERMARK_RATIO``.

    Parameters
    ----------
    ratio : float or None
        Of :func:`recommended_max_memory`, 0.0 to the limit's; 0.0 for never, None for the default.
    """
    from mpscffi.memory.limits import check_low_ratio

    allocator = allocator_of(current_device())
    allocator.budget.low_ratio = check_low_ratio(ratio, allocator.high_ratio)


def memory_limits() -> MemoryLimits:
    """Return all limits in force, in bytes and as shares."""
    from mpscffi.memory.limits import limits

    return limits(allocator_of(current_device()))


def add_allocation_failure_callback(function: Callable[[int], object]) -> None:
    """Call a function when there is no room for an allocation, before anything else is tried.

    Parameters
    ----------
    function : callable
        Called with the bytes that are wanted, on the thread that wants them. It may drop arrays. What it raises
        becomes a RuntimeWarning, and the cause of the OutOfMemoryError if nothing else makes room.
    """
    check_callable(function, 1, "add_allocation_failure_callback")
    allocator_of(current_device()).failure_callbacks.append(function)


def remove_allocation_failure_callback(function: Callable[[int], object]) -> None:
    """Call a function that was added no more."""
    from mpscffi.errors import NotFoundError

    try:
        allocator_of(current_device()).failure_callbacks.remove(function)
    except ValueError:
        raise NotFoundError(f"remove_allocation_failure_callback: {function!r} was not added") from None


# ---- pictures


def record_memory_history(enabled: bool = True, *, stacks: bool = True, max_entries: int = 100_000) -> None:
    """Start or stop to keep a log of allocations, which :func:`memory_snapshot` then contains.

    Parameters
    ----------
    enabled : bool
        False stops, and forgets the log.
    stacks : bool
        Note where in the program each allocation was made.
    max_entries : int
        How many events are kept; the oldest go first.
    """
    from mpscffi.memory.history import record

    record(allocator_of(current_device()), enabled, stacks, max_entries)


def memory_snapshot() -> dict[str, Any]:
    """Return heaps, blocks, limits, statistics and the log of the device in use, as JSON knows them."""
    from mpscffi.memory.snapshot import snapshot

    return snapshot(allocator_of(current_device()))


def save_memory_snapshot(path: str | PathLike[str]) -> None:
    """Write :func:`memory_snapshot` to a file.

    Parameters
    ----------
    path : str or path-like
        ``.json`` for the snapshot itself, ``.html`` for a picture of heaps and blocks in a page of its own.
    """
    from mpscffi.memory.snapshot import save

    save(allocator_of(current_device()), path)
