"""How LLVM's types lie in memory, on the machines that kernels are compiled for."""

from __future__ import annotations

import re

from ..air.module import split_list
from .code import NotGangedError

_SCALARS = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_ARRAY = re.compile(r"([\[<])(\d+) x (.*)[\]>]")


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
        """Bytes from one value to the next in an array."""
        return self._layout(kind)[0]

    def _layout(self, kind: str) -> tuple[int, int]:
        """Size and alignment."""
        if kind in self._types:
            return self._layout(self._types[kind])
        if kind in _SCALARS:
            return _SCALARS[kind], _SCALARS[kind]
        if re.fullmatch(r"i\d+", kind):
            alignment = min(_power_of_two((int(kind[1:]) + 7) // 8), 16)
            return _rounded((int(kind[1:]) + 7) // 8, alignment), alignment
        if match := _ARRAY.fullmatch(kind):
            count = int(match[2])
            if match[1] == "<":
                size = (count + 7) // 8 if match[3] == "i1" else count * self.of(match[3])
                return (_power_of_two(size),) * 2
            size, alignment = self._layout(match[3])
            return count * size, alignment
        if kind.startswith(("{", "<{")):
            is_packed = kind[0] == "<"
            parts = split_list(kind.removeprefix("<").removesuffix(">").strip()[1:-1].strip())
            return self._struct([part for part in parts if part], is_packed)
        raise NotGangedError(f"a value of the type {kind}")

    def _struct(self, parts: list[str], is_packed: bool) -> tuple[int, int]:
        end, most = 0, 1
        for part in parts:
            size, alignment = self._layout(part)
            if not is_packed:
                end, most = _rounded(end, alignment), max(most, alignment)
            end += size
        return _rounded(end, most), most


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
