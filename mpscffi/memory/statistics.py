"""Statistics of an allocator: what blocks, heaps and size classes add up to, counted when asked for."""

from __future__ import annotations

from mpscffi._table import table
from mpscffi.memory.sizes import readable

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from mpscffi.memory.allocator import Allocator
    from mpscffi.memory.counters import Counters
    from mpscffi.memory.pool import Pool


def _name(pool: Pool) -> str:
    return pool.name.replace(" ", "_") + "_pool"


def _of_pool(pool: Pool) -> dict[str, int]:
    live = live_bytes = taken = taken_bytes = 0
    for size_class in list(pool.classes.values()):
        count = size_class.made - len(size_class.free)
        live += count
        live_bytes += count * size_class.size
        taken += size_class.taken
        taken_bytes += size_class.taken * size_class.size
    reserved = pool.reserved.current
    return {
        "allocation.current": live,
        "allocation.allocated": taken,
        "allocation.freed": taken - live,
        "allocated_bytes.current": live_bytes,
        "allocated_bytes.allocated": taken_bytes,
        "allocated_bytes.freed": taken_bytes - live_bytes,
        "segment.current": len(pool.heaps),
        "reserved_bytes.current": reserved,
        "cached_bytes.current": reserved - live_bytes,
        "free_range_bytes.current": pool.free_bytes,
    }


def _peaks(name: str, in_use: Counters, reserved: Counters) -> dict[str, int]:
    return {f"allocated_bytes.{name}.peak": in_use.peak, f"reserved_bytes.{name}.peak": reserved.peak}


def _totals(allocator: Allocator) -> dict[str, int]:
    """Return everything, counted from the start."""
    stats: dict[str, int] = {}
    all_pools: dict[str, int] = {}
    for pool in allocator.pools:
        pool_name = _name(pool)
        for name, value in _of_pool(pool).items():
            kind, _, what = name.partition(".")
            stats[f"{kind}.{pool_name}.{what}"] = value
            all_pools[f"{kind}.all.{what}"] = all_pools.get(f"{kind}.all.{what}", 0) + value
        stats |= _peaks(pool_name, pool.counters, pool.reserved)
    tally = allocator.tally
    return {
        **all_pools,
        **_peaks("all", allocator.counters, allocator.reserved),
        "segment.all.allocated": tally.heaps_created,
        "segment.all.freed": tally.heaps_released,
        "pending_bytes.all.current": sum(block.size for block in list(allocator.pending.blocks)),
        "driver_bytes.all.current": allocator.source.allocated(),
        "num_alloc_retries": tally.retries,
        "num_ooms": tally.failures,
        "num_collections": tally.collections,
        "collected_bytes": tally.collected,
        **stats,
    }


def _is_accumulated(name: str) -> bool:
    return name.endswith((".allocated", ".freed")) or name.startswith(("num_", "collected_"))


def statistics(allocator: Allocator) -> dict[str, int]:
    """Return what :func:`mpscffi.memory_stats` does."""
    allocator.sweep()
    return {name: value - allocator.accumulated_before.get(name, 0) for name, value in _totals(allocator).items()}


def reset_peaks(allocator: Allocator) -> None:
    """Do what :func:`mpscffi.reset_peak_memory_stats` does."""
    allocator.sweep()
    for counters in (allocator.counters, allocator.reserved):
        counters.reset_peak()
    for pool in allocator.pools:
        pool.counters.reset_peak()
        pool.reserved.reset_peak()


def reset_accumulated(allocator: Allocator) -> None:
    """Count sums from here on."""
    allocator.sweep()
    allocator.accumulated_before = {name: value for name, value in _totals(allocator).items() if _is_accumulated(name)}


def summary(allocator: Allocator) -> str:
    """Return what :func:`mpscffi.memory_summary` does."""
    stats = statistics(allocator)
    device, budget = allocator.source.device, allocator.budget
    head = ("", "in use", "peak", "arrays", "cached", "heaps", "reserved", "peak", "given out")
    rows = []
    names = [("all", "all"), *((pool.name, _name(pool)) for pool in allocator.pools)]
    for title, name in names:
        rows.append(
            (
                title,
                readable(stats[f"allocated_bytes.{name}.current"]),
                readable(stats[f"allocated_bytes.{name}.peak"]),
                str(stats[f"allocation.{name}.current"]),
                readable(stats[f"cached_bytes.{name}.current"]),
                str(stats[f"segment.{name}.current"]),
                readable(stats[f"reserved_bytes.{name}.current"]),
                readable(stats[f"reserved_bytes.{name}.peak"]),
                str(stats[f"allocation.{name}.allocated"]),
            )
        )
    limits = [
        ("limit", budget.limit, f" ({budget.high_ratio} of the recommended maximum)"),
        ("low watermark", budget.low_limit, ""),
        ("cache limit", budget.cache_limit, ""),
    ]
    lines = [
        f"Memory of {device.backend}:{device.index} {device.name}",
        table(head, rows),
        f"the driver holds {readable(stats['driver_bytes.all.current'])} of the recommended "
        f"{readable(allocator.source.recommended)}",
        "; ".join(f"{name} {'none' if size is None else readable(size) + note}" for name, size, note in limits),
        f"allocations that had to make room {stats['num_alloc_retries']}, that failed {stats['num_ooms']}; "
        f"collections {stats['num_collections']}, {readable(stats['collected_bytes'])} got back",
    ]
    return "\n".join(lines)
