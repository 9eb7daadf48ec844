"""Finds whether minigrad runs a node: its operator is tried on lazy Tensors of the node's types and shapes."""
from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from minigrad import Tensor, random
from minigrad.errors import MinigradError
from minigrad.torch_compile.node import DEVICE, DTYPES
from minigrad.torch_compile.program import hint, value_of
from minigrad.torch_compile.table import name_of, operator_of


def refusal(node: fx.Node) -> str | None:
    """The reason for which torch has to run a node; None where minigrad does. Nothing is computed."""
    target = node.target
    if not isinstance(target, OpOverload):
        return None if _is_number(node.meta.get("val")) else "is no operator of ATen"
    if name_of(target) in ("sym_size.int", "sym_numel.default"):
        return None
    if operator_of(target) is None:
        return "is not in the table of operators"
    foreign = [t.dtype for i in [node, *node.all_input_nodes] for t in _tensors(i) if t.dtype not in DTYPES]
    if foreign:
        return f"minigrad has no {foreign[0]}"
    counter = random.counter()
    try:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda i: _stand_in(i.meta["val"]))
        return _difference(value_of(node, args, kwargs), node.meta["val"])
    except MinigradError as error:
        return str(error)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        random.rewind(counter)


def _tensors(node: fx.Node) -> list[Any]:
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _stand_in(value: Any) -> Any:
    """A lazy Tensor of the type and shape of a fake tensor, the hint of a size."""
    if isinstance(value, (list, tuple)):
        return [_stand_in(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (int, float)) else value.node.hint
    return Tensor.rand(*[hint(s) for s in value.shape], device=DEVICE).cast(DTYPES[value.dtype])


def _difference(found: Any, expected: Any) -> str | None:
    """A sentence on what is wrong with the results of an operator; None where their shapes are those that ATen says."""
    if isinstance(expected, (list, tuple)):
        reasons = [_difference(f, e) for f, e in zip(found, expected, strict=False)]
        return next((r for r in reasons if r is not None), None)
    if not isinstance(expected, torch.Tensor) or found is None:
        return None
    shape = tuple(hint(s) for s in expected.shape)
    return None if tuple(found.shape) == shape else f"expected a result of shape {list(shape)}, got {list(found.shape)}"
