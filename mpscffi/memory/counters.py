"""What is counted while it happens; :mod:`mpscffi.memory.statistics` adds up everything else when asked for."""

from __future__ import annotations


class Counters:
    """Bytes of blocks in use, or of heaps: of a pool, or of all.

    Attributes
    ----------
    current : int
        Bytes now.
    peak : int
        The most since the peak was reset.
    """

    __slots__ = ("current", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0

    def note_peak(self) -> None:
        """Let the peak be the bytes now, if those are more."""
        if self.current > self.peak:
            self.peak = self.current

    def reset_peak(self) -> None:
        """Let the peak start again from the bytes now."""
        self.peak = self.current


class Tally:
    """How often things happened.

    Attributes
    ----------
    heaps_created, heaps_released : int
        Heaps.
    collections, collected : int
        Runs of the collection under the low watermark, and the bytes that they got back.
    retries, failures : int
        Allocations that had to make room, and those that found none.
    """

    __slots__ = ("collected", "collections", "failures", "heaps_created", "heaps_released", "retries")

    def __init__(self) -> None:
        self.heaps_created = self.heaps_released = 0
        self.collections = self.collected = 0
        self.retries = self.failures = 0
