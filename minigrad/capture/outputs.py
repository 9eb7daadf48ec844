"""The value that a captured function returns: taken apart once, put together at each replay with new Tensors in it."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from minigrad.capture.journal import with_dims
from minigrad.capture.recorder import Place
from minigrad.dtype import DType
from minigrad.engine.storage import buffer_node
from minigrad.errors import present
from minigrad.ops.node import Node
from minigrad.ops.op import Shape
from minigrad.tensor import Tensor


def returned_iterator(value: Any) -> Any:
    """A generator, a map or another iterator in a returned value, which would be used up by the first call; or None."""
    found: list[Any] = []
    transform(value, Iterator, found.append)
    return found[0] if found else None


@dataclass(eq=False, slots=True)
class Output:
    """A Tensor of a returned value: the place of one that was there before, or a register with the shape and type of a
    new one."""

    place: Place | None = None
    register: int = -1
    shape: Shape = ()
    dtype: DType | None = None
    device: str = ""

    def tensor(self, registers: list[Any], owners: Sequence[Tensor], dims: dict[str, int]) -> Tensor:
        """The Tensor of one replay. A register holds a buffer, or the Node of the only Tensor over it."""
        if self.place is not None:
            owner, grad = self.place
            found: Any = owners[owner].grad if grad else owners[owner]
            return found
        value = registers[self.register]
        if type(value) is Node:
            return Tensor.over(value)
        dtype = present(self.dtype, "[replay] expected a type of a result")
        shape = with_dims(self.shape, dims) if dims else self.shape
        return Tensor.over(buffer_node(value, shape, dtype, self.device))


@dataclass(slots=True)
class Parts:
    """A returned value without its Tensors: `structure` is the value with an Output in place of each Tensor."""

    structure: Any
    outputs: list[Output] = field(default_factory=list)

    def fresh(self) -> Iterator[Output]:
        return (o for o in self.outputs if o.place is None)

    def same(self) -> Iterator[Output]:
        return (o for o in self.outputs if o.place is not None)


def transform(value: Any, leaf: type, change: Callable[[Any], Any]) -> Any:
    """A copy of nested lists, tuples, dicts and dataclasses with `change` applied to every instance of `leaf`."""
    if isinstance(value, leaf):
        return change(value)
    kind = type(value)
    if kind is list:
        return [transform(v, leaf, change) for v in value]
    if isinstance(value, tuple):
        items = [transform(v, leaf, change) for v in value]
        return tuple(items) if kind is tuple else kind(*items)
    changed: Any
    if isinstance(value, dict):
        changed = copy.copy(value)
        for k, v in value.items():
            changed[k] = transform(v, leaf, change)
        return changed
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for f in fields(value):
            object.__setattr__(changed, f.name, transform(getattr(value, f.name), leaf, change))
        return changed
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The Tensors of a returned value, each once."""
    found: dict[int, Tensor] = {}
    transform(value, Tensor, lambda t: found.setdefault(id(t), t))
    return list(found.values())


def take_apart(value: Any, describe: Callable[[Tensor], Output]) -> Parts:
    """The structure of a returned value, with an Output for each of its Tensors (the same for the same one)."""
    known: dict[int, Output] = {}

    def change(t: Tensor) -> Output:
        if id(t) not in known:
            known[id(t)] = describe(t)
        return known[id(t)]

    structure = transform(value, Tensor, change)
    return Parts(structure, list(known.values()))


def rebuild(parts: Parts, registers: list[Any], owners: Sequence[Tensor], dims: dict[str, int]) -> Any:
    """The returned value again, with new Tensors over the buffers in `registers`."""
    if type(parts.structure) is Output:
        return parts.structure.tensor(registers, owners, dims)
    made = {id(o): o.tensor(registers, owners, dims) for o in parts.outputs}
    return transform(parts.structure, Output, lambda o: made[id(o)])
