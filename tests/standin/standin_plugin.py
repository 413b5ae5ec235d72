"""pytest plugin of the stand-in lane: an exact count of its objects.

After each test module nothing may be left but what there was before it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator

import pytest

import mpscffi

standin = ctypes.CDLL(mpscffi.get_library())


def settled_objects(config: pytest.Config) -> list[str]:
    """Drop what the suite and the package keep for later, wait for all work, and count the objects of each class."""
    for module in [*config.pluginmanager.get_plugins(), *sys.modules.values()]:
        kept = getattr(module, "_libraries", None)
        if isinstance(kept, dict):
            kept.clear()
    gc.collect()
    mpscffi.synchronize()
    gc.collect()
    mpscffi.empty_cache()
    standin.standin_settle()
    text = ctypes.create_string_buffer(10000)
    standin.standin_live_classes(text, ctypes.c_size_t(len(text)))
    return sorted(text.value.decode().splitlines())


@pytest.fixture(scope="module", autouse=True)
def _no_object_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    mpscffi.zeros(1).fill_(1)
    mpscffi.empty(0)  # all arrays without elements share a buffer, which stays
    mpscffi.Stream().wait_stream(mpscffi.default_stream())  # for which the default one makes an event
    before, failed = settled_objects(request.config), request.session.testsfailed
    yield
    after = settled_objects(request.config)
    # After a failure, tracebacks keep what their frames hold.
    if after != before and request.session.testsfailed == failed:
        changes = [f"{line} (before)" for line in before if line not in after]
        changes += [f"{line} (now)" for line in after if line not in before]
        pytest.fail("objects of Foundation or Metal are left behind: " + ", ".join(changes))
