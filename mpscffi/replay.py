"""Captures of the host device, read and run again; docs/capture.md describes their format."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpscffi import _compiler
from mpscffi._ffi import check, error_message, ffi, lib
from mpscffi._handle import Handle
from mpscffi.device import current_device
from mpscffi.errors import ArgumentTypeError, FileError, FileNotFoundError, InvalidArgumentError
from mpscffi.scalars import SCALARS
from mpscffi.source import library_from_source
from mpscffi.stream import current_stream, wait_in_slices

__all__ = ["Bundle", "Difference", "Outcome", "cut", "reading", "replay"]


def __dir__() -> list[str]:
    return __all__


FORMAT = 1
LIST = "commands.jsonl"
#: Suffix of kernel libraries, which are machine code of the host device.
MACHINE_CODE = ".kernels"


class Bundle:
    """A capture of the host device.

    Parameters
    ----------
    path : str
        Its directory.

    Attributes
    ----------
    head : dict
        Of the device it was made on.
    buffers, libraries : dict
        Their lines, by number.
    commands : dict
        Lines of the commands, by number, in the order in which they ran.
    """

    def __init__(self, path: str) -> None:
        if not isinstance(path, str):
            raise ArgumentTypeError(f"Bundle: got a path of type {type(path).__name__}, expected a str")
        self.path = path
        self.head: dict[str, Any] = {}
        self.buffers: dict[int, dict[str, Any]] = {}
        self.libraries: dict[int, dict[str, Any]] = {}
        self.commands: dict[int, dict[str, Any]] = {}
        file = os.path.join(path, LIST)
        if not os.path.lexists(path):
            raise FileNotFoundError(f"there is no capture {path!r}: no such file")
        if not os.path.isfile(file):
            raise FileNotFoundError(
                f"{path!r} is no capture of the host device: it has no file {LIST}"
                + (" (a document of Metal's opens in Xcode)" if os.path.isdir(path) else "")
            )
        with open(file, encoding="utf-8", errors="replace") as lines:
            for number, text in enumerate(lines, 1):
                self._take(text, f"{file}:{number}")
        if self.head.get("capture") != FORMAT:
            raise InvalidArgumentError(
                f"{file}: this is format {self.head.get('capture')!r} of a capture, expected {FORMAT}"
            )

    def _take(self, text: str, place: str) -> None:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{place}: not a line of JSON: {error}") from None
        if not isinstance(line, dict):
            raise InvalidArgumentError(f"{place}: got {type(line).__name__}, expected an object")
        if "capture" in line:
            self.head = line
        for key, table in (("buffer", self.buffers), ("library", self.libraries), ("command", self.commands)):
            # A command has a "library" too.
            if key in line and not (key == "library" and "command" in line):
                if type(line[key]) is not int:
                    raise InvalidArgumentError(f"{place}: got {key} {line[key]!r}, expected a number")
                table[line[key]] = line

    def contents(self, buffer: int, version: int) -> npt.NDArray[np.uint8]:
        """Return what a buffer held, from its file."""
        path = os.path.join(self.path, contents_name(buffer, version))
        found = np.fromfile(path, np.uint8)
        if found.size != self.buffers[buffer]["length"]:
            raise InvalidArgumentError(
                f"{path}: the file has {found.size} bytes, and buffer {buffer} has {self.buffers[buffer]['length']}"
            )
        return found

    def library_path(self, number: int) -> str:
        """Return the file of a library."""
        name = self.libraries[number]["file"]
        if not isinstance(name, str) or os.path.dirname(name) != "libraries":
            raise InvalidArgumentError(f"library {number}: got the file {name!r}, expected one in libraries/")
        return os.path.join(self.path, name)


def contents_name(buffer: int, version: int) -> str:
    """Return the name of the file of a buffer's contents."""
    return f"buffers/{int(buffer)}-{int(version)}.bin"


class Difference(NamedTuple):
    """A buffer that came out different.

    Attributes
    ----------
    buffer : int
        Its number in the capture.
    what : str
        The parameter of the kernel, or what the buffer is to a copy or fill.
    text : str
        How many elements differ and which is the first.
    """

    buffer: int
    what: str
    text: str


class Outcome(NamedTuple):
    """What became of a command that was run again.

    Attributes
    ----------
    number : int
        Of the command.
    what : str
        What it does, for people.
    differences : list of Difference
        None if it came out as captured.
    failure : str
        "" or why it failed, or why it could not be run.
    is_same : bool
        Whether everything, a failure too, is as captured.
    """

    number: int
    what: str
    differences: list[Difference]
    failure: str
    is_same: bool


