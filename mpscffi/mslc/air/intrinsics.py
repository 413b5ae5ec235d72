"""The functions that AIR declares and Metal's compiler brings, as LLVM code that calls those of `intrinsics.cpp`.

Each is looked up by its name, and then its signature must be the one that is known for it: what differs is told, never
guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CompileError
from .module import Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FLOATS = {"f32": "float", "f16": "half", "bf16": "bfloat"}
_INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_NAME = re.compile(r"(?P<base>[a-z][\w.]*?)(?:\.(?P<sign>[su]))?\.(?:v(?P<lanes>\d+))?(?P<type>bf16|f16|f32|i\d+)")
_SPEEDS = ("fast_", "precise_")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a function that works component by component takes.

    Attributes
    ----------
    kinds : str
        Of which types there is one: "f" floating point, "i" integers whose sign is told, "b" integers without.
    operands : str
        "T" of the function's own type, "E" an int for each component, "P" a pointer to values of its type, "Q" one
        to ints, "h" and "w" one 16-bit or 32-bit integer for all, "z" whether the result for zero is of no interest.
    meets : bool
        Whether lanes of a SIMD-group meet in it.
    """

    kinds: str
    operands: str
    meets: bool = False


def _rules() -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}

    def add(kinds: str, operands: str, names: str, meets: bool = False) -> None:
        for name in names.split():
            rules[name] = _Rule(kinds, operands, meets)

    add("f", "T", "acos acosh asin asinh atan atanh ceil cos cosh cospi exp exp2 exp10 fabs floor fract log log2 log10")
    add("f", "T", "rint round rsqrt saturate sign sin sinh sinpi sqrt tan tanh tanpi trunc")
    add("f", "TT", "atan2 copysign fdim fmax fmin fmod nextafter pow powr step")
    add("f", "TTT", "fma fmax3 fmedian3 fmin3 mix smoothstep")
    add("f", "TE", "ldexp")
    add("f", "TP", "sincos modf")
    add("f", "TQ", "frexp")
    add("i", "T", "abs")
    add("b", "T", "popcount reverse_bits")
    add("b", "Tz", "clz ctz")
    add("i", "TT", "abs_diff add_sat hadd max min mul_hi rhadd sub_sat")
    add("b", "TT", "rotate")
    add("fi", "TTT", "clamp")
    add("i", "TTT", "mad_hi mad_sat max3 median3 min3")
    add("i", "Tww", "extract_bits")
    add("b", "TTww", "insert_bits")
    for group in ("simd_", "quad_"):
        reductions = "sum product min max prefix_inclusive_sum prefix_exclusive_sum prefix_inclusive_product"
        for name in (reductions + " prefix_exclusive_product").split():
            add("fi", "T", group + name, True)
        for name in ("and", "or", "xor"):
            add("ib", "T", group + name, True)
        add("fib", "T", group + "broadcast_first", True)
        shuffles = "broadcast shuffle shuffle_xor shuffle_up shuffle_down shuffle_rotate_up shuffle_rotate_down"
        for name in shuffles.split():
            add("fib", "Th", group + name, True)
        for name in ("shuffle_and_fill_up", "shuffle_and_fill_down"):
            add("fib", "TThh", group + name, True)
    return rules


_RULES = _rules()


class Intrinsics:
    """Writes the bodies of the functions that a module declares.

    Attributes
    ----------
    declarations : dict of str to str
        Declarations of what the bodies call.
    meets : bool
        Whether threads meet in any of them: at a barrier, or as lanes of a SIMD-group.
    """

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        self.meets = False

    def define(self, symbol: str, signature: Signature) -> str:
        """The definition of a function.

        Parameters
        ----------
        symbol : str
            With its "@".
        signature : Signature

        Raises
        ------
        CompileError
            If it is not known, or not with these types.
        """
        name = symbol[1:].strip('"')
        body = _Body(self, name, signature)
        if not name.startswith("air."):
            raise CompileError(f"it calls '{name}', which no function of the host device stands for\n")
        writer = _writer(name[4:])
        if writer is None:
            raise CompileError(f"it calls '{name}', which is not supported on the host device\n")
        result = writer(body, name[4:])
        self.meets = self.meets or body.meets
        return body.text(symbol, result)


