"""The profiler's switches, and what the environment asks of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mpscffi as mps
from mpscffi import errors, profiler
from mpscffi._ffi import lib
from mpscffi.profile_log import Plan, derive

Python = Callable[..., "subprocess.CompletedProcess[str]"]

SOURCE = "kernel void add_one(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }"

WORK = f"""
import mpscffi as mps
x = mps.zeros(1000)
add_one = mps.compile_shader({SOURCE!r}).add_one
for _ in range(3):
    add_one(x)
y = x.copy(storage="private")
mps.synchronize()
"""


@pytest.fixture
def add_one(compiled: Callable[[str], mps.ShaderLibrary]) -> Iterator[Any]:
    yield compiled(SOURCE).add_one
    profiler.stop()


def runs() -> bool:
    return profiler._active is not None


# ---- start, stop, profile


@pytest.mark.parametrize("mode", ["interval", "event", " Interval , EVENT ", ",interval,,", "e v e n t"])
def test_modes(add_one: Any, mode: str) -> None:
    with profiler.profile(mode) as profile:
        add_one(mps.zeros(3))
    assert profile.key_averages()["add_one"].count == 1
    assert not runs()


def test_context_in_event_mode_then_start_and_stop_with_waiting(add_one: Any) -> None:
    x = mps.zeros(3)
    with profiler.profile(mode="event", wait_until_completed=False):
        add_one(x)
    profiler.start(mode="interval", wait_until_completed=True)
    add_one(x)
    assert mps.current_stream().query()  # it was waited for
    profiler.stop()
    assert profiler.key_averages()["add_one"].count == 1
    assert x.numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize("mode", ["", " ", ",", " , ,"])
def test_an_empty_mode_starts_nothing(add_one: Any, mode: str) -> None:
    assert profiler.start(mode) is None
    assert not runs()
    add_one(mps.zeros(3))
    assert len(profiler.key_averages()) == 0
    profiler.start()
    assert runs()


@pytest.mark.parametrize("mode", ["x", "interval,x", "intervals", "x,interval"])
def test_an_unknown_mode_leaves_nothing_running(add_one: Any, mode: str) -> None:
    what = ", in which 'x' is none" if "," in mode else ""
    for begin in (profiler.start, profiler.profile):
        with pytest.raises(ValueError, match=f"got mode '{mode}'{what}, expected 'interval', 'event'"):
            begin(mode)
        assert not runs()
    assert lib.mps_trace_stop() == lib.MPS_STATUS_INVALID_STATE


@pytest.mark.parametrize("mode", [None, 3, b"interval", ["interval"]])
def test_a_mode_is_a_text(device: mps.Device, mode: Any) -> None:
    for error in (TypeError, AttributeError, RuntimeError):
        with pytest.raises(error, match="expected str"):
            profiler.start(mode)
    assert not runs()


@pytest.mark.parametrize("name", ["wait_until_completed", "per_command"])
@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_switches_are_bools(device: mps.Device, name: str, value: Any) -> None:
    with pytest.raises(RuntimeError, match=f"{name}={value!r}, expected True or False"):
        profiler.start(**{name: value})
    assert not runs()


@pytest.mark.parametrize(
    ("capacity", "error"),
    [(0, ValueError), (-1, ValueError), ((1 << 24) + 1, ValueError), (1.5, TypeError), (True, TypeError)],
)
def test_capacity_is_checked(device: mps.Device, capacity: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="capacity"):
        profiler.profile(capacity=capacity)


def test_a_second_start_raises_and_the_first_goes_on(add_one: Any) -> None:
    x = mps.zeros(3)
    profiler.start("event")
    add_one(x)
    with pytest.raises(mps.errors.StateError, match=r"start: the profiler is running already.*stop\(\) it first"):
        profiler.start()
    with pytest.raises(RuntimeError, match="profile: the profiler is running already"), profiler.profile():
        raise AssertionError("a nested profile was entered")
    assert runs()
    add_one(x)
    profiler.stop()
    assert profiler.key_averages()["add_one"].count == 2


def test_stop_without_start_and_twice(add_one: Any) -> None:
    assert profiler.stop() is None
    profiler.start()
    profiler.stop()
    assert profiler.stop() is None


def test_stop_inside_a_profile_ends_it(add_one: Any) -> None:
    with profiler.profile() as profile:
        add_one(mps.zeros(3))
        profiler.stop()
        add_one(mps.zeros(3))
        profiler.start()
    assert runs()  # the end of the block is not the end of another one's profile
    profiler.stop()
    assert profile.key_averages()["add_one"].count == 1


def test_an_exception_ends_the_profile_and_comes_out(add_one: Any) -> None:
    def fail() -> None:
        with profile:
            add_one(mps.zeros(3))
            raise KeyError("mine")

    profile = profiler.profile()
    with pytest.raises(KeyError, match="mine"):
        fail()
    assert not runs()
    assert profile.key_averages()["add_one"].count == 1


def test_a_profile_can_be_entered_again_and_starts_afresh(add_one: Any) -> None:
    profile = profiler.profile()
    for count in (2, 3):
        with profile:
            for _ in range(count):
                add_one(mps.zeros(3))
        assert profile.key_averages()["add_one"].count == count


def test_a_profile_can_be_read_while_it_runs(add_one: Any) -> None:
    with profiler.profile() as profile:
        for count in (1, 2):
            add_one(mps.zeros(3))
            assert profile.key_averages()["add_one"].count == count


@pytest.mark.parametrize("export", ["export_html", "export_chrome_trace"])
def test_files_that_cannot_be_written(export: str, device: mps.Device, tmp_path: Path) -> None:
    with profiler.profile() as profile:
        mps.zeros(3)
    missing = tmp_path / "missing" / "profile"
    with pytest.raises(mps.errors.FileNotFoundError, match=r"missing/profile"):
        getattr(profile, export)(missing)
    with pytest.raises(mps.errors.FileError, match=r"directory"):
        getattr(profile, export)(tmp_path)
    with pytest.raises(mps.errors.ArgumentTypeError, match=rf"{export}: got a path of type int"):
        getattr(profile, export)(3)


def test_reading_leaves_no_trace_of_its_own(add_one: Any, compiled: Callable[[str], mps.ShaderLibrary]) -> None:
    long = compiled(
        "kernel void turns(device uint* x, constant uint& n, uint i [[thread_position_in_grid]]) {\n"
        "  for (uint k = 0; k < n; k++) { x[i] = x[i] * 3 + k; }\n}"
    ).turns
    numbers = mps.zeros(4, dtype="uint32")
    with profiler.profile() as profile:
        long(numbers, 10_000_000)
        add_one(mps.zeros(3))
        kinds = {record.kind for record in profile.records()}
        assert [record.name for record in profile.records() if record.kind == "kernel"] == ["turns", "add_one"]
    assert not kinds & {"callback", "signal", "wait"}


def test_results_before_any_profile(python: Python) -> None:
    ran = python("""
        import mpscffi as mps
        for read in (mps.profiler.key_averages, lambda: mps.profiler.export_html("x")):
            try:
                read()
            except mps.errors.StateError as error:
                print(error)
        """)
    assert ran.stdout.count("nothing was profiled yet") == 2, ran.stderr


def test_callbacks_and_other_threads_are_profiled(add_one: Any) -> None:
    stream = mps.Stream()
    seen: list[int] = []

    def callback() -> None:
        seen.append(threading.get_native_id())
        with profiler.range("in a callback"):
            add_one(mps.zeros(3))

    def work() -> None:
        for _ in range(20):
            add_one(mps.zeros(3))

    with profiler.profile() as profile:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        stream.add_callback(callback)
        for thread in threads:
            thread.join()
        stream.synchronize()
    rows = profile.key_averages()
    assert rows["add_one"].count == 4 * 20 + 1
    assert rows["callback"].count == 1
    inside = next(r for r in profile.records() if r.name == "in a callback")
    assert inside.thread == seen[0] != threading.get_native_id()


def test_reading_in_a_callback_does_not_wait_for_it(add_one: Any) -> None:
    counts: list[int] = []
    with profiler.profile() as profile:
        add_one(mps.zeros(3))
        mps.synchronize()
        mps.current_stream().add_callback(lambda: counts.append(profile.key_averages()["add_one"].count))
        mps.synchronize()
    assert counts == [1]


def test_intervals_of_each_kernel_are_paired(add_one: Any, device: mps.Device, tmp_path: Path) -> None:
    if device.backend != "host":
        # On Metal they go to the system's log, which the C tests of the stand-in look into.
        with profiler.profile("interval,event"):
            add_one(mps.zeros(3))
        return
    import json

    x = mps.zeros(3)
    path = tmp_path / "log.gputrace"
    with profiler.metal_capture(path), profiler.profile("interval,event"):
        for _ in range(4):
            add_one(x)
    lines = [json.loads(line) for file in path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    marks = [line for line in lines if "signpost" in line and "mps::add_one" in line["message"]]
    begun = [line["id"] for line in marks if line["signpost"] == "begin"]
    ended = [line["id"] for line in marks if line["signpost"] == "end"]
    assert len(begun) == 4
    assert sorted(begun) == sorted(ended)
    assert sum(line["signpost"] == "event" for line in marks) == 4


# ---- the masks of the environment

_INTERVALS, _EVENTS = lib.MPS_TRACE_SIGNPOST_INTERVALS, lib.MPS_TRACE_SIGNPOST_EVENTS
_ENCODED = lib.MPS_TRACE_SIGNPOST_ENCODED
_WAITS = lib.MPS_TRACE_WAITS | lib.MPS_TRACE_COMMANDS
_KERNELS, _COPIES = lib.MPS_TRACE_SIGNPOST_KERNELS, lib.MPS_TRACE_SIGNPOST_COPIES
_FALLBACKS = lib.MPS_TRACE_SIGNPOST_FALLBACKS
_ALL = _KERNELS | _COPIES | _FALLBACKS


@pytest.mark.parametrize(
    ("trace", "flags", "device_time"),
    [
        (0, 0, False),
        (1, _EVENTS | _ALL, True),
        (2, _INTERVALS | _ALL, False),
        (3, _EVENTS | _INTERVALS | _ALL, True),
        (4, 0, False),
        (2 | 4, _INTERVALS | _ALL | _WAITS, False),
        (8, _INTERVALS | _ALL | _ENCODED, False),
        (8 | 2, _INTERVALS | _ALL | _ENCODED, False),
        (16, 0, False),
        (32, 0, True),
        (0x10000, _INTERVALS | _KERNELS, False),
        (0x10000 | 8, _INTERVALS | _KERNELS | _ENCODED, False),
        (0x10000 | 16, _INTERVALS | _KERNELS, False),
        (0x20000 | 32, _EVENTS | _COPIES, True),
        (0x30000 | 48, _EVENTS | _INTERVALS | _KERNELS | _COPIES, True),
        (0x40000, _INTERVALS | _FALLBACKS, False),
        (0x50000 | 32, _EVENTS | _KERNELS | _FALLBACKS, True),
        (0x7003F, _EVENTS | _INTERVALS | _ENCODED | _WAITS | _ALL, True),
    ],
)
def test_signpost_mask(trace: int, flags: int, device_time: bool) -> None:
    plan = derive(0, trace)
    assert (plan.signposts, plan.device_time) == (flags, device_time)


@pytest.mark.parametrize(
    ("log", "lines", "statistics"),
    [
        (0, set(), 0),
        (1, {"kernel", "matmul"}, 0),
        (2, {"copy", "fill", "cpu copy", "cpu fill"}, 0),
        (4, {"fallback"}, 0),
        (7, {"kernel", "matmul", "copy", "fill", "cpu copy", "cpu fill", "fallback"}, 0),
        (8, set(), 112),
        (16, set(), 16),
        (32, set(), 32),
        (64, set(), 64),
        (1023, {"kernel", "matmul", "copy", "fill", "cpu copy", "cpu fill", "fallback"}, 112),
    ],
)
def test_log_mask(log: int, lines: set[str], statistics: int) -> None:
    plan = derive(log, 0)
    assert (set(plan.lines), plan.statistics) == (lines, statistics)
    expected = Plan(plan.lines, statistics, bool(log & 128), bool(log & 256), bool(log & 512), 0)
    assert plan == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "1024"),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "-1"),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "all"),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "64"),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "0x80000"),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "0x10028"),
    ],
)
def test_values_that_no_mask_has(python: Python, name: str, value: str) -> None:
    ran = python("import mpscffi as mps; mps.zeros(1)", **{name: value})
    assert ran.returncode == 1
    assert f"{name}='{value}'" in ran.stderr.splitlines()[-1]


def test_lines_at_the_beginning(python: Python) -> None:
    ran = python(WORK, PYTORCH_MPS_LOG_PROFILE_INFO="3")
    assert ran.returncode == 0
    lines = ran.stderr.splitlines()
    assert [line for line in lines if "add_one" in line] == [
        f"mps::add_one:[1000, 1, 1] (id=K1, run={run})" for run in (1, 2, 3)
    ]
    assert "Blit: copy, length=4000, run=1" in lines


def test_lines_with_times_and_buffers(python: Python) -> None:
    ran = python(WORK, PYTORCH_MPS_LOG_PROFILE_INFO=str(1 | 128 | 256 | 512))
    lines = [line for line in ran.stderr.splitlines() if "add_one" in line]
    assert len(lines) == 3, ran.stderr
    for line in lines:
        assert ", buffers=[0: 0x" in line
        assert "gpu=" in line
        assert "kernel=" in line


def test_lines_of_copies_and_products_have_their_buffers(python: Python) -> None:
    code = """
        import mpscffi
        x, y = mpscffi.ones(16).reshape(4, 4), mpscffi.zeros(16).reshape(4, 4)
        y.copy_from(x, non_blocking=True)
        product = x @ y
        mpscffi.synchronize()
    """
    ran = python(code, PYTORCH_MPS_LOG_PROFILE_INFO=str(1 | 2 | 512))
    one = "{}: (0x[0-9a-f]+):[0-9]+"
    copied = re.search(rf"^Blit: copy.*buffers=\[{one.format(0)}, {one.format(1)}\]", ran.stderr, re.M)
    multiplied = re.search(rf"^mps::matmul:.*\[{one.format(0)}, {one.format(1)}, {one.format(2)}\]", ran.stderr, re.M)
    assert copied is not None, ran.stderr
    assert multiplied is not None, ran.stderr
    assert copied.groups() == multiplied.groups()[:2]


@pytest.mark.parametrize("kinds", [16, 32, 64, 8])
def test_statistics_at_exit(python: Python, kinds: int) -> None:
    ran = python(WORK, PYTORCH_MPS_LOG_PROFILE_INFO=str(kinds))
    assert ran.returncode == 0
    kernels, copies, fallbacks = (bool(kinds & bit or kinds == 8) for bit in (16, 32, 64))
    assert ran.stderr.count("mpscffi: kernels\n") == kernels, ran.stderr
    assert ran.stderr.count("mpscffi: copies\n") == copies
    assert ran.stderr.count("no fallbacks to the CPU") == fallbacks
    if kernels:
        row = next(line.split() for line in ran.stderr.splitlines() if line.endswith("add_one"))
        assert row[:2] == ["K1", "3"]
    if copies:
        row = next(line.split() for line in ran.stderr.splitlines() if line.startswith("shared to private "))
        # Count, bytes, scalars; that its caller waited, and that the CPU did not do it.
        assert (row[3:5], row[7], row[9:]) == (["1", "4000"], "0", ["1", "0"])


def test_statistics_of_nothing(python: Python) -> None:
    ran = python("import mpscffi as mps; mps.current_device()", PYTORCH_MPS_LOG_PROFILE_INFO="8")
    assert ran.stderr.splitlines() == [
        "mpscffi: no kernels ran",
        "",
        "mpscffi: no copies ran",
        "",
        "mpscffi: no fallbacks to the CPU",
    ]


def test_no_device_no_statistics(python: Python) -> None:
    ran = python("import mpscffi", PYTORCH_MPS_LOG_PROFILE_INFO="8")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_fallbacks_are_logged(python: Python) -> None:
    script = """
