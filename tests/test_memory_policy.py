"""The allocator's policy, on a simulated device: sizes, placement, reuse, limits, and what always holds."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import mpscffi
from mpscffi.errors import OutOfMemoryError
from mpscffi.memory.allocator import Allocator
from mpscffi.memory.block import HeapBlock
from mpscffi.memory.block import give_back as give
from mpscffi.memory.simulated import GIB, SimulatedMemory
from mpscffi.memory.sizes import MIB, readable, rounded_size, tier
from mpscffi.memory.statistics import reset_peaks, statistics, summary

PAGE = 16384


def made(high: float = 0.0, low: float = 0.0, **options: Any) -> tuple[Allocator, SimulatedMemory]:
    memory = SimulatedMemory(**options)
    return Allocator(memory, high, low), memory


def check(allocator: Allocator) -> None:
    """What holds at any time: blocks cover their heaps without gaps, and all sums agree."""
    allocator.sweep()  # what an exception has left behind is put right by whoever comes next
    memory: Any = allocator.source
    live = free = reserved = 0
    for pool in allocator.pools:
        ranges = 0
        cached = {block for size_class in pool.classes.values() for block in size_class.free}
        for heap in pool.heaps.values():
            end = placed = 0
            before = None
            for block in heap:
                assert (block.offset, block.before) == (end, before)
                end, before = block.offset + block.size, block
                if block.pointer is None:
                    ranges += block.size
                    assert block.after is None or block.after.pointer is not None, "neighbours that are not joined"
                else:
                    placed += 1
                    assert memory.buffers[block.pointer] == (heap.handle, block.offset, block.size)
                    live += block.size if block not in cached else 0
            assert (end, placed) == (heap.size, heap.placed)
            reserved += heap.size
        assert ranges == pool.free_bytes
        free += ranges
    assert live == allocator.counters.current == sum(pool.counters.current for pool in allocator.pools)
    assert all(pool.counters.current <= pool.counters.peak <= pool.reserved.peak for pool in allocator.pools)
    assert all(pool.counters.peak <= allocator.counters.peak for pool in allocator.pools)
    assert reserved == allocator.reserved.current == memory.allocated() - memory.foreign
    assert allocator.counters.current <= allocator.counters.peak <= allocator.reserved.peak
    assert len(memory.buffers) == sum(heap.placed for pool in allocator.pools for heap in pool.heaps.values())
    stats = statistics(allocator)
    assert stats["allocated_bytes.all.current"] == allocator.counters.current
    assert stats["reserved_bytes.all.current"] == reserved
    assert stats["allocation.all.allocated"] - stats["allocation.all.freed"] == stats["allocation.all.current"]


# ---- sizes


@pytest.mark.parametrize(
    ("size", "heap", "under_pressure"),
    [
        (1, 8 * MIB, 8 * MIB),
        (MIB, 8 * MIB, 8 * MIB),
        (MIB + 1, 32 * MIB, 32 * MIB),
        (10 * MIB - 1, 32 * MIB, 32 * MIB),
        (10 * MIB, GIB, 10 * MIB),
        (10 * MIB + 1, GIB, 12 * MIB),
        (512 * MIB - 1, GIB, 512 * MIB),
        (512 * MIB, 512 * MIB, 512 * MIB),
        (3 * GIB + 1, 3 * GIB + 2 * MIB, 3 * GIB + 2 * MIB),
    ],
)
def test_tiers(size: int, heap: int, under_pressure: int) -> None:
    assert tier(size) == heap
    assert tier(size, pressure=True) == under_pressure


@pytest.mark.parametrize("pressure", [False, True])
@pytest.mark.parametrize(
    ("size", "heap", "scarce"),
    [
        (1, 8, 8),
        (MIB, 8, 8),
        (MIB + 256, 32, 32),
        (10 * MIB - 256, 32, 32),
        (10 * MIB, 1024, 10),
        (608 * MIB, 608, 608),
    ],
)
def test_heaps_that_are_made(size: int, heap: int, scarce: int, pressure: bool) -> None:
    allocator, memory = made(low=0.5, recommended=64 * GIB)
    if pressure:
        memory.foreign = 33 * GIB
    block = allocator.take(size)
    assert block.size >= size
    assert list(memory.heaps.values()) == [(scarce if pressure else heap) * MIB]


@given(st.integers(1, 1 << 40))
def test_rounded_sizes(size: int) -> None:
    longest = 1 << 41
    rounded = rounded_size(size, PAGE, longest)
    assert size <= rounded
    assert tier(rounded) == tier(size) or size >= 512 * MIB
    assert rounded_size(rounded, PAGE, longest) == rounded
    if size <= MIB:
        assert rounded == size
    else:
        assert rounded - size < max(PAGE, size / 32 + 1)


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        (MIB + 1, MIB + 32768),
        (2 * MIB, 2 * MIB),
        (3 * MIB + 1, 3 * MIB + 65536),
        # No step into the next tier.
        (10 * MIB - 1, 10 * MIB - 1),
        (512 * MIB - 1, 512 * MIB - 1),
        (513 * MIB, 528 * MIB),
    ],
)
def test_rounding_by_hand(size: int, rounded: int) -> None:
    assert rounded_size(size, PAGE, 1 << 40) == rounded


def test_rounding_stops_before_the_largest_buffer() -> None:
    assert rounded_size(99 * MIB + 1, PAGE, 100 * MIB) == 99 * MIB + 1
    allocator, _ = made(longest=100 * MIB)
    assert allocator.take(100 * MIB - 1).size == 100 * MIB - 1 + 1  # aligned to 256
    with pytest.raises(OutOfMemoryError, match=r"Invalid buffer size.*104857600 bytes \(100.00 MiB\)"):
        allocator.take(100 * MIB)


# ---- placement and reuse


def test_the_same_stream_gets_the_same_buffer_at_once() -> None:
    allocator, memory = made()
    block = allocator.take(5000)
    memory.default.use(block)
    pointer = block.pointer
    give(block)
    assert allocator.take(5000) is block
    assert block.pointer == pointer
    assert block.inherited
    check(allocator)


def test_another_stream_gets_it_once_it_is_idle() -> None:
    allocator, memory = made()
    block = allocator.take(5000)
    memory.default.use(block)
    give(block)
    memory.current = memory.stream("other")
    other = allocator.take(5000)
    assert other is not block
    memory.finish(memory.default)
    again = allocator.take(5000)
    assert again is block
    assert not again.inherited
    assert again.stream is None
    check(allocator)


def test_what_the_cpu_writes_is_never_in_flight() -> None:
    allocator, memory = made()
    block = allocator.take(5000)
    memory.default.use(block)
    give(block)
    assert allocator.take(5000, host_bound=True) is not block
    memory.finish()
    assert allocator.take(5000, host_bound=True) is block


def test_small_blocks_are_cut_from_one_heap_and_joined_again() -> None:
    allocator, memory = made()
    blocks = [allocator.take(size) for size in (256, 512, 1024, 4096)]
    assert [block.offset for block in blocks] == [0, 256, 768, 1792]
    for block in (blocks[1], blocks[3], blocks[0], blocks[2]):
        give(block)
    allocator.small.flush()
    heap = blocks[0].heap
    assert [(block.offset, block.size) for block in heap] == [(0, 8 * MIB)]
    check(allocator)
    allocator.release_cached()
    assert memory.heaps == {}


def test_neighbours_are_joined_for_a_larger_request_before_a_new_heap_is_made() -> None:
    allocator, memory = made()
    parts = [allocator.take(4 * MIB) for _ in range(8)]
    assert len(memory.heaps) == 1
    for part in parts[2:4]:
        give(part)
    assert allocator.take(8 * MIB).offset == 8 * MIB
    assert len(memory.heaps) == 1
    check(allocator)


def test_a_neighbour_that_work_uses_is_not_joined() -> None:
    allocator, memory = made()
    parts = [allocator.take(4 * MIB) for _ in range(8)]
    memory.default.use(parts[2])
    for part in parts[2:4]:
        give(part)
    assert allocator.take(8 * MIB).heap is not parts[0].heap
    assert len(memory.heaps) == 2
    check(allocator)


def test_a_block_is_used_as_it_is_if_little_is_left_over() -> None:
    allocator, _ = made()
    block = allocator.take(3 * MIB)
    rest = allocator.take(29 * MIB - 9 * MIB)  # another heap
    give(block)
    almost = allocator.take(3 * MIB - 100_000)
    assert almost is block
    assert almost.size == 3 * MIB
    give(almost)
    other = allocator.take(2 * MIB)
    assert other.size == 2 * MIB
    assert rest.size == 20 * MIB
    check(allocator)


def test_scalars_have_a_pool_of_their_own_and_come_back_when_work_is_complete() -> None:
    allocator, memory = made()
    scalar = allocator.take(8, host_bound=True)
    assert scalar.heap.pool is allocator.scalar
    assert allocator.take(8).heap.pool is allocator.small
    memory.default.use(scalar)
    give(scalar)
    assert allocator.take(4, host_bound=True) is not scalar
    memory.finish()
    assert allocator.take(8, host_bound=True) is scalar


def test_private_memory_has_pools_of_its_own() -> None:
    allocator, _ = made()
    small, large = allocator.take(100, private=True), allocator.take(3 * MIB, private=True)
    assert (small.address, large.address) == (0, 0)
    assert small.heap.pool is allocator.private_small
    assert large.heap.pool is allocator.private_large
    give(small)
    assert allocator.take(100) is not small
    assert allocator.take(100, private=True) is small


def test_a_block_of_several_streams_counts_until_they_are_done() -> None:
    allocator, memory = made()
    one, other = memory.default, memory.stream("other")
    block = allocator.take(5000)
    one.use(block)
    other.use(block)
    give(block)
    assert allocator.counters.current == block.size
    assert allocator.take(5000) is not block
    memory.finish(other)
    allocator.sweep()
    assert allocator.counters.current == 2 * block.size
    memory.finish(one)
    allocator.sweep()
    assert allocator.counters.current == block.size
    assert allocator.take(5000) is block
    check(allocator)


def test_fresh_memory_is_known_to_be_zero() -> None:
    allocator, _ = made()
    first, second = allocator.take(256), allocator.take(256)
    assert first.zeroed
    assert second.zeroed
    give(first)
    assert not allocator.take(256).zeroed
    give(second)
    allocator.small.flush()
    assert not allocator.take(512).zeroed  # both of them were used
    assert allocator.take(512).zeroed


def test_alignment_of_each_size() -> None:
    class Picky(SimulatedMemory):
        def size_and_align(self, length: int, is_private: bool) -> tuple[int, int]:
            align = 256 if length < 16384 else 16384
            return -(-length // align) * align, align

    memory = Picky()
    allocator = Allocator(memory, 0.0, 0.0)
    blocks = [allocator.take(size) for size in (100, 20_000, 300, 40_000, 100, 16_384)]
    for block in blocks:
        assert block.offset % (256 if block.size < 16384 else 16384) == 0
    assert len(memory.heaps) == 1
    check(allocator)


def test_sizes_by_turns_keep_their_buffers() -> None:
    """Small blocks stay as they are while memory is plenty, and are joined when it is not."""
    allocator, memory = made(high=1.0, recommended=GIB)

    def turn(size: int, count: int) -> set[int]:
        blocks = [allocator.take(size) for _ in range(count)]
        pointers = {block.pointer for block in blocks}
        for block in blocks:
            give(block)
        return pointers

    first = turn(65536, 1000), turn(256, 50_000)
    assert (turn(65536, 1000), turn(256, 50_000)) == first
    allocator.high_ratio = memory.allocated() / memory.recommended
    turn(MIB, 40)
    assert turn(65536, 1000) != first[0]
    check(allocator)


# ---- limits


def test_the_order_in_which_room_is_made() -> None:
    allocator, memory = made(high=1.0, recommended=64 * MIB)
    seen: list[str] = []
    allocator.watch(lambda kind, subject, number: seen.append(kind))
    allocator.failure_callbacks.append(lambda size: seen.append(f"callback {size}"))
    held = allocator.take(40 * MIB)
    cached = allocator.take(16 * MIB)
    memory.default.use(cached)
    give(cached)
    seen.clear()
    with pytest.raises(OutOfMemoryError):
        allocator.take(32 * MIB)
    assert seen == [
        "run_callbacks",
        f"callback {32 * MIB}",
        "release_pool",
        "release_all",
        "release_heap",
        "collect_garbage",
        "out_of_memory",
    ]
    assert memory.calls == ["wait", "wait"]
    assert held.size == 40 * MIB
    check(allocator)


def test_heaps_of_the_pool_go_first_and_no_more_than_needed() -> None:
    allocator, memory = made(high=1.0, recommended=64 * MIB)
    blocks = [allocator.take(10 * MIB) for _ in range(5)]
    scalar = allocator.take(1, host_bound=True)
    for block in [*blocks, scalar]:
        give(block)
    allocator.take(24 * MIB)
    # Oldest first, 30 of 50 MiB; the scalars' heap stays.
    assert sorted(memory.heaps.values())[1:] == [10 * MIB, 10 * MIB, 24 * MIB]
    assert len(allocator.scalar.heaps) == 1
    assert memory.calls == []
    check(allocator)


def test_a_callback_makes_room() -> None:
    allocator, memory = made(high=1.0, recommended=64 * MIB)
    held = [allocator.take(60 * MIB)]
    allocator.failure_callbacks.append(lambda size: give(held.pop()) if held else None)
    assert allocator.take(60 * MIB).size == 60 * MIB
    assert memory.calls == []


def test_a_callback_that_fails_does_not_hide_that_there_is_no_room() -> None:
    allocator, _ = made(high=1.0, recommended=64 * MIB)
    called: list[int] = []
    allocator.failure_callbacks += [lambda size: [][size], called.append]
    held = allocator.take(60 * MIB)
    with (
        pytest.warns(RuntimeWarning, match="callback.*IndexError") as warned,
        pytest.raises(OutOfMemoryError) as caught,
    ):
        allocator.take(30 * MIB)
    assert isinstance(caught.value.__cause__, IndexError)
    assert warned[0].filename == __file__
    assert called == [30 * MIB]
    give(held)
    with pytest.warns(RuntimeWarning, match="IndexError"):
        assert allocator.take(62 * MIB).size == 62 * MIB


def test_the_limit_counts_what_is_really_taken() -> None:
    """A heap of the tier would be beyond the limit, the block is not."""
    allocator, memory = made(high=1.0, recommended=100 * MIB)
    held = [allocator.take(10 * MIB)]
    assert list(memory.heaps.values()) == [10 * MIB]
    held.append(allocator.take(100))
    assert memory.allocated() <= 100 * MIB


def test_the_driver_has_less_than_the_limit() -> None:
    allocator, memory = made(high=1.0, recommended=16 * GIB, capacity=64 * MIB)
    held = [allocator.take(40 * MIB)]
    assert list(memory.heaps.values()) == [40 * MIB]
    with pytest.raises(OutOfMemoryError, match="simulated device has no room"):
        held.append(allocator.take(30 * MIB))


def test_a_fitting_cached_block_is_used_at_the_limit() -> None:
    allocator, memory = made(high=1.0, recommended=64 * MIB)
    block = allocator.take(60 * MIB)
    give(block)
    memory.foreign = 10 * MIB
    assert allocator.take(60 * MIB) is block


def test_what_others_take_counts() -> None:
    allocator, memory = made(high=1.0, recommended=64 * MIB)
    memory.foreign = 60 * MIB
    with pytest.raises(OutOfMemoryError, match=r"other allocations 60.00 MiB, limit 64.00 MiB"):
        allocator.take(8 * MIB)


def test_the_text_of_the_error() -> None:
    allocator, _ = made(high=0.5, recommended=64 * MIB)
    block = allocator.take(5 * MIB)
    give(allocator.take(6 * MIB))
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.take(30 * MIB)
    text = str(caught.value)
    for fact in (
        "31457280 bytes (30.00 MiB) of shared memory",
        f"in arrays {readable(block.size)}",
        "cached 1.00 MiB",  # of the heap of 6 MiB for 5
        "other allocations 0 bytes",
        "limit 32.00 MiB (0.5 of the recommended 64.00 MiB)",
        "mpscffi.set_per_process_memory_fraction",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        "may bring the system down",
        "memory_summary",
    ):
        assert fact in text
    with pytest.raises(OutOfMemoryError, match="of private memory"):
        allocator.take(30 * MIB, private=True)
    allocator.high_ratio = 0.0
    allocator.source.capacity = 0  # type: ignore[attr-defined]
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.take(30 * MIB)
    assert "limit" not in str(caught.value)


@pytest.mark.parametrize("held_size", [0, 5 * MIB])
def test_a_lowered_limit_gives_free_heaps_back_and_holds(held_size: int) -> None:
    allocator, memory = made(high=0.0, recommended=4 * GIB)
    held = [allocator.take(held_size)] if held_size else []
    blocks = [allocator.take(16 * MIB) for _ in range(3)]
    assert GIB in memory.heaps.values()
    for block in blocks:
        give(block)
    allocator.high_ratio = 0.01  # 40.96 MiB
    assert memory.allocated() == (32 * MIB if held else 0)
    held += [allocator.take(2 * MIB) for _ in range(5)]
    with pytest.raises(OutOfMemoryError, match=r"limit 40.96 MiB"):
        allocator.take(32 * MIB)
    assert memory.allocated() <= 40.96 * MIB
    check(allocator)


def test_arrays_in_a_heap_above_a_lowered_limit() -> None:
    allocator, memory = made(high=0.0, recommended=4 * GIB)
    held = allocator.take(16 * MIB)
    assert memory.allocated() == GIB
    allocator.high_ratio = 0.01
    assert memory.allocated() == GIB  # held is in it
    more = [allocator.take(8 * MIB) for _ in range(3)]  # 40 MiB given out
    for size in (MIB, 8 * MIB):
        with pytest.raises(OutOfMemoryError, match=r"in arrays 40.00 MiB.*limit 40.96 MiB"):
            allocator.take(size)
    give(more.pop())
    more.append(allocator.take(8 * MIB))
    assert memory.allocated() == GIB
    for block in [held, *more]:
        give(block)
    # The whole heap is free: it goes before anything is given out, and then the usual ways are back.
    block = allocator.take(8 * MIB)
    assert memory.allocated() <= 40.96 * MIB
    give(block)
    assert allocator.take(8 * MIB) is block
    check(allocator)


def test_a_lowered_limit_and_work_that_runs() -> None:
    allocator, memory = made(high=0.0, recommended=4 * GIB)
    block = allocator.take(16 * MIB)
    memory.default.use(block)
    give(block)
    allocator.high_ratio = 0.01
    assert memory.calls == ["commit"]
    assert memory.allocated() == GIB
    memory.finish()
    allocator.take(1000)
    assert memory.allocated() <= 40.96 * MIB


def test_a_limit_below_everything() -> None:
    allocator, memory = made(high=0.0, recommended=4 * GIB)
    give(allocator.take(1000))
    allocator.high_ratio = 1e-9
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            allocator.take(1000)
    assert memory.allocated() == 0
    allocator.high_ratio = 0.0
    assert allocator.take(1000).size >= 1000


def test_collection_under_pressure_only_oldest_heaps_first_and_to_the_target() -> None:
    allocator, memory = made(low=0.5, recommended=4 * GIB)
    blocks = [allocator.take(608 * MIB) for _ in range(3)]
    for block in blocks:
        give(block)
    keeper = allocator.take(2 * MIB)  # cut from the oldest of the three
    assert keeper.heap is blocks[0].heap
    assert allocator.tally.collections == 0
    memory.foreign = 800 * MIB  # 2624 MiB in all, 576 above the mark
    allocator.take(640 * MIB)
    assert allocator.tally.collections == 1
    assert allocator.tally.collected == 608 * MIB
    assert list(memory.heaps.values()) == [608 * MIB, 608 * MIB, 640 * MIB]
    assert list(allocator.large.heaps) == [1, 3, 4]
    check(allocator)


def test_work_is_submitted_near_the_low_mark() -> None:
    allocator, memory = made(low=0.5, recommended=4 * GIB)
    allocator.take(100)
    assert memory.calls == []
    memory.foreign = 2 * GIB - 9 * MIB
    allocator.take(2 * MIB)
    assert memory.calls == ["commit"]


def test_a_low_mark_above_the_limit_gives_way() -> None:
    allocator, _ = made(high=0.5, low=1.4, recommended=GIB)
    assert (allocator.budget.limit, allocator.budget.low_limit) == (GIB // 2, GIB // 2)


def test_the_cache_limit_holds() -> None:
    allocator, memory = made()
    allocator.cache_limit = 64 * MIB
    blocks = [allocator.take(20 * MIB) for _ in range(10)]
    assert memory.allocated() == 200 * MIB
    for block in blocks:
        give(block)
        assert allocator.budget.cached <= 64 * MIB
    assert memory.allocated() == 60 * MIB
    allocator.cache_limit = 0
    assert memory.allocated() == 0
    for size in (16, 5000, MIB, 3 * MIB, 600 * MIB):
        block = allocator.take(size)
        assert allocator.budget.cached < PAGE
        give(block)
        assert memory.allocated() == 0
    allocator.cache_limit = None
    give(allocator.take(20 * MIB))
    assert allocator.budget.cached == GIB
    check(allocator)


def test_an_allocation_inside_of_an_allocation() -> None:
    """A finalizer or signal handler runs while the allocator is at work, and allocates."""
    allocator, memory = made(high=1.0, recommended=4 * GIB)
    inner: list[HeapBlock] = []
    create = memory.create_buffers

    def interrupted(*arguments: Any) -> tuple[list[int], list[int]]:
        memory.create_buffers = create  # type: ignore[method-assign]
        inner.append(allocator.take(700))
        inner.append(allocator.take(2 * MIB))
        allocator.release_cached()
        return create(*arguments)

    memory.create_buffers = interrupted  # type: ignore[method-assign]
    outer = allocator.take(700)
    check(allocator)
    assert len({block.heap for block in (outer, *inner)}) == 3
    for block in (outer, *inner):
        give(block)
    check(allocator)
    allocator.release_cached()
    assert memory.heaps == {}


def test_a_buffer_that_cannot_be_made_changes_nothing() -> None:
    allocator, memory = made()
    allocator.take(100)
    create = memory.create_buffers

    def refuse(*arguments: Any) -> tuple[list[int], list[int]]:
        raise OutOfMemoryError("no memory for the object")

    memory.create_buffers = refuse  # type: ignore[method-assign]
    with pytest.raises(OutOfMemoryError, match="no memory for the object"):
        allocator.take(1000)
    memory.create_buffers = create  # type: ignore[method-assign]
    check(allocator)
    assert allocator.take(1000).size == 1024


def test_peaks_of_pools_by_hand() -> None:
    allocator, _ = made()

    def peaks(what: str) -> dict[str, int]:
        stats = statistics(allocator)
        return {
            name: stats[f"{what}.{name}.peak"] for name in ("all", "small_pool", "large_pool", "private_small_pool")
        }

    small = [allocator.take(1000) for _ in range(3)]
    for block in small:
        give(block)
    large = allocator.take(4 * MIB)
    private = allocator.take(5000, private=True)
    give(private)
    allocator.take(5000, private=True)
    # The pools had their peaks one after the other, and so they do not add up.
    expected = {"all": 4 * MIB + 5120, "small_pool": 3072, "large_pool": 4 * MIB, "private_small_pool": 5120}
    assert peaks("allocated_bytes") == expected
    reserved = {"all": 48 * MIB, "small_pool": 8 * MIB, "large_pool": 32 * MIB, "private_small_pool": 8 * MIB}
    assert peaks("reserved_bytes") == reserved
    give(large)
    allocator.release_cached()
    reset_peaks(allocator)
    assert peaks("allocated_bytes") == {"all": 5120, "small_pool": 0, "large_pool": 0, "private_small_pool": 5120}
    assert peaks("reserved_bytes") == {
        "all": 8 * MIB,
        "small_pool": 0,
        "large_pool": 0,
        "private_small_pool": 8 * MIB,
    }


def test_statistics_by_hand() -> None:
    allocator, memory = made()
    blocks = [allocator.take(1000) for _ in range(3)]
    large = allocator.take(4 * MIB)
    give(blocks.pop())
    stats = statistics(allocator)
    assert stats["allocation.all.current"] == 3
    assert stats["allocation.small_pool.allocated"] == 3
    assert stats["allocation.small_pool.freed"] == 1
    assert stats["allocated_bytes.small_pool.current"] == 2 * 1024
    assert stats["allocated_bytes.large_pool.current"] == 4 * MIB
    assert stats["allocated_bytes.all.peak"] == 3 * 1024 + 4 * MIB
    assert stats["reserved_bytes.all.current"] == 40 * MIB
    assert stats["cached_bytes.large_pool.current"] == 28 * MIB
    assert stats["free_range_bytes.small_pool.current"] == 8 * MIB - 3 * 1024
    assert stats["segment.all.current"] == 2
    text = summary(allocator)
    assert "Memory of simulated:0 Simulated device" in text
    assert "large          4.00 MiB" in text
    give(large)
    memory.finish()


# ---- what always holds


class Sequences(RuleBasedStateMachine):
    """Random sequences of everything, on three streams, under limits that change."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator, self.memory = made(high=1.0, low=0.75, recommended=256 * MIB)
        self.streams = [self.memory.default, self.memory.stream("one"), self.memory.stream("two")]
        self.held: list[HeapBlock] = []
        self.total = 0
        # Of each live block, by its buffer.
        self.bytes_of: dict[int, tuple[int, int, int]] = {}

    @rule(
        size=st.one_of(st.integers(1, 4096), st.integers(1, MIB), st.integers(1, 64 * MIB)),
        host_bound=st.booleans(),
        private=st.booleans(),
    )
    def take(self, size: int, host_bound: bool, private: bool) -> None:
        try:
            block = self.allocator.take(size, host_bound, private)
        except OutOfMemoryError:
            return
        assert block.size >= size
        limit = self.allocator.budget.limit
        assert limit is not None
        assert self.allocator.counters.current <= limit
        if self.memory.allocated() > limit:
            assert all(heap.placed for pool in self.allocator.pools for heap in pool.heaps.values())
        if host_bound:
            assert not block.in_use()
        elif block.in_use():
            assert block.stream is self.memory.current
            assert block.inherited
        self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 30))
    def give(self, which: int) -> None:
        give(self.held.pop(which % len(self.held)))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 30), stream=st.integers(0, 2))
    def use(self, which: int, stream: int) -> None:
        self.streams[stream].use(self.held[which % len(self.held)])

    @rule(stream=st.integers(0, 2))
    def make_current(self, stream: int) -> None:
        self.memory.current = self.streams[stream]

    @rule(stream=st.integers(0, 2))
    def finish(self, stream: int) -> None:
        self.memory.finish(self.streams[stream])

    @rule()
    def empty_cache(self) -> None:
        self.allocator.release_cached()

    @rule(limit=st.one_of(st.none(), st.integers(0, 128 * MIB)))
    def limit_cache(self, limit: int | None) -> None:
        self.allocator.cache_limit = limit

    @rule(ratio=st.sampled_from([1e-9, 0.05, 0.25, 0.5, 1.0]))
    def limit_all(self, ratio: float) -> None:
        self.allocator.high_ratio = ratio

    @invariant()
    def sums_agree(self) -> None:
        check(self.allocator)

    @invariant()
    def the_limit_holds(self) -> None:
        limit = self.allocator.budget.limit
        assert limit is not None
        # What is above a lowered limit may stay, but never grows.
        assert self.memory.allocated() <= max(limit, self.total)
        self.total = self.memory.allocated()

    @invariant()
    def live_blocks_do_not_overlap(self) -> None:
        ranges = sorted((block.heap.number, block.offset, block.offset + block.size) for block in self.held)
        for (heap, _, end), (other, start, _) in itertools.pairwise(ranges):
            assert heap != other or end <= start

    def teardown(self) -> None:
        for block in self.held:
            give(block)
        self.memory.finish()
        self.allocator.release_cached()
        check(self.allocator)
        assert self.memory.heaps == self.memory.buffers == {}


