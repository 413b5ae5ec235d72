"""The tokens of a Metal source, and the text that takes the place of each."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from . import process

if TYPE_CHECKING:
    from collections.abc import Sequence

# One alternative for each kind. Blanks, comments and spliced lines belong to no token.
_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t\r\n\f\v\\]+|//[^\n]*|/\*.*?(?:\*/|\Z))+)
    |(?P<identifier>[A-Za-z_$\x80-\U0010ffff][\w$]*)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
    |(?P<string>(?:u8|[uUL])?R"(?P<fence>[^(\n]{0,16})\(.*?(?:\)(?P=fence)"|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<operator>::|->|\+\+|--|&&|\|\||<<=|<<|[-+*/%&|^!=<>]=|\.\.\.|.)""",
    re.DOTALL | re.VERBOSE,
)

_CLOSING = {"(": ")", "[": "]", "{": "}"}

IDENTIFIER = "identifier"
NUMBER = "number"
STRING = "string"
OPERATOR = "operator"


class SourceError(Exception):
    """The source has no structure that the rewriter could follow.

    Parameters
    ----------
    message : str
        What was expected.
    offset : int
        Where in the text that became clear.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Tokens:
    """The tokens of a text, with a replacement for each.

    `>>` is two tokens, as it closes two template argument lists more often than it shifts.

    Attributes
    ----------
    text : list of str
        The tokens as they stand in the source.
    kind : list of str
        IDENTIFIER, NUMBER, STRING or OPERATOR, for each.
    start : list of int
        Offset of each in the source.
    output : list of str
        What is written in place of each. Between tokens the source's blanks and comments stay.
    partner : list of int
        For each bracket of `()[]{}` the index of the one it belongs to, else -1.

    Raises
    ------
    SourceError
        For brackets that do not match.
    CompileError
        From any method, when more time has gone by since `begin` than a compile may take.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.begin()
        self.text: list[str] = []
        self.kind: list[str] = []
        self.start: list[int] = []
        for match in _TOKEN.finditer(source):
            kind = match.lastgroup
            if kind == "blank" or kind is None:
                continue
            self.text.append(match.group())
            self.kind.append(STRING if kind == "fence" else kind)
            self.start.append(match.start())
        self.output = list(self.text)
        self.partner = self._pair_brackets()
        self._places: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.text)

    def places(self, name: str, start: int, stop: int) -> list[int]:
        """Return the tokens in [start, stop) whose text is a name."""
        if not self._places:
            for index, text in enumerate(self.text):
                self._places.setdefault(text, []).append(index)
        places = self._places.get(name, [])
        return places[bisect_left(places, start) : bisect_left(places, stop)]

    def begin(self) -> None:
        """Start to count the time."""
        self._limit = process.timeout()
        self._deadline = time.monotonic() + self._limit

    def _check_time(self) -> None:
        # What looks for the end of something is what a source without ends makes slow.
        if time.monotonic() > self._deadline:
            raise process.took_too_long(self._limit)

    def _pair_brackets(self) -> list[int]:
        partner = [-1] * len(self.text)
        open_brackets: list[int] = []
        for index, text in enumerate(self.text):
            if text in _CLOSING:
                open_brackets.append(index)
            elif text in (")", "]", "}"):
                if not open_brackets or _CLOSING[self.text[open_brackets[-1]]] != text:
                    raise SourceError(f"'{text}' closes nothing", self.start[index])
                partner[index] = open_brackets.pop()
                partner[partner[index]] = index
        if open_brackets:
            raise SourceError(f"'{self.text[open_brackets[-1]]}' is never closed", self.start[open_brackets[-1]])
        return partner

    def close_angle(self, opening: int) -> int:
        """Index of the `>` that closes the `<` at `opening`."""
        self._check_time()
        depth = 0
        index = opening
        while index < len(self.text):
            text = self.text[index]
            if text in _CLOSING:
                index = self.partner[index]
            elif text == "<" and (
                index == opening or self.kind[index - 1] == IDENTIFIER or self.text[index - 1] == "template"
            ):
                depth += 1
            elif text == ">":
                depth -= 1
                if depth == 0:
                    return index
            elif text in (";", "}", ")", "]"):
                break
            index += 1
        raise SourceError("'<' is never closed", self.start[opening])

    def open_angle(self, closing: int) -> int:
        """Index of the `<` that opens the `>` at `closing`."""
        self._check_time()
        depth = 0
        index = closing
        while index >= 0:
            text = self.text[index]
            if text in (")", "]", "}"):
                index = self.partner[index]
            elif text == ">":
                depth += 1
            elif text == "<":
                depth -= 1
                if depth == 0:
                    return index
            index -= 1
        raise SourceError("'>' closes nothing", self.start[closing])

    def try_close_angle(self, opening: int) -> int | None:
        """As `close_angle`, or None where the `<` compares."""
        try:
            return self.close_angle(opening)
        except SourceError:
            return None

    def find(self, text: str, start: int) -> int:
        """Index of the next `text` from `start` on that is in no bracket opened from there on."""
        self._check_time()
        index = start
        while index < len(self.text):
            if self.text[index] == text:
                return index
            if self.text[index] in _CLOSING:
                index = self.partner[index]
            index += 1
        raise SourceError(f"expected '{text}'", self.start[start])

    def erase(self, start: int, stop: int) -> None:
        """Write nothing in place of the tokens [start, stop)."""
        self.output[start:stop] = [""] * (stop - start)

    def spelled(self, indices: list[int]) -> str:
        """Return the tokens as one line of source, blanks only where they stood or where words would meet."""
        parts: list[str] = []
        previous = -1
        for index in indices:
            if parts and (
                self.start[index] > self.start[previous] + len(self.text[previous])
                or (self.kind[previous] != OPERATOR and self.kind[index] != OPERATOR)
            ):
                parts.append(" ")
            parts.append(self.text[index])
            previous = index
        return "".join(parts)

    def rendered(self, output: Sequence[str]) -> str:
        """Return the text with `output` in place of the tokens."""
        parts: list[str] = []
        end = 0
        for start, text, replacement in zip(self.start, self.text, output, strict=True):
            parts.append(self.source[end:start])
            parts.append(replacement)
            end = start + len(text)
        parts.append(self.source[end:])
        return "".join(parts)

    def at(self, output: Sequence[str], line: int, column: int) -> tuple[int, int] | None:
        """Return the token that was replaced by what stands at a place of a rendered text.

        Parameters
        ----------
        output : sequence of str
            What it was rendered with.
        line : int
            From 1.
        column : int
            From 1, in bytes of UTF-8.

        Returns
        -------
        (int, int) or None
            Index of the token, and how many characters behind its start the place is: as many as it has if the place is
            behind it. None if no token starts at or before that place.
        """
        self._check_time()
        lines = self.rendered(output).split("\n")
        if line > len(lines):
            return None
        within = len(lines[line - 1].encode()[: column - 1].decode(errors="ignore"))
        wanted = sum(len(text) + 1 for text in lines[: line - 1]) + within
        shift = 0
        found: tuple[int, int] | None = None
        for index, start in enumerate(self.start):
            behind = wanted - start - shift
            if behind < 0:
                break
            text, replacement = self.text[index], output[index]
            if replacement:
                is_within = behind < len(replacement)
                found = index, behind if is_within and text == replacement else 0 if is_within else len(text)
            shift += len(replacement) - len(text)
        return found
