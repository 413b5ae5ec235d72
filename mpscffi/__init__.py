"""Apple's Metal compute stack from Python: devices, streams, memory, events and Metal kernels.

Names follow ``torch.mps``. What needs NumPy is imported when it is first asked for.
"""

from __future__ import annotations

from mpscffi import errors
from mpscffi._ffi import ffi as _ffi_module
from mpscffi._ffi import lib as _lib
from mpscffi.allocator import (
    add_allocation_failure_callback,
    current_allocated_memory,
    driver_allocated_memory,
    empty_cache,
    get_cache_limit,
    get_per_process_memory_fraction,
    max_memory_allocated,
    memory_limits,
    memory_snapshot,
    memory_stats,
    memory_summary,
    recommended_max_memory,
    record_memory_history,
    remove_allocation_failure_callback,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    save_memory_snapshot,
    set_cache_limit,
    set_low_watermark_ratio,
    set_per_process_memory_fraction,
)
from mpscffi.device import (
    Device,
    current_device,
    device_count,
    devices,
    get_core_count,
    get_name,
    is_available,
    set_device,
    why_unavailable,
)
from mpscffi.errors import Error
from mpscffi.event import Event
from mpscffi.stream import (
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    stream_priority_range,
    synchronize,
)

TYPE_CHECKING = False  # typing takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from mpscffi import profiler, random, replay, shader_cache
    from mpscffi.adopt import from_file, from_native, from_numpy, from_pointer
    from mpscffi.array import Array
    from mpscffi.bit_generator import BitGenerator
    from mpscffi.command import CommandInfo
    from mpscffi.creation import asarray, empty, full, ones, zeros
    from mpscffi.dlpack import from_dlpack
    from mpscffi.generator import (
        Generator,
        default_generator,
        get_rng_state,
        initial_seed,
        manual_seed,
        seed,
        set_rng_state,
    )
    from mpscffi.graph import Graph, GraphNode, record
    from mpscffi.kernel import Kernel
    from mpscffi.linalg import matmul
    from mpscffi.random import (
        bernoulli,
        exponential,
        fill_bernoulli,
        fill_exponential,
        fill_normal,
        fill_poisson,
        fill_randint,
        fill_uniform,
        permutation,
        poisson,
        rand,
        randint,
        randn,
    )
    from mpscffi.report import build_config, diagnostics
    from mpscffi.shader import ShaderLibrary, compile_shader, load_metallib
    from mpscffi.shader_log import ShaderMessage, set_shader_log

__version__: str = _ffi_module.string(_lib.mps_version()).decode()

__all__ = [
    "Array",
    "BitGenerator",
    "CommandInfo",
    "Device",
    "Error",
    "Event",
    "Generator",
    "Graph",
    "GraphNode",
    "Kernel",
    "ShaderLibrary",
    "ShaderMessage",
    "Stream",
    "add_allocation_failure_callback",
    "asarray",
    "bernoulli",
    "build_config",
    "compile_shader",
    "current_allocated_memory",
    "current_device",
    "current_stream",
    "default_generator",
    "default_stream",
    "device_count",
    "devices",
    "diagnostics",
    "driver_allocated_memory",
    "empty",
    "empty_cache",
    "errors",
    "exponential",
    "fill_bernoulli",
    "fill_exponential",
    "fill_normal",
    "fill_poisson",
    "fill_randint",
    "fill_uniform",
    "from_dlpack",
    "from_file",
    "from_native",
    "from_numpy",
    "from_pointer",
    "full",
    "get_cache_limit",
    "get_core_count",
    "get_include",
    "get_library",
    "get_name",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "initial_seed",
    "is_available",
    "load_metallib",
    "manual_seed",
    "matmul",
    "max_memory_allocated",
    "memory_limits",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "ones",
    "permutation",
    "poisson",
    "profiler",
    "rand",
    "randint",
    "randn",
    "random",
    "recommended_max_memory",
    "record",
    "record_memory_history",
    "remove_allocation_failure_callback",
    "replay",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "save_memory_snapshot",
    "seed",
    "set_cache_limit",
    "set_device",
    "set_low_watermark_ratio",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_shader_log",
    "set_stream",
    "shader_cache",
    "stream",
    "stream_priority_range",
    "synchronize",
    "why_unavailable",
    "zeros",
]

#: Where names are that are imported at first use.
_LAZY = {
    **dict.fromkeys(("Array", "_host_alias_storage"), "mpscffi.array"),
    **dict.fromkeys(("asarray", "empty", "full", "ones", "zeros"), "mpscffi.creation"),
    **dict.fromkeys(("from_file", "from_native", "from_numpy", "from_pointer"), "mpscffi.adopt"),
    "from_dlpack": "mpscffi.dlpack",
    "BitGenerator": "mpscffi.bit_generator",
    **dict.fromkeys(
        ("Generator", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"),
        "mpscffi.generator",
    ),
    **dict.fromkeys(
        ("bernoulli", "exponential", "permutation", "poisson", "rand", "randint", "randn", "random"), "mpscffi.random"
    ),
    **dict.fromkeys(
        ("fill_bernoulli", "fill_exponential", "fill_normal", "fill_poisson", "fill_randint", "fill_uniform"),
        "mpscffi.random",
    ),
    **dict.fromkeys(("Graph", "GraphNode", "record"), "mpscffi.graph"),
    "profiler": "mpscffi.profiler",
    "replay": "mpscffi.replay",
    "shader_cache": "mpscffi.shader_cache",
    "Kernel": "mpscffi.kernel",
    **dict.fromkeys(("ShaderLibrary", "compile_shader", "load_metallib"), "mpscffi.shader"),
    **dict.fromkeys(("ShaderMessage", "set_shader_log"), "mpscffi.shader_log"),
    "CommandInfo": "mpscffi.command",
    "matmul": "mpscffi.linalg",
    **dict.fromkeys(("build_config", "diagnostics"), "mpscffi.report"),
}


def get_include() -> str:
    """Return the directory of ``mpsshim.h``, for programs that use the C library."""
    from mpscffi._paths import include_dir

    return include_dir()


def get_library() -> str:
    """Return the path of the C library."""
    from mpscffi._paths import library_path

    return library_path()


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        from mpscffi._elsewhere import hint

        raise AttributeError(f"module 'mpscffi' has no attribute {name!r}{hint(name)}")
    from importlib import import_module

    value: Any = import_module(module)
    if module != f"mpscffi.{name}":  # else it is the module itself that is asked for
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
