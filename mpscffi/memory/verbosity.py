"""What an allocator writes on stderr, as ``PYTORCH_DEBUG_MPS_ALLOCATOR`` asks for."""

from __future__ import annotations

import sys

from mpscffi.memory.sizes import readable

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from mpscffi.memory.allocator import Allocator

PROFILING = 1
ALLOCATIONS = 2
RECYCLES = 4
RELEASES = 8
LARGE_ONLY = 16

#: The bit that an event is told for. Others are steps that make room, told as profiling.
_BITS = {
    "allocate": ALLOCATIONS,
    "create_heap": ALLOCATIONS,
    "free": RECYCLES,
    "release_heap": RELEASES,
    "collect": RELEASES,
}


class Verbosity:
    """A watcher that writes lines.

    Parameters
    ----------
    allocator : Allocator
        The one that it watches.
    bits : int
        What to tell, a sum of the constants of this module.
    """

    __slots__ = ("_allocator", "_bits")

    def __init__(self, allocator: Allocator, bits: int) -> None:
        self._allocator = allocator
        self._bits = bits
        if bits & PROFILING:
            limits = (
                f"{name} {'none' if size is None else readable(size)}"
                for name, size in (("limit", allocator.budget.limit), ("low watermark", allocator.budget.low_limit))
            )
            self._write(f"recommended maximum {readable(allocator.source.recommended)}, {', '.join(limits)}")

    def __call__(self, kind: str, subject: Any, number: int) -> None:
        """Tell one event."""
        if not self._bits & _BITS.get(kind, PROFILING):
            return
        if kind in ("allocate", "free"):
            pool = subject.heap.pool
            if self._bits & LARGE_ONLY and not pool.is_large:
                return
            place = f"{pool.name} pool, heap {subject.heap.number} at {subject.offset}"
            if kind == "allocate":
                self._write(f"allocated {readable(subject.size)} for {number} bytes: {place}{self._state()}")
            else:
                self._write(f"recycled {readable(number)}: {place}{self._state()}")
        elif kind in ("create_heap", "release_heap"):
            verb = "created" if kind == "create_heap" else "released"
            self._write(f"{verb} heap {subject.number} of {readable(number)}: {subject.pool.name} pool{self._state()}")
        elif kind == "collect":
            self._write(f"collected {readable(number)} under the low watermark{self._state()}")
        else:
            self._write(f"no room for {readable(number)}: {kind.replace('_', ' ')}{self._state()}")

    def _state(self) -> str:
        allocator = self._allocator
        return (
            f"; in use {readable(allocator.counters.current)}, reserved {readable(allocator.reserved.current)}, "
            f"driver {readable(allocator.source.allocated())}"
        )

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"mpscffi: allocator: {text}\n")
