"""Who runs a model of the zoo: minigrad, torch, torch.compile, onnxruntime; each as a function of no arguments."""
from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np

import minigrad
from bench.zoo.models import Entry, Inputs
from minigrad import Tensor, jit
from minigrad.nn.state import get_state_dict, load_state_dict

OPSET = 17
State = Mapping[str, np.ndarray]


def drawn_state(entry: Entry, tiny: bool) -> dict[str, np.ndarray]:
    """Random weights of about the size that layers start with, and running statistics of 0 and 1."""
    rng = np.random.default_rng(1)
    state: dict[str, np.ndarray] = {}
    for name, value in get_state_dict(entry.ours(tiny)).items():
        shape = tuple(int(n) for n in value.shape)
        if len(shape) > 1:
            state[name] = rng.standard_normal(shape, np.float32) * np.float32(np.prod(shape[1:]) ** -0.5)
        else:
            state[name] = np.full(shape, name.endswith((".weight", "running_var")), value.dtype.np)
    return state


class Model:
    """minigrad's: captured; weights and inputs of the given type, where they are floats."""

    def __init__(self, entry: Entry, tiny: bool, state: State, arrays: Inputs, dtype: str):
        self.module = entry.ours(tiny)
        load_state_dict(self.module, state)
        if dtype != "float32":
            for value in get_state_dict(self.module).values():
                value.to_(None, dtype if value.dtype.is_float else value.dtype)
        Tensor.realize(*get_state_dict(self.module).values())
        if isinstance(self.module, minigrad.nn.Module):
            self.module.eval()
        self.inputs = [Tensor(a, dtype=dtype if a.dtype.kind == "f" else None).realize() for a in arrays]
        self.step = jit(self.compute)

    def compute(self, *inputs: Tensor) -> list[Tensor]:
        found = self.module(*inputs)
        results = list(found) if isinstance(found, tuple) else [found]
        Tensor.realize(*results)
        return results

    def __call__(self) -> list[Tensor]:
        with Tensor.no_grad():
            found = self.step(*self.inputs)
        minigrad.synchronize()
        return found

    @property
    def flop(self) -> float:
        """Operations of a call, as the kernels are planned."""
        def eager() -> list[Tensor]:
            found = self.module(*self.inputs)
            return list(found) if isinstance(found, tuple) else [found]

        with Tensor.no_grad():
            return minigrad.plan(eager).flops


def torch_module(entry: Entry, tiny: bool, state: State, dtype: str) -> Any:
    """The model in torch, with these weights where its names are ours."""
    import torch

    module = entry.torch(tiny)
    if entry.shared:
        module.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in state.items()})
    return module.to(getattr(torch, dtype)).eval()


def torch_inputs(arrays: Inputs, dtype: str) -> list[Any]:
    import torch

    return [torch.from_numpy(a).to(getattr(torch, dtype)) if a.dtype.kind == "f" else torch.from_numpy(a)
            for a in arrays]


def torch_call(module: Any, inputs: list[Any], compiled: bool = False, channels_last: bool = False,
               ) -> Callable[[], Any]:
    import torch

    if channels_last:
        module = deepcopy(module).to(memory_format=torch.channels_last)
        inputs = [x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs]
    forward = torch.compile(module) if compiled else module

    def call() -> Any:
        with torch.inference_mode():
            return forward(*inputs)

    return call


def exported(module: Any, inputs: list[Any]) -> bytes:
    """The model in ONNX, as torch writes it; raises what its exporter raises."""
    import torch

    into = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(inputs), into, opset_version=OPSET, dynamo=False)
    return into.getvalue()


def onnxruntime_call(model: bytes | str, arrays: Inputs, threads: int, spin: bool) -> Callable[[], Any]:
    """A session of the model, or of the file at a path."""
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {given.name: a for given, a in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, inputs)


def relative_error(found: Any, expected: Any) -> float:
    """The largest difference of any output, over its largest magnitude."""
    pairs = zip(found if isinstance(found, (list, tuple)) else [found],
                expected if isinstance(expected, (list, tuple)) else [expected], strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in (
        (as_float32(a), as_float32(b)) for a, b in pairs))


def as_float32(x: Any) -> np.ndarray:
    """A Tensor of either framework, or an array."""
    return np.asarray(x if isinstance(x, np.ndarray) else x.float().numpy(), np.float32)
