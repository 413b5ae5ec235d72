"""Programs in other languages, built and run as docs/other-languages.md says.

C++, ctypes and C must be there. Other languages are tested where their tools are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_build import ROOT, installed_only, needs

PAGE = (ROOT / "docs" / "other-languages.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RESULT = "100003 of 100003 results are right"


def block(word: str) -> str:
    (found,) = [text for text in BLOCKS if word in text]
    return found


def has_koffi() -> bool:
    node = shutil.which("node")
    return node is not None and subprocess.run([node, "-e", "require('koffi')"], check=False).returncode == 0


def has_java_22() -> bool:
    java = shutil.which("java")
    if java is None:
        return False
    version = subprocess.run([java, "--version"], capture_output=True, text=True, check=False).stdout.split()
    return len(version) > 1 and int(version[1].split(".")[0]) >= 22


def has_zig() -> bool:
    command = [sys.executable, "-c", "import ziglang"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


OPTIONAL = {
    "rustc": shutil.which("rustc") is not None,
    "go run": shutil.which("go") is not None,
    "java --": has_java_22(),
    "node saxpy": has_koffi(),
    "luajit saxpy": shutil.which("luajit") is not None,
    "ziglang build-exe": has_zig(),
}


def run_in(directory: Path, word: str) -> str:
    """Run a block of the page in a copy of the examples."""
    shutil.copytree(ROOT / "examples", directory / "examples")
    variables = {**os.environ, "GOCACHE": str(directory / "go"), "GO111MODULE": "off"}
    places = [os.path.dirname(sys.executable), sysconfig.get_path("scripts"), os.environ["PATH"]]
    variables["PATH"] = os.pathsep.join(places)  # as in an environment that is active
    script = f"set -eu\n{block('package=')}{block(word)}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory / "examples" / "languages",
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@installed_only
@needs("c++", "pkg-config")
def test_cpp(tmp_path: Path) -> None:
    assert RESULT in run_in(tmp_path, "c++")


@installed_only
def test_ctypes(tmp_path: Path) -> None:
    assert RESULT in run_in(tmp_path, "saxpy_ctypes")


@installed_only
@pytest.mark.parametrize("word", [word for word, is_there in OPTIONAL.items() if is_there])
@pytest.mark.timeout(150)
def test_others_that_are_installed(tmp_path: Path, word: str) -> None:
    assert RESULT in run_in(tmp_path, word)


@installed_only
@needs("cc", "pkg-config")
@pytest.mark.host_only("its compiler")
def test_a_program_without_python(tmp_path: Path) -> None:
    assert RESULT in run_in(tmp_path, "env -i")


def test_every_example_is_on_the_page() -> None:
    for path in (ROOT / "examples" / "languages").iterdir():
        assert path.name in PAGE
