"""The machine code of AArch64: what the features of a processor are used for. LLVM writes it on any machine."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.machine_code import ARM, assembly
from support.packed import NEON
from support.stream import last_kernel

from minigrad import Tensor
from minigrad.codegen.passes import stages_of
from minigrad.codegen.render.llvm import render_llvm

HALVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "maximum": Tensor.maximum, "minimum": Tensor.minimum, "relu": lambda x, y: x.relu(), "neg": lambda x, y: -x,
    "where": lambda x, y: (x > y).where(x, y),
}


def code(op: Callable[[Tensor, Tensor], Tensor], dtype: str, *features: str) -> str:
    """The instructions of a kernel over two vectors, for a processor of which LLVM knows no more than `features`."""
    target = replace(NEON, features=frozenset({"neon", "fp64", *features}))
    operands = [Tensor(np.ones(1000, np.float32), device="CPU").cast(dtype).realize() for _ in "xy"]
    kernel = last_kernel(op(*operands), target)
    flags = ",".join(f"+{name}" for name in features)
    return "".join(assembly(render_llvm(stage.function, target).source, "generic", ARM, flags)
                   for stage in stages_of(kernel, target).stages)


@pytest.mark.parametrize("name", HALVES)
def test_arithmetic_of_halves_converts_nothing(name: str) -> None:
    assert "fcvt" not in code(HALVES[name], "float16", "fullfp16")
    assert "fcvt" in code(HALVES[name], "float16") or name == "neg"


@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_bfloat16_is_rounded_by_an_instruction(name: str) -> None:
    with_it, without = code(HALVES[name], "bfloat16", "bf16"), code(HALVES[name], "bfloat16")
    assert "\tbfcvtn\t" in with_it and "\tbfcvt\t" in with_it and "bfcvt" not in without
    assert len(with_it.splitlines()) < len(without.splitlines())
