"""Training steps of one program (bench/frameworks.py) beside torch's: first checked, then timed in turn; and what many
of them come to together."""
from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import minigrad
from bench.frameworks import Build, Ours, torch_framework
from bench.options import Bench
from bench.report import OURS, Report, Work
from bench.starts import run_process, with_bytecode
from bench.timing import Schedule, Side
from minigrad import Tensor, jit

STEPS = 3
"""The number of losses that are compared."""
SLOW_S = 0.25  # where a step of all sides together takes longer, there are fewer rounds
WORST = 10
Weights = list[dict[str, np.ndarray]]


def compare(bench: Bench, work: Work, build: Build, check: Callable[[Weights], list[str]] | None = None) -> None:
    """Rows of a captured and an eager step beside torch's. What is wrong is added to the report's failures: losses that
    differ over the first steps from the same weights, the lines that `check` returns for these, and exceptions."""
    gc.collect()  # else the Modules and captures of programs before, which are in cycles, are looked at in each step
    try:
        sides, wrong = _sides(bench, build, check)
    except Exception as error:  # one program of many: the others are measured all the same
        bench.report.fail(f"{work.name}: {type(error).__name__}: {error}")
        return
    for line in wrong:
        bench.report.fail(f"{work.name}: {line}")
    bench.measure(work, [side for side, _ in sides], schedule=_schedule(bench, sum(second for _, second in sides)))


def _schedule(bench: Bench, seconds: float) -> Schedule:
    if bench.options.rounds is not None or bench.quick:
        return bench.schedule
    return bench.schedule._replace(rounds=3 if seconds > SLOW_S else None, row_s=0.8)


def _sides(bench: Bench, build: Build, check: Callable[[Weights], list[str]] | None,
           ) -> tuple[list[tuple[Side, float]], list[str]]:
    """The sides, each with the seconds of a later step, and what is wrong."""
    weights: Weights | None = None
    clock = bench.schedule.clock
    sides, losses, wrong = [], {}, []
    if "torch" in bench.peers:
        framework = torch_framework(bench.peers.torch)
        bench.peers.torch.manual_seed(0)
        program = build(framework)
        weights = [{name: array.detach().numpy().copy() for name, array in module.state_dict().items()}
                   for module in program.modules]
        run, found, seconds = _started(framework, program.step, program.draw, clock)
        sides.append((Side("torch", "eager", run, first_s=seconds[0]), min(seconds)))
        losses["torch"] = found
    for variant in ("jit", "eager"):
        program = build(Ours)
        if weights is None:
            weights = [{name: array.numpy().copy() for name, array in module.state_dict().items()}
                       for module in program.modules]
        for module, state in zip(program.modules, weights, strict=True):
            module.load_state_dict(state)
            Tensor.realize(*module.state_dict().values())
        step = jit(program.step) if variant == "jit" else program.step
        run, found, seconds = _started(Ours, step, program.draw, clock)
        sides.append((Side(OURS, variant, run, first_s=seconds[0]), min(seconds)))
        losses[variant] = found
    expected = next(iter(losses.values()))
    for name, found in losses.items():
        if not np.allclose(found, expected, rtol=2e-3, atol=1e-5):
            wrong.append(f"losses of {name} are {found}, those of {next(iter(losses))} {expected}")
    if check is not None and weights is not None:
        wrong += check(weights)
    return sides, wrong


def _started(framework: Any, step: Callable[..., Any], draw: Callable[..., tuple[np.ndarray, ...]],
             clock: Callable[[], float]) -> tuple[Callable[[], float], list[float], list[float]]:
    """(a function that runs a step and reads its loss, the losses of the first steps, their seconds)."""
    rng = np.random.default_rng(0)
    losses, seconds = [], []
    for _ in range(STEPS):
        batch = [framework.tensor(array) for array in draw(rng)]
        begin = clock()
        losses.append(step(*batch).item())
        minigrad.synchronize()
        seconds.append(clock() - begin)

    def run() -> float:
        loss: float = step(*batch).item()
        minigrad.synchronize()
        return loss

    return run, losses, seconds


