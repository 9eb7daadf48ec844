"""`jit`: run a function once, remember what it made the engine do, and from then on do only that.

    @jit
    def step(x, y):
        loss = model(x).cross_entropy(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

A call with arguments of the same kind (shapes, types, devices, static values) replays; anything else, and any change
of what the function reads besides its arguments, is noticed at entry and captured anew. Python code of the function
does not run in a replay: what depends on data must be an argument, a Tensor, or a bound Variable.
"""
from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad import random
from minigrad.capture.arguments import Arguments, change_of, returned_iterator, tensors_in, transform, unlike
from minigrad.capture.checked import checked_replay
from minigrad.capture.journal import Journal, escaped, settle
from minigrad.capture.recorder import PlanStep, Recorder, capturing
from minigrad.capture.replay import PATIENCE, Capture, without_history
from minigrad.capture.steady import MISS
from minigrad.capture.surroundings import Surroundings
from minigrad.config import Config, bytes_of, config, current
from minigrad.engine.budget import peak_of
from minigrad.engine.observe import dry_runs, observers, observing
from minigrad.engine.plan import ExecutionPlan
from minigrad.errors import MinigradError, quantity
from minigrad.handles import asked, live, rebound
from minigrad.mixins.modes import modes, of_modules, other_modes
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.engine.search import Outcome

MAX_CAPTURES = 8
_one_captures = Lock()
"""Held by the thread that captures. A capture sees what happens to every Tensor, so that there is one at a time."""


