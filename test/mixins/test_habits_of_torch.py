"""What programs written for PyTorch do besides calling operations: parameters without gradients, frozen and unfrozen
ones, `.data`, modes of single layers, averages of lists."""
# mypy: disable-error-code="arg-type,attr-defined,call-arg,union-attr"
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.optim import BIAS, CASES, INPUTS, WEIGHT, loss_of

from minigrad import Tensor, jit, nn
from minigrad.errors import DeviceError, DTypeError, MinigradError

torch = pytest.importorskip("torch", reason="torch is the second opinion here")


pytestmark = pytest.mark.usefixtures("on_cpu")


def test_a_parameter_without_a_gradient_is_left_as_it_is() -> None:
    """With its momentum and its count of steps, by each optimizer; captured steps are made anew for others."""
    for name in ("sgd momentum", "adam weight decay", "nadam", "radam", "adamax", "rmsprop momentum"):
        kind, theirs, options = CASES[name]
        for captured in (False, True):
            mine: list[Any] = [Tensor(a, requires_grad=True) for a in (WEIGHT, BIAS)]
            reference = [torch.tensor(a, requires_grad=True) for a in (WEIGHT, BIAS)]
            ours, other = kind(mine, **options), getattr(torch.optim, theirs)(reference, **options)

            def step(x: Any, optimizer: Any, parameters: Any, both: bool) -> None:
                optimizer.zero_grad()
                weight, bias = parameters
                loss_of(x, weight, bias if both else 0.0).backward()
                optimizer.step()

            run = jit(lambda x, both: step(x, ours, mine, both)) if captured else (  # noqa: B023
                lambda x, both: step(x, ours, mine, both))  # noqa: B023
            for both in (True, True, False, False, True, False, True, True):
                run(Tensor(INPUTS), both)
                step(torch.tensor(INPUTS), other, reference, both)
            for p, q in zip(mine, reference, strict=True):
                np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=name)
            if "step" in ours.state_names:
                assert [ours.state[p]["step"].item() for p in mine] == [8, 5]


def test_states_with_counts_of_their_own_are_loaded() -> None:
    """Of PyTorch, where a parameter that never had a gradient has no state at all."""
    for kind in ("Adam", "NAdam", "SGD"):
        options = {"momentum": 0.5} if kind == "SGD" else {}
        reference = [torch.tensor(a, requires_grad=True) for a in (WEIGHT, BIAS, BIAS * 2)]
        other = getattr(torch.optim, kind)(reference, lr=0.1, **options)
        mine: list[Any] = [Tensor(a, requires_grad=True) for a in (WEIGHT, BIAS, BIAS * 2)]
        ours = getattr(nn.optim, kind)(mine, lr=0.1, **options)

        def steps(parameters: Any, optimizer: Any, counts: tuple[int, int, int]) -> None:
            for k in range(max(counts)):
                optimizer.zero_grad()
                sum((p * p * p).sum() for p, n in zip(parameters, counts, strict=True) if k < n).backward()
                optimizer.step()

        steps(reference, other, (3, 2, 0))
        ours.load_state_dict({**other.state_dict(), "state": {
            k: {n: Tensor(np.asarray(v)) for n, v in s.items()} for k, s in other.state_dict()["state"].items()}})
        for p, q in zip(mine, reference, strict=True):
            p.data.copy_(Tensor(q.detach().numpy()))
        steps(mine, ours, (2, 3, 2))
        steps(reference, other, (2, 3, 2))
        for p, q in zip(mine, reference, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_unfrozen_is_updated_from_then_on() -> None:
    for name in ("adam", "sgd momentum", "rmsprop centered"):
        kind, theirs, options = CASES[name]
        mine: list[Any] = [Tensor(WEIGHT), Tensor(BIAS, requires_grad=True)]
        reference = [torch.tensor(WEIGHT), torch.tensor(BIAS, requires_grad=True)]
        ours, other = kind(mine, **options), getattr(torch.optim, theirs)(reference, **options)

        def step(x: Any, optimizer: Any, parameters: Any) -> None:
            optimizer.zero_grad()
            loss_of(x, *parameters).backward()
            optimizer.step()

        run: Any = jit(lambda x: step(x, ours, mine))  # noqa: B023
        for k in range(8):
            if k == 3:
                mine[0].requires_grad_(), reference[0].requires_grad_()
            run(Tensor(INPUTS))
            step(torch.tensor(INPUTS), other, reference)
        assert len(ours.params) == 2 and not ours.buffers
        for p, q in zip(mine, reference, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_schedules_that_change_the_momentum() -> None:
    """As PyTorch's do unless told: in the optimizer's steps, captured ones too, and in its groups."""
    cycles: list[Any] = [
        lambda m, o: m.OneCycleLR(o, 0.2, total_steps=7), lambda m, o: m.CyclicLR(o, 0.01, 0.1, 2, mode="triangular2")]
    for name, options in (("SGD", {"momentum": 0.9, "nesterov": True}), ("SGD", {}), ("RMSprop", {"momentum": 0.5}),
                          ("AdamW", {}), ("NAdam", {}), ("Adamax", {})):
        for cycle in cycles:
            mine, reference = Tensor(WEIGHT, requires_grad=True), torch.tensor(WEIGHT, requires_grad=True)
            ours: Any = getattr(nn.optim, name)([mine], lr=0.1, **options)
            other = getattr(torch.optim, name)([reference], lr=0.1, **options)
            schedules = cycle(nn.optim.lr_scheduler, ours), cycle(torch.optim.lr_scheduler, other)

            def step(x: Any, optimizer: Any, schedule: Any, weight: Any) -> None:
                optimizer.zero_grad()
                loss_of(x, weight, 0.1).backward()
                optimizer.step()
                schedule.step()

            run: Any = jit(lambda x: step(x, ours, schedules[0], mine))  # noqa: B023
            for _ in range(6):
                run(Tensor(INPUTS))
                step(torch.tensor(INPUTS), other, schedules[1], reference)
                for key in ("momentum", "betas"):
                    if key in other.param_groups[0] and key in ours.param_groups[0]:
                        np.testing.assert_allclose(ours.param_groups[0][key], other.param_groups[0][key], rtol=1e-6)
            assert run.captures <= 2
            np.testing.assert_allclose(mine.numpy(), reference.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=name)
    optimizer = nn.optim.Adagrad([mine])
    with pytest.raises(MinigradError, match=r"\[OneCycleLR\] expected SGD, RMSprop or an Adam, whose momentum"):
        nn.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)
    nn.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False)


