"""What Python objects that stand for objects of the C library have in common."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

__all__ = ["Handle", "ProcessBound"]


class Handle:
    """Owns one reference and drops it when it is collected.

    Python objects that share a C object share its Handle. The release function is kept here, because module globals may
    be gone when the last handles are collected at exit.

    Parameters
    ----------
    pointer : cdata
        The C handle; the reference becomes this object's.
    release : callable
        The library's release function for it.
    """

    __slots__ = ("_release", "pointer")

    def __init__(self, pointer: Any, release: Callable[[Any], int]) -> None:
        self._release = release
        self.pointer = pointer

    def __del__(self) -> None:
        self._release(self.pointer)


class ProcessBound:
    """Base of what can be neither pickled nor copied, because it stands for something of this process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle or copy a {type(self).__name__}: it stands for an object of this process; "
            "make a new one where it is needed"
        )
