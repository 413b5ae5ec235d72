"""Writes a function that runs the lanes of a SIMD-group, out of one that runs a thread."""

from __future__ import annotations

import re

from ..air.module import split_list
from .code import NotGangedError, renamed_registers
from .sizes import Sizes
from .uniformity import BARRIER, LANE, THREAD
from .units import Units, collective_operands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .code import Code, Instruction
    from .uniformity import Uniformity
    from .units import Unit

LANES = 32
# Bytes for each lane. An array, and what is bigger than the first or does not fit into the second, is kept in the
# worker's memory, of which the third is there.
_BIG_BYTES = 64
_FRAME_BYTES = 768
SCRATCH_BYTES = 3584
_PLACES_ALIGNED_TO = 64
# What a lane's value is made of if it is made anew where it is needed, and so stays a plain function of the lane.
_CHEAP = frozenset("add sub mul shl lshr ashr and or xor icmp select trunc zext sext ptrtoint getelementptr".split())
_MOST_STEPS = 32
PARAMETERS = (
    "ptr noalias readonly %launch, ptr noalias readonly %group, i32 %begin, i32 %lanes, "
    "ptr noalias readonly %constants, ptr noalias %scratch"
)
_PROBED = '"probe-stack"="inline-asm"'
_WIDTH_AT, _HEIGHT_AT = 24, 28  # of threadgroup_state::threads
_PARAMETERS = ("%launch", "%group", "%thread", "%constants")
# What says something of memory that there no longer is.
_DROPPED = ("@llvm.lifetime.", "@llvm.assume(")


