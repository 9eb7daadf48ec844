"""The time of one launch of a function on a card: its counts (traffic.py) as those that the model of time takes
(gpu.py), with what the card's caches hold of them.

A group asks the last cache for the bytes that it touches, each once where the unit's cache holds what its groups touch,
else once in each step of its outermost loop. Memory gives each byte once where the last cache holds all that the launch
touches, else part of what groups that do not run together touch again.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from minigrad.codegen.cost.accesses import Moved
from minigrad.codegen.cost.gpu import Counts, Prediction, between, costs_of, predict, resident
from minigrad.codegen.cost.issue import Work
from minigrad.codegen.cost.traffic import work_of
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.machines.gpus import Gpu

PATTERNS = {"tiles": "product", "matrix": "product", "matrix_groups": "product", "contraction": "product",
            "panels": "product", "window_groups": "window", "window": "window", "pointwise": "stream",
            "reduction": "stream", "group_reduction": "stream", "rows": "stream"}
"""The patterns of the model's accuracy by those of plans; others have the range of the widest."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch on a card: what it does, as the model takes it, and the time. `registers` and `spills` of an item are
    its compiler's, or an estimate where `compiled` is false."""

    work: Work
    counts: Counts
    prediction: Prediction
    registers: int
    spills: int
    compiled: bool
    pattern: str
    seconds: float
    least: float
    most: float

    @property
    def moved(self) -> float:
        """Bytes that cross to and from memory."""
        return float(self.counts.memory)


@lru_cache(maxsize=1 << 14)
def launched(function: Function, dims: tuple[int, ...], gpu: Gpu, how: str,
             compiled: tuple[int, int] | None = None) -> Launched:
    """The launch of a function with these dims, planned as `how`. `compiled` are registers of an item and spills."""
    work = _work(function, dims, gpu.wave, gpu.sector_bytes)
    return launch_of(work, gpu, pattern_of(how), compiled)


def launch_of(work: Work, gpu: Gpu, pattern: str, compiled: tuple[int, int] | None = None) -> Launched:
    """The same of counts that are known."""
    registers, spills = compiled or (round(min(work.registers, gpu.max_registers_per_item)), 0)
    counts = counts_of(work, gpu, registers, spills)
    found = predict(counts, gpu, launch=gpu.launch_us_measured * 1e-6)
    seconds = float(found.seconds)
    least, most = between(seconds, pattern, gpu)
    return Launched(work, counts, found, registers, spills, compiled is not None, pattern, seconds, least, most)


@lru_cache(maxsize=4096)
def _work(function: Function, dims: tuple[int, ...], wave: int, sector: int) -> Work:
    return work_of(function, {v.name: n for v, n in zip(function.dims, dims, strict=True)}, wave, sector)


def timer(function: Function, gpu: Gpu, compiled: tuple[int, int] | None) -> Callable[[Sequence[object]], float]:
    """A function that gives the predicted seconds of a launch with these arguments."""
    count = len(function.dims)

    def seconds(arguments: Sequence[object]) -> float:
        dims = tuple([x for x in arguments[len(arguments) - count:] if isinstance(x, int)])
        return launched(function, dims, gpu, "", compiled).seconds

    return seconds


def pattern_of(how: str) -> str:
    """The pattern of the model's accuracy that a plan belongs to."""
    found = re.match(r"plan (\w+)", how)
    name = PATTERNS.get(found[1] if found else "", "convolution")
    return "convolution" if name == "product" and "fuse r" in how else name


def counts_of(work: Work, gpu: Gpu, registers: int, spills: int = 0) -> Counts:
    """The counts as the model of time takes them."""
    weights = costs_of(gpu)
    units = work.matrix * gpu.lanes_per_unit / (gpu.f16_matrix_per_cycle_unit or gpu.lanes_per_unit)
    made: dict[str, Any] = {"groups": work.groups, "items": work.items, "registers": registers, "local": work.local}
    held = float(resident(Counts(**made), gpu))
    cached = {name: _asked(m, work, gpu, held) for name, m in work.buffers.items()}
    memory = _memory(work, cached, gpu, held)
    memory += 8 * weights["spilled"] * spills * work.items * work.groups
    passes = work.passes - (1 - weights["broadcast"]) * work.broadcasts
    return Counts(fma=work.fma + units, other=work.other + work.address, loads=work.loads - work.staged, passes=passes,
                  copies=work.copies, cached=sum(cached.values()), memory=memory, waits=work.waits, **made)


def _asked(m: Moved, work: Work, gpu: Gpu, held: float) -> float:
    """Bytes of a buffer that a group asks the last cache for."""
    touched = sum(x.group for x in work.buffers.values()) * held
    again = m.group if touched <= gpu.l1_bytes_per_unit else m.step
    return min(again, m.sectors / max(work.groups, 1)) if m.sectors else 0.0


def _memory(work: Work, cached: Mapping[str, float], gpu: Gpu, held: float) -> float:
    """Bytes that cross to and from memory."""
    together = max(1.0, min(work.groups, held * gpu.units))
    cache = max(gpu.l2_bytes, gpu.l3_bytes)
    whole = sum(m.all for m in work.buffers.values())
    missed = max(0.0, 1 - cache / max(whole, 1.0))
    total = 0.0
    for name, m in work.buffers.items():
        again = min(m.group * _shared(m, together) * work.groups / together, cached[name] * work.groups)
        total += m.all + missed * max(0.0, again - m.all)
    return total


def _shared(m: Moved, groups: float) -> float:
    """The different shares that so many groups have which follow each other."""
    below = min(int(groups).bit_length() - 1, len(m.shared) - 1)
    return m.shared[below] * (groups / (1 << below) if below < len(m.shared) - 1
                              and m.shared[below + 1] > m.shared[below] else 1.0) if m.shared else 0.0
