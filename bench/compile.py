"""A small kernel from source to ready: cold, cached on disk in a new process, and cached in the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from common import Report, Row, finish

ROUNDS = 11
PROGRAM = """
import time
import mpscffi as mps
x = mps.empty(16)
source = '''
kernel void full(device float *x, constant float &value, uint i [[thread_position_in_grid]]) { x[i] = value + SALT; }
'''.replace('SALT', '%s')
for _ in range(2):
    begin, cpu = time.perf_counter(), time.process_time()
    kernel = mps.compile_shader(source).full
    kernel(x, 1.0)
    mps.synchronize()
    print(time.perf_counter() - begin, time.process_time() - cpu)
assert x[0].item() == 1.0 + %s
"""


def once(salt: int, cache: str) -> list[float]:
    """Return the seconds to a first result in a new process, wall and CPU, and the same for a second time in it."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM % (f"{salt}.0f", salt)],
        check=True,
        cwd="/",
        capture_output=True,
        text=True,
        env={**os.environ, "MPSCFFI_CACHE_DIR": cache},
    )
    return [float(figure) for figure in run.stdout.split()]


def main() -> None:
    """Measure and print."""
    report = Report("From the source of a small kernel to its first result")
    cold, disk, disk_cpu, memory = [], [], [], []
    with tempfile.TemporaryDirectory() as cache:
        first = once(-1, cache)[0]
        for salt in range(ROUNDS):
            cold.append(once(salt, cache)[0])
            again = once(salt, cache)
            disk.append(again[0])
            disk_cpu.append(again[1])
            memory.append(again[2])
    report.add(
        [
            Row("the first kernel of an empty cache: the prelude is compiled too", [first]),
            Row("cold", cold),
            Row("cached on disk, new process", disk, note="goal: 5 ms"),
            Row("the same, CPU time", disk_cpu),
            Row("cached, same process", memory),
        ]
    )
    finish(report)


if __name__ == "__main__":
    main()
