"""What each activity commits, and what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
"""


class Work:
    """Arrays and events for one activity, and a graph."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.x, self.y = mpscffi.zeros(100, dtype=np.int32), mpscffi.zeros(100, dtype=np.int32)
        self.events = [mpscffi.Event(enable_timing=True) for _ in range(2)]
        self.host = np.arange(100, dtype=np.int32)
        self.unused = mpscffi.asarray(self.host)
        self.stream = mpscffi.current_stream()
        with mpscffi.record() as self.graph:
            kernels.add(self.x, 1)
            self.y.copy_from(self.x, non_blocking=True)

    def kernel(self) -> None:
        self.kernels.add(self.x, 1)

    def time(self) -> None:
        start, end = self.events
        start.record()
        end.record()
        start.elapsed_time(end)


#: What is done behind a kernel that nobody has committed; command buffers that it commits; whether it waits.
ACTIVITIES: dict[str, tuple[Callable[[Work], object], int, bool]] = {
    "a kernel": (Work.kernel, 0, False),
    "an empty dispatch": (lambda work: work.kernels.add(work.x, 1, threads=0), 0, False),
    "a new array": (lambda work: mpscffi.empty(100), 0, False),
    "a copy on the device": (lambda work: work.y.copy_from(work.x, non_blocking=True), 1, False),
    "a copy on the device that blocks": (lambda work: work.y.copy_from(work.x), 1, True),
    "a copy from the host": (lambda work: work.x.copy_from(work.host, non_blocking=True), 1, False),
    "a copy from the host that blocks": (lambda work: work.x.copy_from(work.host), 1, True),
    "a copy to the host": (lambda work: work.x.numpy(), 1, True),
    "a scalar": (lambda work: work.x[3].item(), 1, True),
    "an array that is not in use": (lambda work: work.unused.numpy(), 0, False),
    "an event's record": (lambda work: work.events[0].record(), 1, False),
    "an event's wait": (lambda work: (work.events[0].record(), work.events[0].wait()), 2, False),
    "a wait for an event that was never recorded": (lambda work: work.events[0].wait(), 0, False),
    "a question to an event": (lambda work: work.events[0].query(), 0, False),
    "an event's synchronize": (lambda work: (work.events[0].record(), work.events[0].synchronize()), 1, True),
    "the time between events": (Work.time, 2, True),
    "a commit": (lambda work: work.stream.commit(), 1, False),
    "two commits": (lambda work: (work.stream.commit(), work.stream.commit()), 1, False),
    "a callback": (lambda work: work.stream.add_callback(lambda: None), 1, False),
    "a handler": (lambda work: work.stream.add_completed_handler(lambda info: None), 0, False),
    "another stream's wait": (lambda work: mpscffi.Stream().wait_stream(work.stream), 1, False),
    "a replay": (lambda work: work.graph.replay(), 1, False),
    "three replays": (lambda work: [work.graph.replay() for _ in range(3)], 3, False),
    "a question to the stream": (lambda work: work.stream.query(), 0, False),
    "synchronize": (lambda work: mpscffi.synchronize(), 1, True),
    "the stream's synchronize": (lambda work: work.stream.synchronize(), 1, True),
    "empty_cache": (lambda work: mpscffi.empty_cache(), 1, False),
}


def committed(stream: mpscffi.Stream, serial: int) -> bool:
    try:
        stream.command_info(serial)
    except LookupError:
        return False
    return True


@pytest.mark.parametrize("name", ACTIVITIES)
def test_commits_and_waits(compiled: Any, gate: Any, name: str) -> None:
    # The gate holds up the default stream: who waits for it stands still until it is opened.
    activity, commits, waits = ACTIVITIES[name]
    work = Work(compiled(SOURCE))
    before = work.stream.commit()
    work.kernel()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            activity(work)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.1 if waits else 20)
    assert thread.is_alive() == waits
    counted = 0
    while committed(work.stream, before + counted + 1):
        counted += 1
    gate()
    thread.join()
    assert not failures
    assert counted == commits


def test_nothing_runs_before_something_commits(compiled: Any, gate: Any) -> None:
    work = Work(compiled(SOURCE))
    before = work.stream.commit()
    gate()
    work.stream.synchronize()
    for _ in range(10):
        work.kernel()
    assert not committed(work.stream, before + 1)
    work.stream.synchronize()
    assert committed(work.stream, before + 1)
    assert not committed(work.stream, before + 2)  # ten kernels, one command buffer
    assert work.x.tolist() == [10] * 100


@pytest.mark.parametrize("before", ["nothing", "twice", "compile", "event wait", "empty dispatch", "commit", "graph"])
def test_a_wait_for_nothing_ends(compiled: Any, before: str) -> None:
    work = Work(compiled(SOURCE))
    stream = mpscffi.Stream()
    with mpscffi.stream(stream):
        ways: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "twice": lambda: stream.synchronize(timeout=5),
            "compile": lambda: mpscffi.compile_shader("kernel void nothing(device int* x) {}").nothing.signature,
            "event wait": lambda: (work.events[0].record(mpscffi.default_stream()), work.events[0].wait()),
            "empty dispatch": lambda: work.kernels.add(work.x, 1, threads=0),
            "commit": stream.commit,
            "graph": work.graph.replay,
        }
        ways[before]()
    stream.synchronize(timeout=5)
    mpscffi.synchronize(timeout=5)
