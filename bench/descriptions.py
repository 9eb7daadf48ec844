"""Networks as data: a list of layers by name, which either framework builds. Layers that `nn` does not have are made
here: those that join two values, and those that return more than one."""
# mypy: disable-error-code="name-defined, misc"
from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from bench.frameworks import Program, normal, trained


class Layer(NamedTuple):
    """A layer of `nn` by its name with its arguments, or one of `_parts`; `inner` are the layers that it is around."""

    name: str
    args: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    inner: tuple[Layer, ...] = ()

    def __str__(self) -> str:
        words = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.options)]
        inside = f"[{', '.join(map(str, self.inner))}]" if self.inner else ""
        return f"{self.name}({', '.join(words)}){inside}"


def layer(name: str, *args: Any, **options: Any) -> Layer:
    return Layer(name, args, tuple(options.items()))


def around(name: str, *inner: Layer) -> Layer:
    return Layer(name, inner=inner)


class Network(NamedTuple):
    """`shape` is that of a batch: of words below `vocabulary`, or of normal numbers where that is 0. The loss is the
    cross entropy of [N, C, ...] against classes, or the mean square of the distance from a random target."""

    name: str
    shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    out_shape: tuple[int, ...]
    classes: bool
    vocabulary: int = 0
    optimizer: str = "SGD"

    def __str__(self) -> str:
        words = f" of {self.vocabulary} words" if self.vocabulary else ""
        return (f"{self.name}: {list(self.shape)}{words}, {', '.join(map(str, self.layers))}; "
                f"{'cross entropy' if self.classes else 'mean square'}, {self.optimizer}")

    def build(self, m: Any) -> Program:
        """The program that trains it, for one framework."""
        model = m.nn.Sequential(*(build_layer(m, part) for part in self.layers))
        optimizer = getattr(m.optim, self.optimizer)(model.parameters(), lr=1e-3)
        measure = m.F.cross_entropy if self.classes else m.F.mse_loss

        def loss(x: Any, y: Any) -> Any:
            return measure(model(x), y)

        return Program([model], trained(optimizer, loss), self._draw, loss)

    def _draw(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.integers(0, self.vocabulary, self.shape) if self.vocabulary else normal(rng, *self.shape)
        if not self.classes:
            return x, normal(rng, *self.out_shape)
        return x, rng.integers(0, self.out_shape[1], (self.out_shape[0], *self.out_shape[2:]))


def build_layer(m: Any, part: Layer) -> Any:
    """A Module of the framework `m`."""
    inner = [build_layer(m, p) for p in part.inner]
    made = getattr(m.nn, part.name, None) or getattr(_parts(m), part.name)
    return made(*part.args, *inner, **dict(part.options))


@cache
def _parts(m: Any) -> Any:
    class Around(m.nn.Module):
        def __init__(self, *inner: Any):
            super().__init__()
            self.inner = m.nn.Sequential(*inner)

    class Residual(Around):
        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    class Dense(Around):
        def forward(self, x: Any) -> Any:
            return m.cat([x, self.inner(x)], dim=1)

    class Gate(Around):
        def forward(self, x: Any) -> Any:
            return x * m.M.sigmoid(self.inner(x))

    class Outputs(Around):
        """Of a recurrent layer, without its state."""

        def forward(self, x: Any) -> Any:
            return self.inner[0](x)[0]

    class SelfAttention(m.nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.inner = m.nn.MultiheadAttention(width, heads, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.inner(x, x, x, need_weights=False)[0]

    class Transpose(m.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.transpose(1, 2)

    class Mean(m.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(1)

    class Most(m.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.amax(1)

    class Last(m.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, -1]

    class Parts:
        pass

    for made in (Residual, Dense, Gate, Outputs, SelfAttention, Transpose, Mean, Most, Last):
        setattr(Parts, made.__name__, made)
    return Parts