class Gang:
    """The function of a SIMD-group.

    Parameters
    ----------
    code : Code
    uniformity : Uniformity
    types : list of str
        Definitions of the module's types.
    row : int
        32 lanes stand in rows of so many; 0 for any number of lanes in rows of any length.

    Raises
    ------
    NotGangedError
    """

    def __init__(self, code: Code, uniformity: Uniformity, types: list[str], row: int) -> None:
        self.code = code
        self.uniformity = uniformity
        self.units = Units(code, uniformity)
        self.row = row
        self.definitions: dict[str, Instruction] = {}
        self.unit_of: dict[str, Unit] = {}
        self.variables: dict[str, str] = {}  # of a thread, and their types
        self._sizes = Sizes(types)
        self._entry: list[str] = []
        self._frame_bytes = 0
        self._scratch_bytes = 0
        self._slots: set[str] = set()
        for unit in self.units.list:
            self._find_definitions(unit)
        self.simple = self._find_simple()

    def _find_definitions(self, unit: Unit) -> None:
        blocks = [self.code.blocks[name] for name in unit.apart]
        items = [item for block in blocks for item in block.instructions] + unit.instructions
        if unit.is_first:
            items += self.code.blocks[unit.block].phis()
        for item in items:
            self.definitions[item.result] = item
            self.unit_of[item.result] = unit
            if item.opcode == "alloca":
                kind = self._variable_type(item)
                self.variables[item.result] = kind
                self._make_place(f"{item.result}.lanes", kind)

    def _variable_type(self, item: Instruction) -> str:
        """Return the type of a lane's variable: as many bytes as put those of all lanes at the places LLVM expects."""
        match = re.fullmatch(r"alloca (.*?)(?:, align (\d+))?", item.text)
        if match is None or split_list(match[1])[1:]:
            raise NotGangedError("a variable of unknown size")
        kind, alignment = match[1], int(match[2] or 1)
        if alignment > _PLACES_ALIGNED_TO:
            raise NotGangedError("a variable of too great an alignment")
        if self._sizes.of(kind) % alignment == 0:
            return kind
        return f"{{ {kind}, [0 x <{alignment} x i8>] }}"

    def _make_place(self, name: str, kind: str) -> None:
        """Find room for a value of each lane."""
        size = self._sizes.of(kind)
        if not kind.startswith(("[", "{ [")) and size <= _BIG_BYTES and self._frame_bytes + size <= _FRAME_BYTES:
            self._frame_bytes += size
            self._entry.append(f"  {name} = alloca [{LANES} x {kind}], align {_PLACES_ALIGNED_TO}")
            return
        self._scratch_bytes += (size + 15) // 16 * 16
        if self._scratch_bytes > SCRATCH_BYTES:
            raise NotGangedError("too much memory for each thread")
        self._entry.append(f"  {name} = getelementptr i8, ptr %scratch, i64 {-LANES * self._scratch_bytes}")

    def _find_simple(self) -> set[str]:
        """Find values that are soon made anew of what a lane is told of itself and of what all lanes share."""
        steps = dict.fromkeys(self.code.parameters, 0)
        for block in self.code.blocks.values():
            for item in block.instructions:
                if item.result not in self.uniformity.varying or item.opcode == "alloca":
                    steps[item.result] = 0  # it is there
                elif self.uniformity.is_thread_load(item) or (item.opcode == "call" and item.callee == LANE):
                    steps[item.result] = 1
                elif item.opcode in _CHEAP:
                    count = 1 + sum(steps.get(operand, _MOST_STEPS) for operand in item.operands)
                    if count <= _MOST_STEPS:
                        steps[item.result] = count
        return set(steps)

    def slot(self, register: str, suffix: str = "") -> tuple[str, str]:
        """The place of a value that one unit leaves to another, and the type that it has there."""
        name, item = f"{register}{suffix}.slot", self.definitions[register]
        kind = "i8" if item.type == "i1" else item.type
        if name not in self._slots:
            self._slots.add(name)
            if register in self.uniformity.varying:
                self._make_place(name, kind)
            else:
                self._entry.append(f"  {name} = alloca {kind}")
        return name, kind

    def has_slot(self, register: str) -> bool:
        """Whether some unit asked for a value of another's."""
        return f"{register}.slot" in self._slots

    def text(self, name: str) -> str:
        """Return the function's definition."""
        writers = [UnitWriter(self, unit) for unit in self.units.list]
        for writer in writers:
            writer.write()
        lines = [line for writer in writers for line in writer.lines()]
        first = self.units.first[next(iter(self.code.blocks))]
        return "\n".join(
            [
                f"define internal void @{name}({PARAMETERS}) nounwind {_PROBED} {{",
                "entry:",
                "  %thread = alloca [4 x i32], align 16",
                *self._entry,
                f"  %width.at = getelementptr i8, ptr %group, i64 {_WIDTH_AT}",
                "  %width = load i32, ptr %width.at, align 4",
                f"  %height.at = getelementptr i8, ptr %group, i64 {_HEIGHT_AT}",
                "  %height = load i32, ptr %height.at, align 4",
                "  %begin.x = urem i32 %begin, %width",
                "  %begin.row = udiv i32 %begin, %width",
                "  %begin.y = urem i32 %begin.row, %height",
                "  %begin.z = udiv i32 %begin.row, %height",
                f"  br label %u{first.number}.head",
                *lines,
                "}\n",
            ]
        )


def _is_dropped(item: Instruction) -> bool:
    return item.opcode == "alloca" or any(name in item.text for name in _DROPPED)


