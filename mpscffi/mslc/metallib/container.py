"""Reads the container of a `.metallib` file: a table of functions, and a blob of AIR bitcode for each.

All numbers are little-endian. The header, of 88 bytes:

====== ===================================================================
offset field
====== ===================================================================
0      "MTLB"
4      u16 platform (0x8001 macOS, 0x0001 iOS)
6, 8   u16 major and minor version of the format
10     u8 kind of library (0 executable, 1 Core Image, 2 dynamic, 3 symbols)
11     u8 operating system (0x81 macOS, 0x82 iOS, 0 in old files)
12, 14 u16 major and minor version of the operating system
16     u64 size of the file
24     u64 offset and u64 size of: functions, public metadata, private metadata, bitcode
====== ===================================================================

Functions are a u32 count, then a group for each: u32 size, itself included, tags, "ENDT". A tag is four characters, a
u16 length, and a payload; their order differs between the tools that write them. The section's size leaves out the
count, so that what follows it begins 4 bytes behind its end: more tags, about the library as a whole, if there is room
before the public metadata.

Nothing of a file is believed: every offset and length is checked before it is used, and each blob has a checksum.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from ..errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    Data = bytes | bytearray | memoryview | mmap

MAGIC = b"MTLB"
HEADER_SIZE = 88
WRAPPER_MAGIC = 0x0B17C0DE
BITCODE_MAGIC = b"BC\xc0\xde"
FUNCTION_TYPES = ("vertex", "fragment", "kernel", "unqualified", "visible", "extern", "intersection")
SECTIONS = ("functions", "public metadata", "private metadata", "bitcode")

_END = b"ENDT"
_HEADER = struct.Struct("<4s3H2B2H9Q")
_FORMAT_MAJOR = 2
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_OFFSETS = struct.Struct("<3Q")
_VERSIONS = struct.Struct("<4H")
# MTLDataType of a scalar: mps_data_base. Vectors of 2 to 4 components have the numbers that follow.
_DATA_BASES = {3: 12, 16: 10, 29: 6, 33: 7, 37: 4, 41: 5, 45: 2, 49: 3, 53: 1, 81: 8, 85: 9, 121: 11}


class MetallibError(RequestError):
    """The bytes are no metallib, or a damaged one; the text says what is wrong, and where."""


@dataclass(slots=True)
class Constant:
    """A function constant; the type is mps_data_base | lanes << 8, 0 if unknown, and a required one needs a value."""

    index: int
    data_type: int
    required: bool
    name: str


class Function:
    """One function of a library.

    Attributes
    ----------
    name : str
        Bytes that are no UTF-8 are kept as surrogates.
    type : str
        One of `FUNCTION_TYPES`, or "type N".
    air_version, language_version : tuple of int
    size : int
        Bytes of its blob.
    digest : bytes
        SHA-256 of the blob.
    """

    __slots__ = ("_blob", "_library", "_public", "air_version", "digest", "language_version", "name", "size", "type")

    def __init__(self, library: Metallib, tags: dict[bytes, bytes], place: str) -> None:
        self._library = library
        self.name = _payload(tags, b"NAME", place).partition(b"\0")[0].decode("utf-8", "surrogateescape")
        kind = _payload(tags, b"TYPE", place, 1)[0]
        self.type = FUNCTION_TYPES[kind] if kind < len(FUNCTION_TYPES) else f"type {kind}"
        self.digest = _payload(tags, b"HASH", place, 32)
        (self.size,) = _U64.unpack(_payload(tags, b"MDSZ", place, 8))
        self._public: int
        self._blob: int
        self._public, _, self._blob = _OFFSETS.unpack(_payload(tags, b"OFFT", place, 24))
        versions = _VERSIONS.unpack(_payload(tags, b"VERS", place, 8))
        self.air_version = versions[:2]
        self.language_version = versions[2:]

    def __repr__(self) -> str:
        return f"<Function {self.type} {self.name!r}, {self.size} bytes>"

    @property
    def start(self) -> int:
        """Where its blob begins in the file."""
        section, _ = self._library.sections["bitcode"]
        return section + self._blob

    def blob(self) -> bytes:
        """Return the function's bitcode as it lies in the file, checked against its checksum.

        Raises
        ------
        MetallibError
        """
        what = f"function '{printable(self.name)}'"
        return checked(self._library.data, self.start, self.size, self.digest, what)

    def bitcode(self) -> bytes:
        """LLVM bitcode without the wrapper that Apple's tools put around it.

        Raises
        ------
        MetallibError
        """
        return unwrapped(self.blob(), f"function '{printable(self.name)}'")

    @property
    def constants(self) -> list[Constant]:
        """The function constants that the function depends on.

        Raises
        ------
        MetallibError
        """
        start, size = self._library.sections["public metadata"]
        place = f"public metadata of function '{printable(self.name)}'"
        if size == 0:
            return []
        (length,) = _U32.unpack(_cut(self._library.data, start + self._public, 4, start + size, place))
        begin = start + self._public + 4
        tags = dict(_tags(self._library.data, begin, min(begin + length, start + size), place))
        return _constants(tags[b"CNST"], place) if b"CNST" in tags else []


class Metallib:
    """A library as it lies in memory. What it refers to is read when it is asked for.

    Parameters
    ----------
    data : bytes-like or mmap
        The whole file. It must not change as long as the library is used.

    Raises
    ------
    MetallibError

    Attributes
    ----------
    version : tuple of int
        Of the format.
    library_type : int
        0 executable, 1 Core Image, 2 dynamic, 3 symbols.
    sections : dict
        Offset and size by the names of `SECTIONS`.
    functions : dict of str to Function
        In the order of the file.
    """

    def __init__(self, data: Data) -> None:
        self.data = memoryview(data)
        size = len(self.data)
        if bytes(self.data[:4]) != MAGIC:
            raise MetallibError(f"no metallib: it begins with {bytes(self.data[:4])!r}, not with {MAGIC!r}")
        if size < HEADER_SIZE:
            raise MetallibError(f"cut off: it has {size} bytes, and the header alone {HEADER_SIZE}")
        _, self.platform, major, minor, self.library_type, self.system, *numbers = _HEADER.unpack_from(self.data)
        self.version = (major, minor)
        self.system_version = tuple(numbers[:2])
        if major != _FORMAT_MAJOR:
            raise MetallibError(f"format version {major}.{minor} is not supported: {_FORMAT_MAJOR}.x is")
        if numbers[2] != size:
            what = "cut off" if numbers[2] > size else "damaged"
            raise MetallibError(f"{what}: the header tells of {numbers[2]} bytes, and there are {size}")
        self.sections: dict[str, tuple[int, int]] = dict(
            zip(SECTIONS, zip(numbers[3::2], numbers[4::2], strict=True), strict=True)
        )
        for name, (offset, length) in self.sections.items():
            if offset + length > size:
                raise MetallibError(
                    f"the section of {name}, bytes {offset} to {offset + length}, ends outside the file"
                )
        self.functions: dict[str, Function] = {}
        self._read_functions()

    def _read_functions(self) -> None:
        offset, length = self.sections["functions"]
        if length == 0:
            return
        data = self.data
        end = min(offset + length + 4, len(data))
        (count,) = _U32.unpack(_cut(data, offset, 4, end, "table of functions"))
        offset += 4
        bitcode = self.sections["bitcode"][1]
        for number in range(count):
            place = f"function {number} of {count} at byte {offset}"
            (size,) = _U32.unpack(_cut(data, offset, 4, end, place))
            if size < 8 or offset + size > end:
                raise MetallibError(f"{place}: a size of {size} bytes, of which {end - offset} are there")
            function = Function(self, dict(_tags(data, offset + 4, offset + size, place)), place)
            if function._blob + function.size > bitcode:
                raise MetallibError(
                    f"{place}: '{printable(function.name)}' has bytes {function._blob} to "
                    f"{function._blob + function.size} of the bitcode, of which there are {bitcode}"
                )
            if function.name in self.functions:
                raise MetallibError(f"{place}: a second function of the name '{printable(function.name)}'")
            self.functions[function.name] = function
            offset += size

    @property
    def extension(self) -> dict[str, bytes]:
        """Tags about the library as a whole, such as UUID; none in many files.

        Raises
        ------
        MetallibError
        """
        begin = sum(self.sections["functions"]) + 4
        end = self.sections["public metadata"][0]
        if begin >= end:
            return {}
        return {
            name.decode("latin-1"): payload
            for name, payload in _tags(self.data, begin, end, "tags behind the functions")
        }


def checked(data: memoryview, start: int, size: int, digest: bytes, place: str) -> bytes:
    """Return a part of a file that has a checksum.

    Raises
    ------
    MetallibError
        If it has another one.
    """
    part = bytes(data[start : start + size])
    if hashlib.sha256(part).digest() != digest:
        raise MetallibError(
            f"{place}: its {size} bytes at byte {start} do not have the checksum that the table of functions gives: "
            "the file is damaged"
        )
    return part


def table_digest(data: memoryview) -> bytes:
    """Return a hash of the header and the table of functions, which together tell files apart."""
    state = hashlib.blake2b(data[:HEADER_SIZE])
    if len(data) >= HEADER_SIZE:
        offset, length = struct.unpack_from("<2Q", data, 24)
        state.update(data[offset : offset + length + 4])
    return state.digest()


def unwrapped(blob: bytes, place: str) -> bytes:
    """Return LLVM bitcode, with or without Darwin's wrapper, without it.

    Raises
    ------
    MetallibError
        If it is neither.
    """
    if len(blob) >= 20 and _U32.unpack_from(blob)[0] == WRAPPER_MAGIC:
        offset, length = struct.unpack_from("<2I", blob, 8)
        if offset + length > len(blob):
            raise MetallibError(f"{place}: a wrapper of {len(blob)} bytes around bytes {offset} to {offset + length}")
        blob = blob[offset : offset + length]
    if blob[:4] != BITCODE_MAGIC:
        raise MetallibError(f"{place}: no LLVM bitcode: it begins with {blob[:4]!r}, not with {BITCODE_MAGIC!r}")
    return blob


def printable(name: str) -> str:
    """Return a name that can be written anywhere, whatever bytes it was made of."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _tags(data: memoryview, offset: int, end: int, place: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the tags from an offset on. Their list must be closed before `end`."""
    while True:
        name = bytes(data[offset : offset + 4])
        if offset + 4 > end:
            raise MetallibError(f"{place}: the list of tags has no end")
        if name == _END:
            return
        (length,) = _U16.unpack(_cut(data, offset + 4, 2, end, place))
        yield name, bytes(_cut(data, offset + 6, length, end, place))
        offset += 6 + length


