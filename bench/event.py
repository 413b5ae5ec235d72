"""Events: record, query, elapsed time."""

from __future__ import annotations

import numpy as np
from common import Case, Report, finish, measure
from peers import pocl

import mpscffi as mps


def main() -> None:
    """Measure and print."""
    report = Report("Events")
    start, end = mps.Event(enable_timing=True), mps.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    names = {"start": start, "end": end}
    cases = [
        Case("record", "end.record()", names, "PoCL marker", 0.3),
        Case("query", "end.query()", names, "PoCL status", 1.0),
        Case("elapsed_time", "start.elapsed_time(end)", names, "PoCL profile", 0.1),
        Case("synchronize, already complete", "end.synchronize()", names),
    ]
    try:
        peer = pocl(profiling=True)
        buffer = peer.cl.Buffer(peer.context, peer.cl.mem_flags.READ_WRITE, 64)
        peer.full.set_args(buffer, np.float32(1))
        first, second = (peer.cl.enqueue_nd_range_kernel(peer.queue, peer.full, (16,), None) for _ in range(2))
        peer.queue.finish()
        complete = peer.cl.command_execution_status.COMPLETE
        names = {"q": peer.queue, "a": first, "b": second, "done": complete, "mark": peer.cl.enqueue_marker}
        cases += [
            Case("PoCL marker", "mark(q)", names, note=peer.version),
            Case("PoCL status", "b.command_execution_status == done", names),
            Case("PoCL profile", "(b.profile.end - a.profile.end) * 1e-6", names),
        ]
    except ImportError as error:
        report.skip("PoCL", error)
    report.add(measure(cases))
    finish(report)


if __name__ == "__main__":
    main()
