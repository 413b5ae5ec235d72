"""What the host device makes of a `.metallib`: a listing at once, kernel libraries when they are asked for."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ..errors import RequestError
from ..options import fibers_alone
from ..provider import Constant, Listing, _compiler
from ..values import type_text
from .container import Metallib, checked, printable, table_digest, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..air.build import Builder
    from ..provider import _Compiler
    from .container import Data

_KEPT_INDEXES = 8


class _Place(NamedTuple):
    """Where a function's blob is, and what it must be."""

    name: str
    type: str
    start: int
    size: int
    digest: bytes


def describe(data: Data) -> Listing:
    """List a library's functions and function constants.

    Parameters
    ----------
    data : bytes-like
        The whole file.

    Returns
    -------
    Listing
        All functions are in it, as in the list that Metal gives; `build` refuses those that are no kernels. Each
        constant is in it once, whichever kernels have it.

    Raises
    ------
    MetallibError
        If it is no metallib, or a damaged one.
    """
    library = Metallib(data)
    kernels = []
    constants: dict[tuple[int, str], Constant] = {}
    for function in library.functions.values():
        if not function.name or any(character in function.name for character in "\n\r"):
            raise RequestError(f"a function cannot have the name {function.name!r}")
        kernels.append(printable(function.name))
        for item in function.constants:
            known = constants.setdefault(
                (item.index, item.name), Constant(item.index, item.data_type, item.required, item.name)
            )
            known.required = known.required and item.required
    return Listing(kernels, [constant for constant in constants.values() if constant.data_type])


def table(data: Data) -> str:
    """Return a line for each function: type, name, versions of AIR and of the language, and its function constants.

    Raises
    ------
    MetallibError
    """
    lines = []
    for function in Metallib(data).functions.values():
        fields = [
            function.type,
            printable(function.name),
            "AIR {}.{}".format(*function.air_version),
            "Metal {}.{}".format(*function.language_version),
        ]
        fields += [f"{item.name}: {type_text(item.data_type)} = {item.index}" for item in function.constants]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines)


def build(
    data: Data,
    kernel: str,
    constants: Mapping[str | int, tuple[int, bytes]] | None = None,
    *,
    validate: bool = False,
) -> str:
    """Compile one kernel of a library.

    Parameters
    ----------
    data : bytes-like
        The whole file.
    kernel : str
        Its name in the listing.
    constants : mapping of str or int to (int, bytes), optional
        Values of function constants, by name or index: data type, and the value as laid out in memory.
    validate : bool
        Check accesses to memory at run time.

    Returns
    -------
    str
        Path of a kernel library that holds the kernel.

    Raises
    ------
    CompileError
        If the kernel uses what the host device does not have, or its bitcode is none.
    CompilerMissing
    RequestError
        For a function that is not there or is no kernel, or a constant without a value or with one of another type;
        `MetallibError` for a damaged file.
    """
    place = _place(data, kernel)
    bitcode = _bitcode(data, place)
    constants = constants or {}
    driver = _compiler()
    values = sorted((str(name), data_type, value.hex()) for name, (data_type, value) in constants.items())
    mode = "validated" if validate else "fibers" if fibers_alone() else ""
    key = driver.cache.key("metallib", place.digest.hex(), kernel, repr(values), mode)
    return driver.kept(
        key, lambda output: _builder(driver).build(bitcode, place.name, constants, output, validate=validate)
    )


def emit(data: Data, kernel: str, constants: Mapping[str | int, tuple[int, bytes]], form: str, output: str) -> None:
    """Write one kernel of a library as "air", "llvm" or "asm". Raises as `build` does."""
    place = _place(data, kernel)
    _builder(_compiler()).emit(_bitcode(data, place), place.name, constants, form, output)


def _builder(driver: _Compiler) -> Builder:
    from ..air.build import Builder

    driver._check_toolchain()
    return Builder(driver.toolchain, driver.cache, fibers_alone())


def _bitcode(data: Data, place: _Place) -> bytes:
    what = f"function '{printable(place.name)}'"
    return unwrapped(checked(memoryview(data), place.start, place.size, place.digest, what), what)


_lock = threading.Lock()
_indexes: dict[bytes, dict[str, _Place]] = {}


def _place(data: Data, kernel: str) -> _Place:
    """Find a kernel. What the table of functions says is kept, as it is long in big libraries; the data is not."""
    view = memoryview(data)
    key = table_digest(view)
    with _lock:
        index = _indexes.get(key)
    if index is None:
        library = Metallib(view)
        index = {
            printable(item.name): _Place(item.name, item.type, item.start, item.size, item.digest)
            for item in library.functions.values()
        }
        with _lock:
            while len(_indexes) >= _KEPT_INDEXES:
                del _indexes[next(iter(_indexes))]
            _indexes[key] = index
    place = index.get(kernel)
    if place is None:
        names = [name for name, item in index.items() if item.type == "kernel"]
        known = ", ".join(f"'{name}'" for name in names[:20]) or "none"
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise RequestError(f"there is no kernel '{kernel}'; kernels are: {known}{more}")
    if place.type != "kernel":
        raise RequestError(f"'{kernel}' is a {place.type} function; only kernels can be run")
    return place
