"""Ctrl-C and timers: whatever they come between, each tensor has its old value or its new one, and work goes on.

`pytest --all` tries every moment at which Python lets an exception in; without it, some of them, spread evenly.
"""
from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numpy as np
import pytest
from conftest import devices
from support.interruptions import interrupted

from minigrad import Tensor, config, jit, optim
from minigrad.data import DataLoader, TensorDataset
from minigrad.engine.observe import Observer, observing
from minigrad.runtime.cpu import shared_jit
from minigrad.runtime.llvm_jit import Unit
from minigrad.state import checkpoint
from minigrad.stores import at_once, store

MOMENTS = 24
STEPS = 14

Values = list[np.ndarray]


class Case(NamedTuple):
    """`act` changes `tensors`, all of them together if `whole`."""

    act: Callable[[], object]
    tensors: list[Tensor]
    whole: bool = True


def made(device: str, *values: float, **options: Any) -> list[Tensor]:
    tensors = [Tensor(np.full(8, v, np.float32), device=device, **options) for v in values]
    Tensor.realize(*tensors)
    return tensors


def added(device: str) -> Case:
    x, = made(device, 0)
    return Case(lambda: x.add_(1).realize(), [x])


def region(device: str) -> Case:
    x, = made(device, 0)

    def act() -> None:
        x[2:5] = x[2:5] + 1
        x.realize()

    return Case(act, [x])


def reversed_onto_itself(device: str) -> Case:
    x = Tensor(np.arange(8, dtype=np.float32), device=device).realize()

    def act() -> None:
        x[:] = x.flip(0) * 2
        x.realize()

    return Case(act, [x])


def two_at_a_time(device: str) -> Case:
    x, y = made(device, 0, 1)

    def act() -> None:
        x.add_(1)
        y.add_(x)
        Tensor.realize(x, y)

    return Case(act, [x, y], whole=False)


def timed(device: str) -> Case:
    class Watch(Observer):
        times_launches = True

    x, y = made(device, 0, 1)

    def act() -> None:
        with observing(Watch()):
            x.add_(1)
            y.assign((y.sum() + y) / 8)
            Tensor.realize(x, y)

    return Case(act, [x, y], whole=False)


def optimizer(make: Callable[..., optim.Optimizer], captured: bool = False, **options: Any) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        weights = made(device, 1, 2, requires_grad=True)
        optimizer = make(weights, **options)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = ((x * weights[0] + weights[1]).square()).sum()
            loss.backward()
            optimizer.step()
            return loss

        x, run = made(device, 1)[0], jit(step) if captured else step
        kept = [t for name in optimizer.state_names.values() for t in getattr(optimizer, name)]
        return Case(lambda: run(x), [*weights, *kept])

    return case


def groups(device: str) -> Case:
    weights = made(device, 1, 2, requires_grad=True)
    both = optim.SGD([{"params": [w]} for w in weights], lr=0.125, momentum=0.5)

    def act() -> None:
        both.zero_grad()
        (weights[0] * weights[1]).sum().backward()
        both.step()

    return Case(act, weights)


def swapped(device: str) -> Case:
    x, y = made(device, 0, 1)

    @jit
    def step() -> Tensor:
        new, old = (x + 1).realize(), y * 1
        x.replace(old)
        y.replace(new)
        return x.sum()

    return Case(step, [x, y])


def three_plans(device: str) -> Case:
    x, y, one = made(device, 0, 1, 1)

    @jit
    def step(one: Tensor) -> Tensor:
        x.add_(one).realize()
        y.add_(x).realize()
        x.add_(y).realize()
        return y.sum()

    return Case(lambda: step(one), [x, y])


def an_argument(device: str) -> Case:
    x, one = made(device, 0, 1)

    @jit
    def step(x: Tensor, one: Tensor) -> Tensor:
        x.add_(one)
        return x.sum()

    return Case(lambda: step(x, one), [x])


CASES: dict[str, Callable[[str], Case]] = {
    "added": added, "region": region, "reversed_onto_itself": reversed_onto_itself, "two_at_a_time": two_at_a_time,
    "timed": timed, "sgd": optimizer(optim.SGD, lr=0.125), "momentum": optimizer(optim.SGD, lr=0.125, momentum=0.5),
    "adam": optimizer(optim.Adam, lr=0.125), "groups": groups,
    "captured sgd": optimizer(optim.SGD, True, lr=0.125, momentum=0.5),
    "captured adam": optimizer(optim.Adam, True, lr=0.125),
    "swapped": swapped, "three_plans": three_plans, "an_argument": an_argument,
}


def values_of(tensors: list[Tensor]) -> Values:
    return [t.numpy() for t in tensors]


def close(found: Values, expected: Values) -> list[bool]:
    return [np.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(found, expected, strict=True)]


