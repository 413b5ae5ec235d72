"""The command ``mpscffi``, also as ``python -m mpscffi``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mpscffi import __version__, errors
from mpscffi.commands import bench, cache, check, replay, run
from mpscffi.commands.options import UsageError

# What the command line says is wrong, for this kernel or this file.
_NOT_POSSIBLE = (
    errors.ArgumentTypeError,
    errors.InvalidArgumentError,
    errors.LimitExceededError,
    errors.NotFoundError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 if something failed, 2 if what was asked for cannot be done.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; by default that of the process.
    """
    parser = argparse.ArgumentParser(
        prog="mpscffi",
        description="Metal compute from Python, on a GPU or the CPU.",
        epilog="The exit status is 0, 1 if something failed (a source that does not compile, a kernel that fails, a "
        "wrong result), 2 if what was asked for cannot be done. mpscffi COMMAND --help tells more of each.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    info = commands.add_parser(
        "info",
        help="what to send with a report of a fault: versions, devices, settings",
        description="Prints versions, devices, the compiler and the settings in force: what to send with a report of a "
        "fault.",
    )
    info.set_defaults(command=_info)
    demo = commands.add_parser(
        "demo",
        help="compile kernels, check their results against NumPy, show timings and memory",
        description="Compiles kernels, runs them on the device in use, checks what they compute against NumPy, and "
        "shows timings and memory. It takes some seconds; the exit status is 1 if a result is wrong.",
    )
    demo.set_defaults(command=_demo)
    for module in (run, bench, check, cache, replay):
        module.add(commands)
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    own = commands.choices.get(words[0]) if words else None
    # Arguments may stand before, between and behind options, which a parser of subcommands does not allow for.
    given = own.parse_intermixed_args(words[1:]) if own else parser.parse_args(words)
    try:
        return int(given.command(given))
    except OSError as error:
        what = f"'{error.filename}': {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"mpscffi: {what}", file=sys.stderr)
        return 2
    except (UsageError, *_NOT_POSSIBLE) as error:
        print(f"mpscffi: {error}".rstrip("\n"), file=sys.stderr)
        return 2
    except errors.CompileError as error:
        print(_in_file(error, given), end="", file=sys.stderr)
        return 1
    except errors.Error as error:
        print(f"mpscffi: {_in_file(error, given)}".rstrip("\n"), file=sys.stderr)
        return 1


def _in_file(error: errors.Error, given: argparse.Namespace) -> str:
    """Return an error's text, told of the file that the command line names."""
    return str(error).replace("program_source:", f"{getattr(given, 'file', 'program_source')}:")


def _info(given: argparse.Namespace) -> int:
    del given
    from mpscffi import diagnostics

    print(diagnostics())
    return 0


def _demo(given: argparse.Namespace) -> int:
    del given
    from mpscffi.demo import main as demo

    return demo()


if __name__ == "__main__":
    sys.exit(main())
