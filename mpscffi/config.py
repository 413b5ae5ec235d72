"""Environment variables: all of them are parsed here, once, when a device is first used.

A value that does not parse is a :class:`~mpscffi.errors.ConfigError` that names the variable; an empty one counts as
not set. Later changes of ``os.environ`` have no effect: use the functions of this package then.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from mpscffi.errors import ConfigError

__all__ = ["Settings", "parse", "settings"]

#: The largest ratio of the recommended working set that a memory limit may have.
MAX_RATIO = 2.0
DEFAULT_HIGH_RATIO = 1.7
DEFAULT_LOW_RATIO = 1.4

#: All bits of the masks, as upstream numbers them.
DEBUG_ALLOCATOR_BITS = 0x1F
LOG_PROFILE_BITS = 0x3FF
TRACE_OPTION_BITS = 0x3F
TRACE_TYPE_BITS = 0x7_0000

_T = TypeVar("_T")


class Settings(NamedTuple):
    """What the environment asks for.

    Attributes
    ----------
    device : str
        ``MPSCFFI_DEVICE``: "auto" (Metal if there is any, else the CPU), "metal" or "host".
    high_watermark_ratio : float
        ``PYTORCH_MPS_HIGH_WATERMARK_RATIO``: the hard memory limit as a share of the recommended working set; 0 for
        none.
    low_watermark_ratio : float
        ``PYTORCH_MPS_LOW_WATERMARK_RATIO``: from this share on, cached memory is given back before more is taken; 0
        for never.
    fast_math : bool
        ``PYTORCH_MPS_FAST_MATH``: compile kernels in fast math mode unless told otherwise.
    metal_version : tuple of int or None
        ``PYTORCH_MPS_METAL_VERSION``: the Metal language version of all compiles; None for the newest.
    shader_validation : bool
        ``MPSCFFI_SHADER_VALIDATION``: compile kernels with checks of their memory accesses unless told otherwise.
    debug_allocator : int
        ``PYTORCH_DEBUG_MPS_ALLOCATOR``: what the allocator tells of itself, a mask of 5 bits.
    log_profile_info : int
        ``PYTORCH_MPS_LOG_PROFILE_INFO``: what the profiler writes to stderr, a mask of 10 bits.
    trace_signposts : int
        ``PYTORCH_MPS_TRACE_SIGNPOSTS``: what is traced from the start on, 6 bits of options and from bit 16 on 3 bits
        of types.
    prefer_metal : bool
        ``PYTORCH_MPS_PREFER_METAL``: multiply matrices by this package's own kernel.
    enable_fallback : bool
        ``PYTORCH_ENABLE_MPS_FALLBACK``: compute on the CPU, with a warning, what Metal lacks the dtype for.
    """

    device: str = "auto"
    high_watermark_ratio: float = DEFAULT_HIGH_RATIO
    low_watermark_ratio: float = DEFAULT_LOW_RATIO
    fast_math: bool = False
    metal_version: tuple[int, int] | None = None
    shader_validation: bool = False
    debug_allocator: int = 0
    log_profile_info: int = 0
    trace_signposts: int = 0
    prefer_metal: bool = False
    enable_fallback: bool = False


def _choice(*choices: str) -> Callable[[str], str]:
    def parse_choice(text: str) -> str:
        value = text.strip().lower()
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return value

    return parse_choice


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_RATIO:
        raise ValueError(f"expected a number from 0.0 (no limit) to {MAX_RATIO}")
    return value


def _flag(text: str) -> bool:
    return text.strip() != "0"


def _integer(text: str) -> int:
    """Read an integer as C does: decimal, hexadecimal after 0x, octal after 0."""
    digits = text.strip()
    try:
        return int(digits, 8 if re.fullmatch("[+-]?0[0-7]+", digits) else 0)
    except ValueError:
        raise ValueError("expected an integer, as 3, 0x3 or 03") from None


def _switch(text: str) -> bool:
    try:
        return _integer(text) != 0
    except ValueError:
        raise ValueError("expected 0 (off) or 1 (on)") from None


def _mask(bits: int) -> Callable[[str], int]:
    def parse_mask(text: str) -> int:
        value = _integer(text)
        if value & ~bits:
            raise ValueError(f"expected a sum of bits of {bits:#x} ({bits})")
        return value

    return parse_mask


def _trace(text: str) -> int:
    value = _mask(TRACE_TYPE_BITS | TRACE_OPTION_BITS)(text)
    if value & 8 and value & (1 | 32) and not value & (2 | 16):
        raise ValueError("bit 8 (intervals begin when work is scheduled) needs intervals (2 or 16), not events alone")
    return value


def _version(text: str) -> tuple[int, int]:
    major, dot, minor = text.strip().partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise ValueError('expected a Metal version such as "3.2"')
    return int(major), int(minor)


def parse(environment: Mapping[str, str]) -> Settings:
    """Parse the variables of one environment.

    Parameters
    ----------
    environment : Mapping
        As ``os.environ``.

    Returns
    -------
    Settings
        The values, defaults filled in.
    """

    def read(name: str, parser: Callable[[str], _T], default: _T) -> _T:
        text = environment.get(name, "")
        if not text.strip():
            return default
        try:
            return parser(text)
        except ValueError as error:
            raise ConfigError(f"environment variable {name}={text!r}: {error}") from None

    high = read("PYTORCH_MPS_HIGH_WATERMARK_RATIO", _ratio, DEFAULT_HIGH_RATIO)
    # A low mark that nobody set gives way to the high one.
    low = read("PYTORCH_MPS_LOW_WATERMARK_RATIO", _ratio, min(DEFAULT_LOW_RATIO, high or MAX_RATIO))
    if high and low > high:
        raise ConfigError(
            f"environment variable PYTORCH_MPS_LOW_WATERMARK_RATIO={low} is above "
            f"PYTORCH_MPS_HIGH_WATERMARK_RATIO={high}: "
            "expected the low ratio to be at most the high one"
        )
    return Settings(
        device=read("MPSCFFI_DEVICE", _choice("auto", "metal", "host"), "auto"),
        high_watermark_ratio=high,
        low_watermark_ratio=low,
        fast_math=read("PYTORCH_MPS_FAST_MATH", _flag, False),
        metal_version=read("PYTORCH_MPS_METAL_VERSION", _version, None),
        shader_validation=read("MPSCFFI_SHADER_VALIDATION", _flag, False),
        debug_allocator=read("PYTORCH_DEBUG_MPS_ALLOCATOR", _mask(DEBUG_ALLOCATOR_BITS), 0),
        log_profile_info=read("PYTORCH_MPS_LOG_PROFILE_INFO", _mask(LOG_PROFILE_BITS), 0),
        trace_signposts=read("PYTORCH_MPS_TRACE_SIGNPOSTS", _trace, 0),
        prefer_metal=read("PYTORCH_MPS_PREFER_METAL", _flag, False),
        enable_fallback=read("PYTORCH_ENABLE_MPS_FALLBACK", _switch, False),
    )


_settings: Settings | None = None


def settings() -> Settings:
    """Return this process's settings, parsed at the first call that succeeds."""
    global _settings
    if _settings is None:
        _settings = parse(os.environ)
    return _settings
