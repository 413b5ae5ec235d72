"""Where in its source AIR comes from, for code that is validated: lines where its metadata tells, else functions."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from .metadata import unescaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .module import Module

_NODE = re.compile(r"(?:distinct )?!(DI\w+)\((.*)\)")
_FIELD = re.compile(r'(\w+): (?:!(\d+)|(\d+)\b|("[^"]*"))')
_BLOCKS = ("DILexicalBlock", "DILexicalBlockFile")
# The file of a function of which no line is known has its name behind this.
_FUNCTION = "air function "
# "_ZN5outer5innerEPU9MTLdevicef": names with their lengths.
_MANGLED = re.compile(r"_Z(?:N[rVKRO]*)?(?=\d)")


def place(file: str, line: int) -> tuple[str, int] | None:
    """The user's file and line of those that a module tells; a function's name and 0, where it tells no line.

    What is in Metal's own headers counts where it is called: it is None.
    """
    if file.startswith(_FUNCTION):
        return unescaped(file.removeprefix(_FUNCTION)), 0
    name = os.path.basename(file)
    return (unescaped(file), line) if file and line and not (name.startswith("metal_") and "." not in name) else None


def _readable(symbol: str) -> str:
    """The name of a function as the source has it, without its parameters."""
    start = _MANGLED.match(symbol)
    names = []
    at = start.end() if start else len(symbol)
    while length := re.compile(r"\d+").match(symbol, at):
        at = length.end() + int(length[0][:4])
        names.append(symbol[length.end() : at])
        if start and not start[0].startswith("_ZN"):
            break
    return "::".join(names) or symbol


class LineTables:
    """The places in a source that the instructions of a module come from.

    They are written anew, with nothing but files, lines, and what was inlined where: of types and variables nothing is
    needed. A place of which something is missing is none.

    Parameters
    ----------
    module : Module
    kernel : str
        Its function, with the "@".
    """

    def __init__(self, module: Module, kernel: str) -> None:
        self._kernel = kernel
        self._metadata = module.metadata
        self._texts: dict[str, str | None] = {}
        self._first = 1 + max(map(int, module.metadata), default=-1)  # number of a node of our own
        self._next = self._first + 4
        self._functions: dict[str, str] = {}

    def has(self, location: str) -> bool:
        """Whether there is a place of a number; from then on it is among the nodes."""
        return self._is_kept(location, ("DILocation",))

    def of_function(self, symbol: str) -> str:
        """The number of the place that is all of a function."""
        if symbol not in self._functions:
            file, subprogram, location = (str(self._next + number) for number in range(3))
            self._next += 3
            name = "" if symbol == self._kernel else _readable(symbol[1:].strip('"'))
            self._texts[file] = f'!DIFile(filename: "{_FUNCTION}{name}", directory: "")'
            self._texts[subprogram] = self._subprogram(name, file, "0")
            self._texts[location] = f"distinct !DILocation(line: 0, column: 0, scope: !{subprogram})"
            self._functions[symbol] = location
        return self._functions[symbol]

    def _subprogram(self, name: str, file: str, line: str) -> str:
        return (
            f'distinct !DISubprogram(name: "{name}", scope: !{file}, file: !{file}, line: {line}, '
            f"type: !{self._first + 1}, spFlags: DISPFlagDefinition, unit: !{self._first})"
        )

    def nodes(self) -> list[str]:
        """The metadata that tells of all places that were asked for."""
        kept = {number: text for number, text in self._texts.items() if text is not None}
        file = next((number for number, text in kept.items() if text.startswith("!DIFile")), None)
        if file is None:
            return []
        unit, type_, types, version = (f"!{self._first + number}" for number in range(4))
        return [
            *(f"!{number} = {text}" for number, text in kept.items()),
            f"{unit} = distinct !DICompileUnit(language: DW_LANG_C_plus_plus_14, file: !{file}, "
            "emissionKind: LineTablesOnly)",
            f"{type_} = !DISubroutineType(types: {types})",
            f"{types} = !{{null}}",
            f'{version} = !{{i32 2, !"Debug Info Version", i32 3}}',
            f"!llvm.dbg.cu = !{{{unit}}}",
            f"!llvm.module.flags = !{{{version}}}",
        ]

    def _is_kept(self, number: str, kinds: Iterable[str]) -> bool:
        found = _NODE.fullmatch(self._metadata.get(number, ""))
        if found is None or found[1] not in kinds:
            return False
        if number not in self._texts:
            self._texts[number] = None  # while it is being written: it must not lead to itself
            self._texts[number] = self._written(found[1], found[2])
        return self._texts[number] is not None

    def _written(self, kind: str, text: str) -> str | None:
        """A node's text, without what is not needed; None if what is needed is missing."""
        fields = {match[1]: match[2] or match[3] or match[4] for match in _FIELD.finditer(text)}
        scope, file, at = fields.get("scope", ""), fields.get("file", ""), fields.get("inlinedAt")
        line, column = fields.get("line", "0"), fields.get("column", "0")
        if kind == "DIFile":
            return f'!DIFile(filename: {fields.get("filename")}, directory: "")' if "filename" in fields else None
        if kind == "DISubprogram":
            if not self._is_kept(file, ("DIFile",)):
                return None
            return self._subprogram("", file, line)
        if not self._is_kept(scope, ("DISubprogram", *_BLOCKS)):
            return None
        if kind in _BLOCKS:
            if not self._is_kept(file, ("DIFile",)):
                return None
            return f"distinct !DILexicalBlock(scope: !{scope}, file: !{file}, line: {line}, column: {column})"
        inlined = ""
        if at is not None:
            if not self._is_kept(at, ("DILocation",)):
                return None
            inlined = f", inlinedAt: !{at}"
        return f"distinct !DILocation(line: {line}, column: {column}, scope: !{scope}{inlined})"
