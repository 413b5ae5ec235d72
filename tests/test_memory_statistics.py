"""Statistics, the log, snapshots and what the allocator writes, as users see them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import mpscffi
from mpscffi import errors

pytestmark = pytest.mark.usefixtures("device", "settled")

MIB = 1 << 20


@pytest.fixture
def history() -> Iterator[None]:
    mpscffi.record_memory_history()
    yield
    mpscffi.record_memory_history(False)


def test_statistics_follow_arrays() -> None:
    mpscffi.reset_accumulated_memory_stats()
    mpscffi.reset_peak_memory_stats()
    before = mpscffi.memory_stats()
    assert all(type(value) is int for value in before.values())
    assert before["allocation.all.allocated"] == before["num_alloc_retries"] == 0
    arrays = [mpscffi.empty(MIB) for _ in range(3)]
    del arrays[0]
    after = mpscffi.memory_stats()
    assert after["allocation.large_pool.current"] == before["allocation.large_pool.current"] + 2
    assert after["allocation.all.allocated"] == 3
    assert after["allocation.all.freed"] == 1
    assert after["allocated_bytes.all.allocated"] == 12 * MIB
    assert after["allocated_bytes.all.current"] == mpscffi.current_allocated_memory() == 8 * MIB
    assert after["allocated_bytes.all.peak"] == mpscffi.max_memory_allocated() == 12 * MIB
    assert after["driver_bytes.all.current"] == mpscffi.driver_allocated_memory()
    assert after["reserved_bytes.all.current"] >= 8 * MIB
    mpscffi.reset_peak_memory_stats()
    assert mpscffi.max_memory_allocated() == 8 * MIB
    mpscffi.reset_accumulated_memory_stats()
    del arrays
    again = mpscffi.memory_stats()
    assert (again["allocation.all.allocated"], again["allocation.all.freed"]) == (0, 2)


def test_summary_is_a_table() -> None:
    array = mpscffi.empty(MIB)
    lines = mpscffi.memory_summary().splitlines()
    assert lines[0].startswith(f"Memory of {mpscffi.current_device().backend}:0 ")
    large = next(line for line in lines if line.startswith("large"))
    assert re.match(r"large +4\.00 MiB +[\d.]+ \wiB +1 +28\.00 MiB +1 +32\.00 MiB +[\d.]+ \wiB +\d+$", large)
    assert len({len(line) for line in lines[1:8]}) == 1
    assert "limit" in lines[-2]
    assert array.size == MIB


@pytest.mark.usefixtures("history")
def test_the_log_and_the_stacks() -> None:
    kept = mpscffi.empty(1000)
    mpscffi.empty(3 * MIB)
    snapshot = mpscffi.memory_snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    allocations = [entry for entry in snapshot["history"] if entry["action"] == "allocate"]
    assert [entry["size"] for entry in allocations] == [4000, 12 * MIB]
    assert {entry["stream"] for entry in allocations} == {mpscffi.current_stream().label}
    assert all("stream" in entry for entry in snapshot["history"])
    assert all("test_the_log_and_the_stacks" in entry["stack"][0] for entry in allocations)
    assert all(__file__ in entry["stack"][0] for entry in allocations)
    frees = [entry["id"] for entry in snapshot["history"] if entry["action"] == "free"]
    assert frees == [allocations[1]["id"]]
    live = [block for heap in snapshot["heaps"] for block in heap["blocks"] if block["state"] == "live"]
    assert [block["requested"] for block in live if "requested" in block] == [4000]
    cached = [block for heap in snapshot["heaps"] for block in heap["blocks"] if block["state"] == "cached"]
    assert 12 * MIB in [block["size"] for block in cached]
    for heap in snapshot["heaps"]:
        assert sum(block["size"] for block in heap["blocks"]) == heap["size"]
    assert kept.size == 1000


@pytest.mark.usefixtures("history")
def test_the_log_sees_every_allocation_also_repeated_ones() -> None:
    for _ in range(5):
        mpscffi.empty(77)
    actions = [entry["action"] for entry in mpscffi.memory_snapshot()["history"]]
    assert actions.count("allocate") == actions.count("free") == 5
    mpscffi.empty_cache()
    assert "empty_cache" in [entry["action"] for entry in mpscffi.memory_snapshot()["history"]]


def test_the_log_is_bounded_and_stops() -> None:
    mpscffi.record_memory_history(stacks=False, max_entries=3)
    for _ in range(5):
        mpscffi.empty(10)
    entries = mpscffi.memory_snapshot()["history"]
    assert len(entries) == 3
    assert not any("stack" in entry for entry in entries)
    mpscffi.record_memory_history(False)
    mpscffi.empty(10)
    assert mpscffi.memory_snapshot()["history"] == []


def test_arrays_that_outlive_the_log() -> None:
    before = mpscffi.empty(10)
    mpscffi.record_memory_history()
    during = mpscffi.empty(20)
    del before
    mpscffi.record_memory_history(False)
    del during
    assert mpscffi.current_allocated_memory() == 0
    mpscffi.empty_cache()
    assert mpscffi.memory_stats()["reserved_bytes.all.current"] == 0


@pytest.mark.parametrize(("entries", "kind"), [(0, ValueError), (-1, ValueError), ("9", TypeError), (True, TypeError)])
def test_sizes_of_the_log(entries: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="max_entries"):
        mpscffi.record_memory_history(max_entries=entries)
    mpscffi.record_memory_history(max_entries=1 << 70)
    mpscffi.record_memory_history(False)


class Page(HTMLParser):
    """Counts elements, and notes what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.loads: list[str] = []
        self.states: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [str(value) for name, value in attributes if name in ("src", "href")]
        if tag == "rect":
            width = dict(attributes)["width"]
            assert width is not None
            assert float(width) > 0

    def handle_data(self, data: str) -> None:
        if self.get_starttag_text() == "<title>":
            self.states.append(data.split(":")[0])


