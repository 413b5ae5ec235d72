"""The caching allocator: counters, reuse, limits."""

from __future__ import annotations

import gc
import random
import signal
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpscffi
from mpscffi import errors
from mpscffi.allocator import allocator_of
from mpscffi.memory.sizes import XLARGE_HEAP, readable, round_up

pytestmark = pytest.mark.usefixtures("device", "settled")

MIB = 1 << 20
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void fill(device float* x, constant float& v, uint i [[thread_position_in_grid]]) { x[i] = v; }
kernel void copy(device float* out, device const float* in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
"""


@pytest.fixture
def kernels(compiled: Any) -> Any:
    return compiled(SOURCE)


@pytest.fixture
def room(device: mpscffi.Device) -> Any:
    """Sets the limit to so many bytes above what is in use."""

    def leave(size: int) -> None:
        gc.collect()
        mpscffi.empty_cache()
        fraction = (mpscffi.driver_allocated_memory() + size) / mpscffi.recommended_max_memory()
        mpscffi.set_per_process_memory_fraction(fraction)

    return leave


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1024, "1024 bytes"), (1025, "1.00 KiB"), (3 * MIB // 2, "1.50 MiB"), (1 << 34, "16.00 GiB")],
)
def test_readable_sizes(size: int, text: str) -> None:
    assert readable(size) == text


# ---- counters


def test_counters_are_exact() -> None:
    """Arrays above 10 MiB come from a heap of 1 GiB, which goes back once nothing is in it."""
    current, driver = mpscffi.current_allocated_memory(), mpscffi.driver_allocated_memory()
    assert current == 0
    array = mpscffi.empty(8 * MIB)
    assert mpscffi.current_allocated_memory() == 32 * MIB
    assert mpscffi.driver_allocated_memory() == driver + XLARGE_HEAP
    view = array[3:]
    del array
    assert mpscffi.current_allocated_memory() == 32 * MIB
    mpscffi.empty_cache()
    assert mpscffi.driver_allocated_memory() == driver + XLARGE_HEAP
    del view
    assert mpscffi.current_allocated_memory() == 0
    assert mpscffi.driver_allocated_memory() == driver + XLARGE_HEAP
    mpscffi.empty_cache()
    assert mpscffi.driver_allocated_memory() == driver


def test_nothing_is_counted_for_no_elements() -> None:
    mpscffi.empty(0)
    mpscffi.empty_cache()
    current, driver = mpscffi.current_allocated_memory(), mpscffi.driver_allocated_memory()
    arrays = [mpscffi.empty(0, 5) for _ in range(10)]
    assert (mpscffi.current_allocated_memory(), mpscffi.driver_allocated_memory()) == (current, driver)
    del arrays


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 100_000), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_counters_under_random_use(steps: list[tuple[int, bool]], order: random.Random) -> None:
    gc.collect()
    allocator = allocator_of(mpscffi.current_device())
    align = allocator.source.size_and_align(1, False)[1]
    base = mpscffi.current_allocated_memory()
    held: list[Any] = []
    for size, shown in steps:
        array = mpscffi.empty(size, dtype="uint8")
        held.append(array.numpy() if shown else array)
        del array
        if held and order.random() < 0.4:
            held.pop(order.randrange(len(held)))
        if order.random() < 0.1:
            mpscffi.empty_cache()
        used = sum(round_up(one.nbytes, align) for one in held)
        assert mpscffi.current_allocated_memory() == base + used
        assert allocator.reserved.current >= mpscffi.current_allocated_memory()
        assert mpscffi.driver_allocated_memory() >= allocator.reserved.current
    held.clear()
    assert mpscffi.current_allocated_memory() == base


def test_counters_with_many_threads() -> None:
    base = mpscffi.current_allocated_memory()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held = []
        for _ in range(2000):
            held.append(mpscffi.empty(rng.randrange(1, 5000)))
            if len(held) > 10:
                held.pop(rng.randrange(len(held)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mpscffi.current_allocated_memory() == base
    mpscffi.empty_cache()
    assert allocator_of(mpscffi.current_device()).reserved.current == base == 0


def test_a_signal_handler_allocates(device: mpscffi.Device) -> None:
    """At any point of an allocation; what it takes and gives back is counted as any other."""
    held: list[Any] = []
    rng = random.Random(3)

    def interrupt(number: int, frame: Any) -> None:
        held.append(mpscffi.empty(rng.randrange(1, 300_000)))
        if len(held) > 30:
            held.clear()

    mpscffi.empty(1)  # whose module is to be loaded whole
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        kept: list[Any] = []
        for step in range(10_000):
            kept.append(mpscffi.empty(1 + step * 7919 % 200_000))
            if len(kept) > 50:
                kept.pop(step % 50)
            if step % 500 == 0:
                mpscffi.empty_cache()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    held.clear()
    kept.clear()
    mpscffi.empty_cache()
    assert mpscffi.current_allocated_memory() == 0
    assert allocator_of(device).reserved.current == 0


def test_memory_goes_back_at_once_for_any_number_of_arrays() -> None:
    driver = mpscffi.driver_allocated_memory()
    arrays = [mpscffi.empty(4) for _ in range(20_000)]
    assert mpscffi.current_allocated_memory() >= 20_000 * 16
    del arrays
    mpscffi.empty_cache()
    assert mpscffi.driver_allocated_memory() == driver


def test_copies_that_convert_leave_no_memory_behind() -> None:
    values = np.arange(100_000, dtype=np.float32)

    def there_and_back() -> int:
        array = mpscffi.asarray(values)
        wide = mpscffi.asarray(array.numpy().astype(np.int64))
        assert (wide.numpy().astype(np.float32) == values).all()
        del array, wide
        gc.collect()
        mpscffi.empty_cache()
        return mpscffi.driver_allocated_memory()

    assert there_and_back() == there_and_back()


def test_a_leak_shows_in_both_counters() -> None:
    def counters() -> tuple[int, int]:
        gc.collect()
        mpscffi.empty_cache()
        return mpscffi.current_allocated_memory(), mpscffi.driver_allocated_memory()

    before = counters()
    leaked = [mpscffi.empty(8 * MIB)]
    after = counters()
    assert after[0] - before[0] == 32 * MIB
    assert after[1] - before[1] >= 32 * MIB
    leaked.clear()
    assert counters() == before


def test_more_elements_than_32_bits_count(device: mpscffi.Device) -> None:
    size = (1 << 31) + 5
    if device.recommended_max_working_set < 4 * size or device.max_buffer_length <= size:
        pytest.skip("too little memory")
    array = mpscffi.empty(size, dtype="uint8")
    array[-1] = 7
    assert array[-1].item() == 7
    del array
    gc.collect()
    mpscffi.empty_cache()
    assert mpscffi.current_allocated_memory() == 0


# ---- reuse


def test_freed_memory_is_used_again() -> None:
    array = mpscffi.empty(1000)
    address = array.__array_interface__["data"][0]
    del array
    driver = mpscffi.driver_allocated_memory()
    assert mpscffi.empty(999).__array_interface__["data"][0] == address
    assert mpscffi.driver_allocated_memory() == driver


def test_memory_in_use_is_not_given_to_the_cpu(kernels: Any, gate: Any) -> None:
    """A kernel that is still to run has been given an array that is gone: its memory must not get other contents."""
    out = mpscffi.empty(1000)
    source = mpscffi.full(1000, 7)
    kernels.copy(out, source)
    del source
    noise = [mpscffi.full(1000, -1) for _ in range(20)]
    noise += [mpscffi.asarray(np.full(1000, -2, np.float32)) for _ in range(20)]
    gate()
    assert (out.numpy() == 7).all()
    assert all((one.numpy() < 0).all() for one in noise)


def test_memory_in_use_is_given_to_the_same_stream(kernels: Any, gate: Any) -> None:
    out, temporary = mpscffi.empty(1000), mpscffi.empty(1000)
    kernels.fill(temporary, 7.0)
    kernels.copy(out, temporary)
    driver = mpscffi.driver_allocated_memory()
    del temporary
    again = mpscffi.empty(1000)
    kernels.fill(again, 8.0)
    zeros = mpscffi.zeros(1000)
    assert mpscffi.driver_allocated_memory() == driver
    assert again.offset == zeros.offset == 0
    gate()
    assert (out.numpy() == 7).all()
    assert (again.numpy() == 8).all()
    assert (zeros.numpy() == 0).all()


def test_memory_in_use_is_not_given_to_another_stream(kernels: Any, gate: Any) -> None:
    out, temporary = mpscffi.empty(1000), mpscffi.empty(1000)
    kernels.fill(temporary, 7.0)
    kernels.copy(out, temporary)
    del temporary
    with mpscffi.stream(mpscffi.Stream()):
        other = mpscffi.empty(1000)
        kernels.fill(other, 8.0)
        assert (other.numpy() == 8).all()
    gate()
    assert (out.numpy() == 7).all()


def test_memory_that_moves_on_to_another_stream(kernels: Any, gate: Any) -> None:
    """Given out again on the stream that still uses it, then used on another one, which has to wait."""
    out, temporary = mpscffi.empty(1000), mpscffi.empty(1000)
    kernels.fill(temporary, 7.0)
    kernels.copy(out, temporary)
    del temporary
    again = mpscffi.empty(1000)
    stream = mpscffi.Stream()
    with mpscffi.stream(stream):
        kernels.fill(again, 8.0)
    with pytest.raises(TimeoutError):
        stream.synchronize(timeout=0.05)
    gate()
    assert (out.numpy() == 7).all()
    assert (again.numpy() == 8).all()


def test_memory_that_two_streams_have_used(kernels: Any, gate: Any) -> None:
    stream = mpscffi.Stream()
    shared, out = mpscffi.full(1000, 7), mpscffi.empty(1000)
    kernels.copy(out, shared)  # behind the gate
    with mpscffi.stream(stream):
        kernels.copy(mpscffi.empty(1000), shared)
        del shared
        # Its last use was on this stream, but not its only one.
        kernels.fill(mpscffi.empty(1000), 8.0)
    # What the other stream was given to do with the array comes first.
    with pytest.raises(TimeoutError):
        stream.synchronize(timeout=0.05)
    gate()
    stream.synchronize()
    assert (out.numpy() == 7).all()


# ---- the cache


def test_empty_cache_at_any_time(kernels: Any) -> None:
    driver = mpscffi.driver_allocated_memory()
    for _ in range(20):
        array = mpscffi.empty(100_000)
        kernels.fill(array, 1.0)
        del array
        mpscffi.empty_cache()
    mpscffi.synchronize()
    mpscffi.empty_cache()
    assert mpscffi.driver_allocated_memory() == driver


def test_empty_cache_does_not_wait_for_work_on_arrays(kernels: Any, gate: Any) -> None:
    held = mpscffi.empty(100)
    kernels.fill(held, 1.0)
    mpscffi.empty(1000)
    mpscffi.empty_cache()
    assert not mpscffi.current_stream().query()


@pytest.mark.parametrize("streams", [1, 2])
def test_empty_cache_brings_memory_of_queued_work_back(kernels: Any, gate: Any, streams: int) -> None:
    baseline = mpscffi.driver_allocated_memory()
    array = mpscffi.empty(3 * MIB)
    kernels.fill(array, 1.0)
    if streams == 2:
        with mpscffi.stream(mpscffi.Stream()):
            kernels.fill(array, 2.0)
    del array
    timer = threading.Timer(0.1, gate)
    timer.start()
    mpscffi.empty_cache()
    assert mpscffi.driver_allocated_memory() == baseline
    timer.join()


def test_a_callback_does_not_wait_for_itself(kernels: Any, room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It empties the cache, and runs out of memory, while later work of its stream waits for it."""
    monkeypatch.setattr("mpscffi.memory.rescue.WAIT_SECONDS", 1000)
    seen: list[Any] = []
    stream = mpscffi.Stream()

    def callback() -> None:
        mpscffi.empty_cache()
        try:
            mpscffi.empty(32 * MIB)
        except MemoryError as error:
            seen.append(error)

    room(16 * MIB)
    with mpscffi.stream(stream):
        array = mpscffi.empty(1000)
        stream.add_callback(callback)
        kernels.fill(array, 1.0)
        del array
    stream.synchronize(timeout=60)
    assert [type(error) for error in seen] == [errors.OutOfMemoryError]


def test_kernels_do_not_hold_on_to_arrays(kernels: Any) -> None:
    driver = mpscffi.driver_allocated_memory()
    kernels.copy(mpscffi.empty(MIB), mpscffi.empty(MIB))
    mpscffi.synchronize()
    mpscffi.empty_cache()
    assert mpscffi.driver_allocated_memory() == driver
    kernels.copy(mpscffi.empty(MIB), mpscffi.empty(MIB))


# ---- limits


@pytest.mark.parametrize("fraction", [1, 0, True, "0.5", np.float32(0.5), None])
def test_fractions_of_another_type(fraction: Any) -> None:
    with pytest.raises(TypeError, match="expected a float"):
        mpscffi.set_per_process_memory_fraction(fraction)


@pytest.mark.parametrize(("fraction", "end"), [(1, "write 1.0"), (0, "write 0.0"), (-1, "to 2.0"), (3, "to 2.0")])
def test_whole_fractions_say_what_to_write(fraction: Any, end: str) -> None:
    with pytest.raises(TypeError, match=rf"got {fraction} of type int.*in the range 0.0.*{end}$"):
        mpscffi.set_per_process_memory_fraction(fraction)


def test_a_lowered_limit_holds(device: mpscffi.Device) -> None:
    big = mpscffi.empty(4 << 20)
    del big
    gc.collect()
    mpscffi.synchronize()
    mpscffi.empty_cache()
    least = mpscffi.driver_allocated_memory()
    big = mpscffi.empty(4 << 20)  # in a heap of 1 GiB
    del big
    limit = least + 100 * MIB
    mpscffi.set_per_process_memory_fraction(limit / mpscffi.recommended_max_memory())
    assert mpscffi.driver_allocated_memory() <= limit
    with pytest.raises(errors.OutOfMemoryError):
        _ = [mpscffi.zeros(1024, 1024, 8) for _ in range(20)]
    assert mpscffi.driver_allocated_memory() <= limit


@pytest.mark.parametrize("fraction", [-0.1, 2.1, float("nan"), float("inf"), -float("inf")])
def test_fractions_out_of_range(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"got {fraction}.*0 to 2"):
        mpscffi.set_per_process_memory_fraction(fraction)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0, 2.0, np.float64(0.3)])
