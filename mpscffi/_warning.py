"""Warnings that point to the line of the caller's program, however deep in this package they come up."""

from __future__ import annotations

import sys
import warnings

import numpy as np

from mpscffi.errors import ArgumentTypeError, InvalidArgumentError

__all__ = ["casting", "outside"]


def outside() -> int:
    """Return the ``stacklevel`` by which a warning of the calling function's is the first caller's outside of here."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "mpscffi":
        frame = frame.f_back
        level += 1
    return level


class casting(np.errstate):
    """A context in which NumPy converts for a public function, whose name its errors get.

    Its warnings point to the caller; the rest is as set outside.

    Parameters
    ----------
    function : str
        The public function.
    """

    __slots__ = ("_function",)

    def __init__(self, function: str) -> None:
        warned = {kind: "call" for kind, how in np.geterr().items() if how == "warn"}
        super().__init__(call=_warn, **warned)  # type: ignore[arg-type, unused-ignore]
        self._function = function

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[arg-type, unused-ignore]
        if kind is TypeError:
            raise ArgumentTypeError(f"{self._function}: {error}") from error
        if kind is ValueError:
            raise InvalidArgumentError(f"{self._function}: {error}") from error


def _warn(error: str, flags: int) -> None:
    del flags
    warnings.warn(f"{error} encountered in cast", RuntimeWarning, stacklevel=outside())
