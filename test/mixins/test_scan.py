"""`minigrad.scan`: loops with a carried state against loops of Python and torch, forwards, backwards and captured."""
# mypy: disable-error-code="arg-type,attr-defined,return-value,union-attr"
from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, needs_torch, one_in
from support.scans import LOOPS, Loop, scanned, tensors, unrolled, weighted

import minigrad
from minigrad import Tensor, Variable, jit, nn, scan
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.passes import stages_of
from minigrad.engine.compiled import plans
from minigrad.engine.show import scheduled
from minigrad.engine.transfer import download
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.ops.node import toposort
from minigrad.ops.op import Scan
from minigrad.scheduler.graph import build_graph

try:
    import torch
except ImportError:
    torch = None

NAMES = [loop.name for loop in LOOPS]
DEVICES = devices()
QUICK = [name for name in DEVICES if name in ("CPU", "NUMPY")]
"""Those whose compilers are."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loop", LOOPS, ids=NAMES)
@one_in(2, CPU_DRIVERS)
def test_results_are_those_of_a_loop(loop: Loop, device: str) -> None:
    for length, reverse in ((7, False), (4, True), (1, False))[:3 if device in QUICK else 1]:
        arrays = loop.arrays(length)
        with Tensor.no_grad():
            made = scanned(loop, *tensors(arrays, device), reverse=reverse)
            wanted = unrolled(loop, tensors(arrays, "NUMPY"), lambda parts: Tensor.stack(*parts), reverse)
        assert len(made) == len(wanted)
        for a, b in zip(made, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


@needs_torch
@pytest.mark.parametrize("loop, device", [
    pytest.param(loop, d, id=f"{loop.name}-{d}") for loop in LOOPS for d in DEVICES
    if d in QUICK or loop.name in ("delta", "lstm")])
def test_gradients_are_those_of_torch(loop: Loop, device: str) -> None:
    for length, reverse in ((5, False), (3, True))[0 if device in QUICK else 1:]:
        arrays = loop.arrays(length, seed=1)
        ours = tensors(arrays, device)
        found = weighted(scanned(loop, *ours, reverse=reverse)).gradient(*[t for group in ours for t in group])
        theirs = [[torch.tensor(a.astype(np.float64), requires_grad=True) for a in group] for group in arrays]
        weighted(unrolled(loop, theirs, torch.stack, reverse)).backward()
        for a, b in zip(found, [t for group in theirs for t in group], strict=True):
            np.testing.assert_allclose(a.numpy(), b.grad.numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name, factors, added", [("rnn", 1, ()), ("lstm", 1, ()), ("mamba", 0, ((3, 4),))])
def test_gradients_of_what_all_steps_read_are_made_after_the_loop(name: str, factors: int, added: Any) -> None:
    """A weight's is one product over all steps of the states and what the loop gives by step."""
    loop = next(x for x in LOOPS if x.name == name)
    state, slices, rest = tensors(loop.arrays(3), "CPU")
    last = scanned(loop, state, slices, rest)[0]
    body = next(n for n in toposort(last.node) if type(n.op.lower) is Scan).op.lower.body
    body.gradients.clear()
    weighted(scanned(loop, state, slices, rest)).gradient(*rest)
    back, = body.gradients.values()
    assert len(back.factors) == factors and tuple(n.shape for n in back.added) == added


