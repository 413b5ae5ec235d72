"""Limits of the memory that an allocator takes: the watermarks and the size of its cache."""

from __future__ import annotations

import math
from typing import NamedTuple

from mpscffi.config import DEFAULT_LOW_RATIO, MAX_RATIO
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from mpscffi.memory.allocator import Allocator


class MemoryLimits(NamedTuple):
    """The limits in force, as :func:`mpscffi.memory_limits` returns them.

    Attributes
    ----------
    high_ratio, low_ratio : float
        Shares of the recommended working set; 0.0 for no limit.
    limit : int or None
        The most that the driver may hold for this process, in bytes; None for no limit.
    low_limit : int or None
        From how many bytes on cached memory is given back before more is taken; None for never.
    cache_limit : int or None
        The most that is kept without being in use, in bytes; None for no limit.
    """

    high_ratio: float
    low_ratio: float
    limit: int | None
    low_limit: int | None
    cache_limit: int | None


def check_ratio(value: Any, function: str) -> float:
    """Return a ratio that a caller gave, or raise what is wrong with it."""
    if not isinstance(value, float):
        is_ratio = type(value) is int and 0 <= value <= MAX_RATIO
        raise ArgumentTypeError(
            f"{function}: got {value!r} of type {type(value).__name__}, expected a float in the range 0.0 to "
            f"{MAX_RATIO}" + (f": write {float(value)}" if is_ratio else "")
        )
    if math.isnan(value) or not 0 <= value <= MAX_RATIO:
        raise InvalidArgumentError(f"{function}: got {value}, expected a value in the range 0 to {MAX_RATIO:g}")
    return float(value)


def limits(allocator: Allocator) -> MemoryLimits:
    """Return what :func:`mpscffi.memory_limits` does."""
    budget = allocator.budget
    return MemoryLimits(
        budget.high_ratio, budget.low_ratio_in_force, budget.limit, budget.low_limit, budget.cache_limit
    )


def check_low_ratio(value: Any, high: float) -> float:
    """Return a low ratio that a caller gave; None for the default."""
    if value is None:
        return DEFAULT_LOW_RATIO
    low = check_ratio(value, "set_low_watermark_ratio")
    if high and low > high:
        raise InvalidArgumentError(
            f"set_low_watermark_ratio: got {low}, which is above the high ratio, {high}: lower it, or raise the "
            "high one with set_per_process_memory_fraction"
        )
    return low


def check_cache_limit(value: Any) -> int | None:
    """Return a cache limit that a caller gave."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"set_cache_limit: got {type(value).__name__}, expected bytes as an int, or None")
    limit = int(value.__index__())
    if limit < 0:
        raise InvalidArgumentError(f"set_cache_limit: got {limit}, expected 0 bytes or more, or None for no limit")
    return limit
