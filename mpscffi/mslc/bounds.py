"""Whether a kernel surely ends soon, whatever it is given: a small launch of such a one need not be queued."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .tokens import IDENTIFIER, OPERATOR, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .declarations import Declarations, Function
    from .tokens import Tokens

# What may go on for ever, or for longer than the text tells.
_UNBOUNDED = {
    *("for", "while", "do", "goto", "asm", "__asm", "__asm__", "operator", "..."),
    *("__builtin_setjmp", "__builtin_longjmp"),
}
_CLASS_KEYS = {"struct", "class", "union"}
# Words that are operators, as functions of the user's may be named.
_OPERATOR_WORDS = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "xor": "^",
    "bitand": "&",
    "bitor": "|",
    "compl": "~",
    "and_eq": "&=",
    "or_eq": "|=",
    "xor_eq": "^=",
    "not_eq": "!=",
}
# Words behind which an expression begins.
_BEFORE_OPERAND = {"return", "case", "else", "and", "or", "not", "xor", "bitand", "bitor", "compl", "sizeof"}
# Words in front of a parenthesis that is no call.
_BEFORE_PARENTHESIS = _BEFORE_OPERAND | {"if", "switch", "alignas", "decltype", "noexcept", "__attribute__", "defined"}
# Words that may stand in front of a name which they do not make one of an object.
_NOT_TYPES = _BEFORE_OPERAND | {
    *("const", "volatile", "restrict", "coherent", "device", "constant", "thread", "threadgroup", "static", "inline"),
    *("constexpr", "extern", "typename", "class", "struct", "union", "enum", "using", "typedef", "template", "kernel"),
    *("unsigned", "signed", "namespace", "new", "delete", "goto", "public", "private", "protected"),
}
_TYPE = re.compile(
    r"(?:packed_)?(?:bool|u?char|u?short|u?int|u?long|float|half|bfloat)(?:[234](?:x[234])?)?|void|auto|u?int\d+_t|size_t"
)
# A kernel that makes more calls than this, counted by the text, is not taken for a short one.
_MAX_CALLS = 4096
_MAX_DEPTH = 64


@dataclass(slots=True)
class Node:
    """A declaration: tokens [start, stop), of which those in `own` only name what it declares.

    `body` is where a function's body begins. What works on objects of classes alone has their names in `classes`.
    """

    start: int
    stop: int
    own: set[int]
    is_class: bool = False
    body: int | None = None
    classes: frozenset[str] = frozenset()


class Bounds:
    """How much the kernels of a source may do.

    A kernel is short if it reaches no loop, nothing twice in turns, and makes few calls. Calls are those that names and
    operators spell: an operator stands for all functions of that operator whose classes the kernel mentions, be they
    for the operands at hand or not, and a parenthesis behind what may be an object for all such `operator()`. Where
    code may run that nothing spells, as that of constructors, lambdas and pointers to functions, no kernel is short.

    Parameters
    ----------
    tokens : Tokens
    declarations : Declarations
    nodes : dict of str to list of Node
        All declarations by name.
    """

    def __init__(self, tokens: Tokens, declarations: Declarations, nodes: dict[str, list[Node]]) -> None:
        self._tokens = tokens
        self._nodes = {name: found for name, found in nodes.items() if name != "operator"}
        self._functions = {function.name for function in declarations.functions} - {"operator"}
        self._classes = {name for name, found in nodes.items() if any(node.is_class for node in found)}
        self._members = [function for function in declarations.functions if function.is_member]
        self._starts = [function.start for function in self._members]
        for function in declarations.functions:
            if function.name == "operator":
                word = tokens.text[self._word(function) + 1]
                symbol = f"operator{_OPERATOR_WORDS.get(word, word)}"
                self._nodes.setdefault(symbol, []).append(self._operator(function))
        # Literals that call functions, and names that can be written in two ways.
        self._has_hidden_calls = 'operator""' in self._nodes or "\\u" in tokens.source or "\\U" in tokens.source
        # Only where there is an `operator()` it matters what may be called by it.
        self._has_calls = "operator(" in self._nodes
        self._types = self._classes | (self._find_types() if self._has_calls else set())
        self._objects = self._find_objects() if self._has_calls else set()

    def hold(self, kernel: Function) -> bool:
        """Whether a kernel surely ends soon."""
        if self._has_hidden_calls:
            return False
        names = {kernel.name}
        seen: set[int] = set()  # first tokens of declarations
        size = -1
        while size < len(seen):  # a class that is new may be that of an operator which was met before
            size = len(seen)
            for node in [node for name in names for node in self._reached(name, names) if node.start not in seen]:
                if self._is_opaque(node):
                    return False
                seen.add(node.start)
                names.update(self._calls(node))
        return self._count(kernel.name, names, {}, []) <= _MAX_CALLS

    def _reached(self, name: str, names: set[str]) -> Iterator[Node]:
        """The declarations of a name, but for operators of classes that are not among some names."""
        return (node for node in self._nodes[name] if not node.classes or not names.isdisjoint(node.classes))

    def _operator(self, function: Function) -> Node:
        classes: set[str] = set()
        if function.is_member:
            classes = {
                name
                for name in self._classes
                for node in self._nodes[name]
                if node.is_class and node.start < function.start < node.stop
            }
        elif function.template is None:
            classes = self._classes.intersection(self._tokens.text[function.opening : function.closing])
        own = set(range(self._word(function), function.opening + 1))
        return Node(function.start, function.stop, own, body=function.body, classes=frozenset(classes))

    def _word(self, function: Function) -> int:
        """The token `operator` of a function's name."""
        return next(place for place in range(function.opening, -1, -1) if self._tokens.text[place] == "operator")

    # ---------------------------------------------------------------- calls

    def _places(self, node: Node) -> Iterator[int]:
        """The tokens of a declaration; of a class without those of its functions, which are called by their names."""
        if not node.is_class:
            yield from range(node.start, node.stop)
            return
        index = node.start
        for function in self._functions_of(node):
            yield from range(index, max(index, function.start))
            index = max(index, function.stop)
        yield from range(index, node.stop)

    def _functions_of(self, node: Node) -> list[Function]:
        return self._members[bisect_left(self._starts, node.start) : bisect_left(self._starts, node.stop)]

    def _calls(self, node: Node) -> Iterator[str]:
        """The names of all that a declaration mentions, and of its operators."""
        text, kind, nodes = self._tokens.text, self._tokens.kind, self._nodes
        for index in self._places(node):
            if index in node.own:
                continue
            word = text[index]
            if kind[index] == IDENTIFIER and word not in _OPERATOR_WORDS:
                if word in nodes:
                    yield word
            elif word != "(":
                word = _OPERATOR_WORDS.get(word, word)
                if f"operator{word}" in nodes:
                    yield f"operator{word}"
            elif self._has_calls and self._is_call_of_object(index):
                yield "operator("

    def _count(self, name: str, names: set[str], counts: dict[str, int], path: list[str]) -> int:
        """Return how many calls a call of a name makes, itself included, as if it made all that its text mentions.

        `names` are all that the kernel reaches.
        """
        known = counts.get(name)
        if known is not None:
            return known
        if name in path or len(path) == _MAX_DEPTH:
            return _MAX_CALLS + 1
        count = 1
        for node in self._reached(name, names):
            for called in self._calls(node):
                count += self._count(called, names, counts, [*path, name])
                if count > _MAX_CALLS:
                    return count
        counts[name] = count
        return count

    def _is_call_of_object(self, index: int) -> bool:
        """Whether the `(` at an index may be the call of an object, or of what an expression gives."""
        text, kind, partner = self._tokens.text, self._tokens.kind, self._tokens.partner
        before = index - 1
        if text[before] == ">":
            try:
                before = self._tokens.open_angle(before) - 1
            except SourceError:
                return True
        if kind[before] == IDENTIFIER:
            return text[before] in self._objects
        if text[before] == ")":
            opening = partner[before]
            return text[opening - 1] not in _BEFORE_PARENTHESIS and not self._is_type(range(opening + 1, before))
        return text[before] in ("]", "}")

    def _is_type(self, places: range) -> bool:
        """Whether what a pair of parentheses holds is a type, so that they cast."""
        text, kind = self._tokens.text, self._tokens.kind
        words = [text[place] for place in places]
        if not words:
            return False
        if words[-1] == "*":
            return True
        names = [word for place, word in zip(places, words, strict=True) if kind[place] == IDENTIFIER]
        if len(names) < len(words) or names[-1] in self._objects:
            return False
        return len(names) > 1 or self._names_type(names[0])

    def _names_type(self, word: str) -> bool:
        return word in self._types or _TYPE.fullmatch(word) is not None

    def _find_types(self) -> set[str]:
        """Names of template parameters and aliases."""
        text, kind = self._tokens.text, self._tokens.kind
        return {
            text[index]
            for index in range(1, len(text))
            if kind[index] == IDENTIFIER and text[index - 1] in ("typename", "class", "using")
        }

    def _find_objects(self) -> set[str]:
        """Names that may be those of variables: all that are not only called, nor those of types or functions."""
        text, kind = self._tokens.text, self._tokens.kind
        names = {
            place
            for name, nodes in self._nodes.items()
            for node in nodes
            if node.body is not None or name in self._functions
            for place in node.own
        }
        found = set()
        around: list[str] = []  # brackets
        for index in range(1, len(text) - 1):
            word, before = text[index], text[index - 1]
            if word in ("(", "[", "{"):
                around.append(word)
            elif word in (")", "]", "}"):
                around.pop()
            if kind[index] != IDENTIFIER or index in names or before == "::":
                continue
            is_declared = before in (">", "&") or (before == "," and around[-1:] == ["{"])
            if self._names_type(word):
                is_declared = False
            elif text[index + 1] not in ("(", "<", "::"):
                is_declared = True
            if is_declared or (kind[index - 1] == IDENTIFIER and before not in _NOT_TYPES):
                found.add(word)
        return found - _NOT_TYPES

    # ---------------------------------------------------------------- what no name tells

    def _is_opaque(self, node: Node) -> bool:
        """Whether running the code of a declaration may do what its calls do not tell."""
        text = self._tokens.text
        if node.is_class and any(self._is_called_unseen(function) for function in self._functions_of(node)):
            return True
        if node.body is not None and not _CLASS_KEYS.isdisjoint(text[node.body : node.stop]):
            return True
        for index in self._places(node):
            word = text[index]
            if index in node.own:
                continue
            if word in _UNBOUNDED:
                return True
            if word == "(" and (node.is_class or self._is_function_pointer(index)):
                return True
            if word == "[" and self._is_lambda(index):
                return True
            if word in self._functions and not self._is_call(index):
                return True
        return False

    def _is_called_unseen(self, function: Function) -> bool:
        """Whether a member is a constructor, a destructor or a conversion."""
        if function.name != "operator":
            return function.name in self._classes
        behind = self._word(function) + 1
        return self._tokens.kind[behind] != OPERATOR

    def _is_lambda(self, index: int) -> bool:
        """Whether the `[` at an index may begin a lambda; calls of what an array holds count as well."""
        text, kind, partner = self._tokens.text, self._tokens.kind, self._tokens.partner
        before, closing = text[index - 1], partner[index]
        if text[index + 1] == "[" or (before == "[" and partner[index - 1] == closing + 1):
            return False  # an attribute
        if text[closing + 1] in ("(", "{", "mutable", "noexcept"):
            return True
        if before == ")" and text[closing + 1] == "<":  # perhaps `if (...) []<class T>(T x) {`
            end = self._tokens.try_close_angle(closing + 1)
            return end is not None and text[end + 1] == "("
        return before not in (")", "]") and (kind[index - 1] != IDENTIFIER or before in _BEFORE_OPERAND)

    def _is_function_pointer(self, index: int) -> bool:
        """Whether `(*name)(`, with `&` or without a name as well, begins at an index."""
        text, partner = self._tokens.text, self._tokens.partner
        closing = partner[index]
        return text[index + 1] in ("*", "&", "&&") and closing - index <= 3 and text[closing + 1] == "("

    def _is_call(self, index: int) -> bool:
        text = self._tokens.text
        if text[index + 1] == "<":
            closing = self._tokens.try_close_angle(index + 1)
            return closing is not None and text[closing + 1] == "("
        return text[index + 1] == "("
