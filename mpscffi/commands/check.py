"""``mpscffi check``: whether Metal files compile, for people and for CI."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mpscffi.commands.options import UsageError, add_compile_options, compile_file, counted
from mpscffi.mslc.templates import idle_templates

__all__ = ["add"]

_DIAGNOSTIC = re.compile(
    r"(?P<file>[^\n]+?):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?(?P<kind>error|warning): (?P<text>.*)"
)
_SOURCE = "program_source"


class _Diagnostic(NamedTuple):
    """One message of the compiler."""

    kind: str
    file: str
    line: int
    column: int
    text: str


def add(commands: Any) -> None:
    """Add the subcommand to a parser."""
    parser = commands.add_parser(
        "check",
        help="compile a tree of .metal files",
        description="Compiles Metal files, and tells what is wrong with them. The exit status is 0 if all compile, "
        "1 if one does not, 2 if there is none.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a file, or a directory with .metal files below it")
    parser.add_argument(
        "--build", action="store_true",
        help="also build every kernel, except those that need function constants; --validate does so, too",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=["text", "github"], default="text", help="github: annotations for its pull requests"
    )
    add_compile_options(parser)
    parser.set_defaults(command=check)


def check(given: argparse.Namespace) -> int:
    """Do it."""
    paths = [path for root in given.paths for path in metal_files(root)]
    if not paths:
        raise UsageError(f"no .metal file below {', '.join(given.paths)}")
    failed = kernels = skipped = templates = 0
    for path in paths:
        names, waiting, open_templates, log = _check(path, given)
        kernels += names
        skipped += waiting
        templates += open_templates
        failed += bool(log)
        if log:
            print(_annotations(path, log) if given.format == "github" else _named(path, log), flush=True)
    note = f", {skipped} of them not built as they need function constants" if skipped else ""
    if templates:
        note += f"; {counted(templates, 'template')} without an instantiation, of which no kernel was built"
    files = f"{counted(len(paths), 'file')}: {len(paths) - failed} compiled, {failed} failed"
    print(f"{files}; {counted(kernels, 'kernel')}{note}")
    return 1 if failed else 0


def metal_files(root: str) -> Iterator[str]:
    """Yield a file, or all .metal files below a directory, in order."""
    if not os.path.isdir(root):
        if not os.path.exists(root):
            raise UsageError(f"there is no '{root}'")
        yield root
        return
    for directory, directories, files in os.walk(root):
        directories.sort()
        yield from (os.path.join(directory, name) for name in sorted(files) if name.endswith(".metal"))


def _check(path: str, given: argparse.Namespace) -> tuple[int, int, int, str]:
    """Return how many kernels there are, how many lack constants, how many templates are idle, and the log."""
    from mpscffi import errors

    try:
        library = compile_file(path, given)
    except errors.CompileError as error:
        return 0, 0, 0, str(error)
    logs, skipped = [], 0
    for name in library if given.build or given.validate else ():
        try:
            library[name].arguments  # noqa: B018, asking builds it
        except errors.InvalidArgumentError as error:
            if "function constant" not in str(error):
                raise
            skipped += 1
        except (errors.CompileError, errors.LimitExceededError) as error:
            logs.append(str(error) if _DIAGNOSTIC.search(str(error)) else f"{_SOURCE}:1:1: error: {error}\n")
    idle = idle_templates(library.source or "") if "source" not in library else []
    return len(library), skipped, len(idle), "".join(dict.fromkeys(logs))


def _named(path: str, log: str) -> str:
    """Return a log with the file's own name."""
    return re.sub(rf"^{_SOURCE}(?=:)", lambda _: path, log, flags=re.MULTILINE).rstrip("\n")


def _annotations(path: str, log: str) -> str:
    found = [
        _Diagnostic(
            m["kind"], path if m["file"] == _SOURCE else m["file"], int(m["line"]), int(m["column"] or 1), m["text"]
        )
        for m in _DIAGNOSTIC.finditer(log)
    ]
    if not found:
        found = [_Diagnostic("error", path, 1, 1, log.strip())]
    return "\n".join(
        f"::{item.kind} file={_property(item.file)},line={item.line},col={item.column}::{_escaped(item.text)}"
        for item in dict.fromkeys(found)
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(path: str) -> str:
    """Return a path as a property, relative to where the command runs if it lies below."""
    relative = os.path.relpath(path)
    path = path if relative.startswith("..") else relative
    return _escaped(path).replace(":", "%3A").replace(",", "%2C")
