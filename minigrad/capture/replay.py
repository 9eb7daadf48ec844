"""One capture of a function: its steps, the conditions under which they hold, and what they do to Tensors."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import ref

from minigrad import random
from minigrad.capture.arguments import Output, Place, rebuild, take_apart, with_dims
from minigrad.capture.constants import MOST_CHANGES, derive_constants, undone
from minigrad.capture.journal import Guard, Journal, giving, held_by_others, reusable_gradient, settle
from minigrad.capture.recorder import Entry, Recorder, Recording
from minigrad.capture.steady import Steady, steady_after
from minigrad.engine.realize import working
from minigrad.engine.storage import leaf_of_type
from minigrad.engine.transfer import cloned
from minigrad.errors import present
from minigrad.handles import changed, changed_by_user, changes
from minigrad.mixins.memory import datas, pass_on, settled
from minigrad.runtime.device import Buffer
from minigrad.stores import Store, store
from minigrad.tensor import Tensor

PATIENCE = 8
"""The number of replays in a row without a steady state that end the search for one."""


class Capture:
    """One recording, the conditions under which it holds, and what it does to Tensors."""

    def __init__(self, key: tuple, journal: Journal, recorder: Recorder, drawn: int, result: Any, donate: bool):
        self.key, self.donate = key, donate
        self.recording: Recording = recorder.recording
        self.inputs = [ref(t) for t in journal.inputs]
        self.drawn = drawn
        self.confirmed: set[int] = set()
        self.steady: Steady | None = None
        self.patience = PATIENCE
        self.rebinds = journal.rebinds(recorder)
        self.output = take_apart(result, self._describer(journal, recorder))
        self._steps = self._signature()
        self.derived = derive_constants(self.recording, self._fixed(journal, recorder))
        self._number(journal)
        kept = {r.register for r in self.rebinds if r.register is not None}
        kept.update(o.register for o in self.output.fresh())
        self.recording.finish(kept)
        over = self.recording.overwritten()
        self.places = [(r, *p) for r, p in self.recording.places.items()]
        self.overwritten = [(r, *p) for r, p in self.recording.places.items() if r in over]
        self.same = list(self._gradients_that_are_arguments())
        """(owner, argument) of the gradients that were arguments before and after. Nothing tells whether the function
        assigned them again, so that they must be those arguments at a replay too."""
        self.constants = [(r, buffer) for r, buffer in self.recording.constants.items() if buffer is not None]

    def _gradients_that_are_arguments(self) -> Iterator[tuple[int, int]]:
        for rebind in self.rebinds:
            if rebind.place[1] and not rebind.fresh and rebind.register is not None:
                argument, of_argument = self.recording.places.get(rebind.register, (len(self.inputs), False))
                if argument < len(self.inputs) and not of_argument:
                    yield rebind.place[0], argument

    def _fixed(self, journal: Journal, recorder: Recorder) -> dict[int, Buffer]:
        """Registers, and their buffers, of Tensors that are no arguments and that the function only reads, and of data
        that it uploads."""
        over, moved = self.recording.overwritten(), {r.place for r in self.rebinds}
        places = {place: buffer for buffer, place in journal.places.values()}
        found = {r: b for r, b in self.recording.constants.items() if b is not None and r not in over}
        for r, place in self.recording.places.items():
            buffer = places[place]() if place in places else None
            if place[0] >= len(journal.inputs) and not place[1] and place not in moved and r not in over and buffer:
                found[r] = buffer
        return found

    def _describer(self, journal: Journal, recorder: Recorder) -> Callable[[Tensor], Output]:
        """A function that describes each returned Tensor: as one that was there before, or as a register."""
        there: dict[int, Place] = {}
        for owner, w in enumerate(journal.watched):
            t = w.tensor()
            if t is not None:
                there.setdefault(id(t), (owner, False))
                if t.kept_grad is not None:
                    there.setdefault(id(t.kept_grad), (owner, True))

        def describe(t: Tensor) -> Output:
            if id(t) in there:
                return Output(there[id(t)], -1, t.node.type)
            return Output(None, recorder.register(_storage_of(t)), t.node.type)

        return describe

    def _number(self, journal: Journal) -> None:
        """Keeps guards for only those Tensors that matter, and numbers these after the arguments."""
        places = self.recording.places
        shared = [group for group in journal.shared.values() if any(p in group for p in places.values())]
        same = [o.place for o in self.output.same() if o.place is not None]
        used = [*places.values(), *(r.place for r in self.rebinds), *same, *(p for g in shared for p in g),
                *journal.looked_at()]
        count = len(journal.inputs)
        numbers = {owner: owner for owner in range(count)}
        self.guards: list[Guard] = []
        for owner in dict.fromkeys(owner for owner, _ in used):
            if owner not in numbers:
                numbers[owner] = count + len(self.guards)
                self.guards.append(journal.watched[owner])
        for r, (owner, grad) in places.items():
            places[r] = (numbers[owner], grad)
        for rebind in self.rebinds:
            rebind.place = (numbers[rebind.place[0]], rebind.place[1])
        for output in self.output.same():
            owner, grad = present(output.place, "[capture] expected the place of a result that was there before")
            output.place = numbers[owner], grad
        self.shared = [[(numbers[o], g) for o, g in group] for group in shared]

    def signature(self) -> tuple:
        """A key that is equal for two captures whose steps take the same buffers from the same places, and put the same
        ones there."""
        count = len(self.inputs)

        def known(owner: int) -> int:
            return owner if owner < count else id(self.guards[owner - count].tensor())

        places = tuple([(r, known(o), g) for r, o, g in self.places])
        return places, tuple([(known(r.place[0]), r.place[1], r.register, r.fresh) for r in self.rebinds]), self._steps

    def _signature(self) -> tuple:
        """The steps as they were recorded, and the constants."""
        return tuple(self.recording.constants), tuple([s.signature() for s in self.recording.steps])

    def confirm(self, other: Capture) -> bool:
        """True where `other` did the same. Arguments in which the two differ were then read as arguments, and by no
        other name."""
        if self.key != other.key or self.signature() != other.signature():
            return False
        different = {k for k, (a, b) in enumerate(zip(self.inputs, other.inputs, strict=True)) if a() is not b()}
        self.confirmed |= other.confirmed | different
        return True

    # Replay

    def dead(self) -> bool:
        """True where it can never hold again."""
        return any(g.tensor() is None for g in self.guards)

    def takes(self, tensors: list[Tensor]) -> bool:
        """True where these arguments may stand for those of the capture: the function was not seen to read the latter
        by another name."""
        for k, captured in enumerate(self.inputs):
            before = captured()
            if before is not tensors[k] and before is not None and k not in self.confirmed:
                return False
        return True

    def owners(self, tensors: list[Tensor]) -> list[Tensor] | str:
        """The Tensors by number if the capture holds for them, else a sentence that says why not."""
        found: list[Any] = list(tensors)
        for guard in self.guards:
            t = guard.tensor()
            broken = guard.broken(t)
            if broken is not None:
                return broken
            found.append(t)
        if tensors and self.guards:
            others = {id(t) for t in found[len(tensors):]}
            if any(id(t) in others for t in tensors):
                return "an argument is also read or changed as another variable"
        if not self.takes(tensors):
            return "an argument of the capture still lives, and might be read as another variable"
        if any([found[owner].kept_grad is not found[argument] for owner, argument in self.same]):
            return "a gradient that was an argument is another tensor"
        for group in self.shared:
            members = [at(found, place) for place in group]
            settle(members)  # a lazy one such as x.contiguous() may yet have the value of another
            buffers = [t.node.storage for t in members]
            if any(b is None or b is not buffers[0] for b in buffers):
                return "tensors that had one value have two"
        return found

    def replay(self, owners: list[Tensor], dims: dict[str, int]) -> Any:
        """Does the steps again on the buffers that the owners have now."""
        with working:
            return self._replay(owners, dims)

    def _replay(self, owners: list[Tensor], dims: dict[str, int]) -> Any:
        if self.steady is not None:
            self.steady.over, self.steady = True, None
        registers: list[Any] = [None] * self.recording.size
        found: list[Any] = [owners[o].kept_grad if grad else owners[o] for _, o, grad in self.places]
        lazy = [t for t in found if t.node.storage is None]
        if lazy:
            settle(lazy)
        del lazy
        for (r, _, _), t in zip(self.places, found, strict=True):
            registers[r] = _storage_of(t)
        for r, buffer in self.constants:
            registers[r] = buffer
        for step, before, derived in list(self.derived):
            derived.refresh(registers)
            if derived.changes > MOST_CHANGES and any(d[0] is step for d in self.derived):
                undone(self.recording, step, before)
                self.derived = [d for d in self.derived if d[0] is not step]
        for r, owner, grad in self.overwritten:
            if held_by_others(at(owners, (owner, grad)), 1):
                registers[r] = cloned(registers[r])
        counter = random.advance(self.drawn) if self.drawn else 0
        self.recording.replay(registers, Entry(counter, random.seed()[0], dims),
                              partial(self._finish, owners, registers, dims))
        for rebind in self.rebinds:
            owner, grad = rebind.place
            if grad and (rebind.register is None or rebind.fresh):
                changed_by_user(owners[owner])
            elif datas:
                pass_on(at(owners, rebind.place))
        result = rebuild(self.output, registers, owners, dims)
        del registers
        self._settle(owners)
        return result

    def _settle(self, owners: list[Tensor]) -> None:
        """Makes a steady state of what this replay left, where the next one is likely to find it so."""
        if self.patience > 0 and not isinstance(self.owners(owners[:len(self.inputs)]), str):
            self.steady = steady_after(self, owners)
        self.patience -= 1

    def _finish(self, owners: list[Tensor], registers: list[Any], dims: dict[str, int]) -> list[Store]:
        """The stores by which a replay changes Tensors."""
        found: list[Store] = []
        for rebind in self.rebinds:
            owner = owners[rebind.place[0]]
            if rebind.register is None:
                found.append(store(owner, "kept_grad", None))
                continue
            buffer, what = registers[rebind.register], with_dims(rebind.type, dims)
            if rebind.fresh and not reusable_gradient(owner):
                found.append(store(owner, "kept_grad", Tensor.over(leaf_of_type(what, buffer))))
            else:
                found += giving(at(owners, rebind.place), buffer, what)
        return [*found, store(changes, "mark", object())] if found else []


def _storage_of(t: Tensor) -> Any:
    """The buffer of a Tensor that was computed just now, and that another thread may have assigned to since."""
    return t.node.storage or settled(t).storage


def without_history(t: Tensor) -> Tensor:
    """Another handle over the same buffer, which gradients do not go through."""
    node = t.node
    changed()  # another handle over the same buffer
    return Tensor.over(leaf_of_type(node.type, node.storage))


def at(owners: list[Tensor], place: Place) -> Tensor:
    """The tensor, or its gradient."""
    found = owners[place[0]].kept_grad if place[1] else owners[place[0]]
    return present(found, "[replay] expected a gradient where the captured step found one")
