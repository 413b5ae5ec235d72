"""Captures: everything that a device is given to do, in a document.

On Metal a document for Xcode, on the host device a directory of which ``mpscffi replay`` runs each command again.
"""

from __future__ import annotations

import os

from mpscffi._ffi import check, ffi, lib
from mpscffi.device import current_device
from mpscffi.errors import (
    ArgumentTypeError,
    Error,
    FileExistsError,
    FileNotFoundError,
    InvalidArgumentError,
    StateError,
    UnsupportedError,
)
from mpscffi.stream import live_streams

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from types import TracebackType

    from mpscffi.device import Device

__all__ = ["is_capturing_metal", "is_metal_capture_enabled", "metal_capture"]

SUFFIX = ".gputrace"


def is_metal_capture_enabled() -> bool:
    """Return whether :func:`metal_capture` can be used in this process.

    On Metal, if it was started with ``MTL_CAPTURE_ENABLED=1`` in its environment; on the host device, always.
    """
    return _ask(lib.mps_capture_is_supported)


def is_capturing_metal() -> bool:
    """Return whether a capture of the device in use is running."""
    return _ask(lib.mps_capture_is_active)


def _ask(function: object) -> bool:
    out = ffi.new("uint32_t *")
    check(function(current_device()._pointer, out))  # type: ignore[operator]
    return bool(out[0])


def metal_capture(fname: str | os.PathLike[str]) -> Capture:
    """Return a context manager that captures what all streams of the device in use are given inside.

    Entering waits for earlier work, leaving for the work that was captured.

    Parameters
    ----------
    fname : str or path
        The document to make, which must not exist; it ends in ".gputrace".

    Raises
    ------
    UnsupportedError
        If captures are not enabled in this process, see :func:`is_metal_capture_enabled`.
    FileExistsError, FileNotFoundError
        If there is something of that name, or no directory to make it in.
    StateError
        If a capture is running.

    Examples
    --------
    >>> import mpscffi as mps, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "one.gputrace")
    >>> with mps.profiler.metal_capture(path):
    ...     x = mps.ones(3)
    >>> os.path.exists(path)
    True
    """
    return Capture(fname)


class Capture:
    """See :func:`metal_capture`. It can be entered once.

    Attributes
    ----------
    path : str
        The document, as an absolute path.
    """

    __slots__ = ("_device", "path")

    def __init__(self, fname: str | os.PathLike[str]) -> None:
        try:
            given = os.fspath(fname)
        except TypeError:
            given = None
        if not isinstance(given, str):
            raise ArgumentTypeError(f"metal_capture: got {type(fname).__name__}, expected a str or a path")
        #: Set while it runs.
        self._device: Device | None = None
        self.path = os.path.abspath(given)
        self._check()

    def _check(self) -> None:
        if "\0" in self.path or not self.path.endswith(SUFFIX) or os.path.basename(self.path) == SUFFIX:
            raise InvalidArgumentError(f'metal_capture: got {self.path!r}, expected a name that ends in "{SUFFIX}"')
        if not is_metal_capture_enabled():
            raise UnsupportedError(
                "metal_capture: captures are not enabled in this process: start it with MTL_CAPTURE_ENABLED=1 in the "
                "environment"
            )
        if os.path.lexists(self.path):
            raise FileExistsError(f"metal_capture: {self.path!r} exists already: give the name of a new document")
        if not os.path.isdir(os.path.dirname(self.path)):
            raise FileNotFoundError(
                f"metal_capture: there is no directory {os.path.dirname(self.path)!r} to make the document in"
            )
        if is_capturing_metal():
            raise StateError("metal_capture: a capture is running already: captures do not nest")

    def __enter__(self) -> str:
        self._check()
        device = current_device()
        _drain(device)
        path = ffi.new("char[]", os.fsencode(self.path))
        desc = ffi.new("mps_capture_desc *", {"struct_size": ffi.sizeof("mps_capture_desc"), "path": path})
        try:
            check(lib.mps_capture_start(device._pointer, desc))
        except Error:
            raise
        except BaseException:  # a signal's: nobody would leave what was not entered
            lib.mps_capture_stop(device._pointer)
            raise
        self._device = device
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        device, self._device = self._device, None
        if device is None:
            return
        # What the block raised, or the signal that interrupts the wait, is what has to be seen; what the end brings is
        # told with it.
        failures: list[BaseException] = [] if error is None else [error]
        try:
            for end in (_drain, _stop):
                try:
                    end(device)
                except BaseException as late:
                    if end is _stop and not isinstance(late, Error):
                        lib.mps_capture_stop(device._pointer)  # which refuses if it has stopped
                    if failures and isinstance(late, Error):
                        _note(failures[-1], f"and the end of metal_capture: {late}")
                    else:
                        failures.append(late)
        except BaseException:  # a signal's, in between
            lib.mps_capture_stop(device._pointer)
            raise
        if failures and failures[-1] is not error:
            raise failures[-1]


def _stop(device: Device) -> None:
    check(lib.mps_capture_stop(device._pointer))


def _note(error: BaseException, text: str) -> None:
    if hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(text)


def _drain(device: Device) -> None:
    """Wait for all streams of a device, whatever fails; then raise the first failure."""
    first: Error | None = None
    for stream in live_streams():
        if stream.device is device:
            try:
                stream.synchronize()
            except Error as error:
                first = first or error
    if first is not None:
        raise first
