"""Import time, each in processes of its own, net of an empty interpreter."""

from __future__ import annotations

import subprocess
import sys
import time

from common import Report, Row, finish

ROUNDS = 15


def once(statement: str) -> float:
    """Return the seconds that a fresh interpreter takes for a statement."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd="/")
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    report = Report("Import")
    names = ["import mpscffi", "import numpy"]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        once(name)
    for _ in range(ROUNDS):
        empty = once("pass")
        for name in names:
            seconds[name].append(max(once(name) - empty, 1e-6))
    report.add(
        [
            Row("import mpscffi", seconds["import mpscffi"], "import numpy", 0.15),
            Row("import numpy", seconds["import numpy"]),
        ]
    )
    check = "import sys, mpscffi; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd="/")
    finish(report)


if __name__ == "__main__":
    main()
