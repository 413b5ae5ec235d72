"""Environment variables."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpscffi import errors
from mpscffi.config import MAX_RATIO, Settings, parse

HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"


def test_defaults() -> None:
    assert parse({}) == Settings("auto", 1.7, 1.4, False, None)


@pytest.mark.parametrize(
    ("environment", "high", "low"),
    [
        ({HIGH: ""}, 1.7, 1.4),
        ({HIGH: "0.5"}, 0.5, 0.5),
        ({HIGH: " 0.5 "}, 0.5, 0.5),
        ({HIGH: "0"}, 0.0, 1.4),
        ({HIGH: "0.0", LOW: "2.0"}, 0.0, 2.0),
        ({HIGH: "2.0"}, 2.0, 1.4),
        ({LOW: "1.0"}, 1.7, 1.0),
        ({LOW: "0"}, 1.7, 0.0),
        ({HIGH: "0.7", LOW: "0.7"}, 0.7, 0.7),
        ({HIGH: "1e-1"}, 0.1, 0.1),
    ],
)
def test_ratios(environment: dict[str, str], high: float, low: float) -> None:
    settings = parse(environment)
    assert (settings.high_watermark_ratio, settings.low_watermark_ratio) == (high, low)


@pytest.mark.parametrize("name", [HIGH, LOW])
@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf", "2.1", "1,5", "0x1"])
def test_ratios_that_do_not_parse(name: str, text: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"{name}='{text}'.*0.0.*2.0") as caught:
        parse({name: text})
    assert isinstance(caught.value, ValueError)


def test_a_low_ratio_above_the_high_one() -> None:
    with pytest.raises(errors.ConfigError, match=rf"{LOW}=1.0 is above {HIGH}=0.7"):
        parse({HIGH: "0.7", LOW: "1.0"})


@given(st.text())
def test_any_text_is_a_ratio_or_an_error(text: str) -> None:
    is_ratio = not text.strip()
    with contextlib.suppress(ValueError):
        is_ratio = is_ratio or 0 <= float(text) <= MAX_RATIO
    if is_ratio:
        assert 0 <= parse({HIGH: text, LOW: "0"}).high_watermark_ratio <= MAX_RATIO
    else:
        with pytest.raises(errors.ConfigError, match=HIGH):
            parse({HIGH: text, LOW: "0"})


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("MPSCFFI_DEVICE", "host", "device", "host"),
        ("MPSCFFI_DEVICE", " Metal ", "device", "metal"),
        ("MPSCFFI_DEVICE", "", "device", "auto"),
        ("PYTORCH_MPS_FAST_MATH", "1", "fast_math", True),
        ("PYTORCH_MPS_FAST_MATH", "0", "fast_math", False),
        ("PYTORCH_MPS_FAST_MATH", "yes", "fast_math", True),
        ("PYTORCH_MPS_FAST_MATH", "", "fast_math", False),
        ("PYTORCH_MPS_FAST_MATH", " 0 ", "fast_math", False),
        ("PYTORCH_MPS_FAST_MATH", "00", "fast_math", True),
        ("PYTORCH_MPS_METAL_VERSION", "3.1", "metal_version", (3, 1)),
        ("PYTORCH_MPS_METAL_VERSION", "", "metal_version", None),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "", "debug_allocator", 0),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "1", "debug_allocator", 1),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", " 0x1f ", "debug_allocator", 31),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "037", "debug_allocator", 31),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", " ", "log_profile_info", 0),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "0", "log_profile_info", 0),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "1023", "log_profile_info", 1023),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "0X88", "log_profile_info", 0x88),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "", "trace_signposts", 0),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "2", "trace_signposts", 2),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "0x7003f", "trace_signposts", 0x7003F),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "8", "trace_signposts", 8),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "11", "trace_signposts", 11),
        ("PYTORCH_MPS_PREFER_METAL", "", "prefer_metal", False),
        ("PYTORCH_MPS_PREFER_METAL", "0", "prefer_metal", False),
        ("PYTORCH_MPS_PREFER_METAL", "1", "prefer_metal", True),
        ("PYTORCH_MPS_PREFER_METAL", "on", "prefer_metal", True),
        ("PYTORCH_MPS_PREFER_METAL", " 0 ", "prefer_metal", False),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "", "enable_fallback", False),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "0", "enable_fallback", False),
        ("PYTORCH_ENABLE_MPS_FALLBACK", " 1 ", "enable_fallback", True),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "2", "enable_fallback", True),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "00", "enable_fallback", False),
    ],
)
def test_other_variables(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(parse({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MPSCFFI_DEVICE", "cuda"),
        ("PYTORCH_MPS_METAL_VERSION", "3"),
        ("PYTORCH_MPS_METAL_VERSION", "three.one"),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "32"),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "-1"),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "verbose"),
        ("PYTORCH_DEBUG_MPS_ALLOCATOR", "08"),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "1024"),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "1.0"),
        ("PYTORCH_MPS_LOG_PROFILE_INFO", "1x"),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "64"),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "0x80000"),
        ("PYTORCH_MPS_TRACE_SIGNPOSTS", "-2"),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "yes"),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "0.5"),
    ],
)
def test_other_variables_that_do_not_parse(name: str, text: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"{name}='{text}': expected"):
        parse({name: text})


@pytest.mark.parametrize("text", ["9", "0x28", "0x10009"])
def test_signposts_that_contradict_each_other(text: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"PYTORCH_MPS_TRACE_SIGNPOSTS='{text}'.*intervals"):
        parse({"PYTORCH_MPS_TRACE_SIGNPOSTS": text})


def test_the_environment_counts_at_first_use(python: Any) -> None:
    script = """
        import os, mpscffi
        os.environ["PYTORCH_MPS_HIGH_WATERMARK_RATIO"] = "0.25"   # after the import, before the first use
        mpscffi.empty(1)
        os.environ["PYTORCH_MPS_HIGH_WATERMARK_RATIO"] = "0.5"    # too late
        from mpscffi.allocator import allocator_of
        print(allocator_of(mpscffi.current_device()).high_ratio)
        mpscffi.set_per_process_memory_fraction(0.75)             # at any time
        print(allocator_of(mpscffi.current_device()).high_ratio)
    """
    assert python(script).stdout.split() == ["0.25", "0.75"]


def test_the_environment_before_the_import(python: Any) -> None:
    script = """
        import mpscffi
        print(mpscffi.allocator.allocator_of(mpscffi.current_device()).high_ratio)
    """
    assert python(script, PYTORCH_MPS_HIGH_WATERMARK_RATIO="0.25").stdout.split() == ["0.25"]
    assert python(script, PYTORCH_MPS_HIGH_WATERMARK_RATIO="").stdout.split() == ["1.7"]


@pytest.mark.parametrize("first", ["environment", "call"])
def test_a_call_goes_before_the_environment(python: Any, first: str) -> None:
    """Whichever comes first; what is in force can be read back."""
    script = """
        import os, mpscffi
        from mpscffi.allocator import get_per_process_memory_fraction
        steps = [
            lambda: os.environ.update(PYTORCH_MPS_HIGH_WATERMARK_RATIO="0.25"),
            lambda: mpscffi.set_per_process_memory_fraction(0.75),
        ]
        for step in steps if EARLY else reversed(steps):
            step()
        mpscffi.empty(1)
        print(get_per_process_memory_fraction())
    """.replace("EARLY", str(first == "environment"))
    assert python(script, PYTORCH_MPS_HIGH_WATERMARK_RATIO="").stdout.split() == ["0.75"]


def test_a_bad_variable_does_not_stop_the_import(python: Any) -> None:
    script = """
        import mpscffi
        try:
            mpscffi.empty(1)
        except mpscffi.errors.ConfigError as error:
            print(error)
    """
    assert "MPSCFFI_DEVICE='gpu'" in python(script, MPSCFFI_DEVICE="gpu").stdout