import numpy as np
import mpscffi as mps
a = mps.from_numpy(np.ones((3, 3)))
for _ in range(2):
    mps.matmul(a, a)
mps.rand(3, dtype="float64")
"""
    ran = python(script, "-W", "ignore", PYTORCH_MPS_LOG_PROFILE_INFO=str(4 | 64), PYTORCH_ENABLE_MPS_FALLBACK="1")
    lines = ran.stderr.splitlines()
    assert [line.partition(", cpu=")[0] for line in lines if line.startswith("mps::")] == [
        "mps::matmul float64 (id=C1, run=1)",
        "mps::matmul float64 (id=C1, run=2)",
        "mps::random float64 (id=C2, run=1)",
    ]
    assert sorted(line.split()[:2] + line.split()[-2:] for line in lines if line.startswith("C")) == [
        ["C1", "2", "matmul", "float64"],
        ["C2", "1", "random", "float64"],
    ]


@pytest.mark.host_only("the marks of a capture can be read")
@pytest.mark.parametrize(
    ("trace", "marks"),
    [
        ("0", []),
        ("0x30000", []),
        ("0x40000", ["begin", "end"]),
        ("0x40020", ["event"]),
        ("3", ["begin", "event", "end"]),
    ],
)
def test_fallbacks_are_marked_as_asked(python: Python, tmp_path: Path, trace: str, marks: list[str]) -> None:
    script = f"""
        import json, pathlib
        import numpy as np
        import mpscffi as mps
        a = mps.from_numpy(np.ones((3, 3)))
        path = pathlib.Path({str(tmp_path / "a.gputrace")!r})
        with mps.profiler.metal_capture(path):
            mps.matmul(a, a)
        lines = [json.loads(line) for line in (path / "commands.jsonl").read_text().splitlines()]
        for line in lines:
            if "signpost" in line and "matmul float64" in line["message"]:
                print(line["signpost"], line["message"].partition(" (id=C")[0])
    """
    masks = {"PYTORCH_MPS_TRACE_SIGNPOSTS": trace, "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    ran = python(script, "-W", "ignore", MPSCFFI_DEVICE="host", **masks)
    assert ran.stdout.splitlines() == [f"{mark} mps::matmul float64" for mark in marks], ran.stderr


def test_statistics_once_when_interrupted(python: Python) -> None:
    script = WORK + textwrap.dedent("""
        import os, signal, time
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            print("interrupted")
        add_one(x)
        mps.synchronize()
        """)
    ran = python(script, PYTORCH_MPS_LOG_PROFILE_INFO="16")
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n")
    assert ran.stderr.count("mpscffi: kernels\n") == 1


def test_an_earlier_handler_is_called(python: Python) -> None:
    script = """
