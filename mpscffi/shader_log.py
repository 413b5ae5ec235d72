"""What kernels log: where it goes."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from mpscffi._callbacks import check_callable
from mpscffi._ffi import check, ffi, lib
from mpscffi.errors import InvalidArgumentError

__all__ = ["ShaderMessage", "set_shader_log"]

_LEVELS = ("debug", "info", "notice", "error", "fault")
#: The logging module's numbers for them.
_NUMBERS = {"debug": 10, "info": 20, "notice": 25, "error": 40, "fault": 50}


class ShaderMessage(NamedTuple):
    """A message that a kernel has written with ``os_log``.

    Attributes
    ----------
    level : str
        "debug", "info", "notice" (of ``os_log::log``), "error" or "fault".
    subsystem, category : str
        Of the logger; "" for ``os_log_default``.
    kernel : str
        "" where the device does not tell, as Metal.
    message : str
    dropped : int
        Not 0: the message tells how many others there was no room for.
    """

    level: str
    subsystem: str
    category: str
    kernel: str
    message: str
    dropped: int = 0


Handler = Callable[[ShaderMessage], object]

_lock = threading.Lock()
_handler: Handler | None = None
_installed = False


def set_shader_log(handler: Handler | None = None, *, level: str = "debug", buffer_size: int = 1 << 20) -> None:
    """Say where the messages of kernels go.

    Parameters
    ----------
    handler : callable, optional
        Called with each :class:`ShaderMessage`, one at a time, before a wait for the work that it is from returns; it
        must not wait for work. By default messages go to the logger "mpscffi.shader" of the logging module, and to
        standard error as long as the program has not set up logging.
    level : str
        Messages below it are not made: "debug" (all), "info", "notice", "error" or "fault".
    buffer_size : int
        Bytes of text that are kept until they are delivered, from 1 KiB to 1 GiB. What there is no room for is
        counted, and the number told.
    """
    global _handler, _installed
    if handler is not None:
        check_callable(handler, 1, "set_shader_log: handler")
    if not isinstance(level, str) or level not in _LEVELS:
        raise InvalidArgumentError(f"level: got {level!r}, expected one of {', '.join(_LEVELS)}")
    if not isinstance(buffer_size, int) or not 1 << 10 <= buffer_size <= 1 << 30:
        raise InvalidArgumentError(f"buffer_size: got {buffer_size!r}, expected 1024 to {1 << 30} bytes")
    desc = ffi.new(
        "mps_log_desc *",
        {
            "struct_size": ffi.sizeof("mps_log_desc"),
            "handler": lib.mpscffi_log,
            "level": _LEVELS.index(level) + 1,
            "buffer_size": buffer_size,
        },
    )
    with _lock:
        check(lib.mps_log_set(desc))  # what is there still goes to the old handler
        _handler = handler
        _installed = True


def install() -> None:
    """Make the default of :func:`set_shader_log` what happens, unless it has been called."""
    if not _installed:
        set_shader_log()


def _log(message: ShaderMessage) -> None:
    import logging

    logger = logging.getLogger("mpscffi.shader")
    if logger.hasHandlers():
        if logging.getLevelName(_NUMBERS["notice"]) == f"Level {_NUMBERS['notice']}":
            logging.addLevelName(_NUMBERS["notice"], "NOTICE")  # between the module's own INFO and WARNING
        fields = {f"shader_{name}": getattr(message, name) for name in ("kernel", "subsystem", "category")}
        kernel = f"{message.kernel}: " if message.kernel else ""
        logger.log(_NUMBERS[message.level], "%s%s", kernel, message.message, extra=fields)
    else:
        import sys

        print(f"{message.kernel or 'shader'}: {message.message}", file=sys.stderr)


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode("utf-8", "replace"))


@ffi.def_extern()  # type: ignore[untyped-decorator, unused-ignore]
def mpscffi_log(user: Any, message: Any) -> None:
    """Give a message to the handler. What that raises is printed: there is nobody to catch it."""
    del user
    (_handler or _log)(
        ShaderMessage(
            _LEVELS[message.level - 1],
            _text(message.subsystem),
            _text(message.category),
            _text(message.kernel),
            _text(message.message),
            message.dropped,
        )
    )


def _remove() -> None:
    # What kernels log while the interpreter ends goes to standard error.
    if _installed:
        lib.mps_log_set(ffi.NULL)


atexit.register(_remove)
