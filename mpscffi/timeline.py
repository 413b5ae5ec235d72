"""Records as a timeline: the trace event format, and a page for any browser."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpscffi._text_file import write_text
from mpscffi.averages import KeyAverages
from mpscffi.device import get_name
from mpscffi.tracing import COMMANDS, CPU_COPIES, Record

__all__ = ["write_chrome_trace", "write_html"]

#: The two processes of the trace event format: it has no other word for the CPU's part and the device's.
_CPU, _DEVICE = 1, 2
_ON_QUEUE = COMMANDS | {"signal", "wait", "callback"}
_MEMORY = {"buffer create": 1, "buffer release": -1, "heap create": 1, "heap release": -1}
_ON_THREAD = CPU_COPIES | {"range", "fallback", "library", "pipeline"}


def _shares(records: Sequence[Record]) -> Iterator[tuple[Record, float, float]]:
    """Give each command its start and end; those that were timed together follow each other with equal shares."""
    taken: dict[tuple[int, int, int], int] = {}
    for record in records:
        start = float(record.start)
        if record.together > 1:
            key = (record.queue_number, record.start, record.end)
            place = taken[key] = taken.get(key, -1) + 1
            start += place * record.duration
        yield record, start, start + record.duration


def _details(record: Record) -> dict[str, Any]:
    details: dict[str, Any] = {"id": record.id}
    if record.kind == "kernel":
        details |= {"grid": list(record.grid), "group": list(record.group)}
    elif record.kind == "matmul":
        details["shape"] = list(record.grid)
    elif record.kind in ("signal", "wait"):
        details["value"] = record.bytes
    elif record.bytes:
        details["bytes"] = record.bytes
    if record.kind in _ON_QUEUE:
        details["waited_us"] = max(0, record.start - record.encoded) / 1e3
    if record.kind == "command buffer":
        details["serial"] = record.serial
    if record.together > 1:
        details["timed_together"] = record.together
    if record.failed:
        details["failed"] = True
    return details


# ---- the trace event format


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _thread_names(records: Sequence[Record]) -> dict[int, str]:
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    return {number: known.get(number, f"thread {number}") for number in {record.thread for record in records}}


def _lanes(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    yield _named("process_name", _CPU, 0, "CPU")
    yield _named("process_name", _DEVICE, 0, get_name())
    for number, name in sorted(_thread_names(records).items()):
        yield _named("thread_name", _CPU, number, name)
    queues = {record.queue_number: record.queue for record in records if record.queue_number}
    for number, name in sorted(queues.items()):
        yield _named("thread_name", _DEVICE, 2 * number, name)
        yield _named("thread_name", _DEVICE, 2 * number + 1, f"{name}: command buffers")


def _chrome_events(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    sizes = {"buffer": 0, "heap": 0}
    for record, start, end in _shares(records):
        event: dict[str, Any] = {"name": record.name or record.kind, "cat": record.kind, "ts": start / 1e3}
        event["args"] = _details(record)
        if record.kind in _MEMORY:
            noun = record.kind.split()[0]
            sizes[noun] += _MEMORY[record.kind] * record.bytes
            yield {**event, "ph": "i", "s": "t", "pid": _CPU, "tid": record.thread, "name": record.kind}
            yield {
                "ph": "C",
                "name": f"{noun}s since the start",
                "pid": _DEVICE,
                "tid": 0,
                "ts": start / 1e3,
                "args": {"bytes": sizes[noun]},
            }
        elif record.kind == "mark":
            yield {**event, "ph": "i", "s": "t", "pid": _CPU, "tid": record.thread}
        elif record.kind in _ON_THREAD:
            yield {**event, "ph": "X", "dur": (end - start) / 1e3, "pid": _CPU, "tid": record.thread}
        elif record.kind in _ON_QUEUE or record.kind == "command buffer":
            lane = 2 * record.queue_number + (record.kind == "command buffer")
            yield {**event, "ph": "X", "dur": (end - start) / 1e3, "pid": _DEVICE, "tid": lane}


def write_chrome_trace(path: str | os.PathLike[str], records: Sequence[Record], dropped: int) -> None:
    """Write records in the trace event format.

    Parameters
    ----------
    path : str or path
        Where to.
    records : sequence of Record
        In the order of their starts.
    dropped : int
        How many are missing.
    """
    document = {
        "traceEvents": [*_lanes(records), *_chrome_events(records)],
        "displayTimeUnit": "ns",
        "otherData": {"device": get_name(), "dropped": dropped},
    }
    write_text(path, json.dumps(document), "export_chrome_trace")


# ---- the page


def _page_data(records: Sequence[Record], dropped: int) -> dict[str, Any]:
    lanes: dict[str, list[list[Any]]] = {}
    threads = _thread_names(records)
    first = min((record.start for record in records), default=0)
    for record, start, end in _shares(records):
        if record.kind in _ON_QUEUE:
            lane = f"{record.queue} (queue {record.queue_number})"
        elif record.kind in _ON_THREAD or record.kind == "mark":
            lane = f"{threads[record.thread]} ({record.thread})"
        else:
            continue
        begin, length = (start - first) / 1e3, (end - start) / 1e3
        lanes.setdefault(lane, []).append([record.name or record.kind, record.kind, begin, length, _details(record)])
    return {"device": get_name(), "dropped": dropped, "lanes": [{"name": n, "events": e} for n, e in lanes.items()]}


def _in_script(value: object) -> str:
    """Return JSON that cannot end the script element that it stands in."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_html(path: str | os.PathLike[str], records: Sequence[Record], averages: KeyAverages, dropped: int) -> None:
    """Write a page that shows records as a timeline and as a table.

    Parameters
    ----------
    path : str or path
        Where to.
    records : sequence of Record
        In the order of their starts.
    averages : KeyAverages
        The same, summed up.
    dropped : int
        How many are missing.
    """
    template = Path(__file__).with_name("timeline.html").read_text(encoding="utf-8")
    rows = [
        [row.key, row.kind, row.count, row.device_time_total, row.device_time, row.cpu_time_total, row.bytes]
        for row in averages
    ]
    data = {**_page_data(records, dropped), "rows": rows}
    before, after = template.split("/*DATA*/")
    write_text(path, before + _in_script(data) + after, "export_html")
