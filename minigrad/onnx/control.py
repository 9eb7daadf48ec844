"""Branches, loops, sequences and optional values."""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid
from minigrad.onnx.values import Value, from_array


def branch(n: Node) -> Any:
    """The outputs of one of two graphs."""
    return tuple(n.run(n.required("then_branch" if n.scalar(0) else "else_branch"), {}))


def loop(n: Node) -> Any:
    """The carried values after the last step, and those of all steps. Runs the body as often as it is to run."""
    body = n.required("body")
    most, go = n.scalar(0), n.scalar(1, True)
    names = [v.name for v in body.input]
    carried, rows, step = list(n.values[2:]), [], 0
    while go and (most is None or step < most):
        fed: dict[str, Value] = dict(zip(names, [np.array(step, np.int64), np.array(True), *carried], strict=True))
        results = n.run(body, fed)
        go = _truth(results[0])
        carried, step = results[1:1 + len(carried)], step + 1
        rows.append(results[1 + len(carried):])
    scans = len(body.output) - 1 - len(carried)
    stacked = [_stack(n, [row[i] for row in rows], body.output[1 + len(carried) + i]) for i in range(scans)]
    return (*carried, *stacked)


def _truth(value: Any) -> bool:
    return bool(value.item())


def _stack(n: Node, values: list[Any], described: Any, axis: int = 0) -> Any:
    """The values of all steps along a new axis; of no steps an empty Tensor."""
    if not values:
        tensor = described.type.tensor_type
        sizes = [d.dim_value for d in tensor.shape.dim]
        return Tensor.zeros(0, *sizes, dtype=n.dtype(tensor.elem_type), device=n.device)
    tensors: list[Any] = [from_array(v, n.device) if isinstance(v, np.ndarray) else v for v in values]
    return tensors[0].stack(*tensors[1:], dim=axis)


def scan(n: Node) -> Any:
    """The body over the slices of some inputs, with states that go from step to step."""
    body, count = n.required("body"), n.required("num_scan_inputs")
    if n.opset < 9:
        return _batches(n, body, count)
    states, xs = list(n.values[:-count]), [n.tensor(len(n.values) - count + i) for i in range(count)]
    axes = n.attribute("scan_input_axes", [0] * count)
    return tuple(_scanned(n, body, states, xs, axes, n.attribute("scan_input_directions", [0] * count),
                          n.attribute("scan_output_axes"), n.attribute("scan_output_directions")))


def _batches(n: Node, body: Any, count: int) -> Any:
    """The first form of Scan, in which all inputs have a batch axis."""
    given = n.values[1:]
    states, xs = given[:-count], [n.tensor(len(n.values) - count + i) for i in range(count)]
    results = []
    for b in range(xs[0].shape[0]):
        one = [n.tensor(1 + i)[b] for i in range(len(states))]
        results.append(_scanned(n, body, one, [x[b] for x in xs], [0] * count,
                                n.attribute("directions", [0] * count), None, None))
    return tuple(column[0].stack(*column[1:]) for column in zip(*results, strict=True))


def _scanned(n: Node, body: Any, states: list[Any], xs: list[Any], axes: list[int], directions: list[int],
             out_axes: list[int] | None, out_directions: list[int] | None) -> list[Any]:
    xs = [x.flip(a) if d else x for x, a, d in zip(xs, axes, directions, strict=True)]
    names, rows = [v.name for v in body.input], []
    for step in range(xs[0].shape[axes[0]]):
        slices = [x.select(a, step) for x, a in zip(xs, axes, strict=True)]
        results = n.run(body, dict(zip(names, [*states, *slices], strict=True)))
        rows.append(results[len(states):])
        states = results[:len(states)]
    outputs = body.output[len(states):]
    stacked = [_stack(n, [row[i] for row in rows], v, out_axes[i] if out_axes else 0) for i, v in enumerate(outputs)]
    flips = out_directions or [0] * len(stacked)
    return [*states, *[s.flip(out_axes[i] if out_axes else 0) if flips[i] else s for i, s in enumerate(stacked)]]


def sequence(n: Node, index: int = 0) -> list[Any]:
    """Input `index`, which is a sequence."""
    value = n.values[index]
    if not isinstance(value, list):
        raise Invalid(f"input {index} is {type(value).__name__}, expected a sequence")
    return value


def insert(n: Node) -> Any:
    """A sequence with one more value at a place."""
    values = list(sequence(n))
    place = int(n.scalar(2, len(values)))
    values.insert(place if place >= 0 else place + len(values), n.values[1])
    return (values,)


def erase(n: Node) -> Any:
    """A sequence without one value."""
    values = list(sequence(n))
    del values[int(n.scalar(1, -1))]
    return (values,)


def split_to_sequence(n: Node) -> Any:
    """A sequence of the parts of an axis."""
    x, axis, sizes = n.tensor(0), n.attribute("axis", 0), n.known(1)
    size = x.shape[axis]
    if sizes is None:
        parts = [x.narrow(axis, i, 1) for i in range(size)]
        return ([p if n.attribute("keepdims", 1) else p.squeeze(axis) for p in parts],)
    if sizes.ndim == 0:
        each = int(sizes)
        lengths = [min(each, size - start) for start in range(0, size, each)]
    else:
        lengths = [int(s) for s in sizes]
    starts = np.cumsum([0, *lengths])
    return ([x.narrow(axis, int(s), length) for s, length in zip(starts, lengths, strict=False)],)


def concat_from_sequence(n: Node) -> Any:
    """The values of a sequence after one another, or along a new axis."""
    values: list[Any] = [from_array(v, n.device) if isinstance(v, np.ndarray) else v for v in sequence(n)]
    join = Tensor.stack if n.attribute("new_axis", 0) else Tensor.cat
    return join(values[0], *values[1:], dim=n.required("axis"))


def sequence_map(n: Node) -> Any:
    """The body over the values of sequences."""
    body = n.required("body")
    names, rows = [v.name for v in body.input], []
    for i in range(len(sequence(n))):
        rows.append(n.run(body, dict(zip(names, [v[i] if isinstance(v, list) else v for v in n.values], strict=True))))
    return tuple(list(column) for column in zip(*rows, strict=True))


def optional_element(n: Node) -> Any:
    """The value of an optional one."""
    if n.values[0] is None:
        raise Invalid("the optional input has no value")
    return (n.values[0],)


TABLE: dict[str, Operator] = {
    "If": branch, "Loop": loop, "Scan": scan,
    "SequenceEmpty": lambda n: ([],), "SequenceConstruct": lambda n: (list(n.values),),
    "SequenceAt": lambda n: (sequence(n)[int(n.scalar(1))],), "SequenceInsert": insert, "SequenceErase": erase,
    "SequenceLength": lambda n: np.array(len(sequence(n)), np.int64), "SplitToSequence": split_to_sequence,
    "ConcatFromSequence": concat_from_sequence, "SequenceMap": sequence_map,
    "Optional": lambda n: (n.values[0] if n.values else None,), "OptionalGetElement": optional_element,
    "OptionalHasElement": lambda n: np.array(bool(n.values) and n.values[0] is not None),
}