class _Body:
    """The body of one function, under construction. Parameters are %a0, %a1 and so on."""

    def __init__(self, owner: Intrinsics, name: str, signature: Signature) -> None:
        self.name = name
        self.signature = signature
        self.meets = False
        self._owner = owner
        self._lines: list[str] = []
        self._count = 0

    @property
    def result(self) -> str:
        return self.signature.result

    @property
    def parameters(self) -> list[str]:
        return self.signature.parameters

    def expect(self, result: str, parameters: Sequence[str]) -> None:
        """Make sure that the function has these types."""
        wanted = Signature(result, list(parameters))
        if wanted != self.signature:
            raise CompileError(
                f"it calls '{self.name}' as {self.signature}, and the host device knows it as {wanted}\n"
            )

    def value(self, instruction: str) -> str:
        """Add an instruction; the name of its result."""
        self._count += 1
        self._lines.append(f"  %t{self._count} = {instruction}")
        return f"%t{self._count}"

    def do(self, instruction: str) -> None:
        """Add an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def call(self, function: str, result: str, *arguments: str) -> str:
        """Call a function of intrinsics.cpp, or of LLVM. Arguments are types with values."""
        types = ", ".join(argument.rpartition(" ")[0] for argument in arguments)
        self._owner.declarations[function] = f"declare {result} @{function}({types})"
        instruction = f"call {result} @{function}({', '.join(arguments)})"
        if result == "void":
            self.do(instruction)
            return ""
        return self.value(instruction)

    def each(self, make: Callable[[int], str]) -> str:
        """A value of the function's type, made of one value for each component."""
        count, element = _shape(self.result)
        if self.result == element:
            return make(0)
        vector = "poison"
        for number in range(count):
            vector = self.value(f"insertelement {self.result} {vector}, {element} {make(number)}, i32 {number}")
        return vector

    def component(self, parameter: int, number: int) -> str:
        """A component of a parameter, with its type; the parameter itself if it is no vector."""
        kind = self.parameters[parameter]
        element = _shape(kind)[1]
        if kind == element:
            return f"{kind} %a{parameter}"
        return f"{element} " + self.value(f"extractelement {kind} %a{parameter}, i32 {number}")

    def text(self, symbol: str, result: str) -> str:
        """The whole definition."""
        parameters = ", ".join(f"{kind} %a{number}" for number, kind in enumerate(self.parameters))
        # Where threads meet is told by the call, which may be neither merged with one in another branch, nor doubled.
        meeting = " convergent nomerge" if self.meets else ""
        lines = "".join(f"{line}\n" for line in self._lines)
        last = f"ret {self.result} {result}" if self.result != "void" else "ret void"
        head = f"define internal {self.result} {symbol}({parameters}) alwaysinline nounwind{meeting}"
        return f"{head} {{\n{lines}  {last}\n}}\n"


def _shape(kind: str) -> tuple[int, str]:
    """How many components a type has, and of which type."""
    match = _VECTOR.fullmatch(kind)
    return (int(match[1]), match[2]) if match else (1, kind)


def _with_lanes(element: str, lanes: str | None) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def _writer(name: str) -> Callable[[_Body, str], str] | None:
    for pattern, writer in _SPECIAL:
        if pattern.fullmatch(name):
            return writer
    match = _NAME.fullmatch(name)
    if match is not None and _base(match["base"]) in _RULES:
        return _componentwise
    return None


def _base(name: str) -> str:
    """The name without what it says of speed: the host device's functions are precise and fast."""
    for prefix in _SPEEDS:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _componentwise(body: _Body, name: str) -> str:
    match = _NAME.fullmatch(name)
    assert match is not None
    base, sign, lanes, kind = _base(match["base"]), match["sign"], match["lanes"], match["type"]
    rule = _RULES[base]
    family = "f" if kind in _FLOATS else "i" if sign else "b"
    if family not in rule.kinds or (family != "f" and kind not in _INTEGERS):
        raise CompileError(f"it calls 'air.{name}', which is not supported on the host device for this type\n")
    element = _FLOATS.get(kind, kind)
    own = _with_lanes(element, lanes)
    types = {"T": own, "E": _with_lanes("i32", lanes), "P": "ptr", "Q": "ptr", "h": "i16", "w": "i32", "z": "i1"}
    body.expect(own, [types[letter] for letter in rule.operands])
    body.meets = rule.meets
    function = f"mslc_air_{base}_{sign + '_' if sign else ''}{kind}"

    def one(number: int) -> str:
        arguments = []
        for parameter, letter in enumerate(rule.operands):
            if letter == "z":
                continue
            if letter in "PQ":
                pointee = element if letter == "P" else "i32"
                place = body.value(f"getelementptr {pointee}, ptr %a{parameter}, i32 {number}")
                arguments.append(f"ptr {place}")
            else:
                arguments.append(body.component(parameter, number))
        return body.call(function, element, *arguments)

    return body.each(one)


