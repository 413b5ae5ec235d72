"""Graphs: kernels, copies, fills and matrix products that are recorded once and run many times, by one call each."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle, ProcessBound
from mpscffi._warning import casting
from mpscffi.array import Array
from mpscffi.device import Device, current_device
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError, StateError
from mpscffi.kernel import Kernel
from mpscffi.memory.block import Block
from mpscffi.stream import Stream, _thread, current_stream, recordings

__all__ = ["Graph", "GraphNode", "record"]

_submit = lib.mps_queue_submit


# ---- what is recorded


class _Call:
    """A kernel's call, and the frame that it has filled in."""

    __slots__ = ("arguments", "blocks", "frame", "kernel", "options")

    kind = lib.MPS_COMMAND_DISPATCH
    member = "dispatch"

    def __init__(self, kernel: Kernel, frame: Any, arguments: dict[int, Any], options: dict[str, Any]) -> None:
        self.kernel = kernel
        self.frame = frame
        self.arguments = arguments
        self.options = options
        self.blocks = _blocks_of(arguments.values())

    def __str__(self) -> str:
        return f"{self.kernel.name}({', '.join(self.kernel.argument_names)})"

    @property
    def struct(self) -> Any:
        return self.frame.dispatch

    def repeat(self, changes: Mapping[int | str, Any]) -> None:
        arguments, options = dict(self.arguments), dict(self.options)
        for key, value in changes.items():
            if key in _OPTIONS:
                options[str(key)] = value
            else:
                arguments[self.kernel.slot_of(key)] = value
        for grid, other in (("threads", "threadgroups"), ("threadgroups", "threads")):
            if grid in changes and other not in changes:
                options[other] = None  # the one takes the place of the other
        self.kernel(*(arguments.get(slot) for slot in range(max(arguments, default=-1) + 1)), **options)

    def give_back(self) -> None:
        if self.options.get("arg_casts") is None:
            self.kernel._frames.append(self.frame)


class _Copy:
    """A copy between arrays."""

    __slots__ = ("blocks", "source", "struct", "target")

    kind = lib.MPS_COMMAND_COPY
    member = "copy"

    def __init__(self, target: Array, source: Array) -> None:
        self.target = target
        self.source = source
        self.blocks = _blocks_of((target, source))
        self.struct = ffi.new(
            "mps_copy *",
            {
                "struct_size": ffi.sizeof("mps_copy"),
                "source": source._block.pointer,
                "source_offset": source._offset,
                "target": target._block.pointer,
                "target_offset": target._offset,
                "length": target.nbytes,
            },
        )

    def __str__(self) -> str:
        return "copy(source, target)"

    def repeat(self, changes: Mapping[int | str, Any]) -> None:
        arrays = {"source": self.source, "target": self.target}
        _check_names(self, changes, arrays)
        arrays.update(changes)  # type: ignore[arg-type]
        for name, array in arrays.items():
            if not isinstance(array, Array):
                raise ArgumentTypeError(f"{self}: got a {name} of type {type(array).__name__}, expected an Array")
        arrays["target"].copy_from(arrays["source"], non_blocking=True)

    def give_back(self) -> None:
        pass


class _Fill:
    """A fill of an array with one byte."""

    __slots__ = ("array", "blocks", "struct", "value")

    kind = lib.MPS_COMMAND_FILL
    member = "fill"

    def __init__(self, array: Array, value: int) -> None:
        self.array = array
        self.blocks = _blocks_of((array,))
        self.struct = ffi.new(
            "mps_fill *",
            {
                "struct_size": ffi.sizeof("mps_fill"),
                "buffer": array._block.pointer,
                "offset": array._offset,
                "length": array.nbytes,
                "value": value,
            },
        )

    def __str__(self) -> str:
        return "fill(array, value)"

    def repeat(self, changes: Mapping[int | str, Any]) -> None:
        _check_names(self, changes, ("array", "value"))
        array = changes.get("array", self.array)
        if not isinstance(array, Array):
            raise ArgumentTypeError(f"{self}: got an array of type {type(array).__name__}, expected an Array")
        if "value" in changes:
            array.fill_(changes["value"])
        else:
            Recording.current().take_fill_byte(array, self.struct.value)

    def give_back(self) -> None:
        pass


