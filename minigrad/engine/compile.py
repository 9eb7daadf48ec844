"""Kernels to executables on one device: the only place where code generation meets the runtime.

Executables are kept here, stages and programs by `codegen/passes.py`. Equal kernels are compiled once, whatever layer
of a network they came from; the device compiles programs while further ones are being rendered.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import length_hint
from time import perf_counter
from typing import Any

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import Staged, render, stages_of
from minigrad.engine.stats import stats
from minigrad.program import Program
from minigrad.runtime.device import Device

MAX_EXECUTABLES = 4096
_executables: dict[tuple[str, Function], Any] = {}


@dataclass(slots=True)
class Compiled:
    """A kernel's stages with one executable each, in the same order."""

    staged: Staged
    executables: list[Any]


def compile_kernels(kernels: Iterable[Kernel], device: Device, load: bool = True) -> list[Compiled]:
    """Executables for every kernel, compiling what is new, perhaps before the next kernel is taken; None for each if
    not `load`.

    Raises CompileError.
    """
    if not load:
        return [Compiled(k, [None] * len(k.stages)) for k in [stages_of(k, device.target) for k in kernels]]
    maker = _Maker(device, kernels)
    start, lowered = perf_counter(), stages_of.cache_info().misses
    loaded = device.load(maker)
    if device.simulates:
        _tell_times(maker.new, loaded)
    found = maker.known | dict(zip(maker.new, loaded, strict=True))
    _executables.update({(device.name, f): found[f] for f in maker.new})
    for old in list(_executables)[:-MAX_EXECUTABLES]:
        del _executables[old]
    stats.kernels += stages_of.cache_info().misses - lowered
    stats.programs += len(loaded)
    stats.lower_s += maker.lower_s
    stats.render_s += maker.render_s
    stats.compile_s += perf_counter() - start - maker.wait_s - maker.lower_s - maker.render_s
    return [Compiled(k, [found[s.function] for s in k.stages]) for k in maker.staged]


def forget_executables(device: str) -> None:
    """Drops what was rendered, and what was compiled for a device that is taken out."""
    render.cache_clear()
    for key in [k for k in _executables if k[0] == device]:
        del _executables[key]


def _tell_times(functions: Iterable[Function], executables: Iterable[Any]) -> None:
    """Gives executables of a GPU that is not here what tells how long their launches take."""
    from minigrad.codegen.cost.launch import timer

    for function, executable in zip(functions, executables, strict=True):
        executable.seconds = timer(function, executable.gpu, executable.compiled)


class _Maker:
    """Makes the stages of kernels and the programs that are new, one by one: the device compiles meanwhile.

    `wait_s`, `lower_s` and `render_s` are seconds of taking kernels, of their stages, and of programs.
    """

    def __init__(self, device: Device, kernels: Iterable[Kernel]):
        self.device, self.kernels = device, kernels
        self.staged: list[Staged] = []
        self.known: dict[Function, Any] = {}
        self.new: dict[Function, None] = {}
        self.wait_s = self.lower_s = self.render_s = 0.0

    def __length_hint__(self) -> int:
        return length_hint(self.kernels)

    def __iter__(self) -> Iterator[Program]:
        """Fills in `staged`, `known` (with executables) and `new`, in the order of the programs."""
        waiting = perf_counter()
        for kernel in self.kernels:
            start = perf_counter()
            self.wait_s += start - waiting
            staged = stages_of(kernel, self.device.target)
            self.staged.append(staged)
            self.lower_s += perf_counter() - start
            for function in [s.function for s in staged.stages]:
                if function in self.known or function in self.new:
                    continue
                executable = _executables.get((self.device.name, function))
                if executable is not None:
                    self.known[function] = executable
                    continue
                self.new[function] = None
                start = perf_counter()
                program = render(function, self.device.target)
                self.render_s += perf_counter() - start
                yield program
            waiting = perf_counter()
        self.wait_s += perf_counter() - waiting