def test_fractions(fraction: float) -> None:
    mpscffi.set_per_process_memory_fraction(fraction)
    limit = allocator_of(mpscffi.current_device()).budget.limit
    assert limit == (int(fraction * mpscffi.recommended_max_memory()) if fraction else None)


def test_the_limit_holds_and_says_so(room: Any) -> None:
    room(8 * MIB)
    before = mpscffi.current_allocated_memory(), mpscffi.driver_allocated_memory()
    with pytest.raises(MemoryError) as caught:
        mpscffi.empty(9 * MIB, dtype="uint8")
    assert isinstance(caught.value, errors.OutOfMemoryError)
    for fact in (
        "9437184 bytes (9.00 MiB)",
        "limit",
        "set_per_process_memory_fraction",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
    ):
        assert fact in str(caught.value)
    assert (mpscffi.current_allocated_memory(), mpscffi.driver_allocated_memory()) == before
    array = mpscffi.empty(7 * MIB, dtype="uint8")
    del array
    mpscffi.set_per_process_memory_fraction(0.0)
    assert mpscffi.empty(9 * MIB, dtype="uint8").size == 9 * MIB


def test_cached_memory_makes_room(room: Any) -> None:
    room(64 * MIB)
    array = mpscffi.empty(32 * MIB, dtype="uint8")
    del array
    array = mpscffi.empty(48 * MIB, dtype="uint8")
    del array
    parts = [mpscffi.empty(4 * MIB, dtype="uint8") for _ in range(16)]
    del parts[::2]
    array = mpscffi.empty(24 * MIB, dtype="uint8")
    assert array.size == 24 * MIB
    with pytest.raises(MemoryError):
        mpscffi.empty(24 * MIB, dtype="uint8")


