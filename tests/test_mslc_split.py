"""Kernels with barriers as loops over their threads: which ones are, and that they compute what fibers compute."""

from __future__ import annotations

import numpy as np
import pytest

import mpscffi
from mpscffi.mslc import provider

pytestmark = [pytest.mark.host_only("its compiler"), pytest.mark.usefixtures("device")]


HEAD = """#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
struct Step { uint start; uint stride; };
constant constexpr uint WIDTH = 4;
template <typename T> T twice(T x) { return x + x; }
void advance(thread uint &x) { x += 3; }
void meet() { threadgroup_barrier(mem_flags::mem_threadgroup); }
"""
PARAMETERS = """device const float *in, device float *out, constant uint &n, device atomic_uint *counter,
  threadgroup float *room [[threadgroup(0)]], uint3 gid [[thread_position_in_grid]],
  uint3 lid [[thread_position_in_threadgroup]], uint t [[thread_index_in_threadgroup]],
  uint3 group [[threadgroup_position_in_grid]], ushort3 size [[threads_per_threadgroup]],
  uint3 groups [[threadgroups_per_grid]], uint lane [[thread_index_in_simdgroup]],
  uint sg [[simdgroup_index_in_threadgroup]], uint sgs [[simdgroups_per_threadgroup]]"""
