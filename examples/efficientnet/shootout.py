"""The benchmark on one driver or compiler after the other, each in a process of its own with empty caches.

    benchmark_train_efficientnet --shootout "CL:pocl,CL:rusticl[AMD_DEBUG=cs],CL:rusticl[AMD_DEBUG=cs,useaco]"

An entry is a device, and in brackets the environment that it runs with. AMD:... and NV:... are compiled for and not
run. A driver that ends its process, or takes too long, costs its own column alone.
"""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigrad.config import DEVICE_NAME
from minigrad.errors import ConfigError, quantity
from minigrad.runtime.opencl_quirks import CACHE_VARIABLES

LIMIT_S = 900
ENTRY = re.compile(r"([^\[\],]+)(?:\[([^\[\]]*)\])?(?:,|$)")
VARIABLE = re.compile(r"\s*(\w+)=(.*?)\s*")
MAX_WAVES = re.compile(r"^.*\bMax Waves: *(\d+)", re.MULTILINE)
"""The line of each shader that Mesa's drivers print when they are asked to dump it."""

WIDTH = 12


@dataclass(frozen=True)
class Entry:
    """One column: `name` as it was written, a device, and the environment that it runs with."""

    name: str
    device: str
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def offline(self) -> str:
        """The GPU that is only compiled for, '' for a device that runs."""
        return self.device.partition(":")[2] if self.device.upper().startswith(("AMD:", "NV:")) else ""


@dataclass
class Outcome:
    """The outcome of an entry. `runs` are rows of the benchmark; `problem` says why there are no more, '' where nothing
    failed; `waves` counts kernels by Max Waves, `unknown` those without by the reason; `processor_s` is all processor
    time of its processes."""

    entry: Entry
    problem: str = ""
    about: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)
    programs: int | None = None
    compile_s: float | None = None
    waves: Counter[int] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    processor_s: float = 0.0

    def row(self) -> dict[str, Any]:
        """The object that `--json` writes."""
        ends = {"first": self.runs[0], "last": self.runs[-1]} if self.runs else {}
        return {"entry": self.entry.name, "device": self.entry.device, "environment": dict(self.entry.environment),
                "about": self.about, "problem": self.problem, **ends, "programs": self.programs,
                "compile_s": self.compile_s, "processor_s": round(self.processor_s, 3),
                "max_waves": {str(n): count for n, count in sorted(self.waves.items(), reverse=True)},
                "max_waves_unknown": dict(self.unknown)}


def entries_of(text: str) -> list[Entry]:
    """The entries of '--shootout'. Raises ConfigError that names what is wrong."""
    found: list[Entry] = []
    at = 0
    while at < len(text):
        match = ENTRY.match(text, at)
        if match is None:
            raise ConfigError("[shootout] expected DEVICE or DEVICE[VARIABLE=value;...], separated by commas, "
                              f"got {text[at:]!r}")
        device, at = match[1].strip(), match.end()
        if not DEVICE_NAME.fullmatch(device):
            raise ConfigError(f"[shootout] expected CPU, CL, CL:<name>, AMD:<gpu> or NV:<gpu>, got {device!r}")
        variables = []
        for part in (match[2] or "").split(";"):
            variable = VARIABLE.fullmatch(part)
            if variable is not None:
                variables.append((variable[1], variable[2]))
            elif part.strip():
                raise ConfigError(f"[shootout] expected VARIABLE=value in the brackets of {device}, got {part!r}")
        found.append(Entry(match[0].rstrip(",").strip(), device, tuple(variables)))
    if not found:
        raise ConfigError("[shootout] expected at least one device, got none")
    return found


def shootout(entries: list[Entry], settings: Mapping[str, object], limit_s: float, say: Callable[[str], None],
             ) -> list[Outcome]:
    """The outcomes of the entries in order; what each prints is said when it has ended."""
    outcomes = []
    for entry in entries:
        outcome = one(entry, settings, limit_s)
        outcomes.append(outcome)
        say(f"{entry.name}: {outcome.about}" if outcome.about else entry.name)
        for which, run in (("first", outcome.runs[:1]), ("last", outcome.runs[1:][-1:])):
            for row in run:
                say(f"  {which:5} {row['line']}")
        if outcome.problem:
            say(f"  {outcome.problem}")
    return outcomes


