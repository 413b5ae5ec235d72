"""Validated kernels of metallibs: the same findings, without lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from air_modules import Body, Kernel, constant, device, given, metallib, threadgroup

import mpscffi
from mpscffi.errors import ExecutionError
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


def passes(run: Callable[[], Any]) -> None:
    run()
    mpscffi.synchronize()


def failure(run: Callable[[], Any]) -> str:
    with pytest.raises(ExecutionError) as caught:
        passes(run)
    return str(caught.value)


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
