"""Convolutions of 3x3 taps by each form of Winograd's algorithm: time, and error beside float64.

    python -m bench winograd                  layers of ResNets, VGG, U-Nets and decoders of images, by one worker
    python -m bench winograd --batch 8        of eight images
    python -m bench winograd --quick          tiny ones, to show that it works

For each layer the processor time of the direct convolution (winograd=0) in milliseconds, captured, taps made once; how
many times as fast the smaller and the larger form are where they are chosen (winograd=2 and 4); then errors of each, of
the largest result. `forward`, `data` and `taps`: the convolution and its gradients, of which those by taps are made of
random gradients.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from time import process_time

import numpy as np

import minigrad
from minigrad import Tensor, config, jit

LAYERS = ((64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7), (64, 64, 112), (128, 128, 56), (256, 256, 28),
          (512, 512, 14), (64, 64, 256), (128, 64, 256), (256, 128, 128), (512, 256, 64), (512, 512, 32), (32, 32, 64))
"""Channels of images, of results, size of the plane."""

QUICK = ((16, 16, 12), (8, 24, 9))
FORMS = 0, 2, 4
SAMPLES = 15


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench winograd", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    with config(threads=1):
        for layer in QUICK if options.quick else LAYERS:
            for name, call, given, exact in works(options.batch, *layer):
                print(row(f"{options.batch} x {layer[0]:3} -> {layer[1]:3}, {layer[2]:3} x {layer[2]:3} {name:8}", call,
                          given, exact), flush=True)
    return 0


Call = Callable[[Tensor, Tensor], Tensor]
"""A function of an image and of the gradient of the results; taps are constants."""


def works(batch: int, channels: int, kernels: int, side: int) -> Iterator[tuple[str, Call, tuple[Tensor, Tensor],
                                                                                np.ndarray]]:
    """The convolution and its gradients: name, call and what it is given, and the result in float64."""
    rng = np.random.default_rng(channels + side)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (
        (batch, channels, side, side), (kernels, channels, 3, 3), (batch, kernels, side, side))]
    x, w, g = [Tensor(a).realize() for a in arrays]

    def gradient(of: int, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        leaves = [a.detach(), b.detach()]
        for leaf in leaves:
            leaf.requires_grad = True
        return (leaves[0].conv2d(leaves[1], padding=1) * c).sum().gradient(leaves[of])[0]

    with config(device="NUMPY"):
        a, b, c = [Tensor(v).double() for v in arrays]
        exact = [a.conv2d(b, padding=1).numpy(), gradient(0, a, b, c).numpy(), gradient(1, a, b, c).numpy()]
    calls: list[Call] = [lambda x, g: x.conv2d(w, padding=1), lambda x, g: gradient(0, x, w, g),
                         lambda x, g: gradient(1, x, w, g)]
    for name, call, wanted in zip(("forward", "data", "taps"), calls, exact, strict=True):
        yield name, call, (x, g), wanted


def row(name: str, call: Call, given: tuple[Tensor, Tensor], exact: np.ndarray) -> str:
    """A line of the table."""
    seconds, errors = dict[int, float](), dict[int, float]()
    captured = {form: jit(lambda x, g: call(x, g).realize()) for form in FORMS}
    for form in FORMS:
        with config(winograd=form):
            made = [captured[form](*given) for _ in range(4)][-1].numpy()
        seconds[form], errors[form] = float("inf"), float(np.abs(made - exact).max() / np.abs(exact).max())
    for _ in range(SAMPLES):
        for form in FORMS:
            with config(winograd=form):
                start = process_time()
                captured[form](*given)
                minigrad.synchronize()
                seconds[form] = min(seconds[form], process_time() - start)
    return (f"{name}  {seconds[0] * 1e3:8.3f} ms  " + "  ".join(f"{seconds[0] / seconds[f]:5.2f}x" for f in FORMS[1:])
            + "  errors " + " ".join(f"{errors[f]:.1e}" for f in FORMS))
