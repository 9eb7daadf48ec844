"""Tensors that all processes combine, get or give."""
from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import Any

import numpy as np

from minigrad.autograd import result_of
from minigrad.distributed.group import messages, size
from minigrad.distributed.messages import Steps
from minigrad.dtype import DType
from minigrad.engine.observe import host_reads
from minigrad.engine.storage import buffer_node
from minigrad.engine.transfer import upload
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.handles import rebound
from minigrad.ops.exchange import KINDS, exchanged
from minigrad.tensor import Tensor

ALL_REDUCE, REDUCED, FIRST_BUCKET = 0, 2, 8
"""Channels of exchanges; the next one of each is that of its gradients. Buckets of gradients have those from the last
one on."""

BARRIER, BROADCAST, GATHER = 30001, 30003, 30005
"""Tags, above those of channels; the next one of each is used too. MPI promises 32,767 of them."""

_OTHER_NAMES = {"avg": "mean", "product": "prod"}


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    """Combines the tensor with those of the other processes, element by element, in place, and returns it. `op`: sum,
    mean, prod, max or min.

    It is done at once, but for in a function under `jit`: there when the value is needed. Raises MinigradError for a
    tensor with history, which `reduced` is for, and where other processes ask for something else.
    """
    how = _kind("all_reduce", tensor, op)
    if tensor.requires_grad and not tensor.is_leaf:
        raise MinigradError("[all_reduce] expected a tensor that no gradient goes through, such as loss.detach(); got "
                            "one with history, which reduced(tensor) is for")
    if size() > 1:
        with Tensor.no_grad():
            tensor.assign(_combined(tensor.detach(), how, ALL_REDUCE))
        if get_ident() not in rebound:  # else a function is being captured
            tensor.realize()
    return tensor


def reduced(tensor: Tensor, op: str = "sum") -> Tensor:
    """The tensor combined with those of the other processes, element by element, lazily: the gradient of a sum or mean
    goes to the tensors of all processes, as that of the sum of all their losses."""
    how = _kind("reduced", tensor, op)
    return _combined(tensor, how, REDUCED) if size() > 1 else tensor


def _kind(name: str, tensor: Tensor, op: str) -> str:
    how = _OTHER_NAMES.get(op, op) if isinstance(op, str) else op
    if how not in (*KINDS, "mean"):
        raise MinigradError(f"[{name}] expected op to be sum, mean, prod, max or min, got {op!r}")
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"[{name}] expected a Tensor, got {type(tensor).__name__}")
    if how == "mean" and not tensor.dtype.is_float:
        raise DTypeError(f"[{name}] expected floats for a mean, got {tensor.dtype}")
    return how


def _combined(tensor: Tensor, how: str, channel: int) -> Tensor:
    messages()
    device, total = tensor.device, tensor.to("CPU")
    node, = exchanged([total.node], "sum" if how == "mean" else how, channel)
    found = result_of(node, total).to(device)
    return found / size() if how == "mean" else found


def broadcast(tensors: Tensor | Iterable[Tensor], src: int = 0) -> None:
    """Gives tensors the values that they have in rank `src`, in place and at once."""
    several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for t in several:
        if not isinstance(t, Tensor):
            raise DTypeError(f"[broadcast] expected Tensors, got {type(t).__name__}")
    if not isinstance(src, int) or not 0 <= src < size():
        raise MinigradError(f"[broadcast] expected src to be a rank in 0..{size() - 1}, got {src!r}")
    if size() == 1 or not several:
        return
    host_reads()
    Tensor.realize(*several)
    arrays = [_host(t) for t in several]
    names = ", ".join(dict.fromkeys([t.dtype.name for t in several]))
    _wait("broadcast", messages().copied(arrays, names, src, BROADCAST), BROADCAST)
    if messages().rank != src:
        with Tensor.no_grad():
            for t, array in zip(several, arrays, strict=True):
                t.assign(_uploaded(array, t.dtype, t.device))
        Tensor.realize(*several)


def all_gather(tensor: Tensor) -> Tensor:
    """The tensors of all processes, by rank: [size, ...]. At once, without gradients."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"[all_gather] expected a Tensor, got {type(tensor).__name__}")
    if size() == 1:
        return tensor.detach().unsqueeze(0)
    host_reads()
    tensor.realize()
    found = _wait("all_gather", messages().gathered(_host(tensor), tensor.dtype.name, "all_gather", GATHER), GATHER)
    return _uploaded(found, tensor.dtype, tensor.device)


def barrier() -> None:
    """Waits until all processes are here."""
    if size() > 1:
        host_reads()
        _wait("barrier", messages().gathered(np.zeros(1, np.uint8), "uint8", "barrier", BARRIER), BARRIER)


def _wait(what: str, steps: Steps, tag: int) -> Any:
    return messages().start(what, steps, tag).wait()


def _host(tensor: Tensor) -> np.ndarray:
    """A copy of the values, bfloat16 as its bits."""
    shape = [d for d in tensor.shape if isinstance(d, int)]
    if len(shape) < tensor.ndim:
        raise ShapeError(f"[distributed] expected a shape without Variables, got {list(tensor.shape)}")
    array = np.empty(shape, tensor.dtype.np)
    if array.nbytes:
        tensor.node.storage.device.copy_out(tensor.node.storage, array)
    return array


def _uploaded(array: np.ndarray, dtype: DType, device: str) -> Tensor:
    return Tensor.over(buffer_node(upload(array, dtype, device), array.shape, dtype, device))