# ---------------------------------------------------------------- conversions

_CONVERSION = re.compile(r"convert\.([fsu])\.(?:v(\d+))?(bf16|f16|f32|i\d+)\.([fsu])\.(?:v(\d+))?(bf16|f16|f32|i\d+)")


def _convert(body: _Body, name: str) -> str:
    """Between numbers of any kind. To integers it saturates, as GPUs do, and to bool it tests for zero."""
    match = _CONVERSION.fullmatch(name)
    assert match is not None
    to_sign, to_lanes, to_kind, from_sign, from_lanes, from_kind = match.groups()
    target, source = _FLOATS.get(to_kind, to_kind), _FLOATS.get(from_kind, from_kind)
    body.expect(_with_lanes(target, to_lanes), [_with_lanes(source, from_lanes)])
    is_known = (to_sign == "f") == (to_kind in _FLOATS) and (from_sign == "f") == (from_kind in _FLOATS)
    if not is_known or to_lanes != from_lanes:
        raise CompileError(f"it calls 'air.{name}', which is not supported on the host device\n")

    def one(number: int) -> str:
        value = body.component(0, number).rpartition(" ")[2]
        if from_sign == "f":
            if to_sign == "f" and source == target:
                return value
            return _from_float(body, _widened(body, source, value), target, to_sign)
        if to_sign == "f":
            operation = "sitofp" if from_sign == "s" else "uitofp"
            return _narrowed(body, body.value(f"{operation} {source} {value} to float"), target)
        return _between_integers(body, source, value, target, from_sign)

    return body.each(one)


def _widened(body: _Body, source: str, value: str) -> str:
    """A float of the same value."""
    return value if source == "float" else body.value(f"fpext {source} {value} to float")


def _narrowed(body: _Body, value: str, target: str) -> str:
    """A float rounded to a type."""
    return value if target == "float" else body.value(f"fptrunc float {value} to {target}")


def _from_float(body: _Body, value: str, target: str, sign: str) -> str:
    if sign == "f":
        return _narrowed(body, value, target)
    if target == "i1":
        return body.value(f"fcmp une float {value}, 0.0")
    return body.call(f"llvm.fpto{sign}i.sat.{target}.f32", target, f"float {value}")


def _between_integers(body: _Body, source: str, value: str, target: str, from_sign: str) -> str:
    wide, narrow = int(source[1:]), int(target[1:])
    if target == "i1":
        return body.value(f"icmp ne {source} {value}, 0")
    if wide == narrow:
        return value
    operation = "trunc" if wide > narrow else "sext" if from_sign == "s" else "zext"
    return body.value(f"{operation} {source} {value} to {target}")


# ---------------------------------------------------------------- what makes one value of many components


def _dot(body: _Body, name: str) -> str:
    count, element = _shape(body.parameters[0] if body.parameters else "")
    if element not in _FLOATS.values() or not 2 <= count <= 4:
        raise CompileError(f"it calls 'air.{name}', which is not supported on the host device\n")
    body.expect(element, [f"<{count} x {element}>"] * 2)
    total = ""
    for number in range(count):
        a = body.component(0, number).rpartition(" ")[2]
        b = body.component(1, number).rpartition(" ")[2]
        a, b = _widened(body, element, a), _widened(body, element, b)
        product = body.value(f"fmul float {a}, {b}")
        total = (
            body.call("llvm.fmuladd.f32", "float", f"float {a}", f"float {b}", f"float {total}") if total else product
        )
    return _narrowed(body, total, element)


