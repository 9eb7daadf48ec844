"""Random nests, and random plans for them: most are right, and those that are not are refused."""
from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from minigrad.codegen.kernel.nodes import Define, Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.plan.loops import Step
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import Ahead, Bind, Fuse, Order, Parts, Plan, Sizes, Split, Stage
from minigrad.codegen.plan.steps.split import EDGES
from minigrad.dtype import DType
from minigrad.value import free_variables, walk

Random = np.random.Generator

# Extents are letters, buffers as long as they are read. Integers are added without rounding, so that every plan gives
# the same bits; only the rows that divide and take powers are float64.
NESTS = {
    "pointwise": """
kernel k(out o0: i64[A*B*C], p0: i64[A*B*C], p1: i64[C])
  for i0<A, i1<B, i2<C:
    t0 = p0[B*C*i0+C*i1+i2] * p1[i2]
    o0[B*C*i0+C*i1+i2] = t0 + p0[B*C*i0+C*i1+i2] * t0
""",
    "transposed": """
kernel k(out o0: i64[A*B], out o1: i64[A*B], p0: i64[A*B])
  for i0<A, i1<B:
    o0[B*i0+i1] = p0[B*i0+i1] + 1:i64
    o1[A*i1+i0] = p0[B*i0+i1]
""",
    "product": """
kernel k(out o0: i64[A*B], p0: i64[A*C], p1: i64[C*B], p2: i64[B])
  for i0<A, i1<B:
    t0 = sum(r0<C: p0[C*i0+r0] * p1[B*r0+i1])
    o0[B*i0+i1] = t0 + p2[i1]
""",
    "transposed product": """
kernel k(out o0: i64[A*B], p0: i64[A*C], p1: i64[C*B])
  for i0<A, i1<B:
    t0 = sum(r0<C: p0[C*i0+r0] * p1[C*i1+r0])
    o0[B*i0+i1] = t0
""",
    "reduction": """
kernel k(out o0: i64[A], out o1: i64[A], p0: i64[A*B*C])
  for i0<A:
    t0 = sum(r0<B, r1<C: p0[C*i0+A*C*r0+r1])
    t1 = max(r2<B, r3<C: p0[C*i0+A*C*r2+r3] * p0[C*i0+A*C*r2+r3])
    o0[i0] = t0 - t1
    o1[i0] = t1
""",
    "sums of two spaces": """
kernel k(out o0: i64[A*B], p0: i64[A*C], p1: i64[C*B], p2: i64[A*D])
  for i0<A, i1<B:
    t0 = sum(r0<C: p0[C*i0+r0] * p1[B*r0+i1])
    t1 = sum(r1<D: p2[D*i0+r1])
    o0[B*i0+i1] = t0 * t1
""",
    "rows": """
kernel k(out o0: f64[A*B], p0: f64[A*B])
  for i0<A:
    t0 = max(r0<B: p0[B*i0+r0])
    t1 = sum(r1<B: exp(p0[B*i0+r1] - t0))
    for i1<B:
      o0[B*i0+i1] = exp(p0[B*i0+i1] - t0) * (1.0:f64 / t1)
""",
    "statistics of rows": """
kernel k(out o0: i64[A*B*C], out o1: i64[A], p0: i64[A*B*C])
  for i0<A:
    t0 = sum(r0<B, r1<C: p0[B*C*i0+C*r0+r1])
    t1 = sum(r2<B, r3<C: (p0[B*C*i0+C*r2+r3] - t0) * p0[B*C*i0+C*r2+r3])
    o1[i0] = t1
    for i1<B, i2<C:
      o0[B*C*i0+C*i1+i2] = p0[B*C*i0+C*i1+i2] * t1 + t0
""",
    "window": """
kernel k(out o0: i64[A*B*C], p0: i64[D*B*C], p1: i64[A*D*9])
  for i0<A, i1<B, i2<C:
    t0 = sum(r0<D, r1<3, r2<3: (p0[B*C*r0+C*i1+i2+C*r1+r2-C-1] else 0:i64 if i1+r1-1 >= 0 and -i1-r1+B >= 0 \
and i2+r2-1 >= 0 and -i2-r2+C >= 0) * p1[9*D*i0+9*r0+3*r1+r2])
    o0[B*C*i0+C*i1+i2] = max(t0, 0:i64)
""",
    "nested sums": """
kernel k(out o0: i64[A*B], p0: i64[A*C], p1: i64[C*D], p2: i64[D*B])
  for i0<A, i1<B:
    t0 = sum(r0<D: p2[B*r0+i1] * sum(r1<C: p0[C*i0+r1] * p1[D*r1+r0]))
    o0[B*i0+i1] = t0
""",
    "sums in a value": """
kernel k(out o0: i64[A*B], p0: i64[A*C], p1: i64[C*B])
  for i0<A, i1<B:
    o0[B*i0+i1] = sum(r0<C: p0[C*i0+r0]) * max(r1<C: p1[B*r1+i1]) - sum(r2<C: p0[C*i0+r2])
""",
    "scatter": """
kernel k(inout o0: i64[B*C], p0: i64[A], p1: i64[A*B*C])
  for i0<A, i1<B, i2<C:
    o0[i2+C*{p0[i0] in 0..LAST}] sum= p1[B*C*i0+C*i1+i2]
""",
    "any length": """
kernel k(out o0: i64[n*B], p0: i64[n*C], p1: i64[C*B], n: index in 0..20)
  for i0<n, i1<B:
    t0 = sum(r0<C: p0[C*i0+r0] * p1[B*r0+i1])
    o0[B*i0+i1] = t0
""",
    "sum of any length": """
kernel k(out o0: i64[A*B], p0: i64[A*n], p1: i64[n*B], n: index in 0..20)
  for i0<A, i1<B:
    t0 = sum(r0<n: p0[n*i0+r0] * p1[B*r0+i1])
    o0[B*i0+i1] = t0
""",
    "updates": """
kernel k(inout o0: i64[A*B], inout o1: i64[A*B], p0: i64[A*C], p1: i64[C*B])
  for i0<A, i1<B:
    t0 = sum(r0<C: p0[C*i0+r0] * p1[B*r0+i1])
    o0[B*i0+i1] = o0[B*i0+i1] * 3:i64 + t0
    o1[B*i0+i1] = t0 - o1[B*i0+i1]
""",
}
EXTENTS = (1, 2, 3, 4, 5, 6)
COUNTS = (1, 2, 2, 3, 4, 4, 5, 8)
LETTERS = "abcdefghjklmpqstuvwxyz"


