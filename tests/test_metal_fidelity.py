"""The stand-in's Metal is Apple's: its selectors, types and values against two public descriptions of Apple's.

The Metal device compiles against the stand-in's headers only where there is no Mac. So what they say must be checked
against somebody else, lest a wrong belief hides in both. metal-cpp, in the wheel of mlx-metal, tells selectors with the
types of results and arguments; PyObjC's metadata tells the values of constants.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEADERS = ROOT / "tests" / "standin" / "include"
METAL_H = HEADERS / "Metal" / "Metal.h"
LIBC = ROOT / "tests" / "standin" / "libc"
MATRICES_H = HEADERS / "MetalPerformanceShaders" / "MetalPerformanceShaders.h"
FOUNDATION_H = HEADERS / "Foundation" / "Foundation.h"

#: What metal-cpp, which wraps a part of Foundation only, does not have: all of it is in Foundation since macOS 10.10.
BEYOND_METAL_CPP = {
    "dictionary",
    "stringWithUTF8String:",
    "numberWithUnsignedInteger:",
    "setObject:forKey:",
    "exceptionWithName:reason:userInfo:",
    "name",
    "reason",
    "raise",
    "initWithBytes:length:encoding:",
    "componentsJoinedByString:",
    "path",
    "isKindOfClass:",
    "new",
    "class",
    "dealloc",
}

#: metal-cpp knows nothing of Metal Performance Shaders: what Apple's documentation says of each class.
DOCUMENTED = {
    "MPSMatrixDescriptor": {
        "matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:": "instancetype NSUInteger "
        "NSUInteger NSUInteger NSUInteger NSUInteger MPSDataType",
    },
    "MPSMatrix": {"initWithBuffer:offset:descriptor:": "instancetype MTLBuffer* NSUInteger MPSMatrixDescriptor*"},
    "MPSKernel": {"setLabel:": "void NSString*"},
    "MPSMatrixMultiplication": {
        "initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:": ""
        "instancetype MTLDevice* bool bool NSUInteger NSUInteger NSUInteger double double",
        "encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:": "void MTLCommandBuffer* MPSMatrix* MPSMatrix* "
        "MPSMatrix*",
    },
}

# ---- the two descriptions, from PyPI

WHEELS = {
    "pyobjc-framework-Metal": ["macosx_11_0_universal2", "3.11"],
    "pyobjc-framework-MetalPerformanceShaders": ["macosx_11_0_universal2", "3.11"],
    "mlx-metal": ["macosx_14_0_arm64", "3.12"],
}


def _pip() -> list[str]:
    """Return a command that is pip: this Python's own, or, in an environment without one, that on PATH."""
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        command = [python, "-m", "pip"]
        if shutil.which(python) is not None:
            asked = subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False)
            if asked.returncode == 0:
                return command
    return [sys.executable, "-m", "pip"]


def _wheel(package: str) -> Path:
    """Return a package's macOS wheel, downloaded once."""
    folder = Path(tempfile.gettempdir()) / f"mpscffi-fidelity-{os.getuid()}"
    pattern = package.replace("-", "_") + "-*.whl"
    found = sorted(p for p in folder.glob("*.whl") if p.match(pattern) or p.match(pattern.lower()))
    if found:
        return found[-1]
    platform, version = WHEELS[package]
    command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--platform", platform, "--python-version", version, "--dest", str(folder), package]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"{package} cannot be downloaded: {result.stderr}")
        pytest.skip(f"{package} cannot be downloaded, is this machine offline? {result.stderr.splitlines()[-1:]}")
    return _wheel(package)


@dataclass
class Interface:
    """A class or protocol: what it inherits from, and the types of result and arguments of each of its methods."""

    parents: list[str] = field(default_factory=list)
    methods: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)


def _find(interfaces: dict[str, Interface], name: str, selector: str) -> list[tuple[str, ...]]:
    interface = interfaces.get(name)
    if interface is None:
        return []
    found = list(interface.methods.get(selector, []))
    for parent in interface.parents:
        found += _find(interfaces, parent, selector)
    return found


