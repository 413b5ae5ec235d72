"""Faults that users of such libraries met with memory: limits, caches, counters. One test a fault."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi as mps
from mpscffi.memory.allocator import Allocator
from mpscffi.memory.simulated import SimulatedMemory
from mpscffi.report import live_objects

pytestmark = pytest.mark.usefixtures("device", "settled")

MIB = 1 << 20
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
SOURCE = "kernel void fill(device float *x, constant float &v, uint i [[thread_position_in_grid]]) { x[i] = v; }"


@pytest.fixture
def limit(device: mps.Device) -> Callable[[int], None]:
    """Sets a limit of so many bytes above what is in use."""

    def set_limit(size: int) -> None:
        mps.set_per_process_memory_fraction((mps.driver_allocated_memory() + size) / mps.recommended_max_memory())

    return set_limit


def array(mib: int) -> mps.Array:
    return mps.empty(mib * MIB, dtype="uint8")


# ---- limits


def test_cached_memory_does_not_stand_in_the_way(limit: Callable[[int], None]) -> None:
    limit(64 * MIB)
    first = array(32)
    del first
    assert array(48).size == 48 * MIB


def test_cached_memory_in_pieces_does_not_stand_in_the_way(limit: Callable[[int], None]) -> None:
    limit(64 * MIB)
    parts = [array(4) for _ in range(16)]
    del parts[::2]
    whole = array(24)
    assert whole.size == 24 * MIB
    assert mps.current_allocated_memory() == 56 * MIB


def test_pieces_after_a_large_one(limit: Callable[[int], None]) -> None:
    """The cache holds one large block; cutting it up would keep its memory from going back."""
    limit(64 * MIB)
    first = array(48)
    del first
    parts = [array(4) for _ in range(16)]
    del parts[::2]
    assert array(24).size == 24 * MIB


def test_the_variable_before_the_import_after_it_and_after_the_first_use(python: Any, device: mps.Device) -> None:
    script = f"""
        import os
        import mpscffi
        os.environ["{HIGH}"] = "0.6"
        print(mpscffi.get_per_process_memory_fraction())
        os.environ["{HIGH}"] = "0.7"
        print(mpscffi.get_per_process_memory_fraction())
        mpscffi.set_per_process_memory_fraction(0.8)
        print(mpscffi.get_per_process_memory_fraction())
    """
    result = python(script, **{HIGH: "0.5", "MPSCFFI_DEVICE": device.backend})
    # Set before the import it counts; so it does until the first use; then the function alone does.
    assert result.stdout.split() == ["0.6", "0.6", "0.8"], result.stderr
    setter = "mpscffi.set_per_process_memory_fraction"
    mps.set_per_process_memory_fraction(1e-12)
    with pytest.raises(MemoryError, match=rf"limit .*{setter}.*{HIGH}=0.0"):
        array(64)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({HIGH: "0.5"}, "0.5 0.5"),
        ({LOW: "1.0", HIGH: "0.7"}, f"ConfigError {LOW} 1.0 {HIGH} 0.7"),
        ({HIGH: "abc"}, f"ConfigError {HIGH} abc"),
        ({HIGH: ""}, "1.7 1.4"),
        ({HIGH: "-1"}, f"ConfigError {HIGH} -1"),
        ({HIGH: "nan"}, f"ConfigError {HIGH} nan"),
        ({HIGH: "inf"}, f"ConfigError {HIGH} inf"),
        ({HIGH: "0"}, "0.0 1.4"),
        ({HIGH: "0.0"}, "0.0 1.4"),
        ({HIGH: "2.1"}, f"ConfigError {HIGH} 2.1"),
        ({HIGH: " 0.5 "}, "0.5 0.5"),
        ({LOW: "0.3"}, "1.7 0.3"),
    ],
)
def test_a_high_ratio_alone(python: Any, device: mps.Device, variables: dict[str, str], expected: str) -> None:
    script = """
        import mpscffi
        try:
            mpscffi.empty(1)
            limits = mpscffi.memory_limits()
            print(limits.high_ratio, limits.low_ratio)
        except mpscffi.Error as error:
            print(type(error).__name__, error)
    """
    cleared = {HIGH: "", LOW: "", "MPSCFFI_DEVICE": device.backend}
    result = python(script, **{**cleared, **variables})
    if expected.startswith("ConfigError"):
        for fact in expected.split():
            assert fact in result.stdout, result.stdout + result.stderr
    else:
        assert result.stdout.strip() == expected, result.stderr


def test_what_the_user_sets_is_what_counts(python: Any, device: mps.Device) -> None:
    """The function goes before the variable, whichever came first; the default scales with the device."""
    assert mps.memory_limits().limit == int(1.7 * mps.recommended_max_memory())
    script = """
        import mpscffi
        mpscffi.set_per_process_memory_fraction(0.25)
        mpscffi.empty(1)
        print(mpscffi.memory_limits().limit == mpscffi.recommended_max_memory() // 4, mpscffi.get_cache_limit())
    """
    result = python(script, **{HIGH: "0.5", "MPSCFFI_DEVICE": device.backend})
    assert result.stdout.split() == ["True", "None"], result.stderr
    small = Allocator(SimulatedMemory(recommended=512 * MIB), 1.7, 1.4)
    assert (small.budget.limit, small.budget.low_limit) == (int(1.7 * 512 * MIB), int(1.4 * 512 * MIB))


def test_hundreds_of_thousands_of_small_arrays(device: mps.Device) -> None:
    """Small arrays are cut from heaps, so that no ceiling of buffers is met; the time for each stays flat."""
    count = 600_000 if device.backend == "host" else 18_000
    before = live_objects()
    current, stats = mps.current_allocated_memory(), mps.memory_stats()
    live, old_heaps = stats["allocation.small_pool.current"], stats["segment.all.current"]
    arrays = []
    spent = []
    for _ in range(6):
        start = time.thread_time()
        arrays += [mps.empty(4) for _ in range(count // 6)]
        spent.append(time.thread_time() - start)
    assert mps.current_allocated_memory() == current + count * 256
    stats = mps.memory_stats()
    assert stats["allocation.small_pool.current"] == live + count
    assert live_objects()["buffers"] - before["buffers"] <= 1.3 * count
    heaps = stats["segment.all.current"] - old_heaps
    assert heaps <= 1.3 * count * 256 // (8 * MIB) + 1
    assert live_objects()["heaps"] == before["heaps"] + heaps
    # No more than a factor that noise cannot reach.
    assert spent[-1] < 20 * spent[0] + 0.5
    arrays.clear()
    gc.collect()
    mps.empty_cache()
    assert live_objects() == before
    assert mps.memory_stats()["segment.all.current"] == old_heaps


def test_empty_cache_brings_memory_back(compiled: Any) -> None:
    kernel = compiled(SOURCE).fill
    kernel(mps.empty(10), 1.0)
    mps.synchronize()
    gc.collect()
    mps.empty_cache()
    baseline = mps.driver_allocated_memory()
    for _ in range(100):
        x, y = mps.empty(100_000), mps.empty(10_000)
        kernel(x, 1.0)
        kernel(y, 2.0)
        del x, y
        mps.empty_cache()  # at once: safe, whatever still runs
        mps.synchronize()
        mps.empty_cache()
        assert mps.driver_allocated_memory() == baseline
        assert mps.current_allocated_memory() == 0


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("fresh_threads", [False, True])
def test_nothing_is_left_of_many_operations(compiled: Any, fresh_threads: bool) -> None:
    kernel = compiled(SOURCE).fill
    x = mps.empty(16)

    def work(count: int) -> None:
        for step in range(count):
            kernel(x, 1.0)
            mps.empty(1000 + step % 50)
        mps.synchronize()

    def run(rounds: int) -> None:
        for _ in range(rounds):
            if fresh_threads:
                thread = threading.Thread(target=work, args=(1000,))
                thread.start()
                thread.join()
            else:
                work(1000)

    run(4)
    before = resident()
    run(20)
    # 2 KiB left of each would be 40 MB.
    assert resident() - before < 8 * MIB


def test_memory_of_the_hosts_has_to_be_aligned(device: mps.Device) -> None:
    page = device.page_size
    raw = np.zeros(3 * page + 64, np.uint8)
    start = -raw.ctypes.data % page
    assert mps.from_numpy(raw[start : start + page], copy=False).is_alias
    for wrong in (raw[start + 16 : start + 16 + page], raw[start : start + page - 16]):
        with pytest.raises(ValueError, match=f"{page}"):
            mps.from_numpy(wrong, copy=False)
        copied = mps.from_numpy(wrong, copy=True)
        assert not copied.is_alias
        assert (copied.numpy() == wrong).all()
