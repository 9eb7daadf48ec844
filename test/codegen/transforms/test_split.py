"""Divisions leave index maps, and kernels keep their meaning: checked element by element on small cases."""
from collections.abc import Mapping
from itertools import product as tuples
from math import prod

import numpy as np
import pytest

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Store
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.kernel.walk import statements
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.split import divisions_left, split_divisions, split_phases
from minigrad.dtype import float16, float32
from minigrad.expr import Index, Var, dim, evaluate, product
from minigrad.value import Value, binary, cast, const, guard, indices_of, load, local, reduce, unary, walk


def element(v: Value, env: dict, arrays: Mapping[str, np.ndarray], names: dict[str, float]) -> float:
    """The number that a Value is, computed straight from its definition."""
    if v.op == "const":
        return v.number
    if v.op == "local":
        return names[v.name]
    if v.op == "load":
        at = tuple(evaluate(e, env) for e in v.indices)
        assert all(0 <= i < n for i, n in zip(at, arrays[v.buffer].shape, strict=True)), f"{v} at {env}"
        return float(arrays[v.buffer][at])
    if v.op == "guard":
        holds = all(evaluate(c, env) >= 0 for c in v.conditions)
        return element(v.args[0 if holds else 1], env, arrays, names)
    if v.op == "reduce":
        terms = [element(v.args[0], env | dict(zip(v.over, at, strict=True)), arrays, names)
                 for at in tuples(*(range(evaluate(k.hi, env) + 1) for k in v.over))]
        return sum(terms) if v.monoid == "sum" else max([*terms, -np.inf])
    args = [element(a, env, arrays, names) for a in v.args]
    if v.op == "add":
        return args[0] + args[1]
    if v.op == "mul":
        return args[0] * args[1]
    return -args[0] if v.op == "neg" else args[0]


