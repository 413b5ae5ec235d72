"""The command ``mpscffi`` on files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import config
from mpscffi.__main__ import main

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant float bias [[function_constant(0)]];
constant float added = is_function_constant_defined(bias) ? bias : 0.0f;

kernel void saxpy(device float* y, device const float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  y[i] = a * x[i] + y[i] + added;
}
kernel void grid(device uint* out, uint2 p [[thread_position_in_grid]], uint2 n [[threads_per_grid]],
                 uint2 g [[threads_per_threadgroup]]) {
  out[p.y * n.x + p.x] = 100 * g.x + g.y;
}
kernel void both(device float* a, device float* b, constant float2& v [[buffer(4)]], threadgroup float* part) {
  part[0] = v.x;
  a[0] = part[0];
  b[0] = v.y;
}
struct Step { float dt; uint n[2]; };
kernel void advance(device float* x, constant Step& step, uint i [[thread_position_in_grid]]) {
  x[i] = step.dt * step.n[0] + step.n[1];
}
template <typename T> kernel void twice(device T* y, uint i [[thread_position_in_grid]]) { y[i] *= 2; }
"""
BROKEN = "kernel void bad(device float* x) {\n  x[0] = vlaue;\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that commands run in."""
    (tmp_path / "k.metal").write_text(SOURCE)
    np.save(tmp_path / "x.npy", np.arange(5, dtype=np.float32))
    np.save(tmp_path / "wide.npy", np.arange(5.0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- run


@pytest.mark.parametrize(
    "words",
    [
        "ones:5 x.npy 2.0 -o y.npy",
        "--threads 5 ones:5 x.npy -o y=y.npy 2.0",
        "-o 0=y.npy --group 2 --threads 5 a=2 x=wide.npy:f4 y=ones:5:float32",
        "ones:5 arange:5 --threadgroups 1 2 --group 5 -o y.npy",
        "ones:5 --math fast arange:5:f4 2e0 --std 3.1 -o y=y.npy",
    ],
)
def test_run_saves_what_the_kernel_wrote(folder: Path, words: str, capsys: Any) -> None:
    assert main(["run", "k.metal", "saxpy", *words.split()]) == 0
    assert np.load("y.npy").tolist() == [1, 3, 5, 7, 9]
    assert np.load("y.npy").dtype == np.float32
    assert capsys.readouterr().out.startswith("saxpy: ")


def test_run_on_grids_constants_and_memory(folder: Path, capsys: Any) -> None:
    assert main("run k.metal grid --threads 4x2 --group 2,1 zeros:2x4 -o out.npy --print out".split()) == 0
    assert np.load("out.npy").tolist() == [[201] * 4] * 2
    assert np.load("out.npy").dtype == np.uint32  # what the kernel takes
    assert "out = [[201 201 201 201]" in capsys.readouterr().out
    assert main("run k.metal saxpy zeros:3 ones:3 -1.5 --constant bias=0.25 -o y.npy".split()) == 0
    assert np.load("y.npy").tolist() == [-1.25] * 3
    for memory in ("16", "part=16", "0=32"):
        words = f"run k.metal both zeros:1 zeros:1 - - [3,4] --memory {memory} --threads 1 -o a=a.npy -o b=b.npy"
        assert main(words.split()) == 0
        assert (np.load("a.npy").item(), np.load("b.npy").item()) == (3, 4)


@pytest.mark.parametrize("step", ["{dt:0.5,n:[4,3]}", "step={n:[4,3],dt:0.5}", '{"dt":0.5,"n":[4,3]}', "[0.5,[4,3]]"])
def test_run_with_a_struct(folder: Path, step: str, capsys: Any) -> None:
    assert main(["run", "k.metal", "advance", "zeros:2", step, "-o", "f.npy"]) == 0
    assert np.load(folder / "f.npy").tolist() == [5, 5]


def test_run_of_a_template(folder: Path, capsys: Any) -> None:
    assert main(["run", "k.metal", "twice<int>", "arange:3", "--print", "y"]) == 0
    assert "y = [0 2 4]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing.metal saxpy", "^mpscffi: 'nothing.metal': No such file"),
        ("k.metal sxpy", "no kernel 'sxpy'"),
        ("k.metal saxpy zeros:2 wide.npy 1", "argument 1: 'wide.npy' has float64.*wide.npy:float32"),
        ("k.metal saxpy zeros:2 what 1", "argument 1: got 'what', expected"),
        ("k.metal saxpy zeros:2 x=zeros:2 b=1", "no buffer 'b': 0 y, 1 x, 2 a"),
        ("k.metal saxpy zeros:2 y=zeros:2", "slot 0 was given before"),
        ("k.metal saxpy zeros:2 zeros:2 1 -o a=f.npy", "'a' is no array"),
        ("k.metal both zeros:1 zeros:1 v=[1,2] -o f.npy --threads 1 --memory 16", "writes a, b: say which"),
        ("k.metal saxpy zeros:2xx zeros:2 1", "expected numbers with an x"),
        ("k.metal saxpy zeros:2 zeros:2 1 --threads many", "--threads: got 'many'"),
        ("k.metal saxpy zeros:2 zeros:2 1 --constant bias", "--constant: got 'bias'"),
        ("k.metal saxpy zeros:2 zeros:2 1 --memory x", "--memory: got 'x'"),
        ("k.metal saxpy zeros:2 zeros:2 1 --std new", "--std: got 'new'"),
        ("k.metal saxpy zeros:2 k.npy 1", "'k.npy' is no array in NumPy's format"),
        ("k.metal saxpy zeros:2 whole.npy 1", "argument 1: 'whole.npy' has int64.*takes float: whole.npy:float32 conv"),
        ("k.metal saxpy zeros:2 zeros:2", "got 2 buffer arguments, expected 3"),
        ("k.metal saxpy zeros:2:i4 zeros:2 1", "of dtype int32, but the kernel takes float"),
        ("k.metal saxpy zeros:2 zeros:2 1 --group 5000", "1024"),
        ("k.metal grid zeros:2x4", r"threads=\(W, H\)"),
        ("k.metal saxpy zeros:2 zeros:2 1 --memory 7", "--memory: kernel 'saxpy' has no threadgroup parameter 0.*none"),
        ("k.metal saxpy zeros:2 zeros:2 1 -o y=no/f.npy", "-o y=no/f.npy: there is no folder 'no'"),
        ("k.metal advance zeros:2 {dt:1}", "no value for 'n'"),
        ("k.metal twice zeros:2", "it is a template.*'twice<float>'"),
    ],
)
def test_run_with_a_wrong_command_line(folder: Path, words: str, message: str, capsys: Any) -> None:
    (folder / "k.npy").write_text("no array")
    np.save(folder / "whole.npy", np.arange(2))
    assert main(["run", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mpscffi: ")
    assert re.search(message, captured.err)
    assert not list(folder.glob("f.npy"))


def test_run_of_what_fails(folder: Path, capsys: Any) -> None:
    (folder / "broken.metal").write_text(BROKEN)
    assert main("run broken.metal bad zeros:2".split()) == 1
    assert "broken.metal:2:10: error: " in capsys.readouterr().err


def test_run_that_saves_nothing_says_so(folder: Path, capsys: Any) -> None:
    words = "run k.metal saxpy ones:2 ones:2 2.0".split()
    assert main(words) == 0
    assert capsys.readouterr().err == "mpscffi: nothing was saved: -o y=FILE.npy saves y, --print y shows it\n"
    assert main([*words, "--print", "y"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.host_only("Metal takes validation from the environment of its process")
def test_run_with_validation(
    folder: Path, device: mpscffi.Device, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = "run k.metal saxpy zeros:4 ones:5 1 --threads 5".split()
    assert main([*words, "--validate"]) == 1
    assert " at k.metal:8, outside of buffer 'y'" in capsys.readouterr().err
    assert main("run k.metal saxpy zeros:4 ones:5 1 --validate -o y.npy".split()) == 0
    assert np.load("y.npy").tolist() == [1] * 4
    assert main("check k.metal --validate".split()) == 0
    assert "4 kernels" in capsys.readouterr().out
    monkeypatch.setenv("MPSCFFI_SHADER_VALIDATION", "1")
    monkeypatch.setattr(config, "_settings", None)  # parsed again
    assert main(words) == 1


def test_run_of_a_metallib_that_is_none(folder: Path, capsys: Any) -> None:
    (folder / "m.metallib").write_bytes(b"MTLB" + bytes(100))
    assert main("run m.metallib f".split()) == 2
    assert capsys.readouterr().err.startswith("mpscffi: ")


# ---- bench


def test_bench(folder: Path, capsys: Any) -> None:
    assert main("bench k.metal saxpy zeros:1000 ones:1000 2.0 --repeat 7 --json".split()) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["kernel"], figures["runs"], figures["bytes"]) == ("saxpy", 7, 8000)
    assert 0 < figures["least"] <= figures["median"] <= figures["most"] < 10
    assert main("bench k.metal saxpy zeros:1000 ones:1000 2.0 --seconds 0.01".split()) == 0
    assert "saxpy: median " in capsys.readouterr().out
    assert main("bench k.metal saxpy zeros:10 ones:10 2.0 --repeat 0".split()) == 2


# ---- check


@pytest.fixture
def tree(folder: Path) -> Path:
    (folder / "t" / "sub, one").mkdir(parents=True)
    (folder / "t" / "good.metal").write_text(SOURCE)
    (folder / "t" / "sub, one" / "bad.metal").write_text(BROKEN)
    (folder / "t" / "readme.txt").write_text("no kernel")
    return folder / "t"


def test_check(tree: Path, capsys: Any) -> None:
    assert main(["check", "t"]) == 1
    out = capsys.readouterr().out
    bad = os.path.join("t", "sub, one", "bad.metal")
    assert f"{bad}:2:10: error: use of undeclared identifier 'vlaue'\n  x[0] = vlaue;\n" in out
    assert out.splitlines()[-1].startswith("2 files: 1 compiled, 1 failed; 4 kernels")
    assert main(["check", os.path.join("t", "good.metal"), "--build"]) == 0
    assert capsys.readouterr().out == (
        "1 file: 1 compiled, 0 failed; 4 kernels; 1 template without an instantiation, of which no kernel was built\n"
    )
    whole = 'template [[host_name("a")]] kernel void twice<int>(device int* y, uint i [[thread_position_in_grid]]);'
    (tree / "good.metal").write_text(f"{SOURCE}\n{whole}")
    assert main(["check", os.path.join("t", "good.metal"), "--build"]) == 0
    assert capsys.readouterr().out == "1 file: 1 compiled, 0 failed; 5 kernels\n"


def test_check_for_github(tree: Path, capsys: Any) -> None:
    assert main(["check", "--format", "github", str(tree)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("::error file=t/sub%2C one/bad.metal,line=2,col=10::use of undeclared identifier 'vlaue'")
    assert len(lines) == 2
    (tree / "sub, one" / "bad.metal").write_bytes(b"// fine\n// \xff\n")
    assert main(["check", "--format", "github", str(tree)]) == 1
    assert capsys.readouterr().out.startswith(
        "::error file=t/sub%2C one/bad.metal,line=2,col=1::the source is not UTF-8"
    )


@pytest.mark.host_only("Metal compiles one text")
def test_check_with_headers_and_macros(tree: Path, device: mpscffi.Device, capsys: Any) -> None:
    bad = tree / "sub, one" / "bad.metal"
    bad.write_text(
        '#include "own.h"\n#include "other.h"\nkernel void f(device float* x) { x[0] = OWN + OTHER + MACRO; }'
    )
    (bad.parent / "own.h").write_text("#define OWN 1\n")
    (tree / "inc").mkdir()
    (tree / "inc" / "other.h").write_text("#define OTHER 2\n")
    assert main("check t -I t/inc -D MACRO=3 --build".split()) == 0
    (tree / "inc" / "other.h").write_text("inline float wrong() { return nope; }\n#define OTHER 2\n")
    assert main("check t --format github -I t/inc -D MACRO=3".split()) == 1
    assert "t/inc/other.h,line=1,col=31::use of undeclared identifier 'nope'" in capsys.readouterr().out


def test_check_builds_what_can_be_built(folder: Path, device: mpscffi.Device, capsys: Any) -> None:
    (folder / "c.metal").write_text(
        "#include <metal_stdlib>\nusing namespace metal;\nconstant int n [[function_constant(0)]];\n"
        "kernel void f(device int* x) { x[0] = n; }\nkernel void g(device int* x) { x[0] = 1; }\n"
    )
    assert main("check c.metal --build".split()) == 0
    assert "2 kernels, 1 of them not built as they need function constants" in capsys.readouterr().out
    if device.backend != "host":
        return
    (folder / "c.metal").write_text("void nowhere();\nkernel void f(device int* x) { nowhere(); }\n")
    assert main("check c.metal --build --format github".split()) == 1
    assert "::error file=c.metal,line=" in capsys.readouterr().out


def test_check_of_nothing(folder: Path, capsys: Any) -> None:
    (folder / "empty").mkdir()
    assert main(["check", "empty"]) == 2
    assert "no .metal file below empty" in capsys.readouterr().err
    assert main(["check", "absent"]) == 2
    assert "there is no 'absent'" in capsys.readouterr().err


# ---- the rest


def test_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "MPSCFFI_CACHE_DIR": str(tmp_path / "kept"), "MPSCFFI_DEVICE": "host"}
    (tmp_path / "k.metal").write_text("kernel void f(device int* x) { x[0] = 1; }")

    def command(*words: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "mpscffi", *words], capture_output=True, text=True, env=environment, cwd=tmp_path,
            check=True, timeout=60,
        )  # fmt: skip
        return run.stdout

    assert command("cache") == f"{tmp_path / 'kept'}: 0 files, 0 bytes of at most 1.00 GiB\n"
    command("run", "k.metal", "f", "zeros:1")
    files = int(command("cache").split(": ")[1].split()[0])
    assert files >= 3
    removed, left = command("cache", "--trim", "100000").splitlines()
    gone = int(removed.split()[1])
    assert 0 < gone < files
    assert f": {files - gone} file" in left
    removed, left = command("cache", "--clear").splitlines()
    assert removed.startswith(f"removed {files - gone} file")
    assert "0 bytes" not in removed
    assert ": 0 files, 0 bytes" in left


@pytest.mark.parametrize("words", [["nothing"], ["run"], ["run", "k.metal"], ["cache", "--clear", "--trim", "1"]])
def test_unknown_command_lines(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: mpscffi" in capsys.readouterr().err


def test_the_command_alone_shows_its_help(capsys: Any) -> None:
    assert main([]) == 2
    assert "mpscffi COMMAND --help" in " ".join(capsys.readouterr().err.split())


def test_the_version(capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mpscffi {mpscffi.__version__}\n"


@pytest.mark.parametrize("command", ["info", "demo", "run", "bench", "check", "cache", "replay"])
def test_each_command_says_what_it_does(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert len(capsys.readouterr().out.split("\n\n")[1].split()) > 5  # a description


def test_replay_of_nothing(tmp_path: Path, capsys: Any) -> None:
    assert main(["replay", str(tmp_path / "absent.gputrace")]) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "other.gputrace").mkdir()
    assert main(["replay", str(tmp_path / "other.gputrace")]) == 2
    assert "is no capture of the host device" in capsys.readouterr().err


def test_info(capsys: Any) -> None:
    assert main(["info"]) == 0
    assert mpscffi.__version__ in capsys.readouterr().out
    assert main(["cache", "--trim", "-1"]) == 2
