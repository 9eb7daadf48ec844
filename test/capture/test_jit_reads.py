"""Numbers that a captured function reads, wherever they stand: a change of one is noticed at the next call."""
from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import pytest

from minigrad import Tensor, config, jit, nn
from minigrad.capture.surroundings import paths_of

NUMBER: Any = 2
Case = tuple[Callable[..., Any], Callable[[], Any]]
"""A function of x that gives x * 2, and what makes it one that gives x * 7."""


def through_global(x: Any) -> Any:
    return x * NUMBER


def set_global() -> None:
    global NUMBER
    NUMBER = 7


@dataclass
class Options:
    k: float = 2.0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = 2

    def forward(self, x: Any) -> Any:
        return x * self.k


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = [Scaled()]

    def forward(self, x: Any) -> Any:
        for layer in self.inner:
            x = layer(x)
        return x


class Plain:
    shared = 2

    def __init__(self) -> None:
        self.k, self.options = 2, {"rates": [1, 2]}

    @property
    def computed(self) -> Any:
        return self.k

    def scaled(self, x: Any) -> Any:
        return x * self.k

    @staticmethod
    def by_shared(x: Any) -> Any:
        return x * Plain.shared

    @classmethod
    def by_class(cls, x: Any) -> Any:
        return x * cls.shared

    def __call__(self, x: Any) -> Any:
        return self.scaled(x)


class Jitted(Plain):
    @jit
    def step(self, x: Any) -> Any:
        return self.scaled(x)


def cells() -> dict[str, Case]:
    k: Any = 2
    pair: Any = (1, 2)

    def change() -> None:
        nonlocal k, pair
        k, pair = 7, (1, 7)

    def helper(x: Any) -> Any:
        return x * k

    def second(x: Any) -> Any:
        return helper(x)

    @wraps(helper)
    def wrapped(*args: Any) -> Any:
        return helper(*args)

    def inside(x: Any) -> Any:
        def function(y: Any) -> Any:
            return y * k
        return function(x)

    nested, bound = jit(helper), partial(helper)
    return {"a cell": (lambda x: x * k, change), "a cell of a function": (lambda x: helper(x), change),
            "two functions on": (lambda x: second(x), change), "a decorated one": (lambda x: wrapped(x), change),
            "one inside": (inside, change), "one under jit": (lambda x: nested(x), change),
            "a partial one": (lambda x: bound(x), change), "a tuple": (lambda x: x * pair[1], change),
            "a comprehension": (lambda x: sum([x * k for _ in range(1)]), change)}


def holders() -> dict[str, Case]:
    numbers, options, space, record = [1, 2], {"a": {"b": 2}}, types.SimpleNamespace(k=2), Options()
    module, scaled, outer, plain = types.ModuleType("settings"), Scaled(), Outer(), Plain()
    vars(module)["k"] = 2

    def default(x: Any, k: Any = 2) -> Any:
        return x * k

    def by_default(x: Any) -> Any:
        return default(x)

    def set_defaults() -> None:
        default.__defaults__ = (7,)

    def set_shared() -> None:
        Plain.shared = 7

    return {
        "a list": (lambda x: x * numbers[1], lambda: numbers.__setitem__(1, 7)),
        "dictionaries": (lambda x: x * options["a"]["b"], lambda: options["a"].__setitem__("b", 7)),
        "a namespace": (lambda x: x * space.k, lambda: setattr(space, "k", 7)),
        "a dataclass": (lambda x: x * record.k, lambda: setattr(record, "k", 7.0)),
        "a module of Python": (lambda x: x * module.k, lambda: setattr(module, "k", 7)),
        "a Module": (lambda x: scaled(x), lambda: setattr(scaled, "k", 7)),
        "a Module itself": (scaled, lambda: setattr(scaled, "k", 7)),
        "forward of one": (scaled.forward, lambda: setattr(scaled, "k", 7)),
        "a Module in a list": (lambda x: outer(x), lambda: setattr(outer.inner[0], "k", 7)),
        "a property": (lambda x: x * plain.computed, lambda: setattr(plain, "k", 7)),
        "a method": (lambda x: plain.scaled(x), lambda: setattr(plain, "k", 7)),
        "an object": (plain, lambda: setattr(plain, "k", 7)),
        "a path": (lambda x: x * plain.options["rates"][1], lambda: plain.options["rates"].__setitem__(1, 7)),
        "a static method": (lambda x: plain.by_shared(x), set_shared),
        "a class method": (lambda x: Plain.by_class(x), set_shared),
        "an attribute of a class": (lambda x: x * plain.shared, set_shared),
        "a global": (lambda x: x * NUMBER, set_global),
        "a global of a function": (lambda x: through_global(x), set_global),
        "a method of its object": (Jitted(), lambda: None), "a default": (default, set_defaults),
        "a default of a function": (by_default, set_defaults),
    }


CASES = {**cells(), **holders()}


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NUMBER", 2)
    monkeypatch.setattr(Plain, "shared", 2)


@pytest.mark.parametrize("name", CASES)
def test_numbers_that_change_are_noticed(name: str) -> None:
    function, change = {**cells(), **holders()}[name]
    captured = jit(function)
    if isinstance(function, Jitted):
        captured, change = function.step, lambda: setattr(function, "k", 7)
    with config(device="CPU"):
        x = Tensor([1.0, 2.0])
        assert [captured(x).tolist() for _ in range(4)] == [[2, 4]] * 4
        assert (captured.captures, captured.replays) == (1, 3)
        change()
        assert [captured(x).tolist() for _ in range(4)] == [[7, 14]] * 4
        assert (captured.captures, captured.replays) == (2, 6)


def test_a_layers_options_are_noticed() -> None:
    with config(device="CPU"):
        pool: Any = nn.MaxPool2d(2)
        f = jit(lambda x: pool(x))
        x = Tensor.ones(1, 1, 6, 6)
        assert [f(x).shape for _ in range(3)] == [(1, 1, 3, 3)] * 3
        pool.kernel_size = pool.stride = 3
        assert [f(x).shape for _ in range(3)] == [(1, 1, 2, 2)] * 3 and f.captures == 2
        assert "MaxPool2d" in str(f.last_reason)


def test_a_number_of_a_module_that_the_function_changes_is_not_lost() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * self.calls

    with config(device="CPU"):
        f = jit(Counting())
        assert [f(Tensor([1.0])).item() for _ in range(4)] == [1, 2, 3, 4]
        assert f.replays == 0 and "changed meanwhile" in f.last_reason


def test_what_changes_and_is_not_read_is_no_reason() -> None:
    options, model = {"rate": 2.0, "step": 0}, Scaled()
    with config(device="CPU"):
        f = jit(lambda x: model(x) * options["rate"])
        for k in range(5):
            options["step"] = k
            assert f(Tensor([1.0])).item() == 4
        assert (f.captures, f.replays) == (1, 4)


def test_paths_that_code_reads() -> None:
    def function(self: Any, x: Any) -> Any:
        return x * NUMBER.a["b"][0].c + self.d.e(Options.k) + [self.f for _ in x][0] + x.shape[0]  # noqa: RUF015

    assert set(paths_of(function.__code__)) == {
        (("global", "NUMBER"), ("attribute", "a"), ("item", "b"), ("item", 0), ("attribute", "c")),
        (("own", ""), ("attribute", "d"), ("attribute", "e")), (("global", "Options"), ("attribute", "k")),
        (("own", ""), ("attribute", "f"))}
