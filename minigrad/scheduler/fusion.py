"""Which Nodes run together: the fusion pass (ALGORITHMS 6, rules 1-3 of ARCHITECTURE 4).

Nodes are met users first. Each one either joins the group of the kernel that uses it, or is materialised: it becomes
the root of a group of its own. What decides is how it is accessed there, as index expressions over the root's domain:

    movement, constants        always part of the user
    elementwise                part of all users if evaluating it there costs less than writing and reading it
    reduction                  at the whole domain: its users are the epilogue
                               at a prefix of the domain: a definition of the row (softmax, norms)
                               inside a sum, through movement only: one merged sum (gradients of windows)
                               else materialised

Every refusal keeps its reason in `Group.reasons`, which `show(stage="kernels")` prints.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from minigrad.expr import Index, Var, variables
from minigrad.ops.op import Elementwise, Generate, IndexMap
from minigrad.scheduler.graph import Graph, bytes_of, numel, size
from minigrad.target import Target

MAX_MEMBERS = 48
"""Operations of one kernel: bounds its arguments, its compile time and the depth of its expression."""

MAX_ACCESSES = 4
MAX_EPILOGUE = 16
"""Operations between a reduction and a value that are looked at to see that one finishes the other."""

LAUNCH_SECONDS = 2e-6
BANDWIDTH = 2e10
CLOCK = 5e9
"""Vector operations per second and core: two in each cycle."""
TILE_REUSE = 4
"""How often a contraction's register tile reuses an evaluated operand, at least."""

LOAD_FLOPS = 2
"""What one more load per element counts as."""

Accesses = tuple[tuple[Index, ...], ...]


@dataclass(slots=True)
class Group:
    """One kernel to be: roots are materialised; members are computed inside; `domain` the root's index variables."""

    roots: list[int]
    domain: tuple[Var, ...]
    members: dict[int, Accesses] = field(default_factory=dict)
    reductions: list[int] = field(default_factory=list)
    contraction: bool = False
    row: frozenset[Var] | None = None
    size: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Fusion:
    """The state and result of the pass: `group_of[k]` for materialised nodes, `inside[k]` the groups that compute k."""

    graph: Graph
    target: Target
    groups: list[Group] = field(default_factory=list)
    group_of: dict[int, int] = field(default_factory=dict)
    inside: dict[int, set[int]] = field(default_factory=dict)
    cone_flops: list[float] = field(default_factory=list)
    cone_bytes: list[float] = field(default_factory=list)
    varying: list[tuple[bool, ...]] = field(default_factory=list)

    @property
    def peak(self) -> float:
        return self.target.units * self.target.lanes(32) * CLOCK


def fuse(graph: Graph, extra: set[int], target: Target) -> Fusion:
    """Groups for everything in the graph; `extra` are further nodes to materialise besides the targets."""
    state = Fusion(graph, target)
    graph.look_around()
    measure_cones(state)
    forced = forced_roots(graph, extra)
    for k in reversed(range(len(graph.nodes))):
        kind = graph.kind(k)
        if kind == "leaf":
            continue
        if k in forced:
            start_group(state, k)
            continue
        users = accesses_by_group(state, k)
        why = refusal(state, k, kind, users)
        if why is None:
            for g, at in users.items():
                join(state, k, kind, g, at)
        else:
            for g in users:
                state.groups[g].reasons.append(f"{graph.nodes[k].op.name}{list(graph.nodes[k].shape)}: {why}")
            start_group(state, k)
    return state


def forced_roots(graph: Graph, extra: set[int]) -> set[int]:
    """Targets, what effects need in memory, and effects themselves."""
    forced = {peeled(graph, k) for k in (*graph.targets, *extra)}
    for k, node in enumerate(graph.nodes):
        if graph.kind(k) == "special" or node.op.name == "contiguous":
            forced.add(peeled(graph, k))
            if node.op.name in ("assign", "scatter"):
                forced.add(peeled(graph, graph.inputs[k][0]))
    return forced


