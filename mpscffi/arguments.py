"""Filling in the arguments of a kernel call."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from mpscffi._ffi import ffi, lib
from mpscffi.array import HOW_TO_WRITE, Array
from mpscffi.dtypes import storable
from mpscffi.errors import ArgumentTypeError, Error, InvalidArgumentError, LimitExceededError
from mpscffi.matching import dtype_fault
from mpscffi.scalars import CASTS, SCALARS, Scalar

if TYPE_CHECKING:
    from mpscffi.memory.block import Block
    from mpscffi.reflection import Argument
    from mpscffi.stream import Stream

__all__ = ["Slot"]

_BUFFER = lib.MPS_ARGUMENT_BUFFER
_BYTES = lib.MPS_ARGUMENT_BYTES
_ADDRESSES = lib.MPS_ARGUMENT_ADDRESSES
_FLOAT = SCALARS[lib.MPS_DATA_FLOAT]
_LONG = SCALARS[lib.MPS_DATA_LONG]
#: Of one argument; the device's own limit is checked again where the call is queued.
_MAX_INLINE = 4096
_NO_BYTES = lib.MPS_LENGTH_NONE
_MAX_FLOAT = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
#: For a parameter that the kernel does not use.
_NOTHING = ffi.new("char[16]")
_NUMBERS = (bool, int, float)
_MATRIX = re.compile(r"(?:metal::)?(float|half|bfloat)([234])x([234])")


class Slot:
    """One buffer argument of a kernel: its place in the dispatch, what it holds, and what the kernel says of it.

    Parameters
    ----------
    place : cdata
        The ``mps_argument`` in the dispatch.
    kernel : str
        For error texts.
    argument : Argument
        What the kernel says.
    data_type : int
        The type of an element, ``mps_data_base | lanes << 8``.
    """

    __slots__ = (
        "argument",
        "block",
        "cast",
        "cell",
        "data",
        "dtype",
        "kernel",
        "lanes",
        "needs",
        "number_type",
        "offset",
        "padded",
        "place",
        "scalar",
    )

    def __init__(self, place: Any, kernel: str, argument: Argument, data_type: int) -> None:
        place.index = argument.index
        self.place = place
        self.kernel = kernel
        self.argument = argument
        self.scalar = SCALARS.get(data_type & 0xFF)
        self.lanes = data_type >> 8 or 1
        #: Bytes of a vector of three that takes the room of four; 0 for other types.
        self.padded = 0
        if self.lanes == 3 and self.scalar is not None and argument.data_size > 3 * self.scalar.size:
            self.padded = argument.data_size
        #: Bytes that an array must have, at least.
        self.needs: int = argument.data_size if argument.is_reference else 0
        #: The dtype of arrays that are taken without a closer look, unless for other reasons than their dtype.
        self.dtype: np.dtype[Any] | None = None
        #: The block that is bound; None if the place holds something else.
        self.block: Block | None = None
        self.offset = 0
        #: One number of the kernel's type, in C; what else the place points to.
        self.cell: Any = None
        self.data: Any = None
        #: The Python type that `cell` takes without a closer look.
        self.number_type: type | None = None
        self.cast: Scalar | None = None
        scalar = self.scalar
        if scalar is not None and scalar.ctype and self.lanes == 1 and argument.access == "read":
            self.cell = ffi.new(f"{scalar.ctype} *")
            self.number_type = float if scalar.is_float else int

    # ---- arrays

    def bind(self, block: Block) -> None:
        """Bind a block; the offset is set apart."""
        if self.block is None:
            self.place.kind = _BUFFER
        self.place.buffer = block.pointer
        self.block = block

    def set_offset(self, offset: int) -> None:
        """Set the byte offset of the bound block."""
        self.place.offset = offset
        self.offset = offset

    def examine(self, array: Array) -> None:
        """Refuse an array that the kernel cannot take as it is."""
        if array._strides is not None:
            raise InvalidArgumentError(
                f"{self} is an array of shape {array.shape} with strides {array.strides}, expected C order, since "
                "kernels do not see strides: pass .copy()"
            )
        if not array._writable and self.argument.access != "read":
            raise InvalidArgumentError(f"{self} is a read-only array, but the kernel writes to it: {HOW_TO_WRITE}")
        if self.padded:
            self._check_padding(array)
        if array.nbytes < self.needs:
            raise InvalidArgumentError(
                f"{self} is an array of {array.nbytes} bytes, but the kernel reads {self.needs} of it"
            )
        if fault := dtype_fault(self.argument, self.scalar, array.dtype):
            raise ArgumentTypeError(f"{self} is an array {fault}")
        if not self.needs and not self.padded:
            self.dtype = array.dtype
        # What validation allows: the block may be longer than the array that it was made for.
        whole = array if array._base is None else array._base
        self.place.length = whole._offset + whole.nbytes - array._offset if array.nbytes else _NO_BYTES

    def _check_padding(self, array: Array) -> None:
        """Refuse what can only be vectors of three elements without a gap, which the kernel would misread."""
        rows_of_three = array.shape[-1:] == (3,) and array.itemsize % self.padded
        if rows_of_three or array.nbytes % self.padded:
            name = self.argument.data_type
            raise InvalidArgumentError(
                f"{self} is an array of shape {array.shape} and {array.nbytes} bytes, but in memory each {name} takes "
                f"{self.padded} bytes, the room of four elements: pad the last axis to 4, or declare the parameter as "
                f"packed_{name}"
            )

    # ---- everything else

    def put(self, value: Any, stream: Stream) -> None:
        """Put in an argument that is not exactly an Array."""
        number_type = type(value)
        if number_type is self.number_type and self.cast is None:
            cell = self.cell
            if number_type is int:
                try:
                    cell[0] = value
                except OverflowError:
                    self._pack(value)  # says what the range is
            else:
                cell[0] = value
                if not -_MAX_FLOAT <= cell[0] <= _MAX_FLOAT and value - value == 0:
                    self._pack(value)
            if self.block is not None or self.data is not cell:
                self._point_at(cell, self.scalar.size)  # type: ignore[union-attr]
            return
        if isinstance(value, (list, tuple)):
            self._put_list(value, stream)
        elif value is None and not self.argument.is_used:
            self._point_at(_NOTHING, len(_NOTHING))
        else:
            self._put_bytes(self._bytes_of(value))

    def cast_next(self, name: str) -> None:
        """Convert the next number as C does."""
        if name not in CASTS:
            raise InvalidArgumentError(f"arg_casts: got {name!r} for {self}, expected one of {', '.join(CASTS)}")
        self.cast = CASTS[name]

    def __str__(self) -> str:
        argument = self.argument
        type_name = f" ({argument.type_name}{'&' if argument.is_reference else '*'})" if argument.type_name else ""
        return f"kernel {self.kernel!r}: argument {argument.index} {argument.name!r}{type_name}"

    def _point_at(self, data: Any, length: int) -> None:
        place = self.place
        place.kind = _BYTES
        place.data = data
        place.length = length
        self.data = data
        self.block = None

    def _put_bytes(self, data: bytes) -> None:
        if self.argument.access != "read":
            raise InvalidArgumentError(f"{self} is written by the kernel: expected an Array")
        if len(data) > _MAX_INLINE:
            raise LimitExceededError(
                f"{self} is given {len(data)} bytes, the limit for numbers and lists is {_MAX_INLINE}: pass an Array"
            )
        if self.argument.is_reference and len(data) < self.argument.data_size:
            raise InvalidArgumentError(
                f"{self} is given {len(data)} bytes, but the kernel reads {self.argument.data_size}"
            )
        # As long as the kernel's type wants to be aligned; cffi aligns to 16.
        self._point_at(ffi.new("char[]", data), len(data))

    def _put_list(self, values: list[Any] | tuple[Any, ...], stream: Stream) -> None:
        if not values:
            raise InvalidArgumentError(f"{self} is an empty {type(values).__name__}")
        if isinstance(values[0], Array):
            self._put_addresses(values, stream)
            return
        if self.argument.access != "read":
            raise InvalidArgumentError(f"{self} is written by the kernel: expected an Array")
        if self.scalar is None and self.argument.data_size and self.cast is None:
            raise ArgumentTypeError(
                f"{self} is a {type(values).__name__} of {len(values)} values, expected {self._expected_bytes()}"
            )
        numbers = [self._number(value) for value in values]
        if self.cast is not None:
            cast, self.cast = self.cast, None
            try:
                packed = [cast.cast(number) for number in numbers]
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{self}: {error}") from None
            self._put_bytes(b"".join(packed))
            return
        scalar = self._scalar_for(numbers[0])
        if len(numbers) % self.lanes:
            raise InvalidArgumentError(
                f"{self} is a list of {len(numbers)} numbers, expected a multiple of {self.lanes}"
            )
        try:
            packed = [scalar.pack(number) for number in numbers]
        except Error as error:
            raise InvalidArgumentError(f"{self}: {error}") from None
        # A vector of three takes the room of four, unless it is a packed one.
        padding = bytes(max(0, self.argument.data_size - scalar.size * self.lanes) if self.lanes > 1 else 0)
        vectors = (b"".join(packed[i : i + self.lanes]) for i in range(0, len(packed), self.lanes))
        self._put_bytes(b"".join(vector + padding for vector in vectors))

    def _put_addresses(self, arrays: list[Any] | tuple[Any, ...], stream: Stream) -> None:
        for i, array in enumerate(arrays):
            if not isinstance(array, Array):
                raise ArgumentTypeError(f"{self}: element {i} is of type {type(array).__name__}, expected an Array")
            if array._strides is not None:
                raise InvalidArgumentError(
                    f"{self}: element {i} has strides {array.strides}, expected C order: pass .copy()"
                )
        table = ffi.new("mps_address[]", len(arrays))
        for entry, array in zip(table, arrays, strict=True):
            block = array._block
            entry.buffer = block.pointer
            entry.offset = array._offset
            entry.length = array.nbytes or _NO_BYTES
            if block.stream is not stream:
                stream._adopt(block)
        self.place.kind = _ADDRESSES
        self.place.data = table
        self.place.length = len(arrays)
        self.data = table
        self.block = None

    def _bytes_of(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, np.void) or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.fields):
            dtype = storable(value.dtype)
            if fault := dtype_fault(self.argument, self.scalar, dtype):
                raise ArgumentTypeError(f"{self} is a structured scalar {fault}")
            return np.asarray(value).astype(dtype).tobytes()
        if isinstance(value, (complex, np.complexfloating)) and self.lanes == 2:
            return self._pack(float(value.real)) + self._pack(float(value.imag))
        return self._pack(self._number(value), whole=True)

    def _pack(self, number: bool | int | float, whole: bool = False) -> bytes:
        cast, self.cast = self.cast, None
        if cast is None and whole and self.lanes > 1:
            raise ArgumentTypeError(f"{self} is one number, expected a list of {self.lanes}")
        try:
            return self._scalar_for(number).pack(number) if cast is None else cast.cast(number)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self}: {error}") from None

    def _scalar_for(self, number: bool | int | float) -> Scalar:
        if self.scalar is not None:
            return self.scalar
        if self.argument.data_size:
            raise ArgumentTypeError(f"{self} is a number, expected {self._expected_bytes()}")
        return _FLOAT if isinstance(number, float) else _LONG

    def _expected_bytes(self) -> str:
        """What stands for a value that is no number or vector."""
        size = self.argument.data_size
        matrix = _MATRIX.fullmatch(self.argument.type_name)
        if matrix is None:
            return f"bytes or a structured NumPy scalar of {size} bytes"
        dtype = {"half": "float16", "bfloat": "bfloat16"}.get(matrix[1], "float32")
        padding = ", a fourth number behind the three of each" if matrix[3] == "3" else ""
        return (
            f"{size} bytes: a matrix is its columns, one after the other{padding}, "
            f"as numpy.asarray(rows, '{dtype}').T.tobytes()"
        )

    def _number(self, value: Any) -> bool | int | float:
        if isinstance(value, _NUMBERS):
            return value
        if isinstance(value, np.ndarray):
            if value.ndim:
                raise ArgumentTypeError(
                    f"{self} is a NumPy array of shape {value.shape}, which lies in host memory: make an Array of it "
                    "by mpscffi.asarray or mpscffi.from_numpy"
                )
            value = value[()]
        if isinstance(value, np.generic) and (value.dtype.kind in "biuf" or value.dtype.name == "bfloat16"):
            number = value.item()
            return number if isinstance(number, _NUMBERS) else float(number)
        if hasattr(value, "__index__") and not isinstance(value, Array):
            return int(value.__index__())
        raise ArgumentTypeError(
            f"{self} is of type {type(value).__name__}, expected an Array, a number, bytes, or a list "
            "of arrays or numbers"
        )
