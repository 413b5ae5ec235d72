"""One contract: what a program can see is the same on each device, to the bit and to the word.

Each scenario runs on the host device and on the device under test, and says what it saw.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import errors
from mpscffi.capture import is_capturing_metal, is_metal_capture_enabled, metal_capture

Seen = list[object]

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant uint bias [[function_constant(0)]];
struct Item { short kind; float3 at; };

kernel void mix(device uint* x, constant uint& key, uint i [[thread_position_in_grid]]) {
  x[i] = (x[i] ^ key) * 0x9e3779b9u + rotate(x[i], 7u) + popcount(i);
}
kernel void sums(device const float* x, device float* out, threadgroup float* part,
                 uint i [[thread_position_in_grid]], uint l [[thread_index_in_threadgroup]],
                 uint g [[threadgroup_position_in_grid]], uint n [[threads_per_threadgroup]]) {
  part[l] = x[i];
  for (uint step = n / 2; step > 0; step /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (l < step) { part[l] += part[l + step]; }
  }
  if (l == 0) { out[g] = part[0]; }
}
kernel void lanes(device int* out, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  out[i] = simd_prefix_inclusive_sum(int(i)) * 1000 + simd_shuffle_xor(int(lane), 5);
}
kernel void count(device atomic_int* bins, device const uchar* x, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[x[i]], 1, memory_order_relaxed);
}
kernel void halves(device half* y, device const half* x, uint i [[thread_position_in_grid]]) {
  y[i] = fma(x[i], x[i], half(0.5));
}
kernel void items(device const Item* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = x[i].at.z * x[i].kind;
}
kernel void gather(device int* out, device const int* const* table, uint i [[thread_position_in_grid]]) {
  out[i] = table[i][i];
}
kernel void where(device uint* out, uint3 at [[thread_position_in_grid]], uint3 size [[threads_per_grid]],
                  uint3 group [[threadgroup_position_in_grid]]) {
  out[(at.z * size.y + at.y) * size.x + at.x] = group.x + 10 * group.y + 100 * group.z;
}
kernel void biased(device uint* x, uint i [[thread_position_in_grid]]) { x[i] += bias; }
kernel void divide(device int* x, constant int& by) { x[0] = x[0] / by; }
"""


def library() -> Any:
    return mpscffi.compile_shader(SOURCE)


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """What a wrong call raises, and the text."""
    with pytest.raises(mpscffi.Error) as caught:
        call()
    # Metal does not tell a reference from a pointer.
    return type(caught.value).__name__, str(caught.value).replace("&)", "*)")


def kernels() -> Seen:
    source, rng = library(), np.random.default_rng(7)
    x = mpscffi.asarray(rng.integers(0, 2**32, 1000, dtype=np.uint32))
    source.mix(x, 0xDEADBEEF)
    source.mix(x, 77, threads=500, group_size=33)
    sums = mpscffi.zeros(4)
    source.sums(
        mpscffi.asarray(rng.random(1024, dtype=np.float32)), sums, threads=1024, group_size=256, threadgroup_memory=1024
    )
    lanes, bins = mpscffi.zeros(100, dtype=np.int32), mpscffi.zeros(256, dtype=np.int32)
    source.lanes(lanes, group_size=64)
    source.count(bins, mpscffi.asarray(rng.integers(0, 256, 5000, dtype=np.uint8)), threads=5000)
    halves = mpscffi.asarray(rng.standard_normal(300).astype(np.float16))
    source.halves(halves, halves)
    items = np.zeros(5, [("kind", "i2"), ("pad", "V14"), ("at", "f4", 3), ("end", "V4")])
    items["kind"], items["at"] = np.arange(5), rng.random((5, 3), dtype=np.float32)
    places, table = mpscffi.zeros(5 * 6 * 7, dtype=np.uint32), mpscffi.zeros(3, dtype=np.int32)
    at = mpscffi.zeros(5)
    source.items(mpscffi.asarray(items.view(np.uint8)), at, threads=5)
    source.where(places, threads=(7, 6, 5), group_size=(4, 2, 3))
    source.gather(table, [mpscffi.asarray(rng.integers(0, 99, 3, dtype=np.int32)) for _ in range(3)], threads=3)
    source.biased.specialize({"bias": 3})(x)
    return [array.numpy().tobytes() for array in (x, sums, lanes, bins, halves, at, places, table)]


