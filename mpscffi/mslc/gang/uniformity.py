"""Which values are the same for all lanes of a SIMD-group, and which blocks all of them run or none."""

from __future__ import annotations

import re

from .code import NotGangedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .code import Block, Code, Instruction

_EXIT = ""
# What a thread is told: parameters of the function, by their order.
LAUNCH, GROUP, THREAD, CONSTANTS = range(4)
# Of thread_state: which bits of what is loaded from an offset may differ between lanes. Of the thread's number those
# are the lowest five, as a SIMD-group begins at a multiple of 32.
_LANE_BITS = {(12, "i32"): 0x1F, (8, "i64"): 0xFFFFFFFF | 0x1F << 32}
_ORDERED = re.compile(r"\b(?:unordered|monotonic|acquire|release|acq_rel|seq_cst)\b")
_PURE = frozenset(
    "add fadd sub fsub mul fmul udiv sdiv fdiv urem srem frem shl lshr ashr and or xor fneg freeze icmp fcmp select "
    "trunc zext sext fptrunc fpext fptoui fptosi uitofp sitofp ptrtoint inttoptr bitcast getelementptr extractelement "
    "insertelement shufflevector extractvalue insertvalue".split()
)
_NOT_MATH = re.compile(r"@llvm\.(?:assume|lifetime|mem|experimental|trap|debugtrap|ubsantrap|prefetch|va|stack|masked)")
BARRIER, COLLECTIVE, LANE, YIELD = "@mslc_threadgroup_barrier", "@mslc_collective", "@mslc_lane", "@mslc_yield"


def is_math(item: Instruction) -> bool:
    """Whether a call gives what its arguments alone decide, and does nothing else."""
    if item.callee == "asm":  # the empty one, which hides from LLVM what it gives
        return ' asm "", "=r,0' in item.text
    return item.callee == "@mslc_arena" or (item.callee.startswith("@llvm.") and not _NOT_MATH.match(item.callee))


class Uniformity:
    """Finds what lanes have in common.

    Parameters
    ----------
    code : Code

    Attributes
    ----------
    varying : set of str
        Registers whose values may differ between lanes.
    split_blocks : set of str
        Blocks that some lanes may run without others.
    has_rows : bool
        Whether a thread asks for more of its position than x.
    fixed : set of str
        Registers that hold addresses of what no thread can change: the launch, the threadgroup, small constants.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._blocks = code.blocks
        self.varying: set[str] = set()
        self.split_blocks: set[str] = set()
        self.fixed: set[str] = {code.parameters[LAUNCH], code.parameters[GROUP], code.parameters[CONSTANTS]}
        self._of_thread = {code.parameters[THREAD]: 0}  # addresses in the thread's state, with their offsets
        self._of_slots: set[str] = set()  # addresses of tables that the loader fills
        self._lane_bits: dict[str, int] = {}  # of registers made of the thread's number: which bits may differ
        self._users: dict[str, list[tuple[Instruction, str]]] = {}
        self._definitions: dict[str, str] = {}
        for block in self._blocks.values():
            for item in block.instructions:
                for operand in item.operands:
                    self._users.setdefault(operand, []).append((item, block.name))
                self._definitions[item.result] = block.name
        self._later = _post_dominators(self._blocks)
        self.has_rows = False
        self._find_addresses()
        self._spread()

    def _find_addresses(self) -> None:
        """Find addresses that are made of the parameters alone, and loads of the thread's number."""
        for block in self._blocks.values():
            for item in block.instructions:
                base = item.operands[0] if item.operands else ""
                if item.callee == "asm" and is_math(item) and not item.operands:
                    self._of_slots.add(item.result)
                if item.opcode == "getelementptr" and len(item.operands) == 1:
                    if base in self._of_slots:
                        self._of_slots.add(item.result)
                    if base in self.fixed:
                        self.fixed.add(item.result)
                    match = re.search(r"getelementptr (?:[a-z]+ )*i8, ptr %\w+, i64 (\d+)$", item.text)
                    if base in self._of_thread and match is not None:
                        self._of_thread[item.result] = self._of_thread[base] + int(match[1])
                elif item.opcode == "load" and base in self._of_thread:
                    offset = self._of_thread[base]
                    self.has_rows |= offset in (4, 8) or (offset == 0 and item.type != "i32")
                    bits = _LANE_BITS.get((offset, item.type))
                    if bits is not None:
                        self._lane_bits[item.result] = bits
                elif len(item.operands) == 1 and base in self._lane_bits:
                    bits = _bits_after(item, self._lane_bits[base])
                    if bits is not None:
                        self._lane_bits[item.result] = bits

    def is_fixed_load(self, item: Instruction) -> bool:
        """Whether a load reads what is the same for as long as the kernel runs."""
        if item.opcode != "load":
            return False
        if not item.operands or item.operands[0] in self._of_slots:  # places in threadgroup memory, and constants
            return not _ORDERED.search(item.text)
        return item.operands[0] in self.fixed and "volatile" not in item.text

    def is_thread_load(self, item: Instruction) -> bool:
        """Whether a load reads what the thread is told of itself."""
        return item.opcode == "load" and bool(item.operands) and item.operands[0] in self._of_thread

    def is_pure(self, item: Instruction) -> bool:
        """Whether an instruction gives what its operands alone decide, and does nothing else."""
        return item.opcode in _PURE or (item.opcode == "call" and is_math(item)) or self.is_fixed_load(item)

    def _varies_of_itself(self, item: Instruction) -> bool:
        if item.opcode in ("alloca", "atomicrmw", "cmpxchg"):
            return True
        if item.opcode == "call":
            return not is_math(item)
        if item.opcode == "load":
            return not self.is_fixed_load(item) and ("volatile" in item.text or bool(_ORDERED.search(item.text)))
        return item.opcode not in _PURE and item.opcode != "phi" and bool(item.result)

    def _spread(self) -> None:
        todo: list[str] = []

        def vary(register: str) -> None:
            if register and register not in self.varying and self._lane_bits.get(register) != 0:
                self.varying.add(register)
                todo.append(register)

        vary(self._code.parameters[THREAD])
        for block in self._blocks.values():
            for item in block.instructions:
                if self._varies_of_itself(item):
                    vary(item.result)
        while todo:
            for user, name in self._users.get(todo.pop(), ()):
                if user.result:
                    vary(user.result)
                elif user.opcode in ("br", "switch"):
                    self._split(name, vary)

    def _split(self, name: str, vary: Callable[[str], None]) -> None:
        """Lanes part at the end of a block: find what they may run apart, and what differs when they meet again."""
        meeting = self._later[name]
        apart: set[str] = set()
        todo = list(self._blocks[name].targets)
        while todo:
            block = todo.pop()
            if block != meeting and block not in apart:
                apart.add(block)
                todo += self._blocks[block].targets
        self.split_blocks |= apart
        for block in [*apart, meeting]:
            if block == _EXIT:
                continue
            sources = [source for source in self._blocks[block].sources if source in apart or source == name]
            if len(sources) > 1 or block in apart:
                for phi in self._blocks[block].phis():
                    vary(phi.result)
        for register, users in self._users.items():  # values of a loop that lanes leave one after the other
            if self._definitions.get(register) in apart:
                for user, block in users:
                    where = [source for value, source in user.incoming if value == register] or [block]
                    if any(place not in apart for place in where) or (user.opcode == "phi" and block not in apart):
                        vary(register)
                        break


