"""Cards that are not here: their memory, their clock, what they refuse, what their compilers say of programs."""
import pytest

import minigrad
from minigrad import Tensor, config, jit, nn
from minigrad.codegen.machines.gpus import cards, gpu
from minigrad.errors import DeviceError
from minigrad.nn.optim import Adam
from minigrad.nn.state import get_parameters
from minigrad.runtime.inspected import InspectedGpu
from minigrad.runtime.registry import get_device
from minigrad.runtime.simulated import SimulatedGpu

SOME = ["rtx3060", "rx6700xt", "a770"]
"""Of NVIDIA, AMD and a vendor whose compiler is not here."""


def opened(card: str) -> SimulatedGpu:
    device = get_device(f"SIM:{card}")
    assert isinstance(device, SimulatedGpu)
    return device


def training():
    """A step of Adam, and its batch."""
    model, x = nn.Linear(48, 32), Tensor.randn(64, 48)
    optimizer = Adam(get_parameters(model), lr=0.1)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x).tanh() ** 2).mean().backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("card", SOME)
def test_a_step_advances_the_clock_by_what_a_profile_says(card: str) -> None:
    with config(device=f"SIM:{card}"):
        step, device = training(), opened(card)
        for _ in range(3):
            step()
        before = device.clock
        with minigrad.profile() as p:
            step()
        took = device.clock - before
        assert took == pytest.approx(p.seconds) and took > len(p.runs) * 1e-6
        assert all(r.seconds > 0 for r in p.runs) and f"predicted, as nothing runs on SIM:{card}" in p.table()
        before = device.clock
        step()
        assert device.clock - before == pytest.approx(took)


def test_a_captured_step_takes_what_it_takes_alone() -> None:
    with config(device="SIM:rtx3060"):
        step, device = training(), opened("rtx3060")
        captured = jit(step)
        for _ in range(4):
            captured()
        before = device.clock
        captured()
        captured()
        took = device.clock - before
        before = device.clock
        captured()
        assert 2 * (device.clock - before) == pytest.approx(took)


@pytest.mark.parametrize("read", [lambda t: t.item(), lambda t: t.numpy(), lambda t: t.tolist(), lambda t: bool(t > 0),
                                  lambda t: t.to("CPU").numpy(), lambda t: repr(t.tolist())])
def test_a_value_that_is_read_is_an_error(read) -> None:
    with config(device="SIM:rtx3060"), pytest.raises(DeviceError, match="has no values to read"):
        read(Tensor.randn(3, 3).sum())


def test_memory_runs_out_where_the_cards_does() -> None:
    device, facts = opened("rtx2080ti"), gpu("rtx2080ti")
    used = device.used
    with config(device=device.name):
        half = Tensor.empty(facts.dram_bytes // 7).contiguous().realize()
        assert device.used - used >= facts.dram_bytes // 7 * 4
        with pytest.raises(DeviceError, match=r"\[alloc\] .* of GeForce RTX 2080 Ti, got out of memory"):
            (half + 1).realize()
        del half
        assert device.used == used


@pytest.mark.parametrize("name", ["SIM:voodoo", "SIM:ampere", "SIM:generic-gpu"])
def test_a_name_without_a_card_is_told_the_cards(name: str) -> None:
    with pytest.raises(DeviceError, match="expected SIM:<one of .*rtx3060, .*got " + name):
        Tensor.zeros(3, device=name).contiguous().realize()


def test_every_card_opens() -> None:
    for card in cards():
        device = SimulatedGpu(card)
        assert device.target.units == gpu(card).units and device.target.has_groups


def test_registers_are_the_compilers_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    with config(device="SIM:rx6600", cache_dir=tmp_path, verify=False):
        device = SimulatedGpu("rx6600")
        with config(device="AMD:gfx1032"):
            programs = {p.name: p for p in _programs()}
        first = {x.program.name: x.compiled for x in device.load(programs.values())}
        inspected = {x.program.name: x.resources for x in get_device("AMD:gfx1032").load(programs.values())}
        assert first == {name: (r.vgprs, r.spills) for name, r in inspected.items()} and first
        monkeypatch.setattr(InspectedGpu, "load", None)
        assert {x.program.name: x.compiled for x in device.load(programs.values())} == first


def _programs():
    """The programs of a product and a softmax for the device that is set."""
    from minigrad.codegen.passes import render
    from minigrad.config import current
    from minigrad.report.dry import running_dry

    target = get_device(current().device).target
    with running_dry() as dry:
        Tensor.realize(Tensor.randn(64, 64).realize() @ Tensor.randn(64, 64).realize(), Tensor.randn(8, 99).softmax())
        found = [render(item.function, target) for plan in dry.plans for item in plan.items]
        dry.forget()
    return found
