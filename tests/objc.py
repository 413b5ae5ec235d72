"""Messages to Objective-C objects and Metal buffers of our own making, as another program on a Mac has them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import mpscffi
from mpscffi._ffi import check, ffi, lib

SHARED = 0
PRIVATE = 2 << 4


def _runtime() -> ctypes.CDLL:
    # On Linux, the one that the stand-in is built on.
    return ctypes.CDLL("/usr/lib/libobjc.A.dylib" if sys.platform == "darwin" else "libobjc.so.4")


def send(receiver: int, selector: str, *arguments: int, result: Any = ctypes.c_void_p) -> Any:
    """Send a message whose arguments are as wide as pointers."""
    runtime = _runtime()
    runtime.sel_registerName.restype = ctypes.c_void_p
    chosen = ctypes.c_void_p(runtime.sel_registerName(selector.encode()))
    if sys.platform == "darwin":
        method = ctypes.cast(runtime.objc_msgSend, ctypes.c_void_p).value
    else:
        runtime.objc_msg_lookup.restype = ctypes.c_void_p
        method = runtime.objc_msg_lookup(ctypes.c_void_p(receiver), chosen)
    kinds = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_size_t] * len(arguments)]
    return ctypes.CFUNCTYPE(result, *kinds)(method)(receiver, chosen, *arguments)


def gpu(device: mpscffi.Device) -> int:
    """Return the ``id<MTLDevice>``."""
    out = ffi.new("void **")
    check(lib.mps_device_native(device.handle, out))
    return int(ffi.cast("uintptr_t", out[0]))


class MetalBuffer:
    """An ``id<MTLBuffer>`` that this library has not made.

    Attributes
    ----------
    pointer : int
        The object.
    memory : numpy.ndarray
        Its bytes, if its storage is shared.
    tensors : list
        What is kept as long as it.
    """

    def __init__(self, device: mpscffi.Device, length: int, options: int = SHARED) -> None:
        self.pointer: int = send(gpu(device), "newBufferWithLength:options:", length, options)
        self.tensors: list[object] = []
        self.memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        if options == SHARED:
            contents = send(self.pointer, "contents")
            self.memory = np.frombuffer((ctypes.c_char * length).from_address(contents), np.uint8)

    @property
    def references(self) -> int:
        """How often it is retained."""
        return int(send(self.pointer, "retainCount", result=ctypes.c_size_t))

    def release(self) -> None:
        """Give up the maker's own reference."""
        send(self.pointer, "release", result=None)
