"""Random programs of methods that PyTorch has too, against PyTorch: views, methods in place, indices, reductions,
promotion of types, integers below 0, NaN and infinities, empty axes and none; with gradients, and captured by `jit`
with other values than those that it was captured with.

A program is drawn once, from PyTorch's shapes, as a list of functions of the values so far: they run on both. In half
of them floats are of magnitudes up to 1e4.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support.rounding import TorchErrors, assert_close, rounded_runs

from minigrad import Tensor, config, jit

try:
    import torch
except ImportError:
    torch = None

SIZES = (0, 1, 1, 2, 3, 4, 5)
LEAVES = ("float32", "float32", "float32", "float64", "int32", "int64", "uint8", "bool", "int8", "int16")
SUMMING = ("reduction", "index")
"""Kinds of steps whose integers are int64 in PyTorch, and 32-bit ones here."""

MOST = 600
Step = Callable[[list[Any]], Any]


class Program:
    """`leaves` are arrays, `steps` functions that are each given all values so far; `values` are PyTorch's."""

    def __init__(self, seed: int, smooth: bool = False):
        self.rng, self.smooth = np.random.default_rng(seed), smooth
        self.scale = 10 ** self.rng.uniform(0, 4) if seed % 2 else 1.0
        self.leaves: list[np.ndarray] = []
        self.steps: list[tuple[str, Step]] = []
        first = [self.array(self.shape()) for _ in range(3)]
        self.leaves = first
        self.values: list[Any] = [torch.tensor(a) for a in first]
        for _ in range(int(self.rng.integers(5, 16))):
            k = len(self.values) - 1 if self.rng.random() < 0.6 else int(self.rng.integers(len(self.values)))
            self.add(k)

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def shape(self) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, 4))
        sizes = SIZES[1:] if self.smooth or self.rng.random() < 0.9 else SIZES
        return tuple(int(self.pick(sizes)) for _ in range(rank))

    def array(self, shape: tuple[int, ...], dtype: str | None = None) -> np.ndarray:
        dtype = dtype or ("float32" if self.smooth else self.pick(LEAVES))
        numbers = self.rng.integers(-7, 8, shape)
        if dtype == "bool":
            return np.asarray(numbers > 0)
        if not dtype.startswith("float"):
            return np.asarray(numbers % 128 if dtype == "uint8" else numbers).astype(dtype)
        scale = self.scale if self.scale == 1 or self.rng.random() < 0.5 else 1.0
        found = np.asarray((numbers / 4 + self.rng.random(shape) / 8) * scale).astype(dtype)
        if not self.smooth and self.rng.random() < 0.2:
            found = np.where(self.rng.random(shape) < 0.2, self.pick((np.nan, np.inf, -np.inf, -0.0)), found)
        return np.asarray(found).astype(dtype)

    def add(self, k: int) -> None:
        """One more step that works on value k, unless there is none of the kind that was drawn."""
        x = self.values[k]
        name, make = self.pick(SMOOTH if self.smooth else STEPS)
        chosen = make(self, x)
        if chosen is None:
            return
        own = make.__name__

        def made(t: Any) -> Any:
            found = chosen(t)
            return found if is_float(found) or is_bool(found) or own not in SUMMING else found.long()

        def step(values: list[Any], k: int = k, made: Any = made) -> Any:
            return made(values[k])

        result = made(x)
        if result.numel() <= MOST:
            self.steps.append((f"{len(self.values)}: {own} {name} of {k}", step))
            self.values.append(result)

    def run(self, leaves: list[Any]) -> list[Any]:
        values = list(leaves)
        for _, step in self.steps:
            values.append(step(values))
        return values


# ---- kinds of steps: each gives a function of the value, or None where it has no meaning ----


def is_float(x: Any) -> bool:
    return x.is_floating_point()


def is_bool(x: Any) -> bool:
    return str(x.dtype).endswith("bool")


def is_unsigned(x: Any) -> bool:
    return str(x.dtype).endswith("uint8")


def like(x: Any, array: np.ndarray) -> Any:
    """An operand beside x, of its library."""
    if isinstance(x, Tensor):
        return Tensor(array)
    return torch.tensor(array.astype(np.float64) if x.dtype is torch.float64 and array.dtype == np.float32 else array)


def axis_of(p: Program, x: Any) -> int:
    return int(p.rng.integers(-x.ndim, x.ndim))


