"""Loops of streams: how they are planned, read and run."""
# mypy: disable-error-code="arg-type,type-var"
import numpy as np

from minigrad import Tensor
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.split import split_divisions
from minigrad.codegen.passes import Stage, stages_of
from minigrad.codegen.plan.several import Plan
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

rng = np.random.default_rng(5)


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU")


def panels(rows: int, columns: int, lanes: int = 16) -> Tensor:
    """A matrix [rows, columns] that lies in memory with `lanes` rows interleaved."""
    return tensor(rows // lanes, columns, lanes).permute(0, 2, 1).reshape(rows, columns)


def last_kernel(result: Tensor, target: Target) -> Kernel:
    return schedule(build_graph([result.node]), frozenset(), target).steps[-1].kernel


def streamed(kernel: Kernel, target: Target) -> Stage:
    stage, = stages_of(kernel, target).stages
    assert isinstance(stage.plan, Plan) and stage.plan.pattern == "stream", stage.plan
    return stage


def computes(stage: Stage, kernel: Kernel, scalar: float, cancels: bool = False) -> None:
    """The loops of the only stage compute what the kernel says, and their text parses back. `cancels`: sums of
    products with random bytes, up to 10^7, some of which come out near 0: float32 rounds those by the largest."""
    flat = collapse(flatten(split_divisions(kernel)))
    arrays = {}
    for p in flat.params:
        words = rng.integers(0, 1 << 31, p.shape) if p.dtype.is_int else rng.standard_normal(p.shape)
        arrays[p.name] = words.astype(p.dtype.np) if p.mode == "in" else np.zeros(p.shape, p.dtype.np)
    expected = {name: a.copy() for name, a in arrays.items()}
    scalars = {s.name: scalar for s in flat.scalars}
    interpret_kernel(flat, expected, scalars)
    assert parse_function(print_function(stage.function)) == stage.function
    dims = {d.name: value for d, value in zip(stage.function.dims, stage.dims, strict=True)}
    interpret_function(stage.function, arrays, scalars, dims)
    np.testing.assert_allclose(arrays["o0"], expected["o0"], rtol=1e-4,
                               atol=2e-7 * np.abs(expected["o0"]).max() if cancels else 1e-3)
