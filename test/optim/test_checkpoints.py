"""Training that is saved, loaded and goes on as if nothing had happened: states of optimizers and schedules, PyTorch's
too, groups that are added, options that change after a capture, averages of parameters, and what a parameter is."""
# mypy: disable-error-code="arg-type,list-item,attr-defined,union-attr"
from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, config, jit, nn
from minigrad.errors import MinigradError
from minigrad.nn.optim import lr_scheduler

try:
    import torch
except ImportError:
    torch = None

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.01, "betas": (0.8, 0.95)}),
    "nadam": ("NAdam", {"lr": 0.01}), "radam": ("RAdam", {"lr": 0.01, "betas": (0.9, 0.99)}),
    "adamax": ("Adamax", {"lr": 0.01, "maximize": True}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.8, "centered": True}), "adagrad": ("Adagrad", {"lr": 0.05}),
    "adadelta": ("Adadelta", {"lr": 0.5}), "lion": ("Lion", {"lr": 0.01}), "lamb": ("LAMB", {"lr": 0.01}),
    "lars": ("LARS", {"lr": 0.01}), "muon": ("Muon", {"lr": 0.01}),
}
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6, bias=False)
        self.norm = nn.BatchNorm1d(6, affine=False)
        self.last = nn.Linear(6, 2, bias=False)
        self.register_buffer("offset", Tensor.ones(2))
        self.register_buffer("scale", Tensor.full((2,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).tanh()) * self.scale + self.offset


class Training:
    """A model, its optimizer and schedule, and a step of them."""

    def __init__(self, name: str, captured: bool, seed: int):
        kind, options = CASES[name]
        self.model = Net()
        rng = np.random.default_rng(seed)
        with Tensor.no_grad():
            for p in self.model.parameters():
                p.copy_(Tensor(rng.standard_normal(p.shape).astype(np.float32)))
        self.optimizer: Any = getattr(nn.optim, kind)(self.model.parameters(), **options)
        self.schedule = lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=9)
        self.step: Any = jit(self._step) if captured else self._step

    def _step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss

    def steps(self, first: int, count: int) -> list[bytes]:
        """Losses and then all parameters and statistics, bit for bit."""
        found = [self.step(Tensor(X + k)).numpy() for k in range(first, first + count)]
        return [a.tobytes() for a in (*found, *(t.numpy() for t in self.model.state_dict().values()))]

    def saved(self) -> bytes:
        return pickle.dumps({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                             "schedule": self.schedule.state_dict()})

    def load(self, saved: bytes) -> None:
        state = pickle.loads(saved)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_bit_for_bit(name: str) -> None:
    """In a new process' place, eager; loaded after a capture; and back to an earlier point of the same training."""
    with config(device="CPU"):
        one = Training(name, captured=False, seed=1)
        one.steps(0, 3)
        saved = one.saved()
        expected = one.steps(3, 3)
        for captured in (False, True):
            other = Training(name, captured, seed=2)
            if captured:
                other.steps(7, 4)
                captures = other.step.captures
            other.load(saved)
            assert other.steps(3, 3) == expected
        other.load(saved)
        assert other.steps(3, 3) == expected and other.step.captures == captures


