"""The actions of `minigrad onnx` on a file."""
from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from minigrad.cli.devices import table
from minigrad.engine.stats import stats
from minigrad.errors import MinigradError, quantity
from minigrad.onnx import OnnxModel
from minigrad.onnx.values import DTYPES, NAMES, to_array
from minigrad.report.estimate import plan
from minigrad.report.words import size_text
from minigrad.tensor import Tensor

TYPES = {NAMES[element]: element for element in DTYPES}


def _say(text: str) -> None:
    """Progress, which is no part of the result."""
    print(text, file=sys.stderr, flush=True)


def _opened(options: argparse.Namespace) -> OnnxModel:
    start = time.perf_counter()
    model = OnnxModel(options.model, options.device)
    _say(f"loaded {options.model} in {time.perf_counter() - start:.1f} s")
    return model


def _pairs(given: list[str], option: str) -> dict[str, str]:
    """NAME=VALUE options as a dictionary."""
    wrong = [pair for pair in given if not all(pair.partition("="))]
    if wrong:
        raise MinigradError(f"[onnx] expected {option} NAME=VALUE, got {wrong[0]!r}")
    return dict(pair.split("=", 1) for pair in given)


def feeds_of(model: OnnxModel, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """The inputs: from files, or random ones of the model's shapes. Integers are 0 or 1."""
    files, sizes = _pairs(options.inputs, "--input"), _pairs(options.sizes, "--size")
    unknown = set(files) - {v.name for v in model.inputs}
    if unknown:
        raise MinigradError(f"[onnx] expected inputs {', '.join(v.name for v in model.inputs)}, got {min(unknown)}")
    random, feeds = np.random.default_rng(0), {}
    for described in model.inputs:
        if described.name in files:
            try:
                feeds[described.name] = np.load(files[described.name], allow_pickle=False)
            except ValueError as error:
                raise MinigradError(f"[onnx] {files[described.name]}: expected an array in .npy: {error}") from None
            continue
        if described.type not in TYPES or described.shape is None:
            raise MinigradError(f"[onnx] input {described.name!r} of type {described.type} needs --input")
        shape = tuple(size if isinstance(size, int) else _size(sizes, size) for size in described.shape)
        dtype: Any = helper.tensor_dtype_to_np_dtype(TYPES[described.type])
        is_float = dtype.kind not in "biu"
        values = random.standard_normal(shape) if is_float else random.integers(0, 2, shape)
        feeds[described.name] = np.asarray(values).astype(dtype)
    return feeds


def _size(sizes: dict[str, str], name: str | None) -> int:
    value = sizes.get(name or "", "1")
    if not value.isdecimal() or not 0 < int(value) < 1 << 31:
        raise MinigradError(f"[onnx] expected --size {name}=N with N of 1 or more, got {value!r}")
    return int(value)


def nodes_of(model: OnnxModel) -> Iterator[NodeProto]:
    """The nodes of the graph, of the graphs within it and of functions."""
    waiting: list[Any] = [model.proto.graph, *model.proto.functions]
    while waiting:
        for node in waiting.pop().node:
            yield node
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    waiting.append(attribute.g)
                waiting += attribute.graphs


def check(options: argparse.Namespace) -> int:
    """Prints inputs, outputs, operators, parameters, launches and memory."""
    model = _opened(options)
    for kind, values in (("input", model.inputs), ("output", model.outputs)):
        for v in values:
            shape = "any shape" if v.shape is None else "[" + ", ".join("?" if s is None else str(s) for s in v.shape)
            print(f"{kind}  {v.name}  {v.type}  {shape}{'' if v.shape is None else ']'}")
    counts: Counter[tuple[str, str, bool]] = Counter()
    for node in nodes_of(model):
        domain = "" if node.domain == "ai.onnx" else node.domain
        counts[domain or "ai.onnx", node.op_type, model.has(domain, node.op_type)] += 1
    rows = [(op, domain, str(count), "" if has else "not supported")
            for (domain, op, has), count in sorted(counts.items())]
    print("\n".join(table([("operator", "domain", "nodes", ""), *rows])))
    counted = [(prod(map(int, w.shape)), w.dtype.bits) for w in model.weights.values()]
    print(f"{quantity(len(counted), 'initializer')}, {quantity(sum(count for count, _ in counted), 'parameter')}, "
          f"{size_text(sum(count * bits // 8 for count, bits in counted))}")
    missing = sorted({op for _, op, has in counts if not has})
    if missing:
        print(f"not supported: {', '.join(missing)}")
        return 1
    print(_predicted(model, options))
    return 0


def _predicted(model: OnnxModel, options: argparse.Namespace) -> str:
    """A line about launches and memory of a call."""
    feeds = {name: Tensor(value, device=options.device) for name, value in feeds_of(model, options).items()}
    try:
        found = plan(model.eager, feeds)
    except MinigradError as error:
        return f"launches and memory: not known, as {' '.join(str(error).split())}"
    return (f"{quantity(len(found.kernels), 'launch')}, {found.flops / 1e9:.3f} GFLOP, {size_text(int(found.bytes))} "
            f"moved, {size_text(found.peak_bytes)} at the peak")


def run(options: argparse.Namespace) -> int:
    """Prints shape, type and range of each output."""
    model = _opened(options)
    feeds = feeds_of(model, options)
    start = time.perf_counter()
    outputs = {name: to_array(value) for name, value in model(feeds).items()}
    _say(f"compiled and ran in {time.perf_counter() - start:.1f} s")
    for name, value in outputs.items():
        print(f"{name}  {_summary(value)}")
        if options.save is not None and isinstance(value, np.ndarray):
            options.save.mkdir(parents=True, exist_ok=True)
            np.save(options.save / f"{name.replace('/', '_')}.npy", value)
    return 0


def _summary(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"a sequence of {len(value)}" if isinstance(value, list) else str(value)
    kind = f"{value.dtype} {list(value.shape)}"
    if not value.size or value.dtype.kind not in "biuf":
        return kind
    wide = value.astype(np.float64)
    return f"{kind}  from {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"


def bench(options: argparse.Namespace) -> int:
    """Prints the time of a call, and onnxruntime's where it is installed, in turns; the least of all counts."""
    if options.count < 1:
        raise MinigradError(f"[onnx] expected --count of 1 or more, got {options.count}")
    model = _opened(options)
    feeds = feeds_of(model, options)

    def ours() -> list[Any]:
        return [to_array(value) for value in model(feeds).values()]
    start = time.perf_counter()
    first = ours()
    print(f"first call  {time.perf_counter() - start:.2f} s")
    ours()
    before = stats.launches
    ours()
    launches = stats.launches - before
    peer = _onnxruntime(options, feeds)
    mine, theirs = [], []
    for _ in range(options.count):
        mine.append(_timed(ours))
        if peer is not None:
            theirs.append(_timed(peer))
    why = f", node by node: {model.why_eager}" if model.why_eager else ""
    print(f"minigrad  {1e3 * min(mine):.3f} ms, {quantity(launches, 'launch')}{why}")
    if peer is None:
        print("onnxruntime  not installed")
        return 0
    away = max((_difference(a, b) for a, b in zip(first, peer(), strict=True)), default=0.0)
    print(f"onnxruntime  {1e3 * min(theirs):.3f} ms, {min(theirs) / min(mine):.2f} of minigrad's; largest difference "
          f"{away:.2g} of the largest number")
    return 0


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _difference(a: Any, b: Any) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0


def _onnxruntime(options: argparse.Namespace, feeds: dict[str, np.ndarray]) -> Callable[[], Any] | None:
    """onnxruntime's call of the same model with the same inputs."""
    if find_spec("onnxruntime") is None:
        return None
    session = import_module("onnxruntime").InferenceSession(str(options.model), providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)