def test_a_capture_holds_for_the_gradients_that_it_saw() -> None:
    """A parameter that had none when the function was captured, and has one later."""
    a, b = (Tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    optimizer = nn.optim.SGD([a, b], lr=0.5)
    clip = jit(lambda: nn.utils.clip_grad_norm_([a, b], 1.0))
    update, forget = jit(optimizer.step), jit(lambda: optimizer.zero_grad())
    for both in (False, False, True, True, False):
        a.grad, b.grad = Tensor([3.0, 4.0]), Tensor([12.0, 0.0]) if both else None
        assert clip().item() == pytest.approx(13.0 if both else 5.0)
        before = [t.numpy() for t in (a, b)]
        update()
        assert (b.numpy() != before[1]).any() == both and (a.numpy() != before[0]).all()
        forget()
        assert a.grad is None and b.grad is None


def test_data() -> None:
    """Shared with the tensor in both directions, in captures too; gradients know nothing of it."""
    p = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    p.data.mul_(2)
    p.data -= 1
    p.data[0] = 9
    p.data.clamp_(-2, 4).add_(0.5)
    assert p.tolist() == [4.5, 3.5, 4.5] and p.is_leaf and p.requires_grad
    (p * p).sum().backward()
    assert p.grad.tolist() == [9.0, 7.0, 9.0]
    target, kept = Tensor([0.0, 0.0, 0.0]), p.data

    @jit
    def step(rate: Tensor) -> None:
        target.data.copy_(p.data * rate + target.data * (1 - rate))
        p.data.add_(1)

    for k in range(5):
        step(Tensor(0.5))
        assert kept.tolist() == p.tolist() == [5.5 + k, 4.5 + k, 5.5 + k]
    kept.zero_()
    assert p.tolist() == [0.0] * 3 and target.numpy()[0] == pytest.approx(7.421875)
    p.data = Tensor([1.0])
    assert p.shape == (1,) and kept.shape == (3,) and p.requires_grad
    result = p.exp()
    for run, kind, message in (
            (lambda: result.data.zero_(), MinigradError, "[data] expected a leaf or a tensor without requires_grad"),
            (lambda: setattr(p, "data", Tensor([1])), DTypeError, "[data] expected a float type for a leaf"),
            (lambda: p.cuda(), DeviceError, "[cuda] expected .to('CPU') or .to('CL')"),
            (lambda: p.data_ptr(), MinigradError, "[data_ptr] expected x is y")):
        with pytest.raises(kind) as caught:
            run()
        assert message in str(caught.value)
    assert p.pin_memory() is p and not p.is_cuda and p.is_cpu and p.get_device() == -1
    assert p.to("cpu", non_blocking=True) is p


def test_every_layer_is_a_module() -> None:
    """With a mode of its own, if one was set."""
    for name in nn.__all__:
        kind = getattr(nn, name)
        assert not isinstance(kind, type) or issubclass(kind, (nn.Module, nn.ModuleList, nn.ModuleDict)), name

    class Model(nn.Module):
        def __init__(self) -> None:
            self.norm, self.drop, self.act = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.drop(self.norm(x)))

    model = Model()
    x = Tensor(INPUTS)
    for frozen in (False, True):
        model.train()
        for m in model.modules():
            if frozen and isinstance(m, (nn.BatchNorm1d, nn.Dropout)):
                m.eval()
        before = model.norm.running_mean.numpy()
        run = jit(lambda x: model(x))
        assert [np.array_equal(run(x).numpy(), run(x).numpy()) for _ in range(3)] == [frozen] * 3
        assert np.array_equal(model.norm.running_mean.numpy(), before) == frozen
    assert [type(m) for m in model.eval().modules()] == [Model, nn.BatchNorm1d, nn.Dropout, nn.ReLU]
    assert model.act.train() is model.act and not list(model.act.parameters()) and model.act.to("cpu") is model.act
    assert repr(nn.Dropout(0.5)) == "Dropout(p=0.5, inplace=False)"
    alone = nn.BatchNorm1d(4).eval()
    with Tensor.train():
        alone(x).realize()
    assert alone.running_mean.tolist() == [0.0] * 4


