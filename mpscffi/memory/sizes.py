"""How much memory a request takes: rounding, and the tiers of heaps."""

from __future__ import annotations

MIB = 1 << 20

#: Up to this size blocks are cut from the heaps for small ones.
MAX_SMALL = MIB
SMALL_HEAP = 8 * MIB
#: From here on blocks are cut from the largest heaps.
MIN_LARGE = 10 * MIB
LARGE_HEAP = 32 * MIB
XLARGE_HEAP = 1024 * MIB
#: Heaps for one block are multiples of this.
ROUND_LARGE = 2 * MIB
#: Up to this size, what the CPU is going to write is a scalar.
MAX_SCALAR = 8


def round_up(size: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `size`."""
    return -(-size // step) * step


def tier(size: int, pressure: bool = False) -> int:
    """Return the size of the heap that a block is cut from.

    Parameters
    ----------
    size : int
        The block's, rounded.
    pressure : bool
        Whether memory is scarce, so that no more than needed is taken for large blocks.
    """
    if size <= MAX_SMALL:
        return SMALL_HEAP
    if size < MIN_LARGE:
        return LARGE_HEAP
    if size < XLARGE_HEAP // 2 and not pressure:
        return XLARGE_HEAP
    return round_up(size, ROUND_LARGE)


def rounded_size(size: int, page: int, longest: int) -> int:
    """Return the size of the block for a request.

    Above 1 MiB, growing requests come to the same size for a while, at a waste of at most 1/32.

    Parameters
    ----------
    size : int
        Bytes asked for, as the device aligns them.
    page : int
        The device's page size, which the steps are multiples of.
    longest : int
        The device's largest buffer, which rounding does not reach.
    """
    if size <= MAX_SMALL:
        return size
    rounded = round_up(size, max((1 << (size.bit_length() - 1)) // 32, page))
    same_tier = (size < MIN_LARGE) == (rounded < MIN_LARGE) and (size < XLARGE_HEAP // 2) == (
        rounded < XLARGE_HEAP // 2
    )
    return rounded if same_tier and rounded < longest else size


def readable(size: int) -> str:
    """Return a size for people, as "1.50 GiB"."""
    if size <= 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.2f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
