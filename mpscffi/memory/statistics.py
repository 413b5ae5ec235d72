"""Statistics of an allocator: what blocks, heaps and size classes add up to, counted when asked for."""

from __future__ import annotations

from mpscffi._table import table
from mpscffi.memory.sizes import readable

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from mpscffi.memory.allocator import Allocator
    from mpscffi.memory.pool import Pool


def _of_pool(pool: Pool) -> dict[str, int]:
    live = live_bytes = taken = taken_bytes = 0
    for size_class in list(pool.classes.values()):
        count = size_class.made - len(size_class.free)
        live += count
        live_bytes += count * size_class.size
        taken += size_class.taken
        taken_bytes += size_class.taken * size_class.size
    heaps = list(pool.heaps.values())
    reserved = sum(heap.size for heap in heaps)
    return {
        "allocation.current": live,
        "allocation.allocated": taken,
        "allocation.freed": taken - live,
        "allocated_bytes.current": live_bytes,
        "allocated_bytes.allocated": taken_bytes,
        "allocated_bytes.freed": taken_bytes - live_bytes,
        "segment.current": len(heaps),
        "reserved_bytes.current": reserved,
        "cached_bytes.current": reserved - live_bytes,
        "free_range_bytes.current": pool.free_bytes,
    }


def _totals(allocator: Allocator) -> dict[str, int]:
    """Return everything, counted from the start."""
    stats: dict[str, int] = {}
    all_pools: dict[str, int] = {}
    for pool in allocator.pools:
        for name, value in _of_pool(pool).items():
            kind, _, what = name.partition(".")
            stats[f"{kind}.{pool.name.replace(' ', '_')}_pool.{what}"] = value
            all_pools[f"{kind}.all.{what}"] = all_pools.get(f"{kind}.all.{what}", 0) + value
    tally = allocator.tally
    return {
        **all_pools,
        "allocated_bytes.all.peak": allocator.counters.peak,
        "reserved_bytes.all.peak": allocator.reserved_peak,
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


def reset_accumulated(allocator: Allocator) -> None:
    """Count sums from here on."""
    allocator.sweep()
    allocator.accumulated_before = {name: value for name, value in _totals(allocator).items() if _is_accumulated(name)}


def summary(allocator: Allocator) -> str:
    """Return what :func:`mpscffi.memory_summary` does."""
    stats = statistics(allocator)
    device = allocator.source.device
    head = ("", "in use", "arrays", "cached", "heaps", "reserved", "given out")
    rows = []
    names = [("all", "all"), *((pool.name, f"{pool.name.replace(' ', '_')}_pool") for pool in allocator.pools)]
    for title, name in names:
        rows.append(
            (
                title,
                readable(stats[f"allocated_bytes.{name}.current"]),
                str(stats[f"allocation.{name}.current"]),
                readable(stats[f"cached_bytes.{name}.current"]),
                str(stats[f"segment.{name}.current"]),
                readable(stats[f"reserved_bytes.{name}.current"]),
                str(stats[f"allocation.{name}.allocated"]),
            )
        )
    limits = [
        ("limit", allocator.limit, f" ({allocator.high_ratio} of the recommended maximum)"),
        ("low watermark", allocator.low_limit, ""),
        ("cache limit", allocator.cache_limit, ""),
    ]
    lines = [
        f"Memory of {device.backend}:{device.index} {device.name}",
        table(head, rows),
        f"peak in use {readable(stats['allocated_bytes.all.peak'])}, reserved "
        f"{readable(stats['reserved_bytes.all.peak'])}; the driver holds "
        f"{readable(stats['driver_bytes.all.current'])} of the recommended {readable(allocator.source.recommended)}",
        "; ".join(f"{name} {'none' if size is None else readable(size) + note}" for name, size, note in limits),
        f"allocations that had to make room {stats['num_alloc_retries']}, that failed {stats['num_ooms']}; "
        f"collections {stats['num_collections']}, {readable(stats['collected_bytes'])} got back",
    ]
    return "\n".join(lines)
