"""What a kernel says of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpscffi._ffi import check, ffi, lib
from mpscffi.scalars import data_type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpscffi._handle import Handle
    from mpscffi.mslc.layout import Struct
    from mpscffi.source import Source

__all__ = ["Argument", "reflect", "signature"]


class Argument:
    """One parameter of a kernel that a call gives.

    Attributes
    ----------
    name : str
        As the kernel calls it; empty if unknown.
    kind : str
        "buffer" or "threadgroup".
    index : int
        Its slot.
    access : str
        "read" or "read_write".
    type_name : str
        What it points to, as the source spells it; empty if unknown.
    data_type : str
        The same if it is a scalar or vector, as "float4"; else empty.
    data_size, data_align : int
        Bytes of one element; 0 if unknown.
    is_reference : bool
        Whether exactly one element is read (``constant T&``).
    is_used : bool
        Whether the kernel may look at it.
    """

    __slots__ = (
        "_source",
        "access",
        "data_align",
        "data_size",
        "data_type",
        "index",
        "is_reference",
        "is_used",
        "kind",
        "name",
        "type_name",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        index: int,
        access: str,
        type_name: str,
        data_type: str,
        data_size: int,
        data_align: int,
        is_reference: bool,
        is_used: bool,
        source: Source | None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.index = index
        self.access = access
        self.type_name = type_name
        self.data_type = data_type
        self.data_size = data_size
        self.data_align = data_align
        self.is_reference = is_reference
        self.is_used = is_used
        self._source = source

    @property
    def struct(self) -> Struct | None:
        """How its struct lies in memory; None if it is none, or not a plain one that the source defines."""
        if self._source is None or self.data_type or not self.data_size:
            return None
        return self._source.struct(self.element_name, self.data_size, self.data_align)

    @property
    def element_name(self) -> str:
        """What it points to, also where only the source's text says so."""
        if self.type_name or self._source is None:
            return self.type_name
        return self._source.pointee(self.name)

    @property
    def is_constant(self) -> bool:
        """Whether the source declares it in the constant address space; False if there is no source that tells."""
        return self.access == "read" and self._source is not None and self._source.is_constant(self.name)

    @property
    def is_opaque(self) -> bool:
        """Whether it is of a known size, but how that is laid out is not known."""
        if self.data_type or not self.data_size or self.kind != "buffer" or self.struct is not None:
            return False
        name = self.element_name
        from mpscffi.mslc.layout import matrix_of  # heavy, and most calls need it not

        return name not in ("", "void") and not name.endswith("*") and matrix_of(name) is None

    @property
    def declaration(self) -> str:
        """It as Metal declares it, as "const float* x"."""
        const = "const " if self.access == "read" and self.kind == "buffer" else ""
        return f"{const}{self.type_name or 'void'}{'&' if self.is_reference else '*'} {self.name}".rstrip()

    def __repr__(self) -> str:
        type_name = f"{self.type_name}{'&' if self.is_reference else '*'} " if self.type_name else ""
        return f"<mpscffi.reflection.Argument {self.kind} {self.index}: {type_name}{self.name}>"


def reflect(pipeline: Handle, count: int, source: Source | None) -> list[tuple[Argument, int]]:
    """Return each parameter of a pipeline, and its ``data_type`` as a number."""
    info = ffi.new("mps_argument_info *", {"struct_size": ffi.sizeof("mps_argument_info")})
    reflected = []
    for i in range(count):
        check(lib.mps_pipeline_argument(pipeline.pointer, i, info))
        argument = Argument(
            ffi.string(info.name).decode("utf-8", "replace"),
            "buffer" if info.kind == lib.MPS_ARGUMENT_BUFFER else "threadgroup",
            info.index,
            "read_write" if info.access == lib.MPS_ACCESS_READ_WRITE else "read",
            ffi.string(info.type_name).decode("utf-8", "replace"),
            data_type_name(info.data_type),
            info.data_size,
            info.data_align,
            bool(info.is_reference),
            bool(info.is_used),
            source,
        )
        reflected.append((argument, info.data_type))
    return reflected


def signature(kernel: str, arguments: Sequence[Argument]) -> str:
    """Return the parameters of a kernel, a line each, with what is known of the structs among them."""
    rows: list[tuple[str, str]] = []
    structs: dict[str, Struct] = {}
    for argument in arguments:
        declaration = argument.declaration
        if argument.kind == "threadgroup":
            declaration = f"threadgroup {declaration}"
        size = f", {argument.data_size} bytes" if argument.data_size and not argument.data_type else ""
        access = argument.access if argument.is_used else "unused"
        layout = ", layout unknown: checked by size only" if argument.is_opaque else ""
        rows.append((declaration, f"{argument.kind} {argument.index}, {access}{size}{layout}"))
        if argument.struct is not None:
            structs[argument.struct.name] = argument.struct
    width = max((len(declaration) for declaration, _ in rows), default=0)
    lines = [f"{kernel}("]
    lines += [f"    {declaration:<{width}}  // {note}" for declaration, note in rows]
    lines.append(")")
    for struct in structs.values():
        lines += _struct_lines(struct, structs)
    return "\n".join(lines)


def _struct_lines(struct: Struct, shown: dict[str, Any]) -> list[str]:
    lines = [f"struct {struct.name} {{  // {struct.size} bytes, aligned to {struct.align}"]
    for field in struct.fields:
        count = f"[{field.count}]" if field.count > 1 else ""
        lines.append(f"    {field.type_name} {field.name}{count};  // at {field.offset}")
    lines.append("};")
    for field in struct.fields:
        if field.struct is not None and field.struct.name not in shown:
            lines += _struct_lines(field.struct, {**shown, struct.name: struct})
    return lines
