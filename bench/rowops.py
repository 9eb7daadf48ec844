"""Works that move memory rather than multiply: row reductions, activations, a loss, a long sum, an Adam step."""
from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import minigrad
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from minigrad import Tensor, jit

PEERS = ["torch"]
FLOAT_BYTES = 4


class Sizes(NamedTuple):
    rows: int
    columns: int
    samples: int
    classes: int
    long: int


LARGE = Sizes(4096, 4096, 512, 32000, 64 << 20)
SMALL = Sizes(64, 768, 64, 1000, 1 << 16)
QUICK = Sizes(3, 5, 4, 6, 32)


class Operation(NamedTuple):
    """`elements` is what must move at least: inputs read once, results written once."""

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[[Any], Callable[..., Any]]
    inputs: list[np.ndarray]
    elements: int


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", choices=("large", "small"), default=["large", "small"])


def run(bench: Bench) -> None:
    for name in ["quick"] if bench.quick else bench.options.sizes:
        for operation in _operations({"large": LARGE, "small": SMALL, "quick": QUICK}[name]):
            _measure(bench, operation, f"rowops {name}")
    _measure_adam(bench)


def _operations(sizes: Sizes) -> Iterator[Operation]:
    random = np.random.default_rng(0)
    x = random.standard_normal((sizes.rows, sizes.columns), np.float32)
    weight, bias = random.standard_normal((2, sizes.columns), np.float32)
    logits = random.standard_normal((sizes.samples, sizes.classes), np.float32)
    labels = random.integers(0, sizes.classes, sizes.samples)
    shape, columns = f"{sizes.rows}x{sizes.columns}", (sizes.columns,)
    yield Operation(f"softmax {shape}", lambda x: x.softmax(-1),
                    lambda torch: lambda x: torch.softmax(x, -1), [x], 2 * x.size)
    yield Operation(f"layer_norm {shape}", lambda x, w, b: x.layernorm(-1) * w + b,
                    lambda torch: lambda x, w, b: torch.nn.functional.layer_norm(x, columns, w, b),
                    [x, weight, bias], 2 * x.size)
    yield Operation(f"rms_norm {shape}", lambda x, w: x.rms_norm(-1) * w,
                    lambda torch: lambda x, w: torch.nn.functional.rms_norm(x, columns, w), [x, weight], 2 * x.size)
    yield Operation(f"gelu {shape}", lambda x: x.gelu("none"),
                    lambda torch: torch.nn.functional.gelu, [x], 2 * x.size)
    yield Operation(f"cross_entropy {sizes.samples}x{sizes.classes}", lambda x, y: x.cross_entropy(y),
                    lambda torch: torch.nn.functional.cross_entropy, [logits, labels], logits.size)
    long = random.standard_normal(sizes.long, np.float32)
    yield Operation(f"sum {sizes.long}", lambda x: x.sum(), lambda torch: torch.sum, [long], sizes.long)


def _measure(bench: Bench, operation: Operation, group: str) -> None:
    work = Work(operation.name, group, bytes=operation.elements * FLOAT_BYTES)
    if not bench.wants(work):
        return
    tensors = [Tensor(array.astype(np.int32) if array.dtype == np.int64 else array).realize()
               for array in operation.inputs]
    compute = operation.ours  # alone: a replay looks at all that its function holds, also at the arrays of `operation`
    step = jit(lambda *inputs: compute(*inputs).realize())

    def ours() -> None:
        step(*tensors)
        minigrad.synchronize()

    sides = [Side(OURS, "jit", ours)]
    if "torch" in bench.peers:
        torch = bench.peers.torch
        theirs, inputs = operation.theirs(torch), [torch.from_numpy(array) for array in operation.inputs]

        def call() -> None:
            with torch.no_grad():
                theirs(*inputs)

        sides.append(Side("torch", "eager", call))
    bench.measure(work, sides)


def _measure_adam(bench: Bench) -> None:
    """Each step reads parameters, gradients and both moments, and writes parameters and both moments."""
    from examples.efficientnet.model import EfficientNet
    from minigrad.nn.optim import Adam
    from minigrad.nn.state import get_parameters

    if bench.quick:
        name, shapes = "adam quick", [(3, 4), (5,)]
    else:
        name = "adam efficientnet-b0"
        shapes = [p.numpy().shape for p in get_parameters(EfficientNet(0)) if p.requires_grad]
    elements = sum(int(np.prod(shape)) for shape in shapes)
    work = Work(name, "adam", bytes=7 * elements * FLOAT_BYTES)
    if not bench.wants(work):
        return
    random = np.random.default_rng(0)
    arrays = [[random.standard_normal(shape, np.float32) for shape in shapes] for _ in range(2)]
    parameters = [Tensor(array, requires_grad=True) for array in arrays[0]]
    gradients = [Tensor(array).realize() for array in arrays[1]]
    optimizer = Adam(parameters, lr=1e-4)

    @jit
    def step(gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    def ours() -> None:
        step(gradients)
        minigrad.synchronize()

    sides = [Side(OURS, "jit", ours)]
    if "torch" in bench.peers:
        sides += [Side("torch", f"eager {kind}", _torch_adam(bench.peers.torch, kind, *arrays))
                  for kind in ("foreach", "fused")]
    bench.measure(work, sides)


def _torch_adam(torch: Any, kind: str, values: list[np.ndarray], gradients: list[np.ndarray]) -> Callable[[], Any]:
    parameters = [torch.nn.Parameter(torch.from_numpy(value.copy())) for value in values]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient)
    return torch.optim.Adam(parameters, lr=1e-4, **{kind: True}).step
