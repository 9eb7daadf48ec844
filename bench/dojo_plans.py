"""Counts of kernels whose plan is known: the configurations of tuning spaces (see README.md of gpu_times).

Values of a configuration may be numbers, or arrays of them.
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from minigrad.codegen.cost.gpu import Counts, resident
from minigrad.codegen.machines.gpus import Gpu

BANKS = 32
VECTOR = 4  # words of the widest load


def xgemm(c: Mapping[str, Any], gpu: Gpu, costs: Mapping[str, float]) -> Counts:
    """CLBlast's Xgemm of 4096 x 4096 x 4096 in float32, in steps of 32 of the sum."""
    size, depth = 4096.0, 32.0
    width, height = np.minimum(c["VWM"], VECTOR), np.minimum(c["VWN"], VECTOR)
    rows, columns = c["MWG"] / c["MDIMC"], c["NWG"] / c["NDIMC"]  # of an item
    across = np.minimum(c["MDIMC"], BANKS)  # lanes side by side in a row of a wave
    loads_a, loads_b = rows / width, columns / height
    # lanes across load words that lie `rows` apart, as many lanes at once as have 32 words; down, lanes share them
    passes_a = width * np.maximum(1, np.minimum(across, BANKS / width) * rows / BANKS)
    # local memory gives all lanes a word that they share at once, the cache gives each lane its words
    shared = height * np.where(c["SB"] == 1, costs["broadcast"], 1.0)
    passes_b = np.maximum(1, shared) * np.maximum(1, BANKS / across * columns / BANKS)
    copies = (c["SA"] * c["MWG"] / width * np.maximum(width, c["MWG"] / c["MDIMA"])
              + c["SB"] * c["NWG"] / height * np.maximum(height, c["NWG"] / c["NDIMB"])) / BANKS
    registers = 16 + rows * columns + rows + columns
    spilled = np.maximum(0, registers - gpu.max_registers_per_item)
    groups = (size / c["MWG"]) * (size / c["NWG"])
    return Counts(groups, c["MDIMC"] * c["NDIMC"] * 1.0, fma=rows * columns * size, loads=(loads_a + loads_b) * size,
                  passes=(loads_a * passes_a + loads_b * passes_b + costs["spill"] * spilled) * size,
                  copies=copies * size, cached=4 * (c["MWG"] + c["NWG"]) * size, memory=4 * 3 * size * size,
                  waits=((1 - c["SA"]) * loads_a + (1 - c["SB"]) * loads_b) * size / depth, registers=registers,
                  local=4 * depth * (c["SA"] * c["MWG"] + c["SB"] * c["NWG"]))


TAPS, IMAGE = 15, 4096
TEXTURE = 3.5  # passes of a load through the read-only cache, over those of another
NOT_READ_AGAIN = 0.03  # share of values that a long loop spills rather than reads again
UNROLLED = 5  # rows of taps of a loop that is too long to be unrolled whole


