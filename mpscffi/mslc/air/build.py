"""Bitcode in, kernel library out: the steps that clang and the linker do, each in a process of its own.

Bitcode from who knows where can make LLVM abort, run on without end, or fill the memory. So these processes have
limits, and how they end is the only thing that is believed of them.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from .. import process
from ..errors import CompileError
from ..gang import NAMED_VALUES, SIMPLIFY, NotGangedError, ganged
from ..instrument import NO_PASSES, SINGLE_ACCESSES, instrumented
from ..linking import link
from ..target import LONG_LINES, PATIENCE, QUICK_GENERATE, QUICK_SIMPLIFY, compile_flags
from .entry import CONSTANT_BYTES, GANG_RUNNER, THREAD_FUNCTION
from .lines import place
from .translate import translate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..cache import Cache
    from ..toolchain import Toolchain

_HERE = os.path.dirname(os.path.abspath(__file__))
_INCLUDE_DIR = os.path.join(os.path.dirname(_HERE), "include")
_PRINT_SECONDS = 10
_COMPILE_SECONDS = 120


class Builder:
    """Compiles precompiled kernels for this machine.

    Parameters
    ----------
    toolchain : Toolchain
    cache : Cache
        Where the compiled form of intrinsics.cpp is kept.
    fibers : bool
        Whether kernels whose threads meet are run as fibers, each thread one.
    """

    def __init__(self, toolchain: Toolchain, cache: Cache, fibers: bool = False) -> None:
        self._toolchain = toolchain
        self._fibers = fibers
        self._cache = cache
        # The math mode of the source is in the bitcode, instruction by instruction.
        self._flags = compile_flags("safe", toolchain.is_zig)

    def build(
        self,
        bitcode: bytes,
        kernel: str,
        constants: Mapping[str | int, tuple[int, bytes]],
        output: str,
        *,
        validate: bool = False,
    ) -> None:
        """Compile a kernel to a kernel library.

        Parameters
        ----------
        bitcode : bytes
            The module that holds the kernel.
        kernel : str
        constants : mapping of str or int to (int, bytes)
            Values of function constants, by name or index: data type, and the value as laid out in memory.
        output : str
            Path of the library.
        validate : bool
            Check accesses to memory at run time.

        Raises
        ------
        CompileError
        CompilerMissing
        RequestError
            If the value of a function constant is missing or of another type.
        """
        with tempfile.TemporaryDirectory(prefix="mslc-") as directory:
            air = self.printed(bitcode, kernel, directory)
            if validate:
                text = translate(air, kernel, constants, validate=True)
                self._compile_validated(text, kernel, "kernel.o", directory)
            else:
                self._compile_translated(air, kernel, constants, ["-c"], "kernel.o", directory)
            self._link(kernel, output, directory)

    def emit(
        self,
        bitcode: bytes,
        kernel: str,
        constants: Mapping[str | int, tuple[int, bytes]],
        form: str,
        output: str,
    ) -> None:
        """Write a kernel as "air" (as it comes), "llvm" (as it is optimised) or "asm" instead of a library."""
        with tempfile.TemporaryDirectory(prefix="mslc-") as directory:
            text = self.printed(bitcode, kernel, directory)
            if form == "air":
                with open(output, "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(text)
                return
            arguments = ["-S", "-emit-llvm"] if form == "llvm" else ["-S"]
            self._compile_translated(text, kernel, constants, arguments, os.path.abspath(output), directory)

    def _compile_translated(
        self,
        air: str,
        kernel: str,
        constants: Mapping[str | int, tuple[int, bytes]],
        arguments: list[str],
        output: str,
        directory: str,
    ) -> None:
        """Compile a kernel: SIMD-groups as loops over their lanes, if that can be, fibers else."""
        text = translate(air, kernel, constants)
        is_long = text.count("\n") > LONG_LINES
        if (
            not self._fibers
            and not is_long
            and self._compile_gang(air, kernel, constants, arguments, output, directory)
        ):
            return
        try:
            if not is_long:
                self._compile(text, kernel, arguments, output, directory, PATIENCE)
                return
        except CompileError:
            pass  # the quick way has the last word
        if arguments != ["-c"]:
            self._compile(text, kernel, arguments, output, directory)
            return
        self._compile(text, kernel, [*QUICK_SIMPLIFY], "simple.bc", directory)
        command = [*self._toolchain.compiler, *self._flags, *QUICK_GENERATE, "-o", output, "simple.bc"]
        self._run(command, kernel, directory)

    def _compile_gang(
        self,
        air: str,
        kernel: str,
        constants: Mapping[str | int, tuple[int, bytes]],
        arguments: list[str],
        output: str,
        directory: str,
    ) -> bool:
        """Compile a kernel whose SIMD-groups are loops over their lanes; whether that can be, in good time."""
        translated = translate(air, kernel, constants, gangs=True)
        if f"@{GANG_RUNNER}" not in translated:
            return False
        try:
            text = self._ganged(translated, kernel, directory)
            self._compile(text, kernel, arguments, output, directory, PATIENCE)
        except (CompileError, NotGangedError):
            return False
        return True

    def _ganged(self, translated: str, kernel: str, directory: str) -> str:
        """Return a kernel's code made of gangs."""
        self._compile(translated, kernel, [*SIMPLIFY, "-S", "-emit-llvm"], "thread.ll", directory, PATIENCE)
        with open(os.path.join(directory, "thread.ll"), encoding="utf-8", errors="surrogateescape") as file:
            return ganged(file.read(), THREAD_FUNCTION, "mslc_gang")

    def printed(self, bitcode: bytes, kernel: str, directory: str) -> str:
        """Return bitcode as LLVM's text.

        Raises
        ------
        CompileError
            If LLVM cannot read it.
        """
        with open(os.path.join(directory, "kernel.bc"), "wb") as file:
            file.write(bitcode)
        # The driver tells bitcode by the suffix: not every one of them takes "-x ir".
        arguments = [
            "-w",
            "-fno-crash-diagnostics",
            "-S",
            "-emit-llvm",
            "-Xclang",
            "-disable-llvm-passes",
            "-o",
            "air.ll",
            "kernel.bc",
        ]
        finished = process.run([*self._toolchain.compiler, *arguments], directory, seconds=_PRINT_SECONDS)
        if finished.status:
            raise CompileError(f"kernel '{kernel}': its bitcode cannot be read: {_reason(finished)}\n")
        with open(os.path.join(directory, "air.ll"), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    def _compile(
        self,
        text: str,
        kernel: str,
        arguments: list[str],
        output: str,
        directory: str,
        seconds: int = _COMPILE_SECONDS,
    ) -> None:
        with open(os.path.join(directory, "kernel.ll"), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        self._place_support("intrinsics.cpp", ["-c", "-emit-llvm", *NO_PASSES], "intrinsics.bc", directory)
        link = ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", "intrinsics.bc"]
        # Only what the bitcode itself calls one operation is contracted.
        command = [*self._toolchain.compiler, *self._flags, "-ffp-contract=on", *link, *arguments, "-o", output]
        self._run([*command, "kernel.ll"], kernel, directory, seconds)

    @staticmethod
    def _run(command: list[str], kernel: str, directory: str, seconds: int = _COMPILE_SECONDS) -> None:
        finished = process.run(command, directory, seconds=seconds)
        if finished.status:
            raise CompileError(f"kernel '{kernel}': its bitcode cannot be compiled: {_reason(finished)}\n")

    def _compile_validated(self, text: str, kernel: str, output: str, directory: str) -> None:
        """Compile a module together with what it calls, each access to memory checked."""
        arguments = [*SINGLE_ACCESSES, NAMED_VALUES, "-S", "-emit-llvm"]
        self._compile(text, kernel, arguments, "whole.ll", directory)
        with open(os.path.join(directory, "whole.ll"), encoding="utf-8", errors="surrogateescape") as file:
            checked = instrumented(file.read(), place)
        with open(os.path.join(directory, "kernel.ll"), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(checked)
        command = [*self._toolchain.compiler, *self._flags, "-ffp-contract=on", *NO_PASSES, "-c", "-o", output]
        finished = process.run([*command, "kernel.ll"], directory, seconds=_COMPILE_SECONDS)
        if finished.status:
            raise CompileError(f"kernel '{kernel}': its code for validation is refused: {_reason(finished)}\n")

    def _place_support(self, source: str, arguments: list[str], name: str, directory: str) -> None:
        """Put the compiled form of a file of this package's into a directory."""
        key = self._cache.key("air", source, *self._flags)
        suffix = os.path.splitext(name)[1]
        data = self._cache.read(key, suffix)
        path = os.path.join(directory, name)
        if data is None:
            options = ["-I", _INCLUDE_DIR, f"-DMSLC_AIR_CONSTANT_BYTES={CONSTANT_BYTES}"]
            command = [*self._toolchain.compiler, "-x", "c++", *self._flags, *options, *arguments, "-o", path]
            finished = process.run([*command, os.path.join(_HERE, source)], directory)
            if finished.status:
                raise CompileError(f"'{command[0]}' cannot compile {source}:\n{finished.errors}")
            with open(path, "rb") as file:
                self._cache.store_bytes(key, suffix, file.read())
            return
        with open(path, "wb") as file:
            file.write(data)

    def _link(self, kernel: str, output: str, directory: str) -> None:
        self._place_support("runtime.cpp", ["-c"], "runtime.o", directory)
        problem = link(self._toolchain, ["kernel.o", "runtime.o"], output, directory)
        if problem:
            raise CompileError(f"kernel '{kernel}': {problem}\n")


def _reason(finished: process.Finished) -> str:
    """Why a process failed: its first error, or how it died."""
    for line in finished.errors.splitlines():
        _, mark, text = line.partition("error: ")
        if mark:
            return text.strip()
    if finished.status >= 128:
        return "LLVM gave up on it"
    return finished.errors.strip().partition("\n")[0] or f"the compiler's exit status is {finished.status}"
