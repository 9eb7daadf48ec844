"""minigrad.devices: a device that users add is one among the others, and bad ones are refused."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, config, devices, jit, nn, show
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.engine.storage import arenas
from minigrad.errors import ConfigError, DeviceError
from minigrad.runtime.host import HostMemory


class Interpreter(HostMemory, devices.Device):
    """Runs loop IR, its language, by the interpreter."""

    def __init__(self, name: str = "TOY"):
        HostMemory.__init__(self)
        self.name = name
        self.target = devices.Target(name, "loops", "none", vector_bytes=16, registers=8, units=1,
                                     features=frozenset({"fp64"}))

    def load(self, programs: Iterable[devices.Program]) -> list[Any]:
        return [parse_function(p.source) for p in programs]

    def launch(self, launches: list[devices.Launch]) -> None:
        for launch in launches:
            for arguments, extent in launch.table or ((launch.arguments, launch.extent),):
                self.run(launch.executable, arguments, extent)

    def run(self, function: devices.Function, arguments: tuple[Any, ...], extent: int) -> None:
        given = iter(arguments)
        buffers = {}
        for p, b in zip(function.buffers, given, strict=False):
            buffers[p.name] = b.handle[b.offset:b.offset + b.nbytes].view(p.dtype.np)
        rest = list(arguments[len(function.buffers):])
        scalars = {s.name: rest.pop(0) for s in function.scalars}
        interpret_function(function, buffers, scalars, {d.name: rest.pop(0) for d in function.dims}, 0, extent)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def elapsed(self) -> float:
        return 0.0


def render(function: devices.Function, target: devices.Target) -> devices.Program:
    return devices.Program(function.name, target.language, print_function(function), ())


@pytest.fixture
def toy() -> Iterator[str]:
    devices.register("TOY", Interpreter, render, "loops")
    yield "TOY"
    devices.unregister("TOY")


@pytest.mark.parametrize("f", [
    lambda x: x.softmax(), lambda x: x @ x.T, lambda x: x.sum(), lambda x: x.sort()[0], lambda x: x.cumsum(1),
    lambda x: x.half().exp(), lambda x: x.double().var(1), lambda x: x[[2, 0], 1:] > 0,
    lambda x: x.reshape(1, 1, 5, 7).conv2d(x[:3, :3].reshape(1, 1, 3, 3), padding=1), lambda x: x[:0].exp(),
], ids=["softmax", "matmul", "sum", "sort", "cumsum", "half", "double", "index", "conv2d", "empty"])
def test_operations_agree_with_the_cpu(toy: str, f: Any) -> None:
    data = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    here, there = (f(Tensor(data, device=name)) for name in (toy, "CPU"))
    assert here.device == toy
    np.testing.assert_allclose(here.numpy(), there.numpy(), rtol=1e-5, atol=1e-6)


def test_training_under_jit_equals_eager(toy: str) -> None:
    def losses(wrap: Any) -> list[float]:
        Tensor.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean().backward()
            optimizer.step()
            return loss

        step = wrap(step)
        return [step(Tensor.ones(3, 4) * k).item() for k in range(4)]

    with config(device=toy):
        assert losses(jit) == losses(lambda f: f)


def test_source_is_what_the_renderer_wrote_and_copies_cross(toy: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], device=toy)
    assert show(x + 1, stage="source").startswith("func ")
    assert ((x + 1).to("CPU") * 2).to(toy).tolist() == [4.0, 6.0, 8.0]


def test_a_device_that_is_gone_is_not_found_and_may_come_back() -> None:
    for addend in (1.0, 2.0):  # the second device runs what its own renderer wrote
        devices.register("TOY", Interpreter, render, "loops")
        assert devices.registered() == ("TOY",)
        kept = Tensor([1.0], device="TOY").realize()
        assert (kept + addend).item() == 1.0 + addend
        assert (kept.expand(9, 9) @ Tensor.ones(9, 9, device="TOY")).sum().item() == 729.0
        devices.unregister("TOY")
        assert kept.item() == 1.0 and devices.registered() == () and "TOY" not in arenas
        with pytest.raises(DeviceError, match=r"\[device\] expected CPU, NUMPY, .*, got 'TOY'"):
            Tensor([1.0], device="TOY")
        with pytest.raises(ConfigError, match="got 'TOY'"):
            config(device="TOY")
    with pytest.raises(DeviceError, match=r"\[unregister\] expected a device that was added, got 'TOY'"):
        devices.unregister("TOY")


@pytest.mark.parametrize("name", ["CPU", "NUMPY", "CL", "TOY", "toy", "A B", "", "AMD:gfx1", None, 3])
def test_names_that_are_none_or_taken(toy: str, name: Any) -> None:
    with pytest.raises(DeviceError, match=r"\[register\] expected a device's name .* got "):
        devices.register(name, Interpreter)


@pytest.mark.parametrize("render,language", [(render, ""), (None, "other"), (render, "llvm"), (render, "loops")])
def test_a_language_has_one_renderer(toy: str, render: Any, language: str) -> None:
    with pytest.raises(DeviceError, match=r"\[register\] expected a language"):
        devices.register("OTHER", Interpreter, render, language)
    assert devices.registered() == ("TOY",)


@pytest.mark.parametrize("open_device,said", [(lambda: None, "to make a Device, got None"),
                                              (lambda: Interpreter("WRONG"), "named 'ODD', got 'WRONG'")])
def test_what_opens_must_be_a_device_of_that_name(open_device: Any, said: str) -> None:
    devices.register("ODD", open_device)
    with pytest.raises(DeviceError, match=said):
        Tensor([1.0], device="ODD")
    devices.unregister("ODD")
