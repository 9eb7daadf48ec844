"""What the text of a contraction in panels depends on, its form, apart from its sizes: where these are arguments,
layers of one form share a program.

    for p in 0..36 parallel:                              for p in 0..units_m*units_n parallel:
      for k in 0..512:                                      for k in 0..k:
        acc[0] = acc[0] + p0[3072*(p//9) + 512*u + k]  ->     acc[0] = acc[0] + p0[unit_m*s0*(p//units_n) + s0*u + k]

The register tile, how each operand is read, and which edges there are is the form; steps of 1 and what is 0 or 1 stay
constants, and so does memory of a worker's own, in powers of two.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from minigrad.codegen.cost.caches import PAGE
from minigrad.codegen.cost.machine import machine
from minigrad.codegen.kernel import Kernel, Param, Store
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import is_plain, row_bytes
from minigrad.codegen.strategies.plan import PanelPlan
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.codegen.strategies.stream import MAX_ROWS
from minigrad.errors import InternalError
from minigrad.expr import Index, Var
from minigrad.target import Target
from minigrad.value import Value, rebuild, walk

MAX_SIZE = (1 << 31) - 1
SHORT_SUM, LARGE_OUTPUT = 64, 1 << 16
"""Steps of a sum up to which, in outputs of so many elements, sizes stay constants: arguments would cost 5-20%."""

FEW_ROWS, LARGE_PRODUCT = 8, 1 << 22
"""Likewise with more rows in products of fewer multiply-adds: 3-5%. In larger ones a test per tile costs nothing."""

STEPS = (1 << 29, 4), (0, 2)
"""Multiply-adds from which on so many steps of the sum are one iteration of the microkernel's loop, where they leave
none and B is not streamed. The loop's own instructions cost nothing on a quiet machine; on a busy virtual one, whose
cores are probably shared, 2 were measured to gain 6%, 4 to gain 8% for 20% longer compiling."""

LEAST_NEAR = 32
"""Steps of the sum that are worth a block of their own, for a panel of B in place to stay in the first-level cache; in
shorter ones it is streamed."""

MAX_STEPS_IN_PLACE = 2
"""Likewise where B is in place, its rows an argument's steps apart: LLVM loads what four steps need ahead of their
multiply-adds, and has no registers left; such a tile took 1.8 times as long."""

FAR_B, NEAR_PANEL = 1 << 19, 1 << 15
"""Bytes of B in place from which on its next panel is fetched to the second-level cache while one is worked on: 1-5%
where weights or what lies between two runs leave the cache no room; and bytes of a panel up to which the first-level
cache has room for it."""

SHORTEST, SHORT, BEYOND_CACHES = 4, 8, 3 << 18
"""Steps of the sum up to which tiles that go along rows of the output fetch its lines beforehand: 8% at 512x512x4; and
where an output of so many elements leaves the second-level cache, 3-25%. With longer sums, or outputs that stay, it
costs 2-10%: the lines come in time by themselves, and loads wait."""

TURNED = 4
"""Steps of the sum of an operand across it that are transposed at a time. 16 by 16 at a time would read rows that lie
multiples of 4 KB apart once, and take 100 lines more of a program: 10 ms of compiling."""

LEAST_STEPS, LEAST_MEMORY = 2304, (1 << 11, 1 << 12, 1 << 9, 1 << 8)
"""Memory of a worker's own where sizes are arguments: steps of panels of B, and vectors of the rest as in
`Form.memory`. What is not touched costs nothing."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths, as numbers or as arguments.

    m, n, k: of the matrices, n without the columns that are dot products
    unit_m, unit_n: of a unit of work; units: how many there are along each outer variable, along M, along N
    block_m, block_k, parts: rows and steps of the sum that are packed at a time, and blocks of the sum
    """

    m: Index
    n: Index
    k: Index
    unit_m: Index
    unit_n: Index
    units: tuple[Index, ...]
    block_m: Index
    block_k: Index
    parts: Index


@dataclass(frozen=True, slots=True)
class Form:
    """The decisions of a plan that are no sizes (see PanelPlan), and what the text takes from sizes.

    steps: of the sum, or groups of them, in one iteration of the microkernel's loop
    begun: sums begin with their first products, not with zeros
    blocks: several blocks of rows in a unit; by_rows: each of one tile; split: several blocks of K
    announced: what a tile will store is prefetched
    edge_m, edge_n: whole tiles leave rows or columns; low, narrow: fewer rows than are packed at a time, or columns
        than a tile; edge_k: whole vectors leave steps of the sum; short: they are fewer than are turned
    ahead: vectors of the next tile's columns of B to prefetch per tile, if `far` to the second-level cache only;
        together: the next tile's rows of A are, too
    memory: elements of packed B, packed A, sums, packed columns for dot products, and their sums
    """

    outer: tuple[str, ...]
    rows: int
    vectors: int
    width: int
    a: str
    b: str
    dots: int
    group: int
    steps: int
    begun: bool
    blocks: bool
    by_rows: bool
    announced: bool
    split: bool
    edge_m: bool
    edge_n: bool
    edge_k: bool
    low: bool
    narrow: bool
    short: bool
    ahead: int
    far: bool
    together: bool
    memory: tuple[int, ...]

    @property
    def columns(self) -> int:
        return self.vectors * self.width // self.group

    @property
    def lanes(self) -> int:
        """Rows of A that are packed at a time."""
        return lanes_of(self.rows, self.width)

    @property
    def pitch(self) -> int:
        """Rows of a packed tile of A, whole vectors."""
        return ceil(self.rows / self.lanes) * self.lanes


def lanes_of(rows: int, width: int) -> int:
    """A vector's lanes, or half or a quarter of them where a tile has no more rows: 16 took 8 rows from outside it."""
    lanes = width
    while lanes > TURNED and lanes // 2 >= rows:
        lanes //= 2
    return lanes


