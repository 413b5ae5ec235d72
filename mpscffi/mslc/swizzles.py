"""Writes through swizzles of swizzles, `v.zyx.yx = e`: one swizzle of the vector itself takes the place of them.

In the prelude a swizzle is read as a copy, and a write to a copy would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tokens import IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tokens import Tokens

_WORDS = ("xyzw", "rgba")
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "++", "--"}


def written_chains(tokens: Tokens) -> Iterator[tuple[int, int, str]]:
    """Find chains of swizzles that are written to.

    Yields
    ------
    (int, int, str)
        The tokens of the chain, from its first swizzle on and without the point before it; the swizzle that means the
        same.
    """
    text, members = tokens.text, _other_meanings(tokens)
    index = 1
    while index < len(text):
        start = index
        index += 1
        if not _is_swizzle(tokens, start) or len(text[start]) < 2 or text[start] in members:
            continue
        meant = text[start]
        while index + 1 < len(text) and text[index] == "." and _is_swizzle(tokens, index + 1):
            meant = _composed(meant, text[index + 1])
            index += 2
        if index > start + 1 and meant and _is_written(text, start, index):
            yield start, index, meant


def _other_meanings(tokens: Tokens) -> set[str]:
    """Words that a source uses otherwise than behind a point: they may be members of its own classes."""
    return {
        word
        for index, word in enumerate(tokens.text)
        if tokens.kind[index] == IDENTIFIER and tokens.text[index - 1] not in (".", "->")
    }


def _is_swizzle(tokens: Tokens, index: int) -> bool:
    word = tokens.text[index]
    return (
        tokens.text[index - 1] in (".", "->")
        and 1 <= len(word) <= 4
        and any(set(word) <= set(letters) for letters in _WORDS)
    )


def _composed(outer: str, inner: str) -> str:
    """Return what `inner` of `outer` names; "" if that cannot be."""
    letters = _WORDS[0] if inner[0] in _WORDS[0] else _WORDS[1]
    places = [letters.index(letter) for letter in inner]
    return "".join(outer[place] for place in places) if max(places) < len(outer) else ""


def _is_written(text: list[str], start: int, stop: int) -> bool:
    following = text[stop] if stop < len(text) else ""
    if following == ">":  # `>>=` is three tokens
        return text[stop : stop + 3] == [">", ">", "="] or text[stop : stop + 2] == [">", ">="]
    if following in _ASSIGNMENTS:
        return True
    begin = start - 2
    return begin > 0 and text[begin - 1] in ("++", "--")