def peeled(graph: Graph, k: int) -> int:
    """The node with the same row-major elements below reshapes and `contiguous`: what is really kept in memory."""
    while not graph.leaf[k] and graph.nodes[k].op.name in ("reshape", "contiguous"):
        k = graph.inputs[k][0]
    return k


def measure_cones(state: Fusion) -> None:
    """What recomputing each node from memory costs: operations and bytes, broadcast operands counted once."""
    graph = state.graph
    for k, node in enumerate(graph.nodes):
        kind = graph.kind(k)
        state.varying.append(varying_axes(state, k, kind))
        if kind in ("leaf", "reduce", "special"):
            state.cone_flops.append(0.0)
            state.cone_bytes.append(bytes_of(node))
            continue
        own = float(node.op.lower.flops) if isinstance(node.op.lower, (Elementwise, Generate)) else 0.0
        ins = graph.inputs[k]
        flops = own * distinct_elements(state, k) + sum([state.cone_flops[i] for i in ins])
        state.cone_flops.append(min(flops, 1e15))
        state.cone_bytes.append(min(sum([state.cone_bytes[i] for i in ins]), 1e15))


def varying_axes(state: Fusion, k: int, kind: str) -> tuple[bool, ...]:
    """Along which axes the elements of a node may differ: not along those that it was only repeated over."""
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


def distinct_elements(state: Fusion, k: int) -> int:
    """How many elements of an elementwise node differ: what is repeated along inner loops is computed outside them."""
    node = state.graph.nodes[k]
    return numel(tuple([e for e, v in zip(node.shape, state.varying[k], strict=True) if v]))


def start_group(state: Fusion, k: int) -> None:
    node = state.graph.nodes[k]
    shape = node.shape
    if node.op.name in ("assign", "scatter"):
        shape = state.graph.nodes[state.graph.inputs[k][1]].shape
    at = tuple(0 if e == 1 else Var(f"i{d}", 0, e - 1) for d, e in enumerate(shape))
    group = Group([k], tuple(v for v in at if isinstance(v, Var)))
    state.group_of[k] = len(state.groups)
    state.groups.append(group)
    group.members[k] = (at,)
    if state.graph.kind(k) == "reduce":
        group.reductions.append(k)
        group.contraction = is_contraction(state, k)


def accesses_by_group(state: Fusion, k: int) -> dict[int, Accesses]:
    """Where each group reads node `k`: the distinct index tuples."""
    found: dict[int, dict[tuple[Index, ...], None]] = {}
    for u in dict.fromkeys(state.graph.users[k]):
        groups = {state.group_of[u]} if u in state.group_of else state.inside.get(u, set())
        for g in sorted(groups):
            slot = found.setdefault(g, {})
            for at in state.groups[g].members[u]:
                for there in operand_accesses(state, u, k, at):
                    slot[there] = None
    return {g: tuple(slot) for g, slot in found.items()}


def operand_accesses(state: Fusion, user: int, k: int, at: tuple[Index, ...]) -> list[tuple[Index, ...]]:
    """The indices at which `user`, evaluated at `at`, reads its operand `k`."""
    graph, node = state.graph, state.graph.nodes[user]
    name, lower = node.op.name, node.op.lower
    source = graph.nodes[k]
    if isinstance(lower, IndexMap):
        mapped = lower.source(at, in_shape=source.shape, **node.params)
        return [mapped.index]
    if graph.kind(user) == "reduce":
        return [reduced_index(state, user, source.shape, at)]
    if name == "gather":
        places: list[tuple[Index, ...]] = []
        if graph.inputs[user][1] == k:
            places.append(at)
        if graph.inputs[user][0] == k:
            axis = node.params["axis"]
            chosen = Var(f"g{user}", 0, source.shape[axis] - 1)
            places.append((*at[:axis], chosen, *at[axis + 1:]))
        return places
    if isinstance(lower, Generate):
        return [()]
    return [at]


def reduced_index(state: Fusion, user: int, shape: tuple[Index, ...], at: tuple[Index, ...]) -> tuple[Index, ...]:
    axes = state.graph.nodes[user].params["axes"]
    outer = iter(at)
    return tuple(next(outer) if d not in axes else 0 if e == 1 else Var(f"r{user}_{d}", 0, e - 1)
                 for d, e in enumerate(shape))


