"""Language models: prefill of prompts, decoding one token at a time after so many, logits on the host each time; the
first token of a process, and the memory that it takes."""
from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.memory import resident
from bench.options import Bench
from bench.report import OURS, Work
from bench.starts import run_process, with_bytecode
from bench.timing import Side
from examples.llama.assistant import default_model
from examples.llama.checkpoint import DTYPES, Config, Weight, converted
from examples.llama.generate import Session
from examples.llama.model import Llama
from examples.llama.weights import load_checkpoint
from minigrad import Tensor
from minigrad.config import current

PEERS = ["llama.cpp"]
ROOM = 32
"""Tokens of the context beyond the longest prompt."""
QUICK = Config(width=16, hidden=24, layers=2, heads=2, kv_heads=1, vocabulary=32, context=64, head_size=8)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, nargs="+", metavar="FILE",
                        help="files or folders, one after the other (default: SmolLM2-135M-Instruct, fetched once)")
    parser.add_argument("--weights-dtype", choices=DTYPES, help="of weight matrices (default: as the file has them)")
    parser.add_argument("--quantize-activations", action="store_true", help="integer products with quantised weights")
    parser.add_argument("--prompt", type=int, nargs="+", default=[256, 2048], metavar="TOKENS",
                        help="lengths of prompts to feed (default: 256 2048)")
    parser.add_argument("--after", type=int, nargs="+", default=[256, 4096], metavar="TOKENS",
                        help="tokens in the cache, after which one is decoded (default: 256 4096)")


def run(bench: Bench) -> None:
    options = bench.options
    if bench.quick:
        _run_model(bench, None, [6], [6])
        return
    for path in options.model or [default_model()]:
        _run_model(bench, path, options.prompt, options.after)


def _run_model(bench: Bench, path: Path | None, prompts: list[int], after: list[int]) -> None:
    """Rows of one model; None: of a very small one."""
    options = bench.options
    capacity = max(*prompts, *after) + ROOM
    name, model = _loaded(path, capacity, options)
    if model.capacity < capacity:
        raise SystemExit(f"bench llama: expected prompts of at most {model.capacity - ROOM} tokens for {name}, "
                         f"got {capacity - ROOM}")
    ours, theirs = Ours(model), None
    if path is not None and "llama.cpp" in bench.peers:
        theirs = Theirs(bench.peers.modules["llama.cpp"], path, capacity, options.threads)
    works = [(Work(f"llama {name} prefill {count}", "llama prefill", tokens=count), "prefill", count)
             for count in prompts]
    works += [(Work(f"llama {name} decode after {count}", "llama decode", tokens=1), "decode", count)
              for count in after]
    for work, phase, count in works:
        if bench.wants(work):
            tokens = _tokens(model.config.vocabulary, count)
            sides = [Side(OURS, "jit", partial(getattr(ours, phase), tokens))]
            if theirs is not None:
                sides.append(Side("llama.cpp", name, partial(getattr(theirs, phase), tokens)))
            bench.measure(work, sides)
            if phase == "decode":
                _report_weights(bench, model, sides[0])
    if bench.wants(works[0][0]):
        _report_first_tokens(bench, path)


def _loaded(path: Path | None, capacity: int, options: argparse.Namespace) -> tuple[str, Llama]:
    """The name and the model of a file, or of a very small one."""
    if path is None:
        return "quick", quick_model()
    checkpoint = load_checkpoint(path)
    name, tensors = path.stem, checkpoint.tensors
    if options.weights_dtype:
        tensors, name = converted(tensors, options.weights_dtype), f"{name} as {options.weights_dtype}"
    if options.quantize_activations:
        name = f"{name}, integer products"
    config = replace(checkpoint.config, quantize_activations=options.quantize_activations, cache="float16")
    return name, Llama(config, tensors, capacity)


def _tokens(vocabulary: int, count: int) -> list[int]:
    """Random ones: the speed of a dense model does not depend on them."""
    return np.random.default_rng(0).integers(3, vocabulary, count).tolist()


def _report_weights(bench: Bench, model: Llama, side: Side) -> None:
    """Reports how fast decoding went through the weights: reading them is the least it must do."""
    gb_s = model.weight_bytes() / side.best_s / 1e9
    if bench.report.limits is None:
        return
    bench.report.say(f"decode reads {model.weight_bytes() / 1e6:.1f} MB of weights per token: {gb_s:.2f} GB/s, "
                     f"{gb_s / bench.report.limits.gb_s:.0%} of the read stream")


def _report_first_tokens(bench: Bench, path: Path | None) -> None:
    """Rows of the first token of a process with empty caches and of the next one, from when the weights are there as
    the file has them and from the process's start; and the most memory that the second one took."""
    name = "quick" if path is None else path.stem
    code = f"from bench.llama import first_token; first_token({None if path is None else str(path)!r})"
    figure = bench.report.add_figure
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode(os.path.join(folder, "bytecode"), MINIGRAD_THREADS=str(bench.options.threads),
                                    MINIGRAD_CACHE=folder, MINIGRAD_DEVICE=current().device)
        for which in ("a process, empty caches", "a second process"):
            start = time.perf_counter()
            told = run_process(code, environment, stdout=subprocess.PIPE, text=True).stdout
            loaded, done, most = (float(word) for word in told.split())
            figure(f"llama {name} first token of {which}", [done - loaded], 1.0, "s")
            figure("  from the process's start", [done - start], 1.0, "s")
    stored = "" if path is None or not path.is_file() else f"; the file has {path.stat().st_size / 1e6:.0f} MB"
    bench.report.say(f"llama {name} takes at most {most / 1e6:.0f} MB of memory{stored}")


def first_token(path: str | None, prompt: int = 40) -> None:
    """Prints when the weights were there as the file has them, when the logits after a prompt were on the host, both by
    the system's clock in seconds, and the most bytes of memory that the process had."""
    if path is None:
        loaded = time.perf_counter()
        model, prompt = quick_model(), QUICK.context // 4
    else:
        checkpoint = load_checkpoint(Path(path))
        loaded = time.perf_counter()
        model = Llama(checkpoint.config, checkpoint.tensors)
    Session(model).feed(_tokens(model.config.vocabulary, prompt))
    print(loaded, time.perf_counter(), resident("VmHWM"))


class Ours:
    """A session of examples/llama. Decoding stands right after the tokens in every call; what the cache holds of them
    has no influence on the time."""

    def __init__(self, model: Llama):
        self.session = Session(model)

    def prefill(self, tokens: list[int]) -> None:
        self.session.position = 0
        self.session.feed(tokens)

    def decode(self, tokens: list[int]) -> None:
        self.session.position = len(tokens)
        self.session.feed(tokens[-1:])


class Theirs:
    """llama.cpp, through llama-cpp-python."""

    def __init__(self, llama_cpp: Any, path: Path, context: int, threads: int):
        self.model = llama_cpp.Llama(str(path), n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads,
                                     verbose=False)

    def prefill(self, tokens: list[int]) -> None:
        self.model.reset()
        self.model.eval(tokens)

    def decode(self, tokens: list[int]) -> None:
        if self.model.n_tokens < len(tokens):  # the cache has to hold the prompt
            self.prefill(tokens)
        self.model.n_tokens = len(tokens)  # `eval` drops what the cache holds beyond it
        self.model.eval(tokens[-1:])


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
