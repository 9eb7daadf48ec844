"""Lists, dictionaries, sets, arrays and the environment, changed in place: a replay notices, or there is none."""
from __future__ import annotations

import array
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, jit
from minigrad.capture.contents import MOST_BYTES, MOST_ELEMENTS

READS: dict[str, Callable[[Any], float]] = {
    "length": lambda held: len(held), "sum": lambda held: sum(held), "loop": lambda held: sum(v * v for v in held),
    "index": lambda held: held[len(held) - 1], "constant index": lambda held: held[0],
    "slice": lambda held: sum(held[1:]), "member": lambda held: float(9.0 in held)}
SEQUENCES: dict[str, Callable[[list[float]], Any]] = {
    "list": list, "deque": deque, "array": lambda v: array.array("d", v), "ndarray": np.array,
    "float32": lambda v: np.array(v, np.float32)}
CHANGES: dict[str, Callable[[Any], None]] = {
    "first": lambda held: held.__setitem__(0, 9.0), "last": lambda held: held.__setitem__(-1, 9.0),
    "longer": lambda held: held.append(9.0)}


def agrees(function: Callable[[Tensor], Tensor], plain: Callable[[], float], change: Callable[[], object]) -> None:
    """Compares results with what the function itself gives, before and after a change."""
    x = Tensor([2.0]).realize()
    for _ in range(4):
        assert function(x).item() == 2 * np.float32(plain())
    change()
    for _ in range(3):
        assert function(x).item() == 2 * np.float32(plain())


@pytest.mark.parametrize("read, kind, change", [
    (read, kind, change) for read in READS for kind in SEQUENCES for change in CHANGES
    if not ((kind == "deque" and read == "slice") or (kind in ("ndarray", "float32") and change == "longer"))])
def test_sequences(read: str, kind: str, change: str) -> None:
    held, of = SEQUENCES[kind]([1.0, 2.0, 3.0]), READS[read]
    function = jit(lambda x: x * float(of(held)))
    agrees(function, lambda: of(held), lambda: CHANGES[change](held))


def in_a_closure(held: Any) -> Any:
    return jit(lambda x: x * float(sum(held)))


def as_a_default(held: Any) -> Any:
    def function(x: Tensor, values: Any = held) -> Tensor:
        return x * float(sum(values))

    return jit(function)


def as_a_keyword(held: Any) -> Any:
    def function(x: Tensor, *, values: Any = held) -> Tensor:
        return x * float(sum(values))

    return jit(function)


def of_an_object(held: Any) -> Any:
    class Model:
        def __init__(self) -> None:
            self.held = held

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * float(sum(self.held))

    return Model()


def by_a_function(held: Any) -> Any:
    def total() -> float:
        return sum(held)

    return jit(lambda x: x * float(total()))


def in_a_dictionary(held: Any) -> Any:
    settings = {"inner": {"values": held}}
    return jit(lambda x: x * float(sum(settings["inner"]["values"])))


def somewhere_in_a_list(held: Any) -> Any:
    lists = [[0.0], held]
    return jit(lambda x: x * float(sum([sum(one) for one in lists])))


def by_another_name(held: Any) -> Any:
    def function(x: Tensor) -> Tensor:
        mine = held
        return x * float(sum(mine))

    return jit(function)


@pytest.mark.parametrize("kind", ["list", "ndarray"])
@pytest.mark.parametrize("place", [in_a_closure, as_a_default, as_a_keyword, of_an_object, by_a_function,
                                   in_a_dictionary, somewhere_in_a_list, by_another_name])
def test_places(place: Callable[[Any], Any], kind: str) -> None:
    held = SEQUENCES[kind]([1.0, 2.0])
    agrees(place(held), lambda: sum(held), lambda: held.__setitem__(0, 9.0))


@pytest.mark.parametrize("read", [
    lambda held: len(held), lambda held: sum(held.values()), lambda held: held.get("b", 5.0),
    lambda held: held["a"], lambda held: sum(v for _, v in held.items()), lambda held: float("b" in held)])
@pytest.mark.parametrize("change", [{"a": 4.0}, {"b": 3.0}])
def test_dictionaries(read: Callable[[Any], float], change: dict[str, float]) -> None:
    held = {"a": 1.0}
    agrees(jit(lambda x: x * float(read(held))), lambda: read(held), lambda: held.update(change))


@pytest.mark.parametrize("read", [lambda: os.environ["MINIGRAD_TEST_READ"], lambda: os.getenv("MINIGRAD_TEST_READ"),
                                  lambda: os.environ.get("MINIGRAD_TEST_READ", "5")])
def test_the_environment(read: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGRAD_TEST_READ", "3")
    agrees(jit(lambda x: x * float(read())), lambda: float(read()),
           lambda: monkeypatch.setenv("MINIGRAD_TEST_READ", "4"))


def test_sets_and_other_tensors() -> None:
    held, tensors = {1.0}, [Tensor([1.0]).realize()]
    agrees(jit(lambda x: x * float(2.0 in held)), lambda: float(2.0 in held), lambda: held.add(2.0))
    function = jit(lambda x: x * sum([t for t in tensors], Tensor(0.0)))
    agrees(function, lambda: sum([t.item() for t in tensors]), lambda: tensors.append(Tensor([4.0]).realize()))
    for value in (5.0, 6.0):  # perhaps where the last one lay
        agrees(function, lambda: sum([t.item() for t in tensors]), lambda: tensors.pop())
        tensors.append(Tensor([value]).realize())


def test_what_is_not_read_may_change() -> None:
    """Shapes of arrays, lists that a function only adds to, arrays that nobody can write."""
    shaped, calls, constant = np.zeros((2, 3)), [], np.full(MOST_BYTES, 2.0)
    constant.flags.writeable = False

    @jit
    def function(x: Tensor) -> Tensor:
        calls.append(len(shaped.shape))
        return x * shaped.shape[1] * float(constant[0])

    x = Tensor([1.0]).realize()
    for k in range(4):
        assert function(x).item() == 6
        shaped[0, 0] = k
    assert function.captures == 1 and function.replays == 3 and len(calls) == 1


@pytest.mark.parametrize("held", [np.zeros(MOST_BYTES), [0.0] * (MOST_ELEMENTS + 1), {"deep": [0.0] * MOST_ELEMENTS}])
def test_what_is_too_large_to_look_at_is_not_captured(held: Any) -> None:
    function = jit(lambda x: x * len(held))
    for _ in range(3):
        assert function(Tensor([1.0])).item() == len(held)
    assert function.captures == 0 and "in place" in str(function.last_reason)
