"""What a network gives: on a device of minigrad, and by PyTorch in float64, with errors of rounding if asked for."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from support.gpu_device import AsGpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import minigrad
from fuzz.network import META, Network, Written, cotangents, numbers
from minigrad import Tensor, config, devices, jit
from minigrad.codegen.passes import forget_stages
from minigrad.codegen.policy import winograd
from minigrad.engine.compiled import forget_plans
from minigrad.nn import functional

OURS = {"F": functional, "Tensor": Tensor, "cat": minigrad.cat, "where": minigrad.where, "einsum": minigrad.einsum,
        "stack": minigrad.stack, "maximum": minigrad.maximum}
UNIT = {"float32": 2.0 ** -24, "bfloat16": 2.0 ** -9, "float16": 2.0 ** -11}
Result = tuple[str, np.ndarray]


def wanted_of(network: Network, values: dict[str, Any], outputs: list[Any], names: list[str], factors: list[Any],
              gradient: Callable[[Any, list[Any], bool], list[Any]]) -> list[tuple[str, Any]]:
    """The results of a network by name, in either library."""
    results = [(f"v{k}", o) for k, o in zip(network.outputs, outputs, strict=True)]
    if network.wanted == "values" or not names:
        return results
    square = network.loss == "square" or network.wanted == "second"
    terms = [(o * o * c if square else o * c).sum() for o, c in zip(outputs, factors, strict=True)]
    loss = sum(terms[1:], terms[0])
    leaves = [values[name] for name in names]
    first = gradient(loss, leaves, network.wanted == "second")
    grads = [(f"d/d{name}", g) for name, g in zip(names, first, strict=True)]
    if network.wanted == "gradients":
        return grads
    if network.wanted != "second":
        return [*results, *grads]
    norm = sum([(g * g).sum() for g in first[1:]], (first[0] * first[0]).sum())
    return [(f"d2/d{name}", g) for name, g in zip(names, gradient(norm, leaves, False), strict=True)]


# ---- PyTorch ----


def truth(network: Network, w: Written, given: dict[str, np.ndarray], call: int) -> list[Result]:
    """PyTorch's results in float64; `given` are the numbers of computed inputs."""
    names = w.differentiable(network.outputs) if network.wanted != "values" else []
    values: dict[str, Any] = {}
    for at, leaf in enumerate(w.leaves):
        array = torch.from_numpy(numbers(network, leaf, at, call))
        values[leaf.name] = array.long() if leaf.below else array.requires_grad_(leaf.name in names)
    for name, array in given.items():
        values[name] = torch.from_numpy(array)
    for name, text in w.lines:
        values[name] = eval(text, META, values)
    outputs = [values[f"v{k}"] for k in network.outputs]
    factors = [torch.from_numpy(c) for c in cotangents(network, [tuple(o.shape) for o in outputs])]

    def gradient(loss: Any, leaves: list[Any], again: bool) -> list[Any]:
        found = torch.autograd.grad(loss, leaves, create_graph=again, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]

    return [(name, r.detach().numpy()) for name, r in wanted_of(network, values, outputs, names, factors, gradient)]


