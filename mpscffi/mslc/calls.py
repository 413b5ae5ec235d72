"""What a kernel may reach: barriers, loops, waits for other threads. By the names that declarations mention."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .bounds import Bounds, Node
from .declarations import NOT_A_DECLARATOR
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
# Keywords that stand in a declaration where a name could. As names they would make all templates one.
_NEVER_DECLARED = {"template", *NOT_A_DECLARATOR}
COLLECTIVE_TYPE = re.compile(r"simdgroup_(?:matrix\w*|\w+8x8)")


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
        self._declarations = declarations
        self._bounds: Bounds | None = None
        self.bodies: dict[str, list[Function]] = {}
        self.kernels: list[Function] = []
        self.spins = _find_spins(tokens)
        self._nodes: dict[str, list[Node]] = {}
        self._mentions: dict[str, set[str]] = {}
        self._reached: dict[str, set[str]] = {}
        self._meeting: dict[str, bool] = {}
        for function in declarations.functions:
            self.bodies.setdefault(function.name, []).append(function)
            own = {function.opening - 1}
            if tokens.text[function.opening - 1] == ">" and function.name != "operator":  # `operator>` is no template
                own = {tokens.open_angle(function.opening - 1) - 1}
            self._add([function.name], Node(function.start, function.stop, own, body=function.body))
        for item in declarations.classes:
            named = [
                *_class_name(tokens, item.key, item.body),
                *_declared(tokens, tokens.partner[item.body], item.stop),
            ]
            self._add_named(named, Node(item.start, item.stop, set(named), is_class=True))
        for statement in declarations.statements:
            named = list(_declared(tokens, statement.start, statement.stop))
            is_class = tokens.text[statement.start] == "typedef"  # perhaps of a class
            self._add_named(named, Node(statement.start, statement.stop, set(named), is_class))
        for part in declarations.instantiations:  # as decltype(name<T>) name<T>;
            named = list(_declared(tokens, part.start, part.stop))
            names = {tokens.text[index] for index in named}
            own = {index for index in range(part.start, part.stop) if tokens.text[index] in names}
            self._add_named(named, Node(part.start, part.stop, own))

    def _add(self, names: list[str], node: Node) -> None:
        for name in names:
            self._nodes.setdefault(name, []).append(node)

    def _add_named(self, named: list[int], node: Node) -> None:
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

    def _reachable_nodes(self, kernel: Function) -> Iterator[Node]:
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

    def meets_in_simdgroup(self, name: str) -> bool:
        """Whether a name is that of a function in which lanes of a SIMD-group meet, or of one that may call such."""
        known = self._meeting.get(name)
        if known is None:
            if name in self.bodies:
                self._meeting[name] = False  # for those that come back to it
                known = any(self.meets_in_simdgroup(called) for called in self.mentions(name))
            else:
                known = COLLECTIVE_CALL.fullmatch(name) is not None and not name.endswith("threadgroup_barrier")
            self._meeting[name] = known
        return known

    def size(self, kernel: Function) -> int:
        """How many tokens there are in bodies that a kernel may reach."""
        nodes = self._reachable_nodes(kernel)
        return sum(node.stop - node.body for node in nodes if node.body is not None)

    def is_bounded(self, kernel: Function) -> bool:
        """Whether a kernel surely ends soon."""
        if self._bounds is None:
            self._bounds = Bounds(self._tokens, self._declarations, self._nodes)
        return self._bounds.hold(kernel)


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
        elif kind[index] == IDENTIFIER and word not in _NEVER_DECLARED:
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
