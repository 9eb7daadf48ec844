"""Random kernels whose plans are compared: products, convolutions, windows, rows and elementwise ones, by kind."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import minigrad.nn.functional as F
from minigrad import Tensor
from minigrad.codegen.kernel.access import reductions
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.passes import flat_form
from minigrad.codegen.policy.choose import choose_plans, is_scatter
from minigrad.codegen.policy.rows import is_row_kernel
from minigrad.dtype import float32
from minigrad.runtime.device import Device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule

LEAST_WORK, MOST_WORK = 1 << 17, 1 << 27
"""Multiply-adds of a sum: more than a launch takes, and few enough that many plans are measured."""

MOST_ELEMENTS = 1 << 22


def kernels(kind: str, random: np.random.Generator, device: Device) -> Iterator[tuple[str, Kernel]]:
    """Names and kernels of one nest over float32, without end: nests that have a plan of their own."""
    while True:
        name, results = KINDS[kind](random, device)
        steps = schedule(build_graph([r.node for r in results]), frozenset(), device.target).steps
        for kernel in [s.kernel for s in steps if s.kernel.block is None]:
            flat = flat_form(kernel)
            if flat.dims or {*[p.dtype for p in flat.params], *[s.dtype for s in flat.scalars]} != {float32}:
                continue
            units = choose_plans(flat.nests, device.target)
            if any(len(nests) > 1 for nests, _ in units):
                continue
            for k, nest in enumerate(flat.nests):
                if not is_scatter(nest) and _is_of(kind, nest):
                    yield f"{name}, {k + 1} of {len(units)}" if len(units) > 1 else name, flat.with_nests((nest,))


def _is_of(kind: str, nest: Nest) -> bool:
    if kind == "rows":
        return is_row_kernel(nest) or bool(reductions(nest))
    return bool(reductions(nest)) != (kind == "elementwise")


def _size(random: np.random.Generator, low: float, high: float) -> int:
    """A number between two, small ones as often as large ones."""
    return int(2 ** random.uniform(np.log2(low), np.log2(high)))


def _tensor(device: Device, *shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), device=device.name, requires_grad=True).realize()


def _product(random: np.random.Generator, device: Device) -> tuple[str, list[Tensor]]:
    """Random sizes, the second operand along the sum or across it."""
    while True:
        m, n, k = (_size(random, 4, 2048) for _ in range(3))
        if LEAST_WORK <= m * n * k <= MOST_WORK:
            break
    transposed = bool(random.integers(2))
    x, w = _tensor(device, m, k), _tensor(device, *((n, k) if transposed else (k, n)))
    return f"{m}x{n}x{k}" + (" transposed" if transposed else ""), [x @ (w.transpose(0, 1) if transposed else w)]


def _convolution(random: np.random.Generator, device: Device) -> tuple[str, list[Tensor]]:
    """Dense ones, forward and both gradients."""
    while True:
        n, c, o, plane = _size(random, 1, 9), _size(random, 3, 513), _size(random, 4, 513), _size(random, 7, 113)
        side, stride = int(random.choice([1, 3, 3, 5])), int(random.choice([1, 1, 2]))
        if LEAST_WORK <= n * c * o * (side * plane // stride) ** 2 <= MOST_WORK:
            break
    x, w = _tensor(device, n, c, plane, plane), _tensor(device, o, c, side, side)
    return _one_of(random, f"{n}x{c}x{plane} to {o}, {side}x{side}, stride {stride}", x, w,
                   lambda: F.conv2d(x, w, stride=stride, padding=side // 2))


def _window(random: np.random.Generator, device: Device) -> tuple[str, list[Tensor]]:
    """Depthwise convolutions with both gradients, and pools."""
    n, c, plane = _size(random, 1, 9), _size(random, 8, 513), _size(random, 7, 113)
    side, stride = int(random.choice([3, 3, 5, 7])), int(random.choice([1, 1, 2]))
    if n * c * plane * plane > MOST_ELEMENTS or plane <= side:
        return _window(random, device)
    x, w = _tensor(device, n, c, plane, plane), _tensor(device, c, 1, side, side)
    name = f"{n}x{c}x{plane}, {side}x{side}, stride {stride}"
    if random.integers(4) == 0:
        return f"pool {name}", [F.avg_pool2d(x, side, stride, side // 2)]
    return _one_of(random, name, x, w, lambda: F.conv2d(x, w, stride=stride, padding=side // 2, groups=c))


def _one_of(random: np.random.Generator, name: str, x: Tensor, w: Tensor, made: Callable[[], Tensor]
            ) -> tuple[str, list[Tensor]]:
    """The result, or one of its gradients."""
    which = int(random.integers(3))
    if not which:
        return name, [made()]
    y = made()
    outer = Tensor(np.zeros(y.shape, np.float32), device=x.device).realize()
    return f"{name}, gradient by {('data', 'taps')[which - 1]}", list((y * outer).sum().gradient((x, w)[which - 1]))


def _rows(random: np.random.Generator, device: Device) -> tuple[str, list[Tensor]]:
    """Softmax, norms and sums over the last axis, the first or both ends, with gradients."""
    while True:
        rows, length = _size(random, 2, 1 << 14), _size(random, 3, 1 << 14)
        if 1 << 13 <= rows * length <= MOST_ELEMENTS:
            break
    x = _tensor(device, rows, length)
    weight = _tensor(device, length)
    forms: dict[str, Callable[[], Tensor]] = {
        "softmax": lambda: x.softmax(-1), "log_softmax": lambda: x.log_softmax(-1), "softmax 0": lambda: x.softmax(0),
        "rmsnorm": lambda: x.rmsnorm() * weight, "layernorm": lambda: F.layer_norm(x, (length,), weight, weight),
        "sum": lambda: (x * x).sum(-1), "sum 0": lambda: x.exp().sum(0), "max": lambda: x.max(dim=-1, keepdim=True)[0],
        "logsumexp": lambda: x.logsumexp(-1), "var": lambda: x.var(-1), "var 0": lambda: x.var(0)}
    form = str(random.choice(list(forms)))
    y = forms[form]()
    if random.integers(3):
        return f"{form} {rows}x{length}", [y]
    outer = Tensor(np.zeros(y.shape, np.float32), device=device.name).realize()
    return f"{form} {rows}x{length}, gradient", list((y * outer).sum().gradient(x))


def _elementwise(random: np.random.Generator, device: Device) -> tuple[str, list[Tensor]]:
    """Transposes and permutations, alone and beside other operands."""
    while True:
        shape = [_size(random, 2, 1025) for _ in range(int(random.integers(2, 5)))]
        if 1 << 13 <= np.prod(shape) <= MOST_ELEMENTS:
            break
    order = [int(v) for v in random.permutation(len(shape))]
    x, y = _tensor(device, *shape), _tensor(device, *[shape[v] for v in order])
    moved = x.permute(*order)
    result = moved.contiguous() if random.integers(2) else (moved * y).relu()
    return f"{'x'.join(map(str, shape))} as {order}", [result]


KINDS: dict[str, Callable[[np.random.Generator, Device], tuple[str, list[Tensor]]]] = {
    "products": _product, "convolutions": _convolution, "windows": _window, "rows": _rows, "elementwise": _elementwise}
