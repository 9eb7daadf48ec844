"""Depthwise convolutions: the layers of EfficientNet-B0, by the means of `bench.conv`."""
from __future__ import annotations

import argparse

from bench import conv
from bench.layers import QUICK_DEPTHWISE
from bench.options import Bench

PEERS = conv.PEERS


def add_options(parser: argparse.ArgumentParser) -> None:
    conv.add_options(parser, ("efficientnet_b0_depthwise",))


def run(bench: Bench) -> None:
    conv.run(bench, QUICK_DEPTHWISE)
