"""The life of a process: import, fork, signals, exit."""

from __future__ import annotations

import signal
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
def run(python: Any, on_standin: bool) -> Any:
    """Runs a script that begins with the prelude: on the stand-in's device, else on the host's.

    A GPU is not asked: some of the scripts leave kernels behind that never end.
    """
    import textwrap

    backend = "metal" if on_standin else "host"

    def start(script: str, *options: str, **keywords: Any) -> Any:
        return python(PRELUDE + textwrap.dedent(script), *options, **{"MPSCFFI_DEVICE": backend, **keywords})

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


#: Public names that need no device: types, modules, what is known without one, and the state of generators.
NEEDS_NO_DEVICE = {
    "Array", "BitGenerator", "CommandInfo", "Error", "Generator", "Graph", "GraphNode", "Kernel", "ShaderLibrary",
    "ShaderMessage", "build_config", "default_generator", "device_count", "diagnostics", "errors", "get_include",
    "get_library", "get_rng_state", "initial_seed", "is_available", "manual_seed", "profiler", "random", "replay",
    "seed", "set_rng_state", "set_shader_log", "set_stream", "shader_cache", "stream", "stream_priority_range",
    "why_unavailable",
}  # fmt: skip


def test_every_public_function_tells_a_forked_child_to_spawn(run: Any) -> None:
    script = f"""
        import asyncio
        kernels = mpscffi.compile_shader(SOURCE)
        x, y = mpscffi.zeros(4, dtype=np.int32), mpscffi.rand(4, 4)
        kernels.add(x, 1)
        stream, event = mpscffi.Stream(), mpscffi.Event(True)
        event.record()
        event.synchronize()
        with mpscffi.record() as graph:
            kernels.add(x, 0)
        arguments = {{
            "Device": ("host",), "add_allocation_failure_callback": (print,), "asarray": ([1],), "bernoulli": (0.5, 3),
            "compile_shader": (SOURCE,), "empty": (1,), "exponential": (3,), "fill_bernoulli": (x,),
            "fill_exponential": (y,), "fill_normal": (y,), "fill_poisson": (x,), "fill_randint": (x, 5),
            "fill_uniform": (y,),
            "from_dlpack": (np.zeros(3, "f4"),), "from_file": (sys.executable,),
            "from_native": (1 << 20, 4), "from_numpy": (np.zeros(3, "f4"),),
            "from_pointer": (1 << 20, (4,), "f4"), "full": (3, 1), "load_metallib": (b"MTLB",), "matmul": (y, y),
            "ones": (1,), "permutation": (3,), "poisson": (3.0, 2), "rand": (3,), "randint": (3, (2,)), "randn": (3,),
            "remove_allocation_failure_callback": (print,), "save_memory_snapshot": ("snapshot.html",),
            "set_cache_limit": (None,), "set_device": ("host",), "set_low_watermark_ratio": (1.0,),
            "set_per_process_memory_fraction": (0.5,), "zeros": (1,),
        }}
        names = [name for name in mpscffi.__all__ if name not in {sorted(NEEDS_NO_DEVICE)}]
        entries = {{name: (getattr(mpscffi, name), arguments.get(name, ())) for name in names}}
        for one, methods in (
            (x, "numpy copy tolist item to_host view reshape __getitem__ __setitem__ copy_from fill_ __dlpack__"),
            (stream, "synchronize query commit record_event add_callback add_scheduled_handler add_completed_handler"),
            (event, "record wait query synchronize signal timestamp"),
            (graph, "replay"),
        ):
            values = {{"__getitem__": (0,), "__setitem__": (0, 1), "copy_from": (x,), "fill_": (1,), "view": ("f4",),
                      "reshape": (2, 2), "add_callback": (print,), "add_scheduled_handler": (print,),
                      "add_completed_handler": (print,)}}
            for name in methods.split():
                entries[type(one).__name__ + "." + name] = (getattr(one, name), values.get(name, ()))
        entries["a kernel"] = (kernels.add, (x, 1))
        entries["an update"] = (graph[0].set, ({{"n": 2}},))
        entries["stream.wait_event"] = (stream.wait_event, (event,))
        entries["stream.wait_stream"] = (stream.wait_stream, (mpscffi.default_stream(),))
        entries["event.elapsed_time"] = (event.elapsed_time, (event,))
        entries["event.value"] = (lambda: event.value, ())
        entries["await event"] = (lambda: asyncio.run(event.reached()), ())

        child = os.fork()
        if child == 0:
            for name, (function, given) in entries.items():
                try:
                    function(*given)
                except mpscffi.errors.ForkedError as error:
                    if "spawn" not in str(error):
                        print(name, error)
                except BaseException as error:
                    print(name, type(error), error)
                else:
                    print(name, "went through")
            print("done", flush=True)
            os._exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), len(entries) > 80)
    """
    result = run(script, timeout=60)
    quiet(result)
    assert result.stdout.splitlines() == ["done", "7 True"]


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


