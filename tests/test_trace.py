"""What is recorded of a device's work, and the forms in which it is written."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpscffi as mps
from mpscffi import profiler, timeline
from mpscffi.averages import averages, table
from mpscffi.tracing import Record

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add_one(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }
kernel void busy(device float* x, uint i [[thread_position_in_grid]]) {
  float s = 0;
  for (int k = 0; k < 100; k++) { s += x[i] + k; }
  x[i] = s;
}
kernel void fault(device ulong* at) { *(device int*)(at[0]) = 1; }
"""

HOSTILE = "</script><script>document.title='broken'</script><b>&\"'\u2028\n"


def record(kind: str = "kernel", name: str = "k", **fields: Any) -> Record:
    given: dict[str, Any] = {
        "queue": "q",
        "queue_number": 1,
        "thread": 7,
        "encoded": 900,
        "start": 1000,
        "end": 3000,
        "bytes": 0,
        "grid": (8, 1, 1),
        "group": (8, 1, 1),
        "together": 1,
        "failed": False,
        "serial": 0,
        "object": 0,
        "id": 1,
    }
    return Record(kind, name, **{**given, **fields})


@pytest.fixture
def library(compiled: Callable[[str], mps.ShaderLibrary]) -> mps.ShaderLibrary:
    return compiled(SOURCE)


@pytest.fixture
def profiled(library: mps.ShaderLibrary) -> profiler.Profile:
    """Two streams, ranges with hostile names, copies, memory, a callback."""
    x, y = mps.zeros(1000), mps.zeros(1 << 20)
    library.add_one(x)
    library.busy(y)
    mps.synchronize()
    other = mps.Stream(label=HOSTILE)
    with profiler.profile() as profile:
        with profiler.range("outer"), profiler.range(HOSTILE):
            for _ in range(3):
                library.add_one(x)
            library.busy(y)
        profiler.mark("half")
        with mps.stream(other):
            library.add_one(mps.zeros(5000))
        other.add_callback(lambda: None)
        event = mps.Event()
        event.record()
        event.wait(other)
    mps.synchronize()
    return profile


# ---- records


def test_each_command_is_recorded_once_with_its_times(library: mps.ShaderLibrary, device: mps.Device) -> None:
    x = mps.zeros(1000)
    library.add_one(x)
    mps.synchronize()
    before = device.timestamps()[1]
    with profiler.profile() as profile:
        for _ in range(4):
            library.add_one(x, group_size=50)
    records = [r for r in profile.records() if r.kind == "kernel"]
    after = device.timestamps()[1]
    assert [r.name for r in records] == ["add_one"] * 4
    for one in records:
        assert before <= one.encoded <= one.end <= after
        assert one.start <= one.end
        assert (one.grid, one.group) == ((1000, 1, 1), (50, 1, 1))
        assert (one.queue, one.together, one.failed) == ("default", 1, False)
        assert one.thread == threading.get_native_id()
    assert len({r.id for r in records}) == 4
    assert x.numpy().tolist() == [5.0] * 1000


def test_work_after_the_end_and_before_the_start_is_not_recorded(library: mps.ShaderLibrary) -> None:
    x = mps.zeros(10)
    library.add_one(x)
    profiler.start()
    library.busy(x)
    profiler.stop()
    library.add_one(x)
    mps.synchronize()
    names = [row.key for row in profiler.key_averages() if row.kind == "kernel"]
    assert names == ["busy"]


def test_work_that_outlasts_the_profile_is_in_it(library: mps.ShaderLibrary, gate: Callable[[], None]) -> None:
    x = mps.zeros(10)
    with profiler.profile() as profile:
        library.add_one(x)
    assert not [r for r in profile._records if r.kind == "kernel"]
    gate()
    assert profile.key_averages()["add_one"].count == 1
    assert profile.key_averages()["add_one"].count == 1  # nothing is counted again


