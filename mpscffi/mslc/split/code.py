"""The tokens of a kernel that is to be split: what stands where, and what it seems to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..calls import COLLECTIVE_CALL, COLLECTIVE_TYPE
from ..tokens import IDENTIFIER, OPERATOR

if TYPE_CHECKING:
    from ..kernels import Kernel
    from ..rewrite import Rewriter
    from ..tokens import Tokens

_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<="}
STEPS = {"++", "--"}


class NotSplitError(Exception):
    """A kernel that this module does not understand: why."""


@dataclass(eq=False, slots=True)
class Variable:
    """A variable of the kernel that code of the threadgroup's level can see.

    `form` is "uniform", "array", "local" (to one region), "input" (one value for each thread, not stored) or "shared"
    (a name that regions see as it is). `place` is its name on the threadgroup's level; `input` the role of an input.
    """

    name: str
    form: str
    place: str = ""
    type_text: str = ""
    is_const: bool = False
    is_constexpr: bool = False
    is_reference: bool = False
    is_private_pointer: bool = False
    input: str = ""


@dataclass(eq=False, slots=True)
class Declarator:
    """One of the variables that a declaration declares, as ranges of tokens."""

    variable: Variable
    suffix: tuple[int, int]
    initializer: tuple[int, int] | None  # tokens behind the name: with `=`, in parentheses or in braces


@dataclass(eq=False, slots=True)
class Stride:
    """A loop `for (type name = first; condition; name += step) body` of one thread, as ranges of tokens."""

    type: str
    name: str
    first: tuple[int, int]
    condition: tuple[int, int]
    step: tuple[int, int]
    body: tuple[int, int]


@dataclass(eq=False, slots=True)
class Item:
    """A statement, tokens [start, stop), and the variables that it can see.

    `kind`: "plain", "declaration", "assignment" (to one variable, and nothing else), "collective", "group" (as it is,
    on the threadgroup's level), "barrier", "if", "for", "while", "do", "block", "jump".
    """

    kind: str
    start: int
    stop: int
    scope: dict[str, Variable]
    declarators: list[Declarator] = field(default_factory=list)
    assigned: Variable | None = None
    collectives: list[int] = field(default_factory=list)
    condition: tuple[int, int] | None = None
    first: Item | None = None
    steps: list[Item] = field(default_factory=list)
    body: list[Item] = field(default_factory=list)
    otherwise: list[Item] | None = None


def keeps_private_pointers(tokens: Tokens) -> bool:
    """Whether a source has types that may keep addresses of a thread's own variables: members, aliases, arguments."""
    text, partner = tokens.text, tokens.partner
    for index, word in enumerate(text):
        if word != "thread":
            continue
        end = next((i for i in range(index, len(text)) if text[i] in (";", ",", "(", ")", "{", "}", ">", "=")), -1)
        if not {"*", "&"} & set(text[index:end]) or text[end] == "(":  # `(`: what a function returns
            continue
        start = next((i for i in range(index - 1, -1, -1) if text[i] in (";", "{", "}", "(", "<")), -1)
        if text[start] == "<" or (text[start] in (";", "}", "{") and {"using", "typedef"} & set(text[start:index])):
            return True
        if text[start] in (";", "{", "}") and _is_member(text, partner, start):
            return True
    return False


def _is_member(text: list[str], partner: list[int], index: int) -> bool:
    """Whether what stands behind a token is directly in the braces of a class."""
    while index >= 0 and text[index] != "{":
        index = (partner[index] if text[index] in ("}", ")", "]") else index) - 1
    head = index - 1
    while head >= 0 and text[head] not in (";", "{", "}", ")"):
        head -= 1
    return bool({"struct", "class", "union"} & set(text[max(head, 0) : max(index, 0)]))


class Code:
    """Answers questions about a kernel's tokens.

    Parameters
    ----------
    rewriter : Rewriter
    kernel : Kernel
    """

    def __init__(self, rewriter: Rewriter, kernel: Kernel) -> None:
        self._rewriter = rewriter
        self._kernel = kernel
        self._tokens = rewriter.tokens
        self._text = rewriter.tokens.text
        self._inside = rewriter.attributes.inside
        self._output = rewriter.output(kernel)  # a copy
        self._variables: list[Variable] = []

    def _meets(self, index: int) -> bool:
        if self._tokens.kind[index] != IDENTIFIER:
            return False
        word = self._text[index]
        if COLLECTIVE_TYPE.fullmatch(word):
            return True
        return self._text[index + 1] in ("(", "<") and COLLECTIVE_CALL.fullmatch(word) is not None

    def _has_meeting(self, start: int, stop: int) -> bool:
        return any(self._meets(index) for index in range(start, stop))

    def _statement_end(self, index: int) -> int:
        text, partner = self._text, self._tokens.partner
        word = text[index]
        if word == "{":
            return partner[index] + 1
        if word in ("for", "while", "switch"):
            return self._statement_end(self._condition_end(index))
        if word == "if":
            end = self._statement_end(self._condition_end(index))
            return self._statement_end(end + 1) if text[end] == "else" else end
        if word == "do":
            end = self._statement_end(index + 1)
            return partner[end + 1] + 2
        while text[index] != ";":
            if text[index] in ("(", "[", "{"):
                index = partner[index]
            index += 1
        return index + 1

    def _condition_end(self, index: int) -> int:
        """Return the token behind the condition of the `if` or loop at `index`."""
        opening = index + 2 if self._text[index + 1] == "constexpr" else index + 1
        if self._text[opening] != "(":
            raise NotSplitError(f"'{self._text[index]}' without a condition")
        return self._tokens.partner[opening] + 1

    def _jumps(self, start: int, stop: int) -> bool:
        """Whether a statement may end more than itself: by a return, or by a break of a loop around it."""
        index = start
        while index < stop:
            word = self._text[index]
            if word == "return":
                return True
            if word in ("break", "continue"):
                return True
            if word in ("for", "while", "do", "switch"):
                end = self._statement_end(index)
                words = self._text[index:end]
                if "return" in words or ("continue" in words and word == "switch"):
                    return True
                index = end
            else:
                index += 1
        return False

    def _assignment_at(self, index: int) -> int:
        """How many tokens the assignment operator at `index` has; 0 if there is none."""
        if self._text[index] in _ASSIGNMENTS:
            return 1
        is_shift = self._text[index] == ">" and self._text[index + 1] == ">="  # `>>` is two tokens
        return 2 if is_shift else 0

    def _changes(self, start: int, stop: int) -> bool:
        """Whether an expression assigns to something."""
        return any(self._text[index] in STEPS or self._assignment_at(index) for index in range(start, stop))

    def _is_changed(self, name: str, start: int, stop: int) -> bool:
        """Whether code seems to change a variable. Of what this misses clang says that the variable is const."""
        for index in self._tokens.places(name, start, stop):
            if self._text[index - 1] in (".", "->"):
                continue
            if self._text[index - 1] in STEPS or self._text[index + 1] in STEPS or self._assignment_at(index + 1):
                return True
            if self._is_address(index - 1) or self._is_private_cast(index - 1):
                return True
            if self._text[index - 1] == "(" and self._is_private_cast(index - 2):
                return True
            if self._text[index + 1] == "." and (self._assignment_at(index + 3) or self._text[index + 3] in STEPS):
                return True
        return False

    def _render(self, indices: list[int] | range, scope: dict[str, Variable] | None = None) -> str:
        """Return code; with a scope that of the threadgroup's level, where a variable goes by its place."""
        parts: list[str] = []
        end = -1
        for index in indices:
            word = self._output[index]
            variable = scope.get(self._text[index]) if scope else None
            if variable is not None and self._text[index - 1] not in (".", "->", "::"):
                before, _, behind = word.rpartition(variable.name)
                word = before + (variable.place or variable.name) + behind
            if word:
                parts += ["" if self._tokens.start[index] == end else " ", word]
                end = self._tokens.start[index] + len(self._text[index])
        return "".join(parts)

    def _mentions(self, name: str, start: int, stop: int) -> bool:
        return any(self._text[index - 1] not in (".", "->") for index in self._tokens.places(name, start, stop))

    def _is_pointed_to(self, name: str, start: int, stop: int) -> bool:
        """Whether the address of a variable seems to be taken: another one may keep it alive."""
        return any(self._is_address(index - 1) for index in self._tokens.places(name, start, stop))

    def _is_address(self, index: int) -> bool:
        """Whether a token is the `&` that takes an address, as far as is not sure that it is no other."""
        text, before = self._text, index - 1
        if text[index] != "&":
            return False
        if text[before] == ")":
            is_name = self._tokens.partner[before] == before - 2 and self._tokens.kind[before - 1] == IDENTIFIER
            is_type = is_name and all(variable.name != text[before - 1] for variable in self._variables)
            return text[before - 1] in ("*", "&") or is_type
        return text[before] == "return" or (self._tokens.kind[before] == OPERATOR and text[before] != "]")

    def _is_private_cast(self, closing: int) -> bool:
        """Whether a token ends a cast to a pointer or reference to what is a thread's own, as `(thread float *)`."""
        text = self._text
        if text[closing] != ")" or text[closing - 1] not in ("*", "&"):
            return False
        return "thread" in text[self._tokens.partner[closing] : closing]
