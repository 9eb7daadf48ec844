"""The options that all benchmarks have, and the context that they measure in."""
from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peers import PEERS, Peers
from bench.report import STREAM, Report, Work
from bench.timing import QUICK, Schedule, Side, interleave
from minigrad.platforms import usable_cores

if TYPE_CHECKING:
    from minigrad.runtime.limits import Probe


def common_parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks take; each adds its own."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=description)
    parser.add_argument("--against", type=_names, default=None, metavar="PEER,...",
                        help=f"peers among {', '.join(PEERS)}, or none (default: those that do this work)")
    parser.add_argument("--threads", type=_positive, default=usable_cores(),
                        help="ours and theirs (default: all cores)")
    parser.add_argument("--json", metavar="FILE", help="write rows as JSON lines; - writes them to stdout")
    parser.add_argument("--rounds", type=_positive, default=None, help="turns of each side (default: about a second's)")
    parser.add_argument("--cpu-time", action="store_true",
                        help="samples in processor time: where other processes take the cores, with --threads 1")
    parser.add_argument("--only", metavar="TEXT", help="only works whose names contain this")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: shows that it works")
    return parser


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name and name != "none"]
    unknown = sorted(set(names) - set(PEERS))
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(PEERS)}, got {', '.join(unknown)}")
    return names


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return value


_positive.__name__ = "int"  # argparse says "invalid int value"


@dataclass
class Bench:
    """The context that a benchmark measures in: its options, the peers that are here, how long a row may take, and the
    report."""

    options: argparse.Namespace
    peers: Peers
    report: Report
    probe: Probe | None = None

    @property
    def quick(self) -> bool:
        return bool(self.options.quick)

    @property
    def schedule(self) -> Schedule:
        schedule = QUICK if self.quick else Schedule(rounds=self.options.rounds)
        return schedule._replace(clock=time.process_time) if self.options.cpu_time else schedule

    def wants(self, work: Work) -> bool:
        """False for works that `--only` leaves out: ask before preparing data."""
        return self.options.only is None or self.options.only in work.name

    def measure(self, work: Work, sides: list[Side], stream: bool = False, schedule: Schedule | None = None) -> None:
        """Runs the sides in turn and reports them; with `stream`, a read stream takes turns with them. `schedule` is
        for works that are slow or many."""
        schedule = schedule or self.schedule
        if self.probe is None:
            interleave(sides, schedule)
            self.report.add(work, sides)
            return
        if stream:
            sides = [*sides, Side(STREAM, "read", self.probe.read, self.probe.read_bytes / work.bytes)]
        interleave(sides, schedule)
        if stream:
            self.probe.saw(sides[-1].best_s * sides[-1].count)
        self.report.limits = self.probe.refresh()
        self.report.add(work, sides)
