"""The profiler: which kernels ran, how often and how long, as tables, as a timeline and for the system's own tools.

``with mps.profiler.profile() as p:`` records; ``p.key_averages()`` sums up, ``p.export_html(path)`` draws. The names of
``torch.mps.profiler`` do what they do there: marks for Instruments on macOS.
"""

from __future__ import annotations

import os
import threading

from mpscffi._ffi import check, ffi, lib
from mpscffi.capture import is_capturing_metal, is_metal_capture_enabled, metal_capture
from mpscffi.device import current_device
from mpscffi.errors import ArgumentTypeError, Error, ForeignObjectError, InvalidArgumentError, StateError
from mpscffi.tracing import Record, Trace, read, wait_for_work

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from mpscffi.averages import KeyAverages

__all__ = [
    "Profile",
    "export_chrome_trace",
    "export_html",
    "is_capturing_metal",
    "is_metal_capture_enabled",
    "key_averages",
    "mark",
    "metal_capture",
    "profile",
    "range",
    "start",
    "stop",
]


def __dir__() -> list[str]:
    return __all__


_MODES = {
    "interval": lib.MPS_TRACE_SIGNPOST_INTERVALS,
    "event": lib.MPS_TRACE_SIGNPOST_EVENTS,
}
_ALL_SIGNPOSTS = lib.MPS_TRACE_SIGNPOST_KERNELS | lib.MPS_TRACE_SIGNPOST_COPIES | lib.MPS_TRACE_SIGNPOST_FALLBACKS


def _mode_flags(function: str, mode: str) -> int:
    """Return what a mode asks for; 0 for an empty one."""
    if not isinstance(mode, str):
        raise ForeignObjectError(f"{function}: got a mode of type {type(mode).__name__}, expected str")
    flags = 0
    for token in mode.lower().replace(" ", "").split(","):
        if token and token not in _MODES:
            where = "" if token == mode else f", in which {token!r} is none"
            raise InvalidArgumentError(
                f"{function}: got mode {mode!r}{where}, expected 'interval', 'event' or both as 'interval,event'"
            )
        flags |= _MODES.get(token, 0)
    return flags


