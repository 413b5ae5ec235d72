"""tinygrad's METAL device over mpscffi: what its `tinygrad.runtime.ops_metal` is over Apple's frameworks.

Put into ``sys.modules`` under that name, it makes tinygrad schedule, render and launch for Metal as on a Mac, while
memory, compilation and dispatch are this package's.
"""

from __future__ import annotations

import numpy as np
from tinygrad.device import Allocator, BufferSpec, Compiled, Compiler, Program, TinyELF
from tinygrad.renderer.cstyle import MetalRenderer

import mpscffi

_DTYPES = {"float": "f4", "half": "f2", "bfloat": "u2", "bool": "?", "char": "i1", "uchar": "u1", "short": "i2"}
_DTYPES |= {"ushort": "u2", "int": "i4", "uint": "u4", "long": "i8", "ulong": "u8"}


class MetalCompiler(Compiler):
    """Leaves the source as it is: the device compiles it when the program is loaded."""


class MetalProgram(Program["MetalDevice"]):
    """A kernel that tinygrad has rendered."""

    def __init__(self, dev: MetalDevice, obj: TinyELF) -> None:
        self.device = dev
        self.source = obj.lib.decode()
        # tinygrad compiles without fast math.
        self.kernel = getattr(mpscffi.compile_shader(self.source, math_mode="safe"), obj.name)

    def __call__(
        self,
        *buffers: mpscffi.Array,
        global_size: tuple[int, int, int] = (1, 1, 1),
        local_size: tuple[int, int, int] = (1, 1, 1),
        vals: tuple[int, ...] = (),
        wait: bool = False,
        **_: object,
    ) -> float | None:
        # tinygrad's memory has no types; a kernel takes arrays of its own.
        typed = [buffer.view(_DTYPES[a.data_type.rstrip("234")]) for buffer, a in zip(buffers, self.kernel.arguments)]  # noqa: B905
        self.kernel(*typed, *vals, threadgroups=global_size, group_size=local_size)
        self.device.launched.append(self.source)
        if wait:
            mpscffi.synchronize()
        return 0.0 if wait else None


class MetalAllocator(Allocator["MetalDevice"]):
    """Buffers are arrays of bytes. They are given back by forgetting them, also while kernels still use them."""

    def _alloc(self, size: int, options: BufferSpec) -> mpscffi.Array:
        return mpscffi.empty(size, dtype="uint8")

    def _copyin(self, dest: mpscffi.Array, src: memoryview) -> None:
        dest.numpy()[: src.nbytes] = np.frombuffer(src, np.uint8)

    def _copyout(self, dest: memoryview, src: mpscffi.Array) -> None:
        np.frombuffer(dest, np.uint8)[:] = src.numpy()[: dest.nbytes]

    def _offset(self, buf: mpscffi.Array, size: int, offset: int) -> mpscffi.Array:
        return buf[offset : offset + size]


class MetalDevice(Compiled):
    """The current device of mpscffi, as a GPU of the Apple 9 family to tinygrad: it has simdgroup matrices."""

    def __init__(self, device: str) -> None:
        #: Sources of the kernels launched, in order.
        self.launched: list[str] = []
        super().__init__(device, MetalAllocator(self), [MetalRenderer], MetalProgram, arch="Apple9")

    def synchronize(self) -> None:
        mpscffi.synchronize()
