"""Runs the compiler in a process of its own, which is gone when the call returns."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import NamedTuple

from .errors import CompileError, CompilerMissing, RequestError

_DEFAULT_TIMEOUT = 300.0


class Finished(NamedTuple):
    """What a process left: its exit status, and what it wrote as text."""

    status: int
    output: str
    errors: str


def timeout() -> float:
    """Seconds that one run of the compiler may take: MPSCFFI_COMPILE_TIMEOUT."""
    text = os.environ.get("MPSCFFI_COMPILE_TIMEOUT", "").strip()
    if not text:
        return _DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e6:
        raise RequestError(f"MPSCFFI_COMPILE_TIMEOUT must be a number of seconds above 0, not '{text}'")
    return seconds


def run(command: list[str], directory: str) -> Finished:
    """Run a command to its end.

    Parameters
    ----------
    command : list of str
    directory : str
        Its working directory.

    Raises
    ------
    CompilerMissing
        If it cannot be started.
    CompileError
        If it takes longer than the time-out; it is killed then, children included.
    """
    limit = timeout()
    # A language or a colour setting of the user must not change what the diagnostics look like.
    environment = {**os.environ, "LC_ALL": "C", "NO_COLOR": "1"}
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise CompilerMissing(f"cannot run '{command[0]}': {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"the compiler took longer than {limit:g} seconds and was stopped (MPSCFFI_COMPILE_TIMEOUT)\n"
        ) from None
    finally:
        if process.poll() is None:
            _kill(process)
    return Finished(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
