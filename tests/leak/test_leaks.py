"""Everything that is made is released: counts of the C library's objects, open files, memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi.report import live_objects

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void fault(device ulong* at) { *(device int*)(at[0]) = 1; }
"""


@pytest.fixture
def kernels(compiled: Any) -> Any:
    library = compiled(SOURCE)
    library.add(mpscffi.zeros(1, dtype=np.int32), 1)
    return library


def settle() -> dict[str, int]:
    """Let go of what nobody holds and return what is left."""
    gc.collect()
    mpscffi.synchronize()
    mpscffi.empty_cache()
    gc.collect()
    return live_objects()


def arrays(kernels: Any) -> None:
    x = mpscffi.asarray(np.arange(100, dtype=np.int32))
    view, memory = x[3:].reshape(-1, 1), x.numpy()
    kernels.add(x, 1)
    copy = mpscffi.empty(97, 1, dtype=np.int32).copy_from(view, non_blocking=True)
    assert copy.numpy()[0, 0] == memory[3]
    cycle = [x, view, memory, copy]
    cycle.append(cycle)  # type: ignore[arg-type]


def aliases(kernels: Any) -> None:
    raw = np.zeros(3 * 16384, np.uint8)
    start = -raw.ctypes.data % 16384
    x = mpscffi.from_numpy(raw[start : start + 16384].view(np.int32), copy=False)
    kernels.add(x, 1)
    kernels.add(x[1:], 1)


def streams(kernels: Any) -> None:
    stream, other = mpscffi.Stream(), mpscffi.Stream()
    x = mpscffi.zeros(10_000, dtype=np.int32)
    with mpscffi.stream(stream):
        kernels.add(x, 1)
        stream.add_callback(lambda: stream)
        stream.add_completed_handler(lambda info: None)
    other.wait_stream(stream)
    with mpscffi.stream(other):
        kernels.add(x, 1)
    other.synchronize()


def events(kernels: Any) -> None:
    start, end = mpscffi.Event(True), mpscffi.Event(True)
    start.record()
    kernels.add(mpscffi.zeros(10, dtype=np.int32), 1)
    end.record()
    assert start.elapsed_time(end) >= 0
    mpscffi.Event().record(mpscffi.Stream())


def libraries(kernels: Any) -> None:
    library = mpscffi.compile_shader(SOURCE)
    x = mpscffi.zeros(10, dtype=np.int32)
    library.add(x, 1)
    library.add.specialize({})(x, 1)
    lonely = library.add
    del library
    lonely(x, 1)
    assert x.tolist() == [3] * 10


def refusals(kernels: Any) -> None:
    x = mpscffi.zeros(10, dtype=np.int32)
    for wrong in (
        lambda: kernels.add(x, 0.5),
        lambda: kernels.add(x),
        lambda: kernels.add(x[::2], 1),
        lambda: kernels.add(x, 1, group_size=2000),
        lambda: mpscffi.compile_shader("What"),
        lambda: mpscffi.load_metallib(b"nothing"),
        lambda: mpscffi.Event("x"),  # type: ignore[arg-type]
        lambda: mpscffi.empty(1 << 60),
        lambda: kernels.nothing,
    ):
        with pytest.raises(mpscffi.Error):
            wrong()


def faults(kernels: Any) -> None:
    if mpscffi.current_device().backend == "host":
        kernels.fault(mpscffi.asarray(np.array([16], np.uint64)), threads=1)
        with pytest.raises(mpscffi.errors.ExecutionError):
            mpscffi.synchronize()


def threads(kernels: Any) -> None:
    started = [threading.Thread(target=arrays, args=(kernels,)) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


@pytest.mark.parametrize("use", [arrays, aliases, streams, events, libraries, refusals, faults, threads])
def test_every_object_is_released(kernels: Any, use: Callable[[Any], None]) -> None:
    use(kernels)
    before = settle()
    assert before["pending_commands"] == 0
    for _ in range(5):
        use(kernels)
    assert settle() == before
    assert mpscffi.current_allocated_memory() == 0


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.linux_only("reads /proc")
@pytest.mark.parametrize(
    ("use", "count"),
    [
        (lambda kernels, x: kernels.add(x, 1), 20_000),
        (lambda kernels, x: mpscffi.empty(1000), 20_000),
        (lambda kernels, x: mpscffi.empty(1000).numpy(), 20_000),
        (lambda kernels, x: mpscffi.Event().record(), 5000),
        (lambda kernels, x: arrays(kernels), 500),
        (lambda kernels, x: mpscffi.compile_shader(SOURCE).add(x, 1), 100),
    ],
    ids=["dispatch", "empty", "numpy", "event", "arrays", "compile"],
)
def test_memory_does_not_grow(kernels: Any, use: Callable[[Any, Any], Any], count: int) -> None:
    x = mpscffi.zeros(10, dtype=np.int32)
    for _ in range(count // 4):
        use(kernels, x)
    growths = []
    # A leak of 64 bytes each time would show in every round, what an allocator keeps does not.
    for _ in range(4):
        settle()
        before = resident()
        for _ in range(count):
            use(kernels, x)
        settle()
        growths.append(resident() - before)
        if growths[-1] < max(64 * count, 1 << 20):
            return
    pytest.fail(f"the process grew by {growths} bytes in rounds of {count}")


@pytest.mark.linux_only("reads /proc")
def test_kernel_libraries_are_unloaded(kernels: Any) -> None:
    def loaded() -> tuple[int, int]:
        with open("/proc/self/maps") as file:
            return sum("kernel" in line or ".so" in line for line in file), len(os.listdir("/proc/self/fd"))

    settle()
    before = loaded()
    for i in range(8):
        library = mpscffi.compile_shader(f"kernel void f(device int* x) {{ x[0] = {i}; }}")
        library.f(mpscffi.zeros(1, dtype=np.int32), threads=1)
    del library
    settle()
    assert loaded() == before
