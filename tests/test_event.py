"""Events: order, waits, times."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import errors
from mpscffi._ffi import check, ffi, lib

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void times(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] *= n; }
"""


def timed(count: int = 2) -> list[mpscffi.Event]:
    return [mpscffi.Event(enable_timing=True) for _ in range(count)]


def test_the_usual_way_to_time_work(spin: Any) -> None:
    start, end = timed()
    begin = time.monotonic()
    start.record()
    spin()
    mpscffi.synchronize()
    end.record()
    end.synchronize()
    elapsed = start.elapsed_time(end)
    wall = (time.monotonic() - begin) * 1e3
    assert isinstance(elapsed, float)
    assert 0.1 < elapsed <= wall
    assert start.elapsed_time(end) == elapsed


@pytest.mark.parametrize("wait_start", [False, True])
@pytest.mark.parametrize("wait_end", [False, True])
def test_elapsed_time_waits_by_itself(spin: Any, wait_start: bool, wait_end: bool) -> None:
    start, end = timed()
    start.record()
    spin(200_000)
    end.record()
    for event, wanted in ((start, wait_start), (end, wait_end)):
        if wanted:
            event.synchronize()
            event.synchronize()
    assert start.elapsed_time(end) > 0
    mpscffi.synchronize()
    assert start.elapsed_time(end) == start.elapsed_time(end) > 0


def test_times_add_up(spin: Any) -> None:
    one, two, three = timed(3)
    one.record()
    spin(1_000_000)
    two.record()
    spin(1_000_000)
    three.record()
    assert one.elapsed_time(two) + two.elapsed_time(three) == pytest.approx(one.elapsed_time(three))


def test_ten_thousand_pairs_are_in_order() -> None:
    start, end = timed()
    for _ in range(10_000):
        start.record()
        end.record()
        assert start.elapsed_time(end) >= 0


def test_an_event_against_itself() -> None:
    (event,) = timed(1)
    event.record()
    assert event.elapsed_time(event) == 0.0


def test_the_last_record_counts(spin: Any) -> None:
    start, end = timed()
    end.record()
    start.record()
    with pytest.raises(errors.InvalidArgumentError, match="ms before the start event"):
        start.elapsed_time(end)
    spin(100_000)
    end.record()
    assert start.elapsed_time(end) > 0


def test_refusals_of_elapsed_time() -> None:
    recorded, other = timed()
    recorded.record()
    plain = mpscffi.Event()
    plain.record()
    for start, end, text in (
        (recorded, other, "end event was never recorded"),
        (other, recorded, "start event was never recorded"),
        (recorded, plain, "end event was made without enable_timing"),
        (plain, recorded, "start event was made without enable_timing"),
    ):
        with pytest.raises(RuntimeError, match=text):
            start.elapsed_time(end)
    for error in (TypeError, AttributeError, RuntimeError):
        with pytest.raises(error, match="expected an Event"):
            recorded.elapsed_time(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, "yes", None])
def test_enable_timing_is_a_bool(value: Any) -> None:
    with pytest.raises(RuntimeError, match="expected True or False"):
        mpscffi.Event(value)


def test_an_event_that_was_never_recorded() -> None:
    event = mpscffi.Event()
    assert event.query() is False
    event.wait()
    event.synchronize()
    event.synchronize(timeout=0)
    assert repr(event) == "<mpscffi.Event not recorded>"
    mpscffi.synchronize(timeout=5)


def test_query(gate: Any) -> None:
    event = mpscffi.Event()
    event.record()
    assert event.query() is False
    assert repr(event) == "<mpscffi.Event pending>"
    gate()
    event.synchronize()
    assert event.query() is True
    assert repr(event) == "<mpscffi.Event complete>"


def test_waits_with_a_timeout(gate: Any) -> None:
    event = mpscffi.Event()
    event.record()
    for seconds in (0, 0.001, 0.2):
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            event.synchronize(timeout=seconds)
        assert seconds <= time.monotonic() - begin < seconds + 5
    gate()
    event.synchronize(timeout=60)
    assert event.query()


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_timeouts_that_are_none(timeout: Any, error: type[Exception]) -> None:
    event = mpscffi.Event()
    event.record()
    for wait in (event.synchronize, mpscffi.synchronize, mpscffi.current_stream().synchronize):
        with pytest.raises(error, match="timeout"):
            wait(timeout)


