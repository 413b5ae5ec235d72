"""Questions that only a Mac can answer: ``python tests/first_mac_run.py``, with mpscffi installed.

Each question runs in a process of its own, once as it is and once under Metal's API validation, so that a crash, a hang
or an assertion is an answer too. The report is printed, and written to ``mpscffi-first-mac-run.txt``; nothing else is
changed.
See "What only a Mac can tell" in docs/metal-backend.md.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPORT = Path("mpscffi-first-mac-run.txt")
SECONDS_EACH = 120

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant int wanted [[function_constant(0)]];
kernel void add(device uint* y, constant uint& x, uint i [[thread_position_in_grid]]) { y[i] += x; }
kernel void fault(device const ulong* address) { *(device uint*)(address[0]) = 1; }
kernel void constants(device int* out) { out[0] = wanted; }
"""

Answers = Iterator[str]
QUESTIONS: dict[str, Callable[[], Answers]] = {}


def question(text: str) -> Callable[[Callable[[], Answers]], Callable[[], Answers]]:
    """Register a question: a function that yields what it sees, and raises if that is wrong."""

    def register(function: Callable[[], Answers]) -> Callable[[], Answers]:
        QUESTIONS[text] = function
        return function

    return register


def _library() -> Any:
    import mpscffi

    return mpscffi.compile_shader(SOURCE)


def _raw(length: int, storage: int = 0, heap: Any = None) -> Any:
    """Make a buffer by the C interface; storage 2 is private."""
    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": length})
    desc.storage_mode = storage
    out = ffi.new("mps_buffer **")
    if heap is None:
        check(lib.mps_buffer_create(mpscffi.current_device()._pointer, desc, out))
    else:
        check(lib.mps_buffer_create_in_heap(heap, desc, 0, out))
    return out[0]


def _bytes(buffer: Any, length: int) -> Any:
    from mpscffi._ffi import check, ffi, lib

    out = ffi.new("void **")
    check(lib.mps_buffer_contents(buffer, out))
    return ffi.buffer(out[0], length)


@question("What is this GPU?")
def _device() -> Answers:
    import mpscffi

    device = mpscffi.current_device()
    assert device.backend == "metal", device.backend
    yield f"{device.name}, {mpscffi.get_core_count()} cores, {mpscffi.recommended_max_memory() >> 20} MiB recommended"
    yield mpscffi.diagnostics()


