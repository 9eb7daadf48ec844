"""Occupancy of a GPU: what its compiler makes of all kernels of a step, on a machine without one."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.passes import render
from minigrad.config import config
from minigrad.errors import DeviceError
from minigrad.report.dry import running_dry
from minigrad.runtime.inspected import Inspected, InspectedGpu
from minigrad.runtime.registry import get_device


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Each distinct kernel with what its compiler made of it, in `compile_s` seconds for all, and how often it is
    launched."""

    device: str
    kernels: tuple[tuple[Inspected, int], ...]
    compile_s: float

    @property
    def waves(self) -> dict[int, int]:
        """The number of kernels of which a SIMD (AMD) or a multiprocessor (NVIDIA) can hold so many waves, most waves
        first."""
        return dict(sorted(Counter(k.waves for k, _ in self.kernels if k.waves is not None).items(), reverse=True))

    @property
    def missing(self) -> dict[str, int]:
        """The number of kernels of which that is not known, by the reason."""
        return dict(Counter(k.missing for k, _ in self.kernels if k.waves is None))

    def histogram(self) -> list[str]:
        """Lines such as '    126 Max Waves: 16', then lines of kernels of which that is not known, with the reason."""
        return [f"{n:7d} Max Waves: {waves}" for waves, n in self.waves.items()] + [
            f"{n:7d} Max Waves: not known, {reason}" for reason, n in self.missing.items()]


def occupancy(device: str, prepare: Callable[[], Callable[[], object]]) -> Occupancy:
    """Plans what `prepare()()` realizes for a device such as 'AMD:gfx1031' and compiles its kernels; nothing is run.

    What `prepare()` itself realizes is not counted. Raises DeviceError for devices that run programs.
    """
    opened = get_device(device)
    if not isinstance(opened, InspectedGpu):
        raise DeviceError(f"[occupancy] expected AMD:<processor> or NV:<processor>, got {device}")
    with config(device=device), running_dry() as dry:
        step = prepare()
        before = len(dry.plans)
        step()
        launches: Counter[Function] = Counter()
        for plan in dry.plans[before:]:
            for item in plan.items:
                if item.function is not None:  # plans of a dry run have it
                    launches[item.function] += 1
        dry.forget()
    programs = [render(f, opened.target) for f in launches]
    start = perf_counter()
    compiled = opened.load(programs)
    return Occupancy(opened.name, tuple(zip(compiled, launches.values(), strict=True)), perf_counter() - start)
