"""What is done when there is no room for an allocation, and what is said when that does not help."""

from __future__ import annotations

import gc
import warnings

from mpscffi.errors import OutOfMemoryError
from mpscffi.memory.sizes import readable

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from mpscffi.memory.allocator import Allocator
    from mpscffi.memory.block import HeapBlock
    from mpscffi.memory.pool import SizeClass

#: How long queued work is waited for, so that it gives up its memory.
WAIT_SECONDS = 10.0


def make_room(allocator: Allocator, size: int, size_class: SizeClass, host_bound: bool) -> HeapBlock:
    """Give out a block once one of the steps has got memory back."""
    failure: Exception | None = None
    for step in STEPS:
        allocator.tell(step.__name__, None, size)
        try:
            step(allocator, size_class)
        except Exception as error:  # a callback's: the caller is to hear of the memory first
            failure = failure or error
        block = allocator.attempt(size_class, host_bound)
        if block is not None:
            return block
    allocator.tally.failures += 1
    allocator.tell("out_of_memory", None, size)
    raise OutOfMemoryError(_explain(allocator, size_class)) from failure


def empty_cache(allocator: Allocator) -> None:
    """Give all cached memory back to the driver, after the work that uses it if there is any."""
    allocator.source.commit()
    allocator.tell("empty_cache", None, 0)
    if allocator.release_cached():
        allocator.source.wait(WAIT_SECONDS)
        allocator.release_cached()


# ---- the steps


def run_callbacks(allocator: Allocator, size_class: SizeClass) -> None:
    """Call those who want to hear of it, and may drop arrays."""
    failures = []
    for callback in list(allocator.failure_callbacks):
        try:
            callback(size_class.size)
        except Exception as error:
            failures.append(error)
    for failure in failures:
        from mpscffi._warning import outside

        warnings.warn(f"a callback for failed allocations raised {failure!r}", RuntimeWarning, stacklevel=outside())
    if failures:
        raise failures[0]


def release_pool(allocator: Allocator, size_class: SizeClass) -> None:
    """Give free heaps of the pool back, oldest first."""
    allocator.release_from(size_class.pool, size_class.size)


def release_all(allocator: Allocator, size_class: SizeClass) -> None:
    """Wait for queued work, and give all free heaps back."""
    allocator.source.wait(WAIT_SECONDS)
    allocator.release_cached()


def collect_garbage(allocator: Allocator, size_class: SizeClass) -> None:
    """The same after a collection of arrays in reference cycles."""
    gc.collect()
    allocator.source.wait(WAIT_SECONDS)
    allocator.release_cached()


#: What is done, one after the other, until there is room. Waiting is done without the allocator's lock.
STEPS = (run_callbacks, release_pool, release_all, collect_garbage)


def _explain(allocator: Allocator, size_class: SizeClass) -> str:
    size = size_class.size
    budget = allocator.budget
    total = allocator.source.allocated()
    kind = "private" if size_class.pool.is_private else "shared"
    text = (
        f"out of memory: {size} bytes ({readable(size)}) of {kind} memory asked for; in arrays "
        f"{readable(allocator.counters.current)}, cached {readable(max(0, budget.cached))}, "
        f"other allocations {readable(max(0, total - allocator.reserved.current))}"
    )
    if budget.limit is not None:
        text += (
            f", limit {readable(budget.limit)} ({budget.high_ratio} of the recommended "
            f"{readable(allocator.source.recommended)}). Raise the limit with "
            "mpscffi.set_per_process_memory_fraction, or set PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 before the start "
            "for none, which may bring the system down"
        )
    text += ". See mpscffi.memory_summary() for where the memory is"
    return f"{text}. {allocator.reason}" if allocator.reason else text
