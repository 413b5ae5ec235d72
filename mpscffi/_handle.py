"""What Python objects that stand for objects of the C library have in common."""

from __future__ import annotations

from mpscffi._ffi import ffi, lib

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["Handle", "ProcessBound"]


_CELLS = {
    noun: (ffi.typeof(f"mps_{noun} **"), getattr(lib, f"mpscffi_drop_{noun}"))
    for noun in ("device", "buffer", "queue", "event", "library", "pipeline")
}


class Handle:
    """Owns one reference, and drops it when it is collected. Python objects that share a C object share its Handle.

    It is made before the object, and given to the function that creates that: C alone writes the reference and releases
    it, so that an exception of a signal handler, wherever it comes, neither loses the object nor releases it early.

    Parameters
    ----------
    noun : str
        What it is to own: "event" stands for an ``mps_event *``.

    Attributes
    ----------
    out : cdata
        Where the C handle comes to.
    """

    __slots__ = ("out",)

    def __init__(self, noun: str) -> None:
        kind, drop = _CELLS[noun]
        self.out: Any = ffi.gc(ffi.new(kind), drop)

    @property
    def pointer(self) -> Any:
        """The C handle; NULL before the object is created."""
        return self.out[0]


class ProcessBound:
    """Base of what can be neither pickled nor copied, because it stands for something of this process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle or copy a {type(self).__name__}: it stands for an object of this process; "
            "make a new one where it is needed"
        )