def gradients_differ(torch: Any, build: Build, weights: Weights) -> list[str]:
    """A line for each gradient of the program's `loss` that is not torch's. Differences that float32 cannot tell do not
    count: torch's own float32 gradients are compared with its float64 ones."""
    arrays: tuple[np.ndarray, ...] = ()
    found = []
    for framework, double in ((torch_framework(torch), True), (torch_framework(torch), False), (Ours, False)):
        program = build(framework)
        arrays = arrays or program.draw(np.random.default_rng(0))
        if program.loss is None:
            return []
        for module, state in zip(program.modules, weights, strict=True):
            module.load_state_dict({k: torch.tensor(v) if framework is not Ours else v for k, v in state.items()})
            if double:
                module.double()
        batch = [framework.tensor(a.astype(np.float64) if double and a.dtype == np.float32 else a) for a in arrays]
        program.loss(*batch).backward()
        named = {f"{k}.{n}": p for k, module in enumerate(program.modules) for n, p in module.named_parameters()}
        if framework is Ours:
            Tensor.realize(*(p.grad for p in named.values() if p.grad is not None))
        found.append({name: None if p.grad is None else p.grad.numpy() for name, p in named.items()})
    return [line for name in found[0] for line in _difference(name, *(grads[name] for grads in found))]


def _difference(name: str, exact: Any, theirs: Any, ours: Any) -> list[str]:
    if exact is None or ours is None:
        is_zero = (exact is None or not exact.any()) and (ours is None or not ours.any())
        return [] if is_zero else [f"gradient of {name}: only {'torch has' if ours is None else 'minigrad has'} one"]
    allowed = 1e-4 * np.abs(exact).max(initial=0) + 20 * np.abs(theirs - exact).max(initial=0) + 1e-7
    error = np.abs(ours - exact).max(initial=0)
    return [] if error <= allowed else [f"gradient of {name}: differs by {error:.2g}, at most {allowed:.2g} expected "
                                        f"of values up to {np.abs(exact).max():.2g}"]


def first_steps(bench: Bench, names: Sequence[str], code: str) -> None:
    """A figure for each name: the seconds of a captured first step, in a process of its own with an empty cache.
    `code` runs it, `NAME` standing for the name."""
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode(os.path.join(folder, "bytecode"), MINIGRAD_THREADS=str(bench.options.threads))
        for k, name in enumerate([names[0], *names] if names else []):  # the first one compiles Python's sources
            environment["MINIGRAD_CACHE"] = os.path.join(folder, str(k))
            output = run_process(code.replace("NAME", repr(name)), environment, capture_output=True, text=True).stdout
            if k:
                bench.report.add_figure(f"first step, {name}", [float(output.split()[-1])], 1.0, "s")


def first_step(build: Build) -> float:
    """The seconds of a captured step that is the first of its process."""
    program = build(Ours)
    for module in program.modules:
        Tensor.realize(*module.state_dict().values())
    return _started(Ours, jit(program.step), program.draw, time.perf_counter)[2][0]


def distribution(report: Report, group: str, describe: Callable[[str], str] = str) -> list[str]:
    """Lines that sum up the ratios of a group's rows, by variant, with the worst of them; and the times of the first
    steps."""
    lines = []
    rows = [row for row in report.rows if row["variant"] in ("jit", "eager") and row["peer"] == OURS]
    for variant in ("jit", "eager"):
        mine = sorted((row for row in rows if row["variant"] == variant and "ratio_best" in row),
                      key=lambda row: row["ratio_best"])
        if not mine:
            continue
        ratios = [row["ratio_best"] for row in mine]
        shares = ", ".join(f"{sum(r < limit for r in ratios) / len(ratios):.1%} under {limit}"
                           for limit in (0.4, 0.5, 0.8, 1.0))
        lines.append(f"{variant}: {len(ratios)} of {group}, geometric mean {statistics.geometric_mean(ratios):.2f}x "
                     f"torch, 5th percentile {np.percentile(ratios, 5):.2f}, least {ratios[0]:.2f}; {shares}")
        for row in mine[:WORST]:
            lines.append(f"  {row['ratio_best']:5.2f}x  {row['best_s'] * 1e3:9.3f} ms, torch "
                         f"{row['ratio_best'] * row['best_s'] * 1e3:9.3f} ms  {describe(row['work'])}")
    first = sorted(((row["first_s"], row["work"]) for row in rows if row["variant"] == "jit"), reverse=True)
    if first:
        seconds = [s for s, _ in first]
        lines.append(f"first captured steps: median {statistics.median(seconds):.2f} s, 95th percentile "
                     f"{np.percentile(seconds, 95):.2f} s, longest " +
                     "; ".join(f"{s:.2f} s {work}" for s, work in first[:3]))
    return lines
