"""Checks many Metal files, and counts what compiles: `mpscffi-mslc --check DIR`."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import provider
from .diagnostics import Finding, findings
from .errors import CompileError
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass(slots=True)
class Outcome:
    """What became of one file."""

    path: str
    kernels: int = 0
    collective: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """What keeps the file from compiling."""
        return [finding for finding in self.findings if finding.level == "error"]


@dataclass(slots=True)
class _Row:
    """What became of the files of one folder."""

    files: int = 0
    passed: int = 0
    without_kernels: int = 0
    kernels: int = 0
    collective: int = 0

    def add(self, other: _Row) -> None:
        self.files += other.files
        self.passed += other.passed
        self.without_kernels += other.without_kernels
        self.kernels += other.kernels
        self.collective += other.collective


def check_files(
    root: str, options: Options, *, instantiate: bool = False, warnings: bool = False, jobs: int = 1
) -> Iterator[Outcome]:
    """Check all .metal files below a directory.

    Parameters
    ----------
    root : str
        A directory, or one file.
    options : Options
        For all files; the directory of each file is searched for headers first.
    instantiate : bool
        Compile every kernel with all that runs it, not only the source as it stands.
    warnings : bool
        Ask for warnings, too.
    jobs : int
        How many files to check at once.

    Yields
    ------
    Outcome
        For each file, in the order of their paths.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    paths = list(_metal_files(root))
    if not paths:
        missing = "" if os.path.exists(root) else f": there is no '{root}'"
        raise FileNotFoundError(f"no .metal file below '{root}'{missing}")
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda path: _check(path, options, instantiate, warnings), paths)


def survey(
    root: str, options: Options, *, instantiate: bool, jobs: int, warnings: bool = False, style: str = "text"
) -> int:
    """Check all .metal files below a directory, and print what is wrong with them and a table.

    Parameters
    ----------
    root, options, instantiate, jobs, warnings
        As for `check_files`.
    style : str
        "text" for lines "PATH:LINE:COLUMN: error: TEXT", "github" for annotations of a workflow.

    Returns
    -------
    int
        0 if all files compile, else 1.
    """
    line_of: Callable[[Finding], str] = annotation if style == "github" else str
    rows: dict[str, _Row] = {}
    reasons: Counter[str] = Counter()
    printed: set[str] = set()
    for outcome in check_files(root, options, instantiate=instantiate, warnings=warnings, jobs=jobs):
        relative = os.path.relpath(outcome.path, root)
        folder = relative.partition(os.sep)[0] if os.sep in relative else "."
        rows.setdefault(folder, _Row()).add(_row(outcome))
        for line in dict.fromkeys(map(line_of, outcome.findings)):
            if line not in printed:  # what is in a header is found again with each file that includes it
                print(line, flush=True)
                printed.add(line)
        if outcome.errors:
            reasons[outcome.errors[0].text] += 1
    _print_table(rows)
    _print_reasons(reasons)
    return 1 if reasons else 0


def _metal_files(root: str) -> Iterator[str]:
    if os.path.isfile(root):
        yield root
        return
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(files):
            if name.endswith(".metal"):
                yield os.path.join(directory, name)


def _check(path: str, options: Options, instantiate: bool, warnings: bool) -> Outcome:
    outcome = Outcome(path)
    directory = os.path.dirname(os.path.abspath(path))
    own = Options(options.math_mode, options.defines, (directory, *options.include_dirs), options.language_version)
    try:
        with open(path, encoding="utf-8") as file:
            program = provider.program(file.read(), own)
        log = program.check(instantiate=True if instantiate else None, warnings=warnings)
    except CompileError as error:
        outcome.findings = findings(error.log, path)
        return outcome
    except (UnicodeDecodeError, OSError) as error:
        text = "the file is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        outcome.findings = [Finding(path, 1, 1, "error", text)]
        return outcome
    outcome.findings = findings(log, path) if log else []
    rewritten = program.rewritten
    outcome.kernels = len(rewritten.entries)
    outcome.collective = sum(
        rewritten.calls.needs_fibers(entry.kernel.function) for entry in rewritten.entries.values()
    )
    return outcome


def _row(outcome: Outcome) -> _Row:
    if outcome.errors:
        return _Row(1)
    if not outcome.kernels:
        return _Row(1, without_kernels=1)
    return _Row(1, 1, 0, outcome.kernels, outcome.collective)


def annotation(finding: Finding) -> str:
    """Return a message as a workflow command of GitHub, which shows it next to the line."""
    escaped = finding.text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    file = finding.file.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    column = f",col={finding.column}" if finding.column else ""
    return f"::{finding.level} file={file},line={finding.line}{column}::{escaped}"


def _print_table(rows: dict[str, _Row]) -> None:
    total = _Row()
    width = max(len(name) for name in [*rows, "folder"])
    print(f"{'folder':<{width}}  files   pass  no kernels  kernels  collective")
    for name, row in [*sorted(rows.items()), ("all", total)]:
        print(
            f"{name:<{width}}  {row.files:5}  {row.passed:5}  {row.without_kernels:10}  {row.kernels:7}"
            f"  {row.collective:10}"
        )
        if row is not total:
            total.add(row)


def _print_reasons(reasons: Counter[str]) -> None:
    found: Iterable[tuple[str, int]] = reasons.most_common()
    if found:
        print("\nwhat does not compile, by the first error:")
    for reason, count in found:
        print(f"{count:5}  {reason}")
