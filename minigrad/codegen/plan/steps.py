"""The steps of a plan. A plan says how the loops of one nest run, never what they compute: that is the Kernel's.
Plans and steps print as the text that makes them (`text.py`).

    plan contraction                       o0[i0, i1] = sum(r0: p0[i0, r0] * p1[r0, i1]), 64 x 1000 x 96
      split i0 -> i u by 4, back
      split i1 -> j jj by 32, back
      split jj -> v l by 16, exact
      bind parallel j i
      bind vector l
      bind unroll u v
      order j i l r0 u v

A variable of the nest (of its domain, of its sums, of its inner nests) is a loop; `split` makes two of one. `order`
lists the loops that are left, outermost first. Loops of the domain that stand inside the first loop of a sum are
copies: a sum has an accumulator for each of them. What no step says is serial, in the order of the kernel.
"""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.expr import Index

EDGES = ("exact", "back", "guard", "rest", "short")
KINDS = ("parallel", "group", "item", "vector", "unroll", "serial")


@dataclass(frozen=True, slots=True)
class Sizes:
    """`sizes i0 r0`: how far these variables of the nest run is an argument, and so is how far accesses step: one
    program serves all sizes. It stands before the splits. What a split with the edge exact takes apart is a multiple of
    its size in all of them. `sizes nn` of a block with the edge short: so is how long that is, whole blocks of the
    splits inside it. Halide, TVM: symbolic extents.

        for i0 in 0..240: for r0 in 0..784:          for i0 in 0..e0: for r0 in 0..e1:
          acc = acc + p0[784*i0 + r0]          ->      acc = acc + p0[e1*i0 + r0]
    """

    loops: tuple[str, ...]

    def __str__(self) -> str:
        return f"sizes {' '.join(self.loops)}"

    @property
    def names(self) -> tuple[str, ...]:
        return self.loops


@dataclass(frozen=True, slots=True)
class Split:
    """`split x -> o i by 4, back`: one loop becomes two, x = 4*o + i. With `into 4`: o runs 4 times, i the rest.

        for x in 0..10:                for o in 0..3:
          ...                 ->         for i in 0..4:
                                           ...                                at x = 4*o + i

    Where the size does not divide the extent, the edge says what becomes of the last block:
      exact   an error: it divides
      back    it reaches back over the one before, x = min(4*o, 10 - 4) + i, and stores again what is there already;
              only what is its own where the nest reads what it stores, or work-items would race
      guard   it is as long as the others: what lies outside is stored nowhere, and adds nothing to a sum
              (where `results` have room for that, it costs no conditions)
      rest    it is a serial loop of its own, over x
      short   it has fewer iterations: i runs min(4, 10 - 4*o) times
    `times`, which is no part of the text: an argument that a block is so many times as long (see Sizes).
    Halide: split and TailStrategy; TVM: split; Exo: divide_loop.
    """

    loop: str
    outer: str
    inner: str
    size: int
    edge: str = "exact"
    into: bool = False
    times: Index = 1

    @property
    def length(self) -> Index:
        """The size, where a program takes it as an argument as well."""
        return self.size * self.times

    def __str__(self) -> str:
        by = "into" if self.into else "by"
        return f"split {self.loop} -> {self.outer} {self.inner} {by} {self.size}, {self.edge}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.loop,)


@dataclass(frozen=True, slots=True)
class Fuse:
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

    def __str__(self) -> str:
        return f"fuse {self.outer} {self.inner} -> {self.loop}" + (f" by {self.pitch}" if self.pitch else "")

    @property
    def names(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Order:
    """`order j i l k u v`: the loops, outermost first. Halide, TVM: reorder."""

    loops: tuple[str, ...]

    def __str__(self) -> str:
        return f"order {' '.join(self.loops)}"

    @property
    def names(self) -> tuple[str, ...]:
        return self.loops


@dataclass(frozen=True, slots=True)
class Bind:
    """`bind vector l`: how loops run. parallel: iterations for workers, all of them as one loop, which is outermost;
    group, in their place: for work-groups, and item: the work-items of one, which share memory; vector: the lanes of a
    vector; unroll: written out; serial. Halide: parallel, gpu_blocks, gpu_threads, vectorize, unroll; TVM: bind."""

    kind: str
    loops: tuple[str, ...]

    def __str__(self) -> str:
        return f"bind {self.kind} {' '.join(self.loops)}"

    @property
    def names(self) -> tuple[str, ...]:
        return self.loops


@dataclass(frozen=True, slots=True)
class Parts:
    """`parts c`: each iteration of an unrolled loop of a sum has an accumulator of its own; they are joined by a tree.
    So are the lanes of a vector along a sum. Results are rounded differently. Halide: rfactor.

        for k: for c in 0..4 unroll:          for k: for c in 0..4 unroll:
          acc = acc + x[4*k + c]       ->       acc[c] = acc[c] + x[4*k + c]
                                              acc[0] = (acc[0] + acc[1]) + (acc[2] + acc[3])
    """

    loops: tuple[str, ...]

    def __str__(self) -> str:
        return f"parts {' '.join(self.loops)}"

    @property
    def names(self) -> tuple[str, ...]:
        return self.loops


@dataclass(frozen=True, slots=True)
class Ahead:
    """`ahead p0 at k by 1 of i`: in each iteration of k, what p0 is read at once i has gone on by one is prefetched;
    `by 4096 bytes`: what lies so far after what is read; `far`: to the second-level cache. Of an output, or of what is
    read beside one: `ahead o0 at i by 0 of i`, where i is around the sums, is what i will touch. Halide: prefetch.

    Lines of the operand are prefetched once. Where one iteration of i reads one run of memory, each iteration of k
    prefetches its share of the next run, front to back.
    """

    operand: str
    at: str
    by: int
    of: str = ""
    far: bool = False

    def __str__(self) -> str:
        by = f"{self.by} of {self.of}" if self.of else f"{self.by} bytes"
        return f"ahead {self.operand} at {self.at} by {by}" + (", far" if self.far else "")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at, self.of) if self.of else (self.at,)


