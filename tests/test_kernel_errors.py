"""Errors that kernels report by themselves, through ``error_buf_idx``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import mpscffi
from mpscffi import errors
from mpscffi.stream import live_streams

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Message { char file[128]; char function[128]; char text[250]; uint line; };
struct Messages { atomic_uint count; Message list[30]; };
static void put(device char *to, constant char *from, uint size) {
  for (uint i = 0; i < size; i++) { to[i] = from[i]; if (from[i] == 0) { break; } }
}
kernel void check(device float *x, constant float &limit, device Messages *messages,
                  uint i [[thread_position_in_grid]]) {
  if (x[i] <= limit) { return; }
  uint at = atomic_fetch_add_explicit(&messages->count, 1u, memory_order_relaxed);
  if (at >= 30) { return; }
  put(messages->list[at].file, "check.metal", 128);
  put(messages->list[at].function, "check", 128);
  put(messages->list[at].text, "a number exceeds limit", 250);
  messages->list[at].line = 14;
}
kernel void plain(device float *x, uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""

Compile = Callable[[str], mpscffi.ShaderLibrary]


@pytest.fixture(autouse=True)
def _no_buffer_is_left(device: mpscffi.Device) -> Iterator[None]:
    del device
    yield
    for stream in live_streams():
        stream._kernel_errors = None


def test_the_first_message_is_raised_once_with_the_number_of_all(compiled: Compile) -> None:
    library = compiled(SOURCE)
    x = mpscffi.asarray(np.arange(100, dtype=np.float32))
    library.check(x, 1000.0, error_buf_idx=2)
    mpscffi.synchronize()
    library.check(x, 49.0, error_buf_idx=2)
    library.plain(x)
    with pytest.raises(
        errors.ExecutionError, match=r"check.metal:14, in check: a number exceeds limit \(and 49 more\)"
    ):
        mpscffi.synchronize()
    mpscffi.synchronize()
    np.testing.assert_array_equal(x.numpy(), np.arange(1, 101))
    library.check(x, 99.5, error_buf_idx=2)
    with pytest.raises(errors.ExecutionError, match="exceeds limit$"):
        mpscffi.current_stream().synchronize()


def test_each_stream_has_messages_of_its_own(compiled: Compile) -> None:
    library, other = compiled(SOURCE), mpscffi.Stream()
    with mpscffi.stream(other):
        x = mpscffi.full(3, 5.0)
        library.check(x, 1.0, error_buf_idx=2)
    mpscffi.default_stream().synchronize()
    with pytest.raises(errors.ExecutionError, match="2 more"):
        other.synchronize()


@pytest.mark.parametrize("slot", [-1, 31, "2", 0, 1])
def test_slots_that_cannot_be(compiled: Compile, slot: object) -> None:
    x = mpscffi.full(3, 5.0)
    with pytest.raises(errors.InvalidArgumentError, match="error_buf_idx"):
        compiled(SOURCE).check(x, 9.0, error_buf_idx=slot)  # type: ignore[arg-type]
