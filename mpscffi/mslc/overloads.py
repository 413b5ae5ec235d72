"""Declarations that differ in address spaces alone: to C++, which has one space, they are the same."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .declarations import Class, Function, Statement
from .kernels import ADDRESS_SPACES
from .tokens import IDENTIFIER

if TYPE_CHECKING:
    from .declarations import Attributes, Declarations
    from .tokens import Tokens

_DROPPED = {"kernel", "inline", "static", "constexpr", "METAL_FUNC", "volatile"}
# Words that are types, or parts of them, and never names.
_TYPE_WORDS = {
    *("unsigned", "signed", "char", "short", "int", "long", "bool", "half", "bfloat", "float", "void", "auto"),
    *("const", "volatile", "restrict"),
}
# Behind these alone, a word is the name of a type.
_BEFORE_TYPES = {"struct", "class", "union", "enum", "typename", "const", "restrict"}
_SPACES_IN_BODIES = ADDRESS_SPACES | {"const", "volatile"}


@dataclass(slots=True)
class _Signature:
    """The header of a declaration without address spaces, attributes and the names of parameters.

    `names` are these, `spaces` the address spaces with their places in `text`.
    """

    text: str
    names: list[str]
    spaces: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _Group:
    """Declarations of one signature: the spaces of each, and the body of the first."""

    body: list[str]
    spaces: set[tuple[tuple[int, str], ...]] = field(default_factory=set)


class Overloads:
    """Finds the declarations of a source that differ in address spaces alone.

    Parameters
    ----------
    tokens : Tokens
    attributes : Attributes
    declarations : Declarations

    Attributes
    ----------
    duplicates : list of (int, int)
        Tokens [start, stop) of all but the first of each kind.
    refused : list of (str, int)
        A message and a token for each whose body says something else than that of the first of its kind: on a GPU the
        address space of an argument chooses between them.
    """

    def __init__(self, tokens: Tokens, attributes: Attributes, declarations: Declarations) -> None:
        self._tokens = tokens
        self._attributes = attributes
        self._classes = {tokens.text[item.key + 1] for item in declarations.classes}
        self.duplicates: list[tuple[int, int]] = []
        self._bodies: dict[str, set[tuple[str, ...]]] = {}
        self._pairs: list[tuple[int, list[str], list[str]]] = []
        items: list[Class | Function | Statement] = [
            *declarations.classes,
            *declarations.functions,
            *declarations.statements,
        ]
        groups: dict[tuple[str, ...], _Group] = {}
        for item in sorted(items, key=lambda item: item.start):
            self._add(item, groups)
        self.refused = [
            (
                f"this '{tokens.text[name]}' differs from another one in address spaces and in its body: the host "
                "device has one address space and cannot choose between them",
                name,
            )
            for name, first, second in self._pairs
            if not self._is_same(first, second)
        ]

    def _add(self, item: Class | Function | Statement, groups: dict[tuple[str, ...], _Group]) -> None:
        if isinstance(item, Class):
            signature = self._signature(item.start, item.body, None)
        elif isinstance(item, Function):
            signature = self._signature(item.start, item.body, item.closing)
        elif item.is_member and item.opening is not None:
            signature = self._signature(item.start, item.stop - 1, self._tokens.partner[item.opening])
        else:
            return
        body = [] if isinstance(item, Statement) else self._body(item, signature.names)
        if isinstance(item, Function):
            self._bodies.setdefault(item.name, set()).add(tuple(body))
        group = groups.setdefault((*item.path, signature.text), _Group(body))
        if group.spaces and signature.spaces not in group.spaces:
            self.duplicates.append((item.start, item.stop))
            if not isinstance(item, Statement):
                name = item.key + 1 if isinstance(item, Class) else item.opening - 1
                self._pairs.append((name, group.body, body))
        group.spaces.add(signature.spaces)

    def _is_same(self, first: list[str], second: list[str]) -> bool:
        """Whether two bodies are the same, but for functions of different names that are the same in their turn."""
        return len(first) == len(second) and all(
            word == other or self._is_same_function(word, other) for word, other in zip(first, second, strict=True)
        )

    def _is_same_function(self, name: str, other: str) -> bool:
        bodies, others = self._bodies.get(name, set()), self._bodies.get(other, set())
        return bool(bodies) and bool(others) and (bodies <= others or others <= bodies)

    def _body(self, item: Function | Class, names: list[str]) -> list[str]:
        """Return the words of a body without address spaces, with the names of parameters made equal."""
        numbers = {name: f"#{number}" for number, name in enumerate(names)}
        return [
            numbers.get(self._tokens.text[index], self._tokens.text[index])
            for index in range(item.body, item.stop)
            if self._tokens.text[index] not in _SPACES_IN_BODIES and not self._attributes.inside[index]
        ]

    def _signature(self, start: int, stop: int, closing: int | None) -> _Signature:
        """Return the signature of a header; `closing` is the end of its parameter list."""
        text, inside = self._tokens.text, self._attributes.inside
        words: list[str] = []
        names: list[str] = []
        spaces: list[tuple[int, str]] = []
        is_constructor = closing is not None and text[self._tokens.partner[closing] - 1] in self._classes
        for index in range(start, stop):
            word = text[index]
            is_behind = closing is not None and index > closing
            if is_behind and word == ":":
                break
            if inside[index] or word in _DROPPED:
                continue
            if word in ADDRESS_SPACES:
                spaces.append((len(words), word))
                if word != "constant" or (is_behind and is_constructor):
                    continue
                word = "const"
            if word == "const" and words[-1:] == ["const"]:
                continue
            if self._next_word(index, stop) in (",", ")") and self._is_name(index, words):
                names.append(word)
                continue
            words.append(word)
        signature = " ".join(words)
        signature = re.sub(r"\bconst (\w+(?: < [^()]*? >)?) ([&*])", r"\1 const \2", signature)
        return _Signature(signature, names, tuple(spaces))

    def _is_name(self, index: int, words: list[str]) -> bool:
        """Whether a word at the end of a parameter is its name, by the words before it."""
        if self._tokens.kind[index] != IDENTIFIER or self._tokens.text[index] in _TYPE_WORDS or not words:
            return False
        if words[-1] in ("*", "&", "&&", ">"):
            return True
        first = len(words)
        while first > 0 and words[first - 1] not in ("(", ",", "<"):
            first -= 1
        return words[-1].isidentifier() and any(word not in _BEFORE_TYPES for word in words[first:])

    def _next_word(self, index: int, stop: int) -> str:
        for following in range(index + 1, stop):
            if not self._attributes.inside[following]:
                return self._tokens.text[following]
        return ""
