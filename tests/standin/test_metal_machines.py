"""Machines that the stand-in can be: without a GPU, with one that does not fit, an older system, another GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Python = Callable[..., "subprocess.CompletedProcess[str]"]

DESCRIBE = """
import mpscffi
print(mpscffi.device_count(), mpscffi.is_available(), mpscffi.why_unavailable())
print(mpscffi.current_device().backend)
"""


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"STANDIN_DEVICES": "0"}, "Metal finds no GPU on this machine (macOS Version 15.0"),
        ({"STANDIN_UNIFIED_MEMORY": "0"}, "the GPU 'Stand-in GPU' has no unified memory"),
        ({"STANDIN_OS_MAJOR": "12"}, "needs macOS 13 or newer, and this is Version 12.0"),
        ({"STANDIN_RAISE_DEVICES": "1"}, "raised StandinException while looking for GPUs"),
    ],
)
@pytest.mark.parametrize("rosetta", [False, True])
def test_no_device(python: Python, machine: dict[str, str], reason: str, rosetta: bool) -> None:
    result = python(DESCRIBE, MPSCFFI_DEVICE="auto", STANDIN_ROSETTA=str(int(rosetta)), **machine)
    assert result.returncode == 0, result.stderr
    first, backend = result.stdout.splitlines()
    assert first.startswith("0 False ")
    assert reason in first
    assert backend == "host"
    told = rosetta and ("no GPU" in reason or "unified" in reason)
    assert ("under Rosetta" in first) == told


def test_a_device_is_asked_for_and_missing(python: Python) -> None:
    result = python(DESCRIBE, MPSCFFI_DEVICE="metal", STANDIN_DEVICES="0")
    assert result.returncode != 0
    assert "UnavailableError: MPSCFFI_DEVICE=metal, but there is no such device: Metal finds no GPU" in result.stderr


def test_a_device_that_is_only_the_default_one(python: Python) -> None:
    result = python(DESCRIBE, MPSCFFI_DEVICE="auto", STANDIN_LISTED_DEVICES="0")
    assert result.stdout.splitlines() == ["1 True ", "metal"], result.stderr


SOURCE = """
import numpy as np
import mpscffi
library = mpscffi.compile_shader('''
#include <metal_stdlib>
using namespace metal;
kernel void test(device float* out, constant float& x) { out[0] = isnan(x) ? 1 : 0; }
''', math_mode="{mode}")
out = mpscffi.zeros(1)
library.test(out, float("nan"), threads=1)
print(out.item())
"""


@pytest.mark.parametrize("system", ["14", "15"])
@pytest.mark.parametrize(("mode", "expected"), [("safe", "1.0"), ("relaxed", "1.0")])
def test_math_modes_of_both_generations(python: Python, system: str, mode: str, expected: str) -> None:
    result = python(SOURCE.replace("{mode}", mode), STANDIN_OS_MAJOR=system)
    assert result.stdout.strip() == expected, result.stderr


def test_odd_bytes_on_a_gpu_that_is_not_apples(python: Python) -> None:
    script = """
        import numpy as np
        import mpscffi
        from mpscffi import _compiler
        from mpscffi._ffi import check, lib

        _compiler.install()  # the library compiles kernels of its own
        stream = mpscffi.current_stream()
        a, b = (mpscffi.asarray(np.arange(101, dtype=np.uint8)) for _ in range(2))
        x, y = a._block.pointer, b._block.pointer
        check(lib.mps_queue_fill(stream._pointer, x, 3, 10, 200))
        check(lib.mps_queue_copy(stream._pointer, x, 1, y, 50, 33))
        check(lib.mps_queue_copy(stream._pointer, x, 0, y, 4, 8))  # whole words: a blit
        stream.synchronize()
        expected = np.arange(101, dtype=np.uint8)
        copied = expected.copy()
        expected[3:13] = 200
        copied[50:83] = expected[1:34]
        copied[4:12] = expected[0:8]
        assert (a.numpy() == expected).all(), a.numpy()
        assert (b.numpy() == copied).all(), b.numpy()
    """
    result = python(script, STANDIN_APPLE_FAMILY="0")
    assert result.returncode == 0, result.stderr


def test_a_child_of_a_process_that_has_looked_for_gpus(python: Python) -> None:
    script = """
        import os
        import mpscffi

        assert mpscffi.is_available()
        child = os.fork()
        if child == 0:
            try:
                mpscffi.zeros(1)
            except mpscffi.errors.ForkedError as error:
                os._exit(42 if "spawn" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    """
    result = python(script, "-W", "ignore")
    assert result.returncode == 0, result.stderr
