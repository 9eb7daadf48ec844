"""A table of kernels that GPU plans are made for: products, convolutions, windows, attention, sums, scatters, scans.

A kernel is a name and a function of `Draw`, which makes its operands, the same for each device.
"""
# Tests know their dims are ints, and lambdas keep what loops give them as defaults.
# mypy: disable-error-code="arg-type,type-var,misc"
from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np

from minigrad import Tensor, scan

HALVES = "float16", "bfloat16"
FLOATS = "float32", *HALVES


class Draw:
    """Makes operands on a device: the same numbers each time for one name."""

    def __init__(self, device: str, name: str):
        self.device, self.random = device, np.random.default_rng(crc32(name.encode()))

    def __call__(self, *shape: int, kind: str = "float32") -> Tensor:
        """Normal numbers, of a whole type small ones of either sign."""
        if kind in ("int8", "int32", "uint8"):
            low = 0 if kind == "uint8" else -9
            return Tensor(self.random.integers(low, 9, shape).astype(kind), device=self.device)
        x = Tensor(self.random.standard_normal(shape).astype(np.float32), device=self.device)
        return x if kind == "float32" else x.cast(kind).contiguous().realize()

    def places(self, count: int, *shape: int, kind: str = "int32") -> Tensor:
        """Indices below a count."""
        return Tensor(self.random.integers(0, count, shape).astype(kind), device=self.device)

    def wanted(self, *shape: int, kind: str = "float32") -> Tensor:
        """An operand whose gradient is asked for."""
        return self(*shape, kind=kind).requires_grad_()


Made = Tensor | tuple[Tensor, ...]
Make = Callable[[Draw], Made]
FAMILIES: dict[str, dict[str, Make]] = {}


def add(family: str, name: str, make: Make) -> None:
    FAMILIES.setdefault(family, {})[name] = make


def kernel(name: str) -> Make:
    """The kernel of that name."""
    return next(made[name] for made in FAMILIES.values() if name in made)


