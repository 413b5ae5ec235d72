"""Validated kernels of metallibs: the same findings, with the lines that the file tells of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from air_modules import Body, Kernel, Source, constant, device, given, metallib, threadgroup
from failures import failure

import mpscffi
from mpscffi.mslc.air.translate import translate
from mpscffi.mslc.errors import CompilerMissing
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("validation of metallibs")]
try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))


@pytest.fixture(autouse=True)
def _host() -> Iterator[None]:
    before = mpscffi.current_device()
    mpscffi.set_device("host")
    yield
    mpscffi.set_device(before)


def shift() -> Kernel:
    """x[i] = y[i + n]"""
    body = Body()
    n = body.value("load i32, ptr addrspace(2) %2, align 4")
    place = body.value(f"add i32 {n}, %3")
    body.store("float", body.load("float", "%1", place), "%0", "%3")
    parameters = [device("x", 0), device("y", 1, access="read"), constant("n", 2), given("thread_position_in_grid")]
    return Kernel("shift", parameters, body.text)


@pytest.fixture(scope="module")
def library() -> bytes:
    return metallib([shift()])


@pytest.mark.parametrize("way", ["bytes", "path", "environment"])
def test_accesses_outside_of_buffers(library: bytes, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.metallib").write_bytes(library)
    if way == "environment":
        monkeypatch.setattr("mpscffi.validation.settings", lambda: mpscffi.config.Settings(shader_validation=True))
        kernel = mpscffi.load_metallib(library).shift
    else:
        kernel = mpscffi.load_metallib(library if way == "bytes" else tmp_path / "a.metallib", validate=True).shift
    x, y = mpscffi.zeros(8), mpscffi.asarray(np.arange(8, dtype="f4"))
    kernel(x, y, 0)
    assert x.tolist() == list(range(8))
    text = failure(lambda: kernel(x, y, 3, group_size=4))
    assert "kernel 'shift' failed: read 4 bytes, outside of buffer 'y' (index 1) of 32 bytes: offset 32;" in text
    assert "thread (5, 0, 0) of threadgroup (1, 0, 0); and 2 more;" in text
    assert x.numpy().tolist() == [3, 4, 5, 6, 7, 0, 0, 0]
    text = failure(lambda: kernel(x[4:], y, 0, threads=8))
    assert "wrote 4 bytes, outside of buffer 'x' (index 0) of 16 bytes: offset 16;" in text


@pytest.mark.parametrize(
    ("location", "source", "place"),
    [
        (1012, Source("shift.metal"), " at shift.metal:12"),
        (1012, Source("/src/d\\C3\\A9j\\C3\\A0 vu.metal"), " at /src/déjà vu.metal:12"),
        (3012, Source("shift.metal", "helpers.h"), " at helpers.h:12"),
        (3012, Source("shift.metal", "include/metal/metal_atomic"), " at shift.metal:40"),  # Metal's own header
        (0, Source("shift.metal"), ""),
        (0, None, ""),
    ],
)  # fmt: skip
def test_lines(location: int, source: Source | None, place: str) -> None:
    body = Body()
    body.location = location
    body.call("air.wg.barrier", "void", "i32 2", "i32 1")
    body.store("float", body.load("float", "%1", "%2"), "%0", "%2")
    parameters = [device("x", 0), device("y", 1, access="read"), given("thread_position_in_grid")]
    kernel = Kernel("copy", parameters, body.text, top=body.top, source=source)
    copy = mpscffi.load_metallib(metallib([kernel]), validate=True).copy
    x, y = mpscffi.zeros(8), mpscffi.ones(8)
    text = failure(lambda: copy(x[4:], y, threads=8))
    assert f"kernel 'copy' failed: wrote 4 bytes{place}, outside of buffer 'x' (index 0) of 16 bytes" in text
    text = failure(lambda: copy(x, y[4:], threads=8))
    assert f"kernel 'copy' failed: read 4 bytes{place}, outside of buffer 'y' (index 1) of 16 bytes" in text


def test_lines_of_a_function_that_is_called() -> None:
    top = (
        "define internal void @helper(ptr addrspace(1) %0) #0 !dbg !906 {\n"
        "  store float 1.0, ptr addrspace(1) %0, align 4, !dbg !2012\n  ret void\n}\n"
    )
    body = "  call void @helper(ptr addrspace(1) %0), !dbg !1004"
    kernel = Kernel("k", [device("x", 0)], body, top=top, source=Source("k.metal", "helpers.h"))
    run = mpscffi.load_metallib(metallib([kernel]), validate=True).k
    assert "wrote 4 bytes at helpers.h:12, outside of buffer 'x'" in failure(lambda: run(mpscffi.ones(0), threads=1))


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("helper", "helper"),
        ("_ZL6helperPU9MTLdevicefj", "_ZL6helperPU9MTLdevicefj"),
        ("_Z6helperPU9MTLdevicefj", "helper"),
        ("_ZN5inner3OpsIfE6helperEf", "inner::Ops"),
    ],
)
def test_without_lines_the_function_is_told(symbol: str, name: str) -> None:
    body = Body()
    body.store("float", "1.0", "%0", "%1")
    top = f"define internal void @{symbol}(ptr addrspace(1) %0, i32 %1) #0 {{\n{body.text}\n  ret void\n}}\n"
    call = f"  call void @{symbol}(ptr addrspace(1) %0, i32 %1)"
    kernel = Kernel("k", [device("x", 0), given("thread_position_in_grid")], call, top=top)
    run = mpscffi.load_metallib(metallib([kernel]), validate=True).k
    assert f"wrote 4 bytes in '{name}', outside of buffer 'x'" in failure(lambda: run(mpscffi.ones(2), threads=3))


def test_constants_are_bounded_and_addresses_of_nothing_are_found() -> None:
    body = Body()
    body.store("float", body.load("float", "%1", "%2", space=2), "%0", "%2")
    parameters = [device("x", 0), constant("c", 1, "float"), given("thread_position_in_grid")]
    kernel = mpscffi.load_metallib(metallib([Kernel("k", parameters, body.text)]), validate=True).k
    x = mpscffi.zeros(2)
    kernel(x, 3.0, threads=1)
    assert x.tolist() == [3, 0]
    text = failure(lambda: kernel(x, 3.0, threads=2))
    assert "read 4 bytes, outside of buffer 'c' (index 1) of 4 bytes: offset 4" in text
    wild = "  %p = inttoptr i64 4096 to ptr addrspace(1)\n  store float 1.0, ptr addrspace(1) %p, align 4"
    run = mpscffi.load_metallib(metallib([Kernel("k", [device("x", 0)], wild)]), validate=True).k
    assert "wrote 4 bytes, at address 0x1000, which belongs to nothing" in failure(lambda: run(x, threads=1))


def test_lines_of_a_race() -> None:
    body = Body()
    body.location = 1003
    value = body.load("float", "%0", "0")
    body.location = 1004
    body.store("float", body.value(f"fadd float {value}, 1.0"), "%0", "0")
    kernel = Kernel("race", [device("x", 0), given("thread_position_in_grid")], body.text, source=Source("r.metal"))
    race = mpscffi.load_metallib(metallib([kernel]), validate=True).race
    text = failure(lambda: race(mpscffi.ones(8), threads=2))
    assert "at r.metal:3" in text and "r.metal:4" in text


@pytest.mark.parametrize(
    "damage",
    [
        "!907 = distinct !DILexicalBlock(scope: !907, file: !901, line: 2)",
        "!905 = distinct !{!905}",
        "!901 = !{}",
        "!1012 = !{}",
        "!1012 = distinct !DILocation(line: 1, scope: !907, inlinedAt: !1012)",
        "!1012 = !DILocation(line: 1, scope: !99999)",
    ],
)
def test_lines_that_make_no_sense_are_none(damage: str) -> None:
    body = Body()
    body.location = 1012
    body.store("float", "1.0", "%0", "%1")
    kernel = Kernel("k", [device("x", 0), given("thread_position_in_grid")], body.text, source=Source("r.metal"))
    number = damage.partition(" ")[0]
    # As text, since LLVM would refuse to write most of it.
    text = re.sub(rf"^{number} = .*", damage, kernel.text(), flags=re.MULTILINE)
    module = translate(text, "k", {}, validate=True)
    assert "!dbg !1012" not in module
    assert "line: 12," not in module


def test_without_it_nothing_is_checked(library: bytes) -> None:
    x, y = mpscffi.zeros(8), mpscffi.ones(8)
    mpscffi.load_metallib(library, validate=False).shift(x, y[:4], 0)
    mpscffi.synchronize()
    assert x.tolist() == [1] * 8


def test_threadgroup_memory_and_races() -> None:
    body = Body()
    x = body.load("float", "%0", "%2")
    body.store("float", x, "%1", "%2", space=3)
    body.call("air.wg.barrier", "void", "i32 2", "i32 1")
    other = body.value("add i32 %2, 1")
    body.store("float", body.load("float", "%1", other, space=3), "%0", "%2")
    kernel = Kernel(
        "turn",
        [device("x", 0), threadgroup("t", 0), given("thread_position_in_threadgroup")],
        body.text,
        top=body.top,
    )
    turn = mpscffi.load_metallib(metallib([kernel]), validate=True).turn
    text = failure(lambda: turn(mpscffi.ones(8), threads=8, group_size=8, threadgroup_memory=32))
    assert "read 4 bytes, outside of threadgroup argument 't' (index 0) of 32 bytes: offset 32;" in text


def test_what_is_no_metallib_is_not_validated(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF")
    with pytest.raises(ValueError, match="validate: only metallibs"):
        mpscffi.load_metallib(tmp_path / "a.so", validate=True)
    with pytest.raises(FileNotFoundError):
        mpscffi.load_metallib(tmp_path / "missing.metallib", validate=True)
