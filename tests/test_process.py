"""The life of a process: import, fork, signals, exit."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

PRELUDE = """
import gc, os, sys, threading, time
import numpy as np
import mpscffi

SOURCE = '''
#include <metal_stdlib>
using namespace metal;
kernel void add(device int* x, constant int& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void forever(device atomic_uint* open) {
  while (atomic_load_explicit(open, memory_order_relaxed) == 0) {}
}
'''

def hang():
    kernels = mpscffi.compile_shader(SOURCE)
    state = mpscffi.zeros(1, dtype=np.uint32)
    kernels.forever(state, threads=1)
    mpscffi.current_stream().commit()
    return kernels
"""


@pytest.fixture
def run(python: Any) -> Any:
    """Runs a script that begins with the prelude, on the host device."""
    import textwrap

    def start(script: str, *options: str, **keywords: Any) -> Any:
        return python(PRELUDE + textwrap.dedent(script), *options, **{"MPSCFFI_DEVICE": "host", **keywords})

    return start


def quiet(result: Any, code: int = 0) -> None:
    assert (result.returncode, result.stderr) == (code, "")


# ---- exit


EVERYTHING = """
    kernels = mpscffi.compile_shader(SOURCE)
    x = mpscffi.zeros(1000, dtype=np.int32)
    view, memory = x[3:], x[3:].numpy()
    stream, event = mpscffi.Stream(), mpscffi.Event(True)
    kernel = kernels.add
    with mpscffi.stream(stream):
        kernel(x, 1)
        event.record()
    cycle = [x, view, memory, stream, event, kernel, kernels]
    cycle.append(cycle)
    mpscffi.held = cycle
    sys.modules["mpscffi.array"].held = cycle
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("threading.Thread(target=sys.exit).start()", 0),
        ("del sys.modules['mpscffi']", 0),
        ("for name in [n for n in sys.modules if n.startswith('mpscffi')]: del sys.modules[name]", 0),
        ("gc.disable()", 0),
        ("hang()", 0),
        ("stream.add_callback(lambda: time.sleep(0.2))", 0),
        ("stream.add_callback(lambda: time.sleep(30)); time.sleep(0.1)", 0),
        ("[stream.add_callback(lambda: None) for _ in range(300)]", 0),
        ("hang(); mpscffi.current_stream().add_callback(print)", 0),
    ],
)
def test_exit_is_quiet(run: Any, ending: str, code: int) -> None:
    quiet(run(EVERYTHING + "\n    " + ending, "-X", "dev", "-W", "error", timeout=30), code)


def test_an_exception_is_the_only_thing_to_see(run: Any) -> None:
    result = run(EVERYTHING + "\n    raise KeyError('the end')", "-X", "dev")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "KeyError: 'the end'"
    assert "Exception ignored" not in result.stderr


def test_handlers_are_called_before_the_exit(run: Any) -> None:
    script = """
        kernels = mpscffi.compile_shader(SOURCE)
        stream, x = mpscffi.Stream(), mpscffi.zeros(100_000, dtype=np.int32)
        with mpscffi.stream(stream):
            kernels.add(x, 1)
            stream.add_completed_handler(lambda info: print("completed", info.failed, flush=True))
    """
    result = run(script)
    quiet(result)
    assert result.stdout.strip() == "completed False"


def test_sigterm_ends_the_process(run: Any) -> None:
    result = run("hang(); os.kill(os.getpid(), 15); time.sleep(10)")
    assert result.returncode == -signal.SIGTERM
    assert result.stderr == ""


