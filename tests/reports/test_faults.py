"""Faults of kernels, of start and of exit that must be exceptions, never the end of the process. One test a fault."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest

import mpscffi as mps
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device")

Compile = Callable[[str], mps.ShaderLibrary]
Run = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = """
kernel void wild(device float *x, constant ulong &at, uint i [[thread_position_in_grid]]) {
  *(device float *)(at + i * 4) = 1;
}
kernel void far(device float *x, constant long &at) { x[at] = 1; }
kernel void null_loop(device float *x, constant uint &n) {
  device float *p = (device float *)0;
  float sum = 0;
  for (uint i = 0; i < n; i++) { sum += p[i]; }
  x[0] = sum;
}
kernel void divide(device int *x, constant int &by, uint i [[thread_position_in_grid]]) { x[i] = 100 / by; }
kernel void deep(device float *x, constant uint &n) {
  float big[16384];
  for (uint k = 0; k < n; k++) { for (uint i = 0; i < 16384; i++) { big[i] = x[0] + i * k; } x[1] += big[k]; }
}
kernel void fine(device float *x, uint i [[thread_position_in_grid]]) { x[i] = 5; }
kernel void forever(device volatile uint *x) { while (x[0] == 0) { x[1] += 1; } }
"""


@pytest.fixture
def library(compiled: Compile, device: mps.Device, reports_faults: None) -> mps.ShaderLibrary:
    return compiled(SOURCE)


def works(library: mps.ShaderLibrary) -> bool:
    x = mps.zeros(4)
    library.fine(x)
    return x.tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("at", [0, 16, 1 << 40])
@pytest.mark.parametrize("threads", [1, 100_000])
def test_wild_write_is_an_exception_at_the_next_wait(library: mps.ShaderLibrary, at: int, threads: int) -> None:
    x = mps.zeros(1)
    library.wild(x, at, threads=threads)
    with pytest.raises(errors.ExecutionError, match="wild"):
        mps.synchronize()
    mps.synchronize()  # reported once
    assert works(library)


@pytest.mark.parametrize("at", [1 << 40, -(1 << 40)])
def test_write_far_outside_is_an_exception(library: mps.ShaderLibrary, at: int) -> None:
    library.far(mps.zeros(1), at, threads=1)
    with pytest.raises(errors.ExecutionError, match="far"):
        mps.synchronize()
    assert works(library)


def test_loop_over_a_null_buffer_is_an_exception(library: mps.ShaderLibrary) -> None:
    library.null_loop(mps.zeros(1), 1000, threads=1)
    with pytest.raises(errors.ExecutionError, match="null_loop"):
        mps.synchronize()
    assert works(library)


def test_division_by_zero_is_an_exception(library: mps.ShaderLibrary) -> None:
    x = mps.zeros(4, dtype=np.int32)
    library.divide(x, 0)
    with pytest.raises(errors.ExecutionError, match="divide"):
        mps.synchronize()
    library.divide(x, 5)
    assert x.tolist() == [20, 20, 20, 20]


def test_other_streams_go_on_after_a_fault(library: mps.ShaderLibrary) -> None:
    other = mps.Stream()
    library.wild(mps.zeros(1), 0, threads=1)
    with mps.stream(other):
        x = mps.empty(4)
        library.fine(x)
        other.synchronize()
    assert x.tolist() == [5, 5, 5, 5]
    with pytest.raises(errors.ExecutionError, match="wild"):
        mps.synchronize()


@pytest.mark.parametrize("look", ["numpy", "item", "tolist", "dlpack", "event", "copy", "stream"])
def test_no_way_of_looking_gives_stale_bytes(library: mps.ShaderLibrary, look: str) -> None:
    x = mps.zeros(1)
    library.far(x, 1 << 40, threads=1)
    event = mps.Event()
    event.record()
    ways: dict[str, Callable[[], object]] = {
        "numpy": x.numpy,
        "item": x.item,
        "tolist": x.tolist,
        "dlpack": lambda: np.from_dlpack(x),
        "event": event.synchronize,
        "copy": x.copy,
        "stream": mps.current_stream().synchronize,
    }
    with pytest.raises(errors.ExecutionError, match="far"):
        ways[look]()
    mps.synchronize()
    assert works(library)


def test_large_private_arrays_work(library: mps.ShaderLibrary) -> None:
    x = mps.full(2, 1.0)
    library.deep(x, 3, threads=1)
    assert x[1].item() == 1 + (1 + 0) + (1 + 1 * 1) + (1 + 2 * 2)


def test_endless_kernel_can_be_left_behind(python: Run) -> None:
    begin = time.monotonic()
    finished = python(
        """
        import mpscffi as mps
        library = mps.compile_shader('''
        kernel void forever(device volatile uint *x) { while (x[0] == 0) { x[1] += 1; } }
        kernel void fine(device float *x, uint i [[thread_position_in_grid]]) { x[i] = 5; }
        ''')
        hung = mps.Stream()
        with mps.stream(hung):
            library.forever(mps.zeros(2, dtype='u4'), threads=1)
        for _ in range(2):
            try:
                hung.synchronize(timeout=0.2)
            except TimeoutError as error:
                print('timeout')
        x = mps.zeros(300000)
        library.fine(x)
        print((x.numpy() == 5).all())
        """
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["timeout", "timeout", "True"]
    assert finished.stderr == ""
    assert time.monotonic() - begin < 30


def test_import_works_without_compiler_home_or_temporary_directory(python: Run) -> None:
    finished = python(
        "import mpscffi; print(mpscffi.is_available(), mpscffi.device_count()); print(mpscffi.why_unavailable())",
        PATH="/nonexistent",
        HOME="/nonexistent",
        TMPDIR="/nonexistent",
        MPSCFFI_CXX="",
    )
    assert finished.returncode == 0, finished.stderr
    available, reason = finished.stdout.split("\n")[:2]
    assert available in ("False 0", "True 1") and (available == "True 1" or reason)


EXITS = {
    "end": "",
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "thread": "import threading; threading.Thread(target=lambda: mps.synchronize()).start()",
}


@pytest.mark.parametrize("way", EXITS)
def test_exit_is_silent_with_everything_alive(python: Run, way: str) -> None:
    finished = python(
        f"""
        import mpscffi as mps
        library = mps.compile_shader('''
        kernel void slow(device float *x, constant uint &n, uint i [[thread_position_in_grid]]) {{
          for (uint k = 0; k < n; k++) {{ x[i] = x[i] * 0.5f + 1; }}
        }}''')
        x = mps.zeros(1000000)
        view, alias, event, stream = x[3:], x.numpy(), mps.Event(enable_timing=True), mps.Stream()
        event.record()
        stream.add_callback(lambda: None)
        library.slow(x, 1000)
        {EXITS[way]}
        """,
        "-X",
        "dev",
        "-W",
        "error",
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


@pytest.mark.usefixtures("reports_faults")
def test_failure_that_nobody_waited_for_is_told_at_exit(python: Run, device: mps.Device) -> None:
    finished = python(
        """
        import mpscffi as mps
        kernel = mps.compile_shader('kernel void wild(constant ulong &at) { *(device float *)at = 1; }').wild
        kernel(16, threads=1)
        """
    )
    assert finished.returncode == 0
    assert finished.stderr.count("\n") == 1
    assert "wild" in finished.stderr and "without waiting" in finished.stderr


def test_timeout_tells_the_time_that_was_given(python: Run) -> None:
    finished = python(
        """
        import mpscffi as mps
        source = 'kernel void forever(device volatile uint *x) { while (x[0] == 0) { x[1] += 1; } }'
        mps.compile_shader(source).forever(mps.zeros(2, dtype='u4'), threads=1)
        event = mps.Event()
        event.record()
        for wait in (mps.synchronize, mps.current_stream().synchronize, event.synchronize):
            try:
                wait(timeout=0.125)
            except TimeoutError as error:
                print(error)
        """
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("after 0.125 seconds") == 3


def test_exit_code_of_an_unhandled_exception_is_kept(python: Run) -> None:
    finished = python("import mpscffi as mps; x = mps.zeros(10); raise SystemExit(7)")
    assert (finished.returncode, finished.stderr) == (7, "")


def test_failed_constructors_raise_once_and_leave_no_noise(python: Run) -> None:
    finished = python(
        """
        import gc
        import mpscffi as mps
        for make in (
            lambda: mps.empty(-1),
            lambda: mps.compile_shader('nonsense'),
            lambda: mps.load_metallib(b'nonsense'),
            lambda: mps.Event('yes'),
            lambda: mps.Device('nothing'),
        ):
            try:
                make()
            except Exception:
                pass
            else:
                raise SystemExit('did not raise')
            gc.collect()
        kept = [mps.zeros(3), mps.Event(), mps.Stream(), mps.compile_shader('kernel void k(device float *x) {}').k]
        """,
        "-X",
        "dev",
        "-W",
        "error",
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_library_outlives_its_objects(python: Run) -> None:
    finished = python(
        """
        import sys
        import mpscffi as mps
        class Node: pass
        node = Node()
        node.self, node.array, node.event, node.module = node, mps.zeros(3), mps.Event(), mps
        node.view = node.array.numpy()
        for name in [name for name in sys.modules if name.startswith('mpscffi')]:
            del sys.modules[name]
        import mpscffi as again
        again.zeros(3)
        """
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_objects_may_die_anywhere(python: Run) -> None:
    finished = python(
        """
        import gc, signal, threading, weakref
        import mpscffi as mps
        box = [mps.zeros(1000) for _ in range(100)]
        thread = threading.Thread(target=box.clear)
        thread.start(); thread.join()
        class Holder: pass
        holder, inner = Holder(), [mps.zeros(1000), mps.Event()]
        weakref.finalize(holder, inner.clear)
        del holder
        signal.signal(signal.SIGALRM, lambda *_: box.clear())
        box.extend(mps.zeros(1000) for _ in range(100))
        signal.raise_signal(signal.SIGALRM)
        gc.set_threshold(1)
        for _ in range(300):
            cycle = [mps.zeros(100)]
            cycle.append(cycle)
        del cycle
        gc.collect()
        mps.synchronize(); mps.empty_cache()
        print(mps.current_allocated_memory())
        """
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "0"
