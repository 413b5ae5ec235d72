"""One Metal source with its options: checked as a whole, built kernel by kernel."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import process
from .cache import digest
from .diagnostics import Place, Sources, error_text, translated
from .errors import CompileError, CompileTimeout, RequestError
from .gang import SIMPLIFY, NotGangedError, ganged
from .instrument import LINES, NO_PASSES, SINGLE_ACCESSES, instrumented
from .linking import link
from .preprocess import SOURCE_NAME, from_preprocessor, normalized, without_preprocessor
from .rejoin import with_meetings
from .rewrite import Entry, RewriteError, Rewriter
from .split import NotSplitError, Splitter
from .target import (
    DEBUG,
    IN_ORDER,
    LONG_TOKENS,
    PATIENCE,
    PLAIN_GENERATE,
    PLAIN_SIMPLIFY,
    QUICK_GENERATE,
    QUICK_SIMPLIFY,
    WARNINGS,
    compile_flags,
)
from .tokens import SourceError
from .values import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .options import Options
    from .precompiled import Prelude
    from .preprocess import Text
    from .toolchain import Toolchain

_UNIT = "unit.cpp"
_FLAG_FIBERS = 1
_FLAG_BOUNDED = 2
_FLAG_VALIDATED = 4
_FLAG_GANGS = 8
_MAX_THREADS = 1024
# What macros make of a source must end somewhere: this is 20 times the longest source that is known.
_MOST_TEXT = 16 << 20
# So many instantiations are compiled when the source is checked; of more, only the types are.
_CHECKED_INSTANTIATIONS = 8
# A function that no kernel calls makes no code, whatever the source says of its linkage.
_TOO_DEEP = "brackets or declarations are nested too deeply"
_INTERNAL = (
    "#pragma clang attribute push(__attribute__((internal_linkage)), apply_to = any(function, variable(is_global)))\n"
    # A function with SIMD-group functions in it, called in two branches, has two places of each until it is inlined.
    "#pragma clang attribute push(__attribute__((nomerge)), apply_to = function)\n"
)
_END_INTERNAL = "#pragma clang attribute pop\n" * 2
# Sections of what the system's loader calls.
_SECTIONS_OF_LOADING = (b".init_array", b".fini_array", b".preinit_array", b".ctors", b".dtors")
_WORD = re.compile(r"\w+|.")
_NOT_CPP = re.compile(r"\[\[[^\[\]]*\]\]|\b(?:device|threadgroup|thread|kernel|vertex|fragment)\b")


@dataclass(slots=True)
class Unit:
    """A translation unit: the source, rendered with `output`, is its lines from `first` to `last`.

    The line `tail` and those behind it are about `entries`, one each. `is_split`: what clang says of it is not to be
    told, as its lines are not the source's. `meets`: threads wait for each other in it, and not all of them has to be a
    fiber. `is_long`: clang would take minutes to do its best. `options` are more options of clang's.
    """

    text: str
    output: list[str]
    first: int
    last: int
    tail: int
    entries: list[Entry]
    is_split: bool = False
    meets: bool = False
    is_long: bool = False
    options: tuple[str, ...] = ()


class Program:
    """A source and its options.

    Parameters
    ----------
    source : str
    options : Options
    toolchain : Toolchain
    prelude : Prelude

    Raises
    ------
    CompileError
        If the source cannot be preprocessed or rewritten.
    """

    def __init__(self, source: str, options: Options, toolchain: Toolchain, prelude: Prelude) -> None:
        self._options = options
        self._toolchain = toolchain
        self._prelude = prelude
        self.source = normalized(source)
        self._sources = Sources(self.source)
        self._text = self._preprocessed()
        self._rewritten = self._rewrite()

    @property
    def headers(self) -> list[str]:
        """Paths of the user's own headers that the source includes."""
        return self._text.headers

    @property
    def absent_headers(self) -> list[str]:
        """Paths at which a header, if it were there, would be included in place of one of `headers`."""
        absent: dict[str, None] = {}
        places = [os.path.abspath(place) for place in self._options.include_dirs]
        includers = [os.path.dirname(header) for header in self.headers]
        for header in self.headers:
            for number, place in enumerate(places):
                if header.startswith(place + os.sep):
                    name = header[len(place) + 1 :]
                    absent.update(dict.fromkeys(os.path.join(other, name) for other in [*places[:number], *includers]))
        return [path for path in absent if not os.path.exists(path)]

    @property
    def rewritten(self) -> Rewriter:
        """The source as C++."""
        return self._rewritten

    # ---------------------------------------------------------------- steps

    def _clang(self, *arguments: str) -> list[str]:
        flags = compile_flags(self._options.math_mode, self._toolchain.is_zig)
        diagnostics = ["-fno-caret-diagnostics", "-fno-color-diagnostics", "-ferror-limit=50"]
        debug = DEBUG if self._options.debug else ()
        return [*self._toolchain.compiler, "-x", "c++", *flags, *debug, *diagnostics, *arguments]

    def _preprocessed(self) -> Text:
        if not self._options.defines:
            text = without_preprocessor(self.source, self._prelude.has_header)
            if text is not None:
                return text
        with _Workspace() as directory:
            path = os.path.join(directory, SOURCE_NAME)
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(self.source)
            arguments = [f"-D{define}" for define in self._options.defines]
            for include_dir in self._options.include_dirs:
                arguments += ["-I", os.path.abspath(include_dir)]
            arguments += ["-MD", "-MF", "headers.d", "-E", SOURCE_NAME]
            command = self._clang(*self._prelude.preprocessor_arguments(), *arguments)
            finished = process.run(command, directory, most_output=_MOST_TEXT)
            if finished.status:
                raise self._failure(finished, translated(finished.errors, self._locate_before, self._sources))
            with open(os.path.join(directory, "headers.d"), encoding="utf-8", errors="surrogateescape") as file:
                headers = [name for name in _dependencies(file.read()) if self._is_users(name, directory)]
            return from_preprocessor(finished.output, headers, self._prelude.owns)

    def _is_users(self, header: str, directory: str) -> bool:
        path = os.path.join(directory, header)
        return os.path.basename(path) != SOURCE_NAME and not self._prelude.owns(path)

    def _rewrite(self) -> Rewriter:
        if len(self._text.text) > _MOST_TEXT:
            raise CompileError(f"{SOURCE_NAME}: error: the source has more than {_MOST_TEXT >> 20} MiB\n")
        try:
            return Rewriter(self._text.text, self._text.has_library)
        except RecursionError:
            raise CompileError(f"{SOURCE_NAME}: error: {_TOO_DEEP}\n") from None
        except RewriteError as error:
            texts = [
                error_text(self._place(one.offset), "error", str(one), self._sources) for one in [error, *error.others]
            ]
            raise CompileError("".join(texts)) from None
        except SourceError as error:
            self._check_unstructured()
            place = self._place(error.offset)
            raise CompileError(error_text(place, "error", str(error), self._sources)) from None

    def _check_unstructured(self) -> None:
        """Return a source without structure, as with a missing brace: clang says best what is wrong."""
        text = re.sub(r"\bconstant\b", "const   ", self._text.text)
        text = _NOT_CPP.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)  # all columns stay
        finished = self._compile(text, ["-fsyntax-only"], None)
        if finished.status:
            raise self._failure(finished, translated(finished.errors, self._locate_plain, self._sources))

    def _compile(
        self, unit: str, arguments: list[str], output: str | None, seconds: int | None = None
    ) -> process.Finished:
        with _Workspace() as directory:
            with open(os.path.join(directory, _UNIT), "w", encoding="utf-8", newline="\n") as file:
                file.write(unit)
            command = self._clang(*self._prelude.arguments(), *arguments)
            if output is not None:
                command += ["-o", output]
            return self._prelude.run([*command, _UNIT], directory, seconds=seconds)

    # ---------------------------------------------------------------- check and build

    def check(self, *, instantiate: bool | None = None, warnings: bool = False) -> str:
        """Have clang check the whole source.

        Parameters
        ----------
        instantiate : bool, optional
            True to check every kernel with the code that runs it; False to check no body of a kernel template; by
            default these bodies are checked for each explicit instantiation, if there are few.
        warnings : bool
            Ask for warnings.

        Returns
        -------
        str
            The warnings, as a log.

        Raises
        ------
        CompileError
        """
        if instantiate:
            return self._checked(list(self._rewritten.entries.values()), self._launch_check, warnings)
        instantiations = [entry for entry in self._rewritten.entries.values() if entry.is_instantiation]
        if instantiate is None and len(instantiations) <= _CHECKED_INSTANTIATIONS:
            return self._checked(instantiations, _body_check, warnings)
        return self._checked(instantiations, _signature_check, warnings)

    def _checked(self, entries: list[Entry], line: Callable[[int, Entry], str], warnings: bool) -> str:
        """Have clang check the source with a line about each entry, and return the warnings."""
        tail = "".join(line(number, entry) for number, entry in enumerate(entries))
        unit = self._unit({}, self._rewritten.output(None), tail, entries)
        finished = self._compile(unit.text, ["-fsyntax-only", *(WARNINGS if warnings else ())], None)
        log = self._log(finished.errors, unit) if finished.errors else ""
        if finished.status:
            raise self._failure(finished, log)
        return log if warnings else ""

    def _launch_check(self, number: int, entry: Entry) -> str:
        """One line that instantiates all that a build of the kernel does."""
        texts, pointer, arguments = self._launch(entry)
        return (
            f"namespace mslc_use_{number} {{ {texts} constexpr mslc::argument_table<{arguments}> table({pointer}); "
            f"[[maybe_unused]] constexpr unsigned limit = {_limit(entry)}; "
            f"[[maybe_unused]] constexpr auto run = mslc::run_function<{self._flags(entry)}, {arguments}>; }}\n"
        )

    def build(self, kernel: str, constants: Mapping[str | int, tuple[int, bytes]], output: str) -> None:
        """Compile one kernel to a kernel library.

        Parameters
        ----------
        kernel : str
        constants : mapping of str or int to (int, bytes)
            Values of function constants, by name or index: the data type, and the value as laid out in memory.
        output : str
            Path of the library.

        Raises
        ------
        CompileError
        RequestError
            For an unknown kernel; for a constant that is unknown, missing or of another type.
        """
        with _Workspace() as directory:
            path = os.path.join(directory, "kernel.o")
            self._compile_kernel(kernel, constants, path)
            self._link([path], output, directory)

    def build_all(self, constants: Mapping[str | int, tuple[int, bytes]], output: str) -> None:
        """Compile all kernels to one kernel library, as `build` does for one.

        Every kernel is a unit of its own, so that it takes no more threadgroup memory than it does alone.
        """
        names = list(self._rewritten.entries)
        declarations = "".join(f"extern MSLC_HIDDEN const mslc_kernel mslc_kernel_{n};\n" for n in range(len(names)))
        pointers = ", ".join(f"&mslc_kernel_{number}" for number in range(len(names)))
        table = (
            f'extern "C" {{\n{declarations}}}\n'
            f"static const mslc_kernel *const mslc_kernels[] = {{{pointers}}};\nMSLC_LIBRARY(mslc_kernels)\n"
        )
        with _Workspace() as directory:
            paths = [os.path.join(directory, f"kernel_{number}.o") for number in range(len(names))]
            for number, (name, path) in enumerate(zip(names, paths, strict=True)):
                self._compile_kernel(name, constants, path, f"_{number}")
            paths.append(os.path.join(directory, "library.o"))
            finished = self._compile(table, ["-c"], paths[-1])
            if finished.status:
                raise CompileError(f"{SOURCE_NAME}: error: the table of kernels does not compile\n{finished.errors}")
            self._link(paths, output, directory)

    def _compile_kernel(
        self, kernel: str, constants: Mapping[str | int, tuple[int, bytes]], output: str, number: str = ""
    ) -> None:
        unit = self.unit(kernel, constants, number)
        if unit.is_split:
            if self._is_done(lambda: self._compile(unit.text, ["-c"], output, PATIENCE)):
                return
            unit = self.unit(kernel, constants, number, split=False)
        if unit.meets and self._compile_gang(self.unit(kernel, constants, number, split=False, gangs=True), output):
            return
        self._compile_unit(unit, output)

    @staticmethod
    def _is_done(step: Callable[[], process.Finished]) -> bool:
        """Whether a step succeeds that there is another way for: if it takes too long, that is taken, too."""
        try:
            return step().status == 0
        except CompileTimeout:
            return False

    def _compile_gang(self, unit: Unit, output: str) -> bool:
        """Compile a kernel whose SIMD-groups are loops over their lanes; whether that can be."""
        text = self._ganged(unit)
        if text is None:
            return False
        with _Workspace() as directory:
            code = os.path.join(directory, "kernel.ll")
            with open(code, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                file.write(text)
            if not self._is_done(lambda: self._compile_code(["-c", "-o", output, code], directory, PATIENCE)):
                return False
        self._refuse_constructors(unit, output)
        return True

    def _ganged(self, unit: Unit) -> str | None:
        """Return the code of a unit's kernel, made of gangs, if it can be."""
        with _Workspace() as directory:
            code = os.path.join(directory, "kernel.ll")
            if not self._is_done(lambda: self._compile(unit.text, [*SIMPLIFY, "-S", "-emit-llvm"], code, PATIENCE)):
                return None
            with open(code, encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        try:
            return ganged(text, "@mslc_thread", "mslc_gang")
        except NotGangedError:
            return None

    def _compile_unit(self, unit: Unit, output: str) -> None:
        if self._options.validate:
            with _Workspace() as directory:
                self._compile_validated(unit, output, directory)
        elif not (self._options.debug and self._compile(self._with_lines(unit), ["-c"], output).status == 0):
            finished = self._compile_optimized(unit, output) or self._compile_quickly(unit, output)
            if finished.status:
                raise self._failure(finished, self._log(finished.errors, unit))
        self._refuse_constructors(unit, output)

    def _compile_optimized(self, unit: Unit, output: str) -> process.Finished | None:
        """Have clang do its best; None if that is too much for it."""
        if unit.is_long:
            return None
        try:
            finished = self._compile(unit.text, [*unit.options, "-c"], output, PATIENCE)
        except CompileTimeout:
            return None
        return None if finished.crashed else finished

    def _compile_quickly(self, unit: Unit, output: str) -> process.Finished:
        """Compile what is too much for clang at its best: less well, and if that is too much, word by word."""
        with _Workspace() as directory:
            code = os.path.join(directory, "kernel.bc")
            if self._is_done(
                lambda: self._compile(unit.text, [*QUICK_SIMPLIFY, *unit.options], code, PATIENCE)
            ) and self._is_done(lambda: self._compile_code([*QUICK_GENERATE, "-o", output, code], directory, PATIENCE)):
                return process.Finished(0, "", "")
            finished = self._compile(unit.text, [*PLAIN_SIMPLIFY], code)
            return finished if finished.status else self._compile_code([*PLAIN_GENERATE, "-o", output, code], directory)

    def _refuse_constructors(self, unit: Unit, path: str) -> None:
        """Refuse an object file with code that runs at loading, where no fault and no endless loop would be caught.

        The optimizer has the last word: it makes constants of more initializers than C++ calls constant expressions.
        """
        with open(path, "rb") as file:
            data = file.read()
        if not any(section in data for section in _SECTIONS_OF_LOADING):
            return
        finished = self._compile(unit.text, ["-fsyntax-only", "-Werror=global-constructors"], None)
        if finished.status:
            raise self._failure(finished, self._log(finished.errors, unit))
        raise CompileError(f"{SOURCE_NAME}: error: code of this source would run when its kernels are loaded\n")

    def _with_lines(self, unit: Unit) -> str:
        """Return the text of a unit in which a debugger finds the user's files and lines."""
        source = _file_to_show(self.source)
        lines = unit.text.split("\n")
        parts = [*lines[: unit.first - 1]]
        expected = ("", 0)
        for number in range(unit.first, unit.last + 1):
            place = self._line_place(number - unit.first + 1)
            if (place.file, place.line) != expected:
                parts.append(f"#line {place.line} {_quoted(source if place.file == SOURCE_NAME else place.file)}")
            parts.append(lines[number - 1])
            expected = place.file, place.line + 1
        return "\n".join([*parts, f'#line {unit.last + 1} "{_UNIT}"', *lines[unit.last :]])

    def _compile_validated(self, unit: Unit, output: str, directory: str) -> None:
        code = os.path.join(directory, "kernel.ll")
        finished = self._compile(unit.text, [*LINES, *unit.options, "-S", "-emit-llvm"], code)
        if finished.status:
            raise self._failure(finished, self._log(finished.errors, unit))

        def locate(file: str, line: int) -> tuple[str, int] | None:
            if os.path.basename(file) != _UNIT or not unit.first <= line <= unit.last:
                return None
            place = self._line_place(line - unit.first + 1)
            return place.file, place.line

        optimized = os.path.join(directory, "optimized.ll")
        self._compile_validated_code([*SINGLE_ACCESSES, "-S", "-emit-llvm", "-o", optimized, code], directory)
        with open(optimized, encoding="utf-8", errors="surrogateescape") as file:
            text = instrumented(file.read(), locate)
        with open(code, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.write(text)
        self._compile_validated_code([*NO_PASSES, "-c", "-o", output, code], directory)

    def _compile_code(self, arguments: list[str], directory: str, seconds: int | None = None) -> process.Finished:
        """Run clang on LLVM's code."""
        flags = compile_flags(self._options.math_mode, self._toolchain.is_zig)
        flags.remove("-std=gnu++17")  # it is no C++ any more
        return process.run([*self._toolchain.compiler, "-x", "ir", *flags, *arguments], directory, seconds=seconds)

    def _compile_validated_code(self, arguments: list[str], directory: str) -> None:
        finished = self._compile_code(arguments, directory)
        if finished.status:
            log = f"{SOURCE_NAME}: error: the code for validation is refused\n{finished.errors}"
            raise self._failure(finished, log)

    def emit(self, kernel: str, constants: Mapping[str | int, tuple[int, bytes]], form: str, output: str) -> None:
        """Write one kernel as "cpp", "asm" or "llvm" instead of a library."""
        unit = self.unit(kernel, constants)
        if form == "cpp":
            with open(output, "w", encoding="utf-8") as file:
                file.write(unit.text)
            return
        arguments = [*unit.options, "-S", "-emit-llvm"] if form == "llvm" else [*unit.options, "-S"]
        finished = self._compile(unit.text, arguments, os.path.abspath(output))
        if finished.status and unit.is_split:
            unit = self.unit(kernel, constants, split=False)
            finished = self._compile(unit.text, arguments, os.path.abspath(output))
        if finished.status:
            raise self._failure(finished, self._log(finished.errors, unit))

    def unit(
        self,
        kernel: str,
        constants: Mapping[str | int, tuple[int, bytes]],
        number: str = "",
        *,
        split: bool = True,
        gangs: bool = False,
    ) -> Unit:
        """Return the C++ of one kernel.

        It is a library of its own, or with a number, which is a suffix of names, a part of one. It does without fibers
        if `split`, and if that can be; clang has to confirm that it can. With `gangs` it is what `gang.ganged` takes.
        """
        entry = self._rewritten.entries.get(kernel)
        if entry is None:
            names = ", ".join(f"'{name}'" for name in list(self._rewritten.entries)[:20]) or "none"
            raise RequestError(f"there is no kernel '{kernel}'; kernels are: {names}")
        self._rewritten.tokens.begin()
        values = self._constant_values(entry, constants)
        texts, pointer, arguments = self._launch(entry)
        is_long = not self._options.debug and self._rewritten.calls.size(entry.kernel.function) > LONG_TOKENS
        name, flags = _quoted(entry.name), self._flags(entry)
        options: tuple[str, ...] = ()
        output = self._split(entry) if split and not is_long else None
        is_split = output is not None
        if output is None:
            output = self._rewritten.output(entry.kernel)
            if flags & _FLAG_FIBERS and not gangs:
                calls, function = self._rewritten.calls, entry.kernel.function
                output = with_meetings(self._rewritten.tokens, calls, function, output)
                options = IN_ORDER if calls.meets_in_simdgroup(function.name) else ()
        else:
            flags, arguments = flags & ~_FLAG_FIBERS, Splitter.expression(arguments)
        tail = f"{texts}\n" if texts else ""
        meets = flags & (_FLAG_FIBERS | _FLAG_VALIDATED) == _FLAG_FIBERS
        meets = meets and not (is_long or self._options.fibers or self._options.debug)
        if gangs:
            flags |= _FLAG_GANGS
            tail += f"MSLC_GANG_THREAD({arguments})\n"
        macro = f"MSLC_KERNEL({number}, " if number else "MSLC_KERNEL_LIBRARY("
        work = entry.kernel.work
        tail += f"{macro}{name}, {flags}, {work}, {_limit(entry)}, {pointer}, {arguments})\n"
        unit = self._unit(values, output, tail, [entry, entry], number or "_only")
        unit.is_split, unit.meets, unit.is_long, unit.options = is_split, meets, is_long, options
        return unit

    def _split(self, entry: Entry) -> list[str] | None:
        """Return the tokens of a kernel that waits for other threads as loops between its barriers, if that can be."""
        flags = self._flags(entry) & (_FLAG_FIBERS | _FLAG_VALIDATED)
        if flags != _FLAG_FIBERS or self._options.fibers or self._options.debug:
            return None
        for strides in (True, False):
            try:
                return Splitter(self._rewritten, entry.kernel, strides=strides).output()
            except (NotSplitError, SourceError, IndexError, RecursionError):  # the latter three: no structure to see
                continue
        return None

    def _flags(self, entry: Entry) -> int:
        if self._options.validate:
            return _FLAG_VALIDATED | _FLAG_FIBERS  # a stack for each thread, so that they can be told apart
        calls, function = self._rewritten.calls, entry.kernel.function
        return (_FLAG_FIBERS if calls.needs_fibers(function) else 0) | (
            _FLAG_BOUNDED if entry.kernel.work or calls.is_bounded(function) else 0
        )

    def _launch(self, entry: Entry) -> tuple[str, str, str]:
        """What the prelude is told of a kernel: a table of texts, its address, and the function with its roles."""
        parameters = entry.kernel.parameters
        roles = "".join(f", mslc::role<{item.role}>" for item in parameters)
        if not parameters:
            return "", "nullptr", f"{entry.expression}{roles}"
        pairs = ", ".join(f"{{{_quoted(item.name)}, {_quoted(item.type_name)}}}" for item in parameters)
        table = f"static constexpr mslc::parameter_text mslc_texts[] = {{{pairs}}};"
        return table, "mslc_texts", f"{entry.expression}{roles}"

    def _unit(
        self, values: Mapping[str, str], output: list[str], tail: str, entries: list[Entry], number: str = "_only"
    ) -> Unit:
        head = f"MSLC_THREADGROUP_MEMORY({number})\n"
        for constant in self._rewritten.constants.values():
            value = values.get(constant.name)
            head += f"#define {constant.macro} {value if value is not None else '{}'}\n"
            head += f"#define {constant.macro}_DEFINED {'true' if value is not None else 'false'}\n"
        head += _INTERNAL
        source = self._rewritten.tokens.rendered(output)
        text = f"{head}{source}\n{_END_INTERNAL}{tail}"
        first = head.count("\n") + 1
        last = first + source.count("\n")
        return Unit(text, output, first, last, last + 1 + _END_INTERNAL.count("\n"), entries)

    def _constant_values(self, entry: Entry, given: Mapping[str | int, tuple[int, bytes]]) -> dict[str, str]:
        """Return the text of each function constant that has a value."""
        constants = self._rewritten.constants
        by_index = {constant.index: constant for constant in constants.values()}
        values: dict[str, str] = {}
        for key, (data_type, data) in given.items():
            constant = constants.get(key) if isinstance(key, str) else by_index.get(key)
            if constant is None:
                raise RequestError(f"the source has no function constant {key!r}")
            values[constant.name] = literal(constant.name, constant.type_name, data_type, data)
        for constant in self._rewritten.used_constants(entry.kernel.function):
            if constant.is_required and constant.name not in values:
                raise RequestError(
                    f"kernel '{entry.name}' needs a value for function constant '{constant.name}' "
                    f"(index {constant.index})"
                )
        return values

    def _link(self, paths: list[str], output: str, directory: str) -> None:
        failure = link(self._toolchain, paths, output, directory)
        if failure:
            raise CompileError(f"{SOURCE_NAME}: error: {failure.rstrip()}\n")

    # ---------------------------------------------------------------- places

    @staticmethod
    def _failure(finished: process.Finished, log: str) -> CompileError:
        """Return the error of a run of clang, which may have died without a word."""
        if not finished.crashed and log:
            return CompileError(log)
        told = "" if finished.crashed else log
        return CompileError(f"{told}{SOURCE_NAME}: error: the compiler died of it: is anything nested very deeply?\n")

    def _log(self, errors: str, unit: Unit) -> str:
        """Clang's log of a unit, told of the source."""
        tokens = self._rewritten.tokens

        def locate(file: str, line: int, column: int) -> Place | None:
            if file != _UNIT or line < unit.first:
                return None
            if line > unit.last:
                number = line - unit.tail
                return self._place(unit.entries[number].offset) if 0 <= number < len(unit.entries) else None
            known = self._line_place(line - unit.first + 1)
            found = tokens.at(unit.output, line - unit.first + 1, column)
            if found is None:
                return known
            place = self._place(tokens.start[found[0]], found[1])
            return place if (place.file, place.line) == (known.file, known.line) else known

        return translated(errors, locate, self._sources)

    def _locate_before(self, file: str, line: int, column: int) -> Place | None:
        """Return a place in the log of the preprocessor, which has seen the user's own files."""
        return None if self._prelude.owns(file) else Place(file, line, column)

    def _locate_plain(self, file: str, line: int, column: int) -> Place | None:
        """Return a place in the log of a source that was not rewritten."""
        if file != _UNIT:
            return None
        lines = self._text.text.split("\n")
        within = len(lines[line - 1].encode()[: column - 1].decode(errors="ignore"))
        return self._place(sum(len(text) + 1 for text in lines[: line - 1]) + within)

    def _line_place(self, line: int) -> Place:
        """Return the user's place of a line of the preprocessed text."""
        origins = self._text.origins
        file, number = origins[min(line, len(origins)) - 1]
        return Place(file, number, 0)

    def _place(self, offset: int, shift: int = 0) -> Place:
        """Return the user's place of what stands at an offset of the preprocessed text, `shift` characters further."""
        text = self._text.text
        start = text.rfind("\n", 0, offset) + 1
        place = self._line_place(text.count("\n", 0, offset) + 1)
        if self._text.is_verbatim:
            place.column = offset - start + 1 + shift
            return place
        # The preprocessor keeps the lines, not the columns: take the token of the same text and number on that line.
        stop = text.find("\n", offset)
        word = _WORD.match(text, offset)
        line = self._sources.line(place.file, place.line)
        if word is None or line is None:
            return place
        pattern = re.compile(rf"\b{word.group()}\b" if word.group()[0].isidentifier() else re.escape(word.group()))
        places = [match.start() for match in pattern.finditer(line)]
        before = len(pattern.findall(text[start:offset]))
        same = len(pattern.findall(text[start : stop if stop >= 0 else len(text)]))
        if before < len(places) == same:  # an offset inside a word finds no place of its own
            place.column = places[before] + 1 + shift
        return place


class _Workspace:
    """A directory that is gone afterwards."""

    def __enter__(self) -> str:
        self._path = tempfile.mkdtemp(prefix="mslc-")
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _file_to_show(source: str) -> str:
    """Return the path of a file of the name that messages know the source by, with its text: for debuggers to show."""
    folder = os.path.join(tempfile.gettempdir(), f"mpscffi-debug-{os.getuid()}", digest(source.encode()).hex()[:16])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, SOURCE_NAME)
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(source)
    return path


def _dependencies(text: str) -> list[str]:
    """Return the files that a makefile rule names behind its colon."""
    _, _, rest = text.partition(": ")
    rest = rest.replace("\\\n", " ")
    names = re.findall(r"(?:\\.|[^\s\\])+", rest)
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in names]


def _body_check(number: int, entry: Entry) -> str:
    return f"[[maybe_unused]] static auto mslc_use_{number} = {entry.expression};\n"


def _signature_check(number: int, entry: Entry) -> str:
    return f"using mslc_use_{number} = decltype({entry.expression});\n"


def _limit(entry: Entry) -> str:
    return f"({entry.max_threads or _MAX_THREADS})"  # in parentheses, as it may hold commas


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
