"""Reductions, running sums, sorting and softmax."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import Tensor, dtypes
from minigrad.torch_compile.node import Node, Operator

Axes = list[int] | int | None


def axes_of(dim: Axes) -> Any:
    """Axes for minigrad: None, for all of them, where ATen has none or an empty list."""
    return tuple(dim) if isinstance(dim, (list, tuple)) and dim else None if isinstance(dim, (list, tuple)) else dim


def reduction(function: Callable[..., Tensor], wide: bool = False) -> Operator:
    """The operator that reduces axes by `function`, `wide` in the type of the result."""
    def run(n: Node, x: Tensor, dim: Axes = None, keepdim: bool = False, **_: Any) -> Tensor:
        return function(n.typed(x) if wide else x, axis=axes_of(dim), keepdim=keepdim)
    return run


def truth(function: Callable[..., Tensor]) -> Operator:
    """The operator that reduces truth values."""
    return lambda n, x, dim=None, keepdim=False: function(x != 0, axis=axes_of(dim), keepdim=keepdim)


def total(n: Node, x: Tensor, dim: Axes = None, keepdim: bool = False, **_: Any) -> Tensor:
    """The sum of half types in float32."""
    return n.typed(x).sum(axis=axes_of(dim), keepdim=keepdim, dtype=n.dtype)


def product(n: Node, x: Tensor, dim: Axes = None, keepdim: bool = False, **_: Any) -> Tensor:
    """The product of axes."""
    return n.typed(x).prod(axis=axes_of(dim), keepdim=keepdim, dtype=n.dtype)


def variance(n: Node, x: Tensor, dim: Axes = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    """The variance, with `correction` taken from the count."""
    return x.var(dim=axes_of(dim), correction=1 if correction is None else correction, keepdim=keepdim)


def variance_and_mean(n: Node, x: Tensor, dim: Axes = None, *, correction: Any = 1,
                      keepdim: bool = False) -> list[Tensor]:
    """The variance and the mean."""
    return [variance(n, x, dim, correction=correction, keepdim=keepdim), x.mean(axis=axes_of(dim), keepdim=keepdim)]


def extreme(name: str) -> Operator:
    """The operator that gives the largest or least number of an axis, and its index."""
    def run(n: Node, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        best, index = getattr(Tensor, f"a{name}"), getattr(Tensor, f"arg{name}")
        return best(x) if dim is None else [best(x, axis=dim, keepdim=keepdim), index(x, axis=dim, keepdim=keepdim)]
    return run


def place(name: str) -> Operator:
    """The operator that gives the index of the largest or least number."""
    def run(n: Node, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        found = getattr(x if dim is not None else x.reshape(-1), f"arg{name}")(0 if dim is None else dim,
                                                                               keepdim=keepdim and dim is not None)
        return found.reshape(*[1] * x.ndim) if dim is None and keepdim else found
    return run


def vector_norm(n: Node, x: Tensor, order: Any = 2, dim: Axes = None, keepdim: bool = False, **_: Any) -> Tensor:
    """The norm of vectors along axes."""
    x, axis = n.typed(x), axes_of(dim)
    if order == 2:
        return (x * x).sum(axis, keepdim=keepdim).sqrt()
    if order == 1:
        return x.abs().sum(axis, keepdim=keepdim)
    if order == 0:
        return (x != 0).cast(n.dtype).sum(axis, keepdim=keepdim)
    if order in (float("inf"), float("-inf")):
        return (x.abs().amax if order > 0 else x.abs().amin)(axis, keepdim=keepdim)
    return (x.abs() ** order).sum(axis, keepdim=keepdim) ** (1.0 / order)


def running(name: str) -> Operator:
    """The operator that adds or multiplies up along an axis."""
    return lambda n, x, dim, **_: getattr(n.typed(x), name)(dim) if x.ndim else n.typed(x)


def ordered(n: Node, x: Tensor, *args: Any, dim: int = -1, descending: bool = False, **_: Any) -> list[Tensor]:
    """Sorted numbers and where they were. Overload stable has `stable` by name, before `dim`."""
    dim, descending = args[0] if args else dim, args[1] if len(args) > 1 else descending
    if not x.ndim:
        return [x, Tensor.zeros(dtype=dtypes.int64, device=x.device)]
    return list(x.sort(dim, descending=descending))


def top(n: Node, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Tensor]:
    """The k largest or least numbers of an axis, and where they were."""
    return list(x.topk(k, dim, largest=largest, sorted=sorted))


def softmax(n: Node, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """The softmax of an axis, of half types in float32."""
    return n.typed(x).softmax(dim) if x.ndim else n.full((), 1)


def log_softmax(n: Node, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """The logarithm of the softmax."""
    return n.typed(x).log_softmax(dim) if x.ndim else n.full((), 0)


def softmax_backward(n: Node, gradient: Tensor, y: Tensor, dim: int, input_dtype: Any) -> Tensor:
    """y * (g - sum(g * y))."""
    product = gradient * y
    return product - y * product.sum(dim, keepdim=True) if y.ndim else product * 0


def log_softmax_backward(n: Node, gradient: Tensor, y: Tensor, dim: int, input_dtype: Any) -> Tensor:
    """g - exp(y) * sum(g)."""
    return gradient - y.exp() * gradient.sum(dim, keepdim=True) if y.ndim else gradient * 0


def _chosen(x: Tensor, target: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """(True at the class of each example, in the shape of x [N, C, ...] or [C], and True where it counts)."""
    axis = 1 if x.ndim > 1 else 0
    counts = (target != ignored).unsqueeze(axis)
    labels = Tensor.arange(x.shape[axis], dtype=target.dtype, device=x.device).reshape(
        *[-1 if a == axis else 1 for a in range(x.ndim)])
    return (target.unsqueeze(axis) == labels) & counts, counts


def _by_class(x: Tensor, weight: Tensor) -> Tensor:
    return weight.reshape(*[-1 if a == min(1, x.ndim - 1) else 1 for a in range(x.ndim)])


def nll_loss(n: Node, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> list[Tensor]:
    """The negative log likelihood of the target's classes: each (reduction 0), their mean (1) or sum (2); and the
    weight of all."""
    axis = 1 if x.ndim > 1 else 0
    chosen, counts = _chosen(x, target, ignored)
    taken = counts.where(x.gather(axis, counts.where(target.unsqueeze(axis), 0)), 0.0).squeeze(axis)
    if weight is None:
        weights = counts.squeeze(axis).cast(x.dtype)
    else:
        weights = chosen.where(_by_class(x, weight), 0.0).sum(axis)
        taken = taken * weights
    total_weight = weights.sum()
    if reduction == 0:
        return [-taken, n.full((), 0)]
    return [-taken.sum() / total_weight if reduction == 1 else -taken.sum(), total_weight]


def nll_loss_backward(n: Node, gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int,
                      ignored: int, total_weight: Tensor) -> Tensor:
    """The gradient of `nll_loss` in x: only the classes of the target have one."""
    chosen, _ = _chosen(x, target, ignored)
    each = -(gradient / total_weight if reduction == 1 else gradient)
    each = each.unsqueeze(1 if x.ndim > 1 else 0) if reduction == 0 and each.ndim else each
    return chosen.where(each if weight is None else each * _by_class(x, weight), 0.0)


TABLE: dict[str, Operator] = {
    "sum": total, "prod": lambda n, x, dim=None, keepdim=False, **_: product(n, x, dim, keepdim),
    "mean": reduction(Tensor.mean, wide=True), "amax": reduction(Tensor.amax), "amin": reduction(Tensor.amin),
    "any": truth(Tensor.any), "all": truth(Tensor.all), "var": variance, "var_mean": variance_and_mean,
    "max": extreme("max"), "min": extreme("min"), "argmax": place("max"), "argmin": place("min"),
    "linalg_vector_norm": vector_norm, "cumsum": running("cumsum"), "cumprod": running("cumprod"),
    "logcumsumexp": running("logcumsumexp"), "sort": ordered, "topk": top,
    "_softmax": softmax, "_log_softmax": log_softmax, "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": log_softmax_backward,
    "nll_loss_forward": nll_loss, "nll_loss_backward": nll_loss_backward,
    "nll_loss2d_forward": nll_loss, "nll_loss2d_backward": nll_loss_backward,
}
