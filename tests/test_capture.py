"""Captures: what they refuse, what they hold, and that they run again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from air_modules import Body, Kernel, given, metallib
from air_modules import device as device_parameter

import mpscffi
from mpscffi import errors
from mpscffi.__main__ import main
from mpscffi.capture import is_capturing_metal, is_metal_capture_enabled, metal_capture
from mpscffi.replay import Bundle, cut, replay

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant uint bias [[function_constant(3)]];
kernel void scale(device float* y, constant float& a, uint i [[thread_position_in_grid]]) { y[i] *= a; }
kernel void gather(device int* out, device int* const* tables [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = tables[i][0];
}
kernel void biased(device uint* out, threadgroup uint* part, uint i [[thread_position_in_grid]]) {
  part[i] = i + bias;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = part[i ^ 1];
}
kernel void wild(device int* out) { *(device int*)(16ul) = 1; out[0] = 1; }
"""


@pytest.fixture
def capturing(device: mpscffi.Device) -> mpscffi.Device:
    """A device that can capture."""
    if not is_metal_capture_enabled():
        pytest.skip("on Metal, only with MTL_CAPTURE_ENABLED=1 in the environment at the start")
    return device


def captured(path: Path, work: Callable[[], object]) -> Bundle:
    with metal_capture(path):
        work()
    return Bundle(str(path))


# ---- preconditions


def test_enabled_and_active(capturing: mpscffi.Device, tmp_path: Path) -> None:
    assert is_metal_capture_enabled()
    assert not is_capturing_metal()
    with metal_capture(tmp_path / "a.gputrace") as path:
        assert is_capturing_metal()
        assert path == str(tmp_path / "a.gputrace")
    assert not is_capturing_metal()


def test_a_document_of_work_that_is_done(capturing: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    path = tmp_path / "a.gputrace"
    x = mpscffi.asarray(np.arange(100, dtype=np.float32))
    with metal_capture(path):
        compiled(SOURCE).scale(x, 3.0)
        assert is_capturing_metal()
    assert mpscffi.current_stream().query()  # it was waited for
    np.testing.assert_array_equal(x.numpy(), 3 * np.arange(100, dtype=np.float32))
    assert path.is_dir()
    if capturing.backend == "host":
        assert {entry.name for entry in path.iterdir()} == {"README.txt", "buffers", "commands.jsonl", "libraries"}
        assert "mpscffi replay" in (path / "README.txt").read_text()


def test_a_block_that_raises_stops_the_capture_and_its_work_is_done(
    capturing: mpscffi.Device, tmp_path: Path, compiled: Any
) -> None:
    x = mpscffi.ones(100)

    def fail() -> None:
        compiled(SOURCE).scale(x, 3.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), metal_capture(tmp_path / "a.gputrace"):
        fail()
    assert not is_capturing_metal()
    assert (tmp_path / "a.gputrace").is_dir()
    assert mpscffi.current_stream().query()
    assert x.tolist() == [3.0] * 100
    # A start that fails leaves nothing that captures, and the next one works.
    with pytest.raises(FileExistsError):
        metal_capture(tmp_path / "a.gputrace")
    with metal_capture(tmp_path / "b.gputrace"):
        mpscffi.ones(4).copy_from(x[:4])
    assert (tmp_path / "b.gputrace").is_dir()


def test_where_captures_are_not_enabled(device: mpscffi.Device, python: Any, tmp_path: Path) -> None:
    script = f"""
        import mpscffi
        from mpscffi.capture import is_capturing_metal, is_metal_capture_enabled, metal_capture
        print(is_metal_capture_enabled(), is_capturing_metal())
        try:
            with metal_capture({str(tmp_path / "a.gputrace")!r}):
                print("captured")
        except mpscffi.errors.UnsupportedError as error:
            print("MTL_CAPTURE_ENABLED" in str(error))
    """
    done = python(script, MPSCFFI_DEVICE=device.backend, MTL_CAPTURE_ENABLED="0")
    assert done.stderr == ""
    assert done.stdout.split() == (
        ["True", "False", "captured"] if device.backend == "host" else ["False", "False", "True"]
    )


@pytest.mark.parametrize("name", ["a", "a.trace", ".gputrace", "a\0.gputrace", "a.gputrace.zip"])
def test_a_wrong_name(capturing: mpscffi.Device, tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r'ends in "\.gputrace"'):
        metal_capture(f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [None, 3, b"a.gputrace"])
def test_a_wrong_type(capturing: mpscffi.Device, name: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=type(name).__name__):
        metal_capture(name)


def test_what_exists_is_not_overwritten(capturing: mpscffi.Device, tmp_path: Path) -> None:
    path = tmp_path / "a.gputrace"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"a\.gputrace"):
        metal_capture(path)
    assert path.read_text() == "mine"
    path.unlink()
    capture = metal_capture(path)
    path.mkdir()  # between the call and the block
    with pytest.raises(FileExistsError), capture:
        pytest.fail("the block ran")
    assert not is_capturing_metal()


