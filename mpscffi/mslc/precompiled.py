"""The prelude that stands for Metal's headers, precompiled once for each set of options."""

from __future__ import annotations

import os
import re
import tempfile
from typing import TYPE_CHECKING

from . import process
from .errors import CompileError
from .preprocess import PREDEFINED
from .target import DEBUG, compile_flags

if TYPE_CHECKING:
    from .cache import Cache
    from .options import Options
    from .toolchain import Toolchain

INCLUDE_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")
_REAL_INCLUDE_DIR = os.path.realpath(INCLUDE_DIR) + os.sep
_HEADER = os.path.join(INCLUDE_DIR, "mslc", "prelude.h")
_REFUSED = re.compile(r"error: .*(?:precompiled header|\bPCH\b|AST file)")


class Prelude:
    """The prelude for one compiler and one set of options.

    Parameters
    ----------
    toolchain : Toolchain
    options : Options
    cache : Cache
        Where the precompiled form is kept.
    """

    def __init__(self, toolchain: Toolchain, options: Options, cache: Cache) -> None:
        self._toolchain = toolchain
        self._cache = cache
        self._flags = compile_flags(options.math_mode, toolchain.is_zig)
        self._flags += ["-I", INCLUDE_DIR, *(DEBUG if options.debug else ())]
        self._version: list[str] = []
        if options.language_version is not None:
            major, minor = options.language_version
            self._version.append(f"-D__METAL_VERSION__={major * 100 + minor * 10}")
            self._flags += self._version
        self._key = cache.key("prelude", *self._flags)
        self._path = ""

    def arguments(self) -> list[str]:
        """Options of clang's that bring the prelude, which is compiled now if it has not been.

        Raises
        ------
        CompileError
            If the prelude itself does not compile.
        """
        if not self._path:
            self._path = self._cache.find(self._key, ".pch") or ""
        if not self._path:
            with tempfile.TemporaryDirectory(prefix="mslc-") as directory:
                self._build(os.path.join(directory, "prelude.pch"))
        return ["-include-pch", self._path, "-I", INCLUDE_DIR, *self._version]

    def preprocessor_arguments(self) -> list[str]:
        """Options of clang's that let a source include Metal's headers.

        A precompiled header is of no use to the preprocessor, which would print all of it.
        """
        return ["-I", INCLUDE_DIR, *self._version, "-include", PREDEFINED]

    def run(self, command: list[str], directory: str, *, seconds: int | None = None) -> process.Finished:
        """Run a command that uses the prelude; once more with a new one if clang refuses the one that was kept.

        That one lies in the command's own directory, where nobody who empties the cache can take it away.
        """
        finished = process.run(command, directory, seconds=seconds)
        if finished.status and _REFUSED.search(finished.errors):
            own = os.path.join(directory, "prelude.pch")
            self._build(own)
            kept = command[command.index("-include-pch") + 1]
            finished = process.run([own if word == kept else word for word in command], directory, seconds=seconds)
        return finished

    def has_header(self, name: str) -> bool:
        """Whether a name in an `#include` is one of the prelude's."""
        return os.path.isfile(os.path.join(INCLUDE_DIR, name))

    def owns(self, path: str) -> bool:
        """Whether a file is one of the prelude's."""
        return path.startswith(("<", _REAL_INCLUDE_DIR)) or (
            os.path.isabs(path) and os.path.realpath(path).startswith(_REAL_INCLUDE_DIR)
        )

    def _build(self, output: str) -> None:
        """Compile the prelude into a file, and keep a copy of it."""
        command = [*self._toolchain.compiler, "-x", "c++-header", *self._flags, "-o", output, _HEADER]
        finished = process.run(command, os.path.dirname(output))
        if finished.status:
            raise CompileError(f"'{command[0]}' cannot compile the Metal prelude:\n{finished.errors}")
        self._path = self._cache.store(self._key, ".pch", output)
