"""Distributions against torch: probabilities, entropies, divergences and their gradients; samples by their frequencies;
and a policy trained inside `jit`."""
# mypy: disable-error-code="arg-type,union-attr"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, config, distributions, jit, nn
from minigrad.errors import CaptureError, MinigradError, ShapeError

try:
    import torch
except ImportError:
    torch = None

A = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
P = (np.exp(A) / np.exp(A).sum(-1, keepdims=True)).astype(np.float32)
SURE = np.array([[0, 1, 0], [0.5, 0, 0.5]], np.float32)

ROWS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "categorical": lambda d, t, x: d.Categorical(logits=x).log_prob(t(np.array([1, 0, 3]))),
    "categorical many": lambda d, t, x: d.Categorical(logits=x).log_prob(t(np.array([[1], [0]]))),
    "categorical probs": lambda d, t, x: d.Categorical(x.exp()).log_prob(t(np.array([1, 0, 3]))),
    "categorical first": lambda d, t, x: d.Categorical(x.exp()).entropy(),
    "entropy of sure": lambda d, t, x: d.Categorical(t(SURE)).entropy() + x.sum(),
    "categorical mode": lambda d, t, x: d.Categorical(logits=x).mode + x[:, 0],
    "categorical kl": lambda d, t, x: d.kl_divergence(d.Categorical(logits=x), d.Categorical(t(P))),
    "bernoulli": lambda d, t, x: d.Bernoulli(logits=x).log_prob(t((A > 0.3).astype(np.float32))),
    "bernoulli probs": lambda d, t, x: d.Bernoulli(x.sigmoid()).log_prob(t((A > 0.3).astype(np.float32))),
    "bernoulli entropy": lambda d, t, x: d.Bernoulli(logits=x).entropy(),
    "bernoulli kl": lambda d, t, x: d.kl_divergence(d.Bernoulli(logits=x), d.Bernoulli(t(P))),
    "normal": lambda d, t, x: d.Normal(x, x.exp()).log_prob(t(A + 1)),
    "normal numbers": lambda d, t, x: d.Normal(0.5, 2.0).log_prob(x),
    "normal entropy": lambda d, t, x: d.Normal(x, x.exp()).entropy(),
    "normal cdf": lambda d, t, x: d.Normal(x, 2.0).cdf(t(A * 2)),
    "normal kl": lambda d, t, x: d.kl_divergence(d.Normal(x, x.exp()), d.Normal(t(A + 1), t(P))),
}


@needs_torch
@pytest.mark.parametrize("name", ROWS)
def test_as_torch(name: str) -> None:
    with config(device="NUMPY"):
        x, t = Tensor(A, requires_grad=True), torch.tensor(A, requires_grad=True)
        y, v = ROWS[name](distributions, Tensor, x), ROWS[name](torch.distributions, torch.tensor, t)
        np.testing.assert_allclose(y.numpy(), v.detach().numpy(), rtol=2e-5, atol=1e-6)
        (y * y).sum().backward()
        (v * v).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-5)


@needs_torch
@pytest.mark.parametrize("given", ["probs", "logits"])
@pytest.mark.parametrize("kind", ["Categorical", "Bernoulli"])
def test_divergence_from_what_cannot_happen_is_infinite(kind: str, given: str) -> None:
    """All pairs, of chances that may be 0 or 1, against torch, whose gradients are NaN in places."""
    chances = np.array([[0, 0, 1], [0, 0.25, 0.75], [0.5, 0.5, 0], [0.2, 0.3, 0.5]] if kind == "Categorical"
                       else [0, 1, 0.25, 0.9], np.float32)
    with np.errstate(divide="ignore"):
        numbers = chances if given == "probs" else np.log(chances / (1 - (kind == "Bernoulli") * chances))
    found = []
    for d, t in ((distributions, lambda a: Tensor(a, device="NUMPY", requires_grad=True)),
                 (torch.distributions, lambda a: torch.tensor(a, requires_grad=True))):
        p, q = t(np.repeat(numbers, len(numbers), 0)), t(np.concatenate([numbers] * len(numbers)))
        made = d.kl_divergence(*[getattr(d, kind)(**{given: v}) for v in (p, q)])
        found.append(made.detach().numpy())
        if d is distributions:
            made.isinf().where(0, made).sum().backward()
            assert np.isfinite(p.grad.numpy()).all() and np.isfinite(q.grad.numpy()).all()
    np.testing.assert_allclose(found[0], found[1], rtol=2e-5, atol=1e-6)
    assert np.isinf(found[0]).sum() >= 6


