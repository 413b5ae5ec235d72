"""Tables of text."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines with columns: the first one to the left, and others of text, numbers to the right."""
    # A name may have line breaks and control characters: it must not break the table.
    printable = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *printable, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, ["-" * width for width in widths], *printable]
    ]
    return "\n".join(lines)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
