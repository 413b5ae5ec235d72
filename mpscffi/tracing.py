"""What the C library records of its devices' work, read for everyone who wants to have it.

The library has one trace. Those who want records (a profile, the lines that the environment asks for) are its readers
here: it runs while there is one, with what all of them ask for.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from collections import Counter, deque
from operator import attrgetter
from time import monotonic_ns  # the records' clock, on Linux and macOS
from typing import NamedTuple

from mpscffi._callbacks import _running
from mpscffi._ffi import check, ffi, lib
from mpscffi.errors import Error
from mpscffi.stream import live_streams, wait_unnoticed

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COMMANDS", "KINDS", "Record", "Trace", "wait_for_work"]

#: Names of ``mps_trace_kind``.
KINDS = {
    lib.MPS_TRACE_DISPATCH: "kernel",
    lib.MPS_TRACE_COPY: "copy",
    lib.MPS_TRACE_FILL: "fill",
    lib.MPS_TRACE_MATMUL: "matmul",
    lib.MPS_TRACE_SIGNAL: "signal",
    lib.MPS_TRACE_WAIT: "wait",
    lib.MPS_TRACE_CALLBACK: "callback",
    lib.MPS_TRACE_COMMAND_BUFFER: "command buffer",
    lib.MPS_TRACE_FALLBACK: "fallback",
    lib.MPS_TRACE_ARGUMENT: "argument",
    lib.MPS_TRACE_BUFFER_CREATE: "buffer create",
    lib.MPS_TRACE_BUFFER_RELEASE: "buffer release",
    lib.MPS_TRACE_HEAP_CREATE: "heap create",
    lib.MPS_TRACE_HEAP_RELEASE: "heap release",
    lib.MPS_TRACE_LIBRARY: "library",
    lib.MPS_TRACE_PIPELINE: "pipeline",
    lib.MPS_TRACE_RANGE: "range",
    lib.MPS_TRACE_MARK: "mark",
}

#: What the CPU does in place of a copy or fill of the device, after a wait.
CPU_COPIES = frozenset({"cpu copy", "cpu fill"})

#: Kinds that take time of the device.
COMMANDS = frozenset({"kernel", "copy", "fill", "matmul"})

#: As ``mps_trace_record`` is laid out.
_LAYOUT = struct.Struct("=2I3Q2Q6Q6I2I")
_BATCH = 1024
_DEFAULT_CAPACITY = 262144


class Record(NamedTuple):
    """One thing that happened. Times are nanoseconds of the clock of :meth:`Device.timestamps`.

    Attributes
    ----------
    kind : str
        "kernel", "copy", "fill", "matmul", "signal", "wait", "callback", "command buffer", "fallback", "argument",
        "buffer create", "buffer release", "heap create", "heap release", "library", "pipeline", "range" or "mark"; and
        "cpu copy" or "cpu fill" for what this package does on the CPU in an array's place.
    name : str
        The kernel's, the range's, or what fits the kind.
    queue : str
        Label of the stream; empty for what belongs to none.
    queue_number : int
        Tells streams apart; 0 for none.
    thread : int
        The thread that asked for it, as :func:`threading.get_native_id` numbers them.
    encoded, start, end : int
        When it was asked for, began and ended. For commands that are recorded as they are encoded, the last two are 0.
    bytes : int
        Of a copy, fill or allocation; the value of a signal or wait.
    grid, group : tuple of int
        Threads of a kernel; columns, rows and number of matrix products; ``mps_storage_mode`` of a copy's sides.
    together : int
        How many commands ``start`` and ``end`` are the times of: 1 for times of its own.
    failed : bool
        Whether it failed, or was skipped for an earlier failure.
    serial : int
        Of a command buffer; an argument's slot.
    object : int
        Tells heaps and buffers apart that live at the same time.
    id : int
        Counts up over all.
    """

    kind: str
    name: str
    queue: str
    queue_number: int
    thread: int
    encoded: int
    start: int
    end: int
    bytes: int
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    together: int
    failed: bool
    serial: int
    object: int
    id: int

    @property
    def duration(self) -> float:
        """Nanoseconds that it took; an equal share where several commands were timed together."""
        return (self.end - self.start) / self.together


class Trace:
    """A reader of the library's trace: gets what is asked for from :meth:`start` to :meth:`stop`.

    Parameters
    ----------
    flags : int
        ``MPS_TRACE_*``.
    capacity : int
        How many records can wait to be read.
    """

    def __init__(self, flags: int = 0, capacity: int = _DEFAULT_CAPACITY) -> None:
        self.flags = flags
        self.capacity = capacity
        #: Records that came when there was no room.
        self.dropped = 0
        self.began = 0
        self.ended = 0

    def start(self) -> None:
        """Begin; the library's trace is started, or is made to do more."""
        with _lock:
            try:
                _start({self})
                _finished.discard(self)
                self.began = monotonic_ns()
                _readers.add(self)
            except BaseException:
                _readers.discard(self)
                _start(set())
                raise

    def stop(self) -> None:
        """Ask for nothing any more. What was asked for before still comes when it is complete and someone reads."""
        with _lock:
            self.ended = monotonic_ns()
            if self in _readers:
                read()
                _readers.discard(self)
                _finished.add(self)
                _start(set())

    def take(self, records: list[Record]) -> None:
        """Get records, in the order in which they ended."""
        raise NotImplementedError

    def _wants(self, record: Record) -> bool:
        # What only another reader has asked for.
        asked = lib.MPS_TRACE_BUFFERS if record.kind == "argument" else lib.MPS_TRACE_ENCODED
        if not record.end and not self.flags & asked:
            return False
        return self.began <= record.encoded and (not self.ended or record.encoded <= self.ended)


