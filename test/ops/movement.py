"""Rows for reductions, movement and indexing."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor
from ops.case import A, Case, F, M, N, P, S


def reduces_cases() -> list[Case]:
    rows = []
    shapes: list[tuple[tuple[int, ...], Any]] = [
        ((3, 5, 7), None),
        ((3, 5, 7), 0),
        ((3, 5, 7), 1),
        ((3, 5, 7), (0, 2)),
        ((129,), 0),
        ((1,), 0),
        ((2, 1, 3), 1),
        ((67, 33), 1),
        ((67, 33), 0),
    ]
    for shape, axis in shapes:
        tag = f"{'x'.join(map(str, shape))}_{axis}"
        rows.append(Case(f"sum_{tag}", lambda x, a=axis: x.sum(a), (F(*shape),), lambda x, a=axis: x.sum(a)))
        rows.append(Case(f"max_{tag}", lambda x, a=axis: x.max(a), (A(*shape),), lambda x, a=axis: x.max(a)))
    rows += [
        Case("min", lambda x: x.min(1, keepdim=True), (A(4, 9),), lambda x: x.min(1, keepdims=True)),
        Case("prod", lambda x: x.prod(1), (P(4, 5),), lambda x: x.prod(1), second=True),
        Case(
            "prod_zeros",
            lambda x: (x * Tensor([[0.0], [1.0], [2.0]], device=x.device)).prod(0),
            (P(3, 4),),
            lambda x: (x * np.array([[0], [1], [2]], np.float32)).prod(0),
        ),
        Case("max_ties", lambda x: (x * 0).max(1), (F(3, 4),), lambda x: (x * 0).max(1), grad=False),
        Case("max_special", lambda x: x.max(1), (S(4, 12),), lambda x: x.max(1), grad=False),
        Case("min_special", lambda x: x.min(1), (S(9, 3),), lambda x: x.min(1), grad=False),
        Case("sum_special", lambda x: x.sum(1), (S(9, 3),), lambda x: x.sum(1), grad=False),
        Case("sum_bool", lambda x: x.sum(0), (M(30, 2),), lambda x: x.sum(0).astype(np.int32), grad=False),
        Case(
            "sum_int8",
            lambda x: x.sum(),
            (N(-128, 127, 99, dtype="int8"),),
            lambda x: x.sum(dtype=np.int32),
            grad=False,
        ),
        Case(
            "sum_in_int32_wraps",
            lambda x: x.sum(dtype="int32"),
            (N(1 << 30, 1 << 30, 9),),
            lambda x: x.sum(dtype=np.int32),
            grad=False,
        ),
        Case("sum_int32", lambda x: x.sum(), (N(1 << 30, 1 << 30, 9),), lambda x: x.sum(dtype=np.int64), grad=False),
        Case("prod_int", lambda x: x.prod(0), (N(-3, 3, 5, 4),), lambda x: x.prod(0).astype(np.int32), grad=False),
        Case("max_int", lambda x: x.max(0), (N(-99, 99, 5, 4),), lambda x: x.max(0), grad=False),
        Case("any", lambda x: x.any(0), (M(2, 9),), lambda x: x.any(0), grad=False),
        Case("all", lambda x: x.all(0), (M(2, 9),), lambda x: x.all(0), grad=False),
        Case("mean", lambda x: x.mean(-1), (F(5, 6),), lambda x: x.mean(-1), second=True),
        Case("var", lambda x: x.var(1), (F(5, 6),), lambda x: x.var(1, ddof=1), second=True),
        Case("std", lambda x: x.std(0), (F(5, 6),), lambda x: x.std(0, ddof=1), second=True),
        Case("argmax", lambda x: x.argmax(1), (N(0, 4, 6, 9),), lambda x: x.argmax(1).astype(np.int32), grad=False),
        Case("argmax_special", lambda x: x.argmax(1), (S(6, 9),), lambda x: x.argmax(1).astype(np.int32), grad=False),
        Case("argmin", lambda x: x.argmin(0), (F(6, 9),), lambda x: x.argmin(0).astype(np.int32), grad=False),
        Case("argmin_flat", lambda x: x.argmin(), (F(6, 9),), lambda x: x.argmin().astype(np.int32), grad=False),
        Case("logsumexp", lambda x: x.logsumexp(1), (F(5, 6),), lambda x: np.log(np.exp(x).sum(1)), second=True),
        Case("softmax", lambda x: x.softmax(-1), (F(5, 6),), _softmax, second=True),
        Case("softmax_axis0", lambda x: (x * 50).softmax(0), (F(5, 6),), None),
        Case("log_softmax", lambda x: x.log_softmax(-1), (F(5, 6),), lambda x: np.log(_softmax(x)), second=True),
        Case("cumsum", lambda x: x.cumsum(1), (F(3, 11),), lambda x: x.cumsum(1)),
        Case("cumsum_long", lambda x: x.cumsum(0), (F(700, 2),), lambda x: x.cumsum(0), tolerance=4),
        Case("cumprod", lambda x: x.cumprod(1), (P(3, 11),), lambda x: x.cumprod(1)),
        Case("cummax", lambda x: x.cummax(1)[0], (A(3, 11),), lambda x: np.maximum.accumulate(x, 1)),
        Case("cummin_special", lambda x: x.cummin(1)[0], (S(3, 9),), lambda x: np.minimum.accumulate(x, 1), grad=False),
        Case("layernorm", lambda x: x.layernorm(), (F(4, 10),), None, second=True, tolerance=3),
        Case(
            "rms_norm",
            lambda x: x.rms_norm(),
            (F(4, 10),),
            lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6),
            second=True,
        ),
    ]
    return rows


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def movement_cases() -> list[Case]:
    return [
        Case("reshape", lambda x: x.reshape(4, -1) * 2, (F(2, 6, 3),), lambda x: x.reshape(4, 9) * 2),
        Case(
            "reshape_permuted", lambda x: x.permute(1, 0).reshape(3, 4) + 1, (F(4, 3),), lambda x: x.T.reshape(3, 4) + 1
        ),
        Case(
            "reshape_4_3_to_6_2",
            lambda x: x.permute(1, 0).reshape(6, 2).permute(1, 0).reshape(12) + 0.5,
            (F(4, 3),),
            lambda x: x.T.reshape(6, 2).T.reshape(12) + np.float32(0.5),
        ),
        Case(
            "permute",
            lambda x: x.permute(2, 0, 1) * 1.5,
            (F(2, 3, 4),),
            lambda x: x.transpose(2, 0, 1) * np.float32(1.5),
        ),
        Case("expand", lambda x: x.expand(4, 3, 5) * 2, (F(3, 1),), lambda x: np.broadcast_to(x, (4, 3, 5)) * 2),
        Case(
            "pad",
            lambda x: x.pad(((1, 2), (0, 3)), value=0.5),
            (F(3, 4),),
            lambda x: np.pad(x, ((1, 2), (0, 3)), constant_values=0.5),
        ),
        Case("pad_negative", lambda x: x.pad((-1, 2)), (F(3, 4),), lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2)))),
        Case(
            "pad_reflect",
            lambda x: x.pad((1, 2), mode="reflect"),
            (F(3, 4),),
            lambda x: np.pad(x, ((0, 0), (1, 2)), mode="reflect"),
        ),
        Case("shrink", lambda x: x.shrink(((1, 3), None)) * 2, (F(4, 5),), lambda x: x[1:3] * 2),
        Case("slice_steps", lambda x: x[1::2, ::-1] * 2, (F(7, 5),), lambda x: x[1::2, ::-1] * 2),
        Case("slice_negative_step", lambda x: x[::-3, 4:0:-2] + 1, (F(8, 6),), lambda x: x[::-3, 4:0:-2] + 1),
        Case("getitem_mixed", lambda x: x[1, ..., None, -2] * 2, (F(3, 4, 5),), lambda x: x[1, ..., None, -2] * 2),
        Case("flip", lambda x: x.flip(0, 2) * 2, (F(2, 3, 4),), lambda x: x[::-1, :, ::-1] * 2),
        Case("cat", lambda x, y: x.cat(y, dim=1), (F(3, 2), F(3, 4)), lambda x, y: np.concatenate([x, y], 1)),
        Case(
            "cat_special",
            lambda x, y: x.cat(y, dim=0),
            (S(9, 2), S(5, 2)),
            lambda x, y: np.concatenate([x, y]),
            grad=False,
        ),
        Case(
            "cat_int", lambda x, y: x.cat(y), (N(0, 9, 3), N(0, 9, 4)), lambda x, y: np.concatenate([x, y]), grad=False
        ),
        Case("stack", lambda x, y: x.stack(y, dim=1), (F(3, 2), F(3, 2)), lambda x, y: np.stack([x, y], 1)),
        Case("split_second", lambda x: x.split(2, dim=1)[1] * 2, (F(3, 5),), lambda x: x[:, 2:4] * 2),
        Case("repeat", lambda x: x.repeat(2, 1, 3), (F(2, 3),), lambda x: np.tile(x, (2, 1, 3))),
        Case("roll", lambda x: x.roll(2, 1), (F(2, 5),), lambda x: np.roll(x, 2, 1)),
        Case("tril", lambda x: x.tril(), (F(4, 5),), np.tril),
        Case("triu", lambda x: x.triu(1), (F(4, 5),), lambda x: np.triu(x, 1)),
        Case("unfold", lambda x: x.unfold(1, 3, 2).sum(-1), (F(2, 9),), None),
        Case(
            "window_overlap",
            lambda x: (x.unfold(0, 3, 1) * Tensor([1.0, -2.0, 3.0], device=x.device)).sum(-1),
            (F(11),),
            lambda x: x[:-2] - 2 * x[1:-1] + 3 * x[2:],
        ),
        Case("unwindow", lambda x: (x.unfold(0, 3, 2) * x.unfold(0, 3, 2)).sum().gradient(x)[0], (F(11),), None),
        Case("flatten_then_window", lambda x: x.flatten().unfold(0, 4, 3).sum(1), (F(3, 5),), None),
        Case("contiguous", lambda x: (x + 1).contiguous() * 2, (F(3, 4),), lambda x: (x + 1) * 2),
        Case("detach", lambda x: x.detach() + 1, (F(3, 4),), lambda x: x + 1, grad=False),
    ]


def _put(x: np.ndarray, index: Any, value: Any) -> np.ndarray:
    y = x.copy()
    y[index] = value
    return y


def _assigned(x: Tensor, index: Any, value: Any) -> Tensor:
    y = x * 1.0 if x.dtype.is_float else x + 0
    y[index] = value
    return y


def _scattered(x: np.ndarray, index: np.ndarray, value: np.ndarray, how: Any) -> np.ndarray:
    y = x.copy()
    how.at(y, (index, np.arange(x.shape[1])[None, :]), value)
    return y


def indexed_cases() -> list[Case]:
    i = N(-4, 3, 2, 5)
    return [
        Case("gather", lambda x, i: x.gather(1, i), (F(3, 5), N(0, 4, 3, 7)), lambda x, i: np.take_along_axis(x, i, 1)),
        Case(
            "gather_axis0",
            lambda x, i: x.gather(0, i) * 2,
            (F(6, 5), N(0, 5, 4, 5)),
            lambda x, i: np.take_along_axis(x, i, 0) * 2,
        ),
        Case("embedding", lambda w, i: w.embedding(i), (F(10, 6), N(0, 9, 2, 4)), lambda w, i: w[i]),
        Case("index_tensor", lambda x, i: x[i], (F(4, 3), i), lambda x, i: x[i]),
        Case(
            "index_two_tensors",
            lambda x, i, j: x[:, i, j] * 2,
            (F(2, 4, 5), N(-4, 3, 6), N(0, 4, 3, 6)),
            lambda x, i, j: x[:, i, j] * 2,
        ),
        Case("index_apart", lambda x, i: x[1, :, i], (F(2, 4, 5), N(0, 4, 3)), lambda x, i: x[1][:, i]),
        Case("index_none", lambda x, i: x[:, None, i, 1:], (F(2, 4, 5), N(0, 3, 2, 3)), lambda x, i: x[:, None, i, 1:]),
        Case(
            "scatter_add",
            lambda x, i, v: x.scatter_add(0, i, v),
            (F(4, 5), N(0, 3, 7, 5), F(7, 5)),
            lambda x, i, v: _scattered(x, i, v, np.add),
        ),
        Case(
            "scatter_add_bool",
            lambda x, i, v: x.scatter_add(0, i, v),
            (M(4, 5), N(0, 3, 7, 5), M(7, 5)),
            lambda x, i, v: _scattered(x, i, v, np.add),
            grad=False,
        ),
        Case(
            "scatter_prod",
            lambda x, i, v: x.scatter_reduce(0, i, v, "prod"),
            (A(4, 5), N(0, 3, 7, 5), F(7, 5)),
            lambda x, i, v: _scattered(x, i, v, np.multiply),
        ),
        Case(
            "scatter_max",
            lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
            (A(4, 5), N(0, 3, 7, 5), F(7, 5)),
            lambda x, i, v: _scattered(x, i, v, np.maximum),
        ),
        Case(
            "scatter_min",
            lambda x, i, v: x.scatter_reduce(0, i, v, "amin"),
            (A(4, 5), N(0, 3, 7, 5), F(7, 5)),
            lambda x, i, v: _scattered(x, i, v, np.minimum),
        ),
        Case(
            "scatter_set",
            lambda x, i, v: x.scatter(0, i, v),
            (F(4, 5), N(0, 3, 3, 5), F(3, 5)),
            lambda x, i, v: _put(x, (i, np.arange(5)[None, :]), v),
        ),
        Case("one_hot", lambda i: i.one_hot(5), (N(0, 4, 7),), lambda i: np.eye(5, dtype=np.int32)[i], grad=False),
        Case("setitem_row", lambda x, v: _assigned(x, 1, v), (F(3, 4), F(4)), lambda x, v: _put(x, 1, v)),
        Case(
            "setitem_steps",
            lambda x, v: _assigned(x, (slice(None), slice(3, None, -2)), v),
            (F(3, 5), F(3, 2)),
            lambda x, v: _put(x, (slice(None), slice(3, None, -2)), v),
        ),
        Case("setitem_scalar", lambda x: _assigned(x, 0, 9), (F(3, 4),), lambda x: _put(x, 0, 9)),
        Case(
            "setitem_int",
            lambda x: _assigned(x, slice(1, 3), 9),
            (N(0, 5, 6),),
            lambda x: _put(x, slice(1, 3), 9),
            grad=False,
        ),
    ]


def ordered_cases() -> list[Case]:
    return [
        Case("sort", lambda x: x.sort()[0], (A(3, 11),), lambda x: np.sort(x)),
        Case("sort_merged", lambda x: x.sort(0)[0], (F(600, 2),), lambda x: np.sort(x, 0), grad=False),
        Case("sort_special", lambda x: x.sort()[0], (S(4, 12),), lambda x: np.sort(x), grad=False),
        Case("argsort", lambda x: x.argsort(0), (N(-3, 3, 20, 2),), lambda x: np.argsort(x, 0, "stable"), grad=False),
        Case("topk", lambda x: x.topk(3)[0], (A(2, 9),), lambda x: -np.sort(-x)[:, :3]),
        Case("kthvalue", lambda x: x.kthvalue(2, 0)[0], (A(5, 3),), lambda x: np.sort(x, 0)[1]),
        Case("median", lambda x: x.median(1), (A(3, 9),), lambda x: np.median(x, 1)),
        Case("searchsorted", lambda x, y: x.sort()[0].searchsorted(y), (F(9), F(3, 4)),
             lambda x, y: np.searchsorted(np.sort(x), y), grad=False),
    ]
