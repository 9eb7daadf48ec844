"""`call mma_f16_opencl at v`: microkernels in place of loops."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.codegen.microkernels.block_product import panels_at_once, product_named
from minigrad.codegen.microkernels.matrix import matrix_microkernel
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.sub_group import width_of
from minigrad.codegen.plan.block_products import products_of
from minigrad.codegen.plan.loops import NAME, Faults, Loops, Step
from minigrad.codegen.plan.microkernel_choice import tile_meant
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.steps.ahead import Ahead
from minigrad.codegen.plan.steps.results import Results


@dataclass(frozen=True, slots=True)
class Call(Step):
    """`call mma_f16_opencl at v`: the loops inside v are what a microkernel computes, which runs in place of them. On
    CPUs it computes all sums in them, into the memory of `results`.
    Halide: tensor cores by patterns; TVM: tensorize; Exo: replace."""

    kernel: str
    at: str
    usage = "call MICROKERNEL at LOOP"
    pattern = rf"call ({NAME}) at ({NAME})"

    def __str__(self) -> str:
        return f"call {self.kernel} at {self.at}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.at,)

    def faults(self, loops: Loops) -> Faults:
        blocks, width, items = block_calls(loops), width_of(self.kernel), loops.bound_to("item")
        if self.of_blocks and self is blocks[0]:
            yield from _faults_of_blocks(blocks, loops)
        if width and (self.at not in items or not loops.space[self.at] or loops.most(self.at) % width
                      or not loops.space[items[-1]]):
            yield f"{self}: expected a sum's loop of neighbours, {width} work-items or a multiple of it"

    @property
    def of_blocks(self) -> bool:
        """True where its microkernel computes products with quantised blocks."""
        return product_named(self.kernel) is not None

    @property
    def by_items(self) -> bool:
        """True where work-items run its microkernel together."""
        return width_of(self.kernel) > 0 or matrix_microkernel(self.kernel) is not None

    @property
    def runs_tile(self) -> bool:
        """True where its microkernel runs a register tile of a CPU."""
        kernel = find(self.kernel)
        return kernel is not None and tile_meant(kernel) is not None


def block_calls(loops: Loops) -> list[Call]:
    """The calls of products with quantised blocks."""
    return [c for c in loops.of(Call) if c.of_blocks]


def _faults_of_blocks(calls: list[Call], loops: Loops) -> Faults:
    """Messages about all calls of such products."""
    step, at, found = str(calls[0]), calls[0].at, products_of(loops.nest)
    if found is None:
        yield f"{step}: expected sums that are products of one row with quantised blocks, got others"
        return
    for c in calls:
        if c.at != at or all(s.product is not product_named(c.kernel) for s in found.sums):
            yield f"{c}: expected one that computes some sum, at {at} as all others"
    inside, whole = loops.order[loops.order.index(at) + 1:], (found.lane, *found.over)
    if [loops.root[x] for x in inside] != [found.panel, *whole] or [x for x in whole if x.name in loops.split]:
        yield (f"{step}: expected loops of {found.panel} and all of {' '.join(v.name for v in whole)} inside {at}, "
               f"got {' '.join(inside)}")
        return
    panels, least = loops.extent(inside[0]), max(panels_at_once(c.kernel) for c in calls)
    if loops.stride(inside[0], Position()) != 1 or loops.cut_short(inside[0]) or not isinstance(panels, int) or \
            panels < least:
        yield f"{step}: expected blocks of {least} neighbours of {found.panel} at least, all equally long, inside {at}"
    if [(s.at, s.layout) for s in loops.of(Results)] != [(at, inside[:2])]:
        yield f"{step}: expected results at {at} as {''.join(f'[{x}]' for x in inside[:2])}"
    for x in (a.at for a in loops.of(Ahead) if a.at in inside):
        yield f"{step}: expected no prefetches inside {at}, got some at {x}"
