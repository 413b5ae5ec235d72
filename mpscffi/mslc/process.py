"""Runs the compiler in a process of its own, which is gone when the call returns."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

from .errors import CompileError, CompilerMissing, CompileTimeout, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULT_TIMEOUT = 300.0
_MEMORY_KIB = 8 << 20
_BLOCK = 512  # what a shell counts sizes of files in
_MOST_OUTPUT = 256 << 20
# What a bad source makes of a compiler ends with these limits, and if this process is killed, so is all that it has
# started: then the pipe that is standard input comes to its end, and the watcher ends its process group. A dash and a
# bash alike; a limit that is lower already stays.
_SCRIPT = """
exec 3<&0 </dev/null
{ ulimit -c 0; ulimit -v "$1"; ulimit -f "$2"; ulimit -t "$3"; } 2>/dev/null
shift 3
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
"$@" 3<&-
status=$?
kill $! 2>/dev/null
wait $! 2>/dev/null
exit $status
"""


class Finished(NamedTuple):
    """What a process left: its exit status, 128 and more for a signal, and what it wrote as text."""

    status: int
    output: str
    errors: str

    @property
    def crashed(self) -> bool:
        """Whether it is clang that has told of a fault of its own."""
        return "PLEASE submit a bug report" in self.errors or self.status >= 128


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


def took_too_long(limit: float) -> CompileTimeout:
    """Return the error of a compile that does not end."""
    return CompileTimeout(
        f"the compiler took longer than {limit:g} seconds and was stopped (MPSCFFI_COMPILE_TIMEOUT)\n"
    )


def run(command: list[str], directory: str, *, seconds: int | None = None, most_output: int = _MOST_OUTPUT) -> Finished:
    """Run a command to its end.

    Parameters
    ----------
    command : list of str
    directory : str
        Its working directory.
    seconds : int, optional
        Of CPU time that it may take; by default only the time-out counts.
    most_output : int
        Bytes that each of its outputs and files may have.

    Raises
    ------
    CompilerMissing
        If it cannot be started.
    CompileError
        If it takes longer than the time-out, and is killed then, children included; if it writes too much.
    """
    limit = timeout()
    if not os.access(command[0], os.X_OK):
        raise CompilerMissing(f"cannot run '{command[0]}': it is no program")
    limits = [str(_MEMORY_KIB), str(most_output // _BLOCK), str(seconds) if seconds is not None else "unlimited"]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with _watched(["/bin/sh", "-c", _SCRIPT, "sh", *limits, *command], directory, output, errors) as process:
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                raise took_too_long(limit) from None
        if process.returncode == 128 + signal.SIGXFSZ:
            raise CompileError(f"the compiler wrote more than {most_output >> 20} MiB and was stopped\n")
        return Finished(process.returncode, _text(output), _text(errors))


@contextlib.contextmanager
def _watched(
    command: list[str], directory: str, output: IO[bytes], errors: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose standard input ends when this process does, and end it afterwards."""
    # A language or a colour setting of the user must not change what the diagnostics look like.
    environment = {**os.environ, "LC_ALL": "C", "NO_COLOR": "1"}
    # What is preloaded is meant for this program; a sanitizer's runtime alone is more than the limit of memory.
    environment.pop("LD_PRELOAD", None)
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise CompilerMissing(f"cannot run '{command[0]}': {error.strerror}") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
