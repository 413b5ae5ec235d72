"""What the environment asks the profiler for: marks from the start on, lines on stderr, statistics at exit.

The masks are ``PYTORCH_MPS_LOG_PROFILE_INFO`` and ``PYTORCH_MPS_TRACE_SIGNPOSTS``; docs/profiling.md lists their bits.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import Any, NamedTuple

from mpscffi import profiler
from mpscffi._ffi import lib
from mpscffi._table import table
from mpscffi.averages import Average
from mpscffi.tracing import COMMANDS, CPU_COPIES, Record, Trace, blocking_copies, read, wait_for_work

__all__ = ["Plan", "begin", "derive"]

# Bits of the log mask.
_LINES = {1: frozenset({"kernel", "matmul"}), 2: frozenset({"copy", "fill", *CPU_COPIES}), 4: frozenset({"fallback"})}
_ALL_STATISTICS = 8
_KERNEL_STATISTICS, _COPY_STATISTICS, _FALLBACK_STATISTICS = 16, 32, 64
_STATISTICS = _KERNEL_STATISTICS | _COPY_STATISTICS | _FALLBACK_STATISTICS
_DEVICE_TIME, _WAIT_TIME, _BUFFERS = 128, 256, 512

# Bits of the signpost mask.
_ALL_EVENTS, _ALL_INTERVALS, _WAIT, _SCHEDULED, _INTERVALS, _EVENTS = 1, 2, 4, 8, 16, 32
_KERNELS, _COPIES, _FALLBACKS = 0x1_0000, 0x2_0000, 0x4_0000
_ALL_TYPES = _KERNELS | _COPIES | _FALLBACKS

_STORAGE = {lib.MPS_STORAGE_SHARED: "shared", lib.MPS_STORAGE_PRIVATE: "private"}
#: A copy of so few bytes is that of a number.
_SCALAR_BYTES = 8
#: How often lines are written, and how long the exit waits for work that is not complete.
_LINE_SECONDS = 0.02
_EXIT_SECONDS = 1.0


class Plan(NamedTuple):
    """What two masks come to.

    Attributes
    ----------
    lines : frozenset of str
        Kinds of records that get a line each.
    statistics : int
        The bits 16, 32 and 64 of the log mask.
    device_time, wait_time, buffers : bool
        What the lines tell beside names and counts.
    signposts : int
        ``MPS_TRACE_*`` flags of the marks, 0 for none.
    """

    lines: frozenset[str]
    statistics: int
    device_time: bool
    wait_time: bool
    buffers: bool
    signposts: int


def derive(log: int, trace: int) -> Plan:
    """Return what the masks of the environment ask for, with what follows from each bit.

    Parameters
    ----------
    log, trace : int
        The masks; ``config`` has refused those that contradict themselves.
    """
    if log & _ALL_STATISTICS:
        log |= _STATISTICS
    if trace & _SCHEDULED and not trace & (_ALL_TYPES | _ALL_EVENTS):
        trace |= _ALL_INTERVALS
    if trace & (_ALL_EVENTS | _ALL_INTERVALS):
        trace |= _ALL_TYPES
        trace |= _EVENTS if trace & _ALL_EVENTS else 0
        trace |= _INTERVALS if trace & _ALL_INTERVALS else 0
    if trace & _ALL_TYPES and not trace & (_INTERVALS | _EVENTS):
        trace |= _INTERVALS
    if trace & _EVENTS:
        log |= _DEVICE_TIME
    return Plan(
        lines=frozenset().union(*(kinds for bit, kinds in _LINES.items() if log & bit)),
        statistics=log & _STATISTICS,
        device_time=bool(log & _DEVICE_TIME),
        wait_time=bool(log & _WAIT_TIME),
        buffers=bool(log & _BUFFERS),
        signposts=_signpost_flags(trace),
    )


def _signpost_flags(trace: int) -> int:
    if not trace & _ALL_TYPES:
        return 0
    flags = {
        _EVENTS: lib.MPS_TRACE_SIGNPOST_EVENTS,
        _INTERVALS: lib.MPS_TRACE_SIGNPOST_INTERVALS,
        _SCHEDULED: lib.MPS_TRACE_SIGNPOST_ENCODED,
        _WAIT: lib.MPS_TRACE_WAITS | lib.MPS_TRACE_COMMANDS,
        _KERNELS: lib.MPS_TRACE_SIGNPOST_KERNELS,
        _COPIES: lib.MPS_TRACE_SIGNPOST_COPIES,
        _FALLBACKS: lib.MPS_TRACE_SIGNPOST_FALLBACKS,
    }
    return sum(flag for bit, flag in flags.items() if trace & bit)


# ---- marks only


class _Signposts(Trace):
    """Keeps no records: the library itself makes the marks."""

    def __init__(self, flags: int) -> None:
        super().__init__(flags, capacity=1)

    def take(self, records: list[Record]) -> None:
        """Forget them."""


# ---- lines and statistics


class Log(Trace):
    """Writes lines as commands are given or complete, and keeps sums for the statistics."""

    def __init__(self, plan: Plan) -> None:
        flags = lib.MPS_TRACE_COMMANDS if plan.device_time or plan.statistics else 0
        #: Without times a line need not wait for the end.
        self.at_end = plan.device_time or plan.wait_time
        if plan.lines and not self.at_end:
            flags |= lib.MPS_TRACE_ENCODED
        if plan.lines and plan.buffers:
            flags |= lib.MPS_TRACE_BUFFERS
        super().__init__(flags)
        self.plan = plan
        self.statistics = Statistics()
        self._arguments: dict[int, list[str]] = {}
        self._runs: dict[tuple[str, str], int] = {}
        self._kernels: dict[str, int] = {}
        self._fallbacks: dict[str, int] = {}

    def take(self, records: list[Record]) -> None:
        """Write lines and add up."""
        lines = []
        for record in records:
            if record.kind == "argument":
                text = f"{record.serial}: {record.object:#x}:{record.grid[0]}"
                self._arguments.setdefault(record.id, []).append(text)
                continue
            if record.kind in self.plan.lines and self._is_due(record):
                lines.append(self._line(record))
            if record.end:
                self.statistics.add(record)
        if lines:
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

    def _is_due(self, record: Record) -> bool:
        return record.kind == "fallback" or record.kind in CPU_COPIES or bool(record.end) == self.at_end

    def _line(self, record: Record) -> str:
        key = record.kind, record.name
        run = self._runs[key] = self._runs.get(key, 0) + 1
        if record.kind in ("copy", "fill"):
            text = f"Blit: {record.name}, length={record.bytes}, run={run}"
        elif record.kind in CPU_COPIES:
            text = f"Mem Sync: {record.name}, length={record.bytes}, run={run}"
        elif record.kind == "fallback":
            text = f"mps::{record.name} (id=C{_number(self._fallbacks, record.name)}, run={run})"
        else:
            grid = ", ".join(map(str, record.grid))
            text = f"mps::{record.name}:[{grid}] (id=K{_number(self._kernels, record.name)}, run={run})"
        if arguments := self._arguments.pop(record.id, None):
            text += f", buffers=[{', '.join(arguments)}]"
        if record.kind == "fallback":
            text += f", cpu={_ms(record.duration)}"
        elif self.at_end:
            text += _times(record, self.plan)
        return text + ", failed" * record.failed


def _number(numbers: dict[str, int], name: str) -> int:
    """Return the number of a name: names are numbered as they come."""
    return numbers.setdefault(name, len(numbers) + 1)


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


def _waited(record: Record) -> int:
    return max(0, record.start - record.encoded)


def _times(record: Record, plan: Plan) -> str:
    """Return device and waiting time; the one without the other has both together."""
    if plan.wait_time:
        device = f", gpu={_ms(record.duration)}" if plan.device_time else ""
        return f"{device}, kernel={_ms(_waited(record))}"
    return f", gpu={_ms(record.duration + _waited(record))}"


class Statistics:
    """Sums for the tables at exit."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Average] = {}
        self._scalars: dict[str, list[float]] = {}

    def add(self, record: Record) -> None:
        """Count one record."""
        if record.kind not in COMMANDS and record.kind not in CPU_COPIES and record.kind != "fallback":
            return
        name = record.name
        if record.kind == "copy":
            name = " to ".join(_STORAGE.get(mode, "?") for mode in record.grid[:2])
        key = record.kind, name
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Average(*key)
        row.add(record)
        if record.kind in ("copy", "fill") and record.bytes <= _SCALAR_BYTES:
            count_and_time = self._scalars.setdefault(name, [0, 0.0])
            count_and_time[0] += 1
            count_and_time[1] += record.duration / 1e3

    def text(self, statistics: int) -> str:
        """Return the tables that a mask asks for."""
        parts = []
        if statistics & _KERNEL_STATISTICS:
            parts.append(self._kernels())
        if statistics & _COPY_STATISTICS:
            parts.append(self._copies())
        if statistics & _FALLBACK_STATISTICS:
            parts.append(self._fallbacks())
        return "\n".join(parts)

    def _of(self, *kinds: str) -> list[tuple[int, Average]]:
        rows = [row for row in self._rows.values() if row.kind in kinds]
        return list(enumerate(rows, 1))

    def _kernels(self) -> str:
        rows = sorted(self._of("kernel", "matmul"), key=lambda row: row[1].device_time, reverse=True)
        if not rows:
            return "mpscffi: no kernels ran\n"
        head = ["Id", "Runs", "Mean kernel ms", "Mean GPU ms", "Total GPU ms", "Name"]
        cells = [
            [
                f"K{number}",
                str(row.count),
                f"{row.wait_time_total / row.count / 1e3:.3f}",
                f"{row.device_time / 1e3:.3f}",
                f"{row.device_time_total / 1e3:.3f}",
                row.key,
            ]
            for number, row in rows
        ]
        return f"mpscffi: kernels\n{table(head, cells)}\n"

    def _copies(self) -> str:
        rows = self._of("copy", "fill", *CPU_COPIES)
        if not rows:
            return "mpscffi: no copies ran\n"
        head = ["Copies", "Count", "Bytes", "Kernel ms", "GPU ms", "Scalars", "GPU share", "Blocking", "By CPU"]
        cells = []
        for _, row in rows:
            scalars, time = self._scalars.get(row.key, (0, 0.0))
            by_cpu = row.count if row.kind in CPU_COPIES else 0
            share = time / row.device_time_total if row.device_time_total else 0.0
            cells.append(
                [
                    row.key,
                    str(row.count),
                    str(row.bytes),
                    f"{row.wait_time_total / 1e3:.3f}",
                    f"{row.device_time_total / 1e3:.3f}",
                    str(int(scalars)),
                    f"{share:.1%}",
                    str(by_cpu + blocking_copies[row.key]),
                    str(by_cpu),
                ]
            )
        return f"mpscffi: copies\n{table(head, cells)}\n"

    def _fallbacks(self) -> str:
        rows = sorted(self._of("fallback"), key=lambda row: row[1].cpu_time, reverse=True)
        if not rows:
            return "mpscffi: no fallbacks to the CPU\n"
        head = ["Id", "Runs", "Mean CPU ms", "Total CPU ms", "Name"]
        cells = [
            [f"C{number}", str(row.count), f"{row.cpu_time / 1e3:.3f}", f"{row.cpu_time_total / 1e3:.3f}", row.key]
            for number, row in rows
        ]
        return f"mpscffi: fallbacks to the CPU\n{table(head, cells)}\n"


