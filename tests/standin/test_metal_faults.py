"""Faults put into the Metal device on purpose: the stand-in, or a C test over it, has to find each of them.

Each fault changes one line of one file, which is compiled anew and linked with the rest of the stand-in lane's build.
Where that is built with a sanitizer, the faults are those that this sanitizer has to find.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
METAL = ROOT / "shim" / "metal"


@dataclass(frozen=True)
class Fault:
    """What is changed, and what has to be said about it by which of the C tests."""

    name: str
    program: str
    file: str
    right: str
    wrong: str
    found: str
    sanitizer: str = ""


ALL_FAULTS = [
    Fault(
        "a command buffer leaks",
        "metal_commands",
        "segment.m",
        "  [segment->commands release];\n  free(",
        "  free(",
        "standin_live_objects.* expected",
    ),
    Fault(
        "a buffer leaks",
        "metal_memory",
        "buffer.m",
        "[(id<MTLBuffer>)buffer->impl release];",
        "(void)buffer->impl;",
        "expected 0|expected [0-9]+",
    ),
    Fault(
        "a foreign buffer is not retained",
        "metal_memory",
        "buffer.m",
        "set_impl(buffer, [impl retain]);",
        "set_impl(buffer, impl);",
        "StandinReleasedObject does not implement|released once too often|is released while a command buffer uses it",
    ),
    Fault(
        "an event is released twice",
        "metal_commands",
        "event.m",
        "    [impl->shared release];\n  }\n  pthread_mutex_destroy",
        "    [impl->shared release];\n    [impl->shared release];\n  }\n  pthread_mutex_destroy",
        "StandinReleasedObject does not implement release",
    ),
    Fault(
        "an autorelease pool is missing",
        "metal_failures",
        "error.m",
        "@autoreleasepool {",
        "{",
        "is autoreleased without a pool",
    ),
    Fault(
        "a selector that there is not",
        "metal_memory",
        "heap.m",
        "heap->size = [impl size];",
        "heap->size = (uint64_t)[(id)impl length];",
        "StandinHeap does not implement length",
    ),
    Fault(
        "an encoder stays open",
        "metal_commands",
        "segment.m",
        "[encoder endEncoding];",
        "",
        "while an encoder of it is open",
    ),
    Fault(
        "an encoder stays open for a wait",
        "metal_commands",
        "command.m",
        "    metal_end_encoder(queue);\n    metal_segment_hold_event",
        "    metal_segment_hold_event",
        "while an encoder of it is open",
    ),
    Fault(
        "a completed handler runs when its command buffer is gone",
        "metal_commands",
        "segment.m",
        "  @try {\n    [segment->commands commit];",
        "  @try {\n    [segment->commands commit];\n    [segment->commands release];",
        "StandinReleasedObject does not implement|released once too often",
    ),
    Fault(
        "a buffer is not held while the GPU uses it",
        "metal_memory",
        "command.m",
        "  metal_segment_hold_buffer(segment, buffer);\n  if (needs_kernel(device, offset | length)",
        "  if (needs_kernel(device, offset | length)",
        "is released while a command buffer uses it",
    ),
    Fault(
        "an event is not held while the GPU waits for it",
        "metal_commands",
        "segment.m",
        "  mps_event_hold(event);\n  add_hold(segment, METAL_HOLD_EVENT",
        "  add_hold(segment, METAL_HOLD_EVENT",
        "is released while a command buffer uses it|StandinReleasedObject|expected",
    ),
    Fault(
        "an encoder does not wait for the one before",
        "metal_untracked",
        "segment.m",
        "[queue->blit waitForFence:queue->fence];",
        "",
        "waits for no fence since the encoder that used it before|expected",
    ),
    Fault(
        "a product does not wait for what comes before",
        "metal_untracked",
        "matmul.m",
        "  metal_segment_barrier(queue);\n  mps_status status",
        "  metal_end_encoder(queue);\n  mps_status status",
        "waits for no fence since the encoder that used it before",
    ),
    Fault(
        "what comes behind a product does not wait for it",
        "metal_untracked",
        "matmul.m",
        "  metal_segment_barrier(queue);\n  mps_traced traced",
        "  mps_traced traced",
        "waits for no fence since the encoder that used it before",
    ),
    Fault(
        "matrices are not held while the GPU uses them",
        "metal_untracked",
        "matmul.m",
        "    metal_segment_hold_native(segment, matrices[i]);\n",
        "",
        "is released while a command buffer uses it",
    ),
    Fault(
        "bfloat16 gets to Metal Performance Shaders",
        "metal_untracked",
        "matmul.m",
        "  if (matmul->data_type == MPS_DATA_BFLOAT) {",
        "  if (false) {",
        "expected 5|gave 0",
    ),
    Fault(
        "a committed command buffer is told more",
        "metal_commands",
        "segment.m",
        "  @try {\n    [segment->commands commit];",
        "  @try {\n    [segment->commands commit];\n[segment->commands encodeWaitForEvent:queue->resume value:1];",
        "a committed command buffer is told more",
    ),
    Fault(
        "a failed signal is not made up for",
        "metal_failures",
        "event.m",
        "[impl->shared setSignaledValue:impl->value];",
        "",
        r"gave 9 \(timeout\)",
    ),
    Fault(
        "a handler comes after the commit",
        "metal_commands",
        "segment.m",
        "  @try {\n    [segment->commands commit];",
        "  @try {\n    [segment->commands commit];\n"
        "[segment->commands addCompletedHandler:^(id<MTLCommandBuffer> c) {(void)c;}];",
        "a handler comes after the commit",
    ),
    Fault(
        "a list is shorter than it should be",
        "metal_memory",
        "segment.m",
        "realloc(segment->holds, room * sizeof *holds)",
        "realloc(segment->holds, (room - 1) * sizeof *holds)",
        "heap-buffer-overflow",
        "address",
    ),
    Fault(
        "a shift that is none",
        "metal_kernels",
        "pipeline.m",
        "UINT32_C(1) << info->index",
        "UINT32_C(1) << (info->index + 32)",
        "shift exponent 32",
        "undefined",
    ),
    Fault(
        "an event is read without its lock",
        "host_event",
        "event.m",
        """  pthread_mutex_lock(&impl->lock);
  bool reached = impl->value >= value;
  pthread_mutex_unlock(&impl->lock);
  return reached;
