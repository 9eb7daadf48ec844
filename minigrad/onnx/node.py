"""`Node`: one operator of an ONNX graph as the table of operators sees it: attributes, inputs, opset."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, numpy_helper

from minigrad import Tensor, dtypes
from minigrad.dtype import DType
from minigrad.expr import Expr
from minigrad.onnx.refusal import Invalid, Unsupported, refuse
from minigrad.onnx.values import DTYPES, Narrow, Value, cast, from_array, name_of, to_array

_NONE: Any = object()


class Node:
    """An operator that is about to run.

    `values` are its inputs in order (None for one that is left out), `originals` the arrays of those that are weights
    of the model, `run` runs a subgraph, `floats` is the dtype in which inputs of float32 come, `device` is where
    constants are made and `opset` the version of its domain.
    """

    def __init__(self, proto: NodeProto, values: Sequence[Value], originals: Sequence[np.ndarray | None], opset: int,
                 device: str | None, attributes: dict[str, AttributeProto],
                 run: Callable[[onnx.GraphProto, dict[str, Value]], list[Value]], floats: DType | None = None):
        self.proto, self.values, self.originals = proto, values, originals
        self.opset, self.device, self.run = opset, device, run
        self._attributes, self._floats = attributes, floats

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.proto.op_type

    @property
    def outputs(self) -> int:
        """The number of outputs that the node names, up to the last one in use."""
        names = list(self.proto.output)
        while names and not names[-1]:
            names.pop()
        return len(names)

    def wants(self, index: int) -> bool:
        """True where output `index` has a name."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python number, string, list, array or graph; `default` where it is not given."""
        proto = self._attributes.get(name)
        if proto is None:
            return default
        value = onnx.helper.get_attribute_value(proto)
        if proto.type == AttributeProto.TENSOR:
            return numpy_helper.to_array(value)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if proto.type == AttributeProto.STRINGS:
            return [v.decode("utf-8", "replace") for v in value]
        return list(value) if proto.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        value = self.attribute(name)
        if value is None:
            raise Invalid(f"attribute {name} is missing")
        return value

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """A string attribute that is one of `allowed`."""
        value = self.attribute(name, default)
        if value not in allowed:
            raise refuse(f"attribute {name} = {value!r}", ", ".join(allowed))
        return value

    def has(self, index: int) -> bool:
        """True where input `index` is given."""
        return index < len(self.values) and self.values[index] is not None

    def tensor(self, index: int, default: Any = _NONE) -> Any:
        """Input `index` as a Tensor, or `default` where it is left out."""
        if not self.has(index):
            if default is _NONE:
                raise Invalid(f"input {index} is missing")
            return default
        value = self.values[index]
        if isinstance(value, np.ndarray):
            value = from_array(value, self.device)
        if isinstance(value, Narrow):
            raise Unsupported(f"an input of type {name_of(value.element)} is not supported: cast it first")
        if not isinstance(value, Tensor):
            raise Invalid(f"input {index} is {type(value).__name__}, expected a tensor")
        return value if self._floats is None or value.dtype is not dtypes.float32 else value.cast(self._floats)

    def wide(self, index: int) -> Tensor | Narrow:
        """Input `index` as a Tensor, or as a Narrow where it has a type of few bits."""
        value = self.values[index] if self.has(index) else None
        if isinstance(value, np.ndarray):
            value = from_array(value, self.device)
        return value if isinstance(value, Narrow) else self.tensor(index)

    def tensors(self) -> list[Tensor]:
        """All inputs as Tensors."""
        return [self.tensor(i) for i in range(len(self.values))]

    def known(self, index: int, default: Any = None) -> Any:
        """The numbers of input `index` as an array: those that are known, else those that are computed now."""
        if not self.has(index):
            return default
        value, original = self.values[index], self.originals[index]
        if isinstance(value, np.ndarray):
            return value
        return original if original is not None else to_array(value)

    def scalar(self, index: int, default: Any = None) -> Any:
        """The one number of input `index`."""
        array = self.known(index)
        if array is None:
            return default
        if array.size != 1:
            raise Invalid(f"input {index} has {array.size} numbers, expected one")
        return array.reshape(()).item()

    def ints(self, index: int, name: str, default: Any = None) -> list[int] | Any:
        """The integers of input `index`, or of the attribute `name` of older opsets."""
        if self.has(index):
            return [v if isinstance(v, Expr) else int(v) for v in self.known(index).reshape(-1).tolist()]
        value = self.attribute(name, default)
        return [value] if isinstance(value, int) else value

    def cast(self, value: Tensor | Narrow, element: int) -> Tensor | Narrow:
        """`value` in a type that an attribute names."""
        return cast(value, element)

    def constant(self, array: Any, like: Tensor | None = None) -> Tensor:
        """A Tensor of known numbers, of the dtype of `like`."""
        result: Any = from_array(np.asarray(array), self.device)
        return result if like is None else result.cast(like.dtype)

    def dtype(self, element: int) -> Any:
        """The dtype that an attribute names."""
        if element not in DTYPES:
            raise refuse(f"type {name_of(element)}", "numbers and booleans")
        return DTYPES[element]


Operator = Callable[..., Any]
"""A function of a Node that gives an output, or a list of them."""
