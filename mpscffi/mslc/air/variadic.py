"""Functions with variable arguments, as loggers are: their arguments are put in memory, and passed as its address.

So AIR takes them itself: what `va_start` gives points to the arguments, each at a multiple of its own size. On a CPU it
would give a list of registers and stack.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import CompileError
from .module import PARAMETER_ATTRIBUTES, closing, leading_type, split_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .module import Function

PARAMETER = "ptr %mslc.arguments"
_START = re.compile(r"call void @llvm\.va_start(?:\.p0)?\(ptr (?:\w+ )*(%\S+)\)")
_COPY = re.compile(r"call void @llvm\.va_copy(?:\.p0)?\(ptr (?:\w+ )*(%[^ ,]+), ptr (?:\w+ )*(%\S+)\)")
_END = re.compile(r"call void @llvm\.va_end(?:\.p0)?\(")
_CALL = re.compile(
    r"  (?P<result>%\S+ = )?(?P<kind>tail |notail |musttail )?call (?P<head>.*)\.\.\.\) "
    r'(?P<name>@(?:"[^"]*"|[-\w$.]+))\('
)


def is_variadic(function: Function) -> bool:
    """Whether a function takes variable arguments."""
    return function.parameters[-1:] == ["..."]


def lowered(lines: list[str], functions: Mapping[str, Function]) -> list[str]:
    """Return the body of a function without variable arguments.

    Parameters
    ----------
    lines : list of str
        The body.
    functions : mapping of str to Function
        All of the module.

    Raises
    ------
    CompileError
        If such a function is called in a way that no logger is.
    """
    if not any("...)" in line or "va_" in line for line in lines):
        return lines
    lists: list[str] = []
    body: list[str] = []
    for line in lines:
        start, copy, call = _START.search(line), _COPY.search(line), _CALL.match(line)
        if start is not None:
            body.append(f"  store {PARAMETER}, ptr {start[1]}, align 8")
        elif copy is not None:
            name = f"%mslc.copied.{len(body)}"
            body += [f"  {name} = load ptr, ptr {copy[2]}, align 8", f"  store ptr {name}, ptr {copy[1]}, align 8"]
        elif _END.search(line):
            continue
        elif call is not None and call["name"] in functions and call["kind"] != "musttail ":
            body += _called(line, call, functions[call["name"]], lists)
        elif "...)" in line or re.search(r"\bva_arg\b", line):
            raise CompileError("it has variable arguments in another way than loggers have\n")
        else:
            body.append(line)
    at = 1 if body and body[0][:1] not in ("", " ") else 0
    return [*body[:at], *lists, *body[at:]]


def _called(line: str, call: re.Match[str], function: Function, lists: list[str]) -> list[str]:
    """A call whose variable arguments are stored first, in a place that is added to the function's own."""
    end = closing(line, call.end() - 1)
    arguments = split_list(line[call.end() : end])
    fixed = len(function.parameters) - 1
    rest = [_typed(argument) for argument in arguments[fixed:]]
    name = f"%mslc.list.{len(lists)}"
    kind = "{ " + ", ".join(kind for kind, _ in rest) + " }" if rest else "i64"
    lists.append(f"  {name} = alloca {kind}, align 16")
    stores = []
    for number, (type_, value) in enumerate(rest):
        place = f"{name}.{number}"
        stores += [
            f"  {place} = getelementptr {kind}, ptr {name}, i32 0, i32 {number}",
            f"  store {type_} {value}, ptr {place}",
        ]
    # What is told of the function's type goes: the parameters tell it. It is no tail call: the list is this function's.
    head = call["head"].partition(" (")[0]
    passed = ", ".join([*arguments[:fixed], f"ptr {name}"])
    return [*stores, f"  {call['result'] or ''}call {head} {call['name']}({passed}){line[end + 1 :]}"]


def _typed(argument: str) -> tuple[str, str]:
    """Type and value of an argument."""
    kind = leading_type(argument)
    return kind, PARAMETER_ATTRIBUTES.sub("", argument[len(kind) :]).strip()
