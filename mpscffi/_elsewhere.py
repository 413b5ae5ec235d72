"""Names that people who know PyTorch or NumPy look for in the package, and where they are or what stands for them."""

from __future__ import annotations

from mpscffi import errors

__all__ = ["hint"]

_ELSEWHERE = {
    "Tensor": "mpscffi.Array",
    "ndarray": "mpscffi.Array",
    **dict.fromkeys(("as_tensor", "tensor"), "mpscffi.asarray"),
    **dict.fromkeys(("arange", "eye", "linspace"), "mpscffi.asarray(numpy.{name}(...))"),
    **dict.fromkeys(("empty_like", "ones_like", "zeros_like"), "mpscffi.{stem}(x.shape, dtype=x.dtype)"),
    "full_like": "mpscffi.full(x.shape, value, dtype=x.dtype)",
    **dict.fromkeys(("float16", "float32", "int8", "int16", "int32", "int64", "uint8"), "numpy.{name}"),
    "bfloat16": "dtype='bfloat16'",
    **dict.fromkeys(("bmm", "dot", "mm"), "mpscffi.matmul"),
    "randperm": "mpscffi.permutation",
    "manual_seed_all": "mpscffi.manual_seed",
    "seed_all": "mpscffi.seed",
    "load": "mpscffi.from_file",
    "compile": "mpscffi.compile_shader",
    **dict.fromkeys(("is_capturing_metal", "is_metal_capture_enabled", "metal_capture"), "mpscffi.profiler.{name}"),
    "profile": "mpscffi.profiler.profile",
    "get_device_name": "mpscffi.get_name",
    "get_device_properties": "mpscffi.current_device",
    "memory_allocated": "mpscffi.current_allocated_memory",
    **dict.fromkeys(("max_memory_reserved", "memory_reserved"), "mpscffi.memory_stats"),
}


def hint(name: str) -> str:
    """Return what to add to the text of an AttributeError of the package; empty if nothing is known."""
    where = f"mpscffi.errors.{name}" if name in errors.__all__ else _ELSEWHERE.get(name)
    return f": use {where.format(name=name, stem=name.partition('_')[0])}" if where else ""