def _cut(data: memoryview, offset: int, length: int, end: int, place: str) -> memoryview:
    if offset + length > end:
        raise MetallibError(f"{place}: {length} bytes at byte {offset} are beyond its end at byte {end}")
    return data[offset : offset + length]


def _payload(tags: dict[bytes, bytes], name: bytes, place: str, length: int | None = None) -> bytes:
    payload = tags.get(name)
    if payload is None:
        raise MetallibError(f"{place}: it has no {name.decode()} tag")
    if length is not None and len(payload) < length:
        raise MetallibError(f"{place}: its {name.decode()} tag has {len(payload)} bytes, not {length}")
    return payload if length is None else payload[:length]


def _constants(payload: bytes, place: str) -> list[Constant]:
    """Read a CNST tag: u16 count; then name, zero byte, u8 MTLDataType, u16 index, u8 required."""
    if len(payload) < 2:
        raise MetallibError(f"{place}: its CNST tag has {len(payload)} bytes, not 2")
    (count,) = _U16.unpack_from(payload)
    offset = 2
    constants = []
    for _ in range(count):
        stop = payload.find(b"\0", offset)
        if stop < 0 or stop + 5 > len(payload):
            raise MetallibError(f"{place}: its CNST tag is cut off")
        name = payload[offset:stop].decode("utf-8", "surrogateescape")
        kind, index, required = struct.unpack_from("<BHB", payload, stop + 1)
        constants.append(Constant(index, data_type(kind), bool(required), name))
        offset = stop + 5
    return constants


def data_type(kind: int) -> int:
    """Return an MTLDataType as mps_data_base | lanes << 8; 0 for a type that no function constant has."""
    for lanes in range(1, 5):
        base = _DATA_BASES.get(kind - lanes + 1)
        if base is not None:
            return base | lanes << 8
    return 0
