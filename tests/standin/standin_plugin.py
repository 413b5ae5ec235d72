"""pytest plugin of the stand-in lane: the compiler that its kernels need, and an exact count of its objects.

After each test module nothing may be left but what there was before the first one.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest

import mpscffi
from mpscffi import _compiler

standin = ctypes.CDLL(mpscffi.get_library())

# The package gives its compiler to the host device when that compiles; here Metal's kernels need it too.
_compiler.install()


def settled_objects(config: pytest.Config) -> list[str]:
    """Drop what the suite and the package keep for later, wait for all work, and count the objects of each class."""
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "_libraries"):
            plugin._libraries.clear()
    gc.collect()
    mpscffi.synchronize()
    gc.collect()
    mpscffi.empty_cache()
    standin.standin_settle()
    text = ctypes.create_string_buffer(10000)
    standin.standin_live_classes(text, ctypes.c_size_t(len(text)))
    return sorted(text.value.decode().splitlines())


_baseline: list[str] | None = None


@pytest.fixture(scope="module", autouse=True)
def _no_object_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    global _baseline
    if _baseline is None:
        mpscffi.zeros(1).fill_(1)
        mpscffi.Stream().wait_stream(mpscffi.default_stream())  # for which the default one makes an event
        _baseline = settled_objects(request.config)
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        return  # tracebacks keep what their frames hold
    left = settled_objects(request.config)
    changes = [f"{line} (now)" for line in left if line not in _baseline]
    changes += [f"{line} (before)" for line in _baseline if line not in left]
    if changes:
        pytest.fail("objects of Foundation or Metal are left behind: " + ", ".join(changes))
