"""Checks many Metal files, and counts what compiles: `mpscffi-mslc --check DIR`."""

from __future__ import annotations

import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import provider
from .errors import CompileError
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator

_MESSAGE = re.compile(r"(?:fatal )?error: (.*)")


@dataclass(slots=True)
class _Outcome:
    """What became of one file."""

    path: str
    kernels: int = 0
    collective: int = 0
    log: str = ""


@dataclass(slots=True)
class _Row:
    """What became of the files of one folder."""

    files: int = 0
    passed: int = 0
    kernels: int = 0
    collective: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def survey(root: str, options: Options, *, instantiate: bool, jobs: int) -> int:
    """Check all .metal files below a directory, and print a table with a row for each folder in it.

    Parameters
    ----------
    root : str
        A directory, or one file.
    options : Options
        For all files; the directory of each file is searched for headers first.
    instantiate : bool
        Compile all kernel templates that a file instantiates, not only their signatures.
    jobs : int
        How many files to check at once.

    Returns
    -------
    int
        0 if all files compile, else 1.
    """
    paths = list(_metal_files(root))
    if not paths:
        raise FileNotFoundError(f"no .metal file below '{root}'")
    rows: dict[str, _Row] = {}
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        outcomes = pool.map(lambda path: _check(path, options, instantiate), paths)
        for outcome in outcomes:
            relative = os.path.relpath(outcome.path, root)
            folder = relative.partition(os.sep)[0] if os.sep in relative else "."
            row = rows.setdefault(folder, _Row())
            row.files += 1
            if outcome.log:
                reason = _reason(outcome.log)
                row.reasons[reason] += 1
                print(f"{relative}: {reason}", flush=True)
            else:
                row.passed += 1
                row.kernels += outcome.kernels
                row.collective += outcome.collective
    _print_table(rows)
    return 0 if all(row.passed == row.files for row in rows.values()) else 1


def _metal_files(root: str) -> Iterator[str]:
    if os.path.isfile(root):
        yield root
        return
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(files):
            if name.endswith(".metal"):
                yield os.path.join(directory, name)


def _check(path: str, options: Options, instantiate: bool) -> _Outcome:
    outcome = _Outcome(path)
    directory = os.path.dirname(os.path.abspath(path))
    own = Options(options.math_mode, options.defines, (directory, *options.include_dirs), options.language_version)
    try:
        with open(path, encoding="utf-8") as file:
            program = provider.program(file.read(), own)
        program.check(instantiate=True if instantiate else None)
    except CompileError as error:
        outcome.log = error.log
        return outcome
    except UnicodeDecodeError:
        outcome.log = "error: the file is not UTF-8"
        return outcome
    rewritten = program.rewritten
    outcome.kernels = len(rewritten.entries)
    outcome.collective = sum(
        rewritten.calls.needs_fibers(entry.kernel.function) for entry in rewritten.entries.values()
    )
    return outcome


def _reason(log: str) -> str:
    match = _MESSAGE.search(log)
    return match.group(1) if match else log.strip().partition("\n")[0]


def _print_table(rows: dict[str, _Row]) -> None:
    total = _Row()
    width = max(len(name) for name in [*rows, "all"])
    print(f"{'folder':<{width}}  files   pass  kernels  collective")
    for name, row in [*sorted(rows.items()), ("all", total)]:
        print(f"{name:<{width}}  {row.files:5}  {row.passed:5}  {row.kernels:7}  {row.collective:10}")
        if row is not total:
            total.files += row.files
            total.passed += row.passed
            total.kernels += row.kernels
            total.collective += row.collective
            total.reasons += row.reasons
    if total.reasons:
        print("\nwhat does not compile, by the first error:")
        for reason, count in total.reasons.most_common():
            print(f"{count:5}  {reason}")
