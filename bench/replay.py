"""Replays a log of allocations, or a made-up week, on a simulated device: fragmentation, peaks, collections.

python bench/replay.py                      # a week: 1e6 operations, 1 byte to 2 GiB
python bench/replay.py memory.json          # what save_memory_snapshot("memory.json") wrote while a log was kept
python bench/replay.py memory.json --high 0.5 --cache-limit 1000000000
python bench/replay.py memory.json --lag 50 # work uses an array's memory for 50 operations more after it was dropped
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mpscffi.errors import OutOfMemoryError
from mpscffi.memory.allocator import Allocator
from mpscffi.memory.block import HeapBlock
from mpscffi.memory.block import give_back as give
from mpscffi.memory.simulated import GIB, SimulatedMemory, SimulatedStream
from mpscffi.memory.sizes import readable
from mpscffi.memory.statistics import statistics


class Operation(NamedTuple):
    """One entry of a log.

    Attributes
    ----------
    kind
        "allocate", "free" or "empty_cache".
    number
        Of the allocation.
    size
        Bytes asked for.
    private
        Whether the CPU cannot see the memory.
    stream
        Which stream it was allocated for, or whose work may still use what is freed.
    """

    kind: str
    number: int = 0
    size: int = 0
    private: bool = False
    stream: str | None = None


@dataclass
class Outcome:
    """What a replay came to.

    Attributes
    ----------
    failures
        Allocations for which there was no room.
    fragmentation
        At each tenth of the way, the part of the heaps that is free while something lies in them.
    """

    operations: int = 0
    failures: int = 0
    seconds: float = 0.0
    fragmentation: list[float] = field(default_factory=list)
    allocator: Allocator | None = None


def logged(events: list[dict[str, Any]]) -> Iterator[Operation]:
    """Return the operations of a log."""
    for event in events:
        if event["action"] in ("allocate", "free", "empty_cache"):
            private = str(event.get("pool", "")).startswith("private")
            yield Operation(event["action"], event.get("id", 0), event["size"], private, event.get("stream"))


def week(operations: int, seed: int = 1, most: int = 12 * GIB) -> Iterator[Operation]:
    """Return a made-up week: sizes from 1 byte to 2 GiB, each order of magnitude as likely, most of them usual ones.

    Arrays live for a moment or for a day; at the end of each day all is given back, and the cache emptied.
    """
    rng = random.Random(seed)
    usual = [int(2 ** rng.uniform(0, 31)) for _ in range(200)]
    live: dict[int, int] = {}
    held = 0
    for number in range(operations):
        if number % (operations // 7 or 1) == operations // 7 - 1:
            for one in list(live):
                yield Operation("free", one)
            live.clear()
            held = 0
            yield Operation("empty_cache")
            continue
        size = rng.choice(usual) if rng.random() < 0.8 else int(2 ** rng.uniform(0, 31))
        if live and (rng.random() < 0.48 or held + size > most):
            one = next(iter(live)) if rng.random() < 0.2 else rng.choice(list(live)[-50:])
            held -= live.pop(one)
            yield Operation("free", one)
        elif held + size <= most:
            live[number] = size
            held += size
            yield Operation("allocate", number, size)


def replay(
    operations: Iterator[Operation],
    memory: SimulatedMemory,
    high: float,
    low: float,
    cache: int | None = None,
    total: int = 1_000_000,
    lag: int = 0,
) -> Outcome:
    """Run operations on an allocator over a simulated device.

    A stream's work goes on using what it has used for `lag` operations after that was freed.
    """
    allocator = Allocator(memory, high, low)
    allocator.cache_limit = cache
    outcome = Outcome(allocator=allocator)
    live: dict[int, HeapBlock] = {}
    streams = {memory.default.label: memory.default}
    running: deque[tuple[int, SimulatedStream, int]] = deque()
    start = time.thread_time()
    for kind, number, size, private, label in operations:
        outcome.operations += 1
        while running and running[0][0] <= outcome.operations:
            _, stream, pointer = running.popleft()
            stream.uses.discard(pointer)
        if label is not None and label not in streams:
            streams[label] = memory.stream(label)
        if kind == "allocate":
            memory.current = streams.get(label or "", memory.default)
            try:
                live[number] = allocator.take(size, private=private)
            except OutOfMemoryError:
                outcome.failures += 1
        elif kind == "free":
            block = live.pop(number, None)
            if block is not None:
                if label is not None and lag:
                    streams[label].use(block)
                    running.append((outcome.operations + lag, streams[label], block.pointer))
                give(block)
        else:
            allocator.release_cached()
        if outcome.operations % max(1, total // 10) == 0 and allocator.reserved.current:
            outcome.fragmentation.append(fragmentation(allocator))
    outcome.seconds = time.thread_time() - start
    for block in live.values():
        give(block)
    memory.finish()
    return outcome


def fragmentation(allocator: Allocator) -> float:
    """Return the part of the heaps in use that is not in use."""
    used = free = 0
    for pool in allocator.pools:
        cached = {block for size_class in pool.cached() for block in size_class.free}
        for heap in pool.heaps.values():
            live = sum(block.size for block in heap if block.pointer is not None and block not in cached)
            if live:
                used += live
                free += heap.size - live
    return free / (used + free) if used else 0.0


def show(outcome: Outcome) -> None:
    """Print what came out, and that nothing is left."""
    allocator = outcome.allocator
    assert allocator is not None
    stats = statistics(allocator)
    print(f"{outcome.operations} operations, {outcome.seconds / max(1, outcome.operations) * 1e6:.2f} us each")
    print(
        f"peak in use {readable(stats['allocated_bytes.all.peak'])}, peak reserved "
        f"{readable(stats['reserved_bytes.all.peak'])}, ratio "
        f"{stats['reserved_bytes.all.peak'] / max(1, stats['allocated_bytes.all.peak']):.3f}"
    )
    print("fragmentation on the way " + ", ".join(f"{100 * part:.1f}%" for part in outcome.fragmentation))
    print(
        f"heaps made {stats['segment.all.allocated']}, given back {stats['segment.all.freed']}; collections "
        f"{stats['num_collections']} ({readable(stats['collected_bytes'])}); made room {stats['num_alloc_retries']} "
        f"times; no room {outcome.failures} times"
    )
    allocator.release_cached()
    print(
        f"in the end: in use {allocator.counters.current}, reserved {allocator.reserved.current} bytes, "
        f"driver {allocator.source.allocated()} bytes"
    )


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", type=Path, help="a snapshot with a log; a made-up week by default")
    parser.add_argument("--operations", type=int, default=1_000_000, help="of the week")
    parser.add_argument("--high", type=float, help="the high watermark ratio")
    parser.add_argument("--low", type=float, help="the low watermark ratio")
    parser.add_argument("--cache-limit", type=int, help="bytes")
    parser.add_argument("--lag", type=int, default=0, help="operations for which work goes on after a free; 0")
    options = parser.parse_args()
    if options.log is None:
        memory = SimulatedMemory(recommended=16 * GIB)
        high, low = options.high or 1.0, options.low or 0.9
        outcome = replay(week(options.operations), memory, high, low, options.cache_limit, options.operations)
    else:
        snapshot = json.loads(options.log.read_text())
        device, limits = snapshot["device"], snapshot["limits"]
        memory = SimulatedMemory(
            recommended=device["recommended"], longest=device["longest"], page=device["page"], align=device["align"]
        )
        events = list(logged(snapshot["history"]))
        if not events:
            parser.error(
                f"{options.log} has no log: call mpscffi.record_memory_history() before what is to be replayed"
            )
        high = limits["high_ratio"] if options.high is None else options.high
        low = limits["low_ratio"] if options.low is None else options.low
        outcome = replay(iter(events), memory, high, low, options.cache_limit, len(events), options.lag)
    show(outcome)


if __name__ == "__main__":
    main()
