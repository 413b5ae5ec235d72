"""Libraries of Metal kernels: compiled from source, or loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpscffi import _compiler, shader_cache, validation
from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle, ProcessBound
from mpscffi.config import settings
from mpscffi.device import Device, current_device
from mpscffi.errors import (
    ArgumentTypeError,
    CompileError,
    Error,
    FileNotFoundError,
    InvalidArgumentError,
    KernelNotFoundError,
    NotFoundError,
)
from mpscffi.kernel import Kernel
from mpscffi.mslc.templates import instantiated, kernel_templates, template_head
from mpscffi.source import MATH_MODES, Source, library_from_source

__all__ = ["ShaderLibrary", "compile_shader", "load_metallib"]

_FILE_NAME = re.compile(r"\s*[^\n;{}]+\.metal\s*")
_SHOWN_NAMES = 20  # of the kernels there are, in a message: some libraries have thousands


class ShaderLibrary(ProcessBound):
    """Metal kernels, each an attribute; ``library["name"]`` finds those whose names are no Python identifiers.

    ``library["scale<float, 4>"]`` instantiates a kernel template. ``dir(library)`` and iteration give the kernels'
    names, so that any name is free; beside them there is ``source``, the text that was compiled (None for what was
    loaded), unless a kernel is called that.
    """

    __slots__ = (
        "__device",
        "__dict__",
        "__handle",
        "__is_validated",
        "__kernels",
        "__names",
        "__source",
        "__weakref__",
    )

    def __init__(
        self, handle: Handle, device: Device, source: Source | None = None, *, is_validated: bool = False
    ) -> None:
        self.__is_validated = is_validated or (source is not None and source.validate)
        self.__handle = handle
        self.__device = device
        self.__source = source
        self.__kernels: dict[str, Kernel] = {}
        out = ffi.new("uint32_t *")
        check(lib.mps_library_kernel_count(handle.pointer, out))
        text = ffi.new("char const **")
        names = []
        for i in range(out[0]):
            check(lib.mps_library_kernel_name(handle.pointer, i, text))
            names.append(ffi.string(text[0]).decode("utf-8", "replace"))
        self.__names = names

    def __getitem__(self, name: str) -> Kernel:
        kernel = self.__kernels.get(name)
        if kernel is None:
            made = self.__make(name)
            kernel = self.__kernels.setdefault(name, made)
        return kernel

    def __make(self, name: str) -> Kernel:
        if name in self.__names:
            return Kernel(self.__handle, self.__device, name, {}, self.__source, self.__is_validated)
        text = self.__source.text if self.__source is not None else ""
        made = instantiated(text, name) if isinstance(name, str) else None
        if made is None or self.__source is None:
            is_template = isinstance(name, str) and name in kernel_templates(text)
            hint = f": it is a template, so ask for an instantiation, as '{name}<float>'" if is_template else ""
            shown = ", ".join(self.__names[:_SHOWN_NAMES]) or "none"
            more = len(self.__names) - _SHOWN_NAMES
            shown += f" and {more} more" if more > 0 else ""
            raise KernelNotFoundError(f"there is no kernel {name!r} in the library, which has {shown}{hint}")
        source = self.__source.with_text(made[0])
        try:
            return ShaderLibrary(_compiled(source, self.__device), self.__device, source)[made[1]]
        except CompileError as error:
            raise (_instantiation_error(text, name, str(error)) or error).with_traceback(None) from None

    def __getattr__(self, name: str) -> Any:
        if name == "source" and name not in self.__names:
            return None if self.__source is None else self.__source.text
        # Kept as an attribute, so that the next look-up does not come here.
        kernel = self.__dict__[name] = self[name]
        return kernel

    def __dir__(self) -> list[str]:
        return list(self.__names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__names)

    def __len__(self) -> int:
        return len(self.__names)

    def __contains__(self, name: object) -> bool:
        return name in self.__names

    def __repr__(self) -> str:
        names = ", ".join(self.__names[:8]) + " ..." * (len(self.__names) > 8)
        return f"<mpscffi.ShaderLibrary of {len(self.__names)} kernels: {names}>"


def _compiled(source: Source, device: Device) -> Any:
    """Compile; what does not is told without the frames of this package, in which there is nothing to see."""
    try:
        return source.compile(device)
    except CompileError as error:
        raise error.with_traceback(None) from None


def _instantiation_error(source: str, name: str, log: str) -> CompileError | None:
    """Say an error of the line that instantiates a template, which is not the user's; None for other errors."""
    found = re.match(r"program_source:(\d+):\d+: error: ([^\n]*)", log)
    if found is None or int(found[1]) <= source.count("\n") + 1:
        return None
    head = template_head(source, name.partition("<")[0].rpartition("::")[2].strip())
    is_internal = "mslc_" in found[2] or "overloaded function type" in found[2] or "explicit instantiation" in found[2]
    reason = "the template does not take these arguments" if is_internal else found[2]
    return CompileError(f"kernel {name!r}: {reason}" + (f"; it is declared as {head}" if head else ""))


