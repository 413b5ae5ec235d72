"""Compare two files that benchmarks wrote: `compare.py BEFORE.json AFTER.json`."""

from __future__ import annotations

import argparse
import json


def rows(path: str) -> dict[str, dict[str, float]]:
    """Return the rows of a file by name."""
    with open(path, encoding="utf-8") as file:
        return {row["name"]: row for row in json.load(file)["rows"]}


def main() -> None:
    """Print, for each row in both files, the ratio to its peer before and after, or the time where it has no peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    options = parser.parse_args()
    before, after = rows(options.before), rows(options.after)
    print(f"{'before':>10}  {'after':>10}  {'change':>7}  what")
    for name in before.keys() & after.keys():
        key = "ratio" if before[name]["ratio"] and after[name]["ratio"] else "seconds"
        old, new = before[name][key], after[name][key]
        print(f"{old:10.4g}  {new:10.4g}  {new / old - 1:+7.1%}  {name} ({key})")
    for name in sorted(before.keys() ^ after.keys()):
        print(f"only in one of the files: {name}")


if __name__ == "__main__":
    main()
