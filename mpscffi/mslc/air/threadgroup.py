"""Variables in threadgroup memory: from globals to places in the memory that the runtime gives to a threadgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CompileError
from .module import closing, flat, leading_type, rename, symbols

if TYPE_CHECKING:
    from .module import Module

_VARIABLE = re.compile(r".*?\baddrspace\(3\) (?:externally_initialized )?global (.*)")
_ALIGN = re.compile(r", align (\d+)")
_DEFAULT_ALIGN = 16
# Constant expressions; as instructions they are written without the parentheses.
_EXPRESSION = re.compile(
    r"\b(getelementptr|bitcast|ptrtoint|inttoptr|trunc|add|sub|xor)"
    r"((?: (?:inbounds|nuw|nusw|nsw|inrange\([^)]*\)))*) \("
)
_CASTS = ("bitcast", "ptrtoint", "inttoptr", "trunc")
_PREFIX = "%mslc.threadgroup."


@dataclass(slots=True)
class Variable:
    """A variable in threadgroup memory, its type without address spaces."""

    type: str
    align: int


class ThreadgroupVariables:
    """The variables of a module in threadgroup memory.

    Parameters
    ----------
    module : Module
        The variables are taken out of it.
    """

    def __init__(self, module: Module) -> None:
        self.variables: list[Variable] = []
        self._registers: dict[str, str] = {}
        for name, text in list(module.globals.items()):
            match = _VARIABLE.match(text)
            if match is None:
                continue
            kind = leading_type(match[1])
            align = _ALIGN.search(match[1])
            self._registers[name] = f"{_PREFIX}{len(self.variables)}"
            self.variables.append(Variable(flat(kind), int(align[1]) if align else _DEFAULT_ALIGN))
            del module.globals[name]
        for name, text in module.globals.items():
            if not name.startswith("@llvm.") and any(symbol in self._registers for symbol in symbols(text)):
                raise CompileError(f"'{name[1:]}' holds the address of a variable in threadgroup memory\n")

    @property
    def names(self) -> list[str]:
        """Of the variables, as they were."""
        return list(self._registers)

    def place(self, body: str) -> str:
        """The body of a function, flat, with the variables' addresses taken first."""
        if not any(name in body for name in self._registers):
            return body
        body = rename(body, self._registers)
        used = sorted(set(re.findall(rf"{re.escape(_PREFIX)}(\d+)\b", body)), key=int)
        first = [f"  {_PREFIX}{number} = call ptr @mslc.threadgroup.{number}()" for number in used]
        known: dict[str, str] = {}
        lines = [self._unfolded(line, known, first) if _PREFIX in line else line for line in body.split("\n")]
        at = 1 if lines and lines[0][:1] not in ("", " ") else 0
        return "\n".join([*lines[:at], *first, *lines[at:]])

    def _unfolded(self, line: str, known: dict[str, str], first: list[str]) -> str:
        """A line with its constant expressions of such addresses made instructions, innermost first."""
        while True:
            for match in reversed(list(_EXPRESSION.finditer(line))):
                end = closing(line, match.end() - 1)
                inside = line[match.end() : end]
                if _PREFIX in inside:
                    break
            else:
                return line
            instruction = f"{match[1]}{match[2]} {_operands(match[1], inside)}"
            register = known.get(instruction)
            if register is None:
                register = known[instruction] = f"%mslc.place.{len(known)}"
                first.append(f"  {register} = {instruction}")
            line = line[: match.start()] + register + line[end + 1 :]

    def definitions(self) -> list[str]:
        """The slots, which the loader fills, and the functions that give the variables' addresses."""
        if not self.variables:
            return []
        slots = ", ".join(
            f"%mslc.slot {{ i32 ptrtoint (ptr getelementptr ({variable.type}, ptr null, i32 1) to i32), "
            f"i32 {variable.align}, i32 0, i32 0 }}"
            for variable in self.variables
        )
        count = len(self.variables)
        lines = [
            "%mslc.slot = type { i32, i32, i32, i32 }",
            f"@mslc.slots = internal global [{count} x %mslc.slot] [{slots}], align 16",
        ]
        for number in range(count):
            slot = f"getelementptr ([{count} x %mslc.slot], ptr @mslc.slots, i64 0, i64 {number}, i32 2)"
            lines += [
                f"define internal ptr @mslc.threadgroup.{number}() alwaysinline nounwind {{",
                f"  %offset = load volatile i32, ptr {slot}, align 4",
                "  %place = call ptr @mslc_air_threadgroup_variable(i32 %offset)",
                "  ret ptr %place",
                "}",
            ]
        return lines


def _operands(operation: str, text: str) -> str:
    """Operands of a constant expression as an instruction has them."""
    if operation in _CASTS or operation == "getelementptr":
        return text
    kind = leading_type(text)
    a, _, b = text.partition(", ")
    return f"{a}, {b[len(kind) + 1 :]}"