# The thread's number in the grid, threadgroup by threadgroup, and how many threads a threadgroup has.
PLACES = """const uint first = ((group.z * groups.y + group.y) * groups.x + group.x) * n;
  const uint count = uint(size.x) * size.y * size.z;
  const uint i = first + t;
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"

SPLIT = {
    "neighbour": f"room[t] = in[i]; {BARRIER} out[i] = room[(t + 1) % count] + t;",
    "tree": f"""room[t] = in[i]; {BARRIER}
  uint left = count;
  while (left > 1) {{
    const uint half_of = (left + 1) / 2;
    if (t + half_of < left) {{ room[t] += room[t + half_of]; }}
    {BARRIER}
    left = half_of;
  }}
  if (t == 0) {{ out[i] = room[0]; }}""",
    "shifts": f"""float sum = in[i];
  for (uint s = 1; s < 16; s <<= 1) {{ room[t] = sum; {BARRIER} sum += room[(t + s) % count]; {BARRIER} }}
  for (uint s = 16; s > 0; s >>= 1) {{ room[t] = sum; {BARRIER} sum -= room[(t ^ s) % count]; {BARRIER} }}
  out[i] = sum;""",
    "private array": f"""float mine[4] = {{1, 2, 3, in[i]}}, other = t;
  room[t] = mine[t % 4]; {BARRIER}
  mine[t % WIDTH] += room[(t + 2) % count]; {BARRIER}
  out[i] = mine[0] + mine[1] * other + mine[2] + mine[3];""",
    "changed by a cast": f"""uint2 v = uint2(1, 2); {{ thread uint *p = (thread uint *)&v; p[t & 1] = 9; }}
  uint k = 1, m = 2; {BARRIER} ((thread uint &)k) = t; *(thread uint *)(&m) = t + 1; {BARRIER}
  out[i] = v.x + v.y * 10 + k * 100 + m * 10000;""",
    "vectors": f"""float4 v = float4(in[i], t, 1, 2); uint2 at(t, t + 1);
  room[t] = v.x; {BARRIER}
  v.yz += room[(t + 3) % count]; at.x += 2; {BARRIER}
  out[i] = v.x + v.y * v.z + v.w + at.x;""",
    "pointers": f"""device const float *row = in + first; device float *to = out + first;
  row += t; room[t] = *row; {BARRIER} to[t] = room[(t + 1) % count] + row[0];""",
    "private pointer": f"""float a = in[i], b = 2; float c[2] = {{3, 4}};
  {{ thread float *p = &a; *p += 1; thread float *q = c; q[1] = b; }}
  room[t] = a; {BARRIER} out[i] = room[(t + 7) % count] + c[0] * c[1] + b;""",
    "do and break": f"""uint round = 0; room[t] = in[i]; float sum = 0;
  do {{
    {BARRIER}
    sum += room[(t + round) % count];
    if (round >= WIDTH + group.x) {{ break; }}
    if (round == 1) {{ round += 2; continue; }}
    round++;
  }} while (round < 7);
  out[i] = sum;""",
    "branches": f"""if (group.x == 1) {{ room[t] = in[i]; {BARRIER} out[i] = room[count - 1 - t]; }}
  else if (n > 100000) {{ {BARRIER} out[i] = 1; }}
  else {{ float x = in[i] * 2; room[t] = x; {BARRIER} out[i] = room[t / 2] - x; }}""",
    "uniform return": f"if (group.x == 1) return; room[t] = in[i]; {BARRIER} out[i] = room[count - 1 - t];",
    "late return": f"room[t] = in[i]; {BARRIER} if (t % 3 == 1) return; uint k = t; "
    f"for (;;) {{ if (k > 5) {{ break; }} k++; }}"
    " out[i] = room[0] + k;",
    "own memory": f"""threadgroup float own[1024]; threadgroup uint total; threadgroup atomic_uint hits[4];
  if (t == 0) {{ for (uint k = 0; k < 4; k++) {{ atomic_store_explicit(&hits[k], 0, memory_order_relaxed); }} }}
  own[t] = in[i]; if (t == 0) {{ total = 5; }} {BARRIER}
  atomic_fetch_add_explicit(&hits[t % 4], total, memory_order_relaxed); {BARRIER}
  out[i] = own[count - 1 - t] + atomic_load_explicit(&hits[(t + 1) % 4], memory_order_relaxed);""",
    "uniform load": f"""if (t == 0) {{ room[0] = n / 4; }} {BARRIER} const uint rounds = uint(room[0]); {BARRIER}
  float x = t; for (uint k = 0; k < rounds; k++) {{ room[t] = x; {BARRIER} x += room[(t + 1) % count];
  {BARRIER} }} out[i] = x;""",
    "counter": f"room[t] = t; {BARRIER} uint k = t; k += atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed);"
    f" {BARRIER} out[i] = k + room[count - 1];",
    "types": f"""using Number = float; struct Pair {{ float a; float b; }}; constexpr uint K = 3; Number xs[K];
  for (uint k = 0; k < K; k++) {{ xs[k] = in[i] + k; }} Pair pair = {{xs[0], twice(xs[1])}}; Step step = {{1, 2}};
  room[t] = pair.a; {BARRIER} out[i] = room[(t + step.stride) % count] + pair.b * xs[K - 1];""",
    "sums": "float a = simd_sum(in[i]); float b = quad_sum(in[i]); a += simd_sum(b) * simd_max(a - lane); "
    "out[i] = a + b;",
    "extremes": "float low = simd_min(in[i]); out[i] = low;"
    "out[i] += simd_max(t % 2 ? in[i] : -in[i]) + quad_min(in[i]) * quad_max(in[i]);",
    "scans": "float x = in[i]; float a = simd_prefix_inclusive_sum(x); float c = simd_prefix_exclusive_sum(x);"
    "float p = simd_prefix_inclusive_product(1 + x); float q = quad_prefix_exclusive_product(1 + x);"
    "out[i] = a + c * p - q;",
    "bits": "uint x = t * 2654435761u; uint a = simd_and(x); uint o = simd_or(x); x = simd_xor(x); "
    "out[i] = (a ^ o ^ x) >> 9;",
    "moves": "float x = in[i]; float a = simd_shuffle_down(x, 3); float b = simd_shuffle_up(x, 1);"
    "float c = simd_shuffle_xor(x, ushort(lane % 4)); float d = simd_broadcast(x, 2); "
    "float e = simd_shuffle(x, (lane * 7) % 32);"
    "float f = simd_shuffle_rotate_down(x, 5); float g = quad_shuffle_rotate_up(x, 1); "
    "out[i] = a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g;",
    "strides": f"""float a = 0, b = 1; int last = -1; room[t] = 0;
  for (uint k = t; k < n + 5; k += count) {{ a += in[first + k]; b = b * 2 + k; }}
  for (int k = int(lane) - 20; k <= int(sg) * 7 + 3; k += 9) {{ last = k; if (k % 2 == 0) {{ a -= in[i] * k; }} }}
  for (ushort k = ushort(t * 55); k < 56000; k += 9000) {{ b += k; room[t] = k;
    if (k > 54000) {{ b -= 1; }} }} {BARRIER}
  out[i] = a + b + last + room[(t + 1) % count];""",
    "strides with what ends": f"""float sum = 0;
  for (uint k = t; k < n; k += 3 + group.x) {{ if (k % 5 == 4) {{ continue; }} sum += k; }}
  for (uint k = t; k < n; k += count) {{ if (k == 9) {{ break; }} sum += 2; }}
  for (uint k = t; k < n; k += count) {{ thread float *p = &sum; *p += k; }} {BARRIER} out[i] = sum;""",
    "nested": "out[i] = simd_sum(in[i] * simd_max(in[i])); float k = metal::simd_sum(half(in[i])); out[i] += k;",
    "softmax": f"""float m = -INFINITY; for (uint k = t; k < n; k += count) {{ m = max(m, in[first + k]); }}
  m = simd_max(m); if (lane == 0) {{ room[sg] = m; }} {BARRIER}
  m = simd_max(lane < sgs ? room[lane] : -INFINITY); {BARRIER}
  float s = exp(in[i] - m); s = simd_sum(s); if (lane == 0) {{ room[sg] = s; }} {BARRIER}
  float part = lane < sgs ? room[lane] : 0.0f; const float total = simd_sum(part); out[i] = exp(in[i] - m) / total;""",
    "hidden in a region": f"uint k = 3; if (t > 2) {{ uint k = t; out[i] = k; }} else {{ out[i] = k; "
    f"}} {BARRIER} out[i] += k;",
    "barrier of a SIMD-group": f"room[t] = in[i]; simdgroup_barrier(mem_flags::mem_threadgroup); "
    f"{BARRIER} out[i] = room[t / 2];",
    "position": f"room[t] = gid.x + 100 * gid.y + 1000 * lid.z; "
    f"{BARRIER} out[i] = room[count - 1 - t] + lid.x + lid.y * 7;",
}

FIBERS = {
    "return before a barrier": f"if (t > 5) return; {BARRIER} out[i] = t;",
    "a condition of a thread": f"if (t < 32) {{ {BARRIER} }} out[i] = t;",
    "a condition of a variable": f"uint k = 0; if (in[i] > 0) {{ k = 1; }} if (k == 0) {{ {BARRIER} }} out[i] = k;",
    "a loop of a thread": f"for (uint k = t; k < n; k += count) {{ {BARRIER} }} out[i] = t;",
    "a loop that a thread changes": f"for (uint k = 0; k < 4; k++) {{ if (t > 2) {{ k++; }} {BARRIER} }} out[i] = t;",
    "an atomic": f"uint k = atomic_load_explicit(counter, memory_order_relaxed); "
    f"if (k == 0) {{ {BARRIER} }} out[i] = k;",
    "a load of a thread": f"for (uint k = 0; k < uint(in[i]); k++) {{ {BARRIER} }} out[i] = 1;",
    "a barrier in a function": "meet(); out[i] = t;",
    "a barrier in a lambda": f"auto wait = [] {{ {BARRIER} }}; wait(); out[i] = t;",
    "auto": f"auto x = in[i]; {BARRIER} out[i] = x;",
    "a reference": f"device float &to = out[i]; {BARRIER} to = t;",
    "a type with a variable": f"union {{ float f; uint u; }} both; both.f = in[i]; {BARRIER} out[i] = both.u & 0xffff;",
    "a struct with a value": f"struct One {{ uint x; }} one = {{t}}; {BARRIER} out[i] = one.x;",
    "a variable of a struct": f"struct Step step = {{1, 2}}; step.start = t; {BARRIER} out[i] = step.start;",
    "a variable of an enum": f"enum Kind {{ A, C = 5 }}; enum Kind k = A; if (t & 1) {{ k = C; }} {BARRIER}"
    " out[i] = k;",
    "a pointer by another name": f"using Own = thread float *; float a[2] = {{in[i], 5}}; Own p = a; {BARRIER}"
    f" float b[2] = {{7, in[i]}}; b[n % 2] += 2; out[i] = p[0] + p[1] * 10 + b[0]; {BARRIER} out[i] += p[1];",
    "a pointer in a struct": f"struct View {{ thread float *p; View(thread float *q) : p(q) {{}} }};"
    f" float a[3] = {{in[i], 2, 3}}; View v(a); {BARRIER} v.p[1] = t; {BARRIER} out[i] = v.p[0] + v.p[1] * 100;",
    "a reference in a struct": f"struct View {{ thread float &p; }}; float a = in[i]; View v = {{a}}; {BARRIER}"
    " out[i] = v.p;",
    "a private pointer": f"float x = t; thread float *p = &x; {BARRIER} out[i] = *p;",
    "a switch": f"switch (n) {{ case 1: {BARRIER} break; default: break; }} out[i] = t;",
    "a SIMD-group function in a condition": "out[i] = 1; if (t < 8) { out[i] = simd_sum(in[i]); }",
    "a SIMD-group function that may be left out": "float x = t > 3 ? simd_sum(in[i]) : 0.0f; out[i] = x;",
    "a vote": "out[i] = simd_any(in[i] > 0) ? 1 : 0;",
    "a loop that waits": f"while (atomic_load_explicit(counter, "
    f"memory_order_relaxed) > n + 9) {{ }} {BARRIER} out[i] = t;",
    "a loop over a range": f"float xs[2] = {{1, 2}}; for (float x : xs) {{ {BARRIER} out[i] = x; }}",
    "a name twice": f"uint k = t; {{ uint k = 4; {BARRIER} out[i] = k; }} out[i] += k;",
    "a changed parameter": f"{BARRIER} size += t; {BARRIER} out[i] = size.x;",
}

# Split by the tokens, refused by clang: what regions see as const is changed.
REFUSED = {
    "changed by a function": f"uint k = 4; advance(k); {BARRIER} out[i] = k + t;",
    "a named array": f"using Three = uint[3]; Three a = {{1, 2, 3}}; {BARRIER} a[t % 3] = t; {BARRIER}"
    " out[i] = a[0] + a[1] * 10 + a[2] * 100;",
    "a changed position": f"{BARRIER} lane += t; {BARRIER} out[i] = lane;",
}

SIZES = [(1,), (4,), (31,), (33,), (64,), (100,), (256,), (1024,), (8, 4), (5, 7, 3), (16, 16)]


def text_of(body: str) -> str:
    return f"{HEAD}kernel void test({PARAMETERS}) {{\n  {PLACES}  {body}\n}}\n"


def is_split(source: str) -> bool:
    return provider.program(source).unit("test", {}).is_split


def results(source: str, size: tuple[int, ...]) -> list[np.ndarray]:
    """What two threadgroups along each axis leave behind, the last ones not full if they have more than a thread."""
    library = mpscffi.compile_shader(source)
    threads = tuple(2 * side - (side > 2) for side in size)
    count = int(np.prod(size)) * 8 + 1024
    data = np.random.default_rng(7).standard_normal(count).astype("f4")
    counter = mpscffi.zeros(1, dtype="u4")
    out = mpscffi.zeros(count, dtype="f4")
    library.test(
        mpscffi.asarray(data), out, int(np.prod(size)), counter, threads=threads, group_size=size,
        threadgroup_memory={0: 4096 * 4},
    )  # fmt: skip
    return [out.numpy(), counter.numpy()]


@pytest.mark.parametrize("name", [*SPLIT, *REFUSED])
def test_loops_compute_what_fibers_compute(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_of({**SPLIT, **REFUSED}[name])
    assert is_split(source)
    for size in SIZES:
        monkeypatch.delenv("MPSCFFI_FIBERS", raising=False)
        loops = results(source, size)
        monkeypatch.setenv("MPSCFFI_FIBERS", "1")
        fibers = results(source, size)
        assert np.any(loops[0]) or size == (1,)
        for mine, theirs in zip(loops, fibers, strict=True):
            if "exp" in source.rpartition("count =")[2]:  # clang's functions of vectors and of scalars differ
                np.testing.assert_allclose(mine, theirs, rtol=1e-6)
                continue
            np.testing.assert_array_equal(mine.view("u4"), theirs.view("u4"), err_msg=str(size))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in FIBERS
        if name.startswith(("a type", "a struct", "a variable of", "a pointer", "a reference in"))
    ],
)
def test_what_only_seems_to_be_shared_is_of_each_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_of(FIBERS[name])
    others = results(source, (40,))
    monkeypatch.setenv("MPSCFFI_FIBERS", "1")
    np.testing.assert_array_equal(others[0], results(source, (40,))[0])
    assert len(np.unique(others[0])) > 1


@pytest.mark.parametrize("name", FIBERS)
def test_what_is_not_understood_runs_as_fibers(name: str) -> None:
    assert not is_split(text_of(FIBERS[name]))


@pytest.mark.parametrize("name", [*SPLIT, *REFUSED])
def test_clang_judges_the_loops(name: str) -> None:
    program = provider.program(text_of({**SPLIT, **REFUSED}[name]))
    finished = program._compile(program.unit("test", {}).text, ["-fsyntax-only"], None)
    assert (finished.status == 0) == (name in SPLIT), finished.errors


def test_fibers_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    source = text_of(SPLIT["tree"])
    assert not provider.program(source, provider.Options(fibers=True)).unit("test", {}).is_split
    assert provider.build(source, None, "test") != provider.build(source, provider.Options(fibers=True), "test")
    monkeypatch.setenv("MPSCFFI_FIBERS", "1")
    assert not is_split(source)


def test_a_template_is_split_for_each_of_its_types() -> None:
    source = (
        HEAD
        + """template <typename T> kernel void total(device const T *in, device T *out,
  uint t [[thread_position_in_threadgroup]],
    uint size [[threads_per_threadgroup]]) {
  threadgroup T room[64];
  T x = in[t];
  for (uint s = 1; s < size; s *= 2) {
    room[t] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x += t >= s ? room[t - s] : T(0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = x;
}
template [[host_name("total_float")]] kernel void total<float>(device const float *, device float *, uint, uint);
template [[host_name("total_long")]] kernel decltype(total<long>) total<long>;
"""
    )
    library = mpscffi.compile_shader(source)
    for name, dtype in (("total_float", "f4"), ("total_long", "i8")):
        assert provider.program(source).unit(name, {}).is_split
        values = np.arange(3, 53).astype(dtype)
        out = mpscffi.zeros(50, dtype=dtype)
        getattr(library, name)(mpscffi.asarray(values), out, threads=50, group_size=50)
        np.testing.assert_array_equal(out.numpy(), np.cumsum(values))


def test_too_much_memory_for_each_thread_is_left_to_fibers() -> None:
    body = (
        f"float mine[2000]; for (uint k = 0; k < 2000; k++) {{ mine[k] = t + k; }} {BARRIER} out[i] = mine[n % 2000];"
    )
    out, _ = results(text_of(body), (8,))
    np.testing.assert_array_equal(out[:8], np.arange(8) + 8)


def test_a_fault_between_barriers_is_told() -> None:
    source = text_of(f"room[t] = 1; {BARRIER} if (t == 3) {{ *(device float *)16 = 1; }} {BARRIER} out[i] = t;")
    assert is_split(source)
    results(text_of("out[i] = t;"), (8,))
    with pytest.raises(mpscffi.Error, match="0x10"):
        results(source, (8,))
    np.testing.assert_array_equal(results(text_of(SPLIT["neighbour"]), (8,))[0][:1] != 0, [True])
