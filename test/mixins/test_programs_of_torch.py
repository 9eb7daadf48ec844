"""Small programs, written once for either framework, give the same losses over 20 steps with the same weights, eager
and inside `jit`."""
# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, autograd, jit, nn
from minigrad.nn import functional

torch = pytest.importorskip("torch", reason="torch is the second opinion here")
STEPS = 20


class Theirs:
    nn, F, M, cat, tensor = torch.nn, torch.nn.functional, torch, torch.cat, torch.tensor
    optim, grad, no_grad = torch.optim, torch.autograd.grad, torch.no_grad


class Ours:
    nn, F, M, tensor = nn, functional, Tensor, Tensor
    optim, grad, no_grad = nn.optim, autograd.grad, Tensor.no_grad

    @staticmethod
    def cat(tensors: Any, dim: int = 0) -> Any:
        return Tensor.cat(*tensors, dim=dim)


pytestmark = pytest.mark.usefixtures("on_cpu")


def normal(rng: Any, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def gradient_penalty(m: Any) -> Any:
    """A critic whose gradient has length 1: a gradient of a gradient."""
    critic = m.nn.Sequential(m.nn.Linear(12, 16), m.nn.Softplus(), m.nn.Linear(16, 1))
    optimizer = m.optim.RMSprop(critic.parameters(), lr=1e-3)

    def step(real: Any, fake: Any, share: Any) -> Any:
        x = share * real + (1 - share) * fake
        x.requires_grad_(True)
        optimizer.zero_grad()
        y = critic(x)
        g = m.grad(outputs=y, inputs=x, grad_outputs=m.M.ones_like(y), create_graph=True, retain_graph=True)[0]
        penalty = ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        optimizer.step()
        return loss.detach(), penalty.detach()

    return [critic], step, lambda rng: (normal(rng, 8, 12), normal(rng, 8, 12), rng.random((8, 1), np.float32))


def graph_attention(m: Any) -> Any:
    """Messages along edges: scatter_reduce, index_add and scatter_add by node, and index_add_ by graph."""
    class Layer(m.nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.linear = m.nn.Linear(inputs, outputs, bias=False)
            self.attention = m.nn.Parameter(m.tensor(np.linspace(-1, 1, 2 * outputs, dtype=np.float32)))

        def forward(self, x: Any, edges: Any) -> Any:
            h, (source, target), n = self.linear(x), (edges[0], edges[1]), x.size(0)
            e = m.F.leaky_relu((m.cat([h[source], h[target]], dim=-1) * self.attention).sum(-1), 0.2)
            most = m.M.full((n,), -1e9).scatter_reduce(0, target, e, "amax")
            a = (e - most[target]).exp()
            a = a / (m.M.zeros(n).index_add(0, target, a)[target] + 1e-16)
            wide = target.unsqueeze(-1).expand(-1, h.shape[1])
            return m.M.zeros(n, h.shape[1]).scatter_add(0, wide, h[source] * a.unsqueeze(-1))

    class Model(m.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = m.nn.ModuleList([Layer(5, 8), Layer(8, 8)])
            self.norm, self.head = m.nn.LayerNorm(8), m.nn.Linear(8, 3)

        def forward(self, x: Any, edges: Any, graph: Any) -> Any:
            for layer in self.layers:
                x = m.F.elu(self.norm(layer(x, edges)))
            pooled = m.M.zeros(4, 8)
            pooled.index_add_(0, graph, x)
            count = m.M.zeros(4).index_add_(0, graph, m.M.ones(x.size(0)))
            return m.F.log_softmax(self.head(pooled / count.clamp(min=1).unsqueeze(1)), dim=1)

    model = Model()
    optimizer = m.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def step(x: Any, edges: Any, graph: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = model(x, edges, graph)
        loss = m.F.nll_loss(out, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), (out.argmax(dim=1) == y).float().mean()

    return [model], step, lambda rng: (normal(rng, 20, 5), rng.integers(0, 20, (2, 60)),
                                       np.sort(rng.integers(0, 4, 20)), rng.integers(0, 3, 4))


def policy_gradient(m: Any) -> Any:
    """Clipped ratios, returns that run backwards, and gradients clamped in place through `.data`."""
    class Policy(m.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = m.nn.Sequential(m.nn.Linear(4, 16), m.nn.Tanh())
            self.actions, self.value = m.nn.Linear(16, 3), m.nn.Linear(16, 1)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.actions(h), self.value(h).squeeze(-1)

    model = Policy()
    optimizer = m.optim.Adam(model.parameters(), lr=3e-3, amsgrad=True)

    def step(states: Any, actions: Any, rewards: Any) -> Any:
        logits, value = model(states)
        logs = m.F.log_softmax(logits, dim=-1)
        chosen = logs.gather(1, actions.unsqueeze(1)).squeeze(1)
        returns = rewards.flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        gain, entropy = (returns - value).detach(), -(logs.exp() * logs).sum(-1).mean()
        ratio = (chosen - chosen.detach()).exp()
        best = m.M.min(ratio * gain, m.M.clamp(ratio, 0.8, 1.2) * gain).mean()
        loss = -best + 0.5 * m.F.smooth_l1_loss(value, returns) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        return loss.detach(), entropy.detach()

    return [model], step, lambda rng: (normal(rng, 12, 4), rng.integers(0, 3, 12), normal(rng, 12))


def averages(m: Any) -> Any:
    """Four batches a step, groups of parameters, clipping, two schedules, and an average of the model."""
    import copy

    model = m.nn.Sequential(m.nn.Linear(6, 16), m.nn.LayerNorm(16), m.nn.GELU(), m.nn.Linear(16, 2))
    average = copy.deepcopy(model)
    for p in average.parameters():
        p.requires_grad_(False)
    wide, narrow = ([p for p in model.parameters() if (p.ndim > 1) is many] for many in (True, False))
    optimizer = m.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}], lr=5e-3)
    rates = m.optim.lr_scheduler
    schedule = rates.SequentialLR(optimizer, [rates.LinearLR(optimizer, 0.1, total_iters=5),
                                              rates.CosineAnnealingLR(optimizer, T_max=15)], milestones=[5])

    def step(x: Any, y: Any) -> Any:
        total = 0
        for k in range(4):
            loss = m.F.cross_entropy(model(x[k]), y[k]) / 4
            loss.backward()
            total = total + loss.detach()
        norm = m.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        with m.no_grad():
            for p, q in zip(average.parameters(), model.parameters(), strict=True):
                p.mul_(0.9).add_(q, alpha=0.1)
            return total, norm, m.F.cross_entropy(average(x[0]), y[0])

    return [model, average], step, lambda rng: (normal(rng, 4, 8, 6), rng.integers(0, 2, (4, 8)))


def u_net(m: Any) -> Any:
    """Odd sizes, transposed convolutions, skip connections, and losses of overlap."""
    def block(inputs: int, outputs: int) -> Any:
        return m.nn.Sequential(m.nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), m.nn.BatchNorm2d(outputs),
                               m.nn.ReLU(inplace=True))

    class Net(m.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.middle, self.pool = block(1, 4), block(4, 8), m.nn.MaxPool2d(2)
            self.up, self.merge, self.out = m.nn.ConvTranspose2d(8, 4, 2, stride=2), block(8, 4), m.nn.Conv2d(4, 1, 1)

        def forward(self, x: Any) -> Any:
            a = self.down(x)
            u = self.up(self.middle(self.pool(a)))
            u = m.F.pad(u, [0, a.size(3) - u.size(3), 0, a.size(2) - u.size(2)])
            return self.out(self.merge(m.cat([a, u], dim=1)))

    model = Net()
    optimizer = m.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        out = model(x)
        p = m.M.sigmoid(out)
        overlap = (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        loss = m.F.binary_cross_entropy_with_logits(out, y) + (1 - overlap).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), overlap.mean().detach()

    return [model], step, lambda rng: (normal(rng, 2, 1, 15, 13), (normal(rng, 2, 1, 15, 13) > 0).astype(np.float32))


@pytest.mark.parametrize("program", [gradient_penalty, graph_attention, policy_gradient, averages, u_net])
def test_the_same_losses(program: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    models, step, draw = program(Theirs)
    start = [{k: v.detach().numpy().copy() for k, v in m.state_dict().items()} for m in models]
    rng = np.random.default_rng(0)
    batches = [draw(rng) for _ in range(STEPS)]
    expected = [[float(v) for v in step(*map(torch.tensor, batch))] for batch in batches]
    for captured in (False, True):
        mine, step, _ = program(Ours)
        for model, state in zip(mine, start, strict=True):
            model.load_state_dict(state)
        run = jit(step) if captured else step
        got = [[v.item() for v in run(*map(Tensor, batch))] for batch in batches]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