def _all_or_any(body: _Body, name: str) -> str:
    count, _ = _shape(body.parameters[0] if body.parameters else "")
    body.expect("i1", [f"<{count} x i1>"])
    reduction = "and" if name.startswith("all") else "or"
    return body.call(f"llvm.vector.reduce.{reduction}.v{count}i1", "i1", f"<{count} x i1> %a0")


# ---------------------------------------------------------------- threads that meet


def _threadgroup_barrier(body: _Body, _: str) -> str:
    body.expect("void", ["i32", "i32"])
    body.meets = True
    return body.call("mslc_air_threadgroup_barrier", "void")


def _simdgroup_barrier(body: _Body, _: str) -> str:
    body.expect("void", ["i32", "i32"])
    body.meets = True
    return body.call("mslc_air_simdgroup_barrier", "void")


def _vote(body: _Body, name: str) -> str:
    body.expect("i1", ["i1"])
    body.meets = True
    return body.call(f"mslc_air_{name}", "i1", "i1 %a0")


def _ballot(body: _Body, name: str) -> str:
    """The votes as bits of an integer."""
    name, _, kind = name.partition(".")
    operands = ["i1"] if name.endswith("ballot") else []
    body.expect(kind, operands)
    body.meets = True
    votes = body.call(f"mslc_air_{name}", "i64", *(f"i1 %a{number}" for number in range(len(operands))))
    return votes if kind == "i64" else body.value(f"trunc i64 {votes} to {kind}")


def _is_first(body: _Body, name: str) -> str:
    body.expect("i1", [])
    body.meets = True
    return body.call(f"mslc_air_{name}", "i1")


def _simdgroup_size(body: _Body, name: str) -> str:
    body.expect(name.rpartition(".")[2], [])
    return "32"


def _lane_index(body: _Body, name: str) -> str:
    kind = name.rpartition(".")[2]
    body.expect(kind, [])
    body.meets = True  # only fibers have a number
    lane = body.call("mslc_air_lane", "i32")
    return lane if kind == "i32" else body.value(f"trunc i32 {lane} to {kind}")


# ---------------------------------------------------------------- hints


def _is_uniform(body: _Body, name: str) -> str:
    """What the compiler is told here it takes for granted elsewhere, so it must be yes."""
    body.expect("i1", [name.rpartition(".")[2]])
    return "true"


def _predicate(body: _Body, _: str) -> str:
    body.expect("i8", ["i8"])
    truth = body.value("icmp ne i8 %a0, 0")
    return body.value(f"zext i1 {truth} to i8")


# ---------------------------------------------------------------- atomics

_ATOMIC = re.compile(r"atomic\.(?:global|local)\.(\w+?)(?:\.weak)?\.(?:([su])\.)?(f32|i32|i64)")


# What changes memory, by sign and type. Those of 64 bits give nothing back.
_WORD = ("add", "sub", "min", "max", "and", "or", "xor")
_ATOMIC_OPERATIONS: dict[tuple[str | None, str], tuple[str, ...]] = {
    ("s", "i32"): _WORD,
    ("u", "i32"): _WORD,
    (None, "i32"): ("xchg",),
    (None, "f32"): ("add", "sub", "xchg"),
    ("u", "i64"): ("min", "max"),
}


def _atomic(body: _Body, name: str) -> str:
    match = _ATOMIC.fullmatch(name)
    assert match is not None
    operation, sign, kind = match.groups()
    element = _FLOATS.get(kind, kind)
    order = ["i32", "i32", "i1"]
    if operation == "load":
        body.expect(element, ["ptr", *order])
        return body.call(f"mslc_air_atomic_load_{kind}", element, "ptr %a0", "i32 %a1")
    if operation == "store":
        body.expect("void", ["ptr", element, *order])
        return body.call(f"mslc_air_atomic_store_{kind}", "void", "ptr %a0", f"{element} %a1", "i32 %a2")
    if operation == "cmpxchg" and kind != "i64":
        # Gives the old value, and leaves it in what was expected, too.
        body.expect(element, ["ptr", "ptr", element, "i32", *order])
        return body.call(f"mslc_air_atomic_cmpxchg_{kind}", element, "ptr %a0", "ptr %a1", f"{element} %a2")
    if operation not in _ATOMIC_OPERATIONS.get((sign, kind), ()):
        raise CompileError(f"it calls 'air.{name}', which is not supported on the host device\n")
    result = "void" if kind == "i64" else element
    body.expect(result, ["ptr", element, *order])
    suffix = f"{sign}_{kind}" if sign else kind
    return body.call(f"mslc_air_atomic_{operation}_{suffix}", result, "ptr %a0", f"{element} %a1")


