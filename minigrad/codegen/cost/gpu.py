"""The time of a launch on a GPU: from counts of what it does and the facts of a card, one function for every pattern.

    resident   groups that a unit holds at once, by registers, local memory, waves and groups
    a group    the longer of arithmetic and of beginning instructions, multiply-adds among them; passes through the port
               of local memory and cache, of which that hides a part, or they of that
    a round    that of the groups which a unit holds, beside the time that one of them waits
    time       rounds of the unit that has most groups; what crosses from the last cache and from memory, which all
               units share; what a launch costs besides

The weights are those of the card's vendor, in gpu.toml:

    slots       instructions of waves that a unit begins in a cycle where its lanes are not the limit
    load        slots of a scheduler that a load or store takes, besides its passes
    port        cycles of a pass of 32 banks
    copy        likewise for copies into local memory, which wait for each other
    broadcast   passes of a vector's word that lanes share
    spill       passes of a word that registers do not hold, in each step
    spilled     words that cross to memory for a word of a work-item that spills
    last        bytes that the last cache before memory gives for one that memory gives
    second      part of the second largest that the largest does not hide
    wait        cycles until a load that missed arrives
    overlap     how well waiting is hidden: 0 is not at all, at 1 the two are legs of a right angle
    kept        share of spilled words that a last cache which holds them all serves as fast as registers

Everything may be arrays of numpy: of many candidates at once.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.codegen.machines.gpus import Gpu

Number = Any
"""A float, or an array with one for each candidate."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of what a launch does.

    Of a work-item: `fma` float32 multiply-adds that lanes do one by one (two that an instruction does at once are one),
    `other` instructions, `loads` and stores that the unit's cache or local memory serve, `waits`, loads that each wait
    for the one before. Of a wave: `passes` of 32 banks. Of a group: `copies`, passes into local memory, and `cached`,
    bytes that it asks of the last cache. Of them all: `memory`, bytes that cross to and from memory. `registers` of a
    work-item, `local` bytes of a group.
    """

    groups: Number
    items: Number
    fma: Number = 0.0
    other: Number = 0.0
    loads: Number = 0.0
    passes: Number = 0.0
    copies: Number = 0.0
    cached: Number = 0.0
    memory: Number = 0.0
    waits: Number = 0.0
    registers: Number = 32.0
    local: Number = 0.0


TERMS = ("arithmetic", "instructions", "local memory and cache", "waiting", "last cache", "memory", "launch")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a launch and of what it consists of, each as if it were alone; groups that a unit holds, and rounds of
    the unit that has most."""

    seconds: Number
    terms: Mapping[str, Number]
    resident: Number
    rounds: Number

    @property
    def bound(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: float(self.terms[name]))


def predict(counts: Counts, gpu: Gpu, costs: Mapping[str, float] | None = None, launch: Number = 0.0) -> Prediction:
    """The time of a launch by the weights `costs`, else those of the card's vendor; `launch` are seconds besides."""
    w, c = costs_of(gpu) if costs is None else costs, counts
    waves, held = np.ceil(c.items / gpu.wave), resident(c, gpu)
    width = 128 / gpu.local_bytes_per_cycle_unit  # cycles in which the port of 32 banks serves all of them
    of_group = {"arithmetic": c.fma * waves * gpu.wave / gpu.lanes_per_unit,
                "instructions": (c.fma + c.other + w["load"] * c.loads) * waves / issue_rate(gpu, w),
                "local memory and cache": (w["port"] * c.passes * waves + w["copy"] * c.copies) * width}
    *issued, port = of_group.values()
    each, wait = _joined((np.maximum(*issued), port), w["second"]), w["wait"] * c.waits
    most = np.ceil(c.groups / gpu.units)  # groups of the busiest unit
    rounds, rest = np.divmod(most, held)
    cycles = rounds * _round(held * each, wait, w) + np.where(rest > 0, _round(rest * each, wait, w), 0.0)
    a_cycle = 1 / (gpu.clock_mhz * 1e6 * gpu.clock_share_measured)
    a_byte = 1 / (gpu.dram_gbs * 1e9 * gpu.dram_share_measured)
    shared = {"last cache": c.groups * c.cached * a_byte / w["last"], "memory": c.memory * a_byte}
    seconds = _joined((cycles * a_cycle, *shared.values()), w["second"]) + launch
    terms = {name: most * cost * a_cycle for name, cost in of_group.items()}
    terms["waiting"] = (rounds + (rest > 0)) * wait * a_cycle
    return Prediction(seconds, terms | shared | {"launch": launch}, held, rounds + (rest > 0))


def declared(gpu: Gpu) -> Gpu:
    """The card without what was measured on it, by which plans are compared: what is chosen is the same everywhere."""
    return replace(gpu, dram_share_measured=0.8, clock_share_measured=1.0)


def resident(counts: Counts, gpu: Gpu) -> Number:
    """The groups that a unit holds at once, at least one for the units that share their local memory."""
    c, units = counts, gpu.units_together
    waves = np.ceil(c.items / gpu.wave)
    scheduler = gpu.register_bytes_per_unit / 4 / gpu.schedulers_per_unit
    by_registers = units * gpu.schedulers_per_unit * np.floor(scheduler / (allocated(c.registers, gpu) * gpu.wave))
    by_waves = np.floor(np.minimum(by_registers, units * gpu.warps_per_unit) / waves)
    granules = np.ceil((c.local + gpu.local_reserved) / gpu.local_granule)
    by_local = np.floor(units * gpu.local_bytes_per_unit / np.maximum(granules * gpu.local_granule, 1))
    return np.maximum(np.minimum(np.minimum(by_waves, by_local), gpu.groups_per_unit * units), 1) / units


def allocated(registers: Number, gpu: Gpu) -> Number:
    """The registers that an item has, for those that it needs: NVIDIA's granule is that of a wave."""
    granule = gpu.register_granule / (gpu.wave if gpu.register_granule > gpu.wave else 1)
    return np.minimum(np.ceil(registers / granule) * granule, gpu.max_registers_per_item)


def issue_rate(gpu: Gpu, costs: Mapping[str, float]) -> float:
    """The instructions of waves that a unit begins in a cycle."""
    return max(gpu.lanes_per_unit / gpu.wave, costs["slots"])


def costs_of(gpu: Gpu) -> Mapping[str, float]:
    """The weights of a card's vendor, in place of those that it has not those of any."""
    own = _file().get(gpu.vendor, {})
    return {name: value for name, value in {**_file()["any"], **own}.items() if name != "range"}


def between(seconds: float, pattern: str, gpu: Gpu) -> tuple[float, float]:
    """The range of a predicted time, by its pattern: product, convolution, stream, window."""
    factor = _file().get(gpu.vendor, _file()["any"])["range"].get(pattern, _file()["any"]["range"]["product"])
    return seconds / factor, seconds * factor


@cache
def _file() -> dict[str, dict[str, Any]]:
    import tomllib  # not before a time is asked for

    return tomllib.loads(Path(__file__).with_name("gpu.toml").read_text(encoding="utf-8"))


def _joined(terms: Any, second: float) -> Number:
    """The largest term and a part of the second."""
    below: Number = 0.0
    largest: Number = 0.0
    for term in terms:
        below = np.maximum(below, np.minimum(term, largest))
        largest = np.maximum(largest, term)
    return largest + second * below


def _round(busy: Number, wait: Number, w: Mapping[str, float]) -> Number:
    """The time of a round whose groups are busy and wait."""
    power = 1 + w["overlap"]
    return (busy ** power + wait ** power) ** (1 / power)
