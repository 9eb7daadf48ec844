"""Which carries of a loop can be stored in place of the old ones at once, rather than be moved there after a step."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.kernel.nodes import Kernel, Nest, Store
from minigrad.codegen.lowering.independent_axes import Axis, Carried, carried, reads
from minigrad.codegen.lowering.rename import statements
from minigrad.expr import Var


def in_place(kernel: Kernel, axes: Sequence[Axis]) -> tuple[set[int], dict[str, str]]:
    """(nests that only move a new carry to where the old one was, the name of the old one for that of the new one)
    where the new one can be stored over the old one at once."""
    steps = carried(kernel)
    state = {p.name for p in steps.state}
    dropped: set[int] = set()
    renamed: dict[str, str] = {}
    for k in range(steps.first, steps.last):
        s = steps.nests[k].body[0]
        if not isinstance(s, Store) or s.param not in state or s.value.op != "load" or s.value.indices != s.indices:
            continue
        new = s.value.buffer
        if new in state and new not in renamed and s.param not in renamed.values() and new != s.param \
                and _may_overwrite(steps, axes, k, new, s.param):
            dropped.add(k)
            renamed[new] = s.param
    return dropped, renamed


def _may_overwrite(steps: Carried, axes: Sequence[Axis], move: int, new: str, old: str) -> bool:
    """True where nothing reads an element of the old carry once that of the new one is stored, before the `move`."""
    if any(a.axes.get(new) != a.axes.get(old) for a in axes):
        return False
    writers = [k for k in range(steps.first, steps.last) if any(
        isinstance(s, Store) and s.param == new for s in statements(steps.nests[k].body))]
    if len(writers) != 1 or writers[0] >= move:
        return False
    writer = writers[0]
    for k in range(steps.first, steps.last):
        if k == move:
            continue
        nest = steps.nests[k]
        if any(isinstance(s, Store) and s.param == old for s in statements(nest.body)):
            return False
        if k > writer and any(not isinstance(s, Nest) and reads(s.value, old) for s in statements(nest.body)):
            return False
    own = {a.variables[writer] for a in axes if writer in a.variables}
    return _in_order(steps.nests[writer], own, new, old)


def _in_order(nest: Nest, own: set[Var], new: str, old: str) -> bool:
    """True where the nest reads the old carry's elements before it stores the new one's, or at the same place."""
    stores = [s for s in statements(nest.body) if isinstance(s, Store) and s.param == new]
    if len(stores) != 1:
        return False
    place = stores[0].indices
    once = all(v in own for v in nest.domain)
    stored = False
    for s in nest.body:
        inner = [*statements((s,))]
        has = stores[0] in inner
        for x in inner:
            if isinstance(x, Nest):
                continue
            for at in reads(x.value, old):
                if at != place and not (once and not stored and not has):
                    return False
                if at == place and (stored or (has and inner.index(x) > inner.index(stores[0]))):
                    return False
        stored = stored or has
    return True