def test_a_sequential_starts_in_training() -> None:
    """As any Module of one's own: its mode counts inside, whatever stands around the call, until `eval()`."""
    model: Any = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(4)))
    assert model.training and model[1].training
    assert (model[0:1](Tensor.ones(50, 4)).numpy() == 0).any()
    model(Tensor(INPUTS)).realize()
    moved = model[1][0].running_mean.numpy()
    assert (moved != 0).any()
    run = jit(lambda x: model(x))
    run(Tensor(INPUTS)), run(Tensor(INPUTS))
    assert not model.eval().training
    for x in (Tensor.ones(8, 4), Tensor(INPUTS)):
        moved, variance = model[1][0].running_mean.numpy(), model[1][0].running_var.numpy()
        np.testing.assert_allclose(run(x).numpy(), (x.numpy() - moved) / np.sqrt(variance + 1e-5), rtol=1e-5, atol=1e-6)
        assert np.array_equal(model[1][0].running_mean.numpy(), moved)


def test_numbers_have_an_axis() -> None:
    """0 or -1 where PyTorch takes it; and x**0 has a gradient."""
    for run in (lambda x: x.squeeze(0), lambda x: x.squeeze(-1), lambda x: x.transpose(0, -1),
                lambda x: x.movedim(0, 0), lambda x: x.swapaxes(-1, 0)):
        x = Tensor(3.0, requires_grad=True)
        assert run(torch.tensor(3.0)).shape == run(x).shape == ()
        (run(x) * 2).backward()
        assert x.grad.item() == 2.0
    for wrong in (lambda x: x.transpose(0, 1), lambda x: x.squeeze(1)):
        with pytest.raises(MinigradError, match=r"expected an axis in -1..0, got 1"):
            wrong(Tensor(3.0))
    with pytest.raises(MinigradError, match=r"\[roll\] expected a tensor with axes, got one of shape \[\] and axis 0"):
        Tensor(3.0).roll(1, 0)
    values = np.array([0.0, -0.0, 2.0, -1.0, np.nan, np.inf], np.float32)
    for exponent in (0, 0.0):
        ours, theirs = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
        y, z = ours ** exponent, theirs ** exponent
        y.sum().backward(), z.sum().backward()
        assert y.tolist() == z.tolist() == [1.0] * 6 and ours.grad.tolist() == theirs.grad.tolist() == [0.0] * 6


