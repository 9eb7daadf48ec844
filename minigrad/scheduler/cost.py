"""Recompute or store: what evaluating an elementwise Node inside its users costs, against writing and reading it."""
from __future__ import annotations

from math import ceil, inf

from minigrad.codegen.patterns.recognise_window import MAX_TAPS
from minigrad.codegen.policy.attention_decode import MAX_ROWS
from minigrad.codegen.policy.panels import TRANSPOSED_STEPS
from minigrad.expr import Index, Var, bounds, subs, variables
from minigrad.ops.op import Elementwise, Generate
from minigrad.scheduler.graph import Graph, numel, size
from minigrad.scheduler.groups import Accesses, Fusion, Group, used_variables, volume
from minigrad.scheduler.windows import is_digit, is_found_once, is_scattered, is_spread, shared_variables
from minigrad.target import Target

LAUNCH_SECONDS = 2e-6
BANDWIDTH = 2e10
CORES = 2
"""Cores of a CPU that share the bandwidth, in every estimate: their real number must not decide which operations are
fused, as that shows in the last bit."""

CLOCK = 5e9
"""Vector operations per second and core: two in each cycle."""
TILE_REUSE = 4
"""The number of times that a contraction's register tile reuses an evaluated operand, at least."""

BLOCK_REUSE = 256
"""The number of times that a packed block of an operand is used, if the other operand has that many rows."""

HALO = 1.05
"""The number of times that an element under a window is evaluated: staged rows of neighbouring bands overlap."""

PACKED_WORK = 1 << 18
MIN_ROWS = 16
"""Multiply-adds, and rows of the other operand, from which operands are packed."""

UNIT_RATE, UNIT_BANDWIDTH = 1e11, 1e10
"""Operations and bytes per second of a GPU's compute unit: 64 lanes, and its share of the memory of a common card."""

LOAD_FLOPS = 2
"""The number of operations that one more load per element counts as."""

GATHER_FLOPS = 8
"""The number of operations that a load from a looked up place counts as: each lane has its own."""

MAX_CONE = 96
"""The most Nodes that are looked at to see what one costs."""

MAX_EPILOGUE = 16
"""The most operations between a reduction and a value that are looked at to see that one finishes the other."""


def cores(target: Target) -> int:
    """The number of cores, or compute units of a GPU, to plan for."""
    return target.units if target.is_gpu else CORES


def rates(target: Target) -> tuple[float, float, float]:
    """(operations per second, bytes per second, seconds per launch): as measured, else usual values."""
    usual, bandwidth = cores(target) * target.lanes(32) * CLOCK, BANDWIDTH
    if target.is_gpu:
        usual, bandwidth = target.units * UNIT_RATE, target.units * UNIT_BANDWIDTH
    return (target.gflops * 1e9 / 2 or usual, target.gb_s * 1e9 or bandwidth,
            target.launch_us / 1e6 or LAUNCH_SECONDS)


def measure_axes(state: Fusion) -> None:
    """Fills in `varying`, the axes along which each node varies, `work`, the operations of computing it: what is
    repeated along inner loops is computed outside them, and `stored`, whether anything in memory is read for it."""
    graph = state.graph
    for k, node in enumerate(graph.nodes):
        state.stored.append(graph.kinds[k] in ("leaf", "reduce", "special") or any([
            state.stored[i] for i in graph.inputs[k]]))
        varying = varying_axes(state, k, graph.kinds[k])
        state.varying.append(varying)
        flops = flops_of(graph, k)
        distinct = graph.counts[k] if not flops or all(varying) else \
            numel(tuple([e for e, v in zip(node.shape, varying, strict=True) if v]))
        state.work.append(float(flops) * distinct)


def flops_of(graph: Graph, k: int) -> int:
    """Operations for one element of a node."""
    lower = graph.nodes[k].op.lower
    if graph.kinds[k] == "leaf" or widens(graph, k):
        return 0
    if graph.nodes[k].op.name == "gather":
        return GATHER_FLOPS
    return lower.flops if isinstance(lower, (Elementwise, Generate)) else 0


def cone(state: Fusion, k: int) -> tuple[float, list[int]]:
    """(operations, nodes to read) of recomputing a node from memory, each shared operation counted once. Infinitely
    many operations, and some of the nodes, where more than `MAX_CONE` are looked at."""
    found = state.cones.get(k)
    if found is None:
        found = state.cones[k] = measure_cone(state, k)
    return found


