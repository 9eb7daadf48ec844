"""A step to explain, watched: the calls of a function, or the part of a script that comes again and again."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from minigrad.capture.arguments import tensors_in
from minigrad.capture.jit import Captured, Jit
from minigrad.capture.journal import settle
from minigrad.engine.plan import ExecutionPlan
from minigrad.errors import MinigradError
from minigrad.handles import live
from minigrad.report.explained.watch import Moment, Watch
from minigrad.report.profile import KernelRun, profiling
from minigrad.report.scripts import run_script
from minigrad.runtime.registry import synchronize

WARM, PLAIN, WATCHED = 2, 10, 5
"""Calls before anything is timed (a captured training step is captured twice: at first it has no gradients yet), those
that are timed with nothing looked at, and those in which launches are timed one by one: the most of each."""

MOST_S = 1.0
"""The seconds after which no further call begins where there was one."""

LEAST_TIMES = 3
"""The times that a part of a script runs to be called its step."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One launch of a step, and the seconds that it takes by itself."""

    plan: ExecutionPlan
    item: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """The launches of a step in order, and what else happens in it. `wall` are seconds from its begin to its end, None
    where nothing runs, but is predicted; `captured`: some of it is under `jit`. `what` is its name, `how` words about
    how it was measured."""

    what: str
    how: str
    launches: tuple[Timed, ...]
    moments: tuple[Moment, ...]
    wall: float | None
    captured: bool
    watch: Watch


# ---- a function ----


def watched_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    """The step that a call of a function is. It is called some ten times, and has all effects of these calls."""
    called, captured = afresh(function)
    first, again = Watch(), Watch()

    def call() -> float:
        start = perf_counter()
        result = called(*args, **kwargs)
        settle(tensors_in(result))
        synchronize()
        seconds = perf_counter() - start
        settle(list(live()))  # what it left lazy, so that it does not add up
        return seconds

    settle(list(live()))
    with profiling(first):
        for _ in range(WARM):
            call()
    if not first.runs:
        raise MinigradError("[explain] expected a function that runs kernels, got one without any: the device NUMPY "
                            "computes without, and so does what is computed already")
    simulated = any(plan.device.simulates for plan in first.plans.values())
    wall = None if simulated else _plain_seconds(call)
    marks: list[int] = []
    begin = perf_counter()
    with profiling(again):
        while not marks or (len(marks) < WATCHED and perf_counter() - begin < MOST_S):
            marks.append(len(again.runs))
            call()
    again.learn(first)
    parts = [again.runs[a:b] for a, b in pairwise([*marks, len(again.runs)])]
    moments = [Moment(m.kind, m.at - marks[-1], m.text, m.nbytes) for m in again.moments if m.at >= marks[-1]]
    named = function.own().function if isinstance(function, Captured) else function
    name = getattr(named, "__name__", type(named).__name__)
    how = "predicted: nothing runs on this device" if simulated else \
        "the least of several calls with nothing looked at; launches were timed one by one in further calls"
    return Step(name, how, _least_launches(parts), tuple(moments), wall, captured, again)


def afresh(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """A function under `jit` without its captures, so that new ones know lines and kernels; others as they are. And
    whether it is under `jit`."""
    if not isinstance(function, Captured):
        return function, False
    own = function.own()
    made = Jit(own.function, own.limit, own.donate, own.budget, own.search)
    return (made if own.owner is None else made.__get__(own.owner())), True


def _plain_seconds(call: Callable[[], float]) -> float:
    """The least time of a call: others on the machine can only make it longer."""
    found: list[float] = []
    begin = perf_counter()
    while not found or (len(found) < PLAIN and perf_counter() - begin < MOST_S):
        found.append(call())
    return min(found)


def _least_launches(parts: Sequence[Sequence[KernelRun]]) -> tuple[Timed, ...]:
    """The launches of the last of several runs. Where all of them do the same, each has its part of the least run, as
    its least time says: what else a machine does meanwhile falls on any launch, and on some in every run."""
    last = parts[-1]
    ids = [(id(r.plan), r.item) for r in last]
    same = [p for p in parts if len(p) == len(last) and [(id(r.plan), r.item) for r in p] == ids]
    each = [min([p[k].seconds for p in same]) for k in range(len(last))]
    factor = min([sum([r.seconds for r in p]) for p in same]) / (sum(each) or 1.0)
    return tuple([Timed(r.plan, r.item, seconds * factor) for r, seconds in zip(last, each, strict=True)])


# ---- a script ----


def watched_script(path: Path, arguments: Sequence[str]) -> Step:
    """The step of a script, which runs as it would alone: what lies between two runs of the list of launches that takes
    most of the time, where that comes often enough, else all of it. Raises MinigradError where no kernel runs."""
    watch = Watch()
    with profiling(watch):
        run_script(path, arguments)
    if not watch.runs:
        raise MinigradError(f"[explain] expected a script that runs kernels, got none from {path}")
    return _step_of(watch, path.name)


def _step_of(watch: Watch, name: str) -> Step:
    simulated = any(plan.device.simulates for plan in watch.plans.values())
    spans = _spans(watch)
    if len(spans) < LEAST_TIMES:
        return Step(name, "predicted: nothing runs on this device" if simulated else
                    "the whole run, with its compiling; launches timed one by one", _least_launches([watch.runs]),
                    tuple(watch.moments), None if simulated else watch.wall, _captures(watch), watch)
    begins = [*watch.begins, len(watch.runs)]
    parts = [watch.runs[begins[a]:begins[b]] for a, b in spans]
    launches = _least_launches(parts)
    start, end = begins[spans[-1][0]], begins[spans[-1][1]]
    moments = [Moment(m.kind, m.at - start, m.text, m.nbytes) for m in watch.moments if start < m.at <= end]
    wall = sum([t.seconds for t in launches]) + min([watch.between(a, b) for a, b in spans])
    share = sum([r.seconds for part in parts for r in part]) / (watch.seconds or 1.0)
    how = (f"the least of {len(spans)} steps of the script, which take {share:.0%} of its time in kernels: launches, "
           "timed one by one, and what lies between their lists")
    return Step(f"a step of {name}", "predicted: nothing runs on this device" if simulated else how, launches,
                tuple(moments), None if simulated else wall, _captures(watch), watch)


def _captures(watch: Watch) -> bool:
    return any(m.kind == "capture" for m in watch.moments)


def _spans(watch: Watch) -> list[tuple[int, int]]:
    """(begin, end) among the lists of launches, of the steps that are alike: from one run of the plan that takes most
    of the time among those that come often, to the next. The first is left out, which compiles."""
    plans = [id(watch.runs[k].plan) for k in watch.begins if k < len(watch.runs)]
    spent: Counter[int] = Counter()
    for run in watch.runs:
        spent[id(run.plan)] += int(run.seconds * 1e9)
    often = [plan for plan, count in Counter(plans).items() if count >= LEAST_TIMES + 2]
    if not often:
        return []
    longest = max(often, key=lambda plan: spent[plan])
    at = [k for k, plan in enumerate(plans) if plan == longest]
    spans = [(a, b, tuple(plans[a:b])) for a, b in pairwise(at)][1:]
    usual = Counter(plans for _, _, plans in spans).most_common(1)[0][0]
    return [(a, b) for a, b, plans in spans if plans == usual]
