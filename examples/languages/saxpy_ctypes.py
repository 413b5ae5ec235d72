"""y = a * x + y by ctypes, as any language with a foreign function interface would do it: without the Python package.

Give the directory that holds `include` and `lib`: the one above `mpscffi.get_include()`.
"""

import ctypes as c
import sys
import threading

COUNT = 100_003
SOURCE = b"""kernel void saxpy(device float *y, device const float *x, constant float &a,
                               uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }"""
METAL, HOST, BUFFER, BYTES, COMPLETED, FOREVER = 1, 2, 1, 2, 2, 2**64 - 1
u32, u64, pointer = c.c_uint32, c.c_uint64, c.c_void_p

mps = c.CDLL(f"{sys.argv[1]}/lib/libmpsshim.so")
mps.mps_error_message.restype = c.c_char_p


class Error(RuntimeError):
    pass


class Struct(c.Structure):
    def __init__(self, *fields):
        super().__init__(c.sizeof(self), *fields)


class BufferDesc(Struct):
    _fields_ = [("struct_size", c.c_size_t), ("length", u64), ("storage_mode", u32), ("cache_mode", u32)]
    _fields_ += [("hazard_mode", u32), ("reserved", u32), ("label", c.c_char_p)]


class PipelineDesc(Struct):
    _fields_ = [("struct_size", c.c_size_t), ("kernel", c.c_char_p), ("constants", pointer), ("constant_count", u32)]
    _fields_ += [("reserved", u32), ("label", c.c_char_p)]


class Argument(c.Structure):
    _fields_ = [("kind", u32), ("index", u32), ("buffer", pointer), ("offset", u64), ("data", pointer), ("length", u64)]


class Dispatch(Struct):
    _fields_ = [("struct_size", c.c_size_t), ("pipeline", pointer), ("arguments", c.POINTER(Argument))]
    _fields_ += [("argument_count", u32), ("grid_kind", u32), ("grid", u64 * 3), ("group", u64 * 3)]


class CommandInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("serial", u64), ("start", u64), ("end", u64), ("status", u32)]
    _fields_ += [("scheduled", u32), ("message", c.c_char_p)]


Handler = c.CFUNCTYPE(None, pointer, c.POINTER(CommandInfo))


def function(name, *types):
    """Return a function of the library, whose failures are exceptions. Without types ctypes passes numbers as int."""
    raw = getattr(mps, name)
    raw.restype, raw.argtypes = u32, types

    def call(*arguments):
        if raw(*arguments) != 0:
            raise Error(mps.mps_error_message().decode())  # of this thread, so at once

    return call


def make(name, *types):
    """Return a function that gives what the library's function writes to its last parameter."""
    call = function(name, *types, c.POINTER(pointer))

    def create(*arguments):
        out = pointer()
        call(*arguments, c.byref(out))
        return out

    return create


def floats(device, values):
    desc = BufferDesc(4 * COUNT)
    buffer = make("mps_buffer_create", pointer, c.POINTER(BufferDesc))(device, desc)
    view = (c.c_float * COUNT).from_address(make("mps_buffer_contents", pointer)(buffer).value)
    view[:] = values
    return buffer, view


assert mps.mps_abi_version() == 1
gpus = u32()
function("mps_device_count", u32, c.POINTER(u32))(METAL, gpus)
device = make("mps_device_create", u32, u32)(METAL if gpus.value else HOST, 0)
compile_source = make("mps_library_create_from_source", pointer, c.c_char_p, c.c_size_t, pointer)
library = compile_source(device, SOURCE, len(SOURCE), None)
pipeline = make("mps_pipeline_create", pointer, c.POINTER(PipelineDesc))(library, PipelineDesc(b"saxpy"))
queue = make("mps_queue_create", pointer, pointer)(device, None)
x, _ = floats(device, range(COUNT))
y, results = floats(device, [1] * COUNT)
a = c.c_float(0.5)
arguments = (Argument * 3)(
    (BUFFER, 0, y), (BUFFER, 1, x), (BYTES, 2, None, 0, c.cast(c.byref(a), pointer), c.sizeof(a))
)
done = threading.Event()
handler = Handler(lambda user, info: done.set())  # kept: the library keeps no Python object alive
function("mps_queue_add_handler", pointer, u32, Handler, pointer)(queue, COMPLETED, handler, None)
dispatch = Dispatch(pipeline, arguments, 3, 0, (COUNT, 1, 1))
function("mps_queue_dispatch", pointer, c.POINTER(Dispatch))(queue, dispatch)
function("mps_queue_wait", pointer, u64)(queue, FOREVER)
assert done.wait(10)
right = sum(results[i] == 1 + 0.5 * i for i in range(COUNT))
print(f"{right} of {COUNT} results are right")
for kind, handle in (("buffer", x), ("buffer", y), ("queue", queue), ("pipeline", pipeline), ("library", library)):
    function(f"mps_{kind}_release", pointer)(handle)
function("mps_device_release", pointer)(device)