def measure_cone(state: Fusion, k: int) -> tuple[float, list[int]]:
    kinds, inputs, work = state.graph.kinds, state.graph.inputs, state.work
    flops, sources = 0.0, []
    seen, stack = {k}, [k]
    while stack and len(seen) < MAX_CONE:
        i = stack.pop()
        if kinds[i] in ("leaf", "reduce", "special") or (i != k and state.graph.nodes[i].op.name == "contiguous"):
            sources.append(i)
            continue
        flops += work[i]
        for j in inputs[i]:
            if j not in seen:
                seen.add(j)
                stack.append(j)
    return inf if stack else flops, sources


def widens(graph: Graph, k: int) -> bool:
    """True where a node converts small integers to larger ones: loads do that on the way."""
    node = graph.nodes[k]
    if node.op.name != "cast":
        return False
    before = graph.nodes[graph.inputs[k][0]].dtype
    return before.is_int and node.dtype.is_int and before.itemsize < node.dtype.itemsize


def varying_axes(state: Fusion, k: int, kind: str) -> tuple[bool, ...]:
    """For each axis, True where the elements of a node may differ along it: not where it was only repeated."""
    graph = state.graph
    node, ins = graph.nodes[k], graph.inputs[k]
    rank = len(node.shape)
    if kind == "elementwise" and node.op.name != "gather":
        below = [state.varying[i] for i in ins if len(state.varying[i]) == rank]
        return tuple([any(v) for v in zip(*below, strict=True)]) if below else (True,) * rank
    if kind != "move":
        return (True,) * rank
    if node.op.name == "expand":
        source, extra = graph.nodes[ins[0]].shape, rank - len(graph.nodes[ins[0]].shape)
        inner = state.varying[ins[0]]
        return tuple([a >= extra and source[a - extra] == node.shape[a] and inner[a - extra] for a in range(rank)])
    if node.op.name == "permute":
        return tuple([state.varying[ins[0]][a] for a in node.params["order"]])
    return (True,) * rank


def refuse_elementwise(state: Fusion, k: int, users: dict[int, Accesses]) -> str | None:
    """Compares recomputing in every user with one write and a read per user; returns why to store it, None to
    recompute."""
    if any(is_inside_reduction(state.groups[g], at) for g, at in users.items()) and finishes_reduction(state, k):
        return "it is what follows a reduction that is kept anyway"
    if len(users) == 1 and state.graph.nodes[k].op.name == "gather" and is_matrix_of_product(state, k, users):
        return None
    count = state.graph.counts[k]
    evaluations = 0.0
    for g, accesses in users.items():
        for at in distinct(accesses):
            evaluations += evaluations_at(state, k, state.groups[g], at)
    if (len(users) == 1 and evaluations <= count) or is_spread(state, k):
        return None
    if is_less_as_operands(state, k, max(evaluations - count, 0), len(users)):
        return None
    size_of = state.graph.sizes
    flops, sources = cone(state, k)
    if flops == inf:
        return f"more than {MAX_CONE} operations would be repeated"
    read = sum([size_of[i] for i in sources])
    if not read and flops <= 2 * LOAD_FLOPS * count:
        return None  # it comes from indices alone, by hardly more work than reading it would be
    anew = [set(sources) - read_beside(state, k, g) for g in users]
    loaded = sum([size_of[i] for i in set[int]().union(*anew)])
    per_element = flops / max(count, 1) + LOAD_FLOPS * max(loaded / max(size_of[k], 1) - 1, 0)
    peak, bandwidth, launch = rates(state.target)
    extra = max(evaluations - count, 0) * per_element / peak
    hosted = is_row_of_reduction(state, k, sources)
    if len(users) > 1:
        extra += (sum([size_of[i] for of in anew for i in of]) - (0 if hosted else read)) / bandwidth
    saved = (0 if hosted else launch) + size_of[k] * (1 + len(users)) / bandwidth
    if extra <= saved:
        return None
    return f"recomputing costs {extra * 1e6:.0f} us, keeping it {saved * 1e6:.0f} us"


