"""The pytest plugin: faults of kernels are told by the test that ran them."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.host_only("a GPU does not tell of every fault")

TESTS = """
import mpscffi, numpy, pytest

SOURCE = '''
kernel void wild(device int *x, constant long &n) { x[n] = 1; }
kernel void endless(device atomic_int *x) { while (atomic_load_explicit(x, memory_order_relaxed) == 0) {} }
'''

@pytest.fixture(scope="session")
def kernels():
    return mpscffi.compile_shader("#include <metal_stdlib>\\nusing namespace metal;" + SOURCE)

def run_wild(kernels, stream=None):
    with mpscffi.stream(stream or mpscffi.default_stream()):
        kernels.wild(mpscffi.zeros(4, dtype="int32"), 1 << 40, threads=1)
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs the text of tests, and returns what pytest printed of it."""
    monkeypatch.setenv("MPSCFFI_DEVICE", "host")
    monkeypatch.setenv("COLUMNS", "300")

    def run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_kernels=TESTS + text)
        plugins = ("-p", "mpscffi.testing", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider")
        return pytester.runpytest_subprocess(*plugins, *options, timeout=100)

    return run


def test_a_fault_fails_the_test_that_ran_the_kernel(outcome) -> None:  # type: ignore[no-untyped-def]
    result = outcome("""
def test_innocent_before(kernels):
    pass

def test_guilty(kernels):
    run_wild(kernels)

def test_innocent(kernels):
    assert mpscffi.ones(3).tolist() == [1, 1, 1]

def test_guilty_on_a_stream(kernels):
    run_wild(kernels, mpscffi.Stream())

def test_wrong_and_guilty(kernels):
    run_wild(kernels)
    assert 1 == 2

def test_innocent_after(kernels):
    pass

def test_last(kernels):
    run_wild(kernels)
""")
    result.assert_outcomes(passed=3, failed=4)
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *::test_guilty - *kernel 'wild' failed*",
            "FAILED *::test_guilty_on_a_stream - *kernel 'wild' failed*",
            "FAILED *::test_wrong_and_guilty - *assert 1 == 2",
            "FAILED *::test_last - *kernel 'wild' failed*",
        ]
    )


def test_a_kernel_that_does_not_end_ends_the_session(outcome) -> None:  # type: ignore[no-untyped-def]
    result = outcome(
        """
def test_endless(kernels):
    kernels.endless(mpscffi.zeros(1, dtype="int32"), threads=1)

def test_after(kernels):
    pass
""",
        "-o",
        "mpscffi_timeout=0.5",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["FAILED *::test_endless - *not complete after 0.5 seconds*", "*test_endless does not end*"]
    )


@pytest.mark.parametrize("seconds", ["soon", "-1", "inf", "nan"])
def test_a_timeout_that_is_none(seconds: str, outcome) -> None:  # type: ignore[no-untyped-def]
    result = outcome("def test(): pass", "-o", f"mpscffi_timeout={seconds}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*mpscffi_timeout is '{seconds}', expected seconds, 0 or more"])
