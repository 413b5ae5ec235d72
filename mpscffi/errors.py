"""Exceptions. Each is an :class:`Error`, hence a RuntimeError as in ``torch.mps``, and also the builtin that fits best.

So ``except RuntimeError`` ported from ``torch.mps`` goes on to work, and ``except MemoryError`` or
``except TimeoutError`` work as a Python programmer expects. Builtins with fields of
their own come first among the bases, so that their constructors run.
"""

from __future__ import annotations

import builtins

__all__ = [
    "ArgumentTypeError",
    "BufferError",
    "CompileError",
    "ConfigError",
    "CopyWarning",
    "Error",
    "ExecutionError",
    "FallbackWarning",
    "FileError",
    "FileExistsError",
    "FileNotFoundError",
    "ForeignObjectError",
    "ForkedError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidHandleError",
    "KernelNotFoundError",
    "LimitExceededError",
    "NotFoundError",
    "OutOfMemoryError",
    "StateError",
    "TimeoutError",
    "UnavailableError",
    "UnsupportedError",
]


def __dir__() -> list[str]:
    return __all__


class Error(RuntimeError):
    """What every exception of this package is."""


class InvalidArgumentError(Error, ValueError):
    """A value is out of its domain."""


class ArgumentTypeError(Error, TypeError):
    """An argument is of a type, or of an element type, that cannot be taken."""


class ForeignObjectError(AttributeError, ArgumentTypeError):
    """An argument is of a type that lacks what is asked of it, where upstream stumbles over the missing attribute."""


class ConfigError(Error, ValueError):
    """An environment variable does not parse, or two of them contradict each other."""


class InvalidHandleError(Error, ValueError):
    """An object of the C library was released already, or is of another kind."""


class OutOfMemoryError(Error, MemoryError):
    """The device, or the limit that was set, has no room for a request."""


class UnavailableError(Error):
    """There is no such device, or no compiler, on this machine; the text says what is missing."""


class UnsupportedError(Error, NotImplementedError):
    """The device cannot do what was asked."""


class NotFoundError(Error, LookupError):
    """There is no constant, command buffer or interval of that name."""


class KernelNotFoundError(AttributeError, NotFoundError):
    """A shader library has no kernel of that name."""


class CompileError(SyntaxError, Error):
    """Metal source does not compile; the text is the compiler's whole log."""


class LimitExceededError(Error, ValueError):
    """A limit of the device or of a kernel is exceeded; the text names it."""


class TimeoutError(builtins.TimeoutError, Error):
    """A wait came to the end of its time."""


class ExecutionError(Error):
    """A command that was queued failed on the device; the text names its kernel."""


class BufferError(builtins.BufferError, Error):
    """An array cannot be exported, or a foreign one imported, in the way that was asked for."""


class StateError(Error):
    """Not possible now."""


class ForkedError(Error):
    """The process was forked from one that uses a device."""


class FileError(OSError, Error):
    """A file does not exist, or cannot be read or written."""


class FileExistsError(builtins.FileExistsError, FileError):
    """There is something of that name already."""


class FileNotFoundError(builtins.FileNotFoundError, FileError):
    """There is no such file."""


class InternalError(Error):
    """A fault of this package: please report it."""


class CopyWarning(UserWarning):
    """What would share memory was copied instead; the text says why."""


class FallbackWarning(UserWarning):
    """Work runs on the CPU because Metal lacks its element type; ``PYTORCH_ENABLE_MPS_FALLBACK`` allowed it."""


#: Indexed by ``mps_status``.
_BY_STATUS: tuple[type[Error], ...] = (
    InternalError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
    NotFoundError,
    CompileError,
    LimitExceededError,
    TimeoutError,
    ExecutionError,
    StateError,
    ForkedError,
    FileError,
    InternalError,
)


def error_for(status: int, message: str) -> Error:
    """Return the exception that stands for a status of the C library.

    Parameters
    ----------
    status : int
        An ``mps_status`` other than OK.
    message : str
        The library's error text.

    Returns
    -------
    Error
        To be raised by the caller.
    """
    kind = _BY_STATUS[status] if 0 <= status < len(_BY_STATUS) else InternalError
    return kind(message or f"status {status} without a message")


def file_error(error: OSError, path: object) -> FileError:
    """Return this package's exception for what the system said of a file.

    Parameters
    ----------
    error : OSError
        What was raised.
    path : object
        As the caller gave it.

    Returns
    -------
    FileError
        To be raised by the caller.
    """
    kind: type[FileError] = FileError
    if isinstance(error, builtins.FileNotFoundError):
        kind = FileNotFoundError
    elif isinstance(error, builtins.FileExistsError):
        kind = FileExistsError
    return kind(error.errno, error.strerror, path)
