"""Streams: order, waits, callbacks, threads."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void times(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] *= n; }
kernel void fault(device ulong* at) { *(device int*)(at[0]) = 1; }
"""


@pytest.fixture
def kernels(compiled: Any) -> Any:
    return compiled(SOURCE)


# ---- the current stream


def test_the_default_stream(device: mpscffi.Device) -> None:
    stream = mpscffi.default_stream()
    assert stream is mpscffi.current_stream()
    assert stream is mpscffi.default_stream(device)
    assert stream.device is device
    assert "default" in repr(stream)


def test_the_context_manager_restores() -> None:
    before = mpscffi.current_stream()
    one, other = mpscffi.Stream(label="one"), mpscffi.Stream()
    with mpscffi.stream(one) as entered:
        assert entered is mpscffi.current_stream() is one
        with mpscffi.stream(other):
            assert mpscffi.current_stream() is other
            with mpscffi.stream(None):
                assert mpscffi.current_stream() is other
        assert mpscffi.current_stream() is one
    assert mpscffi.current_stream() is before
    with pytest.raises(ZeroDivisionError), mpscffi.stream(one):
        1 / 0  # noqa: B018
    assert mpscffi.current_stream() is before
    context = mpscffi.stream(one)
    with context, context:
        assert mpscffi.current_stream() is one
    assert mpscffi.current_stream() is before


def test_the_current_stream_is_the_threads_own() -> None:
    seen = []
    with mpscffi.stream(mpscffi.Stream()):
        thread = threading.Thread(target=lambda: seen.append(mpscffi.current_stream()))
        thread.start()
        thread.join()
    assert seen == [mpscffi.default_stream()]


def test_set_stream() -> None:
    seen = []

    def work() -> None:
        stream = mpscffi.Stream()
        mpscffi.set_stream(stream)
        mpscffi.set_stream(None)
        seen.append(mpscffi.current_stream() is stream)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


def test_any_number_of_streams(kernels: Any) -> None:
    """Each is a queue of its own: the 33rd is not the first one again."""
    streams = [mpscffi.Stream() for _ in range(40)]
    arrays = [mpscffi.asarray(np.full(8, i, np.int32)) for i in range(40)]
    assert len(set(streams)) == len({stream.handle for stream in streams}) == 40
    numbers = [stream.stream_id for stream in streams]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0
    assert mpscffi.default_stream().stream_id == 0
    assert f"stream {numbers[7]}" in repr(streams[7])
    hold = mpscffi.Event()
    hold.wait(streams[0], value=1)
    for i, stream in enumerate(streams):
        with mpscffi.stream(stream):
            kernels.add(arrays[i], 100)
            stream.commit()
    for stream in streams[1:]:
        stream.synchronize(timeout=60)
    assert not streams[0].query()
    hold.signal(1)
    assert [array.tolist() for array in arrays] == [[i + 100] * 8 for i in range(40)]


@pytest.mark.parametrize("wrong", [3, "default", object()])
def test_what_is_no_stream(wrong: Any) -> None:
    for call in (mpscffi.set_stream, mpscffi.stream, mpscffi.current_stream().wait_stream):
        with pytest.raises(RuntimeError, match="expected a Stream"):
            call(wrong)
    with pytest.raises(TypeError, match="expected a Device"):
        mpscffi.Stream(wrong)


# ---- order and waits


def test_work_runs_in_order(kernels: Any) -> None:
    x = mpscffi.ones(5000, dtype=np.int32)
    for _ in range(5):
        kernels.add(x, 1)
        kernels.times(x, 3)
    expected = 1
    for _ in range(5):
        expected = (expected + 1) * 3
    assert (x.numpy() == expected).all()


def test_synchronize_with_nothing_to_do() -> None:
    stream = mpscffi.Stream()
    for _ in range(2):
        mpscffi.synchronize(timeout=5)
        stream.synchronize(timeout=0)
    assert stream.query()
    event = mpscffi.Event()
    event.wait()
    stream.wait_event(event)
    stream.synchronize(timeout=5)


def test_query_and_timeout(gate: Any) -> None:
    stream = mpscffi.current_stream()
    assert not stream.query()
    for seconds in (0, 0.001, 0.2):
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            stream.synchronize(timeout=seconds)
        assert seconds <= time.monotonic() - begin < seconds + 5
    gate()
    stream.synchronize(timeout=60)
    assert stream.query()


