"""Write ``include/mslc/swizzle.h``: the names of all swizzles of a vector, as lists for macros.

Run it after a change: ``python -m mpscffi.mslc.generate_swizzles``. The result is kept in the repository, so that
nobody needs this script to build or to use the package.
"""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

TARGET = Path(__file__).parent / "include" / "mslc" / "swizzle.h"

HEADER = """\
// The swizzles of vectors of 2, 3 and 4 components, each by its two names. Written by generate_swizzles.py.
//
// READ(count, xyzw, rgba) is said of the swizzles that name a component twice, WRITE(count, xyzw, rgba) of the others:
// only those can stand on the left of an assignment.
#pragma once
"""


def swizzles(lanes: int) -> list[str]:
    """Macro calls for the swizzles of 2 to 4 components of a vector of ``lanes`` components."""
    calls = []
    for count in (2, 3, 4):
        for picked in itertools.product(range(lanes), repeat=count):
            xyzw = "".join("xyzw"[lane] for lane in picked)
            rgba = "".join("rgba"[lane] for lane in picked)
            macro = "WRITE" if len(set(picked)) == count else "READ"
            calls.append(f"{macro}({count}, {xyzw}, {rgba})")
    return calls


def render() -> str:
    """Text of the header."""
    parts = [HEADER]
    for lanes in (2, 3, 4):
        body = textwrap.wrap(" ".join(call.replace(", ", ",") for call in swizzles(lanes)), width=96)
        lines = [f"#define MSLC_SWIZZLES_{lanes}(READ, WRITE)"]
        lines += ["  " + line.replace(",", ", ") for line in body]
        parts.append("// clang-format off\n" + " \\\n".join(lines) + "\n// clang-format on\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
