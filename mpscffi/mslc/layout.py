"""How plain structs of a source lie in memory, by Metal's rules: what is declared in them, where, and how large."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .declarations import find_declarations
from .kernels import ADDRESS_SPACES
from .numbers import integer_value
from .tokens import IDENTIFIER

if TYPE_CHECKING:
    from .declarations import Attributes
    from .rewrite import Rewriter
    from .tokens import Tokens

__all__ = ["Field", "Struct", "matrix_of", "struct_layouts"]

_SIZES = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "long": 8, "ulong": 8, "half": 2,
    "bfloat": 2, "float": 4,
}  # fmt: skip
_ALIASES = {
    "int8_t": "char", "uint8_t": "uchar", "int16_t": "short", "uint16_t": "ushort", "int32_t": "int",
    "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong", "size_t": "ulong", "ptrdiff_t": "long",
    "unsigned": "uint", "unsigned int": "uint", "signed": "int", "signed int": "int", "unsigned char": "uchar",
    "signed char": "char", "unsigned short": "ushort", "unsigned long": "ulong", "bfloat16_t": "bfloat",
    "float16_t": "half", "float32_t": "float", "atomic_int": "int", "atomic_uint": "uint", "atomic_float": "float",
    "atomic_bool": "bool", "atomic_ulong": "ulong",
}  # fmt: skip
_BUILTIN = re.compile(r"(packed_|simd_)?([a-z]+?)([234])?(?:x([234]))?")
_MATRIX = re.compile(r"(?:metal::)?(float|half)([234])x([234])")
_QUALIFIERS = {"const", "volatile", "mutable", *ADDRESS_SPACES}
_NO_FIELD = {"using", "typedef", "static", "enum", "static_assert", "friend", "template"}
_NOT_PLAIN = {"virtual", "alignas", "__attribute__", "union", "struct", "class", "operator", "METAL_ALIGN"}


@dataclass(slots=True)
class Field:
    """A field of a struct.

    `type_name` is as in the source. Its `count` elements, of which each is `scalar` (Metal's name; "" for a struct or
    a pointer) in `lanes` values a vector, `columns` vectors, take `stride` bytes each. `struct` is that of a nested
    one.
    """

    name: str
    type_name: str
    offset: int
    scalar: str
    lanes: int
    columns: int
    column_stride: int
    count: int
    stride: int
    struct: Struct | None


@dataclass(slots=True)
class Struct:
    """A struct: its fields in order, its bytes and its alignment."""

    name: str
    fields: list[Field]
    size: int
    align: int

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of the same offsets and size. Vectors of three in arrays, and columns of three, have four."""
        import numpy as np

        formats = [_format(field) for field in self.fields]
        offsets = [field.offset for field in self.fields]
        names = [field.name for field in self.fields]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": self.size})


_NUMPY = {
    "bool": "?", "char": "i1", "uchar": "u1", "short": "<i2", "ushort": "<u2", "int": "<i4", "uint": "<u4",
    "long": "<i8", "ulong": "<u8", "half": "<f2", "float": "<f4", "": "<u8",
}  # fmt: skip


def _format(field: Field) -> Any:
    """Return the format of a field, as NumPy wants it."""
    shape: tuple[int, ...] = (field.count,) if field.count > 1 else ()
    if field.struct is not None:
        return field.struct.dtype, shape
    base: Any
    if field.scalar == "bfloat":
        try:
            from ml_dtypes import bfloat16 as base
        except ImportError:
            base = "<u2"
    else:
        base = _NUMPY[field.scalar]
    if field.columns > 1:
        shape = (*shape, field.columns)
    if field.lanes > 1:
        is_padded = len(shape) > 0 and field.column_stride == 4 * _SIZES[field.scalar]
        shape = (*shape, 4 if is_padded else field.lanes)
    return base, shape


@dataclass(slots=True)
class _Type:
    scalar: str
    lanes: int
    columns: int
    column_stride: int
    size: int
    align: int
    struct: Struct | None = None


def matrix_of(type_name: str) -> Field | None:
    """Return how a matrix lies, as a field of that type; None if the name is none of a matrix."""
    match = _MATRIX.fullmatch(type_name)
    if match is None:
        return None
    size, columns, lanes = _SIZES[match[1]], int(match[2]), int(match[3])
    stride = size * (4 if lanes == 3 else lanes)
    return Field("", type_name, 0, match[1], lanes, columns, stride, 1, stride * columns, None)


def struct_layouts(rewritten: Rewriter) -> dict[str, Struct]:
    """Return the layouts of the structs that are plain: fields of Metal's types, arrays of them, other plain structs.

    Parameters
    ----------
    rewritten : Rewriter

    Returns
    -------
    dict of str to Struct
        By name. A struct with a base class, bit-fields, an alignment of its own, or a field of a type that is not known
        here is left out.
    """
    return _Reader(rewritten.tokens, rewritten.attributes).read()


