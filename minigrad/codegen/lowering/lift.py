"""One stage for all sizes: extents, strides and buffer lengths of a nest become arguments (ALGORITHMS 10).

    for i0<240:                                       for i0<e0:
      t0 = sum(r0<8, r1<784:                            t0 = sum(r0<e1, r1<e2:
               p0[188160*r0 + 784*i0 + r1])                      p0[e0*e2*r0 + e2*i0 + r1])

The layers of a network that differ in sizes only share a program. The plan is made for the sizes as they are; what it
writes out, and steps of 1, stay constants; whether a contraction has a whole tile is part of a dim's bounds. A dense
access has products of extents as steps, which proves that it stays inside its buffer; steps of others are arguments of
their own. Inner loops of equal extents keep equal extents, as reductions share their loops.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from minigrad.codegen.kernel import Define, Kernel, Nest, Param, Store
from minigrad.codegen.lowering.rename import statements
from minigrad.codegen.plan.sizes import least_extents, written_out
from minigrad.codegen.plan.steps import Plan
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, product
from minigrad.value import Value, rebuild, reductions_in, walk

MAX_SIZE = (1 << 31) - 1


@dataclass(slots=True)
class _Sizes:
    """Arguments so far, by what must share one and value; variables with lifted extents; lengths of buffers."""

    found: dict[tuple[str, int], Var] = field(default_factory=dict)
    renamed: dict[Var, Var] = field(default_factory=dict)
    lengths: dict[str, Index] = field(default_factory=dict)

    def dim(self, kind: str, value: int, tile: int = 1) -> Index:
        """The argument for a size of a kind, known to be less than a tile or not; 0 and 1, which code relies on, stay
        what they are."""
        if abs(value) <= 1:
            return value
        known = self.found.get((kind, abs(value)))
        if known is None:
            count = sum(k[0] == kind[0] for k, _ in self.found)
            least, most = (tile, MAX_SIZE) if abs(value) >= tile else (1, tile - 1)
            known = self.found[kind, abs(value)] = Var(f"{kind[0]}{count}", least, most)
        return known if value > 0 else -known


def lift_sizes(kernel: Kernel, nest: Nest, plan: Plan) -> tuple[Kernel, tuple[int, ...]] | None:
    """A kernel of this nest alone with sizes as dims, and what these are; None where something is not a plain size."""
    if kernel.dims or not liftable(nest):
        return None
    sizes = _Sizes()
    least, constant = least_extents(plan), written_out(plan)
    for v, kind in bound(nest).items():
        if not isinstance(v.hi, int):
            raise InternalError(f"[lift] expected a known extent of {v.name}, got {v.hi + 1}")
        last = v.hi if v.name in constant else sizes.dim(kind, v.hi + 1, least.get(v.name, 1)) - 1
        sizes.renamed[v] = Var(v.name, 0, last)
    lengths = {p.name: p.shape[0] for p in kernel.params}
    lifted = _nest(nest, sizes, lengths)
    params = tuple([Param(p.name, p.dtype, (_length(p.name, lengths, sizes),), p.mode, p.layout)
                    for p in kernel.params])
    values = {v: value for (_, value), v in sizes.found.items()}
    return replace(kernel, params=params, dims=tuple(values), nests=(lifted,)), tuple(values.values())


def _length(name: str, lengths: dict[str, Index], sizes: _Sizes) -> Index:
    known = sizes.lengths.get(name)
    return sizes.dim(f"m.{name}", int(lengths[name])) if known is None else known  # type: ignore[arg-type]


def liftable(nest: Nest) -> bool:
    """Whether all indices are sums of multiples of the nest's variables: nothing is proved from their extents."""
    own = bound(nest)
    if any(not isinstance(v.hi, int) or v.hi >= MAX_SIZE for v in own):
        return False
    for s in statements((nest,)):
        if isinstance(s, Nest):
            continue
        if isinstance(s, Store) and (s.combine is not None or not all(_linear(e, own) for e in s.indices)):
            return False
        for x in walk(s.value):
            if x.op in ("guard", "index") or x.op == "load" and not all([_linear(e, own) for e in x.attr[1]]):
                return False
    return True


def bound(nest: Nest) -> dict[Var, str]:
    """The nest's index variables in order of their first place, each with what shares its extent."""
    found: dict[Var, str] = {}
    for s in statements((nest,)):
        if isinstance(s, Nest):
            for v in s.domain:
                found.setdefault(v, f"e.{v.name}" if s is nest else "e")
        else:
            for x in reductions_in(s.value):
                for v in x.attr[1]:
                    found.setdefault(v, "e")
    return found


def _linear(e: Index, own: dict[Var, str]) -> bool:
    """A sum of constant multiples of the nest's variables, without an offset."""
    if isinstance(e, int):
        return e == 0
    return e.const == 0 and all(len(monomial) == 1 and monomial[0] in own for monomial, _ in e.terms)


def _index(name: str, e: Index, sizes: _Sizes, lengths: dict[str, Index]) -> Index:
    if isinstance(e, int):
        return e
    terms = sorted(((step, v) for (v,), step in e.terms), key=lambda t: t[0])
    extents = [v.hi + 1 for _, v in terms]  # type: ignore[attr-defined]
    dense = all(step == product(extents[:k]) for k, (step, _) in enumerate(terms))
    own = [sizes.renamed[v] for _, v in terms]  # type: ignore[index]
    if dense and product(extents) == lengths[name]:
        sizes.lengths.setdefault(name, product(v.hi + 1 for v in own))
    total: Index = 0
    for k, (step, _) in enumerate(terms):
        total = total + own[k] * (product(v.hi + 1 for v in own[:k]) if dense else sizes.dim("s", step))
    return total


def _value(root: Value, sizes: _Sizes, lengths: dict[str, Index]) -> Value:
    done: dict[Value, Value] = {}
    for v in walk(root):
        if not v.indexed and not v.reduces:
            done[v] = v
            continue
        attr: object = v.attr
        if v.op == "load":
            attr = (v.attr[0], tuple(_index(v.attr[0], e, sizes, lengths) for e in v.attr[1]))
        elif v.op == "reduce":
            attr = (v.attr[0], tuple(sizes.renamed[r] for r in v.attr[1]))
        done[v] = rebuild(v, tuple(done[a] for a in v.args), attr)
    return done[root]


def _nest(nest: Nest, sizes: _Sizes, lengths: dict[str, Index]) -> Nest:
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.append(_nest(s, sizes, lengths))
        elif isinstance(s, Define):
            body.append(Define(s.name, _value(s.value, sizes, lengths)))
        else:
            at = tuple(_index(s.param, e, sizes, lengths) for e in s.indices)
            body.append(Store(s.param, at, _value(s.value, sizes, lengths), s.combine))
    return Nest(tuple(sizes.renamed[v] for v in nest.domain), tuple(body))