#: Everything that waits for work, or may: each is interrupted in turn.
WAITS = """
    "synchronize with a timeout": lambda: mpscffi.synchronize(timeout=60),
    "the stream's synchronize": lambda: mpscffi.default_stream().synchronize(),
    "an event's, with a timeout": lambda: first.synchronize(timeout=60),
    "elapsed_time": lambda: first.elapsed_time(second),
    "timestamp": lambda: second.timestamp(),
    "asarray": lambda: np.asarray(state),
    "item": state.item,
    "tolist": state.tolist,
    "to_host": state.to_host,
    "print": lambda: str(state),
    "from_dlpack": lambda: np.from_dlpack(state),
    "item assignment": lambda: state.__setitem__(0, 5),
    "deepcopy": lambda: copy.deepcopy(state),
    "pickle": lambda: pickle.dumps(state),
    "permutation": lambda: mpscffi.permutation(1000),
    "probabilities": lambda: mpscffi.bernoulli(state.view("float32")),
    "memory that is scarce": scarce,
    "a capture": lambda: mpscffi.profiler.metal_capture(tempfile.mkdtemp() + "/a.gputrace").__enter__(),
    "a profile": profile.records,
    "await": lambda: asyncio.run(mpscffi.default_stream().synchronize_async()),
"""


def test_ctrl_c_ends_every_wait(run: Any) -> None:
    script = (
        """
        import asyncio, copy, pickle, tempfile
        mpscffi.permutation(1000)  # whose kernel is compiled now
        kernels = mpscffi.compile_shader(SOURCE)
        state = mpscffi.zeros(1, dtype=np.uint32)
        memory = state.numpy()
        first, second = mpscffi.Event(True), mpscffi.Event(True)
        kernels.forever(state, threads=1)
        first.record()
        second.record()
        with mpscffi.profiler.profile() as profile:
            pass

        def scarce():
            used, recommended = mpscffi.driver_allocated_memory(), mpscffi.recommended_max_memory()
            mpscffi.set_per_process_memory_fraction((used + 1000) / recommended)
            try:
                return mpscffi.empty(1 << 26)
            finally:
                mpscffi.set_per_process_memory_fraction(1.7)

        waits = {WAITS}
        for name, wait in waits.items():
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), 2))
            begin = time.monotonic()
            try:
                timer.start()
                wait()
                print(name, "came back")
            except KeyboardInterrupt:
                if time.monotonic() - begin > 5:
                    print(name, "took long")
            except BaseException as error:
                print(name, type(error), error)
            timer.join()
        memory[0] = 1
        mpscffi.synchronize()
        print(mpscffi.profiler.is_capturing_metal(), mpscffi.empty(10).size, len(waits))
        """
    ).replace("{WAITS}", "{" + WAITS.replace("\n    ", "\n            ") + "        }")
    result = run(script, timeout=60)
    quiet(result)
    assert result.stdout.split() == ["False", "10", "20"]


@pytest.mark.linux_only("reads /proc")
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
    result = run(script, MPSCFFI_CXX="/nowhere/clang", MPSCFFI_CACHE_DIR="/nowhere", MPSCFFI_DEVICE="host")
    assert "/nowhere/clang" in result.stdout, result.stderr
    assert result.stdout.splitlines()[-1] == "[1.0, 1.0]"


@pytest.mark.linux_only("reads /proc")
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


def test_a_sub_interpreter_is_refused(run: Any) -> None:
    script = """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        one = interpreters.create()
        code = "try:\\n import mpscffi\\nexcept ImportError as error:\\n print(error, flush=True)"
        (interpreters.exec if hasattr(interpreters, "exec") else interpreters.run_string)(one, code)
        interpreters.destroy(one)
        print(mpscffi.ones(1).tolist())
    """
    result = run(script)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "main interpreter only" in lines[0]
    assert lines[1] == "[1.0]"


def test_the_package_is_imported_anew(run: Any) -> None:
    script = """
        def work():
            import mpscffi
            x, stream, event = mpscffi.zeros(4, dtype=np.int32), mpscffi.Stream(), mpscffi.Event()
            with mpscffi.stream(stream):
                mpscffi.compile_shader(SOURCE).add(x, 1)
                event.record()
            seen = []
            stream.add_callback(lambda: seen.append(1))
            stream.synchronize()
            return x.tolist(), seen
        results = [work()]
        for _ in range(3):
            for name in [n for n in sys.modules if n.startswith("mpscffi") and n != "mpscffi._shim"]:
                del sys.modules[name]
            results.append(work())
        print(results == [([1] * 4, [1])] * 4)
    """
    result = run(script, "-X", "dev")
    quiet(result)
    assert result.stdout.strip() == "True"


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_tasks_that_wait_at_the_exit(run: Any, ending: str) -> None:
    script = f"""
        import asyncio
        hang()
        event, other = mpscffi.Event(), mpscffi.Event()
        event.record()
        async def main():
            tasks = [asyncio.ensure_future(event.reached()), asyncio.ensure_future(other.reached(5))]
            await asyncio.sleep(0.05)
            {ending or "pass"}
        begin = time.monotonic()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
        finally:
            print(time.monotonic() - begin < 10, flush=True)
    """
    result = run(script, timeout=30)
    quiet(result, 3 if "exit" in ending else 0)
    assert result.stdout.splitlines()[-1] == "True"


def test_ctrl_c_ends_an_await(run: Any) -> None:
    script = """
        import asyncio
        hang()
        event = mpscffi.Event()
        event.record()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), 2)).start()
        begin = time.monotonic()
        try:
            asyncio.run(event.reached())
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 5)
    """
    result = run(script, timeout=30)
    quiet(result)
    assert result.stdout.strip() == "interrupted True"


def test_a_graph_at_the_exit(run: Any) -> None:
    script = """
        kernels = mpscffi.compile_shader(SOURCE)
        x = mpscffi.zeros(100_000, dtype=np.int32)
        with mpscffi.record() as graph:
            for _ in range(100):
                kernels.add(x, 1)
        graph.replay()
        mpscffi.held = [graph, graph[0], mpscffi.record().__enter__()]
    """
    quiet(run(script, "-X", "dev", "-W", "error"))
