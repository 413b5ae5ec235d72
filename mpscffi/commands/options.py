"""Options that several subcommands share, and how a kernel and its arguments are spelled on a command line."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from mpscffi import Array, Kernel, ShaderLibrary
    from mpscffi.reflection import Argument

__all__ = [
    "ARGUMENT_HELP",
    "Call",
    "UsageError",
    "add_compile_options",
    "add_kernel_options",
    "compile_file",
    "counted",
]

ARGUMENT_HELP = """\
An ARGUMENT is for the next buffer slot of the kernel, or NAME=ARGUMENT for the parameter of that name:

  x.npy              an array from a file; x.npy:f4 converts it to float32
  zeros:1000         an array, also ones:, arange: and random: (uniform in [0, 1));
  zeros:20x30:i4     SHAPE:DTYPE, where the dtype is by default what the kernel takes
  2.5  7  true       a number
  [1,2,3]            a list of numbers, as for a vector, or for a struct in the
                     order of its fields
  {dt:0.01,n:[1,2]}  a struct by the names of its fields, also as JSON
  -                  nothing, where the kernel has no such slot

Nothing checks what a kernel indexes: with fewer elements in an array than it
uses, as for a grid that is larger, it reads and writes what lies behind.
--validate finds that, with the line.
"""

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BARE_NAME = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")
_MADE = re.compile(r"(zeros|ones|arange|random):([^:]*)(?::(.+))?")
_FILE = re.compile(r"(.*\.npy)(?::(.+))?")
_DTYPES = {
    "bool": "bool", "char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32",
    "uint": "uint32", "long": "int64", "ulong": "uint64", "half": "float16", "bfloat": "bfloat16", "float": "float32",
}  # fmt: skip


def counted(count: int, noun: str) -> str:
    """Return "1 file", or "2 files"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class UsageError(Exception):
    """A command line that means nothing."""


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Add what is told to the compiler."""
    group = parser.add_argument_group("compiling")
    group.add_argument("-I", metavar="DIR", action="append", default=[], dest="include", help="look for headers there")
    group.add_argument("-D", metavar="NAME[=VALUE]", action="append", default=[], dest="define", help="define a macro")
    group.add_argument("--math", choices=["safe", "relaxed", "fast"], help="the math mode (default: safe)")
    group.add_argument("--std", metavar="MAJOR.MINOR", help="version of the language")
    group.add_argument("--validate", action="store_true", help="check the kernels' memory accesses as they run")


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Add what tells of one call of a kernel."""
    parser.add_argument("file", metavar="FILE", help="a Metal source, or a metallib")
    parser.add_argument("kernel", metavar="KERNEL", help='its name, or an instantiation of a template, "scale<float>"')
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", help="see below")
    group = parser.add_argument_group("the grid")
    group.add_argument("--threads", metavar="N[xN[xN]]", help="by default, as many as the first array has elements")
    group.add_argument("--group", metavar="N[xN[xN]]", help="threads of a threadgroup; by default the library chooses")
    group.add_argument("--threadgroups", metavar="N[xN[xN]]", help="whole threadgroups, in place of --threads")
    group.add_argument(
        "--memory", metavar="[SLOT=]BYTES", action="append", default=[],
        help="threadgroup memory, for slot 0 or for a slot or name",
    )  # fmt: skip
    group.add_argument(
        "--constant", metavar="NAME=VALUE", action="append", default=[], help="give a function constant its value"
    )
    add_compile_options(parser)


def compile_file(path: str, given: argparse.Namespace) -> ShaderLibrary:
    """Compile or load a file with the options of the command line. Headers are looked for beside it, too."""
    import mpscffi

    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(b"MTLB"):
        return mpscffi.load_metallib(data)
    try:
        source = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise mpscffi.errors.CompileError(f"program_source:{line}: error: the source is not UTF-8\n") from None
    beside = [os.path.dirname(os.path.abspath(path))] if mpscffi.current_device().backend == "host" else []
    return mpscffi.compile_shader(
        source,
        math_mode=given.math,
        defines=given.define,
        include_dirs=[*beside, *given.include],
        language_version=_version(given.std),
        validate=given.validate or None,  # else what the environment says
    )


def _version(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise UsageError(f"--std: got {text!r}, expected MAJOR.MINOR")
    return int(match[1]), int(match[2] or 0)


def sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """Read "1000", "24x512" or "24,512"."""
    if text is None:
        return None
    parts = re.split("[x,]", text)
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"{option}: got {text!r}, expected numbers with an x between, as 24x512")
    return tuple(map(int, parts))


def value_of(text: str) -> Any:
    """Read a number, true, false, a list, or a struct."""
    try:
        value = _structure(text) if text[:1] in ("{", "[") else None
        if value is None:
            value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not _has_numbers(value):
        raise UsageError(
            f"got {text!r}, expected an argument as x.npy, zeros:1000, 2.5, true, [1,2,3], {{dt:0.01,n:3}} or -"
        )
    return value


def _structure(text: str) -> Any:
    """Read JSON, in which names may stand without quotes; None if it is none."""
    try:
        return json.loads(_BARE_NAME.sub(r'\1"\2":', text))
    except ValueError:
        return None