def gradients(d: Draw, y: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return tuple(y.gradient(*of, gradient=d(*y.shape).cast(y.dtype)))


# ---- products ----

SIZES = (33, 65, 47), (64, 64, 64), (129, 20, 77), (17, 250, 31), (70, 70, 130), (100, 131, 9), (40, 33, 700)


def product(d: Draw, m: int, n: int, k: int, kind: str, form: str) -> Tensor:
    a = d(k, m, kind=kind).transpose(0, 1) if form[0] == "t" else d(m, k, kind=kind)
    b = d(n, k, kind=kind).transpose(0, 1) if form[1] == "t" else d(k, n, kind=kind)
    if kind == "int8":
        a, b = a.cast("int32"), b.cast("int32")
    return a @ b


for number, (m, n, k) in enumerate(SIZES):
    for kind in (*FLOATS, "int8"):
        for form in ("nn", "nt", "tn", "tt"):
            if (number + len(kind) + ("nn", "nt", "tn", "tt").index(form)) % 2 == 0:
                add("products", f"product {m} {n} {k} {kind} {form}",
                    lambda d, a=(m, n, k, kind, form): product(d, *a))

for kind in FLOATS:
    more: dict[str, Callable[[Draw, str], Made]] = {
        "batched": lambda d, t: d(3, 33, 35, kind=t) @ d(3, 35, 41, kind=t),
        "one b for all": lambda d, t: d(2, 3, 33, 35, kind=t) @ d(35, 67, kind=t),
        "heads": lambda d, t: d(2, 36, 3, 24, kind=t).permute(0, 2, 1, 3) @ d(2, 41, 3, 24, kind=t).permute(0, 2, 3, 1),
        "epilogue": lambda d, t: (d(70, 33, kind=t).linear(d(33, 65, kind=t)) + d(65, kind=t)).relu(),
        "prologue": lambda d, t: (d(45, 63, kind=t) * d(63, kind=t)).silu() @ d(63, 50, kind=t),
        "gathered": lambda d, t: d(90, 40, kind=t)[d.places(90, 51)] @ d(40, 47, kind=t),
        "residual": lambda d, t: d(65, 50, kind=t) + d(65, 70, kind=t) @ d(70, 50, kind=t) * 0.5,
        "softmax after": lambda d, t: (d(33, 64, kind=t) @ d(64, 95, kind=t)).softmax(-1),
        "gradients": lambda d, t: gradients(d, (w := d.wanted(40, 63, kind=t)).relu() @ (v := d.wanted(63, 49, kind=t)),
                                            w, v),
        "gradient of a linear layer": lambda d, t: gradients(
            d, d(4, 19, 36, kind=t).linear(w := d.wanted(36, 70, kind=t), b := d.wanted(70, kind=t)).gelu(), w, b),
        "split": lambda d, t: d(36, 1500, kind=t) @ d(1500, 33, kind=t),
        "matrix and vector": lambda d, t: d(77, 301, kind=t) @ d(301, kind=t),
        "vector and matrix": lambda d, t: d(301, kind=t) @ d(301, 77, kind=t),
        "outer": lambda d, t: d(77, 1, kind=t) @ d(1, 301, kind=t),
    }
    for name, make in more.items():
        add("products", f"{name} {kind}", lambda d, a=(make, kind): a[0](d, a[1]))

# ---- convolutions ----

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"x": (2, 5, 13, 11), "w": (17, 5, 3, 3), "padding": 1},
    "no padding": {"x": (1, 8, 12, 15), "w": (16, 8, 3, 3)},
    "strided": {"x": (2, 6, 17, 15), "w": (20, 6, 3, 3), "stride": 2, "padding": 1},
    "dilated": {"x": (1, 8, 15, 17), "w": (16, 8, 3, 3), "dilation": 2, "padding": 2},
    "of 5": {"x": (1, 4, 14, 19), "w": (18, 4, 5, 5), "padding": 2},
    "of 7, strided": {"x": (1, 3, 25, 23), "w": (16, 3, 7, 7), "stride": 2, "padding": 3},
    "of 1": {"x": (2, 24, 9, 11), "w": (33, 24, 1, 1)},
    "of 1, strided": {"x": (2, 24, 9, 11), "w": (17, 24, 1, 1), "stride": 2},
    "grouped": {"x": (2, 8, 11, 13), "w": (34, 4, 3, 3), "groups": 2, "padding": 1},
    "oblong": {"x": (1, 7, 9, 30), "w": (19, 7, 1, 5), "padding": (0, 2)},
    "of one row": {"x": (2, 12, 1, 70), "w": (24, 12, 1, 5), "padding": (0, 2)},
}


def convolution(d: Draw, of: str, kind: str, x: tuple[int, ...], w: tuple[int, ...], **how: Any) -> Made:
    a, b = d.wanted(*x, kind=kind), d.wanted(*w, kind=kind)
    y = a.conv2d(b, **how)
    if of == "forward":
        return (y + d(y.shape[1], 1, 1, kind=kind)).relu().detach()
    return gradients(d, y, a if of == "image" else b)


for number, (name, how) in enumerate(CONVOLUTIONS.items()):
    for at, of in enumerate(("forward", "image", "weights")):
        for kind in ("float32", HALVES[(number + at) % 2]):
            add("convolutions", f"convolution {name} {of} {kind}",
                lambda d, a=(of, kind), how=how: convolution(d, *a, **how))

for of in ("forward", "image", "weights"):
    add("convolutions", f"transposed convolution {of}", lambda d, of=of: (
        lambda x, w: x.conv_transpose2d(w, stride=2, padding=1).detach() if of == "forward"
        else gradients(d, x.conv_transpose2d(w, stride=2, padding=1), x if of == "image" else w))(
            d.wanted(1, 16, 9, 11), d.wanted(16, 18, 3, 3)))

# ---- windows ----

