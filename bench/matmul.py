"""Matrix products: one at a time from a lazy expression and captured, and many small ones in one captured step."""
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import minigrad
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from minigrad import Tensor, jit

PEERS = ["torch", "numpy"]
MANY = 100


DTYPES = ("float32", "float16", "bfloat16", "int8")


class Product(NamedTuple):
    """[m, k] @ [k, n]; `left` and `right` say which operands lie transposed in memory."""

    m: int
    n: int
    k: int
    left: bool = False
    right: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        layout = {(False, False): "", (True, False): " A transposed", (False, True): " B transposed",
                  (True, True): " A and B transposed"}[self.left, self.right]
        return f"matmul {self.m}x{self.n}x{self.k} {self.dtype}{layout}"


SETS = {
    "square": tuple(Product(size, size, size) for size in (64, 128, 256, 512, 1024, 2048)),
    "skinny": (*(Product(rows, 2048, 2048) for rows in (1, 4, 8, 16)), Product(512, 512, 4), Product(512, 4, 512)),
    "transposed": tuple(Product(512, 512, 512, *flips) for flips in ((True, False), (False, True), (True, True))),
}
MANY_SIZES = (64, 128, 256)
QUICK_SETS = {"square": (Product(8, 8, 8),), "skinny": (Product(1, 16, 8),),
              "transposed": (Product(5, 6, 7, True, True),)}


def add_options(parser: argparse.ArgumentParser) -> None:
    names = (*SETS, "efficientnet", "many")
    parser.add_argument("--sets", nargs="+", choices=names, default=list(names), metavar="SET",
                        help=f"among {', '.join(names)} (default: all)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"], metavar="DTYPE",
                        help=f"of the operands, among {', '.join(DTYPES)} (default: float32); others than float32 are "
                             "compared with our float32 product too")
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), help="one product instead of the sets")


def run(bench: Bench) -> None:
    options = bench.options
    for dtype in options.dtypes:
        if options.shape:
            _measure(bench, Product(*options.shape)._replace(dtype=dtype), "matmul" + _label(dtype))
            continue
        for name in options.sets:
            for product in _products(name, bench.quick):
                _measure(bench, product._replace(dtype=dtype), f"matmul {name}" + _label(dtype))
    if "many" in options.sets and "float32" in options.dtypes and not options.shape:
        for size in (4,) if bench.quick else MANY_SIZES:
            _measure_many(bench, size, 3 if bench.quick else MANY)


def _products(name: str, quick: bool) -> tuple[Product, ...]:
    if name != "efficientnet":
        return (QUICK_SETS if quick else SETS).get(name, ())
    from bench.layers import POINTWISE

    shapes = [(layer.out_size**2, layer.out_channels, layer.in_channels) for layer in POINTWISE]
    return (Product(6, 4, 3),) if quick else tuple(Product(*shape) for shape in shapes)


def _label(dtype: str) -> str:
    return "" if dtype == "float32" else f" {dtype}"


def _operands(product: Product) -> tuple[np.ndarray, np.ndarray]:
    """a [m, k] and b [k, n], transposed views where the product says so; float32 for half types, which numpy lacks."""
    random = np.random.default_rng(0)
    m, n, k, left, right, dtype = product
    shapes = (k, m) if left else (m, k), (n, k) if right else (k, n)
    if dtype == "int8":
        a, b = (random.integers(-128, 127, shape, np.int8, endpoint=True) for shape in shapes)
    else:
        a, b = (random.standard_normal(shape, np.float32) for shape in shapes)
    return a.T if left else a, b.T if right else b


def _measure(bench: Bench, product: Product, group: str) -> None:
    m, n, k, left, right, dtype = product
    work = Work(product.name, group, flop=2 * m * n * k)
    if not bench.wants(work):
        return
    a, b = _operands(product)
    x, y = (_tensor(array, flip, dtype) for array, flip in ((a, left), (b, right)))

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        return ((x.transpose() if left else x) @ (y.transpose() if right else y)).contiguous().realize()

    captured, fixed = jit(multiply), jit(lambda x: multiply(x, y))
    sides = [Side(OURS, "realize", lambda: _finish(multiply(x, y))), Side(OURS, "jit", lambda: _finish(captured(x, y)))]
    if group in ("matmul skinny", "matmul efficientnet"):  # the function has the matrix, and may keep it packed
        sides.append(Side(OURS, "jit, weights fixed", lambda: _finish(fixed(x))))
    if dtype != "float32":
        wide = [_tensor(array, flip, "float32") for array, flip in ((a, left), (b, right))]
        captured_wide = jit(multiply)
        sides.append(Side("minigrad float32", "jit", lambda: _finish(captured_wide(*wide))))
    if "numpy" in bench.peers and dtype == "float32":
        out = np.empty((m, n), np.float32)
        sides.append(Side("numpy", "out", lambda: np.matmul(a, b, out=out)))
    if "torch" in bench.peers:
        sides.append(_torch_side(bench.peers.torch, a, b, dtype))
    bench.measure(work, sides)


def _tensor(array: np.ndarray, flip: bool, dtype: str) -> Tensor:
    return Tensor(np.ascontiguousarray(array.T if flip else array)).cast(dtype).contiguous().realize()


def _torch_side(torch: Any, a: np.ndarray, b: np.ndarray, dtype: str) -> Side:
    ta, tb = (torch.from_numpy(array).to(getattr(torch, dtype)) for array in (a, b))
    if dtype == "int8":
        return Side("torch", "_int_mm", lambda: torch._int_mm(ta, tb))
    result = torch.empty(a.shape[0], b.shape[1], dtype=ta.dtype)
    return Side("torch", "out", lambda: torch.mm(ta, tb, out=result))


def _measure_many(bench: Bench, size: int, count: int) -> None:
    """`count` independent products in one captured step; two sets of inputs take turns. Times are of one product."""
    work = Work(f"matmul {size}x{size}x{size} float32, {count} in a step", "matmul many", flop=2 * size**3)
    if not bench.wants(work):
        return
    random = np.random.default_rng(0)
    arrays = [[random.standard_normal((size, size), np.float32) for _ in range(2 * count)] for _ in range(2)]
    tensors = [[Tensor(array).realize() for array in each] for each in arrays]

    @jit
    def step(inputs: list[Tensor]) -> list[Tensor]:
        products = [(a @ b).contiguous() for a, b in zip(inputs[::2], inputs[1::2], strict=True)]
        Tensor.realize(*products)
        return products

    sides = [Side(OURS, "jit", _in_turn(lambda which: _finish(step(tensors[which]))), count)]
    if "numpy" in bench.peers:
        out = np.empty((size, size), np.float32)
        sides.append(Side("numpy", "out", _in_turn(lambda which: _each(arrays[which], np.matmul, out)), count))
    if "torch" in bench.peers:
        torch = bench.peers.torch
        theirs = [[torch.from_numpy(array) for array in each] for each in arrays]
        result = torch.empty(size, size)
        sides.append(Side("torch", "out", _in_turn(lambda which: _each(theirs[which], torch.mm, result)), count))
    bench.measure(work, sides)


def _each(inputs: list, multiply: Callable, out: object) -> None:
    for a, b in zip(inputs[::2], inputs[1::2], strict=True):
        multiply(a, b, out=out)


def _in_turn(run: Callable[[int], object]) -> Callable[[], object]:
    """Calls run(0), run(1), run(0), ..."""
    state = [0]

    def call() -> None:
        state[0] ^= 1
        run(state[0])

    return call


def _finish(_: object) -> None:
    minigrad.synchronize()