def _checked_source(source: Any) -> str:
    if isinstance(source, os.PathLike):
        raise ArgumentTypeError(
            f"compile_shader: got the path {os.fspath(source)!r}, expected the Metal source itself as str: pass "
            f"Path({os.fspath(source)!r}).read_text()"
        )
    if not isinstance(source, str):
        raise ArgumentTypeError(f"compile_shader: got a source of type {type(source).__name__}, expected str")
    if _FILE_NAME.fullmatch(source):
        raise InvalidArgumentError(
            f"compile_shader: got {source!r}, which is the name of a file, expected Metal source: pass "
            f"Path({source!r}).read_text()"
        )
    return source


def _language_version(given: Any) -> tuple[int, int] | None:
    if given is None:
        return settings().metal_version
    if isinstance(given, str) and (match := re.fullmatch(r"(\d+)\.(\d+)", given)):
        return int(match[1]), int(match[2])
    if (
        isinstance(given, Sequence)
        and len(given) == 2
        and all(isinstance(part, int) and not isinstance(part, bool) and 0 <= part < 1 << 16 for part in given)
    ):
        return given[0], given[1]
    kind = InvalidArgumentError if isinstance(given, (str, Sequence)) else ArgumentTypeError
    raise kind(f'compile_shader: got language_version={given!r}, expected two numbers as (3, 1) or a text as "3.1"')


def compile_shader(
    source: str,
    *,
    math_mode: str | None = None,
    defines: Sequence[str] | Mapping[str, Any] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    language_version: tuple[int, int] | str | None = None,
    validate: bool | None = None,
) -> ShaderLibrary:
    """Compile Metal source.

    Parameters
    ----------
    source : str
        Metal Shading Language.
    math_mode : str, optional
        "safe" keeps NaN, infinities and signed zeros; "relaxed" reorders; "fast" also forgets about them. By default
        safe, or fast if ``PYTORCH_MPS_FAST_MATH`` says so.
    defines : sequence or Mapping, optional
        Macros as "NAME" or "NAME=VALUE", or values by name.
    include_dirs : sequence of path, optional
        Where ``#include "..."`` is looked up; host device only.
    language_version : tuple of int, or str, optional
        As (3, 2) or "3.2"; the newest by default.
    validate : bool, optional
        Check each memory access of the kernels as they run, and report the first wrong one as an ExecutionError at the
        next wait. By default if ``MPSCFFI_SHADER_VALIDATION`` says so. On Metal it takes ``MTL_SHADER_VALIDATION=1`` in
        the environment before the process starts.

    Returns
    -------
    ShaderLibrary
        Its kernels. While it is alive, the same source with the same options is not compiled again.

    Raises
    ------
    CompileError
        With the compiler's log, which names ``program_source:line:column``.
    """
    source = _checked_source(source)
    if math_mode is None:
        math_mode = "fast" if settings().fast_math else "safe"
    if math_mode not in MATH_MODES:
        raise InvalidArgumentError(f"compile_shader: got math_mode={math_mode!r}, expected {', '.join(MATH_MODES)}")
    if isinstance(defines, Mapping):
        defines = [name if value is None else f"{name}={value}" for name, value in defines.items()]
    elif isinstance(defines, str):
        raise ArgumentTypeError("compile_shader: got defines as one str, expected a sequence or a dict")
    if isinstance(include_dirs, (str, bytes)):
        raise ArgumentTypeError(
            f"compile_shader: got include_dirs as one {type(include_dirs).__name__}, expected a sequence of paths"
        )
    try:
        directories = [os.fsdecode(path) for path in include_dirs]
    except TypeError as error:
        raise ArgumentTypeError(f"compile_shader: include_dirs: expected a sequence of paths: {error}") from None
    version = _language_version(language_version)
    device = current_device()
    whole = Source(source, math_mode, version, defines, directories, validation.is_compiled_in(device, validate))
    known = shader_cache.known(device, whole)
    if known is not None:
        return known
    return shader_cache.remember(device, whole, ShaderLibrary(_compiled(whole, device), device, whole))


