"""Streams: each runs its work in order, side by side with the others."""

from __future__ import annotations

import atexit
import itertools
import math
import sys
import threading
import time
import weakref

from mpscffi import device as _device
from mpscffi._callbacks import _running, callbacks_left, check_callable, discard, exit_deadline, new_user, register
from mpscffi._ffi import check, error_message, ffi, lib
from mpscffi._handle import Handle, ProcessBound
from mpscffi.device import Device, current_device
from mpscffi.errors import ArgumentTypeError, ExecutionError, InvalidArgumentError, StateError, TimeoutError

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from mpscffi.array import Array
    from mpscffi.command import CommandInfo
    from mpscffi.event import Event
    from mpscffi.graph import Recording
    from mpscffi.kernel_errors import KernelErrors
    from mpscffi.memory.block import Block

__all__ = [
    "Stream",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "stream_priority_range",
    "synchronize",
]

#: Waits come back this often, in nanoseconds, so that Ctrl-C is heard.
WAIT_SLICE = 50_000_000
#: Between two looks at work that cannot be waited for otherwise.
POLL_SECONDS = 0.001

_OK = lib.MPS_STATUS_OK
_TIMEOUT = lib.MPS_STATUS_TIMEOUT
_FAILED = lib.MPS_STATUS_EXECUTION_FAILED
_queue_wait = lib.mps_queue_wait
_callback = lib.mps_queue_callback


def wait_in_slices(wait: Callable[[Any, int], int], pointer: Any, timeout: float | None, function: str) -> int:
    """Wait by short waits, between which Python handles signals.

    Parameters
    ----------
    wait : callable
        Takes the pointer and nanoseconds; returns an ``mps_status``.
    pointer : cdata
        What to wait for.
    timeout : float or None
        Seconds; None to wait as long as it takes.
    function : str
        The public function, for error texts.

    Returns
    -------
    int
        The last status.

    Raises
    ------
    TimeoutError
        If the time is over.
    """
    if timeout is None:
        while (status := wait(pointer, WAIT_SLICE)) == _TIMEOUT:
            pass
        return status
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise ArgumentTypeError(f"{function}: got a timeout of type {type(timeout).__name__}, expected seconds or None")
    try:
        timeout = float(timeout)
    except OverflowError:
        timeout = math.inf
    except TypeError as error:  # as an array of several numbers
        raise ArgumentTypeError(f"{function}: got a timeout of type {type(timeout).__name__}: {error}") from None
    if math.isnan(timeout) or timeout < 0:
        raise InvalidArgumentError(f"{function}: got timeout={timeout}, expected seconds, 0 or more, or None")
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        last = left <= WAIT_SLICE / 1e9
        status = wait(pointer, max(0, int(left * 1e9)) if last else WAIT_SLICE)
        if status != _TIMEOUT:
            return status
        if last:
            raise TimeoutError(
                f"{function}: the work was not complete after {timeout:g} seconds; it goes on, and can be waited for "
                "again"
            )


