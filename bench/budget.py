"""Training steps with less memory beside the plain one: a budget of half the memory, and autocast.

    python -m bench.budget b0 8 224        EfficientNet-B0, batch 8, images of 224
    python -m bench.budget gpt 32 64       a GPT of 4 layers, 128 wide, batch 32, 64 tokens

Steps of all variants take turns in one process, and the shortest of each counts. Then each runs in a process of its own
for its peak of memory, as bench.memory measures it.
"""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import minigrad
from bench.memory import RESET, WARM_STEPS, resident
from minigrad import Tensor, jit, nn
from minigrad.nn.state import get_parameters

VARIANTS = ("plain", "half", "bfloat16", "float16", "bfloat16+half")
ROUNDS = 8
VOCABULARY, WIDTH, HEADS, LAYERS = 65, 128, 4, 4


class Block:
    """One layer of a GPT: attention and two products, each after a norm."""

    def __init__(self) -> None:
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (t.reshape(batch, length, HEADS, width // HEADS).transpose(1, 2)
                   for t in self.qkv(self.first(x)).chunk(3, -1))
        seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        return x + self.down(self.up(self.second(x)).gelu())


class GPT:
    """A small GPT over characters."""

    def __init__(self, length: int):
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(Tensor.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).reshape(-1, VOCABULARY)


def made(kind: str, batch: int, size: int) -> tuple[Any, Tensor, Tensor]:
    """(model, inputs, labels)."""
    random = np.random.default_rng(0)
    minigrad.manual_seed(0)
    if kind == "gpt":
        tokens = random.integers(0, VOCABULARY, (2, batch, size)).astype(np.int32)
        return GPT(size), Tensor(tokens[0]).realize(), Tensor(tokens[1].reshape(-1)).realize()
    from bench.efficientnet_step import quick_or_b0

    images = random.standard_normal((batch, 3, size, size), np.float32)
    labels = random.integers(0, 1000, batch).astype(np.int32)
    return quick_or_b0(False), Tensor(images).realize(), Tensor(labels).realize()


def stepper(variant: str, kind: str, batch: int, size: int) -> Callable[[], Any]:
    """A training step of a variant, captured."""
    model, inputs, labels = made(kind, batch, size)
    optimizer: Any = nn.optim.AdamW(get_parameters(model), lr=1e-3) if kind == "gpt" else nn.optim.SGD(
        get_parameters(model), lr=1e-3)
    half = variant.removesuffix("+half") if "float16" in variant else None

    def train(inputs: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        with minigrad.autocast(dtype=half, enabled=half is not None):
            loss = model(inputs).cross_entropy(labels)
        loss.backward()
        Tensor.realize(loss, *optimizer.schedule_step())
        return loss

    budget = None
    if variant.endswith("half"):
        with Tensor.train():
            budget = minigrad.plan(train, inputs, labels).peak_bytes // 2
    step = jit(train, memory=budget)

    def call() -> Any:
        with Tensor.train():
            loss = step(inputs, labels)
            minigrad.synchronize()
            return loss

    return call


def peak(variant: str, kind: str, batch: int, size: int) -> None:
    """Prints the memory of one variant in this process, in bytes."""
    before = resident("VmRSS")
    call = stepper(variant, kind, batch, size)
    for _ in range(WARM_STEPS):
        call()
    RESET.write_text("5")
    call()
    print(json.dumps({"variant": variant, "grown": resident("VmHWM") - before}))


def main(kind: str, batch: int, size: int, variants: list[str]) -> None:
    calls = {v: stepper(v, kind, batch, size) for v in variants}
    losses = {v: [call().item() for _ in range(WARM_STEPS)] for v, call in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for v, call in calls.items():
            start = perf_counter()
            call()
            best[v] = min(best[v], perf_counter() - start)
    for v in calls:
        done = subprocess.run([sys.executable, "-m", "bench.budget", kind, str(batch), str(size), "--peak", v],
                              stdout=subprocess.PIPE, text=True, check=True)
        grown = json.loads(done.stdout.splitlines()[-1])["grown"]
        print(f"{kind} batch {batch} {v:14s} {best[v] * 1e3:9.2f} ms  {best[v] / best['plain']:5.2f}x  "
              f"{grown / 1e6:8.1f} MB  losses {losses[v]}", flush=True)


if __name__ == "__main__":
    kind, batch, size, *rest = sys.argv[1:]
    if rest[:1] == ["--peak"]:
        peak(rest[1], kind, int(batch), int(size))
    else:
        main(kind, int(batch), int(size), rest or list(VARIANTS))
