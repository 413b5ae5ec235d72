"""SIMD-groups as loops over their lanes: which kernels are run so, and that they compute what fibers compute."""

from __future__ import annotations

import os
import random
import re

import numpy as np
import pytest
from test_mslc_split import BARRIER, FIBERS, SIZES, results, text_of

import mpscffi
from mpscffi.mslc import provider
from mpscffi.mslc.gang import NotGangedError, ganged
from mpscffi.mslc.gang.sizes import Sizes

KERNELS = int(os.environ.get("MPSCFFI_TEST_KERNELS", "10"))


pytestmark = [pytest.mark.host_only("its compiler"), pytest.mark.usefixtures("device")]


# What needs a fiber for each thread, of the kernels that are not split.
STILL_FIBERS = {
    "return before a barrier", "a condition of a variable", "a loop of a thread",
    "a loop that a thread changes", "an atomic", "a load of a thread", "a SIMD-group function in a condition",
    "a SIMD-group function that may be left out", "a loop that waits",
}  # fmt: skip

MEET = "meet();"  # a barrier in a function, which the loops over a whole threadgroup do not take
GANGED = {
    **{name: body for name, body in FIBERS.items() if name not in STILL_FIBERS},
    "only one SIMD-group": f"{MEET} out[i] = 1; if (sg == 0) {{ out[i] = simd_sum(in[i]) + lane; }} {MEET}"
    f" if (sg != 0) {{ out[i] += simd_max(in[i]); {MEET} }} else {{ {MEET} }} out[i] += t;",
    "SIMD-groups that return": f"{MEET} if (sg == 1) {{ return; }} float x = simd_sum(in[i]); out[i] = x + lane;",
    "rounds that differ": f"{MEET} float x = 0; for (uint k = 0; k < sg + 1; k++) {{ x += simd_max(in[i] * k); }}"
    f" {MEET} out[i] = x;",
    "loops apart": f"""{MEET} uint x = t; for (uint k = 0; k < t % 7; k++) {{ x = x * 3 + k;
  if (x % 11 == 4) {{ break; }} }}
  room[t] = x % 1000; {MEET} uint y = 0; while (y * y < x % 100) {{ y++; if (y % 3 == 0) {{ continue; }} y += x & 1; }}
  out[i] = room[(t + 5) % count] + simd_shuffle_down(y, 1) + x % 64;""",
    "an array of each thread": f"""uint mine[6]; for (uint k = 0; k < 6; k++) {{ mine[k] = t * k; }} {MEET}
  mine[t % 6] += 7; mine[(t + n) % 6] ^= 5; {MEET}
  out[i] = mine[0] + 3 * mine[lane % 6] + simd_sum(mine[5]);""",
    "an array that is aligned as its size is not": f"""uint mine[5] = {{1, 2, 3, 4, 5}}; {MEET} mine[t % 5] += t; {MEET}
  out[i] = mine[0] + mine[1] * 3 + mine[2] * 5 + mine[3] * 7 + mine[4] * 11;""",
    "a variable with an alignment of its own": f"""struct alignas(64) Three {{ uint at[3]; }};
  Three a = {{{{n, t, 2}}}}, b = a; alignas(32) uint c[9]; for (uint k = 0; k < 9; k++) {{ c[k] = k * n + t; }} {MEET}
  a.at[t % 3] += t; b.at[(t + 1) % 3] = 3; c[t % 9] += 5; {MEET} Three d = t & 1 ? a : b;
  out[i] = d.at[0] + d.at[1] * 3 + d.at[2] * 5 + c[0] + c[1] * 2 + c[8];""",
    "structs with gaps": f"""struct Inner {{ uchar a; float4 b; uchar c; }};
  struct Outer {{ uchar x; Inner at[2]; uchar y; }};
  Outer mine[3]; float3 next[5]; for (uint k = 0; k < 5; k++) {{ next[k] = float3(t, k, 2); }}
  for (uint k = 0; k < 3; k++) {{
    mine[k] = Outer{{uchar(t), {{{{3, float4(t), 4}}, {{5, float4(k), 6}}}}, uchar(k)}};
  }}
  {MEET}
  mine[t % 3].y += 1; mine[(t + 1) % 3].at[t % 2].b.z += t; next[t % 5].x += 1; {MEET} float sum = 0;
  for (uint k = 0; k < 3; k++) {{ sum = sum * 2 + mine[k].x + mine[k].at[0].b.z + mine[k].at[1].b.z + mine[k].at[0].a
    + mine[k].at[1].c * 3 + mine[k].y * 5 + next[k].x + next[k + 1].y + next[k + 2].z; }} out[i] = sum;""",
    "votes": f"""{MEET} out[i] = simd_any(in[i] > 1) + 2 * simd_all(in[i] > -1) + simd_is_first() * 4
  + popcount(uint(ulong(simd_active_threads_mask()))) * 8 + (uint(ulong(simd_ballot(in[i] > 0))) >> 8)
  + quad_any(in[i] > 1);""",
    "moves with filling": f"""{MEET} float a = simd_shuffle_and_fill_up(in[i], float(lane), 3);
  float b = simd_shuffle_and_fill_down(in[i], float(t), 5, 8); out[i] = a + 2 * b + simd_broadcast_first(in[i]);""",
    "matrices": f"""{MEET} simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  for (uint k = t; k < 2048; k += count) {{ room[k] = in[first] + k % 7; }} {MEET}
  room[sg * 64 + lane] = in[i]; room[sg * 64 + 32 + lane] = in[i] * 2; {MEET}
  simdgroup_load(a, room + sg % 31 * 64, 8); simdgroup_load(b, room + sg % 31 * 64, 8, ulong2(0), true);
  for (uint k = 0; k < 3; k++) {{ simdgroup_multiply_accumulate(c, a, b, c); }} {MEET}
  simdgroup_store(c, room + sg * 64, 8); {MEET} out[i] = room[sg * 64 + lane * 2];""",
    "a switch apart": f"""{MEET} uint x = t; switch (t % 5) {{ case 0: x += 3; break; case 1: case 2: x *= 2; break;
  default: x -= 1; }} {MEET} switch (n % 3) {{ case 0: {MEET} x += 1; break; case 1: x += 2; break; default: {MEET} }}
  out[i] = x + simd_sum(x);""",
    "values that change places": f"""uint a = t, b = t + 1; for (uint k = 0; k < 5; k++) {{ uint c = a; a = b; b = c;
  {MEET} }} out[i] = a + 2 * b;""",
    "last values": f"""uint k = 0, last = 0; do {{ last = k; {MEET} k++; }} while (k < n % 6 + 2);
  out[i] = last * 10 + k + t;""",
}  # fmt: skip


