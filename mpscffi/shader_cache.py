"""What is kept of compiled kernels: on disk by the host device's compiler, in memory by this process.

On disk there are the kernel libraries and listings of all processes of a user, of which the least used ones go when the
limit is passed. In memory, a library that is in use is given again to who compiles the same source with the same
options, unless it includes headers of the user's own, which may have changed, or is validated.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from mpscffi.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from typing import Any

    from mpscffi.device import Device
    from mpscffi.shader import ShaderLibrary
    from mpscffi.source import Source

__all__ = ["CacheStats", "clear", "set_limit", "stats"]


def __dir__() -> list[str]:
    return __all__


_libraries: WeakValueDictionary[tuple[Any, ...], ShaderLibrary] = WeakValueDictionary()
_hits = 0


class CacheStats(NamedTuple):
    """What the caches hold."""

    #: On disk; "" if there is no place for it.
    directory: str
    files: int
    #: Bytes of all files, and the most that may be there.
    size: int
    limit: int
    #: In memory, and how often one of them was given again.
    libraries: int
    hits: int


def stats() -> CacheStats:
    """Return what the caches hold now."""
    from mpscffi.mslc import provider

    disk = provider.cache_stats()
    return CacheStats(disk.directory, disk.files, disk.size, disk.limit, len(_libraries), _hits)


def clear() -> None:
    """Remove what is on disk, and forget what is in memory. Libraries in use stay as they are."""
    from mpscffi.mslc import provider

    _libraries.clear()
    provider.clear_cache()


def set_limit(size: int | None) -> None:
    """Set the most bytes that this process leaves on disk, and remove what is above it, least used first.

    Parameters
    ----------
    size : int or None
        None for what ``MPSCFFI_CACHE_SIZE`` says, or 1 GiB.
    """
    from mpscffi.mslc import provider

    try:
        limit = size if size is None or isinstance(size, bool) else operator.index(size)
    except TypeError:
        limit = True
    if isinstance(limit, bool):
        raise ArgumentTypeError(f"set_limit: got {type(size).__name__}, expected a number of bytes as an integer")
    if limit is not None and limit < 0:
        raise InvalidArgumentError(f"set_limit: got {limit}, expected 0 or more bytes")
    provider.set_cache_limit(limit)


def known(device: Device, source: Source) -> ShaderLibrary | None:
    """Return a library in use that was compiled from the same source for the device."""
    global _hits
    library = _libraries.get((device, source.key)) if _is_shared(source) else None
    if library is not None:
        _hits += 1
    return library


def remember(device: Device, source: Source, library: ShaderLibrary) -> ShaderLibrary:
    """Keep a library for as long as it is in use; return it, or the one that another thread was faster with."""
    return _libraries.setdefault((device, source.key), library) if _is_shared(source) else library


def _is_shared(source: Source) -> bool:
    return source.is_whole and not source.validate
