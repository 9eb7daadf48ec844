"""`python -m bench networks`: training steps of random small networks, captured, eager and by torch. A network is
drawn by its seed; results are checked before anything is timed."""
from __future__ import annotations

import argparse
import time
from functools import partial

from bench.cliffs import cliffs
from bench.descriptions import Network, layer
from bench.drawn import KINDS, kind_of, network
from bench.options import Bench
from bench.report import Work
from bench.training import compare, distribution, gradients_differ
from minigrad import config

PEERS = ["torch"]
QUICK = Network("network quick rows", (3, 4), (layer("Linear", 4, 5), layer("ReLU"), layer("Linear", 5, 2)), (3, 2),
                True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=300, help="networks (default 300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, nargs="+", help="these seeds alone")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="only such networks")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further network after these")
    parser.add_argument("--cliffs", action="store_true", help="a fixed list of networks instead of random ones")


def run(bench: Bench) -> None:
    options, start = bench.options, time.perf_counter()
    described: dict[str, str] = {}
    group = "cliffs" if options.cliffs else "networks"
    with config(disk_cache=False):
        for net in [QUICK] if bench.quick else cliffs() if options.cliffs else map(network, _seeds(options)):
            if options.budget is not None and time.perf_counter() - start > options.budget:
                bench.report.say(f"the time is spent: {len(described)} networks were measured")
                break
            work = Work(net.name, group)
            if bench.wants(work):
                described[net.name] = str(net)
                bench.report.say(str(net))
                compare(bench, work, net.build, partial(gradients_differ, bench.peers.torch, net.build)
                        if "torch" in bench.peers else None)
    lines = [f"WRONG {line}" for line in bench.report.failures]
    for line in [*lines, *distribution(bench.report, group, lambda name: described.get(name, name))]:
        bench.report.say(line)


def _seeds(options: argparse.Namespace) -> list[int]:
    if options.seed is not None:
        return list(options.seed)
    seeds = range(options.first, options.first + 100 * options.count)
    return [seed for seed in seeds if kind_of(seed) in options.kinds][:options.count]
