"""A recording of a captured function: a list of steps over registers, which a replay does again.

A register stands for one buffer at one time: what a Tensor held at entry (a place), data that was uploaded while the
function ran (a constant), or the result of a step. Recording maps buffers to registers; a replay fills the places and
constants in and runs the steps, which fill in the rest. Nothing here knows a Tensor.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import Any
from weakref import ref

from minigrad.capture.arguments import Place
from minigrad.engine.observe import Observer, Ran, call_of_user, observers
from minigrad.engine.plan import ExecutionPlan
from minigrad.engine.prepared import PreparedPlan, prepare, run_as
from minigrad.engine.transfer import cloned
from minigrad.errors import CaptureError
from minigrad.runtime.device import Buffer
from minigrad.stores import Store, at_once, store

Registers = list[Any]


@dataclass(slots=True)
class Entry:
    """The inputs of a replay besides buffers: the random state and the values of symbolic dims."""

    counter: int
    seed: int
    dims: dict[str, int]


@dataclass(slots=True)
class PlanStep:
    """A run of a plan. `leaves` are (leaf position, register), `made` (slot, register)."""

    plan: ExecutionPlan
    leaves: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...]
    overwritten: tuple[int, ...]
    numbers: dict[int, float]
    counters: tuple[tuple[int, int], ...]  # position, offset from the counter at entry
    keys: tuple[int, ...]
    dims: dict[str, int]
    highest: dict[str, int]
    last_use: tuple[int, ...] = ()
    prepared: PreparedPlan | None = None
    tried: bool = False

    def numbers_of(self, entry: Entry) -> dict[int, float]:
        """The lifted scalars by position, those of random numbers as of this replay."""
        if not self.counters and not self.keys:
            return self.numbers
        numbers = self.numbers | {k: entry.counter + offset for k, offset in self.counters}
        for k in self.keys:
            numbers[k] = entry.seed
        return numbers

    def dims_of(self, dims: dict[str, int]) -> dict[str, int]:
        """The symbolic dims of the plan, with the values of this replay where it has them."""
        return {name: dims.get(name, value) for name, value in self.dims.items()} if self.dims else self.dims

    def run(self, registers: Registers, entry: Entry, also: Callable[[], list[Store]]) -> None:
        """Runs the plan; its results are in their registers when `also` is asked for stores to make with it."""
        numbers, dims = self.numbers_of(entry), self.dims_of(entry.dims)
        leaves = {k: registers[r] for k, r in self.leaves}
        if not self.tried:
            self.prepared, self.tried = prepare(self.plan, numbers, dims), True

        def hand_out(buffers: list[Any]) -> list[Store]:
            found = [store(registers[r], "version", registers[r].version + 1) for r in self.overwritten]
            for slot, r in self.made:
                registers[r] = buffers[slot]
            return [*found, *also()]

        run_as(self.prepared, self.plan, leaves, numbers, dims, self.highest, hand_out)

    def reading(self, plan: ExecutionPlan, leaves: list[tuple[int, int]]) -> PlanStep:
        """The same step by another plan, which has these leaves besides."""
        return replace(self, plan=plan, leaves=(*self.leaves, *leaves), prepared=None, tried=False)

    def reads(self) -> tuple[int, ...]:
        return tuple([r for _, r in self.leaves])

    def signature(self) -> tuple:
        return id(self.plan), self.leaves, self.made, tuple(self.dims)


@dataclass(slots=True)
class CopyStep:
    """A copy of the bytes of a register into a new buffer, perhaps on another device."""

    source: int
    target: int
    device: str
    overwritten: tuple[int, ...] = ()
    last_use: tuple[int, ...] = ()

    def run(self, registers: Registers, entry: Entry, also: Callable[[], list[Store]]) -> None:
        """Copies; then makes the stores that `also` gives."""
        registers[self.target] = cloned(registers[self.source], self.device)
        at_once(also())

    def reads(self) -> tuple[int, ...]:
        return (self.source,)

    def signature(self) -> tuple:
        return self.source, self.target, self.device


@dataclass(slots=True)
class Recording:
    """The steps of one capture. `places` and `constants` are the registers to fill in before the first one; a constant
    without a buffer is made of others (capture.constants)."""

    steps: list[PlanStep | CopyStep] = field(default_factory=list)
    size: int = 0
    places: dict[int, Place] = field(default_factory=dict)
    constants: dict[int, Buffer | None] = field(default_factory=dict)

    def overwritten(self) -> set[int]:
        """Registers whose buffers hold something else after the replay."""
        return {r for step in self.steps for r in step.overwritten}

    def finish(self, kept: set[int]) -> None:
        """Decides when a replay lets go of each intermediate buffer; registers in `kept` are needed after the last
        step."""
        seen = kept | set(self.places) | set(self.constants)
        for step in reversed(self.steps):
            fresh = [r for r in dict.fromkeys((*step.reads(), *written(step))) if r not in seen]
            step.last_use = tuple(fresh)
            seen.update(fresh)

    def replay(self, registers: Registers, entry: Entry, finish: Callable[[], list[Store]]) -> None:
        """Runs all steps on registers in which places and constants are filled in; makes the stores that `finish` gives
        at once with the last one. What comes between two steps goes on when all is done, if values that somebody holds
        are overwritten by then."""
        done: list[int] = []
        try:
            self._replay(registers, entry, finish, done)
        except BaseException:
            if len(done) < len(self.steps) and any([step.overwritten for step in self.steps[:len(done)]]):
                self._replay(registers, entry, finish, done)
            raise

    def _replay(self, registers: Registers, entry: Entry, finish: Callable[[], list[Store]], done: list[int]) -> None:
        if not self.steps:
            at_once(finish())
        for k in range(len(done), len(self.steps)):
            last = k == len(self.steps) - 1
            stores: list[Store] = [partial(done.append, k)]
            self.steps[k].run(registers, entry, lambda: [*stores, *finish()] if last else stores)  # noqa: B023
            for r in self.steps[k].last_use:
                registers[r] = None


def written(step: PlanStep | CopyStep) -> tuple[int, ...]:
    return (step.target,) if isinstance(step, CopyStep) else tuple([r for _, r in step.made])


class Recorder(Observer):
    """Records what the engine does in this thread. `places` maps ids of buffers to (weak buffer, place).

    It must not hold the buffers: an assign takes a buffer that somebody else holds for shared, and copies it. Uploaded
    ones are held all the same, because a replay needs their data as it was.
    """

    wants_kernels = True

    def __init__(self, places: dict[int, tuple[ref[Buffer], Place]], counter: int):
        self.recording = Recording()
        self.failure: str | None = None
        self._places, self._counter = places, counter
        self._thread = get_ident()
        self._known: dict[int, tuple[Callable[[], Buffer | None], int]] = {}

    # What happens

    def ran(self, run: Ran) -> None:
        if get_ident() != self._thread:
            return
        schedule = run.plan.schedule
        leaves = {k: self.register(b) for k, b in run.leaves.items()}
        overwritten = tuple([leaves[k] for k in schedule.donated])
        if any(r in self.recording.constants for r in overwritten):
            self.failure = "it overwrites memory that no tensor stands for"
        made: dict[int, int] = {}
        for slot in schedule.outputs:
            leaf = schedule.slots[slot].leaf
            if slot not in made and (leaf is None or leaf in schedule.donated):
                made[slot] = self._new(run.buffers[slot])
        numbers, counters, keys = dict(run.numbers), [], []
        for k in run.numbers:
            role, value = run.graph.nodes[k].params["role"], run.numbers[k]
            if role == "key":
                keys.append(k)
            elif role == "counter" and value >= self._counter:
                counters.append((k, int(value) - self._counter))
            elif role == "counter":
                self.failure = "it computes random numbers again that were drawn before"
        self.recording.steps.append(PlanStep(run.plan, tuple(leaves.items()), tuple(made.items()), overwritten, numbers,
                                             tuple(counters), tuple(keys), dict(run.values), dict(run.highest)))

    def copied(self, source: Buffer, target: Buffer) -> None:
        if get_ident() == self._thread:
            r = self.register(source)
            self.recording.steps.append(CopyStep(r, self._new(target), target.device.name))

    def uploaded(self, buffer: Buffer) -> None:
        if get_ident() == self._thread:
            self._constant(buffer)

    def evaluated(self, device: str) -> None:
        if get_ident() == self._thread:
            self.failure = f"{device} evaluates ops one by one, without plans"

    def asked(self) -> None:
        if get_ident() == self._thread:
            what, where = call_of_user()
            raise CaptureError(f"[jit] expected no value on the host while a function is captured, "
                               f"got {what} at {where}; {advice_for(what)}")

    # Buffers to registers

    def register(self, buffer: Buffer) -> int:
        """The register of a buffer. A buffer that is not known yet was there before, and is taken for a constant."""
        known = self._known.get(id(buffer))
        if known is not None and known[0]() is buffer:
            return known[1]
        place = self.place(buffer)
        if place is None:
            return self._constant(buffer)
        r = self._new(buffer)
        self.recording.places[r] = place
        return r

    def place(self, buffer: Buffer) -> Place | None:
        """The place of the buffer at entry; None for one that was at none."""
        found = self._places.get(id(buffer))
        return found[1] if found is not None and found[0]() is buffer else None

    def touched(self, buffer: Buffer) -> bool:
        """True where some step read or made the buffer."""
        known = self._known.get(id(buffer))
        return known is not None and known[0]() is buffer

    def _new(self, buffer: Buffer) -> int:
        r = self.recording.size
        self.recording.size += 1
        self._known[id(buffer)] = ref(buffer), r
        return r

    def _constant(self, buffer: Buffer) -> int:
        r = self._new(buffer)
        self.recording.constants[r] = buffer
        return r


def capturing() -> bool:
    """True while a function is being captured in this thread."""
    return bool(observers) and any(isinstance(o, Recorder) and o._thread == get_ident() for o in observers)


# Advice for who reads values while a function is captured

_CHOICE = "choose with condition.where(a, b) for any value of the condition, or decide before the call"
_SHAPE = "its result has as many elements as values say: keep the shape, as in mask.where(x, 0), or call it outside"
_SHOW = "return the tensor and show it outside; its repr shows the shape here"
_ADVICE = {
    "__bool__": _CHOICE, "equal": _CHOICE, "allclose": _CHOICE, "is_nonzero": _CHOICE,
    "__getitem__": _SHAPE, "nonzero": _SHAPE, "argwhere": _SHAPE, "masked_select": _SHAPE, "unique": _SHAPE,
    "unique_consecutive": _SHAPE, "bincount": _SHAPE, "where": _SHAPE, "histogram": _SHAPE, "one_hot": _SHAPE,
    "__format__": _SHOW,
    "__int__": "keep it a Tensor: indices, counts of steps and exponents may be one",
    "__index__": "keep it a Tensor: indices and offsets may be one",
    "LBFGS.step": "how far it goes depends on numbers: call step(closure) outside, where the closure may be a captured "
                  "function, or take an optimizer that reads nothing, such as Adam"}


def advice_for(call: str) -> str:
    """Advice for use instead of a call such as 'Tensor.item()'."""
    name = call.removesuffix("()")
    found = _ADVICE.get(name) or _ADVICE.get(name.rpartition(".")[2])
    return found or "return the tensor and read it outside; what the next call needs can stay a Tensor"
