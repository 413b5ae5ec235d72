"""``mpscffi replay``: the commands of a capture, once more."""

from __future__ import annotations

import argparse
import os
from typing import Any

from mpscffi.commands.options import UsageError

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the subcommand to a parser."""
    parser = commands.add_parser(
        "replay",
        help="run the commands of a capture again, and compare",
        description="Runs each command of a capture on the device in use, from the buffers that it met when it was "
        "captured, and compares the buffers that it leaves. Runs the kernels in the capture: use captures you trust.",
        epilog="example: mpscffi replay --cut 3 -o bug.gputrace run.gputrace; mpscffi replay bug.gputrace",
    )
    parser.add_argument("bundle", metavar="CAPTURE", help="what mpscffi.profiler.metal_capture made on the host device")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="only say what is in it")
    what.add_argument("--only", metavar="N", type=int, help="only command number N")
    what.add_argument("--cut", metavar="N", type=int, help="make a capture of command number N alone, at -o")
    parser.add_argument("-o", metavar="CAPTURE", dest="output", help="what --cut makes")
    parser.add_argument(
        "--rtol", metavar="X", type=float, default=0.0,
        help="let floating-point numbers differ by that share, as between two devices (default: not at all)",
    )  # fmt: skip
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Do it."""
    from mpscffi.replay import Bundle, cut

    if (given.cut is None) != (given.output is None):
        raise UsageError("--cut N and -o CAPTURE go together")
    bundle = Bundle(given.bundle)
    if given.list:
        _list(bundle)
        return 0
    if given.cut is not None:
        if os.path.lexists(given.output):
            raise UsageError(f"-o {given.output}: exists already")
        cut(bundle, given.cut, given.output)
        print(f"{given.output}: command {given.cut}, {bundle.commands[given.cut].get('what')}")
        return 0
    return _replay(bundle, given)


def _list(bundle: Any) -> None:
    from mpscffi.replay import reading

    print(f"captured by mpscffi {bundle.head.get('version')} on {bundle.head.get('device')}")
    for number, line in bundle.commands.items():
        with reading(number):
            microseconds = (line["end"] - line["start"]) / 1e3
            failed = f", failed: {line['failed']}" if line.get("failed") else ""
            print(f"{number}: {line['what']}; on {line['queue']}, {microseconds:.1f} us{failed}")


def _replay(bundle: Any, given: argparse.Namespace) -> int:
    import mpscffi
    from mpscffi.replay import replay

    different = total = 0
    for outcome in replay(bundle, given.only, given.rtol):
        total += 1
        different += not outcome.is_same
        word = "same" if outcome.is_same else "DIFFERENT"
        print(f"{outcome.number}: {outcome.what}: {word}{': ' + outcome.failure if outcome.failure else ''}")
        for difference in outcome.differences:
            print(f"    buffer {difference.buffer} ({difference.what}): {difference.text}")
    print(f"{total - different} of {total} commands came out as captured, on {mpscffi.current_device().name}")
    return 1 if different else 0