def test_a_missing_directory(capturing: mpscffi.Device, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        metal_capture(tmp_path / "missing" / "a.gputrace")


def test_a_name_that_is_not_ascii(capturing: mpscffi.Device, tmp_path: Path) -> None:
    path = tmp_path / "größe 量.gputrace"
    with metal_capture(path):
        pass
    assert path.is_dir()


def test_a_relative_name_stays_where_it_was_given(
    capturing: mpscffi.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    capture = metal_capture("a.gputrace")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with capture:
        pass
    assert (tmp_path / "a.gputrace").is_dir()


def test_captures_do_not_nest(capturing: mpscffi.Device, tmp_path: Path) -> None:
    with metal_capture(tmp_path / "a.gputrace"):
        with pytest.raises(errors.StateError, match="nest"):
            metal_capture(tmp_path / "b.gputrace")
        assert is_capturing_metal()
        mpscffi.ones(4)
    assert (tmp_path / "a.gputrace").is_dir()
    assert not (tmp_path / "b.gputrace").exists()


def test_what_the_block_raises_comes_out(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    out = mpscffi.zeros(1, dtype="int32")

    def fail() -> None:
        compiled(SOURCE).wild(out, threads=1)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught, metal_capture(tmp_path / "a.gputrace"):
        fail()
    assert not is_capturing_metal()
    assert any("wild" in note for note in getattr(caught.value, "__notes__", ["wild"]))
    with pytest.raises(errors.ExecutionError, match="wild"), metal_capture(tmp_path / "b.gputrace"):
        compiled(SOURCE).wild(out, threads=1)
    assert not is_capturing_metal()


# ---- what is in it


def test_earlier_work_is_not_in_it(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    x = mpscffi.ones(100)
    compiled(SOURCE).scale(x, 2.0)
    bundle = captured(tmp_path / "a.gputrace", lambda: compiled(SOURCE).scale(x, 3.0))
    assert [line["kernel"] for line in bundle.commands.values()] == ["scale"]
    (use,) = bundle.commands[1]["buffers"]
    assert bundle.contents(use["buffer"], use["before"])[:400].view(np.float32).tolist() == [2.0] * 100
    assert bundle.contents(use["buffer"], use["after"])[:400].view(np.float32).tolist() == [6.0] * 100


def test_contents_are_stored_once(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    x = mpscffi.ones(100)

    def work() -> None:
        for _ in range(3):
            compiled(SOURCE).scale(x, 1.0)

    captured(tmp_path / "a.gputrace", work)
    assert len(list((tmp_path / "a.gputrace" / "buffers").iterdir())) == 1


def everything(lib: mpscffi.ShaderLibrary) -> None:
    x = mpscffi.asarray(np.arange(1000, dtype=np.float32))
    lib.scale(x, 0.5)
    x.numpy()[3] = 7  # the CPU between two kernels
    lib.scale(x, 2.0)
    tables = [mpscffi.asarray(np.array([i * 10], dtype=np.int32)) for i in range(4)]
    out = mpscffi.zeros(4, dtype="int32")
    lib.gather(out, tables)
    mpscffi.synchronize()
    assert out.numpy().tolist() == [0, 10, 20, 30]
    words = mpscffi.zeros(8, dtype="uint32")
    lib.biased.specialize(bias=100)(words, threads=8, group_size=8, threadgroup_memory={0: 32})
    other = mpscffi.Stream(label="other")
    with mpscffi.stream(other):
        lib.scale(x[10:20], 3.0)
    copy = x.copy()
    left = mpscffi.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    product = mpscffi.matmul(left, left.T)
    mpscffi.synchronize()
    assert product.numpy().tolist() == [[5, 14], [14, 50]]
    assert words.numpy().tolist() == [101, 100, 103, 102, 105, 104, 107, 106]
    expected = np.arange(1000, dtype=np.float32)
    expected[3] = 14
    expected[10:20] *= 3
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(copy.numpy(), expected)


def test_everything_runs_again(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    bundle = captured(tmp_path / "a.gputrace", lambda: everything(compiled(SOURCE)))
    kinds = [line["kind"] for line in bundle.commands.values()]
    assert kinds.count("dispatch") == 5
    outcomes = list(replay(bundle))
    assert [outcome.number for outcome in outcomes] == list(bundle.commands)
    assert all(outcome.is_same for outcome in outcomes), outcomes
    assert {line["queue"] for line in bundle.commands.values()} >= {"other"}


def test_a_metallib_runs_again(host_device: mpscffi.Device, tmp_path: Path) -> None:
    body = Body()
    x = body.load("float", "%0", "%1")
    body.store("float", body.value(f"fmul float {x}, {x}"), "%0", "%1")
    square = Kernel("square", [device_parameter("x", 0), given("thread_position_in_grid")], body.text)
    lib = mpscffi.load_metallib(metallib([square]))
    values = mpscffi.asarray(np.array([1, 2, 3], dtype=np.float32))
    bundle = captured(tmp_path / "a.gputrace", lambda: lib.square(values))
    assert values.numpy().tolist() == [1, 4, 9]
    assert bundle.library_path(1).endswith("1.metallib")
    (outcome,) = replay(bundle)
    assert outcome.is_same


def test_a_failed_command_fails_again(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    out = mpscffi.zeros(1, dtype="int32")
    path = tmp_path / "a.gputrace"
    with pytest.raises(errors.ExecutionError), metal_capture(path):
        compiled(SOURCE).wild(out, threads=1)
    (outcome,) = replay(Bundle(str(path)))
    assert outcome.is_same
    assert "wild" in outcome.failure


def test_work_encoded_before_the_capture(host_device: mpscffi.Device, tmp_path: Path, compiled: Any, gate: Any) -> None:
    """It cannot be in a capture that begins by draining; from C it can, and says so."""
    from mpscffi._ffi import check, ffi, lib

    x = mpscffi.ones(10)
    compiled(SOURCE).scale(x, 2.0)
    path = ffi.new("char[]", str(tmp_path / "a.gputrace").encode())
    desc = ffi.new("mps_capture_desc *", {"struct_size": ffi.sizeof("mps_capture_desc"), "path": path})
    check(lib.mps_capture_start(host_device._pointer, desc))
    gate()
    mpscffi.synchronize()
    check(lib.mps_capture_stop(host_device._pointer))
    outcomes = [o for o in replay(Bundle(str(tmp_path / "a.gputrace"))) if "scale" in o.what]
    assert len(outcomes) == 1
    assert not outcomes[0].is_same
    assert "before the capture" in outcomes[0].failure


# ---- what comes out different


def edit(bundle: Bundle, number: int, change: Callable[[dict[str, Any]], None]) -> Bundle:
    path = Path(bundle.path) / "commands.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("command") == number:
            change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Bundle(bundle.path)


def test_a_difference_is_told(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    x = mpscffi.asarray(np.array([1, 2, 0, 4], dtype=np.float32))
    bundle = captured(tmp_path / "a.gputrace", lambda: compiled(SOURCE).scale(x, 2.0))

    def other_factor(line: dict[str, Any]) -> None:
        line["arguments"][1]["bytes"] = np.float32(2.5).tobytes().hex()

    bundle = edit(bundle, 1, other_factor)
    (outcome,) = replay(bundle)
    assert not outcome.is_same
    (difference,) = outcome.differences
    assert difference.what == "y"
    assert "3 of" in difference.text
    assert "the first at 0: 2.5, captured 2.0" in difference.text
    (outcome,) = replay(bundle, rtol=0.21)
    assert outcome.is_same
    for rtol in (-1.0, float("nan")):
        with pytest.raises(errors.InvalidArgumentError, match="rtol"):
            list(replay(bundle, rtol=rtol))


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.pop("grid"),
        lambda line: line.update(kernel="nothing"),
        lambda line: line.update(library=77),
        lambda line: line["arguments"][0].update(buffer=77),
        lambda line: line["arguments"][0].update(offset=1 << 70),
        lambda line: line["arguments"][0].update(offset=100000),
        lambda line: line["arguments"][1].update(bytes="zz"),
        lambda line: line.update(kind="jump"),
        lambda line: line["buffers"][0].update(before=77),
        lambda line: line["buffers"][0].update(before="1"),
        lambda line: line.update(buffers=3),
        lambda line: line.update(kernel=5),
        lambda line: line.update(kernel=None),
        lambda line: line["arguments"].append("x"),
    ],
)
def test_a_damaged_capture(host_device: mpscffi.Device, tmp_path: Path, compiled: Any, change: Any) -> None:
    x = mpscffi.ones(4)
    bundle = captured(tmp_path / "a.gputrace", lambda: compiled(SOURCE).scale(x, 2.0))
    with pytest.raises(errors.Error, match="command 1: "):
        list(replay(edit(bundle, 1, change)))


def test_a_cut_that_fails_leaves_nothing(
    host_device: mpscffi.Device, tmp_path: Path, compiled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x = mpscffi.ones(4)
    bundle = captured(tmp_path / "a.gputrace", lambda: compiled(SOURCE).scale(x, 2.0))
    target = tmp_path / "b.gputrace"
    for change in (
        lambda line: line["buffers"][0].update(buffer=77),
        lambda line: line["buffers"][0].pop("before"),
        lambda line: line.update(library=77),
        lambda line: line.update(buffers=[5]),
    ):
        kept = (tmp_path / "a.gputrace" / "commands.jsonl").read_text()
        with pytest.raises(errors.InvalidArgumentError, match="command 1: the capture is damaged"):
            cut(edit(bundle, 1, change), 1, str(target))
        assert not target.exists()
        (tmp_path / "a.gputrace" / "commands.jsonl").write_text(kept)
    assert main(["replay", "--list", edit(bundle, 1, lambda line: line.pop("end")).path]) == 2
    assert "command 1: the capture is damaged" in capsys.readouterr().err
    bundle = edit(bundle, 1, lambda line: line.update(end=0))
    next((tmp_path / "a.gputrace" / "buffers").iterdir()).unlink()
    with pytest.raises(errors.FileError, match="command 1: "):
        cut(bundle, 1, str(target))
    assert not target.exists()
    target.mkdir()
    with pytest.raises(errors.FileError, match="exists"):
        cut(bundle, 1, str(target))
    assert target.is_dir()


def test_what_could_not_be_stored_is_told(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    """As on a full disk: what is left out is said when the capture ends, and when it is run again."""
    x = mpscffi.ones(4)

    def without(folder: str) -> Bundle:
        path = tmp_path / f"{folder}.gputrace"

        def work() -> None:
            (path / folder).rmdir()
            compiled(SOURCE).scale(x, 2.0)

        with pytest.raises(errors.FileError, match="write all of the capture .*: No such file"):
            captured(path, work)
        return Bundle(str(path))

    for folder, text in (("buffers", "contents of buffer 1 could"), ("libraries", "kernel's source could")):
        (outcome,) = replay(without(folder))
        assert not outcome.is_same
        assert f"{text} not be stored" in outcome.failure
    assert x.tolist() == [4.0] * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_writes_nothing(host_device: mpscffi.Device, tmp_path: Path, python: Any) -> None:
    run = python(
        f"""
        import os, sys
        import mpscffi as mps
        from mpscffi.capture import metal_capture
        with metal_capture({str(tmp_path / "a.gputrace")!r}):
            mps.zeros(1000).copy_from(mps.ones(1000))
            if os.fork() == 0:
                sys.exit(0)
            print(os.wait()[1])
        """,
        MPSCFFI_DEVICE="host",
    )
    assert (run.stdout, run.returncode) == ("0\n", 0), run.stderr
    text = (tmp_path / "a.gputrace" / "commands.jsonl").read_text()
    assert [text.count(f'{{"{word}": ') for word in ("capture", "command", "stop")] == [1, text.count("copy of "), 1]


def test_an_interrupt_stops_the_capture(
    host_device: mpscffi.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(stream: mpscffi.Stream) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "a.gputrace"
    zeros, ones = mpscffi.zeros(4), mpscffi.ones(4)

    def work() -> None:
        (path / "buffers").rmdir()  # so that the stop fails, too
        zeros.copy_from(ones)
        monkeypatch.setattr(mpscffi.Stream, "synchronize", interrupt)

    with pytest.raises(KeyboardInterrupt):
        captured(path, work)
    monkeypatch.undo()
    assert not is_capturing_metal()


def test_what_is_no_capture(tmp_path: Path) -> None:
    with pytest.raises(errors.FileNotFoundError, match=r"commands\.jsonl"):
        Bundle(str(tmp_path))
    for text in ("nonsense\n", "[" * 100000, "[1]\n", '{"capture": 99}\n', '{"buffer": "x"}\n', ""):
        (tmp_path / "commands.jsonl").write_text(text)
        with pytest.raises(errors.InvalidArgumentError):
            Bundle(str(tmp_path))


# ---- cutting, and the command


def test_one_command_alone(host_device: mpscffi.Device, tmp_path: Path, compiled: Any) -> None:
    bundle = captured(tmp_path / "a.gputrace", lambda: everything(compiled(SOURCE)))
    number = next(n for n, line in bundle.commands.items() if line.get("kernel") == "biased")
    target = tmp_path / "b.gputrace"
    cut(bundle, number, str(target))
    shutil.rmtree(tmp_path / "a.gputrace")
    small = Bundle(str(target))
    assert list(small.commands) == [number]
    assert len(list((target / "buffers").iterdir())) == 2
    assert len(list((target / "libraries").iterdir())) == 1
    assert (target / "README.txt").is_file()
    (outcome,) = replay(small)
    assert outcome.is_same


def test_the_command(
    host_device: mpscffi.Device, tmp_path: Path, compiled: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    x = mpscffi.ones(4)

    def work() -> None:
        compiled(SOURCE).scale(x, 2.0)
        compiled(SOURCE).scale(x, 3.0)

    monkeypatch.chdir(tmp_path)
    captured(tmp_path / "a.gputrace", work)
    assert main(["replay", "a.gputrace"]) == 0
    assert "2 of 2 commands came out as captured" in capsys.readouterr().out
    assert main(["replay", "a.gputrace", "--list"]) == 0
    assert "2: kernel 'scale'; grid 4 x 1 x 1" in capsys.readouterr().out
    assert main(["replay", "a.gputrace", "--only", "2"]) == 0
    assert "1 of 1 commands" in capsys.readouterr().out
    assert main(["replay", "a.gputrace", "--cut", "2", "-o", "b.gputrace"]) == 0
    capsys.readouterr()
    (value,) = (tmp_path / "b.gputrace" / "buffers").glob("*-3.bin")
    value.write_bytes(np.full(value.stat().st_size // 4, 9, np.float32).tobytes())
    assert main(["replay", "b.gputrace"]) == 1
    told = capsys.readouterr().out
    assert "2: kernel 'scale'; grid 4 x 1 x 1, group 4 x 1 x 1: DIFFERENT" in told
    assert "(y): " in told
    for words in (
        ["--only", "9"],
        ["--cut", "1"],
        ["--cut", "1", "-o", "b.gputrace"],
        ["--cut", "9", "-o", "c.gputrace"],
    ):
        assert main(["replay", "a.gputrace", *words]) in (1, 2)
    assert main(["replay", "missing.gputrace"]) == 2
    assert not (tmp_path / "c.gputrace").exists()