def is_less_as_operands(state: Fusion, k: int, again: float, users: int) -> bool:
    """True where a node is larger than what it is computed from, as products of a window are, and keeping these, which
    are met next, and computing it so many times again costs less than keeping it."""
    size_of, operands = state.graph.sizes, {moved(state.graph, i) for i in state.graph.inputs[k]}
    smaller = sum([size_of[i] for i in operands])
    if smaller >= size_of[k]:
        return False
    peak, bandwidth, launch = rates(state.target)
    extra = again * (flops_of(state.graph, k) + LOAD_FLOPS * len(operands)) / peak + 2 * smaller / bandwidth
    return extra <= launch + size_of[k] * (1 + users) / bandwidth


def is_matrix_of_product(state: Fusion, k: int, users: dict[int, Accesses]) -> bool:
    """True where a gather looks up a matrix for each of a batch of products: no lane has a place of its own."""
    for g, accesses in users.items():
        batch, domain = shared_variables(state, state.groups[g]), frozenset(state.groups[g].domain)
        for at in accesses:
            if used_variables(at) <= domain or not is_found_once(state, k, at, batch):
                return False
    return True


def refuse_movement(state: Fusion, k: int, users: dict[int, Accesses]) -> str | None:
    """Compares loading from the places behind node `k`, element by element, with one copy of it for its windows;
    returns why to make the copy, None to load."""
    scattered = [(g, at) for g, accesses in users.items() for at in accesses
                 if is_scattered(state, k, state.groups[g], at)]
    if not scattered:
        return None
    evaluations = sum([evaluations_at(state, k, state.groups[g], at) for g, at in scattered])
    peak, bandwidth, launch = rates(state.target)
    extra = evaluations * LOAD_FLOPS / peak
    saved = launch + state.graph.sizes[k] * (1 + len(users)) / bandwidth
    if extra <= saved:
        return None
    return f"loading it element by element costs {extra * 1e6:.0f} us, keeping it {saved * 1e6:.0f} us"


def is_row_of_reduction(state: Fusion, k: int, sources: list[int]) -> bool:
    """True where node `k` is computed from a reduction over what it reads: one kernel computes both, and reads that
    once."""
    graph = state.graph
    large = {i for i in sources if 2 * graph.counts[i] >= graph.counts[k]}
    return any(graph.kinds[i] == "reduce" and i not in large and large & set(cone(state, graph.inputs[i][0])[1])
               for i in sources)


def read_beside(state: Fusion, k: int, g: int) -> set[int]:
    """The nodes that fusion group `g` reads for operands of its members other than node `k`."""
    graph, members = state.graph, state.groups[g].members
    found: set[int] = set()
    for i in {i for m in members for i in graph.inputs[m]}:
        if i in state.group_of:
            found.add(i)
        elif i != k and i not in members:
            found.update(cone(state, i)[1])
    return found


def distinct(accesses: Accesses) -> Accesses:
    """Accesses that differ by more than the names of reduction variables: sums over one space share their loops."""
    if len(accesses) == 1:
        return accesses
    found: dict[tuple[Index, ...], None] = {}
    for at in accesses:
        names = {v: Var(f"r_{d}", 0, v.hi) for d, e in enumerate(at) if isinstance(e, Var) for v in (e,)
                 if v.name.startswith("r")}
        found[tuple([subs(e, names) for e in at])] = None
    return tuple(found)


def is_inside_reduction(group: Group, accesses: Accesses) -> bool:
    domain = frozenset(group.domain)
    return any([not variables(e) <= domain for at in accesses for e in at if type(e) is not int])


def finishes_reduction(state: Fusion, k: int) -> bool:
    """True where a reduction of its size has no users but the elementwise operations that lead to node `k`."""
    graph = state.graph
    count = graph.counts[k]
    cone, found, stack = {k}, [], [k]
    while stack and len(cone) < MAX_EPILOGUE:
        for i in graph.inputs[stack.pop()]:
            kind = graph.kinds[i]
            if i in cone or graph.counts[i] != count:
                continue
            if kind == "reduce":
                found.append(i)
            elif kind in ("elementwise", "move"):
                cone.add(i)
                stack.append(i)
    return any(leads_only_to(graph, r, k, cone) for r in found)


def leads_only_to(graph: Graph, start: int, end: int, cone: set[int]) -> bool:
    """True where everything that is computed from `start` lies in `cone` until it has become `end`."""
    stack, seen = [start], {start, end}
    while stack:
        for u in graph.users[stack.pop()]:
            if u not in cone:
                return False
            if u not in seen:
                seen.add(u)
                stack.append(u)
    return True


