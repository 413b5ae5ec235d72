"""Python numbers as the bytes of Metal's scalar types."""

from __future__ import annotations

import math
import struct
from typing import Any

from mpscffi._ffi import lib
from mpscffi.errors import InvalidArgumentError

__all__ = ["CASTS", "SCALARS", "Scalar"]


class Scalar:
    """A scalar type of Metal.

    Parameters
    ----------
    name : str
        As Metal spells it.
    code : str
        As :mod:`struct` spells it; "" for bfloat, which it lacks.
    ctype : str
        A C type of the same bytes that cffi converts numbers to; "" if it has none.
    """

    __slots__ = ("code", "ctype", "high", "is_float", "low", "name", "size")

    def __init__(self, name: str, code: str, ctype: str) -> None:
        self.name = name
        # In standard mode, where struct finds out that a float is too large.
        self.code = f"<{code}" if code else ""
        self.ctype = ctype
        self.size = struct.calcsize(self.code) if code else 2
        self.is_float = code in ("", "e", "f")
        signed = code in ("b", "h", "i", "q")
        bits = 1 if code == "?" else self.size * 8
        self.low = -(1 << (bits - 1)) if signed else 0
        self.high = (1 << (bits - 1 if signed else bits)) - 1

    def pack(self, value: bool | int | float) -> bytes:
        """Return the bytes of a number; one that the type does not have is an error, but floats are rounded."""
        return self._pack_float(value) if self.is_float else self._pack_int(value)

    def _pack_int(self, value: bool | int | float) -> bytes:
        if isinstance(value, float):
            if not value.is_integer():
                raise InvalidArgumentError(f"got {value}, expected a whole number for {self.name}")
            value = int(value)
        if not self.low <= value <= self.high:
            raise InvalidArgumentError(f"got {value}, expected {self.low} to {self.high} for {self.name}")
        return struct.pack(self.code, value)

    def _pack_float(self, value: float) -> bytes:
        try:
            value = float(value)
            data = struct.pack(self.code, value) if self.code else _bfloat_bytes(value)
        except OverflowError:
            raise InvalidArgumentError(f"got {value}, which is too large for {self.name}") from None
        return data

    def cast(self, value: bool | int | float) -> bytes:
        """Return the bytes of a number converted as C does it: fractions are cut off, integers wrap."""
        if self.is_float:
            try:
                return self._pack_float(value)
            except InvalidArgumentError:
                return self._pack_float(math.inf if value > 0 else -math.inf)
        if not math.isfinite(value):
            raise InvalidArgumentError(f"got {value}, from which no {self.name} can be cast")
        bits = self.size * 8
        whole = int(value) & ((1 << bits) - 1)
        return whole.to_bytes(self.size, "little")


def _bfloat_bytes(value: float) -> bytes:
    """Round to the nearest bfloat, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if math.isnan(value):
        return struct.pack("<H", bits >> 16 | 0x40)
    # Rounded once from the double: where float32 is an exact tie, the double says on which side it was.
    exact = struct.unpack("<f", struct.pack("<I", bits))[0]
    half = bits & 0xFFFF
    if half == 0x8000 and exact != value:
        bits += 1 if abs(value) > abs(exact) else -1
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    if rounded & 0x7FFF == 0x7F80 and not math.isinf(value):
        raise OverflowError
    return struct.pack("<H", rounded)


#: By ``mps_data_base``.
SCALARS: dict[int, Scalar] = {
    lib.MPS_DATA_BOOL: Scalar("bool", "?", ""),
    lib.MPS_DATA_CHAR: Scalar("char", "b", "int8_t"),
    lib.MPS_DATA_UCHAR: Scalar("uchar", "B", "uint8_t"),
    lib.MPS_DATA_SHORT: Scalar("short", "h", "int16_t"),
    lib.MPS_DATA_USHORT: Scalar("ushort", "H", "uint16_t"),
    lib.MPS_DATA_INT: Scalar("int", "i", "int32_t"),
    lib.MPS_DATA_UINT: Scalar("uint", "I", "uint32_t"),
    lib.MPS_DATA_LONG: Scalar("long", "q", "int64_t"),
    lib.MPS_DATA_ULONG: Scalar("ulong", "Q", "uint64_t"),
    lib.MPS_DATA_HALF: Scalar("half", "e", ""),
    lib.MPS_DATA_BFLOAT: Scalar("bfloat", "", ""),
    lib.MPS_DATA_FLOAT: Scalar("float", "f", "float"),
}

#: By the names that ``arg_casts`` takes.
CASTS: dict[str, Scalar] = {
    "fp16": SCALARS[lib.MPS_DATA_HALF],
    "bf16": SCALARS[lib.MPS_DATA_BFLOAT],
    "int32": SCALARS[lib.MPS_DATA_INT],
    "int16": SCALARS[lib.MPS_DATA_SHORT],
    "int8": SCALARS[lib.MPS_DATA_CHAR],
    "uint8": SCALARS[lib.MPS_DATA_UCHAR],
}


def data_type_name(data_type: int) -> str:
    """Return how Metal spells a type, given as ``mps_data_base | lanes << 8``; "" if it is no scalar or vector."""
    scalar = SCALARS.get(data_type & 0xFF)
    lanes: Any = data_type >> 8
    return "" if scalar is None else scalar.name + (str(lanes) if lanes > 1 else "")