def test_copies_and_memory_have_their_bytes(device: mps.Device, settled: None) -> None:
    with profiler.profile() as profile:
        x = mps.empty(3 << 20, dtype="uint8")
        y = x[:1234].copy(storage="private")
    rows = profile.key_averages()
    copies = [r for r in profile.records() if r.kind == "copy"]
    assert [r.bytes for r in copies] == [y.nbytes]
    created = [r.bytes for r in profile.records() if r.kind in ("buffer create", "heap create")]
    assert max(created) >= x.nbytes
    assert rows["copy"].bytes == 1234


def test_ranges_nest_on_each_thread(device: mps.Device) -> None:
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        ready.wait()
        for _ in range(50):
            with profiler.range(f"outer {number}"), profiler.range(f"inner {number}"):
                profiler.mark(f"mark {number}")

    with profiler.profile() as profile:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = profile.records()
    for number in range(4):
        outer = [r for r in records if r.name == f"outer {number}"]
        inner = [r for r in records if r.name == f"inner {number}"]
        marks = [r for r in records if r.name == f"mark {number}"]
        assert len(outer) == len(inner) == len(marks) == 50
        assert len({r.thread for r in outer + inner + marks}) == 1
        for o, i, m in zip(outer, inner, marks, strict=True):
            assert o.start <= i.start <= m.start <= i.end <= o.end