def run(kernel: Kernel, dims: dict[Var, int], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a kernel; every element must be stored exactly once."""
    shaped = {p.name: np.reshape(arrays[p.name], [evaluate(e, dims) for e in p.shape])
              for p in kernel.params if p.mode == "in"}
    outs = {p.name: np.full([evaluate(e, dims) for e in p.shape], np.nan) for p in kernel.params if p.mode == "out"}

    def statement(s: Nest | Define | Store, env: dict, names: dict[str, float]) -> None:
        if isinstance(s, Define):
            names[s.name] = element(s.value, env, shaped, names)
        elif isinstance(s, Store):
            at = tuple(evaluate(e, env) for e in s.indices)
            assert np.isnan(outs[s.param][at]), f"{s.param}{at} is stored twice"
            outs[s.param][at] = element(s.value, env, shaped, names)
        else:
            for at in tuples(*(range(evaluate(v.hi, env) + 1) for v in s.domain)):
                inner = dict(names)
                for t in s.body:
                    statement(t, env | dict(zip(s.domain, at, strict=True)), inner)

    for nest in kernel.nests:
        statement(nest, dict(dims), {})
    for name, out in outs.items():
        assert not np.isnan(out).any(), f"{name} is not wholly stored"
    return {name: out.ravel() for name, out in outs.items()}


def same_meaning(before: Kernel, after: Kernel, dims: dict[Var, int] | None = None) -> None:
    rng = np.random.default_rng(3)
    arrays = {p.name: rng.integers(-9, 9, [evaluate(e, dims or {}) for e in p.shape]).astype(np.float64)
              for p in before.params if p.mode == "in"}
    wanted, got = run(before, dims or {}, arrays), run(after, dims or {}, arrays)
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name])


def loops(*extents: Index) -> tuple[Var, ...]:
    return tuple(Var(f"i{d}", 0, n - 1) for d, n in enumerate(extents))


def unflatten(flat: Index, shape: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(flat // product(shape[d + 1:]) % n if d else flat // product(shape[1:]) for d, n in enumerate(shape))


def flatten(at: tuple[Index, ...], shape: tuple[Index, ...]) -> Index:
    total: Index = 0
    for e, n in zip(at, shape, strict=True):
        total = total * n + e
    return total


def kernel_of(out: tuple[Index, ...], domain: tuple[Var, ...], value: Value, inputs: dict[str, tuple[Index, ...]],
              dims: tuple[Var, ...] = (), layout: tuple[int, ...] | None = None) -> Kernel:
    params = (Param("y", float32, out, "out"), *(Param(n, float32, s, "in", layout) for n, s in inputs.items()))
    return Kernel("k", params, (), dims, (Nest(domain, (Store("y", domain, value),)),))


def reshaped(source: tuple[int, ...], order: tuple[int, ...], target: tuple[int, ...],
             layout: tuple[int, ...] | None = None) -> Kernel:
    """y = x.permute(order).reshape(target)"""
    at = loops(*target)
    view = unflatten(flatten(at, target), tuple(source[a] for a in order))
    index = tuple(view[order.index(a)] for a in range(len(source)))
    return kernel_of(target, at, load("x", index, float32), {"x": source}, layout=layout)


@pytest.mark.parametrize("source, order, target", [
    ((12,), (0,), (3, 4)), ((3, 4), (0, 1), (12,)), ((4, 3), (1, 0), (12,)), ((4, 3), (0, 1), (3, 4)),
    ((4, 3), (1, 0), (4, 3)), ((4, 3), (1, 0), (3, 4)), ((4, 3), (1, 0), (2, 6)), ((2, 3, 4), (1, 0, 2), (3, 8)),
    ((2, 3, 4), (2, 0, 1), (4, 6)), ((2, 3, 4), (2, 1, 0), (24,)), ((2, 3, 4), (2, 1, 0), (6, 4)),
    ((2, 3, 4), (0, 2, 1), (2, 2, 6)), ((8, 8), (1, 0), (4, 16)), ((2, 8, 6), (0, 2, 1), (2, 48)),
])
def test_reshapes_come_out_free_of_division(
        source: tuple[int, ...], order: tuple[int, ...], target: tuple[int, ...]) -> None:
    kernel = reshaped(source, order, target)
    after = split_divisions(kernel)
    assert divisions_left(after) == 0, after.nests
    same_meaning(kernel, after)


def test_flat_use_needs_no_split() -> None:
    kernel = reshaped((3, 4), (0, 1), (12,))
    after = split_divisions(kernel)
    assert after.param("x").shape == (12,) and after.nests == (
        Nest(loops(12), (Store("y", loops(12), load("x", loops(12), float32)),)),)


def test_a_layout_of_its_own_keeps_its_shape() -> None:
    kernel = reshaped((3, 4), (0, 1), (12,), layout=(1, 0))
    after = split_divisions(kernel)
    assert after.param("x").shape == (3, 4) and divisions_left(after) == 0
    same_meaning(kernel, after)


def test_split_goes_by_the_divisor() -> None:
    i, = loops(12)
    kernel = kernel_of((12,), (i,), binary("add", load("x", (i % 4,), float32), load("w", (i // 4,), float32)),
                       {"x": (4,), "w": (3,)})
    after = split_divisions(kernel)
    outer, inner = after.nests[0].domain
    assert (outer.hi, inner.hi) == (2, 3)
    assert after.nests[0].body == (Store("y", (4 * outer + inner,), binary(
        "add", load("x", (inner,), float32), load("w", (outer,), float32))),)


def test_flatten_then_window() -> None:
    at = loops(3, 7)
    k = Var("k", 0, 2)
    e = at[1] * 2 + k - 1
    c, h, w = unflatten(at[0] * 16 + e, (3, 4, 4))
    inside = guard(load("x", (c, h, w), float32), const(0, float32), (e, 15 - e))
    kernel = kernel_of((3, 7), at, reduce("sum", (k,), inside), {"x": (3, 4, 4)})
    after = split_divisions(kernel)
    assert divisions_left(after) == 0 and after.param("x").shape == (48,)
    same_meaning(kernel, after)


def test_window_then_flatten_in_a_reduction() -> None:
    o, = loops(5)
    k = Var("k", 0, 11)
    body = binary("mul", load("x", (k // 4, o + k % 4), float32), load("w", (k,), float32))
    kernel = kernel_of((5,), (o,), reduce("sum", (k,), body), {"x": (3, 8), "w": (12,)})
    after = split_divisions(kernel)
    assert divisions_left(after) == 0
    same_meaning(kernel, after)


def test_symbolic_extent() -> None:
    n = Var("n", 1, 9)
    i, = loops(n * 64)
    x, w = load("x", (i // 64, i % 64), float32), load("w", (i % 64,), float32)
    kernel = kernel_of((n * 64,), (i,), binary("mul", x, w), {"x": (n, 64), "w": (64,)}, (n,))
    after = split_divisions(kernel)
    assert divisions_left(after) == 0
    assert [str(v.hi) for v in after.nests[0].domain] == ["n-1", "63"]
    same_meaning(kernel, after, {n: 3})


def test_symbolic_divisor() -> None:
    m, n = Var("m", 1, 9), Var("n", 1, 9)
    i, = loops(m * n)
    kernel = kernel_of((m * n,), (i,), binary("add", load("a", (i // n,), float32), load("b", (i % n,), float32)),
                       {"a": (m,), "b": (n,)}, (m, n))
    after = split_divisions(kernel)
    assert divisions_left(after) == 0
    same_meaning(kernel, after, {m: 3, n: 4})


def test_symbolic_sum_as_an_extent() -> None:
    pos, n = Var("pos", 0, 9), Var("n", 1, 9)
    total = dim(pos + n)
    i, = loops(total * 4)
    kernel = kernel_of((total * 4,), (i,), load("x", (i % total, i // total), float32), {"x": (total, 4)}, (n, pos))
    after = split_divisions(kernel)
    assert divisions_left(after) == 0
    same_meaning(kernel, after, {pos: 2, n: 3})


@pytest.mark.parametrize("extent, first, second", [(12, 4, 6), (12, 3, 2), (24, 6, 4), (30, 6, 10), (7, 2, 3)])
def test_incompatible_splits_end(extent: int, first: int, second: int) -> None:
    i, = loops(extent)
    value = load("x", (i // first, i % second), float32)
    kernel = kernel_of((extent,), (i,), value, {"x": (-(-extent // first), second)})
    same_meaning(kernel, split_divisions(kernel))


def test_divisions_in_conditions() -> None:
    i, = loops(20)
    value = guard(load("x", (i % 5, i // 5), float32), const(0, float32), (i % 5 - 2,))
    kernel = kernel_of((20,), (i,), value, {"x": (5, 4)})
    after = split_divisions(kernel)
    assert divisions_left(after) == 0
    same_meaning(kernel, after)


def test_nested_domains_with_a_row() -> None:
    r, c = loops(6, 4)
    k = Var("k", 0, 3)
    x = lambda e: load("x", (r % 3, r // 3, e), float32)  # noqa: E731
    row = Define("m", reduce("max", (k,), x(k)))
    nest = Nest((r,), (row, Nest((c,), (Store("y", (r, c), binary("add", x(c), local("m", float32))),))))
    kernel = Kernel("rows", (Param("y", float32, (6, 4), "out"), Param("x", float32, (3, 2, 4))), (), (), (nest,))
    after = split_divisions(kernel)
    assert divisions_left(after) == 0
    same_meaning(kernel, after)


# Phases


def transposed_window(lengths: tuple[int, ...], taps: tuple[int, ...], stride: tuple[int, ...],
                      dilation: tuple[int, ...], padding: tuple[int, ...], half: bool = False,
                      channels: int = 2) -> Kernel:
    """The gradient by data of a convolution: y[p] = sum(o, k: g[o, (p + pad - k*dil) / stride] * w[o, k])."""
    at = loops(*lengths)
    ks = tuple(Var(f"k{d}", 0, k - 1) for d, k in enumerate(taps))
    o = Var("o", 0, channels - 1)
    outs = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1
                 for n, p, d, k, s in zip(lengths, padding, dilation, taps, stride, strict=True))
    conditions: list[Index] = []
    where: list[Index] = []
    for p, k, s, d, pad, n in zip(at, ks, stride, dilation, padding, outs, strict=True):
        e = p + pad - k * d
        where.append(e // s)
        conditions += [e, (n - 1) * s - e, -(e % s)]
    dtype = float16 if half else float32
    body = binary("mul", cast(load("g", (o, *where), dtype), float32), load("w", (o, *ks), float32))
    body = guard(body, const(0, float32), tuple(c for c in conditions if c != 0))
    kernel = kernel_of(lengths, at, reduce("sum", (*ks, o), body), {"g": (channels, *outs), "w": (channels, *taps)})
    return kernel


def check_phases(kernel: Kernel, phases: int | None = None) -> Kernel:
    after = split_phases(kernel)
    assert divisions_left(after) == 0, after.nests
    assert after.params == kernel.params and after.name == kernel.name
    if phases is not None:
        assert len(after.nests) == phases
    same_meaning(kernel, after)
    assert split_divisions(after) == after
    return after


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("length, taps, padding", [(7, 3, 0), (8, 3, 1), (11, 2, 1), (9, 5, 2), (13, 1, 0)])
def test_every_stride_dilation_and_odd_size(stride: int, dilation: int, length: int, taps: int, padding: int) -> None:
    if length + 2 * padding < dilation * (taps - 1) + 1:
        pytest.skip("the window is wider than the image")
    check_phases(transposed_window((length,), (taps,), (stride,), (dilation,), (padding,)), stride)


@pytest.mark.parametrize("stride, dilation", [((2, 2), (1, 1)), ((2, 3), (1, 2)), ((1, 2), (2, 1)), ((3, 2), (3, 2))])
def test_two_axes(stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    check_phases(transposed_window((7, 8), (3, 3), stride, dilation, (1, 1)), prod(stride))


def test_a_phase_multiplies_its_own_taps_only() -> None:
    after = check_phases(transposed_window((8,), (3,), (2,), (1,), (1,)), 2)
    stored = [str(s.indices[0]) for s in statements(after.nests) if isinstance(s, Store)]
    taps = [[v.hi + 1 for v in x.over if v.name == "k0"] for s in statements(after.nests)
            if isinstance(s, Store) for x in walk(s.value) if x.op == "reduce"]
    assert stored == ["2*i0", "2*i0+1"] and taps == [[], [2]]


def test_a_phase_without_taps_writes_zero() -> None:
    after = check_phases(transposed_window((9,), (1,), (3,), (1,), (0,)), 3)
    values = [s.value for s in statements(after.nests) if isinstance(s, Store)]
    assert values[0].op == "reduce" and values[1] is values[2] is const(0, float32)


def test_without_a_reduction() -> None:
    i, = loops(9)
    value = guard(load("g", (i // 2,), float32), const(0, float32), (-(i % 2),))
    after = check_phases(kernel_of((9,), (i,), value, {"g": (5,)}), 2)
    assert not any(v.op == "guard" for s in statements(after.nests) if isinstance(s, Store) for v in walk(s.value))


def test_an_epilogue_and_a_definition_go_along() -> None:
    kernel = transposed_window((8,), (3,), (2,), (1,), (1,))
    store = kernel.nests[0].body[0]
    assert isinstance(store, Store)
    body = (Define("t", store.value), Store("y", store.indices, unary("neg", local("t", float32))))
    check_phases(Kernel("k", kernel.params, (), (), (Nest(kernel.nests[0].domain, body),)), 2)


def test_guarded_half_operand() -> None:
    check_phases(transposed_window((8,), (3,), (2,), (1,), (1,), half=True), 2)


def test_two_windows_of_different_stride_share_a_domain() -> None:
    first, second = (transposed_window((12,), (3,), (s,), (1,), (1,)).nests[0].body[0] for s in (2, 3))
    assert isinstance(first, Store) and isinstance(second, Store)
    at = loops(12)
    other = Store("z", at, second.value)
    params = (Param("y", float32, (12,), "out"), Param("z", float32, (12,), "out"), Param("g", float32, (2, 6)),
              Param("w", float32, (2, 3)))
    check_phases(Kernel("k", params, (), (), (Nest(at, (first, other)),)), 6)


def test_symbolic_length() -> None:
    n = Var("n", 4, 20)
    i, = loops(2 * n)
    k = Var("k", 0, 2)
    e = i + 1 - k
    body = guard(load("g", (e // 2,), float32), const(0, float32), (e, 2 * n - 2 - e, -(e % 2)))
    kernel = kernel_of((2 * n,), (i,), reduce("sum", (k,), body), {"g": (n,)}, (n,))
    after = split_phases(kernel)
    assert len(after.nests) == 2 and divisions_left(after) == 0
    same_meaning(kernel, after, {n: 5})


def test_a_sum_that_needs_its_other_terms_stays() -> None:
    i, = loops(6)
    k = Var("k", 0, 3)
    body = guard(load("g", ((i + k) // 2,), float32), const(1, float32), (-((i + k) % 2),))
    kernel = kernel_of((6,), (i,), reduce("sum", (k,), body), {"g": (5,)})
    after = split_phases(kernel)
    assert after == kernel
    same_meaning(kernel, split_divisions(after))


def test_too_many_phases_stay_guarded() -> None:
    kernel = transposed_window((40, 40), (1, 1), (16, 16), (1, 1), (0, 0), channels=1)
    assert split_phases(kernel) == kernel


def test_other_nests_stay() -> None:
    kernel = reshaped((4, 3), (1, 0), (12,))
    assert split_phases(kernel) == kernel


def test_conditions_come_in_lowest_terms() -> None:
    after = check_phases(transposed_window((8,), (3,), (2,), (1,), (1,)), 2)
    conditions = {str(c) for s in statements(after.nests) if isinstance(s, Store) for v in walk(s.value)
                  if v.op == "guard" for c in indices_of(v)}
    assert conditions <= {"-i0+3", "i0-k0+1", "-i0+k0+2"}, conditions


@pytest.mark.parametrize("before, after", [
    ("""\
kernel sums(out y: f32[24], x: f32[240])
  for a<4, b<6:
    t = sum(c<2, d<5: x[60*a+10*b+5*c+d])
    y[6*a+b] = t
""", """\
kernel sums(out y: f32[24], x: f32[240])
  for i0<24:
    t = sum(r0<10: x[10*i0+r0])
    y[i0] = t
"""), ("""\
kernel rows(out y: f32[30], x: f32[30])
  for r<3:
    s = sum(c<5, d<2: x[10*r+2*c+d])
    for c<5, d<2:
      y[10*r+2*c+d] = x[10*r+2*c+d] * s
""", """\
kernel rows(out y: f32[30], x: f32[30])
  for i0<3:
    s = sum(r0<10: x[10*i0+r0])
    for i1<10:
      y[10*i0+i1] = x[10*i0+i1] * s
"""), ("""\
kernel apart(out y: f32[24], x: f32[24])
  for a<4, b<6:
    y[6*a+b] = x[4*b+a]
""", """\
kernel apart(out y: f32[24], x: f32[24])
  for i0<4, i1<6:
    y[6*i0+i1] = x[4*i1+i0]
"""), ("""\
kernel two(out y: f32[24], x: f32[24], w: f32[4])
  for a<2, b<3:
    s = sum(k<2, l<2: x[12*a+4*b+2*k+l])
    t = sum(k<2, l<2: x[12*a+4*b+2*k+l] * w[2*l+k])
    y[3*a+b] = s * t
""", """\
kernel two(out y: f32[24], x: f32[24], w: f32[4])
  for i0<6:
    s = sum(r0<4: x[4*i0+r0])
    t = sum(r1<2, r2<2: x[4*i0+2*r1+r2] * w[2*r2+r1])
    y[i0] = s * t
"""),
], ids=["domain and reduction", "rows", "apart", "one of two reductions"])
def test_what_steps_together_becomes_one_variable(before: str, after: str) -> None:
    assert collapse(parse_kernel(before)) == parse_kernel(after)
