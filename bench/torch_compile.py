"""`python -m bench torch-compile`: models written in torch under torch.compile with minigrad, beside inductor and eager
torch. Results are held against eager ones before anything is timed."""
from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.options import Bench
from bench.report import OURS, Work
from bench.timing import Side
from minigrad import config

PEERS = ["torch"]
KINDS = "infer", "train"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", metavar="NAME", help="only these (default: all of bench/torch_models)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--small", action="store_true", help="the sizes of the tests: the host's costs")


def run(bench: Bench) -> None:
    try:
        import torch

        from bench.torch_models import MODELS
    except ImportError as error:
        bench.report.say(f"nothing to measure: torch.compile is torch's, {error}")
        return
    torch.set_num_threads(bench.options.threads)
    names = ["vae"] if bench.quick else bench.options.models or list(MODELS)
    with config(disk_cache=False), _no_caches(bench):
        for name in names:
            for kind in bench.options.kinds:
                work = Work(f"torch.compile {name} {kind}", f"torch.compile {kind}")
                if bench.wants(work):
                    torch.manual_seed(0)
                    case = MODELS[name](not (bench.quick or bench.options.small))
                    _measure(bench, torch, work, case, kind == "train")
    _first_calls(bench)


@contextmanager
def _no_caches(bench: Bench) -> Iterator[None]:
    """First calls of inductor, where it takes part, compile everything, as ours do."""
    if bench.quick or "torch" not in bench.peers:
        yield
        return
    from torch._inductor import config as inductor

    with inductor.patch(force_disable_caches=True):
        yield


def _measure(bench: Bench, torch: Any, work: Work, case: Any, trains: bool) -> None:
    from minigrad.torch_compile import backend

    torch._dynamo.reset()
    backends = {(OURS, "minigrad"): backend, ("torch", "inductor"): "inductor", ("torch", "eager"): None}
    if bench.quick:
        del backends["torch", "inductor"]  # a compiler of C++ takes its time
    results, sides = {}, []
    for key, compiler in backends.items():
        model = copy.deepcopy(case.model).train(trains)
        step = _step(torch, model, case, compiler, trains)
        sides.append(Side(*key, step))
        results[key] = step
    expected = results["torch", "eager"]()
    worst = _difference(torch, _timed_first(sides[0], bench.schedule.clock), expected)
    if not worst < 1e-3:
        bench.report.fail(f"{work.name}: {worst:.1e} from eager torch")
        return
    bench.measure(work, sides if "torch" in bench.peers else sides[:1])


def _timed_first(side: Side, clock: Callable[[], float]) -> Any:
    """The result of the first call, whose time is kept."""
    begin = clock()
    found = side.run()
    side.first_s = clock() - begin
    return found


def _step(torch: Any, model: Any, case: Any, compiler: Any, trains: bool) -> Callable[[], Any]:
    """A call of the model, or a step of plain gradient descent, whose results come back."""
    def forward(*inputs: Any) -> Any:
        return case.loss(model, *inputs) if trains else model(*inputs)

    function = forward if compiler is None else torch.compile(forward, backend=compiler)
    if not trains:
        def infer() -> Any:
            with torch.no_grad():
                found = function(*case.inputs)
            return found if isinstance(found, tuple) else (found,)
        return infer
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def train() -> Any:
        optimizer.zero_grad()
        loss = function(*case.inputs)
        loss.backward()
        optimizer.step()
        return (loss.detach(),)
    return train


def _difference(torch: Any, found: tuple, expected: tuple) -> float:
    return max(float((a.double() - b.double()).abs().max() / (b.double().abs().max() + 1e-6))
               for a, b in zip(found, expected, strict=True))


def _first_calls(bench: Bench) -> None:
    """The geometric mean of inductor's first calls over ours: everything is compiled in them. Processor time would
    leave out inductor's compilers, which are processes of their own."""
    if bench.options.cpu_time:
        return
    for kind in bench.options.kinds:
        rows = [r for r in bench.report.rows if r["work"].startswith("torch.compile") and r["work"].endswith(kind)]
        ours = {r["work"]: r["first_s"] for r in rows if r["peer"] == OURS}
        ratios = [math.log(r["first_s"] / ours[r["work"]]) for r in rows if r["variant"] == "inductor"]
        if ratios:
            mean = math.exp(sum(ratios) / len(ratios))
            bench.report.say(f"first call, {kind}: inductor takes {mean:.2f} times as long, over {len(ratios)} models")
