"""``mpscffi bench``: how long a kernel takes on the device."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from mpscffi.commands.options import ARGUMENT_HELP, Call, UsageError, add_kernel_options

__all__ = ["add", "duration"]

_LEAST = 5
_MOST = 100_000


def add(commands: Any) -> None:
    """Add the subcommand to a parser."""
    parser = commands.add_parser(
        "bench",
        help="time a kernel",
        description="Runs one kernel again and again, and tells the times that the device took for it.",
        epilog=ARGUMENT_HELP + "\nexample: mpscffi bench saxpy.metal saxpy zeros:1000000 ones:1000000 2.0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_kernel_options(parser)
    parser.add_argument("--repeat", metavar="N", type=int, help="so many runs; by default as many as fill --seconds")
    parser.add_argument("--seconds", metavar="S", type=float, default=1.0, help="default: 1")
    parser.add_argument("--json", action="store_true", help="print an object of figures in seconds")
    parser.set_defaults(command=bench)


def bench(given: argparse.Namespace) -> int:
    """Do it."""
    if given.repeat is not None and given.repeat < 1:
        raise UsageError(f"--repeat: got {given.repeat}, expected 1 or more")
    call = Call(given)
    _time(call)  # compiles it, and touches the memory
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < (given.repeat or _MOST):
        if given.repeat is None and len(times) >= _LEAST and time.perf_counter() - begin > given.seconds:
            break
        times.append(_time(call))
    size = sum(array.nbytes for array in call.arrays.values())
    median, least, most = statistics.median(times), min(times), max(times)
    if given.json:
        figures = {"median": median, "least": least, "most": most, "runs": len(times), "bytes": size}
        print(json.dumps({"kernel": call.kernel.name, **figures}))
        return 0
    rate = f", {size / median / 1e9:.3g} GB/s if it goes once through its arrays" if size else ""
    print(
        f"{call.kernel.name}: median {duration(median)}, least {duration(least)}, most {duration(most)} of "
        f"{len(times)} runs{rate}"
    )
    return 0


def _time(call: Call) -> float:
    """Return the seconds of one run."""
    import mpscffi

    start, end = mpscffi.Event(enable_timing=True), mpscffi.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    mpscffi.synchronize()
    return max(start.elapsed_time(end) * 1e-3, 1e-9)


def duration(seconds: float) -> str:
    """Return a time as text in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