DEPTHWISE: dict[str, dict[str, Any]] = {
    "of 3": {"x": (3, 5, 17, 19), "k": 3, "padding": 1},
    "of 3, strided": {"x": (2, 5, 18, 15), "k": 3, "padding": 1, "stride": 2},
    "of 5": {"x": (2, 4, 14, 21), "k": 5, "padding": 2},
    "of 5, strided": {"x": (2, 3, 21, 22), "k": 5, "padding": 2, "stride": 2},
    "of 7, no padding": {"x": (1, 3, 17, 23), "k": 7},
    "dilated": {"x": (1, 3, 19, 17), "k": 3, "padding": 2, "dilation": 2},
}
for number, (name, how) in enumerate(DEPTHWISE.items()):
    for at, of in enumerate(("forward", "image", "weights")):
        for kind in ("float32", HALVES[(number + at) % 2]):
            size, own = how["x"], {k: v for k, v in how.items() if k not in ("x", "k")}
            add("windows", f"depthwise {name} {of} {kind}",
                lambda d, a=(of, kind, size, (size[1], 1, how["k"], how["k"])), own=own, groups=size[1]:
                convolution(d, *a, groups=groups, **own))

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max 2": lambda x: x.max_pool2d(2),
    "max 3, steps of 1": lambda x: x.max_pool2d(3, stride=1, padding=1),
    "max 3, steps of 2": lambda x: x.max_pool2d(3, stride=2, padding=1),
    "mean 2": lambda x: x.avg_pool2d(2),
    "mean 3, steps of 1": lambda x: x.avg_pool2d(3, stride=1, padding=1),
    "all means": lambda x: x.mean((2, 3)),
    "activation and means": lambda x: x.silu().mean((2, 3)),
    "mean 4": lambda x: x.avg_pool2d(4),
    "twice the size": lambda x: x.interpolate(scale_factor=2, mode="nearest"),
    "bilinear": lambda x: x.interpolate(size=(21, 30), mode="bilinear", align_corners=False),
}
for number, (name, pool) in enumerate(POOLS.items()):
    for of in ("forward", "gradient"):
        for kind in ("float32", HALVES[number % 2]):
            add("windows", f"pool {name} {of} {kind}", lambda d, a=(of, kind), pool=pool: (
                lambda x: pool(x).detach() if a[0] == "forward" else gradients(d, pool(x), x))(
                    d.wanted(2, 3, 17, 22, kind=a[1])))

for kind in FLOATS:
    add("windows", f"activation with its means {kind}",
        lambda d, kind=kind: (lambda y: (y, y.mean((2, 3))))(d(2, 20, 9, 9, kind=kind).silu()))

# ---- attention ----

ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {"q": (1, 2, 37, 20), "k": (1, 2, 45, 20)},
    "long": {"q": (1, 1, 70, 16), "k": (1, 1, 270, 16)},
    "causal": {"q": (2, 2, 61, 24), "k": (2, 2, 61, 24), "is_causal": True},
    "causal with more keys": {"q": (1, 2, 35, 12), "k": (1, 2, 67, 12), "is_causal": True, "causal_offset": 32},
    "shared heads": {"q": (1, 4, 33, 16), "k": (1, 2, 50, 16), "enable_gqa": True},
    "window": {"q": (1, 2, 66, 16), "k": (1, 2, 66, 16), "is_causal": True, "window": 20},
    "softcap": {"q": (1, 2, 40, 16), "k": (1, 2, 40, 16), "softcap": 3.0},
    "mask": {"q": (1, 2, 33, 20), "k": (1, 2, 47, 20), "mask": True},
    "few rows": {"q": (1, 3, 2, 32), "k": (1, 3, 150, 32)},
    "one row": {"q": (1, 3, 1, 64), "k": (1, 3, 333, 64)},
    "wide": {"q": (1, 1, 34, 128), "k": (1, 1, 65, 128)},
}