def _fence(body: _Body, _: str) -> str:
    body.expect("void", ["i32", "i32", "i32"])
    return body.call("mslc_air_fence", "void")


_COHERENT = re.compile(r"(load|store)\.system_coherent\.volatile\.(?:v(\d+))?(bf16|f16|f32|i\d+)\.p\d\w+")


def _coherent(body: _Body, name: str) -> str:
    """An access that other threads' accesses are not to be kept from."""
    match = _COHERENT.fullmatch(name)
    assert match is not None
    kind = _with_lanes(_FLOATS.get(match[3], match[3]), match[2])
    if match[1] == "load":
        body.expect(kind, ["ptr"])
        return body.value(f"load volatile {kind}, ptr %a0")
    body.expect("void", [kind, "ptr"])
    body.do(f"store volatile {kind} %a0, ptr %a1")
    return ""


# ---------------------------------------------------------------- matrices: 64 elements, of which a lane has two


def _matrix_kind(body: _Body, kind: str) -> str:
    """The element of a matrix type."""
    count, element = _shape(kind)
    if count != 64 or element not in _FLOATS.values():
        raise CompileError(f"it calls '{body.name}' with {kind}, which is no matrix that the host device knows\n")
    return element


def _room(body: _Body, element: str) -> str:
    """Memory for a lane's two elements."""
    return body.value(f"alloca [2 x {element}], align 8")


def _spilled(body: _Body, parameter: int) -> str:
    """Memory with a lane's two elements of a matrix, as floats."""
    kind = body.parameters[parameter]
    element = _matrix_kind(body, kind)
    place = _room(body, "float")
    for number in range(2):
        value = body.value(f"extractelement {kind} %a{parameter}, i32 {number}")
        slot = body.value(f"getelementptr float, ptr {place}, i32 {number}")
        body.do(f"store float {_widened(body, element, value)}, ptr {slot}, align 4")
    return place


def _matrix_of(body: _Body, elements: list[str]) -> str:
    """A matrix of which this lane has two elements; what it has of others is never looked at."""
    element = _matrix_kind(body, body.result)
    vector = "poison"
    for number, value in enumerate(elements):
        vector = body.value(f"insertelement {body.result} {vector}, {element} {value}, i32 {number}")
    return vector


def _loaded(body: _Body, place: str, element: str) -> list[str]:
    values = []
    for number in range(2):
        slot = body.value(f"getelementptr {element}, ptr {place}, i32 {number}")
        values.append(body.value(f"load {element}, ptr {slot}, align {2 if element != 'float' else 4}"))
    return values


def _multiply_accumulate(body: _Body, _: str) -> str:
    if len(body.parameters) != 3:
        body.expect("<64 x float>", ["<64 x float>"] * 3)
    element = _matrix_kind(body, body.result)
    places = [_spilled(body, number) for number in range(3)]
    product = _room(body, "float")
    body.meets = True
    body.call("mslc_air_matrix_multiply_accumulate", "void", *(f"ptr {place}" for place in [product, *places]))
    return _matrix_of(body, [_narrowed(body, value, element) for value in _loaded(body, product, "float")])


def _filled(body: _Body, _: str) -> str:
    element = _matrix_kind(body, body.result)
    body.expect(body.result, [element])
    return _matrix_of(body, ["%a0", "%a0"])


def _diagonal(body: _Body, _: str) -> str:
    element = _matrix_kind(body, body.result)
    body.expect(body.result, [element])
    body.meets = True  # only fibers have a number
    place = _room(body, element)
    body.call(f"mslc_air_matrix_diagonal_{_short(element)}", "void", f"ptr {place}", f"{element} %a0")
    return _matrix_of(body, _loaded(body, place, element))