Sequences.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSequences = Sequences.TestCase


class ThreadedMemory(SimulatedMemory):
    """Each thread has a current stream of its own."""

    def __init__(self, **options: Any) -> None:
        self.own = threading.local()
        super().__init__(**options)

    @property
    def current(self) -> Any:
        return getattr(self.own, "stream", self.default)

    @current.setter
    def current(self, stream: Any) -> None:
        self.own.stream = stream


def test_eight_threads_with_streams() -> None:
    """Allocations, work on streams of one's own and others', and frees: no two blocks overlap, and all sums agree."""
    memory = ThreadedMemory(recommended=GIB)
    allocator = Allocator(memory, 1.0, 0.8)  # type: ignore[arg-type]
    streams = [memory.default, *(memory.stream(f"stream {number}") for number in range(8))]
    errors: list[BaseException] = []
    live: dict[int, dict[int, int]] = {}
    lock = threading.Lock()

    def claim(block: HeapBlock) -> None:
        with lock:
            ranges = live.setdefault(block.heap.number, {})
            for start, end in ranges.items():
                assert end <= block.offset or block.offset + block.size <= start, "two live blocks overlap"
            ranges[block.offset] = block.offset + block.size

    def let_go(block: HeapBlock) -> None:
        with lock:
            del live[block.heap.number][block.offset]
        give(block)

    def work(number: int) -> None:
        rng = random.Random(number)
        held: list[HeapBlock] = []
        try:
            for _ in range(1500):
                memory.current = own = streams[rng.choice([0, number + 1])]
                size = rng.choice([16, 300, 5000, 70_000, 3 * MIB, 12 * MIB]) + rng.randrange(8) * 256
                host_bound = rng.random() < 0.2
                try:
                    block = allocator.take(size, host_bound, rng.random() < 0.1)
                except OutOfMemoryError:
                    continue
                # Work may be done meanwhile, but nobody gives more to a block that is this thread's.
                if block.in_use():
                    assert not host_bound
                    assert block.stream is own
                claim(block)
                held.append(block)
                for _ in range(rng.randrange(3)):
                    rng.choice(streams).use(rng.choice(held))
                if len(held) > 12:
                    let_go(held.pop(rng.randrange(len(held))))
                chance = rng.random()
                if chance < 0.1:
                    memory.finish(rng.choice(streams))
                elif chance < 0.11:
                    allocator.release_cached()
                elif chance < 0.13:
                    allocator.sweep()
            for block in held:
                let_go(block)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    check(allocator)
    memory.finish()
    allocator.sweep()
    assert allocator.counters.current == 0
    assert allocator.pending.blocks == []
    allocator.release_cached()
    assert memory.heaps == memory.buffers == {}