def test_streams_run_side_by_side(kernels: Any, gate: Any) -> None:
    x = mpscffi.asarray(np.zeros(100_000, np.int32))  # by the CPU: a fill would be behind the gate
    with mpscffi.stream(mpscffi.Stream()):
        kernels.add(x, 7)
        assert (x.numpy() == 7).all()
    assert not mpscffi.default_stream().query()


def test_wait_stream(kernels: Any, spin: Any) -> None:
    x = mpscffi.zeros(100, dtype=np.int32)
    one, other = mpscffi.Stream(), mpscffi.Stream()
    for _ in range(3):
        with mpscffi.stream(one):
            one.wait_stream(other)
            spin(1_000_000)
            kernels.add(x, 1)
        with mpscffi.stream(other):
            other.wait_stream(one)
            kernels.times(x, 2)
    one.wait_stream(one)
    assert (x.numpy() == ((1 * 2 + 1) * 2 + 1) * 2).all()


def test_synchronize_waits_for_all_streams(kernels: Any, spin: Any) -> None:
    streams = [mpscffi.Stream() for _ in range(3)]
    for stream in streams:
        with mpscffi.stream(stream):
            spin(3_000_000)
    mpscffi.synchronize()
    assert all(stream.query() for stream in streams)


def test_a_stream_may_go_while_it_works(kernels: Any) -> None:
    x = mpscffi.zeros(200_000, dtype=np.int32)
    for _ in range(20):
        stream = mpscffi.Stream()
        stream.wait_stream(mpscffi.current_stream())
        with mpscffi.stream(stream):
            kernels.add(x, 1)
        mpscffi.current_stream().wait_stream(stream)
        del stream
    mpscffi.synchronize()
    assert (x.numpy() == 20).all()


# ---- command buffers


def test_command_buffers_are_numbered_and_timed(kernels: Any, spin: Any) -> None:
    stream = mpscffi.Stream()
    assert stream.commit() == 0
    serials = []
    for _ in range(3):
        with mpscffi.stream(stream):
            spin(100_000)
        serials.append(stream.commit())
    stream.synchronize()
    assert serials == sorted(set(serials))
    assert stream.commit() == serials[-1]
    infos = [stream.command_info(serial) for serial in serials]
    for info, serial in zip(infos, serials, strict=True):
        assert info.serial == serial
        assert 0 < info.start < info.end
        assert info.scheduled
        assert not info.failed
    assert all(one.end <= other.start for one, other in itertools.pairwise(infos))
    with pytest.raises(LookupError):
        stream.command_info(10**6)


# ---- callbacks and handlers


def test_callbacks_run_in_order_and_hold_later_work(kernels: Any) -> None:
    stream = mpscffi.Stream()
    x = mpscffi.zeros(10, dtype=np.int32)
    memory = x.numpy()
    seen: list[Any] = []

    def look(name: str) -> None:
        seen.append((name, int(memory[0]), threading.current_thread() is threading.main_thread()))

    with mpscffi.stream(stream):
        kernels.add(x, 1)
        stream.add_callback(lambda: look("first"))
        kernels.add(x, 10)
        stream.add_callback(lambda: look("second"))
        kernels.add(x, 100)
    stream.synchronize()
    assert seen == [("first", 1, False), ("second", 11, False)]
    assert memory[0] == 111


def test_handlers(kernels: Any, spin: Any) -> None:
    stream = mpscffi.Stream()
    seen: list[tuple[str, Any]] = []
    with mpscffi.stream(stream):
        spin(100_000)
        stream.add_scheduled_handler(lambda info: seen.append(("scheduled", info)))
        stream.add_completed_handler(lambda info: seen.append(("completed", info)))
    serial = stream.commit()
    stream.synchronize()
    deadline = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [name for name, _ in seen] == ["scheduled", "completed"]
    completed = seen[1][1]
    assert completed.serial == serial
    assert completed.end > completed.start > 0
    assert (completed.failed, completed.message) == (False, "")


@pytest.mark.usefixtures("reports_faults")
def test_a_completed_handler_hears_of_a_fault(kernels: Any, device: mpscffi.Device) -> None:
    stream = mpscffi.Stream()
    seen: list[Any] = []
    with mpscffi.stream(stream):
        kernels.fault(mpscffi.asarray(np.array([16], np.uint64)), threads=1)
        stream.add_completed_handler(seen.append)
    with pytest.raises(errors.ExecutionError):
        stream.synchronize()
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        time.sleep(0.001)
    assert seen[0].failed
    assert "'fault'" in seen[0].message


