"""Kinds of operations that are layers: convolutions, pools, norms, attention, activations."""
from __future__ import annotations

from math import prod
from typing import Any

from fuzz.network import KINDS, SOURCES, Args, Kind, Leaf, Shape, Written

Named = tuple[str, Shape]
Drawn = tuple[tuple[int, ...], Args] | None


def kind(weight: float) -> Any:
    """Enters a class with `draw(d, x)` and `write(w, x, ...)` under its name."""
    def enter(cls: Any) -> Any:
        KINDS[cls.__name__] = Kind(cls.draw, cls.write, weight)
        return cls

    return enter


def of_images(draw: Any) -> Any:
    """A function `draw(d, x, n)` for images of n spatial axes as `draw(d, x)`, which is None for other values."""
    def drawn(d: Any, x: int) -> Drawn:
        n = spatial(d.shapes[x])
        found: Drawn = draw(d, x, n) if n else None
        return found

    return drawn


def source(computed: bool) -> Any:
    """Enters a function that writes an input, from a buffer or computed from none."""
    def enter(write: Any) -> Any:
        SOURCES[write.__name__] = Kind(lambda: None, write, -1 if computed else 1)
        return write

    return enter


def spatial(shape: Shape) -> int:
    """The number of spatial axes of an image, 0 for what is none."""
    return len(shape) - 2 if 3 <= len(shape) <= 5 else 0


def options(**given: tuple[Any, Any]) -> str:
    """Keyword arguments as text, without those that are their default; a tuple of equal sizes is one size."""
    texts = []
    for name, (value, default) in given.items():
        if isinstance(value, tuple) and len(set(value)) == 1 and name not in ("size",):
            value = value[0]
        if value != default:
            texts.append(f", {name}={value!r}")
    return "".join(texts)


def bias_of(w: Written, out: int, bias: bool) -> str:
    """A further argument with a bias, if there is to be one."""
    return f", {w.parameter((out,))}" if bias else ""


# ---- inputs ----


@source(False)
def buffer(w: Written, shape: Shape) -> str:
    return w.leaf(Leaf(f"x{len(w.leaves)}", shape))


@source(False)
def words(w: Written, shape: Shape, table: int, width: int) -> str:
    return f"F.embedding({w.positions(shape, table)}, {w.parameter((table, width))})"


@source(True)
def rand(w: Written, shape: Shape) -> str:
    return f"Tensor.rand{shape}"


@source(True)
def randn(w: Written, shape: Shape) -> str:
    return f"Tensor.randn{shape}"


@source(True)
def arange(w: Written, shape: Shape) -> str:
    return f"((Tensor.arange({prod(shape)}) * 37 % 101).float() / 50 - 1).reshape{shape}"


@source(True)
def one_hot(w: Written, shape: Shape) -> str:
    n = shape[-1]
    return f"F.one_hot(Tensor.arange({prod(shape[:-1])}) * 7 % {n}, {n}).float().reshape{shape}"


@source(True)
def bernoulli(w: Written, shape: Shape) -> str:
    return f"Tensor.full({shape}, 0.5).bernoulli()"


# ---- convolutions ----


def kernels(d: Any, n: int) -> Shape:
    sizes = (1, 2, 3, 3, 3, 3, 4, 5, 7) if n < 3 else (1, 2, 3, 3)
    one = int(d.pick(sizes))
    return (one,) * n if d.chance(0.85) else tuple(int(d.pick(sizes)) for _ in range(n))