def _bits_after(item: Instruction, bits: int) -> int | None:
    """Which bits of a result may differ between lanes, if it is made of a number of which some do; None for unknown."""
    width = int(item.type[1:]) if re.fullmatch(r"i\d+", item.type) else 0
    if not width:
        return None
    every = (1 << width) - 1
    if item.opcode in ("zext", "trunc", "freeze"):
        return bits & every
    match = re.search(r" %r\d+, (-?\d+)$", item.text)
    if match is None:
        return None
    number = int(match[1])
    carried = (1 << bits.bit_length()) - 1  # the bits up to the highest that differs
    if item.opcode == "lshr":
        return bits >> number
    if item.opcode == "shl":
        return bits << number & every
    if item.opcode == "and":
        return bits & number & every
    if item.opcode == "or":
        return bits & ~number
    if item.opcode == "xor":
        return bits
    if item.opcode in ("add", "urem") and number & carried == 0:
        return bits
    if item.opcode == "udiv" and number & carried == 0:
        return 0
    if item.opcode == "icmp":
        is_below = " ult " in item.text and number & carried == 0
        is_above = " ugt " in item.text and (number + 1) & carried == 0
        return 0 if is_below or is_above or bits == 0 else 1
    return None


def _post_dominators(blocks: dict[str, Block]) -> dict[str, str]:
    """The next block, for each, through which every way to the end leads; "" for the end itself."""
    order = _reversed_order(blocks)
    if len(order) != len(blocks):
        raise NotGangedError("a block from which no way leads to the end")
    number = {name: place for place, name in enumerate(order)}
    number[_EXIT] = -1
    later: dict[str, str] = {_EXIT: _EXIT}

    def common(a: str, b: str) -> str:
        while a != b:
            while number[a] > number[b]:
                a = later[a]
            while number[b] > number[a]:
                b = later[b]
        return a

    changed = True
    while changed:
        changed = False
        for name in order:
            targets = [target for target in blocks[name].targets or [_EXIT] if target in later]
            new = targets[0]
            for target in targets[1:]:
                new = common(new, target)
            if later.get(name) != new:
                later[name] = new
                changed = True
    return later


def _reversed_order(blocks: dict[str, Block]) -> list[str]:
    """Blocks in reverse postorder of the graph whose edges are turned round, from the end."""
    done: list[str] = []
    seen: set[str] = set()
    for root in [name for name, block in blocks.items() if not block.targets]:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(blocks[root].sources))]
        while stack:
            name, sources = stack[-1]
            for source in sources:
                if source not in seen:
                    seen.add(source)
                    stack.append((source, iter(blocks[source].sources)))
                    break
            else:
                done.append(name)
                stack.pop()
    return done[::-1]
