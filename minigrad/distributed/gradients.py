"""The mean of gradients over all processes, in buckets that are sent while the backward pass goes on."""
from __future__ import annotations

from collections.abc import Iterable

from minigrad.autograd import result_of
from minigrad.distributed.collectives import FIRST_BUCKET
from minigrad.distributed.group import messages, size
from minigrad.errors import ConfigError, DTypeError
from minigrad.ops.exchange import exchanged
from minigrad.optim.statistics import take_moved
from minigrad.tensor import Tensor

BUCKET_MB = 32
"""Megabytes of gradients that are sent together: enough that a message's start costs nothing, and few enough that the
first ones go early."""


def average_gradients(parameters: Iterable[Tensor], bucket_mb: float = BUCKET_MB) -> None:
    """Replaces the gradients of the parameters by their means over all processes, lazily: with the step that uses them,
    in whose plan each bucket is sent as soon as its last gradient is there.

    Call it between `backward` and the optimizer's step, eagerly or in a function under `jit`, in every process with the
    same parameters in the same order; those without a gradient must be the same ones. Of equally large batches, whose
    losses are means, this is the gradient of all of them together. The sums are formed in the order of the ranks.
    """
    params = list(parameters)
    for p in params:
        if not isinstance(p, Tensor):
            raise DTypeError(f"[average_gradients] expected Tensors, got {type(p).__name__}")
    if not bucket_mb > 0:
        raise ConfigError(f"[average_gradients] expected a bucket_mb above 0, got {bucket_mb!r}")
    if size() == 1:
        return
    messages()
    owners = [p for p in reversed(params) if p.grad is not None]  # the last layers' gradients come first
    _realize_elsewhere(owners)
    for number, bucket in enumerate(_buckets(owners, bucket_mb * 1e6)):
        gradients = [p.grad.to("CPU") for p in bucket if p.grad is not None]
        nodes = exchanged([g.node for g in gradients], "sum", FIRST_BUCKET + 2 * number)
        for p, node in zip(bucket, nodes, strict=True):
            p.grad = result_of(node).to(p.device) / size()


def _realize_elsewhere(owners: list[Tensor]) -> None:
    """Computes gradients on devices that processes do not exchange from, all in one plan: each copy to the CPU would
    be a plan of its own."""
    found = [p.grad for p in owners if p.grad is not None and p.device != "CPU"]
    if found:
        Tensor.realize(*found, *take_moved())


def _buckets(owners: list[Tensor], most: float) -> list[list[Tensor]]:
    """The parameters in order, cut where their gradients have `most` bytes, each bucket of one dtype."""
    found: list[list[Tensor]] = []
    by_dtype: dict[str, list[Tensor]] = {}
    room: dict[str, float] = {}
    for p in owners:
        name = p.dtype.name
        if name not in by_dtype or room[name] <= 0:
            by_dtype[name], room[name] = [], most
            found.append(by_dtype[name])
        by_dtype[name].append(p)
        room[name] -= float(int(p.numel()) * p.dtype.itemsize)
    return found
