"""A replay when nothing but the arguments has changed since the last one: conditions are checked list by list.

After a replay of one plan, a capture remembers which Nodes, gradients and addresses it left behind. If the next call
finds them all in place and held by nobody else, then the prepared plan is right as it stands but for the arguments and
the outputs: nothing is journaled, allocated or rebound. Anything else is left to `Capture.replay`. While no Tensor that
was there before was changed or looked at (`handles.changes`), none of these conditions needs to be checked.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad import random
from minigrad.capture.arguments import rebuild
from minigrad.capture.constants import any_derived
from minigrad.capture.journal import Rebind, give, held_by_others
from minigrad.capture.recorder import Entry, PlanStep
from minigrad.capture.surroundings import Surroundings
from minigrad.config import Config, override
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.prepared import PreparedPlan
from minigrad.engine.storage import Spares
from minigrad.handles import Changes, changes
from minigrad.mixins.memory import datas, pass_on
from minigrad.mixins.modes import modes
from minigrad.ops.kinds import Type, same_type, type_of
from minigrad.ownership import held_by_at_most
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import address_of
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.capture.replay import Capture


MISS = object()
"""The result of a replay that found something not as the last one left it."""
Kind = tuple[Type, bool, bool, Callable[[], Any] | None]
"""The kind of an argument: type, True if it requires a gradient, True if it has none, and a function that gives the
Tensor that it was in the capture (None once any other will do)."""
_NOTHING: dict[str, int] = {}


class Steady:
    """The Nodes, gradients and addresses that one replay left behind, for the next. Made by `settled.steady_after`.

    A cell is a guarded Tensor or its gradient: guards first, then the gradients that there are. Owners are the
    arguments, then the guards. While `changes.mark` stays `mark`, nothing has happened to any cell.
    """

    def __init__(self, capture: Capture, step: PlanStep, prepared: PreparedPlan, guards: list[Tensor]):
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
        self.addresses = [address_of(t.node.storage) for t in (*guards, *leaves)]
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
        flat, self.lengths = _lengths_of(capture.key[0])
        self.kinds = _kinds(flat, capture)
        self.count = len(flat)
        self.listed = max(self.lengths, default=-1) >= 0
        self.uses = 0
        """The number of calls that were answered since it was last asked for."""
        self.over = False
        """True once a later replay has left something else behind, and other addresses in the plan's table."""
        self.around: Surroundings | None = None
        """The surroundings of the function, once `call` may answer: while they, the mode and the settings are these."""

    def expect(self, around: Surroundings, keys: tuple, settings: Config) -> None:
        """Lets `call` answer while these very objects are in force. They go with the key of the capture."""
        self.around = around if self.kinds is not None else None
        self.keys, self.override, self.mode, self.threads = keys, override(), modes.now, settings.threads

    def call(self, args: tuple) -> Any:
        """`replay` where the arguments are plain Tensors like those of the capture; else MISS with nothing done."""
        around = self.around
        if around is None or override() is not self.override or modes.now is not self.mode or observers or dry_runs or \
                around.keys is not self.keys or not around.same():
            return MISS
        tensors: Any = _taken_apart(args, self.lengths) if self.listed else args
        if tensors is None or len(tensors) != self.count:
            return MISS
        addresses: list[int] = []
        held = self._find(tensors, addresses)
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

    def _find(self, tensors: Sequence[Any], addresses: list[int]) -> list[Buffer] | None:
        """The values of arguments that fit the capture, None if one does not; their addresses are put into `addresses`.

        Values that are held by others are not overwritten.
        """
        held, others = [], False
        kinds: Any = self.kinds
        for t, (kind, requires_grad, no_grad, captured) in zip(tensors, kinds):  # noqa: B905 (time)
            if type(t) is not Tensor:
                return None
            node = t.node
            if (node.type is not kind and not same_type(node.type, kind)) or t.needs_grad is not requires_grad or \
                    (t.kept_grad is None) is not no_grad:
                return None
            before = None if captured is None else captured()
            if before is not t:
                if before is not None:
                    return None
                others = True
            buffer = node.storage
            if buffer is None:
                return None
            held.append(buffer)
            addresses.append(buffer.address or address_of(buffer))
        return None if others and len({*tensors}) < len(tensors) else held

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
        self.prepared.run_patched(self.slots, addresses, numbers, dims, step.highest, threads)
        for r, old in self.aliases:
            registers[r] = registers[old]
        if self.puts:
            self._put(owners, registers)
        self.uses += 1
        return rebuild(self.parts, registers, owners, named)

    def _put(self, owners: Sequence[Tensor], registers: list[Any]) -> None:
        for rebind in self.puts:
            owner, grad = rebind.place
            t: Any = owners[owner].kept_grad if grad else owners[owner]
            give(t, registers[rebind.register], rebind.type)  # type: ignore[index]
            if datas:
                pass_on(t)
        mark = object()
        if changes.mark is self.mark:  # no call between here and the next line, hence no other thread
            self.mark = mark
        changes.mark = mark

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


def _kinds(keys: tuple, capture: Capture) -> list[Kind] | None:
    """The kinds with which `Steady.call` compares the arguments; None where one is no Tensor of known shape, or is
    there twice."""
    if not all([type(key) is tuple and key[0] == "Tensor" and key[-1] == k and all([type(d) is int for d in key[1]])
                for k, key in enumerate(keys)]):
        return None
    return [(type_of(*key[1:4]), *key[4:-1], None if k in capture.confirmed else capture.inputs[k])
            for k, key in enumerate(keys)]


def _lengths_of(keys: tuple) -> tuple[tuple, tuple[int, ...]]:
    """(keys of all Tensors, number of them in each argument, -1 for one that is no list) from the key of arguments."""
    flat: list[Any] = []
    lengths = []
    for key in keys:
        if type(key) is tuple and len(key) == 2 and key[0] == "list" and type(key[1]) is tuple:
            flat += key[1]
            lengths.append(len(key[1]))
        else:
            flat.append(key)
            lengths.append(-1)
    return tuple(flat), tuple(lengths)


def _taken_apart(args: tuple, lengths: tuple[int, ...]) -> list[Any] | None:
    """The elements of `args` and of the lists among them, in order; None where they are other ones than `lengths`
    says."""
    if len(args) != len(lengths):
        return None
    flat: list[Any] = []
    for value, length in zip(args, lengths, strict=True):
        if length < 0:
            flat.append(value)
        elif type(value) is list and len(value) == length:
            flat += value
        else:
            return None
    return flat


def _gone(_: ref, changes: Changes = changes) -> None:
    """Reports a change as a guard dies, perhaps with the interpreter, when this module's names are None already."""
    changes.mark = object()
