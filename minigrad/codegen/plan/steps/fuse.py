"""`fuse y x -> c by 30`: loops that run as one, as another form of the nest.

    for i1<28, i2<28:                             for yb<4, c<208:
      t0 = sum(r0<8: p0[784*r0+28*i1+i2])   ->      t0 = sum(r0<8: p0[784*r0+28*(7*yb+c//30)+c%30])
      o0[28*i1+i2] = t0                             o0[28*(7*yb+c//30)+c%30] = t0         where c%30 < 28

after `split i1 -> yb y by 7` and `fuse y i2 -> c by 30`. As a Kernel says what each element is, variables may be what
one likes: splits of what is fused are part of the new form, and all other steps speak of its variables. Sums that share
loops share the new ones, too.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from minigrad.codegen.kernel.walk import map_nest
from minigrad.codegen.plan.loops import NAME, Faults, Fused, Loops, Match, Step, loops_of, refuse
from minigrad.codegen.plan.steps.split import Split
from minigrad.expr import Index, Var, bounds, emin, subs, variables
from minigrad.value import map_indices


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """`fuse y x -> c by 30`: two loops become one, c = 30*y + x; of a row of 30, what is beyond x is computed perhaps,
    and never stored. Without `by` there is nothing between. A part of a split may be fused. Halide, TVM: fuse.

        for y in 0..7:                       for c in 0..7*30:
          for x in 0..28:          ->          ...                                at y = c // 30, x = c % 30
            ...
    """

    outer: str
    inner: str
    loop: str
    pitch: int = 0
    usage = "fuse OUTER INNER -> LOOP by ROW"
    pattern = rf"fuse ({NAME}) ({NAME}) -> ({NAME})(?: by (\d+))?"
    shapes = True

    @classmethod
    def parsed(cls, found: Match) -> Fuse:
        return cls(found[1], found[2], found[3], int(found[4] or 0))

    def __str__(self) -> str:
        return f"fuse {self.outer} {self.inner} -> {self.loop}" + (f" by {self.pitch}" if self.pitch else "")

    def apply(self, loops: Loops) -> Loops:
        return _Fusing(loops.given or loops, (*loops.steps, self)).fused()

    def faults(self, loops: Loops) -> Faults:
        fused = loops.fused.get(self.loop)
        if fused is not None and fused.row > fused.most and self.loop in loops.root and \
                not loops.inside(self.loop) <= loops.gathered:
            yield f"{self}: expected `results` at a loop around it, as rows are longer than {self.inner}"


class _Fusing:
    """`known`: what the variables of the nest are. `scopes`: by those of the domain, of a sum or of an inner nest, the
    ones that they are now; `spaces`: the same, those together that share loops, the domain first."""

    def __init__(self, given: Loops, steps: tuple[Step, ...]):
        self.given, self.steps = given, steps
        found = [(space.own, *space.others) for space in given.spaces]
        self.scopes = {over: list(over) for overs in found for over in overs}
        self.spaces = [[self.scopes[over] for over in dict.fromkeys(overs)] for overs in found]
        self.known: dict[Var, Index] = {v: v for over in self.scopes for v in over}
        self.names = {v.name for v in self.known}
        self.extents = {x.name for v in self.known if not isinstance(v.hi, int) for x in variables(v.hi)}
        self.made: dict[str, Fused] = {}
        self.valid: list[Index] = []
        self.taken: list[Step] = []

    def fused(self) -> Loops:
        """The loops of the nest in its new form, with the steps that are left."""
        for k, step in enumerate(self.steps):
            if isinstance(step, Fuse):
                if not all([s.shapes for s in self.steps[:k]]):
                    raise refuse(step, "it before all steps but sizes and splits", "one after them")
                self.together(step)

        def change(e: Index) -> Index:
            return subs(e, self.known)

        def scope(over: tuple[Var, ...]) -> tuple[Var, ...]:
            return tuple(self.scopes.get(over, over))

        nest = map_nest(self.given.nest, lambda v: map_indices(v, change, scope),
                        lambda _, indices: tuple(map(change, indices)), scope)
        loops = replace(loops_of(nest), given=self.given, fused=self.made, gone=frozenset(self.names),
                        valid=tuple([e for e in self.valid if bounds(e)[0] < 0]))
        for s in self.steps:
            loops = loops.then(s) if isinstance(s, Split) and s not in self.taken else loops.after(s)
        return loops

    def together(self, step: Fuse) -> None:
        """Two variables become one."""
        for s in self.steps[:self.steps.index(step)]:
            if isinstance(s, Split) and s.loop in (step.outer, step.inner):
                raise refuse(step, f"parts of a loop that is split, {s.outer} and {s.inner}", s.loop)
        outer, inner = self.variable(step.outer, step), self.variable(step.inner, step)
        if step.loop in self.names:
            raise refuse(step, "a name that no loop has or had", step.loop)
        space = self.space(outer)
        if inner not in space[0] or outer == inner:
            raise refuse(step, "two loops of the domain, of one sum or of one inner nest",
                         f"{step.outer} and {step.inner}")
        self.names.add(step.loop)
        rows, most, gaps = outer.hi + 1, inner.hi + 1, space is self.spaces[0]
        pitch = step.pitch or most
        if isinstance(rows, int) and isinstance(most, int):
            self.made[step.loop] = Fused(step, step.loop, step.outer, step.inner, step.pitch, rows, most)
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
        before = self.steps[:self.steps.index(step)]
        split = next((s for s in before if isinstance(s, Split) and name in (s.outer, s.inner)), None)
        if split is None or split in self.taken:
            raise refuse(step, f"a loop among {' '.join(own)}", name)
        self.apart(split, step)
        return self.variable(name, step)

    def apart(self, split: Split, step: Fuse) -> None:
        """One variable becomes two."""
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
