"""Events: points in a stream's work that other streams and the CPU can wait for, with device times."""

from __future__ import annotations

from mpscffi import device as _device
from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle, ProcessBound
from mpscffi.device import current_device
from mpscffi.errors import ArgumentTypeError, ForeignObjectError, InvalidArgumentError, StateError
from mpscffi.stream import Stream, current_stream, wait_in_slices

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

__all__ = ["Event"]

_signal = lib.mps_queue_signal
_commit = lib.mps_queue_commit
_get_info = lib.mps_event_get_info
_NULL = ffi.NULL
_INFO_SIZE = ffi.sizeof("mps_event_info")


class Event(ProcessBound):
    """A point in a stream's work.

    It can be recorded again and again; waits, queries and times then mean the last record.

    Underneath it is a counter that only grows: each record, or signal from the CPU, raises it. Whoever gives the values
    has a timeline, of which many points can be waited for, also before anything is recorded for them.

    Parameters
    ----------
    enable_timing : bool
        Whether :meth:`elapsed_time` and :meth:`timestamp` may be asked.
    """

    __slots__ = ("_handle", "_pointer", "_reached", "_timed", "_value", "device", "enable_timing")

    def __init__(self, enable_timing: bool = False) -> None:
        if not isinstance(enable_timing, bool):
            raise ArgumentTypeError(f"Event: got enable_timing={enable_timing!r}, expected True or False")
        self.enable_timing = enable_timing
        self.device = current_device()
        self._handle = Handle("event")
        check(lib.mps_event_create(self.device._pointer, self._handle.out))
        self._pointer = self._handle.pointer
        #: What was recorded or signalled last.
        self._value = 0
        # What is known for good, so that it is not asked for again: a value that was reached, and the time of one.
        self._reached = 0
        self._timed = (0, 0)

    def __repr__(self) -> str:
        state = "not recorded" if not self._value else "complete" if self.query() else "pending"
        return f"<mpscffi.Event {state}>"

    @property
    def handle(self) -> Any:
        """The ``mps_event *`` of the C library, borrowed, for other bindings of it."""
        return self._pointer

    @property
    def value(self) -> int:
        """The highest value that was reached; 0 at first."""
        return int(self._ask().value)

    def record(self, stream: Stream | None = None, *, value: int | None = None) -> None:
        """Record the event behind all work that a stream has been given so far, and commit that work.

        Parameters
        ----------
        stream : Stream, optional
            This thread's current stream by default.
        value : int, optional
            What the event's value becomes when that work is complete: more than at the last record or signal. One more
            by default.
        """
        pointer = _pointer_of(stream, "record")
        before = self._value
        if value is not None:
            self._check_next(value, "record")
            self._value = value
        else:
            self._value = value = before + 1
        status = _signal(pointer, self._pointer, value) or _commit(pointer, _NULL)
        if status:
            self._take_back(value, before)
            check(status)

    def signal(self, value: int | None = None) -> None:
        """Raise the event's value from the CPU, now. It then has no device time.

        Parameters
        ----------
        value : int, optional
            More than at the last record or signal. One more by default.
        """
        before = self._value
        if value is not None:
            self._check_next(value, "signal")
            self._value = value
        else:
            self._value = value = before + 1
        status = lib.mps_event_signal(self._pointer, value)
        if status:
            self._take_back(value, before)
            check(status)

    def _take_back(self, value: int, before: int) -> None:
        # Nothing is going to bring this value, so nothing may wait for it.
        if self._value == value:
            self._value = before

    def wait(self, stream: Stream | None = None, *, value: int | None = None) -> None:
        """Make later work of a stream wait for the event; the caller goes on. Nothing if it was never recorded.

        Parameters
        ----------
        stream : Stream, optional
            This thread's current stream by default.
        value : int, optional
            A value to wait for, also one that nothing has been recorded for yet: the stream stands still until
            something is. The last one by default.
        """
        pointer = _pointer_of(stream, "wait")
        value = self._value if value is None else _checked(value, "wait")
        if value:
            check(lib.mps_queue_wait_event(pointer, self._pointer, value))
            check(_commit(pointer, _NULL))

    def query(self, value: int | None = None) -> bool:
        """Return whether the event is recorded and its work complete. Never blocks, reports no failure.

        Parameters
        ----------
        value : int, optional
            Ask for this value, instead of the last one.
        """
        value = self._value if value is None else _checked(value, "query")
        if self._reached < value:
            if self._ask().value < value:
                return False
            self._reached = value
        elif _device.forked:
            _device.refuse_fork()
        return value > 0

    def synchronize(self, timeout: float | None = None, *, value: int | None = None) -> None:
        """Wait until the event's work is complete. Returns at once if it was never recorded.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which to give up.
        value : int, optional
            A value to wait for, also one that nothing has been recorded for yet. The last one by default.

        Raises
        ------
        ExecutionError
            If that work failed and no wait has said so yet.
        TimeoutError
            If the work is not complete in time; it goes on.
        """
        value = self._value if value is None else _checked(value, "synchronize")
        if value:
            wait = lib.mps_event_wait
            check(
                wait_in_slices(lambda event, slice_: wait(event, value, slice_), self._pointer, timeout, "synchronize")
            )

    def __await__(self) -> Generator[Any, None, None]:
        """Wait as :meth:`synchronize` does, while the event loop goes on: ``await event``."""
        return self.reached().__await__()

    async def reached(self, value: int | None = None) -> None:
        """Wait for a value while the event loop goes on, as in ``await event.reached(5)``.

        Parameters
        ----------
        value : int, optional
            As for :meth:`synchronize`, which also says what is raised.
        """
        value = self._value if value is None else _checked(value, "reached")
        if value:
            from mpscffi._async import await_event

            await await_event(self._pointer, value)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds of device time from this event to a later one. Waits for both.

        Parameters
        ----------
        end_event : Event
            Like this one, recorded and made with ``enable_timing=True``.
        """
        if not isinstance(end_event, Event):
            raise ForeignObjectError(f"elapsed_time: got {type(end_event).__name__}, expected an Event")
        start, end = self._timed, end_event._timed
        if start[0] == self._value > 0 and end[0] == end_event._value > 0 and start[1] <= end[1] and not _device.forked:
            return (end[1] - start[1]) / 1e6
        self._check_timed("elapsed_time", "start event")
        end_event._check_timed("elapsed_time", "end event")
        self.synchronize()
        end_event.synchronize()
        elapsed = end_event._time("elapsed_time", "end event") - self._time("elapsed_time", "start event")
        if elapsed < 0:
            raise InvalidArgumentError(
                f"elapsed_time: the end event was recorded {-elapsed / 1e6} ms before the start event, expected "
                "after it"
            )
        return elapsed / 1e6

    def timestamp(self) -> int:
        """Return when the event's work was complete, in nanoseconds of the device's clock. Waits for it.

        :meth:`Device.timestamps` tells what that is on the CPU's clock.
        """
        self._check_timed("timestamp", "event")
        self.synchronize()
        return self._time("timestamp", "event")

    def _check_next(self, value: int, function: str) -> None:
        if _checked(value, function) <= self._value:
            raise InvalidArgumentError(
                f"{function}: got value {value}, expected more than {self._value}, the last one: an event's value only "
                "grows"
            )

    def _check_timed(self, function: str, name: str) -> None:
        if not self.enable_timing:
            raise StateError(f"{function}: the {name} was made without enable_timing=True")
        if not self._value:
            raise StateError(f"{function}: the {name} was never recorded")

    def _ask(self) -> Any:
        # A new struct each time, since several threads may ask at once.
        info = ffi.new("mps_event_info *", {"struct_size": _INFO_SIZE})
        check(_get_info(self._pointer, info))
        return info

    def _time(self, function: str, name: str) -> int:
        value = self._value
        info = self._ask()
        time: int = info.time
        if not time:
            raise StateError(f"{function}: the {name} was signalled by the CPU, so that there is no device time of it")
        if info.value == value:  # else it was recorded again meanwhile
            self._timed = (value, time)
        return time


def _checked(value: int, function: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{function}: got a value of type {type(value).__name__}, expected an int")
    if not 0 < value < 1 << 63:  # C takes more, but then there would not be room for records without a value
        raise InvalidArgumentError(f"{function}: got value {value}, expected 1 to 2**63 - 1")
    return value


def _pointer_of(stream: Stream | None, function: str) -> Any:
    if stream is None:
        stream = current_stream()
    elif not isinstance(stream, Stream):
        raise ArgumentTypeError(f"{function}: got {type(stream).__name__}, expected a Stream or None")
    return stream._pointer