@pytest.mark.parametrize("device", QUICK)
def test_gradients_of_gradients(device: str) -> None:
    loop = next(x for x in LOOPS if x.name == "rnn")
    arrays = loop.arrays(4)

    def twice(run: Any) -> np.ndarray:
        state, slices, rest = tensors(arrays, device)
        first, = weighted(run(state, slices, rest)).gradient(rest[0])
        second, = (first * first).sum().gradient(slices[0])
        return second.numpy()

    ours = twice(lambda *groups: scanned(loop, *groups))
    np.testing.assert_allclose(ours, twice(lambda *groups: unrolled(loop, groups, lambda p: Tensor.stack(*p))),
                               rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_in_jit(device: str) -> None:
    loop = next(x for x in LOOPS if x.name == "delta")

    @jit
    def run(state: Any, slices: Any) -> Any:
        return scanned(loop, state, slices, ())

    for seed in range(4):
        arrays = loop.arrays(6, seed)
        state, slices, _ = tensors(arrays, device)
        wanted = scanned(loop, *tensors(arrays, "NUMPY"))
        for a, b in zip(run(state, slices), wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["delta", "lstm"])
@one_in(2, CPU_DRIVERS)
def test_twenty_lengths_in_jit_are_one_plan(name: str, device: str) -> None:
    loop = next(x for x in LOOPS if x.name == name)
    n, traced = Variable("n", 1, 20), list[int]()

    @jit
    def run(state: Any, slices: Any, rest: Any) -> Any:
        traced.append(1)
        made = scanned(loop, state, slices, rest)
        return made, weighted(made[:-1]).gradient(*state, *rest)

    for length in (3, 20, 1, *range(2, 19)):
        known = len(traced), len(plans)
        state, slices, rest = tensors(loop.arrays(20, length), device)
        made, slopes = run(state, [x[:n.bind(length)] for x in slices], rest)
        found = [*[t.numpy() for t in made[:-1]], made[-1].numpy()[:length], *[t.numpy() for t in slopes]]
        if length not in (3, 20, 1) and device != "NUMPY":
            assert known == (len(traced), len(plans))
        if length in (20, 1, 7):
            state, slices, rest = tensors(loop.arrays(20, length), "NUMPY")
            made = scanned(loop, state, [x[:length] for x in slices], rest)
            wanted = [*made, *weighted(made[:-1]).gradient(*state, *rest)]
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=2e-5)


WIDE = replace(next(x for x in LOOPS if x.name == "delta"), name="wide", state=((2, 16, 32),),
               slices=((2, 16), (2, 16), (2, 32), (2,), (2,)))


@pytest.mark.parametrize("loop, device", [
    pytest.param(loop, d, id=f"{loop.name}-{d}") for loop in (*LOOPS, WIDE) for d in DEVICES
    if d in QUICK or loop.name in ("wide", "lstm")])
def test_steps_by_a_state_that_is_kept(loop: Loop, device: str) -> None:
    """As a model decodes: each call of the jit goes on from the state that the last one left in its buffers."""
    arrays = loop.arrays(6)
    given, slices, rest = tensors(arrays, device)
    state = [t.detach().clone().realize() for t in given]

    @jit
    def step(*xs: Tensor) -> list[Tensor]:
        made = scanned(loop, state, xs, rest)
        for old, new in zip(state, made, strict=False):
            old.assign(new)
        return made[len(state):]

    with Tensor.no_grad():
        parts = [[t.numpy() for t in step(*[x[t:t + 1].realize() for x in slices])] for t in range(5)]
        last = [x[5:6].realize() for x in slices]
        with minigrad.profile() as ran:
            parts.append([t.numpy() for t in step(*last)])
        wanted = scanned(loop, *tensors(arrays, "NUMPY"))
    found = [*[t.numpy() for t in state], *[np.concatenate(p) for p in zip(*parts, strict=True)]]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-5)
    if loop is WIDE and device != "NUMPY":
        assert [r.name for r in ran.runs] == ["scan"]


