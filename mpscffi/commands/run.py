"""``mpscffi run``: one kernel, once, on arrays from files."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from mpscffi.commands.options import ARGUMENT_HELP, Call, UsageError, add_kernel_options

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the subcommand to a parser."""
    parser = commands.add_parser(
        "run",
        help="run a kernel on .npy files",
        description="Runs one kernel of a Metal file once, and saves what it wrote.",
        epilog=ARGUMENT_HELP + "\nexample: mpscffi run saxpy.metal saxpy y.npy x.npy 2.0 -o y=out.npy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_kernel_options(parser)
    parser.add_argument(
        "-o", metavar="[SLOT=]FILE", action="append", default=[], dest="output",
        help="save an array there afterwards: that of a slot or name, or the one array that the kernel writes",
    )  # fmt: skip
    parser.add_argument("--print", metavar="SLOT", action="append", default=[], dest="shown", help="print an array")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Do it."""
    import mpscffi
    from mpscffi.commands.bench import duration

    call = Call(given)
    outputs = [_output(call, text) for text in given.output]
    shown = [_array_slot(call, text) for text in given.shown]
    start, end = mpscffi.Event(enable_timing=True), mpscffi.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    mpscffi.synchronize()
    print(f"{call.kernel.name}: {duration(start.elapsed_time(end) * 1e-3)} on {mpscffi.current_device().name}")
    _save(call, outputs)
    written = [call.name(slot) for slot in call.written()]
    if written and not outputs and not shown:
        name = written[0]
        print(f"mpscffi: nothing was saved: -o {name}=FILE.npy saves {name}, --print {name} shows it", file=sys.stderr)
    for slot in shown:
        print(f"{call.name(slot)} = {call.arrays[slot].numpy()}")
    return 0


def _array_slot(call: Call, key: str) -> int:
    slot = call.slot(key)
    if slot not in call.arrays:
        raise UsageError(f"argument {key!r} is no array")
    return slot


def _output(call: Call, text: str) -> tuple[int, str]:
    """Return the slot and the file of a `-o`."""
    key, sign, path = text.partition("=")
    folder = os.path.dirname(path if sign else text) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"-o {text}: there is no folder {folder!r}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"-o {text}: the folder {folder!r} cannot be written to")
    if sign:
        return _array_slot(call, key), path
    written = call.written()
    if len(written) != 1:
        names = ", ".join(map(call.name, written)) or "no array"
        raise UsageError(f"-o {text}: the kernel writes {names}: say which, as -o NAME={text}")
    return written[0], text


def _save(call: Call, outputs: list[tuple[int, str]]) -> None:
    import numpy as np

    for slot, path in outputs:
        with open(path, "wb") as file:  # np.save would add a suffix
            np.save(file, call.arrays[slot].numpy(), allow_pickle=False)
