"""``mpscffi cache``: what is kept of compiled kernels."""

from __future__ import annotations

import argparse
from typing import Any

from mpscffi.commands.options import UsageError, counted
from mpscffi.memory.sizes import readable

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the subcommand to a parser."""
    parser = commands.add_parser(
        "cache",
        help="show or clear what is kept of compiled kernels",
        description="Tells what is kept on disk, and where.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--clear", action="store_true", help="remove all of it")
    what.add_argument(
        "--trim", metavar="BYTES", type=int, help="remove what was not used for longest, down to this size"
    )
    parser.set_defaults(command=cache)


def cache(given: argparse.Namespace) -> int:
    """Do it."""
    from mpscffi import shader_cache

    before = shader_cache.stats()
    if given.clear:
        shader_cache.clear()
    elif given.trim is not None:
        if given.trim < 0:
            raise UsageError(f"--trim: got {given.trim}, expected 0 or more bytes")
        shader_cache.set_limit(given.trim)
        shader_cache.set_limit(None)
    stats = shader_cache.stats()
    if given.clear or given.trim is not None:
        removed = counted(before.files - stats.files, "file")
        print(f"removed {removed}, {readable(before.size - stats.size)}")
    print(
        f"{stats.directory or 'nowhere'}: {counted(stats.files, 'file')}, {readable(stats.size)} of at most "
        f"{readable(stats.limit)}"
    )
    return 0
