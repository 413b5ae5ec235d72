"""Filling in the arguments of a kernel call."""

from __future__ import annotations

import struct
from array import array as python_array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mpscffi._ffi import ffi, lib
from mpscffi.array import HOW_TO_WRITE, Array
from mpscffi.dtypes import storable
from mpscffi.errors import ArgumentTypeError, Error, InvalidArgumentError, LimitExceededError
from mpscffi.matching import dtype_fault, numpy_name
from mpscffi.scalars import CASTS, SCALARS, Scalar
from mpscffi.struct_values import pack_field, pack_struct, plain_number

if TYPE_CHECKING:
    from mpscffi.memory.block import Block
    from mpscffi.mslc.layout import Field
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
_BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}
#: For a parameter that the kernel does not use.
_NOTHING = ffi.new("char[16]")


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
        elif value is None:
            if self.argument.is_used:
                raise ArgumentTypeError(
                    f"{self} is None, but the kernel uses it: expected an Array, a number, bytes, or a list; only "
                    "slots that the kernel does not use may be None"
                )
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
        if self.scalar is None and self.cast is None and (packed_value := self._packed(values)) is not None:
            self._put_bytes(packed_value)
            return
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
        if isinstance(value, Mapping):
            packed = self._packed(value)
            if packed is None:
                raise ArgumentTypeError(f"{self} is a {type(value).__name__}, expected {self._expected_bytes()}")
            return packed
        if isinstance(value, np.void) or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.fields):
            dtype = storable(value.dtype)
            if fault := dtype_fault(self.argument, self.scalar, dtype):
                raise ArgumentTypeError(f"{self} is a structured scalar {fault}")
            return np.asarray(value).astype(dtype).tobytes()
        if isinstance(value, (complex, np.complexfloating)) and self.lanes == 2:
            return self._pack(float(value.real)) + self._pack(float(value.imag))
        number = plain_number(value)
        if number is not None:
            return self._pack(number, whole=True)
        if isinstance(value, np.ndarray):
            return self._bytes_of_ndarray(value)
        import ctypes

        if isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array, python_array)):
            view = memoryview(value)
            if isinstance(value, python_array) or not isinstance(value, (ctypes.Structure, ctypes.Union)):
                numbers = np.asarray(value)
                if numbers.dtype.fields is None:
                    return self._bytes_of_ndarray(numbers)
            size = self.argument.data_size
            if size and (view.nbytes % size or (self.argument.is_reference and view.nbytes != size)):
                raise InvalidArgumentError(
                    f"{self} is a {type(value).__name__} of {view.nbytes} bytes, expected {size}"
                )
            return view.tobytes()
        return self._pack(self._number(value))  # which refuses it

    def _packed(self, value: Any) -> bytes | None:
        """Return the bytes of a struct or a matrix, given by its parts; None if the parameter is none that is known."""
        layout = self.argument.struct
        matrix = self._matrix() if layout is None else None
        try:
            if layout is not None:
                return pack_struct(layout, value)
            is_nested = isinstance(value, np.ndarray) or (
                isinstance(value, (list, tuple)) and plain_number(value[0]) is None
            )
            return pack_field(matrix, value) if matrix is not None and is_nested else None
        except Error as error:
            raise type(error)(f"{self}: {error}") from None

    def _bytes_of_ndarray(self, value: np.ndarray[Any, Any]) -> bytes:
        """Return the bytes of a small NumPy array, which go into the call by value."""
        if not self.argument.is_constant or value.nbytes > _MAX_INLINE or not value.size:
            raise self._is_in_host_memory(f"a NumPy array of shape {value.shape}", "mpscffi.from_numpy")
        scalar = self.scalar
        if value.dtype.fields is not None:
            if fault := dtype_fault(self.argument, scalar, value.dtype):
                raise ArgumentTypeError(f"{self} is a NumPy array {fault}")
            return value.tobytes()
        if scalar is None:
            matrix = self._matrix()
            if matrix is not None and value.dtype.name != numpy_name(_BY_NAME[matrix.scalar]):
                name = numpy_name(_BY_NAME[matrix.scalar])
                raise ArgumentTypeError(
                    f"{self} is a NumPy array of dtype {value.dtype}, expected {name}: convert by .astype('{name}')"
                )
            packed = self._packed(value)
            if packed is None:
                raise self._is_in_host_memory(f"a NumPy array of shape {value.shape}", "mpscffi.from_numpy")
            return packed
        name = numpy_name(scalar)
        if value.dtype.name != name:
            raise ArgumentTypeError(
                f"{self} is a NumPy array of dtype {value.dtype}, expected {name}, since its bytes go into the call as "
                f"they are: convert by .astype('{name}')"
            )
        if self.lanes == 3 and self.padded and value.shape[-1] == 3:
            value = np.concatenate([value, np.zeros((*value.shape[:-1], 1), value.dtype)], axis=-1)
        vector = self.padded or self.lanes * scalar.size
        if value.nbytes % vector:
            raise InvalidArgumentError(
                f"{self} is a NumPy array of shape {value.shape} and {value.nbytes} bytes, expected a "
                f"multiple of {vector}"
            )
        return value.tobytes()

    def _is_in_host_memory(self, what: str, function: str) -> ArgumentTypeError:
        return ArgumentTypeError(
            f"{self} is {what}, which lies in host memory: make an Array of it by mpscffi.asarray or {function}"
        )

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

    def _matrix(self) -> Field | None:
        """How the parameter's matrix lies; None if it is none."""
        from mpscffi.mslc.layout import matrix_of  # heavy, and most calls have none

        return matrix_of(self.argument.element_name)

    def _expected_bytes(self) -> str:
        """What stands for a value that is no number or vector."""
        size = self.argument.data_size
        matrix = self._matrix()
        if matrix is None:
            layout = self.argument.struct
            if layout is None:
                return f"bytes or a structured NumPy scalar of {size} bytes, since its layout is not known"
            names = ", ".join(field.name for field in layout.fields)
            return (
                f"a dict or tuple of the fields of {layout.name} ({names}), or "
                f"bytes or a structured NumPy scalar of {size} bytes"
            )
        dtype = numpy_name(_BY_NAME[matrix.scalar])
        padding = ", a fourth number behind the three of each" if matrix.lanes == 3 else ""
        return (
            f"{size} bytes: a matrix is its columns, one after the other{padding}, "
            f"as numpy.asarray(rows, '{dtype}').T.tobytes(), or a list of {matrix.columns} columns"
        )

    def _number(self, value: Any) -> bool | int | float:
        number = plain_number(value)
        if number is not None:
            return number
        if isinstance(value, np.ndarray):
            raise self._is_in_host_memory(f"a NumPy array of shape {value.shape}", "mpscffi.from_numpy")
        if hasattr(value, "__dlpack__") and not isinstance(value, Array):
            kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
            raise ArgumentTypeError(
                f"{self} is a {kind} of shape {tuple(value.shape)}, expected an Array: pass mpscffi.from_dlpack(tensor)"
            )
        raise ArgumentTypeError(
            f"{self} is of type {type(value).__name__}, expected an Array, a number, bytes, a list of arrays or "
            "numbers, or for a struct a dict or a tuple of its fields"
        )