@question("Does a kernel give the right numbers, with values and function constants?")
def _numbers() -> Answers:
    import numpy as np

    import mpscffi

    library = _library()
    x = mpscffi.zeros(1000, dtype=np.uint32)
    for i in range(300):
        library.add(x, i)
    assert (x.numpy() == 299 * 300 // 2).all(), x.numpy()
    yield "300 dispatches of one encoder run in order"
    constant = library.constants.specialize({"wanted": 7})
    value = mpscffi.zeros(1, dtype=np.int32)
    constant(value, threads=1)
    assert value.item() == 7
    try:
        library.constants(value, threads=1)
    except mpscffi.errors.InvalidArgumentError as error:
        yield f"a constant without a value: {error}"
    else:
        raise AssertionError("a constant without a value is no error")


@question("Are new buffers filled with zeros, private ones too?")
def _zeros() -> Answers:
    import mpscffi
    from mpscffi._ffi import check, lib

    queue = mpscffi.current_stream()._pointer
    for round_ in range(8):
        for length in (4, 4096, 16384, 1 << 22):
            shared, private, copy = _raw(length), _raw(length, 2), _raw(length)
            check(lib.mps_queue_copy(queue, private, 0, copy, 0, length))
            check(lib.mps_queue_wait(queue, 10**10))
            assert bytes(_bytes(shared, length)).count(0) == length, f"shared, {length} bytes, round {round_}"
            assert bytes(_bytes(copy, length)).count(0) == length, f"private, {length} bytes, round {round_}"
            check(lib.mps_queue_fill(queue, private, 0, length, 255))
            check(lib.mps_queue_fill(queue, shared, 0, length, 255))
            check(lib.mps_queue_wait(queue, 10**10))
            for buffer in (shared, private, copy):
                lib.mps_buffer_release(buffer)
    yield "yes, also when memory is used again"


@question("Are copies and fills of odd bytes right?")
def _odd() -> Answers:
    import mpscffi
    from mpscffi._ffi import check, lib

    queue = mpscffi.current_stream()._pointer
    a, b = _raw(1000), _raw(1000)
    expected_a, expected_b = bytearray(1000), bytearray(1000)
    for i in range(200):
        offset, length, value = i * 3 % 700, 1 + i * 7 % 290, i + 1
        check(lib.mps_queue_fill(queue, a, offset, length, value))
        expected_a[offset : offset + length] = bytes([value]) * length
        check(lib.mps_queue_copy(queue, a, offset, b, 700 - offset, length))
        expected_b[700 - offset : 700 - offset + length] = expected_a[offset : offset + length]
    check(lib.mps_queue_wait(queue, 10**10))
    assert bytes(_bytes(a, 1000)) == expected_a
    assert bytes(_bytes(b, 1000)) == expected_b
    yield "yes"


@question("Are commands on untracked memory of a heap ordered, blits and dispatches mixed?")
def _untracked() -> Answers:
    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    stream = mpscffi.current_stream()
    desc = ffi.new("mps_heap_desc *", {"struct_size": ffi.sizeof("mps_heap_desc"), "size": 1 << 26})
    heap = ffi.new("mps_heap **")
    check(lib.mps_heap_create(mpscffi.current_device()._pointer, desc, heap))
    length = 1 << 22
    a, b = _raw(length, heap=heap[0]), _raw(length, heap=heap[0])
    kernel = _library().add
    value = ffi.new("uint32_t *", 1)
    arguments = ffi.new(
        "mps_argument[2]", [{"kind": 1, "index": 0}, {"kind": 2, "index": 1, "data": value, "length": 4}]
    )
    dispatch = ffi.new("mps_dispatch *", {"struct_size": ffi.sizeof("mps_dispatch"), "pipeline": kernel.handle})
    dispatch.arguments, dispatch.argument_count, dispatch.grid = arguments, 2, [length // 4, 1, 1]
    check(lib.mps_queue_fill(stream._pointer, a, 0, length, 0))
    for _ in range(200):
        for one, other in ((a, b), (b, a)):
            arguments[0].buffer = one
            check(lib.mps_queue_dispatch(stream._pointer, dispatch))
            check(lib.mps_queue_copy(stream._pointer, one, 0, other, 0, length))
    check(lib.mps_queue_wait(stream._pointer, 10**11))
    wrong = sum(word != 400 for word in memoryview(_bytes(a, length)).cast("I"))
    assert wrong == 0, f"{wrong} of {length // 4} words are wrong"
    yield "yes"


@question("Are products of matrices right, wherever their rows begin, and ordered among copies in untracked memory?")
def _products() -> Answers:
    import numpy as np

    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    worst = 0.0
    for dtype in (np.float32, np.float16):
        for shape in ((3, 5, 7), (64, 64, 64), (129, 33, 65), (1, 1000, 1), (500, 1, 300)):
            rows, inner, columns = shape
            whole = np.random.default_rng(shape).standard_normal((rows + inner, inner + columns + 3)).astype(dtype)
            array = mpscffi.asarray(whole)
            for skip in range(4):  # elements before the first one
                left = array[:rows, skip : skip + inner]
                right = array[rows:, skip : skip + columns]
                for a, b in ((left, right), (right.T, left.T)):
                    product = (a @ b).numpy().astype(np.float64)
                    exact = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
                    size = abs(a.numpy().astype(np.float64)) @ abs(b.numpy().astype(np.float64))
                    size += float(np.finfo(dtype).tiny)  # below it numbers are coarser
                    worst = max(worst, float((abs(product - exact) / size).max() / np.finfo(dtype).eps / (inner + 1)))
    assert worst < 1, f"off by {worst:.2f} times what rounding explains"
    yield f"right, within {worst:.3f} times what rounding explains"
    stream = mpscffi.current_stream()
    desc = ffi.new("mps_heap_desc *", {"struct_size": ffi.sizeof("mps_heap_desc"), "size": 1 << 26})
    heap = ffi.new("mps_heap **")
    check(lib.mps_heap_create(mpscffi.current_device()._pointer, desc, heap))
    side = 256
    length = side * side * 4
    a, b = _raw(length, heap=heap[0]), _raw(length, heap=heap[0])
    twice = mpscffi.asarray(np.eye(side, dtype=np.float32) * 2)
    call = ffi.new("mps_matmul *", {"struct_size": ffi.sizeof("mps_matmul"), "data_type": lib.MPS_DATA_FLOAT})
    call.count = 1
    for matrix, buffer in ((call.left, a), (call.right, twice._block.pointer), (call.result, b)):
        matrix.buffer, matrix.rows, matrix.columns = buffer, side, side
    call.right.offset = twice._offset
    memoryview(_bytes(a, length)).cast("f")[:] = memoryview(np.ones(side * side, np.float32))
    for _ in range(100):
        check(lib.mps_queue_matmul(stream._pointer, call))
        check(lib.mps_queue_copy(stream._pointer, b, 0, a, 0, length))
    check(lib.mps_queue_wait(stream._pointer, 10**11))
    wrong = sum(value != 2.0**100 for value in memoryview(_bytes(a, length)).cast("f"))
    assert wrong == 0, f"{wrong} of {side * side} numbers are wrong"
    yield "in order"


@question("What happens to the queue, and to an event behind it, when a kernel touches a bad address?")
def _fault() -> Answers:
    import numpy as np

    import mpscffi

    library = _library()
    x, event = mpscffi.zeros(10, dtype=np.uint32), mpscffi.Event()
    library.fault(mpscffi.asarray(np.array([16], np.uint64)), threads=1)
    event.record()
    told = ""
    try:
        event.synchronize(timeout=60)
    except mpscffi.errors.ExecutionError as error:
        told = str(error)
    yield f"an error: {told}" if told else "nothing: this GPU lets it pass"
    assert not told or "fault" in told
    library.add(x, 1)
    mpscffi.synchronize(timeout=60)
    assert (x.numpy() == 1).all(), x.numpy()
    yield "the queue goes on"


@question("Are handlers called in order, and a callback between the commands?")
def _handlers() -> Answers:
    import numpy as np

    import mpscffi

    library, stream = _library(), mpscffi.current_stream()
    x = mpscffi.zeros(1, dtype=np.uint32)
    order: list[str] = []
    for i in range(100):
        library.add(x, 1)
        stream.add_scheduled_handler(lambda info, i=i: order.append(f"s{i}"))
        stream.add_completed_handler(lambda info, i=i: order.append(f"c{i}"))
        stream.commit()
    stream.add_callback(lambda: order.append("callback"))
    stream.synchronize()
    completed = [entry for entry in order if entry[0] == "c"]
    assert completed == [*(f"c{i}" for i in range(100)), "callback"], order
    assert all(order.index(f"s{i}") < order.index(f"c{i}") for i in range(100)), order
    yield "yes"


@question("Do GPU times fit the CPU's clock?")
def _times() -> Answers:
    import numpy as np

    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    def now() -> int:
        cpu, gpu = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        check(lib.mps_device_timestamps(mpscffi.current_device()._pointer, cpu, gpu))
        return int(gpu[0])

    library, stream = _library(), mpscffi.current_stream()
    x = mpscffi.zeros(1 << 22, dtype=np.uint32)
    stream.synchronize()
    infos: list[Any] = []
    before = now()
    library.add(x, 1)
    stream.add_completed_handler(infos.append)
    stream.synchronize()
    after = now()
    start, end = infos[0].start, infos[0].end
    yield f"started {start - before} ns after the commit, ran {end - start} ns, told {after - end} ns later"
    assert before <= start <= end <= after, (before, start, end, after)


@question("Is a signal lower than the event's value without effect?")
def _lower() -> Answers:
    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    device, queue = mpscffi.current_device()._pointer, mpscffi.current_stream()._pointer
    event = ffi.new("mps_event **")
    check(lib.mps_event_create(device, event))
    gate = ffi.new("mps_event **")
    check(lib.mps_event_create(device, gate))
    check(lib.mps_queue_wait_event(queue, gate[0], 1))
    check(lib.mps_queue_signal(queue, event[0], 3))
    check(lib.mps_event_signal(event[0], 9))
    check(lib.mps_event_signal(gate[0], 1))
    check(lib.mps_queue_wait(queue, 10**10))
    other = mpscffi.Stream()
    check(lib.mps_queue_wait_event(other._pointer, event[0], 9))
    check(lib.mps_queue_wait(other._pointer, 10**10))
    yield "yes"


@question("Can more command buffers be queued than Metal's usual 64, all of them waiting?")
def _many() -> Answers:
    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    device, queue = mpscffi.current_device()._pointer, mpscffi.current_stream()._pointer
    gate = ffi.new("mps_event **")
    check(lib.mps_event_create(device, gate))
    buffer = _raw(4)
    check(lib.mps_queue_wait_event(queue, gate[0], 1))
    for i in range(70):
        check(lib.mps_queue_fill(queue, buffer, 0, 4, i))
        check(lib.mps_queue_commit(queue, ffi.NULL))
    check(lib.mps_event_signal(gate[0], 1))
    check(lib.mps_queue_wait(queue, 10**10))
    assert _bytes(buffer, 4)[0] == bytes([69])
    yield "yes"


@question("Does a capture write a document?")
def _capture() -> Answers:
    import mpscffi
    from mpscffi._ffi import check, ffi, lib

    device = mpscffi.current_device()._pointer
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "first.gputrace"
        text = ffi.new("char[]", os.fsencode(path))
        desc = ffi.new("mps_capture_desc *", {"struct_size": ffi.sizeof("mps_capture_desc"), "path": text})
        check(lib.mps_capture_start(device, desc))
        mpscffi.zeros(10).fill_(1)
        mpscffi.synchronize()
        check(lib.mps_capture_stop(device))
        assert path.exists(), "there is no document"
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        yield f"{len(files)} files, {sum(file.stat().st_size for file in files)} bytes"


@question("What do compiling and a compiled pipeline cost, without and with the cache on disk?")
def _cache() -> Answers:
    script = (
        "import time, mpscffi, numpy as np\n"
        f"library = mpscffi.compile_shader({SOURCE!r}); start = time.perf_counter()\n"
        "library.add.handle; print(round((time.perf_counter() - start) * 1e3, 2), 'ms'); time.sleep(1)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("first", "second"):
            result = subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                text=True,
                timeout=SECONDS_EACH,
                env={**os.environ, "MPSCFFI_CACHE_DIR": folder},
                check=True,
            )
            yield f"{kind} run: a pipeline takes {result.stdout.strip()}"
        archives = [file for file in Path(folder).rglob("*.binarchive") if file.stat().st_size]
        assert archives, "nothing was kept"
        yield f"{archives[0].name}: {archives[0].stat().st_size} bytes"


@question("How long do the usual things take?")
def _speed() -> Answers:
    import numpy as np

    import mpscffi

    library, stream = _library(), mpscffi.current_stream()
    x = mpscffi.zeros(32, dtype=np.uint32)
    event = mpscffi.Event()

    def each(count: int, function: Callable[[], object]) -> str:
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            function()
        stream.synchronize()
        return f"{(time.perf_counter() - start) / count * 1e6:.2f} us"

    def round_trip() -> None:
        library.add(x, 1)
        stream.synchronize()

    yield f"a dispatch in a row of them: {each(20000, lambda: library.add(x, 1))}"
    yield f"a dispatch and a wait: {each(500, round_trip)}"
    yield f"an event recorded: {each(2000, event.record)}"


def _ask(number: int) -> None:
    """Answer one question, in a process of its own."""
    for line in list(QUESTIONS.values())[number]():
        print(line, flush=True)


def _answer(number: int, environment: dict[str, str]) -> tuple[bool, str]:
    command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__), "--ask", str(number)]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS_EACH,
            env={"MPSCFFI_DEVICE": "metal", "MTL_CAPTURE_ENABLED": "1", **os.environ, **environment},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return False, f"{error.stdout or ''}\nno answer in {SECONDS_EACH} s"
    text = result.stdout + ("" if result.returncode == 0 else f"{result.stderr}\nexit status {result.returncode}")
    return result.returncode == 0, text.strip()


def main() -> int:
    """Ask everything, print and write the report."""
    if sys.argv[1:2] == ["--ask"]:
        _ask(int(sys.argv[2]))
        return 0
    lines = [f"mpscffi on {platform.platform()}, {platform.machine()}, Python {platform.python_version()}", ""]
    wrong = 0
    for name, environment in (("as it is", {}), ("under Metal's API validation", {"MTL_DEBUG_LAYER": "1"})):
        for number, text in enumerate(QUESTIONS):
            right, answer = _answer(number, environment)
            wrong += not right
            lines += [
                f"{'ok  ' if right else 'LOOK'} {text} ({name})",
                *(f"       {line}" for line in answer.splitlines()),
            ]
            print("\n".join(lines[-1 - len(answer.splitlines()) :]), flush=True)
    lines += ["", f"{wrong} of {2 * len(QUESTIONS)} answers want a look"]
    print(lines[-1])
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"The report is in {REPORT.resolve()}: please attach it to an issue.")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
