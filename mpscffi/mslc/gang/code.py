"""A function of LLVM's, as basic blocks of instructions. Only what LLVM itself prints is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..air.module import leading_type, split_list, without_metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..air.module import Function

REGISTER = re.compile(r'%(?:"[^"]*"|[-\w$.]+)')
_RESULT = re.compile(r'(%(?:"[^"]*"|[-\w$.]+)) = (.*)')
_LABEL = re.compile(r'("[^"]*"|[-\w$.]+):')
_TARGET = re.compile(r'label (%(?:"[^"]*"|[-\w$.]+))')
_CALLEE = re.compile(r' (@(?:"[^"]*"|[-\w$.]+)|%(?:"[^"]*"|[-\w$.]+)|asm )\(?')
_FLAGS = frozenset(
    "nuw nsw nusw exact disjoint nneg samesign inbounds fast nnan ninf nsz arcp contract afn reassoc volatile atomic "
    "tail musttail notail inrange weak".split()
)
_BINARY = frozenset(
    "add fadd sub fsub mul fmul udiv sdiv fdiv urem srem frem shl lshr ashr and or xor fneg freeze".split()
)
_CASTS = frozenset(
    "trunc zext sext fptrunc fpext fptoui fptosi uitofp sitofp ptrtoint inttoptr bitcast addrspacecast".split()
)
_TERMINATORS = frozenset({"br", "switch", "ret", "unreachable"})
_RESULT_ATTRIBUTES = re.compile(
    r"\b(?:noundef|nonnull|signext|zeroext|inreg|noalias|nofpclass\([^)]*\)|align \d+|range\([^)]*\)"
    r"|dereferenceable(?:_or_null)?\(\d+\)|[a-z]*cc|cc \d+)\s"
)


class NotGangedError(Exception):
    """A kernel whose threads cannot be run as lanes: why."""


@dataclass(eq=False, slots=True)
class Instruction:
    """An instruction.

    Attributes
    ----------
    result : str
        The register, "" for none.
    type : str
        Of the result.
    opcode : str
    text : str
        What stands behind "=", without metadata.
    operands : list of str
        The registers it reads, but not those of blocks.
    incoming : list of (str, str)
        Of a phi: value and block.
    callee : str
        Of a call.
    """

    result: str
    type: str
    opcode: str
    text: str
    operands: list[str]
    incoming: list[tuple[str, str]] = field(default_factory=list)
    callee: str = ""


@dataclass(eq=False, slots=True)
class Block:
    """A basic block: its terminator is the last instruction, `targets` where that leads to."""

    name: str
    instructions: list[Instruction]
    targets: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    @property
    def terminator(self) -> Instruction:
        """The last instruction."""
        return self.instructions[-1]

    def phis(self) -> list[Instruction]:
        """Return the phis that the block begins with."""
        return [item for item in self.instructions if item.opcode == "phi"]


class Code:
    """The code of a function.

    Parameters
    ----------
    function : Function
    type_names : set of str
        Of all types that the module names.

    Attributes
    ----------
    parameters : list of str
        Their registers.
    blocks : dict of str to Block
        In their order; the first is the entry.

    Raises
    ------
    NotGangedError
        If it has an instruction that is not known here.
    """

    def __init__(self, function: Function, type_names: set[str]) -> None:
        lines = _joined(function.body)
        names = _local_names(function, lines)
        if not type_names.isdisjoint(names):
            raise NotGangedError("a type and a register of one name")
        # One name space without numbers, of which LLVM demands that they be in order.
        renamed = {name: f"%r{number}" for number, name in enumerate(names)}
        known = set(renamed.values())
        self.parameters = [renamed[name] for name in names[: len(function.parameters)]]
        self.blocks: dict[str, Block] = {}
        block = Block(renamed[names[len(function.parameters)]], [])
        self.blocks[block.name] = block
        for number, line in enumerate(lines):
            if line[0] != " ":
                match = _LABEL.match(line)
                assert match is not None
                name = renamed[f"%{match[1]}"]
                if number:
                    block = self.blocks[name] = Block(name, [])
                continue
            block.instructions.append(_instruction(line.strip(), renamed, known))
        for block in self.blocks.values():
            terminator = block.terminator
            if terminator.opcode not in _TERMINATORS:
                raise NotGangedError(f"a block ends with '{terminator.opcode}'")
            block.targets = _TARGET.findall(terminator.text)
        for block in self.blocks.values():
            for target in dict.fromkeys(block.targets):
                self.blocks[target].sources.append(block.name)


def _joined(body: list[str]) -> list[str]:
    """Lines of a body without comments and debug records, a switch in one line."""
    lines: list[str] = []
    is_open = False
    for line in body:
        if is_open:
            lines[-1] += " " + line.strip()
        elif line.strip() and line[0] != ";" and not line.startswith("  #dbg_"):
            lines.append(line)
        is_open = bool(lines) and lines[-1].lstrip().startswith("switch ") and not lines[-1].rstrip().endswith("]")
    return lines


def _local_names(function: Function, lines: list[str]) -> list[str]:
    """Registers of the parameters, of the entry's block, and then of all others."""
    names = []
    number = 0
    for parameter in function.parameters:
        last = parameter.rpartition(" ")[2]
        if not last.startswith("%"):
            last = f"%{number}"
        number += last[1:].isdigit()
        names.append(last)
    first = _LABEL.match(lines[0]) if lines[0][0] != " " else None
    names.append(f"%{first[1]}" if first else f"%{number}")
    for line in lines[1 if first else 0 :]:
        if line[0] != " ":
            match = _LABEL.match(line)
            if match is None:
                raise NotGangedError(f"a line that is not understood: {line[:60]}")
            names.append(f"%{match[1]}")
        elif (match := _RESULT.match(line.strip())) is not None:
            names.append(match[1])
    return names


