"""Random arrays: uniform, normal, exponential, Bernoulli, Poisson, integers, permutations; new, or into given arrays.

The kernels are in ``kernels/random.metal``. An array's numbers depend on the generator's state alone: not on the
device, the number of threads, or how the array lies in memory. They come of a stream's blocks in the array's C order.
"""

from __future__ import annotations

import math
import operator
import struct
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from mpscffi import fallback
from mpscffi.array import Array, _filled_from, _sizes, span
from mpscffi.bit_generator import BitGenerator
from mpscffi.creation import empty
from mpscffi.device import Device, current_device
from mpscffi.dtypes import DEFAULT, device_dtype
from mpscffi.errors import ArgumentTypeError, InvalidArgumentError
from mpscffi.generator import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from mpscffi.kernel import Kernel
from mpscffi.shader import ShaderLibrary, compile_shader

__all__ = [
    "BitGenerator",
    "Generator",
    "bernoulli",
    "default_generator",
    "exponential",
    "fill_bernoulli",
    "fill_exponential",
    "fill_normal",
    "fill_poisson",
    "fill_randint",
    "fill_uniform",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "permutation",
    "poisson",
    "rand",
    "randint",
    "randn",
    "seed",
    "set_rng_state",
]


def __dir__() -> list[str]:
    return __all__


#: Threads of one launch: positions in a grid are numbers of 32 bits.
_LAUNCH = 1 << 30
#: Up to here a permutation is shuffled by one thread, and from there on sorted.
_SHUFFLED = 384
#: From here on a permutation takes as many blocks as where ties are shuffled apart.
_LARGE = 32768
#: The largest mean of Poisson's distribution: its numbers have 31 bits in the kernels.
_MOST_RATE = float(1 << 30)

_FLOATS = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}
#: Bits that a whole number may have in a floating-point type.
_WHOLE_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
_INTEGERS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}

# ---- kernels

_libraries: dict[Device, ShaderLibrary] = {}
_lock = threading.Lock()


def _kernel(name: str) -> Kernel:
    """Return a kernel that is ready to run on the device in use."""
    device = current_device()
    library = _libraries.get(device)
    if library is None:
        with _lock:
            library = _libraries.get(device)
            if library is None:
                source = Path(__file__).with_name("kernels") / "random.metal"
                # Other modes would let the compiler change the numbers.
                library = compile_shader(source.read_text(encoding="utf-8"), math_mode="safe")
                _libraries[device] = library
    kernel = library[name]
    _ = kernel.handle  # compiles at the first use, before anything is drawn
    return kernel


