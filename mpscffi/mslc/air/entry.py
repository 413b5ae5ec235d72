"""What the runtime sees of a kernel: how one thread is run, and the tables of kernel_abi.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CompileError
from ..metallib.container import printable
from .metadata import BUFFER, READ, THREADGROUP

if TYPE_CHECKING:
    from .metadata import KernelInfo, Parameter

CONSTANT_BYTES = 1024
FIBERS = 1
BOUNDED = 2
VALIDATED = 4
_ABI = 1
_MAGIC = 0x636C736D
_BUFFER_SLOTS = 31
# Whatever is not in this tells a thread which threadgroup it is in, or where that ends.
_OF_GRID = frozenset(
    "buffer thread_position_in_grid threads_per_grid grid_size grid_origin threadgroups_per_grid "
    "dispatch_threads_per_threadgroup dispatch_simdgroups_per_threadgroup dispatch_quadgroups_per_threadgroup "
    "threads_per_simdgroup thread_execution_width".split()
)
INPUTS = _OF_GRID - {"buffer"} | frozenset(
    "thread_position_in_threadgroup thread_index_in_threadgroup threadgroup_position_in_grid threads_per_threadgroup "
    "thread_index_in_simdgroup simdgroup_index_in_threadgroup simdgroups_per_threadgroup thread_index_in_quadgroup "
    "quadgroup_index_in_threadgroup quadgroups_per_threadgroup".split()
)
_STATE = "ptr %launch, ptr %group, ptr %thread"
THREAD_FUNCTION = "@mslc_air_thread"
GANG_RUNNER = "mslc_air_run_gangs"


def check_parameters(info: KernelInfo) -> None:
    """Make sure that the host device has what a kernel's parameters stand for.

    Raises
    ------
    CompileError
    """
    for parameter in info.parameters:
        if parameter.role != "buffer" and parameter.role not in INPUTS:
            what = "textures are" if "texture" in parameter.role else f"'{parameter.role}' is"
            raise CompileError(f"parameter '{parameter.name}': {what} not supported on the host device\n")
        if parameter.kind and not 0 <= parameter.index < _BUFFER_SLOTS:
            raise CompileError(
                f"parameter '{parameter.name}' has index {parameter.index}, and indices go from 0 to "
                f"{_BUFFER_SLOTS - 1}\n"
            )


class Entry:
    """Writes the functions and tables that make a kernel library of a kernel.

    Parameters
    ----------
    name : str
        Of the kernel.
    info : KernelInfo
    types : list of str
        Of the function's parameters, without address spaces.
    absent : set of int
        Positions of the parameters that are not there.
    slots : int
        How many variables there are in threadgroup memory.
    flags : int
        FIBERS, BOUNDED and VALIDATED.
    gangs : bool
        Whether a kernel whose threads meet is to be run by whole SIMD-groups.
    """

    def __init__(
        self, name: str, info: KernelInfo, types: list[str], absent: set[int], slots: int, flags: int, gangs: bool
    ) -> None:
        self._name = name
        self._info = info
        self._types = types
        self._absent = absent
        self._slots = slots
        self._flags = flags
        self._gangs = gangs and bool(flags & FIBERS)
        self._lines: list[str] = []
        self._copies: dict[int, int] = {}
        self._bound = [item for item in info.parameters if item.kind and item.position not in absent]
        self._place_copies()

    def _place_copies(self) -> None:
        """Find room for values that are bound by reference: copied once, they need no loading for each thread."""
        offset = 0
        # Where accesses are checked, they have to be accesses to the buffer.
        for parameter in self._bound if not self._flags & VALIDATED else ():
            is_value = parameter.kind == BUFFER and parameter.access == READ and parameter.referenced_bytes
            if not is_value or parameter.is_unused:
                continue
            align = max(parameter.align, 1)
            start = (offset + align - 1) // align * align
            if align <= 16 and start + parameter.referenced_bytes <= CONSTANT_BYTES:
                self._copies[parameter.position] = start
                offset = start + parameter.referenced_bytes

    @property
    def runner(self) -> str:
        """The function of intrinsics.cpp that runs the kernel's threadgroups."""
        if self._flags & FIBERS:
            return GANG_RUNNER if self._gangs else "mslc_air_run_fibers"
        roles = {item.role for item in self._info.parameters if item.position not in self._absent}
        is_alone = not self._slots and all(item.kind != THREADGROUP for item in self._bound)
        return "mslc_air_run_rows" if is_alone and roles <= _OF_GRID else "mslc_air_run_threadgroups"

    def declarations(self) -> dict[str, str]:
        """Of what the functions call."""
        found = {
            self.runner: f"declare hidden void @{self.runner}(ptr, i64, i64)",
            "mslc_air_buffer": "declare hidden ptr @mslc_air_buffer(ptr, i32)",
            "mslc_air_threadgroup_buffer": "declare hidden ptr @mslc_air_threadgroup_buffer(ptr, i32)",
            "mslc_air_threadgroup_variable": "declare hidden ptr @mslc_air_threadgroup_variable(i32)",
        }
        for parameter in self._info.parameters:
            if parameter.role in INPUTS:
                function = f"mslc_air_{parameter.role}"
                found[function] = f"declare hidden i32 @{function}(ptr, ptr, ptr, i32)"
        return found

    def functions(self, function: str) -> list[str]:
        """The functions that intrinsics.cpp expects; `function` is the kernel's, with its "@"."""
        arguments = ", ".join(
            f"{self._types[parameter.position]} {self._argument(parameter)}" for parameter in self._info.parameters
        )
        # Discarded once it is inlined, or kept to be made into a gang's.
        linkage, inlining = ("hidden", "noinline") if self._gangs else ("linkonce_odr hidden", "alwaysinline")
        lines = [f"define {linkage} void {THREAD_FUNCTION}({_STATE}, ptr %constants) {inlining} nounwind {{"]
        lines += [*self._lines, f"  call void {function}({arguments})", "  ret void", "}"]
        head = "define linkonce_odr hidden void @mslc_air_copy_constants(ptr %launch, ptr %constants)"
        lines.append(f"{head} alwaysinline nounwind {{")
        for parameter in self._bound:
            offset = self._copies.get(parameter.position)
            if offset is not None:
                at = parameter.position
                lines += [
                    f"  %from.{at} = call ptr @mslc_air_buffer(ptr %launch, i32 {parameter.index})",
                    f"  %to.{at} = getelementptr i8, ptr %constants, i64 {offset}",
                    f"  call void @llvm.memcpy.p0.p0.i64(ptr %to.{at}, ptr %from.{at}, "
                    f"i64 {parameter.referenced_bytes}, i1 false)",
                ]
        return [*lines, "  ret void", "}"]

    def _argument(self, parameter: Parameter) -> str:
        """The value of a parameter, whose instructions are added to the lines."""
        at = parameter.position
        register = f"%argument.{at}"
        if at in self._absent:
            return "zeroinitializer"
        if at in self._copies:
            self._lines.append(f"  {register} = getelementptr i8, ptr %constants, i64 {self._copies[at]}")
        elif parameter.kind:
            function = "mslc_air_threadgroup_buffer" if parameter.kind == THREADGROUP else "mslc_air_buffer"
            self._lines.append(f"  {register} = call ptr @{function}(ptr %launch, i32 {parameter.index})")
        else:
            return self._input(parameter)
        return register

    def _input(self, parameter: Parameter) -> str:
        """What Metal passes: 32 bits, or 16, or a vector of 2 or 3 of them."""
        kind = self._types[parameter.position]
        is_vector = kind.startswith("<")
        element = kind.strip("<>").split(" x ")[-1]
        count = int(kind.strip("<>").split(" x ")[0]) if is_vector else 1
        if element not in ("i16", "i32") or count > 3:
            raise CompileError(f"parameter '{parameter.name}' is of the unknown type {kind}\n")
        vector = "poison"
        for number in range(count):
            at = f"{parameter.position}.{number}"
            self._lines.append(f"  %input.{at} = call i32 @mslc_air_{parameter.role}({_STATE}, i32 {number})")
            value = f"%input.{at}"
            if element == "i16":
                self._lines.append(f"  %short.{at} = trunc i32 {value} to i16")
                value = f"%short.{at}"
            if not is_vector:
                return value
            self._lines.append(f"  %vector.{at} = insertelement {kind} {vector}, {element} {value}, i32 {number}")
            vector = f"%vector.{at}"
        return vector

    def tables(self) -> list[str]:
        """The kernel's reflection and the library's tables."""
        lines = [_text_line("@mslc.name", printable(self._name))]
        rows = []
        for number, parameter in enumerate(self._bound):
            lines.append(_text_line(f"@mslc.argument.name.{number}", parameter.name))
            lines.append(_text_line(f"@mslc.argument.type.{number}", parameter.type_name))
            fields = (
                parameter.kind,
                parameter.index,
                parameter.access,
                parameter.data_type,
                parameter.size,
                parameter.align,
                int(parameter.referenced_bytes != 0),
            )
            numbers = ", ".join(f"i32 {value}" for value in fields)
            rows.append(
                f"%mslc.argument {{ ptr @mslc.argument.name.{number}, ptr @mslc.argument.type.{number}, {numbers} }}"
            )
        slots = "ptr null, ptr null"
        if self._slots:
            end = f"getelementptr ([{self._slots} x %mslc.slot], ptr @mslc.slots, i64 1)"
            slots = f"ptr @mslc.slots, ptr {end}"
        count = len(rows)
        return [
            *lines,
            "%mslc.argument = type { ptr, ptr, i32, i32, i32, i32, i32, i32, i32 }",
            "%mslc.kernel = type { ptr, ptr, i32, i32, i32, i32, ptr, ptr, ptr }",
            "%mslc.library = type { i32, i32, i32, i32, ptr, ptr }",
            f"@mslc.arguments = internal constant [{count} x %mslc.argument] [{', '.join(rows)}]",
            f"@mslc.kernel = internal constant %mslc.kernel {{ ptr @mslc.name, ptr @{self.runner}, i32 {self._flags}, "
            f"i32 {self._info.max_threads}, i32 {count}, i32 0, ptr @mslc.arguments, {slots} }}",
            "@mslc.kernels = internal constant [1 x ptr] [ptr @mslc.kernel]",
            "@mslc_runtime_table = external hidden global ptr",
            f"@mslc_kernel_library = constant %mslc.library {{ i32 {_MAGIC}, i32 {_ABI}, i32 1, i32 0, "
            "ptr @mslc.kernels, ptr @mslc_runtime_table }",
        ]


def _text_line(symbol: str, text: str) -> str:
    data = text.encode("utf-8", "surrogateescape") + b"\0"
    escaped = "".join(f"\\{byte:02X}" for byte in data)
    return f'{symbol} = internal constant [{len(data)} x i8] c"{escaped}"'
