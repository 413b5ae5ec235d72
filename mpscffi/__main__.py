"""The command ``mpscffi``, also as ``python -m mpscffi``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; by default that of the process.
    """
    parser = argparse.ArgumentParser(prog="mpscffi", description="Metal compute from Python, on a GPU or the CPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="what to send with a report of a fault: versions, devices, compiler, settings")
    commands.add_parser("demo", help="compile kernels, check their results against NumPy, show timings and memory")
    if parser.parse_args(arguments).command == "info":
        from mpscffi import diagnostics

        print(diagnostics())
        return 0
    from mpscffi.demo import main as demo

    return demo()


if __name__ == "__main__":
    sys.exit(main())