""",
        "  return impl->value >= value;\n",
        "data race",
        "thread",
    ),
]
SANITIZERS = os.environ.get("STANDIN_SANITIZE", "").split(",")
PROGRAMS = sorted({fault.program for fault in ALL_FAULTS})
FAULTS = [fault for fault in ALL_FAULTS if fault.sanitizer in SANITIZERS]


@dataclass(frozen=True)
class Build:
    """The stand-in lane's build, for linking with one file that is another."""

    folder: Path
    commands: dict[str, list[str]]

    def library(self, fault: Fault, folder: Path) -> Path:
        text = (METAL / fault.file).read_text()
        assert text.count(fault.right) == 1, f"{fault.file} no longer has, once, {fault.right!r}"
        for header in METAL.glob("*.h"):
            shutil.copy(header, folder)
        changed = folder / fault.file
        changed.write_text(text.replace(fault.right, fault.wrong))
        objects = {source: self.folder / command[command.index("-o") + 1] for source, command in self.commands.items()}
        source = str(METAL / fault.file)
        command = list(self.commands[source])
        command[command.index("-c") + 1] = str(changed)
        command[command.index("-o") + 1] = str(folder / "changed.o")
        command.append("-w")
        subprocess.run(command, cwd=self.folder, check=True, timeout=120)
        objects[source] = folder / "changed.o"
        library = folder / "libmpsshim.so"
        link = [
            command[0],
            "-shared",
            "-o",
            str(library),
            *map(str, objects.values()),
            "-lobjc",
            "-lm",
            "-ldl",
            "-lpthread",
        ]
        link += ["-Wl,-z,nodelete", f"-Wl,--version-script,{self.folder / 'tests/standin/exports.map'}"]
        subprocess.run(link, check=True, timeout=120)
        return library


@pytest.fixture(scope="session")
def build() -> Build:
    folder = Path(os.environ["MPSCFFI_STANDIN_BUILD"])
    subprocess.run(
        ["meson", "compile", "-C", str(folder), *PROGRAMS, "host_kernels"],
        check=True,
        timeout=600,
        capture_output=True,
    )
    entries = json.loads((folder / "compile_commands.json").read_text())
    commands = {
        str((folder / entry["file"]).resolve()): shlex.split(entry["command"])
        for entry in entries
        if "/libmpsshim.so.p/" in "/" + entry["output"]
    }
    assert len(commands) > 50
    return Build(folder, commands)


def run(build: Build, library: Path, program: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("SAN_OPTIONS")}
    # Found before the programs' own, which are told by RUNPATH; a sanitizer's runtime is in the programs.
    environment |= {"LD_LIBRARY_PATH": str(library.parent), "STANDIN_ZOMBIES": "1"}
    environment.pop("LD_PRELOAD", None)
    arguments = [str(build.folder / "shim/tests/host_kernels.so")]
    if program.startswith("host_"):
        path = build.folder / "shim/tests" / program
        arguments.append("metal")
    else:
        path = build.folder / "tests/standin/c" / program
    environment |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        [str(path), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_found(fault: Fault, build: Build, tmp_path: Path) -> None:
    result = run(build, build.library(fault, tmp_path), fault.program)
    assert result.returncode != 0, "nobody has noticed"
    assert re.search(fault.found, result.stderr), result.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_fault_is_found_where_there_is_none(program: str, build: Build, tmp_path: Path) -> None:
    none = Fault("none", program, "error.m", "metal_guard(const char", "metal_guard(const char", "")
    result = run(build, build.library(none, tmp_path), program)
    assert result.returncode == 0, result.stderr
