"""Lanes of a SIMD-group that run as fibers meet at the end of each round of a loop, as on a GPU.

A lane that leaves out a SIMD-group function in one round would come to it in the next, and be served together with
those that wait there still. The runtime serves the functions in the order of the code, so one more at the end of a
loop's body, where nothing happens, keeps all lanes in the same round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .calls import Calls
    from .declarations import Function
    from .tokens import Tokens

_MEETING = "::mslc::rejoin();"
_CONDITIONAL = {"if", "for", "while", "do", "switch", "else", "?", "&&", "||", "and", "or", "{"}
_LOOPS = {"for", "while", "do"}


def with_meetings(tokens: Tokens, calls: Calls, kernel: Function, output: list[str]) -> list[str]:
    """Return the tokens of a kernel and of what it may call with a meeting in each loop that needs one."""
    output = list(output)
    try:
        loops = list(_loops(tokens, calls, kernel))
    except (IndexError, RecursionError):  # no structure to see: clang will tell
        return output
    # The inner ones first, which may end with the same token as those around them.
    for number, (start, stop) in reversed(list(enumerate(loops))):
        if not (output[start] and output[stop - 1]):
            continue  # a duplicate, or what the kernel does without
        label = ""
        for place in _continues(tokens, start, stop):
            label = f"mslc_round_{number}: "
            output[place] = f"goto mslc_round_{number}"
        output[start] = "{" + output[start]
        output[stop - 1] += f" {label}{_MEETING} }}"
    return output


def _loops(tokens: Tokens, calls: Calls, kernel: Function) -> Iterator[tuple[int, int]]:
    """The bodies [start, stop) of loops in which lanes may miss each other, the inner ones behind the outer ones."""
    text, partner = tokens.text, tokens.partner
    for function in calls.reachable(kernel):
        if "constexpr" in text[function.start : function.opening]:  # they have no labels
            continue
        ends: set[int] = set()  # of `do`: their `while` is no loop of its own
        for index in range(function.body, function.stop):
            if text[index] not in _LOOPS or index in ends:
                continue
            start = index + 1 if text[index] == "do" else partner[index + 1] + 1
            stop = _statement_end(tokens, start)
            if text[index] == "do":
                ends.add(stop)
            if text[start] != ";" and _parts(tokens, calls, start, stop):
                yield start, stop


def _parts(tokens: Tokens, calls: Calls, start: int, stop: int) -> bool:
    """Whether lanes may leave out the last function of the SIMD-group in a loop's body."""
    text = tokens.text
    meetings = [index for index in range(start, stop) if calls.meets_in_simdgroup(text[index])]
    if not meetings:
        return False
    if any(True for _ in _continues(tokens, start, stop)):
        return True
    first, last = start, stop
    if text[start] == "{":
        index, last = start + 1, stop - 1
        while index < last:
            first, index = index, _statement_end(tokens, index)
            if index > meetings[-1]:
                last = index
                break
    words = text[first:last]
    return not _CONDITIONAL.isdisjoint(words) or text[meetings[-1]] in calls.bodies


def _continues(tokens: Tokens, start: int, stop: int) -> Iterator[int]:
    """Each `continue` in a loop's body that is not of a loop inside of it."""
    text = tokens.text
    index = start
    while index < stop:
        if text[index] in _LOOPS:
            index = _statement_end(tokens, index)
        else:
            if text[index] == "continue":
                yield index
            index += 1


def _statement_end(tokens: Tokens, start: int) -> int:
    """The token behind the statement that begins at `start`."""
    text, partner = tokens.text, tokens.partner
    index = start
    while text[index] == "[":  # attributes
        index = partner[index] + 1
    word = text[index]
    if word == "{":
        return partner[index] + 1
    if word == "do":
        condition = _statement_end(tokens, index + 1) + 1
        return partner[condition] + 2
    if word in ("if", "for", "while", "switch"):
        opening = index + 2 if text[index + 1] == "constexpr" else index + 1
        end = _statement_end(tokens, partner[opening] + 1)
        return _statement_end(tokens, end + 1) if word == "if" and text[end] == "else" else end
    while text[index] != ";":
        index = max(index, partner[index]) + 1
    return index + 1