class _Unknown(Exception):
    """The layout of something is not known."""


class _Reader:
    def __init__(self, tokens: Tokens, attributes: Attributes) -> None:
        self.tokens = tokens
        self.text = tokens.text
        self.attributes = attributes
        self.structs: dict[str, Struct] = {}
        self.enums = self._enums()

    def read(self) -> dict[str, Struct]:
        bodies = [*self._classes(), *self._typedefs()]
        for _, name, start, stop in sorted(bodies):
            try:
                struct = self._struct(name, start, stop)
            except _Unknown:
                struct = Struct(name, [], 0, 1)  # without fields, as all that are not known
            if name in self.structs and self.structs[name] != struct:
                struct.fields = []  # two namespaces have one of that name
            self.structs[name] = struct
        return {name: struct for name, struct in self.structs.items() if struct.fields}

    def _enums(self) -> dict[str, str]:
        """Return the underlying type of each enumeration, by name; "" if two of one name differ in it."""
        enums: dict[str, str] = {}
        for index, word in enumerate(self.text):
            if word != "enum":
                continue
            start = index + 1 + (self.text[index + 1] in ("class", "struct"))
            body = start
            while self.text[body : body + 1] and self.text[body] not in ("{", ";", "(", ")", ",", "="):
                body += 1
            if self.text[body : body + 1] not in (["{"], [";"]):
                continue
            head = self.text[start:body]
            colon = head.index(":") if ":" in head else len(head)
            is_scoped = start == index + 2
            if colon < len(head):
                type_name = " ".join(head[colon + 1 :])
            elif self.text[body] == ";":
                continue  # a field of it, or its name alone
            else:
                closing = self.tokens.partner[body]
                type_name = "int" if is_scoped or "-" in self.text[body:closing] else "uint"
            names = head[:1] if colon else []
            if self.text[body] == "{" and self.text[index - 1 : index] == ["typedef"]:
                names = [*names, self.text[self.tokens.partner[body] + 1]]
            for name in names:
                enums[name] = type_name if enums.get(name, type_name) == type_name else ""
        return enums

    def _classes(self) -> list[tuple[int, str, int, int]]:
        """Return place, name and the tokens of the body of each `struct Name { ... };`."""
        found = []
        for item in find_declarations(self.tokens, self.attributes).classes:
            is_plain = item.start == item.key and item.body == item.key + 2 and self.text[item.key] != "union"
            closing = self.tokens.partner[item.body]
            if is_plain and item.stop == closing + 2:
                found.append((item.start, self.text[item.key + 1], item.body + 1, closing))
        return found

    def _typedefs(self) -> list[tuple[int, str, int, int]]:
        """Return the same of each `typedef struct { ... } Name;`."""
        found = []
        for index in range(len(self.text) - 2):
            if self.text[index] != "typedef" or self.text[index + 1] != "struct":
                continue
            body = index + 2 if self.text[index + 2] == "{" else index + 3
            if body < len(self.text) and self.text[body] == "{":
                closing = self.tokens.partner[body]
                if self.text[closing + 2 : closing + 3] == [";"]:
                    found.append((index, self.text[closing + 1], body + 1, closing))
        return found

    def _struct(self, name: str, start: int, stop: int) -> Struct:
        struct = Struct(name, [], 0, 1)
        for indices in self._members(start, stop):
            for field, kind in self._fields(indices):
                field.offset = -(-struct.size // kind.align) * kind.align
                struct.size = field.offset + field.stride * field.count
                struct.align = max(struct.align, kind.align)
                struct.fields.append(field)
        struct.size = -(-struct.size // struct.align) * struct.align
        return struct

    def _members(self, start: int, stop: int) -> list[list[int]]:
        """Return the tokens of each declaration of fields."""
        members: list[list[int]] = []
        current: list[int] = []
        has_value = False
        index = start
        while index < stop:
            text = self.text[index]
            if self.attributes.inside[index]:
                pass
            elif text == ";":
                if current and self.text[current[0]] == "enum":
                    current = self._of_enum(current)
                if current and self.text[current[0]] not in _NO_FIELD and not self._is_function(current):
                    members.append(current)
                current, has_value = [], False
            elif text == ":" and current and self.text[current[0]] in ("public", "private", "protected"):
                current = []
            elif text == "{" and not has_value and self._is_function(current):
                index = self.tokens.partner[index]
                current = []
            else:
                has_value = has_value or text == "="
                current.append(index)
                if text in ("(", "{"):
                    index = self.tokens.partner[index]
            index += 1
        return members

    def _of_enum(self, indices: list[int]) -> list[int]:
        """Return the field that a declaration with `enum` in front has, as `enum Op op`; none if it only defines it."""
        words = [self.text[index] for index in indices]
        if "{" not in words:
            return indices[1:] if ":" not in words and len(words) > 2 else []
        if words[-1] != "{":
            raise _Unknown  # defined and used at once
        return []

    def _is_function(self, indices: list[int]) -> bool:
        words = [self.text[index] for index in indices]
        if _NOT_PLAIN.intersection(words) - {"operator"}:
            raise _Unknown
        return "(" in words and "=" not in words[: words.index("(")]

    def _fields(self, indices: list[int]) -> list[tuple[Field, _Type]]:
        """Return the fields of one declaration, as `float x[2], y`, each with the type of an element."""
        indices = [index for index in indices if self.text[index] not in _QUALIFIERS]
        if _NOT_PLAIN.intersection(self.text[index] for index in indices):
            raise _Unknown
        length = self._type_length(indices)
        type_name = self.tokens.spelled(indices[:length])
        fields = []
        for part in self._split(indices[length:]):
            is_pointer = bool(part) and self.text[part[0]] == "*"
            declarator = part[1:] if is_pointer else part
            if not declarator or self.tokens.kind[declarator[0]] != IDENTIFIER:
                raise _Unknown
            kind = _Type("", 1, 1, 8, 8, 8) if is_pointer else self._type(type_name)
            count = self._count(declarator[1:])
            field = Field(
                self.text[declarator[0]], f"{type_name}*" if is_pointer else type_name, 0, kind.scalar, kind.lanes,
                kind.columns, kind.column_stride, count, kind.size, kind.struct,
            )  # fmt: skip
            fields.append((field, kind))
        return fields

    def _type_length(self, indices: list[int]) -> int:
        """Return how many of the tokens are the type."""
        words = [self.text[index] for index in indices]
        length = 1
        while length + 1 < len(words) and (words[length] == "::" or words[length - 1] == "::"):
            length += 1
        while length < len(words) and words[length - 1] in ("unsigned", "signed") and words[length] in _SIZES:
            length += 1
        if length < len(words) and words[length] == "<":
            length = words.index(">", length) + 1 if ">" in words else length
        return length

    def _split(self, indices: list[int]) -> list[list[int]]:
        """Return the declarators, without their initial values."""
        parts: list[list[int]] = [[]]
        in_value = False
        for index in indices:
            text = self.text[index]
            if text == "," and self.text[indices[-1]] != "}":
                parts.append([])
                in_value = False
            elif text in ("=", "{"):
                in_value = True
            elif not in_value:
                parts[-1].append(index)
        return parts

    def _count(self, indices: list[int]) -> int:
        """Return the number of elements that `[2][3]` declares."""
        lengths = []
        rest = list(indices)
        while rest:
            if self.text[rest[0]] != "[" or len(rest) < 3 or self.text[rest[2]] != "]":
                raise _Unknown
            lengths.append(self._length(self.text[rest[1]]))
            rest = rest[3:]
        return math.prod(lengths)

    def _length(self, word: str) -> int:
        value = integer_value(word)
        if value is None:
            pattern = re.compile(rf"\bconst(?:ant|expr)?\b[^;=(){{}}]*\b{re.escape(word)}\s*=\s*(\w+)\s*;")
            match = pattern.search(self.tokens.source)
            value = integer_value(match.group(1)) if match else None
        if value is None or value < 1:
            raise _Unknown
        return value

    def _type(self, name: str) -> _Type:
        plain = name.split("::")[-1]
        if plain in self.structs:
            struct = self.structs[plain]
            if not struct.fields:
                raise _Unknown
            return _Type("", 1, 1, struct.size, struct.size, struct.align, struct)
        name = self.enums.get(plain, name)
        name = name.removeprefix("metal::")
        vector = re.fullmatch(r"(packed_)?vec\s*<\s*(\w+)\s*,\s*([234])\s*>", name)
        if vector:
            name = f"{vector[1] or ''}{_ALIASES.get(vector[2], vector[2])}{vector[3]}"
        atomic = re.fullmatch(r"atomic\s*<\s*(\w+)\s*>", name)
        name = atomic[1] if atomic else name
        match = _BUILTIN.fullmatch(_ALIASES.get(name, name))
        if match is None or match[2] not in _SIZES or (match[4] and (match[2] not in ("float", "half") or match[1])):
            raise _Unknown
        size = _SIZES[match[2]]
        columns, lanes = (int(match[3]), int(match[4])) if match[4] else (1, int(match[3] or 1))
        is_packed = match[1] == "packed_"
        vector_size = size * (4 if lanes == 3 and not is_packed else lanes)
        return _Type(match[2], lanes, columns, vector_size, vector_size * columns, size if is_packed else vector_size)
