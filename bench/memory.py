"""Allocation: a pair of allocate and free, arrays that are held, counters, the cost by the number of live arrays."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
from common import Case, Report, duration, finish, measure

import mpscffi as mps
from mpscffi.allocator import allocator_of

#: What the documents that this package was written from tell of other devices: seconds.
TOLD = {"1000 x (128, 128)": 47e-3, "100000 x (1, 1)": 2.1}
HOLD = "[f(s) for _ in range(k)]"


def torch_peer(report: Report) -> Any:
    """Return torch with one thread, or None."""
    try:
        import torch
    except ImportError as error:
        report.skip("torch", error)
        return None
    torch.set_num_threads(1)
    return torch


def cases(torch: Any) -> list[Case]:
    """Return what is measured in one run."""
    names: dict[str, Any] = {"empty": mps.empty, "numpy": np.empty, "f4": np.float32}
    names |= {
        "current": mps.current_allocated_memory,
        "peak": mps.max_memory_allocated,
        "driver": mps.driver_allocated_memory,
    }
    names |= {"frombuffer": np.frombuffer, "raw": bytes(64)}
    found = [
        Case("empty((128,128)) and free", "empty((128, 128))", names, "torch.empty((128,128))", 0.5),
        Case(
            "empty((128,128)) and free, to torch's other form", "empty((128, 128))", names, "torch.empty(128,128)", 0.5
        ),
        Case("empty((128,128)) and free, to NumPy", "empty((128, 128))", names, "numpy.empty((128,128))", 2.5),
        Case("numpy.empty((128,128))", "numpy((128, 128), f4)", names),
        Case("current_allocated_memory()", "current()", names, "numpy.frombuffer", 0.3),
        Case("max_memory_allocated()", "peak()", names, "numpy.frombuffer", 0.3),
        Case("driver_allocated_memory()", "driver()", names, "numpy.frombuffer"),
        Case("numpy.frombuffer", "frombuffer(raw, f4)", names),
    ]
    if torch is not None:
        names["torch"] = torch.empty
        found += [
            Case("torch.empty((128,128))", "torch((128, 128))", names, note="CPU"),
            Case("torch.empty(128,128)", "torch(128, 128)", names, note="CPU"),
        ]
    return found


def held_cases(torch: Any) -> list[Case]:
    """Return the loops that hold arrays, and then drop them."""
    found = []
    for count, shape, target in ((1000, (128, 128), 0.3), (100_000, (1, 1), 0.6)):
        title = f"{count} x {shape}"
        peer = f"torch: {title}"
        found.append(
            Case(title, HOLD, {"f": mps.empty, "s": shape, "k": count}, peer, target, note="held, then dropped")
        )
        if torch is not None:
            found.append(Case(peer, HOLD, {"f": torch.empty, "s": shape, "k": count}))
    return found


def show_told(report: Report) -> None:
    """Print our times beside those that were told."""
    for title, told in TOLD.items():
        row = next(row for row in report.rows if row.name == title)
        ours = sorted(row.seconds)[len(row.seconds) // 2]
        print(f"{title}: told {duration(told)}, here {duration(ours)}: {told / ours:.0f} times less (wanted: 20)")


def held_seconds(function: Any, count: int, shape: tuple[int, ...]) -> float:
    """Return what it takes to make so many arrays, the interpreter's collections included."""
    gc.collect()
    mps.empty_cache()
    start = time.thread_time()
    held = [function(shape) for _ in range(count)]
    spent = time.thread_time() - start
    del held
    return spent


def show_cold(torch: Any) -> None:
    """Print what the first arrays cost, whose memory nobody has had before."""
    for title, count, shape in (("1000 x (128, 128)", 1000, (128, 128)), ("100000 x (1, 1)", 100_000, (1, 1))):
        spent = held_seconds(mps.empty, count, shape)
        gc.disable()
        without = held_seconds(mps.empty, count, shape)
        gc.enable()
        text = f"{duration(spent)}, without the interpreter's collections {duration(without)}"
        if torch is not None:
            text += f", torch {duration(held_seconds(torch.empty, count, shape))}"
        print(f"{title} with an empty cache: {text}; {TOLD[title] / spent:.1f} times less than told")


def show_curve() -> None:
    """Print the cost of a pair of allocate and free while other arrays live."""
    print("live arrays   a warm pair   a new size, cut and joined")
    held: list[mps.Array] = []
    for live in (10, 100, 1000, 10_000, 100_000, 1_000_000):
        held += [mps.empty(4) for _ in range(live - len(held))]
        gc.collect()
        gc.disable()  # its time is for objects of any kind, not for memory
        warm, cut = [], []
        for _ in range(15):
            start = time.thread_time()
            for _ in range(1000):
                mps.empty(16, 16)
            warm.append((time.thread_time() - start) / 1000)
            start = time.thread_time()
            for size in range(100):
                mps.empty(1000 + 64 * size)
            cut.append((time.thread_time() - start) / 100)
            allocator_of(mps.current_device()).small.flush()
        gc.enable()
        print(f"{live:11d}   {duration(sorted(warm)[7]):>11}   {duration(sorted(cut)[7]):>11}")
    held.clear()
    mps.empty_cache()


def main() -> None:
    """Measure and print."""
    report = Report("Allocation, in thread CPU time")
    torch = torch_peer(report)
    show_cold(torch)
    report.add(measure(cases(torch), cpu_time=True))
    report.add(measure(held_cases(torch), rounds=9, cpu_time=True))
    finish(report)
    show_told(report)
    show_curve()


if __name__ == "__main__":
    main()
