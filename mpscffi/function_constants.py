"""Values of function constants, as the C library takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpscffi._ffi import check, ffi, lib
from mpscffi.errors import InvalidArgumentError, NotFoundError
from mpscffi.scalars import SCALARS, data_type_name

__all__ = ["constant_lines", "constant_values"]


def _constants_of(library: Any) -> list[tuple[str, int, int]]:
    """Return name, index and data type of each function constant."""
    out = ffi.new("uint32_t *")
    check(lib.mps_library_constant_count(library, out))
    info = ffi.new("mps_constant_info *", {"struct_size": ffi.sizeof("mps_constant_info")})
    constants = []
    for i in range(out[0]):
        check(lib.mps_library_constant(library, i, info))
        name = ffi.string(info.name).decode("utf-8", "replace")
        constants.append((name, info.index, info.data_type))
    return constants


def constant_lines(library: Any, given: Mapping[Any, Any]) -> list[str]:
    """Return the declarations of a library's function constants, as Metal has them, with the values that are given."""
    lines = []
    for name, index, data_type in _constants_of(library):
        value = given.get(name, given.get(index))
        note = "" if value is None else f" = {value!r}"
        lines.append(f"constant {data_type_name(data_type)} {name} [[function_constant({index})]]{note};")
    return lines


def constant_values(library: Any, given: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    """Return C's array of constant values, and what must be kept while it is used, one for each value."""
    if not given:
        return ffi.NULL, []
    known = _constants_of(library)
    by_key: dict[Any, tuple[str, int, int]] = {constant[1]: constant for constant in known}
    by_key |= {constant[0]: constant for constant in known}
    values = ffi.new("mps_constant_value[]", len(given))
    keep = []
    for target, (key, value) in zip(values, given.items(), strict=True):
        if key not in by_key:
            names = ", ".join(f"{name} ({index})" for name, index, _ in known) or "none"
            raise NotFoundError(f"there is no function constant {key!r}; the library's are: {names}")
        name, index, data_type = by_key[key]
        try:
            data = ffi.new("char[]", _constant_bytes(value, data_type))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"function constant {name!r}: {error}") from None
        # By name if so given: in a metallib one name may have several indices, and one index several names.
        text = ffi.new("char[]", name.encode()) if isinstance(key, str) else ffi.NULL
        keep.append((data, text))
        target.name = text
        target.index = index
        target.data_type = data_type
        target.value = data
    return values, keep


def _constant_bytes(value: Any, data_type: int) -> bytes:
    scalar = SCALARS[data_type & 0xFF]
    lanes = data_type >> 8
    parts = list(value) if lanes > 1 and isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if len(parts) != max(lanes, 1):
        raise InvalidArgumentError(f"got {value!r}, expected {lanes} numbers")
    for part in parts:
        if isinstance(part, (str, bytes)) or not hasattr(part, "__float__"):
            raise InvalidArgumentError(f"got {part!r}, expected a number")
    data = b"".join(scalar.pack(part.item() if hasattr(part, "item") else part) for part in parts)
    return data + bytes(scalar.size if lanes == 3 else 0)