@dataclass
class Case:
    """A kernel of one nest, and arguments for it."""

    kernel: Kernel
    arrays: dict[str, np.ndarray]
    dims: dict[str, int]


def random_case(rng: Random, name: str, extents: dict[str, int] | None = None) -> Case:
    """A nest of a kind with random extents, or these; 0 among them now and then, where it is no step of what is
    stored."""
    if extents is None:
        extents = {x: int(rng.choice(EXTENTS)) for x in "ABCD"}
        extents[str(rng.choice(list("ABCD")))] = int(rng.choice((7, 8, 9, 13)))
        if name not in ("scatter", "rows", "transposed") and rng.random() < 0.1:
            extents[str(rng.choice(list("AD" if "i2<C" in NESTS[name] else "ACD")))] = 0
    text = re.sub(r"\b[ABCD]\b", lambda m: str(extents[m[0]]), NESTS[name].strip() + "\n")
    text = text.replace("LAST", str(extents["B"] - 1))
    kernel, n = parse_kernel(text), int(rng.integers(0, 21))
    arrays = {}
    for p in kernel.params:
        size = p.shape[0] if isinstance(p.shape[0], int) else int(eval(str(p.shape[0]), {"n": n}))
        arrays[p.name] = _array(rng, p.dtype, size, p.mode == "out")
    if name == "scatter":
        arrays["p0"] %= extents["B"]
    return Case(kernel, arrays, {d.name: n for d in kernel.dims})


def _copy(rng: Random, order: list[str], roots: dict[str, str], kernel: Kernel, items: bool) -> Step:
    """A copy of an operand over the loops inside some loop that it is read along, or nearly those."""
    operand = str(rng.choice([p.name for p in kernel.params if p.mode == "in"]))
    values = [s.value for s in kernel.nests[0].body if isinstance(s, Define)]
    read = {v.name for x in walk(*values) if x.op == "load" and x.buffer == operand
            for v in free_variables(x)}
    first = int(rng.integers(0, len(order) - 1))
    inside = [x for x in order[first + 1:] if (roots[x] in read) != (rng.random() < 0.05)] or [order[-1]]
    layout = [str(x) for x in rng.permutation(inside)]
    transposed = str(rng.choice(layout)) if len(layout) > 1 and rng.random() < 0.2 else ""
    return Stage(operand, order[first], tuple(layout), transposed, 2 if transposed else 1, items,
                 bool(items and rng.random() < 0.5))


