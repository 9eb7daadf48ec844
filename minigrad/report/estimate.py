"""`plan`: the kernels, bytes and memory of a function or of a lazy Tensor, found without running anything."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minigrad import random
from minigrad.capture.arguments import tensors_in
from minigrad.capture.journal import settle
from minigrad.engine.observe import Observer, lines_kept, observing
from minigrad.engine.storage import buffer_node
from minigrad.errors import MinigradError, quantity
from minigrad.handles import changed, live
from minigrad.report.dry import DryRun, Holder, Phantom, running_dry
from minigrad.tensor import Tensor


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One launch: floating point operations, bytes that it must move, and the plan of its policy, as text.

    `line` is the line of the user's program where its result was asked for; `rows` > 1 for a table of equal updates.
    """

    name: str
    line: str
    how: str
    flops: float
    bytes: float
    rows: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The result of `plan`: kernels in order, totals, and the memory at its peak with what holds it, largest first.

    The peak counts values that the kernels read and that were there before, results, and the memory for temporaries.
    """

    kernels: tuple[PlannedKernel, ...]
    flops: float
    bytes: float
    peak_bytes: int
    holders: tuple[Holder, ...]

    def __str__(self) -> str:
        lines = [f"{quantity(len(self.kernels), 'launch')}, {self.flops / 1e9:.3f} GFLOP, {self.bytes / 1e6:.3f} MB "
                 f"moved, {self.peak_bytes / 1e6:.3f} MB at the peak; held there by"]
        lines += [f"{h.nbytes / 1e6:12.3f} MB  {h.label}{f' at {h.line}' if h.line else ''}" for h in self.holders[:8]]
        if len(self.holders) > 8:
            rest = sum(h.nbytes for h in self.holders[8:])
            lines.append(f"{rest / 1e6:12.3f} MB  in {len(self.holders) - 8} more")
        return "\n".join(lines)


class _Reads(Observer):
    def asked(self) -> None:
        raise MinigradError("[plan] expected no value on the host, as nothing runs; return the tensor instead")

    def evaluated(self, device: str) -> None:
        raise MinigradError(f"[plan] expected a device with kernels, got {device}, which evaluates ops one by one")


def plan(what: Callable | Tensor | list[Tensor], *args: Any, **kwargs: Any) -> Planned:
    """Kernels, operations, bytes and peak memory of `what(*args, **kwargs)`, or of realizing a Tensor or several.

    The function's Python code runs, its kernels do not; afterwards all Tensors are as before. What was lazy before is
    computed first. Raises MinigradError where the function reads a value, or keeps a Tensor that it made.
    """
    if isinstance(what, (Tensor, list, tuple)):
        tensors = [what] if isinstance(what, Tensor) else list(what)
        if args or kwargs or not all(isinstance(t, Tensor) for t in tensors):
            raise MinigradError("[plan] expected a function and its arguments, a Tensor, or a list of Tensors")
        return _of_tensors(tensors)
    if not callable(what):
        raise MinigradError(f"[plan] expected a function or a Tensor, got {type(what).__name__}")
    return _of_function(lambda: what(*args, **kwargs))


def _of_tensors(tensors: list[Tensor]) -> Planned:
    saved = [(t, t.node, t.lazy_node) for t in tensors]
    with running_dry() as dry, observing(_Reads()):
        dry.keep_inputs = True
        try:
            Tensor.realize(*tensors)
            return _summary(dry)
        finally:
            for t, node, before in saved:
                t.node, t.lazy_node = node, before
            changed()
            dry.forget()


def _of_function(function: Callable[[], Any]) -> Planned:
    """Plans a function. Every Tensor gets a phantom for its value meanwhile, so that the function may assign and
    overwrite as ever."""
    settle(list(live()))
    there = list(live())
    saved = [(t, t.node, t.grad, t.needs_grad, t.lazy_node) for t in there]
    position, seed = random.counter(), random.seed()
    with running_dry() as dry, lines_kept(), observing(_Reads()):
        try:
            _give_phantoms(dry, there)
            result = function()
            Tensor.realize(*tensors_in(result), *(x for t in there for x in (t, t.grad) if x is not None))
            summary = _summary(dry)
        finally:
            for t, *state in saved:
                t.node, t.kept_grad, t.needs_grad, t.lazy_node = state
            changed()
            if random.seed() == seed:
                random.rewind(position)
            dry.forget()
    del result
    known = {id(t) for t in there} | {id(t.grad) for t in there}
    if any(id(t) not in known and isinstance(t.node.storage, Phantom) for t in live()):
        raise MinigradError("[plan] expected a function that keeps no tensor that it makes, other than by assign")
    return summary


def _give_phantoms(dry: DryRun, tensors: list[Tensor]) -> None:
    """Gives the Tensors phantoms for their values; those that share a buffer share a phantom."""
    made: dict[int, Phantom] = {}
    for t in tensors:
        node = t.node
        if node.storage is None:
            continue
        label = f"{node.dtype.short}[{', '.join(map(str, node.shape))}] that was there before"
        device = node.storage.device
        if id(node.storage) not in made:
            made[id(node.storage)] = Phantom(dry, device, node.storage.nbytes, label, given=True)
        t.node = buffer_node(made[id(node.storage)], node.shape, node.dtype, node.device)


def _summary(dry: DryRun) -> Planned:
    kernels = tuple(PlannedKernel(item.name, p.lines.get(k, ""), str(item.how), item.flops, item.bytes, len(item.rows))
                    for p in dry.plans for k, item in enumerate(p.items))
    holders = tuple(sorted(dry.holders, key=lambda h: -h.nbytes))
    return Planned(kernels, sum(k.flops for k in kernels), sum(k.bytes for k in kernels), dry.peak, holders)
