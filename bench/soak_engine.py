"""Many clients of the language models' engine for some minutes: each answer is the one given alone, and nothing leaks.

    python -m bench.soak_engine --model FILE --clients 200 --minutes 10

Clients ask for answers from a list, greedy and seeded, of prompts that begin alike or not, short and long; every fourth
one goes away at a random token. Afterwards each page and each place must be free, and memory what it was after the
first fifth of the time.
"""
from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from bench.memory import resident
from examples.llama.assistant import find_model
from examples.llama.model import Llama
from examples.llama.sampling import Sampler
from examples.llama.server.engine import BatchEngine
from examples.llama.server.requests import Answer, Busy, Request
from examples.llama.server.start import start_engine
from examples.llama.weights import load_checkpoint

LEAK = 64 << 20
"""Bytes that the process may have more at the end."""


def requests(count: int, vocabulary: int, context: int) -> list[dict[str, Any]]:
    """Requests from a seed: prompts, lengths of answers, and how tokens are chosen."""
    dice = random.Random(0)
    shared = [dice.randrange(3, vocabulary) for _ in range(context // 2)]
    made: list[dict[str, Any]] = []
    for seed in range(count):
        own = [dice.randrange(3, vocabulary) for _ in range(dice.choice((1, 5, 20, context // 8)))]
        prompt = shared[:dice.choice((0, 10, context // 4, context // 2))] + own
        made.append({"prompt": tuple(prompt), "count": dice.randrange(1, context // 8), "seed": seed,
                     "temperature": dice.choice((0.0, 0.8))})
    return made


def asked(engine: BatchEngine, what: dict[str, Any]) -> Answer:
    """The answer to come, once there is room in the queue."""
    sampler = Sampler(temperature=what["temperature"], seed=what["seed"])
    while True:
        try:
            return engine.submit(Request(what["prompt"], what["count"], sampler, frozenset()))
        except Busy as busy:
            time.sleep(min(busy.retry_after, 0.2))


class Clients:
    """Threads that ask until `end`, and what they found."""

    def __init__(self, engine: BatchEngine, listed: list[dict[str, Any]], expected: list[list[int]], end: float):
        self.engine, self.listed, self.expected, self.end = engine, listed, expected, end
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, number: int) -> None:
        dice = random.Random(1000 + number)
        while time.monotonic() < self.end:
            k = dice.randrange(len(self.listed))
            answer, gone = asked(self.engine, self.listed[k]), dice.randrange(0, 12) if dice.random() < 0.25 else None
            tokens = []
            for step in answer:
                tokens.append(step.token)
                if gone is not None and len(tokens) >= gone:
                    answer.cancel()
            self.counts[str(answer.finish)] += 1
            right = tokens == self.expected[k] if answer.finish != "cancelled" else (
                tokens == self.expected[k][:len(tokens)])
            if not right:
                self.wrong.append(f"request {k}: expected {self.expected[k]}, got {tokens} ({answer.finish})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="file, folder or hf:NAME (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=60, help="different ones")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--cache-mb", type=int, default=256)
    parser.add_argument("--exact", action="store_true", help="products of floats, not of integers")
    options = parser.parse_args()
    checkpoint = load_checkpoint(find_model(options.model))
    config = replace(checkpoint.config, cache="float16")
    engine = start_engine(Llama(config, checkpoint.tensors, options.context), options.cache_mb << 20,
                          exact=options.exact)
    listed = requests(options.requests, config.vocabulary, engine.context)
    expected = [[step.token for step in asked(engine, what)] for what in listed]
    print(f"{len(listed)} answers given alone, {sum(map(len, expected))} tokens", flush=True)
    start = time.monotonic()
    clients = Clients(engine, listed, expected, start + 60 * options.minutes)
    threads = [threading.Thread(target=clients.run, args=(k,)) for k in range(options.clients)]
    for thread in threads:
        thread.start()
    time.sleep(60 * options.minutes / 5)
    before = resident("VmRSS")
    for thread in threads:
        thread.join()
    after, stats = resident("VmRSS"), engine.stats()
    free = engine.pages.available == engine.pages.capacity and stats["running"] == stats["waiting"] == 0
    engine.close(1)
    print(f"{sum(clients.counts.values())} answers in {time.monotonic() - start:.0f} s: {dict(clients.counts)}; "
          f"{len(clients.wrong)} differ; {stats['preempted']:.0f} fed again; memory {before / 1e6:.0f} MB, then "
          f"{after / 1e6:.0f} MB; {'all' if free else 'NOT all'} pages and places free")
    print("\n".join(clients.wrong[:5]))
    return int(bool(clients.wrong) or not free or after - before > LEAK)


if __name__ == "__main__":
    sys.exit(main())