def test_cached_memory_is_used_at_the_limit(room: Any) -> None:
    room(8 * MIB)
    for _ in range(3):
        array = mpscffi.empty(8 * MIB, dtype="uint8")
        del array


def test_memory_of_queued_work_makes_room(room: Any, kernels: Any, gate: Any) -> None:
    room(64 * MIB)
    array = mpscffi.empty(10 * MIB)
    kernels.fill(array, 1.0)
    del array
    timer = threading.Timer(0.1, gate)
    timer.start()
    assert mpscffi.empty(15 * MIB).size == 15 * MIB
    timer.join()


def test_memory_in_cycles_makes_room(room: Any) -> None:
    room(64 * MIB)
    cycle: list[Any] = [mpscffi.empty(10 * MIB)]
    cycle.append(cycle)
    del cycle
    assert mpscffi.empty(15 * MIB).size == 15 * MIB


@pytest.mark.usefixtures("reports_faults")
def test_running_out_of_memory_takes_no_failure_away(room: Any, compiled: Any, device: mpscffi.Device) -> None:
    kernel = compiled("kernel void fault(device ulong* at) { *(device int*)(at[0]) = 1; }").fault
    at = mpscffi.asarray(np.array([16], np.uint64))  # kept, since its heap would come back as more room
    kernel(at, threads=1)
    room(MIB)
    with pytest.raises(MemoryError):
        mpscffi.empty(2 * MIB)
    with pytest.raises(errors.ExecutionError, match="'fault'"):
        mpscffi.synchronize()