@pytest.mark.parametrize("device", [name for name in DEVICES if name != "NUMPY"])
@pytest.mark.parametrize("name", ["delta", "mamba", "sums", "convolution", "rnn", "lstm"])
def test_a_loop_is_one_launch_that_means_what_its_kernel_says(name: str, device: str) -> None:
    loop = next(x for x in LOOPS if x.name == name)
    arrays = loop.arrays(5)
    with Tensor.no_grad():
        results = scanned(loop, *tensors(arrays, device))
    made = scheduled(results)
    assert made is not None
    steps = [s.kernel for s in made[0].steps if s.kernel.block is not None]
    assert len(made[0].steps) == len(steps) == 1
    stage, = stages_of(steps[0], made[1]).stages
    graph = build_graph([r.node for r in results])
    values = {p.name: np.zeros([int(e) for e in p.shape], p.dtype.np) for p in steps[0].params}
    for p, slot in zip(steps[0].params, made[0].steps[0].values, strict=True):
        leaf = made[0].slots[slot].leaf
        if leaf is not None:
            values[p.name] = download(graph.nodes[leaf])
    scalars = {s.name: float(v) for s, v in zip(steps[0].scalars, made[0].steps[0].scalars, strict=True)}
    flat = {k: v.reshape(-1).copy() for k, v in values.items()}
    interpret_kernel(steps[0], values, scalars)
    interpret_function(stage.function, flat, scalars)
    for k, result in enumerate(results):
        slot = made[0].outputs[k]
        name_of = next(p.name for p, s in zip(steps[0].params, made[0].steps[0].values, strict=True) if s == slot)
        for found in (values[name_of], flat[name_of].reshape(result.shape)):
            np.testing.assert_allclose(found, result.numpy(), rtol=2e-5, atol=2e-5)


def random_step(rng: np.random.Generator) -> Loop:
    """A loop whose step is made of random operations on two carries [2, 3] and a slice [2, 3]."""
    binary = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a.maximum(b), lambda a, b: (a > b).where(a, b * 0.5)]
    unary = [lambda a: a.tanh(), lambda a: a.sigmoid(), lambda a: a - a.mean(-1, keepdim=True), lambda a: a.flip(0),
             lambda a: a.sum(0, keepdim=True).tanh().expand(2, 3), lambda a: a.softmax(-1),
             lambda a: a[:, 1:].pad((0, 1))]
    order = [(int(rng.integers(2)), rng.integers(100, size=3)) for _ in range(int(rng.integers(2, 9)))]

    def step(state: Any, slices: Any, rest: Any) -> Any:
        known = [*state, *slices]
        for kind, (f, a, b) in order:
            x, y = known[a % len(known)], known[b % len(known)]
            known.append(binary[f % len(binary)](x, y) if kind else unary[f % len(unary)](x))
        return (known[-1].tanh(), known[-2].tanh()), (known[-1].sum(), known[-3])

    return Loop("random", step, ((2, 3), (2, 3)), ((2, 3),))


@pytest.mark.parametrize("device, seed", [
    (d, s) for d in DEVICES if d != "NUMPY" for s in range(12 if d == "CPU" else 1)])
def test_random_steps(device: str, seed: int) -> None:
    loop = random_step(np.random.default_rng(seed))
    arrays = loop.arrays(4, seed)
    results = {}
    for place in (device, "NUMPY"):
        groups = tensors(arrays, place)
        made = scanned(loop, *groups, reverse=bool(seed % 2))
        slopes = weighted(made).gradient(*groups[0], *groups[1])
        results[place] = [t.numpy() for t in (*made, *slopes)]
    wanted = unrolled(loop, tensors(arrays, "NUMPY"), lambda parts: Tensor.stack(*parts), bool(seed % 2))
    for a, b in zip(results["NUMPY"], wanted, strict=False):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)
    for a, b in zip(results[device], results["NUMPY"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(b).max())))  # sums cancel