def _instruction(line: str, renamed: Mapping[str, str], known: set[str]) -> Instruction:
    line = without_metadata(line)
    match = _RESULT.match(line)
    result, text = (renamed[match[1]], match[2]) if match else ("", line)
    text = renamed_registers(text, renamed)
    words = text.split(" ")
    opcode = words[0]
    while opcode in _FLAGS:
        words.pop(0)
        opcode = words[0]
    words.pop(0)
    while words and words[0] in _FLAGS:
        words.pop(0)
    rest = " ".join(words)
    item = Instruction(result, "", opcode, text, [])
    labels = set(_TARGET.findall(text))
    item.operands = [name for name in REGISTER.findall(text) if name in known and name not in labels]
    if opcode == "phi":
        item.type = leading_type(rest)
        for pair in split_list(rest[len(item.type) + 1 :]):
            value, _, source = pair.strip("[] ").rpartition(", ")
            item.incoming.append((value, source))
        item.operands = [value for value, _ in item.incoming if value in known]
    elif opcode == "call":
        item.type, item.callee = _called(rest)
    elif result:
        item.type = _type_of(opcode, rest)
    return item


def renamed_registers(text: str, names: Mapping[str, str]) -> str:
    """Text with registers replaced."""
    if '"' not in text:
        return REGISTER.sub(lambda match: names.get(match[0], match[0]), text)
    parts = re.split(r'((?<!%)"[^"]*")', text)  # texts, but not quoted names
    return "".join(
        part if number % 2 else REGISTER.sub(lambda match: names.get(match[0], match[0]), part)
        for number, part in enumerate(parts)
    )


def _called(rest: str) -> tuple[str, str]:
    """Result type and function of a call."""
    match = _CALLEE.search(rest)
    if match is None:
        raise NotGangedError("a call that is not understood")
    head = _RESULT_ATTRIBUTES.sub("", rest[: match.start()] + " ")
    return leading_type(head.strip()), match[1].strip()


def _type_of(opcode: str, rest: str) -> str:
    if opcode in _BINARY:
        return leading_type(rest)
    if opcode in _CASTS:
        return rest.rpartition(" to ")[2].strip()
    if opcode in ("icmp", "fcmp"):
        kind = leading_type(rest.partition(" ")[2])
        return f"{kind.partition(' x ')[0]} x i1>" if kind[0] == "<" else "i1"
    if opcode in ("load", "insertelement", "insertvalue"):
        return leading_type(rest)
    if opcode in ("alloca", "getelementptr"):
        if re.search(r"<\d+ x (?:ptr|i\d+)> ", rest):
            raise NotGangedError("a vector of pointers")
        return "ptr"
    parts = split_list(rest)
    if opcode == "select":
        return leading_type(parts[1])
    if opcode == "extractelement":
        return leading_type(parts[0]).partition(" x ")[2][:-1]
    if opcode == "shufflevector":
        return f"<{leading_type(parts[2])[1:].partition(' ')[0]} x {leading_type(parts[0]).partition(' x ')[2]}"
    if opcode == "atomicrmw":
        return leading_type(parts[1])
    if opcode == "cmpxchg":
        return f"{{ {leading_type(parts[1])}, i1 }}"
    if opcode == "extractvalue":
        kind = leading_type(parts[0])
        for number in parts[1:]:
            if kind[0] != "{":
                raise NotGangedError("a value of a named type")
            kind = leading_type(split_list(kind[1:-1].strip())[int(number)])
        return kind
    raise NotGangedError(f"an instruction '{opcode}'")
