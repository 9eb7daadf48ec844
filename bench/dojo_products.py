"""Times of matrix products of libraries: the best of tiles and of splits of the sum, as a library would pick it.

Weights of a library on a vendor's cards, in dojo.toml: `edge`, instructions of a step of the sum besides multiply-adds,
for each row of an item's tile; `start`, cycles of a result besides its sum; `again`, microseconds of adding up parts of
split sums; `launch`, microseconds of a launch as the table measures it; `matrix`, the share of matrix units that it
reaches; `mixed`, the rate of halves with sums in float32 over float32's. `wait` is here of a step of the sum.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minigrad.codegen.cost.gpu import Counts, costs_of, predict, resident
from minigrad.codegen.machines.gpus import Gpu

_TILES = ((256, 128, 256), (128, 128, 256), (128, 64, 128), (64, 128, 128), (64, 64, 64), (64, 32, 64), (32, 64, 64),
          (32, 32, 64), (16, 16, 64), (256, 32, 128), (32, 256, 128))
_SPLITS = (1, 2, 4, 8, 16, 32)
OPTIONS = tuple(np.array([(*tile, split) for tile in _TILES for split in _SPLITS], float).T)
"""Rows and columns of a group's tile, its items, parts of the sum: a choice each."""
STEP = 8.0


def product(gpu: Gpu, w: Mapping[str, float], m: Any, n: Any, k: Any, batch: Any = 1.0, size: Any = 4.0,
            rate: Any = 1.0, taps: Any = 1.0, options: tuple[Any, ...] = OPTIONS) -> Any:
    """Seconds of `batch` products of m x k by k x n, elements of `size` bytes, at `rate` multiply-adds for one of a
    float32 lane. Of a convolution's second operand, each element of memory is met `taps` times in a column."""
    m, n, k, batch, size, rate, taps = np.broadcast_arrays(m, n, k, batch, size, rate, taps)
    rows, columns, items, parts = (x.reshape((-1,) + (1,) * m.ndim) for x in options)
    tile = rows * columns / items
    depth = np.maximum(np.ceil(k / parts / STEP) * STEP, 2 * STEP)
    across, down = np.ceil(n / columns), np.ceil(m / rows)
    groups = down * across * batch * parts
    registers = np.minimum(tile + 2 * np.sqrt(tile) + 32, 255)
    local = 4 * STEP * (rows + columns) * size
    fma = tile * depth / rate
    other = w["edge"] * np.sqrt(tile) * depth / np.maximum(rate, 1) + w["start"] * tile
    counts = Counts(groups, items, fma, other, cached=(rows + columns / np.sqrt(taps)) * depth * size, waits=depth,
                    registers=registers, local=local)
    # what units that work at once read together is read once; where operands fit into the last cache, all is
    at_once = np.minimum(np.minimum(resident(counts, gpu) * gpu.units, groups), down * across)
    square = np.minimum(down, np.maximum(np.sqrt(at_once), at_once / across))
    once = (m + n / taps) * k
    rounds = down * across / at_once
    again = np.maximum(rounds * (square * rows + np.minimum(at_once / square, across) * columns / taps) * k, once)
    last = max(gpu.l2_bytes, gpu.l3_bytes)
    reads = once + (again - once) * (1 - np.minimum(1, last / (once * size)))
    memory = batch * ((reads + m * n) * size + np.where(parts > 1, 4.0 * m * n * (parts + 1), 0.0))
    kept = costs_of(gpu)["kept"] * np.minimum(1, gpu.l3_bytes / memory)  # in a cache of memory, from launch to launch
    counts = replace(counts, memory=memory * (1 - kept))
    extra = np.where(parts > 1, w["again"] * 1e-6, 0.0) + w["launch"] * 1e-6
    costs = {**w, "load": 0, "port": 0, "copy": 0, "slots": costs_of(gpu)["slots"]}  # edge stands for these
    return predict(counts, gpu, costs, extra).seconds.min(0)


def rate_of(dtype: Any, gpu: Gpu, w: Mapping[str, float]) -> Any:
    """Multiply-adds for one of a float32 lane: of matrix units, of pairs of halves."""
    matrix = gpu.f16_matrix_per_cycle_unit / gpu.lanes_per_unit * w["matrix"]
    # AMD's libraries use the float32 matrix units of its servers' cards
    single = float(gpu.f32_per_lane) if gpu.vendor == "AMD" and gpu.wave == 64 else 1.0
    half = matrix or max(1.0, gpu.f16_vector_ratio)
    mixed = matrix or min(half, w["mixed"])
    kind = np.asarray(dtype)
    return np.where(kind == "f32", single, np.where(kind == "f16", half, mixed))


def matmul_torch(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    linear = np.asarray(c["kernel"]) == "linear"
    rows, batch = np.where(linear, c["batch"] * c["m"], c["m"]), np.where(linear, 1, c["batch"])
    return product(gpu, w, rows, c["n"], c["k"], batch, 4.0, rate_of("f32", gpu, w))


def gemm_rocblas(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    half = np.asarray(c["dtype"]) != "f32"
    return product(gpu, w, c["m"], c["n"], c["k"], c["batch"], np.where(half, 2.0, 4.0), rate_of(c["dtype"], gpu, w))


def gemm_deepbench(c: Mapping[str, Any], gpu: Gpu, w: Mapping[str, float]) -> Any:
    half = np.asarray(c["dtype"]) != "f32"
    return product(gpu, w, c["m"], c["n"], c["k"], 1.0, np.where(half, 2.0, 4.0), rate_of(c["dtype"], gpu, w))