class _Law:
    """A distribution with its parameters, for arrays of one element type.

    Parameters
    ----------
    name : str
        Of its kernels, the element type included.
    parameters : bytes
        Its structure in ``random.metal``.
    per_block : int
        Elements that come of a block.
    """

    __slots__ = ("name", "parameters", "per_block")

    def __init__(self, name: str, parameters: bytes, per_block: int = 4) -> None:
        self.name = name
        self.parameters = parameters
        self.per_block = per_block

    def fill(self, array: Array, generator: Generator | None) -> Array:
        """Draw the array's elements."""
        generator = _chosen(generator)
        if not array.size:
            return array
        blocks = -(-array.size // self.per_block)
        whole = array.size // self.per_block if array.is_contiguous else 0
        dense = _kernel(self.name) if whole else None
        scattered = _kernel(f"{self.name}_scattered") if whole < blocks else None
        own_seed, base = generator.reserve(blocks)
        if dense is not None:
            for first in range(0, whole, _LAUNCH):
                part = struct.pack("<4Q", own_seed, base, first, array.size)
                dense(array, part, self.parameters, threads=min(whole - first, _LAUNCH))
        if scattered is not None:
            memory, layout = _layout(array)
            for first in range(whole, blocks, _LAUNCH):
                part = struct.pack("<4Q", own_seed, base, first, array.size)
                scattered(memory, part, self.parameters, layout, threads=min(blocks - first, _LAUNCH))
        return array


class _EachLaw:
    """A distribution with a parameter for each element, whose elements have blocks of their own.

    Parameters
    ----------
    name : str
        Of its kernels, the element type included.
    parameters : Array or numpy.ndarray
        In C order; or a single one, for all elements.
    blocks : int
        That each element takes.
    """

    __slots__ = ("blocks", "name", "parameters")

    def __init__(self, name: str, parameters: Array | npt.NDArray[Any], blocks: int) -> None:
        self.name = name
        self.parameters = parameters
        self.blocks = blocks

    def fill(self, array: Array, generator: Generator | None) -> Array:
        """Draw the array's elements."""
        generator = _chosen(generator)
        if not array.size:
            return array
        each = self.parameters
        if not isinstance(each, Array):
            each = _filled_from(np.ascontiguousarray(each, np.float32))
        step = np.uint32(each.size != 1)
        memory = array
        placed: tuple[bytes, ...] = ()
        if not array.is_contiguous:
            memory, layout = _layout(array)
            placed = (layout,)
        kernel = _kernel(self.name + "_scattered" * bool(placed))
        own_seed, base = generator.reserve(array.size * self.blocks)
        for first in range(0, array.size, _LAUNCH):
            part = struct.pack("<4Q", own_seed, base, first, array.size)
            kernel(memory, part, each, step, *placed, threads=min(array.size - first, _LAUNCH))
        return array


class _CpuLaw:
    """A distribution of elements that Metal lacks: NumPy's, drawn from the same stream.

    Parameters
    ----------
    draw : callable
        Takes a ``numpy.random.Generator`` and a shape.
    """

    __slots__ = ("draw",)

    def __init__(self, draw: Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[Any]]) -> None:
        self.draw = draw

    def fill(self, array: Array, generator: Generator | None) -> Array:
        """Draw the array's elements, after the work that uses it."""
        numbers = np.random.Generator(BitGenerator(_chosen(generator)))
        with fallback.marked(f"random {array.dtype}"):
            return array.copy_from(self.draw(numbers, array.shape))


def _is_for_cpu(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize == 8 and fallback.allows("a random array", dtype)


def _chosen(generator: Generator | None) -> Generator:
    if generator is None:
        return default_generator()
    if not isinstance(generator, Generator):
        raise ArgumentTypeError(f"generator: got {type(generator).__name__}, expected an mpscffi.Generator")
    return generator


def _layout(array: Array) -> tuple[Array, bytes]:
    """Return the memory that holds an array's elements, and the kernels' description of where."""
    # The innermost axis first; those that are one in memory are joined.
    axes: list[tuple[int, int]] = []
    for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if length == 1:
            continue
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0] * length, axes[-1][1])
        else:
            axes.append((length, stride))
    memory, start = span(array, np.dtype(np.uint8))
    flat = [number for axis in axes for number in axis]
    return memory, struct.pack(f"<{2 + len(flat)}q", len(axes), start, *flat)


# ---- checks


def _target(array: Array, function: str) -> Array:
    if not isinstance(array, Array):
        raise ArgumentTypeError(f"{function}: got {type(array).__name__}, expected an mpscffi.Array")
    array._check_writable()
    if array.device is not current_device():
        raise InvalidArgumentError(
            f"{function}: the array is on {array.device}, the device in use is {current_device()}: "
            "call set_device first"
        )
    if array._offset % array.itemsize or (
        array._strides is not None and any(stride % array.itemsize for stride in array._strides)
    ):
        raise InvalidArgumentError(
            f"{function}: the array's offset {array._offset} and strides {array.strides} are not multiples of its "
            f"elements' {array.itemsize} bytes"
        )
    return array


def _float_type(dtype: np.dtype[Any], function: str) -> str:
    try:
        return _FLOATS[dtype.name]
    except KeyError:
        raise ArgumentTypeError(
            f"{function}: got elements of {dtype}, expected float32, float16 or bfloat16; for integers there is randint"
        ) from None


def _any_type(dtype: np.dtype[Any], function: str) -> str:
    """Return Metal's type for an element; signed and unsigned integers have the same bits."""
    if dtype.kind in "biu":
        return _INTEGERS[dtype.itemsize]
    if dtype.name not in _FLOATS:
        raise ArgumentTypeError(f"{function}: got elements of {dtype}, expected integers, bool or floats")
    return _FLOATS[dtype.name]