def sizes_of(c: Contraction, plan: PanelPlan) -> Sizes:
    """The sizes as numbers."""
    m, n, k = extent(c.m[-1]), extent(c.n[-1]) - plan.dots, extent(c.k[-1])
    outer = {v.name: extent(v) for v in (*c.batch, *c.m, *c.n)}
    units = (*(outer[name] for name in plan.outer), ceil(m / plan.unit_m), ceil(n / plan.unit_n))
    return Sizes(m, n, k, plan.unit_m, plan.unit_n, units, plan.block_m, plan.block_k, ceil(k / plan.block_k))


def form_of(c: Contraction, plan: PanelPlan) -> Form:
    """The form of a plan for a contraction of constant sizes."""
    m, n, k = extent(c.m[-1]), extent(c.n[-1]) - plan.dots, extent(c.k[-1])
    rows, width, columns = plan.rows, plan.width, plan.columns
    split, blocks, by_rows = plan.block_k < k, plan.unit_m > plan.block_m, plan.block_m == rows
    panels, tiles = ceil(plan.unit_n / columns), ceil(plan.block_m / rows)
    ahead = plan.b == "place" and is_plain(c.b) and (split or not blocks and (
        row_bytes(c.b, c.k) >= PAGE or k * n * c.b.dtype.itemsize >= FAR_B))
    steps, lanes = ceil(k / width) * width, lanes_of(rows, width)
    beyond = -plan.block_k % TURNED if split and plan.a == "turned" else 0  # the last square of a block ends there
    memory = (((panels if blocks else 1) * plan.block_k + width * plan.group) * columns,
              (tiles * plan.block_k + beyond + width + 1) * ceil(rows / lanes) * lanes,
              panels * ceil(plan.unit_m / plan.block_m) * tiles * rows * columns,
              plan.dots * steps, plan.dots * (rows + ceil(plan.unit_m / width) * width))
    used = plan.b != "place", plan.a != "place", split, plan.dots > 0, plan.dots > 0
    return Form(plan.outer, rows, plan.vectors, width, plan.a, plan.b, plan.dots, plan.group,
                steps_at_once(m * n * k, k, plan), plan.begun, blocks, by_rows,
                not (by_rows or panels == 1) or is_announced(m * n, k), split,
                m % rows > 0, n % columns > 0, k % width > 0, m < lanes, n < columns, k < TURNED,
                ceil(plan.vectors / tiles) if ahead else 0,
                ahead and (split or k * columns * c.b.dtype.itemsize > NEAR_PANEL),
                plan.a == "place" and not split and rows_together(c),
                tuple(size if here else 0 for size, here in zip(memory, used, strict=True)))


