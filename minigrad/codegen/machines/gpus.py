"""Records of GPUs, minigrad/codegen/machines/gpus/*.toml: what a card has, what its family costs, what was measured.

A file states what differs from the one that it is `like`: a card from its chip or family, a family from an older one or
from `generic-gpu`. `isa` are the names that compilers have for what the file is of, `names` regular expressions for
those that drivers give it. The sections are those of machine.py: [declared] from manuals, [costs] the weights of the
model of time, agreed on for a family, [speed] measured.
"""
from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minigrad.codegen.machines.machine import Measured
from minigrad.codegen.machines.measured import folder, speed, table
from minigrad.errors import ConfigError

FOLDER = Path(__file__).parent / "gpus"
GENERIC = "generic-gpu"
SECTIONS = ("declared", "costs", "speed")
_IDENTITY = ("like", "name", "vendor", "isa", "names")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Measured):
    """The facts of a GPU. What it does not have is 0, what was not measured is None.

    A unit is what a work-group runs on (SM, CU, Xe core): it does `lanes_per_unit` float32 multiply-adds in a cycle,
    `f32_per_lane` times as many where it issues two at once or has packed ones, in waves of `wave` work-items from
    `schedulers_per_unit` schedulers. It holds `warps_per_unit` waves and `groups_per_unit` work-groups at once.
    Registers are handed out `register_granule` at a time (NVIDIA counts those of a wave, others those of an item),
    local memory `local_granule` bytes, of which a group takes `local_reserved` besides its own. `units_together` units
    share local memory and groups, `shared_l1_units` a cache of `shared_l1_bytes`, and all of them `l2_bytes` and
    `l3_bytes` before memory, which is asked for `sector_bytes` of a line. `f16_vector_ratio` is the rate of float16
    multiply-adds over that of float32; `f16_matrix_per_cycle_unit` are those of matrix units, with sums in float32.
    Facts named `_measured` are of [speed]: `dram_share_measured` of `dram_gbs`, `clock_share_measured` of `clock_mhz`
    under load.
    """

    name: str
    vendor: str
    isa: tuple[str, ...]
    names: tuple[str, ...]
    units: int
    lanes_per_unit: int
    wave: int
    warps_per_unit: int
    groups_per_unit: int
    schedulers_per_unit: int
    units_together: int
    register_bytes_per_unit: int
    register_granule: int
    max_registers_per_item: int
    max_group: int
    local_bytes_per_unit: int
    local_bytes_per_group: int
    local_granule: int
    local_banks: int
    local_bytes_per_cycle_unit: int
    l1_bytes_per_unit: int
    l1_bytes_per_cycle_unit: int
    instruction_cache_bytes: int
    l2_bytes: int
    line_bytes: int
    sector_bytes: int
    dram_gbs: float
    dram_bytes: int
    clock_mhz: float
    f32_per_lane: int
    f16_vector_ratio: float
    fma_latency_cycles: float
    exp2_per_cycle_unit: int
    dram_share_measured: float
    clock_share_measured: float
    launch_us_measured: float
    local_reserved: int = 0
    shared_l1_bytes: int = 0
    shared_l1_units: int = 0
    scalar_cache_bytes: int = 0
    l3_bytes: int = 0
    l3_line_bytes: int = 0
    f16_matrix_per_cycle_unit: int = 0
    costs: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def f32_tflops_single(self) -> float:
        """The rate of float32 without a second instruction at once."""
        return 2e-6 * self.units * self.lanes_per_unit * self.clock_mhz

    @property
    def f32_tflops(self) -> float:
        """The rate of the specification."""
        return self.f32_tflops_single * self.f32_per_lane


_FACTS = frozenset(f.name for f in fields(Gpu)) - {"costs", *_IDENTITY}
_SPEED = frozenset(name for name in _FACTS if name.endswith("_measured"))
_NEEDED = frozenset(f.name for f in fields(Gpu) if f.default is MISSING and f.default_factory is MISSING) & _FACTS


@cache
def gpu(name: str) -> Gpu:
    """The facts of a card, a chip or a family by the name of its file. Raises ConfigError for a name that has none, and
    where a file lacks a fact or has one that nobody reads."""
    found = record(name)
    facts: dict[str, Any] = {key: found[key] for key in ("name", "vendor")}
    facts |= {key: tuple(found.get(key, ())) for key in ("isa", "names")}
    for section, known in (("declared", _FACTS - _SPEED), ("speed", _SPEED)):
        if unknown := found[section].keys() - known:
            raise ConfigError(f"[machine] expected facts of a GPU in [{section}] of {name}.toml, got {sorted(unknown)}")
    measured = {fact: value for fact, value in speed(name, of_gpus=True).items() if fact in _SPEED}
    facts |= found["declared"] | found["speed"] | measured
    if missing := _NEEDED - facts.keys():
        raise ConfigError(f"[machine] expected facts {sorted(missing)} in {name}.toml or in what it is like")
    return Gpu(**facts, costs=MappingProxyType(found["costs"]))


@cache
def record(name: str) -> dict[str, Any]:
    """A file's sections and identity, with those of the files that it is like. What compilers and drivers call it are
    its own only, a card's `isa` but for that is its chip's."""
    path = _files().get(name)
    if path is None:
        raise ConfigError(f"[machine] expected one of {', '.join(records())}, got {name!r}")
    own = _checked(path, table(path))
    below: dict[str, Any] = record(own["like"]) if "like" in own else {section: {} for section in SECTIONS}
    merged = {section: below[section] | own.get(section, {}) for section in SECTIONS}
    return below | {"names": ()} | own | merged


