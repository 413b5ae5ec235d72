"""Threads, streams, events, memory, kernels and graphs, all at once, with every result checked.

Each worker does one random thing after another until the time is over; --stress-seconds says how long.
"""

from __future__ import annotations

import asyncio
import collections
import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi.report import live_objects

# --stress-seconds is its bound, and what ends a worker that hangs.
pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.timeout(0)]

WORKERS = 8
#: A worker that has not ended so long after its time hangs.
PATIENCE = 60.0

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void times(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] *= n; }
kernel void reversed(device int* out, constant int* in, constant uint& n, uint i [[thread_position_in_grid]],
                     uint t [[thread_index_in_threadgroup]]) {
  threadgroup int part[64];
  part[t] = in[n - 1 - i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = part[t];
}
"""


class Shared:
    """What all workers use together."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.stream = mpscffi.Stream(label="shared")
        self.total = mpscffi.asarray(np.zeros(1000, np.int32))
        self.replayed = mpscffi.asarray(np.zeros(1000, np.int32))
        with mpscffi.record() as self.graph:
            kernels.add(self.replayed, 1)
        self.timeline = mpscffi.Event(enable_timing=True)
        #: Arrays on their way from worker to worker: what is in them once the event is reached.
        self.mail: queue.SimpleQueue[tuple[mpscffi.Array, int, mpscffi.Event]] = queue.SimpleQueue()
        self.adds = self.replays = 0
        self.lock = threading.Lock()
        self.profiling = threading.Lock()


class Worker(threading.Thread):
    """One of the threads. What went wrong is in `failure`."""

    def __init__(self, number: int, shared: Shared, seconds: float) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.rng = np.random.default_rng(number)
        self.shared = shared
        self.seconds = seconds
        self.failure: BaseException | None = None
        self.counts: collections.Counter[str] = collections.Counter()

    def run(self) -> None:
        try:
            self.prepare()
            deadline = time.monotonic() + self.seconds
            ways = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
            with mpscffi.stream(self.own):
                while time.monotonic() < deadline:
                    way = ways[int(self.rng.integers(len(ways)))]
                    way()
                    self.counts[way.__name__[3:]] += 1
                self.own.synchronize(timeout=PATIENCE)
                assert self.called == self.calls
        except BaseException as failure:
            self.failure = failure
        finally:
            for name in ("graph", "own", "other", "accumulated", "copied", "shared"):
                self.__dict__.pop(name, None)

    def prepare(self) -> None:
        self.own, self.other = mpscffi.Stream(), mpscffi.Stream()
        self.called = self.calls = 0
        self.accumulated = mpscffi.asarray(np.zeros(500, np.int32))
        self.copied = mpscffi.asarray(np.zeros(500, np.int32))
        self.step, self.expected = 1, 0
        with mpscffi.record() as self.graph:
            temporary = mpscffi.zeros(500, dtype=np.int32)
            self.shared.kernels.add(self.accumulated, self.step)
            temporary.copy_from(self.accumulated, non_blocking=True)
            self.shared.kernels.times(temporary, 3)
            self.copied.copy_from(temporary, non_blocking=True)

    def numbers(self, most: int = 30_000) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self.rng.integers(-1000, 1000, int(self.rng.integers(1, most))).astype(np.int32)

    def small(self) -> int:
        return int(self.rng.integers(1, 100))

    # ---- what they do

    def do_kernels(self) -> None:
        host, n = self.numbers(), self.small()
        x, y = mpscffi.asarray(host), mpscffi.zeros(host.size, dtype=np.int32)
        self.shared.kernels.add(x, n)
        y.copy_from(x, non_blocking=bool(n % 2))
        self.shared.kernels.times(y, 2)
        assert (y.numpy() == (host + n) * 2).all()
        assert (x.numpy() == host + n).all()

    def do_barriers(self) -> None:
        host = self.numbers(3000)
        x, out = mpscffi.asarray(host), mpscffi.empty(host.size, dtype=np.int32)
        self.shared.kernels.reversed(out, x, host.size, threads=host.size, group_size=64)
        assert (out.numpy() == host[::-1]).all()

    def do_two_streams(self) -> None:
        host, n, event = self.numbers(), self.small(), mpscffi.Event()
        x = mpscffi.asarray(host)
        with mpscffi.stream(self.other):
            self.shared.kernels.add(x, n)
            event.record()
        event.wait()
        self.shared.kernels.times(x, n)
        with mpscffi.stream(self.other):
            self.shared.kernels.add(x, 1)
        assert (x.numpy() == (host + n) * n + 1).all()

    def do_temporaries(self) -> None:
        host = self.numbers()
        x = mpscffi.asarray(host)
        for n in range(5):
            step = mpscffi.asarray(host * 0 + n)
            self.shared.kernels.add(step, 1)
            x.copy_from(step, non_blocking=True)
            del step
        noise = [mpscffi.zeros(host.size, dtype=np.int32) for _ in range(3)]
        for one in noise:
            self.shared.kernels.add(one, 77)
        del noise
        assert (x.numpy() == 5).all()

    def do_shared_add(self) -> None:
        with mpscffi.stream(self.shared.stream):
            self.shared.kernels.add(self.shared.total, 1)
        with self.shared.lock:
            self.shared.adds += 1

    def do_shared_replay(self) -> None:
        self.shared.graph.replay(self.shared.stream if self.small() % 2 else None)
        with self.shared.lock:
            self.shared.replays += 1

    def do_replay(self) -> None:
        for _ in range(int(self.rng.integers(1, 5))):
            self.graph.replay(self.other if self.small() % 2 else None)
            self.expected += self.step
        assert (self.copied.numpy() == 3 * self.expected).all()

    def do_update(self) -> None:
        self.step = self.small()
        self.graph[1].set(n=self.step)

    def do_mail(self) -> None:
        if self.small() % 2:
            x, event, n = mpscffi.zeros(self.small() * 10, dtype=np.int32), mpscffi.Event(), self.small()
            self.shared.kernels.add(x, n)
            event.record()
            self.shared.mail.put((x, n, event))
            return
        try:
            x, n, event = self.shared.mail.get_nowait()
        except queue.Empty:
            return
        event.wait()
        self.shared.kernels.add(x, 1)
        assert (x.numpy() == n + 1).all()

    def do_callback(self) -> None:
        def call() -> None:
            self.called += 1

        self.calls += 1
        self.own.add_callback(call)

    def do_timeline(self) -> None:
        self.shared.timeline.record(self.shared.stream)
        start, end = mpscffi.Event(enable_timing=True), mpscffi.Event(enable_timing=True)
        start.record()
        self.shared.kernels.add(self.accumulated, 0)
        end.record()
        assert start.elapsed_time(end) >= 0
        assert start.query() and end.query()
        self.shared.timeline.query()

    def do_cpu_signal(self) -> None:
        event, n = mpscffi.Event(), self.small()
        x = mpscffi.zeros(100, dtype=np.int32)
        with mpscffi.stream(self.other):
            event.wait(value=n)
            self.shared.kernels.add(x, n)
        event.signal(n)
        assert (x.numpy() == n).all()

    def do_await(self) -> None:
        events = [mpscffi.Event() for _ in range(3)]

        async def main() -> None:
            for event in events:
                event.record()
            await asyncio.gather(*(event.reached() for event in events))
            await self.other.synchronize_async()

        asyncio.run(main())
        assert all(event.query() for event in events)

    def do_random(self) -> None:
        seed = self.small()
        draws = []
        for _ in range(2):
            generator = mpscffi.Generator()
            generator.manual_seed(seed)
            draws.append(mpscffi.rand(1000, generator=generator))
        assert (draws[0].numpy() == draws[1].numpy()).all()

    def do_memory(self) -> None:
        kept = [mpscffi.empty(int(self.rng.integers(1, 1 << 20)), dtype=np.uint8) for _ in range(10)]
        del kept[::2]
        if self.small() < 10:
            mpscffi.empty_cache()

    def do_product(self) -> None:
        # Small enough for one thread of the BLAS: OpenBLAS hangs if a process is forked amid a product of several.
        rows, inner, columns = (int(n) for n in self.rng.integers(1, 60, 3))
        left = self.rng.integers(-3, 4, (rows, inner)).astype(np.float32)
        right = self.rng.integers(-3, 4, (inner, columns)).astype(np.float32)
        a, b = mpscffi.asarray(left), mpscffi.asarray(right)
        with mpscffi.stream(self.other if self.small() % 2 else self.own):
            product = a @ b
        turned = mpscffi.empty(columns, rows)
        mpscffi.matmul(b.T, a.T, out=turned)
        assert (product.numpy() == left @ right).all()
        assert (turned.numpy() == (left @ right).T).all()

    def do_private(self) -> None:
        host, n = self.numbers(), self.small()
        x = mpscffi.asarray(host)
        private = x.copy(storage="private")
        self.shared.kernels.add(private, n)
        x.copy_from(private, non_blocking=True)
        assert (private.to_host() == host + n).all()
        assert (x.numpy() == host + n).all()

    def do_dlpack(self) -> None:
        host, n = self.numbers(), self.small()
        x = mpscffi.asarray(host)
        self.shared.kernels.add(x, n)
        seen = np.from_dlpack(x)
        taken = mpscffi.from_dlpack(x)
        del x
        self.shared.kernels.times(taken, 2)
        assert (taken.numpy() == (host + n) * 2).all()
        assert (seen == (host + n) * 2).all()

    def do_profile(self) -> None:
        if not self.shared.profiling.acquire(blocking=False):
            return
        try:
            x = mpscffi.zeros(100, dtype=np.int32)
            with mpscffi.profiler.profile(per_command=bool(self.small() % 2)) as profile:
                for _ in range(3):
                    self.shared.kernels.add(x, 1)
                assert (x.numpy() == 3).all()
            rows = profile.key_averages()
            assert rows.dropped or rows["add", "kernel"].count >= 3
        finally:
            self.shared.profiling.release()

    def do_garbage(self) -> None:
        x = mpscffi.zeros(100, dtype=np.int32)
        self.shared.kernels.add(x, 1)
        circle: list[object] = [x]
        circle.append(circle)
        del x, circle
        if self.small() < 5:
            gc.collect()

    def do_fork(self) -> None:
        if self.small() > 3 or not hasattr(os, "fork"):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a process with threads: here they are the point
            child = os.fork()
        if child == 0:
            try:
                self.own.synchronize()
            except mpscffi.errors.ForkedError:
                os._exit(0)
            os._exit(1)
        deadline = time.monotonic() + PATIENCE
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError("a forked child hangs")
            time.sleep(0.001)
        assert os.waitstatus_to_exitcode(ended[1]) == 0

    def do_short_stream(self) -> None:
        x = mpscffi.asarray(np.zeros(10, np.int32))
        stream = mpscffi.Stream()
        with mpscffi.stream(stream):
            self.shared.kernels.add(x, 5)
        self.own.wait_stream(stream)
        del stream
        self.shared.kernels.times(x, 2)
        assert x.tolist() == [10] * 10

    def do_wait(self) -> None:
        self.own.synchronize(timeout=PATIENCE)
        mpscffi.current_allocated_memory()


def settle() -> dict[str, int]:
    gc.collect()
    mpscffi.synchronize()
    mpscffi.empty_cache()
    gc.collect()
    return live_objects()


def test_everything_at_once(
    compiled: Any, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], device: mpscffi.Device
) -> None:
    kernels = compiled(SOURCE)
    mpscffi.rand(1000)
    mpscffi.ones(2, 2) @ mpscffi.ones(2, 2)
    warm = mpscffi.asarray(np.ones(64, np.int32))
    for call in (kernels.add, kernels.times):
        call(warm, 1)
    kernels.reversed(mpscffi.empty(64, dtype=np.int32), warm, 64, threads=64, group_size=64)
    del warm
    before, memory = settle(), mpscffi.current_allocated_memory()
    shared = Shared(kernels)
    seconds = request.config.getoption("--stress-seconds")
    workers = [Worker(number, shared, seconds) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + seconds + PATIENCE
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            faulthandler.dump_traceback(file=sys.__stderr__)
            pytest.fail(f"{worker.name} hangs")
    for worker in workers:
        if worker.failure is not None:
            raise AssertionError(f"{worker.name}, after {dict(worker.counts)}") from worker.failure
    mpscffi.synchronize(timeout=PATIENCE)
    counts = sum((worker.counts for worker in workers), collections.Counter())
    assert (shared.total.numpy() == shared.adds).all()
    assert (shared.replayed.numpy() == shared.replays).all()
    while not shared.mail.empty():
        x, n, event = shared.mail.get()
        event.synchronize(timeout=PATIENCE)
        assert (x.numpy() == n).all()
        del x, event
    with capsys.disabled():
        if seconds > 10:
            print(f"\n{device.backend}: {counts.total()} steps in {seconds:g} s: {dict(sorted(counts.items()))}")
    shared.__dict__.clear()
    del worker, workers, shared
    assert settle() == before
    assert mpscffi.current_allocated_memory() == memory