def _split(arguments: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(arguments):
        depth += (char in "(<") - (char in ")>")
        if char == "," and depth == 0:
            parts.append(arguments[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, arguments[start:]] if part.strip()]


def _kind(text: str) -> str:
    """Reduce a type of either language to a common spelling."""
    text = re.sub(r"\b(const|class|_Nullable|_Nonnull|oneway)\b", "", text)
    if "(^" in text or "Handler" in text or "HandlerFunction" in text:
        return "block"
    text = re.sub(r"\bid\s*<\s*(\w+)\s*>", r"\1*", text)
    text = re.sub(r"<.*>", "", text).replace("&", "*").replace(" ", "")
    text = re.sub(r"\b(MTL4|MTL|NS)::", r"\1", text)
    aliases = {
        "BOOL": "bool",
        "NSErrorDomain": "NSString*",
        "NSErrorUserInfoKey": "NSString*",
        "NSExceptionName": "NSString*",
        "NSStringEncoding": "NSUInteger",
        "unsignedlonglong": "uint64_t",
        "MTLAutoreleasedComputePipelineReflection*": "MTLComputePipelineReflection**",
        "MTLGPUAddress": "uint64_t",
        "ObjectType": "NSObject*",
        "KeyType": "NSObject*",
        "id": "NSObject*",
    }
    return aliases.get(text, text)


def _metal_cpp(texts: dict[str, str]) -> dict[str, Interface]:
    """Read metal-cpp: a class `CommandBuffer` of namespace MTL is called MTLCommandBuffer here, as Apple's is."""
    bridge = "".join(texts.values())
    selectors = dict(re.findall(r'PRIVATE_DEF_SEL\(\s*(\w+),\s*"([^"]+)"\s*\)', bridge))
    interfaces: dict[str, Interface] = {}
    for name, text in texts.items():
        space = "NS" if name.startswith("NS") else "MTL4" if name.startswith("MTL4") else "MTL"
        for own, parents in re.findall(r"class (\w+) : public NS::(?:Referencing|Copying|SecureCoding)<([^>]*)>", text):
            listed = [parent.strip() for parent in parents.split(",")][1:] or ["NS::Object"]
            names = [p.replace("::", "") if "::" in p else space + p for p in listed]
            interfaces.setdefault(space + own, Interface()).parents += names
        pattern = (
            r"_(?:MTL4?|NS)_INLINE\s+(?P<result>[^;{}]*?)\s+(?P<space>MTL4|MTL|NS)::(?P<own>\w+)::\w+\((?P<given>[^{}]*)\)"
            r"(?:\s*const)?\s*(?::[^{}]*)?\{(?P<body>[^{}]*)\}"
        )
        for match in re.finditer(pattern, text):
            used = re.search(r"PRIVATE_SEL\((\w+)\)", match["body"])
            if used is None or used[1] not in selectors:
                continue
            types = [re.sub(r"\s*=.*", "", part) for part in _split(match["given"])]
            types = [t if "(^" in t else re.sub(r"\b\w+$", "", t).strip() for t in types]
            types = [re.sub(r"\s*\w+\[\]$", "*", t) for t in types]
            interface = interfaces.setdefault(match["space"] + match["own"], Interface())
            types = [_kind(match["result"]), *map(_kind, types)]
            interface.methods.setdefault(selectors[used[1]], []).append(tuple(types))
    return interfaces


def _standin(text: str) -> dict[str, Interface]:
    """Read a header of the stand-in."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^@(?:protocol|class) [\w, ]+;", "", text, flags=re.MULTILINE)
    interfaces: dict[str, Interface] = {}
    pattern = r"@(?:interface|protocol)\s+(\w+)(?:<[^>]*>)?\s*(?::\s*(\w+))?\s*(?:<([^>]*)>)?\s*(.*?)@end"
    for name, parent, protocols, body in re.findall(pattern, text, flags=re.DOTALL):
        interface = interfaces.setdefault(name, Interface())
        interface.parents += [p.strip() for p in [parent, *protocols.split(",")] if p.strip()]
        body = re.sub(r"\{.*?\n\}", "", body, flags=re.DOTALL)
        for method in re.findall(r"^[-+]\s*\((.*?;)", body, flags=re.DOTALL | re.MULTILINE):
            selector, types = _method("(" + " ".join(method.rstrip(";").split()))
            interface.methods.setdefault(selector, []).append(types)
    return interfaces


def _method(text: str) -> tuple[str, tuple[str, ...]]:
    """Take `(result)name:(type)argument name:(type)argument` apart."""
    types, rest, names = [], text, ""
    while rest:
        at = rest.find("(")
        if at < 0:
            names += rest
            break
        names += rest[:at]
        depth, end = 0, at
        for end in range(at, len(rest)):
            depth += (rest[end] == "(") - (rest[end] == ")")
            if depth == 0:
                break
        types.append(_kind(rest[at + 1 : end]))
        rest = rest[end + 1 :]
    if ":" not in names:
        return names.strip(), tuple(types)
    return "".join(re.findall(r"(\w+:)", names)), tuple(types)


def _cpp_texts() -> dict[str, str]:
    with zipfile.ZipFile(_wheel("mlx-metal")) as wheel:
        names = [name for name in wheel.namelist() if "/metal_cpp/" in name and name.endswith(".hpp")]
        return {Path(name).name: wheel.read(name).decode() for name in names}


@pytest.fixture(scope="module")
def apple() -> dict[str, Interface]:
    return _metal_cpp(_cpp_texts())


def _metadata(framework: str) -> str:
    with zipfile.ZipFile(_wheel(f"pyobjc-framework-{framework}")) as wheel:
        return wheel.read(f"{framework}/_metadata.py").decode()


def _values(metadata: str) -> dict[str, int]:
    found = re.findall(r"\$(MTL\w+|MPS\w+)@(-?\d+)(?=\$)", metadata.replace("$", "$$"))
    return {name: int(value) for name, value in found}


@pytest.fixture(scope="module")
def values() -> dict[str, int]:
    return _values(_metadata("Metal"))


# ---- the checks


def _agrees(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether two signatures agree, where both say what they mean."""
    if len(ours) != len(theirs):
        return False
    pairs = list(zip(ours, theirs, strict=True))
    vague = {"instancetype", "NSObject*"}
    return all(a == b or a in vague or b in vague for a, b in pairs)


def disagreements(ours: dict[str, Interface], apple: dict[str, Interface]) -> Iterator[str]:
    """What the stand-in's Metal says otherwise than metal-cpp."""
    for name, interface in ours.items():
        for selector, signatures in interface.methods.items():
            known = _find(apple, name, selector)
            if not known:
                yield f"{name} has no {selector}"
            for signature in signatures:
                if known and not any(_agrees(signature, one) for one in known):
                    yield f"{name} {selector} is {known}, not {signature}"


def test_selectors_of_metal(apple: dict[str, Interface]) -> None:
    ours = _standin(METAL_H.read_text())
    assert len(ours) > 25
    assert sum(len(interface.methods) for interface in ours.values()) > 110
    assert list(disagreements(ours, apple)) == []


def test_selectors_of_foundation(apple: dict[str, Interface]) -> None:
    known = {selector for name, one in apple.items() if name.startswith("NS") for selector in one.methods}
    texts = "".join(_cpp_texts().values())
    known |= set(re.findall(r'PRIVATE_DEF_SEL\(\s*\w+,\s*"([^"]+)"\s*\)', texts))
    ours = _standin(FOUNDATION_H.read_text())
    assert len(ours) > 12
    sent = {selector for interface in ours.values() for selector in interface.methods}
    assert sent - known - BEYOND_METAL_CPP == set()
    assert sent | known >= BEYOND_METAL_CPP, "the list above names what nobody uses"


def test_selectors_of_matrices() -> None:
    ours = _standin(MATRICES_H.read_text())
    said = {name: {s: " ".join(types) for s, (types,) in one.methods.items()} for name, one in ours.items()}
    assert said == DOCUMENTED
    metadata = _metadata("MetalPerformanceShaders")
    # PyObjC lists methods with booleans, by their arguments' places behind the object and the selector.
    listed = re.search(
        r'b"MPSMatrixMultiplication",\s+b"(initWithDevice:transposeLeft:[\w:]+)",\s+(\{.*?\}\}\}),', metadata, re.DOTALL
    )
    assert listed is not None
    (types,) = ours["MPSMatrixMultiplication"].methods[listed[1]]
    booleans = {place + 1 for place, kind in enumerate(types) if kind == "bool"}
    assert {int(place) for place in re.findall(r'(\d+): \{"type": b"Z"\}', listed[2])} == booleans
    # A BOOL of one object.
    assert '"MPSSupportsMTLDevice": (b"Z@",)' in metadata
    assert "BOOL MPSSupportsMTLDevice(id<MTLDevice> device);" in MATRICES_H.read_text()


def test_values_of_matrices() -> None:
    known = _values(_metadata("MetalPerformanceShaders"))
    text = MATRICES_H.read_text()
    ours = {name: int(value, 0) for name, value in re.findall(r"(MPSDataType\w+) = (0x\w+)", text)}
    bit = ours["MPSDataTypeFloatBit"]
    ours |= {
        name: bit | int(size) for name, size in re.findall(r"(MPSDataType\w+) = MPSDataTypeFloatBit \| (\d+)", text)
    }
    assert len(ours) == 3
    assert {name: value for name, value in ours.items() if known.get(name) != value} == {}


def _constants(text: str) -> dict[str, int]:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = re.findall(r"\b(MTL\w+)\s*=\s*([-\d() <+]+)", text)
    found += re.findall(r"#define (MTL\w+Shift) (\d+)", text)
    return {name: eval(value, {}) for name, value in found}


def test_values_of_constants(values: dict[str, int]) -> None:
    ours = _constants(METAL_H.read_text())
    assert len(ours) > 80
    assert {name: value for name, value in ours.items() if values.get(name) != value} == {}


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("- (id<MTLFence>)newFence;", "- (id<MTLFence>)newFences;", "MTLDevice has no newFences"),
        ("setBytes:(const void *)bytes length:", "setBytes:(const void *)bytes size:", "has no setBytes:size:atIndex:"),
        ("- (BOOL)hasUnifiedMemory;", "- (NSUInteger)hasUnifiedMemory;", "MTLDevice hasUnifiedMemory is"),
        ("value:(uint8_t)value;", "value:(NSUInteger)value;", "fillBuffer:range:value: is"),
        ("- (void)endEncoding;", "- (void)endEncoding:(BOOL)now;", "has no endEncoding:"),
    ],
)
def test_a_wrong_selector_is_found(apple: dict[str, Interface], right: str, wrong: str, expected: str) -> None:
    text = METAL_H.read_text()
    assert right in text
    found = list(disagreements(_standin(text.replace(right, wrong)), apple))
    assert any(expected in line for line in found), found


