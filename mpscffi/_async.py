"""Waiting for events while an asyncio loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from mpscffi._callbacks import discard, new_user, register
from mpscffi._ffi import check, lib

__all__ = ["await_event"]


async def await_event(pointer: Any, value: int) -> None:
    """Wait until an event has reached a value, and raise what failed in the work before.

    Parameters
    ----------
    pointer : cdata
        The ``mps_event *``, which the caller keeps alive.
    value : int
        At least 1.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        # On a thread of the library's, or on this one if the value is reached already.
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits any more
            loop.call_soon_threadsafe(finish)

    user = new_user()
    try:
        register(user, None, wake)
        check(lib.mps_event_notify(pointer, value, lib.mpscffi_callback, user))
        await future
    finally:
        discard(user)  # when the task is cancelled, what comes later finds nothing
    check(lib.mps_event_wait(pointer, value, 0))