def test_what_orders_has_values_and_indices() -> None:
    """By name, as a pair, captured, and `median` with a `dim`."""
    x = np.random.default_rng(0).integers(0, 4, (3, 5)).astype(np.float32)
    x[1, 2] = np.nan
    for name, options in (("sort", {"dim": 1}), ("topk", {"k": 2, "dim": 0}), ("kthvalue", {"k": 2, "dim": 1}),
                          ("cummax", {"dim": 1}), ("cummin", {"dim": 0}), ("max", {"dim": 1}), ("median", {"dim": 1}),
                          ("nanmedian", {"dim": 0, "keepdim": True})):
        def run(t: Any) -> Any:
            return getattr(t, name)(**options)  # noqa: B023

        expected = run(torch.tensor(x))
        for found in (run(Tensor(x)), jit(run)(Tensor(x))):
            values, indices = found
            assert np.array_equal(values.numpy(), expected.values.numpy(), equal_nan=True), name
            at = {"axis": options["dim"]}
            place = indices.numpy() if indices.ndim == 2 else np.expand_dims(indices.numpy(), options["dim"])
            taken = np.take_along_axis(x, place, **at)
            assert np.array_equal(taken.reshape(values.shape), values.numpy(), equal_nan=True), name
        assert run(Tensor(x)).values.shape == run(Tensor(x)).indices.shape == tuple(expected.indices.shape)
    assert Tensor(x).median(1).shape == (3,) and Tensor(3.0).median(dim=0).indices.item() == 0
    assert Tensor(x).reshape(-1)[:4].mode().values.shape == ()


def test_convolutions_of_one_image() -> None:
    """Without an axis of batches, and transposed ones that are told the size of their output."""
    for kind, shape in (("Conv1d", (3, 9)), ("Conv2d", (3, 7, 8)), ("ConvTranspose2d", (3, 4, 5)),
                        ("ConvTranspose1d", (3, 6))):
        ours, theirs = (getattr(n, kind)(3, 4, 3, stride=2, padding=1) for n in (nn, torch.nn))
        theirs.load_state_dict({k: torch.tensor(t.numpy()) for k, t in ours.state_dict().items()})
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        cases: list[Any] = [()]
        if "Transpose" in kind:
            largest = [2 * n for n in shape[1:]]
            cases += [(largest,), ([n - 1 for n in largest],), ([4, *largest],)]
        for case in cases:
            for a in [x] if case and len(case[0]) == len(shape) else [x, x[None]]:
                y, z = ours(Tensor(a), *case), theirs(torch.tensor(a), *case)
                np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(MinigradError, match=r"\[ConvTranspose1d\] expected an output_size from \[11\] to \[12\], got"):
        ours(Tensor(x), [13])
    with pytest.raises(MinigradError, match=r"\[ConvTranspose1d\] expected \[N, 3, W\], got \[4, 6\]"):
        ours(Tensor.ones(4, 6), [13])


def test_options_that_only_say_how() -> None:
    """Of optimizers; and the places of EmbeddingBag's."""
    model = nn.EmbeddingBag(6, 3, None, 2.0, False, "sum", True, padding_idx=1)
    reference = torch.nn.EmbeddingBag(6, 3, None, 2.0, False, "sum", True, padding_idx=1)
    reference.load_state_dict({"weight": torch.tensor(model.weight.numpy())})
    index = np.array([[0, 1, 5], [2, 2, 1]])
    np.testing.assert_allclose(model(Tensor(index)).numpy(), reference(torch.tensor(index)).detach().numpy(), rtol=1e-5)
    optimizer: Any = nn.optim.AdamW([{"params": model.parameters(), "fused": True}], lr=0.1, foreach=False,
                                    capturable=True)
    assert "fused" not in optimizer.param_groups[0] and len(optimizer.params) == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'fast'"):
        nn.optim.SGD(model.parameters(), lr=0.1, fast=True)
    with pytest.raises(DTypeError, match=r"\[Linear\] expected a Tensor, got a torch.Tensor"):
        nn.Linear(2, 2)(torch.ones(2, 2))


