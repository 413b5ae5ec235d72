"""Counts and times by name."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from mpscffi._table import table
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.tracing import COMMANDS, Record

__all__ = ["Average", "KeyAverages", "averages"]

#: Kinds whose time is the CPU's.
_ON_CPU = frozenset({"range", "fallback", "callback", "library", "pipeline"})
_ON_DEVICE = (frozenset(COMMANDS) | {"wait"}) - _ON_CPU
_WITH_BYTES = frozenset({"copy", "fill", "buffer create", "buffer release", "heap create", "heap release"})


class Average:
    """All records of one kind and name. Times are microseconds, as those of ``torch.profiler``.

    Attributes
    ----------
    key : str
        The name.
    kind : str
        As :class:`~mpscffi.tracing.Record` has them.
    count : int
        How many there were.
    failed : int
        How many of them failed, or were skipped for an earlier failure; their times do not count.
    device_time_total, device_time_min, device_time_max : float
        Of the device; 0 for what only the CPU does.
    cpu_time_total : float
        Of ranges, fallbacks, callbacks and compilations; 0 for what the device does.
    wait_time_total : float
        From the time when commands were asked for to when they began.
    bytes : int
        Of copies, fills and allocations.
    """

    __slots__ = (
        "bytes",
        "count",
        "cpu_time_total",
        "device_time_max",
        "device_time_min",
        "device_time_total",
        "failed",
        "key",
        "kind",
        "wait_time_total",
    )

    def __init__(self, kind: str, key: str) -> None:
        self.kind = kind
        self.key = key
        self.count = self.failed = self.bytes = 0
        self.device_time_total = self.device_time_min = self.device_time_max = 0.0
        self.cpu_time_total = self.wait_time_total = 0.0

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key!r}: {self.count} in {self.device_time_total or self.cpu_time_total:.3f} us>"

    @property
    def device_time(self) -> float:
        """The mean device time of those that did not fail."""
        return self.device_time_total / max(1, self.count - self.failed)

    @property
    def cpu_time(self) -> float:
        """The mean CPU time."""
        return self.cpu_time_total / max(1, self.count - self.failed)

    def add(self, record: Record) -> None:
        """Count one more."""
        first = self.count == self.failed
        self.count += 1
        if record.failed:
            self.failed += 1
            return
        if record.kind in _WITH_BYTES:
            self.bytes += record.bytes
        microseconds = record.duration / 1e3
        if record.kind in _ON_CPU:
            self.cpu_time_total += microseconds
        elif record.kind in _ON_DEVICE:
            self.device_time_total += microseconds
            self.device_time_min = microseconds if first else min(self.device_time_min, microseconds)
            self.device_time_max = max(self.device_time_max, microseconds)
            self.wait_time_total += max(0, record.start - record.encoded) / 1e3


_COLUMNS = {
    "key": "Name",
    "kind": "Kind",
    "count": "Count",
    "failed": "Failed",
    "device_time_total": "Device total",
    "device_time": "Device mean",
    "device_time_min": "Device min",
    "device_time_max": "Device max",
    "wait_time_total": "Wait total",
    "cpu_time_total": "CPU total",
    "cpu_time": "CPU mean",
    "bytes": "Bytes",
}


class KeyAverages(Sequence[Average]):
    """The :class:`Average` of each kind and name, longest device time first.

    ``averages["saxpy"]`` finds one by its name: what the device ran, before what the CPU did. Where several kinds have
    the name, as a kernel and its compilation have, ``averages["saxpy", "pipeline"]`` says which.
    """

    def __init__(self, rows: Iterable[Average], dropped: int = 0) -> None:
        self._rows = sorted(rows, key=attrgetter("device_time_total", "cpu_time_total", "count"), reverse=True)
        #: Records that there was no room for, which are missing here.
        self.dropped = dropped

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, (str, tuple)):
            name, kind = (which, None) if isinstance(which, str) else which
            found = [row for row in self._rows if row.key == name and kind in (None, row.kind)]
            if not found:
                raise KeyError(which)
            # A kernel's compilation has the kernel's name.
            return next((row for row in found if row.kind in COMMANDS), found[0])
        return self._rows[which]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Average]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return self.table()

    def table(self, sort_by: str = "device_time_total", row_limit: int = 100) -> str:
        """Return the rows as text.

        Parameters
        ----------
        sort_by : str
            An attribute of :class:`Average`; numbers sort from the largest on, names from A on.
        row_limit : int
            How many rows at most; below 0 for all.
        """
        if sort_by not in _COLUMNS:
            raise InvalidArgumentError(f"table: got sort_by={sort_by!r}, expected one of {', '.join(_COLUMNS)}")
        try:
            row_limit = operator.index(row_limit)
        except TypeError:
            raise ArgumentTypeError(f"table: got row_limit={row_limit!r}, expected an int") from None
        rows = sorted(self._rows, key=attrgetter(sort_by), reverse=sort_by not in ("key", "kind"))
        shown = rows if row_limit < 0 else rows[:row_limit]
        lines = [[_cell(row, name) for name in _COLUMNS] for row in shown]
        text = table(list(_COLUMNS.values()), lines)
        text += "\nTimes are microseconds, - one that the kind does not have: ranges and compilations have the CPU's."
        if len(shown) < len(rows):
            text += f" {len(rows) - len(shown)} more rows."
        if self.dropped:
            text += f" {self.dropped} records are missing: there was no room for them; see `capacity`."
        return text


def _cell(row: Average, name: str) -> str:
    value = getattr(row, name)
    if not isinstance(value, float):
        return str(value)
    is_there = row.kind in _ON_CPU if name.startswith("cpu") else row.kind in _ON_DEVICE
    return f"{value:.3f}" if is_there else "-"


def averages(records: Iterable[Record], dropped: int = 0) -> KeyAverages:
    """Return counts and times of records.

    Parameters
    ----------
    records : iterable of Record
        Those of commands that are complete.
    dropped : int
        How many are missing.
    """
    rows: dict[tuple[str, str], Average] = {}
    for record in records:
        key = (record.kind, record.name or record.kind)
        row = rows.get(key)
        if row is None:
            row = rows[key] = Average(*key)
        row.add(record)
    return KeyAverages(rows.values(), dropped)