class Stream(ProcessBound):
    """An ordered queue of work on a device. It may be used from any thread.

    Parameters
    ----------
    device : Device, optional
        The device in use by default.
    label : str, optional
        Its name in error texts and captures.
    priority : int
        One of :func:`stream_priority_range`: 0, since no device has queues of different priority.

    Attributes
    ----------
    stream_id : int
        0 for a device's default stream; others are counted from 1 on, and no number comes twice.
    """

    __slots__ = (
        "__weakref__",
        "_callback_errors",
        "_fence",
        "_fence_value",
        "_handle",
        "_kernel_errors",
        "_lock",
        "_pointer",
        "_recording",
        "device",
        "label",
        "stream_id",
    )

    def __init__(self, device: Device | None = None, *, label: str | None = None, priority: int = 0) -> None:
        if device is not None and not isinstance(device, Device):
            raise ArgumentTypeError(f"Stream: got a device of type {type(device).__name__}, expected a Device")
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise ArgumentTypeError(f"Stream: got a priority of type {type(priority).__name__}, expected an int")
        if priority != 0:
            raise InvalidArgumentError(
                f"Stream: got priority {priority}, expected 0: neither Metal's compute queues nor the host device's "
                "have another"
            )
        if label is not None and not isinstance(label, str):
            raise ArgumentTypeError(f"Stream: got a label of type {type(label).__name__}, expected a str or None")
        self._open(device or current_device(), label, next(_numbers))

    def _open(self, device: Device, label: str | None, number: int) -> None:
        self.device = device
        self.stream_id = number
        self.label = label or f"stream {number}"
        text = ffi.new("char[]", self.label.encode(errors="replace"))
        desc = ffi.new("mps_queue_desc *", {"struct_size": ffi.sizeof("mps_queue_desc"), "label": text})
        self._handle = Handle("queue")
        check(lib.mps_queue_create(self.device._pointer, desc, self._handle.out))
        self._pointer = self._handle.pointer
        self._callback_errors: list[BaseException] = []
        self._kernel_errors: KernelErrors | None = None
        self._lock = threading.RLock()
        self._fence: Handle | None = None
        self._fence_value = 0
        #: What takes this thread's commands in the stream's place; None for every stream but a recording.
        self._recording: Recording | None = None
        key = id(self)
        _live[key] = weakref.ref(self, lambda _: _live.pop(key, None))

    def __repr__(self) -> str:
        return f"<mpscffi.Stream {self.label!r} on {self.device.backend}:{self.device.index}>"

    @property
    def priority(self) -> int:
        """One of :func:`stream_priority_range`."""
        return 0

    @property
    def handle(self) -> Any:
        """The ``mps_queue *`` of the C library, borrowed, for other bindings of it."""
        return self._pointer

    def synchronize(self, timeout: float | None = None) -> None:
        """Commit, and wait until all work of the stream is complete. The GIL is released and Ctrl-C is heard.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which to give up.

        Raises
        ------
        ExecutionError
            If work of this stream failed and no wait has said so yet, or if its kernels reported an error (see
            ``error_buf_idx`` of :meth:`Kernel.__call__`).
        TimeoutError
            If the work is not complete in time; it goes on.
        """
        if _running.stream is self:
            raise StateError(
                f"synchronize: called by a callback of the same stream ({self.label!r}), whose later work waits for it"
            )
        if timeout is None:
            # The usual case: nothing is left to do, or it is done within one slice.
            status = _queue_wait(self._pointer, WAIT_SLICE)
            if status == _TIMEOUT:
                status = wait_in_slices(_queue_wait, self._pointer, None, "synchronize")
        else:
            status = wait_in_slices(_queue_wait, self._pointer, timeout, "synchronize")
        if status != _OK:
            check(status)
        self._raise_reported()

    async def synchronize_async(self) -> None:
        """Wait as :meth:`synchronize` does for the work given so far, while the event loop goes on."""
        from mpscffi._async import await_event

        fence, value = self._signal_fence()
        await await_event(fence.pointer, value)
        self._raise_reported()

    def _raise_reported(self) -> None:
        """Raise what callbacks, or kernels by themselves, have reported."""
        if self._callback_errors:
            raise self._callback_errors.pop(0)
        if self._kernel_errors is not None:
            message = self._kernel_errors.take()
            if message is not None:
                raise ExecutionError(message)

    def _kernel_messages(self) -> Array:
        """Return the buffer in which this stream's kernels report errors of their own."""
        from mpscffi.kernel_errors import KernelErrors

        with self._lock:
            if self._kernel_errors is None:
                self._kernel_errors = KernelErrors()
            return self._kernel_errors.array

    def query(self) -> bool:
        """Return whether all work of the stream is complete. Never blocks, reports no failure."""
        out = ffi.new("uint32_t *")
        check(lib.mps_queue_is_idle(self._pointer, out))
        return bool(out[0])

    def _is_done(self, serial: int) -> bool:
        """Return whether a command buffer, and what was before it, is complete. Never blocks, reports no failure."""
        if not serial or self.query():
            return True
        info = ffi.new("mps_command_info *", {"struct_size": ffi.sizeof("mps_command_info")})
        status = lib.mps_queue_get_command_info(self._pointer, serial, info)
        # A queue remembers as many command buffers as can be under way: what is forgotten is complete.
        return status == lib.MPS_STATUS_NOT_FOUND or bool(info.end)

    def commit(self) -> int:
        """Submit what was encoded since the last commit, as one command buffer.

        Returns
        -------
        int
            Its serial; the last one's if nothing was encoded, 0 if there was none.
        """
        out = ffi.new("uint64_t *")
        check(lib.mps_queue_commit(self._pointer, out))
        serial: int = out[0]
        return serial

    def command_info(self, serial: int) -> CommandInfo:
        """Return times and status of one of the last 64 command buffers."""
        if not isinstance(serial, int):
            raise ArgumentTypeError(f"command_info: got a serial of type {type(serial).__name__}, expected an int")
        if not 0 < serial < 1 << 64:
            raise InvalidArgumentError(
                f"command_info: got serial {serial}, expected a positive one, as commit() returns"
            )
        info = ffi.new("mps_command_info *", {"struct_size": ffi.sizeof("mps_command_info")})
        check(lib.mps_queue_get_command_info(self._pointer, serial, info))
        from mpscffi.command import CommandInfo

        return CommandInfo.from_c(info)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one by default, and return it."""
        from mpscffi.event import Event

        if event is None:
            event = Event()
        elif not isinstance(event, Event):
            raise ArgumentTypeError(f"record_event: got {type(event).__name__}, expected an Event or None")
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Make later work of this stream wait for an event; the caller goes on."""
        from mpscffi.event import Event

        if not isinstance(event, Event):
            raise ArgumentTypeError(f"wait_event: got {type(event).__name__}, expected an Event")
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Make later work of this stream wait for what the other one has been given so far; the caller goes on."""
        if not isinstance(other, Stream):
            raise ArgumentTypeError(f"wait_stream: got {type(other).__name__}, expected a Stream")
        if other is not self:
            fence, value = other._signal_fence()
            check(lib.mps_queue_wait_event(self._pointer, fence.pointer, value))

    def add_callback(self, function: Callable[[], object]) -> None:
        """Call a function when all work given so far is complete; later work waits for its return.

        Parameters
        ----------
        function : callable
            Called without arguments on a thread of the library's. It may use everything but waits for this stream. What
            it raises is raised by the stream's next wait.
        """
        self._call_back("add_callback", function, 0, lambda user: _callback(self._pointer, lib.mpscffi_callback, user))

    def add_scheduled_handler(self, function: Callable[[CommandInfo], object]) -> None:
        """Call a function with a :class:`CommandInfo` when the device has taken the work that is being encoded."""
        self._add_handler(lib.MPS_HANDLER_SCHEDULED, function, "add_scheduled_handler")

    def add_completed_handler(self, function: Callable[[CommandInfo], object]) -> None:
        """Call a function with a :class:`CommandInfo` when the work that is being encoded is complete, or failed."""
        self._add_handler(lib.MPS_HANDLER_COMPLETED, function, "add_completed_handler")

    def _add_handler(self, kind: int, function: Callable[[CommandInfo], object], name: str) -> None:
        self._call_back(
            name, function, 1, lambda user: lib.mps_queue_add_handler(self._pointer, kind, lib.mpscffi_handler, user)
        )

    def _call_back(self, name: str, function: Callable[..., object], count: int, encode: Callable[[Any], int]) -> None:
        """Have a function of so many arguments called by what `encode` encodes for a user pointer."""
        check_callable(function, count, name)
        user = new_user()
        try:
            register(user, self, function)
            check(encode(user))
        except BaseException:
            discard(user)
            raise

    def _signal_fence(self) -> tuple[Handle, int]:
        # Under the lock, since an event's values have to be signalled in order.
        with self._lock:
            if self._fence is None:
                fence = Handle("event")
                check(lib.mps_event_create(self.device._pointer, fence.out))
                self._fence = fence
            # Counted first: a value that is never signalled does no harm, one that is signalled twice would.
            self._fence_value = value = self._fence_value + 1
            check(lib.mps_queue_signal(self._pointer, self._fence.pointer, value))
            check(lib.mps_queue_commit(self._pointer, ffi.NULL))
            return self._fence, value

    def _use(self, blocks: Iterable[Block]) -> None:
        """Note that work of this stream is going to use blocks."""
        for block in blocks:
            if block.stream is not self:
                self._adopt(block)

    def _adopt(self, block: Block) -> None:
        """Note that work of this stream is going to use a block that another stream, or none, used last."""
        last = block.stream
        if last is not None:
            if block.inherited or block.in_use():
                # What `last` has been given to do with the block, or with its previous contents, comes first.
                self.wait_stream(last)
                block.inherited = False
            block.others = (block.others or frozenset()) - {self} | {last}
            block.shared_by_streams()
        block.stream = self


def stream_priority_range() -> tuple[int, int]:
    """Return the least and the greatest priority of streams: (0, 0), since no device has queues that differ in it."""
    return 0, 0


_numbers = itertools.count(1)
_live: dict[int, weakref.ref[Stream]] = {}
#: Those of all threads that are under way.
recordings: list[Recording] = []
_default_lock = threading.RLock()


class _ThreadState(threading.local):
    stream: Stream | None = None


_thread = _ThreadState()


def refuse_in_recording(what: str, instead: str = "") -> None:
    """Raise, if this thread records a graph, that something cannot be recorded, and what to do instead."""
    stream = _thread.stream
    if stream is not None and stream._recording is not None:
        stream._recording.refuse(what, instead)


def live_streams() -> list[Stream]:
    """Return all streams that exist."""
    return [stream for ref in list(_live.values()) if (stream := ref()) is not None]


#: Called at exit to take away what queued work calls, before the interpreter goes; work that comes to it later fails.
final_calls: list[Callable[[], None]] = []


def wait_unnoticed(streams: Iterable[Stream], seconds: float | None = None) -> None:
    """Commit, and wait until what streams have been given so far is complete: takes no failure away, queues nothing.

    Parameters
    ----------
    streams : iterable of Stream
        Not the one whose callback asks.
    seconds : float, optional
        After which to give up, without a word. As long as it takes by default.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    for stream, serial in [(stream, stream.commit()) for stream in streams]:
        while not stream._is_done(serial) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _is_idle() -> bool:
    """Submit all work, and return whether nothing is left to do, for callbacks neither."""
    streams = live_streams()
    for stream in streams:
        stream.commit()
    return not callbacks_left() and all(stream.query() for stream in streams)