def filter_15x15(c: Mapping[str, Any], gpu: Gpu, costs: Mapping[str, float]) -> Counts:
    """A filter of 15 x 15 taps over 4096 x 4096 in float32, its taps unrolled."""
    bx, by, tx, ty = (c[name] for name in ("block_size_x", "block_size_y", "tile_size_x", "tile_size_y"))
    local, items, tiles = c.get("use_shmem", 1), bx * by * 1.0, tx * ty
    groups = np.ceil(IMAGE / (bx * tx)) * np.ceil(IMAGE / (by * ty))
    edges = (IMAGE % (bx * tx) != 0) | (IMAGE % (by * ty) != 0)
    columns = np.where(bx < TAPS, (tx - 1) * bx + TAPS, TAPS * tx)  # distinct ones that an item reads
    width, height = bx * tx + TAPS - 1, by * ty + TAPS - 1  # of what a group reads
    fma = TAPS * TAPS * tiles
    amd = gpu.vendor == "AMD"
    rolled = tiles > (22 if not amd else 8 if gpu.wave == 64 else 9)
    rows = np.where(rolled, UNROLLED, TAPS)
    distinct = columns * np.where(by < rows, (ty - 1) * by + rows, rows * ty)  # values of a block of unrolled rows
    loads = np.where(edges & (local == 0), fma, np.minimum(distinct * TAPS / rows, fma))
    held, words = 24.0 + tiles, np.float64(0)
    if amd:
        held, over, words = _spilled(c, gpu, distinct, columns, edges, rolled)
        at_once = gpu.units * resident(Counts(groups, items, registers=held, local=local * 4 * width * height), gpu)
        words = words * (1 - costs["kept"] * np.minimum(1, gpu.l3_bytes / np.maximum(over * 4 * items * at_once, 1)))
        turns: Any = 1.0
    else:  # loads through the read-only cache are made early, and their values held
        early = (c["read_only"] == 1) & (local == 0)
        long = (tiles > 12) & ~rolled
        held = held + np.where(early & ~edges | long, _live_rows(by, ty, rows), 0) * columns
        words = np.maximum(0, held - gpu.max_registers_per_item) * np.where(early & ~edges, 1.0, NOT_READ_AGAIN)
        turns = np.where(early, TEXTURE, 1.0)
    pitch = width + np.where((c["use_padding"] == 1) & (bx % BANKS != 0), (bx - width) % BANKS, 0)
    steps = local * np.ceil(width / bx) * np.ceil(height / by)
    return Counts(groups, items, fma=fma, loads=loads + 2 * steps,
                  passes=loads * _conflicts(bx, pitch) * max(1, gpu.wave // BANKS) * turns, cached=4 * width * height,
                  memory=2 * 4 * IMAGE * IMAGE + 8 * costs["spilled"] * words * items * groups, waits=steps,
                  registers=np.minimum(held, gpu.max_registers_per_item), local=local * 4 * width * height)


def _spilled(c: Mapping[str, Any], gpu: Gpu, distinct: Any, columns: Any, edges: Any, rolled: Any
             ) -> tuple[Any, Any, Any]:
    """The registers of an item, the values that these do not hold, and the words that cross to memory for them.
    AMD's compiler holds to registers with which a group of 1024 items fits into what shares local memory. Where results
    are stored under conditions, sums are apart: every value is held until the last of them."""
    by, tx, ty, local = c["block_size_y"], c["tile_size_x"], c["tile_size_y"], c.get("use_shmem", 1)
    tiles = tx * ty
    most = min(gpu.register_bytes_per_unit / 4 / 1024 * gpu.units_together, gpu.max_registers_per_item)
    cached = local == 0
    again = np.where(cached | (ty == 1), 0, np.maximum(0, 1.25 * (1 - by / UNROLLED)))  # shared rows, rolled
    apart = edges & cached | np.where(rolled, again > 0, edges & (tiles > 1))
    addresses = np.where(cached & (c["read_only"] == 0) & (tx > 1), 3, 1)  # with that of a value, of two words
    together = np.where(rolled, 0, _live_rows(by, ty, TAPS) * columns * addresses)
    held = np.where(apart, distinct * np.where(cached, 3, 1), together) + tiles + 8
    over = np.maximum(0, held - most)
    return np.minimum(held, most), over, np.where(
        apart, 0.7 * TAPS * TAPS * tiles * over / held * np.where(rolled & ~(edges & cached), again, 1.0), over)


@lru_cache(maxsize=4096)
def _live(block: int, tiles: int, rows: int) -> int:
    found = 0
    for step in range(rows):
        read = {r for k in range(1, tiles) for r in range(k * block, k * block + step + 1)}
        found = max(found, sum(any(step < r - j * block < rows for j in range(tiles)) for r in read))
    return found


@lru_cache(maxsize=4096)
def _bank_conflicts(block: int, pitch: int) -> int:
    lane = np.arange(BANKS)
    return int(np.bincount(np.unique(lane // block * pitch + lane % block) % BANKS).max())


_live_rows = np.vectorize(_live, otypes=[float])
"""Rows of an image that tiles `block` apart have read and read again, at most, in a block of unrolled rows of taps."""
_conflicts = np.vectorize(_bank_conflicts, otypes=[float])
"""Words of one bank that a wave reads at once, in rows of `block` lanes that lie `pitch` words apart."""