def _strides_and_origin(body: _Body, first: int, result: str, leading: list[str]) -> list[str]:
    """Distances between columns and rows, and the first column and row, whichever way the function is told of them."""
    up_to_27 = [*leading, "i64", "<2 x i64>", "i1"]
    from_28 = [*leading, "<2 x i64>", "<2 x i64>", "<2 x i64>"]
    if body.parameters == from_28:
        body.expect(result, from_28)
        operands = [(first + 1, 0), (first + 1, 1), (first + 2, 0), (first + 2, 1)]
        return [body.component(parameter, number) for parameter, number in operands]
    body.expect(result, up_to_27)
    column, row = (body.component(first + 1, number).rpartition(" ")[2] for number in range(2))
    chosen = []
    for plain, transposed in (("1", f"%a{first}"), (f"%a{first}", "1"), (column, row), (row, column)):
        chosen.append("i64 " + body.value(f"select i1 %a{first + 2}, i64 {transposed}, i64 {plain}"))
    return chosen


def _matrix_load(body: _Body, _: str) -> str:
    element = _matrix_kind(body, body.result)
    operands = _strides_and_origin(body, 1, body.result, ["ptr"])
    place = _room(body, element)
    body.meets = True
    body.call(f"mslc_air_matrix_load_{_short(element)}", "void", f"ptr {place}", "ptr %a0", *operands)
    return _matrix_of(body, _loaded(body, place, element))


def _matrix_store(body: _Body, _: str) -> str:
    matrix = body.parameters[0] if body.parameters else ""
    element = _matrix_kind(body, matrix)
    operands = _strides_and_origin(body, 2, "void", [matrix, "ptr"])
    place = _room(body, element)
    for number in range(2):
        value = body.value(f"extractelement {matrix} %a0, i32 {number}")
        slot = body.value(f"getelementptr {element}, ptr {place}, i32 {number}")
        body.do(f"store {element} {value}, ptr {slot}, align 2")
    body.meets = True
    return body.call(f"mslc_air_matrix_store_{_short(element)}", "void", f"ptr {place}", "ptr %a1", *operands)


def _short(element: str) -> str:
    return next(short for short, name in _FLOATS.items() if name == element)


# ---------------------------------------------------------------- logging


def _log(body: _Body, name: str) -> str:
    """Subsystem, category, os_log_type, format, and the arguments with the bytes that they take."""
    types = ["ptr", "ptr", "i32", "ptr", "ptr", "i64"]
    body.expect("void", types)
    return body.call("mslc_air_os_log", "void", *(f"{kind} %a{number}" for number, kind in enumerate(types)))


_SPECIAL: list[tuple[re.Pattern[str], Callable[[_Body, str], str]]] = [
    (_CONVERSION, _convert),
    (re.compile(r"dot\.v[234](?:bf16|f16|f32)"), _dot),
    (re.compile(r"(?:all|any)\.v[234]i1"), _all_or_any),
    (re.compile(r"wg\.barrier"), _threadgroup_barrier),
    (re.compile(r"simdgroup\.barrier"), _simdgroup_barrier),
    (re.compile(r"(?:simd|quad)_(?:all|any)"), _vote),
    (re.compile(r"(?:simd|quad)_(?:ballot|active_threads_mask)\.i\d+"), _ballot),
    (re.compile(r"(?:simd|quad)_is_first"), _is_first),
    (re.compile(r"get_simdgroup_size\.i(?:16|32)"), _simdgroup_size),
    (re.compile(r"get_thread_index_in_simdgroup\.i(?:16|32)"), _lane_index),
    (re.compile(r"is_uniform\.i\d+"), _is_uniform),
    (re.compile(r"normalize_function_constant_predicate\.i8"), _predicate),
    (re.compile(r"atomic\.fence"), _fence),
    (re.compile(r"os_log"), _log),
    (_ATOMIC, _atomic),
    (_COHERENT, _coherent),
    (re.compile(r"simdgroup_matrix_8x8_multiply_accumulate\.[\w.]+"), _multiply_accumulate),
    (re.compile(r"simdgroup_matrix_8x8_init_filled\.[\w.]+"), _filled),
    (re.compile(r"simdgroup_matrix_8x8_init_diag\.[\w.]+"), _diagonal),
    (re.compile(r"simdgroup_matrix_8x8_load\.[\w.]+"), _matrix_load),
    (re.compile(r"simdgroup_matrix_8x8_store\.[\w.]+"), _matrix_store),
]