def _ahead(rng: Random, names: list[str], outside: dict[str, int], kernel: Kernel) -> Ahead:
    """A prefetch: of an operand in a loop of a sum, of an output in one of the domain, or of anything anywhere."""
    operand, stored = (p := rng.choice(np.array(kernel.params, object))).name, p.mode != "in"
    loops = [x for x in names if (outside[x] == 0) == stored or rng.random() < 0.1] or names
    of = str(rng.choice(names)) if rng.random() < 0.7 else ""
    return Ahead(operand, str(rng.choice(loops)), int(rng.integers(0, 3)), of, bool(rng.random() < 0.3))


def _array(rng: Random, dtype: DType, size: int, empty: bool) -> np.ndarray:
    if empty:
        return np.full(size, -77, dtype.np)
    if dtype.is_float:
        return rng.standard_normal(size)
    return rng.integers(-9, 10, size).astype(dtype.np)


def random_plan(rng: Random, kernel: Kernel, groups: bool = False) -> Plan:
    """Random steps for the kernel's nest; for work-groups."""
    nest, = kernel.nests
    names: list[str] = []
    outside: dict[str, int] = {}
    for number, space in enumerate(spaces(nest)):
        for v in space.own:
            names.append(v.name)
            outside[v.name] = number
    sizes = [x for x in names if rng.random() < 0.7] if rng.random() < 0.3 else []
    steps: list[Step] = [Sizes(tuple(sizes))] if sizes else []
    letters = iter(rng.permutation(list(LETTERS)))
    small: set[str] = set()
    if rng.random() < 0.15 and len(names) > 1:
        one, other, name = *(str(x) for x in rng.permutation(names)[:2]), f"{next(letters)}f"
        if rng.random() < 0.4:  # a part of a split
            outer, inner = f"{next(letters)}o", f"{next(letters)}i"
            steps.append(Split(one, outer, inner, int(rng.integers(1, 5)), "back", bool(rng.random() < 0.3)))
            names[names.index(one):names.index(one) + 1] = [outer, inner]
            outside |= dict.fromkeys((outer, inner), outside[one])
            one = str(rng.choice([outer, inner]))
        if outside[one] == outside[other] or rng.random() < 0.1:
            steps.append(Fuse(one, other, name))
        if outside[one] == outside[other]:
            names = [name if x == one else x for x in names if x != other]
            outside[name] = outside[one]
    roots = {x: x for x in names}
    for _ in range(int(rng.integers(0, 6))):
        x = str(rng.choice(names))
        outer, inner = f"{next(letters)}o", f"{next(letters)}i"
        likely = (0.2, 0.2, 0.2, 0.2, 0.2) if outside[x] == 0 else (0.2, 0.0, 0.2, 0.4, 0.2)
        edge = "guard" if groups and rng.random() < 0.8 else str(rng.choice(EDGES[:5], p=likely))
        into = bool(rng.random() < 0.15)
        steps.append(Split(x, outer, inner, int(rng.choice(COUNTS)), edge, into))
        names[names.index(x):names.index(x) + 1] = [outer, inner]
        outside[outer] = outside[inner] = outside[x]
        small.add(outer if into else inner)
        roots[outer] = roots[inner] = roots[x]
    blocks = [s.inner for s in steps if isinstance(s, Split) and s.edge == "short" and rng.random() < 0.7]
    if sizes and blocks:
        steps[0] = Sizes((*sizes, *blocks))
    return Plan("", (*steps, *_bound(rng, names, outside, small, roots, kernel, groups)))