def steps_at_once(work: int, k: int, plan: PanelPlan) -> int:
    """Steps of the sum in one iteration, of so many multiply-adds and k steps in all."""
    if plan.begun or plan.b == "place" and plan.block_k < min(k, LEAST_NEAR):
        return 1
    most = MAX_STEPS_IN_PLACE if plan.b == "place" else STEPS[0][1]
    return next((steps for least, steps in STEPS if work >= least and steps <= most and
                 k % (steps * plan.group) == plan.block_k % (steps * plan.group) == 0), 1)


def begins_at_once(c: Contraction, block_k: int, target: Target) -> bool:
    """Whether sums begin with their first products. Not of few rows, which `codegen/panels.py` may replace by a plan
    that begins with zeros: a sum of nothing but -0.0 would differ."""
    return machine(target).declared.fma_per_cycle == 1 and block_k == extent(c.k[-1]) and extent(c.m[-1]) > MAX_ROWS


def is_announced(outputs: int, k: int) -> bool:
    """Whether tiles along rows of a product with so many outputs, sums of k steps, prefetch what they will store."""
    return k > SHORT_SUM or k <= SHORTEST or k <= SHORT and outputs >= BEYOND_CACHES


def rows_together(c: Contraction) -> bool:
    """Whether the rows of A lie one after another in memory, without gaps."""
    steps = [coefficient(c.a.attr[1][0], v) for v in (c.m[-1], c.k[-1])]  # type: ignore[index]
    return steps == [extent(c.k[-1]), 1]


class NotShared(Exception):
    """Sizes are more than sizes: something is proved from them."""


@dataclass(frozen=True, slots=True)
class General:
    """A contraction with sizes as arguments: buffers of such lengths, and the values of the arguments here."""

    contraction: Contraction
    form: Form
    sizes: Sizes
    params: tuple[Param, ...]
    dims: tuple[Var, ...]
    values: tuple[int, ...]


def generalise(kernel: Kernel, c: Contraction, plan: PanelPlan) -> General | None:
    """The contraction with sizes as arguments; None where it has others, conditions or computed indices.

    Tiles may then leave rows and columns where one of them is left, or the product has no other variables: such come in
    all sizes.
    """
    form, here = form_of(c, plan), sizes_of(c, plan)
    if kernel.dims or form.group > 1 or form.blocks and not form.by_rows or gains_from_constants(c, form) \
            or form.short and "turned" in (plan.a, plan.b):
        return None
    lifter = _Lifter()
    unit_m = lifter.dim("unit_m", here.unit_m)
    units = (*(lifter.dim(f"units{k}", count) for k, count in enumerate(here.units[:-2])),
             *(lifter.count(name, count) for name, count in zip(("units_m", "units_n"), here.units[-2:], strict=True)))
    block_k = lifter.dim("block_k", here.block_k) if form.split else None
    k = lifter.dim("k", here.k, least=form.steps + form.begun)
    sizes = Sizes(lifter.dim("m", here.m), lifter.dim("n", here.n), k, unit_m, lifter.dim("unit_n", here.unit_n), units,
                  form.rows if form.by_rows else unit_m, k if block_k is None else block_k,
                  lifter.dim("parts", here.parts))
    try:
        general = lifter.contraction(c)
    except NotShared:
        return None
    params = tuple([replace(p, shape=(lifter.dim(f"size_{p.name}", p.shape[0]),)) for p in kernel.params])
    least = LEAST_STEPS * form.columns, *(vectors * form.width for vectors in LEAST_MEMORY)
    memory = [0 if not size else bound if size <= bound else rounded(size)
              for size, bound in zip(form.memory, least, strict=True)]
    edges = not form.outer or form.edge_m or form.edge_n
    form = replace(form, memory=tuple(memory), edge_m=edges, edge_n=edges)
    return General(general, form, sizes, params, tuple([v for v, _ in lifter.found.values()]),
                   tuple([value for _, value in lifter.found.values()]))


