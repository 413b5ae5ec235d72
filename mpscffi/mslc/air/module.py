"""LLVM modules as text: cut into their parts, so that these can be rewritten.

Only what LLVM itself prints is read, which has one form: a function starts at a line `define`, ends at a line `}`, and
everything else stands on a line of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import CompileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A name of a global, which may be quoted, or a text; texts are matched so that nothing in them is taken for a name.
_SYMBOL = re.compile(r'@"[^"]*"|@[-\w$.]+|"[^"]*"')
_NAME = re.compile(r'@(?:"[^"]*"|[-\w$.]+)')
_GLOBAL = re.compile(r'(@(?:"[^"]*"|[-\w$.]+)) = (.*)')
_METADATA = re.compile(r"!(\d+) = ((?:distinct )?!(?:\{.*\}|DI\w+\(.*\)))")
_NAMED_METADATA = re.compile(r"!([A-Za-z_.][\w.]*) = !\{(.*)\}")
_LABEL = re.compile(r'(?:([-\w$.]+)|("[^"]*")):')
_ADDRESS_SPACE = re.compile(r" addrspace\(\d+\)")
_TARGET = re.compile(r'label %("[^"]*"|[-\w$.]+)')
# Of a name of an intrinsic: an operand that is a pointer to some address space.
_POINTER_SUFFIX = re.compile(r"\.p\d+(?=\.|$)")
_LINKAGE = frozenset(
    "private internal available_externally linkonce weak common appending extern_weak linkonce_odr weak_odr external "
    "dso_local dso_preemptable default hidden protected dllimport dllexport unnamed_addr local_unnamed_addr".split()
)
PARAMETER_ATTRIBUTES = re.compile(
    r"\b(?:noundef|noalias|nocapture|nofree|nonnull|readonly|writeonly|readnone|returned|signext|zeroext|inreg|immarg"
    r"|captures\([^)]*\)|dereferenceable(?:_or_null)?\(\d+\)|align(?:stack)?[ (]\d+\)?)"
    r'|"[^"]*"(?:="[^"]*")?'
)


@dataclass(slots=True)
class Signature:
    """Types of a function: of its result and its parameters, without attributes."""

    result: str
    parameters: list[str]

    def __str__(self) -> str:
        return f"{self.result} ({', '.join(self.parameters)})"


@dataclass(slots=True)
class Function:
    """A function with a body.

    Attributes
    ----------
    name : str
        With its "@".
    head : str
        What stands before the name, linkage left out: calling convention and the result's type with its attributes.
    parameters : list of str
        As they stand, types, attributes and names.
    attributes : str
        Number of its attribute group, "" for none.
    body : list of str
        The lines between the braces.
    """

    name: str
    head: str
    parameters: list[str]
    attributes: str
    body: list[str] = field(default_factory=list)

    def parameter_types(self) -> list[str]:
        """The types of the parameters, address spaces included."""
        return [leading_type(parameter) for parameter in self.parameters]


class Module:
    """A module.

    Parameters
    ----------
    text : str
        As LLVM prints it.

    Raises
    ------
    CompileError
        If it holds what no AIR does: assembly, aliases, or text that LLVM does not print.
    """

    def __init__(self, text: str) -> None:
        self.types: list[str] = []
        self.globals: dict[str, str] = {}
        self.declarations: dict[str, Signature] = {}
        self.functions: dict[str, Function] = {}
        self.attributes: dict[str, str] = {}
        self.metadata: dict[str, str] = {}
        self.named_metadata: dict[str, list[str]] = {}
        lines = iter(text.split("\n"))
        for line in lines:
            self._take(line, lines)

    def _take(self, line: str, lines: Iterator[str]) -> None:
        first = line[:1]
        if not first or first in ";}":
            return
        if first == "!":
            self._take_metadata(line)
        elif first == "@":
            self._take_global(line)
        elif first == "%":
            self.types.append(line)
        elif line.startswith("declare "):
            name, head, parameters, _ = _parsed_header(line[8:])
            self.declarations[name] = Signature(bare_type(head), [bare_type(item) for item in parameters])
        elif line.startswith("define "):
            name, head, parameters, rest = _parsed_header(line[7:])
            group = re.search(r" #(\d+)", rest)
            function = Function(name, head, parameters, group[1] if group else "")
            for inner in lines:
                if inner == "}":
                    break
                function.body.append(inner)
            self.functions[name] = function
        elif line.startswith("attributes #"):
            number, _, words = line[12:].partition(" = ")
            self.attributes[number] = words
        elif not line.startswith(("source_filename", "target ", "$", "uselistorder", "^")):
            raise CompileError(f"AIR has no such thing in a module: {line[:80]!r}\n")

    def _take_global(self, line: str) -> None:
        match = _GLOBAL.match(line)
        if match is None or re.match(r"(?:[\w()]+ )*?(?:alias|ifunc) ", match[2]):
            raise CompileError(f"AIR has no such thing in a module: {line[:80]!r}\n")
        self.globals[match[1]] = match[2]

    def _take_metadata(self, line: str) -> None:
        match = _METADATA.match(line)
        if match is not None:
            self.metadata[match[1]] = match[2]
            return
        match = _NAMED_METADATA.match(line)
        if match is not None:
            self.named_metadata[match[1]] = [item.strip().lstrip("!") for item in match[2].split(",") if item.strip()]

    def has_cycle(self) -> bool:
        """Whether some function may not end: it has a loop, or calls itself, maybe through others."""
        return any(_has_loop(function) for function in self.functions.values()) or bool(self.recursive())

    def recursive(self) -> set[str]:
        """The functions that reach themselves by calls."""
        calls = {
            name: {symbol for line in function.body for symbol in symbols(line) if symbol in self.functions}
            for name, function in self.functions.items()
        }
        found = set()
        for name in calls:
            seen: set[str] = set()
            todo = list(calls[name])
            while todo:
                other = todo.pop()
                if other not in seen:
                    seen.add(other)
                    todo += calls[other]
            if name in seen:
                found.add(name)
        return found


def symbols(text: str) -> list[str]:
    """The names of globals in a piece of text, "@" included."""
    if "@" not in text:
        return []
    return [match for match in _SYMBOL.findall(text) if match[0] == "@"]


def rename(text: str, names: Mapping[str, str] | Callable[[str], str]) -> str:
    """Text with names of globals replaced."""
    if "@" not in text:
        return text
    replace = names if callable(names) else lambda name: names.get(name, name)
    return _SYMBOL.sub(lambda match: replace(match[0]) if match[0][0] == "@" else match[0], text)


def flat(text: str) -> str:
    """Text without address spaces, which are all the same memory here."""
    if "addrspace" in text:
        text = _outside_quotes(text, lambda part: _ADDRESS_SPACE.sub("", part).replace("addrspacecast", "bitcast"))
    return rename(text, _flat_intrinsic) if "@llvm." in text else text


def _flat_intrinsic(name: str) -> str:
    return _POINTER_SUFFIX.sub(".p0", name) if name.startswith("@llvm.") else name


def _outside_quotes(text: str, change: Callable[[str], str]) -> str:
    if '"' not in text:
        return change(text)
    parts = re.split(r'("[^"]*")', text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def without_metadata(line: str) -> str:
    """An instruction without what is attached to it: hints that need not hold for the buffers of another device."""
    if "!" not in line:
        return line
    return _outside_quotes(line, lambda part: re.sub(r",? ![A-Za-z_.][\w.]* !\d+", "", part))


def split_list(text: str) -> list[str]:
    """The items of a list, cut at the commas that stand in no bracket and no text."""
    items = []
    depth = 0
    start = 0
    for match in re.finditer(r'"[^"]*"|[<>{}()\[\],]', text):
        mark = match[0]
        if mark in "<{([":
            depth += 1
        elif mark in ">})]":
            depth -= 1
        elif mark == "," and depth == 0:
            items.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    return [*items, last] if last else items


def leading_type(text: str) -> str:
    """The type that a text begins with."""
    if text[:1] in "<{[":
        return text[: closing(text, 0) + 1]
    match = re.match(r'ptr(?: addrspace\(\d+\))?|%(?:"[^"]*"|[-\w$.]+)|\w+', text)
    if match is None:
        raise CompileError(f"no type of LLVM's: {text[:80]!r}\n")
    return match[0]


def bare_type(text: str) -> str:
    """A type with attributes around it, without them and without an address space."""
    words = PARAMETER_ATTRIBUTES.sub("", text).split()
    while words and (words[0] in _LINKAGE or words[0].endswith("cc")):
        words.pop(0)
    return flat(" ".join(words))


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for match in re.compile(r'"[^"]*"|[<>{}()\[\]]').finditer(text, start):
        if match[0] in "<{([":
            depth += 1
        elif match[0] in ">})]":
            depth -= 1
            if depth == 0:
                return match.start()
    raise CompileError(f"a bracket that does not close: {text[start : start + 80]!r}\n")


def _parsed_header(text: str) -> tuple[str, str, list[str], str]:
    """Name, what stands before it without linkage, parameters, and what follows them."""
    match = re.search(r' (@(?:"[^"]*"|[-\w$.]+))\(', text)
    if match is None:
        raise CompileError(f"no function of LLVM's: {text[:80]!r}\n")
    words = text[: match.start()].split(" ")
    while words and words[0] in _LINKAGE:
        words.pop(0)
    end = closing(text, match.end() - 1)
    return match[1], " ".join(words), split_list(text[match.end() : end]), text[end + 1 :]


def _has_loop(function: Function) -> bool:
    """Whether a block leads to itself or one before it, as any loop must."""
    seen: set[str] = {entry_label(function)}
    for line in function.body:
        if line[:1] not in (" ", "", ";"):
            match = _LABEL.match(line)
            if match is not None:
                seen.add(match[1] or match[2])
        elif "label %" in line and any(target in seen for target in _TARGET.findall(line)):
            return True
    return False


def entry_label(function: Function) -> str:
    """The label of the first block, which is not printed if it is a number."""
    for line in function.body:
        match = _LABEL.match(line)
        if match is not None:
            return match[1] or match[2]
        if line.strip():
            break
    return str(len(function.parameters))