def test_order_between_streams(gate: Any, compiled: Any) -> None:
    # The gate holds up the default stream.
    kernels = compiled(SOURCE)
    x = mpscffi.ones(1000, dtype="int32")
    other, event = mpscffi.Stream(), mpscffi.Event()
    kernels.add(x, 1)
    event.record()
    with mpscffi.stream(other):
        event.wait()
        kernels.times(x, 10)
    with pytest.raises(TimeoutError):
        other.synchronize(timeout=0.05)
    gate()
    assert (x.numpy() == 20).all()


def test_events_take_a_stream(gate: Any) -> None:
    stream, event = mpscffi.Stream(), mpscffi.Event()
    event.record(stream)  # which has nothing to do
    event.synchronize(timeout=5)
    event.record(mpscffi.default_stream())
    assert not event.query()
    event.wait(stream)
    with pytest.raises(TimeoutError):
        stream.synchronize(timeout=0.05)
    gate()
    mpscffi.synchronize()
    assert event.query()
    for method in (event.record, event.wait):
        with pytest.raises(RuntimeError, match="expected a Stream or None"):
            method(3)


def test_one_event_from_many_threads() -> None:
    event = mpscffi.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                event.record()
                event.synchronize(timeout=20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert event.query()


def test_what_is_known_of_an_event_is_forgotten_when_it_is_recorded_again(spin: Any) -> None:
    start, end = timed()
    start.record()
    end.record()
    first = start.elapsed_time(end)
    assert start.elapsed_time(end) == first
    assert end.query()
    spin(1_000_000)
    end.record()
    assert start.elapsed_time(end) > first
    start.record()
    with pytest.raises(errors.InvalidArgumentError, match="before the start"):
        start.elapsed_time(end)


# ---- times


def test_the_device_time_of_an_event(spin: Any, device: mpscffi.Device) -> None:
    (event,) = timed(1)
    spin(100_000)
    _, before = device.timestamps()
    event.record()
    time = event.timestamp()
    _, after = device.timestamps()
    assert isinstance(time, int)
    assert event.timestamp() == time
    # The work may have been complete before it was recorded.
    assert before - 60e9 < time <= after
    start, end = timed()
    start.record()
    spin(1_000_000)
    end.record()
    assert start.elapsed_time(end) == pytest.approx((end.timestamp() - start.timestamp()) / 1e6)


def test_work_of_known_length() -> None:
    start, end, hold = (*timed(), mpscffi.Event())
    begin = time.monotonic()
    start.record()
    hold.wait(value=1)
    end.record()
    time.sleep(0.1)
    hold.signal(1)
    elapsed = start.elapsed_time(end)
    # What the CPU sleeps, the device stands still, but for what the record took.
    assert 50 <= elapsed <= (time.monotonic() - begin) * 1e3


def test_refusals_of_timestamp() -> None:
    with pytest.raises(errors.StateError, match="without enable_timing"):
        mpscffi.Event().timestamp()
    (event,) = timed(1)
    with pytest.raises(errors.StateError, match="never recorded"):
        event.timestamp()
    event.signal()
    with pytest.raises(errors.StateError, match="signalled by the CPU"):
        event.timestamp()
    other = mpscffi.Event(enable_timing=True)
    other.record()
    for one, two in ((event, other), (other, event)):
        with pytest.raises(errors.StateError, match="signalled by the CPU"):
            one.elapsed_time(two)
    event.record()
    assert event.timestamp() > 0


# ---- timelines


def test_points_of_a_timeline(gate: Any, compiled: Any) -> None:
    kernels, event = compiled(SOURCE), mpscffi.Event()
    x = mpscffi.zeros(10, dtype="int32")
    assert event.value == 0
    for n in (1, 2, 3):
        kernels.add(x, n)
        event.record(value=10 * n)
    assert event.value == 0
    assert not event.query(10)
    with pytest.raises(TimeoutError):
        event.synchronize(timeout=0.05, value=10)
    gate()
    event.synchronize(value=10)
    assert event.query(5)
    assert event.query(10)
    event.synchronize()
    assert event.value == 30
    assert event.query()
    assert not event.query(31)
    event.record()
    event.synchronize()
    assert event.value == 31
    assert x.tolist() == [6] * 10


def test_a_stream_waits_for_the_cpu(compiled: Any) -> None:
    kernels, event, stream = compiled(SOURCE), mpscffi.Event(), mpscffi.Stream()
    x = mpscffi.ones(10, dtype="int32")
    with mpscffi.stream(stream):
        event.wait(value=3)
        kernels.add(x, 1)
    for value in (1, 2):
        event.signal(value)
        with pytest.raises(TimeoutError):
            stream.synchronize(timeout=0.05)
    event.signal()
    stream.synchronize(timeout=60)
    assert event.value == 3
    assert x.tolist() == [2] * 10


def test_streams_take_turns_by_one_timeline(compiled: Any) -> None:
    kernels, event = compiled(SOURCE), mpscffi.Event()
    x = mpscffi.asarray(np.zeros(100, np.int32))
    streams = [mpscffi.Stream(), mpscffi.Stream()]
    expected, turns = 0, range(1, 9)
    for turn in turns:
        expected = (expected + turn) * 2
    # Given in another order: all even turns first.
    for stream, own in ((streams[0], turns[1::2]), (streams[1], turns[::2])):
        for turn in own:
            if turn > 1:
                event.wait(stream, value=turn)
            add(kernels, x, turn, stream)
            check(lib.mps_queue_signal(stream.handle, event.handle, turn + 1))
            stream.commit()
    event.synchronize(value=9)
    for stream in streams:
        stream.synchronize()
    assert (x.numpy() == expected).all()


def add(kernels: Any, x: mpscffi.Array, turn: int, stream: mpscffi.Stream) -> None:
    # Through the C library, as if the arrays were another program's: here only the events order the streams.
    place = ffi.new("int *", turn)
    two = ffi.new("int *", 2)
    for kernel, value in ((kernels.add, place), (kernels.times, two)):
        arguments = ffi.new(
            "mps_argument[]",
            [
                {"kind": lib.MPS_ARGUMENT_BUFFER, "index": 0, "buffer": x.handle},
                {"kind": lib.MPS_ARGUMENT_BYTES, "index": 1, "data": value, "length": 4},
            ],
        )
        dispatch = ffi.new(
            "mps_dispatch *",
            {
                "struct_size": ffi.sizeof("mps_dispatch"),
                "pipeline": kernel.handle,
                "arguments": arguments,
                "argument_count": 2,
                "grid": [x.size, 1, 1],
            },
        )
        check(lib.mps_queue_dispatch(stream.handle, dispatch))


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1 << 63, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_values_that_are_none(value: Any, error: type[Exception]) -> None:
    event = mpscffi.Event()
    for call in (event.record, event.signal, event.wait, event.synchronize):
        with pytest.raises(error, match="value"):
            call(value=value)
    with pytest.raises(error, match="value"):
        event.query(value)
    assert event.value == 0
    assert not event.query()


def test_values_only_grow() -> None:
    event = mpscffi.Event()
    event.record(value=5)
    for call in (event.record, event.signal):
        for value in (5, 4):
            with pytest.raises(errors.InvalidArgumentError, match="more than 5"):
                call(value=value)
    event.synchronize()
    event.signal((1 << 63) - 1)
    event.record()
    event.synchronize()
    assert event.value == 1 << 63


# ---- life


def test_a_record_that_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when there is no memory for it."""
    event = mpscffi.Event()
    event.record()

    def fail(*arguments: Any) -> int:
        return int(lib.mps_event_signal(ffi.NULL, 1))

    monkeypatch.setattr("mpscffi.event._signal", fail)
    for options in ({}, {"value": 7}):
        with pytest.raises(errors.Error):
            event.record(**options)
        event.synchronize(timeout=10)
        assert event.query()
    monkeypatch.undo()
    event.record(value=2)
    event.synchronize(timeout=10)
    assert event.value == 2


def test_new_events_know_nothing_of_old_ones(spin: Any) -> None:
    for _ in range(200):
        event = mpscffi.Event(enable_timing=True)
        assert not event.query()
        assert event.value == 0
        event.record()
        event.synchronize()
        assert event.query()
        assert event.value == 1


def test_many_events_at_once() -> None:
    events = [mpscffi.Event() for _ in range(3000)]
    for event in events:
        event.record()
    for event in reversed(events):
        event.synchronize()
    assert all(event.query() for event in events)


def test_an_event_may_go_while_it_is_recorded(gate: Any) -> None:
    for _ in range(100):
        mpscffi.Event().record()
    del _
    gate()
    mpscffi.synchronize()


def test_an_event_behind_asynchronous_copies() -> None:
    host = np.arange(1 << 20, dtype=np.int32)
    arrays = [mpscffi.empty(host.shape, dtype=np.int32) for _ in range(4)]
    for i, array in enumerate(arrays):
        array.copy_from(host + i, non_blocking=True)
    event = mpscffi.Event()
    event.record()
    event.synchronize()
    mpscffi.synchronize()
    assert event.query()
    for i, array in enumerate(arrays):
        assert (array.numpy() == host + i).all()
