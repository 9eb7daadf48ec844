"""A replay when nothing but the arguments has changed since the last one: what must hold is checked list by list.

After a replay of one plan on the CPU, a capture remembers which Nodes, gradients and addresses it left behind. If the
next call finds them all in place and held by nobody else, then the command table is right as it stands but for the
arguments and the outputs: nothing is journaled, allocated or rebound. Anything else is left to `Capture.replay`.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import is_
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad import random
from minigrad.capture.arguments import Arguments
from minigrad.capture.journal import Rebind, held_by_others, put, rebindable
from minigrad.capture.outputs import rebuild
from minigrad.capture.recorder import Entry, Place, PlanStep
from minigrad.engine.plan import number
from minigrad.engine.prepared import PreparedPlan
from minigrad.engine.storage import Spares
from minigrad.runtime.host import address_of
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.capture.replay import Capture

MISS = object()
"""What `Steady.replay` returns when something is not as the last replay left it."""


def _counts(objects: list[Any]) -> list[int]:
    return list(map(getrefcount, objects))


class _Holder:
    __slots__ = ("held",)


def _calibrate() -> int:
    """What `_counts` says of a value that one attribute and the counted list hold."""
    holder = _Holder()
    holder.held = object()  # type: ignore[attr-defined]
    return _counts([holder.held])[0]  # type: ignore[attr-defined]


_LISTED = _calibrate()


class Steady:
    """What one replay left behind, for the next. `steady_after` makes it where a capture is of the kind.

    A cell is a guarded Tensor or its gradient: guards first, then the gradients that there are.
    """

    def __init__(self, capture: Capture, step: PlanStep, prepared: PreparedPlan, guards: list[Tensor]):
        self.step, self.prepared = step, prepared
        self.size, self.drawn, self.parts = capture.recording.size, capture.drawn, capture.output
        self.packed = [constant for _, _, constant in capture.packed]
        self.guards = [ref(t) for t in guards]
        self.ids = frozenset(map(id, guards))
        self.requires = [t._requires_grad for t in guards]
        self.nodes = [ref(t._node) for t in guards]
        self.grads: list[Callable[[], Tensor | None]] = [type(None) if t.grad is None else ref(t.grad) for t in guards]
        leaves = [t.grad for t in guards if t.grad is not None]
        self.grad_nodes = [ref(g._node) for g in leaves]
        self.addresses = [address_of(t._node.storage) for t in (*guards, *leaves)]
        self.loose: list[int] = []
        """Cells whose buffer changes from replay to replay."""
        self.alone: list[int] = []
        """Cells that are overwritten: nobody else may hold Node or buffer."""
        self.inputs: list[tuple[int, int, Place, bool]] = []
        """(slot, register, place, overwritten) of what is looked up at each replay: arguments and loose cells."""
        self.fresh: list[tuple[int, int, Spares]] = []
        """(slot, register, memory) of what gets a buffer at each replay."""
        self.aliases: list[tuple[int, int]] = []
        """(register, register) of arguments that are overwritten: the new value and the old one."""
        self.puts: list[Rebind] = []
        """Tensors that get the buffer of a register."""

    def replay(self, arguments: Arguments) -> Any:
        """The result, or MISS with nothing done."""
        tensors = arguments.tensors
        owners = tensors
        if self.packed and not all([p.is_current() for p in self.packed]):
            return MISS
        if self.guards:
            if not self.ids.isdisjoint(map(id, tensors)):
                return MISS
            guards = self._unchanged()
            if guards is None:
                return MISS
            owners = [*tensors, *guards]
        registers: list[Any] = [None] * self.size
        patches = []
        for slot, r, (owner, grad), overwritten in self.inputs:
            t: Any = owners[owner].grad if grad else owners[owner]
            buffer = t._node.storage
            if buffer is None or overwritten and held_by_others(t, 1):
                return MISS
            patches.append((slot, buffer.address or address_of(buffer)))
            if overwritten:
                buffer.version += 1
            registers[r] = buffer
        step, numbers, dims = self.step, self.step.numbers, self.step.dims
        if dims:
            dims = step.dims_of(arguments.dims)
            if not self.prepared.runs_with(dims):
                return MISS
        for slot, r, spares in self.fresh:
            registers[r] = buffer = spares.take()
            patches.append((slot, buffer.address or address_of(buffer)))
        for r, old in self.aliases:
            registers[r] = registers[old]
        if step.counters or step.keys:
            numbers = step.numbers_of(Entry(random.advance(self.drawn), random.seed()[0], dims))
        self.prepared.run_patched(patches, numbers, dims, step.highest)
        for rebind in self.puts:
            owner, grad = rebind.place
            t = owners[owner].grad if grad else owners[owner]
            put(t, registers[rebind.register], rebind.shape, rebind.dtype, rebind.device)  # type: ignore
        return rebuild(self.parts, registers, owners, arguments.dims)

    def _unchanged(self) -> list[Tensor] | None:
        """The Tensors that the guards stand for, if all is as it was left."""
        guards = [t for t in [r() for r in self.guards] if t is not None]
        if len(guards) != len(self.guards) or [t._requires_grad for t in guards] != self.requires:
            return None
        nodes = [t._node for t in guards]
        grads = [t.grad for t in guards]
        if not all(map(is_, nodes, [r() for r in self.nodes])) or not all(map(is_, grads, [r() for r in self.grads])):
            return None
        if self.grad_nodes:
            leaves = [t for t in grads if t is not None]
            del grads
            # A gradient that somebody else holds keeps its value when its owner gets the next one.
            if max(_counts(leaves)) > _LISTED or any([t._requires_grad or t.grad is not None for t in leaves]):
                return None
            more = [t._node for t in leaves]
            if not all(map(is_, more, [r() for r in self.grad_nodes])):
                return None
            nodes += more
            del leaves, more
        buffers = [n.storage for n in nodes]
        if None in buffers:
            return None
        addresses = [b.address for b in buffers]
        for k in self.loose:
            addresses[k] = self.addresses[k]
        if addresses != self.addresses:
            return None
        if self.alone:
            held = _counts(nodes), _counts(buffers)
            if any([max([counts[k] for k in self.alone]) > _LISTED for counts in held]):
                return None
            for k in self.alone:
                buffers[k].version += 1
        return guards


def steady_after(capture: Capture, owners: list[Tensor]) -> Steady | None:
    """What the replay that just ended left behind, if it leaves things alike from call to call."""
    steps = capture.recording.steps
    step = steps[0] if len(steps) == 1 else None
    if not isinstance(step, PlanStep) or not isinstance(step.prepared, PreparedPlan):
        return None
    if capture.shared and capture.guards:
        return None
    count = len(capture.inputs)
    guards = owners[count:]
    cells = [*guards, *(t.grad for t in guards if t.grad is not None)]
    if any(t._node.storage is None or not rebindable(t._node) for t in cells):
        return None
    symbolic = [s for shape in (*[r.shape for r in capture.rebinds], *[o.shape for o in capture.output.fresh()])
                for s in shape if not isinstance(s, int)]
    if symbolic or any(r.register is None for r in capture.rebinds):
        return None
    steady = Steady(capture, step, step.prepared, guards)
    numbers = {(count + k, False): k for k in range(len(guards))}
    with_grad = [k for k, t in enumerate(guards) if t.grad is not None]
    numbers.update({(count + k, True): len(guards) + i for i, k in enumerate(with_grad)})
    return steady if _Sorter(steady, capture, step, numbers).sort() else None


class _Sorter:
    """Sorts slots, registers and rebinds by who provides their buffers. `cells` are the numbers of cells by place."""

    def __init__(self, steady: Steady, capture: Capture, step: PlanStep, cells: dict[Place, int]):
        self.steady, self.capture, self.step, self.cells = steady, capture, step, cells
        self.slots = step.plan.schedule.slots
        self.places = capture.recording.places
        self.taken = set(self.places.values())
        self.leaves, self.made = dict(step.leaves), {r: slot for slot, r in step.made}
        self.uses = Counter([r.register for r in capture.rebinds] + [o.register for o in capture.output.fresh()])
        self.moving: set[Place] = set()
        self.settled: set[int] = set()
        """Registers of values that are written where a cell's last one is."""
        self.known = set(capture.recording.constants)

    def sort(self) -> bool:
        """Fills in the steady state; False where something is of no known kind."""
        if not all([self._rebind(r) for r in self.capture.rebinds]):
            return False
        self.steady.loose = [self.cells[p] for p in self.moving if p in self.cells]
        if not all([self._leaf(slot, s.leaf) for slot, s in enumerate(self.slots) if s.leaf is not None]):
            return False
        for r, slot in self.made.items():
            leaf = self.slots[slot].leaf
            if leaf is not None:
                if self.leaves[leaf] in self.known:
                    self.steady.aliases.append((r, self.leaves[leaf]))
                    self.known.add(r)
            elif r not in self.settled:
                nbytes = number(self.step.plan.sizes[slot], self.step.dims)
                self.steady.fresh.append((slot, r, Spares(self.step.plan.device, nbytes)))
                self.known.add(r)
        constants = self.capture.recording.constants
        if any(r.register in constants for r in self.steady.puts):
            return False
        used = [r.register for r in self.steady.puts] + [o.register for o in self.capture.output.fresh()]
        return all(r in self.known and r not in constants for r in used)

    def _rebind(self, rebind: Rebind) -> bool:
        r, place, cell = rebind.register, rebind.place, self.cells.get(rebind.place)
        assert r is not None
        slot = self.made.get(r)
        if cell is None or slot is None:
            self.steady.puts.append(rebind)
            self.moving.add(place)
            return cell is None and place[0] < len(self.capture.inputs) and not rebind.fresh
        leaf = self.slots[slot].leaf
        own = leaf is None and place not in self.taken or \
            leaf is not None and self.places.get(self.leaves[leaf]) == place
        if own and self.uses[r] == 1:
            self.steady.alone.append(cell)
            self.settled.add(r)
            return self.steady.prepared.address(slot) == self.steady.addresses[cell]
        self.steady.puts.append(rebind)
        self.moving.add(place)
        return not rebind.fresh

    def _leaf(self, slot: int, leaf: int) -> bool:
        r = self.leaves[leaf]
        place = self.places.get(r)
        if place is None:
            return r in self.capture.recording.constants
        cell, overwritten = self.cells.get(place), r in self.step.overwritten
        if cell is None or place in self.moving:
            self.steady.inputs.append((slot, r, place, overwritten))
            self.known.add(r)
            return cell is None or not overwritten
        lies = self.steady.prepared.address(slot)
        return lies in (0, self.steady.addresses[cell]) and (not overwritten or cell in self.steady.alone)
