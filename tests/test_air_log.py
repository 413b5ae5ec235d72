"""What kernels of metallibs log: AIR as Apple's compiler makes it of `metal::os_log`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from air_modules import Kernel, constant, device, given, metallib

import mpscffi
from mpscffi import ShaderMessage, errors
from mpscffi.mslc.errors import CompilerMissing
from mpscffi.mslc.toolchain import find_toolchain

pytestmark = [pytest.mark.host_only("it reads AIR")]
try:
    find_toolchain()
except CompilerMissing as missing:
    pytestmark.append(pytest.mark.skip(reason=str(missing)))

# Of the logger, and of the method for each os_log_type: alloca, va_start, the logger's members, air.os_log, va_end.
TOP = """%struct.os_log = type {{ ptr addrspace(2), ptr addrspace(2) }}
@default = internal addrspace(2) global %struct.os_log {{ ptr addrspace(2) null, ptr addrspace(2) inttoptr (i64 -1 to ptr addrspace(2)) }}, align 8
@mine = internal addrspace(2) global %struct.os_log {{ ptr addrspace(2) @subsystem, ptr addrspace(2) @category }}, align 8
@subsystem = private unnamed_addr addrspace(2) constant [12 x i8] c"org.example\\00", align 1
@category = private unnamed_addr addrspace(2) constant [8 x i8] c"physics\\00", align 1
@word = private unnamed_addr addrspace(2) constant [4 x i8] c"one\\00", align 1
@format = private unnamed_addr addrspace(2) constant [{length} x i8] c"{format}\\00", align 1
declare void @llvm.va_start.p0(ptr)
declare void @llvm.va_end.p0(ptr)
declare void @air.os_log(ptr addrspace(2), ptr addrspace(2), i32, ptr addrspace(2), ptr, i64)
define internal void @_ZNU11MTLconstantK5metal6os_log3logEPU11MTLconstantKcz(ptr addrspace(2) noundef %0, ptr addrspace(2) noundef %1, i64 noundef %2, ...) unnamed_addr #0 align 2 {{
  %4 = alloca ptr, align 8
  call void @llvm.va_start.p0(ptr nonnull %4)
  %5 = load ptr addrspace(2), ptr addrspace(2) %0, align 8
  %6 = getelementptr inbounds %struct.os_log, ptr addrspace(2) %0, i64 0, i32 1
  %7 = load ptr addrspace(2), ptr addrspace(2) %6, align 8
  %8 = load ptr, ptr %4, align 8
  call void @air.os_log(ptr addrspace(2) %5, ptr addrspace(2) %7, i32 {type}, ptr addrspace(2) %1, ptr %8, i64 %2) #0
  call void @llvm.va_end.p0(ptr nonnull %4)
  ret void
}}
"""  # noqa: E501


def logger(format: str, values: Sequence[str], size: int, *, log: str = "@default", type: int = 0) -> tuple[str, str]:
    """What goes before a kernel, and the call of a logger; `size` is what Apple's compiler counts."""
    top = TOP.format(format=format, length=len(format) + 1, type=type)
    given = ", ".join([f"ptr addrspace(2) {log}", "ptr addrspace(2) @format", f"i64 noundef {size}", *values])
    name = "@_ZNU11MTLconstantK5metal6os_log3logEPU11MTLconstantKcz"
    return top, f"  tail call void (ptr addrspace(2), ptr addrspace(2), i64, ...) {name}({given}) #0"


@pytest.fixture
def messages() -> Iterator[list[ShaderMessage]]:
    before = mpscffi.current_device()
    mpscffi.set_device("host")
    found: list[ShaderMessage] = []
    mpscffi.set_shader_log(found.append)
    yield found
    mpscffi.synchronize()
    mpscffi.set_shader_log()
    mpscffi.set_device(before)


