"""A pytest plugin: a kernel's fault fails the test that ran the kernel.

Calls of kernels return before the work is done, so a fault of a kernel that a test did not wait for would come up in a
later test, or after the last one. With ``pytest_plugins = ["mpscffi.testing"]`` in the ``conftest.py`` at the root of
the tests, or ``-p mpscffi.testing``, each test waits at its end for what it has left behind. A kernel that does not end
within ``mpscffi_timeout`` seconds, 60 if the configuration does not say, fails its test and ends the session, since
nothing behind it on its stream could run.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

import mpscffi


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini("mpscffi_timeout", "seconds that the kernels of a test may take after its end", default="60")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a setting that is no time."""
    _timeout(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the work of a test, which fails with it."""
    try:
        result = yield
    except BaseException:
        # The test has failed already; the next one shall not fail for the same reason.
        _failure(item)
        raise
    failure = _failure(item)
    if failure:
        pytest.fail(failure, pytrace=False)  # a trace would show where the wait is, not the call
    return result


def _failure(item: pytest.Item) -> str:
    """Wait for all work, and return what went wrong with it, or nothing."""
    try:
        mpscffi.synchronize(_timeout(item.config))
    except TimeoutError as error:
        item.session.shouldfail = f"a kernel of {item.nodeid} does not end: {error}"
        return str(error)
    except mpscffi.Error as error:
        return str(error)
    return ""


def _timeout(config: pytest.Config) -> float:
    text = str(config.getini("mpscffi_timeout"))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise pytest.UsageError(f"mpscffi_timeout is {text!r}, expected seconds, 0 or more")
    return seconds
