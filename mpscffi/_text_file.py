"""Files of text that the package writes where a caller wants them."""

from __future__ import annotations

import os

from mpscffi.errors import ArgumentTypeError, file_error

__all__ = ["path_of", "write_text"]


def path_of(path: str | os.PathLike[str], function: str) -> str:
    """Return a path that a caller gave to the public `function` as text."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(
            f"{function}: got a path of type {type(path).__name__}, expected str or path-like"
        ) from None


def write_text(path: str | os.PathLike[str], text: str, function: str) -> None:
    """Write a file; what is there is replaced."""
    target = path_of(path, function)
    try:
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise file_error(error, target) from None
