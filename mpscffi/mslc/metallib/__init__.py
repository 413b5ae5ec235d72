"""Precompiled Metal libraries: the container of a `.metallib` file, and what the host device makes of it.

`container` reads, `writer` writes, and `library` lists a library's kernels and builds them, through `mpscffi.mslc.air`.
"""

from __future__ import annotations

from .container import MAGIC, MetallibError
from .library import build, describe, emit, table

__all__ = ["MAGIC", "MetallibError", "build", "describe", "emit", "table"]
