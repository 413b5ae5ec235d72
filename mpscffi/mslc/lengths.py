"""Template parameters that are lengths of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .tokens import IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .declarations import Declarations
    from .tokens import Tokens

_INTEGER_TYPES = {
    *("unsigned", "uint", "ushort", "ulong", "uchar", "size_t", "short", "long", "char"),
    *("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int8_t", "int16_t", "int64_t"),
}
_VECTORS = {"vec", "packed_vec"}
# So far behind the template's parameters, vectors are looked for that have the length.
_HEADER = 80


@dataclass(slots=True)
class VectorLength:
    """A parameter as `uint N` of a function with a `vec<T, N>`. Tokens [first, name) are its type.

    `uses` are the tokens that name it in bodies.
    """

    first: int
    name: int
    type_name: str
    uses: list[int]


def vector_lengths(tokens: Tokens, declarations: Declarations) -> Iterator[VectorLength]:
    """Find the lengths that C++ would not deduce, as their type is not that of the class's own parameter, int."""
    text = tokens.text
    for opening, closing in declarations.templates:
        for name in range(opening + 2, closing):
            if tokens.kind[name] != IDENTIFIER or text[name + 1] not in (",", ">", "="):
                continue
            first = name
            while first > opening and text[first - 1] not in ("<", ","):
                first -= 1
            words = text[first:name]
            is_integer = bool(words) and words[0] in _INTEGER_TYPES and set(words[1:]) <= _INTEGER_TYPES | {"int"}
            if is_integer and _is_length(tokens, text[name], closing):
                yield VectorLength(first, name, " ".join(words), _uses(tokens, declarations, closing, text[name]))


def _is_length(tokens: Tokens, name: str, closing: int) -> bool:
    text = tokens.text
    return any(
        text[use] == name
        and text[use - 1] == ","
        and text[use + 1] == ">"
        and not _VECTORS.isdisjoint(text[max(use - 6, 0) : use])
        for use in range(closing, min(closing + _HEADER, len(text) - 1))
    )


def _uses(tokens: Tokens, declarations: Declarations, closing: int, name: str) -> list[int]:
    """Where the bodies of the functions that the template is, or has, name its parameter."""
    start = closing + 1
    stop = next((item.stop for item in declarations.classes if item.start <= closing < item.key), start)
    return [
        index
        for function in declarations.functions
        if function.head == start or start <= function.start < stop
        for index in range(function.body + 1, function.stop - 1)
        if tokens.text[index] == name and tokens.text[index - 1] not in (".", "->", "::")
    ]