def is_ganged(source: str) -> bool:
    program = provider.program(source)
    unit = program.unit("test", {}, split=False, gangs=True)
    return unit.meets and program._ganged(unit) is not None


def compare(source: str, sizes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    for size in sizes:
        monkeypatch.delenv("MPSCFFI_FIBERS", raising=False)
        gangs = results(source, size)
        monkeypatch.setenv("MPSCFFI_FIBERS", "1")
        fibers = results(source, size)
        for mine, theirs in zip(gangs, fibers, strict=True):
            np.testing.assert_array_equal(mine.view("u4"), theirs.view("u4"), err_msg=f"{size}\n{source}")
    monkeypatch.delenv("MPSCFFI_FIBERS")


#: Whose barriers not all threads reach, which validation tells.
UNEVEN = pytest.param("a condition of a thread", marks=pytest.mark.unvalidated("a barrier that not all threads reach"))


@pytest.mark.parametrize("name", [UNEVEN, *(name for name in GANGED if name not in UNEVEN.values)])
def test_lanes_compute_what_fibers_compute(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_of(GANGED[name])
    assert is_ganged(source)
    compare(source, SIZES, monkeypatch)


@pytest.mark.parametrize("name", sorted(STILL_FIBERS))
def test_what_lanes_may_not_do_together_runs_as_fibers(name: str) -> None:
    assert not is_ganged(text_of(FIBERS[name]))


class RandomKernel:
    """Writes a kernel that is right by Metal's rules: barriers and SIMD-group functions where control is uniform."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.depth = 0
        self.loops = 0

    def value(self, depth: int = 0) -> str:
        """An expression of uints, which may differ between threads."""
        choose = self.random.choice
        if depth > 2 or self.random.random() < 0.3:
            return choose(["a", "b", "c", "t", "lane", "sg", "n", "mine[t % 5]", f"{self.random.randrange(99)}u",
                           "uint(as_type<int>(in[i]) >> 20)", "group.x"])  # fmt: skip
        operation = choose(["+", "-", "*", "^", "&", "|", "%s / (1 + %s %% 13)", "%s >> (%s %% 9)", "min(%s, %s)",
                            "(%s < %s ? 3u : 8u)"])  # fmt: skip
        left, right = self.value(depth + 1), self.value(depth + 1)
        return f"({operation % (left, right)})" if "%s" in operation else f"({left} {operation} {right})"

    def block(self, level: str) -> str:
        """Statements at a level of control: "group", "simdgroup" or "thread"."""
        self.depth += 1
        text = " ".join(self.statement(level) for _ in range(self.random.randrange(1, 5)))
        self.depth -= 1
        return text

    def statement(self, level: str) -> str:
        variable = self.random.choice("abc")
        simple = [
            lambda: f"{variable} = {self.value()};",
            lambda: f"{variable} += {self.value()};",
            lambda: f"mine[{self.value(2)} % 5] = {self.value()};",
            lambda: f"atomic_fetch_add_explicit(counter, {self.value(2)} % 7, memory_order_relaxed);",
        ]
        control = [
            lambda: f"if ({self.value(1)} % 3 == 1) {{ {self.block('thread')} }} else {{ {self.block('thread')} }}",
            lambda: self.loop(f"{self.value(2)} % 5", "thread"),
        ]
        if level != "thread":
            names = ["sum", "max", "min", "xor", "or", "prefix_inclusive_sum", "prefix_exclusive_sum"]
            simple += [
                lambda: f"{variable} ^= simd_{self.random.choice(names)}({self.value()});",
                lambda: f"{variable} += simd_shuffle_xor({self.value()}, {self.random.choice([1, 2, 4, 8, 16])});",
                lambda: f"{variable} += simd_shuffle_up({self.value()}, {self.random.randrange(4)});",
                lambda: f"{variable} += quad_sum({self.value()}) + simd_any({self.value(2)} % 9 == 2);",
            ]
            control += [
                lambda: f"if (sg % {self.random.randrange(2, 4)} == 0) {{ {self.block('simdgroup')} }}",
                lambda: self.loop("sg % 3 + 1", "simdgroup"),
            ]
        if level == "group":
            simple += [
                lambda: (
                    f"{MEET} room[t] = {self.value()} % 4096; {MEET} {variable} += uint(room[(t * 7 + 3) % count]);"
                ),
            ] * 2
            control += [
                lambda: f"if ((n + group.x) % 2) {{ {self.block('group')} }} else {{ {self.block('group')} }}",
                lambda: self.loop("n % 4 + 1", "group"),
            ]
        nests = self.depth < 4 and self.random.random() < 0.4
        return self.random.choice(control if nests else simple)()

    def loop(self, count: str, level: str) -> str:
        self.loops += 1
        name = f"k{self.loops}"
        leave = f"if ({self.value(2)} % 17 == 3) {{ break; }}" if level == "thread" else ""
        head = f"for (uint {name} = 0, end = {count}; {name} < end; {name}++)"
        return f"{head} {{ {self.block(level)} c += {name}; {leave} }}"

    def text(self) -> str:
        """The kernel's body."""
        body = " ".join(self.statement("group") for _ in range(8))
        late = "if (a % 5 == 2) { out[i] = 1; return; }" if self.random.random() < 0.5 else ""
        return f"""uint a = t, b = i * 2654435761u, c = 1; uint mine[5] = {{1, t, 2, lane, 3}}; room[t] = t;
  {body} {MEET} {late} out[i] = as_type<float>((a ^ b ^ c ^ mine[1] ^ mine[4]) & 0x3fffffffu);"""


@pytest.mark.parametrize("seed", range(KERNELS))
def test_random_kernels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_of(RandomKernel(seed).text())
    assert is_ganged(source) or seed >= 10  # now and then LLVM makes one of what was uniform and what was not
    compare(source, [(1,), (33,), (64,), (100,), (16, 6), (5, 7, 3)], monkeypatch)


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(NotGangedError, match="no such function"):
        ganged("define void @other() {\n  ret void\n}\n", "@thread", "gang")


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("i1", 1), ("i24", 4), ("i128", 16), ("<3 x float>", 16), ("<3 x i8>", 4), ("<9 x half>", 32), ("<5 x i1>", 1),
        ("[4 x <3 x float>]", 64), ("{ i8, <4 x float>, i8 }", 48), ("<{ i8, <4 x float>, i8 }>", 18), ("{}", 0),
        ("{ i8, { i8, i64 }, i8 }", 32), ("[3 x %struct.Pair]", 36), ("{ [5 x i32], [0 x <16 x i8>] }", 32),
    ],
)  # fmt: skip
def test_sizes_are_those_of_llvm(kind: str, size: int) -> None:
    assert Sizes(["%struct.Pair = type { %struct.Inner, i32 }", "%struct.Inner = type { i32, i16 }"]).of(kind) == size


