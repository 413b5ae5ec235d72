"""Exceptions of signal handlers, as of Ctrl-C, anywhere in the making of objects: nothing is lost or released twice."""

from __future__ import annotations

import gc
import mmap
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupts import Interrupter
from objc import MetalBuffer
from test_dlpack import PAGE, Producer, _settle
from test_native import MetalProducer

import mpscffi as mps
from mpscffi import _callbacks, shader_cache
from mpscffi._ffi import check, ffi, lib

#: How many of the places are tried, others each time; all of them with MPSCFFI_TEST_ALL=1.
SAMPLE = None if os.environ.get("MPSCFFI_TEST_ALL") else 20

FILES = ("_handle", "_callbacks", "adopt", "device", "dlpack", "event", "kernel", "shader", "source", "stream")

interrupter = Interrupter(lambda path: path.endswith(tuple(f"mpscffi{os.sep}{name}.py" for name in FILES)))


@pytest.fixture(autouse=True)
def swallowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is raised in a finalizer goes no further, and is not kept."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    gc.collect()
    gc.freeze()  # so that a collection looks at what the test has made only
    yield
    gc.unfreeze()


def counts() -> tuple[int, ...]:
    """Return how many objects of the C library there are, and of Python's that it keeps."""
    gc.collect()
    mps.synchronize()
    mps.empty_cache()
    live = ffi.new("mps_live_objects *", {"struct_size": ffi.sizeof("mps_live_objects")})
    check(lib.mps_get_live_objects(live))
    of_c = live.devices, live.heaps, live.buffers, live.queues, live.events, live.libraries, live.pipelines
    return *of_c, len(_callbacks._kept), len(_callbacks._pending), len(_callbacks.due)


def try_all(work: Callable[[], None], after: Callable[[], None] = lambda: None, sample: int | None = SAMPLE) -> None:
    """Interrupt the work at its places, and look after each time that nothing is left of it."""
    work()
    after()
    before = counts()
    found = interrupter.places(work)
    after()
    tried = 0
    for place in random.sample(sorted(found), len(found))[:sample]:
        tried += interrupter.interrupt(work, random.randint(1, found[place]), place)
        after()
        _settle(lambda: counts() == before)  # work that was queued holds its objects until it is done
    assert tried


@pytest.mark.usefixtures("device")
def test_events() -> None:
    def work() -> None:
        first, second = mps.Event(enable_timing=True), mps.Event()
        first.record()
        second.record()
        first.wait()
        second.synchronize()

    try_all(work)


@pytest.mark.usefixtures("device")
def test_streams() -> None:
    def work() -> None:
        stream, other = mps.Stream(), mps.Stream(label="other")
        stream.wait_stream(other)
        other.add_callback(lambda: None)
        stream.add_completed_handler(lambda info: None)
        for one in (stream, other):
            one.synchronize()

    try_all(work)


@pytest.mark.usefixtures("device")
def test_libraries_and_pipelines() -> None:
    source = "constant int n [[function_constant(0)]]; kernel void put(device int *x) { x[0] = n; }"

    def work() -> None:
        mps.compile_shader(source).put.specialize(n=5).argument_names  # noqa: B018

    try_all(work, shader_cache.clear, SAMPLE and 5)  # each compiles


@pytest.fixture
def page() -> Iterator[np.ndarray]:
    raw = np.frombuffer(mmap.mmap(-1, 2 * PAGE), np.uint8)
    start = -raw.ctypes.data % PAGE
    yield raw[start : start + PAGE]
    del raw


@pytest.mark.usefixtures("device")
@pytest.mark.linux_only("looks at /proc")
def test_memory_that_was_there_before(page: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(100))
    released: list[int] = []
    made = 0

    def work() -> None:
        nonlocal made
        mps.from_numpy(page, copy=False).numpy()
        array = mps.from_pointer(page.ctypes.data, PAGE, "uint8", release=lambda: released.append(1))
        made += 1
        del array
        mps.from_file(path, "uint8").numpy()

    def after() -> None:
        nonlocal made
        gc.collect()
        # What was interrupted on the way back to the caller may have been released too.
        assert made <= len(released) <= 1
        made = 0
        released.clear()

    try_all(work, after)
    assert str(path) not in Path("/proc/self/maps").read_text()


