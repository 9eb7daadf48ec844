"""Facts of the machine that a Target is, from minigrad/codegen/machines/*.toml: the numbers that planners count with.

    [declared]    from manuals and the operating system                 may decide how sums are grouped
    [costs]       for comparing plans that round differently: measured once, agreed on for every machine of a kind,
                  and never measured anew, as results depend on it
    [speed]       only time depends on these: measured, and may be measured again at any time

A file states what differs from the one it is `like`. A processor's is named as LLVM names it; one without a file is
like the generic one of its vectors. Compiled for another processor (MINIGRAD_CPU), a program rounds as that one's facts
say, and is as fast as those of the one that it runs on. `section.half_rate_512` holds where one multiply-add of whole
vectors begins in a cycle.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from minigrad.codegen.machines.measured import file_name, folder, speed
from minigrad.errors import InternalError
from minigrad.target import Target

FOLDER = Path(__file__).parent
_GENERIC = {64: "generic-avx512", 32: "generic-avx2", 16: "generic-neon"}
_SECTIONS = ("declared", "costs", "plans", "speed")


@dataclass(frozen=True, slots=True)
class Declared:
    """Facts from manuals. `fma_per_cycle` multiply-adds of the target's vectors begin in a cycle, each done after
    `fma_latency`. `side_by_side` rows stay in the first-level cache although they are a power of two apart. Elements up
    to `strided_stores` apart are stored as parts of whole vectors. `bfloat16_products` is True where an instruction
    multiplies bfloat16 with K interleaved by two; a matrix register has `matrix_side` rows of as many words. A GPU's
    compute unit holds `items_per_unit` work-items, and waits for memory with fewer; as many waves as it can hold have
    `local_per_wave` bytes of local memory each."""

    fma_per_cycle: int
    fma_latency: int
    side_by_side: int
    strided_stores: int
    bfloat16_products: bool
    matrix_side: int
    items_per_unit: int
    local_per_wave: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in cycles, unless it says otherwise; the files say of what."""

    dot_step: float
    window_tile: float
    plane_tile: float
    crossing: float
    matrix_call: float
    local_copy: float
    item: float
    item_copy: float
    item_store: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Facts that can be measured of any machine: multiply-adds of float32 and float16, bytes that all cores or units
    read from a level in 1e9 a second, nanoseconds from one multiply-add or load to the next that needs it, microseconds
    per launch. None is what was not."""

    f32_tflops_measured: float | None = None
    f16_tflops_measured: float | None = None
    l1_gbs_measured: float | None = None
    l2_gbs_measured: float | None = None
    l3_gbs_measured: float | None = None
    dram_gbs_measured: float | None = None
    fma_latency_ns_measured: float | None = None
    l1_latency_ns_measured: float | None = None
    l2_latency_ns_measured: float | None = None
    l3_latency_ns_measured: float | None = None
    dram_latency_ns_measured: float | None = None
    launch_us_measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed(Measured):
    """Facts that only time depends on.

    `long_streams` is True where memory is read at full speed only as a small number of streams that each go on for many
    pages. Streams that are read side by side: `streams` panels, `streams_of_lines` panels of which each step takes
    lines, for products with a small number of rows, and `matrix_streams` rows of matrices. Bytes from what is read to
    what is prefetched: `ahead` of panels, `ahead_inner` of operands that are unpacked, `ahead_scales` of their scales.
    Panels are prefetched with `ahead_rows` rows or more where each step takes lines of them; with `enough_sums` in
    flight multiply-adds are busy, and loads beside them few. What `python -m minigrad machine measure` found
    (`Measured`) is shown and decides nothing.
    """

    long_streams: bool
    streams: int
    streams_of_lines: int
    matrix_streams: int
    ahead: int
    ahead_inner: int
    ahead_scales: int
    ahead_rows: int
    enough_sums: int


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """Cycles that one of each kind that `cost/counts.py` counts takes: costs, as they order plans that round apart."""

    masks: float
    tests: float
    loads: float
    stores: float
    crossing: float
    gathers: float
    scatters: float
    spills: float
    latency: float
    sums: float
    across: float
    loops: float
    copied: float
    computed: float
    transposed: float
    single: float
    rows: float
    results: float
    results_transposed: float
    results_single: float
    near: float
    far: float
    near_run: float
    far_run: float
    copied_near: float
    copied_far: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The kinds of facts."""

    declared: Declared
    costs: Costs
    plans: PlanCosts
    speed: Speed