# Reentrant: a signal handler that prints statistics may interrupt a read.
_lock = threading.RLock()
_readers: set[Trace] = set()
#: Those that were stopped, and may get records still.
_finished: weakref.WeakSet[Trace] = weakref.WeakSet()
#: Flags and capacity of the library's trace, while it runs.
_running_as: tuple[int, int] | None = None
_names: dict[int, str] = {}


def _start(more: set[Trace]) -> None:
    """Make the library's trace what all readers together ask for; the lock is held."""
    global _running_as
    readers = _readers | more
    wanted = None
    if readers:
        flags = 0
        for reader in readers:
            flags |= reader.flags
        wanted = flags, max(reader.capacity for reader in readers)
    if wanted == _running_as:
        return
    if _running_as is not None:
        _running_as = None  # first: a signal handler's exception may come after each call
        check(lib.mps_trace_stop())
        read()
    if wanted is not None:
        desc = {"struct_size": ffi.sizeof("mps_trace_desc"), "flags": wanted[0], "capacity": wanted[1]}
        try:
            check(lib.mps_trace_start(ffi.new("mps_trace_desc *", desc)))
        except Error:
            raise
        except BaseException:
            lib.mps_trace_stop()
            raise
        _running_as = wanted


def read() -> None:
    """Take what the library has recorded, and give it to those who asked for it."""
    with _lock:
        while records := _read_some():
            for reader in [*_readers, *_finished]:
                wanted = [record for record in records if reader._wants(record)]
                if wanted:
                    reader.take(wanted)


#: What the CPU has done since the last read. Appending needs no lock.
_by_cpu: deque[Record] = deque()


#: How many copies of a queue their callers have waited for while a trace ran, by their two sides.
blocking_copies: Counter[str] = Counter()


def count_blocking(sides: str) -> None:
    """Count a copy that its caller waits for, for profiles."""
    if _running_as is not None:
        blocking_copies[sides] += 1


class cpu_copy:
    """Has a profile, if one runs, show what the CPU copies or fills while the block runs.

    Parameters
    ----------
    name : str
        "fill", or the two sides of a copy, as "host to shared".
    size : int
        Bytes.
    """

    __slots__ = ("_begin", "_name", "_size")

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size

    def __enter__(self) -> None:
        self._begin = 0 if _running_as is None else monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._begin:
            thread, begin = threading.get_native_id(), self._begin
            what = "cpu fill" if self._name == "fill" else "cpu copy"
            none = (0, 0, 0)
            _by_cpu.append(
                Record(
                    what, self._name, "", 0, thread, begin, begin, monotonic_ns(), self._size, none, none, 1,
                    kind is not None, 0, 0, 0,
                )
            )  # fmt: skip


def _read_some() -> list[Record]:
    records = _read_library()
    done = [_by_cpu.popleft() for _ in range(len(_by_cpu))]  # others may append meanwhile
    return sorted([*records, *done], key=attrgetter("end")) if done else records


def _read_library() -> list[Record]:
    memory = ffi.new("mps_trace_record[]", _BATCH)
    count, dropped = ffi.new("uint32_t *"), ffi.new("uint64_t *")
    check(lib.mps_trace_read(memory, _LAYOUT.size, _BATCH, count, dropped))
    if dropped[0]:
        for reader in _readers:
            reader.dropped += dropped[0]
    return list(_unpack(ffi.buffer(memory, count[0] * _LAYOUT.size)))


def _name(pointer: int) -> str:
    name = _names.get(pointer)
    if name is None:
        # The library keeps its texts for ever, so that an address always stands for the same one.
        text: bytes = ffi.string(ffi.cast("char *", pointer))
        name = _names[pointer] = text.decode("utf-8", "replace")
    return name


def _unpack(buffer: object) -> Iterator[Record]:
    for fields in _LAYOUT.iter_unpack(buffer):  # type: ignore[arg-type]
        kind, status, id_, thread, queue, queue_name, name, encoded, start, end, size, serial, object_ = fields[:13]
        yield Record(
            KINDS.get(kind, f"kind {kind}"),
            _name(name),
            _name(queue_name),
            queue,
            thread,
            encoded,
            start,
            end,
            size,
            fields[13:16],
            fields[16:19],
            fields[19],
            status != 0,
            serial,
            object_,
            id_,
        )


def wait_for_work(seconds: float | None = None) -> None:
    """Wait until what all streams have been given so far is complete, for so long at most. Reports no failure."""
    # A callback waits neither for its own stream nor for those that wait for it.
    if _running.stream is None:
        wait_unnoticed(live_streams(), seconds)


def _after_fork_in_child() -> None:
    # What goes on in the parent is the parent's.
    global _lock, _running_as
    _lock = threading.RLock()
    _readers.clear()
    _finished.clear()
    _running_as = None
    _by_cpu.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
