"""Rows: what was measured, as one readable line and as one JSON object, and geometric means at the end.

A row's fields are those that scripts of other frameworks' figures use too, so that equal `work` can be paired:
peer, version, work, threads, best_s, median_s, quartiles_s, runs, rates (gflops, gb_s, img_s, tok_s), variant,
first_s, cores_used, omp_wait_policy, load_average. Rows of minigrad add share (of the measured limit), against,
ratio_best, ratio_median, and stream_best, stream_median where a read stream took turns with them: our rate over its
own.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from bench import timing
from bench.timing import Side

if TYPE_CHECKING:
    from minigrad.runtime.limits import Limits

OURS = "minigrad"
STREAM = "stream"
"""Reading alone, as many bytes as a work must: no peer, but what it can be at most."""

SUSPECT = 4.0  # a ratio above it is likelier a peer that was disturbed than our merit


class Work(NamedTuple):
    """A work by name, and its amounts per run. A multiply-add is two flops; bytes are the least that move.

    `group` is the heading under which its ratios are averaged.
    """

    name: str
    group: str
    flop: float = 0
    bytes: float = 0
    images: float = 0
    tokens: float = 0


@dataclass
class Report:
    """Prints rows as they come and keeps the ratios. `rows` are the JSON objects so far, `failures` wrong results."""

    threads: int
    limits: Limits | None = None
    stream: TextIO | None = None
    lines: TextIO = field(default_factory=lambda: sys.stdout)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    times: dict[tuple[str, str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def say(self, text: str) -> None:
        print(text, file=self.lines, flush=True)

    def fail(self, text: str) -> None:
        """Notes a wrong result: the process exits with 1."""
        self.failures.append(text)
        self.say(f"WRONG {text}")

    def add(self, work: Work, sides: list[Side]) -> None:
        """One row per side. The sides that are ours are compared with the best of the others."""
        others = [side for side in sides if side.peer not in (OURS, STREAM)]
        best = min(others, key=lambda side: side.best_s, default=None)
        stream = next((side for side in sides if side.peer == STREAM), None)
        for side in sides:
            row = self._row(work, side)
            if side.peer != STREAM:
                self.times[work.group, side.peer, side.variant].append((side.best_s, side.median_s))
            if side.peer == OURS and best is not None:
                ratio, median = best.best_s / side.best_s, best.median_s / side.median_s
                row |= {"against": f"{best.peer} {best.variant}".strip(), "ratio_best": significant(ratio),
                        "ratio_median": significant(median)}
                self.ratios[work.group, side.variant].append((ratio, median))
            if side.peer == OURS and stream is not None:
                row |= {"stream_best": significant(stream.best_s / side.best_s, 3),
                        "stream_median": significant(stream.median_s / side.median_s, 3)}
            self._emit(row)

    def add_figure(self, name: str, seconds: list[float], unit_s: float, unit: str, **details: Any) -> None:
        """A duration that has no peer."""
        side = Side(OURS, "host", lambda: None, seconds=seconds, first_s=seconds[0])
        timing.between_turns()
        row = self._row(Work(name, "host"), side) | details
        self.record(row)
        self.say(f"{name:<58} {min(seconds) / unit_s:10.3f} {unit}  median {statistics.median(seconds) / unit_s:10.3f}")

    def finish(self) -> None:
        """Geometric means per group and variant: of all times, and of our ratios."""
        for (group, peer, variant), times in self.times.items():
            best_s, median_s = _means(times)
            row = {"peer": peer, "version": version_of(peer), "work": f"{group}, geometric mean",
                   "threads": self.threads, "best_s": significant(best_s), "median_s": significant(median_s),
                   "runs": len(times), "variant": variant}
            ratios = self.ratios.get((group, variant)) if peer == OURS else None
            if ratios:
                row |= self._summary(group, variant, ratios)
            self.record(row)

    def _summary(self, group: str, variant: str, ratios: list[tuple[float, float]]) -> dict[str, Any]:
        best, median = _means(ratios)
        least, middle = min(ratio for ratio, _ in ratios), statistics.median(ratio for ratio, _ in ratios)
        suspect = sum(ratio > SUSPECT for ratio, _ in ratios)
        self.say(f"{group}, {variant}: geometric mean of {len(ratios)} ratios {best:.2f}x by best, "
                 f"{median:.2f}x by median; least {least:.2f}x, middle {middle:.2f}x")
        if suspect:
            self.say(f"  {suspect} of them above {SUSPECT:g}x: look for a peer whose waiting threads lost a core "
                     "(bench/README.md, a fair ratio, 4)")
        return {"ratio_best": significant(best), "ratio_median": significant(median),
                "ratio_least": significant(least), "ratio_middle": significant(middle), "suspect": suspect}

    def _row(self, work: Work, side: Side) -> dict[str, Any]:
        if side.peer == STREAM:
            work = work._replace(flop=0, images=0, tokens=0)
        amounts = {"gflops": work.flop / 1e9, "gb_s": work.bytes / 1e9, "img_s": work.images, "tok_s": work.tokens}
        rates = {name: significant(amount / side.best_s) for name, amount in amounts.items() if amount}
        row = {"peer": side.peer, "version": version_of(side.peer), "work": work.name, "threads": self.threads,
               "best_s": significant(side.best_s), "median_s": significant(side.median_s),
               "quartiles_s": [significant(seconds) for seconds in side.quartiles_s], "runs": len(side.seconds),
               **rates, "variant": side.variant, "first_s": significant(side.first_s),
               "cores_used": round(side.cores_used, 2),
               "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"), "load_average": load_average()}
        if self.limits is not None and ("gflops" in rates or "gb_s" in rates):
            row["share"] = significant(self._share(rates), 3)
        return row

    def _share(self, rates: dict[str, float]) -> float:
        """Of the peak that binds: the larger of both shares."""
        assert self.limits is not None
        return max(rates.get("gflops", 0) / self.limits.gflops, rates.get("gb_s", 0) / self.limits.gb_s)

    def record(self, row: dict[str, Any]) -> None:
        """Keeps a row, and writes it where rows are written."""
        self.rows.append(row)
        if self.stream is not None:
            print(json.dumps(row), file=self.stream, flush=True)

    def _emit(self, row: dict[str, Any]) -> None:
        self.record(row)
        rates = "  ".join(f"{row[name]:8.1f} {unit}" for name, unit in _UNITS.items() if name in row)
        share = f"  {row['share']:4.0%} of peak" if "share" in row else ""
        if "stream_best" in row:
            share += f", {row['stream_best']:.0%} of the stream beside (median {row['stream_median']:.0%})"
        ratio = (f"  {row['ratio_best']:.2f}x {row['against']} (median {row['ratio_median']:.2f}x)"
                 if "against" in row else "")
        self.say(f"{row['work']:<52} {row['peer']:<12} {row['variant']:<20} best {row['best_s'] * 1e3:10.4f} ms  "
                 f"median {row['median_s'] * 1e3:10.4f} ms  {rates}{share}{ratio}")


_UNITS = {"gflops": "GFLOP/s", "gb_s": "GB/s", "img_s": "img/s", "tok_s": "tok/s"}
_DISTRIBUTIONS = {"llama.cpp": "llama_cpp_python"}


def version_of(peer: str) -> str:
    """The installed version, as the package manager knows it; "source" where it runs from its source tree."""
    try:
        return metadata.version(_DISTRIBUTIONS.get(peer, peer))
    except metadata.PackageNotFoundError:
        return "source"


def _means(pairs: list[tuple[float, float]]) -> list[float]:
    """The geometric means of the firsts and of the seconds."""
    return [statistics.geometric_mean(column) for column in zip(*pairs, strict=True)]


def load_average() -> float | None:
    """Of the last minute, this process included; None where the system does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def significant(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