def test_a_range_works_without_a_profile_and_can_be_entered_again(device: mps.Device) -> None:
    span = profiler.range("again")
    with span:
        pass
    with profiler.profile() as profile, span, span:
        pass
    assert profile.key_averages()["again"].count == 2


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), (b"x", TypeError), ("a\0b", ValueError)])
def test_names_are_checked(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        profiler.range(name)
    with pytest.raises(error):
        profiler.mark(name)


def test_a_full_ring_is_told_of(library: mps.ShaderLibrary) -> None:
    x = mps.zeros(4)
    library.add_one(x)
    mps.synchronize()
    with profiler.profile(capacity=16) as profile:
        for _ in range(40):
            library.add_one(x)
        mps.synchronize()
    rows = profile.key_averages()
    assert rows["add_one"].count <= 16
    assert profile.dropped >= 40 - 16
    assert f"{profile.dropped} records are missing" in rows.table()


@pytest.mark.usefixtures("reports_faults")
def test_failures_are_counted_apart(library: mps.ShaderLibrary) -> None:
    at = mps.full(1, 16, dtype="uint64")
    mps.synchronize()
    with profiler.profile() as profile:
        library.fault(at, threads=1)
    # Reading a profile reports no failure: that is for those who wait.
    row = profile.key_averages()["fault"]
    assert (row.count, row.failed, row.device_time_total) == (1, 1, 0)
    with pytest.raises(mps.errors.ExecutionError, match="fault"):
        mps.synchronize()


def test_a_replayed_graph_is_recorded(library: mps.ShaderLibrary) -> None:
    x = mps.zeros(16)
    with mps.record() as graph:
        library.add_one(x)
        library.busy(x)
    with profiler.profile() as profile:
        graph.replay()
        graph.replay()
    assert {r.key: r.count for r in profile.key_averages() if r.kind == "kernel"} == {"add_one": 2, "busy": 2}


def test_products_of_matrices_are_recorded(device: mps.Device) -> None:
    a, b = mps.ones((5, 7)), mps.ones((7, 3))
    mps.matmul(a, b)
    mps.synchronize()
    with profiler.profile() as profile:
        mps.matmul(a, b)
    found = [r for r in profile.records() if r.kind in ("matmul", "kernel")]
    assert len(found) == 1
    if found[0].kind == "matmul":
        assert (found[0].name, found[0].grid) == ("matmul", (3, 5, 1))
    assert found[0].encoded <= found[0].start <= found[0].end


# ---- sums


def test_averages_are_right() -> None:
    rows = averages(
        [
            record(start=1000, end=3000),
            record(start=4000, end=10000, encoded=3500),
            record(start=20000, end=90000, failed=True),
            record("copy", "copy", start=0, end=4000, together=4, bytes=100, encoded=0),
            record("range", "r", start=5000, end=9000),
        ]
    )
    kernel = rows["k"]
    assert (kernel.count, kernel.failed) == (3, 1)
    assert (kernel.device_time_total, kernel.device_time) == (8.0, 4.0)
    assert (kernel.device_time_min, kernel.device_time_max) == (2.0, 6.0)
    assert kernel.wait_time_total == pytest.approx(0.6)
    assert rows["copy"].device_time_total == 1.0  # its share of four that were timed together
    assert rows["copy"].bytes == 100
    assert (rows["r"].cpu_time_total, rows["r"].device_time_total) == (4.0, 0.0)
    assert [row.key for row in rows] == ["k", "copy", "r"]
    with pytest.raises(KeyError):
        rows["absent"]


def test_table_sorts_and_cuts() -> None:
    rows = averages([record(name=n, end=1000 + t) for n, t in (("a", 100), ("b", 300), ("b", 50), ("c", 200))])
    assert [line.split()[0] for line in rows.table().splitlines()[2:5]] == ["b", "c", "a"]
    assert [line.split()[0] for line in rows.table("key").splitlines()[2:5]] == ["a", "b", "c"]
    assert rows.table("count").splitlines()[2].split()[:3] == ["b", "kernel", "2"]
    assert "2 more rows" in rows.table(row_limit=1)
    assert len(rows.table(row_limit=-1).splitlines()) == 6
    with pytest.raises(ValueError, match="sort_by='speed', expected one of key"):
        rows.table("speed")


def test_a_name_with_line_breaks_is_one_row() -> None:
    assert len(table(["Name"], [["a\nb\x1b[31m"]]).splitlines()) == 3
    assert "\x1b" not in table(["Name"], [["a\nb\x1b[31m"]])


# ---- the trace event format


def check_trace_events(document: Any) -> list[dict[str, Any]]:
    """Hold a document against the trace event format: what each phase must have, and of which type."""
    needed: dict[str, dict[str, type | tuple[type, ...]]] = {
        "X": {"dur": (int, float)},
        "M": {"args": dict},
        "i": {"s": str},
        "C": {"args": dict},
    }
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        common = {"name": str, "ph": str, "pid": int, "tid": int, "ts": (int, float)}
        for field, kind in {**common, **needed[event["ph"]]}.items():
            assert isinstance(event[field], kind), (field, event)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
    return list(document["traceEvents"])


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of one lane lie apart or within each other: that is what viewers can draw."""
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        open_until: list[float] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)


def test_chrome_trace_is_well_formed(profiled: profiler.Profile, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    events = check_trace_events(document)
    check_nesting(events)
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event.get("cat", event["ph"]), []).append(event)
    assert [e["name"] for e in by_kind["kernel"]].count("add_one") == 4
    assert {e["name"] for e in by_kind["range"]} == {"outer", HOSTILE}
    assert [e["name"] for e in by_kind["mark"]] == ["half"]
    assert len(by_kind["callback"]) == 1
    assert by_kind["signal"] and by_kind["wait"] and by_kind["command buffer"]
    # In the order in which they ran, which is the streams' own affair.
    grids = [e["args"]["grid"] for e in by_kind["kernel"] if e["name"] == "add_one"]
    assert sorted(grids) == [[1000, 1, 1]] * 3 + [[5000, 1, 1]]
    threads = {(e["pid"], e["tid"]) for e in by_kind["M"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= threads
    names = {e["args"]["name"] for e in by_kind["M"]}
    assert {"default", HOSTILE, "MainThread", mps.get_name()} <= names


def test_commands_that_share_a_time_follow_each_other(tmp_path: Path, device: mps.Device) -> None:
    shared = [record(start=1000, end=5000, together=4, id=i) for i in range(4)]
    timeline.write_chrome_trace(tmp_path / "t.json", shared, 0)
    events = check_trace_events(json.loads((tmp_path / "t.json").read_text()))
    slices = [(e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)]
    assert all(e["args"]["timed_together"] == 4 for e in events if e["ph"] == "X")


def test_memory_counters_add_up(tmp_path: Path, device: mps.Device) -> None:
    records = [
        record("buffer create", bytes=100, start=1, end=1),
        record("heap create", bytes=4096, start=2, end=2),
        record("buffer release", bytes=30, start=3, end=3),
    ]
    timeline.write_chrome_trace(tmp_path / "t.json", records, 0)
    events = check_trace_events(json.loads((tmp_path / "t.json").read_text()))
    counters = [(e["name"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("buffers since the start", 100),
        ("heaps since the start", 4096),
        ("buffers since the start", 70),
    ]


def test_an_empty_profile_can_be_written(tmp_path: Path, device: mps.Device) -> None:
    with profiler.profile("") as profile:
        mps.zeros(4)
    assert len(profile.key_averages()) == 0
    profile.export_chrome_trace(tmp_path / "t.json")
    profile.export_html(tmp_path / "t.html")
    check_trace_events(json.loads((tmp_path / "t.json").read_text()))


# ---- the page


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_page_is_self_contained_and_names_cannot_break_out(profiled: profiler.Profile, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    profiled.export_html(path)
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert [attributes.get("id") for tag, attributes in page.tags if tag == "script"] == ["data", None]
    assert not [t for t in page.tags if t[0] in ("b", "link", "img", "iframe")]
    assert not [t for t in page.tags if t[1].get("src") or t[1].get("href")]
    assert "http" not in text.replace("http-equiv", "")
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    kernels = [event[0] for lane in data["lanes"] for event in lane["events"] if event[1] == "kernel"]
    assert sorted(kernels) == ["add_one"] * 4 + ["busy"]
    assert any(event[0] == HOSTILE for lane in data["lanes"] for event in lane["events"])
    assert any(row[0] == HOSTILE for row in data["rows"])


_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(_BROWSER is None, reason="no Chromium: the page is drawn by a browser only")
def test_page_draws_itself_in_a_browser(profiled: profiler.Profile, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    profiled.export_html(path)
    # The page tells what it has drawn once its own script has run through.
    probe = """<script>
      const events = data.lanes.flatMap((lane) => lane.events.map((event) => [lane, event]));
      const has = (color) => {
        const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < pixels.length; i += 4)
          if (`${pixels[i]},${pixels[i + 1]},${pixels[i + 2]}` === color) return true;
        return false;
      };
      const see = (kind) => {
        const [lane, event] = events.find(([, e]) => e[1] === kind);
        show(event[2], event[2] + event[3]);
        return [lane, event];
      };
      see("kernel");
      const kernel = has("76,141,214"), first = see("range"), range = has("88,168,104");
      const x = (first[1][2] + first[1][3] / 2 - from) / (to - from) * width;
      const y = first[0].top + LABEL + first[1].row * ROW + 4;
      const box = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
      const tip = byId("tip").textContent;
      const before = to - from;
      canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, cancelable: true }));
      document.body.dataset.result = JSON.stringify({ title: document.title, range, kernel, tip,
        zoomed: to - from < before, rows: byId("table").rows.length,
        legend: byId("legend").textContent });
    </script></html>"""
    path.write_text(path.read_text(encoding="utf-8").replace("</html>", probe), encoding="utf-8")
    assert _BROWSER is not None
    shown = subprocess.run(
        [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/browser", "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    ).stdout  # fmt: skip
    found = re.search(r'data-result="([^"]*)"', shown)
    assert found is not None, shown[-2000:]
    result = json.loads(html.unescape(found[1]))
    assert result["title"] == "mpscffi profile"
    assert (result["range"], result["kernel"], result["zoomed"]) == (True, True, True)
    assert result["tip"].startswith(("outer\nrange, ", HOSTILE + "\nrange, "))
    assert result["rows"] > 4
    assert "kernel" in result["legend"]
