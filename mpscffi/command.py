"""What became of command buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpscffi._ffi import ffi

__all__ = ["CommandInfo"]


class CommandInfo(NamedTuple):
    """What became of a command buffer: the work between two commits of a stream.

    Attributes
    ----------
    serial : int
        1 for a stream's first command buffer, then counting up.
    start, end : int
        When the device began and finished it, in nanoseconds of its clock; 0 before.
    failed : bool
        Whether one of its commands failed.
    scheduled : bool
        Whether the device has taken it.
    message : str
        What failed; known to handlers only.
    """

    serial: int
    start: int
    end: int
    failed: bool
    scheduled: bool
    message: str

    @classmethod
    def from_c(cls, info: Any) -> CommandInfo:
        """Read a ``mps_command_info``."""
        message = ffi.string(info.message).decode("utf-8", "replace") if info.message else ""
        return cls(info.serial, info.start, info.end, info.status != 0, bool(info.scheduled), message)
