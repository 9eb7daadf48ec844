"""Pages of `docs/` as their blocks, and the loops of their kernels under their plans."""
from __future__ import annotations

import re
from pathlib import Path

from plan_reading import built

from minigrad.codegen.ir.text import print_function
from minigrad.codegen.kernel_text import parse_kernel
from minigrad.codegen.plan.text import parse_plan

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each block of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def loops_of(kernel: str, plan: str) -> str:
    """The loops that a plan makes of a kernel."""
    return body_of(print_function(built(parse_kernel(kernel), parse_plan(plan))[0]))


def body_of(function: str) -> str:
    """A function's text without its first line, as pages have it."""
    return "".join([f"{line[2:]}\n" for line in function.rstrip().splitlines()[1:]])