class _Product:
    """A product of matrices, or a part of one."""

    __slots__ = ("arrays", "blocks", "is_whole", "struct")

    kind = lib.MPS_COMMAND_MATMUL
    member = "matmul"

    def __init__(self, struct: Any, arrays: dict[str, Array], is_whole: bool) -> None:
        self.struct = struct
        self.arrays = arrays
        self.is_whole = is_whole
        self.blocks = _blocks_of(arrays.values())

    def __str__(self) -> str:
        return "matmul(a, b, out)"

    def repeat(self, changes: Mapping[int | str, Any]) -> None:
        from mpscffi.linalg import matmul

        _check_names(self, changes, self.arrays)
        if not self.is_whole:
            raise StateError(f"{self}: this product is several commands: record it with other arrays instead")
        before = len(Recording.current().entries)
        matmul(**{name: changes.get(name, array) for name, array in self.arrays.items()})
        if len(Recording.current().entries) > before + 1:
            raise StateError(f"{self}: with these arrays the product is several commands, and here is room for one")

    def give_back(self) -> None:
        pass


_Entry = _Call | _Copy | _Fill | _Product
#: Keywords of a kernel's call that are not arguments of the kernel.
_OPTIONS = ("threads", "group_size", "threadgroups", "arg_casts", "threadgroup_memory")


def _check_names(entry: _Entry, changes: Mapping[int | str, Any], known: Any) -> None:
    for name in changes:
        if name not in known:
            raise ArgumentTypeError(f"{entry}: got {name!r}, expected one of {', '.join(known)}")


def _blocks_of(values: Any) -> tuple[Block, ...]:
    blocks: dict[Block, None] = {}
    for value in values:
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Array):
                blocks[one._block] = None
    return tuple(blocks)


