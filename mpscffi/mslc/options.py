"""How a source is to be compiled."""

from __future__ import annotations

import os

from .errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MATH_MODES = ("safe", "relaxed", "fast")
_OLDEST_LANGUAGE = (1, 0)
_NEWEST_LANGUAGE = (4, 0)


def fibers_alone() -> bool:
    """Whether all kernels in which threads meet are to be run with a fiber for each thread."""
    return os.environ.get("MPSCFFI_FIBERS") == "1"


class Options:
    """Options of a compilation.

    Parameters
    ----------
    math_mode : str
        "safe", "relaxed" or "fast".
    defines : sequence of str
        Macros, as "NAME" or "NAME=VALUE".
    include_dirs : sequence of str
        Directories of the user's headers. A relative `#include` of a source in memory is looked up in these alone.
    language_version : (int, int), optional
        Major and minor version of Metal's language, which decides `__METAL_VERSION__`.
    validate : bool
        Check accesses at run time.
    debug : bool
        Compile for a debugger: without optimization, with lines and variables. Also by MPSCFFI_SHADER_DEBUG=1.
    fibers : bool
        Internal: run kernels with barriers as fibers, even those that could be loops between their barriers.

    Raises
    ------
    RequestError
    """

    __slots__ = ("debug", "defines", "fibers", "include_dirs", "language_version", "math_mode", "validate")

    def __init__(
        self,
        math_mode: str = "safe",
        defines: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
        language_version: tuple[int, int] | None = None,
        validate: bool = False,
        debug: bool = False,
        fibers: bool = False,
    ) -> None:
        if math_mode not in MATH_MODES:
            raise RequestError(f"the math mode must be one of {', '.join(MATH_MODES)}, not {math_mode!r}")
        if language_version is not None and not _OLDEST_LANGUAGE <= language_version <= _NEWEST_LANGUAGE:
            given = ".".join(map(str, language_version))
            newest = ".".join(map(str, _NEWEST_LANGUAGE))
            raise RequestError(f"language version {given} is not supported: 1.0 to {newest} are")
        for define in defines:
            name = define.partition("=")[0]
            if not name.isidentifier() or "\n" in define:
                raise RequestError(f"a macro must be NAME or NAME=VALUE, not {define!r}")
        self.math_mode = math_mode
        self.defines = tuple(defines)
        self.include_dirs = tuple(include_dirs)
        self.language_version = language_version
        self.validate = validate
        self.debug = debug or os.environ.get("MPSCFFI_SHADER_DEBUG") == "1"
        self.fibers = fibers or fibers_alone()

    def key(self) -> str:
        """Text that differs for options that differ."""
        return repr(
            (
                self.math_mode,
                self.defines,
                self.include_dirs,
                self.language_version,
                self.validate,
                self.debug,
                self.fibers,
            )
        )
