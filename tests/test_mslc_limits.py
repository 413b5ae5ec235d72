"""Sources that are made to break a compiler: each is answered in time, by an error that says something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mpscffi.mslc import process, provider
from mpscffi.mslc.errors import CompileError, CompilerMissing
from mpscffi.mslc.toolchain import find_toolchain

try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark = pytest.mark.skip(reason=str(missing))

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def kernel(expression: str) -> str:
    return f"{HEAD}kernel void k(device float *x) {{ x[0] = {expression}; }}"


def macros(body: str, levels: int) -> str:
    lines = [f"#define A0 {body}", *(f"#define A{i} {f'A{i - 1} ' * 10}" for i in range(1, levels))]
    return "\n".join([HEAD, *lines, f"A{levels - 1}\nkernel void k() {{}}"])


REFUSED = {
    "minus signs": (kernel("-" * 50000 + "1"), "the compiler died of it"),
    "parentheses": (kernel("(" * 20000 + "1" + ")" * 20000), "nesting level"),
    "blocks": (f"{HEAD}kernel void k() {{ {'{' * 30000}{'}' * 30000} }}", "nesting level"),
    "structs": (HEAD + "struct A { " * 3000 + "int x;" + "};" * 3000, "nested too deeply"),
    "namespaces": (HEAD + "namespace a { " * 3000 + "int f();" + "}" * 3000, "nested too deeply"),
    "attributes": (HEAD + "[[" * 20000, "expected"),
    "an open comment": (HEAD + "/* " * 300000, "unterminated"),
    "open raw strings": (HEAD + 'R"(' * 100000, "raw string"),
    "quotes": (HEAD + '"' * 100001, "expected"),
    "macros": (macros("1,", 12), "wrote more than 16 MiB"),
    "an include of itself": ('#include "program_source"\nkernel void k() {}', "nested too deeply"),
    "a comment of 17 MiB": ("//" + "x" * (17 << 20), "more than 16 MiB"),
    "half a character": (
        "kernel void k() {}\n// \ud800",
        "program_source:2: error: the source has half of a character",
    ),
    "a NUL byte": ("\n\n a\0b", "program_source:3: error: the source has a NUL byte"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hopeless_sources_are_refused(name: str) -> None:
    source, message = REFUSED[name]
    with pytest.raises(CompileError, match=message):
        provider.check(source)


TAKEN = {
    "carriage returns": kernel("1").replace("\n", "\r"),
    "carriage returns and line feeds": kernel("1").replace("\n", "\r\n"),
    "a byte order mark": "\ufeff" + kernel("1"),
    "a long sum": kernel("1" + " + 1" * 3000),
    "empty statements": HEAD + ";" * 100000 + "kernel void k() {}",
    "lines without text": "\n" * 200000 + kernel("1"),
    "a line without end": kernel("1") + " " * 1000000,
    "directives without word": "#\n" * 50000 + kernel("1"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_odd_sources_are_taken(name: str) -> None:
    assert provider.check(TAKEN[name]).kernels == ["k"]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(HEAD + "a<" * 20000, id="the rewriter"),
        pytest.param(f"{HEAD}kernel void k(device int* x) {{ {'if (x[0]) ' * 20000} x[1] = 2; }}", id="clang"),
        pytest.param(
            f"{HEAD}constexpr int f(int n) {{ int s = 0; for (int i = 0; i < n; i++) s += f(n - 1); return s; }}\n"
            "constant int x = f(50);\nkernel void k(device int *y) { y[0] = x; }",
            id="a constant",
        ),
    ],
)
def test_slow_sources_are_given_up(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.check(kernel("2"))  # the prelude is there
    monkeypatch.setenv("MPSCFFI_COMPILE_TIMEOUT", "3")
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"longer than 3 seconds|constant expression"):
        provider.check(source)
    assert time.monotonic() - start < 60


def test_long_outputs_are_cut(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="wrote more than 1 MiB"):
        process.run(["/bin/sh", "-c", "while :; do echo 0123456789012345; done"], str(tmp_path), most_output=1 << 20)


def test_a_crash_of_the_compiler_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(CompileError, match="died of it"):
        provider.check(kernel("-" * 40000 + "1"))
    assert list(tmp_path.iterdir()) == []


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.linux_only("looks into /proc")
def test_the_compiler_ends_with_a_killed_parent(tmp_path: Path) -> None:
    script = f"""
        from mpscffi.mslc import process
        process.run(["/bin/sh", "-c", "echo $$ > {tmp_path}/pid; sleep 60 & echo $! > {tmp_path}/child; wait"], "/")
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path)
    try:
        for _ in range(600):
            if (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip():
                break
            time.sleep(0.05)
        pids = [int((tmp_path / name).read_text()) for name in ("pid", "child")]
        assert all(map(_is_running, pids))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        for _ in range(200):
            if not any(map(_is_running, pids)):
                break
            time.sleep(0.05)
        assert [_is_running(pid) for pid in pids] == [False, False]
    finally:
        parent.kill()
        parent.wait()
