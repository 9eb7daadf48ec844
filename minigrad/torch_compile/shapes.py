"""Operators that move numbers and make new ones: shapes, parts, constants, random numbers."""
from __future__ import annotations

from typing import Any

from minigrad import Tensor
from minigrad.torch_compile.node import DEVICE, Node, Operator, Unsupported

LAST = (1 << 63) - 1
"""The end of a slice that goes on to the end of its axis."""


def view(n: Node, x: Tensor, shape: list[int]) -> Tensor:
    """The same numbers in another shape."""
    return x.reshape(*shape) if x.numel() or -1 not in shape else x.reshape(*[0 if s == -1 else s for s in shape])


def expand(n: Node, x: Tensor, shape: list[int], **_: Any) -> Tensor:
    """Axes of one element repeated; -1 keeps an axis."""
    more = len(shape) - x.ndim
    return x.expand(*[x.shape[k - more] if s == -1 else s for k, s in enumerate(shape)])


def squeeze(n: Node, x: Tensor, dims: Any = None) -> Tensor:
    """Without those of the axes that have one element."""
    dims = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    left = {d % max(x.ndim, 1) for d in dims}
    return x.reshape(*[s for a, s in enumerate(x.shape) if a not in left or s != 1])


def part(n: Node, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """Every step-th slice of an axis."""
    return x[(*[slice(None)] * (dim % x.ndim), slice(start, end, step))]


def select(n: Node, x: Tensor, dim: int, index: int) -> Tensor:
    """One slice of an axis."""
    return x[(*[slice(None)] * (dim % x.ndim), index)]


def joined(n: Node, tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other; vectors without elements are left out."""
    kept = [n.typed(t) for t in tensors if t.ndim != 1 or t.shape[0] != 0] or [n.typed(tensors[0])]
    return kept[0] if len(kept) == 1 else Tensor.cat(*kept, dim=dim)


def padded(n: Node, x: Tensor, widths: list[int], value: Any = 0) -> Tensor:
    """A number around the last axes, the last one first; less where a width is negative."""
    return x.pad(widths, value=value)


def slice_scatter(n: Node, x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Tensor:
    """x with slices of an axis replaced."""
    last = None if end is None or end == LAST else end
    return x.slice_scatter(n.typed(source).expand(*part(n, x, dim, start, end, step).shape), dim, start, last, step)


def arange(n: Node, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Tensor:
    """The numbers from start to below end."""
    start, end = (0, start) if end is None else (start, end)
    return Tensor.arange(start, end, step, dtype=n.dtype, device=DEVICE)


def full(n: Node, shape: list[int], value: Any, **_: Any) -> Tensor:
    """A number everywhere."""
    return n.full(shape, value)


def full_like(n: Node, x: Tensor, value: Any, **_: Any) -> Tensor:
    """A number everywhere in the shape of x."""
    return n.full(x.shape, value)


def empty(n: Node, shape: list[int], *_: Any, **__: Any) -> Tensor:
    """Zeros, for what torch leaves undefined."""
    return n.full(shape, 0)


def uniform(n: Node, shape: list[int], **_: Any) -> Tensor:
    """Uniform in [0, 1)."""
    return Tensor.rand(*shape, dtype=n.dtype, device=DEVICE)


def normal(n: Node, shape: list[int], **_: Any) -> Tensor:
    """Of the standard normal distribution."""
    return Tensor.randn(*shape, dtype=n.dtype, device=DEVICE)


def integers(n: Node, *args: Any, **_: Any) -> Tensor:
    """Integers from low (0 where there is none) to below high: (low, high, shape)."""
    low, high, shape = args if len(args) == 3 else (0, *args)
    return Tensor.randint(*shape, low=low, high=high, dtype=n.dtype, device=DEVICE)


def integers_like(n: Node, x: Tensor, *bounds: int, **_: Any) -> Tensor:
    """`integers` in the shape of x."""
    return integers(n, *bounds, x.shape)


def dropout(n: Node, x: Tensor, p: float, train: bool | None) -> list[Tensor]:
    """(x with numbers 0 by probability p and the others larger, True where one is kept)."""
    if train is False or p == 0:
        return [x, n.full(x.shape, 1)]
    kept = Tensor.rand(*x.shape, device=DEVICE) >= p
    return [kept.where(x * (1 / (1 - p) if p < 1 else 0.0), 0.0), kept]


def bernoulli(n: Node, x: Tensor, p: Any = None, **_: Any) -> Tensor:
    """1 by the probability that each number of x is, or by p."""
    return Tensor.rand(*x.shape, device=DEVICE) < (x if p is None else p)


def exponential(n: Node, x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    """Of the exponential distribution."""
    return -(1 - Tensor.rand(*x.shape, device=DEVICE)).log() / rate


def unfold(n: Node, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of an axis as a last one."""
    if not x.ndim:
        raise Unsupported("windows of a number")
    return x.unfold(dim, size, step)


TABLE: dict[str, Operator] = {
    "view": view, "reshape": view, "_unsafe_view": view, "expand": expand, "squeeze": squeeze,
    "unsqueeze": lambda n, x, dim: x.unsqueeze(dim), "permute": lambda n, x, dims: x.permute(*dims) if dims else x,
    "transpose": lambda n, x, a, b: x.transpose(a, b) if x.ndim else x, "t": lambda n, x: x.T if x.ndim == 2 else x,
    "slice": part, "select": select, "cat": joined, "constant_pad_nd": padded, "slice_scatter": slice_scatter,
    "select_scatter": lambda n, x, source, dim, index: x.select_scatter(n.typed(source), dim, index),
    "stack": lambda n, tensors, dim=0: Tensor.stack(*map(n.typed, tensors), dim=dim),
    "split_with_sizes": lambda n, x, sizes, dim=0: x.split(list(sizes), dim),
    "split": lambda n, x, size, dim=0: x.split(size, dim), "unbind": lambda n, x, dim=0: x.unbind(dim),
    "flip": lambda n, x, dims: x.flip(*dims) if dims else x, "roll": lambda n, x, shifts, dims=(): x.roll(
        tuple(shifts), tuple(dims)) if dims else x.reshape(-1).roll(tuple(shifts), (0,)).reshape(*x.shape),
    "repeat": lambda n, x, each: x.repeat(*each), "diagonal": lambda n, x, *args: x.diagonal(*args), "unfold": unfold,
    "arange": arange, "full": full, "full_like": full_like, "scalar_tensor": lambda n, value, **_: n.full((), value),
    "zeros": lambda n, shape, **_: n.full(shape, 0), "ones": lambda n, shape, **_: n.full(shape, 1),
    "zeros_like": lambda n, x, **_: n.full(x.shape, 0), "ones_like": lambda n, x, **_: n.full(x.shape, 1),
    "new_zeros": lambda n, x, shape, **_: n.full(shape, 0), "new_ones": lambda n, x, shape, **_: n.full(shape, 1),
    "new_full": lambda n, x, shape, value, **_: n.full(shape, value), "fill": lambda n, x, value: n.tensor(
        value).expand(*x.shape),
    "empty": empty, "empty_strided": empty, "new_empty": lambda n, x, shape, **_: n.full(shape, 0),
    "new_empty_strided": lambda n, x, shape, *_, **__: n.full(shape, 0),
    "empty_like": lambda n, x, **_: n.full(x.shape, 0), "empty_permuted": empty,
    "rand": uniform, "randn": normal, "randint": integers, "randint_like": integers_like,
    "rand_like": lambda n, x, **_: uniform(n, x.shape), "randn_like": lambda n, x, **_: normal(n, x.shape),
    "randperm": lambda n, count, **_: Tensor.randperm(count, dtype=n.dtype, device=DEVICE),
    "native_dropout": dropout, "bernoulli": bernoulli, "exponential": exponential,
    "uniform": lambda n, x, low=0.0, high=1.0, **_: uniform(n, x.shape) * (high - low) + low,
    "normal_functional": lambda n, x, mean=0.0, std=1.0, **_: normal(n, x.shape) * std + mean,
}
RANDOM = {"rand", "randn", "randint", "randint_like", "rand_like", "randn_like", "randperm", "native_dropout",
          "bernoulli", "exponential", "uniform", "normal_functional"}
"""Those that draw random numbers."""
