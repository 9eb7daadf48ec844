"""Random networks: `draw(seed)` is always the same one."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from fuzz import layers, moves  # noqa: F401  (they fill KINDS)
from fuzz.network import KINDS, SOURCES, Network, Op, Shape, Written, add, pruned

MOST = 1 << 17
"""Elements of one value."""

MOST_WORK = 3e7
"""Multiplications of one operation."""

CHANNELS = (1, 2, 3, 3, 4, 5, 7, 8, 8, 8, 12, 16, 16, 16, 16, 16, 17, 24, 31, 32, 32, 32, 48, 64)
PLANES = (7, 8, 14, 16, 16, 16, 16, 24, 28, 32, 32, 32, 33, 48, 64)
"""What networks have most, powers of two above all, and some others."""

USUAL = ("conv", "conv_transpose", "pool", "interpolate", "shuffle", "join", "concatenate", "norm", "activation")
"""Kinds that networks of images are made of: most have no other."""

DTYPES = ("float32",) * 7 + ("bfloat16", "float16")


@dataclass
class Drawing:
    """What draws the parts of one network."""

    rng: np.random.Generator
    shapes: list[Shape] = field(default_factory=list)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options, with equal chances."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return bool(self.rng.random() < p)

    def channels(self, like: int = 0) -> int:
        """A number of channels; as often as not `like`, if that is given."""
        return like if like and self.chance(0.5) else int(self.pick(CHANNELS))

    def spatial(self, d: int) -> Shape:
        """The sizes of an image of d axes."""
        if d == 1:
            length = 2 ** self.rng.uniform(2.8, 13)
            return (int(self.pick((length, length // 100 * 100 or 50, 1000 * self.rng.integers(1, 9),
                                   2 ** self.rng.integers(4, 13)))),)
        if d == 3:
            return tuple(int(n) for n in self.rng.integers(4, 14, 3))
        one = int(self.pick(PLANES)) if self.chance(0.7) else int(self.rng.integers(7, 65))
        return (one, one) if self.chance(0.6) else (one, int(self.pick(PLANES)))

    def batch(self) -> int:
        """A number of examples, one as often as not."""
        return int(self.pick((1, 1, 1, 2, 2, 3, 4)))

    def others(self, x: int, fit: Any) -> list[int]:
        """Values but x whose shape fits."""
        return [k for k, shape in enumerate(self.shapes) if k != x and fit(shape)]


def draw(seed: int, devices: Sequence[str] = ("CPU",)) -> Network:
    """The network of a seed. The first device is the usual one."""
    d = Drawing(np.random.default_rng(seed & (1 << 63) - 1))
    w, ops = Written(), list[Op]()
    values: dict[str, Any] = {}

    def append(op: Op) -> bool:
        kept = len(w.leaves), len(w.lines), len(w.computed), len(w.shapes)
        try:
            add(w, values, f"v{len(ops)}", op)
        except (RuntimeError, ValueError, IndexError, TypeError):  # PyTorch refuses it: drawn in vain
            small = False
        else:
            small = prod(w.shapes[-1]) <= MOST and all(prod(leaf.shape) <= MOST for leaf in w.leaves[kept[0]:])
            small = small and work(w, kept[0]) <= MOST_WORK
        if not small:
            del w.leaves[kept[0]:], w.lines[kept[1]:], w.computed[kept[2]:], w.shapes[kept[3]:]
            return False
        ops.append(op)
        d.shapes.append(w.shapes[-1])
        return True

    while not append(source(d)):
        pass
    names = [*USUAL] if d.chance(0.6) else list(KINDS)
    weights = np.array([float(KINDS[name].weight) for name in names])
    weights /= weights.sum()
    goal = int(min(2 + d.rng.geometric(0.25), 10))
    for _ in range(60):
        if len(ops) > goal:
            break
        x = len(ops) - 1 if d.chance(0.8) else int(d.rng.integers(len(ops)))
        name = names[int(d.rng.choice(len(names), p=weights))]
        found = KINDS[name].draw(d, x) if len(d.shapes[x]) > 1 else None
        if found is not None:
            append(Op(name, *found))
    outputs: tuple[int, ...] = (len(ops) - 1,)
    if len(ops) > 2 and d.chance(0.15):
        outputs += (int(d.rng.integers(1, len(ops) - 1)),)
    device = devices[0] if len(devices) == 1 or d.chance(0.85) else d.pick(devices[1:])
    wanted = d.pick(("values",) * 3 + ("gradients",) * 6 + ("all",) * 4 + ("parts",) * 5 + ("second",) * 2)
    plans = d.pick(("auto", "cpu", "gpu")) if device.startswith("CL") else "auto"
    return pruned(Network(
        tuple(ops), outputs, seed, d.pick(DTYPES), device, d.pick(("weighted",) * 4 + ("square",)), wanted,
        calls=3 if d.chance(0.2) else 0, poison=d.chance(0.5), threads=d.pick((1, 2, 2, 3)), opencl_plans=plans,
        winograd="always" if d.chance(0.3) else "auto"))


def work(w: Written, first: int) -> float:
    """About how many multiplications the last operation has: of each element with a column of its parameters."""
    weights = [leaf.shape for leaf in w.leaves[first:] if len(leaf.shape) > 1 and not leaf.below]
    size = max(prod(w.shapes[-1]), prod(w.shapes[-2]) if len(w.shapes) > 1 else 1)
    return size * max([prod(shape) / max(min(shape[0], shape[1]), 1) for shape in weights], default=1)


def source(d: Drawing) -> Op:
    """An input."""
    shape: Shape
    rank = d.pick((3,) * 5 + (4,) * 12 + (5,) * 2 + (2,) + (0,) * 3)
    if rank == 0:
        return Op("words", (), {"shape": (d.batch(), int(d.rng.integers(7, 65))), "table": int(d.rng.integers(5, 100)),
                                "width": d.channels()})
    shape = (d.batch(), d.channels(), *d.spatial(rank - 2)) if rank > 2 else (d.batch() * 8, d.channels() * 4)
    if d.chance(0.85):
        return Op("buffer", (), {"shape": shape})
    return Op(d.pick([name for name, kind in SOURCES.items() if kind.weight < 0]), (), {"shape": shape})
