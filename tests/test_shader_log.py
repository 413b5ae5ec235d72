"""What kernels log: the text of messages, and where they go."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpscffi
from mpscffi import ShaderMessage

THREAD = "uint i [[thread_position_in_grid]]"
HEAD = "#include <metal_stdlib>\n#include <metal_logging>\nusing namespace metal;\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def messages(device: mpscffi.Device) -> Iterator[list[ShaderMessage]]:
    found: list[ShaderMessage] = []
    mpscffi.set_shader_log(found.append)
    yield found
    mpscffi.synchronize()
    mpscffi.set_shader_log()


def logged(messages: list[ShaderMessage], statements: str) -> list[str]:
    """Run statements in one thread, and return what they have logged."""
    source = (
        f"{HEAD}enum Colour {{ red = -3 }};\nkernel void k(device float* x, device const int* i) {{ {statements} }}"
    )
    mpscffi.compile_shader(source).k(mpscffi.ones(4), mpscffi.asarray(np.array([-1, 7], "i4")), threads=1)
    mpscffi.synchronize()
    texts = [message.message for message in messages]
    messages.clear()
    return texts


@pytest.mark.parametrize(
    ("format", "values", "expected"),
    [
        ("plain, 100%%", "", "plain, 100%"),
        ("%d|%i|%5d|%-5d|%05d|%+d|% d", "i[0], i[1], i[0], i[0], i[0], i[1], i[1]", "-1|7|   -1|-1   |-0001|+7| 7"),
        ("%u %x %X %#x %o", "i[0], i[0], uint(255), uint(255), uint(8)", "4294967295 ffffffff FF 0xff 10"),
        ("%hhd %hd %hhu %hu", "int(257), int(65537), i[0], i[0]", "1 1 255 65535"),
        ("%ld %lu %lx %llu", "1l << 40, 1ul << 40, -1l, ulong(-1)", f"{2**40} {2**40} {2**64 - 1:x} {2**64 - 1}"),
        ("%d %u %d", "char(-1), uchar(200), short(-300)", "-1 200 -300"),
        ("%x", "char(-1)", "ffffffff"),  # passed as an int, as in C
        ("%d %d", "true, red", "1 -3"),
        ("%f|%.2f|%8.3f|%-8.1f|", "1.5f, 2.25f, 1.0f, 3.0f", "1.500000|2.25|   1.000|3.0     |"),
        ("%e|%g|%G", "1500.0f, 0.5f, 1e20f", "1.500000e+03|0.5|1E+20"),
        ("%f %f %f", "half(0.5h), bfloat(2.5bf), x[3]", "0.500000 2.500000 1.000000"),
        ("%f %f %f", "INFINITY, -INFINITY, NAN", "inf -inf nan"),
        ("%a", "1.0f", "0x1p+0"),
        ("%c%c|%3c|", "65, 'b', 'c'", "Ab|  c|"),
        ("%s|%6s|%-6s|%.2s|", '"one", "two", "three", "four"', "one|   two|three |fo|"),
        ("%v4f|%.1v2f", "float4(1, 2, 3, 4), float2(0.5, 1.5)", "1.000000,2.000000,3.000000,4.000000|0.5,1.5"),
        ("%v3hld %v2hd", "int3(-1, 2, 3), short2(-1, 4)", "-1,2,3 -1,4"),
        ("%v4hhu %v2lu", "uchar4(255, 1, 2, 3), ulong2(1, 1ul << 40)", f"255,1,2,3 1,{2**40}"),
        ("%v2x %v3u", "char2(-1, 1), packed_uint3(1, 2, 3)", "ff,1 1,2,3"),
        ("%v2f", "float4(1, 2, 3, 4).zy", "3.000000,2.000000"),
        ("%p", "(device float*)nullptr", "(nil)"),
        ("%d and %d", "1", "1 and %d"),  # no value
        ("%d", "2.5f", "2.500000"),  # of another kind
        ("%q %", "", "%q %"),  # no conversions
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_formats(messages: list[ShaderMessage], format: str, values: str, expected: str) -> None:
    arguments = f", {values}" if values else ""
    assert logged(messages, f'os_log_default.log("{format}"{arguments});') == [expected]


def test_levels_and_loggers(device: mpscffi.Device, messages: list[ShaderMessage]) -> None:
    library = mpscffi.compile_shader(f"""{HEAD}
