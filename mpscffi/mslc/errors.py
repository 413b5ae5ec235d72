"""What the compiler raises."""

from __future__ import annotations


class CompileError(Exception):
    """The source does not compile.

    Parameters
    ----------
    log : str
        The whole log, which speaks of the user's files and lines.
    """

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


class CompileTimeout(CompileError):
    """The compiler was stopped because it took too long."""


class CompilerMissing(Exception):
    """There is no usable compiler; the text says what to install."""


class RequestError(Exception):
    """What was asked for cannot be: an unknown kernel, a function constant without a value, a bad option."""