@dataclass(frozen=True, slots=True)
class Stage:
    """`stage p1 at j as [kk][v][l]`: in each iteration of j, what the sum reads of p1 is copied to memory of the
    worker's own, laid out as [kk][v][l], loops inside j: contiguous along the last. Loops between that the copy does
    not depend on read it again. `transposed kk by 4`: it is read along kk, in square blocks that are transposed in
    registers. A coordinate may be a sum, `[c][y+ky][x+kx]`, where the operand depends on the sum alone: each element is
    copied once, borders are looked at in the copy only, and y and x may be fused into rows of that length.
    Halide: compute_at and store_in; TVM: cache_read.

    `by items`: all work-items of a group copy it, to memory that they share, in turns: one element after another along
    the last loop of the layout, or along kk where it is `transposed kk`. `double`: through registers, so that the block
    for the next iteration of j is on its way while this one is used. `room`, which is no part of the text: elements of
    the memory, where extents are arguments.

        for j ...:                            for j ...:
          for k ...: ... p1 ...        ->       p1_staged[...] = p1[...];  barrier
                                                for k ...: ... p1_staged ...;  barrier
    """

    operand: str
    at: str
    layout: tuple[str, ...]
    transposed: str = ""
    transposed_by: int = 1
    items: bool = False
    double: bool = False
    room: int = 0

    def __str__(self) -> str:
        options = (", by items" if self.items else "") + (", double" if self.double else "")
        return f"stage {self.operand} at {self.at} as {_laid_out(self)}{options}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at,)


@dataclass(frozen=True, slots=True)
class Call:
    """`call mma_f16_opencl at v`: the loops inside v are what a microkernel computes, which runs in place of them. On
    CPUs it computes all sums in them, into the memory of `results`.
    Halide: tensor cores by patterns; TVM: tensorize; Exo: replace."""

    kernel: str
    at: str

    def __str__(self) -> str:
        return f"call {self.kernel} at {self.at}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at,)


@dataclass(frozen=True, slots=True)
class Results:
    """`results at b as [i][c]`: in each iteration of b, sums go to memory of the worker's own, laid out as [i][c], all
    loops of the domain inside b; what follows them runs after that, in loops of its own. `transposed i by 16`: outputs
    are contiguous along i, and written in square blocks that are transposed in registers. Halide, TVM: cache_write.

        for b:                                                   for b:
          for i, c: for k: acc = acc + ...             ->          for i, c: for k: acc = acc + ...
            o0[...] = f(acc)                                         t0_kept[i, c] = acc
                                                                   for i, c: o0[...] = f(t0_kept[i, c])
    """

    at: str
    layout: tuple[str, ...]
    transposed: str = ""
    transposed_by: int = 1

    def __str__(self) -> str:
        return f"results at {self.at} as {_laid_out(self)}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at,)


def _laid_out(step: Stage | Results) -> str:
    """The coordinates of a step, and how they are transposed."""
    by = f" by {step.transposed_by}" if step.transposed_by > 1 else ""
    along = f", transposed {step.transposed}" if step.transposed else ""
    return "".join([f"[{x}]" for x in step.layout]) + along + by


Step = Sizes | Split | Fuse | Order | Bind | Parts | Ahead | Stage | Results | Call
"""Each has `names`, the loops in `order` that it is about."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for one nest, and the pattern that it was taken for ('' in a plan that a user wrote)."""

    pattern: str
    steps: tuple[Step, ...]

    def split(self, loop: str) -> Split | None:
        """The step that takes a loop apart; None where it is not."""
        return next((s for s in self.steps if isinstance(s, Split) and s.loop == loop), None)

    def bound(self, kind: str) -> tuple[str, ...]:
        """The loops of a kind."""
        return tuple([x for s in self.steps if isinstance(s, Bind) and s.kind == kind for x in s.loops])

    @property
    def sizes(self) -> tuple[str, ...]:
        """The variables, and the loops over blocks, whose extents are arguments."""
        return tuple([x for s in self.steps if isinstance(s, Sizes) for x in s.loops])

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The copies of operands."""
        return tuple([s for s in self.steps if isinstance(s, Stage)])

    @property
    def results(self) -> Results | None:
        """The step that has results go by way of memory; None where none does."""
        return next((s for s in self.steps if isinstance(s, Results)), None)

    @property
    def ahead(self) -> tuple[Ahead, ...]:
        """The prefetches."""
        return tuple([s for s in self.steps if isinstance(s, Ahead)])

    @property
    def strategy(self) -> str:
        """The pattern, by the name that plans of other kinds have for it."""
        return self.pattern

    def __str__(self) -> str:
        return "\n".join([f"plan {self.pattern}".rstrip(), *[f"  {s}" for s in self.steps]])
