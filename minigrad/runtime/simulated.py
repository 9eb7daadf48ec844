"""Cards that are not here: 'SIM:rtx3060'. Programs are planned and compiled for them by their records, memory is
counted and not taken, and a launch advances a clock by the time that is predicted for it. No value is ever computed.
"""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import count
from threading import Lock
from typing import Any

import numpy as np

from minigrad.codegen.machines.gpus import Gpu, cards, gpu
from minigrad.errors import DeviceError, InternalError, present
from minigrad.locks import free_in_children
from minigrad.runtime import disk_cache
from minigrad.runtime.device import Buffer, Device, Launch, Program
from minigrad.runtime.gpu_objects import Resources
from minigrad.runtime.host import bucket_size
from minigrad.runtime.inspected import LANGUAGES, REGISTERS, InspectedGpu, matrix_units
from minigrad.target import Target

KIND = "resources"
FEATURES = frozenset(("fp16", "fma"))
"""The features that programs for cards without a compiler here may use: those of all OpenCL drivers for GPUs."""


@dataclass(slots=True)
class Simulated:
    """A program that never runs: what its compiler makes of it, where there is one, and a function that gives the
    seconds of a launch for its arguments, which the engine sets."""

    program: Program
    gpu: Gpu
    resources: Resources | None
    seconds: Callable[[Sequence[object]], float] | None = None

    @property
    def compiled(self) -> tuple[int, int] | None:
        """Registers of a work-item and spills."""
        return None if self.resources is None else (self.resources.vgprs, self.resources.spills)


class SimulatedGpu(Device):
    """A card that a record describes. `clock` counts predicted seconds since it was opened, `used` bytes of memory;
    `counts_registers` says whether a compiler is here that tells what its programs take."""

    queues = False
    simulates = True

    def __init__(self, card: str):
        """Raises DeviceError for a card without a record."""
        if card not in cards():
            raise DeviceError(f"[device] expected SIM:<one of {', '.join(cards())}>, got SIM:{card}")
        self.name, self.facts, self.compiler = f"SIM:{card}", gpu(card), _compiler_for(gpu(card))
        self.clock, self._told, self.used = 0.0, 0.0, 0
        self._addresses, self._lock = count(1), free_in_children(Lock())
        self.counts_registers = self.compiler is not None and (
            self.compiler.family == "AMD" or shutil.which("ptxas") is not None)
        processor = self.facts.name if self.compiler is None else self.compiler.processor
        features = FEATURES if self.compiler is None else frozenset(
            ("fp64", "fp16", "fma", "divide", "subnormals", *matrix_units(processor)))
        self.target = Target(
            self.name, "opencl" if self.compiler is None else LANGUAGES[self.compiler.family], processor,
            vector_bytes=4, registers=REGISTERS, units=self.facts.units, local_memory=self.facts.local_bytes_per_group,
            max_group=self.facts.max_group, features=features)

    # ---- programs ----

    def load(self, programs: Iterable[Program]) -> list[Simulated]:
        """Compiles each program where its compiler is here, and keeps on disk what it takes. Raises CompileError."""
        return [Simulated(p, self.facts, self._resources(p)) for p in programs]

    def _resources(self, program: Program) -> Resources | None:
        if self.compiler is None or not self.counts_registers:
            return None
        key = f"{self.compiler.name} {program.group} {program.identity()}"
        known = disk_cache.get(KIND, key)
        if known is not None:
            return Resources(*json.loads(known))
        found, = self.compiler.load([program])
        self.counts_registers = found.resources is not None
        if found.resources is not None:
            disk_cache.put(KIND, key, json.dumps(astuple(found.resources)).encode())
        return found.resources

    def launch(self, launches: list[Launch]) -> None:
        """Advances the clock by what each row takes."""
        for launch in launches:
            seconds = present(launch.executable.seconds, "[launch] expected an executable whose time is predicted")
            for arguments, _ in launch.table or ((launch.arguments, launch.extent),):
                self.clock += seconds(arguments)

    def synchronize(self) -> None:
        """Does nothing: nothing is ever queued."""

    def elapsed(self) -> float:
        """The predicted seconds of the launches since the last call."""
        since, self._told = self.clock - self._told, self.clock
        return since

    # ---- memory ----

    def alloc(self, nbytes: int) -> Buffer:
        """A number in place of memory. Raises DeviceError where the card would have none left."""
        size = bucket_size(nbytes)
        with self._lock:
            if self.used + size > self.facts.dram_bytes:
                raise DeviceError(f"[alloc] expected {nbytes} bytes of the memory of {self.facts.name}, got out of "
                                  f"memory: {self.used} of {self.facts.dram_bytes} bytes are taken")
            self.used += size
            return Buffer(self, nbytes, next(self._addresses) << 48, 0, None)

    def free(self, buffer: Buffer) -> None:
        """Counts the bytes no more."""
        if buffer.handle is not None and buffer.base is None and not buffer.offset:
            with self._lock:
                self.used -= bucket_size(buffer.nbytes)
        buffer.handle = None

    def address_of(self, handle: Any) -> int:
        """A number that no other memory has."""
        if not isinstance(handle, int):
            raise InternalError(f"[launch] expected memory of {self.name}, got {handle!r}")
        return handle

    def copy_in(self, buffer: Buffer, data: np.ndarray) -> None:
        """Forgets the data."""

    def copy_out(self, buffer: Buffer, out: np.ndarray) -> None:
        """Raises DeviceError: there are no values."""
        raise DeviceError(f"[read] expected a device that computes, got {self.name}, which predicts times only: it has "
                          "no values to read")


def _compiler_for(facts: Gpu) -> InspectedGpu | None:
    """The compiler for a card's chip; None where there is none here."""
    for isa in facts.isa:
        family = "AMD" if isa.startswith("gfx") else "NV" if isa.startswith("sm_") else None
        if family is not None:
            return InspectedGpu(family, isa)
    return None
