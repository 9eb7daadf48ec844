"""Modes are a thread's: training and recording of gradients in one thread do not change what another one computes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Barrier

import pytest

from minigrad import Tensor, jit, nn


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    training, grad_enabled = Tensor.training, Tensor.grad_enabled
    yield
    Tensor.training, Tensor.grad_enabled = training, grad_enabled


def together(*parts: Callable[[Barrier], object]) -> list[object]:
    """The results of functions that run at the same time, each in a thread."""
    barrier = Barrier(len(parts), timeout=60)
    with ThreadPoolExecutor(len(parts)) as pool:
        return [f.result() for f in [pool.submit(part, barrier) for part in parts]]


def test_a_thread_that_infers_beside_one_that_trains() -> None:
    def within(mode: Callable[[], AbstractContextManager]) -> Callable[[Barrier], object]:
        def run(barrier: Barrier) -> object:
            w = Tensor([2.0], requires_grad=True)
            with mode():
                barrier.wait()
                y = (w * 3).sum()
                barrier.wait()
                return Tensor.training, Tensor.grad_enabled, y.requires_grad
        return run

    assert together(within(Tensor.train), within(Tensor.no_grad)) == [(True, True, True), (False, False, False)]
    assert (Tensor.training, Tensor.grad_enabled) == (False, True)


def test_modules_in_two_modes_at_a_time() -> None:
    class Model(nn.Module):
        def __init__(self, barrier: Barrier) -> None:
            self.barrier = barrier

        def forward(self, x: Tensor) -> Tensor:
            self.barrier.wait()
            y = x.dropout(0.5).realize()
            self.barrier.wait()
            return y

    x = Tensor.ones(1000).realize()
    dropped, whole = together(lambda b: Model(b)(x).numpy().min(), lambda b: Model(b).eval()(x).numpy().min())
    assert (dropped, whole) == (0.0, 1.0)


def test_one_decorated_function_in_threads() -> None:
    @Tensor.no_grad()
    def f(barrier: Barrier, times: int) -> bool:
        for _ in range(times):
            barrier.wait()
        return Tensor.grad_enabled

    def part(times: int) -> Callable[[Barrier], object]:
        def run(barrier: Barrier) -> object:
            inside = f(barrier, times)
            for _ in range(2 - times):
                barrier.wait()
            return inside, Tensor.grad_enabled
        return run

    assert together(part(1), part(2)) == [(False, True)] * 2
    assert Tensor.grad_enabled


def test_assignments() -> None:
    """Outside of contexts for all threads, inside one for it."""
    Tensor.training = True
    assert together(lambda _: Tensor.training) == [True]
    with Tensor.no_grad():
        Tensor.training = False
        assert not Tensor.training and together(lambda _: (Tensor.training, Tensor.grad_enabled)) == [(True, True)]
    assert Tensor.training and Tensor.grad_enabled
    with Tensor.train(False), Tensor.train(), Tensor.no_grad():
        assert Tensor.training and not Tensor.grad_enabled
    Tensor.training = False
    assert together(lambda _: Tensor.training) == [False]


def test_gradients_are_recorded_again_inside() -> None:
    w = Tensor([1.0], requires_grad=True)
    with Tensor.no_grad():
        assert not Tensor.is_grad_enabled() and not (w * 2).requires_grad
        with Tensor.enable_grad():
            assert Tensor.is_grad_enabled() and (w * 2).requires_grad
        with Tensor.set_grad_enabled(True):
            assert (w * 2).requires_grad
    with Tensor.set_grad_enabled(False):
        assert not (w * 2).requires_grad


def test_replays_follow_the_mode_of_their_thread() -> None:
    f = jit(lambda x: x * (3 if Tensor.training else 2))
    x = Tensor([1.0]).realize()

    def run(mode: bool) -> Callable[[Barrier], object]:
        def values(barrier: Barrier) -> object:
            with Tensor.train(mode):
                barrier.wait()
                return [f(x).item() for _ in range(20)]
        return values

    assert together(run(True), run(False)) == [[3.0] * 20, [2.0] * 20]
