"""The shortest replay: a call that reads its arguments, and perhaps constants, and returns one new Tensor.

All that such a call has to make sure of is in one function, whose text is written for captures of its kind: nothing is
looked at that cannot be otherwise, arguments and addresses are variables rather than lists, and what it needs besides
are variables of its closure. So the product of two small matrices takes a third of the time that methods take.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import getweakrefcount

from minigrad.capture.surroundings import Surroundings, always
from minigrad.config import Config, override
from minigrad.engine.observe import dry_runs, observers
from minigrad.engine.stats import stats
from minigrad.engine.storage import IN_A_LIST, SPARES, Spares
from minigrad.mixins.modes import modes
from minigrad.ops.kinds import Type
from minigrad.ops.node import Node
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


TEXT = """
def make({variables}):
    def call(args, owner):
        if len(args) != {count}:
            return miss
        {arguments} = args
{checks}
        if {also}override() is not overridden or observers or dry_runs or thread.now is not mode{guards}:
            return miss
        for result, made in kept:
            buffer = made.storage
            if getrefcount(result) == alone and getrefcount(made) == shared and getrefcount(buffer) == alone and \\
                    result._node is made and result._requires_grad is False and result._grad is None and \\
                    weakrefs(result) == 1:
                buffer.version += 1
                break
        else:
            result = another()
            buffer = result._node.storage
        lock = pool.lock
        lock.acquire()
        try:
            if plan.runner is me and table.admitted is pool.state and not device.timed:
                native({addresses})
                stats.calls += 1  # `count_run`, without the call
                stats.launches += launches
                stats.flops += flops
                stats.bytes += nbytes
            else:
                run([{addresses}])
        finally:
            lock.release()
        steady.uses += 1
        return result
    return call
"""
CHECK = """
        if type(t{k}) is not tensor:
            return miss
        node{k} = t{k}._node
        buffer{k} = node{k}.storage
        if node{k}.type is not kind{k} and not same_type(node{k}.type, kind{k}) or buffer{k} is None or \
                t{k}._requires_grad is not requires{k} or t{k}._grad is {not_}None{captured}:
            return miss
"""
"""The argument k: its buffer is held, as no value that is held is overwritten."""


def shortcut(steady: Steady, expected: Expected) -> Call | None:
    """The replay of a `Steady` that has `only` one leaf to make, as a function that looks at everything itself.

    It gives the result for arguments like those of the capture; else MISS with nothing done. None where the plan is
    not one for the CPU.
    """
    kinds, spares = steady.kinds, steady.only
    quick = steady.prepared.quick(steady.all_slots)
    if kinds is None or spares is None or quick is None:
        return None
    plan, _, device, table, native, _ = quick
    kept: list[tuple[Tensor, Node]] = []
    known: dict[str, Any] = dict(
        miss=MISS, tensor=Tensor, same_type=same_type, override=override, overridden=expected.override,
        observers=observers, dry_runs=dry_runs, thread=modes, mode=expected.mode, same=expected.same,
        holds=steady.holds, kept=kept, another=_other_results(spares, kept), getrefcount=getrefcount,
        alone=IN_A_LIST, shared=IN_A_LIST + 2, weakrefs=getweakrefcount, pool=device.pool, plan=plan, device=device,
        table=table, native=native, me=(me := object()),
        run=_first_run(steady, quick, expected.threads, me), stats=stats, launches=len(table.rows),
        flops=plan.plan.flops, nbytes=plan.plan.bytes, steady=steady, place=address_of)
    checks, count = [], len(kinds)
    guards = ("" if expected.same is always else " or not same(owner)") + \
        (" or not holds(args)" if steady.guards or steady.derived else "")
    for k, (kind, requires_grad, no_grad, captured) in enumerate(kinds):
        known |= {f"kind{k}": kind, f"requires{k}": requires_grad, f"captured{k}": captured}
        other = f" or \\\n                captured{k}() is not t{k} and captured{k}() is not None"
        checks.append(CHECK.format(k=k, not_="not " if no_grad else "", captured=other if captured else ""))
    twice = [f"t{i} is t{k} or " for k in range(count) for i in range(k)] if count <= FEW else \
        [f"len({{*args}}) < {count} or "]
    addresses = [*[f"buffer{k}.address or place(buffer{k})" for k in range(count)], "buffer.address"]
    text = TEXT.format(
        variables=", ".join(known), count=count, arguments="".join([f"t{k}, " for k in range(count)]) or "()",
        checks="".join(checks), also="".join(twice), guards=guards, addresses=", ".join(addresses))
    return _maker(text)(**known)


FEW = 3
"""Arguments that are compared one by one."""


@lru_cache(maxsize=256)
def _maker(text: str) -> Callable[..., Call]:
    """The function `make` of a text."""
    defined: dict[str, Any] = {}
    exec(text, defined)  # noqa: S102
    return defined.pop("make")


def _other_results(spares: Spares, kept: list[tuple[Tensor, Node]]) -> Callable[[], Tensor]:
    """New results. Handles on small ones are `kept`, each with its Node, which `spares` keep too: one that nobody else
    has or refers to, and that was not changed, is as good as a new one, and takes a third of the time."""

    def another() -> Tensor:
        made = spares.take()
        result = Tensor._over(made)
        if spares.small:
            kept[:] = [*kept[1 - SPARES:], (result, made)]
        return result

    return another


def _first_run(steady: Steady, quick: QuickRun, threads: int, me: object) -> Callable[[list[int]], None]:
    """A run of the plan of a `Steady` with its slots at these addresses, for who holds the pool's lock: what `native`
    of `quick` needs not do again."""
    plan, slots, *_ = quick
    step = steady.step

    def run(addresses: list[int]) -> None:
        plan.run_locked(slots, addresses, step.numbers, step.dims, step.highest, threads)
        if quick.lasting:
            plan.follow(me)

    return run


def same_type(a: Type, b: Type) -> bool:
    """Whether types say the same: they are mostly the same object, but not for ever."""
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device