@pytest.mark.parametrize(
    ("format", "values", "size", "expected"),
    [
        ("plain, 100%%", [], 0, "plain, 100%"),
        # What was seen in the buffer that a GPU writes: three of four bytes, a gap, a double.
        ("EVEN i=%u m=0x%08x g=%u f=%f", ["i32 2", "i32 1370213871", "i32 56578", "double 2.25"], 24,
         "EVEN i=2 m=0x51abcdef g=56578 f=2.250000"),
        ("%d %i %u %hhd %hd", ["i32 -1", "i32 noundef 7", "i32 -1", "i32 257", "i32 65537"], 20, "-1 7 4294967295 1 1"),
        ("%d|%ld|%d|%lx", ["i32 1", "i64 1099511627776", "i32 2", "i64 -1"], 32, f"1|{2**40}|2|{2**64 - 1:x}"),
        ("%.2f|%d|%g", ["double noundef 2.25", "i32 3", "double 1.5e3"], 24, "2.25|3|1500"),
        ("%s|%d|%c", ["ptr addrspace(2) @word", "i32 5", "i32 65"], 16, "one|5|A"),
        ("%d %v4f", ["i32 1", "<4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>"], 32,
         "1 1.000000,2.000000,3.000000,4.000000"),
        ("%v3hld %v2hd %d", ["<3 x i32> <i32 -1, i32 2, i32 3>", "<2 x i16> <i16 -1, i16 4>", "i32 9"], 24,
         "-1,2,3 -1,4 9"),
        ("%v2hf %v4hhu", ["<2 x half> <half 0.5, half 1.5>", "<4 x i8> <i8 -1, i8 1, i8 2, i8 3>"], 8,
         "0.500000,1.500000 255,1,2,3"),
        ("%d and %d", ["i32 1"], 4, "1 and %d"),
        ("%q %", [], 0, "%q %"),
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_formats(messages: list[ShaderMessage], format: str, values: list[str], size: int, expected: str) -> None:
    top, call = logger(format, values, size)
    mpscffi.load_metallib(metallib([Kernel("k", [], call, top=top)])).k(threads=1)
    mpscffi.synchronize()
    assert [message.message for message in messages] == [expected]


@pytest.mark.parametrize(("type", "level"), [(0, "notice"), (1, "info"), (2, "debug"), (16, "error"), (17, "fault")])
@pytest.mark.parametrize(
    ("log", "names"), [("@default", ("", "")), ("@mine", ("org.example", "physics"))], ids=["default", "mine"]
)
def test_levels_and_loggers(
    messages: list[ShaderMessage], type: int, level: str, log: str, names: tuple[str, str]
) -> None:
    top, call = logger("hello", [], 0, log=log, type=type)
    mpscffi.load_metallib(metallib([Kernel("speak", [], call, top=top)])).speak(threads=1)
    mpscffi.synchronize()
    (message,) = messages
    assert (message.level, message.subsystem, message.category) == (level, *names)
    assert (message.message, message.kernel) == ("hello", "speak")


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("meets", [False, True])
def test_each_thread_logs_its_own(messages: list[ShaderMessage], validate: bool, meets: bool) -> None:
    """In a loop, which must not take more of the stack each time."""
    top, call = logger("%u %f", ["i32 %1", "double %value"], 16)
    barrier = "  call void @air.wg.barrier(i32 2, i32 1) #0\n" if meets else ""
    body = f"""  br label %loop
loop:
  %n = phi i32 [ 0, %2 ], [ %next, %loop ]
  %wide = zext i32 %1 to i64
  %place = getelementptr inbounds float, ptr addrspace(1) %0, i64 %wide
  %loaded = load float, ptr addrspace(1) %place, align 4
  %value = fpext float %loaded to double
{call}
{barrier}  %next = add i32 %n, 1
  %more = icmp ult i32 %next, 500
  br i1 %more, label %loop, label %done
done:"""
    top += "declare void @air.wg.barrier(i32, i32) #0\n" if meets else ""
    kernel = Kernel("count", [device("x", 0), given("thread_position_in_grid")], body, top=top)
    count = mpscffi.load_metallib(metallib([kernel]), validate=validate).count
    count(mpscffi.asarray(np.arange(8, dtype="f4") / 4), threads=8, group_size=4)
    mpscffi.synchronize()
    found = [message.message for message in messages]
    assert {text: found.count(text) for text in set(found)} == {f"{i} {i / 4:f}": 500 for i in range(8)}


def test_what_no_logger_does_is_refused() -> None:
    top, call = logger("x", [], 0)
    through = call.replace("@_ZNU11MTLconstantK5metal6os_log3logEPU11MTLconstantKcz", "%p")
    body = "  %p = load ptr, ptr addrspace(2) %0, align 8\n" + through
    kernel = Kernel("k", [constant("n", 0)], body, top=top)
    with pytest.raises(errors.CompileError, match="kernel 'k': it has variable arguments in another way than loggers"):
        mpscffi.load_metallib(metallib([kernel])).k(1, threads=1)
    other = top.replace("os_log(ptr addrspace(2), ptr addrspace(2), i32,", "os_log(ptr addrspace(2), i32, i32,")
    other = other.replace("os_log(ptr addrspace(2) %5, ptr addrspace(2) %7,", "os_log(ptr addrspace(2) %5, i32 0,")
    with pytest.raises(
        errors.CompileError, match=r"kernel 'k': it calls 'air.os_log' as void \(ptr, i32,.* knows it as"
    ):
        mpscffi.load_metallib(metallib([Kernel("k", [], call, top=other)])).k(threads=1)
