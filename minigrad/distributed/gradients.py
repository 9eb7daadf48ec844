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

MOST_MB, LEAST_MB, BUCKETS = 32.0, 1.0, 8
"""Megabytes of gradients that are sent together: at most, so that the first ones go early; and where they go over a
network and there are fewer, so many that there are BUCKETS, of the least each. In memory that is shared nothing is
gained by going early, as the copies are work of the processors that compute."""


def average_gradients(parameters: Iterable[Tensor], bucket_mb: float | None = None) -> None:
    """Replaces the gradients of the parameters by their means over all processes, lazily: with the step that uses them,
    in whose plan each bucket is sent as soon as its last gradient is there.

    Call it between `backward` and the optimizer's step, eagerly or in a function under `jit`, in every process with the
    same parameters in the same order; those without a gradient must be the same ones. Of equally large batches, whose
    losses are means, this is the gradient of all of them together. The sums are formed in the order of the ranks,
    whatever the size of buckets, which is chosen unless it is told.
    """
    params = list(parameters)
    for p in params:
        if not isinstance(p, Tensor):
            raise DTypeError(f"[average_gradients] expected Tensors, got {type(p).__name__}")
    if bucket_mb is not None and not bucket_mb > 0:
        raise ConfigError(f"[average_gradients] expected a bucket_mb above 0, got {bucket_mb!r}")
    if size() == 1:
        return
    owners = [p for p in reversed(params) if p.grad is not None]  # the last layers' gradients come first
    _realize_elsewhere(owners)
    for number, bucket in enumerate(_buckets(owners, 1e6 * (bucket_mb or _fitting_mb(owners)))):
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


def _fitting_mb(owners: list[Tensor]) -> float:
    """The megabytes of a bucket for the gradients of these."""
    if messages().shares_memory:
        return MOST_MB
    return min(MOST_MB, max(LEAST_MB, sum([_bytes_of(p) for p in owners]) / 1e6 / BUCKETS))


def _bytes_of(p: Tensor) -> int:
    return int(p.numel()) * p.dtype.itemsize


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
        room[name] -= _bytes_of(p)
    return found
