"""Threads of a SIMD-group run together: LLVM code of one thread made into code of all its lanes.

What stands between two barriers or SIMD-group functions becomes a loop over the lanes, which LLVM vectorizes, and a
SIMD-group is one fiber instead of 32. As in SPMD compilers, such lanes are a gang.

`code.py` reads a function, `uniformity.py` finds what has one value for all lanes, `units.py` cuts the function into
parts, `emit.py` writes the loops.
"""

from __future__ import annotations

import re

from ..air.module import Module
from ..errors import CompileError
from .code import Code, NotGangedError
from .emit import PARAMETERS, Gang
from .uniformity import BARRIER, COLLECTIVE, LANE, YIELD, Uniformity

__all__ = ["NAMED_VALUES", "SIMPLIFY", "NotGangedError", "ganged"]

# For clang: without it the text of optimized code may name two values alike.
NAMED_VALUES = "-fno-discard-value-names"
# Clang's options for code that gangs are made of: all calls inlined, and no loop changed before lanes are loops, too.
SIMPLIFY = (
    *("-fno-vectorize", "-fno-slp-vectorize"),
    *("-mllvm", "-unroll-runtime=false"),
    *("-mllvm", "-inline-threshold=100000"),
    NAMED_VALUES,
)

# A unit is a loop, and what LLVM does to many loops of one function takes longer for each: of so many units there is
# but one function, and with more a thread stays a fiber.
_MOST_UNITS_IN_ROWS = 64
_MOST_UNITS = 100

_TYPE = re.compile(r'^(%(?:"[^"]*"|[-\w$.]+)) = type .*$', re.MULTILINE)
_DECLARED = (
    "void @mslc_gang_collective(ptr, i64, i32, ptr)",
    "void @mslc_threadgroup_barrier()",
    "i32 @llvm.umin.i32(i32, i32)",
)
_FUNCTION = re.compile(r'^define [^\n]*?(@(?:"[^"]*"|[-\w$.]+))\([^\n]*\n(.*?)^}', re.MULTILINE | re.DOTALL)
_DECLARATION = re.compile(r"^(?:define|declare) [^\n]*?(@[\w$.]+)\(", re.MULTILINE)
_CALLED = re.compile(r'@(?:"[^"]*"|[-\w$.]+)')
_ATTRIBUTES = re.compile(r"^attributes #\d+ = .*$", re.MULTILINE)


def ganged(text: str, function: str, prefix: str) -> str:
    """A module in which a function that runs a thread is replaced by those that run a SIMD-group.

    Parameters
    ----------
    text : str
        The module.
    function : str
        With its "@"; its parameters are the launch, the threadgroup, the thread, and constants.
    prefix : str
        The name, without "@", of the function for any SIMD-group; those for full ones in rows of 32 or 16 have "_32"
        and "_16" behind it. Where they are declared they are defined.

    Raises
    ------
    NotGangedError
        If it is not certain that lanes may be run in loops.
    """
    start = re.search(rf"^define [^\n]*{re.escape(function)}\([^\n]*$", text, re.MULTILINE)
    if start is None:
        raise NotGangedError("there is no such function")
    end = text.index("\n}\n", start.start()) + 3
    types = [match[0] for match in _TYPE.finditer(text)]
    try:
        body = Module(text[start.start() : end]).functions[function]
    except CompileError as error:
        raise NotGangedError(error.log) from None
    code = Code(body, {line.partition(" = ")[0] for line in types})
    uniformity = Uniformity(code)
    any_lanes = Gang(code, uniformity, types, 0)
    count = len(any_lanes.units.list)
    if count > _MOST_UNITS:
        raise NotGangedError("so many parts that clang takes long")
    names = [prefix, f"{prefix}_32", f"{prefix}_16"]
    parts = [any_lanes.text(prefix)]
    for name, row in zip(names[1:], (32, 16), strict=True):
        if count <= _MOST_UNITS_IN_ROWS and (row == 32 or uniformity.has_rows):
            parts.append(Gang(code, uniformity, types, row).text(name))
        else:
            parts.append(_forwarding(name, prefix))
    rest = text[: start.start()] + text[end:]
    _refuse_calls(code, rest)
    rest = re.sub(rf"^declare [^\n]*@(?:{'|'.join(names)})\([^\n]*\n", "", rest, flags=re.MULTILINE)
    known = set(_DECLARATION.findall(rest))
    declared = [f"declare {line}" for line in _DECLARED if _symbol(line) not in known]
    # Lanes meet nowhere any more, so nothing hangs on where a call stands.
    rest = _ATTRIBUTES.sub(lambda match: re.sub(r"\b(?:convergent|nomerge) ", "", match[0]), rest)
    return "\n".join([rest, *declared, *parts])


def _forwarding(name: str, other: str) -> str:
    given = re.sub(r"(?:noalias|readonly) ", "", PARAMETERS)
    return f"define internal void @{name}({given}) nounwind {{\n  call void @{other}({given})\n  ret void\n}}\n"


def _refuse_calls(code: Code, module: str) -> None:
    """Refuse a function that calls others in which threads meet."""
    bodies = dict(_FUNCTION.findall(module))
    todo = [item.callee for block in code.blocks.values() for item in block.instructions if item.callee in bodies]
    seen = set(todo)
    while todo:
        body = bodies[todo.pop()]
        if any(f"{name}(" in body for name in (BARRIER, COLLECTIVE, LANE, YIELD)):
            raise NotGangedError("threads meet in a function that is not inlined")
        for name in _CALLED.findall(body):
            if name in bodies and name not in seen:
                seen.add(name)
                todo.append(name)


def _symbol(declaration: str) -> str:
    return declaration[declaration.index("@") : declaration.index("(")]
