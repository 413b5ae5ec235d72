"""Validation: each access to memory in a kernel's LLVM code becomes one that the runtime checks.

The code is clang's text, after all optimizations. Before each access stands then a call that is given the address and
the *site*: the user's line, the bytes, and whether they are read or written. It gives back the address to be used, as
pointers into buffers are not the real ones in a kernel that is validated: they tell which buffer they were made from.
Before each barrier stands a call that tells which one it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

NO_PASSES = ("-Xclang", "-disable-llvm-passes")
# Clang's options for code that is to be instrumented: each access has a line...
LINES = ("-gline-tables-only", *NO_PASSES)
# ...and, when it is optimized, none is made of several, and none moves from a function to its callers.
SINGLE_ACCESSES = (
    "-O2",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-builtin-memcmp",
    "-fno-builtin-bcmp",
    *("-mllvm", "-simplifycfg-merge-cond-stores=0"),
    *("-mllvm", "-sink-common-insts=0"),
    *("-mllvm", "-hoist-common-insts=0"),
)

# Bits of mslc_site.flags in kernel_abi.h.
_READ = 1
_WRITE = 2
_ATOMIC = 4
_ACQUIRE = 8
_GROUP = 16
_LANES = 32

_NAME = r'[%@](?:"[^"]*"|[-\w.$]+)'
_LOAD = re.compile(r"  %\S+ = (?:tail )?load (?P<atomic>atomic )?(?:volatile )?")
_STORE = re.compile(r"  store (?P<atomic>atomic )?(?:volatile )?")
_UPDATE = re.compile(r"  %\S+ = atomicrmw (?:volatile )?(?P<operation>\w+) ptr ")
_EXCHANGE = re.compile(r"  %\S+ = cmpxchg (?:weak )?(?:volatile )?ptr ")
_MOVE = re.compile(r"  (?:tail |musttail |notail )?call void @llvm\.(?P<what>memcpy|memmove|memset)\.[\w.]+\(")
# A simdgroup_barrier is a SIMD-group function like others, and told from them by the function that it hands over.
_BARRIER = re.compile(
    r"  (?:tail |musttail |notail )?call void @mslc_"
    r"(?:threadgroup_barrier\(|collective\(.*(?P<lanes>simdgroup_barrier))"
)
_ALLOCA = re.compile(rf"  (?P<name>{_NAME}) = alloca ")
_DEBUG = re.compile(r", !dbg !(\d+)")
_METADATA = re.compile(r"!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}

_HELPERS = """
define internal ptr @mslc.check(ptr %address, ptr %site) nounwind {
  %table = load ptr, ptr @mslc_runtime_table, align 8
  %entry = getelementptr ptr, ptr %table, i64 7
  %function = load ptr, ptr %entry, align 8
  %place = tail call ptr %function(ptr %address, ptr %site)
  ret ptr %place
}
define internal void @mslc.copy(ptr %target, ptr %source, i64 %length, ptr %site) nounwind {
  %table = load ptr, ptr @mslc_runtime_table, align 8
  %entry = getelementptr ptr, ptr %table, i64 8
  %function = load ptr, ptr %entry, align 8
  tail call void %function(ptr %target, ptr %source, i64 %length, ptr %site)
  ret void
}
define internal void @mslc.fill(ptr %target, i8 %value, i64 %length, ptr %site) nounwind {
  %table = load ptr, ptr @mslc_runtime_table, align 8
  %entry = getelementptr ptr, ptr %table, i64 9
  %function = load ptr, ptr %entry, align 8
  tail call void %function(ptr %target, i8 %value, i64 %length, ptr %site)
  ret void
}
define internal void @mslc.arrive(ptr %site) nounwind {
  %table = load ptr, ptr @mslc_runtime_table, align 8
  %entry = getelementptr ptr, ptr %table, i64 13
  %function = load ptr, ptr %entry, align 8
  tail call void %function(ptr %site)
  ret void
}
"""


class _Site(NamedTuple):
    file: str | None
    line: int
    size: str
    flags: int


def instrumented(code: str, locate: Callable[[str, int], tuple[str, int] | None]) -> str:
    """Return LLVM code in which all accesses to memory are checked.

    Parameters
    ----------
    code : str
        Of one module.
    locate : callable
        Gives the user's file and line of a file and line in the module's line tables; None if it is not the user's.
        With line 0, the file is the name of a function instead.
    """
    return _Instrumenter(code, locate).run()


class _Instrumenter:
    def __init__(self, code: str, locate: Callable[[str, int], tuple[str, int] | None]) -> None:
        self._lines = code.split("\n")
        self._locate = locate
        self._metadata: dict[str, tuple[str, str]] = {}
        for line in reversed(self._lines):
            found = _METADATA.match(line)
            if found is not None:
                self._metadata[found[1]] = found[2], found[3]
        self._places: dict[str, tuple[str | None, int]] = {}
        self._sites: dict[_Site, int] = {}
        self._count = 0
        self._own: set[str] = set()  # variables on the stack of the function that is read

    def run(self) -> str:
        output: list[str] = []
        for line in self._lines:
            if line.startswith("define "):
                self._own.clear()
            own = _ALLOCA.match(line)
            if own is not None:
                self._own.add(own["name"])
            output += self._checked(line) if line.startswith("  ") else [line]
        return "\n".join([*output, _HELPERS, *self._tables(), ""])

    # ---------------------------------------------------------------- instructions

    def _checked(self, line: str) -> list[str]:
        found = _LOAD.match(line)
        if found is not None:
            kind = _type_at(line, found.end())
            flags = _READ | (_ATOMIC | _ACQUIRE if found["atomic"] else 0)
            return self._access(line, found.end() + len(kind) + len(", ptr "), kind, flags)
        found = _STORE.match(line)
        if found is not None:
            kind = _type_at(line, found.end())
            flags = _WRITE | (_ATOMIC if found["atomic"] else 0)
            return self._access(line, line.rindex(", ptr ") + len(", ptr "), kind, flags)
        found = _UPDATE.match(line) or _EXCHANGE.match(line)
        if found is not None:
            pointer = _value_at(line, found.end())
            kind = _type_at(line, found.end() + len(pointer) + len(", "))
            acquires = found.groupdict().get("operation", "xchg") == "xchg"
            flags = _READ | _WRITE | _ATOMIC | (_ACQUIRE if acquires else 0)
            return self._access(line, found.end(), kind, flags)
        found = _BARRIER.match(line)
        if found is not None:
            site = self._site(line, "0", _LANES if found["lanes"] else _GROUP)
            return [f"  call void @mslc.arrive(ptr {site})", line]
        found = _MOVE.match(line)
        return [self._move(line, found)] if found is not None else [line]

    def _access(self, line: str, start: int, kind: str, flags: int) -> list[str]:
        pointer = _value_at(line, start)
        if pointer in self._own or "@" in pointer:
            return [line]  # a variable of the thread's, or of the library's, as a whole
        self._count += 1
        name = f"%mslc.{self._count}"
        site = self._site(line, _size_of(kind), flags)
        check = f"  {name} = call ptr @mslc.check(ptr {pointer}, ptr {site})"
        return [check, line[:start] + name + line[start + len(pointer) :]]

    def _move(self, line: str, found: re.Match[str]) -> str:
        operands = [operand.split(" ")[-1] for operand in _operands(line, found.end())]
        if found["what"] == "memset":
            target, value, length = operands[:3]
            site = self._site(line, "0", _WRITE)
            return f"  call void @mslc.fill(ptr {target}, i8 {value}, i64 {length}, ptr {site})"
        target, source, length = operands[:3]
        site = self._site(line, "0", _READ | _WRITE)
        return f"  call void @mslc.copy(ptr {target}, ptr {source}, i64 {length}, ptr {site})"

    # ---------------------------------------------------------------- sites

    def _site(self, line: str, size: str, flags: int) -> str:
        found = _DEBUG.search(line)
        file, number = self._place(found[1]) if found is not None else (None, 0)
        key = _Site(file, number, size, flags)
        return f"@mslc.site.{self._sites.setdefault(key, len(self._sites))}"

    def _place(self, location: str) -> tuple[str | None, int]:
        """Return the user's file and line of a location: of the innermost function of the user's that it is in."""
        known = self._places.get(location)
        if known is None:
            known = self._places[location] = self._find_place(location)
        return known

    def _find_place(self, location: str) -> tuple[str | None, int]:
        at: str | None = location
        while at is not None:
            fields = self._metadata[at][1]
            scope = _reference(fields, "scope")
            line = _number(fields, "line")
            # What was made of several lines has none: then the function's.
            place = self._locate(self._file_of(scope), line or self._line_of(scope)) if scope is not None else None
            if place is not None:
                return place
            at = _reference(fields, "inlinedAt")
        return None, 0

    def _file_of(self, scope: str) -> str:
        fields = self._metadata[scope][1]
        file = _reference(fields, "file")
        name = re.search(r'filename: "([^"]*)"', self._metadata[file][1]) if file is not None else None
        return name[1] if name is not None else ""

    def _line_of(self, scope: str) -> int:
        kind, fields = self._metadata[scope]
        while kind != "DISubprogram":
            outer = _reference(fields, "scope")
            if outer is None:
                return 0
            kind, fields = self._metadata[outer]
        return _number(fields, "line")

    def _tables(self) -> list[str]:
        files = {site.file: None for site in self._sites if site.file is not None}
        names = {file: f"@mslc.file.{number}" for number, file in enumerate(files)}
        tables = []
        for file, name in names.items():
            data = file.encode("utf-8", "surrogateescape") + b"\0"
            text = "".join(f"\\{byte:02X}" for byte in data)
            tables.append(f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{text}"')
        for site, number in self._sites.items():
            file = names[site.file] if site.file is not None else "null"
            tables.append(
                f"@mslc.site.{number} = private unnamed_addr constant {{ ptr, i32, i32, i32, i32 }} "
                f"{{ ptr {file}, i32 {site.line}, i32 {site.size}, i32 {site.flags}, i32 0 }}"
            )
        return tables


# -------------------------------------------------------------------- the text of LLVM's code


def _balanced(text: str, start: int) -> int:
    """Return where what begins with a bracket at `start` ends."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "([{<":
            depth += 1
        elif text[place] in ")]}>":
            depth -= 1
            if depth == 0:
                return place + 1
    raise ValueError(f"brackets do not match: {text}")


def _type_at(text: str, start: int) -> str:
    if text[start] in "[{<":
        return text[start : _balanced(text, start)]
    found = re.compile(rf"{_NAME}|\w+").match(text, start)
    if found is None:
        raise ValueError(f"no type at {start}: {text}")
    return found.group()


def _value_at(text: str, start: int) -> str:
    found = re.compile(_NAME).match(text, start)
    if found is not None:
        return found.group()
    end = re.compile(r"[^,(]*").match(text, start)
    assert end is not None
    return text[start : _balanced(text, end.end()) if text[end.end() : end.end() + 1] == "(" else end.end()]


def _operands(text: str, start: int) -> list[str]:
    """Return the operands of a call whose first begins at `start`; a constant expression is one word at its end."""
    operands = []
    end = _balanced(text, start - 1) - 1
    while start < end:
        stop = start
        while stop < end and text[stop] != ",":
            stop = _balanced(text, stop) if text[stop] == "(" else stop + 1
        operands.append(text[start:stop])
        start = stop + 2
    return operands


def _size_of(kind: str) -> str:
    """Return the bytes that an access of a type touches, as a constant of LLVM's."""
    vector = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    element = vector[2] if vector is not None else kind
    bits = int(element[1:]) if re.fullmatch(r"i\d+", element) else _BITS.get(element)
    if bits is None:
        return f"ptrtoint (ptr getelementptr ({kind}, ptr null, i32 1) to i32)"
    return str((bits * (int(vector[1]) if vector is not None else 1) + 7) // 8)


def _reference(fields: str, name: str) -> str | None:
    found = re.search(rf"\b{name}: !(\d+)", fields)
    return found[1] if found is not None else None


def _number(fields: str, name: str) -> int:
    found = re.search(rf"\b{name}: (\d+)", fields)
    return int(found[1]) if found is not None else 0
