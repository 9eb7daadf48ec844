"""Random graphs of elementwise, reducing, moving, windowed, contracting and gathering operations over small odd shapes
and all kinds of numbers: a seed is a graph. Networks of layers at the sizes that networks have are in `fuzz/`.
"""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,operator,type-var,var-annotated"
from collections.abc import Callable, Iterable

import numpy as np
from support.rounding import assert_close

from minigrad import Tensor
from minigrad.config import config
from minigrad.dtype import bfloat16, bool_, float16, float32, float64, int32

DTYPES = (float32, float32, float32, int32, bool_, float16, bfloat16, float64)
DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
TOLERANCE = {float32: 2e-4, float64: 1e-9, float16: 2e-2, bfloat16: 6e-2}
MOST = 4000
"""Elements of one value, so that references stay quick."""


class Graph:
    """A random graph, built the same way for every device. In every third, floats are of magnitudes up to 1e4."""

    def __init__(self, seed: int, device: str):
        self.rng = np.random.default_rng(seed)
        self.device = device
        self.scale = 10 ** self.rng.uniform(0, 4) if seed % 3 == 2 else 1.0
        self.values: list[Tensor] = []
        for _ in range(self.rng.integers(1, 4)):
            self.values.append(self.leaf(self.shape()))

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def shape(self) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, 5))
        shape: list[int] = []
        for _ in range(rank):
            n = 0 if self.rng.random() < 0.02 else int(self.pick(DIMS))
            shape.append(n if np.prod([*shape, n]) <= MOST else 1)
        return tuple(shape)

    def leaf(self, shape, dtype=None) -> Tensor:
        dtype = dtype or self.pick(DTYPES)
        numbers = self.rng.integers(-6, 7, shape)
        if dtype.is_float:
            numbers = numbers / 4 * (self.scale if dtype in (float32, float64) else 1)
        if dtype is bool_:
            numbers = numbers > 0
        return Tensor(np.asarray(numbers, np.float64), device=self.device).cast(dtype).contiguous().realize()

    def some(self) -> Tensor:
        return self.values[-1] if self.rng.random() < 0.6 else self.pick(self.values)

    def grow(self, operations: int) -> list[Tensor]:
        for _ in range(operations):
            x = self.some()
            new = self.pick(OPERATIONS)(self, x)
            if np.prod(new.shape) <= MOST:
                self.values.append(new)
        return self.values

    # ---- operations ----

    def unary(self, x: Tensor) -> Tensor:
        floats = (Tensor.exp, Tensor.tanh, Tensor.sin, Tensor.sigmoid, Tensor.abs, Tensor.relu, Tensor.square)
        if x.dtype.is_float:
            y = self.pick(floats)(x.clip(-3, 3))
            return y
        return x.logical_not() if x.dtype is bool_ else self.pick((Tensor.abs, Tensor.square))(x.clip(-50, 50))

    def cast(self, x: Tensor) -> Tensor:
        dtype = self.pick(DTYPES)
        if x.dtype.is_float and not dtype.is_float:
            x = (x * 4).round()
        return x.cast(dtype)

    def binary(self, x: Tensor) -> Tensor:
        y = self.some()
        if y.shape != x.shape or self.rng.random() < 0.3:
            kept = tuple(n if self.rng.random() < 0.6 else 1 for n in x.shape)
            y = self.leaf(kept[int(self.rng.integers(0, len(kept) + 1)):], self.pick((x.dtype, float32)))
        kind = self.pick(("add", "sub", "mul", "maximum", "lt", "where"))
        if kind == "where":
            return (x > 0).where(x, y)
        if kind == "lt":
            return x.cast(float32) < y.cast(float32) + 0.1
        if kind == "sub" and x.dtype is bool_ and y.dtype is bool_:
            kind = "mul"
        return {"add": x.__add__, "sub": x.__sub__, "mul": x.__mul__, "maximum": x.maximum}[kind](y)

    def reduce(self, x: Tensor) -> Tensor:
        if not x.ndim:
            return x
        axes = tuple(a for a in range(x.ndim) if self.rng.random() < 0.5) or (int(self.rng.integers(x.ndim)),)
        keepdim = bool(self.rng.random() < 0.5)
        kind = self.pick(("sum", "max", "mean", "min"))
        if 0 in x.shape or kind == "sum":
            return x.sum(axes, keepdim)
        return getattr(x, kind)(axes, keepdim)

    def rows(self, x: Tensor) -> Tensor:
        if not x.ndim or 0 in x.shape:
            return x
        y = x.clip(-4, 4).float() if x.dtype is not float64 else x.clip(-4, 4)
        axis = int(self.rng.integers(x.ndim))
        return self.pick((Tensor.softmax, Tensor.log_softmax, Tensor.layernorm))(y, axis)

    def permute(self, x: Tensor) -> Tensor:
        return x.permute(*[int(a) for a in self.rng.permutation(x.ndim)]) if x.ndim else x

    def reshape(self, x: Tensor) -> Tensor:
        size, shape = int(np.prod(x.shape)), []
        if not size:
            return x
        while size > 1 and len(shape) < 3:
            divisors = [d for d in range(1, size + 1) if size % d == 0]
            shape.append(int(self.pick(divisors)))
            size //= shape[-1]
        return x.reshape(*shape, size)

    def pad(self, x: Tensor) -> Tensor:
        pads = [tuple(int(n) for n in self.rng.integers(0, 3, 2)) for _ in range(x.ndim)]
        return x.pad(pads, value=self.pick((0, 0, 1))) if x.ndim else x

    def slice(self, x: Tensor) -> Tensor:
        at = []
        for n in x.shape:
            start = int(self.rng.integers(0, max(n, 1)))
            step = int(self.pick((1, 1, 2, 3, -1)))
            stop = int(self.rng.integers(start, n + 1)) or None
            at.append(slice(None, None, -1) if step < 0 else slice(start, stop, step))
        return x[tuple(at)] if at else x

    def expand(self, x: Tensor) -> Tensor:
        n = int(self.pick((2, 3, 5)))
        grown = x.reshape(n if not x.ndim else 1, *x.shape) if n == 1 else x.reshape(1, *x.shape).expand(n, *x.shape)
        return grown if self.rng.random() < 0.5 else grown.permute(*range(1, grown.ndim), 0)

    def join(self, x: Tensor) -> Tensor:
        return x.cat(self.unary(x).cast(x.dtype), dim=int(self.rng.integers(x.ndim))) if x.ndim else x

    def matmul(self, x: Tensor) -> Tensor:
        if not x.ndim:
            return x
        dtype = x.dtype if x.dtype.is_float else float32
        w = self.leaf((x.shape[-1], int(self.pick(DIMS))), dtype)
        y = x.cast(dtype) @ w
        return y.relu() if self.rng.random() < 0.5 else y

    def convolve(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or 0 in x.shape or x.shape[1] > 9:
            return x
        taps = [min(int(self.pick((1, 2, 3))), n) for n in x.shape[2:]]
        groups = x.shape[1] if self.rng.random() < 0.3 else 1
        w = self.leaf((groups * 2, x.shape[1] // groups, *taps), float32)
        return x.float().conv2d(w, stride=int(self.pick((1, 2))), padding=int(self.pick((0, 1))), groups=groups)

    def window_gradient(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or 0 in x.shape or x.shape[1] > 9:
            return x
        w = self.leaf((2, x.shape[1], min(3, x.shape[2]), min(2, x.shape[3])), float32)
        source = x.float().detach()
        source.requires_grad_(True)
        y = source.conv2d(w, stride=int(self.pick((1, 2, 3))), padding=1)
        return (y * y).sum().gradient(source)[0].clip(-50, 50)

    def pool(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or 0 in x.shape or min(x.shape[2:]) < 2 or not x.dtype.is_float:
            return x
        return self.pick((Tensor.max_pool2d, Tensor.avg_pool2d))(x, 2, int(self.pick((1, 2))))

    def gather(self, x: Tensor) -> Tensor:
        if not x.ndim or 0 in x.shape:
            return x
        picks = self.rng.integers(0, x.shape[0], self.pick(((3,), (2, 2), (1,))))
        return x[Tensor(picks.astype(np.int32), device=self.device)]

    def cumulate(self, x: Tensor) -> Tensor:
        return x.float().cumsum(int(self.rng.integers(x.ndim))) if x.ndim and 0 not in x.shape else x


OPERATIONS = (
    *[Graph.unary] * 3, *[Graph.binary] * 5, *[Graph.reduce] * 3, Graph.cast, Graph.rows, Graph.rows, Graph.permute,
    Graph.reshape, Graph.reshape, Graph.pad, Graph.slice, Graph.slice, Graph.expand, Graph.join, Graph.matmul,
    Graph.matmul, Graph.convolve, Graph.convolve, Graph.window_gradient, Graph.pool, Graph.gather, Graph.cumulate,
)


def results(seed: int, device: str) -> tuple[list[np.ndarray], float]:
    """The last values of the graph and one from its middle, realized together; the tolerance of its coarsest dtype.

    A fused kernel rounds to a half type only where a value is stored, the reference after every operation.
    """
    with config(device=device):
        graph = Graph(seed, device)
        values = graph.grow(int(graph.rng.integers(3, 14)))
        wanted = list({id(v): v for v in (values[-1], values[len(values) // 2], values[-2:][0])}.values())
        Tensor.realize(*wanted)
        return [v.numpy() for v in wanted], max([TOLERANCE.get(v.dtype, 0.0) for v in values])


def close(got: np.ndarray, want: np.ndarray, tolerance: float, name: str,
          others: Callable[[], Iterable[np.ndarray]]) -> None:
    """`tolerance` of the largest finite number; `others` are evaluations with errors of rounding."""
    assert got.shape == want.shape and got.dtype == want.dtype, name
    largest = np.abs(want[np.isfinite(want)]).astype(np.float64).max(initial=1) if want.dtype.kind == "f" else 1
    assert_close(got, want, tolerance, tolerance * largest, name, others)
