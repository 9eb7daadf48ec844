"""Which operations follow `autocast`: PyTorch's lists for CPUs.

Inside of `autocast` an operation of HALF computes in the half type, one of FLOAT32 in float32, and one of WIDEST in the
widest type among its operands; float64 and integers stay as they are. All others take what they get, and promote as
ever. Within an operation of the lists, and within what is one Node, nothing is cast further.

Source: https://docs.pytorch.org/docs/stable/amp.html, "CPU Ops that can autocast"
"""
from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from types import FunctionType
from typing import Any, TypeVar, cast

from minigrad.dtype import DType, float32, float64, promote
from minigrad.mixins.base import Base
from minigrad.mixins.modes import Within, modes

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

HALF = ("addbmm", "addmm", "addmv", "baddbmm", "bmm", "conv2d", "conv_transpose2d", "dot", "einsum", "inner", "linear",
        "matmul", "mm", "mv", "prelu", "scaled_dot_product_attention", "tensordot")

FLOAT32 = ("binary_crossentropy", "binary_crossentropy_logits", "cdist", "cholesky", "cosine_embedding_loss",
           "cross_entropy", "ctc_loss", "det", "eigh", "gaussian_nll_loss", "grid_sample", "hinge_embedding_loss",
           "huber_loss", "inverse", "kl_div", "l1_loss", "logdet", "margin_ranking_loss", "max_unpool2d", "mse_loss",
           "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nanquantile", "nll_loss",
           "poisson_nll_loss", "prod", "qr", "quantile", "slogdet", "smooth_l1_loss", "soft_margin_loss",
           "sparse_categorical_crossentropy", "stft", "svd", "trace", "triplet_margin_loss")

WIDEST = ("cat", "index_copy", "stack")


def in_half_type(function: F) -> F:
    """The function with its float operands in the half type of `autocast`, where that is on."""
    return _following(function, lambda half, _: half)


def in_float32(function: F) -> F:
    """The function with its float operands in float32 while `autocast` is on."""
    return _following(function, lambda *_: float32)


def in_widest_type(function: F) -> F:
    """The function with its float operands in the widest type among them while `autocast` is on."""
    return _following(function, lambda _, found: reduce(promote, found))


def _following(function: F, choose: Callable[[DType, list[DType]], DType]) -> F:
    @wraps(function)
    def follows(*args: Any, **options: Any) -> Any:
        half = modes.now.autocast
        if half is None:
            return function(*args, **options)
        found: list[DType] = []
        collect_types((*args, *options.values()), found)
        with Within("autocast", None):
            if not found:
                return function(*args, **options)
            kind = choose(half, found)
            return function(*[as_type(a, kind) for a in args], **{k: as_type(v, kind) for k, v in options.items()})

    return cast(F, follows)


def collect_types(value: Any, found: list[DType]) -> None:
    """Adds the types of the float Tensors in a value but float64: those that `autocast` may cast."""
    if isinstance(value, Base):
        if value.node.dtype.is_float and value.node.dtype is not float64:
            found.append(value.node.dtype)
    elif type(value) in (list, tuple):
        for v in value:
            collect_types(v, found)


def as_type(value: Any, kind: DType) -> Any:
    """The value with its float Tensors but those of float64 cast, those in lists and tuples too."""
    if isinstance(value, Base):
        own = value.node.dtype
        return value.cast(kind) if own.is_float and own is not kind and own is not float64 else value
    return type(value)([as_type(v, kind) for v in value]) if type(value) in (list, tuple) else value


def follows_autocast(cls: C) -> C:
    """The class with its methods that are in the lists following them."""
    for names, rule in ((HALF, in_half_type), (FLOAT32, in_float32), (WIDEST, in_widest_type)):
        for name in names:
            method = vars(cls)[name]
            made = rule(method if isinstance(method, FunctionType) else method.__func__)
            setattr(cls, name, made if isinstance(method, FunctionType) else type(method)(made))
    return cls
