"""What AIR says of a kernel and its parameters, in the module's metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CompileError
from ..values import data_type

if TYPE_CHECKING:
    from .module import Module

# Of mpsshim.h: mps_argument_kind, mps_access, mps_data_base.
BUFFER = 1
THREADGROUP = 3
READ = 1
READ_WRITE = 3
_STRUCT = 13
_MAX_THREADS = 1024
_THREADGROUP_SPACE = 3
# Each with an index of its own, in a list that the parameter's node holds.
_BUFFERS = ("buffer", "indirect_buffer")
_ITEM = re.compile(
    r'!"([^"]*)"|!(\d+)|(?:i\d+ )?(-?\d+|true|false)\b|ptr(?: addrspace\(\d+\))? (@(?:"[^"]*"|[-\w$.]+))|\bnull\b'
)
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")


@dataclass(slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes
    ----------
    position : int
        Which parameter of the function it is.
    role : str
        "buffer", or the name of what Metal passes, as "thread_position_in_grid".
    condition : str
        The global variable that tells whether the parameter is there, "" if it always is.
    kind, index, access, size, align : int
        Of what the caller binds; the kind is 0 for what Metal passes.
    referenced_bytes : int
        Of the one value that is bound by reference, 0 for a pointer.
    """

    position: int
    role: str
    name: str
    type_name: str
    condition: str = ""
    kind: int = 0
    index: int = 0
    access: int = 0
    size: int = 0
    align: int = 0
    referenced_bytes: int = 0
    is_unused: bool = False

    @property
    def data_type(self) -> int:
        """mps_data_base | lanes << 8."""
        return data_type(self.type_name) or (_STRUCT | 1 << 8)


@dataclass(slots=True)
class KernelInfo:
    """A kernel: the name of its function, its parameters, the most threads that a threadgroup may have."""

    function: str
    parameters: list[Parameter]
    max_threads: int


@dataclass(slots=True)
class FunctionConstant:
    """A function constant: the global variable that has its value, and what the source calls it."""

    variable: str
    type_name: str
    name: str
    index: int
    required: bool


class _String(str):
    """A text in metadata; other words are names of globals."""

    __slots__ = ()


class _Reference(int):
    """The number of another node."""


def items(text: str) -> list[object]:
    """The items of a node: texts, numbers, references to nodes, names of globals as plain `str`, None for null."""
    found: list[object] = []
    for match in _ITEM.finditer(text):
        string, node, number, symbol = match.groups()
        if string is not None:
            found.append(_String(unescaped(string)))
        elif node is not None:
            found.append(_Reference(node))
        elif number is not None:
            found.append(number == "true" if number in ("true", "false") else int(number))
        else:
            found.append(symbol)
    return found


def kernel_info(module: Module, name: str) -> KernelInfo:
    """What the module says of a kernel.

    Raises
    ------
    CompileError
        If it says nothing, or nothing that makes sense.
    """
    for number in module.named_metadata.get("air.kernel", []):
        node = _node(module, number)
        function = node[0] if node else None
        if isinstance(function, str) and _plain(function) == name and function in module.functions:
            return _kernel(module, function, node)
    kinds = [
        kind for kind in ("vertex", "fragment", "visible", "object", "mesh") if f"air.{kind}" in module.named_metadata
    ]
    what = f"a {kinds[0]} function" if kinds else "no kernel of that name"
    raise CompileError(f"its bitcode holds {what}; only kernels can be run\n")


def function_constants(module: Module) -> list[FunctionConstant]:
    """The function constants of a module."""
    found = []
    for number in module.named_metadata.get("air.function_constants", []):
        match _node(module, number):
            case [str() as variable, _String() as type_name, _String() as name, int() as index, *rest]:
                found.append(FunctionConstant(variable, type_name, name, index, not rest or bool(rest[0])))
            case _:
                raise CompileError("AIR's list of function constants has an unknown form\n")
    return found


