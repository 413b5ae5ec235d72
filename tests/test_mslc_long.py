"""Kernels of thousands of statements, as generators write them: they compile in time, whatever LLVM makes of them."""

from __future__ import annotations

import numpy as np
import pytest

import mpscffi as mps
from mpscffi.mslc import process, target
from mpscffi.mslc.errors import CompilerMissing, CompileTimeout
from mpscffi.mslc.toolchain import find_toolchain

try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark = pytest.mark.skip(reason=str(missing))

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
COUNT = 64
MANY = 4000


def run(body: str, *, before: str = "", given: np.ndarray | None = None) -> np.ndarray:
    """Return what a kernel with this body writes to `out`; it has `in`, `i`, and `v`, the element i of `in`."""
    parameters = "device const float *in, device float *out, uint i [[thread_position_in_grid]]"
    library = mps.compile_shader(f"{HEAD}{before}\nkernel void k({parameters}) {{ float v = in[i];\n{body}\n}}")
    values = np.arange(MANY + COUNT, dtype=np.float32) if given is None else given
    out = mps.zeros(COUNT)
    library.k(mps.asarray(values), out, threads=COUNT)
    return out.numpy().copy()


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@pytest.mark.parametrize("meeting", ["", BARRIER, "v += simd_sum(0.0f);"], ids=["loop", "barrier", "simd"])
def test_thousands_of_loads(meeting: str) -> None:
    lines = "\n".join(f"sum += in[i + {k}] * {k % 2}.0f;" for k in range(MANY))
    odd = np.arange(1, MANY, 2)
    found = run(f"float sum = 0; {lines} {meeting} out[i] = sum;")
    expected = [np.sum(odd + i) for i in range(COUNT)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_thousands_of_variables() -> None:
    lines = "\n".join(f"float v{k} = v{k - 1} + 1.0f;" for k in range(1, MANY))
    np.testing.assert_array_equal(
        run(f"float v0 = v; {lines} out[i] = v{MANY - 1};"), np.arange(COUNT, dtype=np.float32) + MANY - 1
    )


def test_a_long_chain_of_conditions() -> None:
    lines = " else ".join(f"if (v == {k}.0f) {{ out[i] = {3 * k}; }}\n" for k in range(2000))
    np.testing.assert_array_equal(run(lines), 3 * np.arange(COUNT))


def test_a_big_switch() -> None:
    cases = "\n".join(f"case {k}: out[i] = in[{k + 1}]; break;" for k in range(1500))
    np.testing.assert_array_equal(run(f"switch (int(v)) {{ {cases} }}"), np.arange(COUNT) + 1)


def test_a_big_table() -> None:
    values = ", ".join(f"{k % 251}.0f" for k in range(50_000))
    found = run("out[i] = table[uint(v) * 700];", before=f"constant float table[] = {{ {values} }};")
    np.testing.assert_array_equal(found, np.arange(COUNT) * 700 % 251)


def test_thousands_of_functions() -> None:
    functions = "\n".join(f"float f{k}(float x) {{ return x + {k % 3}.0f; }}" for k in range(2000))
    calls = "\n".join(f"v = f{k}(v);" for k in range(2000))
    expected = np.arange(COUNT) + sum(k % 3 for k in range(2000))
    np.testing.assert_array_equal(run(f"{calls} out[i] = v;", before=functions), expected)


def test_vectors_of_many_numbers() -> None:
    lines = "\n".join(f"x = x + float4({k}, 1, 2, v).wxyz;" for k in range(100))
    found = run(f"float4 x = 0; {lines} out[i] = x.x + x.y + x.z + x.w;")
    np.testing.assert_array_equal(found, sum(range(100)) + 300 + 100 * np.arange(COUNT))


# ---------------------------------------------------------------- ways of compiling that are given up

SUM = """
float total(float x) { return simd_sum(x); }
kernel void k(device const float *in, device float *out, uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint j = 0; j < 3; j++) { sum += total(in[i] * j); %s }
  out[i] = sum;
}
"""


def is_of(command: list[str], way: str) -> bool:
    """Whether a run of the compiler belongs to a way of building a kernel."""
    return {
        "gang": "-emit-llvm" in command and "-S" in command,
        "gang's code": "ir" in command and "-O1" not in command and "-O0" not in command,
        "best": "-c" in command and "ir" not in command and not {"-flto=thin", "-emit-llvm"} & set(command),
        "quick": "-flto=thin" in command,
        "quick code": "-O1" in command,
    }[way]


@pytest.mark.unvalidated("ways that validated kernels do not have")
@pytest.mark.parametrize("died", [False, True], ids=["too long", "killed"])
@pytest.mark.parametrize(
    "ways",
    [["gang"], ["gang's code"], ["gang", "best"], ["gang", "best", "quick"], ["gang", "best", "quick code"]],
    ids="+".join,
)
def test_the_next_way_is_taken_if_one_takes_too_long(
    ways: list[str], died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: set[str] = set()
    real = process.run

    def run_or_stop(command: list[str], *arguments: object, **options: object) -> process.Finished:
        for way in ways:
            if is_of(command, way):
                assert options["seconds"] == target.PATIENCE
                stopped.add(way)
                if died:
                    return process.Finished(128 + 9, "", "")
                raise CompileTimeout("too long")
        return real(command, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "run", run_or_stop)
    comment = f"/* {ways} {died} */"  # or it is in the cache
    library = mps.compile_shader(HEAD + SUM % comment)
    out = mps.zeros(COUNT)
    library.k(mps.asarray(np.arange(COUNT, dtype=np.float32)), out, threads=COUNT)
    expected = np.repeat(np.arange(COUNT, dtype=np.float32).reshape(-1, 32).sum(1) * 3, 32)
    np.testing.assert_array_equal(out.numpy(), expected)
    assert stopped == set(ways)
