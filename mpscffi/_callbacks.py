"""Python functions that the C library calls, on threads of its own.

C keeps an integer token, never a pointer to a Python object: a call that comes late finds nothing and does nothing.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from types import FunctionType

from mpscffi._ffi import ffi, lib
from mpscffi.errors import ArgumentTypeError

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpscffi.stream import Stream

__all__ = [
    "ReleaseFunction",
    "callbacks_left",
    "check_callable",
    "discard",
    "due",
    "exit_deadline",
    "keep",
    "new_user",
    "register",
]

#: How long the interpreter's exit waits for work and callbacks that are still to come.
EXIT_SECONDS = 1.0
#: Until when; None before the exit.
_deadline: float | None = None

_tokens = itertools.count(1)
_pending: dict[int, tuple[Stream | None, Callable[..., object]]] = {}
#: Tokens of those that run now.
_active: set[int] = set()
_kept: dict[int, object] = {}
#: Tokens of release functions that only queued work still delays.
due: set[int] = set()


class ReleaseFunction:
    """A function of the caller's that gives memory back; C's call for the memory calls it.

    Parameters
    ----------
    function : callable
        Called without arguments.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def __call__(self) -> None:
        """Call the function, the first time; what it raises goes where Python reports what finalizers raise."""
        finalizer = _Finalizer()
        # Here no signal handler runs in between: the function is called, or it is still to be called.
        finalizer.__del__, self.function = self.function, _nothing  # type: ignore[attr-defined]


class _Finalizer:
    """Calls what is stored in its slot when it goes: by C, so that no frame of ours is there to be interrupted."""

    __slots__ = ("__del__",)


#: A function in C that does nothing.
_nothing = bool


class _Running(threading.local):
    """The stream whose callback runs on this thread, if one does."""

    stream: Stream | None = None


_running = _Running()


def check_callable(function: object, count: int, name: str) -> None:
    """Refuse what cannot be called with so many arguments, now rather than on a thread where nobody hears of it."""
    if not callable(function):
        raise ArgumentTypeError(f"{name}: got {type(function).__name__}, expected a callable")
    if isinstance(function, FunctionType):
        code = function.__code__
        if code.co_argcount == count and not code.co_kwonlyargcount:
            return  # the usual case, which needs no look at the signature
    from inspect import signature

    try:
        parameters = signature(function)
    except (TypeError, ValueError):
        return  # some functions in C do not tell
    try:
        parameters.bind(*[None] * count)
    except TypeError as error:
        raise ArgumentTypeError(
            f"{name}: got {function!r}, expected a callable that takes {count or 'no'} argument{'s' * (count != 1)}: "
            f"{error}"
        ) from None


def new_user() -> Any:
    """Return a user pointer for C, which stands for nothing yet.

    Whoever lets it stand for something forgets that by :func:`discard` if C does not come to take it.
    """
    return ffi.cast("void *", next(_tokens))


def register(user: Any, stream: Stream | None, function: Callable[..., object]) -> None:
    """Let a user pointer stand for a function, for which C will ask once.

    Without a stream, `function` raises nothing, and the interpreter's exit does not wait for it.
    """
    _pending[int(ffi.cast("uintptr_t", user))] = (stream, function)


def keep(user: Any, owner: object) -> None:
    """Let a user pointer stand for an object, which is kept alive until C releases the memory that it owns."""
    _kept[int(ffi.cast("uintptr_t", user))] = owner


def discard(user: Any) -> None:
    """Forget a user pointer that C has not taken."""
    token = int(ffi.cast("uintptr_t", user))
    _pending.pop(token, None)
    _kept.pop(token, None)


def _call(user: Any, *arguments: object) -> None:
    token = int(ffi.cast("uintptr_t", user))
    _active.add(token)
    entry = _pending.pop(token, None)
    if entry is None:
        _active.discard(token)
        return
    stream, function = entry
    _running.stream = stream
    try:
        function(*arguments)
    except BaseException as error:
        if stream is None:
            raise
        stream._callback_errors.append(error)  # the stream's next wait raises it
    finally:
        _running.stream = None
        _active.discard(token)


@ffi.def_extern()  # type: ignore[untyped-decorator, unused-ignore]
def mpscffi_callback(user: Any) -> None:
    """Run a host callback."""
    _call(user)


@ffi.def_extern()  # type: ignore[untyped-decorator, unused-ignore]
def mpscffi_handler(user: Any, info: Any) -> None:
    """Run a scheduled or completed handler."""
    from mpscffi.command import CommandInfo

    _call(user, CommandInfo.from_c(info))


def _let_go(user: Any) -> None:
    token = int(ffi.cast("uintptr_t", user))
    owner = _kept.get(token)
    if type(owner) is ReleaseFunction:
        owner()
    _kept.pop(token, None)
    due.discard(token)


def _let_go_after_all(kind: Any, error: BaseException, trace: Any) -> None:
    """Do what the exception of a signal handler has interrupted, and have Python report it."""
    del kind
    _let_go(trace.tb_frame.f_locals["user"])
    raise error


@ffi.def_extern(onerror=_let_go_after_all)  # type: ignore[untyped-decorator, unused-ignore]
def mpscffi_release(user: Any, pointer: Any, length: int) -> None:
    """Let go of host memory that a buffer lay over, or of what a foreign user of our memory kept."""
    del pointer, length
    _let_go(user)


def exit_deadline() -> float:
    """Return until when the interpreter's exit waits, of :func:`time.monotonic`: whoever asks first starts the time."""
    global _deadline
    if _deadline is None:
        _deadline = time.monotonic() + EXIT_SECONDS
    return _deadline


def callbacks_left() -> bool:
    """Return whether callbacks are still to come, or run."""
    return bool(_active) or any(stream is not None for stream, _ in list(_pending.values()))


def _drain() -> None:
    for token, (stream, _) in list(_pending.items()):
        if stream is None:
            _pending.pop(token, None)
        else:
            # A handler of work that nobody has committed would never be called.
            lib.mps_queue_commit(stream._pointer, ffi.NULL)
    deadline = exit_deadline()
    while (_pending or _active or due) and time.monotonic() < deadline:
        time.sleep(0.002)
    # What comes later finds nothing to call.
    _pending.clear()
    lib.mpscffi_close()


def _after_fork_in_child() -> None:
    _pending.clear()
    _active.clear()
    due.clear()


atexit.register(_drain)
os.register_at_fork(after_in_child=_after_fork_in_child)
