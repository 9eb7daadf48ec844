"""Sums in equal parts, each by a worker of its own, and then the sum of the parts."""
from __future__ import annotations

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store
from minigrad.codegen.lowering.flatten import offset
from minigrad.expr import Var, product
from minigrad.value import load, local, reduce, substitute


def in_parts(nest: Nest, scratch: list[Param], name: str, count: int, v: Var) -> list[Nest]:
    """The nest with the sum `name` in `count` parts along `v`, then all of them, as `split_k` says."""
    outputs = product(d.hi + 1 for d in nest.domain)
    total = next(s for s in nest.body if isinstance(s, Define) and s.name == name)
    over = total.value.over
    p, inner = part_variable(nest, count), Var(v.name, 0, extent(v) // count - 1)
    body = substitute(total.value.args[0], {v: p * (extent(v) // count) + inner})
    param = Param(f"w{len(scratch)}", body.dtype, (outputs * count,), "out")
    scratch.append(param)
    place = offset(nest.domain, tuple([d.hi + 1 for d in nest.domain]))
    first = (Define(name, reduce("sum", tuple(inner if o is v else o for o in over), body)),
             Store(param.name, (place + p * outputs,), local(name, body.dtype)))
    q = Var(f"q{len(scratch)}", 0, count - 1)
    joined = Define(name, reduce("sum", (q,), load(param.name, (place + q * outputs,), body.dtype)))
    return [Nest((*nest.domain, p), first), Nest(nest.domain, tuple(joined if s is total else s for s in nest.body))]


def part_variable(nest: Nest, count: int) -> Var:
    """The variable of so many parts of a sum; a nest that is one of several parts itself has one already."""
    before = sum([v.name.startswith("part") for v in nest.domain])
    return Var(f"part{before or ''}", 0, count - 1)


def best_part(k: tuple[Var, ...], most: int) -> tuple[int, Var | None]:
    """The largest count of equal parts, at least 2, that a variable can be cut into; the outermost such variable."""
    found: tuple[int, Var | None] = 1, None
    for v in k:
        if isinstance(v.hi, int):
            count = max((d for d in range(1, most + 1) if extent(v) % d == 0), default=1)
            if count > found[0]:
                found = count, v
    return found
