"""What to send with a report of a fault: versions, devices, compiler, settings."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable

from mpscffi import config
from mpscffi._ffi import check, ffi, lib
from mpscffi._paths import library_path
from mpscffi.device import devices, why_unavailable
from mpscffi.errors import Error

__all__ = ["build_config", "diagnostics", "live_objects"]

_PREFIXES = ("MPSCFFI_", "MPSSHIM_", "PYTORCH_MPS_", "PYTORCH_DEBUG_MPS", "PYTORCH_ENABLE_MPS", "MTL_")


def build_config() -> dict[str, str]:
    """Return how the C library was built: version, compiler, devices, options."""
    text: str = ffi.string(lib.mps_build_info()).decode("utf-8", "replace")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def live_objects() -> dict[str, int]:
    """Return how many objects of the C library exist, by kind, and how many commands are not complete."""
    counts = ffi.new("mps_live_objects *", {"struct_size": ffi.sizeof("mps_live_objects")})
    check(lib.mps_get_live_objects(counts))
    names = [name for name, _ in ffi.typeof("mps_live_objects").fields if name != "struct_size"]
    return {name: getattr(counts, name) for name in names}


def diagnostics() -> str:
    """Return a report of this installation, one fact a line. Raises nothing."""
    facts = [
        ("mpscffi", ", ".join(f"{key} {value}" for key, value in build_config().items())),
        ("library", library_path()),
        ("python", f"{platform.python_implementation()} {platform.python_version()} {sys.executable}"),
        ("system", platform.platform()),
        ("metal", why_unavailable() or "available"),
    ]
    facts += _ask("device", lambda: [f"{one!r}, {one.core_count} cores" for one in devices()])
    facts += _ask("settings", lambda: [str(config.settings())])
    facts += _ask("compiler", _compiler)
    facts += _ask("live objects", lambda: [", ".join(f"{name} {count}" for name, count in live_objects().items())])
    facts += [
        ("environment", f"{name}={os.environ[name]}") for name in sorted(os.environ) if name.startswith(_PREFIXES)
    ]
    return "\n".join(f"{title + ':':<14}{text}" for title, text in facts)


def _ask(title: str, question: Callable[[], list[str]]) -> list[tuple[str, str]]:
    try:
        return [(title, text) for text in question()]
    except Error as error:
        return [(title, f"{type(error).__name__}: {error}")]


def _compiler() -> list[str]:
    """Return what the host device compiles Metal source with."""
    from mpscffi.mslc.errors import CompilerMissing
    from mpscffi.mslc.toolchain import find_toolchain

    try:
        return [" ".join(find_toolchain().compiler)]
    except CompilerMissing as error:
        return [f"none: {error}"]
