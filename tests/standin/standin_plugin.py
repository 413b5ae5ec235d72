"""pytest plugin of the stand-in lane: an exact count of its objects.

After each test module nothing may be left but what there was before it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Iterator

import pytest

import mpscffi

standin = ctypes.CDLL(mpscffi.get_library())

_before = pytest.StashKey[list[str]]()
_failed = pytest.StashKey[int]()


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


# What cannot be where memory is not used again, and in a library that wants a sanitizer's runtime of its program.
_SANITIZED = bool(os.environ.get("STANDIN_SANITIZE"))
_LEFT_OUT = {
    "test_memory_does_not_grow": _SANITIZED or bool(os.environ.get("STANDIN_ZOMBIES")),
    "test_the_same_numbers_from_c": _SANITIZED,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _LEFT_OUT.get(getattr(item, "originalname", ""))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    module = item.getparent(pytest.Module)
    if module is not None and _before not in module.stash:
        mpscffi.zeros(1).fill_(1)
        mpscffi.empty(0)  # all arrays without elements share a buffer, which stays
        mpscffi.Stream().wait_stream(mpscffi.default_stream())  # for which the default one makes an event
        mpscffi.compile_shader("/* os_log */ kernel void idle() {}").idle(threads=1)  # for which it makes a log state
        event = mpscffi.Event()
        event.signal()
        asyncio.run(event.reached())  # all events share a queue for such calls, which stays
        del event
        module.stash[_before] = settled_objects(item.config)
        module.stash[_failed] = item.session.testsfailed
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    module = item.getparent(pytest.Module)
    if module is None or (nextitem is not None and nextitem.getparent(pytest.Module) is module):
        return
    # What the last test was given by fixtures is let go of later.
    getattr(item, "funcargs", {}).clear()
    before, after = module.stash[_before], settled_objects(item.config)
    # After a failure, tracebacks keep what their frames hold.
    if after != before and item.session.testsfailed == module.stash[_failed]:
        changes = [f"{line} (before)" for line in before if line not in after]
        changes += [f"{line} (now)" for line in after if line not in before]
        pytest.fail("objects of Foundation or Metal are left behind: " + ", ".join(changes))
