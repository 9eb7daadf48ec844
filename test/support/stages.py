"""Kernels and targets for tests of every stage of code generation."""
# mypy: disable-error-code="arg-type,type-var"
from collections.abc import Callable

import numpy as np

from minigrad import Tensor
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.expr import evaluate
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, 48 << 10, 1 << 20, features=frozenset({"avx512f", "fma"}))
rng = np.random.default_rng(3)


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU")


def gathered() -> Tensor:
    return tensor(11, 19)[Tensor(rng.integers(0, 11, (7,)).astype(np.int32), device="CPU")]


def conv_data_gradient(stride: int, size: int, kernel: int) -> Tensor:
    x = Tensor(rng.standard_normal((1, 2, size, size)).astype(np.float32), device="CPU", requires_grad=True)
    y = x.conv2d(tensor(3, 2, kernel, kernel), stride=stride, padding=1)
    return (y * tensor(*y.shape)).sum().gradient(x)[0]


def long_statistics() -> list[Tensor]:
    """One kernel with two long reductions of different bodies, of small integers: any order of summing is exact."""
    x, y = (Tensor(rng.integers(-8, 9, (8, 2, 1 << 13)).astype(np.float32), device="CPU") for _ in range(2))
    return [x.sum((0, 2)), (x * y).sum((0, 2))]


CASES: dict[str, Callable[[], Tensor | list[Tensor]]] = {
    "pointwise": lambda: tensor(5, 37) * 2.5 + tensor(37),
    "pointwise of one length": lambda: (tensor(131) + tensor(131)).abs(),
    "transpose": lambda: tensor(9, 21).transpose(0, 1) + tensor(21, 9),
    "rows": lambda: tensor(7, 35).softmax(-1),
    "columns": lambda: tensor(35, 18).softmax(0),
    "row sum": lambda: (tensor(9, 67) * 3.7).sum(1),
    "column sum": lambda: tensor(67, 33).sum(0),
    "long sum": lambda: tensor(1, 1 << 17).sum(1),
    "long statistics": long_statistics,
    "max of all": lambda: tensor(13, 29).max(),
    "layer norm": lambda: tensor(6, 40).layernorm(),
    "matmul": lambda: tensor(19, 23) @ tensor(23, 37),
    "matmul whole tiles": lambda: tensor(16, 8) @ tensor(8, 64),
    "matmul of a transposed": lambda: tensor(13, 33) @ tensor(21, 33).transpose(0, 1),
    "matrix-vector": lambda: tensor(1, 48) @ tensor(70, 48).transpose(0, 1),
    "batched": lambda: tensor(3, 5, 7) @ tensor(3, 7, 17),
    "conv": lambda: tensor(2, 3, 9, 9).conv2d(tensor(5, 3, 3, 3), padding=1).relu(),
    "strided conv": lambda: tensor(1, 3, 10, 11).conv2d(tensor(4, 3, 3, 3), stride=2, padding=1),
    "depthwise": lambda: tensor(2, 6, 12, 20).conv2d(tensor(6, 1, 3, 3), padding=1, groups=6),
    "max pool": lambda: tensor(1, 3, 11, 13).max_pool2d(3, 2),
    "data gradient": lambda: conv_data_gradient(1, 9, 3),
    "strided data gradient": lambda: conv_data_gradient(2, 11, 3),
    "gather": gathered,
    "reshape after permute": lambda: tensor(4, 3).permute(1, 0).reshape(4, 3) + tensor(4, 3),
    "window of a flattened": lambda: tensor(3, 4, 5).flatten(1).unsqueeze(1).unsqueeze(1).avg_pool2d((1, 4), 4),
}


def kernels(result: Tensor | list[Tensor], target: Target) -> list[Kernel]:
    nodes = [t.node for t in (result if isinstance(result, list) else [result])]
    return [s.kernel for s in schedule(build_graph(nodes), frozenset(), target).steps]


def arguments(kernel: Kernel) -> dict[str, np.ndarray]:
    made = {}
    for p in kernel.params:
        shape = tuple(evaluate(e, {}) for e in p.shape)
        if p.dtype.is_float and np.prod(shape) > 1 << 16:
            made[p.name] = rng.integers(-8, 9, shape).astype(p.dtype.np)  # long sums of them are exact in any order
        elif p.dtype.is_float:
            made[p.name] = rng.standard_normal(shape).astype(p.dtype.np)
        else:
            made[p.name] = rng.integers(0, 5, shape).astype(p.dtype.np)
        if p.mode == "out":
            made[p.name] = np.zeros(shape, p.dtype.np)
    return made