def _has_numbers(value: Any) -> bool:
    """Whether a value is made of numbers alone."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and bool(value) and all(map(_has_numbers, value.values()))
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_has_numbers, value))
    return isinstance(value, (bool, int, float))


class Call:
    """A kernel with the arguments of a command line.

    Parameters
    ----------
    given : argparse.Namespace
        Of a parser with the options of `add_kernel_options`.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.kernel = _kernel(compile_file(given.file, given), given)
        self._buffers = {a.index: a for a in self.kernel.arguments if a.kind == "buffer"}
        self._slots = {a.name: a.index for a in self._buffers.values() if a.name}
        self.values: dict[int, Any] = {}
        for position, text in enumerate(given.arguments):
            named = _NAMED.fullmatch(text)
            slot = self.slot(named[1]) if named else position
            if slot in self.values:
                raise UsageError(f"argument {text!r}: slot {slot} was given before")
            try:
                self.values[slot] = self._value(slot, named[2] if named else text)
            except UsageError as error:
                raise UsageError(f"argument {slot}: {error}") from None
        self._keywords: dict[str, Any] = {
            "threads": sizes("--threads", given.threads),
            "group_size": sizes("--group", given.group),
            "threadgroups": sizes("--threadgroups", given.threadgroups),
            "threadgroup_memory": _memory(given.memory),
        }
        self._check_memory(self._keywords["threadgroup_memory"] or {})
        highest = max(self.values, default=-1)
        self._positional = [self.values.get(slot) for slot in range(highest + 1)]

    def __call__(self) -> None:
        """Queue it."""
        self.kernel(*self._positional, **self._keywords)

    def _check_memory(self, memory: Mapping[int | str, int]) -> None:
        known = [a for a in self.kernel.arguments if a.kind == "threadgroup"]
        for key, length in memory.items():
            if length and not any(key in (a.index, a.name) for a in known):
                names = ", ".join(f"{a.index} {a.name}".strip() for a in known) or "none"
                raise UsageError(
                    f"--memory: kernel {self.kernel.name!r} has no threadgroup parameter {key!r}; it has: {names}"
                )

    @property
    def arrays(self) -> Mapping[int, Array]:
        """The arrays among the arguments, by slot."""
        from mpscffi import Array

        return {slot: value for slot, value in self.values.items() if isinstance(value, Array)}

    def slot(self, key: str) -> int:
        """Return the slot that a number or a parameter's name means."""
        if key in self._slots:
            return self._slots[key]
        if key.isdigit() and int(key) in self._buffers:
            return int(key)
        known = ", ".join(f"{index} {argument.name}".strip() for index, argument in self._buffers.items())
        raise UsageError(f"kernel {self.kernel.name!r} has no buffer {key!r}: {known or 'none'}")

    def name(self, slot: int) -> str:
        """Return the name of the parameter of a slot."""
        return self._buffers[slot].name or str(slot)

    def written(self) -> list[int]:
        """Return the slots of arrays that the kernel writes."""
        return [slot for slot in self.arrays if slot in self._buffers and self._buffers[slot].access == "read_write"]

    def _value(self, slot: int, text: str) -> Any:
        if text == "-":
            return None
        made, file = _MADE.fullmatch(text), _FILE.fullmatch(text)
        if made:
            return self._made(slot, made[1], made[2], made[3])
        return _from_file(file[1], file[2], self._buffers.get(slot)) if file else value_of(text)

    def _made(self, slot: int, kind: str, shape_text: str, dtype_text: str | None) -> Array:
        import numpy as np

        import mpscffi

        shape = sizes(f"{kind}:", shape_text) or ()
        argument = self._buffers.get(slot)
        dtype = dtype_text or _DTYPES.get(argument.data_type.rstrip("234") if argument else "", "float32")
        if kind == "zeros":
            return mpscffi.zeros(shape, dtype=dtype)
        if kind == "ones":
            return mpscffi.ones(shape, dtype=dtype)
        size = int(np.prod(shape))
        values = np.arange(size) if kind == "arange" else np.random.default_rng(0).random(size)
        return mpscffi.asarray(values.reshape(shape), dtype=dtype)


def _kernel(library: ShaderLibrary, given: argparse.Namespace) -> Kernel:
    kernel = library[given.kernel]
    constants = {}
    for text in given.constant:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"--constant: got {text!r}, expected NAME=VALUE")
        constants[int(name) if name.isdigit() else name] = value_of(value)
    return kernel.specialize(constants) if constants else kernel


def _memory(texts: list[str]) -> dict[int | str, int] | None:
    memory: dict[int | str, int] = {}
    for text in texts:
        key, sign, length = text.partition("=")
        if not sign:
            key, length = "0", text
        if not length.isdigit():
            raise UsageError(f"--memory: got {text!r}, expected BYTES or SLOT=BYTES")
        memory[int(key) if key.isdigit() else key] = int(length)
    return memory or None


def _from_file(path: str, dtype: str | None, argument: Argument | None) -> Array:
    import numpy as np

    import mpscffi
    from mpscffi.matching import dtype_fault
    from mpscffi.scalars import SCALARS

    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise UsageError(f"'{path}' is no array in NumPy's format, as numpy.save writes it, or has objects") from None
    if dtype is None:
        name = argument.data_type.rstrip("234") if argument else ""
        scalar = next((scalar for scalar in SCALARS.values() if scalar.name == name), None)
        wanted = _DTYPES.get(name, "float32")
        if values.dtype == np.float64:
            raise UsageError(f"'{path}' has float64 numbers, which Metal has not: {path}:{wanted} converts them")
        if argument is not None and dtype_fault(argument, scalar, values.dtype):
            raise UsageError(
                f"'{path}' has {values.dtype} numbers, and the kernel takes {argument.data_type}: {path}:{wanted} "
                "converts them"
            )
    return mpscffi.asarray(values, dtype=dtype)
