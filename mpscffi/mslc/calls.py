"""What a kernel may reach: barriers, loops, waits for other threads. By the names that bodies mention."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .kernels import split_list
from .tokens import IDENTIFIER, NUMBER

if TYPE_CHECKING:
    from .declarations import Function
    from .tokens import Tokens

# Functions at which threads of a threadgroup meet, and the types whose operators are such functions.
COLLECTIVE_CALL = re.compile(
    r"(?:threadgroup|simdgroup)_\w+|quad_\w+|simd_(?!(?:u?(?:char|short|int|long)|half|bfloat|float|bool)\d)\w+"
)
COLLECTIVE_TYPE = re.compile(r"simdgroup_(?:matrix|(?:float|half|bfloat)8x8)")
_LOOPS = {"for", "while", "goto"}


class Calls:
    """Which functions mention which.

    A function is known by its name alone: overloads are taken together, so an answer may err, but only towards
    "may reach".

    Parameters
    ----------
    tokens : Tokens
    functions : list of Function

    Attributes
    ----------
    bodies : dict of str to list of Function
    kernels : list of Function
        Filled by the rewriter.
    spins : list of int
        For each loop that waits for another thread, the parenthesis that opens its condition.
    """

    def __init__(self, tokens: Tokens, functions: list[Function]) -> None:
        self._tokens = tokens
        self.bodies: dict[str, list[Function]] = {}
        self.kernels: list[Function] = []
        for function in functions:
            self.bodies.setdefault(function.name, []).append(function)
        self.spins = _find_spins(tokens)
        self._mentions: dict[str, set[str]] = {}

    def mentions(self, name: str) -> set[str]:
        """Return identifiers in the bodies, parameters and initializers of the functions of a name."""
        found = self._mentions.get(name)
        if found is None:
            text, kind = self._tokens.text, self._tokens.kind
            found = {
                text[index]
                for function in self.bodies.get(name, ())
                for index in range(function.opening, function.stop)
                if kind[index] == IDENTIFIER
            }
            self._mentions[name] = found
        return found

    def reachable(self, kernel: Function) -> list[Function]:
        """Return the functions that a kernel may call, itself included."""
        names, todo = {kernel.name, "operator"}, [kernel.name, "operator"]
        while todo:
            new = {name for name in self.mentions(todo.pop()) if name in self.bodies} - names
            names |= new
            todo += new
        return [function for name in names for function in self.bodies.get(name, ())]

    def identifiers(self, kernel: Function) -> set[str]:
        """All identifiers that a kernel and what it may call mention."""
        found: set[str] = set()
        for function in self.reachable(kernel):
            found |= self.mentions(function.name)
        return found

    def needs_fibers(self, kernel: Function) -> bool:
        """Whether a kernel may wait for other threads of its threadgroup."""
        functions = self.reachable(kernel)
        text = self._tokens.text
        for function in functions:
            if any(function.body < opening < function.stop for opening in self.spins):
                return True
            for index in range(function.opening, function.stop):
                if self._tokens.kind[index] != IDENTIFIER:
                    continue
                if COLLECTIVE_TYPE.fullmatch(text[index]):
                    return True
                if text[index + 1] in ("(", "<") and COLLECTIVE_CALL.fullmatch(text[index]):
                    return True
        return False

    def is_bounded(self, kernel: Function) -> bool:
        """Whether a kernel surely ends: it reaches no loop, and no function twice."""
        functions = self.reachable(kernel)
        text = self._tokens.text
        for function in functions:
            if not _LOOPS.isdisjoint(text[function.body : function.stop]):
                return False
        return not self._has_cycle({function.name for function in functions})

    def _has_cycle(self, names: set[str]) -> bool:
        state: dict[str, int] = {}
        for root in names:
            stack = [(root, iter(self.mentions(root) & names))]
            if state.get(root):
                continue
            state[root] = 1
            while stack:
                name, mentioned = stack[-1]
                following = next(mentioned, None)
                if following is None:
                    state[name] = 2
                    stack.pop()
                elif state.get(following) == 1:
                    return True
                elif not state.get(following):
                    state[following] = 1
                    stack.append((following, iter(self.mentions(following) & names)))
        return False


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
