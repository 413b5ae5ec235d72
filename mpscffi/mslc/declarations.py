"""Finds the declarations of a Metal source by its tokens alone: brackets, keywords and `;`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from .tokens import IDENTIFIER, STRING, SourceError, Tokens

STAGES = ("kernel", "vertex", "fragment", "mesh", "object", "intersection")
NOT_A_DECLARATOR = {
    "decltype",
    "alignas",
    "__attribute__",
    "noexcept",
    "explicit",
    "METAL_ALIGN",
    "__declspec",
    "requires",
}
_UP_TO_SEMICOLON = {"using", "typedef", "static_assert", "_Static_assert", "enum", "friend"}
_CLASS_KEYS = {"struct", "class", "union"}


@dataclass(slots=True)
class Attribute:
    """One attribute of a `[[...]]`, as `buffer(0)`."""

    name: str
    arguments: list[int]
    start: int


class Attributes:
    """All attributes of a source. `inside` is 1 for each token that belongs to a `[[...]]`."""

    def __init__(self, tokens: Tokens) -> None:
        self.inside = bytearray(len(tokens))
        self._all: list[Attribute] = []
        text, partner = tokens.text, tokens.partner
        index = 0
        while index + 1 < len(tokens):
            if text[index] == "[" and text[index + 1] == "[" and partner[index + 1] == partner[index] - 1:
                closing = partner[index]
                self.inside[index : closing + 1] = b"\1" * (closing + 1 - index)
                self._read(tokens, index + 2, closing - 1)
                index = closing
            index += 1
        self._starts = [attribute.start for attribute in self._all]

    def _read(self, tokens: Tokens, index: int, stop: int) -> None:
        while index < stop:
            if tokens.kind[index] != IDENTIFIER:
                index += 1
                continue
            while index + 2 < stop and tokens.text[index + 1] == "::":
                index += 2
            attribute = Attribute(tokens.text[index], [], index)
            if tokens.text[index + 1] == "(":
                attribute.arguments = list(range(index + 2, tokens.partner[index + 1]))
                index = tokens.partner[index + 1]
            self._all.append(attribute)
            index += 1

    def within(self, start: int, stop: int) -> list[Attribute]:
        """Return the attributes that stand among the tokens [start, stop)."""
        return self._all[bisect_left(self._starts, start) : bisect_left(self._starts, stop)]


@dataclass(slots=True)
class Function:
    """A function with a body: tokens [start, stop).

    `head` is the first token behind `template<...>`, whose angle brackets `template` holds. `path` names the
    namespaces, and by their headers the classes, that it stands in.
    """

    name: str
    path: tuple[str, ...]
    start: int
    stop: int
    head: int
    template: tuple[int, int] | None
    opening: int
    closing: int
    body: int
    stage: str | None
    attributes: list[Attribute]
    is_member: bool


@dataclass(slots=True)
class Statement:
    """What ends in `;` and has no body: a variable, a prototype, an alias. Tokens [start, stop) with the `;`."""

    path: tuple[str, ...]
    start: int
    stop: int
    opening: int | None
    stage: str | None
    attributes: list[Attribute]
    is_member: bool


@dataclass(slots=True)
class Instantiation:
    """An explicit instantiation, `template void name<...>(...);`. Tokens [start, stop) with the `;`."""

    path: tuple[str, ...]
    start: int
    stop: int
    attributes: list[Attribute]
    stage: str | None


@dataclass(slots=True)
class Class:
    """A class with a body. Its header is [start, body), of which [key, body) begins with `struct`."""

    path: tuple[str, ...]
    start: int
    key: int
    body: int
    stop: int


@dataclass(slots=True)
class Declarations:
    """All declarations of a source at namespace and class level, in order."""

    functions: list[Function] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    instantiations: list[Instantiation] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    templates: list[tuple[int, int]] = field(default_factory=list)


def find_declarations(tokens: Tokens, attributes: Attributes) -> Declarations:
    """Find the declarations of a source.

    Raises
    ------
    SourceError
        If its structure cannot be followed.
    """
    finder = _Finder(tokens, attributes)
    try:
        finder.scope(0, len(tokens), (), False)
    except IndexError:
        raise SourceError("unexpected end of the source", len(tokens.source)) from None
    return finder.found


class _Finder:
    def __init__(self, tokens: Tokens, attributes: Attributes) -> None:
        self.tokens = tokens
        self.text = tokens.text
        self.attributes = attributes
        self.found = Declarations()

    def scope(self, index: int, stop: int, path: tuple[str, ...], is_class: bool) -> None:
        text, partner = self.text, self.tokens.partner
        while index < stop:
            word = text[index]
            if word == ";":
                index += 1
            elif word in ("public", "private", "protected") and text[index + 1] == ":":
                index += 2
            elif word == "namespace" or (word == "inline" and text[index + 1] == "namespace"):
                body = index
                while text[body] not in ("{", ";"):
                    body += 1
                if text[body] == "{":
                    names = [
                        name
                        for place, name in enumerate(text[index:body], index)
                        if self.tokens.kind[place] == IDENTIFIER and not self.attributes.inside[place]
                    ]
                    inner = tuple(name for name in names if name not in ("namespace", "inline"))
                    self.scope(body + 1, partner[body], path + inner, False)
                    index = partner[body] + 1
                else:
                    index = body + 1
            elif word == "extern" and self.tokens.kind[index + 1] == STRING and text[index + 2] == "{":
                self.scope(index + 3, partner[index + 2], path, is_class)
                index = partner[index + 2] + 1
            elif word in _UP_TO_SEMICOLON:
                index = self._statement(index, path, is_class)
            else:
                index = self._declaration(index, stop, path, is_class)

    def _statement(self, start: int, path: tuple[str, ...], is_class: bool) -> int:
        index = start
        while self.text[index] != ";":
            if self.text[index] in ("(", "{", "["):
                is_friend_body = self.text[index] == "{" and self.text[start] == "friend"
                index = self.tokens.partner[index]
                if is_friend_body:
                    break
            index += 1
        stop = index + 1
        attributes = self.attributes.within(start, stop)
        self.found.statements.append(Statement(path, start, stop, None, None, attributes, is_class))
        return stop

    def _declaration(self, start: int, stop: int, path: tuple[str, ...], is_class: bool) -> int:
        """Read one declaration, and give the token behind it."""
        text, kind, partner, inside = self.text, self.tokens.kind, self.tokens.partner, self.attributes.inside
        head = index = start
        template: tuple[int, int] | None = None
        class_key: int | None = None
        opening: int | None = None
        stage: str | None = None
        has_value = has_initializers = False
        while index < stop:
            word = text[index]
            if inside[index]:
                if opening is None and word in STAGES and stage is None and text[index - 1] in ("[", ",", "::"):
                    stage = word
                index += 1
                continue
            if word == "template":
                if text[index + 1] != "<":
                    return self._instantiation(start, index, path)
                template = (index + 1, self.tokens.close_angle(index + 1))
                self.found.templates.append(template)
                index = head = template[1] + 1
                continue
            if word in STAGES and opening is None and text[index + 1] != "(":
                stage = stage or word
            elif word in _CLASS_KEYS and opening is None:
                class_key = index
            elif word == "operator" and opening is None:
                index += 1
                if text[index] == "(":
                    index += 2
                while text[index] != "(":
                    index += 1
                opening = index
                index = partner[index] + 1
                continue
            elif word == "<" and not has_value and kind[index - 1] == IDENTIFIER:
                index = self.tokens.close_angle(index) + 1
                continue
            elif word == "(":
                if opening is None and not has_value and text[index - 1] not in NOT_A_DECLARATOR:
                    opening = index
                index = partner[index] + 1
                continue
            elif word == "[":
                index = partner[index] + 1
                continue
            elif word == "=":
                has_value = True
            elif word == ":" and opening is not None:
                has_initializers = True
            elif word == ";":
                attributes = self.attributes.within(start, index)
                self.found.statements.append(Statement(path, start, index + 1, opening, stage, attributes, is_class))
                return index + 1
            elif word == "{":
                closing = partner[index]
                if has_value:
                    index = closing + 1
                    continue
                if opening is None:
                    if class_key is None:
                        index = closing + 1  # an initializer
                        continue
                    return self._class(start, class_key, index, path)
                if has_initializers and (kind[index - 1] == IDENTIFIER or text[index - 1] == ">"):
                    index = closing + 1  # the initializer of a member
                    continue
                self._function(start, head, template, opening, index, stage, path, is_class)
                return closing + 1
            index += 1
        if index > start and any(text[place] not in (";", "}") for place in range(start, index)):
            raise SourceError("expected ';' or a body", self.tokens.start[min(index, len(text)) - 1])
        return stop

    def _function(
        self,
        start: int,
        head: int,
        template: tuple[int, int] | None,
        opening: int,
        body: int,
        stage: str | None,
        path: tuple[str, ...],
        is_class: bool,
    ) -> None:
        closing = self.tokens.partner[opening]
        attributes = [*self.attributes.within(start, opening), *self.attributes.within(closing, body)]
        self.found.functions.append(
            Function(
                name=self._name(head, opening),
                path=path,
                start=start,
                stop=self.tokens.partner[body] + 1,
                head=head,
                template=template,
                opening=opening,
                closing=closing,
                body=body,
                stage=stage,
                attributes=attributes,
                is_member=is_class,
            )
        )

    def _name(self, head: int, opening: int) -> str:
        """Return the name in front of a parameter list; all operators and conversions are called `operator`."""
        if "operator" in self.text[head:opening]:
            return "operator"
        name = opening - 1
        if self.text[name] == ">":
            name = self.tokens.open_angle(name) - 1
        return self.text[name]

    def _class(self, start: int, key: int, body: int, path: tuple[str, ...]) -> int:
        closing = self.tokens.partner[body]
        stop = self.tokens.find(";", closing) + 1
        self.found.classes.append(Class(path, start, key, body, stop))
        header = " ".join(self.text[index] for index in range(key, body) if not self.attributes.inside[index])
        self.scope(body + 1, closing, (*path, header), True)
        return stop

    def _instantiation(self, start: int, template: int, path: tuple[str, ...]) -> int:
        stop = self.tokens.find(";", template) + 1
        attributes = self.attributes.within(start, stop)
        stage = next((item.name for item in attributes if item.name in STAGES), None)
        if stage is None and "kernel" in self.text[template:stop]:
            stage = "kernel"
        self.found.instantiations.append(Instantiation(path, start, stop, attributes, stage))
        return stop
