"""Gradients against finite differences, on devices, of gradients, and the rules of backward()."""
import math
import weakref

import numpy as np
import pytest
from conftest import devices
from ops.batches import gradients_on
from ops.cases import CASES, Case, check_device_gradient, check_gradient

from minigrad import Tensor
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.scheduler.graph import build_graph

SMOOTH = [c for c in CASES if c.grad and any("float" in i.dtype for i in c.inputs)]


pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_first_order(case: Case) -> None:
    check_gradient(case)


@pytest.mark.parametrize("case", [c for c in SMOOTH if c.second], ids=str)
def test_second_order(case: Case) -> None:
    check_gradient(case, second=True)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_on_device(case: Case, device: str) -> None:
    check_device_gradient(case, gradients_on(case, device))


def grad_of(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad


def test_backward_accumulates_into_leaves() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = Tensor([3.0, 4.0])
    (x * y).sum().backward()
    (x * 2).sum().backward()
    assert grad_of(x).tolist() == [5.0, 6.0]
    assert y.grad is None


def test_equal_leaves_have_their_own_gradients() -> None:
    a, b = Tensor.zeros(2, requires_grad=True), Tensor.zeros(2, requires_grad=True)
    (a * 2 + b * 3).sum().backward()
    assert grad_of(a).tolist() == [2.0, 2.0]
    assert grad_of(b).tolist() == [3.0, 3.0]


def test_gradient_after_realize() -> None:
    x = Tensor([1.0, 2.0]) * 3
    x.requires_grad_()
    y = (x * x).sum()
    assert x.tolist() == [3.0, 6.0]
    y.realize()
    y.backward()
    assert grad_of(x).tolist() == [6.0, 12.0]


def test_detach_and_no_grad_stop_gradients() -> None:
    x = Tensor([2.0], requires_grad=True)
    (x * x.detach()).sum().backward()
    assert grad_of(x).tolist() == [2.0]
    with Tensor.no_grad():
        y = x * 2
        z = (y + 1).relu()
    assert not y.requires_grad and x.requires_grad
    w = Tensor([3.0], requires_grad=True)
    ((y + z) * w).sum().backward()
    assert grad_of(x).tolist() == [2.0] and grad_of(w).tolist() == [9.0]


def test_what_is_reached_without_gradients_gets_none() -> None:
    x, y = Tensor([2.0, 3.0], requires_grad=True), Tensor([1.0, 5.0], requires_grad=True)
    kept = (x * 2).detach() + (x > 2.5) + x.int() + x.argmax()
    (y * kept).sum().backward()
    assert x.grad is None and grad_of(y).tolist() == [7.0, 11.0]
    x.floor().sum().backward()
    assert grad_of(x).tolist() == [0.0, 0.0]
    with pytest.raises(MinigradError, match=r"\[backward\] expected a result of some tensor with requires_grad=True"):
        x.detach().sum().backward()
    with pytest.raises(MinigradError, match=r"\[gradient\] expected targets that the result was made from"):
        (y * kept).sum().gradient(x)
    assert (y * kept).sum().gradient(x, materialize_grads=True)[0].tolist() == [0.0, 0.0]


def test_gradient_of_intermediate_and_unused() -> None:
    x, z = Tensor([1.0, 2.0]), Tensor([5.0])
    y = x * 3
    dy, dx, dz = (y * y).sum().gradient(y, x, z, materialize_grads=True)
    assert dy.tolist() == [6.0, 12.0] and dx.tolist() == [18.0, 36.0] and dz.tolist() == [0.0]
    (seeded,) = y.gradient(x, gradient=Tensor([1.0, 10.0]))
    assert seeded.tolist() == [3.0, 30.0]


def test_assign_to_leaf_keeps_it_a_leaf() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    for _ in range(3):
        w.grad = None
        (w * w).sum().backward()
        w.assign(w - 0.5 * grad_of(w).detach())
    assert w.tolist() == [0.0, 0.0]
    (w + 1).sum().backward()


def test_ties_share_the_gradient() -> None:
    x = Tensor([1.0, 1.0, 0.0], requires_grad=True)
    x.max().backward()
    assert grad_of(x).tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_any_number_of_ties_share_the_gradient(dtype: str, device: str) -> None:
    """More than float16 counts to, too: 65,504."""
    for count in (3, 2049, 65_520, 140_000):
        for extreme in ("amax", "amin", "max", "min"):
            x = Tensor(np.full((1, count), 2), dtype=dtype, device=device, requires_grad=True)
            (getattr(x, extreme)() * 3).sum().backward()
            got = grad_of(x).float().numpy()
            np.testing.assert_allclose(got, 3 / count, {"float16": 5e-3, "bfloat16": 4e-3}.get(dtype, 1e-6))


def test_extreme_arguments_have_finite_gradients() -> None:
    x = Tensor([-200.0, 0.0, 200.0], requires_grad=True)
    (x.sigmoid() + x.silu() + x.softplus() + x.logsigmoid() + x.tanh()).sum().backward()
    assert np.isfinite(grad_of(x).numpy()).all()
    y = Tensor([[-1e4, 0.0, 1e4]], requires_grad=True)
    (y.softmax() + y.log_softmax()).sum().backward()
    assert np.isfinite(grad_of(y).numpy()).all()


def test_masked_rows_of_softmax() -> None:
    x = Tensor([[1.0, -math.inf, 2.0]], requires_grad=True)
    (x.softmax() * Tensor([[1.0, 2.0, 3.0]])).sum().backward()
    assert np.isfinite(grad_of(x).numpy()).all() and grad_of(x).numpy()[0, 1] == 0


def test_bad_targets() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"\[gradient\] expected an output of one element or a seed, got shape \[2\]"):
        (x * 2).gradient(x)
    with pytest.raises(DTypeError, match=r"\[gradient\] expected float tensors, got int32"):
        (x * 2).sum().gradient(Tensor([1, 2]))
    with pytest.raises(MinigradError, match=r"\[gradient\] expected targets that the result was made from"):
        (x * 2).sum().gradient(Tensor([1.0]))
    with pytest.raises(MinigradError, match=r"\[backward\] expected a result of some tensor with requires_grad=True"):
        x.sum().backward()
    with pytest.raises(DTypeError, match=r"\[requires_grad\] expected a float tensor, got int32"):
        Tensor([1], requires_grad=True)