@needs_torch
@pytest.mark.parametrize("name", [n for n, (kind, _) in CASES.items() if kind not in ("Lion", "LAMB", "LARS", "Muon")])
def test_states_of_torch(name: str) -> None:
    """PyTorch's training goes on here, options and rates included."""
    kind, options = CASES[name]
    start = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)

    def steps(w: Any, optimizer: Any, x: Any) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            ((x @ w).tanh() ** 2).mean().backward()
            optimizer.step()

    with config(device="CPU"):
        theirs = torch.tensor(start, requires_grad=True)
        reference = getattr(torch.optim, kind)([theirs], **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(reference, 0.9)
        steps(theirs, reference, torch.tensor(X))
        schedule.step()
        ours = Tensor(theirs.detach().numpy(), requires_grad=True)
        optimizer = getattr(nn.optim, kind)([ours], lr=1.0)
        if kind in ("SGD", "RMSprop", "Adam"):  # what is kept follows from options
            optimizer = getattr(nn.optim, kind)([ours], **{**options, "lr": 1.0, "weight_decay": 0.0})
        ours_schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
        state = copy.deepcopy(reference.state_dict())
        for kept in state["state"].values():
            kept.update({k: Tensor(v.numpy()) if torch.is_tensor(v) else v for k, v in kept.items()})
        optimizer.load_state_dict(state)
        ours_schedule.load_state_dict(schedule.state_dict())
        assert optimizer.lr.item() == pytest.approx(options["lr"] * 0.9) and ours_schedule.last_epoch == 1
        steps(theirs, reference, torch.tensor(X))
        steps(ours, optimizer, Tensor(X))
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
        names = {n for n, v in next(iter(reference.state_dict()["state"].values()), {}).items() if v is not None}
        assert set(optimizer.state_dict()["state"].get(0, {})) | {"step"} == names | {"step"}
        group = optimizer.state_dict()["param_groups"][0]
        assert group["params"] == [0] and group["initial_lr"] == pytest.approx(options["lr"])


@pytest.mark.parametrize("name, option, value", [("momentum", "momentum", 0.5), ("adamw", "weight_decay", 3.0),
                                                 ("adamw", "betas", (0.5, 0.5)), ("sgd", "maximize", False)])
def test_options_that_change_after_a_capture_count(name: str, option: str, value: Any) -> None:
    with config(device="CPU"):
        found = []
        for captured in (False, True):
            training = Training(name, captured, seed=1)
            training.steps(0, 3)
            training.optimizer.param_groups[0][option] = value
            found.append(training.steps(3, 2))
        assert found[0] == found[1] and training.optimizer.param_groups[0][option] == value


def test_groups_are_added_while_training() -> None:
    """Eager and captured; a schedule goes on with both; saved and loaded."""
    with config(device="CPU"):
        found = []
        for captured in (False, True):
            a, b = Tensor(X, requires_grad=True), Tensor(X[:2] + 1, requires_grad=True)
            optimizer = nn.optim.AdamW([a], lr=0.1, weight_decay=0.3)
            schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)

            def step() -> Tensor:
                optimizer.zero_grad()  # noqa: B023
                loss = (a ** 2).sum() + (b ** 2).sum()  # noqa: B023
                loss.backward()
                optimizer.step()  # noqa: B023
                schedule.step()  # noqa: B023
                return loss

            run: Any = jit(step) if captured else step
            for _ in range(3):
                run()
            before = b.numpy().copy()
            optimizer.add_param_group({"params": [b], "weight_decay": 0.0})
            for _ in range(3):
                run()
            assert len(optimizer.param_groups) == 2 and not np.array_equal(b.numpy(), before)
            assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
            np.testing.assert_allclose(schedule.get_last_lr(), [0.1 / 64, 0.1 / 64], rtol=1e-5)
            found.append((a.numpy().tobytes(), b.numpy().tobytes()))
            state = copy.deepcopy(optimizer.state_dict())
            assert [g["params"] for g in state["param_groups"]] == [[0], [1]] and optimizer.state[b]["step"].item() == 3
            optimizer.load_state_dict(state)
        assert found[0] == found[1]
        with pytest.raises(MinigradError, match="expected each parameter in one group"):
            optimizer.add_param_group({"params": b})


@pytest.mark.parametrize("kind, options, metrics", [
    ("StepLR", {"step_size": 2, "gamma": 0.5}, False), ("ReduceLROnPlateau", {"patience": 1, "factor": 0.5}, True),
    ("MultiplicativeLR", {"lr_lambda": lambda n: 0.9 - n * 0.01}, False),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 2}, False),
    ("LambdaLR", {"lr_lambda": [lambda n: 0.9 ** n, lambda n: 1 / (n + 1)]}, False)])
def test_schedules_go_on(kind: str, options: dict[str, Any], metrics: bool) -> None:
    def made() -> tuple[Any, Any]:
        groups = [{"params": [Tensor.ones(2, requires_grad=True)]},
                  {"params": [Tensor.ones(2, requires_grad=True)], "lr": 0.3}]
        optimizer: Any = nn.optim.SGD(groups, lr=0.1)
        return optimizer, getattr(lr_scheduler, kind)(optimizer, **options)

    def steps(schedule: Any, count: int) -> list[list[float]]:
        found = []
        for _ in range(count):
            schedule.step(*([1.0] if metrics else []))
            found.append(schedule.get_last_lr())
        return found

    with config(device="NUMPY"):
        (_, first), (optimizer, second) = made(), made()
        steps(first, 3)
        second.load_state_dict(first.state_dict())
        assert optimizer.param_groups[0]["lr"] == first.get_last_lr()[0] and second.last_epoch == 3
        assert steps(second, 4) == steps(first, 4)
        with pytest.raises(MinigradError, match=rf"\[{kind}.load_state_dict\] expected a dictionary with last_epoch"):
            second.load_state_dict({})


