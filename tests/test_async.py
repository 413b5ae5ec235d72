"""Waiting in asyncio: events and streams while the event loop goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

import mpscffi
from mpscffi import _callbacks, errors

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void fault(device ulong* at) { *(device int*)(at[0]) = 1; }
"""


@pytest.fixture
def kernels(compiled: Any) -> Any:
    return compiled(SOURCE)


def settle() -> bool:
    return not any(stream is None for stream, _ in _callbacks._pending.values())


def test_the_loop_goes_on_while_an_event_is_awaited(gate: Any) -> None:
    async def main() -> int:
        event, ticks = mpscffi.Event(), 0
        event.record()

        async def tick() -> None:
            nonlocal ticks
            for _ in range(20):
                await asyncio.sleep(0)
                ticks += 1
            gate()

        waiter = asyncio.ensure_future(event.reached())
        assert not event.query()
        await asyncio.gather(waiter, tick())
        await event  # complete already
        assert event.query()
        return ticks

    assert asyncio.run(main()) == 20
    assert settle()


def test_an_event_that_was_never_recorded_is_not_waited_for() -> None:
    async def main() -> None:
        await mpscffi.Event()

    asyncio.run(main())


def test_many_tasks_await_one_timeline(kernels: Any) -> None:
    x = mpscffi.zeros(10, dtype="int32")

    async def main() -> list[int]:
        event, seen = mpscffi.Event(), []

        async def wait_for(value: int) -> None:
            await event.reached(value)
            seen.append(value)

        tasks = [asyncio.create_task(wait_for(value)) for value in range(1, 51)]
        await asyncio.sleep(0)
        for _ in range(25):
            kernels.add(x, 1)
            event.record()
        for value in range(26, 51):
            event.signal(value)
        await asyncio.gather(*tasks)
        return sorted(seen)

    assert asyncio.run(main()) == list(range(1, 51))
    assert x.tolist() == [25] * 10


def test_a_wait_that_is_cancelled(gate: Any) -> None:
    async def main() -> None:
        event = mpscffi.Event()
        event.record()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(event.reached(), 0.05)
        assert settle()
        task = asyncio.create_task(event.reached(7))  # which nobody signals
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate()
        await event

    asyncio.run(main())
    assert settle()


def test_a_loop_that_is_closed_before_the_event(gate: Any) -> None:
    event = mpscffi.Event()
    event.record()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        await event

    task = loop.create_task(main())
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    gate()
    mpscffi.synchronize()
    event.synchronize()
    del task
    gc.collect()
    assert settle()


@pytest.mark.usefixtures("reports_faults")
def test_failures_are_raised_where_they_are_awaited(kernels: Any) -> None:
    async def main() -> None:
        stream, event = mpscffi.Stream(), mpscffi.Event()
        with mpscffi.stream(stream):
            kernels.fault(mpscffi.zeros(1, dtype="uint64"), threads=1)
            event.record()
        with pytest.raises(errors.ExecutionError, match="'fault'"):
            await event
        await event
        with mpscffi.stream(stream):
            kernels.fault(mpscffi.zeros(1, dtype="uint64"), threads=1)
        with pytest.raises(errors.ExecutionError, match="'fault'"):
            await stream.synchronize_async()
        await stream.synchronize_async()

    asyncio.run(main())


def test_a_stream_is_awaited(kernels: Any) -> None:
    x = mpscffi.zeros(100_000, dtype="int32")

    async def work(stream: mpscffi.Stream, n: int) -> int:
        part = x[n * 1000 : (n + 1) * 1000]
        for _ in range(20):
            with mpscffi.stream(stream):
                kernels.add(part, n)
            await stream.synchronize_async()
        return n

    async def main() -> None:
        assert await asyncio.gather(*(work(mpscffi.Stream(), n) for n in range(10))) == list(range(10))

    asyncio.run(main())
    assert all((x[n * 1000 : (n + 1) * 1000].numpy() == 20 * n).all() for n in range(10))


def test_what_a_callback_raises_is_raised_by_the_awaiting_task() -> None:
    async def main() -> None:
        stream = mpscffi.Stream()

        def fail() -> None:
            raise KeyError("from the callback")

        stream.add_callback(fail)
        with pytest.raises(KeyError, match="from the callback"):
            await stream.synchronize_async()
        await stream.synchronize_async()

    asyncio.run(main())


def test_loops_of_several_threads_await_one_event(gate: Any) -> None:
    event = mpscffi.Event()
    event.record()
    done: list[int] = []

    def work(number: int) -> None:
        async def main() -> None:
            await event

        asyncio.run(main())
        done.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    gate()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]


def test_outside_of_a_loop() -> None:
    event = mpscffi.Event()
    event.record()
    with pytest.raises(RuntimeError, match="no running event loop"):
        event.__await__().send(None)