def test_callbacks_may_use_the_package(kernels: Any) -> None:
    stream, results = mpscffi.Stream(), []
    x = mpscffi.zeros(10, dtype=np.int32)

    def work() -> None:
        # The array's own work is complete, so this does not wait for the stream.
        results.append(x.tolist())
        y = mpscffi.asarray(np.arange(10, dtype=np.int32))
        kernels.add(y, 5)
        mpscffi.default_stream().synchronize()
        results.append(y.tolist())

    with mpscffi.stream(stream):
        kernels.add(x, 1)
        stream.add_callback(work)
    stream.synchronize()
    assert results == [[1] * 10, list(range(5, 15))]


def test_callbacks_that_wait_for_their_own_stream(kernels: Any) -> None:
    stream = mpscffi.Stream()
    stream.add_callback(stream.synchronize)
    with pytest.raises(errors.StateError, match="callback of the same stream"):
        stream.synchronize()
    stream.synchronize()


def test_what_a_callback_raises_is_raised_by_the_next_wait() -> None:
    stream = mpscffi.Stream()

    def fail() -> None:
        raise KeyError("from the callback")

    stream.add_callback(fail)
    with pytest.raises(KeyError, match="from the callback"):
        stream.synchronize()
    stream.synchronize()


def test_callbacks_that_are_none() -> None:
    stream = mpscffi.Stream()
    for add in (stream.add_callback, stream.add_scheduled_handler, stream.add_completed_handler):
        with pytest.raises(TypeError, match="expected a callable"):
            add(3)  # type: ignore[operator]


def test_callbacks_of_other_arguments() -> None:
    stream = mpscffi.Stream()
    with pytest.raises(errors.ArgumentTypeError, match=r"add_callback: got <.*takes no arguments: missing"):
        stream.add_callback(lambda info: None)  # type: ignore[misc]
    for add in (stream.add_scheduled_handler, stream.add_completed_handler):
        with pytest.raises(errors.ArgumentTypeError, match=r"handler: got <.*takes 1 argument: too many"):
            add(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentTypeError, match=r"takes 1 argument"):
        mpscffi.add_allocation_failure_callback(lambda: 1)  # type: ignore[misc]
    with pytest.raises(errors.ArgumentTypeError, match=r"set_shader_log: handler.*takes 1 argument"):
        mpscffi.set_shader_log(lambda: None)  # type: ignore[arg-type]
    seen: list[object] = []
    stream.add_callback(lambda *rest, more=1: seen.append(rest))
    stream.add_callback(seen.clear)
    stream.add_callback(partial(seen.append, 3))
    stream.add_completed_handler(str)
    stream.synchronize()
    assert seen == [3]


def test_labels_of_another_type() -> None:
    with pytest.raises(errors.ArgumentTypeError, match="label of type int, expected a str"):
        mpscffi.Stream(label=3)  # type: ignore[arg-type]
    assert mpscffi.Stream(label="\ud800").label == "\ud800"


def test_a_thousand_callbacks() -> None:
    stream, seen = mpscffi.Stream(), []
    for i in range(1000):
        stream.add_callback(lambda i=i: seen.append(i))
    stream.synchronize()
    assert seen == list(range(1000))


# ---- threads


def test_waits_let_other_threads_run(gate: Any) -> None:
    # Held by this thread's wait, the GIL would keep the other one from ending it.
    thread = threading.Timer(0.2, gate)
    thread.start()
    mpscffi.synchronize(timeout=60)
    thread.join()


def _compile() -> None:
    mpscffi.compile_shader(f"kernel void f(device int* x) {{ x[0] = {time.time_ns()}; }}").f.signature  # noqa: B018


#: Calls that take some milliseconds in C.
LONG: dict[str, Any] = {
    "a compile": _compile,
    "a copy in": lambda: mpscffi.asarray(np.zeros(40_000_000, np.uint8)),
    "a copy on the device": lambda: mpscffi.empty(40_000_000, dtype=np.uint8).copy(),
    "a copy out": lambda: mpscffi.empty(40_000_000, dtype=np.uint8).to_host(),
    "a conversion": lambda: mpscffi.asarray(np.zeros(4_000_000, np.float32), "float16"),
    "a product": lambda: (mpscffi.ones(500, 500) @ mpscffi.ones(500, 500)).numpy(),
    "random numbers": lambda: mpscffi.permutation(300_000),
}


