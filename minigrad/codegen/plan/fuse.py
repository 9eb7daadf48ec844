"""Loops that run as one: `fuse y x -> c by 30`, as another form of the nest.

    for i1<28, i2<28:                             for yb<4, c<208:
      t0 = sum(r0<8: p0[784*r0+28*i1+i2])   ->      t0 = sum(r0<8: p0[784*r0+28*(7*yb+c//30)+c%30])
      o0[28*i1+i2] = t0                             o0[28*(7*yb+c//30)+c%30] = t0         where c%30 < 28

after `split i1 -> yb y by 7` and `fuse y i2 -> c by 30`. As a Kernel says what each element is, variables may be what
one likes: splits of what is fused are part of the new form, and all other steps speak of its variables.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minigrad.codegen.kernel import Define, Nest, Store
from minigrad.codegen.plan.spaces import fused, spaces
from minigrad.codegen.plan.steps import Fuse, Plan, Sizes, Split, Step
from minigrad.codegen.plan.text import refuse
from minigrad.expr import Index, Var, bounds, emin, subs
from minigrad.value import Value, reduce, substitute


@dataclass(slots=True)
class Fused:
    """A nest in its new form, and the steps that are left.

    loops: by name of what was fused, its step and the extents of the two loops that it was
    valid: conditions (>= 0) under which an element is one of the nest's own, where a row is longer than its loop or a
        block reaches back
    """

    nest: Nest
    steps: tuple[Step, ...]
    loops: dict[str, tuple[Fuse, int, int]] = field(default_factory=dict)
    valid: tuple[Index, ...] = ()

    def member(self, name: str) -> tuple[Fuse, int, int] | None:
        """What a loop was fused into; None if it was not."""
        return next((f for f in self.loops.values() if name in (f[0].outer, f[0].inner)), None)


def fuse(nest: Nest, plan: Plan) -> Fused:
    """The nest with fused loops as variables. Raises PlanError naming the step and what was expected."""
    steps = [s for s in plan.steps if isinstance(s, Fuse)]
    if plan.results is not None or any(s.pitch for s in steps):
        return _Fusing(nest, plan).fused() if steps else Fused(nest, plan.steps)
    for step in steps:
        nest = _variables(nest, plan, step)
    return Fused(nest, tuple([s for s in plan.steps if not isinstance(s, Fuse)]))


def _variables(nest: Nest, plan: Plan, step: Fuse) -> Nest:
    """The nest with one variable for two whole ones, of any of its loop nests."""
    if not all([isinstance(s, Sizes | Fuse) for s in plan.steps[:plan.steps.index(step)]]):
        raise refuse(step, "it before all steps but sizes", "one after them")
    if step.loop in {v.name for space in spaces(nest) for v in (*space.own, *space.others)}:
        raise refuse(step, "a name that no loop has", step.loop)
    made = fused(nest, step.outer, step.inner, step.loop)
    if made is None:
        raise refuse(step, "two variables of the domain, of one sum or of one inner nest, on which no extent depends",
                     f"{step.outer} and {step.inner}")
    return made


class _Fusing:
    """`domain`, `over`: the variables so far of the domain and of the sums; `known`: what those of the nest are."""

    def __init__(self, nest: Nest, plan: Plan):
        sums = [s.value.attr[1] for s in nest.body if isinstance(s, Define) and s.value.op == "reduce"]
        self.nest, self.plan = nest, plan
        self.domain, self.over = list(nest.domain), list(sums[0] if len(sums) == 1 else ())
        self.known: dict[Var, Index] = {v: v for v in (*self.domain, *self.over)}
        self.loops: dict[str, tuple[Fuse, int, int]] = {}
        self.valid: list[Index] = []
        self.taken: set[Step] = set()

    def fused(self) -> Fused:
        for step in self.plan.steps:
            if isinstance(step, Fuse):
                self.together(step)
        at = {v: e for v, e in self.known.items() if v is not e}
        body = tuple([self.statement(s, at) for s in self.nest.body])
        steps = tuple([s for s in self.plan.steps if s not in self.taken])
        return Fused(Nest(tuple(self.domain), body), steps, self.loops,
                     tuple([e for e in self.valid if bounds(e)[0] < 0]))

    def statement(self, s: Define | Store | Nest, at: Mapping[Var, Index]) -> Define | Store:
        if isinstance(s, Nest):
            raise refuse(next(iter(self.taken)), "a nest without others inside it", f"one over {s.domain}")
        value = self.value(s.value, at)
        if isinstance(s, Define):
            return Define(s.name, value)
        return replace(s, indices=tuple([subs(e, at) for e in s.indices]), value=value)

    def value(self, value: Value, at: Mapping[Var, Index]) -> Value:
        if value.op != "reduce" or not self.over:
            return substitute(value, at)
        return reduce(value.attr[0], tuple(self.over), substitute(value.args[0], at))  # type: ignore[index]

    def together(self, step: Fuse) -> None:
        """Two variables become one."""
        self.taken.add(step)
        if step.loop in {v.name for v in self.known} | self.loops.keys():
            raise refuse(step, "a name that no loop has or had", step.loop)
        outer, inner = self.variable(step.outer, step), self.variable(step.inner, step)
        group = next((vs for vs in (self.domain, self.over) if outer in vs and inner in vs), None)
        if group is None:
            raise refuse(step, "two loops of the domain, or of one sum", f"{step.outer} and {step.inner}")
        pitch, most = step.pitch or self.extent(inner, step), self.extent(inner, step)
        if pitch < most or pitch > most and group is self.over:
            raise refuse(step, f"by {most}{'' if group is self.over else ' at least'}, the extent of {step.inner}",
                         str(pitch))
        whole = Var(step.loop, 0, pitch * (self.extent(outer, step) - 1) + most - 1)
        self.loops[step.loop] = step, self.extent(outer, step), most
        self.become(group, outer, (whole,), whole // pitch)
        self.become(group, inner, (), whole % pitch)
        if pitch > most:
            self.valid.append(most - 1 - whole % pitch)

    def variable(self, name: str, step: Fuse) -> Var:
        """A variable by its name, made by splits if need be."""
        found = next((v for v in (*self.domain, *self.over) if v.name == name), None)
        if found is not None:
            return found
        split = next((s for s in self.plan.steps if isinstance(s, Split) and name in (s.outer, s.inner)), None)
        if split is None or split in self.taken:
            raise refuse(step, f"a loop among {' '.join([v.name for v in (*self.domain, *self.over)])}", name)
        whole = self.variable(split.loop, step)
        self.taken.add(split)
        total, group = self.extent(whole, step), self.domain if whole in self.domain else self.over
        blocks = -(-total // split.size)
        outer = Var(split.outer, 0, (split.size if split.into else blocks) - 1)
        inner = Var(split.inner, 0, (blocks if split.into else split.size) - 1)
        length = inner.hi + 1
        begin: Index = outer * length
        if total % split.size:
            if split.edge != "back" or group is self.over or length > total:  # type: ignore[operator]
                raise refuse(split, f"an exact split{'' if group is self.over else ', or back'}, as a part of it is "
                                    f"fused", split.edge)
            begin = emin(begin, total - length)
            self.valid.append(begin + inner - outer * length)
        self.become(group, whole, (outer, inner), begin + inner)
        return outer if name == split.outer else inner

    def become(self, group: list[Var], old: Var, new: tuple[Var, ...], value: Index) -> None:
        """Other variables in place of one."""
        k = group.index(old)
        group[k:k + 1] = new
        self.known = {v: subs(e, {old: value}) for v, e in self.known.items()}
        self.valid = [subs(e, {old: value}) for e in self.valid]

    def extent(self, v: Var, step: Fuse) -> int:
        if not isinstance(v.hi, int):
            raise refuse(step, "loops whose extents are known", v.name)
        return v.hi + 1
