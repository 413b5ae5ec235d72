"""What a kernel may reach: barriers, loops, waits for other threads. By the names that declarations mention."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .kernels import split_list
from .tokens import IDENTIFIER, NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .declarations import Declarations, Function
    from .tokens import Tokens

# Functions at which threads of a threadgroup meet, the types whose operators are such functions, and what the prelude
# makes them of. Names of a user's own that only begin alike are looked into as any other.
COLLECTIVE_CALL = re.compile(
    r"(?:__metal_)?(?:simd|quad)_(?:sum|product|min|max|and|or|xor|all|any|ballot|is_first|active_threads_mask"
    r"|broadcast\w*|shuffle\w*|prefix_\w+)"
    r"|(?:__metal_)?(?:threadgroup|simdgroup)_barrier|simdgroup_(?:load|store|multiply\w*)"
    r"|make_filled_simdgroup_matrix|mslc\w*"
)
COLLECTIVE_TYPE = re.compile(r"simdgroup_(?:matrix\w*|\w+8x8)")
# What may go on for ever, or for longer than the text tells.
_UNBOUNDED = {
    *("for", "while", "do", "goto", "asm", "__asm", "__asm__", "operator", "..."),
    *("__builtin_setjmp", "__builtin_longjmp"),
}
_CLASS_KEYS = {"struct", "class", "union"}
# Words behind which an expression begins.
_BEFORE_OPERAND = {"return", "case", "else", "and", "or", "not", "xor", "bitand", "bitor", "compl", "sizeof"}
# A kernel that makes more calls than this, counted by the text, is not taken for a short one.
_MAX_CALLS = 4096
_MAX_DEPTH = 64


@dataclass(slots=True)
class _Node:
    """A declaration: tokens [start, stop), of which those in `own` only name what it declares.

    `body` is where a function's body begins.
    """

    start: int
    stop: int
    own: set[int]
    is_class: bool = False
    body: int | None = None


class Calls:
    """Which declarations mention which.

    A declaration, be it a function, class, alias or variable, is known by its name alone, and reaches all that its text
    mentions, other members of a class included. So an answer may err, but only towards "may reach".

    Parameters
    ----------
    tokens : Tokens
    declarations : Declarations

    Attributes
    ----------
    bodies : dict of str to list of Function
    kernels : list of Function
        Filled by the rewriter.
    spins : list of int
        For each loop that waits for another thread, the parenthesis that opens its condition.
    """

    def __init__(self, tokens: Tokens, declarations: Declarations) -> None:
        self._tokens = tokens
        self.bodies: dict[str, list[Function]] = {}
        self.kernels: list[Function] = []
        self.spins = _find_spins(tokens)
        self._nodes: dict[str, list[_Node]] = {}
        self._functions: set[str] = set()
        self._mentions: dict[str, set[str]] = {}
        self._reached: dict[str, set[str]] = {}
        for function in declarations.functions:
            self.bodies.setdefault(function.name, []).append(function)
            own = {function.opening - 1}
            if tokens.text[function.opening - 1] == ">" and function.name != "operator":  # `operator>` is no template
                own = {tokens.open_angle(function.opening - 1) - 1}
            self._add([function.name], _Node(function.start, function.stop, own, body=function.body))
            self._functions.add(function.name)
        for item in declarations.classes:
            named = [
                *_class_name(tokens, item.key, item.body),
                *_declared(tokens, tokens.partner[item.body], item.stop),
            ]
            self._add_named(named, _Node(item.start, item.stop, set(named), is_class=True))
        for statement in declarations.statements:
            named = list(_declared(tokens, statement.start, statement.stop))
            is_class = tokens.text[statement.start] == "typedef"  # perhaps of a class
            self._add_named(named, _Node(statement.start, statement.stop, set(named), is_class))
        for part in declarations.instantiations:  # as decltype(name<T>) name<T>;
            named = list(_declared(tokens, part.start, part.stop))
            names = {tokens.text[index] for index in named}
            own = {index for index in range(part.start, part.stop) if tokens.text[index] in names}
            self._add_named(named, _Node(part.start, part.stop, own))

    def _add(self, names: list[str], node: _Node) -> None:
        for name in names:
            self._nodes.setdefault(name, []).append(node)

    def _add_named(self, named: list[int], node: _Node) -> None:
        self._add(list(dict.fromkeys(self._tokens.text[index] for index in named)), node)

    def mentions(self, name: str) -> set[str]:
        """Return the identifiers in all declarations of a name, but not the name where it is declared."""
        found = self._mentions.get(name)
        if found is None:
            text, kind = self._tokens.text, self._tokens.kind
            found = {
                text[index]
                for node in self._nodes.get(name, ())
                for index in range(node.start, node.stop)
                if kind[index] == IDENTIFIER and index not in node.own
            }
            self._mentions[name] = found
        return found

    def _names(self, kernel: Function) -> set[str]:
        """Names of the declarations that a kernel may reach. Operators are called without being named."""
        names = self._reached.get(kernel.name)
        if names is None:
            names, todo = {kernel.name, "operator"}, [kernel.name, "operator"]
            while todo:
                new = {name for name in self.mentions(todo.pop()) if name in self._nodes} - names
                names |= new
                todo += new
            self._reached[kernel.name] = names
        return names

    def _reachable_nodes(self, kernel: Function) -> Iterator[_Node]:
        for name in self._names(kernel):
            yield from self._nodes.get(name, ())

    def reachable(self, kernel: Function) -> list[Function]:
        """Return the functions that a kernel may call, itself included."""
        return [function for name in self._names(kernel) for function in self.bodies.get(name, ())]

    def identifiers(self, kernel: Function) -> set[str]:
        """All identifiers that a kernel and what it may reach mention."""
        found: set[str] = set()
        for name in self._names(kernel):
            found |= self.mentions(name)
        return found

    def needs_fibers(self, kernel: Function) -> bool:
        """Whether a kernel may wait for other threads of its threadgroup."""
        return self._spins(kernel) or any(_is_collective(word) for word in self.identifiers(kernel))

    def _spins(self, kernel: Function) -> bool:
        return any(node.start < opening < node.stop for node in self._reachable_nodes(kernel) for opening in self.spins)

    def meets_out_of_sight(self, kernel: Function) -> bool:
        """Whether threads may wait elsewhere than at the calls that the kernel's own body spells out."""
        if self._spins(kernel):
            return True
        text = self._tokens.text
        for node in self._reachable_nodes(kernel):
            for index in range(node.start, node.stop):
                if not _is_collective(text[index]):
                    continue
                if not kernel.body < index < kernel.stop or text[index + 1] not in ("(", "<"):
                    return True
        return False

    def is_bounded(self, kernel: Function) -> bool:
        """Whether a kernel surely ends soon: it reaches no loop, no function twice, and makes few calls.

        Calls that no name tells of are none that this follows: those of operators, of the code of classes, of lambdas
        and of pointers to functions.
        """
        if "operator" in self._nodes:
            return False
        if any(self._is_opaque(node) for node in self._reachable_nodes(kernel)):
            return False
        return self._count(kernel.name, {}, []) <= _MAX_CALLS

    def _is_opaque(self, node: _Node) -> bool:
        """Whether running the code of a declaration may do what its calls do not tell."""
        text = self._tokens.text
        if node.is_class and "(" in text[node.start : node.stop]:
            return True
        if node.body is not None and not _CLASS_KEYS.isdisjoint(text[node.body : node.stop]):
            return True
        for index in range(node.start, node.stop):
            word = text[index]
            if word in _UNBOUNDED:
                return True
            if word == "[" and self._is_lambda(index):
                return True
            if word == "(" and self._is_function_pointer(index):
                return True
            if word in self._functions and index not in node.own and not self._is_call(index):
                return True
        return False

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

    def _count(self, name: str, counts: dict[str, int], path: list[str]) -> int:
        """Return how many calls a call of a name makes, itself included, as if it made all that its text mentions."""
        known = counts.get(name)
        if known is not None:
            return known
        if name in path or len(path) == _MAX_DEPTH:
            return _MAX_CALLS + 1
        text, kind = self._tokens.text, self._tokens.kind
        count = 1
        for node in self._nodes[name]:
            for index in range(node.start, node.stop):
                if kind[index] == IDENTIFIER and text[index] in self._nodes and index not in node.own:
                    count += self._count(text[index], counts, [*path, name])
                    if count > _MAX_CALLS:
                        return count
        counts[name] = count
        return count


