"""Assembly for processors that need not be this one, and what an inner loop of it must not hold."""
from __future__ import annotations

import platform
import re

import llvmlite.binding as llvm
import pytest

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


def assembly(source: str, cpu: str, triple: str = X86, features: str = "") -> str:
    """The machine code of LLVM IR after our passes. Skips the test where LLVM would end the process: it has a parser
    for the assembly of this machine's processors alone, which IR may hold."""
    if re.search(r'\basm (?:sideeffect )?"[^"]', source) and not triple.startswith(platform.machine().lower()):
        pytest.skip(f"LLVM reads no assembly for {triple} here")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2)
    module = llvm.parse_assembly(source)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0)))
    return machine.emit_assembly(module)


def object_code(source: str, triple: str) -> bytes:
    """LLVM IR as an object for a linker of that system."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2)
    module = llvm.parse_assembly(source)
    module.triple, module.data_layout = triple, str(machine.target_data)
    return machine.emit_object(module)


def vectors_on_the_stack(text: str) -> list[str]:
    """Instructions that move a vector register to or from the stack, other than saving what the caller owns."""
    x86 = re.compile(r"[xyz]mm\d+.*\(%r[sb]p|\(%r[sb]p.*[xyz]mm\d+")
    arm = re.compile(r"\b(?:ld|st)[rpu]+\s+q\d+.*\[sp")
    return [line.strip() for line in text.splitlines() if x86.search(line) or arm.search(line)]
