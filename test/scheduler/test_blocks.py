"""Blocks: a function of Tensors as one Node per result is what its operations are, differentiated or not."""
# mypy: disable-error-code="misc, union-attr"
import gc
import inspect
from collections.abc import Callable

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, Variable, jit, nn, optim
from minigrad.config import config
from minigrad.errors import InternalError, ShapeError
from minigrad.graph import blocks
from minigrad.handles import live
from minigrad.mixins.blocks import as_block
from minigrad.ops.node import live_count, toposort


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    h = (x * y).tanh()
    return h.sum(0) * x, h + 2 * y.exp()


def as_operations(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return mixed(x, y)


def as_nodes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return as_block("mixed", 0, mixed, x, y)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_blocks_are_their_operations_forward_and_twice_backward(device: str, used: tuple[int, ...]):
    found = []
    with config(device=device):
        for function in (as_operations, as_nodes):
            x, y = numbers(3, 5).requires_grad_(), numbers(3, 5, seed=1).requires_grad_()
            results = function(x, y)
            total = sum([(results[k] * results[k]).sum() for k in used])
            first = total.gradient(x, y)
            second = sum([(g * g).sum() for g in first]).gradient(x, y)
            found.append([t.numpy() for t in (*results, *first, *second)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("y", [lambda x: x, lambda x: x * 1, lambda x: Tensor.ones(3, 5), lambda x: x.exp()])
def test_operands_that_are_equal_or_made_of_each_other_have_gradients_of_their_own(y):
    found = []
    for function in (as_operations, as_nodes):
        x = numbers(3, 5).requires_grad_()
        results = function(x, y(x))
        gradient, = sum([r.sum() for r in results]).gradient(x)
        found.append([gradient.numpy(), *[r.numpy() for r in results]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_backward_of_what_is_made_of_several_results(used: tuple[int, ...]):
    found = []
    for function in (as_operations, as_nodes):
        x, y = numbers(3, 5).requires_grad_(), numbers(3, 5, seed=1).requires_grad_()
        results = function(x.exp(), y)
        sum([(results[k] * results[k]).sum() for k in used]).backward()
        found.append([x.grad.numpy(), y.grad.numpy()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("results", [1, 2])
@pytest.mark.parametrize("backward", [False, True])
def test_no_gradient_goes_through_a_detached_block(results: int, backward: bool):
    x = numbers(3, 5).requires_grad_()
    made = as_block("detached", results, lambda x, y: mixed(x, y)[:results], x * 2, x, detached=True)
    assert not any(t.requires_grad for t in made)
    total = sum([(t * x).sum() for t in made])
    gradient = total.backward() and x.grad if backward else total.gradient(x)[0]
    np.testing.assert_allclose(gradient.numpy(), sum([t.numpy() for t in made]), rtol=1e-6)


def test_running_statistics_move_with_no_gradient():
    """What is normalised by them before they are computed has the gradient of the values alone."""
    x, norm = numbers(8, 3).requires_grad_(), nn.BatchNorm1d(3)
    norm.train()(x)
    mean, var = norm.running_mean, norm.running_var
    norm.eval()(x).square().sum().backward()
    deviation = (x - mean).numpy()
    np.testing.assert_allclose(x.grad.numpy(), 2 * deviation / (var.numpy() + norm.eps), rtol=1e-5)


def test_a_step_of_a_known_block_makes_a_node_per_result():
    x, y = numbers(3, 5), numbers(3, 5, seed=1)
    as_nodes(x, y)
    before = live_count()
    made = as_nodes(x * 2, y)
    assert live_count() - before <= 6
    assert len(toposort(*[t.node for t in made])) == 8  # x, 2 repeated, x * 2, y, the call and its results


def test_equal_functions_are_one_block_and_other_types_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocks, "_blocks", {})
    x = numbers(4)
    as_block("twice", 1, lambda t: (t * 2,), x)
    count = len(blocks._blocks)
    as_block("twice", 1, lambda t: (t * 2,), numbers(4, seed=3))
    assert len(blocks._blocks) == count
    as_block("twice", 1, lambda t: (t * 2,), numbers(5))
    as_block("twice", 2, lambda t: (t + t,), x)
    assert len(blocks._blocks) == count + 2


def test_blocks_over_symbolic_dims_are_their_operations():
    n = Variable("n", 1, 8).bind(3)
    x = numbers(8)[:n]
    y, = as_block("twice", 1, lambda t: (t * 2,), x)
    np.testing.assert_array_equal(y.numpy(), x.numpy() * 2)


@pytest.mark.parametrize("device", devices())
def test_gradients_follow_a_symbolic_number_to_its_next_value(device: str):
    """Its value is in no key: a graph that is equal but for it has its own gradients."""
    with config(device=device):
        x = Tensor(np.ones(4, np.float32), requires_grad=True)
        for value in (3, 5, 2):
            x.grad = None
            (x * Variable("n", 1, 8).bind(value)).sum().backward()
            np.testing.assert_array_equal(np.asarray(x.grad), np.full(4, value, np.float32))


def test_functions_that_read_others_than_their_operands_are_refused():
    beside = numbers(4).realize()
    with pytest.raises(InternalError, match=r"block beside.*operands"):
        as_block("beside", 0, lambda t: (t + beside,), numbers(4, seed=1))


def test_what_a_function_raises_leaves_no_operands_behind():
    """The error is that of the operands themselves, and those that stand for them are gone: nobody realizes them."""
    w = numbers(3).requires_grad_().realize()
    o = optim.SGD([w], lr=0.1)
    with pytest.raises(ShapeError, match=r"prelu.*got \[2, 3, 6, 5\]") as kept:
        numbers(2, 3, 6, 5).prelu(numbers(2, 3, 6, 5))
    (w * w).sum().backward()
    o.step()
    assert all(t.node.storage is not None or t.node.inputs for t in live())
    assert kept.value.__context__ is None


def test_operands_are_not_kept():
    x = numbers(1000)
    y, = as_block("kept", 0, lambda t: (t.exp(),), x)
    from weakref import ref

    node = ref(x.node)
    y.realize()
    del x, y
    gc.collect()
    assert node() is None


@needs_torch
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_through_both_results_of_recurrent_layers_are_torchs(kind: str, bidirectional: bool):
    import torch

    theirs = getattr(torch.nn, kind)(5, 7, num_layers=2, bidirectional=bidirectional)
    ours = getattr(nn, kind)(5, 7, num_layers=2, bidirectional=bidirectional)
    ours.load_state_dict({k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    a, b = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)

    def loss(output, last):
        states = last if isinstance(last, tuple) else (last,)
        return (output * output).sum() + sum([(k + 2) * (s * s * s).sum() for k, s in enumerate(states)])

    loss(*ours(a)).backward()
    loss(*theirs(b)).backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-5)
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(dict(ours.named_parameters())[name].grad.numpy(), p.grad.numpy(), rtol=1e-4,
                                   atol=1e-5, err_msg=name)


@pytest.mark.parametrize("make", [lambda p: optim.Adam(p, lr=0.1), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)])
def test_options_that_change_between_steps_count(make):
    """Eager steps see another option at once, and captured ones equal them."""
    results = []
    for captured in (False, True):
        x = Tensor([1.0, -2.0, 3.0], requires_grad=True)
        o = make([x])

        def step(x=x, o=o):
            o.zero_grad()
            (x * x).sum().backward()
            o.step()
            return x.sum()

        run = jit(step) if captured else step
        for k in range(6):
            o.weight_decay = 0.0 if k < 3 else 0.5
            run()
        results.append(x.numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    name: kind for name in optim.__all__ if isinstance(kind := getattr(optim, name), type)
    and issubclass(kind, optim.Optimizer) and kind not in (optim.Optimizer, optim.OptimizerGroup, optim.LBFGS)}


OPTIONS = {"maximize": True, "weight_decay": 0.01, "momentum": 0.9, "dampening": 0.1, "amsgrad": True, "centered": True,
           "lr_decay": 0.1}


@pytest.mark.parametrize("further", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_every_optimizer_are_one_block(name: str, further: bool):
    """It has the numbers of its operations, and makes a Node and an assign for each Tensor that changes."""
    taken = inspect.signature(OPTIMIZERS[name].__init__).parameters
    options = {n: v for n, v in OPTIONS.items() if further and n in taken}
    found = []
    with config(device="NUMPY"):
        for whole in (True, False):
            p, q = numbers(3, 5).requires_grad_(), numbers(4, 3, seed=1).requires_grad_()
            o = OPTIMIZERS[name]([p, q], lr=0.1, **options)
            with pytest.MonkeyPatch.context() as patch:
                if not whole:
                    patch.setattr("minigrad.optim.optimizer.block", lambda name, key, body, operands, detached: body(
                        *[n if n.storage is not None else Tensor._wrap(n).realize().node for n in operands]))
                for step in range(4):
                    o.zero_grad()
                    (p.square().sum() + (q.sum() if step % 2 else 0)).backward()
                    changed = o.schedule_step()
                    if whole and step == 3:
                        made = [n for n in toposort(*[t.node for t in changed]) if n.storage is None]
                        updates = [n for n in made if n.op.name.startswith(f"{name.lower()}.")]
                        assigns = [n for n in made if n.op.name == "assign"]
                        assert len(updates) == len(assigns) + 1
                    Tensor.realize(*changed)
            found.append([t.numpy() for t in changed])
    for one, made in zip(*found, strict=True):
        np.testing.assert_array_equal(one, made)


ONE_NODE: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(Tensor, name) for name in (
        "relu", "relu6", "gelu", "quick_gelu", "softplus", "logsigmoid", "softsign", "mish", "hardtanh", "hardsigmoid",
        "hardswish", "leaky_relu", "elu", "selu", "celu", "tanhshrink", "hardshrink", "softshrink")},
    "upsampled": lambda x: x.interpolate(scale_factor=1.5, mode="bilinear"),
    "upsampled to a size": lambda x: x.interpolate((9, 4), "nearest"),
    "reflected": lambda x: x.pad((1, 2, 0, 3), "reflect"), "circular": lambda x: x.pad((2, 1), "circular"),
    "adaptive maxima": lambda x: x.adaptive_max_pool2d((4,)),
    "sloped": lambda x: x.prelu(numbers(3)),
    "transposed": lambda x: x.conv_transpose2d(numbers(3, 2, 3, 3), groups=1, stride=2, bias=numbers(2)),
    "adaptive means": lambda x: x.adaptive_avg_pool2d((7,)),
    "linear": lambda x: nn.functional.linear(x, numbers(4, 5), bias=numbers(4)),
    "layer norm": lambda x: nn.functional.layer_norm(x, (6, 5), numbers(6, 5), numbers(6, 5, seed=1)),
    "rms norm": lambda x: nn.functional.rms_norm(x, (5,), numbers(5)),
    "group norm": lambda x: nn.functional.group_norm(x, 3, numbers(3), numbers(3, seed=1)),
    "batch norm": lambda x: x.batchnorm_train(numbers(3), numbers(3, seed=1))[0],
    "running statistics": lambda x: nn.functional.batch_norm(x, numbers(3), numbers(3).exp().realize(), numbers(3)),
    "gated": lambda x: x.glu(2),
    "cross entropy": lambda x: nn.functional.cross_entropy(x, Tensor(np.arange(60).reshape(2, 6, 5) % 3)),
    "local response": lambda x: nn.functional.local_response_norm(x, 3)}


@pytest.mark.parametrize("name", ONE_NODE)
def test_a_method_is_one_node_with_the_numbers_of_what_it_is_made_of(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, function = rng.standard_normal((2, 3, 6, 5)).astype(np.float32), ONE_NODE[name]
    found = []
    for whole in (True, False):
        if not whole:
            monkeypatch.setattr("minigrad.mixins.blocks.as_block",
                                lambda name, key, body, *operands: tuple(body(*operands)))
        with config(device="NUMPY"):
            x = Tensor(values, requires_grad=True)
            y = function(x)
            assert (sum(n.storage is None for n in toposort(y.node)) == 1) is whole
            g, = (y * y).sum().gradient(x)
            found.append((y.numpy(), g.numpy()))
    for one, made in zip(*found, strict=True):
        np.testing.assert_array_equal(one, made)


def test_arguments_of_one_node_that_are_equal_and_not_the_same() -> None:
    """1, 1.0 and True, 0.0 and -0.0 are other arguments; Tensors among them are operands of what it is made of."""
    x = Tensor([-3, 0, 2], device="NUMPY")
    assert x.threshold(1, 0).dtype.is_int and x.threshold(1, 0.0).dtype.is_float
    assert x.threshold(1, 0).dtype.is_int
    signs = [np.signbit(Tensor([-1.0], device="NUMPY").threshold(0, zero).numpy())[0] for zero in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]
    slope = Tensor(0.5, device="NUMPY", requires_grad=True)
    x.float().leaky_relu(slope).sum().backward()
    assert slope.grad is not None and slope.grad.item() == -3
