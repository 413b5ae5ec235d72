"""Lanes of a SIMD-group that take different ways: who takes part in which function, and where all meet again."""

from __future__ import annotations

import numpy as np
import pytest
from msl_kernels import run

pytestmark = pytest.mark.usefixtures("device")

LANES = np.arange(32)


def results(body: str) -> list[float]:
    """What the 32 lanes of one SIMD-group write for `r`."""
    out = np.zeros(32, "f4")
    data = np.arange(32, dtype="f4")
    source = f"""
kernel void test(device float *out, device const float *x, uint i [[thread_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]]) {{
  float r = 0;
{body}
  out[i] = r;
}}"""
    run(source, [out, data], 32)
    return out.tolist()


def test_lanes_meet_behind_an_unlikely_branch() -> None:
    given = results("""
  if (__builtin_expect(x[i] > 2, 0)) { r = simd_sum(2.0f); } else { r = simd_sum(1.0f); }
  r = simd_sum(r);""")
    assert given == [3 * 3 + 29 * (2 * 29)] * 32


def test_lanes_meet_behind_a_branch_for_nan() -> None:
    given = results("""
  float z = lane == 3 || lane == 5 ? NAN : x[i];
  r = 1;
  if (isnan(z)) { r += simd_sum(1.0f); }
  r = simd_sum(r);""")
    assert given == [32 + 2 * 2] * 32


def test_equal_calls_of_two_branches_stay_apart() -> None:
    given = results("  if (lane % 3 == 0) { r = simd_sum(1.0f); } else { r = simd_sum(1.0f); }")
    assert given == np.where(LANES % 3 == 0, 11, 21).tolist()


def test_lanes_that_leave_a_loop_wait_behind_it() -> None:
    given = results("""
  for (uint k = 0; k <= lane % 4; k++) { r = simd_sum(1.0f); }
  r += 100 * simd_sum(1.0f);""")
    assert given == [3200 + 8 * (4 - lane % 4) for lane in range(32)]


def test_break_out_of_a_loop_by_a_collective_of_its_own() -> None:
    given = results("""
  for (uint k = 0; k < 8; k++) {
    if (lane == k) { r = 1000 + simd_sum(1.0f); break; }
    r = simd_sum(1.0f);
  }
  r += 10000 * simd_sum(1.0f);""")
    assert given == [320000 + (1001 if lane < 8 else 24) for lane in range(32)]


@pytest.mark.parametrize(
    "loop",
    [
        "for (uint k = 0; k < 4; k++) { if (k % 2 == lane % 2) { r = r * 100 + simd_sum(1.0f); } }",
        "for (uint k = 0; k < 4; k++) { if (k % 2 != lane % 2) { continue; } r = r * 100 + simd_sum(1.0f); }",
        "for (uint k = 0; k < 4; k++) if (k % 2 == lane % 2) r = r * 100 + simd_sum(1.0f);",
        "uint k = 0; while (k < 4) { if (k++ % 2 != lane % 2) continue; r = r * 100 + simd_sum(1.0f); }",
        "uint k = 0; do { k++; if (k % 2 == lane % 2) continue; r = r * 100 + simd_sum(1.0f); } while (k < 4);",
        "for (uint j = 0; j < 2; j++) for (uint k = 0; k < 2; k++) if (k == lane % 2) r = r * 100 + simd_sum(1.0f);",
    ],
)
def test_lanes_do_not_overtake_each_other_in_a_loop(loop: str) -> None:
    assert results(loop) == [1616] * 32  # 16 lanes in each round


def test_lanes_that_leave_out_the_last_function_of_a_round() -> None:
    given = results("""
  for (uint k = 0; k < 3; k++) {
    r = r * 100 + simd_sum(1.0f);
    if (lane % 4 == k) { r += simd_sum(1.0f); }
  }""")
    assert given == [sum(100 ** (2 - k) * (32 + 8 * (lane % 4 == k)) for k in range(3)) for lane in range(32)]


def test_inner_loops_of_different_lengths_belong_to_one_round() -> None:
    given = results("""
  for (uint j = 0; j < 3; j++) {
    for (uint k = 0; k <= (lane + j) % 2; k++) { r += simd_sum(1.0f); }
  }""")
    # In each round of the outer loop all 32 lanes come once, and every other one a second time.
    assert given == [3 * 32 + 16 * (1 if lane % 2 == 0 else 2) for lane in range(32)]


def test_lanes_do_not_overtake_each_other_in_functions_and_lambdas() -> None:
    given = results("""
  auto add = [&](uint j) { for (uint k = 0; k < 4; k++) { if (k % 2 == (lane + j) % 2) { r += simd_sum(1.0f); } } };
  for (uint j = 0; j < 2; j++) { if (lane < 8) { add(j); } }""")
    assert given == [16 if lane < 8 else 0 for lane in range(32)]  # four times, the 4 lanes of one parity