def _kernel(module: Module, function: str, node: list[object]) -> KernelInfo:
    max_threads = _MAX_THREADS
    types = module.functions[function].parameter_types()
    if len(node) < 3 or not isinstance(node[2], _Reference):
        raise CompileError("AIR says nothing of its parameters\n")
    references = [item for item in _node(module, str(int(node[2]))) if isinstance(item, _Reference)]
    parameters = [_parameter(module, _node(module, str(int(item))), types) for item in references]
    if sorted(parameter.position for parameter in parameters) != list(range(len(types))):
        raise CompileError("AIR tells of other parameters than its function has\n")
    for reference in node[3:]:
        if isinstance(reference, _Reference):
            attribute = _node(module, str(int(reference)))
            if attribute[:1] == ["air.max_work_group_size"]:
                max_threads = max(1, min(_integer(attribute[-1]), _MAX_THREADS))
    return KernelInfo(function, sorted(parameters, key=lambda parameter: parameter.position), max_threads)


def _parameter(module: Module, node: list[object], types: list[str]) -> Parameter:
    """A parameter from its node: position, then words, some of them with values behind."""
    position = node[0] if node else None
    if not isinstance(position, int) or not 0 <= position < len(types):
        raise CompileError("AIR tells of a parameter that the kernel's function does not have\n")
    parameter = Parameter(position, "", "", "")
    space = re.search(r"addrspace\((\d+)\)", types[position])
    address_space = int(space[1]) if space else 0
    arguments = iter(node[1:])
    for word in arguments:
        if not isinstance(word, _String):
            continue
        match word:
            case "air.function_constant":
                parameter.condition = _condition(module, next(arguments, None))
            case "air.location_index":
                parameter.index = _integer(next(arguments, 0))
            case "air.buffer_size":
                parameter.referenced_bytes = _integer(next(arguments, 0))
            case "air.address_space":
                address_space = _integer(next(arguments, 0))
            case "air.arg_type_size":
                parameter.size = _integer(next(arguments, 0))
            case "air.arg_type_align_size":
                parameter.align = _integer(next(arguments, 0))
            case "air.arg_type_name":
                parameter.type_name = str(next(arguments, ""))
            case "air.arg_name":
                parameter.name = str(next(arguments, ""))
            case "air.struct_type_info":
                next(arguments, None)
            case "air.read":
                parameter.access = READ
            case "air.read_write" | "air.write":
                parameter.access = READ_WRITE
            case "air.arg_unused":
                parameter.is_unused = True
            case _ if not parameter.role and word.startswith("air."):
                parameter.role = word[4:]
    if parameter.role in _BUFFERS:
        parameter.role = "buffer"
        parameter.kind = THREADGROUP if address_space == _THREADGROUP_SPACE else BUFFER
        if parameter.kind == THREADGROUP:
            parameter.access = READ_WRITE
        parameter.access = 0 if parameter.is_unused else parameter.access or READ
    return parameter


def _condition(module: Module, reference: object) -> str:
    """The global variable that a condition's node names."""
    node = _node(module, str(int(reference))) if isinstance(reference, _Reference) else []
    if not node or not isinstance(node[0], str) or node[0] not in module.globals:
        raise CompileError("AIR's condition of a parameter has an unknown form\n")
    return node[0]


def _integer(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise CompileError("AIR's metadata of a parameter has an unknown form\n")
    return value


def _node(module: Module, number: str) -> list[object]:
    text = module.metadata.get(number)
    if text is None:
        raise CompileError(f"AIR's metadata refers to a node !{number} that is not there\n")
    return items(text)


def _plain(symbol: str) -> str:
    """The name of a function that is written "@name" or '@"name"'."""
    return unescaped(symbol[2:-1]) if symbol.startswith('@"') else symbol[1:]


def unescaped(text: str) -> str:
    """Return a text of LLVM's with its escapes made bytes; those that are no UTF-8 are kept as surrogates."""
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text.encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "surrogateescape")
