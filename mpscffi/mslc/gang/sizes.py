"""Sizes of LLVM's types, rounded up."""

from __future__ import annotations

import re

from ..air.module import split_list
from .code import NotGangedError

_SCALARS = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_ARRAY = re.compile(r"[\[<](\d+) x (.*)[\]>]")


class Sizes:
    """Knows how much memory a value takes.

    Parameters
    ----------
    types : list of str
        Definitions of a module's types.
    """

    def __init__(self, types: list[str]) -> None:
        pairs = (line.partition(" = type ") for line in types)
        self._types = {name: text for name, _, text in pairs}

    def of(self, kind: str) -> int:
        """Bytes of a value in memory, and a bit more where there may be gaps."""
        if kind in _SCALARS:
            return _SCALARS[kind]
        if re.fullmatch(r"i\d+", kind):
            return (int(kind[1:]) + 7) // 8
        if match := _ARRAY.fullmatch(kind):
            return int(match[1]) * self.of(match[2])
        if kind.startswith(("{", "<{")):
            parts = split_list(kind.strip("<>").strip("{} "))
            return sum((self.of(part) + 15) // 16 * 16 if len(parts) > 8 else self.of(part) + 8 for part in parts)
        if kind in self._types:
            return self.of(self._types[kind])
        raise NotGangedError(f"a value of the type {kind}")
