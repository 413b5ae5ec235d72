"""Counts and times by name."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from mpscffi._table import table
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.tracing import COMMANDS, CPU_COPIES, Record

__all__ = ["Average", "KeyAverages", "averages"]

#: Kinds whose time is the CPU's.
_ON_CPU = CPU_COPIES | {"range", "fallback", "callback", "library", "pipeline"}
_ON_DEVICE = (frozenset(COMMANDS) | {"wait"}) - _ON_CPU
_WITH_BYTES = CPU_COPIES | frozenset({"copy", "fill", "buffer create", "buffer release", "heap create", "heap release"})


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

    def table(self, sort_by: str = "device_time_total", row_limit: int = 100, *, width: int | None = 120) -> str:
        """Return the rows as text.

        Parameters
        ----------
        sort_by : str
            An attribute of :class:`Average`; numbers sort from the largest on, names from A on.
        row_limit : int
            How many rows at most; below 0 for all.
        width : int or None
            Characters of a line: columns that say the least are left out, and long names cut, until lines fit as far as
            they can. None for all columns and whole names.
        """
        if sort_by not in _COLUMNS:
            raise InvalidArgumentError(f"table: got sort_by={sort_by!r}, expected one of {', '.join(_COLUMNS)}")
        try:
            row_limit = operator.index(row_limit)
        except TypeError:
            raise ArgumentTypeError(f"table: got row_limit={row_limit!r}, expected an int") from None
        try:
            width = None if width is None else operator.index(width)
        except TypeError:
            raise ArgumentTypeError(f"table: got width={width!r}, expected an int or None") from None
        rows = sorted(self._rows, key=attrgetter(sort_by), reverse=sort_by not in ("key", "kind"))
        shown = rows if row_limit < 0 else rows[:row_limit]
        columns = {name: [title, *(_cell(row, name) for row in shown)] for name, title in _COLUMNS.items()}
        if width is not None:
            _fit(columns, width, sort_by)
        head, *lines = zip(*columns.values(), strict=True)
        text = table(head, lines)
        text += "\nTimes are microseconds, - one that the kind does not have: ranges and compilations have the CPU's."
        if len(shown) < len(rows):
            text += f" {len(rows) - len(shown)} more rows."
        if self.dropped:
            text += f" {self.dropped} records are missing: there was no room for them; see `capacity`."
        return text


#: Columns that a narrow table does without, the first ones first, and the shortest that names are cut to.
_DISPENSABLE = ("device_time_min", "device_time_max", "cpu_time", "wait_time_total", "failed", "bytes", "device_time")
_SHORT_NAME = 24


def _fit(columns: dict[str, list[str]], width: int, kept: str) -> None:
    """Take columns out, and cut names, until a line has no more than so many characters."""

    def room() -> int:
        """Return what is left for names."""
        others = (max(map(len, cells)) for name, cells in columns.items() if name != "key")
        return width - sum(2 + length for length in others)

    longest = max(map(len, columns["key"]))
    for name in _DISPENSABLE:
        if room() >= min(longest, _SHORT_NAME * 2):
            break
        if name != kept and not (name == "failed" and set(columns[name][1:]) - {"0"}):
            del columns[name]
    most = max(room(), _SHORT_NAME)
    columns["key"] = [
        cell if len(cell) <= most else f"{cell[: most - 1]}\N{HORIZONTAL ELLIPSIS}" for cell in columns["key"]
    ]


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
