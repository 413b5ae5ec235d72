"""Random numbers: the generator against a Philox of our own in NumPy, distributions, layouts, state, seeds."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import math
import os
import pickle
import shutil
import struct
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import mpscffi as mps
from mpscffi._ffi import ffi, lib

ROOT = Path(__file__).resolve().parent.parent
FLOATS = ["float32", "float16", *(["bfloat16"] if importlib.util.find_spec("ml_dtypes") else [])]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8}


@pytest.fixture(autouse=True)
def _on_each_device(device: mps.Device) -> Iterator[None]:
    """Every test here, and the default generator as it was before."""
    del device
    before = mps.get_rng_state()
    yield
    mps.set_rng_state(before)


def philox(counter: np.ndarray, key: tuple[int, int], rounds: int = 10) -> np.ndarray:
    """Philox4x32 in NumPy: rows of four counter words to rows of four random words."""
    c = counter.astype(np.uint64).T
    k0, k1 = (np.uint64(word) for word in key)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(rounds):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = np.stack([(q >> np.uint64(32)) ^ c[1] ^ k0, q & low, (p >> np.uint64(32)) ^ c[3] ^ k1, p & low])
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c.T.astype(np.uint32)


def words(seed: int, offset: int, blocks: int) -> np.ndarray:
    """The words of a stream."""
    index = [(offset + i) % 2**64 for i in range(blocks)]
    counter = np.array([[i & 0xFFFFFFFF, i >> 32, 0, 0] for i in index], np.uint64)
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)


def drawn_words(generator: mps.Generator, count: int) -> np.ndarray:
    return mps.randint(0, 2**32, (count,), dtype="uint32", generator=generator).numpy()


# ---- the generator


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(
    counter: list[int], key: tuple[int, int], expected: list[int], compiled: Callable[[str], mps.ShaderLibrary]
) -> None:
    assert philox(np.array([counter]), key).tolist() == [expected]
    # The kernels' own function, with all four counter words free.
    source = (Path(mps.__file__).parent / "kernels" / "random.metal").read_text(encoding="utf-8")
    probe = """
    kernel void probe(device uint *out, constant uint *counter, constant ulong &seed) {
      words w;
      philox(seed, ulong(counter[1]) << 32 | counter[0], counter[2], counter[3], w);
      for (int k = 0; k < 4; k++) {
        out[k] = w.of[k];
      }
    }"""
    out = mps.zeros(4, dtype="uint32")
    compiled(source + probe).probe(out, counter, key[0] | key[1] << 32, threads=1)
    assert out.tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1, 2**32, 67280421310721, 2**64 - 1])
@pytest.mark.parametrize("offset", [0, 5, 2**32 - 3, 2**63, 2**64 - 2])
def test_words_of_a_stream(seed: int, offset: int) -> None:
    generator = mps.Generator(seed)
    generator.offset = offset
    np.testing.assert_array_equal(drawn_words(generator, 42), words(seed, offset, 11)[:42])
    assert generator.offset == (offset + 11) % 2**64


def test_first_words_of_upstreams_host_engine() -> None:
    assert [
        f"{word:08x}" for word in drawn_words(mps.Generator(42), 4)
    ] == "9ceaf053 77f5493b 12bf50ad 5742b3d7".split()


def test_blocks_computed_in_c_are_those_of_the_kernels() -> None:
    out = ffi.new("uint32_t[4]")
    for seed, index in itertools.product([0, 42, 2**64 - 1], [0, 1, 2**32, 2**64 - 1]):
        lib.mpscffi_philox(seed, index, 0, out)
        assert list(out) == words(seed, index, 1).tolist()


# ---- what the words become


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_bits(dtype: str) -> None:
    numbers = mps.rand(4001, dtype=dtype, generator=mps.Generator(7)).numpy().astype(np.float64)
    bits = PRECISION[dtype]
    expected = (words(7, 0, 1001)[:4001] >> np.uint32(32 - bits)).astype(np.float64) / 2**bits
    np.testing.assert_array_equal(numbers, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("low", "high"), [(-3.0, 5.0), (1.0, 1.015625), (-2.0, -1.0), (4.0, 4.0), (0.0, 6e4)])
def test_uniform_stays_below_high(dtype: str, low: float, high: float) -> None:
    numbers = mps.fill_uniform(mps.empty(20001, dtype=dtype), low, high, generator=mps.Generator(3))
    values = numbers.numpy().astype(np.float64)
    end = float(np.float64(high).astype(numbers.dtype))
    assert values.min() >= low
    if low == high:
        assert values.max() == low
    else:
        assert values.max() < end
        spacing = float(np.spacing(np.float64(end).astype(numbers.dtype)))
        assert abs(values.mean() - (low + end) / 2) < 0.02 * (end - low) + spacing / 2


def open_unit(w: np.ndarray) -> np.ndarray:
    """In (0, 1], rounded to float twice."""
    half = (w >> np.uint32(1)).astype(np.float32).astype(np.float64)
    return (half * 2.0**-31 + 2.0**-32).astype(np.float32).astype(np.float64)


def test_normal_numbers_are_box_and_mullers() -> None:
    numbers = mps.randn(100_003, generator=mps.Generator(11)).numpy().astype(np.float64)
    w = words(11, 0, 25_001).reshape(-1, 2, 2)
    radius = np.sqrt(-2 * np.log(open_unit(w[..., 0])))
    angle = 2 * np.pi * w[..., 1].astype(np.int32).astype(np.float64) / 2**32
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1)[:100_003]
    # The angle is rounded to float too: 2^-25 of a revolution at most.
    np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(np.hypot(numbers[:-1:2], numbers[1::2]), radius.reshape(-1)[:50_001], rtol=4e-7)


def test_exponential_numbers_are_logarithms() -> None:
    numbers = mps.exponential(100_003, lambd=0.5, generator=mps.Generator(12)).numpy().astype(np.float64)
    u = np.minimum(open_unit(words(12, 0, 25_001)[:100_003]), 1 - 2.0**-24)
    np.testing.assert_allclose(numbers, -2 * np.log(u), rtol=2e-7)


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_is_never_zero(dtype: str) -> None:
    numbers = mps.exponential(100, 32_000, dtype=dtype, generator=mps.Generator(1)).numpy()
    assert (numbers > 0).all()
    assert np.isfinite(numbers.astype(np.float32)).all()
    assert abs(numbers.astype(np.float64).mean() - 1) < 0.005


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0**-32, 0.25, 0.9])
def test_bernoulli_bits(p: float) -> None:
    numbers = mps.bernoulli(p, 10_001, dtype="int32", generator=mps.Generator(5)).numpy()
    expected = words(5, 0, 2501)[:10_001].astype(np.float64) < p * 2**32
    np.testing.assert_array_equal(numbers, expected)


def test_bernoulli_with_a_probability_for_each_element() -> None:
    p = np.random.default_rng(0).random((50, 7)).astype(np.float32)
    p[0], p[1] = 0, 1
    generator = mps.Generator(6)
    numbers = mps.bernoulli(mps.asarray(p), generator=generator).numpy()
    first = words(6, 0, 350).reshape(-1, 4)[:, 0].astype(np.float64)
    np.testing.assert_array_equal(numbers.reshape(-1), first < p.reshape(-1).astype(np.float64) * 2**32)
    assert generator.offset == 350
    assert not numbers[0].any()
    assert numbers[1].all()
    strided = mps.zeros(7, 100, dtype="uint8")
    mps.fill_bernoulli(strided[:, ::2].T, p, generator=mps.Generator(6))
    np.testing.assert_array_equal(strided.numpy()[:, ::2].T, numbers)
    assert not strided.numpy()[:, 1::2].any()
    assert mps.fill_bernoulli(mps.empty(3, 4), [0, 1, 0, 1]).tolist() == [[0, 1, 0, 1]] * 3


# ---- Poisson's distribution


def poisson_by_arrivals(w: np.ndarray, rate: float) -> int:
    """How many exponential times fit into the rate."""
    arrivals = np.cumsum(-np.log(np.minimum(open_unit(w), 1 - 2.0**-24)))
    return int((arrivals <= rate).sum())


def poisson_by_rejection(w: np.ndarray, rate: float) -> int:
    """Hormann's PTRS as it is printed, in float64 with the library's logarithm of the gamma function."""
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = -0.059 + 0.02483 * b
    for first, second in w.reshape(-1, 2):
        end = open_unit(first[None])[0] / 2
        u = 0.5 - end if first & 1 else end - 0.5
        v = open_unit(second[None])[0]
        k = math.floor((2 * a / end + b) * u + rate + 0.43)
        if end >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
            return k
        if k < 0 or (end < 0.013 and v > end):
            continue
        accepted = math.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / end**2 + b))
        if accepted <= k * math.log(rate) - rate - math.lgamma(k + 1):
            return k
    raise AssertionError("128 words are not enough")


@pytest.mark.parametrize("rate", [0.5, 3.0, 11.75, 12.0, 12.25, 50.0, 1000.5, 1e6])
def test_poisson_numbers_are_those_of_the_algorithm(rate: float) -> None:
    generator = mps.Generator(19)
    numbers = mps.poisson(rate, 1500, dtype="int32", generator=generator).numpy()
    assert generator.offset == 32 * 1500
    method = poisson_by_arrivals if rate < 12 else poisson_by_rejection
    expected = [method(w, rate) for w in words(19, 0, 32 * 1500).reshape(1500, 128)]
    # Where float32 is on the other side of a border than float64.
    assert (numbers != expected).sum() <= (1 if rate < 1e6 else 40)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 4.0, 8.0, 11.9, 12.0, 13.0, 20.0, 50.0, 400.0])
def test_poisson_numbers_have_its_distribution(rate: float) -> None:
    count = 200_000
    numbers = mps.poisson(rate, count, generator=mps.Generator(4)).numpy().astype(np.int64)
    assert abs(numbers.mean() - rate) < 4 * math.sqrt(rate / count)
    # The variance of a sample variance: mu4 = rate + 3 rate^2.
    assert abs(numbers.var() - rate) < 4 * math.sqrt((rate + 2 * rate * rate) / count)
    most = int(rate + 12 * math.sqrt(rate) + 12)
    probability = np.array([math.exp(k * math.log(rate) - rate - math.lgamma(k + 1)) for k in range(most)])
    cells = np.cumsum(probability * count)
    # Neighbours together, so that 20 are expected in each cell.
    borders = [0, *(int(np.searchsorted(cells, c)) + 1 for c in np.arange(20, count - 20, count / 400))]
    borders = sorted({*borders, most})
    expected = np.array([probability[a:b].sum() * count for a, b in itertools.pairwise(borders)])
    if expected[-1] < 20:
        borders.pop(-2)
        expected = np.array([probability[a:b].sum() * count for a, b in itertools.pairwise(borders)])
    observed = np.histogram(numbers, bins=np.array(borders) - 0.5)[0]
    assert observed.sum() == count
    assert chi_square(observed, expected) < chi_square_limit(len(expected) - 1)


def test_poisson_with_a_rate_for_each_element() -> None:
    rates = np.array([[0, 1, 5.5], [12, 40, 3000]], np.float32)
    expected = []
    for element, rate in enumerate(rates.reshape(-1).tolist()):
        generator = mps.Generator(8)
        generator.offset = 32 * element
        expected.append(mps.poisson(rate, 1, generator=generator).item())
    generator = mps.Generator(8)
    assert mps.poisson(rates, generator=generator).numpy().reshape(-1).tolist() == expected
    assert generator.offset == 32 * 6
    assert expected[0] == 0
    for given in (mps.asarray(rates), rates.astype(np.float64), rates.tolist(), mps.asarray(rates.T.copy()).T):
        again = mps.poisson(given, dtype="int64", generator=mps.Generator(8))
        assert again.numpy().reshape(-1).tolist() == expected
    spread = mps.zeros(3, 4, dtype="uint16")
    mps.fill_poisson(spread[:, ::2].T, rates, generator=mps.Generator(8))
    assert spread.numpy()[:, ::2].T.reshape(-1).tolist() == expected
    assert not spread.numpy()[:, 1::2].any()
    columns = mps.fill_poisson(mps.empty(500, 2), [0.0, 100.0], generator=mps.Generator(8)).numpy()
    assert not columns[:, 0].any() and abs(columns[:, 1].mean() - 100) < 2


def test_poisson_of_nothing_and_of_rate_zero() -> None:
    generator = mps.Generator(1)
    assert mps.poisson(np.zeros((0, 3)), generator=generator).shape == (0, 3)
    assert generator.offset == 0
    assert mps.poisson(0, 100, generator=generator).tolist() == [0.0] * 100
    assert mps.poisson(3.5).shape == ()


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_dropout_drops_its_share(p: float) -> None:
    """As a layer does it: what is kept is scaled, so that the mean stays."""
    x = np.full(400_000, 2.0, np.float32)
    keep = mps.bernoulli(1 - p, x.size, generator=mps.Generator(23)).numpy()
    out = x * keep / max(1 - p, 1e-9)
    share = float((out == 0).mean())
    assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / x.size)
    assert set(np.unique(keep).tolist()) <= {0.0, 1.0}
    if p < 1:
        assert abs(out.mean() - 2) <= 4 * 2 * math.sqrt(p / (1 - p) / x.size) + 1e-5


# ---- whole numbers


def lemire(seed: int, low: int, high: int, count: int) -> list[int]:
    """What randint gives for types of up to 4 bytes, one number at a time."""
    span = high - low
    numbers = []
    for element in range(count):
        attempt = 0
        while True:
            block = philox(np.array([[element // 4, 0, attempt, 0]]), (seed, 0))[0]
            product = int(block[element % 4]) * span
            if product % 2**32 >= 2**32 % span:
                break
            attempt += 1
        numbers.append(low + (product >> 32))
    return numbers


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-7, 2**31 - 100), (-(2**31), 2**31), (-(2**31), 1), (5, 6)])
def test_randint_takes_another_attempt_where_a_number_would_be_favoured(low: int, high: int) -> None:
    numbers = mps.randint(low, high, (301,), dtype="int32", generator=mps.Generator(9))
    assert numbers.tolist() == lemire(9, low, high, 301)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-(2**63), 2**63), (-(2**63), 1), (-5, 2**62 + 2**61)])
def test_randint_of_64_bits(low: int, high: int) -> None:
    generator = mps.Generator(9)
    numbers = mps.randint(low, high, (301,), generator=generator).tolist()
    assert generator.offset == 151
    span = high - low
    for element, number in enumerate(numbers):
        attempt = 0
        while True:
            block = philox(np.array([[element // 2, 0, attempt, 0]]), (9, 0))[0]
            value = int(block[element % 2 * 2]) | int(block[element % 2 * 2 + 1]) << 32
            if value * span % 2**64 >= 2**64 % span:
                break
            attempt += 1
        assert number == low + (value * span >> 64)


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", *FLOATS])
def test_randint_of_every_type(dtype: str) -> None:
    array = mps.empty(4001, dtype=dtype)
    if dtype == "bool":
        least, end = 0, 2
    elif dtype in FLOATS:
        end = 2 ** PRECISION[dtype] + 1
        least = 1 - end
    else:
        least, end = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
    values = mps.fill_randint(array, least, end, generator=mps.Generator(2)).numpy().astype(np.float64)
    assert values.min() >= least
    assert values.max() < end
    assert abs(values.mean() - (least + end - 1) / 2) < 0.02 * (end - least)
    for low, high in [(least - 1, end), (least, end + 1)]:
        with pytest.raises(ValueError, match="expected numbers that"):
            mps.fill_randint(array, low, high)
    assert set(mps.fill_randint(array, 0, 2).numpy().astype(int).tolist()) == {0, 1}


def test_randint_is_called_as_in_torch_and_as_in_numpy() -> None:
    for call in [
        lambda: mps.randint(100, (2, 3)),
        lambda: mps.randint(0, 100, (2, 3)),
        lambda: mps.randint(100, size=(2, 3)),
        lambda: mps.randint(low=0, high=100, size=(2, 3)),
    ]:
        mps.manual_seed(4)
        array = call()
        assert (array.shape, array.dtype) == ((2, 3), np.int64)
        assert array.tolist() == [[int(x) for x in row] for row in np.array(_first_six()).reshape(2, 3)]
    with pytest.raises(TypeError, match="no size"):
        mps.randint(0, 10)


def _first_six() -> list[int]:
    pairs = words(4, 0, 3).reshape(-1, 2).astype(object)
    return [int((int(a) | int(b) << 32) * 100 >> 64) for a, b in pairs]


# ---- permutations


@pytest.mark.parametrize("count", [0, 1, 2, 5, 383, 384, 385, 1000, 40_000])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16"])
def test_permutation_holds_every_number_once(count: int, dtype: str) -> None:
    order = mps.permutation(count, dtype=dtype, generator=mps.Generator(count)).numpy()
    assert order.dtype == dtype
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    assert count < 5 or (order != np.arange(count)).any()


def test_small_permutation_is_fisher_and_yates() -> None:
    order = list(range(30))
    for j in range(29):
        block = philox(np.array([[j // 4, 0, 0, 0]]), (8, 0))[0]
        other = int(block[j % 4]) * (30 - j) >> 32
        order[other], order[29 - j] = order[29 - j], order[other]
    assert mps.permutation(30, generator=mps.Generator(8)).tolist() == order


def test_all_small_permutations_are_equally_likely() -> None:
    generator = mps.Generator(21)
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(4800):
        counts[tuple(mps.permutation(4, generator=generator).tolist())] += 1
    assert chi_square(np.array(list(counts.values())), np.full(24, 200.0)) < chi_square_limit(23)


def test_ties_of_a_permutation_are_in_random_order() -> None:
    # With keys of 64 bits there are few: two equal words in 200000 are expected about 5 times.
    count = 200_000
    w = words(31, 0, count // 4)
    tie_words = philox(np.array([[i, 0, 0, 2] for i in range(count // 4)], np.uint64), (31, 0)).reshape(-1)
    assert len(np.unique(w)) < count, "no tie: another seed is needed"
    expected = np.lexsort((tie_words, w))
    np.testing.assert_array_equal(mps.permutation(count, generator=mps.Generator(31)).numpy(), expected)
    assert (expected != np.argsort(w, kind="stable")).any(), "the ties are in order by chance: another seed is needed"


@pytest.mark.parametrize(("count", "dtype"), [(-1, "int64"), (2**32 + 1, "int64"), (257, "uint8"), (129, "int8")])
def test_permutation_refuses_what_does_not_fit(count: int, dtype: str) -> None:
    offset = mps.default_generator().offset
    with pytest.raises(ValueError, match="permutation: got"):
        mps.permutation(count, dtype=dtype)
    with pytest.raises(TypeError):
        mps.permutation(4, dtype="float32")
    assert mps.default_generator().offset == offset


# ---- distributions: fixed seeds, so a test passes for good or fails for good


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def chi_square_limit(degrees: int) -> float:
    """What is exceeded once in 10000 times, by Wilson and Hilferty."""
    return degrees * (1 - 2 / (9 * degrees) + 3.719 * math.sqrt(2 / (9 * degrees))) ** 3


def distance(sample: np.ndarray, distribution: Callable[[np.ndarray], np.ndarray]) -> float:
    """Kolmogorov and Smirnov's, times the root of the sample's size: above 2.2 once in 10000 times."""
    ordered = np.sort(sample.astype(np.float64))
    below = distribution(ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((below - steps[:-1]).max(), (steps[1:] - below).max()) * math.sqrt(len(ordered)))


def normal_distribution(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kolmogorov_and_smirnov(seed: int) -> None:
    generator = mps.Generator(seed)
    assert distance(mps.rand(200_000, generator=generator).numpy(), lambda x: x) < 2.2
    assert distance(mps.randn(200_000, generator=generator).numpy(), normal_distribution) < 2.2
    assert distance(mps.exponential(200_000, generator=generator).numpy(), lambda x: 1 - np.exp(-x)) < 2.2
    moved = mps.fill_normal(mps.empty(200_000), 3.0, 0.5, generator=generator).numpy()
    assert distance(moved, lambda x: normal_distribution((x - 3) / 0.5)) < 2.2


def test_neighbours_are_independent() -> None:
    pairs = mps.rand(500_000, 2, generator=mps.Generator(4)).numpy()
    cells = (pairs * 32).astype(int)
    counts = np.bincount(cells[:, 0] * 32 + cells[:, 1], minlength=1024)
    assert chi_square(counts, np.full(1024, 500_000 / 1024)) < chi_square_limit(1023)
    numbers = mps.randn(1_000_000, generator=mps.Generator(4)).numpy().astype(np.float64)
    for lag in (1, 2, 3, 4, 8, 64):
        assert abs((numbers[:-lag] * numbers[lag:]).mean()) < 4.5e-3


@pytest.mark.parametrize("high", [3, 10, 1000])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_whole_numbers_are_equally_likely(high: int, dtype: str) -> None:
    if high > 256 and dtype == "uint8":
        high = 256
    numbers = mps.randint(high, (400_000,), dtype=dtype, generator=mps.Generator(high)).numpy()
    counts = np.bincount(numbers, minlength=high)
    assert len(counts) == high
    assert chi_square(counts, np.full(high, 400_000 / high)) < chi_square_limit(high - 1)


def test_a_range_that_words_do_not_divide_into_is_not_biased() -> None:
    # Scaled without another attempt, the lowest third of the numbers would come up half as often again.
    numbers = mps.randint(0, 3 << 30, (300_000,), dtype="uint32", generator=mps.Generator(1)).numpy()
    counts = np.bincount(numbers % 3, minlength=3)
    assert chi_square(counts, np.full(3, 100_000.0)) < chi_square_limit(2)


@pytest.mark.parametrize("p", [0.001, 0.3, 0.999])
@pytest.mark.parametrize("dtype", ["bool", "float16", "int64"])
def test_bernoulli_share(p: float, dtype: str) -> None:
    ones = mps.bernoulli(p, 400_000, dtype=dtype, generator=mps.Generator(17)).numpy().astype(np.int64).sum()
    assert abs(ones - p * 400_000) < 4 * math.sqrt(400_000 * p * (1 - p))


# ---- layouts

FILLS: dict[str, tuple[Callable[[mps.Array, mps.Generator], mps.Array], list[str]]] = {
    "uniform": (lambda a, g: mps.fill_uniform(a, -1, 2, generator=g), FLOATS),
    "normal": (lambda a, g: mps.fill_normal(a, 1, 2, generator=g), FLOATS),
    "exponential": (lambda a, g: mps.fill_exponential(a, 3, generator=g), FLOATS),
    "bernoulli": (lambda a, g: mps.fill_bernoulli(a, 0.4, generator=g), ["bool", *INTEGERS, *FLOATS]),
    "poisson": (lambda a, g: mps.fill_poisson(a, 9.5, generator=g), [*INTEGERS, *FLOATS]),
    "randint": (lambda a, g: mps.fill_randint(a, 100, generator=g), [*INTEGERS, *FLOATS]),
}
LAYOUTS: dict[str, Callable[[mps.Array], mps.Array]] = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, :, ::-1],
    "stepped": lambda a: a[:, 1::2, 1:7:3],
    "one column": lambda a: a[:, :, 3],
    "with new axes": lambda a: a[None, :, ::2, None],
    "contiguous at an odd offset": lambda a: a[1, 2, 1:6],
    "one element": lambda a: a[1, 2, 3],
}


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, (_, dtypes) in FILLS.items() for dtype in dtypes])
def test_layout_does_not_matter(name: str, dtype: str) -> None:
    fill, _ = FILLS[name]
    for layout in LAYOUTS.values():
        whole = mps.zeros(6, 5, 7, dtype=dtype)
        untouched = np.ones((6, 5, 7), bool)
        view = layout(whole)
        plain = fill(mps.zeros(view.shape, dtype=dtype), mps.Generator(3)).numpy()
        fill(view, mps.Generator(3))
        np.testing.assert_array_equal(view.numpy(), plain)
        mask = mps.asarray(untouched)
        layout(mask).fill_(False)
        assert not whole.numpy()[mask.numpy()].any()


def test_many_axes() -> None:
    whole = mps.zeros(*[2] * 20)
    view = whole[(slice(None, None, -1),) * 20].transpose(*np.random.default_rng(0).permutation(20))
    mps.fill_uniform(view, generator=mps.Generator(1))
    np.testing.assert_array_equal(view.numpy().reshape(-1), mps.rand(2**20, generator=mps.Generator(1)).numpy())


def test_five_axes_do_not_repeat() -> None:
    numbers = mps.randn(8, 4, 3, 5, 7, generator=mps.Generator(1)).numpy()
    assert len(np.unique(numbers)) > 0.99 * numbers.size


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 63, 1000, 4097])
def test_a_longer_array_begins_with_a_shorter_ones_numbers(count: int) -> None:
    for draw in (mps.rand, mps.randn, mps.exponential):
        whole = draw(5000, generator=mps.Generator(1)).numpy()
        np.testing.assert_array_equal(draw(count, generator=mps.Generator(1)).numpy(), whole[:count])


@pytest.mark.parametrize("group", [1, 3, 64, 1024])
def test_group_size_does_not_matter(group: int) -> None:
    out = mps.empty(40_000)
    kernel = mps.random._kernel("normal_float")
    part, law = struct.pack("<4Q", 5, 0, 0, 40_000), struct.pack("<2f", 0, 1)
    kernel(out, part, law, threads=10_000, group_size=group)
    np.testing.assert_array_equal(out.numpy(), mps.randn(40_000, generator=mps.Generator(5)).numpy())


def test_launches_of_a_part_each_give_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    p = np.random.default_rng(0).random(50).astype(np.float32)

    def all_of_them() -> list[np.ndarray]:
        generator = mps.Generator(5)
        return [
            mps.randn(103, generator=generator).numpy(),
            mps.randint(1000, (51,), generator=generator).numpy(),
            mps.fill_uniform(mps.empty(20, 5).T, generator=generator).numpy(),
            mps.bernoulli(p, generator=generator).numpy(),
            mps.fill_bernoulli(mps.zeros(100, dtype="uint8")[::2], p, generator=generator).numpy(),
            mps.permutation(1001, generator=generator).numpy(),
            mps.poisson(20.0, 20, generator=generator).numpy(),
        ]

    whole = all_of_them()
    monkeypatch.setattr(mps.random, "_LAUNCH", 7)
    for part, expected in zip(all_of_them(), whole, strict=True):
        np.testing.assert_array_equal(part, expected)


NUMBERS = """
import hashlib, os
import mpscffi as mps
generator = mps.Generator(5)
digest = hashlib.sha256()
for array in (mps.rand(300_001, generator=generator), mps.randn(300_001, generator=generator),
              mps.exponential(300_001, generator=generator), mps.randint(-5, 1000, (300_001,), generator=generator),
              mps.permutation(50_000, generator=generator), mps.poisson(7.5, 3001, generator=generator),
              mps.poisson(700, 3001, generator=generator)):
    digest.update(array.numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to a processor")
def test_number_of_threads_does_not_matter(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    alone = "import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    outputs = {python(prefix + NUMBERS).stdout for prefix in ("", alone)}
    assert len(outputs) == 1
    assert len(outputs.pop()) == 65


def test_safe_math_is_not_the_environments_to_change(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    plain, fast = python(NUMBERS).stdout, python(NUMBERS, PYTORCH_MPS_FAST_MATH="1").stdout
    assert plain == fast
    assert len(plain) == 65


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc here")
def test_the_same_numbers_from_c(tmp_path: Path) -> None:
    library = Path(mps.get_library()).parent
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", str(ROOT / "examples/c/normals.c")]
    command += ["-I", mps.get_include(), "-L", str(library), "-lmpsshim", f"-Wl,-rpath,{library}"]
    subprocess.run([*command, "-o", str(tmp_path / "normals")], check=True, timeout=60)
    kernels = Path(mps.__file__).parent / "kernels" / "random.metal"
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    seed, offset = 2**63 + 12345, 2**32 - 100
    done = subprocess.run(
        [tmp_path / "normals", kernels, str(seed), str(offset), "10000"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
        env={**os.environ, "PATH": path},
    )
    generator = mps.Generator(seed)
    generator.offset = offset
    np.testing.assert_array_equal(
        np.frombuffer(done.stdout, np.float32), mps.randn(10_000, generator=generator).numpy()
    )


# ---- how far the stream moves


@pytest.mark.parametrize("count", [0, 1, 4, 5, 10, 1000])
def test_blocks_that_a_draw_takes(count: int) -> None:
    quarter, half = -(-count // 4), -(-count // 2)
    draws: list[tuple[Callable[[mps.Generator], object], int]] = [
        (lambda g: mps.rand(count, generator=g), quarter),
        (lambda g: mps.randn(count, dtype="float16", generator=g), quarter),
        (lambda g: mps.exponential(count, generator=g), quarter),
        (lambda g: mps.bernoulli(0.5, count, generator=g), quarter),
        (lambda g: mps.bernoulli(np.full(count, 0.5), generator=g), count),
        (lambda g: mps.randint(9, (count,), dtype="int8", generator=g), quarter),
        (lambda g: mps.randint(9, (count,), dtype="uint32", generator=g), quarter),
        (lambda g: mps.randint(9, (count,), generator=g), half),
        (lambda g: mps.randint(-9, 9, (count,), dtype="float32", generator=g), quarter),
        (lambda g: mps.fill_normal(mps.empty(count, 2)[:, 0], generator=g), quarter),
        (lambda g: mps.poisson(4.0, count, generator=g), 32 * count),
        (lambda g: mps.poisson(np.full(count, 40.0), dtype="int16", generator=g), 32 * count),
    ]
    for number, (draw, blocks) in enumerate(draws):
        generator = mps.Generator(1)
        draw(generator)
        assert generator.offset == blocks, number


@pytest.mark.parametrize(
    ("count", "blocks"),
    [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (384, 96), (385, 97), (32_767, 8192), (32_768, 8192 + 32_768)],
)
def test_blocks_that_a_permutation_takes(count: int, blocks: int) -> None:
    generator = mps.Generator(1)
    mps.permutation(count, generator=generator)
    assert generator.offset == blocks


def test_two_draws_of_five_leave_the_offset_at_four() -> None:
    mps.manual_seed(230)
    first, second = mps.randn(5).numpy(), mps.randn(5).numpy()
    assert mps.default_generator().offset == 4
    assert (first != second).all()
    assert mps.get_rng_state().tobytes().hex() == "01000000" * 5 + "e600000000000000" * 2 + "0400000000000000"


# ---- seeds


@pytest.mark.parametrize(
    ("given", "seed"),
    [
        (0, 0),
        (-1, 2**64 - 1),
        (-(2**63), 2**63),
        (2**32, 2**32),
        (2**63, 2**63),
        (2**64 - 1, 2**64 - 1),
        (True, 1),
        (1.0, 1),
        (1.5, 1),
        ("1", 1),
        (np.int64(7), 7),
        (np.int8(-7), 2**64 - 7),
        (np.uint64(2**64 - 1), 2**64 - 1),
    ],
)
def test_seeds_that_upstream_takes(given: object, seed: int) -> None:
    generator = mps.Generator()
    assert generator.manual_seed(given) is generator
    assert generator.initial_seed() == seed
    assert generator.get_state()[20:36].tobytes() == seed.to_bytes(8, "little") * 2
    assert mps.manual_seed(given) is None
    assert mps.initial_seed() == seed
    np.testing.assert_array_equal(mps.randint(2**32, (4,), dtype="uint32").numpy(), words(seed, 0, 1))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (2**64, ValueError),
        (-(2**63) - 1, ValueError),
        (1e30, ValueError),
        ("x", ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (None, TypeError),
        ([1], TypeError),
        (1j, TypeError),
    ],
)
def test_seeds_that_are_refused(given: object, error: type[Exception]) -> None:
    mps.manual_seed(5)
    mps.rand(3)
    before = mps.get_rng_state()
    with pytest.raises(error, match="manual_seed: got") as caught:
        mps.manual_seed(given)
    assert isinstance(caught.value, mps.Error)
    np.testing.assert_array_equal(mps.get_rng_state(), before)


def test_distinct_seeds_give_distinct_streams() -> None:
    seeds = [0, 1, 2, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    streams = {drawn_words(mps.Generator(seed), 64).tobytes() for seed in seeds}
    assert len(streams) == len(seeds)


def test_the_default_generator_is_one() -> None:
    generator = mps.default_generator()
    mps.manual_seed(42)
    assert generator is mps.default_generator()
    assert generator.initial_seed() == 42
    mps.seed()
    assert generator.initial_seed() == mps.initial_seed() == mps.default_generator().initial_seed()
    draws = []
    for seed in (mps.manual_seed, generator.manual_seed):
        seed(230)
        draws.append(mps.randn(5).tolist())
    assert draws[0] == draws[1] == mps.randn(5, generator=mps.Generator(230)).tolist()


def test_seed_is_unpredictable_and_said_afterwards() -> None:
    seeds = set()
    for _ in range(8):
        assert mps.seed() is None
        seeds.add(mps.initial_seed())
        assert mps.default_generator().offset == 0
    assert len(seeds) == 8
    assert max(seeds) > 2**53
    generator = mps.Generator()
    assert generator.seed() == generator.initial_seed()


def test_a_new_process_begins_unpredictably(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    script = "import mpscffi\nprint(mpscffi.initial_seed())"
    assert python(script).stdout != python(script).stdout


def test_seeding_needs_no_device(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    script = "import mpscffi\nmpscffi.manual_seed(3)\nprint(mpscffi.get_rng_state()[28])\nmpscffi.rand(1).numpy()"
    done = python(script, MPSCFFI_DEVICE="metal")
    if not mps.is_available():
        assert "UnavailableError" in done.stderr
    assert done.stdout == "3\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_may_seed_but_not_draw(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python(
        """
        import os, warnings
        import mpscffi as mps
        mps.rand(5).numpy()
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            mps.manual_seed(7)
            print(mps.initial_seed(), mps.default_generator().offset, flush=True)
            try:
                mps.rand(5)
            except mps.errors.ForkedError:
                print("refused", mps.default_generator().offset, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert done.stdout == "7 0\nrefused 0\n", done.stderr


# ---- state


def test_state_of_a_generator_that_nobody_seeded() -> None:
    state = mps.Generator().get_state()
    assert (state.dtype, state.shape) == (np.uint8, (44,))
    assert state.tobytes() == bytes([1]) + bytes(27) + (67280421310721).to_bytes(8, "little") + bytes(8)


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_state_continues_in_the_middle(count: int) -> None:
    mps.manual_seed(1)
    mps.rand(count)
    saved = mps.get_rng_state()
    first = mps.randn(7).numpy()
    later = mps.rand(7).numpy()
    mps.set_rng_state(saved)
    np.testing.assert_array_equal(mps.get_rng_state(), saved)
    np.testing.assert_array_equal(mps.randn(7).numpy(), first)
    np.testing.assert_array_equal(mps.rand(7).numpy(), later)


def test_state_continues_in_another_process(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    mps.manual_seed(99)
    mps.rand(3)
    saved = bytes(mps.get_rng_state())
    script = f"import mpscffi\nmpscffi.set_rng_state({saved!r})\nprint(mpscffi.randn(9).numpy().tobytes().hex())"
    assert python(script).stdout.strip() == mps.randn(9).numpy().tobytes().hex()


def test_any_words_survive() -> None:
    state = np.random.default_rng(3).integers(0, 256, 44).astype(np.uint8)
    generator = mps.Generator().set_state(state)
    np.testing.assert_array_equal(generator.get_state(), state)
    assert generator.initial_seed() == int.from_bytes(state[28:36].tobytes(), "little")
    assert generator.offset == int.from_bytes(state[36:].tobytes(), "little")


def test_state_is_a_copy() -> None:
    generator = mps.Generator(1)
    state = generator.get_state()
    state[:] = 0
    assert generator.initial_seed() == 1


@pytest.mark.parametrize("form", ["array", "bytes", "bytearray", "memoryview", "shaped", "strided", "device"])
def test_forms_of_a_state(form: str) -> None:
    state = mps.Generator(77).jump(5).get_state()
    spread = np.zeros(88, np.uint8)
    spread[::2] = state
    given = {
        "array": state,
        "bytes": bytes(state),
        "bytearray": bytearray(state),
        "memoryview": memoryview(state),
        "shaped": state.reshape(4, 11),
        "strided": spread[::2],
        "device": mps.asarray(state),
    }[form]
    mps.set_rng_state(given, "cuda, but nobody looks")
    assert (mps.initial_seed(), mps.default_generator().offset) == (77, 5)


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        (np.zeros(43, np.uint8), RuntimeError, "wrong size"),
        (np.zeros(45, np.uint8), ValueError, "wrong size"),
        (b"", RuntimeError, "wrong size"),
        (np.zeros(44, np.int8), TypeError, "expected uint8"),
        (np.zeros(11, np.uint32), TypeError, "expected uint8"),
        ([0] * 44, TypeError, "of type list"),
        ([0] * 44, AttributeError, "of type list"),
        (None, TypeError, "of type NoneType"),
        ("x" * 44, TypeError, "of type str"),
    ],
)
def test_states_that_are_refused(state: object, error: type[Exception], text: str) -> None:
    generator = mps.Generator(5).jump(3)
    with pytest.raises(error, match=text):
        generator.set_state(state)
    assert (generator.initial_seed(), generator.offset) == (5, 3)


# ---- other generators


@pytest.mark.parametrize(
    "duplicate", [mps.Generator.clone, copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]
)
def test_copies_go_on_by_themselves(duplicate: Callable[[mps.Generator], mps.Generator]) -> None:
    generator = mps.Generator(3)
    mps.rand(5, generator=generator)
    other = duplicate(generator)
    np.testing.assert_array_equal(other.get_state(), generator.get_state())
    expected = mps.rand(9, generator=generator).numpy()
    assert other.offset == 2
    np.testing.assert_array_equal(mps.rand(9, generator=other).numpy(), expected)


def test_jump() -> None:
    generator = mps.Generator(3)
    assert generator.jump(10) is generator
    np.testing.assert_array_equal(drawn_words(generator, 4), words(3, 10, 1))
    assert generator.jump(-11).offset == 0
    assert generator.jump(-1).offset == 2**64 - 1
    generator.offset = 0
    pieces = [generator.clone().jump(i << 48).offset for i in range(4)]
    assert pieces == [i << 48 for i in range(4)]
    assert generator.jump().offset == 1 << 48


def test_spawned_generators_differ_and_come_again() -> None:
    parent = mps.Generator(3)
    saved = parent.get_state()
    children = [*parent.spawn(1000), *parent.spawn(1000)]
    assert parent.offset == 2
    seeds = {child.initial_seed() for child in children}
    assert len(seeds) == 2000
    assert all(child.offset == 0 for child in children)
    again = parent.set_state(saved).spawn(1000)
    assert [child.initial_seed() for child in again] == [child.initial_seed() for child in children[:1000]]
    assert mps.Generator(4).spawn(1)[0].initial_seed() not in seeds
    first = np.stack([drawn_words(child, 64) for child in children[:64]])
    assert len(np.unique(first)) == first.size
    ones = int(np.unpackbits(first.view(np.uint8)).sum())
    assert abs(ones - first.size * 16) < 4 * math.sqrt(first.size * 8)
    assert parent.spawn(0) == []


@pytest.mark.parametrize("call", [lambda g: g.spawn(-1), lambda g: g.reserve(-1), lambda g: g.reserve(2**64)])
def test_counts_that_are_refused(call: Callable[[mps.Generator], object]) -> None:
    generator = mps.Generator(3)
    with pytest.raises(ValueError, match="expected 0"):
        call(generator)
    assert generator.offset == 0


def test_offset_is_checked() -> None:
    generator = mps.Generator(3)
    for bad in (-1, 2**64):
        with pytest.raises(ValueError, match="offset: got"):
            generator.offset = bad
    for method in (generator.jump, generator.spawn, generator.reserve):
        with pytest.raises(TypeError, match="got float"):
            method(1.5)
    assert generator.offset == 0


def test_threads_draw_different_numbers() -> None:
    generator = mps.Generator(3)
    parts: list[np.ndarray] = []
    adapted = np.random.Generator(mps.BitGenerator(generator))

    def draw() -> None:
        for _ in range(50):
            parts.append(drawn_words(generator, 40))
            adapted.bit_generator.random_raw(100)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert generator.offset == 4 * 50 * (10 + 100)
    assert len({part.tobytes() for part in parts}) == 200
    stream = words(3, 0, generator.offset).reshape(-1, 4)
    known = {block.tobytes() for block in stream}
    assert all(block.tobytes() in known for part in parts for block in part.reshape(-1, 4))


def test_reserve_is_for_kernels_of_ones_own() -> None:
    generator = mps.Generator(3)
    mps.rand(9, generator=generator)
    assert generator.reserve(7) == (3, 3)
    assert generator.reserve(0) == (3, 10)


# ---- NumPy


def test_numpy_draws_from_our_stream() -> None:
    generator = mps.Generator(42)
    mps.rand(9, generator=generator)
    rng = np.random.Generator(mps.BitGenerator(generator))
    expected = words(42, 3, 5).reshape(-1, 4).astype(np.uint64)
    whole = expected[:, 0] | expected[:, 1] << np.uint64(32)
    np.testing.assert_array_equal(rng.bit_generator.random_raw(3), whole[:3])
    np.testing.assert_array_equal(rng.random(2), (whole[3:] >> np.uint64(11)) * 2.0**-53)
    assert generator.offset == 8
    np.testing.assert_array_equal(drawn_words(generator, 4), words(42, 8, 1))


def test_numpy_continues_where_the_state_was_saved() -> None:
    generator = mps.Generator(42)
    rng = np.random.Generator(mps.BitGenerator(generator))
    rng.random(dtype=np.float32)
    saved, own = generator.get_state(), rng.bit_generator.state
    first = (rng.standard_normal(5), rng.integers(0, 9, 5, dtype=np.int32), rng.random(3, dtype=np.float32))
    for restore in (lambda: generator.set_state(saved), lambda: setattr(rng.bit_generator, "state", own)):
        restore()
        again = (rng.standard_normal(5), rng.integers(0, 9, 5, dtype=np.int32), rng.random(3, dtype=np.float32))
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="PCG64"):
        rng.bit_generator.state = np.random.PCG64(1).state
    with pytest.raises(TypeError, match="mapping"):
        rng.bit_generator.state = 3


def test_numpy_distributions() -> None:
    rng = np.random.Generator(mps.BitGenerator(mps.Generator(9)))
    assert distance(rng.random(100_000), lambda x: x) < 2.2
    assert distance(rng.standard_normal(100_000), normal_distribution) < 2.2
    counts = np.bincount(rng.integers(0, 10, 100_000), minlength=10)
    assert chi_square(counts, np.full(10, 10_000.0)) < chi_square_limit(9)
    assert abs(rng.poisson(4.0, 100_000).mean() - 4) < 4 * 2 / math.sqrt(100_000)


def test_bit_generator_is_pickled_spawned_and_kept_alive() -> None:
    bits = mps.BitGenerator(mps.Generator(9))
    other = pickle.loads(pickle.dumps(bits))
    expected = bits.random_raw(4)
    np.testing.assert_array_equal(other.random_raw(4), expected)
    assert other.generator is not bits.generator
    children = bits.spawn(2)
    assert bits.generator.offset == 5
    assert children[0].random_raw() != children[1].random_raw()
    rng = np.random.Generator(mps.BitGenerator(mps.Generator(9)))
    del bits, other
    assert rng.integers(0, 2**64, dtype=np.uint64) == expected[0]
    assert mps.BitGenerator().generator is mps.default_generator()
    with pytest.raises(TypeError, match="expected an mpscffi.Generator"):
        mps.BitGenerator(5)


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: mps.randn(3, dtype="int32"), TypeError, "int32"),
        (lambda: mps.rand(3, dtype="complex64"), TypeError, "complex64"),
        (lambda: mps.rand(3, dtype="float64"), TypeError, "float64"),
        (lambda: mps.fill_normal(mps.empty(3, dtype="uint8")), TypeError, "uint8"),
        (lambda: mps.fill_exponential(mps.empty(3, dtype="bool")), TypeError, "bool"),
        (lambda: mps.fill_uniform(np.zeros(3)), TypeError, "ndarray"),
        (lambda: mps.rand(-1), ValueError, "below 0"),
        (lambda: mps.rand(3, generator=5), TypeError, "generator: got int"),
        (lambda: mps.fill_uniform(mps.empty(3), 2, 1), ValueError, "at most high"),
        (lambda: mps.fill_uniform(mps.empty(3), math.nan, 1), ValueError, "finite"),
        (lambda: mps.fill_uniform(mps.empty(3), -3e38, 3e38), ValueError, "high - low"),
        (lambda: mps.fill_uniform(mps.empty(3, dtype="float16"), 0, 1e6), ValueError, "range of float16"),
        (lambda: mps.fill_uniform(mps.empty(3), "a"), TypeError, "low='a'"),
        (lambda: mps.fill_normal(mps.empty(3), 0, -1), ValueError, "std=-1"),
        (lambda: mps.fill_normal(mps.empty(3), 0, math.inf), ValueError, "finite"),
        (lambda: mps.exponential(3, lambd=0), ValueError, "more than 0"),
        (lambda: mps.exponential(3, lambd=-1), ValueError, "more than 0"),
        (lambda: mps.exponential(3, lambd=1e-300), ValueError, "beyond the range"),
        (lambda: mps.bernoulli(1.5, 3), ValueError, "from 0 to 1"),
        (lambda: mps.bernoulli(math.nan, 3), ValueError, "finite"),
        (lambda: mps.bernoulli([0.5, 1.5]), ValueError, "not from 0 to 1"),
        (lambda: mps.bernoulli([0.5, math.nan]), ValueError, "not from 0 to 1"),
        (lambda: mps.bernoulli([0.5, 0.5], 3), ValueError, "broadcasts"),
        (lambda: mps.bernoulli(np.array(["a"])), TypeError, "expected numbers"),
        (lambda: mps.bernoulli(0.5, 3, dtype="complex64"), TypeError, "complex64"),
        (lambda: mps.randint(5, 5, (3,)), ValueError, "below high"),
        (lambda: mps.randint(0.5, 5, (3,)), TypeError, "expected integers"),
        (lambda: mps.randint(0, 300, (3,), dtype="uint8"), ValueError, "uint8"),
        (lambda: mps.permutation(1.5), TypeError, "float"),
        (lambda: mps.poisson(-1, 3), ValueError, "rate=-1, expected 0 to"),
        (lambda: mps.poisson(2.0**31, 3), ValueError, "expected 0 to"),
        (lambda: mps.poisson(math.nan, 3), ValueError, "finite"),
        (lambda: mps.poisson("a", 3), TypeError, "rate='a'"),
        (lambda: mps.poisson([1.0, -1.0]), ValueError, "not from 0 to"),
        (lambda: mps.poisson([1.0, math.nan]), ValueError, "not from 0 to"),
        (lambda: mps.poisson([1.0, 2.0], 3), ValueError, "broadcasts"),
        (lambda: mps.poisson(2.0, 3, dtype="bool"), TypeError, "bool"),
        (lambda: mps.poisson(2.0, 3, dtype="complex64"), TypeError, "complex64"),
        (lambda: mps.poisson(200.0, 3, dtype="uint8"), ValueError, "beyond the range of uint8"),
        (lambda: mps.poisson([1.0, 7e4], dtype="float16"), ValueError, "beyond the range of float16"),
    ],
)
def test_arguments_that_are_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    before = mps.get_rng_state()
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value, mps.Error)
    np.testing.assert_array_equal(mps.get_rng_state(), before)


def test_read_only_arrays_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_bytes(bytes(64))
    with pytest.raises(ValueError, match="read-only"):
        mps.fill_uniform(mps.from_file(file))


def test_elements_across_their_own_boundaries_are_refused() -> None:
    before = mps.get_rng_state()
    shifted = mps.zeros(64, dtype="uint8")[1:41].view("float32")
    with pytest.raises(ValueError, match="multiples"):
        mps.fill_uniform(shifted)
    np.testing.assert_array_equal(mps.get_rng_state(), before)


def test_parameters_are_not_mixed_up_with_equal_ones_of_before() -> None:
    mps.fill_randint(mps.empty(4), 0, 5)
    with pytest.raises(TypeError, match="expected integers"):
        mps.fill_randint(mps.empty(4), 0, 5.0)
    changing = mps.full((), 1.0)
    for value in (1.0, 8.0):
        changing.fill_(value)
        assert mps.fill_uniform(mps.empty(4), changing, changing).tolist() == [value] * 4


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    before = mps.get_rng_state()
    for array in (mps.rand(shape), mps.randn(*shape), mps.randint(5, shape), mps.bernoulli(np.zeros(shape))):
        assert array.shape == shape
    np.testing.assert_array_equal(mps.get_rng_state(), before)


def test_work_on_streams_draws_in_the_callers_order() -> None:
    streams = [mps.Stream(), mps.Stream()]
    generator = mps.Generator(13)
    arrays = []
    for i in range(20):
        with mps.stream(streams[i % 2]):
            arrays.append(mps.rand(1001, generator=generator))
    expected = mps.Generator(13)
    for array in arrays:
        np.testing.assert_array_equal(array.numpy(), mps.rand(1001, generator=expected).numpy())


@pytest.mark.parametrize("count", [1 << 64, (1 << 20) + 1, -1])
def test_more_generators_than_memory_has_room_for_are_refused(count: int) -> None:
    generator = mps.Generator(7)
    before = generator.get_state().tobytes()
    with pytest.raises(mps.errors.InvalidArgumentError, match=r"spawn: got -?\d+ generators, expected 0 to 1048576$"):
        generator.spawn(count)
    assert generator.get_state().tobytes() == before
