"""Finds the C++ compiler, and tells compilers apart without running them."""

from __future__ import annotations

import os
import sys

from .errors import CompilerMissing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OLDEST_CLANG = 19
_NEWEST_CLANG = 29

_HOW_TO_GET_ONE = (
    "compiling Metal source on the host device needs clang 19 or newer. Install the PyPI package with "
    "'pip install ziglang', or a clang of your system, or name one in MPSCFFI_CXX"
)


class Toolchain:
    """A compiler and the linker that goes with it.

    Parameters
    ----------
    compiler : sequence of str
        The command, to which clang's options are added.
    linker : sequence of str
        The command of an ld-compatible linker; empty to link through the compiler.
    needs_version_check : bool
        Whether it is not known yet that this is a clang that is new enough.

    Attributes
    ----------
    identity : str
        Differs from that of any other compiler, or version of it, and is found without running it.
    """

    __slots__ = ("compiler", "identity", "linker", "needs_version_check")

    def __init__(self, compiler: Sequence[str], linker: Sequence[str], needs_version_check: bool) -> None:
        self.compiler = list(compiler)
        self.linker = list(linker)
        self.needs_version_check = needs_version_check
        self.identity = "\n".join([*compiler, *linker, _stamp(compiler[0])])

    @property
    def is_zig(self) -> bool:
        """Whether this is the clang inside Zig."""
        return self.linker[-1:] == ["ld.lld"] and len(self.linker) > 1


def find_toolchain() -> Toolchain:
    """Return the compiler to use: of MPSCFFI_CXX, else of the `ziglang` package, else the newest clang on PATH.

    Raises
    ------
    CompilerMissing
    """
    command = os.environ.get("MPSCFFI_CXX", "").strip()
    if command:
        return _from_command(command)
    for directory in sys.path:
        zig = os.path.join(directory, "ziglang", "zig")
        if os.access(zig, os.X_OK):
            return _zig([zig])
    for version in range(_NEWEST_CLANG, OLDEST_CLANG - 1, -1):
        path = which(f"clang-{version}")
        if path is not None:
            return _clang([path], False)
    path = which("clang")
    if path is not None:
        return _clang([path], True)
    raise CompilerMissing(f"no compiler found: {_HOW_TO_GET_ONE}")


def check_version(toolchain: Toolchain, text: str) -> None:
    """Look at what a compiler answers to `--version`.

    Raises
    ------
    CompilerMissing
        If it is no clang, or too old a one.
    """
    name = toolchain.compiler[0]
    _, found, rest = text.partition("clang version ")
    digits = rest.partition(".")[0]
    if not found or not digits.isdigit():
        first = text.strip().partition("\n")[0]
        raise CompilerMissing(f"'{name}' is no clang (it says '{first}'): {_HOW_TO_GET_ONE}")
    if int(digits) < OLDEST_CLANG:
        raise CompilerMissing(f"'{name}' is clang {digits}, which is too old: {_HOW_TO_GET_ONE}")


def which(name: str) -> str | None:
    """Full path of a program, as the shell would find it."""
    if os.sep in name:
        return name if os.access(name, os.X_OK) else None
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def _from_command(command: str) -> Toolchain:
    words = command.split()
    if '"' in command or "'" in command or "\\" in command:
        import shlex

        words = shlex.split(command)
    path = which(words[0])
    if path is None:
        raise CompilerMissing(f"MPSCFFI_CXX names '{words[0]}', which is no program: {_HOW_TO_GET_ONE}")
    words[0] = path
    if "zig" in os.path.basename(path) or "ziglang" in words:
        while words[-1] in ("clang", "cc", "c++"):
            words.pop()
        return _zig(words)
    return _clang(words, True)


def _zig(words: list[str]) -> Toolchain:
    # `zig clang` is clang alone, without a linker; `zig c++` would bring a cache and defaults of its own.
    return Toolchain([*words, "clang"], [*words, "ld.lld"], False)


def _clang(words: list[str], needs_version_check: bool) -> Toolchain:
    """Return a clang of the system, with its own lld if there is one, else linking through the compiler."""
    real = os.path.realpath(words[0])
    suffix = os.path.basename(words[0]).rpartition("-")[2]
    candidates = [os.path.join(os.path.dirname(real), "ld.lld")]
    if suffix.isdigit():
        candidates.append(f"ld.lld-{suffix}")
    candidates.append("ld.lld")
    linker = next((path for path in map(which, candidates) if path is not None), None)
    return Toolchain(words, [linker] if linker is not None else [], needs_version_check)


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"
