"""`Writer`: an ONNX graph that grows node by node, with the types that onnxruntime computes in.

Half types go along its edges as float32, rounded to the half type after each operation; integers that are neither int32
nor int64 go as int64, wrapped to their width. Inputs and outputs of the graph have the types that they are told.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from minigrad.dtype import DType, bool_, float32, float64, int32, int64, uint64
from minigrad.expr import Index
from minigrad.expr.core import Atom, Expr, FloorDiv, Max, Min, Mod, Opaque, Var
from minigrad.expr.text import to_text
from minigrad.onnx.refusal import Unsupported, refuse
from minigrad.onnx.values import ELEMENTS
from minigrad.ops.node import Node
from minigrad.ops.op import Op, Shape

Rule = Callable[["Writer", Node], str]
"""Adds the nodes of an operation, and gives the name of its result."""


def carrier(dtype: DType) -> DType:
    """The type in which values of `dtype` go along the edges."""
    if dtype.is_float:
        return float64 if dtype is float64 else float32
    return dtype if dtype in (bool_, int32, int64) else int64


def wide_array(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements of `dtype` as they go along the edges; those of bfloat16 come as float32."""
    return array.view(np.int64) if dtype is uint64 else array.astype(carrier(dtype).np)


class Writer:
    """Nodes, initializers and names. `values` has the name of each Node's value, `dims` those of symbolic dims."""

    def __init__(self, rules: dict[Op, Rule]):
        self.rules = rules
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.values: dict[Node, str] = {}
        self.dims: dict[str, str] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._indices: dict[Index, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, node: Node) -> str:
        """The name of the value of a Node, whose inputs are there already."""
        if node not in self.values:
            rule = self.rules.get(node.op)
            if rule is None:
                names = sorted({op.name for op in self.rules})
                raise refuse(f"[onnx] writing {node}: operation {node.op.name}", ", ".join(names))
            self.values[node] = rule(self, node)
        return self.values[node]

    def of(self, node: Node, k: int = 0) -> str:
        """The name of the value of input k."""
        return self.values[node.inputs[k]]

    # Nodes

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The result of a new node."""
        return self.op_into(self.fresh(kind.lower()), kind, *inputs, **attributes)

    def op_into(self, name: str, kind: str, *inputs: str, **attributes: Any) -> str:
        """`name`, for the result of a new node."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        self._counts[stem] = self._counts.get(stem, -1) + 1
        return f"/{stem}.{self._counts[stem]}"

    def cast(self, x: str, to: DType) -> str:
        """The elements in another type, as ONNX converts them."""
        return self.op("Cast", x, to=ELEMENTS[to])

    def narrowed(self, x: str, dtype: DType) -> str:
        """Rounds or wraps a result in the carrier of `dtype` to what that holds."""
        carried = carrier(dtype)
        return x if carried is dtype or dtype is uint64 else self.cast(self.cast(x, dtype), carried)

    # Constants

    def constant(self, array: Any, dtype: DType | np.dtype | type | None = None) -> str:
        """A constant, once for equal ones."""
        of = dtype.np if isinstance(dtype, DType) else dtype
        array = np.asarray(array, of)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.initializer(self.fresh("constant"), array)
        return self._constants[key]

    def like(self, number: float, dtype: DType) -> str:
        """A number in the carrier of a type."""
        return self.constant(number, carrier(dtype))

    def initializer(self, name: str, array: np.ndarray) -> str:
        """`name`, for an array that is stored."""
        self.initializers[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    # Sizes

    def sizes(self, shape: Iterable[Index]) -> str:
        """Integers over symbolic dims as int64 [n]."""
        sizes = list(shape)
        if all(isinstance(d, int) for d in sizes):
            return self.constant(sizes, np.int64)
        return self.op("Concat", *map(self.index, sizes), axis=0) if len(sizes) > 1 else self.index(sizes[0])

    def index(self, e: Index) -> str:
        """An integer over symbolic dims as int64 [1]."""
        if isinstance(e, int):
            return self.constant([e], np.int64)
        if e not in self._indices:
            self._indices[e] = self._index(e)
        return self._indices[e]

    def _index(self, e: Expr) -> str:
        if isinstance(e, Var):
            return self.dims[e.name]
        if isinstance(e, Opaque):
            return self.index(e.inner)
        if isinstance(e, Min | Max):
            return self.op("Min" if isinstance(e, Min) else "Max", self.index(e.a), self.index(e.b))
        if isinstance(e, FloorDiv | Mod):
            a, b = self.index(e.a), self.index(e.b)
            rest = self.op("Mod", a, b)
            return rest if isinstance(e, Mod) else self.op("Div", self.op("Sub", a, rest), b)
        if isinstance(e, Atom):
            raise Unsupported(f"[onnx] a size {e} is not supported; those of arguments and Variables are")
        terms = [self.index(e.const)] * (e.const != 0)
        for monomial, coefficient in e.terms:
            factors = [self.index(coefficient)] * (coefficient != 1) + [self.index(atom) for atom in monomial]
            terms.append(reduce(partial(self.op, "Mul"), factors))
        return reduce(partial(self.op, "Add"), terms)

    # Movement that many rules need

    def reshape(self, x: str, to: Shape) -> str:
        """The elements in another shape."""
        return self.op("Reshape", x, self.sizes(to), allowzero=int(0 in to))

    def transpose(self, x: str, order: Iterable[int]) -> str:
        """The axes in another order."""
        order = list(order)
        return x if order == sorted(order) else self.op("Transpose", x, perm=order)


def described(name: str, dtype: DType, shape: Shape) -> ValueInfoProto:
    """An input or output of the graph; symbolic sizes are named by their expressions."""
    sizes = [d if isinstance(d, int) else to_text(d) for d in shape]
    return helper.make_tensor_value_info(name, ELEMENTS[dtype], sizes)


def live(nodes: list[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes that some of these outputs need, in order."""
    wanted, found = set(outputs), list[NodeProto]()
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            found.append(node)
    return found[::-1]
