"""Which lines of shim/metal have run in a build of the stand-in lane: python tests/standin/coverage.py BUILD GCOV...

Each line that has not must hold a part that the table of docs/metal-backend.md has, under its file or `*.m` and with
the reason; and each part in the table must still be in its file. GCOV is the command that reads what was counted.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TABLE = ROOT / "docs" / "metal-backend.md"
LINE = re.compile(r"^ *([^:]+): *(\d+):(.*)$")
ROW = re.compile(r"^\| `([\w*]+\.m)` \| `(.+)` \| .+ \|$", re.MULTILINE)
LEAST = 0.95


def counted(build: Path, source: str, gcov: list[str]) -> list[tuple[str, bool]]:
    """The lines of a file that are code, and whether they have run."""
    data = build / "shim" / "libmpsshim.so.p" / f"metal_{source}.gcda"
    # In the build's folder, to which the names of sources are relative.
    output = subprocess.run([*gcov, "-t", str(data)], cwd=build, check=True, capture_output=True, text=True).stdout
    # Headers are told of too.
    parts = re.split(r"^ *-: *0:Source:", output, flags=re.MULTILINE)
    own = "".join(part for part in parts if part.partition("\n")[0].endswith("/" + source))
    lines = [match.groups() for match in map(LINE.match, own.splitlines()) if match]
    return [(text.strip(), not count.startswith(("#", "="))) for count, _, text in lines if count.strip() != "-"]


def main(build: str, *gcov: str) -> int:
    table = ROW.findall(TABLE.read_text(encoding="utf-8"))
    wrong, total, missed, used = [], 0, 0, set()
    for source in sorted((ROOT / "shim" / "metal").glob("*.m")):
        rows = [row for row in table if row[0] in (source.name, "*.m")]
        lines = counted(Path(build).resolve(), source.name, list(gcov))
        total += len(lines)
        for text in (text for text, has_run in lines if not has_run):
            missed += 1
            # What only closes a block is told of by what the block has.
            if re.search(r"\w", text) and not any(part in text for _, part in rows):
                wrong.append(f"{source.name}: has not run, and {TABLE.name} does not say why: {text}")
        code = source.read_text(encoding="utf-8")
        used |= {row for row in rows if row[1] in code}
    wrong += [f"{name}: {TABLE.name} has a line that is gone: {part}" for name, part in set(table) - used]
    share = 1 - missed / total
    print(*wrong, f"{share:.1%} of {total} lines of shim/metal have run, {missed} have not", sep="\n")
    return 1 if wrong or share < LEAST else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