@needs_torch
def test_averages_of_parameters() -> None:
    """Running and plain means, against torch; inside jit too."""
    with config(device="CPU"):
        for captured in (False, True):
            for make in (lambda u: u.AveragedModel, lambda u: lambda m: u.AveragedModel(
                    m, multi_avg_fn=u.get_ema_multi_avg_fn(0.7))):
                model: Any = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
                theirs = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
                theirs.load_state_dict({k: torch.tensor(t.numpy()) for k, t in model.state_dict().items()})
                ours, reference = make(nn.optim.swa_utils)(model), make(torch.optim.swa_utils)(theirs)
                optimizer = nn.optim.SGD(model.parameters(), lr=0.05)
                their_optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05)

                def step(x: Tensor) -> None:
                    optimizer.zero_grad()  # noqa: B023
                    (model(x) ** 2).mean().backward()  # noqa: B023
                    optimizer.step()  # noqa: B023
                    ours.update_parameters(model)  # noqa: B023

                model.train()
                run: Any = jit(step) if captured else step
                for k in range(4):
                    run(Tensor(X + k))
                    their_optimizer.zero_grad()
                    (theirs(torch.tensor(X + k)) ** 2).mean().backward()
                    their_optimizer.step()
                    reference.update_parameters(theirs)
                assert ours.n_averaged.item() == 4
                for name, t in reference.state_dict().items():
                    np.testing.assert_allclose(ours.state_dict()[name].numpy(), t.numpy(), rtol=1e-4, atol=1e-5)
                ours.eval(), reference.eval()
                np.testing.assert_allclose(ours(Tensor(X)).numpy(), reference(torch.tensor(X)).detach().numpy(),
                                           rtol=1e-4, atol=1e-5)


def test_what_is_a_parameter() -> None:
    with config(device="CPU"):
        model = Net()
        assert [n for n, _ in model.named_parameters()] == ["first.weight", "last.weight"]
        assert sum(p.numel() for p in model.parameters()) == 36
        assert [n for n, _ in model.named_buffers()] == [
            "norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "offset", "scale"]
        for p in model.parameters():
            p.requires_grad = False
        assert len(list(model.parameters())) == 2
        for p in model.parameters():
            p.requires_grad = True
        optimizer = nn.optim.SGD(model.named_parameters(), lr=0.1)
        for _ in range(3):
            model(Tensor(X)).square().mean().backward()
            optimizer.step()
        # The statistics were computed with the steps: no graph of all batches waits behind them.
        assert model.norm.running_mean.lazydata.storage is not None
        assert model.norm.num_batches_tracked.item() == 3
        model.half()
        assert model.scale.dtype.name == "float16" and model.norm.num_batches_tracked.dtype.name == "int64"
        outer = nn.Sequential(nn.Sequential(Net()))
        assert [k for k in outer.half().state_dict()][:1] == ["0.0.first.weight"]
        assert outer[0][0].scale.dtype.name == "float16"
        keys = Net().load_state_dict({"first.weight": Tensor.ones(6, 4), "more": Tensor.ones(1)}, strict=False)
        assert keys.unexpected_keys == ["more"] and "last.weight" in keys.missing_keys


def test_a_sequential_has_the_methods_of_a_module() -> None:
    with config(device="CPU"):
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())
        x = Tensor(X)
        assert len(model) == 3 and len(list(model.parameters())) == 2 and len(model[:2]) == 2
        assert not np.array_equal(model(x).numpy(), model(x).numpy())  # in training, as a Module
        with Tensor.train():
            model.eval()
            assert np.array_equal(model(x).numpy(), model(x).numpy()) and len(model) == 3
        model.train()
        assert not np.array_equal(model(x).numpy(), model(x).numpy())