def test_failed_constructors_leave_no_noise(run: Any) -> None:
    script = """
        failures = 0
        for make in (
            lambda: mpscffi.empty(-1), lambda: mpscffi.empty(1 << 60), lambda: mpscffi.empty(1, dtype="float64"),
            lambda: mpscffi.Event("x"), lambda: mpscffi.Stream(3), lambda: mpscffi.compile_shader("What"),
            lambda: mpscffi.load_metallib(b"x"), lambda: mpscffi.load_metallib("/nothing"),
            lambda: mpscffi.Device("x"), lambda: mpscffi.Device("host", 9), mpscffi.Array, lambda: mpscffi.full(1, "x"),
            lambda: mpscffi.compile_shader(SOURCE).nothing,
            lambda: mpscffi.compile_shader(SOURCE).add.specialize({"a": 1})(),
        ):
            try:
                make()
            except mpscffi.Error:
                failures += 1
            gc.collect()
        print(failures)
    """
    result = run(script, "-X", "dev", "-W", "error")
    quiet(result)
    assert result.stdout.strip() == "14"


# ---- fork


def test_a_forked_child_is_told_to_spawn(run: Any) -> None:
    script = """
        kernels = mpscffi.compile_shader(SOURCE)
        x = mpscffi.zeros(4, dtype=np.int32)
        kernels.add(x, 1)
        stream, event = mpscffi.Stream(), mpscffi.Event(True)
        event.record()
        entries = [
            lambda: mpscffi.empty(1), lambda: mpscffi.zeros(1), lambda: mpscffi.asarray([1]), lambda: x.numpy(),
            lambda: x[0], lambda: x.copy(), lambda: x.fill_(1), lambda: kernels.add(x, 1),
            lambda: mpscffi.compile_shader(SOURCE), lambda: mpscffi.load_metallib(b"MTLB"),
            lambda: mpscffi.Event(), event.record, event.query, event.synchronize, event.wait,
            lambda: event.elapsed_time(event), lambda: mpscffi.Stream(), stream.synchronize, stream.query,
            stream.commit, lambda: stream.add_callback(print), mpscffi.synchronize, mpscffi.current_stream,
            mpscffi.empty_cache, mpscffi.current_allocated_memory, mpscffi.driver_allocated_memory,
            mpscffi.recommended_max_memory, lambda: mpscffi.set_per_process_memory_fraction(0.5),
            mpscffi.get_name, mpscffi.current_device, mpscffi.devices,
        ]
        child = os.fork()
        if child == 0:
            for number, entry in enumerate(entries):
                try:
                    entry()
                except mpscffi.errors.ForkedError as error:
                    if "spawn" not in str(error):
                        print(number, error)
                except BaseException as error:
                    print(number, type(error), error)
                else:
                    print(number, "went through")
            print(mpscffi.is_available(), mpscffi.device_count(), flush=True)
            del x, stream, event, kernels, entries
            gc.collect()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        kernels.add(x, 1)
        print(os.waitstatus_to_exitcode(status), x.tolist())
    """
    result = run(script, timeout=30)
    quiet(result)
    assert result.stdout.splitlines() == ["False 0", "7 [2, 2, 2, 2]"]


def test_a_fork_before_the_first_use(run: Any) -> None:
    script = """
        child = os.fork()
        x = mpscffi.ones(4, dtype=np.int32)
        mpscffi.compile_shader(SOURCE).add(x, 1)
        print(x.tolist(), flush=True)
        if child:
            os.waitpid(child, 0)
    """
    result = run(script)
    quiet(result)
    assert result.stdout.replace("\n", "") == "[2, 2, 2, 2]" * 2  # lines of the two may come together


def test_a_child_that_does_not_use_the_device(run: Any) -> None:
    script = """
        import multiprocessing
        kernels = mpscffi.compile_shader(SOURCE)
        x = mpscffi.zeros(4, dtype=np.int32)
        kernels.add(x, 1)
        y = mpscffi.Stream()
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
            print(x.tolist())
    """
    result = run(script, timeout=30)
    quiet(result)
    assert result.stdout.split("\n")[:2] == ["[1, 2]", "[1, 1, 1, 1]"]