def unary(p: Program, x: Any) -> Any:
    floats = ("exp", "tanh", "sin", "sigmoid", "abs", "relu", "neg", "square", "erf", "expm1", "cos", "atan",
              "softsign")
    rough = ("sqrt", "log", "floor", "ceil", "round", "trunc", "rsqrt", "reciprocal", "isnan", "isinf", "frac",
             "log1p", "isfinite", "nan_to_num", "signbit")
    if is_float(x):
        name = p.pick(floats if p.smooth else floats + rough)
        if name == "softsign":
            return lambda t: t / (1 + t.abs())
        if name == "signbit":  # processors give computed NaN a sign
            return lambda t: t.signbit().logical_and(t.isnan().logical_not())
    else:
        name = p.pick(("logical_not", "bitwise_not", "sum", "long", "float") if is_bool(x) else
                      ("abs", "neg", "square", "bitwise_not", "float", "sign", "logical_not", "exp", "sqrt"))
        if name in ("abs", "neg", "sign") and str(x.dtype).endswith("uint8"):
            name = "square"
    return lambda t: getattr(t, name)()


def binary(p: Program, x: Any) -> Any:
    kept = tuple(n if p.rng.random() < 0.7 else 1 for n in x.shape)
    kept = kept[int(p.rng.integers(0, len(kept) + 1)):]
    other = p.array(kept, None if kept and x.ndim else str(x.dtype).rpartition(".")[2])  # () promotes as others do here
    names = ["add", "sub", "mul", "maximum", "minimum", "div", "lt", "ge", "eq", "ne", "true_divide"]
    names = ["add", "sub", "mul", "maximum", "minimum"] if p.smooth else names
    name = p.pick(names)
    if name == "sub" and (is_bool(x) or other.dtype == bool):
        name = "mul"
    if p.rng.random() < 0.5:
        return lambda t: getattr(t, name)(like(t, other))
    return lambda t: getattr(like(t, other), name)(t)


def with_number(p: Program, x: Any) -> Any:
    n = p.pick((2, -3, 0.5, -1.25, 1, True, 0))
    kind = p.pick(("+", "-", "r-", "*", "/", "**", "r/", "<", "clamp"))
    if (is_bool(x) and kind in ("-", "r-", "**", "clamp")) or (isinstance(n, bool) and kind in ("-", "r-")):
        kind = "*"
    if kind == "**" and (isinstance(n, float) or n < 0 or (p.smooth and not n)):  # x ** 0 is a constant here
        kind = "*"
    if p.smooth and kind in ("<", "/", "r/"):
        kind = "*"
    if kind in ("clamp", "<") and (isinstance(n, bool) or (n < 0 and is_unsigned(x))):
        n = 1  # PyTorch counts bounds below 0 from the end of an unsigned type
    return {"+": lambda t: t + n, "-": lambda t: t - n, "r-": lambda t: n - t, "*": lambda t: t * n,
            "/": lambda t: t / (n or 1), "**": lambda t: t ** n, "r/": lambda t: n / t, "<": lambda t: t < n,
            "clamp": lambda t: t.clamp(n, n + 2)}[kind]


def whole(p: Program, x: Any) -> Any:
    """Division and remainder of numbers below 0, by numbers below 0."""
    if is_bool(x):
        return None
    numbers = p.array(tuple(x.shape), p.pick(("int32", "int64", "int8")) if not is_float(x) else "float32")
    numbers = np.where(numbers == 0, 3, numbers).astype(numbers.dtype)
    name = p.pick(("floor_divide", "remainder", "fmod", "//", "%", "n//", "n%", "trunc"))
    if is_float(x) and not (torch.isfinite(x).all() and np.isfinite(numbers).all()):  # inf // 3 is inf here
        return None
    n = p.pick((3, -3, 2, -5))
    n = abs(n) if is_unsigned(x) else n  # what no uint8 holds wraps there and is refused here
    return {"//": lambda t: t // n, "%": lambda t: t % n, "n//": lambda t: (t * 0 + n) // like(t, numbers),
            "n%": lambda t: (t * 0 + n) % like(t, numbers),
            "trunc": lambda t: t.div(like(t, numbers), rounding_mode="trunc")}.get(
        name, lambda t: getattr(t, name)(like(t, numbers)))


def bits(p: Program, x: Any) -> Any:
    if is_float(x):
        return None
    numbers = p.array(tuple(x.shape), "bool" if is_bool(x) else p.pick(("int32", "uint8", "int64")))
    name = p.pick(("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_xor"))
    return lambda t: getattr(t, name)(like(t, numbers))