def _checked(path: Path, own: dict[str, Any]) -> dict[str, Any]:
    """A file's tables and keys, where it is a record. Raises ConfigError that names the file and what was expected."""
    if unknown := own.keys() - {*SECTIONS, *_IDENTITY}:
        raise ConfigError(f"[machine] expected {', '.join((*_IDENTITY, *SECTIONS))} in {path}, got {sorted(unknown)}")
    like = own.get("like", GENERIC)
    if not isinstance(like, str) or like not in _files() or (like == path.stem and "like" in own):
        raise ConfigError(f"[machine] expected like in {path} to be another of {', '.join(records())}, got {like!r}")
    for key in ("isa", "names"):
        if not isinstance(own.get(key, []), list) or not all(isinstance(x, str) for x in own.get(key, [])):
            raise ConfigError(f"[machine] expected {key} in {path} to be a list of texts, got {own[key]!r}")
    for pattern in own.get("names", ()):
        try:
            re.compile(pattern)
        except re.error as e:
            raise ConfigError(f"[machine] expected names in {path} to be regular expressions, "
                              f"got {pattern!r}: {e}") from None
    for section in SECTIONS:
        for fact, value in own.get(section, {}).items():
            least = -math.inf if section == "costs" else 0  # a weight may be any number
            if type(value) not in (int, float) or not least <= value < math.inf:
                raise ConfigError(f"[machine] expected {fact} in {path} to be a number of at least {least}, "
                                  f"got {value!r}")
    return own


def records() -> tuple[str, ...]:
    """The names of all files, a user's own included (measured.py)."""
    return tuple(sorted(_files()))


def own_records() -> frozenset[str]:
    """The names of the package's files."""
    return frozenset(name for name, path in _files().items() if path.parent == FOLDER)


@cache
def _files() -> dict[str, Path]:
    """The package's own come before a user's of that name, whose [speed] alone counts."""
    return {path.stem: path for place in (folder(of_gpus=True), FOLDER) for path in place.glob("*.toml")}


def forget() -> None:
    """Reads all files anew from now on."""
    for kept in (_files, gpu, record, cards, of_isa, of_driver):
        kept.cache_clear()


@cache
def cards() -> tuple[str, ...]:
    """The names of the files of cards: those that are like a chip or family with a compiler's name, and all of the
    user's own."""
    return tuple(name for name in records()
                 if not _own_isa(name) and (record(name).get("isa") or name not in own_records()))


def _own_isa(name: str) -> tuple[str, ...]:
    """The compilers' names that a file states itself."""
    found = record(name)
    below = record(found["like"]) if "like" in found else {}
    return tuple(x for x in found.get("isa", ()) if x not in below.get("isa", ()))


@cache
def of_isa(isa: str) -> str | None:
    """The file of a chip or family by a compiler's name: 'gfx1031', 'sm_86'."""
    return next((name for name in records() if isa in _own_isa(name)), None)


def chips(vendor: str) -> tuple[str, ...]:
    """The names that compilers have for a vendor's chips, the newest last."""
    found = {x for name in records() if record(name)["vendor"] == vendor for x in _own_isa(name)}
    return tuple(sorted(found, key=lambda x: (len(x), x)))


@cache
def of_driver(name: str) -> str:
    """The file for a driver's name of a device: its card's, else its chip's or family's, else `generic-gpu`. Of several
    that match a card's counts, else the one that is like the most others."""
    plain = plain_name(name)
    short = " ".join(re.sub(r"^(NVIDIA|AMD|Intel)\b", "", plain, count=1).split())
    found = [known for known in records() for pattern in record(known)["names"] for said in (plain, short)
             if re.fullmatch(pattern, said, re.IGNORECASE)]
    found += filter(None, [of_isa(plain.partition(":")[0])])
    return max(found, key=lambda known: (known in cards(), _depth(known)), default=GENERIC)


def plain_name(name: str) -> str:
    """A driver's name without what it says in parentheses."""
    return " ".join(re.sub(r"\(.*", "", re.sub(r"\((R|TM|C)\)", "", name)).split())


def _depth(name: str) -> int:
    below = record(name).get("like")
    return 1 + _depth(below) if below else 0


def gpu_of(facts: Mapping[str, object]) -> Gpu:
    """The Gpu that facts say, by the names of its fields; `name`, `isa` and `vendor` find the family for those that are
    missing, and `f32_tflops` stands for the clock, or for units where these are missing. Facts that a Gpu does not have
    are passed over."""
    by_isa = of_isa(str(facts.get("isa", ""))) or GENERIC
    said = [by_isa, *(of_driver(str(facts.get(key, ""))) for key in ("name", "vendor"))]
    below = gpu(next((known for known in said if known in cards()), max(said, key=_depth)))
    found = {f.name: facts[f.name] for f in fields(Gpu) if f.name in _FACTS | {"name", "vendor"} and f.name in facts}
    made = {f.name: getattr(below, f.name) for f in fields(Gpu)} | found
    rate = facts.get("f32_tflops")
    if isinstance(rate, int | float):
        a_unit = 2e-6 * made["lanes_per_unit"] * made["f32_per_lane"]
        if "units" not in facts:
            made["units"] = max(1, round(rate / (a_unit * made["clock_mhz"])))
        made["clock_mhz"] = rate / (a_unit * made["units"])
    return Gpu(**made)