def _number(value: SupportsFloat, name: str, function: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{function}: got {name}={value!r}, expected a number") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{function}: got {name}={value!r}, expected a finite number")
    return number


def _rounded(value: SupportsFloat, dtype: np.dtype[Any], name: str, function: str) -> float:
    """Return the number of an element type that is nearest to a number."""
    number = _number(value, name, function)
    with np.errstate(over="ignore"):
        rounded = float(np.float64(number).astype(dtype))
    if math.isinf(rounded):
        raise InvalidArgumentError(f"{function}: got {name}={value!r}, which is beyond the range of {dtype}")
    return rounded


# ---- laws: those of plain numbers are kept, since most are asked for again


def _uniform(dtype: np.dtype[Any], low: SupportsFloat, high: SupportsFloat, function: str) -> _Law | _CpuLaw:
    a, b = _number(low, "low", function), _number(high, "high", function)
    if not _is_for_cpu(dtype):
        return _uniform_law(dtype, a, b, function)
    if a > b:
        raise InvalidArgumentError(f"{function}: got low={low} and high={high}, expected low to be at most high")
    _number(b - a, "high - low", function)
    return _CpuLaw(lambda numbers, shape: numbers.uniform(a, b, shape))


@lru_cache
def _uniform_law(dtype: np.dtype[Any], low: float, high: float, function: str) -> _Law:
    metal = _float_type(dtype, function)
    a, b = _rounded(low, dtype, "low", function), _rounded(high, dtype, "high", function)
    if a > b:
        raise InvalidArgumentError(f"{function}: got low={low} and high={high}, expected low to be at most high")
    _rounded(b - a, DEFAULT, "high - low", function)
    highest = float(np.nextafter(np.float64(b).astype(dtype), np.float64(a).astype(dtype)))
    return _Law(f"uniform_{metal}", struct.pack("<4f", a, b - a, b, highest))


def _normal(dtype: np.dtype[Any], mean: SupportsFloat, std: SupportsFloat, function: str) -> _Law | _CpuLaw:
    centre, deviation = _number(mean, "mean", function), _number(std, "std", function)
    if not _is_for_cpu(dtype):
        return _normal_law(dtype, centre, deviation, function)
    if deviation < 0:
        raise InvalidArgumentError(f"{function}: got std={std}, expected 0 or more")
    return _CpuLaw(lambda numbers, shape: numbers.normal(centre, deviation, shape))


@lru_cache
def _normal_law(dtype: np.dtype[Any], mean: float, std: float, function: str) -> _Law:
    metal = _float_type(dtype, function)
    centre, deviation = _rounded(mean, dtype, "mean", function), _rounded(std, DEFAULT, "std", function)
    if deviation < 0:
        raise InvalidArgumentError(f"{function}: got std={std}, expected 0 or more")
    return _Law(f"normal_{metal}", struct.pack("<2f", centre, deviation))


def _exponential(dtype: np.dtype[Any], lambd: SupportsFloat, function: str) -> _Law | _CpuLaw:
    rate = _number(lambd, "lambd", function)
    if not _is_for_cpu(dtype):
        return _exponential_law(dtype, rate, function)
    if rate <= 0:
        raise InvalidArgumentError(f"{function}: got lambd={lambd}, expected more than 0")
    return _CpuLaw(lambda numbers, shape: numbers.exponential(1 / rate, shape))


@lru_cache
def _exponential_law(dtype: np.dtype[Any], lambd: float, function: str) -> _Law:
    metal = _float_type(dtype, function)
    if lambd <= 0:
        raise InvalidArgumentError(f"{function}: got lambd={lambd}, expected more than 0")
    smallest = {"float": 2.0**-126, "half": 2.0**-14, "bfloat": 2.0**-126}[metal]
    scale = _rounded(1 / lambd, dtype, "1 / lambd", function)
    return _Law(f"exponential_{metal}", struct.pack("<2f", scale, smallest))