def gains_from_constants(c: Contraction, form: Form) -> bool:
    """Whether addresses that are known count: in short sums, small products, and where rows of B are pages apart."""
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    small = not form.outer and m > FEW_ROWS and m * n * k < LARGE_PRODUCT
    pages = form.ahead > 0 and not form.split and row_bytes(c.b, c.k) >= PAGE
    return small or k <= SHORT_SUM and m * n >= LARGE_OUTPUT or pages


def rounded(size: int) -> int:
    """The next of four sizes between powers of two."""
    step = max(1, (1 << size.bit_length()) // 8)
    return -(-size // step) * step


class _Lifter:
    """`found`: arguments and their values by what they are."""

    def __init__(self) -> None:
        self.found: dict[object, tuple[Var, int]] = {}
        self.steps = 0

    def dim(self, name: str, value: Index, key: object = None, least: int = 1) -> Index:
        """The argument for a length, at least that; 0 and 1, which code relies on, stay what they are."""
        if not isinstance(value, int) or abs(value) > MAX_SIZE:
            raise NotShared
        if abs(value) <= 1:
            return value
        known = self.found.setdefault(key or name, (Var(name, least, MAX_SIZE), abs(value)))[0]
        return known if value > 0 else -known

    def count(self, name: str, value: Index) -> Index:
        """The argument for how often something is done, once included."""
        if not isinstance(value, int):
            raise InternalError(f"[panels] expected a known count of {name}, got {value}")
        return self.found.setdefault(name, (Var(name, 1, MAX_SIZE), value))[0]

    def contraction(self, c: Contraction) -> Contraction:
        batch, m, n, k = (tuple([_any(v) for v in vs]) for vs in (c.batch, c.m, c.n, c.k))
        outputs = [Store(s.param, (self.index(s.param, s.indices[0]),), self.value(s.value)) for s in c.outputs]
        return Contraction(c.name, batch, m, n, k, self.value(c.a), self.value(c.b), tuple(outputs), c.total)

    def value(self, root: Value) -> Value:
        done: dict[Value, Value] = {}
        for v in walk(root):
            attr: object = v.attr
            if v.op == "load":
                attr = (v.attr[0], (self.index(v.attr[0], v.attr[1][0]),))  # type: ignore[index]
            elif v.op in ("guard", "index"):
                raise NotShared
            done[v] = rebuild(v, tuple([done[a] for a in v.args]), attr)
        return done[root]

    def index(self, buffer: str, e: Index) -> Index:
        """Steps and the start of an access, arguments per buffer and variable."""
        if isinstance(e, int):
            return self.step(buffer, "", e)
        total = self.step(buffer, "", e.const)
        for monomial, step in e.terms:
            v = monomial[0]
            if len(monomial) > 1 or not isinstance(v, Var):
                raise NotShared
            total = total + _any(v) * self.step(buffer, v.name, step)
        return total

    def step(self, buffer: str, variable: str, value: int) -> Index:
        key = buffer, variable, abs(value)
        if abs(value) > 1 and key not in self.found:
            self.steps += 1
        return self.dim(f"s{self.steps}", value, key)


def _any(v: Var) -> Var:
    """The variable without its extent."""
    return Var(v.name, 0, MAX_SIZE)