def _finish() -> None:
    """Give work that nobody has waited for a moment at exit; then say which failures nobody has heard of."""
    if _device.forked:
        return
    # By looking, not by a wait: that might run a callback here, which takes as long as it likes.
    while not _is_idle() and time.monotonic() < exit_deadline():
        time.sleep(POLL_SECONDS)
    for function in final_calls:
        function()
    # What they have taken away fails now.
    deadline = time.monotonic_ns() + WAIT_SLICE
    for stream in live_streams():
        if _queue_wait(stream._pointer, max(0, deadline - time.monotonic_ns())) == _FAILED:
            sys.stderr.write(f"mpscffi: {error_message()}; the program ended without waiting for this work\n")


atexit.register(_finish)


def default_stream(device: Device | None = None) -> Stream:
    """Return the stream that a device's work goes to unless told otherwise.

    Parameters
    ----------
    device : Device, optional
        The device in use by default.
    """
    if device is None:
        device = current_device()
    elif not isinstance(device, Device):
        raise ArgumentTypeError(f"default_stream: got {type(device).__name__}, expected a Device or None")
    return device._default_stream or _make_default(device)


def _make_default(device: Device) -> Stream:
    with _default_lock:
        if device._default_stream is None:
            default = Stream.__new__(Stream)
            default._open(device, "default", 0)
            device._default_stream = default
        return device._default_stream


