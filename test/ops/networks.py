"""Rows for contractions, networks and empty or tiny shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor
from ops.case import A, Case, F, In, N, P


def linear_cases() -> list[Case]:
    rows = []
    for a, b in [
        ((5, 7), (7, 3)),
        ((1, 33), (33, 9)),
        ((33, 1), (1, 9)),
        ((3, 4, 5), (3, 5, 2)),
        ((2, 1, 4, 5), (3, 5, 2)),
        ((5,), (5,)),
        ((4, 5), (5,)),
        ((5,), (5, 4)),
        ((64, 65), (65, 66)),
    ]:
        tag = f"{'x'.join(map(str, a))}_{'x'.join(map(str, b))}"
        rows.append(Case(f"matmul_{tag}", lambda x, y: x @ y, (F(*a), F(*b)), np.matmul, second=a == (5, 7)))
    rows += [
        Case("matmul_transposed", lambda x, y: x.T @ y, (F(9, 5), F(9, 3)), lambda x, y: x.T @ y),
        Case(
            "matmul_int8",
            lambda x, y: x @ y,
            (N(-128, 127, 3, 20, dtype="int8"), N(-128, 127, 20, 4, dtype="int8")),
            lambda x, y: x.astype(np.int32) @ y.astype(np.int32),
            grad=False,
        ),
        Case(
            "linear",
            lambda x, w, b: x.linear(w, b).relu(),
            (A(4, 6), F(6, 5), F(5)),
            lambda x, w, b: np.maximum(x @ w + b, 0),
        ),
        Case(
            "einsum",
            lambda x, y: Tensor.einsum("bij,bkj->kbi", x, y),
            (F(2, 3, 4), F(2, 5, 4)),
            lambda x, y: np.einsum("bij,bkj->kbi", x, y),
        ),
        Case("outer", lambda x, y: x.outer(y), (F(3), F(4)), np.outer),
    ]
    return rows


def convolutions_cases() -> list[Case]:
    rows = []
    options: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((2, 3, 7, 8), (4, 3, 3, 3), {}),
        ((1, 3, 7, 8), (4, 3, 3, 3), {"padding": 1, "stride": 2}),
        ((2, 4, 9, 9), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
        ((1, 4, 9, 8), (6, 2, 3, 2), {"groups": 2, "stride": (2, 3)}),
        ((1, 2, 11, 11), (3, 2, 3, 3), {"dilation": 2, "padding": 2, "stride": 2}),
        ((2, 3, 5, 5), (4, 3, 1, 1), {}),
        ((1, 4, 8, 8), (4, 1, 5, 5), {"groups": 4, "stride": 2, "padding": (1, 2, 1, 2)}),
        ((1, 2, 9), (3, 2, 4), {"stride": 3}),
    ]
    for x, w, o in options:
        tag = f"{'x'.join(map(str, x))}_{'x'.join(map(str, w))}_" + "_".join(f"{k}{v}" for k, v in o.items())
        rows.append(
            Case(
                f"conv2d_{tag}",
                lambda x, w, o=o: x.conv2d(w, **o),
                (F(*x), F(*w)),
                lambda x, w, o=o: conv_twin(x, w, **o),
                second=w == (4, 3, 1, 1),
            )
        )
    rows += [
        Case(
            "conv_transpose2d",
            lambda x, w: x.conv_transpose2d(w, stride=2, padding=1, output_padding=1),
            (F(1, 3, 4, 5), F(3, 2, 3, 3)),
            None,
        ),
        Case(
            "conv_transpose2d_groups",
            lambda x, w: x.conv_transpose2d(w, groups=2, stride=3),
            (F(1, 4, 3, 3), F(4, 1, 2, 2)),
            None,
        ),
        Case("max_pool2d", lambda x: x.max_pool2d(3, 2, padding=1), (A(1, 2, 7, 7),), None),
        Case(
            "max_pool2d_default",
            lambda x: x.max_pool2d(),
            (A(1, 2, 6, 7),),
            lambda x: x[..., :6].reshape(1, 2, 3, 2, 3, 2).max((3, 5)),
        ),
        Case("avg_pool2d", lambda x: x.avg_pool2d(3, 2, padding=1, count_include_pad=False), (F(1, 2, 7, 7),), None),
        Case(
            "avg_pool2d_default",
            lambda x: x.avg_pool2d(2),
            (F(1, 2, 6, 6),),
            lambda x: x.reshape(1, 2, 3, 2, 3, 2).mean((3, 5)),
        ),
        Case("interpolate", lambda x: x.interpolate((6, 3)), (F(1, 2, 4, 5),), None),
    ]
    return rows


def conv_twin(
    x: np.ndarray, w: np.ndarray, groups: int = 1, stride: Any = 1, padding: Any = 0, dilation: int = 1
) -> np.ndarray:
    """Convolution by its definition, tap by tap."""
    n = w.ndim - 2
    strides = (stride,) * n if isinstance(stride, int) else stride
    if isinstance(padding, int):
        pads = [(padding, padding)] * n
    else:
        pads = [(padding[i], padding[i + 1]) for i in range(2 * n - 2, -1, -2)]
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    out = [(x.shape[2 + i] - dilation * (w.shape[2 + i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    depth, per_group = w.shape[1], w.shape[0] // groups
    y = np.zeros((x.shape[0], w.shape[0], *out), np.float64)
    for tap in np.ndindex(*w.shape[2:]):
        at = tuple(
            slice(t * dilation, t * dilation + (o - 1) * s + 1, s) for t, o, s in zip(tap, out, strides, strict=True)
        )
        part = x[(slice(None), slice(None), *at)]
        for g in range(groups):
            rows = slice(g * per_group, (g + 1) * per_group)
            y[:, rows] += np.einsum(
                "oc,nc...->no...", w[(rows, slice(None), *tap)], part[:, g * depth : (g + 1) * depth]
            )
    return y.astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm_step(gates: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i, f, g, o = np.split(gates, 4, -1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


def _gru_step(x: np.ndarray, s: np.ndarray, h: np.ndarray) -> np.ndarray:
    (rx, zx, nx), (rh, zh, nh) = np.split(x, 3, -1), np.split(s, 3, -1)
    n, z = np.tanh(nx + _sigmoid(rx + rh) * nh), _sigmoid(zx + zh)
    return (1 - z) * n + z * h


def networks_cases() -> list[Case]:
    labels = N(0, 4, 6)
    return [
        Case(
            "binary_cross_entropy",
            lambda x, y: x.sigmoid().binary_cross_entropy(y.sigmoid(), "none"),
            (F(6, 5), F(6, 5)),
            None,
            second=True,
        ),
        Case("cross_entropy", lambda x, y: x.cross_entropy(y), (F(6, 5), labels), None, second=True),
        Case(
            "cross_entropy_smooth",
            lambda x, y: x.cross_entropy(y, label_smoothing=0.1),
            (F(6, 5), labels),
            None,
            second=True,
        ),
        Case(
            "cross_entropy_images", lambda x, y: x.cross_entropy(y, reduction="sum"), (F(2, 5, 3), N(0, 4, 2, 3)), None
        ),
        Case(
            "sparse_crossentropy_ignore",
            lambda x, y: x.sparse_categorical_crossentropy(y),
            (F(6, 5), N(-1, 4, 6)),
            None,
        ),
        Case("bce", lambda x, y: x.sigmoid().binary_crossentropy(y), (F(6), In((6,), "unit")), None),
        Case("bce_logits", lambda x, y: x.binary_crossentropy_logits(y), (A(6), F(6)), None),
        Case(
            "batchnorm_train",
            lambda x, w, b: x.batchnorm_train(w, b)[0],
            (F(3, 4, 5), F(4), F(4)),
            None,
            second=True,
            tolerance=3,
        ),
        Case(
            "lstm_step",
            lambda x, c: sum(x.lstm_step(c)),
            (F(3, 20), F(3, 5)),
            lambda x, c: sum(_lstm_step(x, c)),
            second=True,
            tolerance=2,
        ),
        Case(
            "gru_step",
            lambda x, s, h: x.gru_step(s, h),
            (F(3, 15), F(3, 15), F(3, 5)),
            _gru_step,
            second=True,
            tolerance=2,
        ),
        Case("batchnorm", lambda x, m, v: x.batchnorm(None, None, m, v), (F(3, 4, 5), F(4), P(4)), None),
        Case(
            "attention",
            lambda q, k, v: q.scaled_dot_product_attention(k, v),
            (F(2, 3, 4, 8), F(2, 3, 5, 8), F(2, 3, 5, 6)),
            None,
            second=True,
        ),
        Case(
            "attention_causal_gqa",
            lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True),
            (F(1, 4, 5, 8), F(1, 2, 5, 8), F(1, 2, 5, 8)),
            None,
        ),
        Case(
            "attention_blocks",
            lambda q, k, v: q.scaled_dot_product_attention(k, v),
            (F(2, 3, 19, 8), F(2, 3, 21, 8), F(2, 3, 21, 6)),
            None,
            second=True,
        ),
        Case(
            "attention_blocks_causal_gqa",
            lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True, causal_offset=4),
            (F(1, 4, 13, 8), F(1, 2, 17, 8), F(1, 2, 17, 8)),
            None,
        ),
        Case(
            "attention_blocks_mask",
            lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
            (F(1, 2, 9, 4), F(1, 2, 5, 4), F(1, 2, 5, 4), F(9, 5)),
            None,
        ),
        Case(
            "attention_mask",
            lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
            (F(1, 2, 3, 4), F(1, 2, 5, 4), F(1, 2, 5, 4), F(3, 5)),
            None,
        ),
    ]


def empty_cases() -> list[Case]:
    return [
        Case("empty_add", lambda x: x + 1, (F(0, 3),), lambda x: x + 1),
        Case("empty_sum", lambda x: x.sum(0), (F(0, 3),), lambda x: x.sum(0)),
        Case("empty_sum_all", lambda x: x.sum(), (F(2, 0),), lambda x: x.sum()),
        Case("empty_prod", lambda x: x.prod(1), (F(2, 0),), lambda x: x.prod(1), grad=False),
        Case("empty_matmul", lambda x, y: x @ y, (F(3, 0), F(0, 4)), np.matmul),
        Case("empty_rows", lambda x, y: x @ y, (F(0, 3), F(3, 4)), np.matmul),
        Case("empty_slice", lambda x: x[2:2] * 2, (F(5, 3),), lambda x: x[2:2] * 2),
        Case("empty_reshape", lambda x: x.reshape(0, 7), (F(3, 0),), lambda x: x.reshape(0, 7)),
        Case("empty_gather", lambda x, i: x[i], (F(3, 2), N(0, 2, 0)), lambda x, i: x[i]),
        Case("empty_cat", lambda x, y: x.cat(y), (F(0, 3), F(2, 3)), lambda x, y: np.concatenate([x, y])),
        Case("scalar_add", lambda x, y: x + y, (F(), F()), np.add),
        Case("scalar_sum", lambda x: x.sum(), (F(),), np.sum),
        Case("one_element", lambda x: x.exp().sum(0), (F(1),), lambda x: np.exp(x).sum(0)),
    ]
