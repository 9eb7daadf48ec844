"""Captured functions that take and return lists of Tensors: known again by identity, results handed out again."""
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.jit_steady import random, steady

from minigrad import Tensor, handles, jit

pytestmark = pytest.mark.usefixtures("on_cpu")


def products(inputs, scale):
    made = [(a @ b) * scale for a, b in zip(inputs[::2], inputs[1::2], strict=True)]
    Tensor.realize(*made)
    return made


@pytest.mark.parametrize("count", [2, 20])
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_arguments_and_results(count, kind):
    """Sets of arguments take turns; one that was changed meanwhile is looked at again."""
    step = jit(lambda inputs, scale: kind(products(inputs, scale)))
    sets = [[Tensor(random(3, 3, seed=100 * s + k)).realize() for k in range(2 * count)] for s in range(3)]
    scale = Tensor(np.array(0.5, np.float32)).realize()
    for k in range(20):
        inputs = sets[k % 3]
        if k == 11:
            inputs[1].assign(inputs[1] * 2).realize()
        if k == 13:
            inputs[3] = Tensor(random(3, 3, seed=7)).realize()
        if k == 15:
            del inputs[2:4]
            inputs[2:2] = [Tensor(random(3, 3, seed=k)).realize() for k in (8, 9)]
        if k == 17:
            scale = Tensor(np.array(0.25, np.float32)).realize()
        found = step(inputs, scale)
        assert type(found) is kind and len(found) == count
        for got, want in zip(found, products(inputs, scale), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert step.captures <= 2 and steady(step)


def test_lists_of_another_length_shape_or_kind_are_captured_again():
    step = jit(lambda inputs: [t * 2 for t in inputs])
    a = [Tensor(random(4, seed=k)).realize() for k in range(20)]
    wide = [Tensor(random(5, seed=k)).realize() for k in range(20)]
    for inputs in (a, a, a, a, a[:19], wide, tuple(a), [a[0]] * 20, [*a[:19], wide[0]], a, [*a[1:], a[0]]):
        for _ in range(3):
            for got, t in zip(step(inputs), inputs, strict=True):
                np.testing.assert_array_equal(got.numpy(), t.numpy() * 2)
    assert 6 <= step.captures <= 7


def test_a_tensor_in_a_list_that_wants_a_gradient_is_noticed():
    step = jit(lambda inputs: [t * 2 for t in inputs])
    inputs = [Tensor(random(4, seed=k)).realize() for k in range(20)]
    for _ in range(4):
        step(inputs)
    inputs[7].requires_grad = True
    assert all(not t.requires_grad for t in step(inputs)) and step.captures == 2


def test_results_of_lists_do_not_alias():
    step = jit(lambda inputs: [t * 2 for t in inputs])
    inputs = [Tensor(random(4, seed=k)).realize() for k in range(20)]
    held = [step(inputs) for _ in range(8)]
    for found in held:
        assert len({t.lazydata.storage.address for t in found}) == 20
    addresses = {t.lazydata.storage.address for found in held[2:] for t in found}
    assert len(addresses) == 20 * 6


def test_results_of_lists_that_are_held_keep_their_values():
    """Each call's third result is held and the others are not: those come back, this one does not."""
    step = jit(lambda inputs: [t * 2 for t in inputs])
    sets = [[Tensor(random(4, seed=20 * s + k)).realize() for k in range(20)] for s in range(2)]
    held, places = [], set()
    for call in range(12):
        found = step(sets[call % 2])
        places |= {t.lazydata.storage.address for t in found}
        held.append((found[2], sets[call % 2][2].numpy() * 2))
        del found
    assert steady(step) and len({t.lazydata.storage.address for t, _ in held}) == 12
    assert len(places) <= 20 * 5 + 12
    for got, want in held:
        np.testing.assert_array_equal(got.numpy(), want)


def test_a_tensor_in_a_list_that_died_is_not_taken_for_its_successor():
    step = jit(lambda inputs: [t * 2 for t in inputs])
    inputs = [Tensor(random(4, seed=k)).realize() for k in range(20)]
    for call in range(30):
        inputs[5] = None
        inputs[5] = Tensor(random(4, seed=100 + call)).realize()  # mostly where the last one lay
        assert np.array_equal(step(inputs)[5].numpy(), random(4, seed=100 + call) * 2)


def test_results_of_lists_that_are_overwritten_later():
    """A result that becomes a parameter, and is then written in place, leaves the spare ones."""
    step = jit(lambda inputs: [t * 2 for t in inputs])
    inputs = [Tensor(random(4, seed=k)).realize() for k in range(20)]
    parameter = Tensor(np.zeros(4, np.float32)).realize()

    @jit
    def add(x):
        parameter.assign(parameter + x).realize()

    for call in range(9):
        if call % 3 == 0:
            parameter = step(inputs)[call]
            expected = parameter.numpy()
        others = step(inputs)
        add(inputs[0])
        expected = expected + inputs[0].numpy()
        np.testing.assert_array_equal(parameter.numpy(), expected)
        for got, t in zip(others, inputs, strict=True):
            np.testing.assert_array_equal(got.numpy(), t.numpy() * 2)


def test_lists_in_threads_share_no_memory():
    step = jit(lambda inputs: [t * 2 for t in inputs])
    sets = [[Tensor(random(50, seed=20 * s + k)).realize() for k in range(20)] for s in range(4)]
    for inputs in sets:
        step(inputs)
    wrong = []

    def work(s: int) -> None:
        for _ in range(100):
            found = step(sets[s])
            if not all(np.array_equal(t.numpy(), random(50, seed=20 * s + k) * 2) for k, t in enumerate(found)):
                wrong.append(s)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_results_of_lists_are_seen_by_captures():
    """Tensors that were made at once are watched like others, as long as they live, and forgotten then."""
    step = jit(lambda inputs: [t * 2 for t in inputs])
    inputs = [Tensor(random(4, seed=k)).realize() for k in range(20)]
    for _ in range(4):
        step(inputs)
    before = len(handles.handles)
    for _ in range(100):
        step(inputs)
    assert len(handles.handles) <= before + 40
    held = step(inputs)
    assert sum([any(t is h for h in held) for t in handles.live()]) == 20
    kept, held = held[7], None
    for _ in range(100):
        step(inputs)
    assert kept in set(handles.live()) and len(handles.handles) <= before + 40 + 1
    move = jit(lambda x: kept.assign(kept + x).realize())
    expected = kept.numpy()
    for _ in range(5):
        move(inputs[0])
        expected = expected + inputs[0].numpy()
        np.testing.assert_array_equal(kept.numpy(), expected)
