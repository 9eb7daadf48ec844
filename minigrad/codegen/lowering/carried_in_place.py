"""Which carries of a loop can be stored in place of the old ones at once, rather than be moved there after a step."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.kernel.nodes import Kernel, Nest, Store
from minigrad.codegen.kernel.value_walk import loaded, loads
from minigrad.codegen.kernel.walk import assignments, statements, values_of
from minigrad.codegen.lowering.independent_axes import Axis, Carried, carried
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
    others = [k for k in range(steps.first, steps.last) if k != move]
    writers = [k for k in others if _stores(steps.nests[k], new)]
    if len(writers) != 1 or writers[0] > move or any(_stores(steps.nests[k], old) for k in others):
        return False
    writer, = writers
    if any(old in loaded(*values_of(steps.nests[k].body)) for k in others if k > writer):
        return False
    own = {a.variables[writer] for a in axes if writer in a.variables}
    return _in_order(steps.nests[writer], own, new, old)


def _stores(nest: Nest, name: str) -> list[Store]:
    """The stores of a nest to a buffer."""
    return [s for s in statements(nest.body) if isinstance(s, Store) and s.param == name]


def _in_order(nest: Nest, own: set[Var], new: str, old: str) -> bool:
    """True where the nest reads the old carry's elements before it stores the new one's, or at the same place."""
    store, *more = _stores(nest, new)
    once, stored = all(v in own for v in nest.domain), False
    for s in nest.body:
        inner = list(assignments((s,)))
        for x in inner:
            for read in loads(x.value):
                elsewhere = read.indices != store.indices and (store in inner or not once)
                if read.buffer == old and (stored or elsewhere):
                    return False
            stored = stored or x is store
    return not more
