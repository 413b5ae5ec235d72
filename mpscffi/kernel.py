"""Kernels: their arguments checked, filled into a frame, and queued."""

from __future__ import annotations

import itertools
import math
import operator
import re
import reprlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mpscffi import _compiler
from mpscffi._ffi import check, ffi, lib
from mpscffi._handle import Handle, ProcessBound
from mpscffi.arguments import Slot
from mpscffi.array import Array
from mpscffi.device import Device
from mpscffi.errors import ArgumentTypeError, CompileError, InvalidArgumentError, LimitExceededError
from mpscffi.function_constants import constant_lines, constant_values
from mpscffi.reflection import Argument, reflect, signature
from mpscffi.source import Source
from mpscffi.stream import _thread, default_stream

__all__ = ["Kernel"]

_dispatch = lib.mps_queue_dispatch
_MISSING_CONSTANT = re.compile(r"needs a value for function constant '([^']*)'")


class _Frame:
    """A filled-in dispatch, kept for the next call. One call uses it at a time."""

    __slots__ = (
        "arguments",
        "count",
        "counts_groups",
        "dispatch",
        "first_is_plain",
        "group",
        "lengths",
        "slots",
        "threads",
    )

    def __init__(self, pipeline: Any, kernel: Kernel) -> None:
        buffers = kernel._buffers
        threadgroups = lib.MPS_ARGUMENT_THREADGROUP
        self.count = len(buffers)
        self.arguments = ffi.new("mps_argument[]", self.count + _MAX_THREADGROUP_SLOTS)
        for i in range(_MAX_THREADGROUP_SLOTS):
            self.arguments[self.count + i].kind = threadgroups
        self.slots = [Slot(self.arguments[i], kernel.name, a, kernel._codes[i]) for i, a in enumerate(buffers)]
        self.dispatch = ffi.new(
            "mps_dispatch *",
            {
                "struct_size": ffi.sizeof("mps_dispatch"),
                "pipeline": pipeline,
                "arguments": self.arguments,
                "argument_count": self.count,
            },
        )
        #: Whether the grid is by default one thread for each element of the first argument, if that is an array.
        self.first_is_plain = (
            bool(self.slots)
            and self.slots[0].lanes == 1
            and self.slots[0].scalar is not None
            and kernel._position_lanes < 2
        )
        # What the struct holds now, so that equal values are not written again.
        self.threads: int | tuple[int, ...] = 0
        self.counts_groups = False
        self.group: tuple[int, ...] | None = None
        self.lengths: tuple[tuple[int, int], ...] = ()

    def set_threads(self, threads: int | tuple[int, ...]) -> None:
        # A lone integer comes here unchecked.
        sizes = _dimensions(threads, "threadgroups" if self.counts_groups else "threads", 0)
        grid = self.dispatch.grid
        grid[0], grid[1], grid[2] = (*sizes, 1, 1)[:3]
        self.threads = threads

    def set_kind(self, counts_groups: bool) -> None:
        self.counts_groups = counts_groups
        self.dispatch.grid_kind = lib.MPS_GRID_THREADGROUPS if counts_groups else lib.MPS_GRID_THREADS

    def set_group(self, group: tuple[int, ...] | None) -> None:
        target = self.dispatch.group
        target[0], target[1], target[2] = (0, 0, 0) if group is None else (*group, 1, 1)[:3]
        self.group = group

    def set_threadgroup_memory(self, lengths: tuple[tuple[int, int], ...]) -> None:
        if len(lengths) > _MAX_THREADGROUP_SLOTS:
            raise InvalidArgumentError(
                f"threadgroup_memory: got {len(lengths)} lengths or more, expected at most {_MAX_THREADGROUP_SLOTS}"
            )
        for i, (index, length) in enumerate(lengths):
            argument = self.arguments[self.count + i]
            argument.index = index
            argument.length = length
        self.dispatch.argument_count = self.count + len(lengths)
        self.lengths = lengths