def load_metallib(source: bytes | bytearray | str | os.PathLike[str], *, validate: bool | None = None) -> ShaderLibrary:
    """Load compiled kernels: a ``.metallib``, or on the host device a kernel library that ``mpscffi-mslc`` made.

    Parameters
    ----------
    source : bytes, bytearray, str or PathLike
        The contents, or the path of the file.
    validate : bool, optional
        Check accesses to memory at run time, as :func:`compile_shader` does; with lines if the file has them. By
        default, as ``MPSCFFI_SHADER_VALIDATION`` says for metallibs; a kernel library is as it was compiled.

    Returns
    -------
    ShaderLibrary
        Its kernels.
    """
    if not isinstance(source, (bytes, bytearray, str, os.PathLike)):
        raise ArgumentTypeError(
            f"load_metallib: got {type(source).__name__}, expected the contents as bytes or the path as str or PathLike"
        )
    device = current_device()
    data = _metallib(source, validate) if validation.is_compiled_in(device, validate) else None
    if data is not None:
        try:
            library = library_from_source(device, data, flags=lib.MPS_COMPILE_VALIDATE)
        except InvalidArgumentError as error:
            name = "the metallib" if isinstance(source, (bytes, bytearray)) else os.fsdecode(source)
            raise InvalidArgumentError(f"{name}: {error}") from None
        return ShaderLibrary(library, device, is_validated=True)
    _compiler.install()  # nothing but the host device asks it
    library = Handle("library")
    if isinstance(source, (bytes, bytearray)):
        status = lib.mps_library_create_from_data(device._pointer, ffi.from_buffer(source), len(source), library.out)
    else:
        status = lib.mps_library_create_from_file(device._pointer, os.fsencode(source), library.out)
    try:
        _compiler.check_compile(status)
    except NotFoundError as error:
        raise FileNotFoundError(str(error)) from None
    except Error:
        if not isinstance(source, (bytes, bytearray)) and os.fsdecode(source).endswith((".metal", ".h")):
            raise InvalidArgumentError(
                f"load_metallib: {os.fsdecode(source)!r} is Metal source: use compile_shader, with the text of the file"
            ) from None
        raise
    return ShaderLibrary(library, device)


def _metallib(source: bytes | bytearray | str | os.PathLike[str], validate: bool | None) -> bytes | bytearray | None:
    """Return the contents of a metallib; None for anything else, unless it is to be validated."""
    if isinstance(source, (bytes, bytearray)):
        data: bytes | bytearray = source
    else:
        try:
            with open(source, "rb") as file:
                data = file.read()
        except OSError:
            return None  # the C library says what is wrong
    if data[:4] == b"MTLB":
        return data
    if validate:
        raise InvalidArgumentError("validate: only metallibs are validated when they are loaded: this is none")
    return None
