"""The log of what an allocator did, with the places in the program that asked for it."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.memory.allocator import Allocator

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Frames that are kept of a stack, the innermost ones.
MAX_FRAMES = 32


class History:
    """A watcher that keeps the last events.

    Parameters
    ----------
    current_stream : callable
        Returns the stream that the calling thread's work goes to.
    stacks : bool
        Whether to note where allocations were made.
    max_entries : int
        How many events are kept.

    Attributes
    ----------
    live : dict of int to dict
        The allocation of each block in use, as far as it was seen, by its ``id``: a reference would look like an owner.
    """

    __slots__ = ("_current_stream", "_entries", "_numbers", "live", "stacks")

    def __init__(self, current_stream: Callable[[], Any], stacks: bool, max_entries: int) -> None:
        self._current_stream = current_stream
        self.stacks = stacks
        self.live: dict[int, dict[str, Any]] = {}
        self._entries: deque[dict[str, Any]] = deque(maxlen=min(max_entries, sys.maxsize))
        self._numbers = itertools.count(1)

    def __call__(self, kind: str, subject: Any, number: int) -> None:
        """Keep one event."""
        entry: dict[str, Any] = {"action": kind, "time_ns": time.monotonic_ns(), "size": number}
        if kind == "allocate":
            pool = subject.heap.pool
            entry |= {
                "id": next(self._numbers),
                "block_size": subject.size,
                "heap": subject.heap.number,
                "offset": subject.offset,
                "pool": pool.name,
            }
            if self.stacks:
                entry["stack"] = _stack()
            self.live[id(subject)] = entry
        elif kind == "free":
            allocation = self.live.pop(id(subject), None)
            # Of one from before the log began there is nothing to tell.
            if allocation is None:
                return
            entry["id"] = allocation["id"]
            # Whose work may still use it. A finalizer's own thread tells nothing.
            entry["stream"] = None if subject.stream is None else subject.stream.label
            self._entries.append(entry)
            return
        elif kind in ("create_heap", "release_heap"):
            entry |= {"heap": subject.number, "pool": subject.pool.name}
        entry["stream"] = self._current_stream().label
        self._entries.append(entry)

    def entries(self) -> list[dict[str, Any]]:
        """Return the events, oldest first."""
        return list(self._entries)


def _stack() -> list[str]:
    """Return where the program is, innermost first, without the frames of this package."""
    frames: list[str] = []
    at: Any = sys._getframe(2)
    while at is not None and len(frames) < MAX_FRAMES:
        code = at.f_code
        if frames or not code.co_filename.startswith(_PACKAGE):
            frames.append(f"{code.co_filename}:{at.f_lineno} {code.co_name}")
        at = at.f_back
    return frames


def history_of(allocator: Allocator) -> History | None:
    """Return the log that an allocator keeps, or None."""
    return next((watcher for watcher in allocator.watchers if isinstance(watcher, History)), None)


def record(allocator: Allocator, enabled: bool, stacks: bool, max_entries: int) -> None:
    """Do what :func:`mpscffi.record_memory_history` does."""
    if not isinstance(max_entries, int) or isinstance(max_entries, bool):
        raise ArgumentTypeError(
            f"record_memory_history: got max_entries of type {type(max_entries).__name__}, expected an int"
        )
    if max_entries < 1:
        raise InvalidArgumentError(f"record_memory_history: got max_entries={max_entries}, expected 1 or more")
    before = history_of(allocator)
    if before is not None:
        allocator.unwatch(before)
    if enabled:
        allocator.watch(History(allocator.source.current_stream, bool(stacks), max_entries))
