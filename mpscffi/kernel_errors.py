"""What kernels report by themselves: messages in a buffer of each stream, as in PyTorch's ``c10/metal/error.h``."""

from __future__ import annotations

import numpy as np

from mpscffi.array import Array
from mpscffi.creation import zeros

__all__ = ["KernelErrors"]

#: Messages that are kept; more are counted only.
_CAPACITY = 30
_MESSAGE = np.dtype(
    {
        "names": ["file", "function", "message", "line"],
        "formats": ["S128", "S128", "S250", "u4"],
        "offsets": [0, 128, 256, 508],
        "itemsize": 512,
    }
)
#: A counter, which kernels raise atomically, and the messages.
_BYTES = 4 + _CAPACITY * _MESSAGE.itemsize


class KernelErrors:
    """The messages of one stream's kernels.

    Attributes
    ----------
    array : Array
        What a kernel gets at ``error_buf_idx``.
    """

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: Array = zeros(_BYTES, dtype=np.uint8)

    def take(self) -> str | None:
        """Return the first message since the last call, and how many there were, or None. The stream is idle."""
        memory = self.array._host()  # numpy() would wait for the stream, which asks here
        count = memory[:4].view(np.uint32)
        total = int(count[0])
        if total == 0:
            return None
        count[0] = 0
        first = np.frombuffer(memory, _MESSAGE, 1, 4)[0]
        message, file, function = (first[name].decode("utf-8", "replace") for name in ("message", "file", "function"))
        more = f" (and {total - 1} more)" if total > 1 else ""
        return f"{file}:{int(first['line'])}, in {function}: {message}{more}"
