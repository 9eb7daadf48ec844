"""GPUs that need not be here: 'AMD:gfx1031', 'NV:sm_86'. Plans are made and programs compiled for them; none is run."""
from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from minigrad.codegen.machines.gpus import chips, gpu, of_isa
from minigrad.errors import CompileError, DeviceError
from minigrad.program import GROUP
from minigrad.runtime.device import Launch, Program
from minigrad.runtime.gpu_objects import Resources, amd_resources, max_warps, max_waves
from minigrad.runtime.host import HostMemory
from minigrad.target import Target

REGISTERS = 64
LANGUAGES = {"AMD": "amdgpu", "NV": "nvptx"}
TRIPLES = {"AMD": "amdgcn-amd-amdhsa", "NV": "nvptx64-nvidia-cuda"}


@dataclass(frozen=True, slots=True)
class Inspected:
    """A compiled program. `waves` of it are held at once by a SIMD (AMD) or a multiprocessor (NVIDIA): None where that
    is not known, and `missing` says why."""

    program: Program
    resources: Resources | None
    waves: int | None
    missing: str = ""


class InspectedGpu(HostMemory):
    """A GPU of which only the compiler is here. Buffers are host memory."""

    def __init__(self, family: str, processor: str):
        """Raises DeviceError for a processor that LLVM or we do not know."""
        HostMemory.__init__(self)
        self.name, self.family, self.processor = f"{family}:{processor}", family, processor
        known = of_isa(processor.rstrip("af") if family == "NV" else processor)
        if family == "AMD" and known is None:
            raise DeviceError(f"[device] expected AMD:<one of {', '.join(chips('AMD'))}>, got {self.name}")
        if family == "NV" and not re.fullmatch(r"sm_\d+[af]?", processor):
            raise DeviceError(f"[device] expected NV:sm_<number>, got {self.name}")
        facts = self.facts = gpu(known or "nvidia")
        self.is_known = known is not None
        features = frozenset(("fp64", "fp16", "fma", "divide", "subnormals", *matrix_units(processor)))
        self.target = Target(self.name, LANGUAGES[family], processor, vector_bytes=4, registers=REGISTERS,
                             units=facts.units, local_memory=facts.local_bytes_per_group, max_group=facts.max_group,
                             features=features)

    def load(self, programs: Iterable[Program]) -> list[Inspected]:
        """Compiles each program. Raises CompileError with LLVM's words and the source."""
        return [self._compile(p) for p in programs]

    def _compile(self, program: Program) -> Inspected:
        if program.language != self.target.language:
            raise DeviceError(f"[load] expected a program in {self.target.language} for {self.name}, "
                              f"got {program.language}")
        if self.family == "AMD":
            code = compiler(self.family, self.processor)[1].emit_object(self._optimized(program))
            found = amd_resources(code)[program.name]
            return Inspected(program, found, max_waves(found, self.facts))
        counted = ptx_resources(self.assembly(program), self.processor, program.group or GROUP)
        if counted is None:
            return Inspected(program, None, None, "ptxas is not installed, which counts registers")
        if not self.is_known:
            reason = f"what a multiprocessor of {self.processor} holds is not known here"
            return Inspected(program, counted, None, reason)
        return Inspected(program, counted, max_warps(counted, self.facts))

    def assembly(self, program: Program) -> str:
        """The assembly of a program, PTX for NVIDIA."""
        return compiler(self.family, self.processor)[1].emit_assembly(self._optimized(program))

    def _optimized(self, program: Program) -> Any:
        """A module, to be emitted once, after the standard pipeline, which finds address spaces."""
        llvm, machine = compiler(self.family, self.processor)
        try:
            module = llvm.parse_assembly(program.source)
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as e:
            raise CompileError(f"[load] LLVM refused {program.name}: {' '.join(str(e).split())}",
                               program.source) from None
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        builder.getModulePassManager().run(module, builder)
        return module

    def launch(self, launches: list[Launch]) -> None:
        """Raises DeviceError: nothing runs here."""
        raise DeviceError(f"[launch] {self.name} only compiles: there is nothing here that runs its programs")

    def synchronize(self) -> None:
        """Does nothing: nothing is ever queued."""

    def elapsed(self) -> float:
        """0: nothing runs here."""
        return 0.0


def matrix_units(processor: str) -> tuple[str, ...]:
    """The features of a processor's matrix units: RDNA 3 and compute capability 8.0 and later."""
    number = re.match(r"sm_(\d+)", processor)
    if number is not None:
        return ("mma-f16", "mma-bf16", "mma-tf32") if int(number[1]) >= 80 else ()
    return ("wmma-f16", "wmma-bf16") if processor.startswith("gfx11") else ()


@lru_cache(maxsize=8)
def compiler(family: str, processor: str) -> tuple[Any, Any]:
    """(llvmlite.binding, the target machine)."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(TRIPLES[family])
    except RuntimeError as e:
        raise DeviceError(f"[device] this LLVM has no code generator for {family}: {e}") from None
    return llvm, target.create_target_machine(processor, opt=2)


def ptx_resources(text: str, processor: str, group: int) -> Resources | None:
    """The resources of a kernel of PTX text, as `ptxas` tells; None where that is not installed. `group` is the number
    of work-items of a work-group."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        done = subprocess.run([ptxas, "-v", f"-arch={processor}", "-o", str(source) + ".o", str(source)],
                              capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"[load] ptxas says {done.stderr.strip()}", text)

    def number(pattern: str) -> int:
        match = re.search(pattern, done.stderr)
        return int(match[1]) if match else 0

    return Resources(number(r"Used (\d+) registers"), 0, number(r"(\d+) bytes spill stores"),
                     number(r"(\d+) bytes smem"), number(r"(\d+) bytes stack frame"), group, 32)
