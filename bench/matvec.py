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
from minigrad.ops.block_formats import FORMATS as BLOCKS
from minigrad.state import QuantizedTensor

PEERS = ["torch", "numpy"]
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
FORMATS = (*DTYPES, *BLOCKS)
ACTIVATIONS = ("exact", "bytes")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="DTYPE",
                        help=f"of the weights, among {', '.join(FORMATS)} (default: all)")
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=list(ACTIVATIONS), metavar="KIND",
                        help="with weights in blocks: exact, or rounded to bytes (quantize_activations); default: both")
    parser.add_argument("--shape", type=int, nargs=2, default=[2048, 5632], metavar=("K", "N"))
    parser.add_argument("--megabytes", type=int, default=256, help="of distinct weights, at least (default 256)")


def run(bench: Bench) -> None:
    k, n = (256, 48) if bench.quick else bench.options.shape
    wanted = 4096 if bench.quick else bench.options.megabytes << 20
    for dtype in bench.options.dtypes:
        nbytes = k * n * DTYPES[dtype] if dtype in DTYPES else k * n // BLOCKS[dtype].block * BLOCKS[dtype].block_bytes
        for activations in bench.options.activations if dtype in BLOCKS else ("exact",):
            name = f"matvec {k}x{n} {dtype}" + (", x in bytes" if activations == "bytes" else "")
            work = Work(name, "matvec", flop=2 * k * n, bytes=nbytes)
            if bench.wants(work):
                _measure(bench, work, dtype, k, n, -(-wanted // nbytes), activations == "bytes")


def _measure(bench: Bench, work: Work, dtype: str, k: int, n: int, count: int, rounded: bool) -> None:
    """`count` weights [n, k], each with a vector of its own: one step goes through them all. `rounded`: the vectors
    are, to bytes."""
    random = np.random.default_rng(0)
    vectors = [random.standard_normal(k, np.float32) for _ in range(count)]
    inputs = [Tensor(vector).realize() for vector in vectors]
    arrays: list[np.ndarray] = []
    if dtype in DTYPES:
        arrays = [random.standard_normal((n, k), np.float32) for _ in range(count)]
        weights: list[Tensor | QuantizedTensor] = [Tensor(a).cast(dtype).contiguous().realize() for a in arrays]
    else:
        weights = [_random_blocks(random, dtype, n, k) for _ in range(count)]

    @jit
    def step(inputs: list[Tensor]) -> list[Tensor]:
        results = [(x @ w.transpose() if isinstance(w, Tensor) else
                    w.linear(x, quantize_activations=rounded)).contiguous()
                   for x, w in zip(inputs, weights, strict=True)]
        Tensor.realize(*results)
        return results

    def ours() -> None:
        step(inputs)
        minigrad.synchronize()

    sides = [Side(OURS, "jit", ours, count)]
    if "torch" in bench.peers:
        kind = dtype if dtype in DTYPES else "bfloat16"  # the smallest that torch multiplies without other libraries
        if not arrays:  # as many of them as make the same bytes
            count = max(1, count * BLOCKS[dtype].block_bytes // (2 * BLOCKS[dtype].block))
            arrays = [random.standard_normal((n, k), np.float32) for _ in range(count)]
        sides.append(Side("torch", "mv" if kind == dtype else f"mv {kind}",
                          _torch(bench.peers.torch, kind, arrays, vectors[:count]), count))
    if "numpy" in bench.peers and dtype == "float32":  # its half types are no faster than Python
        out = np.empty(n, np.float32)
        sides.append(Side("numpy", "dot", lambda: [np.dot(w, x, out=out)
                                                   for w, x in zip(arrays, vectors, strict=True)], count))
    bench.measure(work, sides, stream=True)


def _random_blocks(random: np.random.Generator, kind: str, n: int, k: int) -> QuantizedTensor:
    """Random numbers in blocks whose scales are near 0.01, and not infinite."""
    f = BLOCKS[kind]
    blocks = random.integers(0, 256, (n * k // f.block, f.block_bytes), np.uint8)
    found = QuantizedTensor.from_blocks(kind, (n, k), blocks)
    shapes = [part.numpy().shape for part in found.parts]
    parts = [Tensor(random.uniform(0.005, 0.02, shape).astype(np.float16)) if part.dtype.is_float else part
             for part, shape in zip(found.parts, shapes, strict=True)]
    if f.scale == "power":
        parts[1] = Tensor(random.integers(118, 124, shapes[1]).astype(np.uint8))
    return QuantizedTensor(kind, (n, k), tuple(parts))


def _torch(torch: Any, dtype: str, arrays: list[np.ndarray], vectors: list[np.ndarray]) -> Any:
    kind = getattr(torch, dtype)
    weights = [torch.from_numpy(array).to(kind) for array in arrays]
    inputs = [torch.from_numpy(vector).to(kind) for vector in vectors]
    return lambda: [torch.mv(w, x) for w, x in zip(weights, inputs, strict=True)]
