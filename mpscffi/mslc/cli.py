"""The command `mpscffi-mslc`: compile Metal source to a kernel library, list it, or check many files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from . import provider
from .options import MATH_MODES, Options

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMS = {"cpp": ".cpp", "asm": ".s", "llvm": ".ll"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        The exit status: 0, 1 if a source does not compile, 2 for wrong arguments.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.request or given.reply:
        if not (given.request and given.reply):
            parser.error("--request and --reply go together")
        from .request import serve

        serve(given.request, given.reply)
        return 0
    try:
        options = Options(given.math, given.define, given.include, _version(given.std))
        if given.clear_cache:
            provider.clear_cache()
        elif given.cache:
            stats = provider.cache_stats()
            print(f"{stats.directory}: {stats.files} files, {stats.size} bytes of at most {stats.limit}")
        elif given.check:
            from .survey import survey

            return survey(given.check, options, instantiate=given.instantiate, jobs=given.jobs)
        elif not given.file:
            parser.error("a Metal file is needed, or --check DIR")
        else:
            _compile(given, options)
    except provider.CompileError as error:
        sys.stderr.write(error.log)
        return 1
    except (provider.CompilerMissing, provider.RequestError, OSError) as error:
        print(f"mpscffi-mslc: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpscffi-mslc", description="Compiles Metal kernels for the CPU: the host device's compiler."
    )
    parser.add_argument("file", nargs="?", metavar="FILE.metal", help="the source; - for standard input")
    parser.add_argument("-o", metavar="FILE", dest="output", help="what to write; FILE.so by default")
    parser.add_argument("--kernel", metavar="NAME", help="which kernel; not needed if there is one alone")
    parser.add_argument("-I", metavar="DIR", action="append", default=[], dest="include", help="look for headers there")
    parser.add_argument("-D", metavar="NAME[=VALUE]", action="append", default=[], dest="define", help="define a macro")
    parser.add_argument("--math", choices=MATH_MODES, default="safe", help="the math mode (default: safe)")
    parser.add_argument("--std", metavar="MAJOR.MINOR", help="version of the language")
    parser.add_argument("--emit", choices=sorted(_FORMS), help="write generated code instead of a library")
    parser.add_argument("--list", action="store_true", help="print the kernels and function constants")
    parser.add_argument("--check", metavar="DIR", help="check all .metal files below a directory, and print a table")
    parser.add_argument("--instantiate", action="store_true", help="with --check: compile every kernel of each file")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="with --check: so many files at once")
    parser.add_argument("--cache", action="store_true", help="tell what is kept on disk, and where")
    parser.add_argument("--clear-cache", action="store_true", help="remove what is kept on disk")
    parser.add_argument("--request", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--reply", metavar="FILE", help=argparse.SUPPRESS)
    return parser


def _version(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, _, minor = text.partition(".")
    if not major.isdigit() or not (minor or "0").isdigit():
        raise provider.RequestError(f"the language version must be MAJOR.MINOR, not '{text}'")
    return int(major), int(minor or 0)


def _compile(given: argparse.Namespace, options: Options) -> None:
    if given.file == "-":
        data, base = sys.stdin.buffer.read(), ""
    else:
        with open(given.file, "rb") as file:
            data = file.read()
        base = os.path.dirname(os.path.abspath(given.file))
    try:
        source = data.decode("utf-8")
    except UnicodeDecodeError:
        raise provider.RequestError(f"'{given.file}' is not UTF-8") from None
    if base:
        options = Options(options.math_mode, options.defines, (base, *options.include_dirs), options.language_version)
    listing = provider.check(source, options)
    if given.list:
        sys.stdout.write(listing.text())
        return
    kernel = given.kernel
    if kernel is None:
        if len(listing.kernels) != 1:
            names = ", ".join(listing.kernels) or "none"
            raise provider.RequestError(f"--kernel must say which kernel; there are: {names}")
        kernel = listing.kernels[0]
    stem = "kernel" if given.file == "-" else os.path.splitext(given.file)[0]
    if given.emit:
        output = given.output or stem + _FORMS[given.emit]
        provider.program(source, options).emit(kernel, {}, given.emit, output)
    else:
        output = given.output or stem + ".so"
        shutil.copyfile(provider.build(source, options, kernel), output)


if __name__ == "__main__":
    sys.exit(main())