def test_private_memory_beyond_the_limit_is_left_to_fibers() -> None:
    body = f"float mine[2000]; for (uint k = 0; k < 2000; k++) {{ mine[k] = t + k; }} {MEET} out[i] = mine[n % 2000];"
    assert not is_ganged(text_of(body))
    np.testing.assert_array_equal(results(text_of(body), (8,))[0][:8], np.arange(8) + 8)


def test_long_code_is_made_of_lanes_too() -> None:
    steps = " ".join(f"x = x * {k}u + (x >> 3);" for k in range(3, 400))
    source = text_of(f"uint x = t; {MEET} {steps} {MEET} out[i] = as_type<float>(x & 0x3fffffffu);")
    assert is_ganged(source)
    expected = np.arange(40, dtype="u4")
    for k in range(3, 400):
        expected = expected * np.uint32(k) + (expected >> np.uint32(3))
    np.testing.assert_array_equal(results(source, (40,))[0][:40].view("u4"), expected & np.uint32(0x3FFFFFFF))


@pytest.mark.parametrize(("count", "gangs"), [(20, 3), (40, 1), (60, 0)])
def test_what_would_take_long_to_compile_is_done_with_less(count: int, gangs: int) -> None:
    steps = " ".join(f"room[t] = x; {MEET} x += room[(t + {k}) % count] * gid.y; {MEET}" for k in range(count))
    program = provider.program(text_of(f"float x = t; {steps} out[i] = x;"))
    text = program._ganged(program.unit("test", {}, split=False, gangs=True))
    found = re.findall(r"^define [^\n]*@mslc_gang\w*\(.* noalias %scratch", text or "", re.MULTILINE)
    assert len(found) == gangs


def test_a_fault_of_a_lane_is_told() -> None:
    source = text_of(f"room[t] = 1; {MEET} if (t == 3) {{ *(device float *)16 = 1; }} {BARRIER} out[i] = t;")
    assert is_ganged(source)
    with pytest.raises(mpscffi.Error, match="0x10"):
        results(source, (8,))