def _bernoulli(dtype: np.dtype[Any], p: SupportsFloat, function: str) -> _Law | _CpuLaw:
    probability = _number(p, "p", function)
    if not _is_for_cpu(dtype):
        return _bernoulli_law(dtype, probability, function)
    _check_probability(probability, function)
    return _CpuLaw(lambda numbers, shape: numbers.random(shape) < probability)


@lru_cache
def _bernoulli_law(dtype: np.dtype[Any], p: float, function: str) -> _Law:
    metal = _any_type(dtype, function)
    _check_probability(p, function)
    return _Law(f"bernoulli_{metal}", struct.pack("<Q", round(p * 2**32)))


def _check_probability(p: float, function: str) -> None:
    if not 0 <= p <= 1:
        raise InvalidArgumentError(f"{function}: got p={p}, expected a probability from 0 to 1")


def _integers(dtype: np.dtype[Any], low: SupportsIndex, high: SupportsIndex, function: str) -> _Law | _CpuLaw:
    try:
        first, end = operator.index(low), operator.index(high)
    except TypeError:
        raise ArgumentTypeError(f"{function}: got low={low!r} and high={high!r}, expected integers") from None
    if not _is_for_cpu(dtype):
        return _integers_law(dtype, first, end, function)
    whole = 1 << 53
    if not -whole <= first < end <= whole + 1:
        raise InvalidArgumentError(
            f"{function}: got low={low} and high={high}, expected low below high, from {-whole} up to {whole + 1}"
        )
    return _CpuLaw(lambda numbers, shape: numbers.integers(first, end, shape))


@lru_cache
def _integers_law(dtype: np.dtype[Any], low: int, high: int, function: str) -> _Law:
    metal = _any_type(dtype, function)
    if low >= high:
        raise InvalidArgumentError(f"{function}: got low={low} and high={high}, expected low to be below high")
    if dtype.kind == "b":
        least, most = 0, 1
    elif dtype.kind in "iu":
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    else:
        most = 1 << _WHOLE_BITS[dtype.name]
        least = -most
    if low < least or high - 1 > most:
        raise InvalidArgumentError(
            f"{function}: got low={low} and high={high}, expected numbers that {dtype} holds exactly: "
            f"low from {least}, high up to {most + 1}"
        )
    count = high - low
    if dtype.itemsize == 8:
        whole = 1 << 64
        numbers = struct.pack("<3Q", low % whole, count % whole, whole % count)
        return _Law(f"long_integers_{metal}", numbers, per_block=2)
    whole = 1 << 32
    return _Law(f"integers_{metal}", struct.pack("<3I", low % whole, count % whole, whole % count))


# ---- laws with a parameter for each element


def _is_each(value: Any) -> bool:
    return isinstance(value, (Array, np.ndarray, Sequence)) and not isinstance(value, (str, bytes))


def _parameters(given: Any, most: float, name: str, function: str) -> npt.NDArray[Any]:
    """Return the parameters of elements that a caller gave, which are 0 to `most`."""
    values = given.numpy() if isinstance(given, Array) else np.asarray(given)
    if values.dtype.kind not in "biuf" and values.dtype.name != "bfloat16":
        raise ArgumentTypeError(f"{function}: got {name} of {values.dtype}, expected numbers")
    # A minimum or maximum of NaN is neither.
    if values.size and not (values.min() >= 0 and values.max() <= most):
        raise InvalidArgumentError(f"{function}: got {name} with elements that are not from 0 to {most:g}")
    return values


def _spread(
    given: Any, values: npt.NDArray[Any], shape: tuple[int, ...], name: str, function: str
) -> npt.NDArray[Any] | Array:
    """Return a parameter for each element of a shape: what was given, if it is an array that kernels can read."""
    if isinstance(given, Array) and given.dtype == np.float32 and given.shape == shape and given.is_contiguous:
        return given
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise InvalidArgumentError(
            f"{function}: got {name} of shape {values.shape}, expected {shape} or one that broadcasts to it"
        ) from None