def test_layers_have_the_methods_of_modules_for_their_parameters() -> None:
    """Those of PyTorch's, by its names; freezing a part of a model, moving one, optimizing one."""
    with config(device="CPU"):
        made: list[Any] = [nn.Linear(4, 3), nn.Embedding(5, 3), nn.Conv2d(2, 3, 1), nn.ConvTranspose1d(2, 3, 2),
                           nn.BatchNorm2d(3), nn.LayerNorm(4), nn.GroupNorm(1, 3), nn.LSTM(4, 3), nn.GRUCell(4, 3),
                           nn.MultiheadAttention(4, 2), nn.Bilinear(2, 3, 4), nn.PReLU(), nn.RMSNorm(3),
                           nn.TransformerEncoderLayer(4, 2, 8), nn.ModuleList([nn.Linear(2, 2)]),
                           nn.ModuleDict({"a": nn.Linear(2, 2)}), nn.EmbeddingBag(5, 3)]
        for layer in made:
            assert list(layer.state_dict()) and all(p.requires_grad for p in layer.parameters()), type(layer)
            assert [n for n, _ in layer.named_parameters()] == [
                n for n in layer.state_dict() if "running" not in n and "tracked" not in n]
            layer.load_state_dict(layer.half().float().requires_grad_(False).state_dict())
            assert not any(p.requires_grad for p in layer.parameters())
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        for p in model[0].parameters():
            p.requires_grad = False
        before = [p.numpy().copy() for p in model.parameters()]
        optimizer = nn.optim.SGD(model[1].parameters(), lr=0.1)
        model(Tensor(X)).square().mean().backward()
        optimizer.step()
        changed = [not np.array_equal(p.numpy(), b) for p, b in zip(model.parameters(), before, strict=True)]
        assert changed == [False, False, True, True]


def test_float64_is_not_rounded_on_the_way() -> None:
    with config(device="CPU"):
        for kind, options in CASES.values():
            p = Tensor(np.ones((2, 2)), dtype="float64", requires_grad=True)
            optimizer: Any = getattr(nn.optim, kind)([p], **{**options, "lr": 0.1})
            lr_scheduler.LambdaLR(optimizer, lambda n: 1 / 3)
            assert optimizer.lr.item() == pytest.approx(0.1 / 3, rel=1e-15) and optimizer.lr.dtype.name == "float64"
            p.sum().backward()
            optimizer.step()
            assert p.dtype.name == "float64"


@pytest.mark.parametrize("run, message", [
    (lambda o: nn.optim.SGD([Tensor.ones(2, requires_grad=True)], lr=-1), "[SGD] expected the learning rate of at"),
    (lambda o: nn.optim.Adam([Tensor.ones(2, requires_grad=True)], eps=-1), "[Adam] expected eps of at least 0, got"),
    (lambda o: nn.optim.Adam([Tensor.ones(2, requires_grad=True)], weight_decay="1"), "expected weight_decay as a num"),
    (lambda o: nn.optim.SGD([("w", X)]), "[SGD] expected Tensors, such as nn.state.get_parameters(model), got ndarray"),
    (lambda o: o.load_state_dict({}), "[AdamW.load_state_dict] expected a dictionary with 'state' and 'param_groups'"),
    (lambda o: o.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}),
     "[AdamW.load_state_dict] expected parameter groups of sizes [1], got [2]"),
    (lambda o: o.load_state_dict({"state": {0: {"step": 1}}, "param_groups": [{"params": [0], "lr": 1}]}),
     "expected step, exp_avg, exp_avg_sq for parameter 0 of shape [2], got step"),
    (lambda o: o.load_state_dict({"state": {0: {"step": 1, "exp_avg": Tensor.ones(3), "exp_avg_sq": Tensor.ones(2)}},
                                  "param_groups": [{"params": [0], "lr": 1}]}),
     "[AdamW.load_state_dict] exp_avg of parameter 0: expected shape [2], got [3]"),
    (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, mode="sine"), "[CyclicLR] expected mode 'triangular', 't"),
    (lambda o: lr_scheduler.ChainedScheduler([]), "[ChainedScheduler] expected schedules of the same optimizer"),
    (lambda o: lr_scheduler.MultiplicativeLR(o, 0.5), "[MultiplicativeLR] expected a function of the count of steps"),
    (lambda o: o.add_param_group([Tensor.ones(2)]), "[add_param_group] expected a dictionary with Tensors under"),
    (lambda o: nn.optim.swa_utils.get_ema_avg_fn(2), "[get_ema_avg_fn] expected a decay in 0..1, got 2"),
    (lambda o: nn.optim.swa_utils.AveragedModel(nn.Linear(1, 1)).update_parameters(nn.Sequential(nn.Linear(1, 1))),
     "[AveragedModel] expected a model with weight, bias..., got one with 0.weight, 0.bias"),
])
def test_mistakes(run: Any, message: str) -> None:
    with config(device="NUMPY"), pytest.raises(MinigradError) as caught:
        run(nn.optim.AdamW([Tensor.ones(2, requires_grad=True)]))
    assert message in str(caught.value)