def test_eight_threads() -> None:
    allocator, memory = made(high=1.0, low=0.8, recommended=GIB)
    errors: list[BaseException] = []
    taken: dict[int, HeapBlock] = {}

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[HeapBlock] = []
        try:
            for step in range(1500):
                size = rng.choice([16, 300, 5000, 70_000, 3 * MIB, 12 * MIB]) + rng.randrange(8) * 256
                try:
                    block = allocator.take(size, rng.random() < 0.2, rng.random() < 0.1)
                except OutOfMemoryError:
                    continue
                assert taken.setdefault(id(block), block) is block, "given out twice"
                held.append(block)
                if len(held) > 12:
                    old = held.pop(rng.randrange(len(held)))
                    del taken[id(old)]
                    give(old)
                if step % 200 == 0:
                    allocator.release_cached()
            for block in held:
                del taken[id(block)]
                give(block)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert allocator.counters.current == 0
    check(allocator)
    allocator.release_cached()
    assert memory.heaps == {}


# ---- replays


@pytest.fixture(scope="module")
def bench() -> Any:
    path = Path(__file__).parent.parent / "bench" / "replay.py"
    spec = importlib.util.spec_from_file_location("replay", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay"] = module  # which its dataclass looks for
    spec.loader.exec_module(module)
    return module


def test_a_day_leaves_nothing_behind(bench: Any) -> None:
    memory = SimulatedMemory(recommended=16 * GIB)
    outcome = bench.replay(bench.week(20_000, seed=7), memory, 1.0, 0.9, None, 20_000)
    allocator = outcome.allocator
    check(allocator)
    stats = statistics(allocator)
    assert stats["allocation.all.allocated"] > 9000
    assert stats["reserved_bytes.all.peak"] <= min(16 * GIB, 1.5 * stats["allocated_bytes.all.peak"] + GIB)
    # All of it fits, up to one moment in a thousand.
    assert outcome.failures <= 9
    assert len(outcome.fragmentation) >= 8
    assert all(0 <= part < 1 for part in outcome.fragmentation)
    allocator.release_cached()
    assert memory.heaps == memory.buffers == {}


def test_a_log_that_is_replayed_comes_to_the_same(bench: Any, device: Any) -> None:
    gc.collect()
    mpscffi.empty_cache()
    mpscffi.record_memory_history(stacks=False)
    try:
        mpscffi.reset_peak_memory_stats()
        base = mpscffi.current_allocated_memory()
        held = [mpscffi.empty(size) for size in (10, 5000, 300_000, 3 * MIB)]
        del held[1:3]
        held += [mpscffi.empty(size) for size in (20_000, 300_000)]
        peak = mpscffi.max_memory_allocated() - base
        events = mpscffi.memory_snapshot()["history"]
    finally:
        mpscffi.record_memory_history(False)
    align = mpscffi.memory_snapshot()["device"]["align"]
    outcome = bench.replay(bench.logged(events), SimulatedMemory(align=align), 1.0, 0.9, None, len(events))
    assert outcome.operations == 8
    assert outcome.allocator.counters.peak == peak
    assert outcome.allocator.counters.current == 0


def test_a_log_tells_streams_and_their_replay_keeps_them_apart(bench: Any, device: Any) -> None:
    """What one stream's work still uses is not given to another one."""
    side = mpscffi.Stream(label="side")
    gc.collect()
    mpscffi.empty_cache()
    mpscffi.record_memory_history(stacks=False)
    try:
        first = mpscffi.zeros(5000)
        first[:10].copy_from(first[10:20], non_blocking=True)
        del first
        with mpscffi.stream(side):
            second = mpscffi.empty(5000)
        third = mpscffi.empty(5000)
        del second, third
        events = [event for event in mpscffi.memory_snapshot()["history"] if event["action"] in ("allocate", "free")]
    finally:
        mpscffi.record_memory_history(False)
    assert [(event["action"], event["stream"]) for event in events][:4] == [
        ("allocate", "default"),
        ("free", "default"),
        ("allocate", "side"),
        ("allocate", "default"),
    ]

    def peak(lag: int) -> int:
        outcome = bench.replay(bench.logged(events), SimulatedMemory(), 1.0, 0.9, None, len(events), lag)
        buffers: int = sum(size_class.made for size_class in outcome.allocator.small.classes.values())
        return buffers

    # In turn: the first two share a block if the work is done, else the first and the third, whose stream is the same.
    assert peak(0) == 2
    assert peak(10) == 2
    events[3]["stream"] = "side"
    assert peak(10) == 3


def test_a_snapshot_without_a_log_is_not_replayed(bench: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    path = tmp_path / "memory.json"
    mpscffi.save_memory_snapshot(path)
    monkeypatch.setattr(sys, "argv", ["replay.py", str(path)])
    with pytest.raises(SystemExit):
        bench.main()
    assert "call mpscffi.record_memory_history() before" in capsys.readouterr().err
