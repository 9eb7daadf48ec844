"""Goes through the nodes of an ONNX graph, in order, and calls the table's functions."""
from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto
from onnx.reference import ReferenceEvaluator

from minigrad import Tensor
from minigrad.dtype import DType
from minigrad.errors import MinigradError
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid, Unsupported
from minigrad.onnx.symbolic import on_sizes
from minigrad.onnx.table import OPERATORS
from minigrad.onnx.values import Value, from_array

FEW = 4096
"""Nodes over so few known numbers are computed at once, by the reference of the onnx package: shapes, mostly."""
NEVER_KNOWN = {"If", "Loop", "Scan", "SequenceMap", "RandomNormal", "RandomUniform", "RandomNormalLike", "Dropout",
               "RandomUniformLike", "Bernoulli", "Multinomial", "Constant", "Identity", "Shape", "Size",
               "SequenceConstruct", "SplitToSequence", "Optional", "OptionalHasElement", "OptionalGetElement"}
GROWING = {"ConstantOfShape", "Expand", "Tile", "Range", "Pad", "OneHot", "Resize", "Upsample", "EyeLike", "HannWindow",
           "HammingWindow", "BlackmanWindow", "CenterCropPad", "MelWeightMatrix", "DFT", "STFT", "ReverseSequence"}
"""Operators that may give many numbers of few: where those that they read are large, their sizes are checked before
anything is computed."""
LARGEST = 1 << 36
"""The bytes of one value at most."""
MOST_NODES = 100_000
DEEPEST = 100


