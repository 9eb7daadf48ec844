"""Scaled dot-product attention, forward and with gradients, and the memory that it takes."""
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import minigrad
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from minigrad import Tensor, jit

PEERS = ["torch"]
CASES = [("causal", 2048), ("full", 1024), ("causal", 512)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64, help="of a head (default 64)")


def run(bench: Bench) -> None:
    heads, width = (2, 4) if bench.quick else (bench.options.heads, bench.options.width)
    for kind, tokens in [("causal", 16)] if bench.quick else CASES:
        for gradients in (False, True):
            scores = heads * tokens * tokens / (2 if kind == "causal" else 1)
            what = "gradients" if gradients else "forward"
            work = Work(f"attention {what} {kind} {heads}x{tokens}x{width}", f"attention {what}",
                        flop=scores * width * 2 * (7 if gradients else 2))
            if bench.wants(work):
                _measure(bench, work, kind == "causal", (1, heads, tokens, width), gradients)


def _measure(bench: Bench, work: Work, causal: bool, shape: tuple[int, ...], gradients: bool) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, np.float32) for _ in range(4)]
    inputs = [Tensor(a, requires_grad=gradients).realize() for a in arrays[:3]]
    weight = Tensor(arrays[3]).realize()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        y = q.scaled_dot_product_attention(k, v, is_causal=causal)
        if not gradients:
            return [y.realize()]
        found = (y * weight).sum().gradient(q, k, v)
        Tensor.realize(*found)
        return list(found)

    planned = minigrad.plan(attend, *inputs)
    extra = planned.peak_bytes - sum(4 * a.size for a in (arrays if gradients else arrays[:3]))
    bench.report.say(f"{work.name}: {extra / 1e6:.1f} MB besides the inputs, results included")
    step = jit(attend)

    def ours() -> None:
        step(*inputs)
        minigrad.synchronize()

    sides = [Side(OURS, "jit", ours)]
    if "torch" in bench.peers:
        sides.append(Side("torch", "eager", _torch(bench.peers.torch, causal, arrays, gradients)))
    bench.measure(work, sides)


def _torch(torch: Any, causal: bool, arrays: list[np.ndarray], gradients: bool) -> Callable[[], Any]:
    q, k, v = (torch.from_numpy(a).requires_grad_(gradients) for a in arrays[:3])
    weight = torch.from_numpy(arrays[3])

    def call() -> Any:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return torch.autograd.grad((y * weight).sum(), (q, k, v)) if gradients else y

    return call
