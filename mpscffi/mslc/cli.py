"""The command `mpscffi-mslc`: compile Metal source to a kernel library, list it, or check many files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

from . import provider
from .diagnostics import renamed
from .options import MATH_MODES, Options
from .templates import instantiated, kernel_templates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORMS = {"air": ".air.ll", "asm": ".s", "cpp": ".cpp", "llvm": ".ll"}
# Names of kernels in a message.
_SHOWN = 20


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
    _refuse_combinations(parser, given)
    if given.cpu:
        os.environ["MPSCFFI_CPU"] = given.cpu  # it counts for all that is compiled in this process
    try:
        return _run(parser, given)
    except provider.CompileError as error:
        sys.stderr.write(renamed(error.log, given.file) if given.file not in (None, "-") else error.log)
        return 1
    except OSError as error:
        what = f"'{error.filename}': {error.strerror}" if error.filename else str(error)
        print(f"mpscffi-mslc: {what}", file=sys.stderr)
    except (provider.CompilerMissing, provider.RequestError) as error:
        print(f"mpscffi-mslc: {error}", file=sys.stderr)
    return 2


def _run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    for directory in given.include:
        if not os.path.isdir(directory):
            raise provider.RequestError(f"there is no directory '{directory}', which -I names")
    options = Options(given.math, given.define, given.include, _version(given.std))
    if given.clear_cache:
        provider.clear_cache()
    elif given.cache:
        from mpscffi.memory.sizes import readable

        stats = provider.cache_stats()
        files = "1 file" if stats.files == 1 else f"{stats.files} files"
        sizes = f"{readable(stats.size)} of at most {readable(stats.limit)}"
        print(f"{stats.directory or 'nowhere'}: {files}, {sizes}")
    elif given.check:
        from .survey import survey

        return survey(
            given.check,
            options,
            instantiate=given.instantiate,
            jobs=given.jobs or 1,
            warnings=given.warnings,
            style=given.format or "text",
        )
    elif not given.file:
        parser.error("a Metal file is needed, or --check DIR")
    else:
        _compile(given, options)
    return 0


def _refuse_combinations(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Refuse options that would be ignored."""
    of_check = {"--instantiate": given.instantiate, "--warnings": given.warnings, "--format": given.format}
    of_file = {"FILE": given.file, "-o": given.output, "--kernel": given.kernel, "--constant": given.constant}
    of_file |= {"--emit": given.emit, "--list": given.list}
    of_build = {name: value for name, value in of_file.items() if name not in ("FILE", "--list")}
    refused = [("--check", of_file)] if given.check else [("", of_check | {"--jobs": given.jobs is not None})]
    if given.list:
        refused.append(("--list", of_build))
    for option, others in refused:
        name = next((name for name, value in others.items() if value), None)
        if name is not None:
            parser.error(f"{option} does not go with {name}" if option else f"{name} goes with --check alone")
    if given.jobs is not None and given.jobs < 1:
        parser.error(f"--jobs must be 1 or more, not {given.jobs}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpscffi-mslc",
        description="Compiles Metal kernels for the CPU: the host device's compiler.",
        epilog="The exit status is 0, 1 if a source does not compile, 2 if what was asked for cannot be done.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="tell the package's version")
    parser.add_argument("file", nargs="?", metavar="FILE", help="a Metal source, or a metallib; - for standard input")
    parser.add_argument(
        "-o",
        metavar="FILE",
        dest="output",
        help="what to write; FILE.so by default; - for standard output, with --emit",
    )
    parser.add_argument("--kernel", metavar="NAME", help="which kernel; a library without it holds all of a source")
    parser.add_argument("-I", metavar="DIR", action="append", default=[], dest="include", help="look for headers there")
    parser.add_argument("-D", metavar="NAME[=VALUE]", action="append", default=[], dest="define", help="define a macro")
    parser.add_argument(
        "--constant", metavar="NAME=VALUE", action="append", default=[], help="give a function constant its value"
    )
    parser.add_argument("--math", choices=MATH_MODES, default="safe", help="the math mode (default: safe)")
    parser.add_argument("--std", metavar="MAJOR.MINOR", help="version of the language")
    parser.add_argument("--cpu", metavar="NAME", help="the CPU to compile for, as x86-64-v3 (default: this machine's)")
    parser.add_argument("--emit", choices=sorted(_FORMS), help="write generated code instead of a library")
    parser.add_argument("--list", action="store_true", help="print the kernels and function constants")
    parser.add_argument(
        "--check",
        metavar="DIR",
        help="check a file, or all .metal files below a directory: print their errors and a table",
    )
    parser.add_argument(
        "--instantiate",
        action="store_true",
        help="with --check: compile every kernel, not only the source as it stands",
    )
    parser.add_argument("--warnings", action="store_true", help="with --check: print warnings, too")
    parser.add_argument(
        "--format", choices=("text", "github"), help="with --check: github for annotations of a workflow"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="with --check: so many files at once (default: 1)")
    parser.add_argument("--cache", action="store_true", help="tell what is kept on disk, and where")
    parser.add_argument("--clear-cache", action="store_true", help="remove what is kept on disk")
    parser.add_argument("--request", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--reply", metavar="FILE", help=argparse.SUPPRESS)
    return parser


class _Version(argparse.Action):
    """Tells the version, which is looked up only then: an unpacked package has none."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            text = version("mpscffi")
        except PackageNotFoundError:
            text = "of an unknown version: the package is not installed"
        print(parser.prog, text)
        parser.exit()


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
    stem = "kernel" if given.file == "-" else os.path.splitext(given.file)[0]
    if data.startswith(b"MTLB"):
        _compile_metallib(given, data, stem)
        return
    try:
        source = data.decode("utf-8")
    except UnicodeDecodeError:
        raise provider.RequestError(f"'{given.file}' is neither Metal source in UTF-8 nor a metallib") from None
    if base:
        options = Options(options.math_mode, options.defines, (base, *options.include_dirs), options.language_version)
    listing = provider.check(source, options)
    if given.kernel is not None and given.kernel not in listing.kernels:
        made = instantiated(source, given.kernel)
        if made is not None:
            source, given.kernel = made
            listing = provider.check(source, options)
    if given.list:
        sys.stdout.write(listing.text())
        return
    if given.kernel is None and len(listing.kernels) > 1 and not given.emit:
        constants = _constants(given, listing)
        _write(given, stem, lambda output: _build_all(source, options, constants, output))
        return
    kernel, constants = _kernel(given, listing, kernel_templates(source)), _constants(given, listing)
    if given.emit:
        program = provider.program(source, options)
        _emit(given, stem, lambda output: program.emit(kernel, constants, given.emit, output))
    else:
        _write(given, stem, lambda output: shutil.copyfile(provider.build(source, options, kernel, constants), output))


def _build_all(source: str, options: Options, constants: dict[str | int, tuple[int, bytes]], output: str) -> None:
    with tempfile.TemporaryDirectory(prefix="mslc-") as directory:
        path = os.path.join(directory, "library.so")
        provider.program(source, options).build_all(constants, path)
        shutil.copyfile(path, output)


def _emit(given: argparse.Namespace, stem: str, emit: Callable[[str], None]) -> None:
    """Write generated code where it is wanted."""
    if given.output != "-":
        emit(given.output or stem + _FORMS[given.emit])
        return
    with tempfile.TemporaryDirectory(prefix="mslc-") as directory:
        path = os.path.join(directory, "code")
        emit(path)
        with open(path, encoding="utf-8") as file:
            shutil.copyfileobj(file, sys.stdout)


def _write(given: argparse.Namespace, stem: str, build: Callable[[str], object]) -> None:
    """Build a library where it is wanted."""
    if given.output == "-":
        raise provider.RequestError("a library cannot be written to standard output: -o must name a file")
    build(given.output or stem + ".so")


def _compile_metallib(given: argparse.Namespace, data: bytes, stem: str) -> None:
    from . import metallib

    if given.list:
        sys.stdout.write(metallib.table(data))
        return
    listing = metallib.describe(data)
    kernel, constants = _kernel(given, listing), _constants(given, listing)
    if given.emit == "cpp":
        raise provider.RequestError("a metallib has no C++: --emit takes air, llvm or asm")
    if given.emit:
        _emit(given, stem, lambda output: metallib.emit(data, kernel, constants, given.emit, output))
    else:
        _write(given, stem, lambda output: shutil.copyfile(metallib.build(data, kernel, constants), output))


def _kernel(given: argparse.Namespace, listing: provider.Listing, templates: Sequence[str] = ()) -> str:
    """Return the kernel that is meant."""
    if given.kernel is not None:
        if given.kernel in templates and given.kernel not in listing.kernels:
            raise provider.RequestError(
                f"'{given.kernel}' is a template: --kernel must name an instantiation, as '{given.kernel}<float>'"
            )
        return str(given.kernel)
    if len(listing.kernels) != 1:
        names = ", ".join(listing.kernels[:_SHOWN]) or "none"
        more = f" and {len(listing.kernels) - _SHOWN} more" if len(listing.kernels) > _SHOWN else ""
        hint = f"; of the template '{templates[0]}' one is '{templates[0]}<float>'" if templates else ""
        raise provider.RequestError(f"--kernel must say which kernel; there are: {names}{more}{hint}")
    return listing.kernels[0]


def _constants(given: argparse.Namespace, listing: provider.Listing) -> dict[str | int, tuple[int, bytes]]:
    """Return the values of function constants that the command line gives."""
    from .values import encoded

    values: dict[str | int, tuple[int, bytes]] = {}
    for text in given.constant:
        name, sign, value = text.partition("=")
        names = ", ".join(dict.fromkeys(f"'{item.name}'" for item in listing.constants)) or "none"
        if not sign:
            raise provider.RequestError(f"--constant must be NAME=VALUE, not '{text}'; function constants are: {names}")
        known = [item for item in listing.constants if name in (item.name, str(item.index))]
        if not known:
            raise provider.RequestError(f"there is no function constant '{name}'; function constants are: {names}")
        key = known[0].name if name == known[0].name else known[0].index
        values[key] = known[0].data_type, encoded(name, known[0].data_type, value)
    return values


if __name__ == "__main__":
    sys.exit(main())
