"""Exceptions at the places where the interpreter runs signal handlers: where functions begin, after calls, in loops."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

#: A place: its file and line, its function, and the instruction in it; -1 for where it begins.
Place = tuple[str, int, str, int]


class Interrupt(BaseException):
    """What the signal handler raises."""


@functools.cache
def _checked(code: CodeType) -> frozenset[int]:
    """Return the instructions before which signal handlers run."""
    found = set()
    after_call = False
    for instruction in dis.get_instructions(code):
        if after_call or instruction.opname.startswith(("JUMP_BACKWARD", "JUMP_ABSOLUTE")):
            found.add(instruction.offset)
        after_call = instruction.opname.startswith("CALL")
    return frozenset(found)


class Interrupter:
    """Runs functions up to a place in some files.

    Parameters
    ----------
    files : function
        Whether a path's file is one in which signals arrive.
    """

    def __init__(self, files: Callable[[str], bool]) -> None:
        self._files = functools.cache(files)

    def _run(self, function: Callable[[], object], reached: Callable[[Place], None]) -> None:
        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if event == "call":
                if not self._files(code.co_filename):
                    return None
                frame.f_trace_opcodes = True
                frame.f_trace_lines = False
                reached((Path(code.co_filename).name, frame.f_lineno or 0, code.co_name, -1))
            elif event == "opcode" and frame.f_lasti in _checked(code):
                reached((Path(code.co_filename).name, frame.f_lineno or 0, code.co_name, frame.f_lasti))
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)

    def places(self, function: Callable[[], object]) -> dict[Place, int]:
        """Return the places that a function comes by, and how often."""
        counts: dict[Place, int] = {}

        def count(place: Place) -> None:
            counts[place] = counts.get(place, 0) + 1

        self._run(function, count)
        return counts

    def interrupt(self, function: Callable[[], object], number: int, place: Place | None = None) -> bool:
        """Run a function up to the place that it comes by as the `number`-th, or as the `number`-th time at `place`.

        Returns
        -------
        bool
            Whether it came so far, and the exception out of it.
        """
        left = number

        def count(here: Place) -> None:
            nonlocal left
            if place is None or here == place:
                left -= 1
                if not left:
                    sys.settrace(None)
                    raise Interrupt(here)

        try:
            self._run(function, count)
        except Interrupt:
            return True
        return False
