"""Convolution layers, forward and gradients, captured, beside torch in both of its layouts."""
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import minigrad
from bench.layers import NETWORKS, QUICK_LAYERS, ConvLayer
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from minigrad import Tensor, jit

PEERS = ["torch"]
# `both` is what other frameworks' figures call backward: both gradients, without the forward pass before them.
PASSES = {"forward": "forward", "data": "backward-data", "weights": "backward-weights", "both": "backward"}
LAYOUTS = ("nchw", "channels_last")


def add_options(parser: argparse.ArgumentParser, networks: tuple[str, ...] = tuple(NETWORKS)[:3]) -> None:
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(networks), metavar="NETWORK",
                        help=f"among {', '.join(NETWORKS)}")
    parser.add_argument("--grad", nargs="+", choices=PASSES, default=["forward"], metavar="PASS",
                        help=f"among {', '.join(PASSES)} (default: forward)")
    parser.add_argument("--batch", type=int, default=1)


def run(bench: Bench, quick_layers: tuple[ConvLayer, ...] = QUICK_LAYERS) -> None:
    for network in bench.options.networks[:1] if bench.quick else bench.options.networks:
        for wanted in bench.options.grad:
            for layer in quick_layers if bench.quick else NETWORKS[network]:
                _measure(bench, network, layer, wanted)


def _measure(bench: Bench, network: str, layer: ConvLayer, wanted: str) -> None:
    batch = bench.options.batch
    work = Work(f"conv2d {PASSES[wanted]} {layer} batch {batch}", f"conv2d {PASSES[wanted]} {network} batch {batch}",
                flop=layer.flop * batch * (2 if wanted == "both" else 1))
    if not bench.wants(work):
        return
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, layer.in_channels, layer.size, layer.size), np.float32)
    weight = random.standard_normal((layer.out_channels, layer.depth, layer.kernel, layer.kernel), np.float32)
    dy = random.standard_normal((batch, layer.out_channels, layer.out_size, layer.out_size), np.float32)
    sides = [Side(OURS, "jit", ours(layer, wanted, x, weight, dy))]
    if "torch" in bench.peers:
        sides += [Side("torch", layout, theirs(bench.peers.torch, layout, layer, wanted, x, weight, dy))
                  for layout in LAYOUTS]
    bench.measure(work, sides)


def ours(layer: ConvLayer, wanted: str, x: np.ndarray, weight: np.ndarray, dy: np.ndarray) -> Callable[[], object]:
    """The captured layer or gradient. Images and the gradient of the output change; the weights belong to the step that
    goes forward, as in inference, and change as well where there are gradients."""
    own = Tensor(weight, requires_grad=True).realize()
    images, gradient = Tensor(x, requires_grad=True).realize(), Tensor(dy).realize()

    @jit
    def step(images: Tensor, gradient: Tensor, *weights: Tensor) -> list[Tensor]:
        w, = weights or (own,)
        y = images.conv2d(w, groups=layer.groups, stride=layer.stride, padding=layer.padding)
        targets = {"forward": [], "data": [images], "weights": [w], "both": [images, w]}[wanted]
        results = y.gradient(*targets, gradient=gradient) if targets else [y]
        Tensor.realize(*results)
        return results

    def call() -> None:
        step(images, gradient, *(() if wanted == "forward" else (own,)))
        minigrad.synchronize()

    return call


def theirs(torch: Any, layout: str, layer: ConvLayer, wanted: str, x: np.ndarray, weight: np.ndarray,
           dy: np.ndarray) -> Callable[[], object]:
    """torch's conv2d, or its autograd for the gradient alone."""
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    images, w, gradient = (torch.from_numpy(array).to(memory_format=order) for array in (x, weight, dy))

    def forward() -> Any:
        return torch.conv2d(images, w, None, layer.stride, layer.padding, groups=layer.groups)

    if wanted == "forward":
        def call() -> None:
            with torch.no_grad():
                forward()

        return call
    targets = {"data": (images,), "weights": (w,), "both": (images, w)}[wanted]
    for target in targets:
        target.requires_grad_()
    y = forward()
    return lambda: torch.autograd.grad(y, targets, gradient, retain_graph=True)
