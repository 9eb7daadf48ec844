"""`config.jit_check`: a replay and the function itself, from the same state, must give the same bits.

Both run launch by launch, and what each wrote is noted, so that the first kernel that differs can be named.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from minigrad import random
from minigrad.capture.arguments import tensors_in
from minigrad.capture.journal import put, settle
from minigrad.capture.replay import Capture
from minigrad.engine.observe import Observer, observing
from minigrad.engine.transfer import cloned, download
from minigrad.errors import CaptureError, quantity
from minigrad.tensor import Tensor

Named = list[tuple[str, np.ndarray | None]]


def checked_replay(capture: Capture, owners: list[Tensor], dims: dict[str, int], function: Callable[[], Any]) -> Any:
    """Replays, goes back, runs the function and returns what that gives. Raises CaptureError where bits differ."""
    saved = [(t, t.grad) for t in owners]
    tensors = list({id(t): t for pair in saved for t in pair if t is not None}.values())
    settle(tensors)
    buffers = [cloned(t.node.storage) for t in tensors]
    position = random.counter()
    with observing(_Written()) as ours:
        replayed = values(capture, owners, capture.replay(owners, dims))
    for t, grad in saved:
        t.grad = grad
    for t, buffer in zip(tensors, buffers, strict=True):
        put(t, buffer, t.node.type)
    random.rewind(position)
    with observing(_Written()) as theirs:
        result = function()
        eager = values(capture, owners, result)
    for (name, a), (_, b) in zip(replayed, eager, strict=True):
        if (a is None) is not (b is None) or (a is not None and b is not None and a.tobytes() != b.tobytes()):
            raise CaptureError(f"[jit_check] expected a replay to equal the function, got other values of {name}; "
                               f"{first_difference(ours.launches, theirs.launches)}")
    return result


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel that ran: its name and its line, and a digest of all that it wrote."""

    name: str
    line: str
    digest: bytes

    def __str__(self) -> str:
        return f"{self.name} at {self.line}" if self.line else self.name


class _Written(Observer):
    times_launches = True

    def __init__(self) -> None:
        self.launches: list[_Launch] = []

    def launched(self, plan: Any, item: int, start: float, seconds: float, buffers: list[Any]) -> None:
        digest = blake2b(digest_size=16)
        for slot in sorted(plan.items[item].writes):
            found = np.empty(buffers[slot].nbytes, np.uint8)
            plan.device.copy_out(buffers[slot], found)
            digest.update(found.tobytes())
        self.launches.append(_Launch(plan.items[item].name, plan.lines.get(item, ""), digest.digest()))


def first_difference(replayed: list[_Launch], eager: list[_Launch]) -> str:
    """A sentence that names the first launch of a replay whose results are none of the function's. A replay may have
    fewer launches: what depends on constants alone was done before."""
    left = Counter([(launch.name, launch.digest) for launch in eager])
    for k, a in enumerate(replayed):
        if not left[a.name, a.digest]:
            return f"the first kernel that differs is {a}, launch {k}"
        left[a.name, a.digest] -= 1
    return f"the replay had {quantity(len(replayed), 'launch')}, the function {len(eager)}"


def values(capture: Capture, owners: list[Tensor], result: Any) -> Named:
    """Names and values of everything that a replay returns or changes."""
    named: list[tuple[str, Tensor | None]] = [(f"result {k}", t) for k, t in enumerate(tensors_in(result))]
    for rebind in capture.rebinds:
        owner, grad = rebind.place
        t = owners[owner]
        what = f"argument {owner}" if owner < len(capture.inputs) else "a tensor from outside"
        named.append((f"{'the gradient of ' if grad else ''}{what}, {t.dtype}{list(t.shape)}", t.grad if grad else t))
    settle([t for _, t in named if t is not None])
    return [(name, None if t is None else download(t.node)) for name, t in named]
