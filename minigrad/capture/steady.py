"""A replay when nothing but the arguments has changed since the last one: what must hold is checked list by list.

After a replay of one plan on the CPU, a capture remembers which Nodes, gradients and addresses it left behind. If the
next call finds them all in place and held by nobody else, then the command table is right as it stands but for the
arguments and the outputs: nothing is journaled, allocated or rebound. Anything else is left to `Capture.replay`. While
no Tensor that was there before was changed or looked at (`handles.changes`), nothing of that needs to be checked.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import is_
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad import random
from minigrad.capture.constants import any_packed
from minigrad.capture.journal import Rebind, give, held_by_others, rebindable
from minigrad.capture.outputs import Output, rebuild
from minigrad.capture.recorder import Entry, Place, PlanStep
from minigrad.config import Config
from minigrad.dtype import uint8
from minigrad.engine.plan import number
from minigrad.engine.prepared import PreparedPlan
from minigrad.engine.storage import Spares, settle_down
from minigrad.handles import changed, changes
from minigrad.mixins.base import Base
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
_NOTHING: dict[str, int] = {}


class Steady:
    """What one replay left behind, for the next. `steady_after` makes it where a capture is of the kind.

    A cell is a guarded Tensor or its gradient: guards first, then the gradients that there are. Owners are the
    arguments, then the guards. While `changes.mark` stays `mark`, nothing has happened to any cell.
    """

    def __init__(self, capture: Capture, step: PlanStep, prepared: PreparedPlan, guards: list[Tensor]):
        self.step, self.prepared = step, prepared
        self.size, self.drawn, self.parts = capture.recording.size, capture.drawn, capture.output
        self.packed = [constant for _, _, constant in capture.packed]
        self.guards = [ref(t, _gone) for t in guards]
        self.mark: object = None
        self.looks = 0
        self.ids = frozenset(map(id, guards))
        self.requires = [t._requires_grad for t in guards]
        self.nodes = [ref(t._node) for t in guards]
        self.grads: list[Callable[[], Any]] = [type(None) if t._grad is None else ref(t._grad) for t in guards]
        leaves = [t._grad for t in guards if t._grad is not None]
        self.grad_nodes = [ref(g._node) for g in leaves]
        self.addresses = [address_of(t._node.storage) for t in (*guards, *leaves)]
        self.given: list[int] = []
        """Which of the gradients get a value at each replay."""
        self.loose: list[int] = []
        """Cells whose buffer changes from replay to replay."""
        self.alone: list[int] = []
        """Cells that are overwritten: nobody else may hold Node or buffer."""
        self.inputs: list[tuple[int, int, bool, bool]] = []
        """(register, owner, whether its gradient is meant, overwritten) of what is looked up at each replay: arguments
        and loose cells."""
        self.fresh: list[tuple[int, Spares, bool]] = []
        """(register, leaves, whether a leaf is itself an output's Node) of what gets memory at each replay."""
        self.slots: tuple[int, ...] = ()
        """Those of `inputs`, then those of `fresh`."""
        self.aliases: list[tuple[int, int]] = []
        """(register, register) of arguments that are overwritten: the new value and the old one."""
        self.puts: list[Rebind] = []
        """Tensors that get the buffer of a register."""
        self.reached: list[tuple[int, ref[Tensor]]] = []
        """(owner, guard) of the guards that have to be at hand."""
        self.only: Spares | None = None
        """Where the one leaf comes from that is returned, if arguments are read, it is written, and that is all."""
        self.all_slots: tuple[int, ...] = ()
        """With `only`: those of all arguments, -1 for one that is not read, then its own."""
        keys, _, self.training, self.grad_enabled, _ = capture.key
        self.kinds = _kinds(keys, capture)
        self.around: tuple = ()
        self.settings: Config | None = None

    def expect(self, around: tuple, settings: Config) -> None:
        """Lets `call` answer with these very objects in force. They go with the key of the capture."""
        self.around, self.settings = around, settings

    def call(self, args: tuple, around: tuple, settings: Config) -> Any:
        """`replay` where the arguments are plain Tensors like those of the capture; else MISS with nothing done."""
        kinds = self.kinds
        if kinds is None or len(args) != len(kinds) or settings is not self.settings or around is not self.around or \
                Base.training is not self.training or Base.grad_enabled is not self.grad_enabled:
            return MISS
        buffers, addresses, others = [], [], False
        for t, (shape, dtype, device, requires_grad, no_grad, captured) in zip(args, kinds):  # noqa: B905 (costs time)
            if type(t) is not Tensor:
                return MISS
            node = t._node
            if node.shape != shape or node.dtype is not dtype or node.device != device or \
                    t._requires_grad is not requires_grad or (t._grad is None) is not no_grad:
                return MISS
            before = captured()
            if before is not t:
                if before is not None:
                    return MISS
                others = True
            buffer = node.storage
            if buffer is None:
                return MISS
            buffers.append(buffer)  # holds it: an assign elsewhere does not overwrite it meanwhile
            addresses.append(buffer.address or address_of(buffer))
        if others and len({*args}) < len(args):
            return MISS
        if self.only is None:
            return self.replay(args, _NOTHING)
        if self.guards and not self._holds(args):
            return MISS
        made, step = self.only.take(), self.step
        addresses.append(made.storage.address)
        self.prepared.run_patched(self.all_slots, addresses, step.numbers, step.dims, step.highest, settings.threads)
        return Tensor._over(made)

    def replay(self, tensors: Sequence[Tensor], named: dict[str, int]) -> Any:
        """The result for these arguments and values of Variables, or MISS with nothing done."""
        owners = tensors
        if self.guards:
            if not self._holds(tensors):
                return MISS
            if self.reached:
                owners = [*tensors, *self.guards]  # type: ignore[list-item]
                for k, guard in self.reached:
                    owners[k] = guard()  # type: ignore[index,assignment]
        registers: list[Any] = [None] * self.size
        addresses = []
        for r, owner, grad, overwritten in self.inputs:
            t: Any = owners[owner]._grad if grad else owners[owner]
            buffer = t._node.storage
            if buffer is None or overwritten and held_by_others(t, 1):
                return MISS
            addresses.append(buffer.address or address_of(buffer))
            if overwritten:
                buffer.version += 1
            registers[r] = buffer
        step, numbers, dims = self.step, self.step.numbers, self.step.dims
        if dims:
            dims = step.dims_of(named)
            if not self.prepared.runs_with(dims):
                return MISS
        for r, spares, is_output in self.fresh:
            node = spares.take_again(registers) if spares.donated else spares.take()
            addresses.append(node.storage.address)
            registers[r] = node if is_output else node.storage
        if step.counters or step.keys:
            numbers = step.numbers_of(Entry(random.advance(self.drawn), random.seed()[0], dims))
        self.prepared.run_patched(self.slots, addresses, numbers, dims, step.highest)
        for r, old in self.aliases:
            registers[r] = registers[old]
        if self.puts:
            self._put(owners, registers)
        return rebuild(self.parts, registers, owners, named)

    def _put(self, owners: Sequence[Tensor], registers: list[Any]) -> None:
        for rebind in self.puts:
            owner, grad = rebind.place
            t: Any = owners[owner]._grad if grad else owners[owner]
            give(t, registers[rebind.register], rebind.shape, rebind.dtype, rebind.device)  # type: ignore
        mark = object()
        if changes.mark is self.mark:  # no call between here and the next line, hence no other thread
            self.mark = mark
        changes.mark = mark

    def _holds(self, arguments: Sequence[Tensor]) -> bool:
        """Whether arguments, guards and packed constants are as they were left. Counts what is overwritten."""
        if not self.ids.isdisjoint(map(id, arguments)) or \
                self.packed and not all([p.is_current() for p in self.packed]):
            return False
        mark = changes.mark
        if mark is not self.mark:
            if not self._unchanged():
                return False
            self.mark = mark
        if self.alone and any_packed():
            cells = [*self.nodes, *self.grad_nodes]
            for k in self.alone:
                cells[k]().storage.version += 1  # type: ignore[union-attr]
        return True

    def _unchanged(self) -> bool:
        """Whether all cells are as they were left: looks at every one."""
        self.looks += 1
        guards = [t for t in [r() for r in self.guards] if t is not None]
        if len(guards) != len(self.guards) or [t._requires_grad for t in guards] != self.requires:
            return False
        nodes = [t._node for t in guards]
        grads = [t._grad for t in guards]
        if not all(map(is_, nodes, [r() for r in self.nodes])) or not all(map(is_, grads, [r() for r in self.grads])):
            return False
        if self.grad_nodes:
            leaves = [t for t in grads if t is not None]
            del grads
            more = [t._node for t in leaves]
            # A gradient that somebody else holds keeps its value when its owner gets the next one.
            counts = _counts(leaves)
            given = [leaves[k] for k in self.given]
            if any([counts[k] > _LISTED for k in self.given]) or \
                    any([t._requires_grad or t._grad is not None for t in given]):
                return False
            del given
            if not all(map(is_, more, [r() for r in self.grad_nodes])):
                return False
            nodes += more
            del leaves, more
        buffers = [n.storage for n in nodes]
        if None in buffers:
            return False
        addresses = [b.address for b in buffers]
        for k in self.loose:
            addresses[k] = self.addresses[k]
        if addresses != self.addresses:
            return False
        if self.alone:
            held = _counts(nodes), _counts(buffers)
            return all([max([counts[k] for k in self.alone]) <= _LISTED for counts in held])
        return True


def _kinds(keys: tuple, capture: Capture) -> list[tuple] | None:
    """What `Steady.call` compares each argument with; None where one is no Tensor of known shape, or is there twice."""
    if not all([type(key) is tuple and key[0] == "Tensor" and key[-1] == k and all([type(d) is int for d in key[1]])
                for k, key in enumerate(keys)]):
        return None
    return [(*key[1:-1], type(None) if k in capture.confirmed else capture.inputs[k]) for k, key in enumerate(keys)]


def _gone(_: ref) -> None:
    changed()


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
    cells = [*guards, *(t._grad for t in guards if t._grad is not None)]
    if any(t._node.storage is None or not rebindable(t._node) for t in cells):
        return None
    for t in cells:
        settle_down(t._node)
    symbolic = [s for shape in (*[r.shape for r in capture.rebinds], *[o.shape for o in capture.output.fresh()])
                for s in shape if not isinstance(s, int)]
    if symbolic or any(r.register is None for r in capture.rebinds):
        return None
    steady = Steady(capture, step, step.prepared, guards)
    numbers = {(count + k, False): k for k in range(len(guards))}
    with_grad = [k for k, t in enumerate(guards) if t._grad is not None]
    numbers.update({(count + k, True): len(guards) + i for i, k in enumerate(with_grad)})
    return steady if _Sorter(steady, capture, step, numbers, owners).sort() else None


class _Sorter:
    """Sorts slots, registers and rebinds by who provides their buffers. `cells` are the numbers of cells by place."""

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
        r, place, cell = rebind.register, rebind.place, self.cells.get(rebind.place)
        assert r is not None
        if self._is_argument(rebind):
            return True
        slot = self.made.get(r)
        if cell is None or slot is None:
            self.steady.puts.append(rebind)
            self.moving.add(place)
            return place[0] < len(self.capture.inputs) and not rebind.fresh if cell is None else place[1]
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

    def _is_argument(self, rebind: Rebind) -> bool:
        """Whether a gradient is an argument of the capture, which lives, so that each replay has it as an argument."""
        owner, grad = rebind.place
        k, of_argument = self.places.get(rebind.register, (-1, True))  # type: ignore[arg-type]
        return grad and not rebind.fresh and not of_argument and 0 <= k < len(self.capture.inputs) and \
            k not in self.capture.confirmed and self.owners[owner]._grad is self.owners[k] is self.capture.inputs[k]()

    def _fresh(self, r: int, slot: int) -> None:
        nbytes = number(self.step.plan.sizes[slot], self.step.dims)
        outputs = [o for o in self.capture.output.fresh() if o.register == r]
        is_output = len(outputs) == self.uses[r] == 1
        shape, dtype = (outputs[0].shape, outputs[0].dtype) if is_output else ((nbytes,), uint8)
        assert dtype is not None
        spares = Spares(self.step.plan.device, nbytes, shape, dtype, is_output and self.capture.donate)
        self.steady.fresh.append((r, spares, is_output))
        self.steady.slots += (slot,)
        self.known.add(r)

    def _finish(self) -> None:
        """Notes which guards a replay needs, and whether one new leaf is all that it returns."""
        steady, count = self.steady, len(self.capture.inputs)
        places = [(owner, grad) for _, owner, grad, _ in steady.inputs] + [r.place for r in steady.puts]
        places += [o.place for o in self.capture.output.same() if o.place is not None]
        first = len(steady.guards)
        steady.given = sorted({k - first for k in (*steady.alone, *steady.loose) if k >= first})
        steady.reached = [(owner, steady.guards[owner - count])
                          for owner in dict.fromkeys(owner for owner, _ in places) if owner >= count]
        alone = len(steady.fresh) == 1 and steady.fresh[0][2] and type(self.capture.output.structure) is Output
        other = steady.puts or steady.aliases or self.step.dims or self.step.counters or self.step.keys
        plain = all([k < count and not grad and not over for _, k, grad, over in steady.inputs])
        if alone and plain and not other and not self.capture.donate:
            steady.only = steady.fresh[0][1]
            read = {owner: slot for (_, owner, _, _), slot in zip(steady.inputs, steady.slots, strict=False)}
            steady.all_slots = (*(read.get(k, -1) for k in range(count)), steady.slots[-1])

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
