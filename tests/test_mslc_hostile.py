"""Damaged Metal sources: whatever the text, there is an answer or a compile error, in time, and no process is left."""

from __future__ import annotations

import os
import random
import re
import sys
from pathlib import Path

import pytest

from mpscffi.mslc import provider
from mpscffi.mslc.errors import CompileError, CompilerMissing, RequestError
from mpscffi.mslc.toolchain import find_toolchain

try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark = pytest.mark.skip(reason=str(missing))

MUTATIONS = int(os.environ.get("MPSCFFI_TEST_MUTATIONS", "90")) // 3
# More seeds, as a checkout of a project with kernels.
FOLDERS = [str(Path(__file__).parent / "msl"), *os.environ.get("MPSCFFI_TEST_SOURCES", "").split(os.pathsep)]
SECONDS = 60
PIECES = [
    *"(){}[]<>;:,.*&#\\\"'=-!~?@`$",
    *("[[", "]]", "//", "/*", "*/", "::", "->", ">>", "<<", "...", '"""', "%:", "\\\n", "\n#"),
    *("template", "typename", "kernel", "device", "threadgroup", "constant", "thread", "struct", "operator", "using"),
    *("namespace", "static", "constexpr", "void", "float4", "half", "bfloat", "for (;;)", "[[buffer(0)]]", "0x", "1e"),
    *("[[function_constant(0)]]", "[[host_name(", "[[threadgroup(9)]]", "[[kernel]]", "vec<T, N>", "template <", "R'("),
    *("#include <metal_stdlib>", "#include", "#define", "#if 1", "#endif", "#pragma", "simd_sum(", "operator>"),
    *("\0", "\ufeff", "\u00e9", "\U0001f600", "\ud800", "\x7f", "\r", "\v", "\u2028"),
]  # fmt: skip


def seeds() -> list[str]:
    """Sources that are small enough to be checked fast."""
    paths = sorted(path for folder in FOLDERS if folder for path in Path(folder).rglob("*.metal"))
    return [path.read_text(errors="replace") for path in paths if path.stat().st_size < 40_000]


def mutated(source: str, chance: random.Random) -> str:
    """Damage at random: tokens and lines taken out, put in, doubled and swapped, numbers made big, ends cut off."""
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        parts = re.findall(r"\w+|\s+|.", source)
        at, other = chance.randrange(len(parts) + 1), chance.randrange(len(parts) + 1)
        match chance.randrange(8):
            case 0:
                del parts[at : at + chance.randrange(1, 9)]
            case 1:
                parts[at:at] = [" ", chance.choice(PIECES), " "]
            case 2:
                parts[at : at + 1] = parts[other : other + 1]
            case 3:
                parts[at:at] = parts[other : other + chance.randrange(1, 65)]
            case 4:
                parts[at:at] = parts[at : at + 1] * chance.choice((2, 3, 50, 3000))
            case 5:
                parts[at : at + 1] = [
                    chance.choice(("0", "-1", "4294967296", "99999999999999999999999", "1e999", "''"))
                ]
            case 6:
                parts = parts[:at]
            case 7:
                parts[at:at] = [chance.choice("([{<")] * chance.choice((1, 3, 1000))
        source = "".join(parts) or "x"
    return source


def children() -> set[str]:
    """Processes that this one has started and that are still there."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


@pytest.mark.timeout(max(240, 4 * MUTATIONS))
def test_damaged_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPSCFFI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MPSCFFI_COMPILE_TIMEOUT", str(SECONDS))
    texts = seeds()
    chance = random.Random(19470)
    before = children() if sys.platform == "linux" else set()
    outcomes = {"refused": 0, "unexplained": 0, "listed": 0, "built": 0}
    for number in range(MUTATIONS):
        source = mutated(texts[number % len(texts)], chance)
        try:
            kernels = provider.check(source).kernels
            outcomes["listed"] += 1
            if kernels:
                provider.build(source, None, chance.choice(kernels))
                outcomes["built"] += 1
        except CompileError as error:
            outcomes["refused" if "error: " in error.log or "the compiler" in error.log else "unexplained"] += 1
        except RequestError:  # a function constant without a value
            outcomes["refused"] += 1
    assert outcomes["refused"] > MUTATIONS // 4, outcomes
    assert outcomes["unexplained"] == 0
    if sys.platform == "linux":
        assert children() == before
