"""Graphs: a hundred tiny kernels replayed in one call, against calling each."""

from __future__ import annotations

import numpy as np
from common import Case, Report, finish, measure

import mpscffi as mps

SOURCE = """
kernel void add(device float *x, constant float &value, uint i [[thread_position_in_grid]]) { x[i] += value; }
"""
COUNT = 100


def main() -> None:
    """Measure and print."""
    report = Report("Graphs")
    add = mps.compile_shader(SOURCE).add
    x = mps.asarray(np.zeros(16, np.float32))
    many = [mps.asarray(np.zeros(16, np.float32)) for _ in range(COUNT)]

    def call() -> None:
        for _ in range(COUNT):
            add(x, 1.0)

    def call_many() -> None:
        for one in many:
            add(one, 1.0)

    with mps.record() as graph:
        call()
    with mps.record() as graph_of_many:
        call_many()
    names = {"call": call, "call_many": call_many, "wait": mps.synchronize, "set": graph[0].set}
    names |= {"replay": graph.replay, "replay_many": graph_of_many.replay}
    report.add(
        measure(
            [
                Case(f"replay of {COUNT} kernels", "replay()", names, f"{COUNT} calls", 0.3),
                Case(f"{COUNT} calls", "call()", names),
                Case(f"replay and wait, {COUNT} arrays", "replay_many(); wait()", names, "calls and wait", 0.3),
                Case("calls and wait", "call_many(); wait()", names),
                Case("update of a number", "set(value=2.0)", names),
            ]
        )
    )
    mps.synchronize()
    finish(report)


if __name__ == "__main__":
    main()
