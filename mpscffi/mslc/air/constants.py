"""Function constants: their values as LLVM writes them, and which parameters are there with these values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import CompileError, RequestError
from ..values import DATA_TYPES, data_type, type_text
from .metadata import function_constants
from .module import flat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .metadata import FunctionConstant, KernelInfo
    from .module import Module

_ELEMENTS = {"half": "half", "bfloat": "bfloat", "float": "float"}
_HEXADECIMAL = {"half": "0xH", "bfloat": "0xR"}
_LOAD = re.compile(r"  (%[\w.]+) = load (?:volatile )?i\d+, ptr (@(?:\"[^\"]*\"|[-\w$.]+))[,\s]?.*")
_STORE = re.compile(r"  store (?:volatile )?i\d+ (\S+), ptr (@(?:\"[^\"]*\"|[-\w$.]+))[,\s]?.*")
_NORMALIZE = re.compile(
    r"  (%[\w.]+) = (?:tail )?call \w+ @air\.normalize_function_constant_predicate\.i8\(i8 (\S+)\).*"
)
_BINARY = re.compile(r"  (%[\w.]+) = (and|or|xor|icmp eq|icmp ne)(?: disjoint)? i\d+ (\S+), (\S+)")
_EXTEND = re.compile(r"  (%[\w.]+) = (?:zext|trunc)(?: \w+)* i\d+ (\S+) to i(\d+)")
_SELECT = re.compile(r"  (%[\w.]+) = select i1 (\S+), i\d+ (\S+), i\d+ (\S+)")


def literals(module: Module, kernel: str, given: Mapping[str | int, tuple[int, bytes]]) -> dict[str, str]:
    """The text of the value of each function constant, by the name of its global variable.

    Parameters
    ----------
    module : Module
    kernel : str
        For messages.
    given : mapping of str or int to (int, bytes)
        By name or index: data type, and the value as laid out in memory. Constants that the kernel does not know are
        passed over: they may be another kernel's.

    Raises
    ------
    RequestError
        If a value is missing, or of another type.
    """
    texts = {}
    for constant in function_constants(module):
        value = given.get(constant.name, given.get(constant.index))
        if value is None:
            if constant.required:
                raise RequestError(
                    f"kernel '{kernel}' needs a value for function constant '{constant.name}' (index {constant.index})"
                )
            texts[constant.variable] = "zeroinitializer"
        else:
            texts[constant.variable] = _literal(constant, *value)
    return texts


def _literal(constant: FunctionConstant, given: int, data: bytes) -> str:
    wanted = data_type(constant.type_name)
    if wanted != given:
        raise RequestError(
            f"function constant '{constant.name}' is of type {type_text(wanted)}, not {type_text(given)}"
        )
    name, lanes = type_text(wanted & 255 | 1 << 8), wanted >> 8
    size = DATA_TYPES[name][1]
    if len(data) < size * lanes:
        raise RequestError(f"function constant '{constant.name}' needs {size * lanes} bytes, not {len(data)}")
    parts = [_scalar(name, data[start : start + size]) for start in range(0, size * lanes, size)]
    if lanes == 1:
        return parts[0]
    element = _ELEMENTS.get(name, f"i{size * 8}")
    return "<" + ", ".join(f"{element} {part}" for part in parts) + ">"


def _scalar(name: str, data: bytes) -> str:
    bits = int.from_bytes(data, "little")
    if name == "bool":
        return "1" if bits else "0"
    if name in _HEXADECIMAL:
        return f"{_HEXADECIMAL[name]}{bits:04X}"
    if name == "float":
        import struct

        # LLVM writes a float as the double of the same value.
        (value,) = struct.unpack("<f", data)
        return "0x" + struct.pack(">d", value).hex().upper()
    return str(bits)


def drop_absent(module: Module, info: KernelInfo, values: Mapping[str, str]) -> set[int]:
    """The positions of the parameters that are not there with these values of the function constants.

    Raises
    ------
    CompileError
        If it cannot be told of one of them.
    """
    if not any(parameter.condition for parameter in info.parameters):
        return set()
    memory = _after_constructors(module, values)
    absent = set()
    for parameter in info.parameters:
        if parameter.condition:
            truth = memory.get(parameter.condition)
            if truth is None:
                raise CompileError(
                    f"parameter '{parameter.name}': whether it is there depends on the function constants in a way "
                    "that is not understood\n"
                )
            if not truth:
                absent.add(parameter.position)
    return absent


def _after_constructors(module: Module, values: Mapping[str, str]) -> dict[str, int | None]:
    """Integers in global variables after the functions have run that compute them from function constants."""
    memory: dict[str, int | None] = {}
    for name, text in values.items():
        memory[name] = int(text) if text.isdigit() else 0 if text == "zeroinitializer" else None
    for constructor in constructors(module):
        registers: dict[str, int | None] = {}
        for line in module.functions[constructor].body:
            if not _step(flat(line), registers, memory):
                break
    return memory


def constructors(module: Module) -> list[str]:
    """The functions that run before a kernel does."""
    text = module.globals.get("@llvm.global_ctors", "")
    return [name for name in re.findall(r'@(?:"[^"]*"|[-\w$.]+)', text) if name in module.functions]


def _step(line: str, registers: dict[str, int | None], memory: dict[str, int | None]) -> bool:
    """Follow one instruction; false at the end of what is understood."""

    def value(operand: str) -> int | None:
        if operand in ("true", "false"):
            return int(operand == "true")
        return registers.get(operand) if operand.startswith("%") else int(operand) if _is_integer(operand) else None

    if match := _LOAD.match(line):
        registers[match[1]] = memory.get(match[2])
    elif match := _STORE.match(line):
        memory[match[2]] = value(match[1].rstrip(","))
    elif match := _NORMALIZE.match(line):
        operand = value(match[2])
        registers[match[1]] = None if operand is None else int(operand != 0)
    elif match := _EXTEND.match(line):
        operand = value(match[2])
        registers[match[1]] = None if operand is None else operand & ((1 << int(match[3])) - 1)
    elif match := _SELECT.match(line):
        chosen = value(match[2])
        registers[match[1]] = None if chosen is None else value(match[3 if chosen else 4])
    elif match := _BINARY.match(line):
        registers[match[1]] = _binary(match[2], value(match[3]), value(match[4]))
    else:
        return bool(re.match(r"  %[\w.]+ = (?!phi)", line)) or not line.strip()
    return True


def _binary(operation: str, a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    match operation:
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "icmp eq":
            return int(a == b)
        case _:
            return int(a != b)


def _is_integer(text: str) -> bool:
    return text.lstrip("-").isdigit()
