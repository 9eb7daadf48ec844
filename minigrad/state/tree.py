"""Models as dictionaries: the Tensors inside an object by name, and loading them back.

A model is any object: its attributes, lists, tuples and dictionaries are followed, and a Tensor's name is the path to
it, as in PyTorch: `layers.0.weight`.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from minigrad.errors import DTypeError, FormatError, MinigradError, ShapeError, quantity
from minigrad.state.fields import one_line
from minigrad.state.gguf import GGUFTensor
from minigrad.tensor import Tensor


def children_of(obj: Any) -> list[tuple[str, Any]]:
    """The named parts of a container or object, in order; none for a leaf, a class or a function. An object's attribute
    `_transient` names attributes of it that are no parts."""
    if isinstance(obj, Mapping):
        return [(str(key), value) for key, value in obj.items()]
    if isinstance(obj, list | tuple):
        return [(str(index), value) for index, value in enumerate(obj)]
    if isinstance(obj, type | FunctionType | ModuleType):
        return []
    attributes = getattr(obj, "__dict__", {})
    hidden = attributes.get("_transient", ())
    return [(name, value) for name, value in attributes.items() if name not in hidden]


def get_state_dict(obj: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every Tensor inside `obj` by its path, in the order of definition; a Tensor reached twice is listed twice. Raises
    MinigradError for a layer that has none yet (`nn.LazyLinear`)."""
    found: dict[str, Tensor] = {}
    pending: list[tuple[str, Any, frozenset[int]]] = [(prefix.rstrip("."), obj, frozenset())]
    while pending:
        path, value, above = pending.pop()
        if isinstance(value, Tensor):
            found[path] = value
        elif (why := getattr(type(value), "without_state", None)) is not None:
            raise MinigradError(f"[state] expected Tensors at {path!r}, but {why.__get__(value)}")
        elif id(value) not in above:  # an object that holds one it is part of
            inner = above | {id(value)}
            parts = [(f"{path}.{name}" if path else name, part, inner) for name, part in children_of(value)]
            pending.extend(reversed(parts))
    return found


def get_parameters(obj: Any) -> list[Tensor]:
    """Every Tensor inside `obj` once, running statistics included; optimizers tell them apart by `requires_grad`."""
    return list({id(tensor): tensor for tensor in get_state_dict(obj).values()}.values())


def load_state_dict(model: Any, state: Mapping[str, Tensor | GGUFTensor | np.ndarray], strict: bool = True,
                    verbose: bool = False) -> None:
    """Gives the Tensors of `model` the values in `state`, in the types and on the devices they have in the model.

    The model's Tensors take over the new values' storage: nothing is held twice, and tensors of a memory-mapped file
    stay there until they are used. Raises FormatError for a tensor of the model that `state` lacks, or, with `strict`,
    for one in `state` that the model lacks (without `strict` both are left alone), and ShapeError where shapes differ.
    Arrays are taken too. `verbose` shows a progress bar.
    """
    if not isinstance(state, Mapping):
        raise FormatError(f"[load_state_dict] expected a dictionary of tensors by name, got {type(state).__name__}")
    targets = get_state_dict(model)
    if strict:
        _check_names(targets, state)
    shared = [name for name in targets if name in state]
    for name in shared:
        if not isinstance(state[name], Tensor | GGUFTensor | np.ndarray):
            raise DTypeError(f"[load_state_dict] {name}: expected a Tensor or an array, got a "
                             f"{type(state[name]).__module__}.{type(state[name]).__name__}")
        if tuple(targets[name].shape) != tuple(state[name].shape):
            raise ShapeError(f"[load_state_dict] {name}: expected shape {list(targets[name].shape)}, "
                             f"got {list(state[name].shape)}")
    for name in _progress(shared, verbose):
        value, target = state[name], targets[name]
        tensor = value.to_tensor() if isinstance(value, GGUFTensor) else Tensor(value) if isinstance(
            value, np.ndarray) else value
        target.replace(tensor.to(target.device).cast(target.dtype))


def _check_names(targets: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    for kind, names in (("lacks", [name for name in targets if name not in state]),
                        ("has unknown", [name for name in state if name not in targets])):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            listed = ", ".join([one_line(str(name)) for name in names[:5]])  # a file's keys need not be strings
            raise FormatError(f"[load_state_dict] the state {kind} {listed}{more}; expected the "
                              f"{quantity(len(targets), 'tensor')} of the model; load the matching file or pass "
                              "strict=False")


def _progress(names: list[str], verbose: bool) -> Iterable[str]:
    if not verbose:
        return names
    from tqdm.auto import tqdm
    return tqdm(names, desc="loading", unit="tensor", leave=False)