def _bernoulli_each(dtype: np.dtype[Any], p: Any, shape: tuple[int, ...], function: str) -> _EachLaw | _CpuLaw:
    values = _parameters(p, 1.0, "p", function)
    each = _spread(p, values, shape, "p", function)
    if _is_for_cpu(dtype):
        return _CpuLaw(lambda numbers, shape: numbers.random(shape) < values)
    return _EachLaw(f"bernoulli_each_{_any_type(dtype, function)}", each, blocks=1)


def _poisson(dtype: np.dtype[Any], rate: Any, shape: tuple[int, ...], function: str) -> _EachLaw | _CpuLaw:
    if _is_each(rate):
        values = _parameters(rate, _MOST_RATE, "rate", function)
        each = _spread(rate, values, shape, "rate", function)
    else:
        number = _number(rate, "rate", function)
        if not 0 <= number <= _MOST_RATE:
            raise InvalidArgumentError(f"{function}: got rate={rate}, expected 0 to {_MOST_RATE:g}")
        values = each = np.array([number])
    if _is_for_cpu(dtype):
        return _CpuLaw(lambda numbers, shape: numbers.poisson(values.astype(np.float64), shape))
    if dtype.kind == "b":
        raise ArgumentTypeError(f"{function}: got elements of bool, expected integers or floats")
    metal = _any_type(dtype, function)
    most = float(values.max()) if values.size else 0.0
    largest = np.iinfo(dtype).max if dtype.kind in "iu" else {"float16": 65504.0}.get(dtype.name, 2.0**127)
    if most + 12 * math.sqrt(most) + 12 > largest:
        raise InvalidArgumentError(
            f"{function}: got a rate of {most:g}, whose numbers can be beyond the range of {dtype}: expected "
            "rate + 12 sqrt(rate) + 12 to be in it"
        )
    return _EachLaw(f"poisson_{metal}", each, blocks=32)


# ---- into arrays


