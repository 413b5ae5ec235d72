"""The command `mpscffi-mslc`, for people and for C programs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import mpscffi
from mpscffi.mslc import cli
from mpscffi.mslc.cache import read_whole
from mpscffi.mslc.diagnostics import Finding
from mpscffi.mslc.provider import CompilerMissing, RequestError
from mpscffi.mslc.request import read_fields
from mpscffi.mslc.survey import annotation
from mpscffi.mslc.target import machine
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("its compiler")]
try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))

ONE = '#include "own.h"\nkernel void one(device float *x) { x[0] = VALUE; }\n'
TWO = (
    "constant int n [[function_constant(3)]]; kernel void first(device int *x) { x[0] = n; }\n"
    "kernel void second(device int *x, uint i [[thread_position_in_grid]]) { x[i] = metal::simd_sum(x[i]); }\n"
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "own.h").write_text("#ifndef VALUE\n#define VALUE 1\n#endif\n")
    (tmp_path / "one.metal").write_text(ONE)
    (tmp_path / "two.metal").write_text("#include <metal_stdlib>\n" + TWO)
    return tmp_path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def is_library(path: Path) -> bool:
    data = path.read_bytes()
    return data.startswith(b"\x7fELF") and b"mslc_kernel_library" in data


# ---------------------------------------------------------------- for people


def test_a_file_becomes_a_library(directory: Path) -> None:
    assert run(directory / "one.metal") == 0
    assert is_library(directory / "one.so")
    assert run(directory / "two.metal", "--kernel", "second", "-o", directory / "out.so", "--math", "fast") == 0
    assert is_library(directory / "out.so")


MANY = """#include <metal_stdlib>
using namespace metal;
constant int n [[function_constant(0)]];
constant int table[2] = {10, 20};
static int scaled(int x) { return x * n; }
kernel void big(device int *x, uint i [[thread_position_in_threadgroup]]) {
  threadgroup int shared[7000];
  shared[i] = scaled(x[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = shared[31 - i] + table[0];
}
kernel void zeroed(device int *x, uint i [[thread_position_in_grid]]) {
  threadgroup int shared[1000] = {0};
  x[i] = shared[i] + 7;
}
template <typename T> [[kernel]] void put(device T *x, uint i [[thread_position_in_grid]]) { x[i] = T(scaled(i)) / 2; }
template [[host_name("put_int")]] kernel void put<int>(device int *, uint);
template [[host_name("put_float")]] kernel void put<float>(device float *, uint);
"""


@pytest.mark.parametrize("source", [MANY, ONE])
def test_where_a_library_is_written(source: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the current directory, though compilers run elsewhere; by default beside the source."""
    (directory / "sub").mkdir()
    (directory / "sub" / "some.metal").write_text(source)
    (directory / "sub" / "own.h").write_text("#define VALUE 1\n")
    monkeypatch.chdir(directory)
    n = ["--constant", "n=3"] if source == MANY else []
    assert run("sub/some.metal", *n) == 0
    assert is_library(directory / "sub" / "some.so")
    assert run("sub/some.metal", *n, "-o", "here.so") == 0
    assert is_library(directory / "here.so")


# An old CPU, and one of today's that computes and converts halves.
OLD, NEW = {"x86_64": ("x86-64", "x86-64-v3"), "aarch64": ("generic", "cortex-a76")}.get(machine(), ("", ""))


@pytest.mark.usefixtures("device")
def test_a_library_for_another_cpu(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = directory / "half.metal"
    source.write_text("kernel void twice(device half *x, uint i [[thread_position_in_grid]]) { x[i] *= 2.5h; }\n")
    text = {}
    for cpu in (OLD, NEW):
        monkeypatch.setenv("MPSCFFI_CPU", "")  # to be put back afterwards
        assert run(source, "--cpu", cpu, "--emit", "asm", "-o", directory / "half.s") == 0
        text[cpu] = (directory / "half.s").read_text()
        assert run(source, "--cpu", cpu, "-o", directory / f"{cpu}.so") == 0
    assert text[OLD] != text[NEW]
    assert ("vcvtph2ps" in text[NEW]) == (machine() == "x86_64")
    assert "vcvtph2ps" not in text[OLD]
    x = mpscffi.asarray(np.arange(100, dtype=np.float16))
    mpscffi.load_metallib(directory / f"{OLD}.so").twice(x)
    assert (x.numpy() == np.arange(100) * 2.5).all()


def test_a_cpu_that_there_is_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPSCFFI_CPU", "")
    assert run(directory / "one.metal", "--cpu", "z80") != 0
    assert "z80" in capsys.readouterr().err


@pytest.mark.usefixtures("device")
def test_a_library_of_all_kernels(directory: Path) -> None:
    (directory / "many.metal").write_text(MANY)
    assert run(directory / "many.metal", "-o", directory / "many.so", "--constant", "n=3") == 0
    library = mpscffi.load_metallib(directory / "many.so")
    assert sorted(library) == ["big", "put_float", "put_int", "zeroed"]
    x = mpscffi.asarray(np.arange(32, dtype=np.int32))
    library["big"](x, threads=32, group_size=32)
    assert x.numpy().tolist() == [3 * (31 - i) + 10 for i in range(32)]
    library["zeroed"](x, threads=32, group_size=32)
    assert x.numpy().tolist() == [7] * 32
    library["put_int"](x, threads=32)
    assert x.numpy().tolist() == [3 * i // 2 for i in range(32)]
    y = mpscffi.zeros(32)
    library["put_float"](y, threads=32)
    assert y.numpy().tolist() == [1.5 * i for i in range(32)]
    memory = {name: library[name].static_thread_group_memory_length for name in library}
    assert memory == {"big": 28000, "zeroed": 4000, "put_int": 0, "put_float": 0}


def test_listing(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(directory / "two.metal", "--list") == 0
    assert capsys.readouterr().out == "kernel first\nkernel second\nconstant 3 262 1 n\n"


@pytest.mark.parametrize(
    ("form", "suffix", "word"),
    [("cpp", ".cpp", "MSLC_KERNEL_LIBRARY"), ("asm", ".s", ".text"), ("llvm", ".ll", "define")],
)
def test_generated_code(form: str, suffix: str, word: str, directory: Path) -> None:
    assert run(directory / "one.metal", f"--emit={form}") == 0
    assert word in (directory / f"one{suffix}").read_text()


def test_a_library_tells_how_much_its_author_says(directory: Path) -> None:
    loop = "kernel void k(device float *x) { for (uint i = 0; i < 9; i++) x[i] = 7; }"
    (directory / "loop.metal").write_text(f"#ifdef __MSLC__\n[[thread_work(9)]]\n#endif\n{loop}")
    assert run(directory / "loop.metal", "--emit=cpp") == 0
    assert 'MSLC_KERNEL_LIBRARY("k", 2, 9, (1024),' in (directory / "loop.cpp").read_text()


def test_an_instantiation_of_a_template(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "put.metal").write_text("template <typename T> kernel void put(device T *x) { x[0] = 7; }")
    assert run(directory / "put.metal", "--kernel", "put<float>", "-o", directory / "put.so") == 0
    assert is_library(directory / "put.so")
    assert run(directory / "put.metal", "--kernel", "put") == 2
    assert "'put' is a template: --kernel must name an instantiation, as 'put<float>'" in capsys.readouterr().err
    assert run(directory / "put.metal") == 2
    assert "there are: none; of the template 'put' one is 'put<float>'" in capsys.readouterr().err
    assert run(directory / "put.metal", "--kernel", "put<what>") == 1
    assert "put.metal:2:" in capsys.readouterr().err


def test_macros_and_headers(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = directory / "sub"
    elsewhere.mkdir()
    (elsewhere / "one.metal").write_text(ONE)
    assert run(elsewhere / "one.metal") == 1
    assert "'own.h' file not found" in capsys.readouterr().err
    assert run(elsewhere / "one.metal", "-I", directory, "-D", "VALUE=wrong") == 1
    assert "use of undeclared identifier 'wrong'" in capsys.readouterr().err
    assert run(elsewhere / "one.metal", "-I", directory, "-D", "VALUE=2") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two.metal", "--emit", "cpp"], "--kernel must say which kernel; there are: first, second"),
        (["two.metal"], "kernel 'first' needs a value for function constant 'n'"),
        (["two.metal", "--kernel", "third"], "no kernel 'third'"),
        (["two.metal", "--kernel", "first"], "needs a value for function constant 'n'"),
        (["gone.metal"], "No such file"),
        (["one.metal", "--std", "x"], "MAJOR.MINOR"),
        (["one.metal", "-D", "1"], "NAME or NAME=VALUE"),
        (["one.metal", "-o", "no/such/dir/x.so"], "'no/such/dir/x.so': No such file"),
        (["two.metal", "--constant", "n=1", "-o", "no/such/dir/x.so"], "'no/such/dir/x.so': No such file"),
        (["one.metal", "-I", "gone"], "there is no directory 'gone', which -I names"),
        (["one.metal", "-o", "-"], "a library cannot be written to standard output"),
        (
            ["two.metal", "--kernel", "first", "--constant", "M=3"],
            "no function constant 'M'; function constants are: 'n'",
        ),
        (["two.metal", "--kernel", "first", "--constant", "n"], "--constant must be NAME=VALUE, not 'n'"),
        (["--check", "gone"], "no .metal file below 'gone'"),
    ],
)
def test_wrong_uses(
    arguments: Sequence[str],
    message: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(directory)
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 2
    assert "a Metal file is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", ".", "-o", "x"], "--check does not go with -o"),
        (["--check", ".", "one.metal"], "--check does not go with FILE"),
        (["--check", ".", "--kernel", "one"], "--check does not go with --kernel"),
        (["--check", ".", "--jobs", "0"], "--jobs must be 1 or more, not 0"),
        (["one.metal", "--jobs", "2"], "--jobs goes with --check alone"),
        (["one.metal", "--warnings"], "--warnings goes with --check alone"),
        (["one.metal", "--list", "-o", "x"], "--list does not go with -o"),
    ],
)
def test_options_that_would_be_ignored(
    arguments: Sequence[str],
    message: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(directory)
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (directory / "x").exists()


def test_code_on_standard_output(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(directory / "one.metal", "--emit", "cpp", "-o", "-") == 0
    assert "MSLC_KERNEL_LIBRARY" in capsys.readouterr().out


def test_errors_name_the_file(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "bad.metal").write_text("kernel void k(device int *x) {\n  x[0] = y;\n}")
    assert run(directory / "bad.metal", "-o", directory / "x.so") == 1
    assert capsys.readouterr().err.startswith(f"{directory}/bad.metal:2:10: error: use of undeclared identifier 'y'\n")


# ---------------------------------------------------------------- many files


def test_the_survey_counts(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "bad").mkdir()
    (directory / "bad" / "t.metal").write_text("#include <metal_texture>\nkernel void k(metal::texture2d<float> t) {}")
    (directory / "none.metal").write_text("constant int two = 2;")
    assert run("--check", directory, "--instantiate", "--jobs", "2") == 1
    output = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line}
    assert rows["."] == ["3", "2", "1", "3", "1"]
    assert rows["bad"] == ["1", "0", "0", "0", "0"]
    assert rows["all"] == ["4", "2", "1", "3", "1"]
    assert "1  parameter 't' of type 'texture2d': textures are not supported on the host device" in output
    assert run("--check", directory / "one.metal") == 0


WRONG = """#include "wrong.h"
kernel void k(device int *x) {
  x[0] = y + 100% z;
  int unused = w;
}
"""


def test_the_survey_tells_all_errors(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "wrong.h").write_text("inline int f() { return v; }")
    for name in ("wrong.metal", "again.metal"):
        (directory / "sub" / name).write_text(WRONG)
    monkeypatch.chdir(directory)
    assert run("--check", "sub") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == [
        "sub/wrong.h:1:25: error: use of undeclared identifier 'v'",
        *(
            f"sub/{name}.metal:{place}: error: use of undeclared identifier '{word}'"
            for name in ("again", "wrong")
            for place, word in (("3:10", "y"), ("3:19", "z"), ("4:16", "w"))
        ),
    ]
    assert run("--check", "sub/wrong.metal", "--format", "github") == 1
    assert capsys.readouterr().out.splitlines()[1] == (
        "::error file=sub/wrong.metal,line=3,col=10::use of undeclared identifier 'y'"
    )


def test_the_survey_tells_warnings(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / "warn.metal"
    path.write_text("kernel void k(device int *x) {\n  int n = 100;\n  x[0] = 1 << 40;\n}")
    assert run("--check", path) == 0
    assert "warning" not in capsys.readouterr().out
    assert run("--check", path, "--warnings") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{path}:2:7: warning: unused variable 'n' [-Wunused-variable]",
        f"{path}:3:12: warning: shift count >= width of type [-Wshift-count-overflow]",
    ]
    assert run("--check", path, "--warnings", "--format", "github") == 0
    assert capsys.readouterr().out.startswith("::warning file=")


def test_annotations_are_escaped() -> None:
    finding = Finding("a,b.metal", 2, 0, "error", "100% wrong\nat all")
    assert annotation(finding) == "::error file=a%2Cb.metal,line=2::100%25 wrong%0Aat all"


@pytest.mark.parametrize("instantiate", [False, True])
def test_the_survey_instantiates_what_runs_kernels(
    instantiate: bool, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / "value.metal"
    path.write_text("using number = float;\nkernel void k(number x [[buffer(0)]]) {}")
    assert run("--check", path, *(["--instantiate"] if instantiate else [])) == int(instantiate)
    assert (f"{path}:2:13: error: a kernel takes its buffers" in capsys.readouterr().out) == instantiate


def test_the_cache(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(directory / "one.metal")
    assert run("--cache") == 0
    assert re.match(
        rf"{directory / 'cache'}: 3 files, [\d.]+ [KM]iB of at most [\d.]+ [MG]iB\n", capsys.readouterr().out
    )
    assert run("--clear-cache") == 0
    assert run("--cache") == 0
    assert ": 0 files, 0 bytes" in capsys.readouterr().out


def test_as_a_module(directory: Path) -> None:
    command = [sys.executable, "-m", "mpscffi.mslc", "-", "--list"]
    finished = subprocess.run(command, input=TWO.encode(), capture_output=True, timeout=100, cwd=directory)
    assert finished.returncode == 1  # no header, so no metal::
    assert b"program_source:2:" in finished.stderr


# ---------------------------------------------------------------- for C programs


def encoded(**fields: str | bytes | Sequence[str]) -> bytes:
    data = b""
    for name, value in {"version": "1", **fields}.items():
        for item in [value] if isinstance(value, (str, bytes)) else value:
            text = item if isinstance(item, bytes) else item.encode()
            data += b"%s %d\n%s\n" % (name.encode(), len(text), text)
    return data


def ask(directory: Path, request: bytes) -> tuple[int, str]:
    (directory / "request").write_bytes(request)
    assert run("--request", directory / "request", "--reply", directory / "reply") == 0
    status, _, text = (directory / "reply").read_text().partition("\n")
    return int(status), text


def test_a_check(directory: Path) -> None:
    request = encoded(
        action="check", source="#include <metal_stdlib>\n" + TWO, math_mode="fast", language_version="3.1"
    )
    assert ask(directory, request) == (0, "kernel first\nkernel second\nconstant 3 262 1 n\n")


def test_a_build(directory: Path) -> None:
    source = "constant int n [[function_constant(3)]];\nkernel void k(device int *x) { x[0] = n + A; }"
    fields = {"action": "build", "source": source, "kernel": "k", "define": ["A=1", "B"], "later_field": "ignored"}
    status, path = ask(directory, encoded(**fields, constant="3 262 07000000 n"))
    assert status == 0
    assert read_whole(path) is not None
    assert ask(directory, encoded(**fields)) == (1, "kernel 'k' needs a value for function constant 'n' (index 3)")


def test_a_build_without_a_cache_lies_next_to_the_reply(directory: Path) -> None:
    (directory / "cache").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        status, path = ask(directory, encoded(action="build", source="kernel void k() {}", kernel="k"))
    assert (status, Path(path).parent) == (0, directory)
    assert is_library(Path(path))


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (encoded(action="check", source="What"), 7, "program_source:1:1: error: "),
        (encoded(action="check", source=b"\n\xff"), 7, "program_source:2: error: the source is not UTF-8"),
        (encoded(action="check", source="", math_mode="exact"), 1, "safe, relaxed, fast"),
        (encoded(action="paint", source=""), 1, "check or build, not 'paint'"),
        (encoded(action="build", source="", kernel="k"), 1, "no kernel 'k'"),
        (encoded(source=""), 1, "no field 'action'"),
        (b"version 1\n2\n", 1, "requests of version 2 are not understood"),
        (b"nonsense", 1, "not well formed at byte 0"),
        (b"version 100\n1\n", 1, "not well formed at byte 0"),
        (b"", 1, "no field 'version'"),
    ],
)
def test_refusals(request_: bytes, status: int, message: str, directory: Path) -> None:
    given, text = ask(directory, request_)
    assert (given, message in text) == (status, True)


def test_a_missing_compiler(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSCFFI_CXX", "no-such-compiler")
    status, text = ask(directory, encoded(action="check", source=""))
    assert status == 4
    assert "pip install ziglang" in text


def test_values_may_hold_anything() -> None:
    assert read_fields(b"a 3\nx\ny\na 0\n\nb 1\n \n") == {"a": [b"x\ny", b""], "b": [b" "]}
    with pytest.raises(RequestError):
        read_fields(b"a 1\nxy\n")