# ---- decisions ----


def refusal(state: Fusion, k: int, kind: str, users: dict[int, Accesses]) -> str | None:
    """Why node `k` cannot be computed inside its users, None if it can."""
    if kind in ("free", "move"):
        return None
    if any(state.groups[g].size >= MAX_MEMBERS for g in users):
        return f"its kernel already has {MAX_MEMBERS} operations"
    if any(len(at) > MAX_ACCESSES for at in users.values()):
        return f"it is read at more than {MAX_ACCESSES} places"
    if kind == "reduce":
        if len(users) > 1:
            return f"a reduction with {len(users)} users"
        g, at = next(iter(users.items()))
        return refuse_reduction(state, k, state.groups[g], at)
    return refuse_elementwise(state, k, users)


def refuse_reduction(state: Fusion, k: int, group: Group, accesses: Accesses) -> str | None:
    if len(accesses) != 1:
        return f"a reduction read at {len(accesses)} places"
    at = accesses[0]
    used = frozenset[Var]().union(*(variables(e) for e in at)) if at else frozenset()
    domain = frozenset(group.domain)
    if not used <= domain:
        return None if merges(state, k) else "a reduction inside another one"
    plain = [e for e in at if not isinstance(e, int)]
    if any(not isinstance(e, Var) for e in plain) and not bijective(state, k, at, group):
        return "a reduction read through a non-trivial index"
    contraction = is_contraction(state, k)
    if used == domain and numel(state.graph.nodes[k].shape) == domain_size(group):
        if group.row is not None:
            return "its users work row by row"
        if (contraction or group.contraction) and group.reductions:
            return "a contraction beside another reduction"
        return None
    if contraction or group.contraction:
        return "a contraction read along a row"
    if any(not isinstance(e, Var) for e in plain):
        return "a row read through a non-trivial index"
    if group.row is not None and group.row != used:
        return "another row"
    if group.row is None and group.reductions:
        return "its users work on the whole domain"
    rows = 1
    for v in used:
        rows *= size(v.hi + 1)
    if rows < 2 * state.target.units and domain_size(group) > 1 << 15:
        return f"only {rows} rows for {domain_size(group)} elements"
    return None


def bijective(state: Fusion, k: int, at: tuple[Index, ...], group: Group) -> bool:
    """Whether the reduction's element and the root's element determine each other: reshapes and permutes between."""
    return numel(state.graph.nodes[k].shape) == domain_size(group)


def domain_size(group: Group) -> int:
    total = 1
    for v in group.domain:
        total *= size(v.hi + 1)
    return total


def merges(state: Fusion, k: int) -> bool:
    """A sum that only movement with zero filling separates from the sum around it."""
    graph = state.graph
    if graph.nodes[k].op.name not in ("sum", "unwindow"):
        return False
    while True:
        if len(graph.users[k]) != 1:
            return False
        k = graph.users[k][0]
        if k in state.group_of and graph.kind(k) != "reduce":
            return False
        node = graph.nodes[k]
        if graph.kind(k) == "reduce":
            return node.op.name in ("sum", "unwindow")
        if graph.kind(k) != "move" or node.params.get("fill", 0) != 0:
            return False


def is_contraction(state: Fusion, k: int) -> bool:
    """A sum whose operands are each smaller than the space it runs over: every element is used several times."""
    graph = state.graph
    if graph.nodes[k].op.name not in ("sum", "unwindow"):
        return False
    below = graph.inputs[k][0]
    total = numel(graph.nodes[below].shape)
    while graph.kind(below) in ("move", "reduce") and len(graph.users[below]) == 1:
        below = graph.inputs[below][0]
        total = max(total, numel(graph.nodes[below].shape))
    if graph.nodes[below].op.name != "mul" or graph.leaf[below]:
        return False
    return all(largest_source(graph, i) * 2 <= total for i in graph.inputs[below])


