"""The host device's compiler: what `mpscffi` calls to check a source and to build its kernels.

Importing this module is cheap, and so is a call whose result is in the cache: the rest is imported when there is
something to compile.
"""

from __future__ import annotations

import os

from .cache import Cache, digest, set_limit
from .errors import CompileError, CompilerMissing, RequestError
from .options import Options
from .target import cpu_identity
from .toolchain import Toolchain, find_toolchain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .cache import Stats
    from .program import Program

__all__ = [
    "CompileError",
    "CompilerMissing",
    "Constant",
    "Listing",
    "Options",
    "RequestError",
    "build",
    "cache_stats",
    "check",
    "clear_cache",
    "set_cache_limit",
]

# Grows with every change of the compiler that changes its results.
_REVISION = 1
_HERE = os.path.dirname(os.path.abspath(__file__))


class Constant:
    """A function constant.

    Attributes
    ----------
    index : int
    data_type : int
        mps_data_base of mpsshim.h | lanes << 8; 0 if the type has another name.
    required : bool
        Whether kernels that use it cannot be built without a value.
    name : str
    """

    __slots__ = ("data_type", "index", "name", "required")

    def __init__(self, index: int, data_type: int, required: bool, name: str) -> None:
        self.index = index
        self.data_type = data_type
        self.required = required
        self.name = name


class Listing:
    """What a source holds: the names of its kernels, in order, and its function constants."""

    __slots__ = ("constants", "kernels")

    def __init__(self, kernels: list[str], constants: list[Constant]) -> None:
        self.kernels = kernels
        self.constants = constants

    def text(self) -> str:
        """Lines "kernel NAME" and "constant INDEX DATA_TYPE REQUIRED NAME"."""
        lines = [f"kernel {name}\n" for name in self.kernels]
        lines += [
            f"constant {item.index} {item.data_type} {int(item.required)} {item.name}\n" for item in self.constants
        ]
        return "".join(lines)

    @classmethod
    def from_text(cls, text: str) -> Listing:
        """Read what `text` wrote."""
        listing = cls([], [])
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            if word == "kernel":
                listing.kernels.append(rest)
            else:
                index, data_type, required, name = rest.split(" ", 3)
                listing.constants.append(Constant(int(index), int(data_type), required == "1", name))
        return listing


def check(source: str, options: Options | None = None) -> Listing:
    """Compile a source as far as needed to know that it is right, and list what it holds.

    Parameters
    ----------
    source : str
    options : Options, optional

    Returns
    -------
    Listing

    Raises
    ------
    CompileError
    CompilerMissing
    """
    return _compiler().check(source, options or Options())


def build(
    source: str,
    options: Options | None,
    kernel: str,
    constants: Mapping[str | int, tuple[int, bytes]] | None = None,
) -> str:
    """Compile one kernel.

    Parameters
    ----------
    source : str
    options : Options or None
    kernel : str
        Its name in the listing.
    constants : mapping of str or int to (int, bytes), optional
        Values of function constants, by name or index: data type, and the value as laid out in memory.

    Returns
    -------
    str
        Path of a kernel library that holds the kernel.

    Raises
    ------
    CompileError
    CompilerMissing
    RequestError
        For an unknown kernel, or a constant that is unknown, missing or of another type.
    """
    return _compiler().build(source, options or Options(), kernel, constants or {})


def program(source: str, options: Options | None = None) -> Program:
    """Return a source, rewritten but not checked, for tools that want more of it than a kernel library."""
    return _compiler().program(source, options or Options())


def clear_cache() -> None:
    """Remove all that the compiler has kept on disk."""
    _cache("").clear()


def set_cache_limit(limit: int | None) -> None:
    """Set the most bytes that are kept on disk, and remove what is above; None for what the environment says."""
    set_limit(limit)
    _compilers.clear()
    _cache("").trim()


def cache_stats() -> Stats:
    """Return what the compiler keeps on disk."""
    return _cache("").stats()


