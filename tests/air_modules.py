"""Makes metallibs to test with: AIR as text, assembled by the compiler that the host device uses anyhow."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpscffi.mslc.metallib.writer import ConstantEntry, Format, FunctionEntry, write_metallib
from mpscffi.mslc.toolchain import find_toolchain

# LLVM's name of a type, size and alignment in memory.
SIZES = {"float": 4, "half": 2, "bfloat": 2, "int": 4, "uint": 4, "char": 1, "uchar": 1, "short": 2, "ushort": 2}
SIZES |= {"long": 8, "ulong": 8, "float4": 16, "uint3": 16, "bool": 1}


@dataclass
class Parameter:
    """A parameter: its type in LLVM, and what AIR's metadata says of it."""

    type: str
    words: Sequence[str]
    name: str
    type_name: str
    condition: str = ""
    tail: Sequence[str] = ()


def device(name: str, index: int, type_name: str = "float", access: str = "read_write", **more: object) -> Parameter:
    """A `device T *` parameter."""
    return _bound("ptr addrspace(1)", 1, name, index, type_name, access, **more)


def constant(name: str, index: int, type_name: str = "uint", **more: object) -> Parameter:
    """A `constant T &` parameter."""
    return _bound("ptr addrspace(2)", 2, name, index, type_name, "read", reference=True, **more)


def threadgroup(name: str, index: int, type_name: str = "float") -> Parameter:
    """A `threadgroup T *` parameter."""
    return _bound("ptr addrspace(3)", 3, name, index, type_name, "read_write")


def _bound(
    kind: str,
    space: int,
    name: str,
    index: int,
    type_name: str,
    access: str,
    *,
    reference: bool = False,
    condition: str = "",
    unused: bool = False,
    says_space: bool = True,
    role: str = "buffer",
) -> Parameter:
    size = SIZES.get(type_name, 4)
    words = [f'!"air.{role}"']
    words += ['!"air.buffer_size"', f"i32 {size}"] if reference else []
    words += ['!"air.location_index"', f"i32 {index}", "i32 1", f'!"air.{access}"']
    words += ['!"air.address_space"', f"i32 {space}"] if says_space else []
    words += ['!"air.arg_type_size"', f"i32 {size}", '!"air.arg_type_align_size"', f"i32 {size}"]
    return Parameter(kind, words, name, type_name, condition, ['!"air.arg_unused"'] if unused else [])


def given(role: str, type: str = "i32", name: str = "", unused: bool = False) -> Parameter:
    """What Metal passes, as a thread's position."""
    return Parameter(type, [f'!"air.{role}"'], name or role, "uint", "", ['!"air.arg_unused"'] if unused else [])


@dataclass
class Constant:
    """A function constant: its global variable, type in LLVM and in Metal, MTLDataType."""

    name: str
    index: int
    type: str = "i8"
    type_name: str = "bool"
    kind: int = 53
    required: bool = True

    @property
    def variable(self) -> str:
        return f"@_Z1{self.name}.MTL_FC_INIT_{self.index}_b"


@dataclass
class Source:
    """Lines of a source, as `-gline-tables-only` has them: the instructions of a body and of `top` name them.

    `file` is where the kernel is, and its lines are !1001 for line 1 and so on. Those of a function in the file
    `header`, which is !906, are !2001 and so on, and inlined into line 40 of the kernel !3001 and so on.
    """

    file: str
    header: str = ""

    def metadata(self, kernel: str) -> str:
        lines = [
            "!llvm.dbg.cu = !{!900}",
            "!llvm.module.flags = !{!903}",
            '!900 = distinct !DICompileUnit(language: DW_LANG_C_plus_plus_14, file: !901, producer: "metal", '
            "emissionKind: LineTablesOnly)",
            f'!901 = !DIFile(filename: "{self.file}", directory: "/src")',
            f'!902 = !DIFile(filename: "{self.header}", directory: "/src")',
            '!903 = !{i32 2, !"Debug Info Version", i32 3}',
            "!904 = !DISubroutineType(types: !{})",
            f'!905 = distinct !DISubprogram(name: "{kernel}", scope: !901, file: !901, line: 1, type: !904, '
            "spFlags: DISPFlagDefinition, unit: !900)",
            '!906 = distinct !DISubprogram(name: "helper", scope: !902, file: !902, line: 7, type: !904, '
            "spFlags: DISPFlagDefinition, unit: !900)",
            "!907 = distinct !DILexicalBlock(scope: !905, file: !901, line: 2, column: 1)",
            "!908 = distinct !DILocation(line: 40, column: 1, scope: !905)",
        ]
        for line in range(1, 50):
            lines += [
                f"!{1000 + line} = !DILocation(line: {line}, column: 1, scope: !907)",
                f"!{2000 + line} = !DILocation(line: {line}, column: 1, scope: !906)",
                f"!{3000 + line} = !DILocation(line: {line}, column: 1, scope: !906, inlinedAt: !908)",
            ]
        return "\n".join(lines) + "\n"