_MAX_THREADGROUP_SLOTS = 31


def _dimensions(value: Any, name: str, least: int) -> tuple[int, ...]:
    """Read a size in one to three dimensions."""
    try:
        # No more than is needed of what may have no end, as a range.
        given = itertools.islice(value, 4) if hasattr(value, "__len__") else (value,)
        sizes = tuple(map(operator.index, given))
    except TypeError:
        raise ArgumentTypeError(
            f"{name}: got {reprlib.repr(value)}, expected an integer or a sequence of one to three"
        ) from None
    if not 1 <= len(sizes) <= 3:
        raise InvalidArgumentError(f"{name}: got {'more' if sizes else '0'} dimensions, expected one to three")
    for size in sizes:
        if not least <= size < 1 << 64:
            raise InvalidArgumentError(f"{name}: got {value!r}, expected {least} or more in each dimension")
    return sizes


class Kernel(ProcessBound):
    """A kernel of a :class:`ShaderLibrary`, to be called with its buffer arguments in the order of their slots.

    It is made ready at the first call or question; that may compile.
    """

    __slots__ = (
        "_buffers",
        "_codes",
        "_constants",
        "_device",
        "_frames",
        "_gaps",
        "_info",
        "_is_validated",
        "_library",
        "_lock",
        "_pipeline",
        "_position_lanes",
        "_source",
        "name",
    )

    def __init__(
        self,
        library: Handle,
        device: Device,
        name: str,
        constants: Mapping[Any, Any],
        source: Source | None,
        is_validated: bool,
    ) -> None:
        self._library = library
        self._device = device
        self._source = source
        self._constants = dict(constants)
        self.name = name
        self._pipeline: Handle | None = None
        self._lock = threading.RLock()
        # Of a validated kernel none is kept: each call looks at all of its arrays.
        self._is_validated = is_validated
        self._frames: list[_Frame] | deque[_Frame] = deque(maxlen=0) if is_validated else []
        self._buffers: list[Argument] = []
        self._codes: list[int] = []
        #: Components of the position that the kernel asks for, if its source says so plainly.
        self._position_lanes = 0
        #: Numbers below the highest slot that are no slot of this kernel.
        self._gaps: tuple[int, ...] = ()

    def __repr__(self) -> str:
        constants = f" {self._constants}" if self._constants else ""
        if self._pipeline is None:  # printing it is no reason to compile it
            return f"<mpscffi.Kernel {self.name!r}{constants}>"
        parameters = ", ".join(argument.declaration for argument in self.arguments)
        return f"<mpscffi.Kernel {self.name}({parameters}){constants}>"

    # ---- what it is

    @property
    def max_threads_per_threadgroup(self) -> int:
        """The most threads that a group of this kernel can have."""
        return int(self._ready_info().max_total_threads_per_threadgroup)

    @property
    def thread_execution_width(self) -> int:
        """Threads of a SIMD-group."""
        return int(self._ready_info().thread_execution_width)

    @property
    def static_thread_group_memory_length(self) -> int:
        """Bytes of threadgroup memory that the kernel declares."""
        return int(self._ready_info().static_threadgroup_memory)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The parameters that a call gives, in the kernel's order."""
        pipeline = self._pipeline or self._build()
        return tuple(argument for argument, _ in reflect(pipeline, self._info.argument_count, self._source))

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the buffer arguments, in the order of their slots; "" where the kernel does not say."""
        if self._pipeline is None:
            self._build()
        return tuple(argument.name for argument in self._buffers)

    def slot_of(self, key: int | str) -> int:
        """Return the slot of a buffer argument that is given by slot or name."""
        if self._pipeline is None:
            self._build()
        for argument in self._buffers:
            if isinstance(key, (int, str)) and key in (argument.index, argument.name) and key != "":
                return argument.index
        raise ArgumentTypeError(
            f"kernel {self.name!r}: got an unexpected argument {key!r}; its buffers are: {self._parameters()}"
        )

    @property
    def signature(self) -> str:
        """The parameters as text, a line each: type, name, slot, access, and the layout of structs.

        Of a kernel that lacks values for function constants: the constants.
        """
        try:
            return signature(self.name, self.arguments)
        except InvalidArgumentError as error:
            if _MISSING_CONSTANT.search(str(error)) is None:
                raise
        lines = constant_lines(self._library.pointer, self._constants)
        return "\n".join([f"{self.name}(...)  // known when .specialize() has given its function constants:", *lines])

    @property
    def handle(self) -> Any:
        """The ``mps_pipeline *`` of the C library, borrowed, for other bindings of it."""
        return (self._pipeline or self._build()).pointer

    def specialize(self, constants: Mapping[str | int, Any] | None = None, /, **named: Any) -> Kernel:
        """Return the kernel with values for its function constants.

        Parameters
        ----------
        constants : Mapping, optional
            Values by name or by index. A vector's is a sequence.
        **named
            Values by name.

        Raises
        ------
        NotFoundError
            The library has no such constant.
        InvalidArgumentError
            The constant's type does not have the value.
        """
        if constants is not None and not isinstance(constants, Mapping):
            raise ArgumentTypeError(
                f"specialize: got constants of type {type(constants).__name__}, expected a mapping by name or index, "
                "or names, as K=3"
            )
        given = {**self._constants, **(constants or {}), **named}
        constant_values(self._library.pointer, given)
        return Kernel(self._library, self._device, self.name, given, self._source, self._is_validated)

    def _ready_info(self) -> Any:
        if self._pipeline is None:
            self._build()
        return self._info

    def _build(self) -> Handle:
        # One pipeline for good, also when threads ask for it together: frames hold its pointer.
        with self._lock:
            if self._pipeline is None:
                pipeline = self._create()
                self._examine(pipeline)
                self._pipeline = pipeline
            return self._pipeline

    def _create(self) -> Handle:
        values, keep = constant_values(self._library.pointer, self._constants)
        name = ffi.new("char[]", self.name.encode())
        desc = ffi.new(
            "mps_pipeline_desc *",
            {
                "struct_size": ffi.sizeof("mps_pipeline_desc"),
                "kernel": name,
                "constants": values,
                "constant_count": len(keep),
            },
        )
        pipeline = Handle("pipeline")
        try:
            _compiler.check_compile(lib.mps_pipeline_create(self._library.pointer, desc, pipeline.out))
        except CompileError as error:
            raise error.with_traceback(None) from None
        except InvalidArgumentError as error:
            missing = _MISSING_CONSTANT.search(str(error))
            if missing is None:
                raise
            raise InvalidArgumentError(
                f"{error}: give it by .specialize({missing[1]}=...), or --constant {missing[1]}=VALUE on a command line"
            ) from None
        return pipeline

    def _examine(self, pipeline: Handle) -> None:
        self._info = ffi.new("mps_pipeline_info *", {"struct_size": ffi.sizeof("mps_pipeline_info")})
        check(lib.mps_pipeline_get_info(pipeline.pointer, self._info))
        reflected = sorted(
            (pair for pair in reflect(pipeline, self._info.argument_count, self._source) if pair[0].kind == "buffer"),
            key=lambda pair: pair[0].index,
        )
        self._buffers = [argument for argument, _ in reflected]
        self._codes = [code for _, code in reflected]
        slots = {argument.index for argument in self._buffers}
        self._gaps = tuple(i for i in range(max(slots, default=0)) if i not in slots)
        self._position_lanes = self._source.position_lanes(self.name) if self._source is not None else 0

    # ---- running it

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        threadgroups: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int | str, str] | None = None,
        threadgroup_memory: int | Sequence[int] | Mapping[int | str, int] | None = None,
        error_buf_idx: int | None = None,
        **named: Any,
    ) -> None:
        """Queue one run of the kernel on the current stream.

        Parameters
        ----------
        *args : Array, number, bytes, dict, or list of arrays or of numbers
            One for each buffer slot, from slot 0 on; None where the kernel has no such slot or does not use it.
            Numbers, NumPy's scalars and arrays without axes are converted to the type that the kernel declares. A list
            of arrays becomes a table of their addresses. A struct is a dict of its fields, or a tuple in their order.
        threads : int or sequence of one to three int, optional
            Threads along x, y and z, x first: (W, H) for an array of shape (H, W). By default one for each element of
            the first array argument, as the kernel sees it: for a ``device float4*`` parameter, one for each four
            floats. A kernel whose position is a ``uint2`` or ``uint3`` needs it.
        group_size : int or sequence of int, optional
            Threads of a threadgroup, in as many dimensions as `threads`; by default the library chooses.
        threadgroups : int or sequence of int, optional
            Whole threadgroups along x, y and z, in place of `threads`; needs `group_size`.
        arg_casts : str or Mapping, optional
            Convert numbers as C does to "fp16", "bf16", "int32", "int16", "int8" or "uint8": all of them, or those with
            the given slots or names.
        threadgroup_memory : int, sequence of int or Mapping, optional
            Bytes for the kernel's ``threadgroup`` parameters: for slot 0, for slots 0, 1, ..., or by slot or name. 0 is
            none, for a slot that the kernel does not use.
        error_buf_idx : int, optional
            The slot of the kernel's ``ErrorMessages`` buffer (PyTorch's ``c10/metal/error.h``). The first message that
            kernels write there is raised by the stream's next :meth:`~mpscffi.Stream.synchronize`.
        **named
            Buffer arguments by the kernel's names for them, behind those that are given by position. A parameter with
            the name of a keyword above is given by position only.
        """
        pipeline = self._pipeline or self._build()
        given, asked = args, threads
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(pipeline.pointer, self)
        if error_buf_idx is not None:
            args = self._with_error_buffer(args, error_buf_idx)
        if self._gaps:
            args = self._without_gaps(args)
        if named:
            args = self._with_named(args, named)
        if len(args) != frame.count:
            self._refuse_count(len(args))
        stream = _thread.stream or self._device._default_stream or default_stream(self._device)
        if arg_casts is not None:
            self._put_casts(frame, args, arg_casts)
        for argument, slot in zip(args, frame.slots):  # noqa: B905, of equal length; strict=True costs 10 %
            if type(argument) is Array:
                block = argument._block
                if block is not slot.block:
                    slot.bind(block)
                if argument._offset != slot.offset:
                    slot.set_offset(argument._offset)
                if argument.dtype is not slot.dtype or not argument._plain:
                    slot.examine(argument)
                if block.stream is not stream:
                    stream._adopt(block)
            else:
                slot.put(argument, stream)
        if threadgroups is not None or frame.counts_groups:
            frame.set_kind(threadgroups is not None)
            if threadgroups is not None:
                if threads is not None or group_size is None:
                    raise InvalidArgumentError("threadgroups: expected group_size beside it, and not threads")
                threads = threadgroups
        if threads is None:
            # Mostly the first argument decides; a call of the function is 5 % of this one.
            if frame.first_is_plain and type(args[0]) is Array:
                threads = args[0].size
            else:
                threads = self._default_threads(args, frame.slots)
        elif type(threads) is not int:
            threads = _dimensions(threads, "threads" if threadgroups is None else "threadgroups", 0)
        if threads != frame.threads:
            frame.set_threads(threads)
        if group_size is not None:
            group_size = _dimensions(group_size, "group_size", 1)
            if len(group_size) != (1 if isinstance(threads, int) else len(threads)):
                grid = "threads" if threadgroups is None else "threadgroups"
                count = 1 if isinstance(threads, int) else len(threads)
                raise InvalidArgumentError(
                    f"group_size: got {group_size}, expected {count} dimension{'s' * (count > 1)}, as many as the grid "
                    f"has, {grid}={threads}"
                )
        if group_size != frame.group:
            frame.set_group(group_size)
        if threadgroup_memory is not None or frame.lengths:
            frame.set_threadgroup_memory(self._lengths(threadgroup_memory))
        if stream._recording is not None:
            options = {
                "threads": asked,
                "group_size": group_size,
                "threadgroups": threadgroups,
                "arg_casts": arg_casts,
                "threadgroup_memory": threadgroup_memory,
            }
            stream._recording.take_call(self, frame, given, named, options)
            return
        status = _dispatch(stream._pointer, frame.dispatch)
        if status:
            self._refuse_call(frame)
            check(status)
        # Not after a failure, when it may be filled in by half, nor with casts, which are for one call, nor with a
        # stream's buffer of messages, which would keep the stream.
        if arg_casts is None and error_buf_idx is None:
            self._frames.append(frame)

    def _with_error_buffer(self, args: tuple[Any, ...], slot: int) -> tuple[Any, ...]:
        if not isinstance(slot, int) or not 0 <= slot < _MAX_THREADGROUP_SLOTS:
            raise InvalidArgumentError(f"error_buf_idx: got {slot!r}, expected a slot from 0 to 30")
        padded = [*args, *[None] * (slot + 1 - len(args))]
        if padded[slot] is not None:
            raise InvalidArgumentError(f"error_buf_idx: slot {slot} is given an argument too, expected None there")
        padded[slot] = (_thread.stream or default_stream(self._device))._kernel_messages()
        return tuple(padded)

    def _put_casts(self, frame: _Frame, args: tuple[Any, ...], casts: str | Mapping[int | str, str]) -> None:
        if isinstance(casts, str):
            for slot, argument in zip(frame.slots, args, strict=True):
                if not isinstance(argument, Array):
                    slot.cast_next(casts)
            return
        if not isinstance(casts, Mapping):
            raise ArgumentTypeError(
                f"arg_casts: got {type(casts).__name__}, expected the name of a cast or a dict of argument "
                "numbers to names"
            )
        for key, cast in casts.items():
            place = next((i for i, a in enumerate(self._buffers) if key in (a.index, a.name) and key != ""), None)
            if place is None:
                raise InvalidArgumentError(
                    f"arg_casts: kernel {self.name!r} has no buffer argument {key!r}: {self._parameters()}"
                )
            frame.slots[place].cast_next(cast)

    def _with_named(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in order, those by position first."""
        known = [argument.name for argument in self._buffers]
        for name in named:
            if name not in known:
                raise ArgumentTypeError(
                    f"kernel {self.name!r}: got an unexpected keyword argument {name!r}; its buffers are: "
                    f"{self._parameters()}"
                )
            if name in known[: len(args)]:
                raise ArgumentTypeError(f"kernel {self.name!r}: argument {name!r} is given by position and by name")
        unused = [argument.name for argument in self._buffers if not argument.is_used]
        missing = [name for name in known[len(args) :] if name not in named and name not in unused]
        if missing:
            raise InvalidArgumentError(
                f"kernel {self.name!r}: missing {', '.join(map(repr, missing))}; its buffers are: {self._parameters()}"
            )
        return (*args, *(named.get(name) if name in unused else named[name] for name in known[len(args) :]))

    def _lengths(self, memory: int | Sequence[int] | Mapping[int | str, int] | None) -> tuple[tuple[int, int], ...]:
        """Return slots and bytes of threadgroup memory."""
        if memory is None:
            return ()
        if isinstance(memory, Mapping):
            pairs: Any = [(self._threadgroup_slot(key), length) for key, length in memory.items()]
        elif hasattr(memory, "__index__"):
            pairs = ((0, memory),)
        else:
            pairs = None
        try:
            if pairs is None:
                # Not more of it than a kernel may have: it may have no end.
                pairs = enumerate(itertools.islice(memory, _MAX_THREADGROUP_SLOTS + 1))  # type: ignore[arg-type]
            lengths = tuple((operator.index(index), operator.index(length)) for index, length in pairs)
        except TypeError:
            raise ArgumentTypeError(
                f"threadgroup_memory: got {reprlib.repr(memory)}, expected bytes as integers"
            ) from None
        for index, length in lengths:
            if index < 0 or length < 0:
                raise InvalidArgumentError(f"threadgroup_memory: got {memory!r}, expected nothing below 0")
        return lengths

    def _threadgroup_slot(self, key: int | str) -> int:
        if not isinstance(key, str):
            return key
        slots = {a.name: a.index for a in self.arguments if a.kind == "threadgroup"}
        if key not in slots:
            raise InvalidArgumentError(
                f"threadgroup_memory: kernel {self.name!r} has no threadgroup parameter {key!r}, but "
                f"{', '.join(slots) or 'none'}"
            )
        return slots[key]

    def _without_gaps(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for i in self._gaps:
            if i < len(args) and args[i] is not None:
                raise InvalidArgumentError(
                    f"kernel {self.name!r}: argument {i} is for buffer slot {i}, which the kernel does not have: "
                    f"expected None; it has {self._parameters()}"
                )
        return tuple(argument for i, argument in enumerate(args) if i not in self._gaps)

    def _refuse_count(self, given: int) -> NoReturn:
        raise InvalidArgumentError(
            f"kernel {self.name!r}: got {given} buffer arguments, expected {len(self._buffers)}: {self._parameters()}"
        )

    def _refuse_call(self, frame: _Frame) -> None:
        """Say in the terms of a call what the C library has refused, where these differ from its own."""
        most = self.max_threads_per_threadgroup
        if frame.group is not None and math.prod(frame.group) > most:
            raise LimitExceededError(
                f"kernel {self.name!r}: group_size={frame.group} is {math.prod(frame.group)} threads, expected at most "
                f"{most} in all"
            )
        given = {index for index, _ in frame.lengths}
        known = {argument.index for argument in self.arguments if argument.kind == "threadgroup"}
        for index, length in frame.lengths:
            if length and index not in known:
                raise InvalidArgumentError(
                    f"kernel {self.name!r}: threadgroup_memory gives {length} bytes for slot {index}, but the kernel's "
                    f"threadgroup parameters are in slots: {', '.join(map(str, sorted(known))) or 'none'}"
                )
        for argument in self.arguments:
            if argument.kind == "threadgroup" and argument.is_used and argument.index not in given:
                name = argument.name or str(argument.index)
                raise InvalidArgumentError(
                    f"kernel {self.name!r}: its threadgroup parameter {name!r} (slot {argument.index}) has no memory, "
                    f"expected bytes for it, as threadgroup_memory={{{argument.name or argument.index!r}: 1024}}"
                )

    def _default_threads(self, args: tuple[Any, ...], slots: Sequence[Slot]) -> int:
        if self._position_lanes > 1:
            sizes = ("W", "H", "D")[: self._position_lanes]
            raise InvalidArgumentError(
                f"kernel {self.name!r}: its position in the grid has {self._position_lanes} dimensions, so `threads` "
                f"must be given, x first: threads=({', '.join(sizes)}) for an array of shape "
                f"({', '.join(reversed(sizes))})"
            )
        for argument, slot in zip(args, slots, strict=True):
            if type(argument) is Array:
                # For a kernel that sees vectors or structs where the array has numbers: one thread for each of those.
                whole = argument.nbytes // (slot.argument.data_size or 1)
                return int(argument.size if slot.argument.is_reference else min(argument.size, whole))
            if getattr(argument, "shape", None) == () and hasattr(argument, "dtype"):
                return 1
        raise InvalidArgumentError(f"kernel {self.name!r}: no argument is an array, so `threads` must be given")

    def _parameters(self) -> str:
        return ", ".join(f"{a.index} {a.name}".strip() for a in self._buffers) or "none"