def reduction(p: Program, x: Any) -> Any:
    keep = bool(p.rng.random() < 0.5)
    smooth = ("sum", "mean", "amax", "logsumexp", "var", "prod", "norm", "std")
    rough = ("any", "all", "argmax", "argmin", "count_nonzero", "amin", "median", "max")
    name = p.pick(smooth if p.smooth else smooth + rough)
    if name in ("mean", "logsumexp", "var", "norm", "std") and not is_float(x):
        name = "sum"
    if name in ("any", "all") and str(x.dtype).endswith("uint8"):  # uint8 in PyTorch
        name = "count_nonzero"
    if not x.ndim or p.rng.random() < 0.2:
        if name in ("amax", "amin", "argmax", "argmin", "median", "logsumexp", "var", "std", "max") and x.numel() < 2:
            return None
        if (name in ("var", "std") and p.smooth) or name == "logsumexp" or (is_bool(x) and name in (
                "amax", "amin", "argmax", "argmin", "median", "max")):
            return None
        return lambda t: getattr(t, name)()
    a = axis_of(p, x)
    if x.shape[a] < 2 and name in ("amax", "amin", "argmax", "argmin", "median", "max", "var", "std",
                                     "logsumexp"):
        return None
    if is_bool(x) and name in ("argmax", "argmin", "median", "amax", "amin", "max"):
        return None
    if name == "median":
        return lambda t: t.median(a, keep) if isinstance(t, Tensor) else t.median(a, keep)[0]
    if name == "max":
        return lambda t: t.max(dim=a, keepdim=keep)[int(keep)]
    if name == "norm":
        return lambda t: t.norm(2, dim=a, keepdim=keep)
    if name == "count_nonzero":
        return lambda t: t.count_nonzero(a)
    if name in ("sum", "mean", "amax", "logsumexp") and x.ndim > 1 and p.rng.random() < 0.3:
        b = (a + 1) % x.ndim
        pair = tuple({a % x.ndim, b})
        if name == "amax" and any(x.shape[d] == 0 for d in pair):
            return None
        return lambda t: getattr(t, name)(dim=pair, keepdim=keep)
    return lambda t: getattr(t, name)(dim=a, keepdim=keep)


