"""What Metal refuses although it is C++ that clang takes, told in Metal's terms.

Each function yields the message and the token that it is about.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING

from .kernels import ADDRESS_SPACES, declared_name, split_list
from .pointers import VALUE_TYPE, unqualified
from .tokens import IDENTIFIER, NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .declarations import Attributes, Declarations, Function, Statement
    from .tokens import Tokens

    Refusals = Iterator[tuple[str, int]]

_WORDS = {
    "double",
    "__int128",
    "__int128_t",
    "__uint128_t",
    "__float128",
    "new",
    "delete",
    "goto",
    "thread_local",
    "__thread",
    "virtual",
    "dynamic_cast",
    "typeid",
    "try",
    "throw",
    "catch",
}
_ASSEMBLY = {"asm", "__asm", "__asm__"}
# What a loader would call, or put where it finds what to call, before any kernel runs.
_LOADED_ATTRIBUTES = {"constructor", "destructor", "ifunc", "init_priority", "section"}
_UNSUPPORTED_NAMESPACES = {"raytracing": "ray tracing is", "mpp": "tensor operations are"}
_CLASS_KEYS = {"struct", "class", "union", "enum"}
_NO_VARIABLE = {"using", "typedef", "static_assert", "_Static_assert", "friend", "enum", "namespace"}
_SPECIFIERS = {"kernel", "static", "inline", "constexpr", "extern", "METAL_FUNC", "METAL_INTERNAL"}

_LONG_DOUBLE = re.compile(r"(?!0[xX])[\d.']*(?:\.|[eE])[\d.'eE+-]*[lL]|0[xX].*[pP].*[lL]")


def refused_words(tokens: Tokens, has_library: bool) -> Refusals:
    """Words that Metal, or the host device, does not have."""
    text = tokens.text
    for index, word in enumerate(text):
        if word in _WORDS and not (word == "delete" and text[index - 1 : index] == ["="]):
            yield f"'{word}' is not supported in Metal", index
        elif tokens.kind[index] == NUMBER and _LONG_DOUBLE.fullmatch(word):
            yield f"'long double' is not supported in Metal: write {word[:-1]}f", index
        elif word in ("__attribute__", "__attribute") and text[index + 1 : index + 2] == ["("]:
            for inner in range(index + 1, tokens.partner[index + 1]):
                if text[inner].strip("_") in _LOADED_ATTRIBUTES and text[inner - 1] in ("(", ","):
                    yield f"attribute '{text[inner]}' is not supported in Metal", inner
        elif (
            word == "metal"
            and not has_library
            and ("::" in text[index + 1 : index + 2] or text[index - 2 : index] == ["using", "namespace"])
        ):
            yield "use of undeclared identifier 'metal'; is '#include <metal_stdlib>' missing?", index
        elif word in _UNSUPPORTED_NAMESPACES and "::" in text[index + 1 : index + 2]:
            yield f"{_UNSUPPORTED_NAMESPACES[word]} not supported on the host device", index


@functools.cache
def _library_words() -> set[str]:
    """All words in Metal's headers: a kernel may have the name of a function that is there."""
    words: set[str] = set()
    for folder, _, names in os.walk(os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")):
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                words.update(re.findall(r"\w+", file.read()))
    return words


class DeclarationRules:
    """What Metal asks of declarations, beyond what C++ asks.

    Parameters
    ----------
    tokens : Tokens
    attributes : Attributes
    declarations : Declarations
    """

    def __init__(self, tokens: Tokens, attributes: Attributes, declarations: Declarations) -> None:
        self._tokens = tokens
        self._text = tokens.text
        self._attributes = attributes
        self._declarations = declarations
        self._classes = {tokens.text[item.key + 1] for item in declarations.classes}

    def broken(self) -> Refusals:
        """All that is refused, in no order."""
        for statement in self._declarations.statements:
            yield from self._variable(statement)
        yield from self._variables_behind_classes()
        yield from unqualified(self._tokens, self._attributes, self._declarations)
        entries = self._entry_functions()
        for function in self._declarations.functions:
            yield from self._body(function)
            if function.stage == "kernel":
                yield from self._kernel(function)
                yield from self._calls_of(entries, function)

    # ---------------------------------------------------------------- variables

    def _variable(self, statement: Statement) -> Refusals:
        """Variables of the program, and static ones of classes, are constants."""
        if statement.opening is not None or statement.stage not in (None, "kernel"):
            return
        inside = self._attributes.inside
        plain = [index for index in range(statement.start, statement.stop - 1) if not inside[index]]
        while plain and self._text[plain[0]] == "template":
            closing = self._tokens.close_angle(plain[0] + 1)
            plain = [index for index in plain if index > closing]
        words = [self._text[index] for index in plain]
        if not words or words[0] in _NO_VARIABLE or (words[0] in _CLASS_KEYS and len(words) == 2):
            return
        if "constant" in words or (statement.is_member and "static" not in words):
            return
        name = declared_name(self._tokens, plain[: words.index("=")] if "=" in words else plain)
        if name is not None:
            what = "static member" if statement.is_member else "program scope variable"
            yield f"{what} '{self._text[name]}' must reside in the constant address space", name

    def _variables_behind_classes(self) -> Refusals:
        """A variable can be declared together with its class, as `struct { int x; } variable;`."""
        for item in self._declarations.classes:
            closing = self._tokens.partner[item.body]
            names = [
                index
                for index in range(closing + 1, item.stop - 1)
                if self._tokens.kind[index] == IDENTIFIER and not self._attributes.inside[index]
            ]
            words = self._text[item.start : item.key] + self._text[closing : item.stop]
            is_member = any(part.partition(" ")[0] in _CLASS_KEYS for part in item.path)
            if names and not is_member and not {"constant", "typedef", "__attribute__"} & set(words):
                yield (
                    f"program scope variable '{self._text[names[0]]}' must reside in the constant address space",
                    names[0],
                )

    def _body(self, function: Function) -> Refusals:
        for index in range(function.body + 1, function.stop - 1):
            word = self._text[index]
            if word == "static":
                yield from self._static(index)
            elif word in _ASSEMBLY:
                yield f"'{word}' is not supported in Metal", index

    def _entry_functions(self) -> set[str]:
        """Names that are of kernels, or graphics functions, and of nothing else."""
        functions = self._declarations.functions
        return {item.name for item in functions if item.stage} - {item.name for item in functions if not item.stage}

    def _calls_of(self, names: set[str], function: Function) -> Refusals:
        for index in range(function.body + 1, function.stop - 1):
            name = self._text[index]
            if name not in names or name == function.name or self._text[index - 1] in (".", "->"):
                continue
            opening = index + 1
            if self._text[opening] == "<":
                closing = self._tokens.try_close_angle(opening)
                opening = closing + 1 if closing is not None else opening
            is_declaration = self._tokens.kind[index - 1] == IDENTIFIER and self._text[index - 1] != "return"
            if self._text[opening] == "(" and not is_declaration and name not in _library_words():
                yield f"kernel '{function.name}' cannot call '{name}', which is called by Metal alone", index

    def _static(self, start: int) -> Refusals:
        """A static variable in a function is a constant, or in threadgroup memory."""
        first = start
        while self._tokens.kind[first - 1] == IDENTIFIER and self._text[first - 1] not in ("else", "do"):
            first -= 1
        index = start
        while self._text[index] not in (";", "=", "{", "(", "["):
            index += 1
        words = self._text[first:index]
        if self._text[index] != "(" and not {"constexpr", "constant", "threadgroup"} & set(words):
            yield (
                f"static local variable '{self._text[index - 1]}' must reside in the constant address space",
                index - 1,
            )

    # ---------------------------------------------------------------- kernels

    def _kernel(self, function: Function) -> Refusals:
        returned = [
            self._text[index]
            for index in range(function.head, function.opening - 1)
            if not self._attributes.inside[index] and self._text[index] not in _SPECIFIERS
        ]
        is_void = ("void" in returned and returned[-1] not in ("*", "&")) or "auto" in returned
        if not is_void and (len(returned) > 1 or self._is_value_type(returned)):
            yield f"kernel '{function.name}' returns '{' '.join(returned)}': it must return void", function.opening - 1
        for part in split_list(self._tokens, function.opening + 1, function.closing):
            yield from self._parameter(part)

    def _parameter(self, part: list[int]) -> Refusals:
        plain = [index for index in part if not self._attributes.inside[index]]
        attributes = {item.name: item for item in self._attributes.within(part[0], part[-1] + 1)} if part else {}
        attribute = attributes.get("buffer") or attributes.get("threadgroup")
        words = [self._text[index] for index in plain]
        name = declared_name(self._tokens, plain)
        if {"*", "&", "["} & set(words):
            return
        types = [self._text[index] for index in plain if index != name and self._text[index] not in ADDRESS_SPACES]
        if attribute is not None and self._is_value_type(types):
            yield (
                f"type '{' '.join(types)}' is not valid for attribute '{attribute.name}': it takes a pointer or "
                f"reference, as in '{'threadgroup' if attribute.name == 'threadgroup' else 'constant'} "
                f"{' '.join(types)} &'",
                attribute.start,
            )

    def _is_value_type(self, words: list[str]) -> bool:
        """Whether a type is surely of a value, not another name of a pointer."""
        words = [word for word in words if word not in ("const", "volatile", "metal", "::", "struct")]
        return bool(words) and (words[0] in self._classes or VALUE_TYPE.fullmatch(words[0]) is not None)
