"""Fits weights of the model of GPUs to tables of measured times, by least squares of logarithms: errors of more than a
third count by their size alone, each device as much as the next. `python -m bench dojo --fit TABLE` prints them.

Weights stay within bounds that have a meaning: an algorithm does not do less than its work, nor reach more than the
peak."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench import dojo
from bench.dojo_scores import scores
from minigrad.codegen.machines.gpus import Gpu

PLANS = ("gemm_clblast", "conv2d_15x15", "conv2d_15x15_wide")
"""Tables whose weights are those of cards' families, fitted together."""
BOUNDS = {"matrix": (0.2, 1.0), "second": (0.0, 1.0), "direct": (1.0, 9.0), "igemm": (1.0, 9.0), "gemm": (1.0, 9.0),
          "winograd": (1.0, 9.0), "fft": (1.0, 9.0), "kept": (0.0, 0.9), "overlap": (0.0, 3.0), "spectrum": (0.1, 9.0),
          "half": (1.0, 2.0), "last": (0.5, 40.0), "again": (0.1, 500.0), "edge": (0.02, 100.0), "wait": (1.0, 5000.0),
          "load": (0.2, 20.0), "loop": (0.1, 500.0), "launch": (0.5, 500.0), "transform": (0.01, 20.0)}
GIVEN = ("slots",)
"""Facts, which are not fitted."""
HUBER, STEP = 0.3, 0.01


@dataclass(frozen=True)
class Rows:
    """The rows of a table on a device. `weight` of each: those that are among the fastest count for more in tuning."""

    table: str
    path: Path
    device: str
    gpu: Gpu
    columns: dict[str, np.ndarray]
    measured: np.ndarray

    def part(self, chosen: np.ndarray) -> Rows:
        return replace(self, columns={k: v[chosen] for k, v in self.columns.items()}, measured=self.measured[chosen])

    @property
    def weight(self) -> np.ndarray:
        m = self.measured
        fast = 4.0 * (m < np.quantile(m, 0.1)) + 12.0 * (m < np.quantile(m, 0.01)) if self.table in PLANS else 0 * m
        return (1 + fast) / len(m)

    def predicted(self, weights: dojo.Weights) -> np.ndarray:
        given = dojo.weights_of(self.table, self.gpu)
        return dojo.predicted(self.gpu, self.table, self.columns, {**given, **weights})

    def scores(self, weights: dojo.Weights) -> dict[str, float]:
        guess = self.predicted(weights)
        there = np.isfinite(guess)
        return scores(self.path, self.part(there).columns, guess[there], self.measured[there])


def fit(parts: Sequence[Rows], start: dojo.Weights, turns: int = 25) -> dict[str, float]:
    """The weights with the least error, by the method of Levenberg and Marquardt in their logarithms."""
    names = list(start)
    low, high = (np.log([max(BOUNDS.get(name, (1e-3, 1e5))[k], 1e-3) for name in names]) for k in (0, 1))
    measured = np.log(np.concatenate([p.measured for p in parts]))
    weight = np.concatenate([p.weight for p in parts])

    def errors(x: np.ndarray) -> np.ndarray:
        weights = dict(zip(names, np.exp(x), strict=True))
        return np.nan_to_num(np.log(np.concatenate([p.predicted(weights) for p in parts])) - measured)

    def loss(e: np.ndarray) -> float:
        return float(np.sum(weight * np.where(np.abs(e) < HUBER, e * e, 2 * HUBER * np.abs(e) - HUBER ** 2)))

    x = np.clip(np.log([max(start[name], 1e-3) for name in names]), low, high)
    e, damping = errors(x), 0.01
    for _ in range(turns):
        slope = np.stack([(errors(x + STEP * unit) - e) / STEP for unit in np.eye(len(x))], 1)
        scale = weight * np.where(np.abs(e) < HUBER, 1, HUBER / np.maximum(np.abs(e), HUBER))
        normal, right = slope.T @ (slope * scale[:, None]), slope.T @ (e * scale)
        before = loss(e)
        for _ in range(8):
            damped = normal + damping * np.diag(np.diag(normal)) + 1e-9 * np.eye(len(x))
            tried = np.clip(x - np.clip(np.linalg.solve(damped, right), -0.7, 0.7), low, high)
            found = errors(tried)
            if loss(found) < before:
                break
            damping *= 4
        else:
            break
        x, e, damping = tried, found, damping / 5
        if loss(e) > before * (1 - 1e-4):
            break
    return {name: float(value) for name, value in zip(names, np.exp(x), strict=True)}


def report(folder: Path, table: str, sample: int) -> int:
    """Prints weights by vendor, then the scores with them, and of each device with those that have not seen it."""
    facts = dojo.devices(folder)
    wanted = list(PLANS) if table in PLANS else [table]
    parts = [Rows(name, path, device, dojo.card(facts[device]), columns, measured)
             for name, path in dojo.tables(folder, wanted) for device, columns, measured in dojo.rows(path, sample)]
    for key, own in _by_weights(parts).items():
        start = {k: v for k, v in dojo.weights_of(own[0].table, own[0].gpu).items() if k not in GIVEN}
        weights = fit(own, start)
        print(f"[{table}.\"{key}\"]", *(f"{name} = {value:.3g}" for name, value in weights.items()), sep="\n")
        for p in own:
            _line("fitted", p, p.scores(weights))
            others = [x for x in own if x.device != p.device]
            if others:
                _line("without", p, p.scores(fit(others, weights, 12)))
            chosen = np.random.default_rng(0).random(len(p.measured)) < 0.5
            _line("half", p.part(~chosen), p.part(~chosen).scores(fit([*others, p.part(chosen)], weights, 6)))
    return 0


def _by_weights(parts: Sequence[Rows]) -> dict[str, list[Rows]]:
    """Rows by the vendor and wave that they share weights with."""
    found: dict[str, list[Rows]] = {}
    for p in parts:
        found.setdefault(dojo.key_of(p.table, p.gpu), []).append(p)
    return found


def _line(kind: str, rows: Rows, found: dict[str, float]) -> None:
    print(f"{kind:<8} {rows.table:<18} {rows.device:<18}", *(f"{k} {v:.3f}" for k, v in found.items()), flush=True)
