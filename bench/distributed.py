"""Two processes with one thread each beside one: training steps by minigrad.distributed, in turn.

    python -m bench distributed                          # EfficientNet-B0 and a GPT, memory shared
    python -m bench distributed --link 1gbit             # over a loopback of that rate, in a namespace (root, Linux)

In each round one process steps alone while the others wait, then all step without exchanging anything, which is what
the machine allows, then all step with their gradients averaged. A ratio is samples per second over those of the one
alone, by the least time of a step over all rounds; that of several is the slowest one's.
"""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.efficientnet_step import quick_or_b0
from examples.gpt.model import GPT, Sizes
from minigrad import Tensor, distributed, jit
from minigrad.nn.optim import AdamW
from minigrad.nn.state import get_parameters

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("efficientnet-b0", "gpt")


def work(name: str, batch: int, size: int) -> tuple[Any, Tensor, Tensor, Callable[[Any, Tensor, Tensor], Tensor]]:
    """(model, inputs, labels, loss) of a model; `size` is that of images."""
    rng = np.random.default_rng(distributed.rank())
    if name == "gpt":
        sizes = Sizes(65, 64, 4, 4, 128)
        tokens = rng.integers(0, 65, (2, batch, 64)).astype(np.int32)
        return GPT(sizes), Tensor(tokens[0]), Tensor(tokens[1]), lambda model, x, y: model(x).reshape(
            -1, 65).cross_entropy(y.reshape(-1))
    images = Tensor(rng.standard_normal((batch, 3, size, size), np.float32))
    labels = Tensor(rng.integers(0, 1000, batch).astype(np.int32))
    return quick_or_b0(False), images, labels, lambda model, x, y: model(x).cross_entropy(y)


def stepper(name: str, batch: int, size: int, averaged: bool, bucket_mb: float | None) -> Callable[[], None]:
    """A captured training step of a model of its own, whose gradients are `averaged` or not."""
    model, x, y, loss_of = work(name, batch, size)
    optimizer = AdamW(get_parameters(model), lr=1e-4)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            loss = loss_of(model, x, y).backward()
        if averaged:
            distributed.average_gradients(optimizer.params, bucket_mb)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    captured = jit(step)
    return lambda: captured(x, y).item()


def seconds(step: Callable[[], None] | None, steps: int) -> float:
    """The least seconds of a step of the slowest process, all having begun together; without one, of the others."""
    distributed.barrier()
    times = [0.0]
    if step is not None:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    own = Tensor([min(times)])
    return float(distributed.all_reduce(own, "max").item())


def measure(options: argparse.Namespace) -> None:
    """Prints a row for each model; in each of the processes."""
    for name in options.models:
        batch = options.batch or (12 if name == "gpt" else 8)
        alone = stepper(name, batch, options.size, False, options.bucket_mb)
        together = stepper(name, batch, options.size, True, options.bucket_mb)
        for _ in range(3):
            alone()
            together()
        best = {"one": float("inf"), "apart": float("inf"), "together": float("inf")}
        first = distributed.rank() == 0
        for _ in range(options.rounds):
            for what, step in (("one", alone if first else None), ("apart", alone), ("together", together)):
                best[what] = min(best[what], seconds(step, options.steps))
        if first:
            count = distributed.size()
            print(f"{name:<16} batch {batch} each   one {1e3 * best['one']:8.2f} ms   {count} without exchange "
                  f"{1e3 * best['apart']:8.2f} ms {count * best['one'] / best['apart']:.2f}x   {count} averaged "
                  f"{1e3 * best['together']:8.2f} ms {count * best['one'] / best['together']:.2f}x", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench distributed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--processes", type=int, default=2)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch", type=int, default=0, help="samples of each process (default 8 images, 12 texts)")
    parser.add_argument("--size", type=int, default=224, help="of images (default 224)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn (default 3)")
    parser.add_argument("--bucket-mb", type=float, help="of gradients that are sent together (default: chosen)")
    parser.add_argument("--link", help="rate of a loopback, both directions together, that processes exchange over, "
                                       "such as 2gbit (default: they share memory)")
    options = parser.parse_args(arguments)
    if distributed.size() > 1:
        distributed.init()
        measure(options)
        return 0
    command = [sys.executable, "-m", "minigrad", "launch", "-n", str(options.processes), "--threads", "1",
               str(Path(__file__)), *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    if options.link:
        if not all(map(shutil.which, ("unshare", "tc", "ip"))):
            print("bench: --link needs unshare, tc and ip, which run as root", file=sys.stderr)
            return 1
        limit = f"ip link set lo up && tc qdisc add dev lo root tbf rate {options.link} burst 256kb latency 50ms && "
        command = ["unshare", "-n", "sh", "-c", limit + 'exec "$0" "$@"', *command]
        env |= {"MINIGRAD_SHARED_MEMORY": "0", "MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi",
                "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}  # nor may MPICH, and what it has beneath it, share memory
    return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
