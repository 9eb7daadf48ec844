"""`export`: a call as an ONNX model."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, helper

from minigrad.capture.graphs import CallGraph, graph_of_call, memory_of
from minigrad.dtype import DType, bfloat16, int64
from minigrad.engine.transfer import download
from minigrad.errors import MinigradError
from minigrad.onnx.refusal import Unsupported
from minigrad.onnx.writer import Writer, carrier, described, live
from minigrad.onnx.writer_elements import ELEMENTWISE
from minigrad.onnx.writer_layers import LAYERS, keep, rewritten
from minigrad.onnx.writer_shapes import SHAPES
from minigrad.ops.composite import expanded
from minigrad.ops.node import Node, toposort
from minigrad.state.tree import get_state_dict
from minigrad.tensor import Tensor

OPSETS = range(18, 22)
IR_VERSION = 10
EXTERNAL_BYTES = 3 << 29
"""Bytes of weights from which on they are stored beside the model: a protobuf holds 2 GiB at most."""
RULES = {**ELEMENTWISE, **SHAPES, **LAYERS}


def export(f: Callable[..., Any], *inputs: Any, path: str | Path | None = None, names: Iterable[str] = (),
           outputs: Iterable[str] = (), opset: int = OPSETS[-1], external: bool | None = None) -> ModelProto:
    """`f(*inputs)` as an ONNX model of opset 18 to 21, checked; written to `path` too, if one is given.

    Tensors among the inputs become its inputs, bound Variables open sizes or inputs of one integer, and Tensors that f
    reads initializers, by their names in the model that f belongs to. A Tensor that f assigns is an input with its
    present value as the default, and an output `<name>_next`. `names` and `outputs` name inputs and results. With
    `external` weights are stored in `path`.data, as they are anyway from 1.5 GiB on.

    Nothing of f is computed, and Tensors stay as they are. Raises Unsupported for operations that ONNX has no form of,
    such as random numbers, and MinigradError where f reads a value.
    """
    if opset not in OPSETS:
        raise Unsupported(f"[onnx] opset {opset} is not supported; {OPSETS[0]} to {OPSETS[-1]} are")
    call = graph_of_call(f, inputs, names, outputs)
    model = helper.make_model(_graph(f, call), opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION,
                              producer_name="minigrad")
    nbytes = sum([len(t.raw_data) for t in model.graph.initializer])
    external = nbytes >= EXTERNAL_BYTES if external is None else external
    if nbytes < EXTERNAL_BYTES:
        onnx.checker.check_model(model, full_check=True)
    if path is None and external:
        raise MinigradError(f"[onnx] expected a path for {nbytes} bytes of external data, got none")
    if path is not None:
        copy = ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, str(path), save_as_external_data=external, location=f"{Path(path).name}.data")
    return model


def _graph(f: Callable[..., Any], call: CallGraph) -> onnx.GraphProto:
    roots = call.roots()
    image = expanded(roots, rewritten, keep)
    w = Writer(RULES)
    paths = _paths(f, {*call.inputs, *call.outputs, *call.variables})
    known: dict[Any, str] = {}
    for path, tensor in paths.items():
        known.setdefault((memory_of(tensor.node.storage), tensor.shape, tensor.dtype), path)
    taken = {id(tensor): path for path, tensor in paths.items()}
    fed = [described(name, node.dtype, node.shape) for name, node in call.inputs.items()]
    given = dict(call.inputs)
    for k, changed in enumerate(call.changed):
        if changed.argument is None:
            name = taken.get(id(changed.tensor), f"state_{k}")
            given[name] = changed.before
            fed.append(described(name, changed.before.dtype, changed.before.shape))
            w.initializer(name, _array(changed.before))
    entry = {id(node.storage): _carried(w, name, node.dtype) for name, node in given.items()}
    fed += _open_sizes(w, call)
    for node in toposort(*[image[r] for r in roots]):
        if node.storage is not None:
            w.values[node] = entry.get(id(node.storage)) or _weight(w, node, known)
        else:
            w.add(node)
    of = {id(node.storage): name for name, node in given.items()}
    next_names = [f"{of[id(c.before.storage)]}_next" for c in call.changed]
    results = []
    for name, root in zip([*call.outputs, *next_names], roots, strict=True):
        found = w.values[image[root]]
        if carrier(root.dtype) is root.dtype:
            w.op_into(name, "Identity", found)
        else:
            w.op_into(name, "Cast", found, to=described(name, root.dtype, ()).type.tensor_type.elem_type)
        results.append(described(name, root.dtype, root.shape))
    nodes = live(w.nodes, [r.name for r in results])
    read = {name for node in nodes for name in node.input} | {v.name for v in fed}
    weights = [t for name, t in w.initializers.items() if name in read]
    return helper.make_graph(nodes, getattr(f, "__name__", type(f).__name__), fed, results, weights)


def _open_sizes(w: Writer, call: CallGraph) -> Iterator[onnx.ValueInfoProto]:
    """Enters the symbolic dims: sizes of inputs, or inputs of their own, which come out."""
    for name in call.variables:
        axes = [(n, a) for n, node in call.inputs.items() for a, d in enumerate(node.shape)
                if getattr(d, "name", None) == name]
        if axes:
            w.dims[name] = w.op("Shape", axes[0][0], start=axes[0][1], end=axes[0][1] + 1)
        else:
            w.dims[name] = w.op("Reshape", name, w.constant([1], np.int64))
            yield described(name, int64, ())


def _carried(w: Writer, name: str, dtype: DType) -> str:
    return name if carrier(dtype) is dtype else w.cast(name, carrier(dtype))


def _weight(w: Writer, node: Node, known: dict[Any, str]) -> str:
    """The name of a value that was there, stored as the type that it has."""
    key = memory_of(node.storage), node.shape, node.dtype
    name = known.setdefault(key, f"weight_{len(known)}")
    if name not in w.initializers:
        w.initializer(name, _array(node))
    return _carried(w, name, node.dtype)


def _array(node: Node) -> np.ndarray:
    """The value of a realized Node; bfloat16 as the type that onnx knows."""
    array = download(node)
    if node.dtype is bfloat16:
        return array.astype(ml_dtypes.bfloat16)
    return array


def _paths(f: Callable[..., Any], taken: set[str]) -> dict[str, Tensor]:
    """Tensors that have values by their paths in the model that f is, or is a method of, or in those that it names,
    but for names that are taken."""
    return {path: tensor for prefix, owner in _owners(f) for path, tensor in get_state_dict(owner, prefix).items()
            if path not in taken and tensor.node.storage is not None}


def _owners(f: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    f = inspect.unwrap(f)
    owner = getattr(f, "__self__", None)
    if owner is not None or not isinstance(f, FunctionType):
        yield "", f if owner is None else owner
    plain = getattr(f, "__func__", f)
    if isinstance(plain, FunctionType):
        cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
        named = {name: cell.cell_contents for name, cell in cells}
        named |= {name: plain.__globals__[name] for name in plain.__code__.co_names if name in plain.__globals__}
        yield from [(name, value) for name, value in named.items() if not isinstance(value, type | FunctionType)]