import signal
signal.signal(signal.SIGINT, lambda number, frame: print("mine", number))
""" + WORK + "import os; os.kill(os.getpid(), signal.SIGINT)\n"  # fmt: skip
    ran = python(script, PYTORCH_MPS_LOG_PROFILE_INFO="8")
    assert ran.stdout == "mine 2\n"
    assert ran.stderr.count("mpscffi: kernels\n") == 1


def test_no_statistics_no_handler(python: Python) -> None:
    script = "import signal\n" + WORK + "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for log, default in (("7", "True\n"), ("16", "False\n")):
        assert python(script, PYTORCH_MPS_LOG_PROFILE_INFO=log).stdout == default


def test_signposts_of_the_environment_refuse_a_start_until_stopped(python: Python) -> None:
    script = WORK + textwrap.dedent("""
        try:
            mps.profiler.start()
        except mps.errors.StateError as error:
            print(error)
        mps.profiler.stop()
        with mps.profiler.profile() as p:
            add_one(x)
        print(p.key_averages()["add_one"].count)
        """)
    ran = python(script, PYTORCH_MPS_TRACE_SIGNPOSTS="2")
    assert ran.stdout.splitlines()[1:] == ["1"], ran.stderr
    assert "PYTORCH_MPS_TRACE_SIGNPOSTS" in ran.stdout


def test_a_profile_beside_the_lines_of_the_environment(python: Python) -> None:
    script = WORK + textwrap.dedent("""
        with mps.profiler.profile() as p:
            add_one(x)
        print(p.key_averages()["add_one"].count)
        add_one(x)
        """)
    ran = python(script, PYTORCH_MPS_LOG_PROFILE_INFO=str(1 | 16))
    assert ran.stdout == "1\n"
    assert ran.stderr.count("mps::add_one:") == 5
    assert next(line.split()[1] for line in ran.stderr.splitlines() if line.startswith("K1 ")) == "5"


# ---- the life of the process


@pytest.mark.parametrize(
    ("way", "code"), [("", 0), ("import sys; sys.exit(3)", 3), ("raise ValueError", 1), ("import os; os._exit(4)", 4)]
)
def test_exit_with_a_profile_open(python: Python, way: str, code: int) -> None:
    ran = python(WORK + "mps.profiler.start()\nadd_one(x)\nspan = mps.profiler.range('open').__enter__()\n" + way)
    assert ran.returncode == code
    assert ran.stderr == "" or ran.stderr.splitlines()[-1] == "ValueError"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_nothing_to_do_with_the_profile(python: Python) -> None:
    script = WORK + textwrap.dedent("""
        import os, sys
        with mps.profiler.profile() as p, mps.profiler.range("around"):
            add_one(x)
            mps.synchronize()
            child = os.fork()
        if child == 0:
            mps.profiler.stop()
            try:
                mps.profiler.start()
            except mps.errors.ForkedError:
                sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), p.key_averages()["add_one"].count)
        """)
    ran = python(script, "-W", "ignore", PYTORCH_MPS_LOG_PROFILE_INFO="16")
    assert ran.stdout == "5 1\n", ran.stderr
    assert ran.stderr.count("mpscffi: kernels") == 1


def test_importing_the_profiler_opens_no_device(python: Python) -> None:
    ran = python("import mpscffi.profiler; from mpscffi.device import _opened; print(len(_opened))")
    assert ran.stdout == "0\n", ran.stderr
    assert sys.modules["mpscffi.profiler"] is profiler


def test_rows_of_one_name_and_times_that_a_kind_lacks(compiled: Callable[[str], mps.ShaderLibrary]) -> None:
    with profiler.profile() as profile:
        kernel = compiled("kernel void twice_named(device int* x) { x[0] = 1; }").twice_named
        with profiler.range("a range"):
            kernel(mps.zeros(1, dtype="int32"), threads=1)
    rows = profile.key_averages()
    assert rows["twice_named"] is rows["twice_named", "kernel"]
    assert rows["twice_named", "pipeline"].kind == "pipeline"
    with pytest.raises(KeyError):
        rows["twice_named", "range"]
    with pytest.raises(errors.ArgumentTypeError, match="row_limit='a'"):
        rows.table(row_limit="a")  # type: ignore[arg-type]
    lines = rows.table(width=None).splitlines()
    # The totals of device and CPU, counted from the right.
    totals = {tuple(line.split()[:2]): (line.split()[-8], line.split()[-3]) for line in lines[2:-1]}
    for row, none, some in (
        (("a", "range"), 0, 1),
        (("twice_named", "kernel"), 1, 0),
        (("twice_named", "pipeline"), 0, 1),
    ):
        assert totals[row][none] == "-"
        assert float(totals[row][some]) > 0
    assert "ranges" in lines[-1]


def test_what_the_cpu_copies_and_fills_is_in_the_profile(device: mps.Device) -> None:
    x, y = mps.zeros(1000), mps.zeros(1000)
    with profiler.profile() as profile:
        x.fill_(3)
        x[:10] = 1
        x[:4] = [1, 2, 3, 4]
        x.copy_from(range(1000))
        y.copy()
        with pytest.raises(ValueError, match="could not convert"):
            x[0] = "a"
    found = [(r.kind, r.name, r.bytes, r.failed) for r in profile.records() if r.kind in ("cpu copy", "cpu fill")]
    assert found == [
        ("cpu fill", "fill", 4000, False),
        ("cpu fill", "fill", 40, False),
        ("cpu copy", "host to shared", 16, False),
        ("cpu copy", "host to shared", 4000, False),
        ("cpu copy", "shared to shared", 4000, False),
        ("cpu fill", "fill", 4, True),
    ]
    assert profile.key_averages()["fill", "cpu fill"].bytes == 4040
    x.fill_(4)  # which no profile has
    with profiler.profile() as profile:
        pass
    assert not profile.records()


def test_copies_tell_where_from_and_where_to(device: mps.Device) -> None:
    shared, private = mps.zeros(8), mps.zeros(8, storage="private")
    with profiler.profile() as profile:
        for target, source in ((private, shared), (shared, private), (private, private[:]), (shared, mps.ones(8))):
            target.copy_from(source, non_blocking=True)
        mps.synchronize()
    assert [r.grid[:2] for r in profile.records() if r.kind == "copy"] == [(0, 2), (2, 0), (0, 0)]


@pytest.mark.parametrize("name", ["k", "k" * 30, "k" * 500])
def test_a_table_fits_a_line(compiled: Callable[[str], mps.ShaderLibrary], name: str) -> None:
    with profiler.profile() as profile:
        compiled(f"kernel void {name}(device int* x) {{ x[0] = 1; }}")[name](mps.zeros(1, dtype="int32"), threads=1)
        mps.synchronize()
    rows = profile.key_averages()
    whole = rows.table(width=None).splitlines()
    assert name in whole[2] + whole[3]
    for width in (80, 120, 200):
        lines = rows.table(width=width).splitlines()[:-1]
        assert max(map(len, lines)) <= width
        assert "Device total" in lines[0]
    assert max(map(len, rows.table().splitlines()[:-1])) <= 120
    assert "CPU mean" in rows.table("cpu_time", width=1).splitlines()[0]
    with pytest.raises(errors.ArgumentTypeError, match="width='wide'"):
        rows.table(width="wide")  # type: ignore[arg-type]