def copies() -> Seen:
    rng = np.random.default_rng(8)
    raw = rng.integers(0, 256, 10_007, dtype=np.uint8)
    x, y = mpscffi.asarray(raw), mpscffi.empty(10_007, dtype=np.uint8)
    y.fill_(0xEE)
    y[5:9001].copy_from(x[3:8999])
    y[9003:9004].fill_(7)
    z = mpscffi.full((3, 5), -2, dtype=np.int16)
    z[1].copy_from(mpscffi.asarray(np.arange(5, dtype=np.int16)))
    return [y.numpy().tobytes(), z.tolist(), z[1:, ::2].tolist(), x.copy().numpy().tobytes(), mpscffi.zeros(0).tolist()]


def numbers() -> Seen:
    seen: Seen = []
    for seed in (0, 2**63 + 5):
        generator = mpscffi.Generator(seed)
        draws: list[Callable[[], mpscffi.Array]] = [
            lambda g=generator: mpscffi.rand(1001, generator=g),
            lambda g=generator: mpscffi.randn(1001, generator=g),
            lambda g=generator: mpscffi.exponential(50, generator=g),
            lambda g=generator: mpscffi.randint(-7, 1000, (333,), generator=g),
            lambda g=generator: mpscffi.bernoulli(0.3, 500, generator=g),
            lambda g=generator: mpscffi.permutation(1000, generator=g),
            lambda g=generator: mpscffi.poisson([0.5, 11, 12, 90, 1e5] * 20, generator=g),
        ]
        for draw in draws:
            seen += [draw().numpy().tobytes(), generator.offset]
    mpscffi.manual_seed(3)
    state = mpscffi.get_rng_state()
    first = mpscffi.rand(10).tolist()
    mpscffi.set_rng_state(state)
    return [*seen, first, mpscffi.rand(10).tolist() == first, bytes(np.asarray(state))]


def events() -> Seen:
    source, event, start = library(), mpscffi.Event(), mpscffi.Event(enable_timing=True)
    one, other = mpscffi.Stream(label="one"), mpscffi.Stream(label="other")
    seen: Seen = [event.query(), repr(event)]
    x = mpscffi.zeros(64, dtype=np.uint32)
    for step in range(8):
        for stream, next_one in ((one, other), (other, one)):
            with mpscffi.stream(stream):
                source.mix(x, step)
                event.record()
            event.wait(next_one)
    end = mpscffi.Event(enable_timing=True)
    start.record(one)
    end.record(one)
    seen += [x.numpy().tobytes(), start.elapsed_time(end) >= 0, end.query(), repr(end)]
    seen.append(refusal(lambda: event.elapsed_time(end)))
    seen.append(refusal(lambda: mpscffi.Event(enable_timing=True).elapsed_time(end)))
    mpscffi.synchronize()
    return [*seen, one.query(), other.query()]


def command_buffers() -> Seen:
    source, stream, calls = library(), mpscffi.Stream(label="calls"), []
    x = mpscffi.zeros(10, dtype=np.uint32)
    serials = [stream.commit()]
    with mpscffi.stream(stream):
        for round_ in range(3):
            source.mix(x, round_)
            stream.add_scheduled_handler(lambda info: calls.append(("scheduled", info.serial, info.end)))
            stream.add_completed_handler(lambda info: calls.append(("completed", info.serial, info.end > 0)))
            stream.add_callback(lambda: calls.append(("callback",)))
            serials.append(stream.commit())
    stream.synchronize()
    infos = [stream.command_info(serial) for serial in serials[1:]]
    told = [(info.serial, info.failed, info.scheduled, 0 < info.start <= info.end) for info in infos]
    # What becomes of one command buffer has an order; the next one may be scheduled before.
    kinds = [[call for call in calls if call[0] == kind] for kind in ("scheduled", "completed")]
    return [serials, kinds, len(calls), told, refusal(lambda: stream.command_info(100)), stream.commit()]


