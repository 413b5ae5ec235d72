"""Environment variables: all of them are parsed here, once, when a device is first used.

A value that does not parse is a :class:`~mpscffi.errors.ConfigError` that names the variable; an empty one counts as
not set. Later changes of ``os.environ`` have no effect: use the functions of this package then.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from mpscffi.errors import ConfigError

__all__ = ["Settings", "parse", "settings"]

#: The largest ratio of the recommended working set that a memory limit may have.
MAX_RATIO = 2.0
DEFAULT_HIGH_RATIO = 1.7
DEFAULT_LOW_RATIO = 1.4

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
    """

    device: str = "auto"
    high_watermark_ratio: float = DEFAULT_HIGH_RATIO
    low_watermark_ratio: float = DEFAULT_LOW_RATIO
    fast_math: bool = False
    metal_version: tuple[int, int] | None = None
    shader_validation: bool = False


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
    )


_settings: Settings | None = None


def settings() -> Settings:
    """Return this process's settings, parsed at the first call that succeeds."""
    global _settings
    if _settings is None:
        _settings = parse(os.environ)
    return _settings
