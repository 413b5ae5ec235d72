"""Clang's messages about generated C++, told as messages about the user's source."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .preprocess import SOURCE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

_MESSAGE = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?P<level>fatal error|error|warning|note): (?P<text>.*)$"
)
_TOLD = re.compile(
    r"(?P<file>.+?):(?:(?P<line>\d+):)?(?:(?P<column>\d+):)? (?:fatal )?(?P<level>error|warning): (?P<text>.*)"
)
_VECTOR = re.compile(r"\b(?:metal::)?vec<(\w+), ([234])>")
_PACKED = re.compile(r"\b(?:metal::)?packed_vec<(\w+), ([234])>")
_ELEMENTS = {"_Float16": "half", "__bf16": "bfloat", "unsigned int": "uint", "unsigned char": "uchar"}
# What the prelude asserts is told without the condition, which is the prelude's own.
_ASSERTION = re.compile(r"static assertion failed due to requirement '[^']*\bmslc::[^']*': ")
_IN_METALS_TERMS = (
    (re.compile(r"variable length arrays? .*"), "variable length arrays are not supported in Metal"),
    (
        re.compile(r"'this' argument to member function '(?:mslc_put_\w+|operator=)' is an rvalue.*"),
        "this is a copy, and writing to it is lost: write to the vector itself",
    ),
    (
        re.compile(r"declaration requires a global (?:con|de)structor.*"),
        "a variable at program scope needs a constant expression as its initializer, and no destructor: "
        "no code runs before the kernels",
    ),
    (re.compile(r"'metal_raytracing' file not found"), "ray tracing is not supported on the host device"),
    (
        re.compile(r"'(?:metal_tensor|MetalPerformancePrimitives/[^']*)' file not found"),
        "tensor operations are not supported on the host device",
    ),
)
_KNOWN_AS = re.compile(r" \(aka '[^']*'\)")


@dataclass(slots=True)
class Place:
    """A place in a file, line and column from 1; column 0 if it is not known."""

    file: str
    line: int
    column: int


@dataclass(slots=True)
class Finding:
    """One error or warning, as a tool wants it: line and column from 1, column 0 if it is not known."""

    file: str
    line: int
    column: int
    level: str
    text: str

    def __str__(self) -> str:
        column = f":{self.column}" if self.column else ""
        return f"{self.file}:{self.line}{column}: {self.level}: {self.text}"


@dataclass(slots=True)
class _Message:
    file: str
    line: int
    column: int
    level: str
    text: str


class Sources:
    """The user's files, for the lines that messages show."""

    def __init__(self, source: str) -> None:
        self._lines: dict[str, list[str]] = {SOURCE_NAME: source.split("\n")}

    def line(self, file: str, number: int) -> str | None:
        """Return a line of a file; None if it cannot be had."""
        if file not in self._lines:
            try:
                with open(file, encoding="utf-8", errors="replace") as opened:
                    self._lines[file] = opened.read().split("\n")
            except OSError:
                self._lines[file] = []
        lines = self._lines[file]
        return lines[number - 1] if 1 <= number <= len(lines) else None


def error_text(place: Place, level: str, text: str, sources: Sources) -> str:
    """One message as clang prints it, with the source line and a mark."""
    column = f":{place.column}" if place.column else ""
    message = f"{place.file}:{place.line}{column}: {level}: {text}\n"
    line = sources.line(place.file, place.line)
    if line is not None:
        message += f"{line}\n"
        if place.column:
            indent = "".join("\t" if character == "\t" else " " for character in line[: place.column - 1])
            message += f"{indent}^\n"
    return message


def renamed(log: str, path: str) -> str:
    """Return a log that names the source by its path."""
    return re.sub(rf"^{SOURCE_NAME}(?=:)", lambda _: path, log, flags=re.MULTILINE)


def findings(log: str, path: str) -> list[Finding]:
    """Return the errors and warnings of a log about the source at `path`, without notes.

    Files below the working directory are named relative to it. A log that is no list of messages is one error.
    """
    found: list[Finding] = []
    for line in log.split("\n"):
        match = _TOLD.fullmatch(line)
        if match is not None:
            file = path if match["file"] == SOURCE_NAME else _shortened(match["file"])
            number, column = int(match["line"] or 1), int(match["column"] or 0)
            found.append(Finding(file, number, column, match["level"], match["text"]))
    return found or [Finding(path, 1, 0, "error", log.strip().partition("\n")[0])]


def _shortened(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def translated(log: str, locate: Callable[[str, int, int], Place | None], sources: Sources) -> str:
    """Clang's log as one of the user's source.

    Parameters
    ----------
    log : str
        What clang wrote, without its excerpts of the source.
    locate : callable
        Gives the user's place for a file, line and column of clang's; None for what the user never sees.
    sources : Sources

    Returns
    -------
    str
        The errors with the notes that belong to them. An error inside the prelude is told at the place in the user's
        source that led to it. The log as it was if nothing in it is understood.
    """
    groups: list[list[_Message]] = []
    for line in log.split("\n"):
        match = _MESSAGE.match(line)
        if match is None:
            continue
        message = _Message(match["file"], int(match["line"]), int(match["column"]), match["level"], match["text"])
        if message.level != "note" or not groups:
            groups.append([])
        groups[-1].append(message)
    parts: list[str] = []
    seen: set[str] = set()
    for group in groups:
        for text in _told(group, locate, sources):
            if text not in seen:
                seen.add(text)
                parts.append(text)
    return "".join(parts) or log


def _told(group: list[_Message], locate: Callable[[str, int, int], Place | None], sources: Sources) -> list[str]:
    error = group[0]
    place = locate(error.file, error.line, error.column)
    notes = [(note, locate(note.file, note.line, note.column)) for note in group[1:]]
    if place is None:
        place = next((found for _, found in notes if found is not None), None)
        notes = [(note, found) for note, found in notes if found is not place]
    if place is None:
        return [f"{SOURCE_NAME}: {error.level}: {_readable(error.text)}\n"]
    texts = [error_text(place, error.level, _readable(error.text), sources)]
    texts += [error_text(found, "note", _readable(note.text), sources) for note, found in notes if found is not None]
    return texts


def _readable(text: str) -> str:
    """Return a message with types named as Metal names them."""
    for clang, metal in _ELEMENTS.items():
        text = re.sub(rf"\b{clang}\b", metal, text)
    text = _VECTOR.sub(r"\1\2", text)
    text = _PACKED.sub(r"packed_\1\2", text)
    for pattern, words in _IN_METALS_TERMS:
        text = pattern.sub(words, text)
    return _KNOWN_AS.sub("", _ASSERTION.sub("", text))