def test_gradients_where_pieces_meet() -> None:
    """At 0, where both sides of an activation agree, or PyTorch takes one."""
    values = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -1e-7, 1e-7, np.nan, np.inf, -np.inf], np.float32)
    for run in (lambda f, x: f.elu(x), lambda f, x: f.elu(x, 0.5), lambda f, x: f.celu(x, 2.0), lambda f, x: f.selu(x),
                lambda f, x: x.fmod(0.75)):
        ours, theirs = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
        y, z = run(nn.functional, ours), run(torch.nn.functional, theirs)
        y.sum().backward(), z.sum().backward()
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-6)
        known = ~np.isnan(values)
        np.testing.assert_allclose(ours.grad.numpy()[known], theirs.grad.numpy()[known], rtol=1e-6)


def test_lists_of_tensors_with_an_axis() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    for name in ("cat", "stack"):
        both = [getattr(kind, name)([make(a), make(b)], 1) for kind, make in ((Tensor, Tensor), (torch, torch.tensor))]
        assert np.array_equal(both[0].numpy(), both[1].numpy())
    table = nn.Embedding.from_pretrained(Tensor(a))
    assert table(Tensor([1])).tolist() == [a[1].tolist()] and not table.weight.requires_grad


def test_a_captured_step_that_sets_modes() -> None:
    """It is kept where they are in the end what they were before."""
    model: Any = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()

    @jit
    def step(x: Tensor) -> Tensor:
        model.train()
        model[1].eval()
        y = model(x)
        model.eval()
        return y

    for _ in range(3):
        zeros = (step(Tensor(INPUTS)).numpy() == 0).mean()
        assert 0.1 < zeros < 0.9 and not model[2].training
    assert step.captures <= 2 and step.replays >= 1 and model[1].running_mean.tolist() == [0.0] * 3
    turn = jit(lambda x: model.train()(x))
    for _ in range(3):
        model.eval()
        turn(Tensor(INPUTS)).realize()
        assert model[2].training
    assert turn.replays == 0


def test_hooks_of_modules() -> None:
    """Before and after, changing what goes in and out; captures notice when they come and go."""
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x, seen = Tensor(INPUTS), []
    run = jit(lambda x: model(x))
    plain = run(x).numpy()
    noting = model[1].register_forward_hook(lambda m, args, y: seen.append((type(m), args[0].shape, y.shape)))
    zeroing = model[2].register_forward_pre_hook(lambda m, args: (args[0] * 0,))
    for _ in range(3):
        np.testing.assert_allclose(run(x).numpy(), np.tile(model[2].bias.numpy(), (8, 1)), rtol=1e-6)
    assert seen[0] == (nn.ReLU, (8, 4), (8, 4)) and list(model.state_dict()) == [
        "0.weight", "0.bias", "2.weight", "2.bias"]
    zeroing.remove()
    with model.register_forward_hook(lambda m, args, y: y * 2):
        np.testing.assert_allclose(run(x).numpy(), plain * 2, rtol=1e-6)
    noting.remove()
    assert np.array_equal(run(x).numpy(), plain)
    for whole in (nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])):
        with pytest.raises(DeviceError, match=r"\[cuda\] expected"):
            whole.cuda()


def test_layers_are_made_after_others() -> None:
    """From the attributes that PyTorch's have."""
    linear, conv = nn.Linear(3, 5), nn.Conv2d(2, 4, 3, stride=2, padding=(1, 0))
    assert nn.Linear(linear.in_features, linear.out_features).weight.shape == (5, 3)
    like = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation,
                     conv.groups)
    assert like(Tensor.ones(1, 2, 8, 8)).shape == (1, 4, 4, 3) and nn.Conv2d(1, 1, 3, padding="same").padding == "same"
    assert repr(linear) == "Linear(in_features=3, out_features=5, bias=True)" and nn.BatchNorm2d(3).affine


def test_averages_of_lists() -> None:
    model, theirs = nn.Linear(4, 3), torch.nn.Linear(4, 3)
    theirs.load_state_dict({k: torch.tensor(t.numpy()) for k, t in model.state_dict().items()})

    def mean(old: Any, new: Any, count: Any) -> None:
        for a, b in zip(old, new, strict=True):
            a.mul_(0.75).add_(b * 0.25 + count)

    ours = nn.optim.swa_utils.AveragedModel(model, multi_avg_fn=mean)
    reference = torch.optim.swa_utils.AveragedModel(theirs, multi_avg_fn=mean)
    for k in range(3):
        for averaged, m, full in ((ours, model, Tensor.full), (reference, theirs, torch.full)):
            m.weight.data = full((3, 4), float(k))
            averaged.update_parameters(m)
    for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-6)
