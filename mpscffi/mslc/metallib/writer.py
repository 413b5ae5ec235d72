"""Writes `.metallib` files: for tests, and for tools that make AIR by other means than Apple's compiler."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .container import FUNCTION_TYPES, HEADER_SIZE, MAGIC, WRAPPER_MAGIC, unwrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLATFORM_MACOS = 0x8001
_SYSTEM_MACOS = 0x81
_BLOB_ALIGN = 16


@dataclass(frozen=True, slots=True)
class ConstantEntry:
    """A function constant: its name, index, MTLDataType, and whether a value must be given."""

    name: str
    index: int
    kind: int
    required: bool = True


@dataclass(frozen=True, slots=True)
class FunctionEntry:
    """A function: its name, LLVM bitcode with or without Darwin's wrapper, type, and function constants."""

    name: str
    bitcode: bytes
    type: str = "kernel"
    constants: Sequence[ConstantEntry] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """Versions that a file claims, and what else differs between the tools that write it."""

    version: tuple[int, int] = (2, 8)
    air: tuple[int, int] = (2, 7)
    language: tuple[int, int] = (3, 2)
    system: int = _SYSTEM_MACOS
    system_version: tuple[int, int] = (15, 0)
    library_type: int = 0
    with_extension: bool = True
    reversed_tags: bool = False


def write_metallib(functions: Sequence[FunctionEntry], form: Format | None = None) -> bytes:
    """Return a library of functions.

    Parameters
    ----------
    functions : sequence of FunctionEntry
    form : Format, optional

    Returns
    -------
    bytes

    Raises
    ------
    MetallibError
        If the bitcode of a function is none.
    """
    form = form or Format()
    groups, public, private, blobs = bytearray(), bytearray(), bytearray(), bytearray()
    for function in functions:
        blob = _wrapped(function)
        offsets = struct.pack("<3Q", len(public), len(private), len(blobs))
        tags = [
            _tag(b"NAME", function.name.encode("utf-8", "surrogateescape") + b"\0"),
            _tag(b"TYPE", bytes([FUNCTION_TYPES.index(function.type)])),
            _tag(b"HASH", hashlib.sha256(blob).digest()),
            _tag(b"MDSZ", struct.pack("<Q", len(blob))),
            _tag(b"OFFT", offsets),
            _tag(b"VERS", struct.pack("<4H", *form.air, *form.language)),
        ]
        groups += _sized(tags[::-1] if form.reversed_tags else tags, True)
        public += _sized([_constants_tag(function.constants)] if function.constants else [], False)
        private += _sized([], False)
        blobs += blob
    table = struct.pack("<I", len(functions)) + groups
    extension = _tag(b"UUID", hashlib.sha256(blobs).digest()[:16]) + b"ENDT" if form.with_extension else b""
    parts = [
        (table, len(groups)),
        (extension, None),
        (public, len(public)),
        (private, len(private)),
        (blobs, len(blobs)),
    ]
    offset = HEADER_SIZE
    places: list[int] = []
    for part, size in parts:
        if size is not None:
            places += [offset, size]
        offset += len(part)
    header = struct.pack(
        "<4s3H2B2H9Q",
        MAGIC,
        _PLATFORM_MACOS,
        *form.version,
        form.library_type,
        form.system,
        *form.system_version,
        offset,
        *places,
    )
    return header + b"".join(bytes(part) for part, _ in parts)


def _wrapped(function: FunctionEntry) -> bytes:
    """Return bitcode as Apple's tools store it: with Darwin's wrapper, and zeros up to a multiple of 16."""
    code = unwrapped(function.bitcode, f"function '{function.name}'")
    blob = struct.pack("<5I", WRAPPER_MAGIC, 0, 20, len(code), 0xFFFFFFFF) + code
    return blob + b"\0" * (-len(blob) % _BLOB_ALIGN)


def _tag(name: bytes, payload: bytes) -> bytes:
    return name + struct.pack("<H", len(payload)) + payload


def _sized(tags: list[bytes], counts_itself: bool) -> bytes:
    body = b"".join(tags) + b"ENDT"
    return struct.pack("<I", len(body) + 4 * counts_itself) + body


def _constants_tag(constants: Sequence[ConstantEntry]) -> bytes:
    payload = struct.pack("<H", len(constants))
    for constant in constants:
        payload += constant.name.encode("utf-8") + b"\0"
        payload += struct.pack("<BHB", constant.kind, constant.index, constant.required)
    return _tag(b"CNST", payload)
