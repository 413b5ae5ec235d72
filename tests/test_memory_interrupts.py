"""Exceptions of signal handlers inside of the allocator: nothing is damaged, and no memory is lost for good."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from interrupts import Interrupter, Place
from test_memory_policy import Sequences, check, give, made

import mpscffi
from mpscffi.allocator import allocator_of
from mpscffi.errors import OutOfMemoryError
from mpscffi.memory.block import HeapBlock
from mpscffi.memory.sizes import MIB

#: How many of the places are tried, others each time; all of them with MPSCFFI_TEST_ALL=1.
SAMPLE = None if os.environ.get("MPSCFFI_TEST_ALL") else 25

interrupter = Interrupter(
    lambda path: "mpscffi/memory/" in path.replace(os.sep, "/") and not path.endswith("simulated.py")
)


#: Modules that pass blocks from one owner to another.
ARRAYS = ("array", "adopt", "creation")


class Program:
    """A program that comes by everything that an allocator does.

    Its blocks are given back when they are dropped, as an array does it.
    """

    def __init__(self, limit: bool = False, watched: bool = False) -> None:
        self.allocator, self.memory = made(high=1.0, low=0.5, recommended=192 * MIB)
        if watched:
            self.allocator.watch(lambda kind, subject, number: None)
        if limit:
            self.allocator.cache_limit = 48 * MIB
        self.held: list[Owner] = []

    def take(self, size: int, host_bound: bool = False, private: bool = False) -> Owner:
        owner = Owner()
        owner.block = self.allocator.take(size, host_bound, private)
        self.held.append(owner)
        return owner

    def run(self) -> None:
        allocator, memory = self.allocator, self.memory
        other = memory.stream("other")
        for size in (1, 1000, 100_000, 3 * MIB, 12 * MIB, 1):
            self.take(size)
        self.take(8, host_bound=True)
        self.take(5000, private=True)
        for _ in range(12):
            self.take(600)
        for number, owner in enumerate(self.held[::2]):
            memory.default.use(owner.block)
            if number % 3 == 0:
                other.use(owner.block)
        del self.held[::2], owner
        for size in (1, 1000, 3 * MIB - 5000, 600, 4 * MIB):
            self.take(size, host_bound=True)
        memory.finish(memory.default)
        del self.held[::3]
        allocator.sweep()
        for size in (600, 20_000, 600, 40 * MIB, 70 * MIB):
            try:
                self.take(size)
            except OutOfMemoryError:
                del self.held[-1:]
        try:
            self.take(180 * MIB)
        except OutOfMemoryError:
            memory.finish()
        self.held.clear()
        allocator.release_cached(only_idle=True)
        allocator.cache_limit = 0 if allocator.cache_limit else None
        self.take(2 * MIB)
        self.take(30 * MIB)
        self.held.clear()
        allocator.high_ratio = 0.125
        self.take(2 * MIB)
        allocator.high_ratio = 1.0
        self.held.clear()
        allocator.release_cached()

    def end(self) -> None:
        """Drop all, and look whether anything is left."""
        self.memory.finish()
        self.allocator.sweep()
        # What never came to its owner counts until here.
        self.allocator.release_cached()
        check(self.allocator)
        ranges = sorted((one.block.heap.number, one.block.offset, one.block.size) for one in self.held if one.block)
        for (heap, start, size), (next_heap, next_start, _) in itertools.pairwise(ranges):
            assert heap != next_heap or start + size <= next_start, "blocks that overlap"
        self.held.clear()
        self.allocator.high_ratio = 1.0
        self.run()
        self.memory.finish()
        self.allocator.release_cached()
        check(self.allocator)
        assert self.allocator.counters.current == 0
        assert self.memory.heaps == self.memory.buffers == {}
        assert self.allocator.lock.acquire(blocking=False)
        self.allocator.lock.release()
        # Of another thread, which finds the lock free.
        taken: list[HeapBlock] = []
        thread = threading.Thread(target=lambda: taken.append(self.allocator.take(100)), daemon=True)
        thread.start()
        thread.join(10)
        assert taken


class Owner:
    """Owns a block as an array does."""

    block: HeapBlock | None = None

    def __del__(self) -> None:
        block = self.block
        if block is not None:
            give(block)


KINDS: dict[str, Callable[[], Program]] = {
    "plain": Program,
    "limited": functools.partial(Program, limit=True),
    "watched": functools.partial(Program, watched=True),
}


@functools.cache
def places(kind: str) -> dict[Place, int]:
    return interrupter.places(KINDS[kind]().run)


@pytest.fixture(autouse=True)
def swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised in a finalizer goes no further, and is not kept."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_place(kind: str) -> None:
    found = places(kind)
    assert len(found) > 150
    rng = random.Random()
    chosen = rng.sample(sorted(found), len(found))[:SAMPLE]
    damage: dict[Place, str] = {}
    for place in chosen:
        number = rng.randint(1, found[place])
        program = KINDS[kind]()
        interrupter.interrupt(program.run, number, place)
        try:
            program.end()
        except BaseException as error:
            damage[place] = f"time {number}: {error!r} in {traceback.extract_tb(error.__traceback__)[-1]}"
    assert not damage, damage


class Interrupted(Sequences):
    """Random sequences of everything, and exceptions in them."""

    def interrupted(self, function: Callable[[], object], number: int) -> None:
        interrupter.interrupt(function, number)
        gc.collect()
        self.allocator.release_cached(only_idle=True)

    @rule(
        size=st.one_of(st.integers(1, 4096), st.integers(1, MIB), st.integers(1, 64 * MIB)),
        host_bound=st.booleans(),
        number=st.integers(1, 300),
    )
    def take_interrupted(self, size: int, host_bound: bool, number: int) -> None:
        def take() -> None:
            with contextlib.suppress(OutOfMemoryError):
                self.held.append(self.allocator.take(size, host_bound))

        self.interrupted(take, number)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 30), number=st.integers(1, 60))
    def give_interrupted(self, which: int, number: int) -> None:
        self.interrupted(lambda: give(self.held.pop(which % len(self.held))), number)

    @rule(number=st.integers(1, 400))
    def empty_cache_interrupted(self, number: int) -> None:
        self.interrupted(self.allocator.release_cached, number)

    @rule(limit=st.one_of(st.none(), st.integers(0, 128 * MIB)), number=st.integers(1, 300))
    def limit_cache_interrupted(self, limit: int | None, number: int) -> None:
        self.interrupted(lambda: setattr(self.allocator, "cache_limit", limit), number)


Interrupted.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestInterrupted = Interrupted.TestCase


# ---- on a device


def arrays_and_the_cache() -> None:
    kept = [mpscffi.empty(size) for size in (1, 1000, 100_000, 3_000_000, 1)]
    del kept
    mpscffi.empty_cache()


def views() -> None:
    array = mpscffi.empty(1000)
    shown = array.numpy()
    again = mpscffi.from_numpy(shown[10:])
    del array, shown
    again[3:].numpy()
    mpscffi.empty(7)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("work", "where"),
    [
        (arrays_and_the_cache, interrupter),
        (views, Interrupter(lambda path: path.endswith(tuple(f"mpscffi{os.sep}{name}.py" for name in ARRAYS)))),
    ],
)
def test_an_exception_at_any_place_on_a_device(
    device: mpscffi.Device, work: Callable[[], None], where: Interrupter
) -> None:
    work()
    found = where.places(work)
    assert len(found) > 30
    for place in random.sample(sorted(found), len(found))[:SAMPLE]:
        where.interrupt(work, random.randint(1, found[place]), place)
        work()
        arrays = [mpscffi.full(size, 1) for size in (1, 1000, 100_000, 3_000_000, 1)]
        assert all((array.numpy() == 1).all() for array in arrays), place
        arrays.clear()
        gc.collect()
        mpscffi.synchronize()
        mpscffi.empty_cache()
        assert mpscffi.current_allocated_memory() == allocator_of(device).reserved.current == 0, place


@pytest.mark.usefixtures("settled")
def test_signals_by_the_clock(device: mpscffi.Device) -> None:
    """Wherever they come, in the allocator and out of it."""

    class Alarm(Exception):
        pass

    is_armed = False

    def interrupt(number: int, frame: Any) -> None:
        if is_armed:
            raise Alarm

    count = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    mpscffi.empty(1)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            arrays: list[Any] = []
            try:
                is_armed = True
                for step in range(200):
                    arrays.append(mpscffi.empty(1 + step * 7919 % 300_000))
                    if step % 3 == 0:
                        arrays[-1] = arrays[-1].numpy()
                    if len(arrays) > 20:
                        del arrays[step % 20]
                mpscffi.empty_cache()
            except Alarm:
                count += 1
            finally:
                is_armed = False
            arrays.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count > 20
    gc.collect()
    mpscffi.empty_cache()
    assert mpscffi.current_allocated_memory() == allocator_of(device).reserved.current == 0
