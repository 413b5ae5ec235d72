"""Random numbers, 1e7 into an existing array; where the process may use one processor only, with that one's targets."""

from __future__ import annotations

import os

import numpy as np
from common import Case, Report, finish, measure

import mpscffi as mps

COUNT = 10_000_000


def main() -> None:
    """Measure and print."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    single = processors == 1
    report = Report(f"Random numbers, 1e7, {processors} processors")
    generator, peer = mps.Generator(1), np.random.Generator(np.random.Philox(1))
    floats, integers = mps.empty(COUNT), mps.empty(COUNT, dtype="uint32")
    host = np.empty(COUNT, np.float32)

    def wait(_: object) -> None:
        mps.synchronize()

    cases = [
        Case(
            "uniform",
            lambda: wait(mps.fill_uniform(floats, generator=generator)),
            peer="numpy Philox random",
            target=0.45 if single else 0.25,
        ),
        Case(
            "normal",
            lambda: wait(mps.fill_normal(floats, generator=generator)),
            peer="numpy Philox standard_normal",
            target=0.25 if single else 0.15,
        ),
        Case(
            "exponential",
            lambda: wait(mps.fill_exponential(floats, generator=generator)),
            peer="numpy Philox standard_exponential",
        ),
        Case(
            "integers below 1000",
            lambda: wait(mps.fill_randint(integers, 1000, generator=generator)),
            peer="numpy Philox integers",
        ),
        Case(
            "permutation of 1e6",
            lambda: wait(mps.permutation(1_000_000, generator=generator)),
            peer="numpy Philox permutation of 1e6",
        ),
        Case("numpy Philox random", lambda: peer.random(out=host, dtype=np.float32)),
        Case("numpy Philox standard_normal", lambda: peer.standard_normal(out=host, dtype=np.float32)),
        Case("numpy Philox standard_exponential", lambda: peer.standard_exponential(out=host, dtype=np.float32)),
        Case("numpy Philox integers", lambda: peer.integers(0, 1000, COUNT, dtype=np.uint32)),
        Case("numpy Philox permutation of 1e6", lambda: peer.permutation(1_000_000)),
    ]
    report.add(measure(cases, rounds=15))
    adapted = np.random.Generator(mps.BitGenerator(generator))
    small = np.empty(100_000)
    report.add(
        measure(
            [
                Case(
                    "1e5 NumPy normals from our stream",
                    lambda: adapted.standard_normal(out=small),
                    peer="1e5 NumPy normals from its Philox",
                ),
                Case("1e5 NumPy normals from its Philox", lambda: peer.standard_normal(out=small)),
            ]
        )
    )
    mean, deviation = floats.numpy().mean(dtype=np.float64), floats.numpy().std(dtype=np.float64)
    assert abs(mean - 1) < 0.01 and abs(deviation - 1) < 0.01, "what was timed last are exponential numbers"
    finish(report)


if __name__ == "__main__":
    main()