class Captures:
    """The captures of one function, or of one method of one object.

    `captures` counts how often the function was captured, `replays` how often that was used; `last_reason` says why the
    last capture was made, or why the function runs eagerly; `memory` what its budget of memory led to, `searched` what
    the search for faster plans found.
    """

    def __init__(self, function: Callable, limit: int, donate: bool, memory: int = 0,
                 search: Callable[..., tuple[Any, Outcome]] | None = None, *, owner: object | None = None):
        self.function, self.limit, self.donate, self.budget, self.search = function, limit, donate, memory, search
        self.searched: Outcome | None = None
        self.captures = 0
        self.memory: str | None = None
        self.last_reason: str | None = None
        self._surroundings = Surroundings(function, owner)
        self.owner = None if owner is None else ref(owner)
        self._kept: list[Capture] = []
        self._eager: set[tuple] = set()
        self._replays = self._since_replay = 0
        self._seen: list[list[tuple[str, Any]]] = []
        self._warned = False

    def call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Replays, captures, or runs the function eagerly."""
        if not kwargs:
            for capture in self._kept:
                steady = capture.steady
                if steady is not None and (result := steady.call(args)) is not MISS:
                    return result
        self._count_uses()
        settings = current()
        if not settings.jit or settings.check_indices or dry_runs or (observers and capturing()):
            return self._run(args, kwargs)
        around = self._surroundings.values()
        if self._surroundings.refusal is not None:
            self._note(f"runs eagerly: {self._surroundings.refusal}")
            return self._run(args, kwargs)
        arguments = Arguments(args, kwargs)
        key = (arguments.keys, around, modes.now, (settings.device, settings.planning))
        if self._eager and key in self._eager:
            return self._run(args, kwargs)
        reason = None
        for capture in self._kept:
            if capture.key != key:
                continue
            result = MISS if observers or settings.jit_check else self._steady(capture, arguments, around, settings)
            if result is not MISS:
                return result
            owners = capture.owners(arguments.tensors)
            if isinstance(owners, str):
                reason = owners
                if capture.dead():
                    self._kept = [c for c in self._kept if c is not capture]
                continue
            self._replays += 1
            self._since_replay = 0
            self._to_front(capture)
            if settings.jit_check:
                return checked_replay(capture, owners, arguments.dims, lambda: self._run(args, kwargs))
            return capture.replay(owners, arguments.dims)
        named = self._named(args, kwargs, arguments, around)
        reason = reason or self._difference(named)
        if len(self._kept) >= self.limit or self._since_replay >= self.limit:
            self._warn(reason)
            return self._run(args, kwargs)
        if not _one_captures.acquire(blocking=False):  # another thread might wait for this one inside of its own
            return self._run(args, kwargs)
        try:
            self._note(reason)
            self._seen = [*self._seen[-self.limit:], named]
            capture_now = functools.partial(self._capture, args, kwargs, arguments, key)
            if self.search is None:
                return capture_now()
            search, self.search = self.search, None
            result, self.searched = search(capture_now, lambda: self._kept)
            self._kept = []  # the next call captures by the plans that were found
            return result
        finally:
            _one_captures.release()

    def _steady(self, capture: Capture, arguments: Arguments, around: tuple, settings: Config) -> Any:
        """A replay of a capture that is as the last one left it, or MISS."""
        steady = capture.steady
        if steady is None or not capture.takes(arguments.tensors):
            return MISS
        result = steady.replay(arguments.tensors, arguments.dims, settings.threads)
        if result is not MISS:
            steady.expect(self._surroundings, around, settings)
            self._to_front(capture)
        return result

    def _run(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs the function itself."""
        if self.budget and current().memory != self.budget:
            with config(memory=self.budget):
                result = self._run(args, kwargs)
                found = tensors_in(result)
                if found:
                    Tensor.realize(*found)
                return result
        return self.function(*args, **kwargs) if self.owner is None else self.function(self.owner(), *args, **kwargs)

    @property
    def replays(self) -> int:
        """The number of calls that were answered by a capture."""
        self._count_uses()
        return self._replays

    def _count_uses(self) -> None:
        """Notes the calls that were answered without a look at anything here."""
        for capture in self._kept:
            steady = capture.steady
            if steady is not None and steady.uses:
                self._replays += steady.uses
                self._since_replay, capture.patience, steady.uses = 0, PATIENCE, 0

    def _to_front(self, capture: Capture) -> None:
        if self._kept and self._kept[0] is not capture:
            self._kept = [capture, *(c for c in self._kept if c is not capture)]

    # Capturing

    def _capture(self, args: tuple, kwargs: dict[str, Any], arguments: Arguments, key: tuple) -> Any:
        settle(list(live()))
        journal = Journal(arguments.tensors)
        first, seed = random.counter(), random.seed()
        recorder = Recorder(journal.places, first)
        rebound[get_ident()], asked[get_ident()] = journal.mine, journal.asked
        called = of_modules.asked[get_ident()] = []
        try:
            with observing(recorder):
                result = self._run(args, kwargs)
                pending = [*tensors_in(result), *journal.changed()]
                if pending:
                    with config(memory=self.budget or current().memory):
                        Tensor.realize(*pending)
        finally:
            del rebound[get_ident()], asked[get_ident()], of_modules.asked[get_ident()]
            switched, of_modules.switched = of_modules.switched, []
        del pending
        failure = recorder.failure
        late = returned_iterator(result)
        if late is not None:
            failure = f"it returns a {type(late).__name__}, which goes on after it; return a list"
        elif random.seed() != seed:
            failure = "it sets the seed of random numbers"
        if failure is not None:
            self._eager.add(key)
            self._note(f"runs eagerly: {failure}")
            return result
        self.captures += 1
        self._since_replay += 1
        if self.budget:
            self._tell_memory([step.plan for step in recorder.recording.steps if isinstance(step, PlanStep)])
        is_new = self._surroundings.has_called(called)
        called.clear()  # what the function has made is gone now
        if is_new:
            key = (key[0], self._surroundings.values(), *key[2:])
            self._seen[-1] = self._named(args, kwargs, arguments, key[1])
        capture = Capture(key, journal, recorder, random.counter() - first, result, self.donate)
        there = journal.alive()
        memo = {id(t): t if id(t) in there else without_history(t) for t in tensors_in(result)}
        result = transform(result, Tensor, lambda t: memo[id(t)])
        if journal.disturbed:
            self._note("not kept: another thread changed a tensor meanwhile")
        elif other_modes(switched):
            self._note("not kept: the mode or a number of a Module changed meanwhile")
        elif escaped(journal, memo.values()):
            self._note("not kept: a tensor made inside lives on outside; return it")
        else:
            self._keep(capture)
        return result

    def _keep(self, capture: Capture) -> None:
        """Adds a capture; it replaces those that do the same."""
        self._kept = [*(old for old in self._kept if not capture.confirm(old)), capture]

    # Words

    def _named(self, args: tuple, kwargs: dict[str, Any], arguments: Arguments, around: tuple) -> list[tuple[str, Any]]:
        names = self._surroundings.names(args, kwargs, self.owner is not None)
        return [*zip(names, arguments.plain_keys(len(args)), strict=True), *around]

    def _difference(self, named: list[tuple[str, Any]]) -> str:
        """A sentence about the difference to the capture that is most like this call."""
        if not self._seen:
            return "first call"
        changes = [[(now, before) for now, before in zip(named, seen, strict=False) if before != now]
                   for seen in reversed(self._seen)]
        least = min(changes, key=lambda found: (len(found), sum(unlike(old[1], new[1]) for new, old in found)))
        if least:
            (name, value), (known, before) = least[0]
            return change_of(name, before if known == name else None, value)
        return "a setting or the number of arguments changed, or an earlier capture did not hold"

    def _note(self, reason: str) -> None:
        self.last_reason = reason
        for observer in observers:
            observer.noted(self._name(), reason)
        if current().debug >= 1:
            print(f"[jit] {self._name()}: {reason}", file=sys.stderr)

    def _tell_memory(self, plans: list[ExecutionPlan]) -> None:
        """Says once what the budget led to."""
        found = [p.schedule.recomputed for p in plans if p.schedule.recomputed is not None]
        most = max(map(peak_of, plans), default=0)
        values, before = sum([r.values for r in found]), max([r.before for r in found], default=most)
        text = f"{most / 1e6:.1f} MB at the peak, within {self.budget / 1e6:.1f} MB"
        if values:
            text += f" and not {before / 1e6:.1f} MB: {quantity(values, 'value')} computed again, "
            text += f"{max([r.work for r in found]):.1%} more arithmetic"
            if self.memory is None:
                print(f"[jit] {self._name()}: {text}", file=sys.stderr)
        self.memory = text

    def _warn(self, reason: str) -> None:
        self.last_reason = f"runs eagerly: {reason}"
        if not self._warned:
            self._warned = True
            warnings.warn(f"[jit] {self._name()} runs eagerly after {quantity(self.captures, 'capture')}: "
                          f"{reason}", RuntimeWarning, stacklevel=4)

    def _name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