constant os_log mine("org.example", "physics");
kernel void speak() {{
  mine.log("a");
  mine.log_debug("b");
  mine.log_info("c");
  mine.log_error("d");
  mine.log_fault("e");
  mine.log_with_type(os_log_type_info, "f %d", 6);
  metal::os_log_default.log_error("g");
}}""")
    library.speak(threads=1)
    mpscffi.synchronize()
    levels = ["notice", "debug", "info", "error", "fault", "info", "error"]
    assert [message.level for message in messages] == levels
    assert [message.message for message in messages] == ["a", "b", "c", "d", "e", "f 6", "g"]
    assert {(message.subsystem, message.category) for message in messages[:-1]} == {("org.example", "physics")}
    assert (messages[-1].subsystem, messages[-1].category) == ("", "")
    assert {message.kernel for message in messages} == {"speak" if device.backend == "host" else ""}


def test_a_least_level(messages: list[ShaderMessage]) -> None:
    mpscffi.set_shader_log(messages.append, level="error")
    assert logged(
        messages, 'os_log_default.log("no"); os_log_default.log_info("no"); os_log_default.log_error("yes");'
    ) == ["yes"]


@pytest.mark.parametrize("barrier", ["", "threadgroup_barrier(mem_flags::mem_none);"])
def test_each_threads_messages_are_in_order(messages: list[ShaderMessage], barrier: str) -> None:
    library = mpscffi.compile_shader(f"""{HEAD}
