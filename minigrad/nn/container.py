"""Layers that arrange others or only change shapes: Sequential, ModuleList, ModuleDict, Flatten, Unflatten, Identity.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.nn.module import Layer
from minigrad.nn.parts import Parts
from minigrad.nn.text import folded, structure, text_of_part
from minigrad.tensor import Tensor

Step = Callable[[Any], Any]


class Sequential(Layer):
    """Layers called one after another, each with what the one before gives.

    Made of layers, or of one dictionary of named ones. A layer is anything that can be called with one argument,
    `Tensor.relu` too. They are attributes "0", "1", ... (or their names), so that state names are PyTorch's:
    `0.weight`. It starts in training, as a Module of one's own does. Raises DTypeError for what cannot be called.
    """

    training = True

    def __init__(self, *layers: Step | Mapping[str, Step]):
        given = layers[0] if len(layers) == 1 and isinstance(layers[0], Mapping) else dict(enumerate(layers))
        for name, layer in given.items():
            self._add(str(name), layer)

    def _add(self, name: str, layer: Any) -> None:
        if not callable(layer):
            raise DTypeError(f"[Sequential] expected layers that can be called, got {type(layer).__name__} as {name}")
        if hasattr(self, name):
            raise DTypeError(f"[Sequential] expected a name of its own for each layer, got {name!r}")
        setattr(self, name, layer)

    def append(self, layer: Step) -> Sequential:
        """Adds a layer at the end, named by its place."""
        self._add(str(len(self)), layer)
        return self

    def forward(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[Step]:
        return iter([part for name, part in vars(self).items() if name != "training" and name[0] != "_"])

    def __getitem__(self, index: int | slice) -> Any:
        """One layer, or some as a Sequential of their own."""
        layers = list(self)[index]
        return Sequential(*layers) if isinstance(layers, list) else layers


class ModuleList(Parts, list):
    """A list of layers, which state names by their places: `blocks.0.weight`. So does any list; this one is called as
    PyTorch's is. It cannot be called itself: a model says in which order its layers are."""

    def __init__(self, modules: Iterable[Any] = ()):
        super().__init__(_listed("ModuleList", modules))

    def append(self, module: Any) -> ModuleList:  # type: ignore[override]
        """Adds a layer at the end, and gives this list."""
        super().append(module)
        return self

    def extend(self, modules: Iterable[Any]) -> ModuleList:  # type: ignore[override]
        """Adds layers at the end, and gives this list."""
        super().extend(_listed("ModuleList.extend", modules))
        return self

    def __getitem__(self, index: Any) -> Any:
        """One layer, or some as a ModuleList of their own."""
        found = super().__getitem__(index)
        return ModuleList(found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return structure(type(self).__name__, "", folded(self))


class ModuleDict(Parts, dict):
    """Layers by name, which are parts of the names in their state: `heads.mask.weight`. So does any dictionary; this
    one is called as PyTorch's is."""

    def __init__(self, modules: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()):
        super().__init__(modules)
        wrong = [name for name in self if not isinstance(name, str) or "." in name or not name]
        if wrong:
            raise DTypeError(f"[ModuleDict] expected names without a dot, got {wrong[0]!r}")

    def __getattr__(self, name: str) -> Any:
        """The layer of that name: `model.transformer.wte`."""
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} has no layer or attribute {name!r}")

    def __repr__(self) -> str:
        return structure(type(self).__name__, "", [(name, text_of_part(part)) for name, part in self.items()])


def _listed(name: str, modules: Any) -> list[Any]:
    if isinstance(modules, (str, Tensor)) or not isinstance(modules, Iterable):
        raise DTypeError(f"[{name}] expected layers in a list, got {type(modules).__name__}")
    return list(modules)


class Flatten(Layer):
    """Axes start_dim..end_dim as one; the first axis, that of the batch, stays by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Flatten", x).flatten(self.start_dim, self.end_dim)


class Unflatten(Layer):
    """One axis as several, of which one may be -1."""

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]):
        if not isinstance(unflattened_size, (tuple, list)):
            raise ShapeError(f"[Unflatten] expected sizes of the new axes, got {unflattened_size!r}")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        return as_tensor("Unflatten", x).unflatten(self.dim, self.unflattened_size)


class Identity(Layer):
    """Gives back its input. Takes and ignores the arguments of the layer that it stands for."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x