class _Compiler:
    """A toolchain with its cache."""

    def __init__(self, toolchain: Toolchain, cache: Cache) -> None:
        self.toolchain = toolchain
        self.cache = cache
        self._last: tuple[str, Program] | None = None

    def check(self, source: str, options: Options) -> Listing:
        key = self._source_key(source, options)
        known = self.cache.read(key, ".txt")
        if known is not None:
            headers, _, listing = known.decode("utf-8", "surrogateescape").partition("\n\n")
            if _headers_hold(headers):
                return Listing.from_text(listing)
        return self._check_now(key, source, options)

    def build(
        self, source: str, options: Options, kernel: str, constants: Mapping[str | int, tuple[int, bytes]]
    ) -> str:
        source_key = self._source_key(source, options)
        known = self.cache.read(source_key, ".txt")
        headers = ""
        if known is not None:
            headers = known.decode("utf-8", "surrogateescape").partition("\n\n")[0]
        if known is None or not _headers_hold(headers):
            self._check_now(source_key, source, options)
            known = self.cache.read(source_key, ".txt")
            headers = known.decode("utf-8", "surrogateescape").partition("\n\n")[0] if known is not None else ""
        values = sorted((str(name), data_type, data.hex()) for name, (data_type, data) in constants.items())
        key = self.cache.key("kernel", source_key, headers, kernel, repr(values))
        return self.kept(
            key, lambda output: self._program(source_key + headers, source, options).build(kernel, constants, output)
        )

    def kept(self, key: str, make: Callable[[str], None]) -> str:
        """Return the path of the kernel library with a key; without one, of what `make` writes to the path given."""
        path = self.cache.find(key, ".so")
        if path is not None:
            return path
        import tempfile

        with tempfile.TemporaryDirectory(prefix="mslc-") as directory:
            output = os.path.join(directory, "kernel.so")
            make(output)
            return self.cache.store(key, ".so", output)

    def _source_key(self, source: str, options: Options) -> str:
        return self.cache.key("source", source, options.key())

    def _check_now(self, key: str, source: str, options: Options) -> Listing:
        from .listing import listing_of

        program = self.program(source, options)
        program.check()
        listing = listing_of(program.rewritten)
        paths = [*program.headers, *program.absent_headers]
        headers = "".join(f"{_file_digest(path)} {path}\n" for path in paths)
        self._last = (key + headers, program)
        text = f"{headers}\n{listing.text()}" if headers else f"\n\n{listing.text()}"
        self.cache.store_bytes(key, ".txt", text.encode("utf-8", "surrogateescape"))
        return listing

    def _program(self, key: str, source: str, options: Options) -> Program:
        """Return the program of a source: the last one, if it is the same."""
        last = self._last
        if last is None or last[0] != key:
            last = self._last = key, self.program(source, options)
        return last[1]

    def program(self, source: str, options: Options) -> Program:
        """Return a new program."""
        from .precompiled import Prelude
        from .program import Program

        self._check_toolchain()
        return Program(source, options, self.toolchain, Prelude(self.toolchain, options, self.cache))

    def _check_toolchain(self) -> None:
        if not self.toolchain.needs_version_check:
            return
        from . import process
        from .toolchain import check_version

        finished = process.run([*self.toolchain.compiler, "--version"], os.sep)
        check_version(self.toolchain, finished.output + finished.errors)
        self.toolchain.needs_version_check = False


_compilers: dict[tuple[str, ...], _Compiler] = {}


def _compiler() -> _Compiler:
    """Return the compiler for the environment as it is now."""
    names = ("MPSCFFI_CXX", "MPSCFFI_CPU", "MPSCFFI_CACHE_DIR", "MPSCFFI_CACHE_SIZE", "XDG_CACHE_HOME", "HOME", "PATH")
    settings = tuple(os.environ.get(name, "") for name in names)
    compiler = _compilers.get(settings)
    if compiler is None:
        toolchain = find_toolchain()
        compiler = _compilers[settings] = _Compiler(toolchain, _cache(toolchain.identity))
    return compiler


def _cache(identity: str) -> Cache:
    return Cache(f"{_REVISION}\n{identity}\n{cpu_identity()}\n{_own_identity()}")


def _own_identity() -> str:
    """Return a text that changes when the compiler or the prelude does: names, sizes and times of all its files."""
    parts = []
    for directory in ("", "/air", "/gang", "/split", "/include", "/include/mslc", "/include/simd", "/metallib"):
        with os.scandir(_HERE + directory) as entries:
            for entry in entries:
                if entry.is_file():
                    status = entry.stat()
                    parts.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(sorted(parts))


def _headers_hold(headers: str) -> bool:
    """Whether the user's headers are as they were."""
    for line in headers.splitlines():
        known, _, path = line.partition(" ")
        if known and _file_digest(path) != known:
            return False
    return True


def _file_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return digest(file.read()).hex()
    except OSError:
        return "missing"


def is_kept(path: str) -> bool:
    """Whether what `build` gave outlives this process."""
    directory = _compiler().cache.directory
    return bool(directory) and path.startswith(directory + os.sep)