def _is_collective(word: str) -> bool:
    return bool(COLLECTIVE_CALL.fullmatch(word) or COLLECTIVE_TYPE.fullmatch(word))


def _class_name(tokens: Tokens, key: int, body: int) -> list[int]:
    """Return the token that names the class whose header is [key, body), if it has a name."""
    text, kind = tokens.text, tokens.kind
    index = key + 1
    name: list[int] = []
    while index < body and text[index] not in (":", "<", "final"):
        if text[index] in ("[", "("):
            index = tokens.partner[index]
        elif kind[index] == IDENTIFIER and text[index + 1] != "(":
            name = [index]
        index += 1
    return name


def _declared(tokens: Tokens, start: int, stop: int) -> Iterator[int]:
    """Tokens that name what a declaration without a body of its own declares, and perhaps some that do not."""
    text, kind = tokens.text, tokens.kind
    index = start
    while index < stop:
        word = text[index]
        if word == "template" and text[index + 1] == "<":
            index = tokens.close_angle(index + 1)
        elif word == "operator":
            yield index
            return
        elif word == "(" and text[index + 1] in ("*", "&"):
            names = [place for place in range(index + 1, tokens.partner[index]) if kind[place] == IDENTIFIER]
            yield from names[-1:]
            index = tokens.partner[index]
        elif word in ("(", "[", "{"):
            index = tokens.partner[index]
        elif word == "=":  # what follows is the value
            while index < stop and text[index] not in (",", ";"):
                index = max(index, tokens.partner[index]) + 1
            continue
        elif kind[index] == IDENTIFIER:
            behind = index + 1
            if text[behind] == "<":
                closing = tokens.try_close_angle(behind)
                behind = behind if closing is None else closing + 1
            if text[behind] in (";", "=", ",", "[", "{", "(", ":"):
                yield index
            index = behind
            continue
        index += 1


def _find_spins(tokens: Tokens) -> list[int]:
    """Loops whose condition reads an atomic that another thread is to change.

    A loop of compare and exchange ends by itself, unless it takes a lock: then the wanted value is a literal.
    """
    spins: list[int] = []
    text = tokens.text
    for index in range(len(text) - 1):
        if text[index] != "while" or text[index + 1] != "(":
            continue
        closing = tokens.partner[index + 1]
        for place in range(index + 2, closing):
            if text[place] in ("atomic_load_explicit", "atomic_load", "atomic_exchange_explicit", "atomic_exchange"):
                spins.append(index + 1)
                break
            if text[place].startswith("atomic_compare_exchange") and _takes_lock(tokens, place + 1):
                spins.append(index + 1)
                break
    return spins


def _takes_lock(tokens: Tokens, opening: int) -> bool:
    if tokens.text[opening] != "(":
        return False
    arguments = split_list(tokens, opening + 1, tokens.partner[opening])
    return len(arguments) > 2 and len(arguments[2]) == 1 and tokens.kind[arguments[2][0]] == NUMBER
