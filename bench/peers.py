"""The peers that may be missing: each function returns what a benchmark needs of one, or raises ImportError."""

from __future__ import annotations

from types import SimpleNamespace

OPENCL_SOURCE = """
kernel void noop() {}
kernel void full(global float *x, float value) { x[get_global_id(0)] = value; }
kernel void add(global const float *a, global const float *b, global float *c) {
  size_t i = get_global_id(0);
  c[i] = a[i] + b[i];
}
kernel void saxpy(global float *y, global const float *x, float a) {
  size_t i = get_global_id(0);
  y[i] = a * x[i] + y[i];
}
"""


def pocl(*, profiling: bool = False) -> SimpleNamespace:
    """Return PoCL's context, queue and kernels through pyopencl."""
    import pyopencl as cl

    platforms = [platform for platform in cl.get_platforms() if "Portable" in platform.name]
    if not platforms:
        raise ImportError("no PoCL platform (install pocl-opencl-icd)")
    context = cl.Context(platforms[0].get_devices())
    properties = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
    program = cl.Program(context, OPENCL_SOURCE).build()
    return SimpleNamespace(
        cl=cl,
        version=platforms[0].version,
        context=context,
        queue=cl.CommandQueue(context, properties=properties),
        **{name: cl.Kernel(program, name) for name in ("noop", "full", "add", "saxpy")},
    )