class Runner:
    """Runs graphs of a model. They share its opsets per domain, functions, the device, the arrays of its weights."""

    def __init__(self, opsets: Mapping[str, int], functions: Mapping[tuple[str, str], FunctionProto],
                 device: str | None, originals: Mapping[str, np.ndarray], floats: DType | None = None):
        self.opsets, self.functions = dict(opsets), dict(functions)
        self.device, self.originals = device, originals
        self.depth, self.count, self.floats = 0, 0, floats

    def graph(self, graph: GraphProto, values: dict[str, Value]) -> list[Value]:
        """The outputs of a graph over `values`: its inputs, and all that it sees around it. Adds what it computes."""
        for initializer in graph.initializer:
            values.setdefault(initializer.name, onnx.numpy_helper.to_array(initializer))
        self.nodes(graph.node, values, {})
        return [_found(values, o.name, f"output of graph {graph.name!r}") for o in graph.output]

    def nodes(self, nodes: Any, values: dict[str, Value], outer: dict[str, AttributeProto]) -> None:
        """Runs nodes; attributes that refer to those of a function come from `outer`."""
        self.count = self.count + 1 if self.depth else 0
        if self.depth >= DEEPEST:
            raise Unsupported(f"graphs and functions within each other more than {DEEPEST} deep are not supported")
        self.depth += 1
        try:
            for node in nodes:
                self._node(node, values, outer)
        finally:
            self.depth -= 1

    def _node(self, proto: NodeProto, values: dict[str, Value], outer: dict[str, AttributeProto]) -> None:
        self.count += 1
        if self.count > MOST_NODES:
            raise Unsupported(f"[onnx] a call that goes through nodes more than {MOST_NODES} times, in loops and "
                              "functions too, is not supported")
        where = f"node {proto.name!r} ({proto.op_type})" if proto.name else f"a node of {proto.op_type}"
        inputs = [_found(values, name, where) if name else None for name in proto.input]
        attributes = {}
        for a in proto.attribute:
            given = outer.get(a.ref_attr_name) if a.ref_attr_name else a
            if given is not None:
                attributes[a.name] = given
        try:
            results = self._results(proto, inputs, attributes, values)
        except MinigradError as error:
            if str(error).startswith("[onnx]"):
                raise  # from a graph or function within
            kind = type(error) if isinstance(error, Unsupported) else Invalid
            raise kind(f"[onnx] {where}: {error}") from error
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
            raise Invalid(f"[onnx] {where}: {' '.join(str(error).split()) or type(error).__name__}") from error
        for name, value in zip(proto.output, results, strict=False):
            if name:
                _check_size(value, where)
                values[name] = value

    def _results(self, proto: NodeProto, inputs: list[Value], attributes: dict[str, AttributeProto],
                 values: dict[str, Value]) -> list[Value]:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = self.opsets.get(domain, self.opsets.get("", 1))
        function = self.functions.get((domain, proto.op_type))
        operator = OPERATORS.get(domain, {}).get(proto.op_type)
        if function is None and operator is None:
            function = _body(proto.op_type, domain, opset)
        if function is not None:
            return self._call(function, inputs, attributes)
        if operator is None:
            raise Unsupported(f"operator {proto.op_type} of {domain or 'ai.onnx'} {opset} is not supported")
        if _known(proto, inputs):
            return _computed(proto, inputs, attributes, opset)
        originals = [self.originals.get(name) for name in proto.input]

        def run(graph: GraphProto, fed: dict[str, Value]) -> list[Value]:
            return self.graph(graph, {**values, **fed})
        node = Node(proto, inputs, originals, opset, self.device, attributes, run, self.floats)
        sized = on_sizes(node)
        return as_list(operator, node) if sized is None else list(sized)

    def has(self, domain: str, op: str) -> bool:
        """True for an operator that the table, the model or the standard defines."""
        opset = self.opsets.get(domain, self.opsets.get("", 1))
        return (domain, op) in self.functions or op in OPERATORS.get(domain, {}) or _body(op, domain, opset) is not None

    def _call(self, function: FunctionProto, inputs: list[Value],
              attributes: dict[str, AttributeProto]) -> list[Value]:
        """Runs a function's body."""
        fed = dict(zip(function.input, [*inputs, *[None] * len(function.input)], strict=False))
        given = {a.name: a for a in function.attribute_proto} | attributes
        before = self.opsets
        self.opsets = before | {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
        try:
            self.nodes(function.node, fed, given)
        finally:
            self.opsets = before
        return [fed.get(name) for name in function.output]


def as_list(operator: Operator, node: Node) -> list[Value]:
    """The outputs of an operator. A list that is one value (a sequence) comes in a tuple."""
    result = operator(node)
    if isinstance(result, tuple):
        return list(result)
    return result if isinstance(result, list) else [result]


def _found(values: Mapping[str, Value], name: str, where: str) -> Value:
    try:
        return values[name]
    except KeyError:
        raise Invalid(f"[onnx] {where} reads {name!r}, which nothing before it gives") from None


def _body(op: str, domain: str, opset: int) -> FunctionProto | None:
    """The function by which the standard defines an operator, if there is one that depends on no types."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if not schema.has_function:
        return None
    body = FunctionProto()
    body.CopyFrom(schema.function_body)
    body.attribute_proto.extend(a.default_value for a in schema.attributes.values() if a.default_value.name)
    return body


def _check_size(value: Value, where: str) -> None:
    if isinstance(value, Tensor) and value.shape:
        count = prod(size if isinstance(size, int) else 1 for size in value.shape)
        if count * value.dtype.bits > 8 * LARGEST:
            raise Unsupported(f"[onnx] {where}: a value of shape {list(value.shape)} is not supported; {LARGEST} bytes "
                              "at most are")


def _grows(inputs: list[Value]) -> bool:
    """True where the product of all that an operator reads is large, if these are sizes."""
    least = 1.0
    for value in inputs:
        if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
            least *= float(np.prod(np.maximum(np.abs(value.astype(np.float64)), 1))) * max(value.size, 1)
    return not least < 1 << 24


def _known(proto: NodeProto, inputs: list[Value]) -> bool:
    if proto.op_type in GROWING and _grows(inputs):
        return False
    return proto.op_type not in NEVER_KNOWN and bool(inputs) and all(
        v is None or (isinstance(v, np.ndarray) and v.size <= FEW and v.dtype.kind in "biuf") for v in inputs)


def _computed(proto: NodeProto, inputs: list[Any], attributes: dict[str, AttributeProto], opset: int) -> list[Value]:
    alone = NodeProto()
    alone.CopyFrom(proto)
    del alone.attribute[:]
    for name, attribute in attributes.items():
        copied = alone.attribute.add()
        copied.CopyFrom(attribute)
        copied.name = name
    feeds = {name: value for name, value in zip(proto.input, inputs, strict=True) if name}
    graph = onnx.helper.make_graph([alone], "known", [onnx.ValueInfoProto(name=name) for name in feeds],
                                   [onnx.ValueInfoProto(name=name) for name in proto.output if name])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(proto.domain, opset)])
    found = iter(ReferenceEvaluator(model).run(None, feeds))
    return [np.asarray(next(found)) if name else None for name in proto.output]


def tensors(value: Value, device: str | None) -> Value:
    """A value with Tensors in place of arrays of numbers."""
    if isinstance(value, list):
        return [tensors(v, device) for v in value]
    return from_array(value, device) if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS" else value