def test_training_a_layer_by_backward() -> None:
    layer = nn.Linear(8, 4)
    x = Tensor(np.random.default_rng(0).standard_normal((6, 2, 4)).astype(np.float32))

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, None]:
        return layer(x.cat(h, dim=-1)).tanh(), None

    h, nothing = scan(step, Tensor.zeros(2, 4), x)
    assert nothing is None
    h.square().sum().backward()
    found = layer.weight.grad.numpy(), layer.bias.grad.numpy()
    layer.weight.grad = layer.bias.grad = None
    h = Tensor.zeros(2, 4)
    for t in range(6):
        h, _ = step(h, x[t])
    h.square().sum().backward()
    np.testing.assert_allclose(found[0], layer.weight.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[1], layer.bias.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_no_gradient_goes_through_what_is_detached_or_not_recorded() -> None:
    x, h = Tensor([1.0, 2.0, 3.0], requires_grad=True), Tensor(0.5, requires_grad=True)
    w = Tensor(3.0, requires_grad=True)
    last, _ = scan(lambda h, x: (h.detach() * 2 + x * w, None), h, x)
    slope = [g.item() for g in last.gradient(h, w)]
    assert slope == [0.0, 3.0]

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, None]:
        with Tensor.no_grad():
            before = h * 2
        return before + x * w, None

    assert [g.item() for g in scan(step, Tensor(0.5), x)[0].gradient(w)] == [3.0]
    with Tensor.no_grad():
        assert not scan(lambda h, x: (h * w, h), h, x)[0].requires_grad


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize("device", QUICK)
def test_trees_axes_and_types(device: str) -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=device)
    steps = Tensor(np.arange(8, dtype=np.int32).reshape(2, 4), device=device)
    init = {"pair": Pair(Tensor.zeros(3, device=device), Tensor.ones(2, dtype="int32", device=device)), "none": None,
            "list": [Tensor.zeros(3, dtype="float16", device=device)]}

    def step(carry: Any, x: Any) -> Any:
        pair = carry["pair"]
        assert type(pair) is Pair and x[0].shape == (3,) and x[1].shape == (2,)
        pair = Pair(pair.first + x[0], pair.second + x[1] * 2)
        carry = {"pair": pair, "none": None, "list": [(carry["list"][0] + x[0] / 3).half()]}
        return carry, {"sum": pair.first, "even": (pair.second % 2).eq(0)}

    carry, ys = scan(step, init, (x, steps), dim=1)
    first = np.cumsum(x.numpy(), 1)
    np.testing.assert_array_equal(ys["sum"].numpy(), first)
    np.testing.assert_array_equal(carry["pair"].second.numpy(), 1 + 2 * steps.numpy().sum(1))
    assert ys["even"].dtype is minigrad.dtypes.bool_ and not ys["even"].numpy().any()
    half = np.zeros(3, np.float16)
    for t in range(4):
        half = (half.astype(np.float32) + x.numpy()[:, t] / 3).astype(np.float16)
    np.testing.assert_array_equal(carry["list"][0].numpy(), half)
    assert carry["none"] is None and type(carry["pair"]) is Pair
    _, ys = scan(lambda c, x: (c, x.unsqueeze(0) * c), Tensor(2.0, device=device), x, dim=-1)
    assert ys.shape == (1, 3, 4) and np.array_equal(ys.numpy()[0], x.numpy() * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths(device: str) -> None:
    total, ys = scan(lambda c, _: (c + 1, c * c), Tensor(1, device=device), length=5)
    assert total.item() == 6 and ys.tolist() == [1, 4, 9, 16, 25]
    total, ys = scan(lambda c, x: (c + x, c), Tensor(1.0, device=device), Tensor.zeros(0, device=device))
    assert total.item() == 1 and ys.shape == (0,)
    none, ys = scan(lambda c, x: (c, x * 2), None, Tensor([1.0, 2.0], device=device))
    assert none is None and ys.tolist() == [2.0, 4.0]
    flat, _ = scan(lambda c, x: (c + x, c), Tensor.zeros(3, 0, device=device), Tensor.zeros(2, 3, 0, device=device))
    assert flat.shape == (3, 0) and flat.numpy().size == 0


@pytest.mark.parametrize("device", QUICK)
def test_nested(device: str) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), device=device, requires_grad=True)

    def outer(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        last, ys = scan(lambda c, v: ((c * v).sin() * carry, c + v), carry, row)
        return last, ys.sum()

    carry, ys = scan(outer, Tensor(0.3, device=device), x)
    c, sums = Tensor(0.3, device=device), []
    for row in x:
        total, start = Tensor(0.0, device=device), c
        for v in row:
            total, c = total + c + v, (c * v).sin() * start
        sums.append(total)
    np.testing.assert_allclose(ys.numpy(), Tensor.stack(*sums).numpy(), rtol=1e-5, atol=1e-6)
    ours, = (ys.sin().sum() + carry).gradient(x)
    theirs, = (Tensor.stack(*sums).sin().sum() + c).gradient(x)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_what_the_function_uses_besides_is_computed_once() -> None:
    x = Tensor.ones(3, 4)
    calls: list[int] = []

    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return carry + x, Tensor.rand(4)

    _, noise = scan(step, Tensor.zeros(4), x)
    found = noise.numpy()
    assert len(calls) == 1 and np.array_equal(found[0], found[2]) and len(set(found[0])) == 4


ONE = Tensor.ones(3)


@pytest.mark.parametrize("call, error, message", [
    (lambda: scan(lambda c, x: c, ONE, ONE), MinigradError, r"function\(carry, x\) to give \(carry, y\), got a Tensor"),
    (lambda: scan(lambda c, x: (c, c, x), ONE, ONE), MinigradError, r"to give \(carry, y\), got a tuple of 3"),
    (lambda: scan(lambda c, x: ((c, c), x), ONE, ONE), MinigradError, r"of init, a Tensor, got a tuple of 2"),
    (lambda: scan(lambda c, x: ({"b": c["a"]}, x), {"a": ONE}, ONE), MinigradError,
     r"carry like that of init, a dictionary of 'a', got a dictionary of 'b'"),
    (lambda: scan(lambda c, x: ((c[0], None), x), (ONE, ONE), ONE), MinigradError, r"carry\[1\] .* a Tensor, got None"),
    (lambda: scan(lambda c, x: ({"a": [c["a"][0].sum()]}, x), {"a": [ONE]}, ONE), ShapeError,
     r"carry\['a'\]\[0\] as float32\[3\], like that of init, got float32\[\]"),
    (lambda: scan(lambda c, x: (c + x, None), Tensor.zeros(3, dtype="int32"), ONE), DTypeError,
     r"carry as int32\[3\], like that of init, got float32\[3\]; cast one of them"),
    (lambda: scan(lambda c, x: (c, 3), ONE, ONE), DTypeError, r"y = int"),
    (lambda: scan(lambda c, x: (c, x), 1.0, ONE), DTypeError, r"init = float"),
    (lambda: scan(lambda c, x: (c, x), ONE), ShapeError, r"expected xs or a length, got neither"),
    (lambda: scan(lambda c, x: (c, x), None, None), MinigradError, r"expected Tensors in init or xs, got none"),
    (lambda: scan(lambda c, x: (c, x), ONE, ONE, length=2), ShapeError, r"length with 2 and xs with 3"),
    (lambda: scan(lambda c, x: (c, x), ONE, length=-1), ShapeError, r"a length of 0 or more, got -1"),
    (lambda: scan(lambda c, x: (c, x), ONE, (ONE, Tensor.ones(4))), ShapeError, r"xs\[0\] with 3 and xs\[1\] with 4"),
    (lambda: scan(lambda c, x: (c, x), ONE, Tensor(1.0)), ShapeError, r"an axis 0 to cut, got xs of shape \[\]"),
    (lambda: scan(lambda c, x: (c, x), ONE, ONE, dim=1), ShapeError, r"\[scan\]"),
    (lambda: scan(lambda c, x: (c * c.sum().item(), x), ONE, ONE), MinigradError, r"reads no values of its carry"),
    (lambda: scan(lambda c, x: (c if x > 0 else -c, x), ONE, ONE), MinigradError, r"reads no values of its carry"),
    (lambda: scan(lambda c, x: (c, x), Tensor.ones(Variable("n", 1, 9).bind(3)), ONE), ShapeError,
     r"expected a known shape of a step, got \[n\] of init"),
    (lambda: scan(lambda c, x: (c, x), ONE, Tensor.ones(3, device="NUMPY")), MinigradError, r"got xs on NUMPY"),
])
def test_mistakes(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as found:
        call()
    assert str(found.value).startswith("[scan]")


def test_what_leaks_out_of_the_function_is_refused_where_it_is_used() -> None:
    kept: list[Tensor] = []

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        kept.append(c + x)
        return c, x

    scan(step, Tensor(1.0), ONE)
    with pytest.raises(MinigradError, match="gives all that it computes as its results"):
        kept[0].numpy()
    with pytest.raises(MinigradError, match="gives all that it computes as its results"):
        scan(lambda c, x: (c + kept[0], x), Tensor(1.0), ONE)[0].item()