@pytest.mark.parametrize("name", ["MTLCaptureDestinationGPUTraceDocument", "MTLDataTypeULong", "MTLLanguageVersion3_2"])
def test_a_wrong_value_is_found(values: dict[str, int], name: str) -> None:
    ours = _constants(re.sub(rf"{name} = ", f"{name} = 1 + ", METAL_H.read_text()))
    assert ours[name] != values[name]


# ---- the Metal device, by a compiler that takes nothing but what the headers declare

COMPILER = next((path for name in ("clang-19", "clang-20", "clang") if (path := shutil.which(name))), None)


def _check(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if COMPILER is None:
        if os.environ.get("CI"):
            pytest.fail("there is no clang")
        pytest.skip("there is no clang on this machine")
    command = [
        COMPILER,
        "-fsyntax-only",
        "-std=gnu11",
        "-fno-objc-arc",
        "-fblocks",
        "-fobjc-exceptions",
        "-fexceptions",
    ]
    command += ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *options]
    command += [f"-I{ROOT / folder}" for folder in ("shim/include", "shim/core", "shim/metal")] + [f"-I{HEADERS}"]
    return subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=120, check=False)


SOURCES = sorted((ROOT / "shim" / "metal").glob("*.m"))
TARGETS = ["arm64-apple-macos13", "x86_64-apple-macos13"]


def test_there_are_sources() -> None:
    assert len(SOURCES) > 12


@pytest.mark.parametrize("target", TARGETS)
def test_the_device_compiles_for_macos(target: str) -> None:
    for source in SOURCES:
        result = _check(source, "-target", target, "-ffreestanding", "-nostdlibinc", f"-I{LIBC}")
        assert result.returncode == 0, result.stderr


def test_an_unknown_selector_does_not_compile(tmp_path: Path) -> None:
    text = (ROOT / "shim" / "metal" / "heap.m").read_text()
    changed = tmp_path / "heap.m"
    changed.write_text(text.replace("newHeapWithDescriptor:", "newHeapWithDescription:"))
    assert changed.read_text() != text
    result = _check(changed, "-D_GNU_SOURCE")
    assert result.returncode != 0
    assert "newHeapWithDescription:" in result.stderr
