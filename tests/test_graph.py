"""Graphs: what is recorded, replays, updates."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import errors
from mpscffi.allocator import allocator_of
from mpscffi.graph import _Recorded

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void times(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] *= n; }
kernel void sum(device int* out, constant int* const device* in, constant uint& n, uint i [[thread_position_in_grid]]) {
  int sum = 0;
  for (uint k = 0; k < n; k++) sum += in[k][i];
  out[i] = sum;
}
kernel void where(device uint* out, uint i [[thread_position_in_grid]], uint g [[threads_per_threadgroup]]) {
  out[i] = g;
}
kernel void gaps(device int* x [[buffer(1)]], constant int& n [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  x[i] += n;
}
kernel void shared(device int* out, threadgroup int* t [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
  t[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = t[3 - i];
}
"""


@pytest.fixture
def kernels(compiled: Any) -> Any:
    return compiled(SOURCE)


def ints(n: int, value: int = 0) -> mpscffi.Array:
    return mpscffi.asarray(np.full(n, value, np.int32))


def record_into(graph: mpscffi.Graph, *calls: Any) -> None:
    with graph:
        for call in calls:
            call()


# ---- recording and replay


def test_nothing_runs_while_it_is_recorded(kernels: Any) -> None:
    x = ints(100, 1)
    with mpscffi.record() as graph:
        kernels.add(x, 2)
        kernels.times(x, n=3)
    mpscffi.synchronize()
    assert x.tolist() == [1] * 100
    assert len(graph) == 2
    expected = 1
    for _ in range(3):
        graph.replay()
        expected = (expected + 2) * 3
        assert x.tolist() == [expected] * 100


@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_kernels_copies_and_fills_in_order(kernels: Any, size: int) -> None:
    x, y, saved = ints(size, 5), ints(size), ints(size)
    with mpscffi.record() as graph:
        saved.copy_from(x, non_blocking=True)
        x.fill_(0)
        kernels.add(x, 7)
        y.copy_from(x, non_blocking=True)
        kernels.times(y, 2)
        x.fill_(-1)
    graph.replay()
    assert (saved.numpy() == 5).all()
    assert (x.numpy() == -1).all()
    assert (y.numpy() == 14).all()
    graph.replay()
    assert (saved.numpy() == -1).all()
    assert (y.numpy() == 14).all()