def fill_uniform(
    array: Array, low: SupportsFloat = 0.0, high: SupportsFloat = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill an array with uniform numbers, and return it.

    Parameters
    ----------
    array : Array
        Of floats; of any layout.
    low, high : float
        Numbers are `low` or more and below `high`, unless both are equal.
    generator : Generator, optional
        The default one unless given.
    """
    _target(array, "fill_uniform")
    return _uniform(array.dtype, low, high, "fill_uniform").fill(array, generator)


def fill_normal(
    array: Array, mean: SupportsFloat = 0.0, std: SupportsFloat = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill an array with normal numbers, and return it.

    Parameters
    ----------
    array : Array
        Of floats; of any layout.
    mean, std : float
        Mean and standard deviation.
    generator : Generator, optional
        The default one unless given.
    """
    _target(array, "fill_normal")
    return _normal(array.dtype, mean, std, "fill_normal").fill(array, generator)


def fill_exponential(array: Array, lambd: SupportsFloat = 1.0, *, generator: Generator | None = None) -> Array:
    """Fill an array with exponentially distributed numbers, none of them 0, and return it.

    Parameters
    ----------
    array : Array
        Of floats; of any layout.
    lambd : float
        The rate: one over the mean.
    generator : Generator, optional
        The default one unless given.
    """
    _target(array, "fill_exponential")
    return _exponential(array.dtype, lambd, "fill_exponential").fill(array, generator)


def fill_randint(
    array: Array, low: SupportsIndex, high: SupportsIndex | None = None, *, generator: Generator | None = None
) -> Array:
    """Fill an array with whole numbers, each equally likely, and return it.

    Parameters
    ----------
    array : Array
        Of integers, bool or floats; of any layout.
    low, high : int
        Numbers are `low` or more and below `high`; with one argument 0 or more and below that.
    generator : Generator, optional
        The default one unless given.
    """
    _target(array, "fill_randint")
    first, end = (0, low) if high is None else (low, high)
    return _integers(array.dtype, first, end, "fill_randint").fill(array, generator)


def fill_bernoulli(
    array: Array, p: SupportsFloat | Array | npt.NDArray[Any] = 0.5, *, generator: Generator | None = None
) -> Array:
    """Fill an array with zeros and ones, and return it.

    Parameters
    ----------
    array : Array
        Of integers, bool or floats; of any layout.
    p : float or array
        Probability of a one: the same for all elements, or an array of the same shape, or one that broadcasts to it.
        An array's contents are waited for, to check them.
    generator : Generator, optional
        The default one unless given.
    """
    _target(array, "fill_bernoulli")
    if _is_each(p):
        return _bernoulli_each(array.dtype, p, array.shape, "fill_bernoulli").fill(array, generator)
    return _bernoulli(array.dtype, p, "fill_bernoulli").fill(array, generator)


def fill_poisson(
    array: Array, rate: SupportsFloat | Array | npt.NDArray[Any] = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill an array with numbers of Poisson's distribution, and return it.

    Parameters
    ----------
    array : Array
        Of integers or floats; of any layout.
    rate : float or array
        The mean, 0 to 2**30: the same for all elements, or an array of the same shape, or one that broadcasts to it.
        An array's contents are waited for, to check them.
    generator : Generator, optional
        The default one unless given.
    """
    _target(array, "fill_poisson")
    return _poisson(array.dtype, rate, array.shape, "fill_poisson").fill(array, generator)


def _shape_of(p: Any) -> tuple[int, ...]:
    return p.shape if isinstance(p, Array) else np.shape(p)


# ---- new arrays

_Size = SupportsIndex | Sequence[SupportsIndex]


def rand(*size: _Size, dtype: npt.DTypeLike | None = None, generator: Generator | None = None) -> Array:
    """Return an array of uniform numbers, 0 or more and below 1.

    Parameters
    ----------
    *size : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    generator : Generator, optional
        The default one unless given.
    """
    shape, element = _sizes(size, "rand"), device_dtype(dtype)
    law = _uniform(element, 0.0, 1.0, "rand")
    return law.fill(empty(shape, dtype=element), generator)


def randn(*size: _Size, dtype: npt.DTypeLike | None = None, generator: Generator | None = None) -> Array:
    """Return an array of normal numbers of mean 0 and standard deviation 1.

    Parameters
    ----------
    *size : int, or one sequence of int
        Elements along each axis.
    dtype : dtype-like, optional
        float32 by default.
    generator : Generator, optional
        The default one unless given.
    """
    shape, element = _sizes(size, "randn"), device_dtype(dtype)
    law = _normal(element, 0.0, 1.0, "randn")
    return law.fill(empty(shape, dtype=element), generator)


def exponential(
    *size: _Size,
    lambd: SupportsFloat = 1.0,
    dtype: npt.DTypeLike | None = None,
    generator: Generator | None = None,
) -> Array:
    """Return an array of exponentially distributed numbers, none of them 0.

    Parameters
    ----------
    *size : int, or one sequence of int
        Elements along each axis.
    lambd : float
        The rate: one over the mean.
    dtype : dtype-like, optional
        float32 by default.
    generator : Generator, optional
        The default one unless given.
    """
    shape, element = _sizes(size, "exponential"), device_dtype(dtype)
    law = _exponential(element, lambd, "exponential")
    return law.fill(empty(shape, dtype=element), generator)


def randint(
    low: SupportsIndex,
    high: SupportsIndex | Sequence[SupportsIndex] | None = None,
    size: _Size | None = None,
    *,
    dtype: npt.DTypeLike = "int64",
    generator: Generator | None = None,
) -> Array:
    """Return an array of whole numbers, each equally likely: ``randint(low, high, size)`` or ``randint(high, size)``.

    Parameters
    ----------
    low, high : int
        Numbers are `low` or more and below `high`; 0 or more where `low` is left out.
    size : int or sequence of int
        Elements along each axis; a sequence where `low` is left out, or ``size=``.
    dtype : dtype-like
        Of integers, bool or floats.
    generator : Generator, optional
        The default one unless given.
    """
    if size is None:
        if high is None or hasattr(high, "__index__"):
            raise ArgumentTypeError("randint: no size was given, expected (low, high, size) or (high, size)")
        size, high = high, None
    if high is None:
        low, high = 0, low
    shape, element = _sizes((size,), "randint"), device_dtype(dtype)
    law = _integers(element, low, high, "randint")  # type: ignore[arg-type]
    return law.fill(empty(shape, dtype=element), generator)


def bernoulli(
    p: SupportsFloat | Array | npt.NDArray[Any],
    *size: _Size,
    dtype: npt.DTypeLike | None = None,
    generator: Generator | None = None,
) -> Array:
    """Return an array of zeros and ones.

    Parameters
    ----------
    p : float or array
        Probability of a one. An array gives each element its own.
    *size : int, or one sequence of int
        Elements along each axis; that of `p` by default.
    dtype : dtype-like, optional
        float32 by default.
    generator : Generator, optional
        The default one unless given.
    """
    shape = _sizes(size, "bernoulli") if size else _shape_of(p)
    return fill_bernoulli(empty(shape, dtype=dtype), p, generator=generator)


def poisson(
    rate: SupportsFloat | Array | npt.NDArray[Any],
    *size: _Size,
    dtype: npt.DTypeLike | None = None,
    generator: Generator | None = None,
) -> Array:
    """Return an array of numbers of Poisson's distribution.

    Parameters
    ----------
    rate : float or array
        The mean, 0 to 2**30. An array gives each element its own.
    *size : int, or one sequence of int
        Elements along each axis; that of `rate` by default.
    dtype : dtype-like, optional
        Of integers or floats; float32 by default.
    generator : Generator, optional
        The default one unless given.
    """
    shape, element = _sizes(size, "poisson") if size else _shape_of(rate), device_dtype(dtype)
    law = _poisson(element, rate, shape, "poisson")
    return law.fill(empty(shape, dtype=element), generator)


def permutation(count: SupportsIndex, *, dtype: npt.DTypeLike = "int64", generator: Generator | None = None) -> Array:
    """Return the numbers from 0 to `count` - 1 in random order.

    Parameters
    ----------
    count : int
        How many. More than 384 are sorted by random keys on the CPU, which waits for the keys.
    dtype : dtype-like
        Of integers that hold `count` - 1.
    generator : Generator, optional
        The default one unless given.
    """
    try:
        number = operator.index(count)
    except TypeError:
        raise ArgumentTypeError(f"permutation: got {type(count).__name__}, expected an integer") from None
    if not 0 <= number <= 1 << 32:
        raise InvalidArgumentError(f"permutation: got {number}, expected 0 to 2**32")
    element = device_dtype(dtype)
    if element.kind not in "iu":
        raise ArgumentTypeError(f"permutation: got dtype {element}, expected one of integers")
    if number and number - 1 > np.iinfo(element).max:
        raise InvalidArgumentError(
            f"permutation: got {number}, expected at most {np.iinfo(element).max + 1} of {element}"
        )
    generator = _chosen(generator)
    if number > _SHUFFLED:
        return _filled_from(_sorted_by_keys(number, generator).astype(element))
    order = empty(number, dtype="int64")
    if number:
        kernel = _kernel("shuffled")
        kernel(order, struct.pack("<4Q", *generator.reserve(-(-(number - 1) // 4)), 0, number), threads=1)
    return order if element == order.dtype else order.astype(element)


def _sorted_by_keys(number: int, generator: Generator) -> npt.NDArray[np.uint64]:
    """Return the numbers below `number` in the order of random keys of 64 bits."""
    kernel = _kernel("sort_keys")
    blocks = -(-number // 4)
    own_seed, base = generator.reserve(blocks + (number if number >= _LARGE else 0))
    keys, ties = empty(blocks * 4, dtype="uint64"), empty(blocks * 4, dtype="uint32")
    for first in range(0, blocks, _LAUNCH):
        kernel(keys, ties, struct.pack("<4Q", own_seed, base, first, number), threads=min(blocks - first, _LAUNCH))
    order = np.sort(keys.numpy()[:number])
    halves = order >> np.uint64(32)
    order &= np.uint64(0xFFFFFFFF)
    equal = halves[1:] == halves[:-1]
    if equal.any():
        at = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        tied = order[at]
        order[at] = tied[np.lexsort((ties.numpy()[tied], halves[at]))]
    return order
