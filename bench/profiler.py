"""What profiling costs: a launch of a tiny kernel without a trace and with one, and a range."""

from __future__ import annotations

import statistics

from common import Case, Report, finish, measure

import mpscffi as mps
from mpscffi import profiler
from mpscffi._ffi import ffi, lib

SOURCE = (
    "kernel void full(device float* x, constant float& value, uint i [[thread_position_in_grid]]) { x[i] = value; }"
)

#: Launches or ranges of one statement, so that starting the trace does not count.
REPEATS = 2000


def start(flags: int = 0) -> None:
    """Start the library's trace with room for a whole run, so that the way of a record is measured and not its loss."""
    desc = {"struct_size": ffi.sizeof("mps_trace_desc"), "capacity": 1 << 22, "flags": flags}
    assert lib.mps_trace_start(ffi.new("mps_trace_desc *", desc)) == 0


def traced(statement: str, flags: str = "0") -> str:
    """Return the statement, run with a trace around each round's repetitions."""
    return f"start({flags})\nfor _ in R: {statement}\nlib.mps_trace_stop()"


def main() -> None:
    """Measure and print."""
    report = Report("Profiler")
    x = mps.empty(16)
    names = {
        "full": mps.compile_shader(SOURCE).full,
        "x": x,
        "range": profiler.range("step"),
        "start": start,
        "lib": lib,
        "R": range(REPEATS),
    }
    plain = "for _ in R: "
    span = "\n with range: pass"
    cases = [
        Case("a launch", plain + "full(x, 3.14)", names),
        Case("a launch, traced", traced("full(x, 3.14)"), names, "a launch"),
        Case("a launch, with buffers", traced("full(x, 3.14)", "lib.MPS_TRACE_BUFFERS"), names, "a launch"),
        Case("a range", "for _ in R:" + span, names),
        Case("a range, traced", f"start()\nfor _ in R:{span}\nlib.mps_trace_stop()", names, "a range"),
    ]
    rows = measure(cases, cpu_time=True)
    mps.synchronize()
    for row in rows:
        row.seconds[:] = [seconds / REPEATS for seconds in row.seconds]
    added = [on - off for on, off in zip(rows[1].seconds, rows[0].seconds, strict=True)]
    rows[1].note = f"{statistics.median(added) * 1e9:.0f} ns more; the target is 1000"
    report.add(rows)
    finish(report)


if __name__ == "__main__":
    main()
