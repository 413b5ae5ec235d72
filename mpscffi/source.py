"""A Metal source with the options that it is compiled with."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpscffi import _compiler
from mpscffi._ffi import ffi, lib
from mpscffi._handle import Handle

if TYPE_CHECKING:
    from mpscffi.device import Device
    from mpscffi.mslc.layout import Struct

__all__ = ["MATH_MODES", "Source", "library_from_source"]

MATH_MODES = {"safe": lib.MPS_MATH_SAFE, "relaxed": lib.MPS_MATH_RELAXED, "fast": lib.MPS_MATH_FAST}
_OWN_HEADER = re.compile(r"#\s*include\s*(?:\"|</)|__has_include")

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_POSITION = re.compile(r"\bu(?:int|short)([23])\s+\w+\s*\[\[\s*thread_position_in_grid\s*\]\]")


def library_from_source(
    device: Device,
    data: bytes | bytearray,
    *,
    language_version: tuple[int, int] | None = None,
    math_mode: int = lib.MPS_MATH_SAFE,
    flags: int = 0,
    defines: Sequence[str] = (),
    include_dirs: Sequence[str] = (),
) -> Handle:
    """Compile, and return what owns the ``mps_library *``.

    Parameters
    ----------
    device : Device
        For which.
    data : bytes
        Metal source; on the host device also a metallib.
    language_version, math_mode, flags, defines, include_dirs
        As ``mps_compile_options`` has them.
    """
    _compiler.install()  # nothing but the host device asks it
    macros = [ffi.new("char[]", define.encode()) for define in defines]
    paths = [ffi.new("char[]", os.fsencode(path)) for path in include_dirs]
    macro_array, path_array = ffi.new("char *[]", macros), ffi.new("char *[]", paths)
    options = ffi.new(
        "mps_compile_options *",
        {
            "struct_size": ffi.sizeof("mps_compile_options"),
            "language_version": language_version[0] << 16 | language_version[1] if language_version else 0,
            "math_mode": math_mode,
            "flags": flags,
            "define_count": len(macros),
            "defines": ffi.cast("char const * const *", macro_array),
            "include_dirs": ffi.cast("char const * const *", path_array),
            "include_dir_count": len(paths),
        },
    )
    library = Handle("library")
    _compiler.check_compile(
        lib.mps_library_create_from_source(device._pointer, ffi.from_buffer(data), len(data), options, library.out)
    )
    return library


class Source:
    """A source and its options.

    Parameters
    ----------
    text : str
    math_mode : str
        A key of `MATH_MODES`.
    version : tuple of int or None
        Of the language; None for the newest.
    defines : sequence of str
        Macros as "NAME" or "NAME=VALUE".
    include_dirs : sequence of str
    validate : bool
    """

    __slots__ = ("_structs", "defines", "include_dirs", "math_mode", "text", "validate", "version")

    def __init__(
        self,
        text: str,
        math_mode: str,
        version: tuple[int, int] | None,
        defines: Sequence[str],
        include_dirs: Sequence[str],
        validate: bool,
    ) -> None:
        self.text = text
        self.math_mode = math_mode
        self.version = version
        self.defines = tuple(defines)
        self.include_dirs = tuple(include_dirs)
        self.validate = validate
        self._structs: dict[str, Struct] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for sources that mean the same."""
        return self.text, self.math_mode, self.version, self.defines

    @property
    def is_whole(self) -> bool:
        """Whether the text alone decides what it means: no header of the user's own comes in."""
        return not self.include_dirs and not _OWN_HEADER.search(self.text)

    def with_text(self, text: str) -> Source:
        """Return another text with the same options."""
        return Source(text, self.math_mode, self.version, self.defines, self.include_dirs, self.validate)

    def compile(self, device: Device) -> Any:
        """Compile it, and return the ``mps_library *``, which the caller owns."""
        return library_from_source(
            device,
            self.text.encode("utf-8", "surrogatepass"),
            language_version=self.version,
            math_mode=MATH_MODES[self.math_mode],
            flags=(lib.MPS_COMPILE_VALIDATE if self.validate else 0)
            | (lib.MPS_COMPILE_LOGGING if "os_log" in self.text else 0),
            defines=self.defines,
            include_dirs=self.include_dirs,
        )

    def position_lanes(self, kernel: str) -> int:
        """Return how many components a kernel's ``[[thread_position_in_grid]]`` has; 0 if the text does not tell.

        Read from the text alone, so that it costs nothing to ask; a kernel that macros write is not found.
        """
        if _POSITION.search(self.text) is None:
            return 0
        name = re.escape(kernel.partition("<")[0].rpartition("::")[2])
        text = _COMMENT.sub(" ", self.text)
        lists = re.findall(rf"\bvoid\s+{name}\s*\(([^{{}};]*)\)\s*(?:\[\[[^\]]*\]\]\s*)?\{{", text)
        found = [_POSITION.search(parameters) for parameters in lists]
        return min((int(match[1]) if match is not None else 0 for match in found), default=0)

    def pointee(self, parameter: str) -> str:
        """Return the type that parameters of a name point to; "" if the text has none, or several."""
        found = {type_name for _, type_name in self._pointers(parameter)}
        return found.pop() if len(found) == 1 else ""

    def is_constant(self, parameter: str) -> bool:
        """Whether all parameters of a name are in the constant address space, as far as the text tells."""
        return {space for space, _ in self._pointers(parameter)} == {"constant"}

    def _pointers(self, parameter: str) -> set[tuple[str, str]]:
        """Return address space and type of each pointer or reference of a name."""
        name = re.escape(parameter)
        pattern = rf"\b(constant|device)\s+(?:const\s+)?((?:\w+::)*\w+)(?:\s+const)?\s*[&*]\s*{name}\b"
        return set(re.findall(pattern, _COMMENT.sub(" ", self.text))) if parameter else set()

    def struct(self, type_name: str, size: int, align: int) -> Struct | None:
        """Return the layout of a struct of this source; None if it is not known to be of that size and alignment."""
        if self._structs is None:
            self._structs = self._read_structs()
        words = re.findall(r"\w+", type_name)
        found = self._structs.get(words[-1]) if words and type_name.endswith(words[-1]) else None
        return found if found is not None and (found.size, found.align) == (size, align) else None

    def _read_structs(self) -> dict[str, Struct]:
        from mpscffi.mslc import provider
        from mpscffi.mslc.layout import struct_layouts

        options = provider.Options(defines=self.defines, include_dirs=self.include_dirs, language_version=self.version)
        try:
            return struct_layouts(provider.program(self.text, options).rewritten)
        except (provider.CompileError, provider.CompilerMissing, provider.RequestError, OSError):
            return {}  # as on a Mac without the host device's compiler
