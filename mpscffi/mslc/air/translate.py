"""From a kernel's AIR to a module of LLVM's that clang compiles to a kernel library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import CompileError
from .constants import constructors, drop_absent, literals
from .entry import BOUNDED, FIBERS, VALIDATED, Entry, check_parameters
from .intrinsics import Intrinsics
from .lines import LineTables
from .metadata import kernel_info
from .module import Module, flat, rename, split_list, symbols
from .threadgroup import ThreadgroupVariables
from .variadic import PARAMETER, is_variadic, lowered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .module import Function

_VARIABLE = re.compile(r"(.*?)\b(global|constant) (.*)")
# Texts are matched so that nothing in them is taken for anything else.
_PLACEMENT = re.compile(r'c"[^"]*"|(, (?:section|partition) "[^"]*"|, comdat(?:\([^)]*\))?|, ![\w.]+ !\d+)')
_METADATA = re.compile(r" !([A-Za-z_.][\w.]*) !(\d+)")
# What may access memory, and has no line.
_ACCESS = re.compile(
    r"^  (?:%\S+ = )?(?:(?:tail |musttail |notail )?call|load|store|atomicrmw|cmpxchg) (?!.*!dbg).*", re.MULTILINE
)
_GROUP = re.compile(r" #(\d+)")
_ASSEMBLY = re.compile(r"(?<![%@\w.$-])asm\b")
_DROPPED_LINES = ("  #dbg_", "@llvm.dbg.", "@llvm.experimental.noalias.scope.decl")
# Apple's compiler has made of fast math what it wanted to. That there are no infinities and no NaN is not taken for
# granted any further: kernels begin reductions with infinity, and ask for NaN.
_FAST = re.compile(r"(?<![%@\w.$-])fast (?=[\w<{%])")
_FINITE = re.compile(r"(?<![%@\w.$-])(?:nnan|ninf) ")
_ALIGNMENT = re.compile(r"= alloca .*|\balign (?:16|32|64|128)\b")
_NOT_FINITE_ONLY = "reassoc nsz arcp contract afn "
# The stacks of kernels end in a guard page, which a big frame must not step over.
_PROBED = '"probe-stack"="inline-asm"'
_NO_ALIAS = re.compile(r"\bnoalias\b ?")
_ATTRIBUTES = re.compile(
    r'\b(?:noundef|nonnull|readonly|writeonly|readnone|nocapture|dereferenceable\(\d+\))\s|"[^"]*"(?:="[^"]*")?\s'
)


def translate(
    text: str,
    kernel: str,
    constants: Mapping[str | int, tuple[int, bytes]],
    *,
    validate: bool = False,
    gangs: bool = False,
) -> str:
    """A module with one kernel, its tables, and all that it needs but the functions of intrinsics.cpp.

    Parameters
    ----------
    text : str
        The AIR, as LLVM prints it.
    kernel : str
        The kernel's name.
    constants : mapping of str or int to (int, bytes)
        Values of function constants by name or index: data type, and the value as laid out in memory.
    validate : bool
        Whether the module's accesses to memory will be checked.
    gangs : bool
        Whether a kernel whose threads meet is to be run by whole SIMD-groups: `THREAD_FUNCTION` then has to be made
        into a gang's function.

    Raises
    ------
    CompileError
        If it holds something that the host device does not have; the text names the kernel and the thing.
    RequestError
        If the value of a function constant is missing or of another type.
    """
    try:
        return _Translation(Module(text), kernel, constants).text(validate, gangs)
    except CompileError as error:
        raise CompileError(f"kernel '{kernel}': {error.log}") from None


class _Translation:
    """One kernel's module on its way."""

    def __init__(self, module: Module, kernel: str, constants: Mapping[str | int, tuple[int, bytes]]) -> None:
        self._module = module
        self._kernel = kernel
        self._info = kernel_info(module, kernel)
        check_parameters(self._info)
        self._values = literals(module, kernel, constants)
        self._absent = drop_absent(module, self._info, self._values)
        self._keep_reachable()
        self._threadgroup = ThreadgroupVariables(module)
        self._names = {name: f"@mslc.function.{number}" for number, name in enumerate(module.functions)}
        self._names |= {
            name: f"@mslc.global.{number}"
            for number, name in enumerate(module.globals)
            if not name.startswith("@llvm.")
        }
        self._intrinsics = Intrinsics()
        self._groups: set[str] = set()
        self._called: set[str] = set()
        self._lines: LineTables | None = None

    def _keep_reachable(self) -> None:
        """Drop the functions that neither the kernel nor a constructor calls."""
        functions = self._module.functions
        todo = [self._info.function, *constructors(self._module)]
        seen = set(todo)
        while todo:
            for line in functions[todo.pop()].body:
                for symbol in symbols(line):
                    if symbol in functions and symbol not in seen:
                        seen.add(symbol)
                        todo.append(symbol)
        self._module.functions = {name: function for name, function in functions.items() if name in seen}

    def text(self, validate: bool, gangs: bool) -> str:
        """The module."""
        self._lines = LineTables(self._module, self._info.function) if validate else None
        bodies = {name: self._body(function) for name, function in self._module.functions.items()}
        intrinsics = self._defined_intrinsics()
        flags = FIBERS if self._intrinsics.meets else 0
        flags |= 0 if self._module.has_cycle() else BOUNDED
        if validate:
            flags = FIBERS | VALIDATED  # a stack for each thread, so that they can be told apart
        types = [flat(kind) for kind in self._module.functions[self._info.function].parameter_types()]
        slots = len(self._threadgroup.variables)
        entry = Entry(self._kernel, self._info, types, self._absent, slots, flags, gangs)
        inline = set(self._module.functions) - self._module.recursive() if flags & FIBERS else {self._info.function}
        defined = [self._function(name, bodies[name], name in inline) for name in bodies]
        lines = [*map(flat, self._module.types), *self._globals(), *self._threadgroup.definitions()]
        lines += [*defined, *intrinsics, *entry.functions(self._names[self._info.function]), *entry.tables()]
        declarations = {**self._llvm_declarations(), **entry.declarations(), **self._intrinsics.declarations}
        declarations.setdefault("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        lines += declarations.values()
        lines += self._lines.nodes() if self._lines is not None else []
        lines += [f"attributes #{number} = {{ {self._kept(number)} }}" for number in sorted(self._groups, key=int)]
        return "\n".join(lines) + "\n"

    # ---------------------------------------------------------------- functions

    def _body(self, function: Function) -> str:
        lines = lowered(function.body, self._module.functions)
        body = "\n".join(lines)
        if any(mark in body for mark in _DROPPED_LINES):
            body = "\n".join(line for line in lines if not any(mark in line for mark in _DROPPED_LINES))
        if '"' in body:
            parts = re.split(r'("[^"]*")', body)
            body = "".join(part if number % 2 else self._plain(part) for number, part in enumerate(parts))
        else:
            body = self._plain(body)
        if self._lines is not None:
            body = _ACCESS.sub(rf"\g<0>, !dbg !{self._lines.of_function(function.name)}", body)
        self._groups.update(_GROUP.findall(body))
        used = set(symbols(body))
        self._called |= used
        body = self._threadgroup.place(flat(body))
        return rename(body, self._names)

    def _plain(self, text: str) -> str:
        """Return text outside quotes without what it takes for granted: aligned vectors, distinct buffers, no NaN."""
        # Looking for plain words first is what makes this fast: most are in no kernel.
        if "asm" in text and _ASSEMBLY.search(text):
            raise CompileError("it holds assembly, which no AIR does\n")
        if "!" in text:
            text = _METADATA.sub(self._attached, text.replace(", !", " !"))
        if "fast " in text:
            text = _FAST.sub(_NOT_FINITE_ONLY, text)
        if "nnan " in text or "ninf " in text:
            text = _FINITE.sub("", text)
        if " align " in text:
            text = _ALIGNMENT.sub(lambda match: match[0] if match[0][0] == "=" else "align 8", text)
        return text

    def _attached(self, match: re.Match[str]) -> str:
        """What is attached to an instruction: nothing but its line, if that is wanted."""
        is_line = self._lines is not None and match[1] == "dbg" and self._lines.has(match[2])
        return f", !dbg !{match[2]}" if is_line else ""

    def _function(self, name: str, body: str, inline: bool) -> str:
        function = self._module.functions[name]
        parameters = []
        for parameter in [*function.parameters[:-1], PARAMETER] if is_variadic(function) else function.parameters:
            text = flat(_NO_ALIAS.sub("", parameter))
            parameters.append(_ATTRIBUTES.sub("", text) if name == self._info.function else text)
        attributes = f"nounwind {_PROBED}"
        attributes += " convergent nomerge" if self._intrinsics.meets else ""
        attributes += " alwaysinline" if inline else ""
        head = flat(function.head)
        return f"define internal {head} {self._names[name]}({', '.join(parameters)}) {attributes} {{\n{body}\n}}"

    def _kept(self, number: str) -> str:
        """Of an attribute group of calls: what orders threads. The rest may not hold for the functions called here."""
        words = self._module.attributes.get(number, "").split()
        return "convergent nomerge nounwind" if "convergent" in words else "nounwind"

    # ---------------------------------------------------------------- what is declared

    def _defined_intrinsics(self) -> list[str]:
        found = []
        for name, signature in self._module.declarations.items():
            if name in self._called and not name.startswith("@llvm."):
                found.append(self._intrinsics.define(name, signature))
        unknown = self._called - set(self._module.declarations) - set(self._names) - set(self._threadgroup.names)
        if unknown:
            raise CompileError(f"it refers to '{min(unknown)[1:]}', which is not in it\n")
        return found

    def _llvm_declarations(self) -> dict[str, str]:
        found = {}
        for name, signature in self._module.declarations.items():
            if name in self._called and name.startswith("@llvm."):
                plain = flat(name)
                found[plain[1:]] = f"declare {signature.result} {plain}({', '.join(signature.parameters)})"
        return found

    def _globals(self) -> list[str]:
        lines = []
        for name, text in self._module.globals.items():
            if name == "@llvm.global_ctors":
                lines.append(rename(f"{name} = {flat(text)}", self._names))
            elif not name.startswith("@llvm."):
                lines.append(f"{self._names[name]} = internal {self._variable(name, text)}")
        return lines

    def _variable(self, name: str, text: str) -> str:
        match = _VARIABLE.match(flat(_PLACEMENT.sub(lambda part: "" if part[1] else part[0], text)))
        if match is None or "thread_local" in match[1] or "external " in match[1]:
            raise CompileError(f"its variable '{name[1:]}' has no value\n")
        value = self._values.get(name)
        if value is not None:
            kind = split_list(match[3])[0].rpartition(" ")[0]
            return f"constant {kind} {value}"
        return f"{match[2]} {rename(match[3], self._names)}"