@pytest.mark.parametrize("name", LONG)
def test_other_threads_run_meanwhile(name: str) -> None:
    """With a switch interval of minutes, they do only where the GIL is given up."""
    LONG[name]()
    count, over, ready = 0, threading.Event(), threading.Event()

    def work() -> None:
        nonlocal count
        while not over.is_set():
            count += 1
            ready.set()
            time.sleep(0.0002)

    thread, interval = threading.Thread(target=work), sys.getswitchinterval()
    thread.start()
    ready.wait()
    sys.setswitchinterval(200)
    try:
        for _ in range(20):
            before = count
            LONG[name]()
            if count > before:
                break
        assert count > before
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


def test_threads_that_ask_for_a_new_kernel_together() -> None:
    for i in range(5):
        kernel = mpscffi.compile_shader(
            f"kernel void f(device int* x, uint i [[thread_position_in_grid]]) {{ x[i] = {i}; }}"
        ).f
        start = threading.Barrier(4)

        def work(kernel: Any = kernel, start: Any = start) -> list[int]:
            start.wait()
            x = mpscffi.empty(3, dtype=np.int32)
            for _ in range(20):
                kernel(x)
            return x.tolist()  # type: ignore[no-any-return]

        with ThreadPoolExecutor(4) as pool:
            results = [one.result() for one in [pool.submit(work) for _ in range(4)]]
        x = mpscffi.empty(3, dtype=np.int32)
        for _ in range(10):
            kernel(x)
        assert [*results, x.tolist()] == [[i] * 3] * 5


def test_objects_go_from_thread_to_thread(compiled: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(lambda: mpscffi.compile_shader(SOURCE)).result()
        x = pool.submit(lambda: mpscffi.zeros(10, dtype=np.int32)).result()
        stream = pool.submit(mpscffi.Stream).result()
    event = mpscffi.Event()

    def work(n: int) -> None:
        with mpscffi.stream(stream):
            library.add(x, n)
            event.record()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [1] * 40))

    async def more() -> None:
        await asyncio.gather(*(asyncio.to_thread(work, 10) for _ in range(4)))

    asyncio.run(more())
    event.synchronize()
    assert x.tolist() == [80] * 10


@pytest.mark.parametrize("count", [2, 8, 32])
def test_many_threads_at_once(kernels: Any, count: int) -> None:
    failures: list[BaseException] = []
    deadline = time.monotonic() + 1

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        event = mpscffi.Event()
        try:
            while time.monotonic() < deadline:
                size = int(rng.integers(1, 3000))
                host = rng.integers(0, 1000, size).astype(np.int32)
                x, y = mpscffi.asarray(host), mpscffi.zeros(size, dtype=np.int32)
                kernels.add(x, number)
                y.copy_from(x, non_blocking=bool(size % 2))
                kernels.times(y, 2)
                event.record()
                if size % 7 == 0:
                    # One of four libraries, which another thread may be compiling, too.
                    mpscffi.compile_shader(f"{SOURCE}// {size % 4}").add(x, 0)
                if size % 5 == 0:
                    mpscffi.empty_cache()
                if size % 3 == 0:
                    event.synchronize()
                assert (y.numpy() == (host + number) * 2).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_is_no_stream_event_or_device_is_refused_by_name() -> None:
    stream = mpscffi.current_stream()
    for call in (
        lambda: mpscffi.default_stream(1),  # type: ignore[arg-type]
        lambda: stream.wait_event(threading.Event()),  # type: ignore[arg-type]
        lambda: stream.record_event(5),  # type: ignore[arg-type]
        lambda: stream.command_info("1"),  # type: ignore[arg-type]
        lambda: stream.synchronize(timeout=True),
        lambda: stream.synchronize(timeout="1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.ArgumentTypeError, match="got"):
            call()
    for serial in (0, -1, 1 << 64):
        with pytest.raises(errors.InvalidArgumentError, match=str(serial)):
            stream.command_info(serial)


def test_timeouts_are_any_number_of_seconds() -> None:
    for timeout in (np.float32(0.5), np.float64(0.5), np.int64(1), 10**400, float("inf")):
        mpscffi.synchronize(timeout=timeout)
