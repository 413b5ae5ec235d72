"""Warnings that point to the line of the caller's program, however deep in this package they come up."""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager

import numpy as np

__all__ = ["casting", "outside"]


def outside() -> int:
    """Return the ``stacklevel`` by which a warning of the calling function's is the first caller's outside of here."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "mpscffi":
        frame = frame.f_back
        level += 1
    return level


def casting() -> AbstractContextManager[object]:
    """Return a context in which NumPy's warnings of conversions point to the caller; the rest is as set outside."""
    warned = {kind: "call" for kind, how in np.geterr().items() if how == "warn"}
    return np.errstate(call=_warn, **warned)  # type: ignore[arg-type, unused-ignore]


def _warn(error: str, flags: int) -> None:
    del flags
    warnings.warn(f"{error} encountered in cast", RuntimeWarning, stacklevel=outside())
