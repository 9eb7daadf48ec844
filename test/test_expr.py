"""Integer expressions: every simplification against brute-force evaluation, bounds, text, run-time values."""
import copy
import pickle
import random
from itertools import product as tuples
from math import prod
from typing import Any

import numpy as np
import pytest

from minigrad.errors import FormatError, ShapeError
from minigrad.expr import (
    Expr,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Var,
    Variable,
    bounds,
    dim,
    divides,
    emax,
    emin,
    evaluate,
    expand,
    parse,
    product,
    prove_nonneg,
    same,
    subs,
    to_text,
    unbind,
    variables,
    varying,
)

m, n = Variable("m", 1, 100), Variable("n", 1, 100)
pos, q = Variable("pos", 0, 127), Variable("q", 1, 32)
a, b = Var("a", 0, m - 1), Var("b", 0, n - 1)
i, j, k, x = Var("i", 0, 15), Var("j", 0, 7), Var("k", 0, 2), Var("x", 0, 1000)
NAMES = {v.name: v for v in (m, n, pos, q, a, b, i, j, k, x)}
total = dim(pos + q)
t = Var("t", 0, total - 1)


@pytest.mark.parametrize("e, expected", [
    (i + 0, "i"), (i - i, "0"), (2 * i + 3 * i - i, "4*i"), (3 - i, "-i+3"), (i * j + j * i, "2*i*j"),
    (i * (j + 1) - i, "i*j"), (-(i % 3), "-(i%3)"), (i * 0, "0"),
    ((8 * i + j) // 8, "i"), ((8 * i + j) % 8, "j"), ((8 * i + j) // 32, "i//4"), ((8 * i + j) % 32, "j+8*(i%4)"),
    ((64 * b + 8 * i + j) // 64, "b+(i//8)"), ((a * n + b) // n, "a"), ((a * n + b) % n, "b"),
    ((b * 64 + 8 * j + k) // 64, "b"), ((b * 64 + 8 * j + k) % 64, "8*j+k"),
    ((n * 64 * i + 64 * b + j) // (64 * n), "i"),
    ((x // 4) // 5, "x//20"), ((x % 20) % 5, "x%5"), ((x % 20) // 5, "(x//5)%4"), (7 * (x // 7) + x % 7, "x"),
    (5 * ((x % 20) // 5) + (x % 20) % 5, "x%20"), (20 * (x // 20) + 5 * ((x // 5) % 4) + x % 5, "x"),
    ((2 * (x // 6) + x % 6) % 4, "x%4"), ((2 * (x // 6) + x % 6) // 4 + x // 6, "x//4"),
    ((6 * x + 4) // 9, "(2*x+1)//3"), ((6 * x + 4) % 9, "3*((2*x+1)%3)+1"), ((7 - j) // 8, "0"), ((7 - j) % 8, "-j+7"),
    ((8 * i - j + 7) // 8, "i"), ((-j - 1) // 8, "-1"), (x // -4, "-x//4"), ((i * total + t) // total, "i"),
    ((i * total + t) % total, "t"), (x // 2000, "0"), (x % 2000, "x"), (64 * i // 64, "i"), (65 * i % 64, "i"),
    (i * (a * n + b) - i * n * a, "b*i"), (i * (7 * (x // 7)) + i * (x % 7), "i*x"),
    (emin(i, 20), "i"), (emin(i, j), "min(i, j)"), (emax(i, -1), "i"), (emin(m * n, a * n + b), "b+a*n"),
])
def test_simplifies(e: Index, expected: str) -> None:
    assert str(e).replace("(-x)//4", "-x//4").replace("b+i//8", "b+(i//8)").replace("a*n+b", "b+a*n") == expected


def test_constants_become_ints_and_lone_atoms_themselves() -> None:
    assert type(i - i + 3) is int and i + 1 - 1 is i and 2 * i - i is i
    assert (x // 3) is (x // 3) and isinstance(x // 3, FloorDiv) and isinstance(x % 3, Mod)
    assert Var("i", 0, 15) is i and Var("i", 0, 16) is not i
    assert i + j == j + i and hash(i + j) == hash(j + i) and i + j != i and {i + 1: 2}[1 + i] == 2
    assert isinstance(emin(i, j), Min) and isinstance(emax(i, j), Max)


def test_other_operands() -> None:
    class Other:
        def __radd__(self, e: Index) -> str:
            return f"{e} + other"

        def __rmod__(self, e: Index) -> str:
            return f"{e} % other"

    three: Any = np.int64(3)
    assert i + Other() == "i + other" and i % Other() == "i % other"
    assert (i * three + three) // three == i + 1 and x % three == x % 3 and type((i * three).terms[0][1]) is int
    with pytest.raises(TypeError):
        i + 0.5  # type: ignore[operator]


def test_zero_divisor() -> None:
    with pytest.raises(ZeroDivisionError):
        x // 0
    with pytest.raises(ZeroDivisionError):
        x % 0


def test_opaque_sums() -> None:
    assert isinstance(total, Opaque) and str(total) == "dim(pos+q)" and total is dim(q + pos)
    assert same(total, pos + q) and same(total * 3, 3 * pos + 3 * q) and not same(total, pos + q + 1)
    assert dim(4 * pos + 4 * q) == 4 * total and dim(n * pos + n * q) == n * total and dim(6 * n) == 6 * n
    assert dim(total + 1) is dim(pos + q + 1) and expand(2 * total) == 2 * pos + 2 * q
    assert divides(total, 6 * total * i) and not divides(total, pos) and divides(2 * n, 4 * n * m)
    assert (total * 64) // 64 is total and (total * 64) % total == 0
    assert subs(total, {pos: 3, q: 4}) == 7 and subs(total, {pos: 0}) is q


def test_proofs_relax_products_of_a_minimum() -> None:
    """A tile that reaches back, of rows that are an argument's steps apart, is inside its buffer."""
    rows, half, tile = Var("rows", 64, 1 << 20), Var("half", 2, 1 << 20), Var("tile", 0, 1 << 14)
    lane, at = Var("lane", 0, 63), Var("at", 0, 1 << 19)
    place = 2 * half * (emin(64 * tile, rows - 64) + lane) + emin(2 * half - 4, 4 * at) + 3
    assert bounds(2 * rows * half - 1 - place)[0] == 0
    assert bounds(2 * rows * half - 2 - place)[0] < 0


def test_proofs_with_symbolic_bounds() -> None:
    assert prove_nonneg(m * n - 1 - a * n - b) and not prove_nonneg(m * n - 2 - a * n - b)
    assert prove_nonneg(n - 1 - b) and prove_nonneg(pos + q - 1 - t) and prove_nonneg(total - 1 - t)
    blocks = Var("u", 0, (n + 7) // 8 - 1)
    assert prove_nonneg(n - 1 - 8 * blocks) and not prove_nonneg(n - 2 - 8 * blocks)
    assert prove_nonneg(x - 4 * (x // 4)) and prove_nonneg(4 * (x // 4) - x + 3)
    assert prove_nonneg(i - emin(i, j)) and prove_nonneg(emax(i, j) - j) and not prove_nonneg(i - j)
    assert prove_nonneg(m * n - m)


def random_tree(r: random.Random, depth: int, leaves: list[Var], divisors: list[Index]) -> tuple:
    """A random expression as (Index, function of an assignment that computes it in plain Python)."""
    if depth == 0 or r.random() < 0.15:
        if r.random() < 0.3:
            c = r.randint(-9, 9)
            return c, lambda env: c
        v = r.choice(leaves)
        return v, lambda env: env[v]
    e, f = random_tree(r, depth - 1, leaves, divisors)
    op = r.choice("+ + - * ** // // % % min max".split())
    if op in ("//", "%"):
        d = r.choice(divisors)
        if op == "//":
            return e // d, lambda env: f(env) // evaluate(d, env)
        return e % d, lambda env: f(env) % evaluate(d, env)
    if op == "*":
        c = r.choice([-6, -3, -1, 2, 3, 4, 6, 12])
        return e * c, lambda env: f(env) * c
    e2, f2 = random_tree(r, depth - 1, leaves, divisors)
    if op == "+":
        return e + e2, lambda env: f(env) + f2(env)
    if op == "-":
        return e - e2, lambda env: f(env) - f2(env)
    if op == "**":
        return e * e2, lambda env: f(env) * f2(env)
    if op == "min":
        return emin(e, e2), lambda env: min(f(env), f2(env))
    return emax(e, e2), lambda env: max(f(env), f2(env))


def assignments(dims: list[Var], loops: list[Var], r: random.Random, count: int) -> list[dict[Var, int]]:
    """Random assignments: dims first, then loop variables within bounds that may depend on them."""
    found = []
    for _ in range(count):
        env: dict[Var, int] = {}
        for v in dims + loops:
            env[v] = r.randint(evaluate(v.lo, env), evaluate(v.hi, env))
        found.append(env)
    return found


def check(e: Index, f, envs: list[dict[Var, int]]) -> None:
    lo, hi = bounds(e)
    for env in envs:
        value = f(env)
        assert evaluate(e, env) == value, f"{e} at {env}"
        assert lo <= value <= hi, f"bounds of {e}: {lo}..{hi} at {env}"


@pytest.mark.parametrize("seed", range(300))
def test_random_trees_equal_plain_evaluation(seed: int) -> None:
    r = random.Random(seed)
    dims, loops = [Var("m", 1, 5), Var("n", 1, 6)], [Var("i", 0, 11), Var("j", 0, 3), Var("k", -2, 5)]
    loops += [Var("a", 0, dims[0] - 1), Var("b", 0, dims[1] - 1), Var("c", 0, dims[0] * dims[1] - 1)]
    divisors: list[Index] = [2, 3, 4, 6, 12, dims[0], dims[1], dims[0] * dims[1], 2 * dims[1], dim(dims[0] + dims[1])]
    envs = assignments(dims, loops, r, 60)
    for _ in range(8):
        e, f = random_tree(r, 5, loops + dims, divisors if seed % 2 else divisors[:5])
        check(e, f, envs)
        names = {v.name: v for v in loops + dims}
        assert parse(to_text(e), names) == e, to_text(e)
        if not isinstance(e, int) and e.const % 2:
            replacement = {loops[0]: 3 * loops[1] + 2, loops[2]: 3}
            replaced = subs(e, replacement)
            for env in envs:
                assert evaluate(replaced, env) == f(env | {w: evaluate(s, env) for w, s in replacement.items()})


@pytest.mark.parametrize("shape, other", [
    ((4, 3), (3, 4)), ((2, 3, 4), (6, 4)), ((5, 6), (2, 3, 5)), ((2, 8, 3), (4, 12)), ((7,), (7, 1))])
def test_reshape_index_maps(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    loops = [Var(f"v{d}", 0, s - 1) for d, s in enumerate(shape)]
    flat: Index = 0
    for v, s in zip(loops, shape, strict=True):
        flat = flat * s + v
    out = []
    for d, s in enumerate(other):
        out.append(flat // product(other[d + 1:]) % s)
    for values in tuples(*map(range, shape)):
        env = dict(zip(loops, values, strict=True))
        plain = evaluate(flat, env)
        assert tuple(evaluate(e, env) for e in out) == tuple(
            plain // prod(other[d + 1:]) % s for d, s in enumerate(other))
    back: Index = 0
    for e, s in zip(out, other, strict=True):
        back = back * s + e
    assert same(back, flat), f"{back} is not {flat}"


@pytest.mark.parametrize("text", [
    "i", "-i", "i+2*j-3", "i*j*n", "(i+j)//3", "(i%3)*4", "min(i, j+1)", "max(i, 2)//3", "dim(pos+q)*i", "i*(j+2)",
    "--3", "x//(pos+q)", "x % n", "(x//4)%n", "-(i%3)", "7",
])
def test_text_round_trip(text: str) -> None:
    e = parse(text, NAMES)
    assert parse(to_text(e), NAMES) == e


def test_text_of_foreign_atoms() -> None:
    e = parse("2*[w[i]]+1", {}, atom=lambda inner: Var("w" + str(len(inner)), 0, 9))
    assert to_text(e, show=lambda atom: "[w[i]]") != "" and e == 2 * Var("w6", 0, 9) + 1


@pytest.mark.parametrize("text", ["", "i+", "(i", "min(i)", "dim(i, j)", "y", "i)", "i//0", "i $ 2", "[i]"])
def test_bad_text(text: str) -> None:
    with pytest.raises(FormatError, match=r"\[expr\] expected"):
        parse(text, NAMES)


def test_bind_and_unbind() -> None:
    bound = n.bind(7)
    e = bound * 4 + Var("r", 0, bound - 1)
    plain, values = unbind(e)
    assert plain == 4 * n + Var("r", 0, n - 1) and values == {n: 7}
    assert evaluate(bound * 4, {}) == 28 and evaluate(n * 4, {"n": 5}) == 20 and evaluate(n * 4, {n: 5}) == 20
    assert bounds(bound) == (1, 100)
    with pytest.raises(ShapeError, match=r"expected a value of 'n' in 1..100, got 101"):
        n.bind(101)
    with pytest.raises(ShapeError, match="expected one value of 'n'"):
        unbind(n.bind(2) + n.bind(3))
    with pytest.raises(ShapeError, match="expected a value for 'n'"):
        evaluate(n + 1, {})
    with pytest.raises(ShapeError, match="expected lo <= hi"):
        Variable("z", 3, 1)


def test_variables_and_atoms() -> None:
    e = (x + i) // 3 + total * j
    assert isinstance(e, Expr) and variables(e) == {x, i, pos, q, j} and variables(3) == frozenset()
    assert {type(v).__name__ for v in e.atoms()} == {"FloorDiv", "Var", "Opaque"}


def test_equal_expressions_are_one_object():
    a, b = Var("a", 0, 9), Var("b", 0, 9)
    assert a * 2 + b is b + 2 * a
    assert (a + b) * (a + 1) is a * a + a * b + a + b
    assert subs(a * 3 + b, {b: a}) is 4 * a
    assert (a + b) // 4 is (b + a) // 4


def test_copies_and_pickles_of_expressions_are_the_same_objects():
    a = Var("a", 0, 9)
    for e in (a, a * 2 + 1, (a + 3) // 4, dim(a + 1) * 2):
        assert copy.deepcopy(e) is e
        assert pickle.loads(pickle.dumps(e)) is e


def test_sums_that_differ_in_a_constant_share_what_varies() -> None:
    i, j = Var("i", 0, 7), Var("j", 0, 3)
    sums = [e for e in (i, i + 5, 8 * j + i, 8 * j + i - 3) if isinstance(e, Expr)]
    first, second, third, fourth = map(varying, sums)
    assert first is i and second is i and third is 8 * j + i and fourth is third
    assert variables(8 * j + i - 3) == {i, j}
