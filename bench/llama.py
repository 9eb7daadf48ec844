"""A LLaMA model: prefill of a prompt, and decoding after it, one token at a time, logits on the host each time."""
from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import Bench
from bench.report import OURS, Work
from bench.starts import run_process
from bench.timing import Side
from examples.llama.chat import default_model
from examples.llama.checkpoint import DTYPES, Config, Weight, converted
from examples.llama.generate import Session
from examples.llama.model import Llama
from examples.llama.weights import load_checkpoint
from minigrad import Tensor
from minigrad.config import current

PEERS = ["llama.cpp"]
QUICK = Config(width=16, hidden=24, layers=2, heads=2, kv_heads=1, vocabulary=32, context=64, head_size=8)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="file or folder (default: SmolLM2-135M-Instruct, fetched once)")
    parser.add_argument("--weights-dtype", choices=DTYPES, help="of weight matrices (default: as the file has them)")
    parser.add_argument("--quantize-activations", action="store_true", help="integer products with quantised weights")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt (default 256)")
    parser.add_argument("--context", type=int, default=2048, help="tokens that the cache holds (default 2048)")


def run(bench: Bench) -> None:
    options = bench.options
    if bench.quick:
        name, path, prompt = "quick", None, 6
        model = quick_model()
    else:
        path = options.model or default_model()
        checkpoint = load_checkpoint(path)
        name, prompt = path.stem, options.prompt
        tensors = checkpoint.tensors
        if options.weights_dtype:
            tensors, name = converted(tensors, options.weights_dtype), f"{name} as {options.weights_dtype}"
        if options.quantize_activations:
            name = f"{name}, integer products"
        config = replace(checkpoint.config, quantize_activations=options.quantize_activations)
        model = Llama(config, tensors, options.context)
    if not 2 <= prompt < model.capacity:
        raise SystemExit(f"bench llama: expected a prompt of 2 to {model.capacity - 1} tokens, got {prompt}")
    tokens = np.random.default_rng(0).integers(3, model.config.vocabulary, prompt).tolist()
    prefill = Work(f"llama {name} prefill {prompt}", "llama prefill", tokens=prompt)
    decode = Work(f"llama {name} decode after {prompt}", "llama decode", tokens=1)
    ours = Ours(model, tokens)
    theirs = None
    if path is not None and "llama.cpp" in bench.peers:
        theirs = Theirs(bench.peers.modules["llama.cpp"], path, tokens, options.context, options.threads)
    for work, phase in ((prefill, "prefill"), (decode, "decode")):
        if bench.wants(work):
            sides = [Side(OURS, "jit", getattr(ours, phase))]
            sides += [Side("llama.cpp", name, getattr(theirs, phase))] if theirs is not None else []
            bench.measure(work, sides)
            if phase == "decode":
                _report_weights(bench, model, sides[0])
    if bench.wants(prefill):
        _report_first_tokens(bench, path)


def _report_weights(bench: Bench, model: Llama, side: Side) -> None:
    """Reports how fast decoding went through the weights: reading them is the least it must do."""
    gb_s = model.weight_bytes() / side.best_s / 1e9
    if bench.report.limits is None:
        return
    bench.report.say(f"decode reads {model.weight_bytes() / 1e6:.1f} MB of weights per token: {gb_s:.2f} GB/s, "
                     f"{gb_s / bench.report.limits.gb_s:.0%} of the read stream")


def _report_first_tokens(bench: Bench, path: Path | None) -> None:
    """Rows of the first token, from when the weights are there as the file has them, in a process with empty caches and
    in the next one."""
    name = "quick" if path is None else path.stem
    code = f"from bench.llama import first_token; first_token({None if path is None else str(path)!r})"
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"MINIGRAD_THREADS": str(bench.options.threads), "MINIGRAD_CACHE": folder,
                                    "MINIGRAD_DEVICE": current().device}
        for which in ("a process, empty caches", "a second process"):
            told = run_process(code, environment, stdout=subprocess.PIPE, text=True).stdout
            bench.report.add_figure(f"llama {name} first token of {which}", [float(told)], 1.0, "s")


def first_token(path: str | None, prompt: int = 40) -> None:
    """Prints the seconds from weights in memory to the logits after a prompt, on the host."""
    if path is None:
        model, start = quick_model(), time.perf_counter()
        prompt = QUICK.context // 4
    else:
        checkpoint = load_checkpoint(Path(path))
        start = time.perf_counter()
        model = Llama(checkpoint.config, checkpoint.tensors)
    Session(model).feed(np.random.default_rng(0).integers(3, model.config.vocabulary, prompt).tolist())
    print(time.perf_counter() - start)


class Ours:
    """A session of examples/llama. Decoding stands right after the prompt in every call."""

    def __init__(self, model: Llama, tokens: list[int]):
        self.session, self.tokens = Session(model), tokens

    def prefill(self) -> None:
        self.session.position = 0
        self.session.feed(self.tokens)

    def decode(self) -> None:
        if self.session.position < len(self.tokens):  # the cache has to hold the prompt
            self.prefill()
        self.session.position = len(self.tokens)
        self.session.feed(self.tokens[-1:])


class Theirs:
    """llama.cpp, through llama-cpp-python."""

    def __init__(self, llama_cpp: Any, path: Path, tokens: list[int], context: int, threads: int):
        self.tokens = tokens
        self.model = llama_cpp.Llama(str(path), n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads,
                                     verbose=False)

    def prefill(self) -> None:
        self.model.reset()
        self.model.eval(self.tokens)

    def decode(self) -> None:
        if self.model.n_tokens < len(self.tokens):
            self.prefill()
        self.model.n_tokens = len(self.tokens)  # `eval` drops what the cache holds beyond it
        self.model.eval(self.tokens[-1:])


def quick_model() -> Llama:
    """A very small model of random weights."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> Tensor:
        return Tensor(random.standard_normal(shape, np.float32))

    config = QUICK
    width, keys = config.width, config.kv_heads * config.head_size
    shapes = {"attention_norm": (width,), "query": (width, width), "key": (keys, width), "value": (keys, width),
              "attention_out": (width, width), "feed_norm": (width,), "gate": (config.hidden, width),
              "up": (config.hidden, width), "down": (width, config.hidden)}
    tensors: dict[str, Weight] = {"embedding": weight(config.vocabulary, width), "norm": weight(width)}
    for layer in range(config.layers):
        tensors |= {f"layers.{layer}.{name}": weight(*shape) for name, shape in shapes.items()}
    return Llama(config, tensors)