def test_spawned_workers(python: Any, tmp_path: Any) -> None:
    (tmp_path / "worker.py").write_text("import mpscffi\n\ndef work(n):\n    return mpscffi.full(3, n).tolist()\n")
    script = f"""
        import multiprocessing, sys
        sys.path.insert(0, {str(tmp_path)!r})
        import worker
        print(worker.work(1))
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print(pool.map(worker.work, [2, 3]))
    """
    result = python(script, timeout=60)
    assert result.stdout.splitlines() == ["[1.0, 1.0, 1.0]", "[[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]"], result.stderr


# ---- signals


@pytest.mark.parametrize(
    "wait", ["mpscffi.synchronize()", "event.synchronize()", "state.numpy()", "x.copy_from(state)"]
)
def test_ctrl_c_ends_a_wait(run: Any, wait: str) -> None:
    script = f"""
        kernels = mpscffi.compile_shader(SOURCE)
        state, x = mpscffi.zeros(1, dtype=np.uint32), mpscffi.zeros(1, dtype=np.uint32)
        kernels.forever(state, threads=1)
        event = mpscffi.Event()
        event.record()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), 2)).start()
        begin = time.monotonic()
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 5)
    """
    result = run(script, timeout=30)
    quiet(result)
    assert result.stdout.strip() == "interrupted True"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_a_compile(run: Any, tmp_path: Any) -> None:
    compiler = tmp_path / "clang"
    compiler.write_text("#!/bin/sh\nsleep 47\n")
    compiler.chmod(0o755)
    script = """
        threading.Timer(0.5, lambda: os.kill(os.getpid(), 2)).start()
        begin = time.monotonic()
        try:
            mpscffi.compile_shader(SOURCE)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 10)
        print(os.popen("pgrep -f 'sleep 4[7]'").read().split(), mpscffi.ones(1).tolist())
    """
    result = run(script, MPSCFFI_CXX=str(compiler), MPSCFFI_CACHE_DIR=str(tmp_path / "cache"), timeout=60)
    quiet(result)
    assert result.stdout.splitlines() == ["interrupted True", "[] [1.0]"]


# ---- import


@pytest.mark.parametrize(
    "environment",
    [{"PATH": ""}, {"HOME": "/nowhere", "XDG_CACHE_HOME": ""}, {"LC_ALL": "de_DE.UTF-8"}, {"PYTHONHASHSEED": "1"}],
)
def test_the_import_needs_nothing(python: Any, environment: dict[str, str]) -> None:
    script = "import mpscffi; print(mpscffi.ones(2).tolist(), mpscffi.is_available() == (mpscffi.device_count() > 0))"
    result = python(script, "-W", "error", **environment)
    quiet(result)
    assert result.stdout.strip() == "[1.0, 1.0] True"


def test_without_docstrings(run: Any) -> None:
    result = run(
        "x = mpscffi.ones(2, dtype=np.int32); mpscffi.compile_shader(SOURCE).add(x, 1); print(x.tolist())", "-OO"
    )
    quiet(result)
    assert result.stdout.strip() == "[2, 2]"


def test_a_compile_without_a_compiler(run: Any) -> None:
    script = """
        try:
            mpscffi.compile_shader(SOURCE)
        except mpscffi.errors.UnavailableError as error:
            print(error)
        print(mpscffi.ones(2).tolist())
    """
    result = run(script, MPSCFFI_CXX="/nowhere/clang", MPSCFFI_CACHE_DIR="/nowhere")
    assert "/nowhere/clang" in result.stdout, result.stderr
    assert result.stdout.splitlines()[-1] == "[1.0, 1.0]"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_few_open_files_are_enough(run: Any) -> None:
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for i in range(80):
            library = mpscffi.compile_shader(f"kernel void f(device int* x) {{ x[0] = {i % 4}; }}")
            x = mpscffi.zeros(1, dtype=np.int32)
            library.f(x, threads=1)
            assert x.item() == i % 4
            event, stream = mpscffi.Event(), mpscffi.Stream()
            event.record(stream)
            stream.synchronize()
        print(len(os.listdir("/proc/self/fd")) < 20)
    """
    result = run(script)
    quiet(result)
    assert result.stdout.strip() == "True"
