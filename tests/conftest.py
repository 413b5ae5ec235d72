"""Fixtures of the whole suite: every test that asks for `device` runs on each device of this machine."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import hypothesis
import pytest

import mpscffi
from mpscffi._ffi import check, ffi, lib
from mpscffi.allocator import allocator_of
from mpscffi.config import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interop",
        action="store_true",
        default=bool(os.environ.get("MPSCFFI_INTEROP")),
        help="also run the tests with other packages, which are installed from PyPI (as MPSCFFI_INTEROP=1 does)",
    )

    parser.addoption(
        "--no-skips",
        action="store_true",
        default=bool(os.environ.get("MPSCFFI_TEST_NO_SKIPS")),
        help="a skipped test is a failure of the run, which shows that something is not installed here "
        "(as MPSCFFI_TEST_NO_SKIPS=1 does)",
    )
    parser.addoption(
        "--stress-seconds",
        type=float,
        default=2.0,
        help="how long the stress test goes on; CI takes 300",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: with another package from PyPI; runs with --interop only")
    config.addinivalue_line("markers", "host_only(why): about the host device, and not run for others")
    config.addinivalue_line(
        "markers",
        "unvalidated(why): about kernels that are not validated; left out with MPSCFFI_SHADER_VALIDATION=1",
    )
    config.addinivalue_line("markers", "linux_only(why): needs what only Linux has, and not run elsewhere")


def _is_left_out(item: pytest.Item) -> bool:
    """Whether a test is not about the devices that are tested; that is no reason to skip one."""
    if item.get_closest_marker("interop") and not item.config.getoption("interop"):
        return True
    if item.get_closest_marker("linux_only") and sys.platform != "linux":
        return True
    if item.get_closest_marker("unvalidated") and settings().shader_validation:
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    devices = [parameters["_backend"]] if "_backend" in parameters else _backends()
    fixtures = getattr(item, "fixturenames", ())
    if (item.get_closest_marker("host_only") or "host_device" in fixtures) and "host" not in devices:
        return True
    if "metal_device" in fixtures and "metal" not in devices:
        return True
    return "reports_faults" in fixtures and "metal" in devices and not _is_standin()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped and session.config.getoption("no_skips") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"--no-skips: {len(skipped)} tests were skipped", red=True)


# Time is for the slowest machine to judge, not for one example.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


def _backends() -> list[str]:
    """Return the devices to test: MPSCFFI_TEST_DEVICES, else all there are."""
    wanted = os.environ.get("MPSCFFI_TEST_DEVICES", "")
    if wanted:
        return wanted.split(",")
    return [*(["metal"] if mpscffi.is_available() else []), "host"]


@functools.cache
def _is_standin() -> bool:
    """Whether the Metal device is the one of tests/standin."""
    return any(device.name == "Stand-in GPU" for device in mpscffi.devices())


@pytest.fixture(scope="session")
def on_standin() -> bool:
    """Whether the Metal device is the one of tests/standin."""
    return _is_standin()


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
    allocator.high_ratio, allocator.budget.low_ratio = 1.7, 1.4
    if allocator.cache_limit is not None:
        allocator.cache_limit = None


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


SPIN = """
kernel void spin(device uint* x, constant uint& rounds) {
  uint v = x[0];
  for (uint i = 0; i < rounds; i++) { v = v * 1664525u + 1013904223u; x[1] = v; }
  x[0] = v;
}
"""


@pytest.fixture
def spin(compiled: Callable[[str], mpscffi.ShaderLibrary]) -> Callable[..., None]:
    """Queues work for as many rounds as it is told; the result depends on every round."""
    kernel = compiled(SPIN).spin
    x = mpscffi.zeros(2, dtype="uint32")
    kernel(x, 1, threads=1)
    mpscffi.synchronize()
    return lambda rounds=20_000_000: kernel(x, rounds, threads=1)


GATE = """
#include <metal_stdlib>
using namespace metal;
kernel void wait_for_gate(device atomic_uint* open) {
  while (atomic_load_explicit(open, memory_order_relaxed) == 0) {}
}
"""


def _kernel_gate(compiled: Callable[[str], mpscffi.ShaderLibrary]) -> Callable[[], None]:
    state = mpscffi.zeros(1, dtype="uint32")
    # Taken now: once the kernel is queued, it would wait for it.
    memory = state.numpy()
    compiled(GATE).wait_for_gate(state, threads=1)

    def open_gate() -> None:
        memory[0] = 1

    return open_gate


def _event_gate(device: mpscffi.Device) -> Callable[[], None]:
    out = ffi.new("mps_event **")
    check(lib.mps_event_create(device.handle, out))
    event = ffi.gc(out[0], lib.mps_event_release)
    check(lib.mps_queue_wait_event(mpscffi.current_stream().handle, event, 1))
    return lambda: check(lib.mps_event_signal(event, 1))


@pytest.fixture
def gate(compiled: Callable[[str], mpscffi.ShaderLibrary], device: mpscffi.Device) -> Iterator[Callable[[], None]]:
    """Holds up the current stream until it is called."""
    # A GPU's watchdog ends kernels that wait for the CPU.
    open_gate = _kernel_gate(compiled) if device.backend == "host" else _event_gate(device)
    mpscffi.current_stream().commit()
    yield open_gate
    open_gate()
    mpscffi.synchronize()


@pytest.fixture
def host_device(device: mpscffi.Device) -> mpscffi.Device:
    """The device of tests that are about the host's alone, and left out for others, as those marked host_only are."""
    return device


@pytest.fixture
def metal_device(device: mpscffi.Device) -> mpscffi.Device:
    """The device of tests that are about Metal's objects, and left out for others."""
    return device


@pytest.fixture
def reports_faults() -> None:
    """For tests of kernels that do what they must not: what a GPU does then is its own affair, so they are left out."""


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