def attention(d: Draw, of: str, kind: str, q: tuple[int, ...], k: tuple[int, ...], mask: bool = False, **how: Any
              ) -> Made:
    a, b, c = d.wanted(*q, kind=kind), d.wanted(*k, kind=kind), d.wanted(*k, kind=kind)
    if mask:
        how["attn_mask"] = d(q[2], k[2], kind=kind)
    y = a.scaled_dot_product_attention(b, c, **how)
    return y.detach() if of == "forward" else gradients(d, y, a, b, c)


for number, (name, how) in enumerate(ATTENTION.items()):
    for kind in ("float32", HALVES[number % 2]):
        add("attention", f"attention {name} forward {kind}",
            lambda d, kind=kind, how=how: attention(d, "forward", kind, **how))
    kind = FLOATS[0 if number % 3 else 1]
    add("attention", f"attention {name} gradients {kind}",
        lambda d, kind=kind, how=how: attention(d, "gradients", kind, **how))

# ---- sums ----

SUMS: dict[str, Callable[[Tensor], Made]] = {
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(1),
    "max": lambda x: x.max(1),
    "min of columns": lambda x: x.min(0),
    "min": lambda x: x.min(1),
    "product": lambda x: (x * 0.1 + 1).prod(1),
    "place of the max": lambda x: x.argmax(1),
    "place of the min": lambda x: x.argmin(1),
    "place of all": lambda x: x.argmax(),
    "variance": lambda x: x.var(1),
    "deviation of all": lambda x: x.std(),
    "softmax": lambda x: x.softmax(1),
    "softmax of columns": lambda x: x.softmax(0),
    "softmin": lambda x: (-x).softmax(1),
    "log softmax": lambda x: x.log_softmax(1),
    "log of sums": lambda x: x.logsumexp(1),
    "layer norm": lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(),
    "root of squares": lambda x: x * (x * x).mean(1, keepdim=True).rsqrt(),
    "normalised": lambda x: x / x.abs().max(1, keepdim=True),
    "norm": lambda x: (x * x).sum(1).sqrt(),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -3).all(0),
    "sum and max": lambda x: (x.sum(1), x.max(1)),
    "outer and sum": lambda x: (x.exp(), x.exp().sum(1)),
}
ROWS = (5, 77), (9, 150), (3, 1031), (160, 35)
for number, (name, total) in enumerate(SUMS.items()):
    for at, rows in enumerate(ROWS):
        kind = ("float32", "float32", *HALVES)[(number + at) % 4]
        add("sums", f"{name} {rows[0]} {rows[1]} {kind}",
            lambda d, a=(rows, kind), total=total: total(d(*a[0], kind=a[1])))
WHOLE: dict[str, Callable[[Tensor], Made]] = {
    "sum": lambda x: x.cast("int32").sum(1),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(0),
    "place": lambda x: x.argmax(1),
    "mean": lambda x: x.cast("float32").mean(1),
    "product": lambda x: x.cast("int32") * x.cast("int32").sum(1, keepdim=True),
    "dequantised": lambda x: (x.cast("float32") * 0.05).softmax(1),
}
for name, total in WHOLE.items():
    for kind in ("int8", "int32"):
        add("sums", f"whole {name} {kind}", lambda d, kind=kind, total=total: total(d(7, 203, kind=kind)))

# ---- reductions with joined phases: each nest of a residue in one launch ----

for kind in FLOATS:
    for stride, k in ((2, 3), (2, 4), (3, 3), (3, 5)):
        add("phases", f"phases {stride} {k} {kind}", lambda d, a=(stride, k, kind): (
            lambda x, w: gradients(d, x.conv2d(w, stride=a[0], padding=1, groups=2), x))(
                d.wanted(1, 4, 13, 14, kind=a[2]), d(4, 2, a[1], a[1], kind=a[2])))

# ---- norms of networks, with gradients ----


def over_batch(d: Draw, x: Tensor) -> Tensor:
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
    return (x - mean) * (var + 1e-3).rsqrt() * d(1, x.shape[1], 1, 1) + d(1, x.shape[1], 1, 1)


