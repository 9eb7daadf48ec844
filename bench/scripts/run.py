"""`python -m bench scripts`: training steps of twelve kinds of public scripts, captured, eager and by torch; and their
first steps, each in a process of its own."""
from __future__ import annotations

import argparse
from functools import partial

from bench.options import Bench
from bench.report import Work
from bench.scripts import SCRIPTS
from bench.training import compare, distribution, first_step, first_steps

PEERS = ["torch"]
_CODE = "from bench.scripts.run import first; print(first(NAME))"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-first", action="store_true", help="without the first steps in processes of their own")


def run(bench: Bench) -> None:
    works = {name: Work(f"script {name}", "scripts") for name in SCRIPTS}
    names = [name for name, work in works.items() if bench.wants(work)]
    if bench.quick:
        names = [name for name in names if name == "vae"]
    for name in names:
        build = SCRIPTS[name]
        compare(bench, works[name], partial(build, batch=4, hidden=8) if bench.quick else build)
    if not bench.options.no_first and not bench.quick:
        first_steps(bench, names, _CODE)
    for line in [*(f"WRONG {line}" for line in bench.report.failures), *distribution(bench.report, "script")]:
        bench.report.say(line)


def first(name: str) -> float:
    """Seconds of the first step of a script."""
    return first_step(SCRIPTS[name])
