"""Faults that a builder of GPU plans could make: each a change of the loops of one kernel of the table."""
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from minigrad import config
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.render.opencl import render_opencl
from minigrad.engine import compile as compiling
from minigrad.program import Program
from minigrad.target import Target

TILES, ROWS = "product 33 65 47 float32 nt", "softmax 5 77 float32"
WINDOW, ATTENTION = "depthwise of 3 forward float32", "attention plain forward float32"
WEIGHTS, GREATEST = "convolution plain weights float32", "max 5 77 float32"
SUMS = "sum of rows 9 150 float32"


@dataclass(frozen=True)
class Fault:
    """What is found in the text of the loops of `kernel`, first of all, and what takes its place."""

    kernel: str
    found: str
    instead: str


FAULTS = {
    "no barrier after a copy": Fault(TILES, r"(p1_staged\[[^\n]*\n) +barrier\n", r"\1"),
    "no barrier before the next copy": Fault(TILES, r"(acc\[4\*u\+v\]\)\n) +barrier\n", r"\1"),
    "no barrier before parts are joined": Fault(SUMS, r"(part\[t\] = acc\[0\]\n) +barrier\n", r"\1"),
    "no barrier before a window is read": Fault(WINDOW, r" +barrier\n", ""),
    "no barrier before keys are read": Fault(ATTENTION, r" +barrier\n", ""),
    "a wrong pad of an image": Fault(WINDOW, r"(p0_staged\[[^\n]* else )0\.0", r"\g<1>1.0"),
    "a wrong pad of a maximum": Fault(GREATEST, r"else -inf if", "else 9.0 if"),
    "no guard of a store": Fault(TILES, r"(o0\[[^\n]*) and -v[^\n]*? >= 0 =", r"\1 ="),
    "no guard of a term": Fault(ROWS, r"(exp\([^\n]*) and -32\*r1c[^\n]*? >= 0\)", r"\1)"),
    "no guard of a copy": Fault(WEIGHTS, r"(p1_next\[[^\n]*?) and i?[^\n]*? >= 0\)", r"\1)"),
    "work-items that share a place": Fault(TILES, r"(p0_staged\[4\*c\+36\*\(t%16\))\+t//16\] =", r"\1] ="),
    "work-items that share a part": Fault(GREATEST, r"part\[t\] = acc\[0\]", "part[t//2] = acc[0]"),
    "a wrong stride of local memory": Fault(TILES, r"p1_staged\[36\*k\+v", "p1_staged[35*k+v"),
    "a wrong stride of a window": Fault(WINDOW, r"(let x_3 = p0_staged\[r1\+t%19)\+126\*", r"\1+125*"),
    "a row too few at an edge": Fault(TILES, r"(o0\[[^\n]* if -u[^\n]*?)\+32 >= 0", r"\1+31 >= 0"),
    "a key too many at an edge": Fault(ATTENTION, r"(else -inf if [^\n]*)\+44 >= 0", r"\1+45 >= 0"),
    "parts that are joined too early": Fault(
        ROWS, r"( +for r0c [^\n]*\n[^\n]*\n)( +part\[t\] = acc\[0\]\n +barrier\n)", r"\2\1"),
    "parts that are not all joined": Fault(ROWS, r" +part_2\[t\] if -\(t%32\)\+15[^\n]*\n", ""),
    "the same block twice": Fault(TILES, r"(for kb [\s\S]*?p0_next\[c\] = \(p0\[188\*c)\+16\*kb(.*?)\+16\]", r"\1\2]"),
    "sums that a greater maximum leaves": Fault(ATTENTION, r"fma\((mixed\[\w+\]), shrink\[0\]", r"fma(\1, 1.0"),
}


@contextmanager
def planted(fault: Fault) -> Iterator[list[str]]:
    """What is planned and compiled has the fault, wherever its loops are; gives the names of the functions that do."""
    hit: list[str] = []

    def render(function: Function, target: Target) -> Program:
        text = print_function(function)
        changed = re.sub(fault.found, fault.instead, text, count=1)
        if changed != text:
            hit.append(function.name)
        return render_opencl(parse_function(changed), target)

    with pytest.MonkeyPatch.context() as patch, config(disk_cache=False):
        patch.setattr(compiling, "render", render)
        yield hit
