"""Kernels with barriers, without fibers: loops over the threads of a threadgroup between one barrier and the next.

The statements of a kernel's outermost block, and of the loops and branches that hold a barrier or SIMD-group function,
are run once for the threadgroup; what stands between two of them is a region, which is run for each thread in turn. A
variable is a scalar of the threadgroup if it provably has one value for all threads, a local variable of its region if
nothing behind the region mentions it, and an array over the threads else.

Two things make that right. Control around barriers is uniform: made of values that all threads share. And clang is the
judge of what tokens cannot tell: inside regions, scalars of the threadgroup are const, so that a region which changes
one, by whatever way, does not compile. Whatever is not understood here, or not compiled by clang, runs as fibers.
"""

from .code import NotSplitError
from .writer import Splitter

__all__ = ["NotSplitError", "Splitter"]
