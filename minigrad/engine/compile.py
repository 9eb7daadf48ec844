"""Kernels to executables on one device: the only place where code generation meets the runtime.

Two caches: kernel -> stages (with `stages_of`), and rendered program -> executable. Equal kernels are compiled once,
whatever layer of a network they came from; all programs that a plan lacks are compiled in one batch.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.kernel import Kernel
from minigrad.codegen.stages import Staged, stages_of
from minigrad.config import current
from minigrad.engine.stats import stats
from minigrad.program import Program
from minigrad.runtime.device import Device
from minigrad.target import Target

MAX_EXECUTABLES = 4096
_executables: dict[tuple[str, Function], Any] = {}


@dataclass(slots=True)
class Compiled:
    """A kernel's stages with one executable each, in the same order."""

    staged: Staged
    executables: list[Any]


@lru_cache(maxsize=4096)
def render(function: Function, target: Target) -> Program:
    """The source of one stage for a target, cached."""
    if target.language == "llvm":
        from minigrad.codegen.render.llvm import render_llvm

        return render_llvm(function, target)
    if target.language in ("amdgpu", "nvptx"):
        from minigrad.codegen.render.llvm_gpu import render_llvm_gpu

        return render_llvm_gpu(function, target)
    from minigrad.codegen.render.opencl import render_opencl

    return render_opencl(function, target)


def compile_kernels(kernels: list[Kernel], device: Device, load: bool = True) -> list[Compiled]:
    """Executables for every kernel, compiling what is new in one batch; None for each if not `load`.

    Raises CompileError.
    """
    start = perf_counter()
    staged = [stages_of(k, device.target) for k in kernels]
    if not load:
        return [Compiled(k, [None] * len(k.stages)) for k in staged]
    if current().verify:
        verify(kernels, staged)
    lowered = perf_counter()
    functions = dict.fromkeys(s.function for k in staged for s in k.stages)
    found = {f: _executables.get((device.name, f)) for f in functions}
    missing = [f for f, executable in found.items() if executable is None]
    programs = [render(f, device.target) for f in missing]
    rendered = perf_counter()
    if programs:
        found.update(zip(missing, device.load(programs), strict=True))
        _executables.update({(device.name, f): found[f] for f in missing})
        for old in list(_executables)[:-MAX_EXECUTABLES]:
            del _executables[old]
    stats.programs += len(programs)
    stats.lower_s += lowered - start
    stats.render_s += rendered - lowered
    stats.compile_s += perf_counter() - rendered
    return [Compiled(k, [found[s.function] for s in k.stages]) for k in staged]


def verify(kernels: list[Kernel], staged: list[Staged]) -> None:
    """Checks the rules of the kernel form and of loop IR; on in the tests."""
    from minigrad.codegen.ir.verify import verify_function
    from minigrad.codegen.kernel_verify import verify_kernel

    for kernel in kernels:
        verify_kernel(kernel)
    for k in staged:
        for s in k.stages:
            verify_function(s.function)
