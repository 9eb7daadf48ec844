"""A capture whose kernels are then searched for faster plans: see `minigrad/engine/search.py`."""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from minigrad.capture.recorder import PlanStep
from minigrad.capture.replay import Capture
from minigrad.engine.observe import observing
from minigrad.engine.scene import Watch
from minigrad.engine.search import Outcome, Search
from minigrad.errors import MinigradError


def search_for(seconds: float) -> Callable[..., tuple[Any, Outcome]]:
    """`captured_and_searched` for so many seconds, with progress on stderr, of kernels that no search knows. Raises
    MinigradError."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise MinigradError(f"[jit] expected a time in seconds to search, got {seconds!r}")
    return partial(captured_and_searched, start=partial(
        Search, seconds, say=lambda line: print(f"[search] {line}", file=sys.stderr), again=False))


def captured_and_searched(capture: Callable[[], Any], kept: Callable[[], list[Capture]], start: Callable[[], Search]
                          ) -> tuple[Any, Outcome]:
    """The result of a call that captures, and what a search for its kernels has found. `kept` gives the captures, the
    new one last; a function that runs eagerly has the plans of the call searched."""
    with observing(Watch()) as watch:
        result = capture()
    works = watch.works
    steps = [step for made in kept()[-1:] for step in made.recording.steps if isinstance(step, PlanStep)]
    if len(steps) == len(works):  # where constants are kept in panels: by what reads these
        works = [replace(work, plan=step.plan) for work, step in zip(works, steps, strict=True)]
    return result, start().of(works)