def view(p: Program, x: Any) -> Any:
    if not x.ndim:
        return p.pick((lambda t: t.unsqueeze(0), lambda t: t.reshape(1, 1), lambda t: t.expand(3)))
    a, b = axis_of(p, x), axis_of(p, x)
    n = x.shape[a]
    start, stop = sorted(int(v) for v in p.rng.integers(-n - 1, n + 2, 2))
    at = [slice(None)] * x.ndim
    at[a] = slice(start, stop, p.pick((1, 2)))
    chunk = max(1, int(n) // 2)
    order = [int(v) for v in p.rng.permutation(x.ndim)]
    return p.pick((
        lambda t: t.transpose(a, b), lambda t: t.permute(*order), lambda t: t.flatten(), lambda t: t.unsqueeze(a),
        lambda t: t.squeeze(), lambda t: t.squeeze(a), lambda t: t.flip(a), lambda t: t[tuple(at)], lambda t: t[None],
        lambda t: t[..., None], lambda t: t.reshape(-1) if t.numel() else t, lambda t: t.roll(2, a),
        lambda t: t.narrow(a, 0, chunk) if n else t, lambda t: t.unsqueeze(0).expand(2, *t.shape),
        lambda t: t.repeat(2, *[1] * (t.ndim - 1)), lambda t: t.movedim(a, b), lambda t: t.split(chunk, dim=a)[0],
        lambda t: t.chunk(2, dim=a)[-1], lambda t: t.unbind(a)[0] if n else t, lambda t: t.tile((2,)),
        lambda t: t.diagonal() if t.ndim > 1 else t, lambda t: t.tril() if t.ndim > 1 else t,
        lambda t: t.triu(1) if t.ndim > 1 else t, lambda t: t.repeat_interleave(2, dim=a), lambda t: t.select(a, -1)
        if n else t, lambda t: t.mT if t.ndim > 1 else t, lambda t: t.diff(dim=a) if not is_bool(t) else t))


def index(p: Program, x: Any) -> Any:
    if not x.ndim or 0 in x.shape:
        return None
    a = axis_of(p, x)
    n = int(x.shape[a])
    picks = p.rng.integers(-x.shape[0], x.shape[0], p.pick(((3,), (2, 2), ())))
    plain = p.rng.integers(0, n, 4)
    table = p.rng.integers(0, n, tuple(2 if d == a % x.ndim else m for d, m in enumerate(x.shape)))
    mask = p.rng.random(tuple(x.shape)) < 0.5
    ordered = [
        lambda t: t[like(t, picks)], lambda t: t.gather(a, like(t, table)), lambda t: t.index_select(a, like(t, plain)),
        lambda t: t[[0, -1]], lambda t: t[..., 0], lambda t: t[-1:], lambda t: t.masked_fill(like(t, mask), 1),
        lambda t: t.take_along_dim(like(t, table), a), lambda t: like(t, mask).where(t, t * 0)
        if isinstance(t, Tensor) else torch.where(like(t, mask), t, t * 0)]
    if not p.smooth:
        ordered += [lambda t: t.sort(dim=a)[0],
                    lambda t: t if is_bool(t) else t.topk(min(2, n), dim=a)[0], lambda t: t[like(t, mask)],
                    lambda t: t.cumsum(a), lambda t: t.argsort(dim=a, stable=True), lambda t: t.cummax(a)[0]
                    if not is_bool(t) else t, lambda t: t.unique() if not is_bool(t) else t]
    elif is_float(x):
        ordered += [lambda t: t.cumsum(a), lambda t: t.softmax(a), lambda t: t.log_softmax(a)]
    return p.pick(ordered)


def put(p: Program, x: Any) -> Any:
    """Methods in place, on a copy."""
    if is_bool(x) or (p.smooth and not torch.isfinite(x).all()):  # no gradient of what is overwritten; there 0 * inf
        return None
    full = p.array(tuple(x.shape), str(x.dtype).rpartition(".")[2])
    a = axis_of(p, x) if x.ndim else 0
    n = int(x.shape[a]) if x.ndim else 0
    mask = p.rng.random(tuple(x.shape)) < 0.5

    def on_copy(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def changed(t: Any) -> Any:
            y = t.clone()
            found = change(y)
            return y if found is None else found

        return changed

    def set_slice(y: Any) -> None:
        y[..., : max(n // 2, 1)] = 2

    def add_row(y: Any) -> None:
        y[0] += 3

    def set_mask(y: Any) -> None:
        y[like(y, mask)] = 1

    def chain(y: Any) -> Any:
        return y.add_(like(y, full)).mul_(2).sub_(1)

    def accumulate(y: Any) -> Any:
        y += like(y, full)
        y *= 2
        return y

    options: list[Any] = [chain, accumulate, lambda y: y.fill_(3), lambda y: y.masked_fill_(like(y, mask), -1),
                          lambda y: y.clamp_(1 if is_unsigned(x) else -1, 2), lambda y: y.neg_(), lambda y: y.zero_(),
                          lambda y: y.copy_(like(y, full)),
                          lambda y: y.lerp_(like(y, full), 0.25) if is_float(y) else y]
    if x.ndim and 0 not in x.shape:
        rows = p.rng.integers(0, n, 2)
        part = p.array(tuple(2 if d == a % x.ndim else m for d, m in enumerate(x.shape)),
                       str(x.dtype).rpartition(".")[2])
        table = np.stack([p.rng.permutation(max(n, 2))[:2] % n] * (x.numel() // n), -1)
        table = np.moveaxis(table.reshape(2, *[m for d, m in enumerate(x.shape) if d != a % x.ndim]), 0, a)
        options += [add_row, set_mask, lambda y: y.index_add_(a, like(y, rows), like(y, part).to(y.dtype)),
                    lambda y: y.scatter_add_(a, like(y, table), like(y, part).to(y.dtype)),
                    lambda y: y.index_fill_(a, like(y, rows), 2)]
        if x.shape[-1]:
            options.append(set_slice)
    return on_copy(p.pick(options))


def cast(p: Program, x: Any) -> Any:
    if is_float(x):
        return p.pick((lambda t: t.double(), lambda t: t.float(), lambda t: t > 0.25))
    return p.pick((lambda t: t.int(), lambda t: t.long(), lambda t: t.float(), lambda t: t.bool(), lambda t: t.to(
        like(t, np.zeros(1, np.int16)).dtype)))


def product(p: Program, x: Any) -> Any:
    if not is_float(x) or not x.ndim:
        return None
    other = p.array((int(x.shape[-1]), 3), str(x.dtype).rpartition(".")[2])
    return p.pick((lambda t: t @ like(t, other), lambda t: t.matmul(like(t, other)).relu(),
                   lambda t: t @ like(t, other)[:, 0]))


def joined(p: Program, x: Any) -> Any:
    if not x.ndim:
        return lambda t: t.stack(t * 2) if isinstance(t, Tensor) else torch.stack([t, t * 2])
    a, n = axis_of(p, x), p.pick((2, 0.5))
    if p.rng.random() < 0.5:
        return lambda t: t.cat(t * n, dim=a) if isinstance(t, Tensor) else torch.cat([t, t * n], dim=a)
    return lambda t: t.stack(t, dim=a) if isinstance(t, Tensor) else torch.stack([t, t], dim=a)


STEPS = [(k.__name__, k) for k in (unary, unary, binary, binary, with_number, whole, bits, reduction, reduction, view,
                                   view, view, index, index, put, put, cast, product, joined)]
SMOOTH = [(k.__name__, k) for k in (unary, unary, binary, binary, with_number, reduction, view, view, view, index,
                                    index, put, put, product, joined)]


def equal(ours: Any, theirs: np.ndarray, name: str, limit: float, others: Callable[[], Iterable[np.ndarray]]) -> None:
    """Values within `limit` of PyTorch's largest; `others` are PyTorch's with errors of rounding."""
    got, want = ours.numpy(), theirs
    if got.dtype != want.dtype:  # argmax and their like are int32
        assert got.dtype == np.int32 and want.dtype == np.int64, f"{name}: {got.dtype}, expected {want.dtype}"
    largest = float(np.abs(want[np.isfinite(want)]).max(initial=1)) if want.dtype.kind == "f" else 1.0
    assert_close(got, want, limit, limit * min(largest, 1e30), name, others)


Others = Callable[[int], Iterable[np.ndarray]]


def torch_runs(evaluate: Callable[[bool], list[Any]]) -> tuple[list[np.ndarray], Others]:
    """PyTorch's results, and by their number others: of `evaluate(True)`, in float64, and with errors of rounding."""
    def arrays(wide: bool = False) -> list[np.ndarray]:
        return [v.detach().numpy() for v in evaluate(wide)]

    rounded = rounded_runs(arrays, TorchErrors)
    exact = cache(lambda: arrays(True))
    return arrays(), lambda k: chain((exact()[k] for _ in range(1)), rounded(k))


def leaves_of(arrays: list[np.ndarray], wide: bool, requires_grad: bool = False) -> list[Any]:
    return [torch.tensor(a.astype(np.float64) if wide and a.dtype == np.float32 else a, requires_grad=requires_grad)
            for a in arrays]


def check(seed: int) -> None:
    program = Program(seed)
    names = [f"{seed} value {k}" for k in range(3)] + [f"{seed} {name}" for name, _ in program.steps]
    wanted, others = torch_runs(lambda wide: program.run(leaves_of(program.leaves, wide)))
    with config(device="CPU"):
        found = program.run([Tensor(a) for a in program.leaves])
        for k, (got, want, name) in enumerate(zip(found, wanted, names, strict=True)):
            equal(got, want, name, 2e-4, partial(others, k))


def check_gradients(seed: int, captured: bool = False) -> None:
    program = Program(seed, smooth=True)
    rng = np.random.default_rng(seed)
    with config(device="CPU"):
        def ours(*leaves: Tensor) -> list[Tensor]:
            wanted = [v for v in program.run(list(leaves))[-3:] if v.requires_grad]
            loss = sum([(v.clip(-9, 9) * v.sin()).mean() for v in wanted], start=Tensor(0.0))
            return [loss, *(loss + sum([0 * leaf.sum() for leaf in leaves])).gradient(*leaves)]

        step: Any = jit(ours) if captured else ours
        for k in range(3 if captured else 1):
            arrays = [a + np.float32(k) * rng.random(a.shape, np.float32) / 4 for a in program.leaves]
            found = step(*[Tensor(a, requires_grad=True) for a in arrays])
            wanted, others = torch_runs(partial(of_torch, program, arrays))
            for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
                name = f"gradient {number} of seed {seed}" if number else f"loss of seed {seed}"
                equal(got, want, name, 3e-3 if number else 1e-3, partial(others, number))


def of_torch(program: Program, arrays: list[np.ndarray], wide: bool) -> list[Any]:
    """The loss, and the gradients by the leaves."""
    leaves = leaves_of(arrays, wide, True)
    wanted = [v for v in program.run(leaves)[-3:] if v.requires_grad]
    loss = sum([(v.clip(-9, 9) * v.sin()).mean() for v in wanted], start=torch.tensor(0.0))
    loss.backward()
    return [loss, *[torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]]


@needs_torch
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # PyTorch's, on overflow of casts
@pytest.mark.parametrize("seed", range(16))
def test_values(seed: int) -> None:
    check(seed)


@needs_torch
@pytest.mark.parametrize("seed", range(10))
def test_gradients(seed: int) -> None:
    check_gradients(seed)


@needs_torch
@pytest.mark.parametrize("seed", range(100, 105))
def test_replays_with_other_values(seed: int) -> None:
    check_gradients(seed, captured=True)