def some_of(count: int, request: pytest.FixtureRequest, most: int = MOMENTS) -> list[int]:
    """The numbers of the moments that are tried: all, or `most` at about the same distance."""
    if request.config.getoption("--all"):
        return list(range(count))
    pick = random.Random(count)
    return [pick.randrange(k * count // most, max((k + 1) * count // most, k * count // most + 1)) for k in range(most)]


ON_OPENCL = "added", "timed", "momentum", "captured sgd", "three_plans"
"""The cases of which each kind of launch of an OpenCL device is one."""


@pytest.mark.parametrize("name, device", [
    (name, device) for device in devices() if device in ("CPU", "CL:pocl") for name in CASES
    if device == "CPU" or name in ON_OPENCL])
def test_each_tensor_has_the_old_value_or_the_new_one(name: str, device: str, request: pytest.FixtureRequest) -> None:
    """The values after an interruption are those before or after the step, of all tensors that one step changes at
    once; the steps that follow go on from there."""
    case = CASES[name](device)
    states = []
    for _ in range(STEPS):
        states.append(values_of(case.tensors))
        case.act()

    def started() -> Case:
        case = CASES[name](device)
        for _ in range(4):
            case.act()
        return case

    at, case = 4, started()
    for moment in some_of(interrupted(started().act, -1), request):
        if at > STEPS - 4:
            at, case = 4, started()
        interrupted(case.act, moment)
        found = values_of(case.tensors)
        old, new = close(found, states[at]), close(found, states[at + 1])
        assert all(old) or all(new) or not case.whole, f"half a step at moment {moment}"
        assert all([a or b for a, b in zip(old, new, strict=True)]), f"neither of both values at moment {moment}"
        if not (all(old) or all(new)):
            at = STEPS
            continue
        at += 2 if all(new) else 1
        case.act()
        assert all(close(values_of(case.tensors), states[at])), f"the step after an interruption at moment {moment}"


@pytest.mark.parametrize("name", ["added", "captured sgd", "three_plans"])
def test_the_first_steps_may_be_interrupted(name: str, request: pytest.FixtureRequest) -> None:
    """While a plan is made, a function is captured or its first replay becomes a steady state."""
    case = CASES[name]("CPU")
    states = []
    for _ in range(8):
        states.append(values_of(case.tensors))
        case.act()

    def several(case: Case) -> Callable[[], object]:
        return lambda: [case.act() for _ in range(3)]

    with config(disk_cache=False):
        for moment in some_of(interrupted(several(CASES[name]("CPU")), -1), request, 12):
            case = CASES[name]("CPU")
            interrupted(several(case), moment)
            found = values_of(case.tensors)
            at = next((k for k, state in enumerate(states) if all(close(found, state))), None)
            if name == "three_plans" and at is None:  # its first calls are eager: plan by plan
                continue
            assert at is not None, f"half a step at moment {moment}"
            several(case)()
            assert all(close(values_of(case.tensors), states[at + 3])), f"after moment {moment}"


def test_nothing_of_llvm_is_interrupted() -> None:
    """What LLVM takes over in one line and llvmlite says in the next would be freed twice."""
    compiler = shared_jit()
    gc.collect()

    def unit(name: str) -> Unit:
        text = f"define void @{name}(ptr %a, i64 %b, i64 %e, ptr %s) {{\n  store i64 1, ptr %a\n  ret void\n}}\n"
        return Unit((name,), f"; {random.random()}\n" + text)

    gc.disable()
    try:
        with config(disk_cache=False):
            moments = interrupted(lambda: compiler.addresses([unit(f"f{k}") for k in range(3)]), -1,
                                  str(Path(llvmlite.__file__).parent))
    finally:
        gc.enable()
    assert moments == 0


COMPILE = """
import signal
from minigrad import Tensor
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
(Tensor([1.0]) + 1).numpy()
for k in range(16):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.004 + 0.003 * k)
        (Tensor([[1.0] * (k + 2)]) @ Tensor([[1.0]] * (k + 2))).softmax(-1).numpy()
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
print((Tensor([[1.0] * 99]) @ Tensor([[1.0]] * 99)).item())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no interval timers on this system")
def test_a_process_outlives_interruptions_of_its_first_compilations(tmp_path: Path) -> None:
    with config(cache_dir=tmp_path):
        done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "MINIGRAD_CACHE": str(tmp_path)})
    assert (done.returncode, done.stdout.strip()) == (0, "99.0"), done.stderr


def test_checkpoints(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One that is interrupted is not there, or whole; one that is read in half is read again."""
    weights = dict(zip("ab", made("CPU", 1, 2), strict=True))
    checkpoint.save(tmp_path, 1, {"weights": weights})
    for number, moment in enumerate(some_of(interrupted(lambda: checkpoint.save(tmp_path, 2, {"weights": weights}), -1),
                                            request), 3):
        interrupted(lambda: checkpoint.save(tmp_path, number, {"weights": weights}), moment)  # noqa: B023
        found: dict[str, Any] = {}
        restored = checkpoint.load(tmp_path, {"weights": found})
        assert restored is not None and not restored.problems
        np.testing.assert_array_equal(found["b"].numpy(), np.full(8, 2, np.float32))
    optimizer = optim.SGD(made("CPU", 1, 2, requires_grad=True), lr=0.125, momentum=0.5)
    checkpoint.save(tmp_path, 9999, {"optimizer": optimizer})
    for moment in some_of(interrupted(lambda: checkpoint.load(tmp_path, {"optimizer": optimizer}), -1), request):
        optimizer.lr = 0.25
        interrupted(lambda: checkpoint.load(tmp_path, {"optimizer": optimizer}), moment)
        assert optimizer.lr.item() in (0.25, 0.125)
        checkpoint.load(tmp_path, {"optimizer": optimizer})
        assert optimizer.lr.item() == 0.125


def test_loaders(request: pytest.FixtureRequest) -> None:
    """The next loop over a loader gives all of its data."""
    loader = DataLoader(TensorDataset(Tensor(np.arange(12, dtype=np.float32))), 4)

    def loop() -> list[float]:
        return [x for batch, in loader for x in batch.tolist()]

    for moment in some_of(interrupted(loop, -1), request):
        interrupted(loop, moment)
        assert loop() == list(range(12))


def test_stores_are_made_at_once() -> None:
    class Plain:
        a = b = 0

    x = Plain()
    assert at_once([store(x, "a", 1), store(x, "b", 2)]) == [None, None] and (x.a, x.b) == (1, 2)