@dataclass
class Kernel:
    """A kernel. Its parameters are %0, %1 and so on, and its body begins with the block of the next number."""

    name: str
    parameters: Sequence[Parameter]
    body: str
    top: str = ""  # globals, declarations, other functions
    constants: Sequence[Constant] = ()
    max_threads: int = 0
    kind: str = "kernel"
    attributes: str = "convergent nounwind"
    source: Source | None = None

    def text(self) -> str:
        """The module."""
        nodes: list[str] = []

        def node(text: str) -> str:
            nodes.append(text)
            return f"!{len(nodes) - 1}"

        references = []
        for position, parameter in enumerate(self.parameters):
            words = [f"i32 {position}"]
            if parameter.condition:
                condition = node(f'!{{ptr addrspace(2) {parameter.condition}, !"bool", !"c"}}')
                words += ['!"air.function_constant"', condition]
            words += [*parameter.words, '!"air.arg_type_name"', f'!"{parameter.type_name}"']
            words += ['!"air.arg_name"', f'!"{parameter.name}"', *parameter.tail]
            references.append(node("!{" + ", ".join(words) + "}"))
        outputs, inputs = node("!{}"), node("!{" + ", ".join(references) + "}")
        entry = [f"ptr @{self.name}", outputs, inputs]
        if self.max_threads:
            entry.append(node(f'!{{!"air.max_work_group_size", i32 {self.max_threads}}}'))
        kernel = node("!{" + ", ".join(entry) + "}")
        constants = [
            node(
                f'!{{ptr addrspace(2) {item.variable}, !"{item.type_name}", !"{item.name}", i32 {item.index}, '
                f"i1 {str(item.required).lower()}}}"
            )
            for item in self.constants
        ]
        variables = "".join(
            f"{item.variable} = internal unnamed_addr addrspace(2) externally_initialized constant {item.type} undef, "
            'section "air.fc_initializer", align 1\n'
            for item in self.constants
        )
        types = ", ".join(parameter.type for parameter in self.parameters)
        lines = "".join(f"!{number} = {text}\n" for number, text in enumerate(nodes))
        lines_of = " !dbg !905" if self.source else ""
        listed = f"!air.function_constants = !{{{', '.join(constants)}}}\n" if constants else ""
        return (
            f"{variables}{self.top}\n"
            f"define void @{self.name}({types}) #0{lines_of} {{\n{self.body}\n  ret void\n}}\n"
            f"attributes #0 = {{ {self.attributes} }}\n"
            f"!air.{self.kind} = !{{{kernel}}}\n{listed}{lines}"
            + (self.source.metadata(self.name) if self.source else "")
        )

    def entry(self, bitcode: bytes) -> FunctionEntry:
        """The kernel as a function of a metallib."""
        constants = [ConstantEntry(item.name, item.index, item.kind, item.required) for item in self.constants]
        return FunctionEntry(self.name, bitcode, self.kind, constants)


def assembled(text: str) -> bytes:
    """Bitcode of a module."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "module.ll").write_text(text)
        options = ["-w", "-c", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-o", "module.bc", "module.ll"]
        command = [*find_toolchain().compiler, *options]
        finished = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, f"{finished.stderr}\n{text}"
        return Path(directory, "module.bc").read_bytes()


def metallib(kernels: Iterable[Kernel], form: Format | None = None) -> bytes:
    """A library of kernels."""
    return write_metallib([kernel.entry(assembled(kernel.text())) for kernel in kernels], form)


_TEMPORARY = "%r"


class Body:
    """Writes the body of a kernel, instruction by instruction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.location = 0  # of a Source, for the instructions that follow

    def do(self, instruction: str) -> None:
        """Add an instruction without a result."""
        self.lines.append(f"  {instruction}" + (f", !dbg !{self.location}" if self.location else ""))

    def value(self, instruction: str) -> str:
        """Add an instruction; the name of its result."""
        name = f"{_TEMPORARY}{len(self.lines)}"
        self.do(f"{name} = {instruction}")
        return name

    def call(self, function: str, result: str, *arguments: str) -> str:
        """Call and declare a function. Arguments are types with values."""
        types = ", ".join(argument.rpartition(" ")[0] for argument in arguments)
        self.declared[function] = f"declare {result} @{function}({types}) #0\n"
        instruction = f"call {result} @{function}({', '.join(arguments)})"
        if result == "void":
            self.do(instruction)
            return ""
        return self.value(instruction)

    def load(self, type: str, pointer: str, index: str, space: int = 1) -> str:
        """Load element number `index`, an i32."""
        place = self.place(type, pointer, index, space)
        return self.value(f"load {type}, ptr addrspace({space}) {place}")

    def store(self, type: str, value: str, pointer: str, index: str, space: int = 1) -> None:
        """Store element number `index`, an i32."""
        place = self.place(type, pointer, index, space)
        self.do(f"store {type} {value}, ptr addrspace({space}) {place}")

    def place(self, type: str, pointer: str, index: str, space: int = 1) -> str:
        """The address of element number `index`, an i32."""
        wide = self.value(f"zext i32 {index} to i64")
        return self.value(f"getelementptr inbounds {type}, ptr addrspace({space}) {pointer}, i64 {wide}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def top(self) -> str:
        return "".join(self.declared.values())
