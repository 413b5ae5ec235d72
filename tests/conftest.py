"""Fixtures of the whole suite: every test that asks for `device` runs on each device of this machine."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import hypothesis
import pytest

import mpscffi
from mpscffi.allocator import allocator_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interop",
        action="store_true",
        default=bool(os.environ.get("MPSCFFI_INTEROP")),
        help="also run the tests with other packages, which are installed from PyPI (as MPSCFFI_INTEROP=1 does)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: with another package from PyPI; runs with --interop only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("interop"):
        left_out = [item for item in items if item.get_closest_marker("interop")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


# Time is for the slowest machine to judge, not for one example.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


def _backends() -> list[str]:
    """Return the devices to test: MPSCFFI_TEST_DEVICES, else all there are."""
    wanted = os.environ.get("MPSCFFI_TEST_DEVICES", "")
    if wanted:
        return wanted.split(",")
    return [*(["metal"] if mpscffi.is_available() else []), "host"]


@pytest.fixture(params=_backends(), scope="session")
def _backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def device(_backend: str) -> Iterator[mpscffi.Device]:
    """The device in use, with nothing left behind: no limit, no stream, no failure that the next test would meet."""
    mpscffi.set_device(_backend)
    current = mpscffi.current_device()
    yield current
    mpscffi.set_device(current)
    allocator = allocator_of(current)
    allocator.high_ratio = 1.7


_libraries: dict[tuple[int, str], mpscffi.ShaderLibrary] = {}


@pytest.fixture
def compiled(device: mpscffi.Device) -> Callable[[str], mpscffi.ShaderLibrary]:
    """Compiles a source, once in a test run."""

    def compile_once(source: str) -> mpscffi.ShaderLibrary:
        key = (id(device), source)
        if key not in _libraries:
            _libraries[key] = mpscffi.compile_shader(source)
        return _libraries[key]

    return compile_once


GATE = """
#include <metal_stdlib>
using namespace metal;
kernel void wait_for_gate(device atomic_uint* open) {
  while (atomic_load_explicit(open, memory_order_relaxed) == 0) {}
}
"""


@pytest.fixture
def gate(compiled: Callable[[str], mpscffi.ShaderLibrary], device: mpscffi.Device) -> Iterator[Callable[[], None]]:
    """Holds up the current stream until it is called."""
    if device.backend != "host" and device.name != "Stand-in GPU":
        pytest.skip("a GPU's watchdog ends kernels that wait for the CPU")
    state = mpscffi.zeros(1, dtype="uint32")
    # Taken now: once the kernel is queued, it would wait for it.
    memory = state.numpy()
    compiled(GATE).wait_for_gate(state, threads=1)
    mpscffi.current_stream().commit()

    def open_gate() -> None:
        memory[0] = 1

    yield open_gate
    open_gate()
    mpscffi.synchronize()


@pytest.fixture
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a new interpreter."""

    def run(script: str, *options: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path_factory.getbasetemp(),  # not the source tree, whose package is not built
            env={**os.environ, **environment},
            check=False,
        )

    return run


@pytest.fixture
def settled() -> None:
    """Nothing of earlier tests is left in memory."""
    gc.collect()
    mpscffi.synchronize()
    mpscffi.empty_cache()
