"""A picture of an allocator at one moment: as data, and drawn."""

from __future__ import annotations

import json
import os
from typing import Any

from mpscffi._text_file import path_of, write_text
from mpscffi.errors import InvalidArgumentError
from mpscffi.memory.allocator import Allocator
from mpscffi.memory.block import HeapBlock
from mpscffi.memory.heap import Heap
from mpscffi.memory.history import History, history_of
from mpscffi.memory.limits import limits
from mpscffi.memory.statistics import statistics

#: Of the layout of snapshots.
VERSION = 1


def _states(allocator: Allocator) -> dict[HeapBlock, str]:
    """Return the state of the blocks that nobody owns."""
    states = dict.fromkeys(list(allocator.pending.blocks), "pending")
    for pool in allocator.pools:
        for size_class in pool.cached():
            for block in list(size_class.free):
                states[block] = "in flight" if block.stream is not None and block.in_use() else "cached"
    return states


def _block(block: HeapBlock, states: dict[HeapBlock, str], history: History | None) -> dict[str, Any]:
    if block.pointer is None:
        return {"offset": block.offset, "size": block.size, "state": "free"}
    entry: dict[str, Any] = {"offset": block.offset, "size": block.size, "state": states.get(block, "live")}
    allocation = history.live.get(id(block)) if history is not None else None
    if allocation is not None and entry["state"] == "live":
        entry["requested"] = allocation["size"]
        entry["id"] = allocation["id"]
        if "stack" in allocation:
            entry["stack"] = allocation["stack"]
    return entry


def _heap(heap: Heap, states: dict[HeapBlock, str], history: History | None) -> dict[str, Any]:
    return {
        "number": heap.number,
        "pool": heap.pool.name,
        "size": heap.size,
        "shared": heap.is_shared,
        "blocks": [_block(block, states, history) for block in heap],
    }


def snapshot(allocator: Allocator) -> dict[str, Any]:
    """Return what :func:`mpscffi.memory_snapshot` does."""
    stats = statistics(allocator)
    history = history_of(allocator)
    device = allocator.source.device
    source = allocator.source
    with allocator.lock:
        states = _states(allocator)
        heaps = [_heap(heap, states, history) for pool in allocator.pools for heap in list(pool.heaps.values())]
    return {
        "version": VERSION,
        "device": {
            "backend": device.backend,
            "index": device.index,
            "name": device.name,
            "recommended": source.recommended,
            "longest": source.longest,
            "page": source.page,
            "align": source.size_and_align(1, False)[1],
        },
        "limits": limits(allocator)._asdict(),
        "stats": stats,
        "heaps": heaps,
        "history": history.entries() if history is not None else [],
    }


def save(allocator: Allocator, path: Any) -> None:
    """Do what :func:`mpscffi.save_memory_snapshot` does."""
    suffix = os.path.splitext(path_of(path, "save_memory_snapshot"))[1].lower()
    if suffix not in (".json", ".html"):
        raise InvalidArgumentError(f"save_memory_snapshot: got {path!r}, expected a name that ends in .json or .html")
    taken = snapshot(allocator)
    if suffix == ".html":
        from mpscffi.memory.picture import page

        text = page(taken)
    else:
        text = json.dumps(taken, indent=1)
    write_text(path, text, "save_memory_snapshot")
