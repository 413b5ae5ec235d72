"""Draws a snapshot: a page with one bar for each heap, its blocks coloured by state."""

from __future__ import annotations

from html import escape
from typing import Any

from mpscffi.memory.sizes import readable

WIDTH = 1000
LEFT = 420
ROW = 26
#: Blocks of one state that would be narrower than this are drawn as one.
NARROW = 0.5
#: What is there is seen: no block is drawn narrower than this.
VISIBLE = 1.5
#: How many ticks a bar has, at least.
TICKS = 4
#: Rows of the table of what holds memory.
MOST_LINES = 20
COLOURS = {"live": "#2a6fb0", "cached": "#a8cbe8", "in flight": "#e0a030", "pending": "#c0504d", "free": "#eeeeee"}

STYLE = """
body { font: 14px sans-serif; margin: 2em; color: #222; }
svg { width: 100%; height: auto; }
svg text { font: 12px sans-serif; }
line { stroke: #888; }
rect { stroke: #fff; stroke-width: 0.3; }
.key { display: inline-block; width: 1em; height: 1em; vertical-align: -0.15em; margin: 0 0.3em 0 1em; }
td, th { text-align: right; padding: 0.1em 0.8em; } td:first-child { text-align: left; }
"""


def _title(block: dict[str, Any]) -> str:
    text = f"{block['state']}: {block['size']} bytes ({readable(block['size'])}) at {block['offset']}"
    if block.get("count", 1) > 1:
        text = f"{block['count']} blocks, {text}"
    if "requested" in block:
        text += f", asked for {block['requested']} bytes"
    return "\n".join([text, *block.get("stack", ())])


def _drawn(heap: dict[str, Any], scale: float) -> list[dict[str, Any]]:
    """Return the blocks to draw, small ones of one state together."""
    drawn: list[dict[str, Any]] = []
    for block in heap["blocks"]:
        last = drawn[-1] if drawn else None
        if last and last["state"] == block["state"] and min(last["size"], block["size"]) * scale < NARROW:
            drawn[-1] = {
                "offset": last["offset"],
                "size": last["size"] + block["size"],
                "state": block["state"],
                "count": last.get("count", 1) + 1,
            }
        else:
            drawn.append(block)
    return drawn


def _bar(heap: dict[str, Any], top: int, scale: float) -> str:
    used = sum(block["size"] for block in heap["blocks"] if block["state"] in ("live", "pending"))
    tick = _tick(heap["size"])
    parts = [
        f'<text x="0" y="{top + 15}">heap {heap["number"]}, {escape(heap["pool"])}, {readable(heap["size"])}, '
        f"{100 * used / heap['size']:.0f}% in use, a tick each {readable(tick)}</text>"
    ]
    # Free ranges first, so that they hide no narrow block.
    for block in sorted(_drawn(heap, scale), key=lambda block: block["state"] != "free"):
        width = max(block["size"] * scale, VISIBLE)
        parts.append(
            f'<rect x="{LEFT + block["offset"] * scale:.2f}" y="{top}" width="{width:.2f}" height="{ROW - 9}" '
            f'fill="{COLOURS[block["state"]]}"><title>{escape(_title(block))}</title></rect>'
        )
    for at in range(0, heap["size"] + 1, tick):
        x = LEFT + at * scale
        parts.append(f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{top + ROW - 9}" y2="{top + ROW - 5}"/>')
    return "".join(parts)


def _tick(size: int) -> int:
    """Return the largest power of two of which a heap has so many, at least."""
    return 1 << max(0, (size // TICKS).bit_length() - 1)


def _holders(heaps: list[dict[str, Any]]) -> str:
    """Return a table of the lines of the program that hold the most memory."""
    lines: dict[str, list[int]] = {}
    for heap in heaps:
        for block in heap["blocks"]:
            if block["state"] == "live":
                stack = block.get("stack")
                lines.setdefault(stack[0] if stack else "unknown", []).append(block["size"])
    if not lines:
        return "<p>No array holds memory.</p>"
    note = ""
    if "unknown" in lines:
        note = "<p>Where memory was allocated is known from mpscffi.record_memory_history() on.</p>"
    most = sorted(lines.items(), key=lambda line: sum(line[1]), reverse=True)[:MOST_LINES]
    rows = "".join(
        f"<tr><td>{escape(line)}</td><td>{readable(sum(sizes))}</td><td>{len(sizes)}</td><td>{readable(max(sizes))}</td></tr>"
        for line, sizes in most
    )
    return f"<table><tr><th>line</th><th>in use</th><th>arrays</th><th>largest</th></tr>{rows}</table>{note}"


def page(snapshot: dict[str, Any]) -> str:
    """Return an HTML page that needs nothing else.

    Parameters
    ----------
    snapshot : dict
        As :func:`mpscffi.memory_snapshot` returns it.
    """
    heaps, device, stats = snapshot["heaps"], snapshot["device"], snapshot["stats"]
    bars = []
    for row, heap in enumerate(heaps):
        # Each heap has the whole width: a small one would not be seen beside a large one.
        bars.append(_bar(heap, row * ROW, WIDTH / heap["size"]))
    keys = "".join(f'<span class="key" style="background:{colour}"></span>{name}' for name, colour in COLOURS.items())
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{value}</td><td>{readable(value) if 'bytes' in name else ''}</td></tr>"
        for name, value in stats.items()
    )
    name = escape(f"{device['backend']}:{device['index']} {device['name']}")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Memory of {name}</title>'
        f"<style>{STYLE}</style></head><body><h1>Memory of {name}</h1><p>{keys}</p>"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 10} {max(1, len(heaps)) * ROW}">'
        f"{''.join(bars)}</svg><h2>Who holds memory</h2>{_holders(heaps)}"
        f"<h2>Statistics</h2><table>{rows}</table></body></html>\n"
    )
