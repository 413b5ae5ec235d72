"""Devices and what the package says of itself."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import mpscffi
from mpscffi import errors


def test_availability_means_metal() -> None:
    assert mpscffi.is_available() == (mpscffi.device_count() > 0)
    assert mpscffi.device_count() >= 0
    assert bool(mpscffi.why_unavailable()) != mpscffi.is_available()


def test_devices() -> None:
    listed = mpscffi.devices()
    assert [device.backend for device in listed].count("host") == 1
    assert listed == mpscffi.devices()
    assert len(listed) == mpscffi.device_count() + 1


def test_the_device_in_use(device: mpscffi.Device) -> None:
    assert mpscffi.current_device() is device
    assert device in mpscffi.devices()
    assert mpscffi.get_name() == device.name != ""
    assert mpscffi.get_core_count() == device.core_count >= 1
    assert f"{device.backend}:0" in repr(device)


def test_limits_are_metals(device: mpscffi.Device) -> None:
    assert device.max_total_threads_per_threadgroup == 1024
    assert device.thread_execution_width == 32
    assert device.max_buffer_slots == 31
    assert device.max_inline_bytes == 4096
    assert device.max_threadgroup_memory == 32768
    assert device.page_size == 16384
    assert device.has_unified_memory is True
    assert device.recommended_max_working_set > 0
    assert device.max_buffer_length >= 1 << 28


def test_timestamps_grow(device: mpscffi.Device) -> None:
    first, second = device.timestamps(), device.timestamps()
    assert first[0] <= second[0]
    assert first[1] <= second[1]


def test_set_device(device: mpscffi.Device) -> None:
    mpscffi.set_device(device.backend)
    assert mpscffi.current_device() is device
    for wrong, error in (("cuda", ValueError), (3, TypeError), (None, TypeError)):
        with pytest.raises(error, match="expected"):
            mpscffi.set_device(wrong)  # type: ignore[arg-type]
    assert mpscffi.current_device() is device


def test_devices_that_do_not_exist() -> None:
    with pytest.raises(errors.UnavailableError):
        mpscffi.Device("host", 7)
    with pytest.raises(errors.InvalidArgumentError):
        mpscffi.Device("host", -1)
    if not mpscffi.is_available():
        with pytest.raises(errors.UnavailableError) as caught:
            mpscffi.Device("metal")
        assert mpscffi.why_unavailable() in str(caught.value)


def test_choice_by_environment(python: Any) -> None:
    script = "import mpscffi; print(mpscffi.current_device().backend)"
    assert python(script, MPSCFFI_DEVICE="host").stdout.strip() == "host"
    expected = "metal" if mpscffi.is_available() else "host"
    assert python(script, MPSCFFI_DEVICE="auto").stdout.strip() == expected
    if not mpscffi.is_available():
        result = python(script, MPSCFFI_DEVICE="metal")
        assert result.returncode == 1
        assert mpscffi.why_unavailable() in result.stderr


@pytest.mark.host_only("about systems without Metal")
def test_metal_that_is_wanted_and_missing(python: Any) -> None:
    """What speaks of availability and the generator works; arguments are looked at first; all else raises one type."""
    if mpscffi.is_available():
        return
    script = """
        import numpy as np
        import mpscffi as mps
        print(mps.is_available(), mps.device_count(), mps.manual_seed(7), mps.initial_seed(), mps.seed())
        state = mps.get_rng_state("whatever")
        print(state.size, mps.set_rng_state(state, device=3), mps.profiler.stop())
        refused = {
            "int": lambda: mps.load_metallib(3),
            "memoryview": lambda: mps.load_metallib(memoryview(b"x")),
            "a float": lambda: mps.set_per_process_memory_fraction(1),
            "2.5": lambda: mps.set_per_process_memory_fraction(2.5),
            "mode 'x'": lambda: mps.profiler.start("x"),
            "enable_timing": lambda: mps.Event(1),
            "Storage": lambda: mps._host_alias_storage(3),
        }
        for text, call in refused.items():
            try:
                call()
            except mps.errors.UnavailableError as error:
                print("the device was looked for first:", text)
            except (TypeError, ValueError) as error:
                if text not in str(error):
                    print(text, error)
        missing = [
            mps.synchronize, mps.empty_cache, mps.current_allocated_memory, mps.driver_allocated_memory,
            mps.recommended_max_memory, mps.memory_summary, mps.get_name, mps.get_core_count, mps.Event, mps.Stream,
            mps.current_stream, mps.current_device, mps.profiler.start, mps.profiler.is_metal_capture_enabled,
            mps.profiler.is_capturing_metal, lambda: mps.profiler.metal_capture("a.gputrace"),
            lambda: mps.profiler.profile().__enter__(), lambda: mps.set_per_process_memory_fraction(0.5),
            lambda: mps.set_per_process_memory_fraction(np.float64(0.5)), lambda: mps.compile_shader("kernel"),
            lambda: mps.load_metallib(b"MTLB"), lambda: mps.load_metallib("missing"), lambda: mps.empty(1),
            lambda: mps.rand(1), lambda: mps.randn(1), lambda: mps.asarray([1]), lambda: mps.permutation(3),
        ]
        kinds = set()
        for call in missing:
            try:
                call()
                print("went through")
            except RuntimeError as error:
                kinds.add((type(error).__name__, str(error)))
        print(kinds == {("UnavailableError", "MPSCFFI_DEVICE=metal, but there is no such device: "
                         + mps.why_unavailable())})
    """
    result = python(script, "-X", "dev", "-W", "error", MPSCFFI_DEVICE="metal")
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["False 0 None 7 None", "44 None None", "True"]


@pytest.mark.parametrize("clone", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_stands_for_this_process_is_not_copied(device: mpscffi.Device, compiled: Any, clone: Any) -> None:
    library = compiled("kernel void f(device float* x) { x[0] = 1; }")
    for thing in (device, mpscffi.Event(), mpscffi.Stream(), library, library.f):
        with pytest.raises(TypeError, match=f"cannot pickle or copy a {type(thing).__name__}"):
            clone(thing)


def test_where_the_c_library_is() -> None:
    assert (Path(mpscffi.get_include()) / "mpsshim.h").is_file()
    assert Path(mpscffi.get_library()).is_file()


def test_reports(device: mpscffi.Device) -> None:
    assert mpscffi.build_config()["version"] == mpscffi.__version__
    report = mpscffi.diagnostics()
    for fact in (mpscffi.__version__, device.name, mpscffi.get_library(), "live objects", "compiler"):
        assert fact in report


def test_all_public_names_exist() -> None:
    assert sorted([*mpscffi.__all__, "__version__"]) == dir(mpscffi)
    for module in (mpscffi.errors, mpscffi.profiler, mpscffi.random, mpscffi.replay, mpscffi.shader_cache):
        assert dir(module) == sorted(module.__all__)
    for name in mpscffi.__all__:
        assert getattr(mpscffi, name) is not None
        assert name in dir(mpscffi)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mpscffi.nothing  # noqa: B018


def test_the_import_is_light(python: Any) -> None:
    script = """
        import sys
        before = set(sys.modules)
        import mpscffi
        mpscffi.is_available()
        heavy = {"ctypes", "dataclasses", "importlib.resources", "inspect", "numpy", "pathlib", "subprocess", "typing"}
        print(sorted(heavy & set(sys.modules) - before))
        mpscffi.Event().record()
        mpscffi.synchronize()
        print([name for name in ("numpy", "ctypes", "subprocess", "importlib.resources") if name in sys.modules])
    """
    assert python(script).stdout.split("\n") == ["[]", "[]", ""]


def test_a_kernel_from_the_cache_needs_little(device: mpscffi.Device, python: Any) -> None:
    script = """
        import sys
        import numpy
        before = set(sys.modules)
        import mpscffi
        library = mpscffi.compile_shader("kernel void f(device float *x [[buffer(0)]]) { x[0] = 2; }")
        x = mpscffi.zeros(1)
        library.f(x)
        assert x.item() == 2
        heavy = {"dataclasses", "hashlib", "importlib.metadata", "json", "ml_dtypes", "subprocess", "tempfile"}
        print(sorted(heavy & set(sys.modules) - before))
    """
    python(script, MPSCFFI_DEVICE=device.backend)
    assert python(script, MPSCFFI_DEVICE=device.backend).stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "where"), [
    ("OutOfMemoryError", "mpscffi.errors.OutOfMemoryError"), ("randperm", "mpscffi.permutation"),
    ("arange", "mpscffi.asarray"), ("zeros_like", "mpscffi.zeros"), ("float32", "numpy.float32"),
    ("metal_capture", "mpscffi.profiler.metal_capture"), ("memory_allocated", "mpscffi.current_allocated_memory"),
])  # fmt: skip
def test_names_that_are_elsewhere(name: str, where: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': use {where}"):
        getattr(mpscffi, name)


def test_hints_name_what_there_is() -> None:
    from mpscffi._elsewhere import _ELSEWHERE, hint

    for name in _ELSEWHERE:
        assert not hasattr(mpscffi, name)
        for path in re.findall(r"\b(?:mpscffi|numpy)(?:\.\w+)+", hint(name)):
            module, *rest = path.split(".")
            assert functools.reduce(getattr, rest, sys.modules[module])
    assert hint("nothing_of_the_kind") == ""