NETWORKS: dict[str, Callable[[Draw, Tensor], Tensor]] = {
    "batch norm": over_batch,
    "group norm": lambda d, x: (lambda y: ((y - y.mean(2, keepdim=True)) * (y.var(2, keepdim=True) + 1e-3).rsqrt())
                                .reshape(*x.shape))(x.reshape(x.shape[0], 2, -1)),
    "squeeze and excite": lambda d, x: x * (x.mean((2, 3)) @ d(x.shape[1], x.shape[1])).sigmoid().reshape(
        *x.shape[:2], 1, 1),
    "cross entropy": lambda d, x: x.reshape(x.shape[0] * x.shape[1], -1).cross_entropy(
        d.places(x.shape[2] * x.shape[3], x.shape[0] * x.shape[1])),
    "mean of squares": lambda d, x: (x * x).mean(),
    "log sum": lambda d, x: x.flatten(2).logsumexp(2),
}
for name, network in NETWORKS.items():
    for of in ("forward", "gradient"):
        for kind in ("float32", "float16"):
            add("norms", f"{name} {of} {kind}", lambda d, a=(of, kind), network=network: (
                lambda x: network(d, x).detach() if a[0] == "forward" else gradients(d, network(d, x), x))(
                    d.wanted(3, 4, 11, 13, kind=a[1])))

# ---- scatter and gather ----

for kind in (*FLOATS, "int32"):
    moved: dict[str, Callable[[Draw, str], Made]] = {
        "gather": lambda d, t: d(9, 40, kind=t).gather(1, d.places(40, 9, 55)),
        "rows": lambda d, t: d(50, 33, kind=t)[d.places(50, 3, 21)],
        "scatter": lambda d, t: d(9, 40, kind=t).scatter(1, Tensor(
            np.stack([d.random.permutation(40)[:21] for _ in range(9)]).astype(np.int32), device=d.device),
            d(9, 21, kind=t)),
        "scatter add": lambda d, t: d(9, 40, kind=t).scatter_add(1, d.places(40, 9, 55), d(9, 55, kind=t)),
        "scatter add of rows": lambda d, t: d(40, 9, kind=t).scatter_add(0, d.places(40, 55, 9), d(55, 9, kind=t)),
        "greatest": lambda d, t: d(9, 40, kind=t).scatter_reduce(1, d.places(40, 9, 55), d(9, 55, kind=t), "amax"),
    }
    if kind != "int32":
        moved["gradient of rows"] = lambda d, t: gradients(d, (x := d.wanted(50, 33, kind=t))[d.places(50, 71)], x)
        moved["gradient of gather"] = lambda d, t: gradients(
            d, (x := d.wanted(9, 40, kind=t)).gather(1, d.places(40, 9, 55)), x)
    for name, make in moved.items():
        add("places", f"{name} {kind}", lambda d, a=(make, kind): a[0](d, a[1]))

# ---- scans and orders ----

for kind in FLOATS:
    run: dict[str, Callable[[Draw, str], Made]] = {
        "running sum": lambda d, t: d(7, 133, kind=t).cumsum(1),
        "running sum of columns": lambda d, t: d(133, 7, kind=t).cumsum(0),
        "running product": lambda d, t: (d(5, 70, kind=t) * 0.1 + 1).cumprod(1),
        "running max": lambda d, t: d(7, 133, kind=t).cummax(1)[0],
        "running log": lambda d, t: d(7, 133, kind=t).logcumsumexp(1),
        "gradient of a running sum": lambda d, t: gradients(d, (x := d.wanted(7, 133, kind=t)).cumsum(1), x),
        "recurrence": lambda d, t: scan(lambda h, x: ((n := (h * 0.5 + x)), n), d(9, kind=t), d(33, 9, kind=t))[1],
        "sorted": lambda d, t: d(5, 61, kind=t).sort(1)[0],
        "the greatest few": lambda d, t: d(5, 61, kind=t).topk(7)[0],
    }
    for name, make in run.items():
        add("scans", f"{name} {kind}", lambda d, a=(make, kind): a[0](d, a[1]))