class Tensors:
    """Makes tensors, each of which has one owner at any time."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        self.make = make
        self.made: list[Producer] = []

    def __call__(self) -> Producer:
        producer = self.make()
        self.made.append(producer)
        return producer

    def check(self) -> None:
        gc.collect()
        for producer in self.made:
            assert producer.deleted == producer.consumed
        self.made.clear()


@pytest.mark.usefixtures("device")
def test_tensors_in(page: np.ndarray) -> None:
    small = np.ones(3, np.float32)
    shared, copied = Tensors(lambda: Producer(page)), Tensors(lambda: Producer(small, versioned=False))

    def work() -> None:
        mps.from_dlpack(shared(), copy=False)
        mps.from_dlpack(copied(), copy=True)

    def after() -> None:
        shared.check()
        copied.check()

    try_all(work, after)


def test_metal_tensors_in(metal_device: mps.Device) -> None:
    buffer = MetalBuffer(metal_device, PAGE)
    tensors = Tensors(lambda: MetalProducer(buffer, buffer.memory))

    def work() -> None:
        mps.from_dlpack(tensors())
        mps.from_native(buffer.pointer, 3)

    def after() -> None:
        tensors.check()
        assert buffer.references == 1

    try_all(work, after)
    buffer.release()


@pytest.mark.usefixtures("device")
def test_tensors_out() -> None:
    array = mps.zeros(3)

    def work() -> None:
        for version in (None, (1, 0)):
            capsule: Any = array.__dlpack__(max_version=version)
            del capsule
        np.from_dlpack(array)

    try_all(work)


# ---- context managers

scopes = Interrupter(
    lambda path: path.endswith(
        tuple(f"mpscffi{os.sep}{name}.py" for name in ("capture", "graph", "profiler", "stream", "tracing"))
    )
)
#: Before its first instruction nothing of a function in Python can run, so that a signal there keeps it from leaving.
CANNOT_LEAVE = ("__exit__", -1)


def try_scope(work: Callable[[], None]) -> None:
    """Interrupt the work at all its places, and see after each time that it can be done again, and leaves nothing."""
    work()
    before = counts()
    found = [place for place in scopes.places(work) if place[2:] != CANNOT_LEAVE]
    for place in found:
        assert scopes.interrupt(work, 1, place), place
        assert mps.current_stream() is mps.default_stream(), place
        assert not mps.profiler.is_capturing_metal(), place
        mps.ones(3).fill_(1)  # which a recording would take
        work()
        _settle(lambda: counts() == before)
    assert len(found) > 3


@pytest.mark.usefixtures("device")
def test_stream_contexts() -> None:
    stream = mps.Stream()

    def work() -> None:
        with mps.stream(stream), mps.stream(None), mps.stream(stream):
            assert mps.current_stream() is stream

    try_scope(work)


@pytest.mark.usefixtures("device")
def test_recordings() -> None:
    source, target = mps.ones(3), mps.zeros(3)

    def work() -> None:
        with mps.record() as graph:
            target.copy_from(source, non_blocking=True)
        graph.replay()
        mps.synchronize()

    try_scope(work)


@pytest.mark.usefixtures("device")
def test_profiles_and_ranges() -> None:
    def work() -> None:
        with mps.profiler.profile() as profile, mps.profiler.range("one"), mps.profiler.range("two"):
            pass
        names = [record.name for record in profile.records() if record.kind == "range"]
        assert sorted(names) == ["one", "two"]

    try_scope(work)


@pytest.mark.usefixtures("device")
def test_captures(tmp_path: Path) -> None:
    number = 0

    def work() -> None:
        nonlocal number
        number += 1
        with mps.profiler.metal_capture(tmp_path / f"{number}.gputrace"):
            pass

    try_scope(work)