def test_above_the_largest_buffer(device: mpscffi.Device) -> None:
    before = mpscffi.current_allocated_memory()
    with pytest.raises(MemoryError, match=f"{device.max_buffer_length + 1} bytes.*{device.max_buffer_length} bytes"):
        mpscffi.empty(device.max_buffer_length + 1, dtype="uint8")
    assert mpscffi.current_allocated_memory() == before


def test_the_recommended_maximum() -> None:
    assert mpscffi.recommended_max_memory() > 0


def test_out_of_memory_of_the_system(python: Any) -> None:
    script = """
        import resource
        import mpscffi
        mpscffi.empty(1).numpy()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
        held = []
        try:
            while True:
                held.append(mpscffi.empty(16 << 20, dtype="uint8"))
        except MemoryError as error:
            print(type(error).__name__, len(held) > 5)
        held.clear()
        print(mpscffi.empty(150 << 20, dtype="uint8").size >> 20)
    """
    result = python(script, PYTORCH_MPS_HIGH_WATERMARK_RATIO="0.0")
    assert result.stdout.split() == ["OutOfMemoryError", "True", "150"], result.stderr


def test_kernels_do_not_know_buffers_that_were_given_back(compiled: Any) -> None:
    kernel = compiled("kernel void f(device int* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }").f
    for _ in range(5):
        kept, x = mpscffi.asarray(np.ones(100, np.int32)), mpscffi.asarray(np.ones(100, np.int32))
        kernel(x)
        assert x.tolist() == [2] * 100
        del x
        mpscffi.empty_cache()  # the heap stays, for the other array
        y = mpscffi.asarray(np.ones(100, np.int32))  # in the same range, but another buffer
        kernel(y)
        assert y.tolist() == [2] * 100
        assert kept.tolist() == [1] * 100
