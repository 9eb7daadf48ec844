"""The shortest replay: a call that reads its arguments, and perhaps constants, and returns one new Tensor.

All that such a call has to make sure of is in one function, made for the capture: what it needs are variables of its
closure, which Python reads faster than attributes. It calls few others, so that the product of two small matrices takes
half as long as by way of methods.
"""
from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad.capture.arguments import Surroundings
from minigrad.config import Config, override
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.stats import stats
from minigrad.engine.storage import IN_A_LIST
from minigrad.handles import forget, handles
from minigrad.mixins.modes import modes
from minigrad.ops.kinds import Type
from minigrad.runtime.host import address_of
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.capture.steady import Steady
    from minigrad.engine.prepared import QuickRun

MISS = object()
"""What a replay returns when something is not as the last one left it."""

Kind = tuple[Type, bool, bool, Callable[[], Any] | None]
"""Of an argument: type, whether it requires a gradient, whether it has none, and what gives the Tensor that it was in
the capture (None once any other will do)."""
Call = Callable[[tuple, object | None], Any]
"""Of arguments, and the object whose method is called if any."""


class Expected:
    """What surrounds a function, and the settings, when a capture holds: these very objects."""

    __slots__ = ("same", "override", "mode", "threads")

    def __init__(self, surroundings: Surroundings, around: tuple, settings: Config):
        self.same = surroundings.watch(around)
        self.override, self.threads = override(), settings.threads
        self.mode = modes.now

    def found(self, owner: object | None) -> bool:
        """Whether all of it is in force, and nobody watches. `owner` is the object whose method is called, if any."""
        return override() is self.override and modes.now is self.mode and not observers and not dry_runs and \
            self.same(owner)


def shortcut(steady: Steady, expected: Expected) -> Call | None:
    """The replay of a `Steady` that has `only` one leaf to make, as a function that looks at everything itself.

    It gives the result for arguments like those of the capture; else MISS with nothing done. None where the plan is
    not one for the CPU.
    """
    kinds, spares, guards = steady.kinds, steady.only, steady.guards
    quick = steady.prepared.quick(steady.all_slots)
    if kinds is None or spares is None or quick is None:
        return None
    launch = launcher(steady, quick, expected.threads)
    count, nodes, take, holds = len(kinds), spares.nodes, spares.take, steady.holds
    many = count != 2
    same, overridden, mode, thread = expected.same, expected.override, expected.mode, modes
    miss, alone, new, tensor, place = MISS, IN_A_LIST, object.__new__, Tensor, address_of

    def call(args: tuple, owner: object | None) -> Any:
        if len(args) != count:
            return miss
        held, addresses, others = [], [], False  # values that are held are not overwritten
        for t, (kind, requires_grad, no_grad, captured) in zip(args, kinds):  # noqa: B905 (time)
            if type(t) is not tensor:
                return miss
            node = t._node
            if node.type is not kind and not same_type(node.type, kind) or t._requires_grad is not requires_grad or \
                    (t._grad is None) is not no_grad or (buffer := node.storage) is None:
                return miss
            if captured is None:
                others = True
            elif (before := captured()) is not t:
                if before is not None:
                    return miss
                others = True
            held.append(buffer)
            addresses.append(buffer.address or place(buffer))
        if others and (len({*args}) < count if many else args[0] is args[-1]) or override() is not overridden or \
                observers or dry_runs or thread.now is not mode or not same(owner) or guards and not holds(args):
            return miss
        for made in nodes:  # `take`, without the call
            buffer = made.storage
            if getrefcount(made) == alone and getrefcount(buffer) == alone:
                buffer.version += 1
                break
        else:
            made = take()
        addresses.append(made.storage.address)
        launch(addresses)
        steady.uses += 1
        result = new(tensor)  # `Tensor._over`, without the call
        result._node = made
        result._grad = result._before = None
        result._requires_grad = False
        handles[ref(result, forget)] = None
        return result

    return call


def launcher(steady: Steady, quick: QuickRun, threads: int) -> Callable[[list[int]], None]:
    """A run of the plan of a `Steady` with its slots at these addresses; what is as its last run left it stays."""
    plan, slots, device, pointer, words, places, lasting = quick
    step, launches, flops, nbytes = steady.step, len(plan.table.rows), plan.plan.flops, plan.plan.bytes
    pool, native = device.pool, device.pool.run
    me, state, last = object(), None, list[int]()

    def launch(addresses: list[int]) -> None:
        nonlocal state, last
        lock = pool.lock
        lock.acquire()
        try:
            if plan.runner is me and pool.state is state and not device.timed:
                if addresses != last:
                    for at, k in places:
                        words[at] = addresses[k]
                    plan.last, last = (slots, addresses), addresses
                native(pointer)
                stats.calls += 1  # `count_run`, without the call
                stats.launches += launches
                stats.flops += flops
                stats.bytes += nbytes
            else:
                plan.run_locked(slots, addresses, step.numbers, step.dims, step.highest, threads)
                plan.runner, state, last = me if lasting else None, pool.state, addresses
        finally:
            lock.release()

    return launch


def same_type(a: Type, b: Type) -> bool:
    """Whether types say the same: they are mostly the same object, but not for ever."""
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device