def current_stream() -> Stream:
    """Return the stream that this thread's work goes to: the one that was set, else the default one."""
    return _thread.stream or default_stream()


def set_stream(stream: Stream | None) -> None:
    """Set this thread's current stream; None changes nothing."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise ArgumentTypeError(f"set_stream: got {type(stream).__name__}, expected a Stream or None")
    refuse_in_recording("a change of stream")
    _thread.stream = stream


class StreamContext:
    """Makes a stream this thread's current one while the block runs; see :func:`stream`."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: Stream | None) -> None:
        if stream is not None and not isinstance(stream, Stream):
            raise ArgumentTypeError(f"stream: got {type(stream).__name__}, expected a Stream or None")
        self._stream = stream
        #: The stream before each time that it was entered, the last one outermost.
        self._before: Any = None

    def __enter__(self) -> Stream | None:
        if self._stream is not None:
            refuse_in_recording("a change of stream")
        # No call from here on, after which a signal handler could run: what is entered will be left.
        self._before = _thread.stream, self._before
        if self._stream is not None:
            _thread.stream = self._stream
        return self._stream

    def __exit__(self, *exception: object) -> None:
        _thread.stream, self._before = self._before


def stream(stream: Stream | None) -> StreamContext:
    """Return a context manager that makes a stream this thread's current one; with None it changes nothing."""
    return StreamContext(stream)


def synchronize(timeout: float | None = None) -> None:
    """Wait until all work on all streams of the device in use is complete.

    Parameters
    ----------
    timeout : float, optional
        Seconds for each stream after which to give up.

    Raises
    ------
    ExecutionError
        If work failed and no wait has said so yet.
    TimeoutError
        If work is not complete in time; it goes on.
    """
    if recordings:
        refuse_in_recording("synchronize()")
    device = current_device()
    default = device._default_stream or default_stream(device)
    if len(_live) == 1:
        # The usual case: there is no other stream to look at.
        default.synchronize(timeout)
        return
    failures: list[ExecutionError] = []
    for one in live_streams():
        if one.device is device:
            try:
                one.synchronize(timeout)
            except ExecutionError as failure:
                failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExecutionError("\n".join(map(str, failures)))


def wait_for_block(block: Block) -> None:
    """Wait for the work that uses a block, and raise what failed in it."""
    if recordings:
        refuse_in_recording("a look at the contents of an array")
    stream = block.stream
    if stream is None:
        return
    inside = _running.stream
    if inside is None and block.others is None:
        stream.synchronize()
        return
    for one in (stream, *(block.others or ())):
        if inside is None or one is not inside:
            one.synchronize()
        elif block.in_use():
            raise StateError(
                f"a callback of stream {one.label!r} asks for the contents of an array that later work of "
                "the stream uses"
            )