def test_places_above_4_gib(kernels: Any) -> None:
    far = 1 << 32
    whole = mpscffi.zeros((far + 256) // 4, dtype=np.int32)  # few of its pages are ever touched
    low, high = whole[:16], whole[far // 4 :]
    with mpscffi.record() as graph:
        kernels.add(high[:16], 3)
        high[32:48].copy_from(high[:16], non_blocking=True)
        high[48:].fill_(-1)
    graph.replay()
    assert high[:48].tolist() == [3] * 16 + [0] * 16 + [3] * 16
    assert high[48:].tolist() == [-1] * 16
    graph[0].set({"x": high[4:20]})
    graph[1].set(source=high[4:20], target=high[32:48])
    graph.replay()
    assert high[:20].tolist() == [3] * 4 + [6] * 12 + [3] * 4
    assert high[32:48].tolist() == [6] * 12 + [3] * 4
    assert low.tolist() == [0] * 16


def test_a_replay_is_one_command_buffer(kernels: Any) -> None:
    x, stream = ints(10), mpscffi.Stream()
    with mpscffi.record() as graph:
        for _ in range(100):
            kernels.add(x, 1)
    graph.replay(stream)
    first = stream.commit()
    graph.replay(stream)
    assert stream.commit() == first + 1
    stream.synchronize()
    assert not stream.command_info(first).failed
    assert x.tolist() == [200] * 10


def test_temporaries_are_the_graphs_own(kernels: Any, settled: None) -> None:
    allocator, out = allocator_of(mpscffi.current_device()), ints(1000)
    before = allocator.counters.current
    with mpscffi.record() as graph:
        for n in (1, 2, 3):
            temporary, zeroed = mpscffi.empty(1000, dtype=np.int32), mpscffi.zeros(1000, dtype=np.int32)
            temporary.fill_(0)
            kernels.add(temporary, n)
            kernels.add(zeroed, n)
            kernels.sum(out, [out, temporary, zeroed], 3)
        del temporary, zeroed
    assert allocator.counters.current - before >= 6 * 4000
    graph.replay()
    noise = [ints(1000, 77) for _ in range(20)]
    graph.replay()  # zeros are zeros again
    assert out.tolist() == [2 * 2 * (1 + 2 + 3)] * 1000
    assert all(one.tolist() == [77] * 1000 for one in noise)
    del graph, noise
    gc.collect()
    assert allocator.counters.current == before


def test_it_keeps_what_it_uses(kernels: Any) -> None:
    library = mpscffi.compile_shader("kernel void f(device int* x, constant int& n) { x[0] += n; }")
    x = ints(1)
    view = x.numpy()
    with mpscffi.record() as graph:
        library.f(x, int("3"), threads=1)
        library.f(x, np.int32(4), threads=1)
        library.f(x, b"\5\0\0\0", threads=1)
    del library, x
    gc.collect()
    noise = [ints(1, 9) for _ in range(50)]
    graph.replay()
    mpscffi.synchronize()
    assert view[0] == 12
    del noise


def test_every_form_of_a_call(kernels: Any) -> None:
    x, y = ints(4, 1), mpscffi.zeros(64, dtype=np.uint32)
    with mpscffi.record() as graph:
        kernels.gaps(None, x, None, None, 5)
        kernels.add(x, 2.0, arg_casts="int32")
        kernels.where(y, threads=64, group_size=16)
        kernels.where(y[32:], threadgroups=4, group_size=8)
        kernels.shared(x, threads=4, group_size=4, threadgroup_memory=16)
        kernels.add(x[1:3], 10)
        kernels.add(x, 1, threads=0)
    graph.replay()
    assert x.tolist() == [3, 12, 11, 0]
    assert y.tolist() == [16] * 32 + [8] * 32


def test_an_empty_graph() -> None:
    with mpscffi.record() as graph:
        pass
    graph.replay()
    assert len(graph) == 0
    assert list(graph) == []
    with pytest.raises(IndexError):
        graph[0]


def test_random_numbers_are_those_of_the_recording() -> None:
    generator = mpscffi.Generator()
    generator.manual_seed(5)
    expected = mpscffi.rand(100, generator=generator).tolist()
    generator.manual_seed(5)
    with mpscffi.record() as graph:
        x = mpscffi.rand(100, generator=generator)
    for _ in range(2):
        graph.replay()
        assert x.tolist() == expected


# ---- streams and threads


def test_a_replay_comes_after_other_streams_work(kernels: Any, gate: Any) -> None:
    # The gate holds up the default stream.
    x, y = mpscffi.zeros(1000, dtype=np.int32), mpscffi.zeros(1000, dtype=np.int32)
    one, other = mpscffi.Stream(), mpscffi.Stream()
    kernels.add(x, 1)
    with mpscffi.record() as graph:
        kernels.times(x, 10)
        y.copy_from(x, non_blocking=True)
    graph.replay(one)
    with mpscffi.stream(other):
        kernels.add(y, 5)
        graph.replay()
        kernels.add(y, 5)
    with pytest.raises(TimeoutError):
        other.synchronize(timeout=0.05)
    gate()
    assert (y.numpy() == 105).all()


def test_a_replay_is_on_the_stream_that_is_current_then(kernels: Any, gate: Any) -> None:
    stream = mpscffi.Stream()
    with mpscffi.stream(stream):
        x = mpscffi.zeros(10, dtype=np.int32)
        with mpscffi.record() as graph:
            assert mpscffi.current_stream() is not stream
            kernels.add(x, 1)
        assert mpscffi.current_stream() is stream
        graph.replay()
        assert x.tolist() == [1] * 10  # while the default stream stands still


def test_many_threads_replay_one_graph(kernels: Any) -> None:
    x, y = ints(1000), ints(1000)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
        y.copy_from(x, non_blocking=True)
        for _ in range(10):
            kernels.add(y, 1)
    failures: list[BaseException] = []

    def work(stream: mpscffi.Stream) -> None:
        try:
            for _ in range(50):
                graph.replay(stream)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(mpscffi.Stream(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mpscffi.synchronize()
    assert not failures
    assert (x.numpy() == 200).all()
    assert (y.numpy() == 210).all()


def test_a_recording_is_one_threads_own(kernels: Any) -> None:
    x, y = ints(10), ints(10)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
        thread = threading.Thread(target=lambda: kernels.add(y, 1))
        thread.start()
        thread.join()
    assert y.tolist() == [1] * 10
    assert x.tolist() == [0] * 10
    assert len(graph) == 1


@pytest.mark.usefixtures("reports_faults")
def test_a_failure_is_raised_by_the_next_wait(compiled: Any) -> None:
    library = compiled("kernel void fault(device ulong* at) { *(device int*)(at[0]) = 1; }")
    with mpscffi.record() as graph:
        library.fault(mpscffi.zeros(1, dtype=np.uint64), threads=1)
    for _ in range(2):
        graph.replay()
        with pytest.raises(errors.ExecutionError, match="'fault'"):
            mpscffi.synchronize()


# ---- updates


def test_arguments_are_updated(kernels: Any) -> None:
    x, y = ints(10), ints(20)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
        kernels.times(x, n=2)
        y[:10].copy_from(x, non_blocking=True)
        x.fill_(0)
    graph.replay()
    assert y.tolist() == [2] * 10 + [0] * 10
    graph[0].set(n=5)
    graph.update(1, {1: 4})
    graph[2].set(target=y[10:])
    graph[-1].set(value=-1)
    graph.replay()
    assert y.tolist() == [2] * 10 + [20] * 10
    assert x.tolist() == [-1] * 10
    graph[0].set(x=y)  # and as many threads as y has elements
    graph[3].set(array=y[:5])
    graph.replay()
    assert y.tolist() == [-1] * 5 + [7] * 5 + [-4] * 10  # the copy is of x, times 4


def test_grids_are_updated(kernels: Any) -> None:
    y = mpscffi.zeros(64, dtype=np.uint32)
    with mpscffi.record() as graph:
        kernels.where(y, threads=64, group_size=16)
    for changes, expected in (
        ({"group_size": 8}, [8] * 64),
        ({"threadgroups": 3, "group_size": 4}, [4] * 12 + [0] * 52),
        ({"threadgroups": 2}, [4] * 8 + [0] * 56),
        ({"threads": 2, "group_size": 2}, [2] * 2 + [0] * 62),
    ):
        y.fill_(0)
        graph[0].set(**changes)
        graph.replay()
        assert y.tolist() == expected


def test_an_update_does_not_touch_replays_before_it(kernels: Any, gate: Any) -> None:
    x = mpscffi.zeros(10, dtype=np.int32)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
    for n in range(1, 101):
        graph[0].set(n=n)
        graph.replay()
    gate()
    assert x.tolist() == [5050] * 10


def test_updated_arrays_are_kept_and_the_old_ones_are_not(kernels: Any, settled: None) -> None:
    allocator = allocator_of(mpscffi.current_device())
    before = allocator.counters.current
    with mpscffi.record() as graph:
        kernels.add(mpscffi.zeros(1 << 16, dtype=np.int32), 1)
    used = allocator.counters.current - before
    graph[0].set(array=(fresh := ints(1 << 16)))
    graph[1].set(x=fresh)
    gc.collect()
    assert allocator.counters.current - before == used  # the new one in place of the old one
    view = fresh.numpy()
    del fresh
    graph.replay()
    mpscffi.synchronize()
    assert (view == 1).all()


@pytest.mark.parametrize(
    ("index", "changes", "error", "text"),
    [
        (0, {"n": "x"}, TypeError, "argument 1 'n'"),
        (0, {"m": 1}, TypeError, "unexpected argument 'm'"),
        (0, {7: 1}, TypeError, "unexpected argument 7"),
        (0, {"n": 1 << 40}, ValueError, "'n'"),
        (0, {"x": np.zeros(3)}, TypeError, "lies in host memory"),
        (0, {"x": 3}, ValueError, "expected an Array"),
        (0, {"threads": -1}, ValueError, "threads"),
        (0, {"threads": 4, "group_size": 4096}, ValueError, "4096"),
        (1, {"target": 3}, TypeError, "expected an Array"),
        (1, {"size": 3}, TypeError, "expected one of source, target"),
        (2, {"value": 1}, errors.StateError, "bytes differ"),
        (2, {"bytes": 1}, TypeError, "expected one of array, value"),
        (3, {}, IndexError, "range"),
    ],
)
def test_updates_that_are_refused_change_nothing(
    kernels: Any, index: int, changes: dict[Any, Any], error: type[Exception], text: str
) -> None:
    x, y = ints(10), ints(10)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
        y.copy_from(x, non_blocking=True)
        x.fill_(-1)
    with pytest.raises(error, match=text):
        graph.update(index, changes)
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([-1] * 10, [1] * 10)


def test_copies_of_other_sizes_are_refused(kernels: Any) -> None:
    x, y = ints(10), ints(10)
    with mpscffi.record() as graph:
        y.copy_from(x, non_blocking=True)
    for changes in ({"source": ints(9)}, {"source": mpscffi.zeros(10)}, {"target": ints(20)[::2]}, {"target": x}):
        with pytest.raises(errors.Error):
            graph[0].set(**changes)
    graph.replay()


def test_updates_while_others_replay(kernels: Any) -> None:
    x = ints(10)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
        kernels.add(x, -1)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                graph.replay()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    arrays = [ints(10) for _ in range(2)]
    for i in range(200):
        graph[0].set(n=7, x=arrays[i % 2])
        graph[1].set(n=-7, x=arrays[i % 2])
    stop.set()
    thread.join()
    mpscffi.synchronize()
    assert not failures
    assert all(set(one.tolist()) <= set(range(-1400 * 200, 1400 * 200, 7)) for one in arrays)


# ---- what cannot be recorded


@pytest.mark.parametrize(
    "name",
    [
        "numpy", "unused", "item", "copy", "setitem", "asarray", "ones", "full", "blocking", "fill",
        "synchronize", "wait", "query", "commit", "callback", "handler", "record", "wait_event",
        "record_event", "wait_stream", "waited_for", "set_stream", "stream", "replay", "graph", "errors", "async",
    ],
)  # fmt: skip
def test_what_cannot_be_recorded(kernels: Any, name: str) -> None:
    x, other, event = ints(10), mpscffi.Stream(), mpscffi.Event()
    event.record()
    with mpscffi.record() as small:
        kernels.add(x, 1)
    stream = mpscffi.current_stream
    ways: dict[str, Any] = {
        "numpy": x.numpy,
        "unused": ints(3).numpy,
        "item": lambda: x[0].item(),
        "copy": x.copy,
        "setitem": lambda: x.__setitem__(0, 1),
        "asarray": lambda: mpscffi.asarray([1]),
        "ones": lambda: mpscffi.ones(3),
        "full": lambda: mpscffi.full(3, 2),
        "blocking": lambda: x[:5].copy_from(x[5:]),
        "fill": lambda: x.fill_(3),
        "synchronize": mpscffi.synchronize,
        "wait": lambda: stream().synchronize(),
        "query": lambda: stream().query(),
        "commit": lambda: stream().commit(),
        "callback": lambda: stream().add_callback(print),
        "handler": lambda: stream().add_completed_handler(print),
        "record": lambda: mpscffi.Event().record(),
        "wait_event": event.wait,
        "record_event": lambda: stream().record_event(),
        "wait_stream": lambda: stream().wait_stream(other),
        "waited_for": lambda: other.wait_stream(stream()),
        "set_stream": lambda: mpscffi.set_stream(other),
        "stream": lambda: mpscffi.stream(other).__enter__(),
        "replay": small.replay,
        "graph": lambda: mpscffi.record().__enter__(),
        "errors": lambda: kernels.add(x, error_buf_idx=1),
        "async": lambda: stream().synchronize_async().send(None),
    }

    def unheard() -> None:
        with contextlib.suppress(errors.StateError):
            ways[name]()

    for text, way in (("cannot be recorded", ways[name]), ("discarded", unheard)):
        graph = mpscffi.record()
        with pytest.raises(errors.StateError, match=text):
            record_into(graph, lambda: kernels.add(x, 1), way)
        with pytest.raises(errors.StateError, match="discarded"):
            graph.replay()
    mpscffi.synchronize()
    assert x.tolist() == [0] * 10
    assert mpscffi.current_stream() is mpscffi.default_stream()


@pytest.mark.parametrize(("way", "text"), [
    (lambda x: x.__setitem__(0, 1), r"an assignment to elements.*use \.fill_\(0\) or .*non_blocking=True"),
    (lambda x: x.copy_from(np.zeros(10)), r"a copy that waits.*non_blocking=True"),
    (lambda x: x.fill_(3), r"fill_\(3\) of int32, whose bytes differ \(03 00 00 00\).*number of equal bytes, as 0"),
    (lambda x: x[::2].fill_(0), r"fill_\(\) of a view with gaps \(strides \(8,\)\)"),
])  # fmt: skip
def test_what_cannot_be_recorded_says_what_to_do_instead(way: Any, text: str) -> None:
    x = ints(10)
    with pytest.raises(errors.StateError, match=text), mpscffi.record():
        way(x)


def test_wrong_calls_are_errors_of_the_call(kernels: Any) -> None:
    x = ints(10)
    with mpscffi.record() as graph:
        with pytest.raises(ValueError, match="missing 'n'"):
            kernels.add(x=x)
        with pytest.raises(ValueError, match="4096"):
            kernels.add(x, 1, threads=4, group_size=4096)
        kernels.add(x, 1)
    graph.replay()
    assert x.tolist() == [1] * 10


def test_a_body_that_raises_discards_the_graph(kernels: Any) -> None:
    x = ints(10)
    graph = mpscffi.record()
    with pytest.raises(ZeroDivisionError):
        record_into(graph, lambda: kernels.add(x, 1), lambda: 1 / 0)
    with pytest.raises(errors.StateError, match="discarded"):
        graph.replay()
    kernels.add(x, 1)
    assert x.tolist() == [1] * 10


def test_an_interrupt_leaves_no_thread_recording() -> None:
    """Wherever in entering and leaving Ctrl-C comes."""
    codes = {method.__code__ for method in (_Recorded.__enter__, _Recorded.__exit__)}
    interrupted = 0

    def record_interrupted_at(place: int) -> bool:
        seen = 0

        def trace(frame: Any, what: str, argument: object) -> Any:
            nonlocal seen
            if frame.f_code not in codes:
                return None
            seen += what in ("call", "line")
            if seen == place:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with mpscffi.record():
                pass
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    while record_interrupted_at(interrupted + 1):
        interrupted += 1
        assert mpscffi.current_stream() is mpscffi.default_stream(), interrupted
        assert mpscffi.ones(2).tolist() == [1, 1]
    assert interrupted >= 8


def test_misuse(kernels: Any) -> None:
    graph = mpscffi.record()
    assert "not recorded yet" in repr(graph)
    for call in (graph.replay, lambda: graph.update(0, n=1), lambda: graph.__exit__(None, None, None)):
        with pytest.raises(errors.StateError):
            call()
    with graph:
        pass
    assert "of 0 commands" in repr(graph)
    with pytest.raises(errors.StateError, match="recorded once"), graph:
        pass
    with pytest.raises(TypeError, match="expected a Stream"):
        graph.replay(3)  # type: ignore[arg-type]
    for index in (slice(1), "0", 0.0, None):
        with pytest.raises(errors.ArgumentTypeError, match="index of type"):
            graph[index]  # type: ignore[index]
    with pytest.raises(IndexError, match="index 1 is out of range: there are 0"):
        graph.update(1)
    x = ints(1)
    with mpscffi.record() as one:
        kernels.add(x, 1)
    with pytest.raises(errors.ArgumentTypeError, match="arguments of type int, expected a mapping"):
        one[0].set(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Device"):
        mpscffi.record("host")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pickle or copy"):
        copy.copy(graph)


def test_what_it_looks_like(kernels: Any) -> None:
    x = ints(10)
    with mpscffi.record() as graph:
        kernels.add(x, 1)
        x[:5].copy_from(x[5:], non_blocking=True)
        mpscffi.zeros(3)
    assert [repr(node) for node in graph] == [
        "<mpscffi.GraphNode 0: add(x, n)>",
        "<mpscffi.GraphNode 1: copy(source, target)>",
        "<mpscffi.GraphNode 2: fill(array, value)>",
    ]
    assert [node.kernel is not None for node in graph] == [True, False, False]
    assert "of 3 commands" in repr(graph)