class Captured:
    """A function under `jit`, or one bound to an object: what is told of its captures."""

    def own(self) -> Captures:
        """Its captures."""
        raise NotImplementedError

    @property
    def captures(self) -> int:
        return self.own().captures

    @property
    def replays(self) -> int:
        return self.own().replays

    @property
    def last_reason(self) -> str | None:
        return self.own().last_reason

    @property
    def memory(self) -> str | None:
        return self.own().memory

    @property
    def searched(self) -> Outcome | None:
        return self.own().searched


class Jit(Captured):
    """A function under `jit`. As a method of a class, it has captures for each object."""

    def __init__(self, function: Callable, *options: Any):
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._own = Captures(function, *options)
        self._objects: dict[int, tuple[Any, Captures]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._own.call(args, kwargs)

    def own(self) -> Captures:
        return self._own

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        return self if instance is None else Method(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """A copy has captures of its own; a pickle of what a module defines is its name there."""
        found: Any = sys.modules.get(self.__module__)
        for part in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, part, None)
        return self.__qualname__ if found is self else (Jit, (self._function, *self._options))

    def of(self, instance: object) -> Captures:
        """The captures of the method of one object; they go when the object does."""
        key = id(instance)
        found = self._objects.get(key)
        if found is None:
            try:
                weak = ref(instance, lambda _: self._objects.pop(key, None))
            except TypeError:
                raise MinigradError(f"[jit] expected an object that allows weak references, got a "
                                    f"{type(instance).__name__}; add __weakref__ to its __slots__") from None
            found = self._objects[key] = weak, Captures(self._function, *self._options, owner=instance)
        return found[1]


class Method(Captured):
    """A function under `jit` bound to an object."""

    __slots__ = ("_jit", "_instance")

    def __init__(self, jitted: Jit, instance: object):
        self._jit, self._instance = jitted, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jit.of(self._instance).call(args, kwargs)

    def own(self) -> Captures:
        return self._jit.of(self._instance)


def jit(function: Callable | None = None, *, limit: int = MAX_CAPTURES, donate: bool = False,
        memory: int | str | None = None, search: float = 0.0) -> Any:
    """A function that is captured on its first call with arguments of a kind, and replayed afterwards.

    Numbers and strings that it reads by names and constants alone (arguments, closure, globals, `self.rate`,
    `options["rate"]`) are part of the kind, those that your functions, methods and Modules read which it names or calls
    too, and so are the modes of the Modules, and what is in the lists, dictionaries, sets and numpy arrays that those
    names lead to (one that is too large for a look at each call has the function run eagerly). What `getattr` reaches,
    and what other objects hold, stays as it was when the function was captured.

    Returned Tensors carry no history for gradients: backward belongs inside. At most `limit` captures are kept; further
    kinds of arguments run eagerly, with a warning. Reading a Tensor's values inside raises CaptureError.

    Results of one call are not touched by the next, unless you `donate` them: then a call may write its results where
    those of an earlier call lie, even while you hold them, though never over what it reads itself. Read or copy donated
    results before calling again; calls from several threads must not share such a function.

    `memory`, such as "2GB", "500 MiB" or a number of bytes, is a budget for what a plan of the function reads, gives
    and needs in between: values of the forward pass are computed again in the backward pass until it fits. A line says
    what that came to, and `memory` of the function has it. Raises BudgetError, before anything is computed, where the
    budget cannot be kept.

    `search` is a time in seconds for which, after the first capture, other plans for its kernels are measured: faster
    ones that give the same bits are kept, also for other processes, which search nothing. `searched` has what it found.
    """
    budget = 0 if memory is None else bytes_of("jit", memory)
    if not isinstance(limit, int) or limit < 0 or not (function is None or callable(function)):
        raise MinigradError(f"[jit] expected a function and a limit of 0 or more, got {function!r} and {limit!r}")
    if any(is_kind(function) for is_kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
        raise MinigradError(f"[jit] expected a function that ends before its results are used, got {function!r}: "
                            "return a list")
    if function is None:
        return functools.partial(jit, limit=limit, donate=donate, memory=memory, search=search)
    if not search:
        return Jit(function, limit, donate, budget)
    from minigrad.capture.searched import search_for  # not before somebody wants one

    return Jit(function, limit, donate, budget, search_for(search))


TinyJit = jit
