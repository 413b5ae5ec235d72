"""Exceptions, and the faults of kernels that become exceptions."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import errors
from mpscffi._ffi import lib

FAULTS = """
#include <metal_stdlib>
using namespace metal;
kernel void wild(device ulong* at) { *(device int*)(at[0]) = 1; }
kernel void null_loop(device int* out, device int* const* none) { for (int i = 0; i < 4; i++) { out[i] = none[0][i]; } }
kernel void divide(device int* x, constant int& by, uint i [[thread_position_in_grid]]) { x[i] = x[i] / by; }
kernel void fine(device int* x, uint i [[thread_position_in_grid]]) { x[i] = 5; }
kernel void slow(device uint* x, constant uint& rounds) {
  uint v = x[0];
  for (uint i = 0; i < rounds; i++) { v = v * 1664525u + 1013904223u; x[1] = v; }
  x[0] = v;
}
"""


@pytest.fixture
def faults(compiled: Any, device: mpscffi.Device, reports_faults: None) -> mpscffi.ShaderLibrary:
    return compiled(FAULTS)


BUILTINS = {
    "INVALID_ARGUMENT": ValueError,
    "INVALID_HANDLE": ValueError,
    "OUT_OF_MEMORY": MemoryError,
    "UNAVAILABLE": RuntimeError,
    "UNSUPPORTED": NotImplementedError,
    "NOT_FOUND": LookupError,
    "COMPILE_FAILED": SyntaxError,
    "LIMIT_EXCEEDED": ValueError,
    "TIMEOUT": builtins.TimeoutError,
    "EXECUTION_FAILED": RuntimeError,
    "INVALID_STATE": RuntimeError,
    "FORKED": RuntimeError,
    "IO": OSError,
    "INTERNAL": RuntimeError,
}


def test_every_status_has_an_exception() -> None:
    statuses = {
        name.removeprefix("MPS_STATUS_"): getattr(lib, name) for name in dir(lib) if name.startswith("MPS_STATUS_")
    }
    assert statuses.pop("OK") == 0
    assert set(statuses) == set(BUILTINS)
    for name, status in statuses.items():
        error = errors.error_for(status, "what went wrong")
        assert isinstance(error, (mpscffi.Error,)), name
        assert isinstance(error, RuntimeError), name
        assert isinstance(error, BUILTINS[name]), name
        assert str(error) == "what went wrong"


def test_an_unknown_status_is_an_internal_error() -> None:
    for status in (-1, 99):
        assert type(errors.error_for(status, "")) is errors.InternalError


def test_all_exceptions_are_errors() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), Warning if name.endswith("Warning") else errors.Error)
        assert getattr(errors, name)("text").args == ("text",)
        assert str(getattr(errors, name)("text")) == "text"


# ---- faults of kernels


def run_wild(faults: Any) -> Any:
    faults.wild(mpscffi.asarray(np.array([0x10], np.uint64)), threads=1)


def run_far(faults: Any) -> Any:
    faults.wild(mpscffi.asarray(np.array([1 << 46], np.uint64)), threads=1)


def run_null_loop(faults: Any) -> Any:
    # A table whose one entry is 0: an array of zeros in place of the list of arrays.
    faults.null_loop(mpscffi.zeros(4, dtype=np.int32), mpscffi.zeros(1, dtype=np.uint64), threads=1)


def run_divide(faults: Any) -> Any:
    faults.divide(mpscffi.ones(8, dtype=np.int32), 0)


CASES = [
    (run_wild, "wild", "0x10"),
    (run_far, "wild", "0x400000000000"),
    (run_null_loop, "null_loop", "0x0"),
    (run_divide, "divide", "zero"),
]


@pytest.mark.parametrize(("run", "kernel", "reason"), CASES)
def test_a_fault_is_raised_by_the_next_wait_and_once(faults: Any, run: Any, kernel: str, reason: str) -> None:
    run(faults)
    with pytest.raises(errors.ExecutionError, match=f"'{kernel}'.*{reason}"):
        mpscffi.synchronize()
    mpscffi.synchronize()
    x = mpscffi.zeros(100, dtype=np.int32)
    faults.fine(x)
    assert (x.numpy() == 5).all()


def test_a_fault_is_raised_by_an_event(faults: Any) -> None:
    event = mpscffi.Event()
    run_wild(faults)
    event.record()
    with pytest.raises(errors.ExecutionError, match="'wild'"):
        event.synchronize()
    assert event.query()
    mpscffi.synchronize()


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x[0].item(),
        lambda x: x.copy(),
        lambda x: np.asarray(x),
        lambda x: np.from_dlpack(x),
        lambda x: mpscffi.zeros(4, dtype=np.int32).copy_from(x),
        lambda x: x.__array_interface__,
        lambda x: x.fill_(0),
    ],
)
def test_contents_are_not_shown_after_a_fault(faults: Any, look: Any) -> None:
    x = mpscffi.zeros(4, dtype=np.int32)
    faults.divide(x, 0)
    with pytest.raises(errors.ExecutionError, match="'divide'"):
        look(x)
    mpscffi.synchronize()


def test_a_fault_belongs_to_its_stream(faults: Any) -> None:
    one, other = mpscffi.Stream(), mpscffi.Stream()
    with mpscffi.stream(one):
        run_divide(faults)
    x = mpscffi.zeros(4, dtype=np.int32)
    with mpscffi.stream(other):
        faults.fine(x)
        assert x.tolist() == [5] * 4
    other.synchronize()
    with pytest.raises(errors.ExecutionError):
        one.synchronize()


def test_synchronize_tells_of_all_streams(faults: Any) -> None:
    streams = [mpscffi.Stream() for _ in range(2)]
    for stream, run in zip(streams, (run_divide, run_wild), strict=True):
        with mpscffi.stream(stream):
            run(faults)
    with pytest.raises(errors.ExecutionError) as caught:
        mpscffi.synchronize()
    assert "'divide'" in str(caught.value)
    assert "'wild'" in str(caught.value)
    mpscffi.synchronize()


def test_faults_by_the_hundred(faults: Any) -> None:
    for _ in range(50):
        for run, kernel, _reason in CASES:
            run(faults)
            with pytest.raises(errors.ExecutionError, match=f"'{kernel}'"):
                mpscffi.synchronize()


def test_null_handles_are_refused() -> None:
    """The C functions take whatever they are given: each returns an error and says so."""
    from mpscffi._ffi import error_message, ffi

    for name in dir(lib):
        value = getattr(lib, name)
        if name.startswith("mpscffi_") or isinstance(value, int):
            continue
        signature = ffi.typeof(value)
        if signature.result.cname != "enum mps_status" and signature.result.cname != "mps_status":
            continue
        # Those of the process take no handle, and NULL for none or for all defaults.
        if name.endswith(("_release", "compiler_set", "log_set", "matmul_set")) or name.startswith("mps_trace_"):
            continue
        arguments = [0 if argument.kind in ("primitive", "enum") else ffi.NULL for argument in signature.args]
        assert value(*arguments) in (
            lib.MPS_STATUS_INVALID_ARGUMENT,
            lib.MPS_STATUS_INVALID_HANDLE,
            lib.MPS_STATUS_NOT_FOUND,
        ), name
        assert error_message(), name
