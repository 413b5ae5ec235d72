"""The machine that kernels are compiled for, and the options that follow from it."""

from __future__ import annotations

import os

_COMMON = (
    "-std=gnu++17",
    "-fdeclspec",
    "-fsigned-char",  # Arm's own is unsigned
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-stack-protector",
    "-fno-strict-aliasing",
    # What goes wrong at run time must show: a null pointer that is followed, a loop that never ends.
    "-fno-delete-null-pointer-checks",
    "-fno-finite-loops",
    # A kernel sees no error numbers and no floating-point traps, so calls of the math library can become vector code.
    "-fno-math-errno",
    "-fno-trapping-math",
    # Vectors that lie at a multiple of their elements' size only, as rows of odd length do, are read as on a GPU.
    "-fmax-type-align=8",
    # No estimates of 1 / x and 1 / sqrt(x), which give NaN for zero and infinity.
    "-mrecip=none",
    # A float that an integer type cannot hold becomes the nearest value that it can, NaN becomes 0, as on a GPU.
    "-fno-strict-float-cast-overflow",
    "-fconstexpr-steps=100000000",
    # The stacks of kernels end in a guard page, which a big frame must not step over.
    "-fstack-clash-protection",
    # SIMD-group functions are told apart by where they are called, so no call may be merged with another, or doubled:
    # not by the optimizer, in whatever function it stands, and not by the code generator.
    *("-Xclang", "-fconvergent-functions"),
    *("-mllvm", "-enable-tail-merge=0"),
    *("-mllvm", "-tail-dup-size=0"),
    *("-mllvm", "-tail-dup-placement=0"),
    # Lanes that took different ways meet again because the lowest call goes first: the code keeps the source's order.
    *("-mllvm", "-disable-block-placement"),
    # Neither the system's headers nor clang's own: Metal has none of them.
    "-nostdinc",
    "-nostdinc++",
    "-U__linux__",
    "-U__linux",
    "-Ulinux",
    "-U__unix__",
    "-U__unix",
    "-Uunix",
    "-Wno-everything",
    "-fno-crash-diagnostics",  # files about a crash of clang's would stay behind
    "-Werror=vla",  # Metal has no arrays whose length is known only when they are made
    "-O3",
)
# What a Metal compiler warns of, and what a kernel's author likes to know; not of what the rewriting brings.
WARNINGS = (
    "-Wall",
    "-Warray-bounds",
    "-Wconstant-conversion",
    "-Wdivision-by-zero",
    "-Wexcess-initializers",
    "-Wliteral-conversion",
    "-Wshift-count-negative",
    "-Wshift-count-overflow",
    "-Wtautological-compare",
    "-Wno-unused-const-variable",
    "-Wno-unused-function",
    "-Wno-unused-template",
    "-Wno-unneeded-internal-declaration",
)
# For kernels in which lanes of a SIMD-group, each a fiber, meet. Where the lifetimes of variables are marked, what
# follows a loop has a part that stands in front of its body.
IN_ORDER = ("-Xclang", "-disable-lifetime-markers")
# For kernels that are looked at in a debugger.
DEBUG = ("-O0", "-g", "-gdwarf-4", "-fno-limit-debug-info")
# Code of thousands of statements in one function keeps LLVM busy for minutes: what it asks of the loop around them, how
# it schedules them. So such code is compiled in two steps that are quick whatever it is: made simple as it is for
# linking, which means before any loop is analysed, and then turned into machine code without much choice.
QUICK_SIMPLIFY = ("-flto=thin", "-c")
QUICK_GENERATE = ("-O1", "-Xclang", "-disable-llvm-passes", "-mllvm", "-fast-isel", "-c")
# The last resort: code as it is written, statement by statement.
PLAIN_SIMPLIFY = ("-Xclang", "-disable-llvm-passes", "-emit-llvm", "-c")
PLAIN_GENERATE = ("-O0", "-c")
# Of a kernel with so many tokens in functions it may reach, or so many lines of LLVM's code, it is clear beforehand.
LONG_TOKENS = 16_000
LONG_LINES = 20_000
# CPU seconds that one step may take that has a quicker one to be replaced by.
PATIENCE = 15
# Metal contracts a * b + c in every mode, unless the source says otherwise.
_MATH = {
    "safe": ("-ffp-contract=fast-honor-pragmas",),
    "relaxed": ("-ffp-contract=fast-honor-pragmas", "-fassociative-math", "-freciprocal-math", "-fno-signed-zeros"),
    # Infinities and NaN keep their meaning even here: kernels start reductions from INFINITY and ask isnan.
    "fast": (
        "-ffp-contract=fast-honor-pragmas",
        "-fassociative-math",
        "-freciprocal-math",
        "-fno-signed-zeros",
        "-fapprox-func",
    ),
}


def machine() -> str:
    """As "x86_64" or "aarch64"."""
    return os.uname().machine


def has_glibc() -> bool:
    """Whether the system's C library is glibc, which brings vector versions of math functions on x86-64."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):
        return False


def cpu() -> str:
    """Return the CPU that code is made for, by clang's name of it: that of MPSCFFI_CPU, else this machine's."""
    return os.environ.get("MPSCFFI_CPU") or "native"


def cpu_identity() -> str:
    """Differs between machines whose code is not exchangeable."""
    if cpu() != "native":
        return f"{machine()}\n{cpu()}"
    try:
        with open("/proc/cpuinfo", "rb") as file:
            text = file.read(8192)
    except OSError:
        return machine()
    wanted = (b"vendor_id", b"cpu family", b"model\t", b"stepping", b"flags", b"CPU ", b"Features")
    first = text.partition(b"\n\n")[0]
    lines = [line for line in first.split(b"\n") if line.startswith(wanted)]
    return machine() + "\n" + b"\n".join(lines).decode("ascii", "replace")


def compile_flags(math_mode: str, is_zig: bool) -> list[str]:
    """Clang's options, the same for a precompiled header and for all that uses it."""
    flags = [*_COMMON, *_MATH[math_mode]]
    if is_zig and has_glibc():
        flags += ["-target", f"{machine()}-linux-gnu"]  # Zig's own default is musl
    if machine() == "x86_64":
        flags.append(f"-march={cpu()}")
        if has_glibc():
            flags.append("-fveclib=libmvec")
    elif machine() == "aarch64":
        flags.append(f"-mcpu={cpu()}")
    return flags


def math_libraries() -> list[str]:
    """Paths of the libraries with the math functions that kernels call."""
    names = ["libm.so.6"]
    if machine() == "x86_64":
        names.append("libmvec.so.1")
    found = []
    for name in names:
        path = next(
            (path for path in (os.path.join(place, name) for place in _library_places()) if os.path.exists(path)), None
        )
        if path is not None:
            found.append(path)
    return found


def _library_places() -> list[str]:
    """Directories of the C library: first the one that this process runs on."""
    places = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                path = line.rstrip("\n").partition("/")[2]
                if path.endswith("/libc.so.6"):
                    places.append(os.path.dirname("/" + path))
                    break
    except OSError:
        pass
    places += [f"{root}/{machine()}-linux-gnu" for root in ("/lib", "/usr/lib")]
    places += ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    return places