def evaluations_at(state: Fusion, k: int, group: Group, at: tuple[Index, ...]) -> float:
    """`count_evaluations` of node `k`, computed once for each place in fusion groups of one kind."""
    shape, root = state.graph.nodes[k].shape, state.graph.nodes[group.roots[0]]
    if root.op.name == "attention":
        return volume(tuple(used_variables(at)))  # keys_read_once
    scattered = root.op.name == "scatter" or is_scattered(state, k, group, at)
    copied = is_copied(state, k, group)
    key = group.domain, group.row, group.contraction, at, shape, scattered, copied
    found = state.evaluations.get(key)
    if found is None:
        found = state.evaluations[key] = count_evaluations(group, at, shape, scattered, copied, state.target)
    return found


def is_copied(state: Fusion, k: int, group: Group) -> bool:
    """True where plans may copy what a sum reads of node `k`: an operand that is computed from something in memory,
    which the copy is called after. Random numbers alone are computed wherever they are read."""
    graph, found, seen = state.graph, state.stored[k], {k}
    products, stack = {graph.inputs[r][0] for r in group.reductions}, [k]
    while stack and not found:
        for u in graph.users[stack.pop()]:
            if u in group.members and u not in seen and u not in products:
                seen.add(u)
                stack.append(u)
                found = found or state.stored[u]
    return found


def keys_read_once(graph: Graph, k: int, target: Target) -> set[int]:
    """The keys and values of an attention whose kernel reads each of them once, for all rows that share it, and can so
    compute them on the way, from another type for example (codegen/policy/attention_decode.py)."""
    node, inputs = graph.nodes[k], graph.inputs[k][:3]
    if node.op.name != "attention" or target.language != "llvm" or target.is_gpu:
        return set()
    rows = bounds(node.inputs[0].shape[-2])[1] * max(graph.counts[i] / max(graph.counts[moved(graph, i)], 1)
                                                     for i in inputs[1:])
    return set(inputs[1:]) - {inputs[0]} if rows <= MAX_ROWS else set()


def moved(graph: Graph, k: int) -> int:
    """The node that a chain of movement starts from: its values are read again and again, and lie in memory."""
    while graph.kinds[k] == "move":
        k = graph.inputs[k][0]
    return k


def count_evaluations(group: Group, at: tuple[Index, ...], shape: tuple[Index, ...], scattered: bool, copied: bool,
                      target: Target) -> float:
    """The number of times that an expression of `shape` is evaluated at index `at`: once per iteration of the loops
    down to its deepest one; in a contraction once per staged row of whole vectors, packed block or register tile. What
    is read from or put into `scattered` places is neither staged nor in vectors: each lane counts. What is not `copied`
    is neither staged nor packed."""
    used = used_variables(at)
    inner = used - frozenset(group.domain)
    depth = max((k for k, v in enumerate(group.domain) if v in used), default=-1)
    around = group.domain[:depth + 1]
    if inner:
        around = group.domain if group.row is None else tuple(v for v in group.domain if v in group.row)
    total = volume((*around, *inner))
    lanes = target.lanes(32)
    each: float = lanes if scattered else 1
    digits, rows = all(map(is_digit, at)), total / max(volume(tuple(used)), 1)
    # A sum's loops over digits that are not used are inside of it.
    evaluations = min(total, rows * numel(shape)) if inner and digits else total
    if not (inner and group.contraction and copied):
        return each * evaluations
    if not digits:  # a window
        if total < PACKED_WORK and volume(tuple(inner)) > MAX_TAPS and not (target.is_gpu or scattered):
            return total / TILE_REUSE  # neither packed nor staged
        outside = volume(tuple(v for v in group.domain if v not in used))
        columns = size(shape[-1])
        staged = HALO * numel(shape) / max(columns, 1) * ceil(columns / lanes) * lanes * max(outside / BLOCK_REUSE, 1)
        return total * each if target.is_gpu or scattered else min(staged, total)
    if rows < MIN_ROWS or total < PACKED_WORK:
        return each * evaluations / TILE_REUSE
    if not (scattered or target.is_gpu) and used_variables(at[-1:]) & inner:
        each = max(lanes / TRANSPOSED_STEPS, 1)  # computed in as many lanes, on the way to where it is packed
    return each * evaluations / min(rows, BLOCK_REUSE)
