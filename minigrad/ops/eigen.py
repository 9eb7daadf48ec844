"""Eigenvalues and eigenvectors of symmetric matrices by LAPACK on the host, with their gradient by hand.

numpy brings LAPACK along, so that one routine serves every size, and nothing is compiled. It is a call between the
launches of a plan (exchange.py): captures, batches and graphs that are not computed yet know nothing of it.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.dtype import DType
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.exchange import HOSTED, hosted
from minigrad.ops.matrices import cut, filled, product, ramp, transposed
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape


def _solved(memory: np.ndarray) -> None:
    """Of [batch, n + 1, n]: matrices behind a row, of which the lower triangle counts, become eigenvectors behind their
    eigenvalues in ascending order; NaN where they are not finite, or LAPACK finds none."""
    for both in memory:
        try:
            both[0], both[1:] = np.linalg.eigh(both[1:])
        except np.linalg.LinAlgError:
            both[:] = np.nan


HOSTED["eigen"] = _solved


def _eigen(x: Node) -> Node:
    return hosted(B.pad(x, ((0, 0), (1, 0), (0, 0))), "eigen")


def _eigen_vjp(node: Node, g: Node) -> tuple[Node]:
    """V (diag(dw) + F * (V.T dV)) V.T with F[i, j] = 1 / (w[j] - w[i]), made symmetric: infinite for vectors of equal
    eigenvalues, and 0 where these have no gradient."""
    n: Any = node.shape[-1]
    values, vectors = cut(node, 1, 0, 1), cut(node, 1, 1, n + 1)
    along = B.expand(values, vectors.shape)
    apart = B.sub(along, transposed(along))
    change = product(transposed(vectors), cut(g, 1, 1, n + 1))
    same = B.eq(apart, filled(apart, 0))
    degenerate = B.where(B.eq(change, filled(change, 0)), change, filled(change, float("inf")))
    inner = B.where(same, degenerate, B.div(change, B.where(same, filled(apart, 1), apart)))
    diagonal = B.eq(ramp(inner, 1), ramp(inner, 2))
    inner = B.where(diagonal, B.expand(cut(g, 1, 0, 1), inner.shape), inner)
    back = product(vectors, inner, transposed(vectors))
    return (B.mul(B.add(back, transposed(back)), filled(back, 0.5)),)


def _eigen_infer(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    batch, rows, columns = shapes[0]
    return (batch, rows + 1, columns), dtypes[0]


EIGEN = composite("eigen", _eigen_infer, _eigen, _eigen_vjp)


def eigen(x: Node) -> Node:
    """Of symmetric matrices [batch, n, n], n >= 1, of which the lower triangle counts: [batch, n + 1, n], the
    eigenvalues in ascending order over columns of eigenvectors."""
    return apply(EIGEN, x)