class UnitWriter:
    """Writes one unit: what is done once (the head), the loop over the lanes, and where to go then (the end).

    Parameters
    ----------
    gang : Gang
    unit : Unit
    """

    def __init__(self, gang: Gang, unit: Unit) -> None:
        self._gang = gang
        self._unit = unit
        self._name = f"u{unit.number}"
        self._varying = gang.uniformity.varying
        self._head: list[str] = []
        self._before: list[str] = []  # at the start of each lane's turn
        self._body: list[str] = []
        self._end: list[str] = []
        self._names: dict[str, str] = dict(zip(gang.code.parameters, _PARAMETERS, strict=True))
        self._in_head = {*self._names} - {gang.code.parameters[THREAD]}  # what the head knows, and so all lanes
        self._pending: list[tuple[list[str], int, str]] = []
        self._labels: dict[str, str] = {}
        self._count = 0

    # ---------------------------------------------------------------- values

    def _value(self, register: str) -> str:
        """The name of a register in this unit, after it is fetched if another unit made it."""
        found = self._names.get(register)
        if found is not None:
            return found
        gang = self._gang
        if register in gang.variables:
            name = f"{register}.{self._name}"
            self._before.append(
                f"  {name} = getelementptr {gang.variables[register]}, ptr {register}.lanes, i64 %{self._name}.lane64"
            )
        elif gang.unit_of[register] is self._unit:
            name = register
        elif register not in self._varying:
            name = self._load(register, "", self._head)
            self._in_head.add(register)
        elif register in gang.simple:
            item = gang.definitions[register]
            name = f"{register}.{self._name}"
            text = self._lane_text(item) or self._renamed(item.text, item.operands)
            self._before.append(f"  {name} = {text}")
        else:
            name = self._load(register, "", self._before)
        self._names[register] = name
        return name

    def _place_of(self, slot: str, register: str, kind: str, lines: list[str]) -> str:
        if register not in self._varying:
            return slot
        self._count += 1
        place = f"{slot}.{self._name}.{self._count}"
        lines.append(f"  {place} = getelementptr {kind}, ptr {slot}, i64 %{self._name}.lane64")
        return place

    def _load(self, register: str, suffix: str, lines: list[str]) -> str:
        slot, kind = self._gang.slot(register, suffix)
        place = self._place_of(slot, register, kind, lines)
        name = f"{register}{suffix}.{self._name}"
        if kind == self._gang.definitions[register].type:
            lines.append(f"  {name} = load {kind}, ptr {place}")
        else:
            lines += [f"  {name}.byte = load {kind}, ptr {place}", f"  {name} = trunc {kind} {name}.byte to i1"]
        return name

    def _store(self, register: str, value: str, suffix: str, lines: list[str]) -> None:
        slot, kind = self._gang.slot(register, suffix)
        place = self._place_of(slot, register, kind, lines)
        if kind != self._gang.definitions[register].type:
            self._count += 1
            lines.append(f"  {slot}.{self._name}.byte{self._count} = zext i1 {value} to {kind}")
            value = f"{slot}.{self._name}.byte{self._count}"
        lines.append(f"  store {kind} {value}, ptr {place}")

    def _renamed(self, text: str, operands: list[str]) -> str:
        for operand in operands:
            self._value(operand)
        return renamed_registers(text, self._names)

    def _keep(self, lines: list[str], register: str) -> None:
        """Remember that a value may have to be stored here, which is known when all units are written."""
        self._pending.append((lines, len(lines), register))

    # ---------------------------------------------------------------- the parts

    def write(self) -> None:
        """Write all parts."""
        unit, blocks = self._unit, self._gang.code.blocks
        block = blocks[unit.block]
        self._labels = {name: f"%{self._name}.{name[1:]}" for name in unit.apart}
        self._labels[unit.block] = f"%{self._name}.start"
        if unit.is_first:
            self._begin_block(block.phis())
        has_effect = False
        is_once = unit.block not in self._gang.uniformity.split_blocks  # by each lane, and not in a loop of its own
        for item in unit.instructions:
            if item is block.terminator:
                break
            if _is_dropped(item):
                continue
            is_shared_load = is_once and item.opcode == "load" and not has_effect and item.result not in self._varying
            self._instruction(item, self._gang.uniformity.is_pure(item) or is_shared_load)
            has_effect = has_effect or (
                item.opcode in ("store", "call", "atomicrmw", "cmpxchg", "fence")
                and not (self._gang.uniformity.is_pure(item))
            )
        if unit.meeting is not None:
            self._meet(unit.meeting)
        elif unit.is_apart:
            self._run_apart()
        else:
            self._go_on(block.terminator)

    def _begin_block(self, phis: list[Instruction]) -> None:
        """Phis at the unit's beginning: what came from other units was left in a place of its own."""
        unit = self._unit
        inside = set(unit.apart) | ({unit.block} if unit.block in self._gang.uniformity.split_blocks else set())
        for phi in phis:
            within = [(value, source) for value, source in phi.incoming if source in inside]
            if phi.result not in self._varying:
                name = self._load(phi.result, ".in", self._head)
                self._in_head.add(phi.result)
                self._names[phi.result] = name
                self._keep(self._head, phi.result)
                continue
            name = self._load(phi.result, ".in", self._before)
            if not within:
                self._names[phi.result] = name
                self._keep(self._body, phi.result)
                continue
            self._names[phi.result] = phi.result
            pairs = [f"[ {name}, %{self._name}.before ]"]
            pairs += [f"[ {self._operand(value)}, {self._labels[source]} ]" for value, source in within]
            self._body.append(f"  {phi.result} = phi {phi.type} {', '.join(pairs)}")
        for phi in phis:
            if self._names[phi.result] == phi.result:
                self._keep(self._body, phi.result)

    def _operand(self, value: str) -> str:
        return self._value(value) if value in self._gang.definitions else self._names.get(value, value)

    def _instruction(self, item: Instruction, may_lead: bool) -> None:
        text = self._lane_text(item) or self._renamed(item.text, item.operands)
        is_shared = may_lead and item.result not in self._varying and self._in_head.issuperset(item.operands)
        lines = self._head if is_shared and item.result else self._body
        if lines is self._head:
            self._in_head.add(item.result)
        lines.append(f"  {item.result} = {text}" if item.result else f"  {text}")
        if item.result:
            self._names[item.result] = item.result
            self._keep(lines, item.result)

    def _lane_text(self, item: Instruction) -> str:
        return f"and i32 %{self._name}.index, 31" if item.opcode == "call" and item.callee == LANE else ""

    def _meet(self, item: Instruction) -> None:
        if item.callee == BARRIER:
            self._end.append("  call void @mslc_threadgroup_barrier()")
        else:
            operand, operation = collective_operands(item)
            kind = self._gang.variables.get(operand)
            if kind is None:
                raise NotGangedError("a SIMD-group function whose operand is no variable")
            size = f"ptrtoint (ptr getelementptr ({kind}, ptr null, i32 1) to i64)"
            lanes = str(LANES) if self._gang.row else "%lanes"
            self._end.append(
                f"  call void @mslc_gang_collective(ptr {operand}.lanes, i64 {size}, i32 {lanes}, ptr {operation})"
            )
        self._end.append(f"  br label %u{self._unit.number + 1}.head")

    def _go_on(self, terminator: Instruction) -> None:
        """All lanes go the same way."""
        block = self._gang.code.blocks[self._unit.block]
        for target in dict.fromkeys(block.targets):
            for phi in self._gang.code.blocks[target].phis():
                value = next(value for value, source in phi.incoming if source == block.name)
                operand = self._operand(value)
                is_known = value in self._in_head or value not in self._gang.definitions
                is_once = phi.result not in self._varying and is_known
                self._store(phi.result, operand, ".in", self._end if is_once else self._body)
        names = dict(self._names)
        for operand in terminator.operands:
            value = self._value(operand)
            if operand not in self._in_head:
                value = self._load_after(operand)
            names[operand] = value
        for target in block.targets:
            names[target] = f"%u{self._gang.units.first[target].number}.head"
        self._end.append(f"  {renamed_registers(terminator.text, names)}")

    def _load_after(self, register: str) -> str:
        """What the lanes have left of a value that they share."""
        slot, kind = self._gang.slot(register)
        name = f"{register}.{self._name}.after"
        if kind == self._gang.definitions[register].type:
            self._end.append(f"  {name} = load {kind}, ptr {slot}")
        else:
            self._end += [f"  {name}.byte = load {kind}, ptr {slot}", f"  {name} = trunc {kind} {name}.byte to i1"]
        return name

    def _run_apart(self) -> None:
        unit, blocks = self._unit, self._gang.code.blocks
        for name in unit.apart:
            for item in blocks[name].instructions:
                if item.result:
                    self._names[item.result] = item.result
        targets = dict(self._labels)
        targets[unit.exit] = f"%{self._name}.exit"
        is_looped = unit.block in self._gang.uniformity.split_blocks
        if not is_looped:
            del targets[unit.block]
        self._jump(blocks[unit.block].terminator, targets)
        for name in unit.apart:
            self._body.append(f"{self._labels[name][1:]}:")
            phis = blocks[name].phis()
            for phi in phis:
                pairs = [f"[ {self._operand(value)}, {self._labels[source]} ]" for value, source in phi.incoming]
                self._body.append(f"  {phi.result} = phi {phi.type} {', '.join(pairs)}")
            for phi in phis:
                self._keep(self._body, phi.result)
            for item in blocks[name].instructions:
                if item is blocks[name].terminator:
                    self._jump(item, targets)
                elif item.opcode != "phi" and not _is_dropped(item):
                    self._instruction(item, False)
        self._leave()

    def _jump(self, item: Instruction, targets: dict[str, str]) -> None:
        if item.opcode == "ret":
            self._body.append(f"  br label %{self._name}.exit")
            return
        text = self._renamed(item.text, item.operands)
        self._body.append(f"  {renamed_registers(text, targets)}")

    def _leave(self) -> None:
        """Lanes meet again."""
        unit, blocks = self._unit, self._gang.code.blocks
        self._body.append(f"{self._name}.exit:")
        if not unit.exit:
            self._end.append("  ret void")
            return
        stores: list[str] = []
        for phi in blocks[unit.exit].phis():
            pairs = [(value, source) for value, source in phi.incoming if source in self._labels]
            joined = f"{phi.result}.{self._name}.exit"
            texts = [f"[ {self._operand(value)}, {self._labels[source]} ]" for value, source in pairs]
            self._body.append(f"  {joined} = phi {phi.type} {', '.join(texts)}")
            self._store(phi.result, joined, ".in", stores)
        self._body += stores
        self._end.append(f"  br label %u{self._gang.units.first[unit.exit].number}.head")

    # ---------------------------------------------------------------- putting it together

    def _with_stores(self) -> None:
        for lines, at, register in reversed(self._pending):
            if self._gang.has_slot(register):
                stores: list[str] = []
                self._store(register, self._names[register], "", stores)
                lines[at:at] = stores

    def lines(self) -> list[str]:
        """Return the unit, when all units have been written."""
        self._with_stores()
        name = self._name
        loop = [f"  br label %{name}.end"]
        if self._body:
            loop = self._fixed_loop(self._gang.row) if self._gang.row else self._any_loop()
        return [f"{name}.head:", *self._head, *loop, f"{name}.end:", *self._end]

    def _lane(self, x: str, y: str, z: str, lane: str) -> list[str]:
        """One lane's turn, up to the branch to the latch."""
        name = self._name
        return [
            f"  %{name}.lane64 = zext i32 {lane} to i64",
            f"  %{name}.index = add nuw i32 %begin, {lane}",
            f"  store i32 {x}, ptr %thread, align 4",
            f"  %{name}.at.y = getelementptr i8, ptr %thread, i64 4",
            f"  store i32 {y}, ptr %{name}.at.y, align 4",
            f"  %{name}.at.z = getelementptr i8, ptr %thread, i64 8",
            f"  store i32 {z}, ptr %{name}.at.z, align 4",
            f"  %{name}.at.index = getelementptr i8, ptr %thread, i64 12",
            f"  store i32 %{name}.index, ptr %{name}.at.index, align 4",
            f"  br label %{name}.before",
            f"{name}.before:",
            *self._before,
            f"  br label %{name}.start",
            f"{name}.start:",
            *self._body,
            f"  br label %{name}.latch",
            f"{name}.latch:",
        ]

    def _fixed_loop(self, row: int) -> list[str]:
        """All lanes, in rows of a length that is known."""
        name = self._name
        return [
            f"  br label %{name}.row",
            f"{name}.row:",
            f"  %{name}.first = phi i32 [ 0, %{name}.head ], [ %{name}.first.next, %{name}.row.latch ]",
            f"  %{name}.y = phi i32 [ %begin.y, %{name}.head ], [ %{name}.y.next, %{name}.row.latch ]",
            f"  br label %{name}.loop",
            f"{name}.loop:",
            f"  %{name}.i = phi i32 [ 0, %{name}.row ], [ %{name}.next, %{name}.latch ]",
            f"  %{name}.x = add nuw i32 %begin.x, %{name}.i",
            f"  %{name}.lane = add nuw nsw i32 %{name}.first, %{name}.i",
            *self._lane(f"%{name}.x", f"%{name}.y", "%begin.z", f"%{name}.lane"),
            f"  %{name}.next = add nuw nsw i32 %{name}.i, 1",
            f"  %{name}.more = icmp ult i32 %{name}.next, {row}",
            f"  br i1 %{name}.more, label %{name}.loop, label %{name}.row.latch",
            f"{name}.row.latch:",
            f"  %{name}.y.next = add nuw i32 %{name}.y, 1",
            f"  %{name}.first.next = add nuw nsw i32 %{name}.first, {row}",
            f"  %{name}.any = icmp ult i32 %{name}.first.next, {LANES}",
            f"  br i1 %{name}.any, label %{name}.row, label %{name}.end",
        ]

    def _any_loop(self) -> list[str]:
        """Row by row, as far as there are lanes."""
        name = self._name
        return [
            f"  br label %{name}.row",
            f"{name}.row:",
            f"  %{name}.first = phi i32 [ 0, %{name}.head ], [ %{name}.first.next, %{name}.row.latch ]",
            f"  %{name}.x0 = phi i32 [ %begin.x, %{name}.head ], [ 0, %{name}.row.latch ]",
            f"  %{name}.y = phi i32 [ %begin.y, %{name}.head ], [ %{name}.y.next, %{name}.row.latch ]",
            f"  %{name}.z = phi i32 [ %begin.z, %{name}.head ], [ %{name}.z.next, %{name}.row.latch ]",
            f"  %{name}.left = sub nuw i32 %lanes, %{name}.first",
            f"  %{name}.room = sub nuw i32 %width, %{name}.x0",
            f"  %{name}.count = call i32 @llvm.umin.i32(i32 %{name}.left, i32 %{name}.room)",
            f"  br label %{name}.loop",
            f"{name}.loop:",
            f"  %{name}.i = phi i32 [ 0, %{name}.row ], [ %{name}.next, %{name}.latch ]",
            f"  %{name}.x = add nuw i32 %{name}.x0, %{name}.i",
            f"  %{name}.lane = add nuw nsw i32 %{name}.first, %{name}.i",
            *self._lane(f"%{name}.x", f"%{name}.y", f"%{name}.z", f"%{name}.lane"),
            f"  %{name}.next = add nuw nsw i32 %{name}.i, 1",
            f"  %{name}.more = icmp ult i32 %{name}.next, %{name}.count",
            f"  br i1 %{name}.more, label %{name}.loop, label %{name}.row.latch",
            f"{name}.row.latch:",
            f"  %{name}.first.next = add nuw nsw i32 %{name}.first, %{name}.count",
            f"  %{name}.y1 = add nuw i32 %{name}.y, 1",
            f"  %{name}.wraps = icmp eq i32 %{name}.y1, %height",
            f"  %{name}.y.next = select i1 %{name}.wraps, i32 0, i32 %{name}.y1",
            f"  %{name}.z1 = add nuw i32 %{name}.z, 1",
            f"  %{name}.z.next = select i1 %{name}.wraps, i32 %{name}.z1, i32 %{name}.z",
            f"  %{name}.any = icmp ult i32 %{name}.first.next, %lanes",
            f"  br i1 %{name}.any, label %{name}.row, label %{name}.end",
        ]