@kind(10)
class conv:
    @staticmethod
    @of_images
    def draw(d: Any, x: int, n: int) -> Drawn:
        channels, k = d.shapes[x][1], kernels(d, n)
        dilation = (int(d.pick((1, 1, 1, 1, 2, 3))),) * n
        stride = (int(d.pick((1, 1, 1, 2, 2, 3))),) * n
        padding = tuple(dil * (size - 1) // 2 for dil, size in zip(dilation, k, strict=True))
        if d.chance(0.55):  # as large as its input, where the kernel is odd
            stride = (1,) * n
        elif d.chance(0.5):
            padding = (int(d.rng.integers(0, 3)),) * n
        divisors = [g for g in range(2, channels + 1) if channels % g == 0]
        groups = 1 if not divisors or d.chance(0.7) else channels if d.chance(0.5) else int(d.pick(divisors))
        out = channels if groups > 1 and d.chance(0.6) else groups * max(d.channels(channels) // groups, 1)
        return (x,), {"out": out, "kernel": k, "stride": stride, "padding": padding, "dilation": dilation,
                      "groups": groups, "bias": d.chance(0.5)}

    @staticmethod
    def write(w: Written, x: Named, out: int, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape,
              groups: int, bias: bool) -> str:
        each = x[1][1] // groups
        weight = w.parameter((out, each, *kernel), (each * prod(kernel)) ** -0.5)
        return f"F.conv{len(kernel)}d({x[0]}, {weight}{bias_of(w, out, bias)}" + options(
            stride=(stride, 1), padding=(padding, 0), dilation=(dilation, 1), groups=(groups, 1)) + ")"


@kind(4)
class conv_transpose:
    @staticmethod
    @of_images
    def draw(d: Any, x: int, n: int) -> Drawn:
        channels, k = d.shapes[x][1], kernels(d, n)
        stride = (int(d.pick((1, 2, 2, 2, 3))),) * n
        dilation = (int(d.pick((1, 1, 1, 1, 2))),) * n
        groups = 1 if d.chance(0.8) else int(d.pick([g for g in range(1, channels + 1) if channels % g == 0]))
        return (x,), {"out": groups * max(d.channels(channels) // groups, 1), "kernel": k, "stride": stride,
                      "padding": (int(d.pick((0, 0, 1, 1, 2))),) * n,
                      "output_padding": (int(d.chance(0.3)),) * n if stride[0] > 1 else (0,) * n,
                      "groups": groups, "dilation": dilation, "bias": d.chance(0.5)}

    @staticmethod
    def write(w: Written, x: Named, out: int, kernel: Shape, stride: Shape, padding: Shape, output_padding: Shape,
              groups: int, dilation: Shape, bias: bool) -> str:
        channels = x[1][1]
        weight = w.parameter((channels, out // groups, *kernel), (channels // groups * prod(kernel)) ** -0.5)
        return f"F.conv_transpose{len(kernel)}d({x[0]}, {weight}{bias_of(w, out, bias)}" + options(
            stride=(stride, 1), padding=(padding, 0), output_padding=(output_padding, 0), groups=(groups, 1),
            dilation=(dilation, 1)) + ")"


# ---- pools ----


@kind(10)
class pool:
    @staticmethod
    @of_images
    def draw(d: Any, x: int, n: int) -> Drawn:
        k = (2,) * n if d.chance(0.5) else kernels(d, n)
        stride = k if d.chance(0.6) else (int(d.pick((1, 2, 3))),) * n
        name = d.pick(("max", "max", "avg", "avg", "lp"))
        padding = (0,) * n if name == "lp" or d.chance(0.7) else tuple(int(d.rng.integers(0, m // 2 + 1)) for m in k)
        return (x,), {"name": name, "kernel": k, "stride": stride, "padding": padding, "ceil": d.chance(0.15)}

    @staticmethod
    def write(w: Written, x: Named, name: str, kernel: Shape, stride: Shape, padding: Shape, ceil: bool) -> str:
        size = kernel[0] if len(set(kernel)) == 1 else kernel
        step = options(stride=(stride, size if stride != kernel else kernel[0] if len(set(kernel)) == 1 else kernel))
        return f"F.{name}_pool{len(kernel)}d({x[0]}{', 2' if name == 'lp' else ''}, {size}{step}" + options(
            padding=(padding, 0), ceil_mode=(ceil, False)) + ")"


@kind(2)
class adaptive_pool:
    @staticmethod
    @of_images
    def draw(d: Any, x: int, n: int) -> Drawn:
        sizes = tuple(min(int(d.pick((1, 1, 2, 3, 5, 8))), m) for m in d.shapes[x][2:])
        return (x,), {"name": d.pick(("max", "avg")), "sizes": sizes}

    @staticmethod
    def write(w: Written, x: Named, name: str, sizes: Shape) -> str:
        return f"F.adaptive_{name}_pool{len(sizes)}d({x[0]}, {sizes[0] if len(sizes) == 1 else sizes})"


# ---- up- and downsampling ----


@kind(5)
class interpolate:
    @staticmethod
    @of_images
    def draw(d: Any, x: int, n: int) -> Drawn:
        smooth = ("linear", "bilinear", "trilinear")[n - 1]
        mode = d.pick(("nearest",) * 4 + ("nearest-exact", smooth, smooth, "area") + (("bicubic",) if n == 2 else ()))
        factor, size = int(d.pick((2, 2, 2, 3, 4))), None
        if d.chance(0.35):
            factor, size = 0, tuple(max(int(m * d.rng.uniform(0.4, 2.2)), 1) for m in d.shapes[x][2:])
        aligned = mode in ("linear", "bilinear", "trilinear", "bicubic") and d.chance(0.3)
        return (x,), {"mode": mode, "factor": factor, "size": size, "aligned": aligned,
                      "antialias": mode in ("bilinear", "bicubic") and d.chance(0.3)}

    @staticmethod
    def write(w: Written, x: Named, mode: str, factor: int, size: Shape | None, aligned: bool, antialias: bool) -> str:
        how = f"scale_factor={factor}" if factor else f"size={size}"
        return f"F.interpolate({x[0]}, {how}" + options(
            mode=(mode, "nearest"), align_corners=(aligned, False), antialias=(antialias, False)) + ")"


@kind(3)
class shuffle:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape = d.shapes[x]
        if len(shape) != 4:
            return None
        fits = [(name, r) for r in (2, 3) for name in ("pixel_shuffle", "pixel_unshuffle")
                if (shape[1] % (r * r) == 0 if name == "pixel_shuffle" else shape[2] % r == shape[3] % r == 0)]
        if not fits:
            return None
        name, r = d.pick(fits)
        return (x,), {"name": name, "factor": r}

    @staticmethod
    def write(w: Written, x: Named, name: str, factor: int) -> str:
        return f"F.{name}({x[0]}, {factor})"


# ---- norms ----


@kind(4)
class norm:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape = d.shapes[x]
        name = d.pick(("batch", "batch", "group", "group", "instance", "layer", "rms") if spatial(shape) else
                      ("layer", "rms", "layer"))
        groups = int(d.pick([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])) if name == "group" else 1
        axes = 1 if not spatial(shape) or d.chance(0.7) else len(shape) - 1
        return (x,), {"name": name, "groups": groups, "axes": axes, "affine": d.chance(0.7)}

    @staticmethod
    def write(w: Written, x: Named, name: str, groups: int, axes: int, affine: bool) -> str:
        sizes = x[1][-axes:] if name in ("layer", "rms") else x[1][1:2]
        given = ""
        if affine:
            given = f", weight={w.parameter(sizes)}" + ("" if name == "rms" else f", bias={w.parameter(sizes)}")
        if name == "batch":
            return f"F.batch_norm({x[0]}, None, None{given}, training=True)"
        if name == "instance":
            return f"F.instance_norm({x[0]}{given})"
        return f"F.{name}_norm({x[0]}, {groups if name == 'group' else sizes}{given}" + \
            (", eps=1e-05)" if name == "rms" else ")")


# ---- products with weights, attention ----


@kind(2)
class linear:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        return (x,), {"out": d.channels(d.shapes[x][-1]), "bias": d.chance(0.5), "flat": d.chance(0.3)}

    @staticmethod
    def write(w: Written, x: Named, out: int, bias: bool, flat: bool) -> str:
        flat = flat and len(x[1]) > 2
        width = prod(x[1][1:]) if flat else x[1][-1]
        more = bias_of(w, out, bias)
        return f"F.linear({x[0]}{'.flatten(1)' if flat else ''}, {w.parameter((out, width), width ** -0.5)}{more})"


@kind(2)
class attention:
    """Of a sequence (an image's positions are one) with itself or another one."""

    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        shape = d.shapes[x]
        if len(shape) not in (3, 4):
            return None
        width = shape[1] if len(shape) == 4 else shape[2]
        length = prod(shape[2:]) if len(shape) == 4 else shape[1]
        if width > 256 or length > 512:
            return None
        heads = int(d.pick([h for h in (1, 2, 4, 8) if width % h == 0]))
        others = d.others(x, lambda s: len(s) == 3 and s[0] == shape[0] and s[2] == width and s[1] <= 512)
        y = d.pick(others) if others and d.chance(0.4) else x
        return (x, y), {"heads": heads, "causal": x == y and d.chance(0.4), "projected": d.chance(0.6)}

    @staticmethod
    def write(w: Written, x: Named, y: Named, heads: int, causal: bool, projected: bool) -> str:
        width = x[1][1] if len(x[1]) == 4 else x[1][2]

        def operand(of: Named) -> str:
            text = f"{of[0]}.flatten(2).transpose(1, 2)" if len(of[1]) == 4 else of[0]
            if projected:
                text = f"F.linear({text}, {w.parameter((width, width), width ** -0.5)})"
            if heads > 1:
                text = f"{text}.unflatten(-1, ({heads}, {width // heads})).transpose(1, 2)"
            return text

        q, k, v = operand(x), operand(y), operand(y)
        found = f"F.scaled_dot_product_attention({q}, {k}, {v}" + options(is_causal=(causal, False)) + ")"
        return f"{found}.transpose(1, 2).flatten(2)" if heads > 1 else found


# ---- functions of elements and of rows ----


SMOOTH = ("F.gelu", "F.silu", "F.sigmoid", "F.tanh", "F.softplus", "F.mish")
KINKED = ("F.relu", "F.relu", "F.relu", "F.leaky_relu", "F.elu", "F.hardswish", "F.relu6")


@kind(5)
class activation:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        return (x,), {"name": d.pick(SMOOTH + KINKED)}

    @staticmethod
    def write(w: Written, x: Named, name: str) -> str:
        return f"{name}({x[0]})"


@kind(1.5)
class softmax:
    @staticmethod
    def draw(d: Any, x: int) -> Drawn:
        return (x,), {"name": d.pick(("softmax", "log_softmax")), "dim": int(d.rng.integers(1, len(d.shapes[x])))}

    @staticmethod
    def write(w: Written, x: Named, name: str, dim: int) -> str:
        return f"F.{name}({x[0]}, dim={dim})"