def replay(bundle: Bundle, only: int | None = None, rtol: float = 0.0) -> Iterator[Outcome]:
    """Run commands of a capture on the device in use, each from the buffers it met then, and compare what it left.

    Parameters
    ----------
    bundle : Bundle
        The capture. Its kernels are run, so it should be one that you trust.
    only : int, optional
        The number of the one command to run.
    rtol : float
        How far apart numbers of floating-point type may be, relative to the larger one.
    """
    if not rtol >= 0:
        raise InvalidArgumentError(f"replay: got rtol={rtol}, expected 0 or more")
    if only is not None and only not in bundle.commands:
        raise InvalidArgumentError(
            f"the capture has no command {only}: its commands are {_ranges(sorted(bundle.commands)) or 'none'}"
        )
    libraries: dict[int, Handle] = {}
    for number in bundle.commands if only is None else (only,):
        yield _Run(bundle, bundle.commands[number], libraries, rtol).outcome()


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else ""


@contextlib.contextmanager
def reading(number: int) -> Iterator[None]:
    """Name the command, and the capture as the culprit, where its words turn out not to be what they should be."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"command {number}: the capture is damaged: {error!r}") from error
    except OSError as error:
        raise FileError(f"command {number}: {error}") from error


class _Run:
    """One command, run again."""

    def __init__(self, bundle: Bundle, line: dict[str, Any], libraries: dict[int, Handle], rtol: float) -> None:
        self.bundle = bundle
        self.line = line
        self.libraries = libraries
        self.rtol = rtol
        self.buffers: dict[int, Handle] = {}
        self.pipeline: Handle | None = None

    def outcome(self) -> Outcome:
        number, what = self.line["command"], str(self.line.get("what", ""))
        recorded = self.line.get("failed")
        with reading(number):
            reason = self._reason_against()
            if reason:
                return Outcome(number, what, [], reason, False)
            status = self._run()
            if status not in (lib.MPS_STATUS_OK, lib.MPS_STATUS_EXECUTION_FAILED):
                check(status)
            failure = error_message() if status else ""
            if failure or recorded:
                return Outcome(number, what, [], failure or "it did not fail", bool(failure) == bool(recorded))
            differences = list(self._differences())
            return Outcome(number, what, differences, "", not differences)

    def _reason_against(self) -> str:
        if "kind" not in self.line:
            return "it was encoded before the capture began, so nothing is known of its arguments"
        lost = [use["buffer"] for use in self.line["buffers"] if min(use["before"], use["after"]) < 0]
        if lost:
            return f"the contents of buffer {lost[0]} could not be stored"
        if self.line.get("library") == 0:
            return "its kernel's source could not be stored"
        return ""

    # ---- running

    def _run(self) -> int:
        for use in self.line["buffers"]:
            self.buffers[use["buffer"]] = self._make_buffer(use["buffer"], use["before"])
        queue = current_stream()._pointer
        encode = {"dispatch": self._dispatch, "copy": self._copy, "fill": self._fill, "matmul": self._matmul}[
            self.line["kind"]
        ]
        check(encode(queue))
        return wait_in_slices(lib.mps_queue_wait, queue, None, "replay")

    def _make_buffer(self, number: int, version: int) -> Handle:
        contents = self.bundle.contents(number, version)
        desc = ffi.new("mps_buffer_desc *", {"struct_size": ffi.sizeof("mps_buffer_desc"), "length": contents.size})
        handle = Handle("buffer")
        check(lib.mps_buffer_create(current_device()._pointer, desc, handle.out))
        self._memory(handle, contents.size)[:] = contents
        return handle

    @staticmethod
    def _memory(handle: Handle, length: int) -> npt.NDArray[np.uint8]:
        out = ffi.new("void **")
        check(lib.mps_buffer_contents(handle.pointer, out))
        return np.frombuffer(ffi.buffer(out[0], length), np.uint8)

    def _copy(self, queue: Any) -> int:
        source, target = self.line["source"], self.line["target"]
        status: int = lib.mps_queue_copy(
            queue,
            self.buffers[source["buffer"]].pointer,
            source["offset"],
            self.buffers[target["buffer"]].pointer,
            target["offset"],
            self.line["length"],
        )
        return status

    def _fill(self, queue: Any) -> int:
        target = self.line["target"]
        pointer = self.buffers[target["buffer"]].pointer
        status: int = lib.mps_queue_fill(queue, pointer, target["offset"], self.line["length"], self.line["value"])
        return status

    def _matmul(self, queue: Any) -> int:
        from mpscffi import _blas

        _blas.install()
        matrices = {}
        for name in ("left", "right", "result"):
            given = self.line[name]
            numbers = {
                key: given[key] for key in ("offset", "rows", "columns", "row_bytes", "matrix_bytes", "transposed")
            }
            matrices[name] = {**numbers, "buffer": self.buffers[given["buffer"]].pointer}
        matmul = ffi.new(
            "mps_matmul *",
            {
                "struct_size": ffi.sizeof("mps_matmul"),
                "data_type": self.line["data_type"],
                "count": self.line["count"],
                **matrices,
            },
        )
        status: int = lib.mps_queue_matmul(queue, matmul)
        return status

    def _dispatch(self, queue: Any) -> int:
        self.pipeline = self._make_pipeline()
        kept: list[Any] = []
        arguments = ffi.new("mps_argument[]", [self._argument(given, kept) for given in self.line["arguments"]])
        dispatch = ffi.new(
            "mps_dispatch *",
            {
                "struct_size": ffi.sizeof("mps_dispatch"),
                "pipeline": self.pipeline.pointer,
                "arguments": arguments,
                "argument_count": len(arguments),
                "grid": self.line["grid"],
                "group": self.line["group"],
            },
        )
        status: int = lib.mps_queue_dispatch(queue, dispatch)
        return status

    def _argument(self, given: dict[str, Any], kept: list[Any]) -> dict[str, Any]:
        slot = {"index": given["slot"]}
        if "bytes" in given:
            data = bytes.fromhex(given["bytes"])
            kept.append(ffi.from_buffer(data))
            return {**slot, "kind": lib.MPS_ARGUMENT_BYTES, "data": kept[-1], "length": len(data)}
        if "threadgroup" in given:
            return {**slot, "kind": lib.MPS_ARGUMENT_THREADGROUP, "length": given["threadgroup"]}
        if "addresses" in given:
            entries = [self._place(entry) if entry else {} for entry in given["addresses"]]
            kept.append(ffi.new("mps_address[]", entries))
            return {**slot, "kind": lib.MPS_ARGUMENT_ADDRESSES, "data": kept[-1], "length": len(entries)}
        return {**slot, "kind": lib.MPS_ARGUMENT_BUFFER, **self._place(given)}

    def _place(self, given: dict[str, Any]) -> dict[str, Any]:
        return {
            "buffer": self.buffers[given["buffer"]].pointer,
            "offset": given["offset"],
            "length": given["length"],
        }

    def _make_pipeline(self) -> Handle:
        number = self.line["library"]
        if number not in self.libraries:
            self.libraries[number] = _open_library(self.bundle, number)
        values = []
        kept = [ffi.new("char[]", self.line["kernel"].encode())]
        for constant in self.line["constants"]:
            kept.append(ffi.from_buffer(bytes.fromhex(constant["bytes"])))
            values.append({"index": constant["index"], "data_type": constant["data_type"], "value": kept[-1]})
        desc = ffi.new(
            "mps_pipeline_desc *",
            {
                "struct_size": ffi.sizeof("mps_pipeline_desc"),
                "kernel": kept[0],
                "constants": ffi.new("mps_constant_value[]", values),
                "constant_count": len(values),
            },
        )
        kept.append(desc.constants)
        pipeline = Handle("pipeline")
        _compiler.check_compile(lib.mps_pipeline_create(self.libraries[number].pointer, desc, pipeline.out))
        return pipeline

    # ---- comparing

    def _differences(self) -> Iterator[Difference]:
        for use in self.line["buffers"]:
            number = use["buffer"]
            expected = self.bundle.contents(number, use["after"])
            got = self._memory(self.buffers[number], expected.size)
            if not np.array_equal(got, expected):
                dtype, what = self._meaning(number)
                text = _compare(got, expected, dtype, self.rtol)
                if text:
                    yield Difference(number, what, text)

    def _meaning(self, buffer: int) -> tuple[np.dtype[Any], str]:
        """Return what the elements of a buffer are, and what it is called."""
        for key in ("source", "target", "left", "right", "result"):
            if self.line.get(key, {}).get("buffer") == buffer:
                return _dtype_of(self.line.get("data_type", 0)), key
        slots = {given["slot"] for given in self.line["arguments"] if given.get("buffer") == buffer}
        info = ffi.new("mps_argument_info *", {"struct_size": ffi.sizeof("mps_argument_info")})
        number = 0
        assert self.pipeline is not None
        while lib.mps_pipeline_argument(self.pipeline.pointer, number, info) == lib.MPS_STATUS_OK:
            number += 1
            if info.kind == lib.MPS_ARGUMENT_BUFFER and info.index in slots:
                return _dtype_of(info.data_type), ffi.string(info.name).decode("utf-8", "replace")
        return np.dtype(np.uint8), "in a table"


def _dtype_of(data_type: int) -> np.dtype[Any]:
    scalar = SCALARS.get(data_type & 0xFF)
    if scalar is not None and scalar.name == "bfloat":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            return np.dtype(np.uint16)
        found: np.dtype[Any] = np.dtype(bfloat16)
        return found
    return np.dtype(scalar.code if scalar is not None and scalar.code else np.uint8)


def _compare(got: npt.NDArray[np.uint8], expected: npt.NDArray[np.uint8], dtype: np.dtype[Any], rtol: float) -> str:
    """Return how two contents differ; "" if they are close enough."""
    whole = got.size // dtype.itemsize * dtype.itemsize
    if not np.array_equal(got[whole:], expected[whole:]):
        dtype, whole = np.dtype(np.uint8), got.size
    new, old = got[:whole].view(dtype), expected[:whole].view(dtype)
    bits = np.dtype(f"u{dtype.itemsize}")
    different = new.view(bits) != old.view(bits)
    if rtol and dtype.kind not in "biu":
        a, b = new.astype(np.float64), old.astype(np.float64)
        with np.errstate(invalid="ignore"):
            close = (np.abs(a - b) <= rtol * np.maximum(np.abs(a), np.abs(b))) | (a == b) | (np.isnan(a) & np.isnan(b))
        different &= ~close
    places = np.flatnonzero(different)
    if not places.size:
        return ""
    first = int(places[0])
    return (
        f"{places.size} of {new.size} elements differ ({dtype}), the first at {first}: {new[first]!s}, "
        f"captured {old[first]!s}"
    )


def _open_library(bundle: Bundle, number: int) -> Handle:
    line = bundle.libraries[number]
    path = bundle.library_path(number)
    device = current_device()
    if path.endswith(MACHINE_CODE) and device.backend != "host":
        raise InvalidArgumentError(
            f"library {number} of the capture is machine code of the host device, which {device.name} cannot run"
        )
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".metal"):
        major, minor = line["language_version"]
        return library_from_source(
            device,
            data,
            language_version=(major, minor),
            math_mode=line["math_mode"],
            flags=line["flags"],
            defines=line["defines"],
            include_dirs=line["include_dirs"],
        )
    _compiler.install()
    library = Handle("library")
    _compiler.check_compile(lib.mps_library_create_from_data(device._pointer, data, len(data), library.out))
    return library


def cut(bundle: Bundle, number: int, target: str) -> None:
    """Write one command of a capture, with what it needs, as a capture of its own.

    Parameters
    ----------
    bundle : Bundle
        The capture.
    number : int
        Of the command.
    target : str
        The directory to make. After an error there is none.
    """
    if number not in bundle.commands:
        raise InvalidArgumentError(
            f"the capture has no command {number}: its commands are {_ranges(sorted(bundle.commands)) or 'none'}"
        )
    with reading(number):
        os.makedirs(target)
        try:
            _cut(bundle, bundle.commands[number], target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise


def _cut(bundle: Bundle, command: dict[str, Any], target: str) -> None:
    uses = command.get("buffers", [])
    lines = [bundle.head, *(bundle.buffers[use["buffer"]] for use in uses)]
    for folder in ("buffers", "libraries"):
        os.mkdir(os.path.join(target, folder))
    names = {contents_name(use["buffer"], use[when]) for use in uses for when in ("before", "after") if use[when] >= 0}
    for name in names:
        shutil.copyfile(os.path.join(bundle.path, name), os.path.join(target, name))
    if command.get("library"):
        path = bundle.library_path(command["library"])
        shutil.copyfile(path, os.path.join(target, "libraries", os.path.basename(path)))
        lines.append(bundle.libraries[command["library"]])
    readme = os.path.join(bundle.path, "README.txt")
    if os.path.exists(readme):
        shutil.copy(readme, target)
    with open(os.path.join(target, LIST), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*lines, command])
