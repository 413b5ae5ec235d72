"""Where the C header and the C library are, for programs that are built against them."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def include_dir() -> str:
    """Return the directory of ``mpsshim.h``.

    In an installed package it lies beside the modules; in an editable install, in the source tree.
    """
    candidates = (_PACKAGE / "include", _PACKAGE.parent / "shim" / "include")
    for directory in candidates:
        if (directory / "mpsshim.h").is_file():
            return str(directory)
    raise FileNotFoundError(f"mpsshim.h is in none of {', '.join(map(str, candidates))}: reinstall mpscffi")


def library_path() -> str:
    """Return the path of the libmpsshim that this process has loaded."""
    from mpscffi._ffi import ffi, lib

    path: bytes = ffi.string(lib.mps_shim_path())
    return os.fsdecode(path)
