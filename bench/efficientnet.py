"""EfficientNet-B0: inference, and a training step with SGD; captured and eager, beside torch and onnxruntime."""
from __future__ import annotations

import argparse

import numpy as np

from bench import efficientnet_peers
from bench.efficientnet_step import QUICK_CLASSES, QUICK_HEAD, QUICK_SIZE, classifier, quick_or_b0, trainer
from bench.memory import report_peaks
from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from examples.efficientnet.model import STAGES
from minigrad import config

PEERS = ["torch", "onnxruntime"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mode", nargs="*", default=["infer", "train"], metavar="infer|train",
                        help="what to measure (default: both)")
    parser.add_argument("--batch", type=int, help="images per step (default: 1 to infer, 8 to train)")
    parser.add_argument("--size", type=int, default=224, help="of an image (default 224)")
    parser.add_argument("--no-eager", action="store_true", help="of ours, only the captured step")
    parser.add_argument("--traffic", action="store_true",
                        help="of ours, print launches, programs and bytes by kernel as well")
    parser.add_argument("--memory", action="store_true",
                        help="peak memory of a training step as well, each side in a process of its own")
    parser.add_argument("--compile", action="store_true", help="torch.compile too: takes minutes and a C++ compiler")


def run(bench: Bench) -> None:
    for mode in bench.options.mode:
        if mode not in ("infer", "train"):
            raise SystemExit(f"bench efficientnet: expected infer or train, got {mode!r}")
        default = 1 if mode == "infer" else 2 if bench.quick else 8
        batch = bench.options.batch or default
        _measure(bench, mode, batch)
        if bench.options.memory and mode == "train":
            report_peaks(bench.report, ["torch"] if "torch" in bench.peers else [], batch, bench.options.size)


def _measure(bench: Bench, mode: str, batch: int) -> None:
    name = "efficientnet quick" if bench.quick else "efficientnet-b0"
    size = QUICK_SIZE if bench.quick else bench.options.size
    at = "" if size == 224 or bench.quick else f" size {size}"
    work = Work(f"{name} {mode} batch {batch}{at}", f"efficientnet {mode}", images=batch)
    if not bench.wants(work):
        return
    random = np.random.default_rng(0)
    images = random.standard_normal((batch, 3, size, size), np.float32)
    labels = random.integers(0, QUICK_CLASSES, batch)
    make = trainer if mode == "train" else classifier
    if bench.options.traffic:
        from bench.traffic import table  # it reads what a tree before may lack, which is compared all the same

        eager = make(quick_or_b0(bench.quick), images, labels, False)
        with config(disk_cache=False):
            for line in table(eager, batch):
                bench.report.say(line)
    sides = [Side(OURS, "jit", make(quick_or_b0(bench.quick), images, labels, True))]
    if not bench.options.no_eager:
        sides.append(Side(OURS, "eager", make(quick_or_b0(bench.quick), images, labels, False)))
    if "torch" in bench.peers:
        shape = efficientnet_peers.Shape(STAGES[:1], QUICK_HEAD, QUICK_CLASSES) if bench.quick else \
            efficientnet_peers.Shape(STAGES, 1280, 1000)
        sides += efficientnet_peers.torch_sides(bench.peers.torch, shape, mode, images, labels, bench.options.compile)
        if mode == "infer" and "onnxruntime" in bench.peers:
            sides += efficientnet_peers.onnxruntime_sides(bench, shape, images)
    bench.measure(work, sides)