@pytest.mark.usefixtures("history")
def test_saved_snapshots(tmp_path: Path) -> None:
    arrays = [mpscffi.empty(MIB) for _ in range(3)]
    del arrays[1]
    mpscffi.save_memory_snapshot(tmp_path / "memory.json")
    saved = json.loads((tmp_path / "memory.json").read_text())
    assert saved["heaps"] == mpscffi.memory_snapshot()["heaps"]
    mpscffi.save_memory_snapshot(str(tmp_path / "memory.html"))
    page = Page()
    page.feed((tmp_path / "memory.html").read_text())
    assert page.loads == []
    assert page.seen.count("svg") == 1
    blocks = [block for heap in saved["heaps"] if heap["pool"] == "large" for block in heap["blocks"]]
    assert [block["state"] for block in blocks] == ["live", "cached", "live", "free"]
    assert page.states[-4:] == ["free", "live", "cached", "live"]  # what is there is drawn over what is free
    assert "test_saved_snapshots" in (tmp_path / "memory.html").read_text()


def test_a_page_shows_narrow_blocks_scales_and_who_holds_memory(tmp_path: Path) -> None:
    from mpscffi.memory.picture import page

    gib = 1 << 30
    blocks = [
        {"offset": 0, "size": 4096, "state": "live", "stack": ["train.py:3 step"]},
        {"offset": 4096, "size": gib // 2 - 4096, "state": "free"},
        {"offset": gib // 2, "size": gib // 2, "state": "live", "stack": ["train.py:7 <module>"]},
    ]
    small = [
        {"offset": 0, "size": MIB, "state": "live", "stack": ["train.py:3 step"]},
        {"offset": MIB, "size": MIB, "state": "live"}, {"offset": 2 * MIB, "size": 6 * MIB, "state": "cached"},
    ]  # fmt: skip
    snapshot = mpscffi.memory_snapshot() | {
        "heaps": [
            {"number": 1, "pool": "large", "size": gib, "blocks": blocks},
            {"number": 2, "pool": "small", "size": 8 * MIB, "blocks": small},
        ]
    }
    text = page(snapshot)
    assert min(float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', text)) == 1.5
    assert "50% in use, a tick each 256.00 MiB" in text
    assert "25% in use, a tick each 2.00 MiB" in text
    assert text.count("<line ") == 10
    assert re.search(r'<svg [^>]*viewBox="0 0 \d+ 52"', text)
    rows = re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td><td>(\d+)</td><td>([^<]*)</td></tr>", text)
    assert rows == [
        ("train.py:7 &lt;module&gt;", "512.00 MiB", "1", "512.00 MiB"),
        ("train.py:3 step", "1.00 MiB", "2", "1.00 MiB"),
        ("unknown", "1.00 MiB", "1", "1.00 MiB"),
    ]
    assert "record_memory_history()" in text


def test_snapshots_that_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'x.png', expected a name that ends in .json or .html"):
        mpscffi.save_memory_snapshot("x.png")
    with pytest.raises(TypeError, match="path of type int"):
        mpscffi.save_memory_snapshot(3)  # type: ignore[arg-type]
    with pytest.raises(errors.FileError, match="nowhere"):
        mpscffi.save_memory_snapshot(tmp_path / "nowhere" / "x.json")


# ---- limits from the API


def test_limits_read_back() -> None:
    recommended = mpscffi.recommended_max_memory()
    mpscffi.set_per_process_memory_fraction(0.5)
    assert mpscffi.get_per_process_memory_fraction() == 0.5
    # The low mark gives way to the high one.
    assert mpscffi.memory_limits() == (0.5, 0.5, recommended // 2, recommended // 2, None)
    mpscffi.set_low_watermark_ratio(0.25)
    assert mpscffi.memory_limits().low_limit == recommended // 4
    with pytest.raises(ValueError, match=r"0.75, which is above the high ratio, 0.5"):
        mpscffi.set_low_watermark_ratio(0.75)
    mpscffi.set_low_watermark_ratio(0.0)
    assert mpscffi.memory_limits().low_limit is None
    mpscffi.set_low_watermark_ratio(None)
    mpscffi.set_per_process_memory_fraction(0.0)
    assert mpscffi.memory_limits() == (0.0, 1.4, None, int(1.4 * recommended), None)


@pytest.mark.parametrize("ratio", [1, "0.5", -0.1, 2.1, float("nan")])
def test_low_ratios_that_are_refused(ratio: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="set_low_watermark_ratio"):
        mpscffi.set_low_watermark_ratio(ratio)


def test_cache_limit() -> None:
    assert mpscffi.get_cache_limit() is None
    base = mpscffi.driver_allocated_memory()
    mpscffi.set_cache_limit(64 * MIB)
    assert mpscffi.get_cache_limit() == mpscffi.memory_limits().cache_limit == 64 * MIB
    arrays = [mpscffi.empty(10 * MIB) for _ in range(3)]
    del arrays
    assert mpscffi.driver_allocated_memory() <= base + 64 * MIB
    mpscffi.set_cache_limit(0)
    assert mpscffi.driver_allocated_memory() == base
    mpscffi.empty(10 * MIB)
    assert mpscffi.driver_allocated_memory() == base
    mpscffi.set_cache_limit(None)
    mpscffi.empty(10 * MIB)
    assert mpscffi.driver_allocated_memory() > base


@pytest.mark.parametrize(("limit", "kind"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (True, TypeError)])
def test_cache_limits_that_are_refused(limit: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="set_cache_limit"):
        mpscffi.set_cache_limit(limit)


def test_failure_callbacks() -> None:
    wanted: list[int] = []
    mpscffi.add_allocation_failure_callback(wanted.append)
    try:
        mpscffi.set_per_process_memory_fraction(
            (mpscffi.driver_allocated_memory() + 8 * MIB) / mpscffi.recommended_max_memory()
        )
        with pytest.raises(MemoryError):
            mpscffi.empty(16 * MIB)
        assert wanted == [64 * MIB]
    finally:
        mpscffi.remove_allocation_failure_callback(wanted.append)
    with pytest.raises(LookupError, match="was not added"):
        mpscffi.remove_allocation_failure_callback(wanted.append)
    with pytest.raises(TypeError, match="got int"):
        mpscffi.add_allocation_failure_callback(3)  # type: ignore[arg-type]


# ---- what is written


DEBUG_SCRIPT = """
    import mpscffi
    array = mpscffi.empty(1000)
    large = mpscffi.empty(1 << 20)
    del array, large
    mpscffi.empty_cache()
    mpscffi.set_per_process_memory_fraction(1e-9)
    try:
        mpscffi.empty(1 << 20)
    except MemoryError:
        pass
"""


@pytest.mark.parametrize(
    ("bits", "there", "missing"),
    [
        ("1", ["recommended maximum", "limit", "no room for 4.00 MiB: run callbacks"], ["recycled", "allocated "]),
        ("2", ["created heap 1 of 8.00 MiB: small pool", "allocated 4.00 KiB for 4000 bytes: small"], ["released"]),
        ("0x4", ["recycled 4.00 KiB: small pool", "recycled 4.00 MiB: large pool"], ["allocated "]),
        ("010", ["released heap 1 of 8.00 MiB: small pool; in use 0 bytes, reserved"], ["recycled", "allocated "]),
        ("22", ["allocated 4.00 MiB", "recycled 4.00 MiB"], ["allocated 4.00 KiB", "recycled 4.00 KiB"]),
        ("0", [], ["allocator"]),
    ],
)
def test_debug_lines(python: Any, bits: str, there: list[str], missing: list[str], device: mpscffi.Device) -> None:
    result = python(DEBUG_SCRIPT, PYTORCH_DEBUG_MPS_ALLOCATOR=bits, MPSCFFI_DEVICE=device.backend)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert all(line.startswith("mpscffi: allocator: ") for line in lines if "allocator" in line)
    for text in there:
        assert any(text in line for line in lines), result.stderr
    for text in missing:
        assert text not in result.stderr, result.stderr
