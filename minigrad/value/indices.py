"""Values as indices, and indices in Values replaced: each needs the other."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from minigrad.expr import Atom, Index, Var, subs
from minigrad.value.core import Value, free_variables, rebuild, walk


class ValueIndex(Atom):
    """A loaded value used as an index (gather): an opaque integer atom with known bounds."""

    __slots__ = ("value", "lo", "hi")
    value: Value

    def __init__(self, value: Value, lo: int, hi: int):
        self.value, self.lo, self.hi = value, lo, hi
        self.known_values = (self,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueIndex) and (self.value, self.lo, self.hi) == (other.value, other.lo, other.hi)

    def __hash__(self) -> int:
        return hash((ValueIndex, id(self.value)))

    def __str__(self) -> str:
        return f"[{self.value!r}]"

    def bounds(self) -> tuple[int, int]:
        return self.lo, self.hi

    def subs(self, mapping: Mapping[Var, Index]) -> Atom:
        return ValueIndex(substitute(self.value, mapping), self.lo, self.hi)

    def variables(self) -> frozenset[Var]:
        return free_variables(self.value)


def substitute(root: Value, mapping: Mapping[Var, Index]) -> Value:
    """`root` with index variables replaced. Reduce variables bound inside must not be in `mapping`."""
    if not root.indexed or free_variables(root).isdisjoint(mapping):
        return root
    return map_indices(root, lambda e: subs(e, mapping))


def map_indices(root: Value, change: Callable[[Index], Index],
                scope: Callable[[tuple[Var, ...]], tuple[Var, ...]] | None = None) -> Value:
    """`root` with what `change` makes of each index expression and condition, and what `scope` makes of the variables
    of each reduction."""
    done: dict[Value, Value] = {}
    for v in walk(root):
        if not v.indexed and not v.reduces:
            done[v] = v
            continue
        attr = v.attr
        if v.op == "load":
            attr = (v.buffer, tuple([change(e) for e in v.indices]))
        elif v.op == "guard":
            attr = tuple([change(e) for e in v.conditions])
        elif v.op == "index":
            attr = change(v.index)
        elif scope is not None and v.op == "reduce":
            attr = (v.monoid, scope(v.over))
        done[v] = rebuild(v, tuple([done[a] for a in v.args]), attr)
    return done[root]