def one(entry: Entry, settings: Mapping[str, object], limit_s: float) -> Outcome:
    """Runs the benchmark for an entry in a process of its own."""
    outcome = Outcome(entry)
    with tempfile.TemporaryDirectory(prefix="minigrad-shootout-", ignore_cleanup_errors=True) as folder:
        rows, words = Path(folder) / "rows.jsonl", Path(folder) / "words.txt"
        rows.touch()
        environment = os.environ | {name: f"{folder}/{name.lower()}" for name in CACHE_VARIABLES} | {
            "MINIGRAD_CACHE": f"{folder}/minigrad", "MINIGRAD_DISK_CACHE": "1",
            "PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
        environment |= {name: str(value) for name, value in settings.items()} | dict(entry.environment)
        for name in CACHE_VARIABLES:
            Path(environment[name]).mkdir(parents=True, exist_ok=True)
        words_of_device = ["--occupancy", entry.offline] if entry.offline else ["--device", entry.device]
        command = [sys.executable, "-m", f"{__package__}.benchmark_train_efficientnet", *words_of_device,
                   "--json", str(rows)]
        before, start = os.times(), time.monotonic()
        with words.open("wb") as out:
            code = ended(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                          start_new_session=True), limit_s)
        seconds, after = time.monotonic() - start, os.times()
        outcome.processor_s = (after.children_user - before.children_user
                               + after.children_system - before.children_system)
        _read(outcome, rows.read_text(encoding="utf-8"), words.read_text(encoding="utf-8", errors="replace"))
    done = quantity(len(outcome.runs), "run")
    if code is None:
        outcome.problem = f"stopped after {limit_s:g} s, in which it had done {done}"
    elif code < 0:
        outcome.problem = (f"ended by {signal_name(-code)} after {seconds:.0f} s and {done}"
                           + (f": {outcome.problem}" if outcome.problem else ""))
    elif code:
        outcome.problem = f"failed after {seconds:.0f} s: {outcome.problem or f'exit status {code}'}"
    else:
        outcome.problem = ""
    return outcome


def ended(child: subprocess.Popen, limit_s: float) -> int | None:
    """The exit status of a process with a session of its own, None where it took too long. Nothing that it started is
    left, whatever happens."""
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
        child.wait()


def signal_name(number: int) -> str:
    """Such as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(outcome: Outcome, rows: str, words: str) -> None:
    """Fills in an outcome from the rows that the benchmark wrote and from all that was printed."""
    for line in rows.splitlines():
        with suppress(ValueError):  # the last one of a process that ended
            row = json.loads(line)
            if "about" in row:
                outcome.about = row["about"]
            elif "max_waves" in row:
                outcome.waves.update({int(n): count for n, count in row["max_waves"].items()})
                outcome.unknown.update(row["max_waves_unknown"])
                outcome.programs, outcome.compile_s = row["programs"], row["compile_s"]
            else:
                outcome.runs.append(row)
    outcome.waves.update(map(int, MAX_WAVES.findall(words)) if not outcome.entry.offline else ())
    if outcome.runs:
        first, last = outcome.runs[0], outcome.runs[-1]
        outcome.programs = first["programs"]
        if first is not last:
            ours = sum([first[part] - last[part] for part in ("schedule_s", "render_s")])
            outcome.compile_s = max(0.0, first["run_s"] - last["run_s"] - ours)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    outcome.problem = lines[-1] if lines else ""


def table(outcomes: list[Outcome]) -> list[str]:
    """The outcomes side by side: milliseconds of the first and the last run, seconds of compiling, programs, Max
    Waves."""
    def ends(which: int, part: str) -> Callable[[Outcome], str]:
        return lambda o: f"{o.runs[which][part] * 1e3:.2f}" if o.runs else "-"

    def counted(which: str, key: int | str) -> Callable[[Outcome], str]:
        return lambda o: str(getattr(o, which)[key] or "-")

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [(f"{name} run, ms", ends(which, "run_s")) for which, name in ((0, "first"), (-1, "last"))]
    rows += [(f"  last {name}, ms", ends(-1, part)) for name, part in (("build", "build_s"), ("realize", "realize_s"),
                                                                      ("CL", "wait_s"))]
    rows += [("compiling, s", lambda o: number(o.compile_s, 2)),
             ("processor time in all, s", lambda o: number(o.processor_s, 2)),
             ("programs", lambda o: number(o.programs, 0)),
             ("loss of the last run", lambda o: f"{o.runs[-1]['loss']:.2f}" if o.runs else "-")]
    for waves in sorted({n for o in outcomes for n in o.waves}, reverse=True):
        rows.append((f"Max Waves: {waves}", counted("waves", waves)))
    for reason in dict.fromkeys(r for o in outcomes for r in o.unknown):
        rows.append((f"Max Waves: not known, {reason}", counted("unknown", reason)))
    rows.append(("outcome", lambda o: "failed" if o.problem else "compiled" if o.entry.offline else "ran"))
    first = max([len(name) for name, _ in rows])
    widths = [max(WIDTH, len(o.entry.name)) for o in outcomes]
    lines = [" " * first + "".join(f"  {o.entry.name:>{w}}" for o, w in zip(outcomes, widths, strict=True))]
    return lines + [f"{name:{first}}" + "".join(f"  {cell(o):>{w}}" for o, w in zip(outcomes, widths, strict=True))
                    for name, cell in rows]
