"""`config.jit_check`: a replay and the function itself, from the same state, must give the same bits."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import random
from minigrad.capture.journal import put, settle
from minigrad.capture.outputs import tensors_in
from minigrad.capture.replay import Capture
from minigrad.engine.transfer import cloned, download
from minigrad.errors import CaptureError
from minigrad.tensor import Tensor

Named = list[tuple[str, np.ndarray | None]]


def checked_replay(capture: Capture, owners: list[Tensor], dims: dict[str, int], function: Callable[[], Any]) -> Any:
    """Replays, goes back, runs the function and returns what that gives. Raises CaptureError where bits differ."""
    saved = [(t, t.grad) for t in owners]
    tensors = list({id(t): t for pair in saved for t in pair if t is not None}.values())
    settle(tensors)
    buffers = [cloned(t._node.storage) for t in tensors]
    position = random.counter()
    replayed = values(capture, owners, capture.replay(owners, dims))
    for t, grad in saved:
        t.grad = grad
    for t, buffer in zip(tensors, buffers, strict=True):
        put(t, buffer, t.shape, t.dtype, t.device)
    random.rewind(position)
    result = function()
    for (name, a), (_, b) in zip(replayed, values(capture, owners, result), strict=True):
        if (a is None) is not (b is None) or a is not None and b is not None and a.tobytes() != b.tobytes():
            raise CaptureError(f"[jit_check] expected a replay to equal the function, got other values of {name}")
    return result


def values(capture: Capture, owners: list[Tensor], result: Any) -> Named:
    """Names and values of everything that a replay returns or changes."""
    named: list[tuple[str, Tensor | None]] = [(f"result {k}", t) for k, t in enumerate(tensors_in(result))]
    for rebind in capture.rebinds:
        owner, grad = rebind.place
        t = owners[owner]
        what = f"argument {owner}" if owner < len(capture.inputs) else "a tensor from outside"
        named.append((f"{'the gradient of ' if grad else ''}{what}, {t.dtype}{list(t.shape)}", t.grad if grad else t))
    settle([t for _, t in named if t is not None])
    return [(name, None if t is None else download(t._node)) for name, t in named]