def _bound(rng: Random, names: list[str], outside: dict[str, int], small: set[str], roots: dict[str, str],
           kernel: Kernel, groups: bool) -> list[Step]:
    """Chooses how loops run and in which order."""
    kinds: dict[str, list[str]] = {}
    lanes: set[int] = set()
    for x in names:
        if groups and (outside[x] == 0 and (x not in small or rng.random() < 0.5)):
            kinds.setdefault("item" if x in small else "group", []).append(x)
        elif groups and x in small and rng.random() < 0.4 and outside[x] not in lanes:
            kinds.setdefault("item", []).append(x)
            lanes.add(outside[x])
        elif x in small and not groups and rng.random() < 0.35 and outside[x] not in lanes:
            kinds.setdefault("vector", []).append(x)
            lanes.add(outside[x])
        elif x in small and rng.random() < 0.8:
            kinds.setdefault("unroll", []).append(x)
        elif outside[x] == 0 and x not in small and rng.random() < 0.5:
            kinds.setdefault("parallel", []).append(x)
    parallel = kinds.get("parallel", kinds.get("group", []))
    rng.shuffle(parallel)
    parallel = [*parallel, *sorted(kinds.get("item", []), key=lambda x: outside[x] > 0)]
    unrolled = kinds.get("unroll", [])
    copies = [x for x in unrolled if outside[x] == 0 and rng.random() < 0.7]
    domain = [x for x in names if outside[x] == 0 and x not in parallel and x not in copies]
    sums = [x for x in names if outside[x] > 0 and x not in parallel]
    if rng.random() < 0.5:
        rng.shuffle(domain)
    if rng.random() < 0.3:
        rng.shuffle(sums)
    inner = [*sums, *copies]
    if rng.random() < 0.3:
        rng.shuffle(inner)
    order = [*parallel, *domain, *inner]
    if rng.random() < 0.05:
        rng.shuffle(order)
    steps: list[Step] = [Bind(kind, tuple(loops)) for kind, loops in kinds.items() if loops]
    if rng.random() < 0.9:
        steps.append(Order(tuple(order)))
    parts = [x for x in unrolled if outside[x] > 0 and rng.random() < 0.5]
    if parts:
        steps.append(Parts(tuple(parts)))
    if rng.random() < 0.4 and sums and len(order) > 1:
        steps.append(_copy(rng, order, roots, kernel, groups))
    steps += [_ahead(rng, names, outside, kernel) for _ in range(int(rng.integers(0, 3)))]
    return steps


def _coordinates(rng: Random, laid: str, text: str) -> str:
    """Coordinates in another order, with one more or less, or with another loop."""
    found = laid[1:-1].split("][")
    loops = sorted({x for line in re.findall(r"(?:split|order) (.*?)(?: by|$)", text, re.M)
                    for x in re.findall(r"[a-z]\w*", line)})
    k, kind, other = int(rng.integers(len(found))), rng.integers(0, 5), str(rng.choice(loops))
    if kind == 0:
        found = [str(x) for x in rng.permutation(found)]
    elif kind == 1 and len(found) > 1:
        del found[k]
    elif kind == 2:
        found.insert(k, other)
    else:
        found[k] = other if kind == 3 else f"{found[k]}+{other}"
    return "".join([f"[{x}]" for x in found])


def mutated(rng: Random, text: str) -> str:
    """A text with a few words, numbers, coordinates, lines or letters changed."""
    lines = text.splitlines()
    further = "rest", "exact", "back", "into", "serial", "p0", "o0", "acc", "t0", "3", "0", "16"
    words = sorted({*text.split(), *further})
    for _ in range(int(rng.integers(1, 3))):
        at, kind = int(rng.integers(1, len(lines))), rng.integers(0, 7)
        row = lines[at].split(" ")
        word = int(rng.integers(0, len(row)))
        if kind == 6:
            laid = [k for k, line in enumerate(lines) if "[" in line] or [at]
            at = int(rng.choice(laid))
            lines[at] = re.sub(r"(\[.*\])", lambda m: _coordinates(rng, m[0], text), lines[at])
        elif kind < 3:
            row[word] = str(rng.choice(words))
            lines[at] = " ".join(row)
        elif kind == 3 and len(lines) > 2:
            other = int(rng.integers(1, len(lines)))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 4 and len(lines) > 2:
            del lines[at]
        else:
            letter = int(rng.integers(0, len(lines[at])))
            lines[at] = lines[at][:letter] + str(rng.choice(list("a1 ,>#"))) + lines[at][letter + 1:]
    return "\n".join(lines)