def _flag(function: str, name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{function}: got {name}={value!r}, expected True or False")
    return value


# ---- profiles


class Profile(Trace):
    """What was recorded; see :func:`profile`. It can be read while it records, and as often as wanted.

    Reading waits for the work that was recorded, and reports no failure of it.
    """

    def __init__(self, function: str, mode: str, wait_until_completed: bool, per_command: bool, capacity: int) -> None:
        signposts = _mode_flags(function, mode)
        flags = signposts | (_ALL_SIGNPOSTS if signposts else 0)
        if _flag(function, "wait_until_completed", wait_until_completed):
            flags |= lib.MPS_TRACE_WAITS | lib.MPS_TRACE_COMMANDS
        if _flag(function, "per_command", per_command):
            flags |= lib.MPS_TRACE_COMMANDS
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise ArgumentTypeError(f"{function}: got a capacity of type {type(capacity).__name__}, expected int")
        if not 1 <= capacity <= 1 << 24:
            raise InvalidArgumentError(f"{function}: got capacity={capacity}, expected 1 to {1 << 24} records")
        super().__init__(flags, capacity)
        #: An empty mode records nothing.
        self._is_empty = not signposts
        self._records: list[Record] = []

    def __enter__(self) -> Profile:
        try:
            _begin(self, "profile")
        except Error:
            raise
        except BaseException:  # a signal's: nobody would leave what was not entered
            _end(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            _end(self)
        except BaseException:
            _end(self)
            raise

    def __repr__(self) -> str:
        state = "not started" if not self.began else f"{len(self._records)} records" + ", running" * (not self.ended)
        return f"<mpscffi.profiler.Profile: {state}>"

    def take(self, records: list[Record]) -> None:
        """Keep records."""
        self._records += records

    def records(self) -> list[Record]:
        """Return all :class:`~mpscffi.tracing.Record`, in the order in which they began."""
        wait_for_work()
        read()
        return sorted(self._records, key=lambda record: (record.start, record.id))

    def key_averages(self) -> KeyAverages:
        """Return counts and times of each kernel and of all else that has a name.

        Returns
        -------
        KeyAverages
            A sequence of rows; ``table()`` prints it.
        """
        from mpscffi.averages import averages

        return averages(self.records(), self.dropped)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file for https://ui.perfetto.dev or ``chrome://tracing``.

        Parameters
        ----------
        path : str or path
            Where to; what is there is replaced.
        """
        from mpscffi.timeline import write_chrome_trace

        write_chrome_trace(path, self.records(), self.dropped)

    def export_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the timeline and the table, which any browser shows without a network.

        Parameters
        ----------
        path : str or path
            Where to; what is there is replaced.
        """
        from mpscffi.timeline import write_html

        write_html(path, self.records(), self.key_averages(), self.dropped)


_lock = threading.RLock()
#: What start() or profile() has started, or the environment's wish for signposts.
_active: Trace | None = None
_last: Profile | None = None


def _begin(profile: Profile, function: str) -> None:
    global _active, _last
    current_device()
    with _lock:
        if _active is not None:
            raise StateError(
                f"{function}: the profiler is running already, started by "
                + ("start() or profile()" if isinstance(_active, Profile) else "PYTORCH_MPS_TRACE_SIGNPOSTS")
                + ": stop() it first"
            )
        profile._records = []
        profile.dropped = profile.ended = 0
        _last = profile
        if not profile._is_empty:
            _active = profile
            try:
                profile.start()
            except BaseException:
                _end(profile)
                raise


def _end(trace: Trace | None) -> None:
    """Stop what runs, if it is this one."""
    global _active
    with _lock:
        if _active is not None and _active is trace:
            trace.stop()
            _active = None  # last: what a signal's exception has interrupted can be called again


def start(
    mode: str = "interval", wait_until_completed: bool = False, *, per_command: bool = True, capacity: int = 262144
) -> None:
    """Begin to profile all streams; see :func:`profile` for the parameters.

    Raises
    ------
    StateError
        If the profiler is running.
    """
    _begin(Profile("start", mode, wait_until_completed, per_command, capacity), "start")


def stop() -> None:
    """End what :func:`start` began; nothing if nothing runs. What was recorded is there until the next start."""
    _end(_active)


def profile(
    mode: str = "interval", wait_until_completed: bool = False, *, per_command: bool = True, capacity: int = 262144
) -> Profile:
    """Return a context manager that records what all streams are given inside.

    Parameters
    ----------
    mode : str
        Which marks the system's tools get (os_signpost, under the subsystem "PyTorchMPS"): "interval" for the beginning
        and end of each kernel and copy, "event" for its end, or both with a comma. An empty one profiles nothing.
    wait_until_completed : bool
        Wait for each command, for at most a second, so that nothing overlaps.
    per_command : bool
        Time each command by itself. A GPU times only what is committed together: so each is committed by itself, which
        costs some microseconds more. Otherwise kernels that were committed together share their time equally. On the
        host device each command has its own time anyway.
    capacity : int
        How many records can wait to be read; there is one for each command, command buffer, allocation and range.
        What comes when it is full is counted and lost.

    Returns
    -------
    Profile
        What was recorded.

    Raises
    ------
    StateError
        On entry, if the profiler is running; what runs goes on.

    Examples
    --------
    >>> import mpscffi as mps
    >>> x = mps.zeros(4)
    >>> lib = mps.compile_shader(
    ...     "kernel void add_one(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }"
    ... )
    >>> with mps.profiler.profile() as p:
    ...     for _ in range(3):
    ...         lib.add_one(x)
    >>> p.key_averages()["add_one"].count
    3
    """
    return Profile("profile", mode, wait_until_completed, per_command, capacity)


def _last_profile(function: str) -> Profile:
    if _last is None:
        raise StateError(f"{function}: nothing was profiled yet: call start() and stop(), or use profile()")
    return _last


def key_averages() -> KeyAverages:
    """Return the last profile's counts and times; see :meth:`Profile.key_averages`."""
    return _last_profile("key_averages").key_averages()


def export_chrome_trace(path: str | os.PathLike[str]) -> None:
    """Write the last profile as JSON; see :meth:`Profile.export_chrome_trace`."""
    _last_profile("export_chrome_trace").export_chrome_trace(path)


def export_html(path: str | os.PathLike[str]) -> None:
    """Write the last profile as a page; see :meth:`Profile.export_html`."""
    _last_profile("export_html").export_html(path)


# ---- the caller's own marks


def _text(function: str, name: str) -> bytes:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{function}: got a name of type {type(name).__name__}, expected str")
    if "\0" in name:
        raise InvalidArgumentError(f"{function}: got {name!r}, which has a zero character")
    return name.encode("utf-8", "replace")


class range:
    """Marks what a block of code takes, on the thread that runs it.

    Ranges nest. One object can be entered again, but by one thread at a time.

    Parameters
    ----------
    name : str
        What the timeline, and Instruments on macOS, show.
    """

    __slots__ = ("_category", "_open", "_text")

    def __init__(self, name: str) -> None:
        self._text = _text("range", name)
        self._category = lib.MPS_SIGNPOST_INTERVALS
        #: Numbers of the intervals that are open, the last one outermost.
        self._open: Any = None

    def __enter__(self) -> range:
        out = ffi.new("uint64_t *")
        try:
            check(lib.mps_signpost_begin(self._category, self._text, out))
        except BaseException:
            if out[0]:
                lib.mps_signpost_end(out[0], self._text)
            raise
        # No call from here on, after which a signal handler could run: what is entered will be left.
        self._open = out[0], self._open
        return self

    def __exit__(self, *exception: object) -> None:
        opened, self._open = self._open
        status = lib.mps_signpost_end(opened, self._text)
        if status != lib.MPS_STATUS_FORKED:  # the parent ends it
            check(status)


def mark(name: str) -> None:
    """Mark a moment.

    Parameters
    ----------
    name : str
        What the timeline, and Instruments on macOS, show.
    """
    check(lib.mps_signpost_event(lib.MPS_SIGNPOST_EVENTS, _text("mark", name)))


def _after_fork_in_child() -> None:
    global _active, _lock
    _lock = threading.RLock()
    _active = None


os.register_at_fork(after_in_child=_after_fork_in_child)