def test_requires_grad_may_be_set_afterwards() -> None:
    x = Tensor([1.0, 2.0], device="CPU")
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]
    x.requires_grad = False
    assert not (x * 3).requires_grad
    with pytest.raises(DTypeError, match=r"expected a float tensor"):
        Tensor([1, 2]).requires_grad = True


def test_gradients_at_a_bound() -> None:
    """As in PyTorch: what is clipped at where it is keeps its gradient, activations have the one from the flat side."""
    start = [-2.0, -1.0, 0.0, 1.0, 2.0]
    for function, want in ((lambda x: x.clip(-1, 1), [0, 1, 1, 1, 0]), (lambda x: x.clip(None, x.detach()), [1] * 5),
                           (Tensor.sign, [0] * 5), (Tensor.hardtanh, [0, 0, 1, 0, 0]), (Tensor.relu, [0, 0, 0, 1, 1]),
                           (lambda x: x.leaky_relu(0.5), [0.5, 0.5, 0.5, 1, 1])):
        x = Tensor(start, requires_grad=True)
        function(x).sum().backward()
        assert grad_of(x).tolist() == want


@pytest.mark.parametrize("device", devices())
def test_gradients_of_nothing_are_zeros(device: str) -> None:
    """Where a batch has none of what a loss is about."""
    w = Tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    (w[w > 5].sum() * 2).backward()
    assert grad_of(w).tolist() == [0, 0, 0]
    (w[w > 5].mean() + w[w > 2].sum()).backward()
    assert grad_of(w).tolist() == [0, 0, 1]
    x = Tensor(np.zeros((0, 4), np.float32), device=device, requires_grad=True)
    (x.prod(0) * 3 + (x @ Tensor.ones(4, 2, device=device)).sum() + x.softmax().sum()).sum().backward()
    assert grad_of(x).shape == (0, 4)


def test_what_was_realized_and_detached_lets_go_of_what_it_was_made_from() -> None:
    """As losses that a loop keeps: they would keep every batch."""
    w = Tensor([1.0, 2.0], requires_grad=True)
    x = Tensor([3.0, 4.0]).realize()
    loss = (x * w).sum().realize()
    kept, batch = loss.detach(), weakref.ref(x.node)
    (gradient,) = loss.gradient(w)
    assert gradient.tolist() == [3, 4] and not kept.requires_grad
    del x, loss, gradient
    assert batch() is None and kept.item() == 11


@pytest.mark.parametrize("extreme", ["amax", "amin"])
def test_the_gradient_of_an_extreme_that_was_read(extreme: str) -> None:
    """What it was taken of is computed again for the gradient, in other kernels, which round otherwise."""
    data = np.random.default_rng(3).standard_normal((40, 33, 7))
    for kind in ("float32", "float64"):
        found = []
        for read in ("never", "before", "between"):
            x = Tensor(data, dtype=kind, device="CPU", requires_grad=True)
            y = getattr(x.layernorm(-1).exp().var(0), extreme)(-1)
            if read == "before":
                y.numpy()
            y.sum().backward()
            if read == "between":
                y.numpy()
            assert x.grad is not None
            found.append(x.grad.numpy())
        for other in found[1:]:
            np.testing.assert_allclose(other, found[0], rtol=1e-3, atol=1e-6)


def test_a_loop_with_a_state_and_updates_by_hand_has_graphs_of_one_step() -> None:
    """What a step hands to the next is realized at `detach`, and parameters at `backward`."""
    w, h = Tensor([[0.5, 0.1], [-0.3, 0.2]], requires_grad=True), Tensor([[1.0, 2.0]])
    theirs, state = np.array([[0.5, 0.1], [-0.3, 0.2]]), np.array([[1.0, 2.0]])
    sizes = []
    for _ in range(6):
        before = h.detach()
        h = (before @ w).tanh()
        loss = (h * h).sum()
        loss.backward()
        sizes.append(len(build_graph([loss.node]).nodes))
        assert w.grad is not None
        w.data.add_(w.grad, alpha=-0.1)
        w.grad = None
        new = np.tanh(state @ theirs)
        np.testing.assert_allclose(loss.item(), (new * new).sum(), rtol=1e-5)
        theirs = theirs - 0.1 * state.T @ (2 * new * (1 - new * new))
        state = new
    assert len(set(sizes[2:])) == 1
    np.testing.assert_allclose(w.numpy(), theirs, rtol=1e-5)
