"""Cuts a function where lanes meet: into units, which are run for each lane of a SIMD-group before the next begins."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .code import NotGangedError
from .uniformity import BARRIER, COLLECTIVE, YIELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .code import Block, Code, Instruction
    from .uniformity import Uniformity

_OPERANDS = re.compile(r"@mslc_collective\(ptr [^@]*?(%r\d+), ptr [^@]*(@[\w$.]+)\)")


@dataclass(eq=False, slots=True)
class Unit:
    """A piece of a block, and the blocks that lanes run apart behind it.

    Attributes
    ----------
    number : int
    block : str
        The block that it begins in.
    is_first, is_last : bool
        Whether it is the first, or last, piece of its block.
    instructions : list of Instruction
        Of the piece, phis left out.
    apart : list of str
        The blocks behind it that lanes run apart.
    exit : str
        If there are such blocks: where lanes meet again, "" for the end of the kernel.
    meeting : Instruction, optional
        The barrier or SIMD-group function that comes behind the piece.
    """

    number: int
    block: str
    is_first: bool
    instructions: list[Instruction] = field(default_factory=list)
    is_last: bool = False
    apart: list[str] = field(default_factory=list)
    is_apart: bool = False
    exit: str = ""
    meeting: Instruction | None = None


class Units:
    """The units of a function.

    Parameters
    ----------
    code : Code
    uniformity : Uniformity

    Attributes
    ----------
    list : list of Unit
    first : dict of str to Unit
        The unit that begins with a block.
    """

    def __init__(self, code: Code, uniformity: Uniformity) -> None:
        self._blocks = code.blocks
        self._apart = uniformity.split_blocks
        self._varying = uniformity.varying
        self.list: list[Unit] = []
        self.first: dict[str, Unit] = {}
        self._owner: dict[str, Unit] = {}
        self._refuse()
        for name, block in code.blocks.items():
            if name not in self._apart:
                self._cut(block)
        for unit in list(self.list):
            if unit.is_last:
                self._end(unit)

    def _refuse(self) -> None:
        for block in self._blocks.values():
            for item in block.instructions:
                if item.opcode != "call":
                    continue
                if item.callee == YIELD:
                    raise NotGangedError("a loop that waits for another thread")
                if item.callee in (BARRIER, COLLECTIVE) and block.name in self._apart:
                    raise NotGangedError("lanes meet where some may be missing")
                if item.callee[0] == "%":
                    raise NotGangedError("a call of a function that is not known")

    def _new(self, block: str, is_first: bool) -> Unit:
        unit = Unit(len(self.list), block, is_first)
        self.list.append(unit)
        if is_first:
            self.first[block] = unit
        return unit

    def _cut(self, block: Block) -> None:
        unit = self._new(block.name, True)
        for item in block.instructions:
            if item.opcode == "phi":
                continue
            if item.opcode == "call" and item.callee in (BARRIER, COLLECTIVE):
                unit.meeting = item
                unit = self._new(block.name, False)
            else:
                unit.instructions.append(item)
        unit.is_last = True

    def _end(self, unit: Unit) -> None:
        """Find the blocks that belong to the last piece of a block, and make units of those that begin apart."""
        block = self._blocks[unit.block]
        terminator = block.terminator
        if terminator.opcode in ("br", "switch") and any(name in self._varying for name in terminator.operands):
            self._take_apart(unit, block.targets)
            return
        apart = [target for target in dict.fromkeys(block.targets) if target in self._apart]
        if len(block.targets) == 1 and apart and self._is_entered_from(apart[0], unit.block):
            self._take_apart(unit, apart)
            return
        for target in apart:
            if target not in self.first:
                self._begin_apart(target)

    def _is_entered_from(self, name: str, block: str) -> bool:
        """Whether a block is entered from one of those that all lanes run, and only from it."""
        return all(source == block or source in self._apart for source in self._blocks[name].sources)

    def _begin_apart(self, name: str) -> None:
        unit = self._new(name, True)
        block = self._blocks[name]
        unit.instructions = [item for item in block.instructions if item.opcode != "phi"]
        unit.is_last = True
        self._take(name, unit)
        self._take_apart(unit, block.targets)

    def _take(self, name: str, unit: Unit) -> None:
        if self._owner.setdefault(name, unit) is not unit:
            raise NotGangedError("a block that lanes come to on ways that differ")

    def _take_apart(self, unit: Unit, targets: list[str]) -> None:
        exits: set[str] = set()
        todo = list(targets) if self._blocks[unit.block].targets else []
        found: set[str] = set()
        if not todo:
            exits.add("")
        while todo:
            name = todo.pop()
            if name not in self._apart:
                exits.add(name)
            elif name not in found and name != unit.block:
                found.add(name)
                self._take(name, unit)
                todo += self._blocks[name].targets
                if not self._blocks[name].targets:
                    exits.add("")
        if len(exits) > 1:
            raise NotGangedError("lanes that go on in several places")
        inside = found | {unit.block}
        for name in found:
            if not inside.issuperset(self._blocks[name].sources):
                raise NotGangedError("a block that lanes come to on ways that differ")
        unit.apart = [name for name in self._blocks if name in found]
        unit.is_apart = True
        unit.exit = exits.pop()


def collective_operands(item: Instruction) -> tuple[str, str]:
    """The register of a SIMD-group function's operand, and what is done with all lanes' operands."""
    match = _OPERANDS.search(item.text)
    if match is None:
        raise NotGangedError("a SIMD-group function that is not understood")
    return match[1], match[2]
