"""Kernels in a debugger: lines of the source stop, and variables are shown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.unvalidated("validated kernels have no debug information"),
    pytest.mark.host_only("GPUs have Xcode's debugger"),
    pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb"),
]

HEADER = """inline float twice(float y) {
  float result = y + y;
  return result;
}
"""
SCRIPT = '''
import numpy as np
import mpscffi
mpscffi.set_device("host")
library = mpscffi.compile_shader("""#include <metal_stdlib>
INCLUDE
using namespace metal;
kernel void square(device float *x, uint i [[thread_position_in_grid]]) {
  float value = x[i];
  float4 both = float4(value, 1, 2, 3);
  threadgroup_barrier(mem_flags::mem_none);
  x[i] = value * CALL(value) + both.w;
}
""", include_dirs=["."])
x = mpscffi.asarray(np.array([5, 6], "f4"))
library.square(x)
print(x.tolist())
'''


def gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *commands: str) -> str:
    monkeypatch.setenv("MPSCFFI_SHADER_DEBUG", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "script.py").write_text(script)
    options = ["-q", "-batch", "-nx", "-ex", "set breakpoint pending on", "-ex", "set debuginfod enabled off"]
    for command in commands:
        options += ["-ex", command]
    result = subprocess.run(
        ["gdb", *options, "--args", sys.executable, "script.py"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
    )
    return result.stdout


def test_a_line_of_the_source_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = SCRIPT.replace("INCLUDE", "").replace("CALL", "")
    commands = [
        "break program_source:8",
        "run",
        "info locals",
        "info args",
        "print both.y",
        "frame",
        "delete",
        "continue",
    ]
    text = gdb(tmp_path, monkeypatch, script, *commands)
    assert "square (x=0x" in text
    assert "program_source:8" in text
    assert "\nvalue = 5\n" in text
    assert "\n$1 = 1\n" in text
    assert "8\t  x[i] = value * (value) + both.w;" in text
    assert "[28.0, 39.0]" in text


def test_a_line_of_a_header_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice.h").write_text(HEADER)
    script = SCRIPT.replace("INCLUDE", '#include \\"twice.h\\"').replace("CALL", "twice")
    text = gdb(tmp_path, monkeypatch, script, "break twice.h:3", "run", "info locals", "up", "delete", "continue")
    assert "twice (y=5) at" in text
    assert "\nresult = 10\n" in text
    assert "8\t  x[i] = value * twice(value) + both.w;" in text
    assert "[53.0, 75.0]" in text
