"""Kinds of operations that join, move and reduce values."""
from __future__ import annotations

from typing import Any

from fuzz.layers import Drawn, Named, kind, of_images, options, spatial
from fuzz.network import Shape, Written


@kind(16)
class join:
    """A residual connection, a gate or a product with another value of its shape."""

    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape = d.shapes[x]
        same = d.others(x, lambda s: s == shape)
        if not same:
            return None
        return (d.pick(same), x), {"name": d.pick(("add",) * 5 + ("sub", "mul", "mul", "gate", "maximum"))}

    @staticmethod
    def write(w: Written, x: Named, y: Named, name: str) -> str:
        return {"add": f"{x[0]} + {y[0]}", "sub": f"{x[0]} - {y[0]}", "mul": f"{x[0]} * {y[0]}",
                "gate": f"{x[0]} * F.sigmoid({y[0]})", "maximum": f"maximum({x[0]}, {y[0]})"}[name]


@kind(5)
class concatenate:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape, dim = d.shapes[x], d.pick((1, 1, 1, -1))

        def without(s: Shape) -> Shape:
            return (*s[:1], *s[2:]) if dim == 1 else s[:-1]

        fit = d.others(x, lambda s: len(s) == len(shape) and without(s) == without(shape))
        if not fit:
            return None
        return (d.pick(fit), x), {"dim": dim}

    @staticmethod
    def write(w: Written, x: Named, y: Named, dim: int) -> str:
        return f"cat([{x[0]}, {y[0]}], {dim})"


@kind(1)
class scaled:
    """Channels times what is known of the whole image (squeeze and excitation)."""

    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        return ((x,), {"name": d.pick(("mean", "amax"))}) if spatial(d.shapes[x]) else None

    @staticmethod
    def write(w: Written, x: Named, name: str) -> str:
        axes = tuple(range(2, len(x[1])))
        return f"{x[0]} * F.sigmoid({x[0]}.{name}({axes}, keepdim=True))"


@kind(2)
class biased:
    """With a parameter of some axes, added or multiplied."""

    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        kept = tuple(d.chance(0.5) for _ in d.shapes[x])
        return (x,), {"kept": kept, "name": d.pick("+*")}

    @staticmethod
    def write(w: Written, x: Named, kept: tuple[bool, ...], name: str) -> str:
        shape = tuple(n if keep else 1 for n, keep in zip(x[1], kept, strict=False))
        return f"{x[0]} {name} {w.parameter(shape)}"


@kind(5)
class moved:
    """The same elements, or some of them, elsewhere."""

    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape = d.shapes[x]
        a, b = (int(n) for n in d.rng.integers(1, len(shape), 2))
        name = d.pick(("flip", "transpose", "roll", "stepped", "cut", "half", "repeated", "order", "tokens", "gather"))
        return (x,), {"name": name, "a": a, "b": b, "n": int(d.rng.integers(1, 4))}

    @staticmethod
    def write(w: Written, x: Named, name: str, a: int, b: int, n: int) -> str:
        v, shape = x
        at = ":, " * a
        if name == "tokens" and len(shape) in (4, 5):
            return f"{v}.flatten(2).transpose(1, 2)"
        if name == "order":
            return f"{v}.permute{(0, *range(2, len(shape)), 1)}" if len(shape) > 2 else f"{v}.flip(1)"
        if name == "gather":
            return f"{v}.index_select({a}, {w.positions((min(n * 5, 2 * shape[a]),), shape[a])})"
        return {"flip": f"{v}.flip({a})", "transpose": f"{v}.transpose({a}, {b})", "roll": f"{v}.roll({n}, {a})",
                "stepped": f"{v}[{at}::2]", "cut": f"{v}[{at}{n}:]", "half": f"{v}[{at}:{max(shape[a] // 2, 1)}]",
                "repeated": f"{v}.repeat_interleave({n + 1}, {a})"}.get(name, f"{v}.transpose({a}, {b})")


@kind(2.5)
class pad:
    @staticmethod
    @of_images
    def draw(d: Any, x: int, n: int) -> Drawn:
        mode = d.pick(("constant", "constant", "reflect", "replicate", "circular"))
        pads = tuple(int(p) for p in d.rng.integers(0, 4, 2 * n))
        if d.chance(0.4):
            pads = (int(d.rng.integers(1, 4)),) * 2 * n
        return (x,), {"pads": pads, "mode": mode, "value": d.pick((0, 0, 1)) if mode == "constant" else 0}

    @staticmethod
    def write(w: Written, x: Named, pads: Shape, mode: str, value: float) -> str:
        return f"F.pad({x[0]}, {pads}" + options(mode=(mode, "constant"), value=(value, 0)) + ")"


@kind(2)
class reduced:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        axes = tuple(a for a in range(len(d.shapes[x])) if d.chance(0.4))
        if not axes:
            return None
        return (x,), {"name": d.pick(("mean", "mean", "sum", "amax", "var", "logsumexp")), "axes": axes,
                      "keep": d.chance(0.5)}

    @staticmethod
    def write(w: Written, x: Named, name: str, axes: Shape, keep: bool) -> str:
        return f"{x[0]}.{name}({axes}" + options(keepdim=(keep, False)) + ")"


@kind(0.7)
class running:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        return (x,), {"dim": int(d.rng.integers(1, len(d.shapes[x])))}

    @staticmethod
    def write(w: Written, x: Named, dim: int) -> str:
        return f"{x[0]}.cumsum({dim})"


@kind(1.5)
class product:
    """Of a value with itself or another one, over the last axes."""

    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape = d.shapes[x]
        if len(shape) < 3 or shape[-2] > 128:
            return None
        others = d.others(x, lambda s: len(s) == len(shape) and s[:-2] == shape[:-2] and s[-1] == shape[-1] and
                          s[-2] <= 128)
        return (x, d.pick(others) if others and d.chance(0.5) else x), {}

    @staticmethod
    def write(w: Written, x: Named, y: Named) -> str:
        return f"{x[0]} @ {y[0]}.transpose(-2, -1) * {round(x[1][-1] ** -0.5, 4)}"


@kind(0.7)
class selected:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        same = d.others(x, lambda s: s == d.shapes[x])
        return ((x, d.pick(same)), {}) if same else None

    @staticmethod
    def write(w: Written, x: Named, y: Named) -> str:
        return f"where({x[0]} > 0, {x[0]}, {y[0]} * 0.5)"