def refusals() -> Seen:
    source, x = library(), mpscffi.zeros(10, dtype=np.uint32)
    calls: list[Callable[[], object]] = [
        lambda: source.mix(x),
        lambda: source.mix(x, 1, 2),
        lambda: source.mix(x, -1),
        lambda: source.mix(mpscffi.zeros(10), 1),
        lambda: source.mix(x[::2], 1),
        lambda: source.mix(x, 1, threads=0.5),
        lambda: source.mix(x, 1, threads=(1, 2, 3, 4)),
        lambda: source.mix(x, 1, group_size=2000),
        lambda: source.sums(x, x, threads=4, threadgroup_memory=1 << 20),
        lambda: source.biased(x),
        lambda: source.biased.specialize({"other": 1})(x),
        lambda: source.biased.specialize({"bias": -1})(x),
        lambda: source.nothing,
        lambda: mpscffi.empty(-1),
        lambda: mpscffi.empty(3, dtype="float64"),
        lambda: mpscffi.zeros(3).copy_from(mpscffi.zeros(4)),
        lambda: mpscffi.set_per_process_memory_fraction(3.0),
        lambda: mpscffi.compile_shader("kernel void f(device int* x) { x[0] = 1; }", math_mode="exact"),
        lambda: mpscffi.load_metallib(3),  # type: ignore[arg-type]
    ]
    wrong = "#include <metal_stdlib>\nusing namespace metal;\nkernel void f(device int* x) { x[0] = nothing; }"
    return [*map(refusal, calls), refusal(lambda: mpscffi.compile_shader(wrong))[0], refusal(calls[0])]


def captures(folder: Path) -> Seen:
    if not is_metal_capture_enabled():
        return []
    source, x = library(), mpscffi.zeros(4, dtype=np.uint32)
    path = folder / "one.gputrace"
    seen: Seen = [is_capturing_metal()]
    with metal_capture(path):
        source.mix(x, 1)
        seen += [is_capturing_metal(), refusal(lambda: metal_capture(folder / "two.gputrace").__enter__())]
    seen += [is_capturing_metal(), path.exists(), x.tolist(), (folder / "two.gputrace").exists()]
    calls: list[Callable[[], object]] = [
        lambda: metal_capture(path).__enter__(),
        lambda: metal_capture(folder / "one.trace"),
        lambda: metal_capture(folder / "none" / "one.gputrace").__enter__(),
    ]
    return seen + [(kind, text.replace(str(folder), "")) for kind, text in map(refusal, calls)]


def fault() -> Seen:
    source, x = library(), mpscffi.ones(1, dtype=np.int32)
    seen: Seen = []
    for look in (mpscffi.synchronize, x.numpy, x.tolist, lambda: x.fill_(1)):
        source.divide(x, 0, threads=1)
        with pytest.raises(errors.ExecutionError, match="'divide'.*zero"):
            look()
        mpscffi.synchronize()
        source.divide(x, 1, threads=1)
        seen.append(x.tolist())
    return seen


def compared(device: mpscffi.Device, scenario: Callable[[], Seen]) -> None:
    try:
        mpscffi.set_device("host")
        expected = scenario()
        mpscffi.set_device(device)
        seen = scenario()
    finally:
        mpscffi.set_device(device)
    assert len(seen) == len(expected)
    for number, (given, wanted) in enumerate(zip(seen, expected, strict=True)):
        assert given == wanted, f"observation {number}"


@pytest.mark.parametrize("scenario", [kernels, copies, numbers, events, command_buffers, refusals])
def test_what_is_seen_is_the_same(device: mpscffi.Device, scenario: Callable[[], Seen]) -> None:
    compared(device, scenario)


def test_captures_are_the_same(device: mpscffi.Device, tmp_path: Path) -> None:
    folders = iter([tmp_path / "host", tmp_path / "device"])

    def scenario() -> Seen:
        folder = next(folders)
        folder.mkdir()
        return captures(folder)

    compared(device, scenario)


def test_faults_are_the_same(device: mpscffi.Device, reports_faults: None) -> None:
    compared(device, fault)
