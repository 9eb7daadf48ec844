"""Products of matrices, which the namespace and its extension `linalg` have."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from minigrad.array_api.elementwise import conj
from minigrad.array_api.parts import as_parts, operands
from minigrad.errors import ShapeError
from minigrad.tensor import Tensor

Product = Callable[[Tensor, Tensor], Tensor]


def _product(name: str, x1: Any, x2: Any, product: Product) -> Any:
    """A product of two arrays by that of Tensors; results have the operands' common type."""
    as_parts(name, x1, "iufc"), as_parts(name, x2, "iufc")
    a, b = operands(name, "iufc", x1, x2)
    if a.im is None:
        return type(a)(product(a.re, b.re).cast(a.dtype))
    re = product(a.re, b.re) - product(a.im, b.im)
    return type(a)(re, product(a.re, b.im) + product(a.im, b.re))


def matmul(x1: Any, x2: Any, /) -> Any:
    """The product of matrices in the last two axes; an array with one axis is a row on the left, a column on the
    right."""
    if not as_parts("matmul", x1).ndim or not as_parts("matmul", x2).ndim:
        raise ShapeError(f"[matmul] expected an axis or more, got shapes {list(x1.shape)} and {list(x2.shape)}")
    return _product("matmul", x1, x2, lambda a, b: a @ b)


def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    """Sums of products over axes of both: the last `axes` of x1 and the first of x2, or those that are named."""
    first, second = as_parts("tensordot", x1), as_parts("tensordot", x2)
    if isinstance(axes, int):
        left, right = list(range(first.ndim - axes, first.ndim)), list(range(axes))
    else:
        left, right = [a % first.ndim for a in axes[0]], [a % second.ndim for a in axes[1]]
    if [first.shape[a] for a in left] != [second.shape[a] for a in right]:
        raise ShapeError(f"[tensordot] expected equal sizes along {left} of {list(first.shape)} and {right} of "
                         f"{list(second.shape)}")
    rows = [a for a in range(first.ndim) if a not in left]
    columns = [a for a in range(second.ndim) if a not in right]
    shape = [first.shape[a] for a in rows] + [second.shape[a] for a in columns]
    height, middle, width = (prod(s) for s in ([first.shape[a] for a in rows], [first.shape[a] for a in left],
                                               [second.shape[a] for a in columns]))

    def product(a: Tensor, b: Tensor) -> Tensor:
        flat = a.permute(*rows, *left).reshape(height, middle), b.permute(*right, *columns).reshape(middle, width)
        return (flat[0] @ flat[1]).reshape(*shape)

    return _product("tensordot", x1, x2, product)


def matrix_transpose(x: Any, /) -> Any:
    """The transposes of matrices in the last two axes."""
    if as_parts("matrix_transpose", x).ndim < 2:
        raise ShapeError(f"[matrix_transpose] expected two axes or more, got shape {list(x.shape)}")
    return x.map(lambda t: t.transpose(-1, -2))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Sums along an axis of the products of x2 with the conjugates of x1."""
    first, second = as_parts("vecdot", x1, "iufc"), as_parts("vecdot", x2, "iufc")
    least = min(first.ndim, second.ndim)
    if not -least <= axis < (0 if least < max(first.ndim, second.ndim) else least):
        raise ShapeError(f"[vecdot] expected an axis in -{least}..-1, got {axis}")
    if first.shape[axis] != second.shape[axis]:
        raise ShapeError(f"[vecdot] expected equal sizes along {axis}, got {list(x1.shape)} and {list(x2.shape)}")
    return _product("vecdot", conj(x1), x2, lambda a, b: (a * b).sum(axis))