class Rounding(TorchDispatchMode):
    """Each operation takes and gives floats with random errors of a few units of rounding; views, what they took."""

    def __init__(self, seed: int, unit: float, least: float):
        super().__init__()
        self.unit, self.least = unit, least
        self.random = torch.Generator().manual_seed(seed)

    def near(self, x: Any, resampled: bool = False) -> Any:
        """x with errors. Weights of resampling are differences of positions, so that they have the errors of numbers as
        large as the image, and all channels of all examples the same."""
        if not isinstance(x, torch.Tensor) or x.dtype is not torch.float64 or not x.numel() or x._is_zerotensor() or \
                x.device.type == "meta":  # PyTorch asks for shapes
            return x
        shape = (1, 1, *x.shape[2:]) if resampled else x.shape
        error = torch.empty(shape, dtype=x.dtype).uniform_(-1, 1, generator=self.random)
        units = 16 if resampled else 1
        return x * (1 + units * self.unit * error) + self.least * error.sign() * (x != 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.is_view or func._schema.is_mutable or name in EXACT:
            return func(*args, **kwargs)
        near = partial(self.near, resampled="upsample" in name)
        result = tree_map(near, func(*tree_map(near, args), **kwargs))
        # 1 + erf(x) is all error where x is far below 0, so that errors are of the size of x (or of dy).
        return result + self.near(args[0]) - args[0] if name in ("gelu", "gelu_backward") else result


class Largest(TorchDispatchMode):
    """Notes the largest magnitude of all that operations give, forward and backward: beyond a half's range there are
    infinities on the way, in PyTorch's halves too."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dtype is torch.float64 and x.numel() and not x._is_zerotensor():
                self.found = max(self.found, float(x.detach().abs().max()))
        return result


EXACT = ("detach", "clone", "zeros_like", "ones_like", "alias", "_unsafe_view", "empty_like", "lift_fresh")


# ---- minigrad ----


@contextmanager
def settings(network: Network, device: str) -> Iterator[None]:
    """The settings of a network on a device. Drivers are described once in a process, by the plans that were wanted
    then: by plans for GPUs a driver is a device of its own."""
    if network.opencl_plans == "gpu" and device.startswith("CL"):
        device = _as_gpu(device)
    more: dict[str, Any] = {"poison": network.poison} if hasattr(config.current(), "poison") else {}
    with config(device=device, threads=network.threads, **more), always_winograd(network.winograd == "always"):
        yield


@contextmanager
def always_winograd(always: bool) -> Iterator[None]:
    """Has every convolution that the algorithm fits computed by it, in pieces; what was planned before and is planned
    here is forgotten."""
    if not always:
        yield
        return
    before = winograd.LAUNCH, winograd.MIN_SIDE, winograd.ROOM
    winograd.LAUNCH, winograd.MIN_SIDE, winograd.ROOM = -10 ** 12, 2, 0.05  # type: ignore[assignment]
    try:
        with config(disk_cache=False):
            forget()
            yield
    finally:
        winograd.LAUNCH, winograd.MIN_SIDE, winograd.ROOM = before
        forget()


def forget() -> None:
    """Drops all plans."""
    forget_stages()
    forget_plans()


@cache
def _as_gpu(driver: str) -> str:
    """The name of a driver as a GPU."""
    device = AsGpu(driver, name="GPU" + "".join(filter(str.isalnum, driver[3:])).upper())
    devices.register(device.name, lambda: device)
    return device.name


def computed_inputs(network: Network, w: Written, calls: int) -> list[dict[str, np.ndarray]]:
    """The numbers of inputs that are computed, at each call: those of the device NUMPY."""
    found = []
    with config(device="NUMPY"):
        Tensor.manual_seed(network.seed & 0x7fffffff)
        for _ in range(calls):
            found.append({name: eval(text, OURS).cast(network.dtype).float().numpy().astype(np.float64)
                          for name, text, _ in w.computed})
    return found


def tensor(array: np.ndarray, dtype: str) -> Tensor:
    """A realized leaf."""
    if array.dtype == np.int32:
        return Tensor(array).realize()
    return Tensor(array.astype(np.float32)).cast(dtype).contiguous().realize()


def found_on(network: Network, w: Written, device: str) -> list[list[Result]]:
    """minigrad's results at each call, in float64."""
    with settings(network, device):
        names = w.differentiable(network.outputs) if network.wanted != "values" else []
        shapes = [w.shapes[k] for k in network.outputs]
        factors = [tensor(c, network.dtype) for c in cotangents(network, shapes)]
        kept: dict[str, Tensor] = {}

        def leaves(call: int, parameters: bool) -> dict[str, Tensor]:
            found = {}
            for at, leaf in enumerate(w.leaves):
                if leaf.parameter == parameters:
                    found[leaf.name] = tensor(numbers(network, leaf, at, call), network.dtype)
                    found[leaf.name].requires_grad = leaf.name in names
            return found

        labels: list[str] = []

        def step(*inputs: Tensor) -> list[Tensor]:
            values = {**kept, **dict(zip(order, inputs, strict=True))}
            for name, text, _ in w.computed:
                values[name] = eval(text, OURS).cast(network.dtype)
            for name, text in w.lines:
                values[name] = eval(text, OURS, values)
            outputs = [values[f"v{k}"] for k in network.outputs]
            results = wanted_of(network, values, outputs, names, factors,
                                lambda loss, by, again: list(loss.gradient(*by)))
            labels[:] = [name for name, _ in results]
            return [r for _, r in results]

        kept.update(leaves(0, True))
        order = list(leaves(0, False))
        run: Any = jit(step) if network.calls else step
        Tensor.manual_seed(network.seed & 0x7fffffff)
        found = []
        for call in range(max(network.calls, 1)):
            if call:
                for name, new in leaves(call, True).items():
                    kept[name].assign(new.detach()).realize()
            results = run(*leaves(call, False).values())
            if network.wanted != "parts":
                Tensor.realize(*results)
            found.append([(name, r.float().numpy().astype(np.float64))
                          for name, r in zip(labels, results, strict=True)])
        return found
