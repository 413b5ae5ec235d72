"""What a rewritten source offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .provider import Constant, Listing
from .values import data_type

if TYPE_CHECKING:
    from .rewrite import Rewriter


def listing_of(rewritten: Rewriter) -> Listing:
    """Return the kernels, in the order of the source, and the function constants."""
    entries = sorted(rewritten.entries.values(), key=lambda entry: entry.offset)
    constants = [
        Constant(constant.index, data_type(constant.type_name), constant.is_required, constant.name)
        for constant in rewritten.constants.values()
    ]
    return Listing([entry.name for entry in entries], constants)
