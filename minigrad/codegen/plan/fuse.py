"""Loops that run as one: `fuse y x -> c by 30`, as another form of the nest.

    for i1<28, i2<28:                             for yb<4, c<208:
      t0 = sum(r0<8: p0[784*r0+28*i1+i2])   ->      t0 = sum(r0<8: p0[784*r0+28*(7*yb+c//30)+c%30])
      o0[28*i1+i2] = t0                             o0[28*(7*yb+c//30)+c%30] = t0         where c%30 < 28

after `split i1 -> yb y by 7` and `fuse y i2 -> c by 30`. As a Kernel says what each element is, variables may be what
one likes: splits of what is fused are part of the new form, and all other steps speak of its variables. Sums that share
loops share the new ones, too.
"""
from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.lowering.rename import map_nest
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import EDGES, Fuse, Plan, Sizes, Split, Step
from minigrad.codegen.plan.text import refuse
from minigrad.expr import Index, Var, bounds, emin, subs, variables
from minigrad.value import map_indices


@dataclass(slots=True)
class Fused:
    """A nest in its new form, and the steps that are left.

    loops: by name of what was fused, its step and the extents of the two loops that it was, where they are known
    valid: conditions (>= 0) under which an element is one of the nest's own, where a row is longer than its loop or a
        block reaches back
    names: of all loops that there were
    """

    nest: Nest
    steps: tuple[Step, ...]
    loops: dict[str, tuple[Fuse, int, int]] = field(default_factory=dict)
    valid: tuple[Index, ...] = ()
    names: frozenset[str] = frozenset()
    parts: dict[str, tuple[Fuse, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = {name: f for f in reversed(self.loops.values()) for name in (f[0].outer, f[0].inner)}

    def member(self, name: str) -> tuple[Fuse, int, int] | None:
        """The step that fused a loop with others, and its place among them; None if none did."""
        return self.parts.get(name)


def fuse(nest: Nest, plan: Plan) -> Fused:
    """The nest with fused loops as variables. Raises PlanError naming the step and what was expected."""
    if not any([isinstance(s, Fuse) for s in plan.steps]):
        return Fused(nest, plan.steps)
    return _Fusing(nest, plan).fused()


def check_split(step: Split, names: Container[str]) -> None:
    """Raises PlanError for a split that is none of any loop; `names`: those that loops have or had."""
    if step.size < 1:
        raise refuse(step, "a size from 1 on", str(step.size))
    if step.edge not in EDGES:
        raise refuse(step, f"an edge among {', '.join(EDGES)}", step.edge)
    for name in (step.outer, step.inner):
        if name in names or step.outer == step.inner:
            raise refuse(step, "names that no loop has or had", name)


class _Fusing:
    """`known`: what the variables of the nest are. `scopes`: by those of the domain, of a sum or of an inner nest, the
    ones that they are now; `spaces`: the same, those together that share loops, the domain first."""

    def __init__(self, nest: Nest, plan: Plan):
        self.nest, self.plan = nest, plan
        found = [(space.own, *space.others) for space in spaces(nest)]
        self.scopes = {over: list(over) for overs in found for over in overs}
        self.spaces = [[self.scopes[over] for over in dict.fromkeys(overs)] for overs in found]
        self.known: dict[Var, Index] = {v: v for over in self.scopes for v in over}
        self.names = {v.name for v in self.known}
        self.extents = {x.name for v in self.known if not isinstance(v.hi, int) for x in variables(v.hi)}
        self.loops: dict[str, tuple[Fuse, int, int]] = {}
        self.valid: list[Index] = []
        self.taken: list[Step] = []

    def fused(self) -> Fused:
        for k, step in enumerate(self.plan.steps):
            if isinstance(step, Fuse):
                if not all([isinstance(s, Sizes | Split | Fuse) for s in self.plan.steps[:k]]):
                    raise refuse(step, "it before all steps but sizes and splits", "one after them")
                self.together(step)

        def change(e: Index) -> Index:
            return subs(e, self.known)

        def scope(over: tuple[Var, ...]) -> tuple[Var, ...]:
            return tuple(self.scopes.get(over, over))

        def over(nest: Nest) -> Nest:
            return Nest(scope(nest.domain), tuple([over(s) if isinstance(s, Nest) else s for s in nest.body]))

        nest = over(map_nest(self.nest, lambda v: map_indices(v, change, scope),
                             lambda _, indices: tuple([change(e) for e in indices])))
        return Fused(nest, tuple([s for s in self.plan.steps if s not in self.taken]), self.loops,
                     tuple([e for e in self.valid if bounds(e)[0] < 0]), frozenset(self.names))

    def together(self, step: Fuse) -> None:
        """Two variables become one."""
        outer, inner = self.variable(step.outer, step), self.variable(step.inner, step)
        if step.loop in self.names:
            raise refuse(step, "a name that no loop has or had", step.loop)
        space = self.space(outer)
        if inner not in space[0] or outer == inner:
            raise refuse(step, "two loops of the domain, of one sum or of one inner nest",
                         f"{step.outer} and {step.inner}")
        self.taken.append(step)
        self.names.add(step.loop)
        rows, most, gaps = outer.hi + 1, inner.hi + 1, space is self.spaces[0]
        pitch = step.pitch or most
        if isinstance(rows, int) and isinstance(most, int):
            self.loops[step.loop] = step, rows, most
            if pitch < most or pitch > most and not gaps:  # type: ignore[operator]
                raise refuse(step, f"by {most}{' at least' if gaps else ''}, the extent of {step.inner}", str(pitch))
        elif step.pitch:
            raise refuse(step, "loops whose extents are known", f"{step.outer} and {step.inner}")
        whole = Var(step.loop, 0, rows * pitch - (pitch - most if rows != 0 else 0) - 1)
        row = 1 if pitch == 0 else pitch
        self.become(outer, (whole,), whole // row)
        self.become(inner, (), whole % row)
        if pitch != most:
            self.valid.append(most - 1 - whole % row)

    def variable(self, name: str, step: Fuse) -> Var:
        """A variable by its name, made by splits if need be."""
        own = {v.name: v for space in self.spaces for v in space[0]}
        if name in self.extents:
            raise refuse(step, "loops on which no extent depends", name)
        if name in own:
            return own[name]
        before = self.plan.steps[:self.plan.steps.index(step)]
        split = next((s for s in before if isinstance(s, Split) and name in (s.outer, s.inner)), None)
        if split is None or split in self.taken:
            raise refuse(step, f"a loop among {' '.join(own)}", name)
        self.apart(split, step)
        return self.variable(name, step)

    def apart(self, split: Split, step: Fuse) -> None:
        """One variable becomes two."""
        check_split(split, self.names)
        self.taken.append(split)
        whole = self.variable(split.loop, step)
        if not isinstance(whole.hi, int):
            raise refuse(step, "loops whose extents are known", whole.name)
        total, gaps = whole.hi + 1, self.space(whole) is self.spaces[0]
        blocks = -(-total // split.size)
        outer = Var(split.outer, 0, (split.size if split.into else blocks) - 1)
        inner = Var(split.inner, 0, (blocks if split.into else split.size) - 1)
        length = inner.hi + 1
        begin: Index = outer * length
        if total % split.size:
            if split.edge != "back" or not gaps or length > total:  # type: ignore[operator]
                raise refuse(split, f"an exact split{', or back' if gaps else ''}, as a part of it is fused",
                             split.edge)
            begin = emin(begin, total - length)
            self.valid.append(begin + inner - outer * length)
        self.names |= {outer.name, inner.name}
        self.become(whole, (outer, inner), begin + inner)

    def space(self, v: Var) -> list[list[Var]]:
        """The variables that a variable is one of, and those of sums that share its loops."""
        return next(space for space in self.spaces if v in space[0])

    def become(self, old: Var, new: tuple[Var, ...], value: Index) -> None:
        """Other variables in place of one, and of those that share its loop."""
        space, at = self.space(old), dict[Var, Index]()
        k = space[0].index(old)
        for over in space:
            at[over[k]] = value
            over[k:k + 1] = new
        self.known = {v: subs(e, at) for v, e in self.known.items()}
        self.valid = [subs(e, at) for e in self.valid]
