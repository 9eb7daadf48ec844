"""Kernels of contractions and the targets that tests plan them for."""
# mypy: disable-error-code="arg-type,type-var"
from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from minigrad import Tensor
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel, Nest, Param
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.split import split_divisions, split_phases
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy import packed
from minigrad.codegen.policy.blocking import Blocks
from minigrad.codegen.policy.packed_steps import packed_steps
from minigrad.dtype import bfloat16, float32_to_bfloat16
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

X86 = frozenset({"sse", "fma", "f16c"})
AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, 48 << 10, 1 << 20, features=X86 | {"avx512f"})
AMX = replace(AVX512, name="amx", features=AVX512.features | {"avx512bw", "amx-tile", "amx-bf16"})
AVX2 = Target("avx2", "llvm", "znver3", 32, 16, 2, features=X86 | {"avx2"})
NEON = Target("neon", "llvm", "generic", 16, 32, 4)
TINY = replace(AVX2, name="tiny caches", l1=1 << 11, l2=6 << 10)
TARGETS = (AVX512, AVX2, NEON, TINY)
rng = np.random.default_rng(11)


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU")


def gradient_of_conv(of: str, size: int, *, stride: int = 1, dilation: int = 1, groups: int = 1) -> Tensor:
    x, w = tensor(2, 4, size, size), tensor(6, 4 // groups, 3, 3)
    x.requires_grad = w.requires_grad = True
    y = x.conv2d(w, stride=stride, padding=1, dilation=dilation, groups=groups)
    return (y * tensor(*y.shape)).sum().gradient(x if of == "data" else w)[0]


def gathered(rows: int, picked: int, columns: int) -> Tensor:
    return tensor(rows, columns)[Tensor(rng.integers(0, rows, (picked,)).astype(np.int32), device="CPU")]


CASES = {
    "a @ b": lambda: tensor(19, 23) @ tensor(23, 37),
    "a @ b.T": lambda: tensor(13, 33) @ tensor(21, 33).transpose(0, 1),
    "a.T @ b": lambda: tensor(33, 13).transpose(0, 1) @ tensor(33, 21),
    "a.T @ b.T": lambda: tensor(33, 13).transpose(0, 1) @ tensor(21, 33).transpose(0, 1),
    "(a @ b).T": lambda: (tensor(9, 12) @ tensor(12, 35)).transpose(0, 1).contiguous(),
    "batched": lambda: tensor(3, 5, 7) @ tensor(3, 7, 17),
    "one b for all": lambda: tensor(3, 5, 7) @ tensor(7, 17),
    "one a for all": lambda: tensor(5, 7) @ tensor(3, 7, 17),
    "heads": lambda: tensor(2, 6, 3, 8).permute(0, 2, 1, 3) @ tensor(2, 9, 3, 8).permute(0, 2, 3, 1),
    "epilogue": lambda: (tensor(3, 5, 7) @ tensor(7, 17) + tensor(17)).relu() + tensor(3, 5, 17),
    "prologue": lambda: (tensor(9, 11) * tensor(11) + tensor(9, 1)).abs() @ tensor(11, 20).exp(),
    "negative": lambda: (-tensor(6, 11)) @ tensor(11, 20),
    "int32": lambda: (tensor(6, 11) * 9).cast("int32") @ (tensor(11, 20) * 9).cast("int32"),
    "gathered rows": lambda: gathered(9, 6, 12) @ tensor(12, 20),
    "gathered columns": lambda: tensor(9, 6) @ gathered(11, 20, 6).transpose(0, 1),
    "float64": lambda: tensor(6, 11).cast("float64") @ tensor(11, 20).cast("float64"),
    "conv": lambda: tensor(2, 3, 9, 9).conv2d(tensor(5, 3, 3, 3), padding=1).relu(),
    "strided conv": lambda: tensor(1, 3, 10, 11).conv2d(tensor(4, 3, 3, 3), stride=2, padding=1),
    "dilated conv": lambda: tensor(1, 3, 12, 11).conv2d(tensor(4, 3, 3, 3), dilation=2, padding=2),
    "grouped conv": lambda: tensor(2, 4, 9, 9).conv2d(tensor(6, 2, 3, 3), padding=1, groups=2),
    "1x1 conv": lambda: tensor(3, 5, 7, 7).conv2d(tensor(6, 5, 1, 1)),
    "data gradient": lambda: gradient_of_conv("data", 9),
    "strided data gradient": lambda: gradient_of_conv("data", 9, stride=2),
    "grouped data gradient": lambda: gradient_of_conv("data", 7, groups=2),
    "weight gradient": lambda: gradient_of_conv("weight", 9),
    "strided weight gradient": lambda: gradient_of_conv("weight", 9, stride=2),
    "dilated weight gradient": lambda: gradient_of_conv("weight", 9, dilation=2),
    "grouped weight gradient": lambda: gradient_of_conv("weight", 7, groups=2),
}


def flat_kernel(result: Tensor, target: Target = AVX2) -> Kernel:
    """The last kernel of a lazy tensor, as policies see it."""
    kernel = schedule(build_graph([result.node]), frozenset(), target).steps[-1].kernel
    return collapse(flatten(split_divisions(split_phases(kernel))))


def all_blocks(nest: Nest, target: Target, choices: int = 1) -> list[Blocks]:
    """The blocks of the first choices of every way to copy operands, however little work a nest is and however few its
    rows are."""
    with patch.multiple(packed, MIN_WORK=1, LEAST_K=1, recognise_stream=lambda nest, target: None,
                        packed_steps=lambda nest, c, blocks: blocks):
        return [way.made(choice, target)  # type: ignore[misc]
                for way in packed.ways(nest, target) for _, choice in way.choices[:choices]]


def each_choice(kernel: Kernel, target: Target, choices: int = 2) -> list[list[Blocks]]:
    """Blocks of the nests of a kernel, as often as it takes until each of `all_blocks` was among them."""
    found = [all_blocks(nest, target, choices) for nest in kernel.nests]
    return [[blocks[turn % len(blocks)] for blocks in found] for turn in range(max(map(len, found)))]


def built(kernel: Kernel, nest: Nest, made: Blocks) -> Function:
    """The loops of a choice, whose text parses back."""
    found = recognise(nest)
    assert isinstance(found, Contraction), found
    own, steps = packed_steps(nest, found, made)
    assert parse_plan(str(steps)) == steps and (f"call {made.microkernel}" in str(steps)) == bool(made.microkernel)
    return build(kernel, own, steps, "packed")


def arguments(kernel: Kernel) -> dict[str, np.ndarray]:
    made = {}
    for p in kernel.params:
        values = rng.standard_normal(p.shape) if p.dtype.is_float else rng.integers(-9, 9, p.shape)
        data = float32_to_bfloat16(values.astype(np.float32)) if p.dtype is bfloat16 else values.astype(p.dtype.np)
        made[p.name] = data if p.mode != "out" else np.zeros(p.shape, p.dtype.np)
    return made


def equal_the_kernel(kernel: Kernel, functions: Iterable[Function]) -> None:
    """Loops that compute what the kernel says, are verified, and whose text parses back."""
    arrays = arguments(kernel)
    scalars = {s.name: 0.75 for s in kernel.scalars}
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, scalars)
    for function in functions:
        verify_function(function)
        assert parse_function(print_function(function)) == function
        interpret_function(function, arrays, scalars)
    for p in kernel.params:
        if p.mode != "in":
            np.testing.assert_allclose(arrays[p.name], expected[p.name], rtol=3e-5, atol=3e-5)


def parts_equal_the_kernel(kernel: Kernel, nests: list[Nest], scratch: list[Param]) -> None:
    """The nests one after the other, by way of scratch memory, compute what the kernel's one nest does."""
    whole = replace(kernel, params=(*kernel.params, *scratch), nests=tuple(nests))
    arrays = arguments(whole)
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, {})
    interpret_kernel(whole, arrays, {})
    np.testing.assert_allclose(arrays["o0"], expected["o0"], rtol=1e-5, atol=1e-5)