def _frozen(value: Any) -> Any:
    """Return an argument that its owner does not change any more."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


# ---- recording


class Recording(Stream):
    """What is a thread's current stream while it records: it takes commands, and runs none.

    What knows nothing of recordings asks for its queue, and is refused.
    """

    __slots__ = ("entries", "refused")

    def __init__(self, device: Device) -> None:  # not Stream's: there is no queue
        self.device = device
        self.stream_id = -1  # no stream's
        self.label = "recording"
        self.entries: list[_Entry] = []
        self.refused: str | None = None
        self._recording = self

    @staticmethod
    def current() -> Recording:
        """Return this thread's, which there is."""
        stream = _thread.stream
        assert isinstance(stream, Recording)
        return stream

    def refuse(self, what: str, instead: str = "") -> NoReturn:
        """Raise that something cannot be recorded, and what to do instead; the graph is lost with it."""
        self.refused = f"{what} cannot be recorded: a graph holds kernels, copies, fills and products only"
        instead = f"{instead}, or " if instead else ""
        raise StateError(f"{self.refused}; {instead}do it before mpscffi.record(), or after it")

    @property
    def _pointer(self) -> NoReturn:
        self.refuse("what needs a stream's queue (waits, events, callbacks, commits)")

    def _signal_fence(self) -> tuple[Handle, int]:
        self.refuse("waiting for a stream")

    def _call_back(self, name: str, function: object, count: int, encode: object) -> None:
        self.refuse(f"{name}()")

    def _kernel_messages(self) -> Array:
        self.refuse("error_buf_idx, which stands for a buffer of the stream that a kernel runs on,")

    def _adopt(self, block: Block) -> None:
        pass  # the stream that the graph is replayed on does

    # ---- commands

    def _add(self, entry: _Entry) -> None:
        command = ffi.new("mps_command *", {"kind": entry.kind})
        setattr(command.u, entry.member, entry.struct)
        check(lib.mps_command_check(self.device._pointer, command))
        self.entries.append(entry)

    def take_call(
        self, kernel: Kernel, frame: Any, arguments: Sequence[Any], named: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """Take a kernel's call: arguments as they were given, and the frame that was filled in from them."""
        slots = dict(enumerate(map(_frozen, arguments)))
        slots.update((kernel.slot_of(name), _frozen(value)) for name, value in named.items())
        self._add(_Call(kernel, frame, slots, {key: _frozen(value) for key, value in options.items()}))

    def take_copy(self, target: Array, source: Array) -> None:
        """Take a copy between arrays of equal size, both in C order."""
        self._add(_Copy(target, source))

    def take_fill(self, array: Array, value: Any) -> None:
        """Take a fill of an array with a number."""
        one = np.empty(1, array.dtype)
        try:
            with casting("fill_"):
                one[0] = value
        except OverflowError as error:
            raise InvalidArgumentError(f"fill_: {error}") from None
        pattern = set(one.tobytes())
        if not array.is_contiguous:
            self.refuse(f"fill_() of a view with gaps (strides {array.strides})", "write a kernel for it")
        if len(pattern) != 1:
            self.refuse(
                f"fill_({value!r}) of {array.dtype}, whose bytes differ ({one.tobytes().hex(' ')}),",
                "fill with a number of equal bytes, as 0, copy from an array that was filled before",
            )
        self.take_fill_byte(array, pattern.pop())

    def take_product(self, struct: Any, arrays: dict[str, Array], is_whole: bool) -> None:
        """Take a product of matrices, or one command of those that it is: its filled-in ``mps_matmul``, to keep."""
        self._add(_Product(struct, arrays, is_whole))

    def take_fill_byte(self, array: Array, value: int) -> None:
        """Take a fill of an array in C order with one byte."""
        self._add(_Fill(array, value))


class _Recorded:
    """Makes a recording this thread's current stream while the block runs."""

    __slots__ = ("_before", "recording")

    def __init__(self, device: Device) -> None:
        self.recording = Recording(device)
        self._before = _thread.stream

    def __enter__(self) -> Recording:
        if self._before is not None and self._before._recording is not None:
            self._before._recording.refuse("a graph in a graph")
        try:
            _thread.stream = self.recording
            recordings.append(self.recording)
            return self.recording
        except BaseException:  # a signal's: nobody would leave what was not entered
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        """May be called again, if a signal's exception was faster."""
        _thread.stream = self._before
        if self.recording in recordings:
            recordings.remove(self.recording)
        self.recording._recording = None  # a cycle, and what still has it must not record


# ---- graphs


class Graph(ProcessBound):
    """Recorded commands, run in their order by :meth:`replay`; made by :func:`record`.

    It keeps its arrays and kernels alive. It may be used from any thread.

    Attributes
    ----------
    device : Device
        Where it runs.
    """

    __slots__ = ("__weakref__", "_blocks", "_commands", "_entries", "_lock", "_scope", "_state", "device")

    def __init__(self, device: Device) -> None:
        self.device = device
        self._entries: list[_Entry] = []
        self._commands: Any = ffi.NULL
        #: Blocks, and how many entries use each.
        self._blocks: dict[Block, int] = {}
        # Re-entrant: a signal handler may replay while this thread does.
        self._lock = threading.RLock()
        self._scope: _Recorded | None = None
        self._state = "not recorded yet"

    def __repr__(self) -> str:
        state = f" {self._state}" if self._state else f" of {len(self)} commands"
        return f"<mpscffi.Graph{state} on {self.device.backend}:{self.device.index}>"

    # ---- recording

    def __enter__(self) -> Graph:
        if self._state != "not recorded yet":
            raise StateError(f"a graph is recorded once, and this one is {self._state or 'recorded'}: make a new one")
        scope = _Recorded(self.device)
        try:
            scope.__enter__()
        except BaseException:
            scope.__exit__()
            raise
        self._scope = scope
        self._state = "being recorded"
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        scope, self._scope = self._scope, None
        if scope is None:
            raise StateError("the graph is not being recorded")
        self._state = "discarded, since its recording failed"  # unless all goes well
        try:
            scope.__exit__()
        except BaseException:
            scope.__exit__()
            raise
        recording = scope.recording
        if kind is not None or recording.refused:
            if kind is None:
                raise StateError(f"the graph is discarded: while it was recorded, {recording.refused}")
            return
        self._entries = recording.entries
        self._commands = ffi.new("mps_command[]", len(self._entries))
        for i, entry in enumerate(self._entries):
            self._put(i, entry)
        self._state = ""

    def _put(self, index: int, entry: _Entry) -> None:
        command = self._commands[index]
        command.kind = entry.kind
        setattr(command.u, entry.member, entry.struct)
        for block in entry.blocks:
            self._blocks[block] = self._blocks.get(block, 0) + 1

    def _check_ready(self) -> None:
        if self._state:
            raise StateError(f"the graph is {self._state}")

    # ---- running

    def replay(self, stream: Stream | None = None) -> None:
        """Queue all commands on a stream, and commit them, as one command buffer.

        They come after what other streams have been given so far to do with the graph's arrays.

        Parameters
        ----------
        stream : Stream, optional
            This thread's current stream by default.
        """
        self._check_ready()
        if stream is None:
            stream = current_stream()
        elif not isinstance(stream, Stream):
            raise ArgumentTypeError(f"replay: got {type(stream).__name__}, expected a Stream or None")
        if stream._recording is not None:
            stream._recording.refuse("the replay of a graph")
        if stream.device is not self.device:
            raise InvalidArgumentError(f"replay: {stream} is not on the graph's device, {self.device}")
        with self._lock:
            stream._use(self._blocks)
            status = _submit(stream._pointer, self._commands, len(self._entries))
        if status:
            check(status)

    # ---- what is in it

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> GraphNode:
        """Return a command, by its place in the order of recording."""
        return GraphNode(self, self._place(index))

    def _place(self, index: int) -> int:
        try:
            return range(len(self._entries))[operator.index(index)]
        except TypeError:
            raise ArgumentTypeError(f"Graph: got an index of type {type(index).__name__}, expected an int") from None
        except IndexError:
            raise IndexError(f"Graph: index {index} is out of range: there are {len(self._entries)} commands") from None

    def __iter__(self) -> Iterator[GraphNode]:
        return (self[i] for i in range(len(self)))

    def update(self, index: int, arguments: Mapping[Any, Any] | None = None, /, **named: Any) -> None:
        """Change arguments of a command; replays from now on use them. After an error nothing is changed.

        Parameters
        ----------
        index : int
            Its place in the order of recording.
        arguments : Mapping, optional
            By slot or by name, as :meth:`Kernel.__call__` takes them, ``threads=`` and the other keywords included. A
            copy has ``source`` and ``target``, a fill ``array`` and ``value``, a product ``a``, ``b`` and ``out``.
        **named
            By name.
        """
        self._check_ready()
        place = self._place(index)
        if arguments is not None and not isinstance(arguments, Mapping):
            raise ArgumentTypeError(
                f"update: got arguments of type {type(arguments).__name__}, expected a mapping by slot or name, as "
                "{0: x}, or names, as x=x"
            )
        with self._lock:
            before = self._entries[place]
            # The call is made again, into a recording of its own: so it is checked in the same way.
            with _Recorded(self.device) as recording:
                before.repeat(dict(arguments or {}) | named)
            if not recording.entries:
                raise InvalidArgumentError(f"{before}: with these arguments there is nothing to do")
            after = recording.entries[0]
            self._entries[place] = after
            self._put(place, after)
            for block in before.blocks:
                self._blocks[block] -= 1
                if not self._blocks[block]:
                    del self._blocks[block]
            before.give_back()


class GraphNode(ProcessBound):
    """One command of a :class:`Graph`.

    Attributes
    ----------
    graph : Graph
        Whose it is.
    index : int
        Its place in the order of recording.
    """

    __slots__ = ("graph", "index")

    def __init__(self, graph: Graph, index: int) -> None:
        self.graph = graph
        self.index = index

    def __repr__(self) -> str:
        return f"<mpscffi.GraphNode {self.index}: {self.graph._entries[self.index]}>"

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that is called; None for other commands."""
        entry = self.graph._entries[self.index]
        return entry.kernel if isinstance(entry, _Call) else None

    def set(self, arguments: Mapping[Any, Any] | None = None, /, **named: Any) -> None:
        """Change arguments; see :meth:`Graph.update`."""
        self.graph.update(self.index, arguments, **named)


def record(device: Device | None = None) -> Graph:
    """Record what this thread queues in a ``with`` block, instead of running it: ``with record() as graph: ...``.

    Kernels, copies between arrays (``copy_from(..., non_blocking=True)``), products of matrices, ``zeros`` and
    ``fill_`` with one repeated byte are recorded, and arrays may be made by ``empty`` and ``zeros``. Anything else that
    needs the stream or an array's contents is a :class:`~mpscffi.errors.StateError`, and the graph is discarded.

    Parameters
    ----------
    device : Device, optional
        The device in use by default.

    Returns
    -------
    Graph
        To be replayed once the block is left.
    """
    if device is not None and not isinstance(device, Device):
        raise ArgumentTypeError(f"record: got {type(device).__name__}, expected a Device or None")
    return Graph(device or current_device())