R = TypeVar("R", Declared, Costs, PlanCosts, Speed)


@lru_cache(maxsize=256)
def machine(target: Target) -> Machine:
    """The facts of a target. Raises InternalError where its file lacks one, or has one that nobody reads."""
    compiled_for = facts(file_of(target.cpu, target))
    runs_on = facts(file_of(target.host or target.cpu, target))
    declared = dict(compiled_for["declared"])
    declared["fma_per_cycle"] = rate = _for_bytes(declared["fma_per_cycle"], target.vector_bytes)
    products = declared["bfloat16_products"]
    declared["bfloat16_products"] = any(target.features.issuperset(needed) for needed in products)
    return Machine(_record(Declared, declared), _record(Costs, _at_rate(compiled_for["costs"], rate)),
                   _record(PlanCosts, _at_rate(compiled_for["plans"], rate)),
                   _record(Speed, _at_rate(runs_on["speed"], rate) | measured_of(target)))


@lru_cache(maxsize=256)
def measured_of(target: Target) -> dict[str, Any]:
    """The facts of [speed] that were measured of the processor that a target runs on; none of a GPU: `gpus.py` has
    those, and no plan depends on them."""
    if target.is_gpu or not folder().is_dir():
        return {}
    found = speed(own_name(target))
    return {f.name: found[f.name] for f in fields(Speed) if f.name in found}


def forget() -> None:
    """Reads all files anew from now on."""
    for kept in (machine, measured_of, facts, speed, _processors):
        kept.cache_clear()


def own_name(target: Target) -> str:
    """The name of a record of the processor that a target runs on: LLVM's, or one made of the driver's."""
    return file_name(target.host or target.cpu) if target.language == "llvm" else file_name(target.cpu)


def file_of(processor: str, target: Target) -> str:
    """The name of the file with the facts of a processor."""
    if target.language == "llvm" and processor in _processors():
        return processor
    if target.is_gpu:
        return "generic-gpu"
    return _GENERIC[target.vector_bytes] if target.language == "llvm" else "generic-opencl-cpu"


@cache
def facts(name: str) -> dict[str, dict[str, Any]]:
    """All facts by section and name, those of the file that this one is like included."""
    import tomllib  # not before something is planned

    own = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    like = own.pop("like", None)
    below: dict[str, dict[str, Any]] = facts(like) if like else {section: {} for section in _SECTIONS}
    if unknown := own.keys() - below.keys():
        raise InternalError(f"[machines] expected sections {', '.join(_SECTIONS)} in {name}.toml, got {unknown}")
    return {section: below[section] | own.get(section, {}) for section in _SECTIONS}


@cache
def _processors() -> frozenset[str]:
    """The processors with a file. LLVM, too, has one that it calls generic."""
    return frozenset([path.stem for path in FOLDER.glob("*.toml") if not path.stem.startswith("generic")])


def _for_bytes(by_bytes: Mapping[str, int], vector_bytes: int) -> int:
    """From a fact by bytes of a vector, the number for the narrowest vectors that are at least as wide."""
    return by_bytes[str(min(width for width in map(int, by_bytes) if width >= vector_bytes))]


def _at_rate(section: Mapping[str, Any], rate: int) -> dict[str, Any]:
    """A section's facts at so many multiply-adds per cycle."""
    found = dict(section)
    slow = found.pop("half_rate_512", {})
    return found | slow if rate == 1 else found


def _record(kind: type[R], found: dict[str, Any]) -> R:
    wanted = {f.name for f in fields(kind) if f.default is MISSING}
    if not wanted <= found.keys() <= {f.name for f in fields(kind)}:
        raise InternalError(f"[machines] expected facts {sorted(wanted - found.keys())} and not "
                            f"{sorted(found.keys() - wanted)} in [{kind.__name__.lower()}]")
    return kind(**found)