# ---- from the first use of a device to the end of the process

_log: Log | None = None
_over = threading.Event()


def begin(log: int, trace: int) -> None:
    """Begin what the masks of the environment ask for.

    Parameters
    ----------
    log, trace : int
        The masks.
    """
    global _log
    plan = derive(log, trace)
    if plan.signposts:
        signposts = _Signposts(plan.signposts)
        signposts.start()
        profiler._active = signposts
    if not plan.lines and not plan.statistics:
        return
    _log = Log(plan)
    _log.start()
    if plan.lines:
        threading.Thread(target=_write_lines, name="mpscffi profiler", daemon=True).start()
    atexit.register(finish)
    if plan.statistics and threading.current_thread() is threading.main_thread():
        _chain_interrupt()


def _write_lines() -> None:
    while not _over.wait(_LINE_SECONDS):
        read()


def finish() -> None:
    """Write what is left, and the statistics: once, at exit or when the process is interrupted."""
    global _log
    log, _log = _log, None
    if log is None:
        return
    _over.set()
    wait_for_work(_EXIT_SECONDS)
    read()
    log.stop()
    if log.plan.statistics:
        sys.stderr.write(log.statistics.text(log.plan.statistics))
        if log.dropped:
            sys.stderr.write(f"mpscffi: {log.dropped} records are missing: there was no room for them\n")
        sys.stderr.flush()


def _chain_interrupt() -> None:
    previous = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: Any) -> None:
        finish()
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if previous is not None:  # else it is not Python's to chain
        signal.signal(signal.SIGINT, interrupted)


def _after_fork_in_child() -> None:
    global _log
    _log = None


os.register_at_fork(after_in_child=_after_fork_in_child)
