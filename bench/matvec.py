"""Matrix-vector products as decoding does them: every product reads weights that are in no cache."""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import minigrad
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from minigrad import Tensor, jit

PEERS = ["torch", "numpy"]
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="DTYPE",
                        help=f"of the weights, among {', '.join(DTYPES)} (default: all)")
    parser.add_argument("--shape", type=int, nargs=2, default=[2048, 5632], metavar=("K", "N"))
    parser.add_argument("--megabytes", type=int, default=256, help="of distinct weights, at least (default 256)")


def run(bench: Bench) -> None:
    k, n = (16, 24) if bench.quick else bench.options.shape
    wanted = 4096 if bench.quick else bench.options.megabytes << 20
    for dtype in bench.options.dtypes:
        nbytes = k * n * DTYPES[dtype]
        work = Work(f"matvec {k}x{n} {dtype}", "matvec", flop=2 * k * n, bytes=nbytes)
        if bench.wants(work):
            _measure(bench, work, dtype, k, n, -(-wanted // nbytes))


def _measure(bench: Bench, work: Work, dtype: str, k: int, n: int, count: int) -> None:
    """`count` weights [n, k], each with a vector of its own: one step goes through them all."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((n, k), np.float32) for _ in range(count)]
    vectors = [random.standard_normal(k, np.float32) for _ in range(count)]
    weights = [Tensor(array).cast(dtype).contiguous().realize() for array in arrays]
    inputs = [Tensor(vector).realize() for vector in vectors]

    @jit
    def step(inputs: list[Tensor]) -> list[Tensor]:
        results = [(x @ w.transpose()).contiguous() for x, w in zip(inputs, weights, strict=True)]
        Tensor.realize(*results)
        return results

    def ours() -> None:
        step(inputs)
        minigrad.synchronize()

    sides = [Side(OURS, "jit", ours, count)]
    if "torch" in bench.peers:
        sides.append(Side("torch", "mv", _torch(bench.peers.torch, dtype, arrays, vectors), count))
    if "numpy" in bench.peers and dtype == "float32":  # its half types are no faster than Python
        out = np.empty(n, np.float32)
        sides.append(Side("numpy", "dot", lambda: [np.dot(w, x, out=out)
                                                   for w, x in zip(arrays, vectors, strict=True)], count))
    bench.measure(work, sides)


def _torch(torch: Any, dtype: str, arrays: list[np.ndarray], vectors: list[np.ndarray]) -> Any:
    kind = getattr(torch, dtype)
    weights = [torch.from_numpy(array).to(kind) for array in arrays]
    inputs = [torch.from_numpy(vector).to(kind) for vector in vectors]
    return lambda: [torch.mv(w, x) for w, x in zip(weights, inputs, strict=True)]
