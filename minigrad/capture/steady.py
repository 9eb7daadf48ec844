"""A replay when nothing but the arguments has changed since the last one: conditions are checked list by list.

After a replay of one plan, a capture remembers which Nodes, gradients and addresses it left behind. If the next call
finds them all in place and held by nobody else, then the prepared plan is right as it stands but for the arguments and
the outputs: nothing is journaled, allocated or rebound. Anything else is left to `Capture.replay`. While no Tensor that
was there before was changed or looked at (`handles.changes`), none of these conditions needs to be checked.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad import random
from minigrad.capture.arguments import Output, Place, Plain, rebuild
from minigrad.capture.constants import any_derived
from minigrad.capture.journal import Rebind, giving, held_by_others, rebindable
from minigrad.capture.recorder import Entry, PlanStep
from minigrad.capture.surroundings import Surroundings
from minigrad.config import Config, override
from minigrad.dtype import uint8
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.plan import number
from minigrad.engine.prepared import PreparedPlan
from minigrad.engine.storage import Spares, settle_down
from minigrad.errors import present
from minigrad.handles import Changes, changes
from minigrad.mixins.memory import datas, pass_on
from minigrad.mixins.modes import modes
from minigrad.ops.kinds import type_of
from minigrad.ownership import held_by_at_most
from minigrad.runtime.host import address_of
from minigrad.stores import Store, store
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.capture.replay import Capture


MISS = object()
"""The result of a replay that found something not as the last one left it."""
_NOTHING: dict[str, int] = {}


class Steady:
    """The Nodes, gradients and addresses that one replay left behind, for the next. Made by `steady_after`.

    A cell is a guarded Tensor or its gradient: guards first, then the gradients that there are. Owners are the
    arguments, then the guards. While `changes.mark` stays `mark`, nothing has happened to any cell.
    """

    def __init__(self, capture: Capture, step: PlanStep, prepared: PreparedPlan, guards: list[Tensor],
                 addresses: list[int]):
        self.step, self.prepared = step, prepared
        self.size, self.drawn, self.parts = capture.recording.size, capture.drawn, capture.output
        self.derived = [derived for _, _, derived in capture.derived]
        self.guards = [ref(t, _gone) for t in guards]
        self.mark: object = None
        self.looks = 0
        self.ids = frozenset(map(id, guards))
        self.requires = [t.needs_grad for t in guards]
        self.nodes = [ref(t.node) for t in guards]
        self.grads: list[Callable[[], Any]] = [type(None) if t.kept_grad is None else ref(t.kept_grad) for t in guards]
        leaves = [t.kept_grad for t in guards if t.kept_grad is not None]
        self.grad_nodes = [ref(g.node) for g in leaves]
        self.addresses = addresses
        self.given: list[int] = []
        """The numbers of the gradients that get a value at each replay."""
        self.loose: list[int] = []
        """Cells whose buffer changes from replay to replay."""
        self.alone: list[int] = []
        """Cells that are overwritten: nobody else may hold Node or buffer."""
        self.inputs: list[tuple[int, int, bool, bool]] = []
        """(register, owner, True where its gradient is meant, True where it is overwritten) of the Tensors that are
        looked up at each replay: arguments and loose cells."""
        self.fresh: list[tuple[int, Spares, bool]] = []
        """(register, leaves, True where a leaf is itself an output's Node) of the values that get memory at each
        replay."""
        self.slots: tuple[int, ...] = ()
        """Those of `inputs`, then those of `fresh`."""
        self.aliases: list[tuple[int, int]] = []
        """(register, register) of arguments that are overwritten: the new value and the old one."""
        self.puts: list[Rebind] = []
        """Tensors that get the buffer of a register."""
        self.reached: list[tuple[int, ref[Tensor]]] = []
        """(owner, guard) of the guards that have to be at hand."""
        self.makers: list[Spares] = []
        """Makers of the leaves that are returned, in order, if arguments are read, these are written, and that is all;
        `kind` is list or tuple, None for one leaf alone."""
        self.kind: type | None = None
        self.all_slots: tuple[int, ...] = ()
        """With `makers`: those of all arguments, -1 for one that is not read, then theirs."""
        self.plain = Plain(capture.key[0], capture.inputs, capture.confirmed)
        self.uses = 0
        """The number of calls that were answered since it was last asked for."""
        self.over = False
        """True once a later replay has left something else behind, and other addresses in the plan's table."""
        self.around: Surroundings | None = None
        """The surroundings of the function, once `call` may answer: while they, the mode and the settings are these."""

    def expect(self, around: Surroundings, keys: tuple, settings: Config) -> None:
        """Lets `call` answer while these very objects are in force. They go with the key of the capture."""
        self.around = around if self.plain.fits else None
        self.keys, self.override, self.mode, self.threads = keys, override(), modes.now, settings.threads

    def call(self, args: tuple) -> Any:
        """`replay` where the arguments are plain Tensors like those of the capture; else MISS with nothing done."""
        around = self.around
        if around is None or override() is not self.override or modes.now is not self.mode or observers or dry_runs or \
                around.keys is not self.keys or not around.same():
            return MISS
        plain, addresses = self.plain, list[int]()
        tensors = plain.flat(args)
        if tensors is None:
            return MISS
        held = plain.find(tensors, addresses)  # they stay for as long as it runs
        if held is None:
            return MISS
        if not self.makers:
            return self.replay(tensors, _NOTHING, self.threads)
        if (self.guards or self.derived) and not self.holds(tensors):
            return MISS
        step, made = self.step, list(map(Spares.take, self.makers))
        for node in made:
            addresses.append(node.storage.address)
        self.prepared.run_patched(self.all_slots, addresses, step.numbers, step.dims, step.highest, self.threads)
        self.uses += 1
        results = map(Tensor.over, made)
        return next(results) if self.kind is None else self.kind(results)

    def replay(self, tensors: Sequence[Tensor], named: dict[str, int], threads: int) -> Any:
        """The result for these arguments and values of Variables on so many threads, or MISS with nothing done."""
        owners: Sequence[Any] = tensors
        if self.guards:
            if not self.holds(tensors):
                return MISS
            if self.reached:
                found: list[Any] = [*tensors, *self.guards]
                for k, guard in self.reached:
                    found[k] = guard()
                owners = found
        registers: list[Any] = [None] * self.size
        addresses = []
        for r, owner, grad, overwritten in self.inputs:
            t: Any = owners[owner].kept_grad if grad else owners[owner]
            buffer = t.node.storage
            if buffer is None or (overwritten and held_by_others(t, 1)):
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
        for r, old in self.aliases:
            registers[r] = registers[old]
        run = partial(self.prepared.run_patched, self.slots, addresses, numbers, dims, step.highest, threads)
        if self.puts:
            self._run_and_put(run, owners, registers)
        else:
            run()
        self.uses += 1
        return rebuild(self.parts, registers, owners, named)

    def _run_and_put(self, run: Callable[[list[Store]], None], owners: Sequence[Tensor], registers: list[Any]) -> None:
        """Runs, and gives Tensors the buffers of their registers at once with the last launch."""
        stores, given = list[Store](), list[Tensor]()
        for rebind in self.puts:
            owner, grad = rebind.place
            t: Any = owners[owner].kept_grad if grad else owners[owner]
            given.append(t)
            stores += giving(t, registers[rebind.register], rebind.type)  # type: ignore[index]
        before, mark = list[object](), object()
        run([*stores, partial(before.extend, map(getattr, [changes], ["mark"])), store(changes, "mark", mark)])
        if before[0] is self.mark:  # what has changed since is our doing
            self.mark = mark
        if datas:
            for t in given:
                pass_on(t)

    def holds(self, arguments: Sequence[Tensor]) -> bool:
        """True where arguments, guards and constants are as they were left. Counts the versions of buffers that are
        overwritten."""
        if self.over or not self.ids.isdisjoint(map(id, arguments)) or \
                (self.derived and not all([d.is_current() for d in self.derived])):
            return False
        mark = changes.mark
        if mark is not self.mark:
            if not self._unchanged():
                return False
            self.mark = mark
        if self.alone and any_derived():
            cells = [*self.nodes, *self.grad_nodes]
            for k in self.alone:
                node: Any = cells[k]()
                node.storage.version += 1
        return True

    def _unchanged(self) -> bool:
        """True where all cells are as they were left: looks at every one."""
        self.looks += 1
        guards = [t for t in [r() for r in self.guards] if t is not None]
        if len(guards) != len(self.guards) or [t.needs_grad for t in guards] != self.requires:
            return False
        nodes = [t.node for t in guards]
        grads = [t.kept_grad for t in guards]
        if not all(map(is_, nodes, [r() for r in self.nodes])) or not all(map(is_, grads, [r() for r in self.grads])):
            return False
        if self.grad_nodes:
            leaves = [t for t in grads if t is not None]
            if len(leaves) < len(self.grad_nodes):  # one is None now, as what refers to it says since it is gone
                return False
            del grads
            more = [t.node for t in leaves]
            # A gradient that somebody else holds keeps its value when its owner gets the next one.
            given = [leaves[k] for k in self.given]
            if (given and not held_by_at_most(2, given)) or \
                    any([t.needs_grad or t.kept_grad is not None for t in given]):
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
            nodes, buffers = [nodes[k] for k in self.alone], [buffers[k] for k in self.alone]
            return held_by_at_most(1, nodes) and held_by_at_most(1, buffers)
        return True


def _gone(_: ref, changes: Changes = changes) -> None:
    """Reports a change as a guard dies, perhaps with the interpreter, when this module's names are None already."""
    changes.mark = object()


# The making of it

def steady_after(capture: Capture, owners: list[Tensor]) -> Steady | None:
    """The steady state that the replay that just ended left; None where it does not leave everything in place."""
    steps = capture.recording.steps
    step = steps[0] if len(steps) == 1 else None
    if not isinstance(step, PlanStep) or step.prepared is None or not step.prepared.has_run:
        return None
    if capture.shared and capture.guards:
        return None
    guards = owners[len(capture.inputs):]
    cells = [*guards, *(t.kept_grad for t in guards if t.kept_grad is not None)]
    nodes = [t.node for t in cells]
    buffers = [n.storage for n in nodes]
    if None in buffers or not all(map(rebindable, nodes)):
        return None
    addresses = list(map(address_of, buffers))
    del nodes, buffers
    for t in cells:
        settle_down(t.node)
    types = [v.type for v in capture.rebinds] + [o.type for o in capture.output.fresh()]
    if any(what.symbolic for what in types) or any(r.register is None for r in capture.rebinds):
        return None
    steady = Steady(capture, step, step.prepared, guards, addresses)
    return steady if _Sorter(steady, capture, owners).sort() else None


class _Sorter:
    """Sorts slots, registers and rebinds by the origin of their buffers. `cells` are the numbers of cells by place."""

    def __init__(self, steady: Steady, capture: Capture, owners: list[Tensor]):
        self.steady, self.capture, self.owners = steady, capture, owners
        self.step = step = steady.step
        count = len(capture.inputs)
        places = [(k, False) for k in range(count, len(owners))]
        places += [(k, True) for k in range(count, len(owners)) if owners[k].kept_grad is not None]
        self.cells: dict[Place, int] = {place: cell for cell, place in enumerate(places)}
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