def test_samples() -> None:
    with config(device="CPU"):
        Tensor.manual_seed(0)
        drawn = distributions.Categorical(logits=Tensor(A)).sample((4000,))
        assert drawn.shape == (4000, 3) and drawn.dtype.name == "int32"
        counted = np.stack([(drawn.numpy() == k).mean(0) for k in range(4)], -1)
        np.testing.assert_allclose(counted, P, atol=0.04)
        assert distributions.Categorical(Tensor(P[0])).sample().shape == ()
        assert distributions.Categorical(Tensor(P)).sample((2, 0)).shape == (2, 0, 3)
        flips = distributions.Bernoulli(Tensor(P)).sample((4000,))
        np.testing.assert_allclose(flips.numpy().mean(0), P, atol=0.04)
        loc = Tensor(A, requires_grad=True)
        normal = distributions.Normal(loc, 2.0)
        assert not normal.sample().requires_grad and normal.mean is normal.loc and normal.stddev.shape == (3, 4)
        values = normal.rsample((4000,))
        np.testing.assert_allclose(values.numpy().mean(0), A, atol=0.15)
        np.testing.assert_allclose(values.numpy().var(0), normal.variance.numpy(), rtol=0.15)
        assert values.sum().gradient(loc)[0].tolist()[0][0] == 4000
        run = jit(lambda x: distributions.Categorical(logits=x).sample((8,)))
        assert len({run(Tensor(A)).numpy().tobytes() for _ in range(8)}) > 4


def test_a_policy_inside_jit() -> None:
    """REINFORCE finds the best of four arms; a schedule that asks for values says what to do instead."""
    with config(device="CPU"):
        Tensor.manual_seed(0)
        policy = nn.Linear(3, 4)
        optimizer = nn.optim.Adam(policy.parameters(), lr=0.1)
        states, rewards = Tensor(np.eye(3, dtype=np.float32).repeat(16, 0)), Tensor([0.0, 0.2, 1.0, 0.1])

        @jit
        def step(states: Tensor) -> Tensor:
            policies = distributions.Categorical(logits=policy(states))
            action = policies.sample()
            reward = rewards[action]
            loss = -(policies.log_prob(action) * (reward - reward.mean())).mean() - 0.001 * policies.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return reward.mean()

        found = [step(states).item() for _ in range(60)]
        assert np.mean(found[:5]) < 0.6 and np.mean(found[-5:]) > 0.9
        factor: Any = lambda k: min((k + 1) / 5, 1.0)  # noqa: E731
        schedule = nn.optim.lr_scheduler.LambdaLR(optimizer, factor)
        schedule.step()

        @jit
        def scheduled(x: Tensor) -> Tensor:
            schedule.step()
            return x * 2

        with pytest.raises(CaptureError, match=r"\[LambdaLR\] expected a function that computes with Tensors"):
            scheduled(states)


@pytest.mark.parametrize("run, kind, message", [
    (lambda: distributions.Categorical(), MinigradError, "[Categorical] expected either probs or logits, got none"),
    (lambda: distributions.Bernoulli(Tensor(0.5), Tensor(0.0)), MinigradError, "either probs or logits, got both"),
    (lambda: distributions.Categorical(Tensor(0.5)), ShapeError, "[..., K], got a number"),
    (lambda: distributions.Normal(Tensor.ones(2), Tensor.ones(3)), ShapeError, "[Normal] expected shapes"),
    (lambda: distributions.Categorical(Tensor(P)).log_prob(Tensor([1, 2])), ShapeError, "[log_prob] expected shapes"),
    (lambda: distributions.kl_divergence(distributions.Normal(0, 1), distributions.Bernoulli(0.5)), MinigradError,
     "expected two distributions of one kind, got Normal and Bernoulli"),
])
def test_mistakes(run: Callable[[], object], kind: type[Exception], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(kind) as caught:
        run()
    assert message in str(caught.value)