def largest_source(graph: Graph, k: int) -> int:
    """Elements of the biggest array that an operand is read from, through movement and elementwise operations."""
    biggest, stack = 0, [k]
    seen: set[int] = set()
    while stack and len(seen) < 32:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        if graph.kind(i) in ("move", "elementwise"):
            if graph.kind(i) == "elementwise":
                biggest = max(biggest, numel(graph.nodes[i].shape))
            stack.extend(graph.inputs[i])
        elif graph.kind(i) != "free":
            biggest = max(biggest, numel(graph.nodes[i].shape))
    return biggest


def refuse_elementwise(state: Fusion, k: int, users: dict[int, Accesses]) -> str | None:
    """Compares recomputing in every user with one write and a read per user."""
    if any(is_inside_reduction(state.groups[g], at) for g, at in users.items()) and finishes_reduction(state, k):
        return "it is what follows a reduction that is kept anyway"
    node = state.graph.nodes[k]
    count = numel(node.shape)
    loads = state.cone_bytes[k] / max(bytes_of(node), 1)
    per_element = state.cone_flops[k] / max(count, 1) + LOAD_FLOPS * max(loads - 1, 0)
    evaluations = 0.0
    for g, accesses in users.items():
        evaluations += sum(count_evaluations(state.groups[g], at) for at in accesses)
    extra = max(evaluations - count, 0) * per_element / state.peak
    extra += (len(users) - 1) * state.cone_bytes[k] / BANDWIDTH
    saved = LAUNCH_SECONDS + bytes_of(node) * (1 + len(users)) / BANDWIDTH
    if extra <= saved:
        return None
    return f"recomputing costs {extra * 1e6:.0f} us, keeping it {saved * 1e6:.0f} us"


def is_inside_reduction(group: Group, accesses: Accesses) -> bool:
    domain = frozenset(group.domain)
    return any(not variables(e) <= domain for at in accesses for e in at)


def finishes_reduction(state: Fusion, k: int) -> bool:
    """Whether a reduction of its size has no users but the elementwise operations that lead to node `k`."""
    graph = state.graph
    count = numel(graph.nodes[k].shape)
    cone, found, stack = {k}, [], [k]
    while stack and len(cone) < MAX_EPILOGUE:
        for i in graph.inputs[stack.pop()]:
            kind = graph.kind(i)
            if i in cone or numel(graph.nodes[i].shape) != count:
                continue
            if kind == "reduce":
                found.append(i)
            elif kind in ("elementwise", "move"):
                cone.add(i)
                stack.append(i)
    return any(leads_only_to(graph, r, k, cone) for r in found)


def leads_only_to(graph: Graph, start: int, end: int, cone: set[int]) -> bool:
    """Whether everything that is computed from `start` lies in `cone` until it has become `end`."""
    stack, seen = [start], {start, end}
    while stack:
        for u in graph.users[stack.pop()]:
            if u not in cone:
                return False
            if u not in seen:
                seen.add(u)
                stack.append(u)
    return True


def count_evaluations(group: Group, at: tuple[Index, ...]) -> float:
    """How often an expression at index `at` is evaluated: once per iteration of the loops down to its deepest one."""
    used = frozenset[Var]().union(*(variables(e) for e in at)) if at else frozenset()
    inner = used - frozenset(group.domain)
    total = 1.0
    depth = max((k for k, v in enumerate(group.domain) if v in used), default=-1)
    for k, v in enumerate(group.domain):
        if k <= depth or (inner and (group.row is None or v in group.row)):
            total *= size(v.hi + 1)
    for v in inner:
        total *= size(v.hi + 1)
    return total / TILE_REUSE if inner and group.contraction else total


def join(state: Fusion, k: int, kind: str, g: int, at: Accesses) -> None:
    group = state.groups[g]
    group.members[k] = at
    state.inside.setdefault(k, set()).add(g)
    if kind == "elementwise":
        group.size += 1
    if kind == "reduce":
        used = frozenset[Var]().union(*(variables(e) for e in at[0])) if at[0] else frozenset()
        if used <= frozenset(group.domain) and numel(state.graph.nodes[k].shape) != domain_size(group):
            group.row = used
        elif used <= frozenset(group.domain):
            group.reductions.append(k)
        group.contraction |= is_contraction(state, k)
