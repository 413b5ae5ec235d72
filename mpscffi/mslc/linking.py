"""Makes a kernel library of object files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import process
from .target import math_libraries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .toolchain import Toolchain

# What LLVM makes of loops that move memory: the C library of the process has them.
_FROM_PROCESS = {"memcpy", "memmove", "memset", "memcmp", "bcmp"}
_UNRESOLVED = re.compile(r"undefined (?:symbol: |reference to [`'])([^'\n]+)")


def link(toolchain: Toolchain, objects: Sequence[str], output: str, directory: str) -> str:
    """Link a kernel library.

    Parameters
    ----------
    toolchain : Toolchain
    objects : sequence of str
        Paths of object files.
    output : str
        Path of the library.
    directory : str
        The linker's working directory.

    Returns
    -------
    str
        Why it failed; empty if it did not.
    """
    command = toolchain.linker
    checks = ["-z", "defs", "--warn-unresolved-symbols"]
    if not command:
        command = [*toolchain.compiler, "-nostdlib"]
        checks = [f"-Wl,{option}" for option in checks]
    finished = process.run([*command, *checks, "-shared", "-o", output, *objects, *math_libraries()], directory)
    if finished.status:
        return f"linking failed\n{finished.errors}"
    missing = dict.fromkeys(_UNRESOLVED.findall(finished.errors))
    names = ", ".join(f"'{name}'" for name in missing if name not in _FROM_PROCESS)
    return f"called but nowhere defined: {names}" if names else ""
