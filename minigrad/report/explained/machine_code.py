"""The machine code of programs, as text, and which of its vectors inner loops keep on the stack."""
from __future__ import annotations

import re

from minigrad.errors import CompileError
from minigrad.program import Program
from minigrad.runtime.cpu import CPU, shared_jit
from minigrad.runtime.device import Device
from minigrad.runtime.inspected import InspectedGpu
from minigrad.runtime.simulated import SimulatedGpu

_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"^\s+(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?([.\w$]+)\s*(?:#.*|//.*)?$")
_VECTOR = re.compile(r"[xyz]mm\d+|\bv\d+\.|\bq\d+\b")
_ON_STACK = re.compile(r"[xyz]mm\d+.*\(%(r[sb]p)|\(%(r[sb]p).*[xyz]mm\d+|\b(?:ld|st)[rpu]+\s+q\d+.*\[(sp)")
_FRAME = "movq\t%rsp, %rbp"
"""The instruction that makes %rbp point to the stack, rather than to anything."""


def machine_code(program: Program, device: Device) -> str:
    """The assembly of a program (PTX for NVIDIA); '' where its driver alone knows."""
    try:
        if isinstance(device, CPU):
            return shared_jit().assembly(program.source)
        compiler = device.compiler if isinstance(device, SimulatedGpu) else device
        return compiler.assembly(program) if isinstance(compiler, InspectedGpu) else ""
    except CompileError as error:
        return f"; {error}"


def stack_moves(text: str) -> tuple[int, int]:
    """(instructions that move vectors to or from the stack, instructions on vectors) in the innermost loops of a text.
    What is saved around loops is none of them."""
    lines = text.splitlines()
    labels = {m[1]: k for k, line in enumerate(lines) if (m := _LABEL.match(line))}
    ends: dict[int, int] = {}
    for k, line in enumerate(lines):  # a jump back to a label is a loop from there to the last such jump
        m = _JUMP.match(line)
        if m and labels.get(m[1], k) < k:
            ends[labels[m[1]]] = k
    inner = [(a, b) for a, b in ends.items() if not any(a < c <= b for c in ends)]
    vectors = [lines[k] for a, b in inner for k in range(a, b + 1) if _VECTOR.search(lines[k])]
    stack = {"rsp", "sp", *(["rbp"] if _FRAME in text else [])}
    return sum([1 for line in vectors if (m := _ON_STACK.search(line)) and stack & {*m.groups()}]), len(vectors)
