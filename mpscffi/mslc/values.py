"""Values of function constants as C++."""

from __future__ import annotations

import re

from .errors import RequestError

# mps_data_base of mpsshim.h: base, Metal's name, bytes.
DATA_TYPES = {
    "bool": (1, 1),
    "char": (2, 1),
    "uchar": (3, 1),
    "short": (4, 2),
    "ushort": (5, 2),
    "int": (6, 4),
    "uint": (7, 4),
    "long": (8, 8),
    "ulong": (9, 8),
    "half": (10, 2),
    "bfloat": (11, 2),
    "float": (12, 4),
}
_NAMES = {base: name for name, (base, _) in DATA_TYPES.items()}
_SAME = {
    "int8_t": "char",
    "uint8_t": "uchar",
    "int16_t": "short",
    "uint16_t": "ushort",
    "int32_t": "int",
    "uint32_t": "uint",
    "int64_t": "long",
    "uint64_t": "ulong",
    "size_t": "ulong",
    "unsigned": "uint",
    "unsigned int": "uint",
    "unsigned char": "uchar",
    "unsigned short": "ushort",
    "unsigned long": "ulong",
    "signed char": "char",
}


def data_type(type_name: str) -> int:
    """Return the data type of a constant's type as the source spells it, base | lanes << 8; 0 if it is not known."""
    name = " ".join(type_name.replace("metal::", "").split())
    name = _SAME.get(name, name)
    match = re.fullmatch(r"([a-z]+)([234]?)", name)
    if match is None or match[1] not in DATA_TYPES:
        return 0
    return DATA_TYPES[match[1]][0] | int(match[2] or 1) << 8


def type_text(number: int) -> str:
    """Return a data type as Metal spells it."""
    lanes = number >> 8
    return _NAMES.get(number & 255, "an unknown type") + (str(lanes) if lanes > 1 else "")


def literal(name: str, type_name: str, given: int, data: bytes) -> str:
    """Return a value as C++.

    Parameters
    ----------
    name, type_name : str
        The constant's, for messages.
    given : int
        The data type of the value.
    data : bytes
        The value as laid out in memory.

    Raises
    ------
    RequestError
        If it is not of the constant's type.
    """
    wanted = data_type(type_name)
    if wanted and wanted != given:
        raise RequestError(f"function constant '{name}' is of type {type_text(wanted)}, not {type_text(given)}")
    base, lanes = given & 255, max(given >> 8, 1)
    if base not in _NAMES or lanes > 4:
        raise RequestError(f"function constant '{name}' has a value of unknown data type {given}")
    size = DATA_TYPES[_NAMES[base]][1]
    if len(data) < size * lanes:
        raise RequestError(f"function constant '{name}' needs {size * lanes} bytes, not {len(data)}")
    parts = [_scalar(_NAMES[base], data[start : start + size]) for start in range(0, size * lanes, size)]
    return parts[0] if lanes == 1 else f"metal::vec<{_NAMES[base]}, {lanes}>({', '.join(parts)})"


def _scalar(base: str, data: bytes) -> str:
    bits = int.from_bytes(data, "little")
    if base == "bool":
        return "true" if bits else "false"
    carrier = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}[len(data)]
    suffix = "ul" if len(data) == 8 else "u"
    if base in ("half", "bfloat", "float"):
        return f"__builtin_bit_cast({base}, static_cast<{carrier}>({bits}{suffix}))"
    return f"static_cast<{base}>({bits}{suffix})"


def encoded(name: str, data_type: int, text: str) -> bytes:
    """Return the value that a text like "true", "3" or "0.5,1" tells of, as laid out in memory.

    Raises
    ------
    RequestError
        If it is none of that data type.
    """
    import struct

    element, lanes = _NAMES.get(data_type & 255, ""), max(data_type >> 8, 1)
    parts = [part.strip() for part in text.split(",")]
    try:
        if len(parts) != lanes:
            raise ValueError
        if element == "bool":
            return bytes({"true": 1, "1": 1, "false": 0, "0": 0}[part] for part in parts)
        if element == "bfloat":
            return b"".join(_bfloat(struct.pack("<f", float(part))) for part in parts)
        if element in _FLOAT_FORMATS:
            return b"".join(struct.pack(_FLOAT_FORMATS[element], float(part)) for part in parts)
        size = DATA_TYPES[element][1]
        return b"".join(int(part, 0).to_bytes(size, "little", signed=element[0] != "u") for part in parts)
    except (KeyError, ValueError, OverflowError, struct.error):
        raise RequestError(
            f"function constant '{name}' is of type {type_text(data_type)}, which {text!r} is no value of"
        ) from None


_FLOAT_FORMATS = {"half": "<e", "float": "<f"}


def _bfloat(data: bytes) -> bytes:
    """Return a float rounded to nearest, as the two bytes of a bfloat."""
    bits = int.from_bytes(data, "little")
    if bits & 0x7FFFFFFF <= 0x7F800000:
        bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16 & 0xFFFF).to_bytes(2, "little")
