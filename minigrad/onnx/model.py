"""`OnnxModel`: an ONNX file that runs, and trains, as minigrad's own."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from minigrad import Tensor, dtypes, jit
from minigrad.capture.recorder import capturing
from minigrad.dtype import DType
from minigrad.errors import CaptureError, MinigradError
from minigrad.onnx.refusal import Invalid, Unsupported
from minigrad.onnx.run import FEW, Runner, tensors
from minigrad.onnx.symbolic import Sizes, settled, why
from minigrad.onnx.values import DTYPES, FLOATS, INTEGERS, Narrow, Value, element_of, from_array, in_memory, name_of

NUMBERS = {name_of(element) for element in (*DTYPES, *FLOATS, *INTEGERS)}


@dataclass(frozen=True)
class Described:
    """An input or output: its `name`, its `shape` (a name or None for a size that is open; None for an open rank) and
    the name of its type."""

    name: str
    shape: tuple[int | str | None, ...] | None
    type: str


class OnnxModel:
    """The function of an ONNX model, from names of inputs to names of outputs.

    `model`: a path, the bytes of a file or a ModelProto. `device` is where it runs. With `capture` what a call does is
    recorded for its inputs' shapes and replayed by the next; a model that must read values to know shapes runs node by
    node (`why_eager` says where). From the second shape on, sizes that the model leaves open are Variables, for which
    one capture serves all; where it has to know them there is a capture for each (`why_sized` says what wants it).
    With `dtype` (float16, bfloat16) numbers of float32 are kept and computed in it; inputs and outputs stay float32.
    `weights` are Tensors by name: `nn.state.get_state_dict` finds them, and they train.

    Raises `Unsupported` for operators, attributes and types that minigrad does not have, when they are reached, and
    `Invalid` for what is no model.
    """

    def __init__(self, model: str | Path | bytes | ModelProto, device: str | None = None, capture: bool = True,
                 dtype: DType | None = None):
        self.proto = _loaded(model)
        if dtype not in (None, dtypes.float32, dtypes.float16, dtypes.bfloat16):
            raise Unsupported(f"[onnx] dtype {dtype} is not supported; float32, float16 and bfloat16 are")
        self._floats = None if dtype is dtypes.float32 else dtype
        graph = self.proto.graph
        self.device = device
        self.weights: dict[str, Tensor] = {}
        self.known: dict[str, Value] = {}
        originals: dict[str, np.ndarray] = {}
        for initializer in graph.initializer:
            self._weight(initializer, originals)
        self.inputs = [_described(v) for v in graph.input if v.name not in self.known and v.name not in self.weights]
        self.outputs = [_described(v) for v in graph.output]
        self._defaults = {v.name for v in graph.input} - {v.name for v in self.inputs}
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in self.proto.opset_import}
        for domain, version in opsets.items():
            if version < 1 or (not domain and version > onnx.defs.onnx_opset_version()):
                raise Unsupported(f"[onnx] opset {version} of {domain or 'ai.onnx'} is not supported; 1 to "
                                  f"{onnx.defs.onnx_opset_version()} are")
        functions = {(f.domain, f.name): f for f in self.proto.functions}
        self._runner = Runner(opsets or {"": 1}, functions, device, originals, self._floats)
        self.why_eager: str | None = None if capture else "capture=False"
        self._by_value = False
        self._captured, self._captured_open = jit(self._run), jit(self._run)
        self._lists: dict[tuple[str, ...], Any] = {}
        self.why_sized: str | None = None
        self._sizes = Sizes({v.name: v.shape for v in self.inputs})

    def _weight(self, proto: TensorProto, originals: dict[str, np.ndarray]) -> None:
        try:
            if any(size < 0 for size in proto.dims):
                raise ValueError("expected sizes of 0 or more")
            array = numpy_helper.to_array(proto)
        except (ValueError, TypeError, KeyError, OverflowError, MemoryError, AttributeError, OSError) as error:
            raise Invalid(f"[onnx] weight {proto.name!r} of shape {list(proto.dims)}: {error}") from error
        trains = array.dtype.kind == "f" or array.size > FEW
        value = from_array(array, self.device) if trains else array
        if isinstance(value, Tensor):
            narrow = self._floats is not None and value.dtype is dtypes.float32
            self.weights[proto.name] = value.cast(self._floats).realize() if narrow and self._floats else value
            if array.size <= FEW:
                originals[proto.name] = array
        else:
            self.known[proto.name] = value

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, for arrays or Tensors by name. A sequence is a list of Tensors, numbers of 8 bits or
        less that no kernel computes in (int4, float8) are a `Narrow`; strings are an array."""
        values = self._fed(feeds)
        if capturing():  # in a function that is captured: nothing to capture here, and a value that is read is an error
            return self._named(self._run(values, self._fixed(feeds, True)))
        tensors_only = all(isinstance(v, Tensor) for v in values.values())
        captured = self.why_eager is None and tensors_only
        if captured and self.why_sized is None and not self._by_value and self._sizes.differ(values):
            return self._open(values, feeds)
        try:
            if captured and not self._by_value:
                results = self._listed(tuple(values))([*values.values()])
            else:
                results = (self._captured if captured else self._run)(values, self._fixed(feeds, self._by_value))
        except MinigradError as error:
            if not _while_capturing(error):
                raise
            if self._by_value or not self._small(feeds):
                self.why_eager = str(error)
            self._by_value = True  # what the nodes read may be an integer that was fed: then a capture for each
            return self(feeds)
        return self._named(results)

    def _named(self, results: list[Any]) -> dict[str, Any]:
        return dict(zip((o.name for o in self.outputs), results, strict=True))

    @property
    def captures(self) -> int:
        """The number of captures that were made, of all shapes."""
        return sum(f.captures for f in (self._captured, self._captured_open, *self._lists.values()))

    @property
    def replays(self) -> int:
        """The number of calls that a capture answered."""
        return sum(f.replays for f in (self._captured, self._captured_open, *self._lists.values()))

    def _listed(self, names: tuple[str, ...]) -> Any:
        """The captured function of the inputs of these names in a list, which a replay compares fastest."""
        found = self._lists.get(names)
        if found is None:
            run = self._run
            found = self._lists[names] = jit(lambda values: run(dict(zip(names, values, strict=True)), ()))
        return found

    def _open(self, values: dict[str, Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by a capture with Variables for the open sizes, or by one for these sizes where they have to be
        known."""
        try:
            bound = self._sizes.bound(values, feeds)
            values.clear()  # a capture takes a buffer for an argument's if nothing else holds it
            results = [settled(v) for v in self._captured_open(bound, ())]
        except MinigradError as error:
            self.why_sized = why(error)
            return self(feeds)
        return self._named(results)

    def _small(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        arrays = {name: np.asarray(value) for name, value in feeds.items() if not isinstance(value, (Tensor, list))}
        return {name: a for name, a in arrays.items() if a.dtype.kind in "iub" and a.size <= 8}

    def _fixed(self, feeds: Mapping[str, Any], wanted: bool) -> tuple:
        """The small fed integers and booleans, as numbers that are part of a capture's kind, where values are read."""
        small = self._small(feeds) if wanted else {}
        return tuple((name, a.dtype.name, a.shape, tuple(a.reshape(-1).tolist())) for name, a in small.items())

    def _run(self, values: dict[str, Any], fixed: tuple) -> list[Any]:
        known = {name: np.array(numbers, dtype).reshape(shape) for name, dtype, shape, numbers in fixed}
        results = self._runner.graph(self.proto.graph, {**self.known, **self.weights, **values, **known})
        results = [tensors(v, self.device) for v in results]
        return results if self._floats is None else [v if o.type in NUMBERS - {"float"} else self._widened(v)
                                                     for o, v in zip(self.outputs, results, strict=True)]

    def _widened(self, value: Value) -> Value:
        """A result in float32 where it was computed in less."""
        if isinstance(value, list):
            return [self._widened(v) for v in value]
        return value.float() if isinstance(value, Tensor) and value.dtype is self._floats else value

    def eager(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs in order, node by node."""
        return self._run(self._fed(feeds), ())

    def has(self, domain: str, op: str) -> bool:
        """True for an operator that minigrad has, or that the model or the standard defines by others it may have."""
        return self._runner.has(domain, op)

    def _fed(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        names = [v.name for v in self.inputs]
        unknown = [name for name in feeds if name not in names and name not in self._defaults]
        missing = [v.name for v in self.inputs if v.name not in feeds and not v.type.startswith("optional")]
        if unknown or missing:
            raise Invalid(f"[onnx] expected inputs {', '.join(names)}, got {', '.join(feeds) or 'none'}")
        result: dict[str, Any] = {}
        described = {v.name: v for v in self.inputs}
        for name, value in feeds.items():
            value = np.asarray(value) if isinstance(value, (int, float, bool, np.generic)) else value
            if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
                value = in_memory(value, self.device)
            if name in described and isinstance(value, Tensor | Narrow):
                _check(described[name], value)
            result[name] = value
        return result


def _while_capturing(error: BaseException | None) -> bool:
    """True where an error comes from reading values in a captured function."""
    return error is not None and (isinstance(error, CaptureError) or _while_capturing(error.__cause__))


def _check(expected: Described, value: Tensor | Narrow) -> None:
    """Raises Invalid for another type or shape than the model says."""
    given = name_of(element_of(value))
    if expected.type in NUMBERS and given != expected.type:
        raise Invalid(f"[onnx] input {expected.name!r}: expected {expected.type}, got {given}")
    shape = tuple(value.shape)
    if expected.shape is not None and (len(shape) != len(expected.shape) or any(
            isinstance(e, int) and e != s for e, s in zip(expected.shape, shape, strict=True))):
        raise Invalid(f"[onnx] input {expected.name!r}: expected shape {list(expected.shape)}, got {list(shape)}")


def _loaded(model: str | Path | bytes | ModelProto) -> ModelProto:
    if isinstance(model, ModelProto):
        return model
    name = "a model" if isinstance(model, bytes) else str(model)
    try:
        proto = onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.load(str(model))
    except FileNotFoundError:
        raise Invalid(f"[onnx] {name}: no such file") from None
    except Exception as error:  # protobuf's own too
        raise Invalid(f"[onnx] {name}: {error}") from error
    if not proto.graph.output:
        raise Invalid(f"[onnx] {name}: expected a graph with outputs")
    return proto


def _described(value: ValueInfoProto) -> Described:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Described(value.name, None, (kind or "unknown").removesuffix("_type"))
    tensor = value.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
                      for d in tensor.shape.dim)
    return Described(value.name, shape, name_of(tensor.elem_type))
