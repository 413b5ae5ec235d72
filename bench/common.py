"""What every benchmark shares: interleaved rounds, ratios to a peer, a table and a JSON file."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 31


@dataclass
class Row:
    """One measured thing: seconds of each round, and the name of the row it is compared with."""

    name: str
    seconds: list[float]
    peer: str | None = None
    target: float | None = None
    note: str = ""


@dataclass
class Report:
    """The rows of one script, printed as a table and, on request, written as JSON."""

    topic: str
    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, rows: list[Row]) -> None:
        """Append rows that were measured in one interleaved run."""
        self.rows += rows

    def skip(self, what: str, why: object) -> None:
        """Remember a peer that could not be measured."""
        self.missing.append(f"{what}: {why}")

    def ratio(self, row: Row) -> float | None:
        """Return the median over the rounds of this row's time over its peer's, or None without a peer."""
        peer = next((other for other in self.rows if other.name == row.peer), None)
        if peer is None:
            return None
        return statistics.median(a / b for a, b in zip(row.seconds, peer.seconds, strict=True))

    def show(self) -> None:
        """Print the table, slowest information last: ratio, target, time, name."""
        print(f"## {self.topic}")
        print(f"{'ratio':>8}  {'target':>7}  {'median':>12}  what")
        for row in self.rows:
            ratio = self.ratio(row)
            left = f"{ratio:8.3f}" if ratio is not None else " " * 8
            goal = f"<={row.target:.3g}" if row.target is not None else ""
            against = f"  / {row.peer}" if ratio is not None else ""
            print(f"{left}  {goal:>7}  {duration(statistics.median(row.seconds)):>12}  {row.name}{against}  {row.note}")
        for line in self.missing:
            print(f"not measured: {line}")

    def write(self, path: str) -> None:
        """Write the rows as JSON: name, median seconds, ratio, peer, target."""
        rows = [
            {
                "name": row.name,
                "seconds": statistics.median(row.seconds),
                "ratio": self.ratio(row),
                "peer": row.peer,
                "target": row.target,
            }
            for row in self.rows
        ]
        machine = {"machine": platform.machine(), "system": platform.platform(), "python": platform.python_version()}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"topic": self.topic, "on": machine, "rows": rows, "missing": self.missing}, file, indent=1)


def duration(seconds: float) -> str:
    """Return a time as text in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


@dataclass
class Case:
    """Something to time: a statement in a namespace, or a function without arguments."""

    name: str
    run: Callable[[], object] | str
    names: dict[str, Any] = field(default_factory=dict)
    peer: str | None = None
    target: float | None = None
    note: str = ""


def measure(
    cases: list[Case], *, rounds: int = ROUNDS, slice_seconds: float = 0.003, cpu_time: bool = False
) -> list[Row]:
    """Time the cases in interleaved rounds.

    Parameters
    ----------
    cases
        What to time. Each gets as many repetitions a round as fill ``slice_seconds``.
    rounds
        How many rounds.
    slice_seconds
        Length of one case's share of a round, in seconds.
    cpu_time
        Count the thread's CPU time instead of wall-clock time.

    Returns
    -------
    list of Row
        Seconds of one repetition, net of an empty loop, for each round.
    """
    clock = time.thread_time if cpu_time else time.perf_counter
    timers = [timeit.Timer(case.run, timer=clock, globals=case.names or None) for case in cases]
    empty = timeit.Timer("pass", timer=clock)
    counts = [repetitions(timer, slice_seconds) for timer in timers]
    seconds: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
        overhead = empty.timeit(2000) / 2000
        for timer, count, results in zip(timers, counts, seconds, strict=True):
            net = timer.timeit(count) / count - (overhead if count > 1 else 0.0)
            results.append(max(net, 1e-10))
    return [
        Row(case.name, results, case.peer, case.target, case.note) for case, results in zip(cases, seconds, strict=True)
    ]


def repetitions(timer: timeit.Timer, slice_seconds: float) -> int:
    """Return how often to repeat a timer to fill the slice; warms it up on the way."""
    timer.timeit(2)
    count = 1
    while count < 1_000_000:
        spent = timer.timeit(count)
        if spent >= slice_seconds / 4:
            return max(1, int(count * slice_seconds / spent))
        count *= 4
    return count


def finish(report: Report) -> None:
    """Print the report and obey the command line: ``--json FILE``."""
    parser = argparse.ArgumentParser(description=report.topic)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    report.show()
    if options.json:
        report.write(options.json)
    sys.stdout.flush()
