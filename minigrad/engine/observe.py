"""Observers of the engine: a capture, a profile. They are told of every run, copy, upload and read by the host, and may
ask which line of the user's program made a Node."""
from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from minigrad.locks import free_in_children
from minigrad.ops import node as nodes
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer, Launch
from minigrad.stores import Store


@dataclass(slots=True)
class Ran:
    """One run of a plan: what `run_plan` was called with, the Graph it came from, and the buffers of its slots."""

    plan: Any
    graph: Any
    leaves: dict[int, Buffer]
    numbers: dict[int, float]
    values: dict[str, int]
    highest: dict[str, int]
    buffers: list[Buffer]


class Observer:
    """The base of observers; override the methods of interest. Each is called in the thread that does the work.

    With `times_launches`, launches run and are timed one by one. With `wants_kernels`, plans are to have their kernels
    where those may read constants in another form; with `needs_kernels`, all plans are.
    """

    times_launches = wants_kernels = needs_kernels = False

    def ran(self, run: Ran) -> None:
        """A plan was launched, and its results are handed out."""

    def called(self) -> None:
        """With `times_launches`: a list of launches is about to run."""

    def launched(self, plan: Any, item: int, start: float, seconds: float, buffers: list[Any]) -> None:
        """With `times_launches`: an item of a plan ran; `start` is a reading of perf_counter, `buffers` are by slot."""

    def copied(self, source: Buffer, target: Buffer) -> None:
        """`target` is a new buffer with the bytes of `source`, perhaps on another device."""

    def uploaded(self, buffer: Buffer) -> None:
        """A new buffer with data of the host."""

    def evaluated(self, device: str) -> None:
        """Nodes were computed without a plan."""

    def asked(self) -> None:
        """The host is about to read the values of a Tensor."""

    def noted(self, function: str, reason: str) -> None:
        """A function under `jit` is captured, or runs eagerly, for a reason."""


_Observer = TypeVar("_Observer", bound=Observer)
observers: list[Observer] = []
dry_runs: list[Any] = []
"""The dry runs that go on (`report.dry`); the last one takes what would be run, or lets it stay lazy
(`only_graphs`)."""


class _OnlyGraphs:
    only_graphs = True


@contextmanager
def only_graphs() -> Iterator[None]:
    """Nothing is computed meanwhile, in the whole process: what is realized stays lazy, with the graph behind it."""
    run = _OnlyGraphs()
    dry_runs.append(run)
    try:
        yield
    finally:
        dry_runs.remove(run)


def run_timed(plan: Any, launches: list[Launch], buffers: list[Any], stores: Sequence[Store]) -> None:
    """Runs the launches of a plan one by one and tells those who watch; `buffers` are those of its slots. The stores
    are made with the last launch; where something comes between the launches, what is left runs all the same."""
    done: list[Launch] = []
    try:
        _run_timed(plan, launches, buffers, stores, done)
    except BaseException:
        if 0 < len(done) < len(launches):
            plan.device.launch_and(launches[len(done):], stores)
        raise


def _run_timed(plan: Any, launches: list[Launch], buffers: list[Any], stores: Sequence[Store], done: list[Launch]
               ) -> None:
    watching, device = [o for o in observers if o.times_launches], plan.device
    for o in watching:
        o.called()
    device.synchronize()
    device.elapsed()
    for launch in launches:
        start = perf_counter()
        last = launch is launches[-1]
        device.launch_and([launch], [partial(done.append, launch), *(stores if last else ())])
        device.synchronize()
        seconds = device.elapsed()
        for o in watching:
            o.launched(plan, launch.item, start, seconds, buffers)


def is_timing() -> bool:
    """True where some observer wants the time of every launch."""
    return any(o.times_launches for o in observers)


def host_reads() -> None:
    """Tells the observers that somebody wants the values of a Tensor on the host."""
    for observer in observers:
        observer.asked()


@contextmanager
def observing(observer: _Observer) -> Iterator[_Observer]:
    """`with observing(x): ...` tells `x` what the engine does meanwhile, in all threads."""
    observers.append(observer)
    try:
        yield observer
    finally:
        observers[:] = [o for o in observers if o is not observer]


# Lines of the user's program

PACKAGE = str(Path(__file__).resolve().parent.parent)

_lines: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
_lock = free_in_children(Lock())
_wanted = 0


def call_of_user() -> tuple[str, str]:
    """('Tensor.item()', 'file:line') of the innermost call from outside this package."""
    frame, name = sys._getframe(1), "?"
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        name = frame.f_code.co_qualname
        frame = frame.f_back
    owner, _, method = name.rpartition(".")
    name = f"Tensor.{method}" if owner.endswith("Mixin") else name  # parts of Tensor
    return f"{name}()", f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(node: Node) -> str:
    """'file.py:12' of the call that made the Node; '' where nobody asked when it was made."""
    return _lines.get(node, "")


def note_lines(plan: Any, graph: Any) -> None:
    """Finds the lines that asked for what the items of a plan compute: `plan.lines`."""
    for k, item in enumerate(plan.items):
        found = "" if k in plan.lines else next(filter(None, [line_of(graph.nodes[p]) for p in item.origins]), "")
        if found:
            plan.lines[k] = found


@contextmanager
def lines_kept() -> Iterator[None]:
    """Nodes that are made meanwhile, in any thread, know their line."""
    global _wanted
    with _lock:
        _wanted += 1
        nodes.created = _keep
    try:
        yield
    finally:
        with _lock:
            _wanted -= 1
            if not _wanted:
                nodes.created = None


def _keep(node: Node) -> None:
    path, _, line = call_of_user()[1].rpartition(":")
    _lines[node] = f"{Path(path).name}:{line}"
