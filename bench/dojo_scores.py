"""Scores of predicted times beside measured ones; README.md of gpu_times says what they mean."""
from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

Columns = dict[str, np.ndarray]


def scores(path: Path, columns: Columns, predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """All scores of one table on one device."""
    error = np.abs(predicted / measured - 1)
    found = {"n": len(measured), "rho": spearman(predicted, measured)}
    if path.parent.name == "tuning":
        found |= {"top1": best_share(predicted, measured, 1), "top8": best_share(predicted, measured, 8)}
    elif path.name.startswith("conv2d_") and "kernel" in columns:
        found["pick"] = pick(columns, predicted, measured)
    return found | {"med": float(np.median(error)), "p90": float(np.quantile(error, 0.9))}


def order(found: list[tuple[Columns, np.ndarray, np.ndarray]]) -> dict[str, float]:
    """The mean rank correlation of devices by what a row takes on each, and the errors of all."""
    by_row: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for columns, predicted, measured in found:
        for i in np.flatnonzero(np.isfinite(predicted)):
            by_row[tuple(str(x[i]) for x in columns.values())].append((predicted[i], measured[i]))
    pairs = [np.array(x) for x in by_row.values() if len(x) >= 6]
    both = np.concatenate(pairs)
    error = np.abs(both[:, 0] / both[:, 1] - 1)
    return {"n": len(both), "rho": float(np.mean([spearman(x[:, 0], x[:, 1]) for x in pairs])),
            "med": float(np.median(error)), "p90": float(np.quantile(error, 0.9))}


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 0, the mean of them where values are equal."""
    found = np.empty(len(x))
    found[np.argsort(x, kind="stable")] = np.arange(len(x))
    _, group, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.bincount(group, found) / count)[group]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The rank correlation; 0 where one of them is constant."""
    a, b = ranks(a), ranks(b)
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def best_share(predicted: np.ndarray, measured: np.ndarray, count: int) -> float:
    """The best time over the best of the `count` rows that are predicted to be fastest, equals in a random order: the
    mean of 100."""
    random = np.random.default_rng(0)
    orders = [np.lexsort((random.random(len(predicted)), predicted)) for _ in range(100)]
    return float(np.mean([measured.min() / measured[o[:count]].min() for o in orders]))


def pick(columns: Columns, predicted: np.ndarray, measured: np.ndarray) -> float:
    """The geometric mean of the best time over that of the algorithm that is predicted to be the fastest, over shapes
    that have rows for several; nan where none has."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    rest = [column for key, column in columns.items() if key != "kernel"]
    for i in range(len(measured)):
        groups[tuple(str(column[i]) for column in rest)].append(i)
    logs = [np.log(measured[g].min() / measured[g[int(np.argmin(predicted[g]))]])
            for g in (np.array(x) for x in groups.values()) if len(g) > 1]
    return float(np.exp(np.mean(logs))) if logs else float("nan")
