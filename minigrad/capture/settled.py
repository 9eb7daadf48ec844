"""The making of a `Steady` after a replay that leaves everything in place from call to call."""
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from minigrad.capture.arguments import Output, Place
from minigrad.capture.journal import Rebind, rebindable
from minigrad.capture.recorder import PlanStep
from minigrad.capture.steady import Steady
from minigrad.dtype import uint8
from minigrad.engine.plan import number
from minigrad.engine.storage import Spares, settle_down
from minigrad.errors import present
from minigrad.ops.kinds import type_of
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.capture.replay import Capture


def steady_after(capture: Capture, owners: list[Tensor]) -> Steady | None:
    """The steady state that the replay that just ended left; None where it does not leave everything in place."""
    steps = capture.recording.steps
    step = steps[0] if len(steps) == 1 else None
    if not isinstance(step, PlanStep) or step.prepared is None:
        return None
    if capture.shared and capture.guards:
        return None
    count = len(capture.inputs)
    guards = owners[count:]
    cells = [*guards, *(t.kept_grad for t in guards if t.kept_grad is not None)]
    if any(t.node.storage is None or not rebindable(t.node) for t in cells):
        return None
    for t in cells:
        settle_down(t.node)
    types = [v.type for v in capture.rebinds] + [o.type for o in capture.output.fresh()]
    if any(what.symbolic for what in types) or any(r.register is None for r in capture.rebinds):
        return None
    steady = Steady(capture, step, step.prepared, guards)
    numbers = {(count + k, False): k for k in range(len(guards))}
    with_grad = [k for k, t in enumerate(guards) if t.kept_grad is not None]
    numbers.update({(count + k, True): len(guards) + i for i, k in enumerate(with_grad)})
    return steady if _Sorter(steady, capture, step, numbers, owners).sort() else None


class _Sorter:
    """Sorts slots, registers and rebinds by the origin of their buffers. `cells` are the numbers of cells by place."""

    def __init__(self, steady: Steady, capture: Capture, step: PlanStep, cells: dict[Place, int],
                 owners: list[Tensor]):
        self.steady, self.capture, self.step, self.cells, self.owners = steady, capture, step, cells, owners
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
                self._fresh(r, slot)
        constants = self.capture.recording.constants
        if any(r.register in constants for r in self.steady.puts):
            return False
        self._finish()
        used = [r.register for r in self.steady.puts] + [o.register for o in self.capture.output.fresh()]
        return all(r in self.known and r not in constants for r in used)

    def _rebind(self, rebind: Rebind) -> bool:
        r = present(rebind.register, "[jit] expected a register of what a step puts in place")
        place, cell = rebind.place, self.cells.get(rebind.place)
        if self._is_argument(rebind):
            return True
        slot = self.made.get(r)
        if cell is None or slot is None:
            self.steady.puts.append(rebind)
            self.moving.add(place)
            return place[0] < len(self.capture.inputs) and not rebind.fresh if cell is None else place[1]
        leaf = self.slots[slot].leaf
        own = (leaf is None and place not in self.taken) or \
            (leaf is not None and self.places.get(self.leaves[leaf]) == place)
        if own and self.uses[r] == 1:
            self.steady.alone.append(cell)
            self.settled.add(r)
            return self.steady.prepared.address(slot) == self.steady.addresses[cell]
        self.steady.puts.append(rebind)
        self.moving.add(place)
        return not rebind.fresh

    def _is_argument(self, rebind: Rebind) -> bool:
        """True where a gradient is an argument of the capture, which lives, so that each replay has it as an
        argument."""
        owner, grad = rebind.place
        k, of_argument = (-1, True) if rebind.register is None else self.places.get(rebind.register, (-1, True))
        return grad and not rebind.fresh and not of_argument and 0 <= k < len(self.capture.inputs) and \
            k not in self.capture.confirmed and \
            self.owners[owner].kept_grad is self.owners[k] is self.capture.inputs[k]()

    def _fresh(self, r: int, slot: int) -> None:
        device, nbytes = self.step.plan.device, number(self.step.plan.sizes[slot], self.step.dims)
        outputs = [o for o in self.capture.output.fresh() if o.register == r]
        is_output = len(outputs) == self.uses[r] == 1
        what = outputs[0].type if is_output else type_of((nbytes,), uint8, device.name)
        spares = Spares(device, nbytes, what, is_output and self.capture.donate)
        self.steady.fresh.append((r, spares, is_output))
        self.steady.slots += (slot,)
        self.known.add(r)

    def _finish(self) -> None:
        """Notes which guards a replay needs, and `makers` where new leaves are all that it returns."""
        steady, count = self.steady, len(self.capture.inputs)
        places = [(owner, grad) for _, owner, grad, _ in steady.inputs] + [r.place for r in steady.puts]
        places += [o.place for o in self.capture.output.same() if o.place is not None]
        first = len(steady.guards)
        steady.given = sorted({k - first for k in (*steady.alone, *steady.loose) if k >= first})
        steady.reached = [(owner, steady.guards[owner - count])
                          for owner in dict.fromkeys(owner for owner, _ in places) if owner >= count]
        other = steady.puts or steady.aliases or self.step.dims or self.step.counters or self.step.keys
        plain = all([k < count and not grad and not over for _, k, grad, over in steady.inputs])
        structure = self.capture.output.structure
        kind = type(structure) if type(structure) in (list, tuple) else None
        outputs = structure if kind else [structure]
        makers = {r: spares for r, spares, is_output in steady.fresh if is_output}
        returned = {o.register for o in outputs if type(o) is Output and o.place is None}
        whole = returned == makers.keys() and len(returned) == len(outputs) == len(steady.fresh)
        if whole and plain and not other and not self.capture.donate:
            steady.kind, steady.makers = kind, [makers[o.register] for o in outputs]
            slots = dict(zip([r for r, *_ in (*steady.inputs, *steady.fresh)], steady.slots, strict=True))
            read = {owner: slots[r] for r, owner, *_ in steady.inputs}
            steady.all_slots = (*(read.get(k, -1) for k in range(count)), *[slots[o.register] for o in outputs])

    def _leaf(self, slot: int, leaf: int) -> bool:
        r = self.leaves[leaf]
        place = self.places.get(r)
        if place is None:
            return r in self.capture.recording.constants
        cell, overwritten = self.cells.get(place), r in self.step.overwritten
        if cell is None or place in self.moving:
            self.steady.inputs.append((r, *place, overwritten))
            self.steady.slots += (slot,)
            self.known.add(r)
            return cell is None or not overwritten
        lies = self.steady.prepared.address(slot)
        return lies in (0, self.steady.addresses[cell]) and (not overwritten or cell in self.steady.alone)