kernel void count(uint i [[thread_position_in_grid]]) {{
  for (int n = 0; n < 5; n++) {{ os_log_default.log("%u %d", i, n); {barrier} }}
}}""")
    library.count(threads=1000, group_size=100)
    mpscffi.synchronize()
    seen: dict[int, list[int]] = {}
    for message in messages:
        thread, number = map(int, message.message.split())
        seen.setdefault(thread, []).append(number)
    assert seen == {thread: [0, 1, 2, 3, 4] for thread in range(1000)}


def test_many_streams_log_at_once(messages: list[ShaderMessage]) -> None:
    library = mpscffi.compile_shader(
        f'{HEAD}kernel void k(constant uint& n, {THREAD}) {{ os_log_default.log("%u %u", n, i); }}'
    )

    def run(number: int) -> None:
        with mpscffi.stream(mpscffi.Stream()):
            for _ in range(5):
                library.k(number, threads=64)
            mpscffi.synchronize()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {f"{number} {i}": 5 for number in range(4) for i in range(64)}
    found: dict[str, int] = {}
    for message in messages:
        found[message.message] = found.get(message.message, 0) + 1
    assert found == counts


@pytest.mark.host_only("Metal drops them without a word")
def test_what_has_no_room_is_counted(device: mpscffi.Device, messages: list[ShaderMessage]) -> None:
    mpscffi.set_shader_log(messages.append, buffer_size=1024)
    library = mpscffi.compile_shader(
        f'{HEAD}kernel void k(uint i [[thread_position_in_grid]]) {{ os_log_default.log("%u", i); }}'
    )
    library.k(threads=1000, group_size=1000)
    mpscffi.synchronize()
    lost = sum(message.dropped for message in messages)
    kept = [message for message in messages if not message.dropped]
    assert lost > 0
    assert lost + len(kept) == 1000
    assert "the log keeps 1024 bytes" in messages[-1].message


def test_long_messages_are_cut(messages: list[ShaderMessage]) -> None:
    (text,) = logged(messages, 'os_log_default.log("%5000d", 1);')
    assert text == " " * 1023


@pytest.mark.host_only("what a bad pointer does")
def test_texts_of_bad_pointers_are_faults_of_the_kernel(device: mpscffi.Device, messages: list[ShaderMessage]) -> None:
    with pytest.raises(mpscffi.errors.ExecutionError, match="kernel 'k' failed: read"):
        logged(messages, 'os_log_default.log("%s", (constant char*)16);')
    assert logged(messages, 'os_log_default.log("still there");') == ["still there"]


@pytest.mark.host_only("validation")
def test_validated_kernels_log(device: mpscffi.Device, messages: list[ShaderMessage]) -> None:
    library = mpscffi.compile_shader(
        f'{HEAD}kernel void k(device float* x, {THREAD}) {{ os_log_default.log("%u %.1f %s", i, x[i], "t"); }}',
        validate=True,
    )
    library.k(mpscffi.asarray(np.array([0.5, 1.5], "f4")))
    mpscffi.synchronize()
    assert [message.message for message in messages] == ["0 0.5 t", "1 1.5 t"]


# ---------------------------------------------------------------- where they go


def test_by_default_they_go_to_logging(device: mpscffi.Device, caplog: pytest.LogCaptureFixture) -> None:
    mpscffi.set_shader_log()
    with caplog.at_level(logging.DEBUG, logger="mpscffi.shader"):
        mpscffi.compile_shader(f'{HEAD}kernel void k() {{ os_log_default.log_error("broken: %d", 4); }}').k(threads=1)
        mpscffi.synchronize()
    (record,) = [record for record in caplog.records if record.name == "mpscffi.shader"]
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith("broken: 4")


def test_notices_have_a_level_with_a_name(device: mpscffi.Device, caplog: pytest.LogCaptureFixture) -> None:
    mpscffi.set_shader_log()
    with caplog.at_level(logging.DEBUG, logger="mpscffi.shader"):
        mpscffi.compile_shader(f'{HEAD}kernel void k() {{ os_log_default.log("plain"); }}').k(threads=1)
        mpscffi.synchronize()
    (record,) = [record for record in caplog.records if record.name == "mpscffi.shader"]
    assert (record.levelno, record.levelname) == (25, "NOTICE")


SCRIPT = '''
import mpscffi
source = """
#include <metal_stdlib>
constant metal::os_log mine("org.example", "x");
kernel void k() { mine.log_debug("here"); }
"""
library = mpscffi.compile_shader(source)
BEFORE
library.k(threads=1)
mpscffi.synchronize()
'''


def test_without_logging_they_go_to_standard_error(python: Run) -> None:
    result = python(SCRIPT.replace("BEFORE", ""))
    assert result.returncode == 0
    assert result.stderr.endswith(": here\n")
    assert result.stderr.count("\n") == 1


def test_c_programs_find_them_on_standard_error(python: Run, device: mpscffi.Device) -> None:
    forgotten = "from mpscffi._ffi import ffi, lib; assert lib.mps_log_set(ffi.NULL) == 0"
    result = python(SCRIPT.replace("BEFORE", forgotten))
    kernel = " of kernel 'k'" if device.backend == "host" else ""
    assert result.stderr == f"mpsshim: debug org.example:x{kernel}: here\n"


def test_what_a_handler_raises_is_told_and_the_rest_goes_on(
    device: mpscffi.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: told.append(info.exc_value))

    def handler(message: ShaderMessage) -> None:
        raise ZeroDivisionError(message.message)

    mpscffi.set_shader_log(handler)
    try:
        mpscffi.compile_shader(f'{HEAD}kernel void k() {{ os_log_default.log("1"); os_log_default.log("2"); }}').k(
            threads=1
        )
        mpscffi.synchronize()
    finally:
        mpscffi.set_shader_log()
    assert [str(error) for error in told] == ["1", "2"]


def test_a_handler_cannot_wait_or_change_itself(device: mpscffi.Device) -> None:
    errors: list[str] = []

    def handler(message: ShaderMessage) -> None:
        for call in (mpscffi.synchronize, mpscffi.set_shader_log):
            try:
                call()
            except mpscffi.errors.Error as error:
                errors.append(str(error))

    mpscffi.set_shader_log(handler)
    try:
        mpscffi.compile_shader(f'{HEAD}kernel void k() {{ os_log_default.log("1"); }}').k(threads=1)
        mpscffi.synchronize()
    finally:
        mpscffi.set_shader_log()
    assert ["a handler of messages cannot" in error for error in errors] == [True, True], errors


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"handler": 3}, TypeError),
        ({"level": "loud"}, ValueError),
        ({"buffer_size": 1023}, ValueError),
        ({"buffer_size": (1 << 30) + 1}, ValueError),
        ({"buffer_size": 2.0}, ValueError),
    ],
)
def test_bad_arguments(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        mpscffi.set_shader_log(**arguments)


# ---------------------------------------------------------------- the language


def test_there_is_no_printf(device: mpscffi.Device) -> None:
    with pytest.raises(SyntaxError, match="undeclared identifier 'printf'"):
        mpscffi.compile_shader(f'{HEAD}kernel void k() {{ printf("no"); }}')


def test_older_languages_have_no_logging(device: mpscffi.Device) -> None:
    with pytest.raises(SyntaxError, match="os_log_default"):
        mpscffi.compile_shader(f'{HEAD}kernel void k() {{ os_log_default.log("no"); }}', language_version=(3, 1))


def test_what_cannot_be_logged_is_an_error(device: mpscffi.Device) -> None:
    with pytest.raises(SyntaxError, match="only numbers, vectors of them, and pointers can be logged"):
        mpscffi.compile_shader(
            f'{HEAD}struct S {{ int x; }};\nkernel void k() {{ S s = {{}}; os_log_default.log("%d", s); }}'
        )
