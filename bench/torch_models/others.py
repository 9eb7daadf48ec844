"""Recurrent, generative and other models."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.torch_models.case import Build, Case, classes, mean_square


class LSTM(nn.Module):
    """Cells by hand, as the steps of a compiled loop."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.x, self.h, self.out = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden), nn.Linear(hidden, 3)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], self.h.in_features)
        states = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return self.out(torch.stack(states, 1))


class GRU(nn.Module):
    def __init__(self, words: int, hidden: int):
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(words, hidden), nn.GRUCell(hidden, hidden), nn.Linear(hidden, 3)

    def forward(self, ids: Any) -> Any:
        h = torch.zeros(ids.shape[0], self.out.in_features)
        for x in self.words(ids).unbind(1):
            h = self.cell(x, h)
        return self.out(h)


class Autoencoder(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.LeakyReLU(0.1),
                                     nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ELU(), nn.AvgPool2d(2))
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1),
                                     nn.Softplus(), nn.ConvTranspose2d(width, 1, 3, 2, 1, 1), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


def restored(model: Any, x: Any) -> Any:
    code = model.encoder(x)
    return F.binary_cross_entropy(model.decoder(code), torch.sigmoid(x)) + F.l1_loss(code, torch.zeros_like(code))


class VAE(nn.Module):
    """With the noise as an input, so that two runs compare."""

    def __init__(self, inputs: int, hidden: int, latent: int):
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(inputs, hidden), nn.Linear(hidden, latent), nn.Linear(
            hidden, latent)
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, inputs))

    def forward(self, x: Any, noise: Any) -> Any:
        y = F.relu(self.encode(x))
        mean, spread = self.mean(y), self.spread(y)
        return self.decode(mean + noise * torch.exp(0.5 * spread)), mean, spread


def evidence(model: Any, x: Any, noise: Any) -> Any:
    y, mean, spread = model(x, noise)
    return F.binary_cross_entropy_with_logits(y, x.sigmoid()) - 0.5 * torch.mean(
        1 + spread - mean.pow(2) - spread.exp())


class Generator(nn.Module):
    """Of a GAN: from noise to images."""

    def __init__(self, latent: int, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), nn.InstanceNorm2d(width, affine=True),
            nn.PReLU(), nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Hardswish(),
            nn.ReflectionPad2d(1), nn.Conv2d(width, 3, 3), nn.Tanh())

    def forward(self, z: Any) -> Any:
        return self.body(z)


class GraphNetwork(nn.Module):
    """Messages along edges [2, E], summed by node, and a maximum over neighbours."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.message, self.update = nn.Linear(2 * inputs, hidden), nn.Linear(inputs + 2 * hidden, hidden)
        self.out = nn.Linear(hidden, 3)

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges
        m = F.silu(self.message(torch.cat([x[source], x.index_select(0, target)], 1)))
        total = x.new_zeros(x.shape[0], m.shape[1]).index_add(0, target, m)
        degree = x.new_zeros(x.shape[0]).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        top = torch.full_like(total, -9.0).scatter_reduce(0, target[:, None].expand_as(m), m, "amax")
        y = self.update(torch.cat([x, total / degree.clamp(min=1)[:, None], top], 1))
        return self.out(F.mish(y))


class DeepAR(nn.Module):
    """The likelihood of a series [B, T] under a recurrent model of means and deviations."""

    def __init__(self, hidden: int):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(2, hidden), nn.Linear(hidden, 2)

    def forward(self, series: Any, covariates: Any) -> Any:
        B, T = series.shape
        scale = 1 + series.abs().mean(1, keepdim=True)
        scaled, state, found = series / scale, (torch.zeros(B, self.cell.hidden_size),) * 2, []
        for t in range(T - 1):
            state = self.cell(torch.stack([scaled[:, t], covariates[:, t]], 1), state)
            mean, spread = self.out(state[0]).unbind(-1)
            normal = torch.distributions.Normal(mean, F.softplus(spread) + 1e-3, validate_args=False)
            found.append(normal.log_prob(scaled[:, t + 1]))
        return torch.stack(found, 1)


def likelihood(model: Any, *inputs: Any) -> Any:
    return -model(*inputs).mean()


def lstm(large: bool) -> Case:
    return Case(LSTM(64, 256) if large else LSTM(4, 8), (torch.randn(*(16, 20, 64) if large else (3, 4, 4)),), classes)


def gru(large: bool) -> Case:
    model, shape = (GRU(100, 256), (16, 20)) if large else (GRU(10, 8), (3, 4))
    return Case(model, (torch.randint(0, 10, shape),), classes)


def autoencoder(large: bool) -> Case:
    N, width, size = (4, 32, 64) if large else (2, 4, 16)
    return Case(Autoencoder(width), (torch.randn(N, 1, size, size),), restored)


def vae(large: bool) -> Case:
    N, inputs, hidden, latent = (64, 784, 512, 32) if large else (3, 12, 8, 2)
    return Case(VAE(inputs, hidden, latent), (torch.randn(N, inputs), torch.randn(N, latent)), evidence)


def generator(large: bool) -> Case:
    N, latent, width = (4, 100, 64) if large else (2, 5, 4)
    return Case(Generator(latent, width), (torch.randn(N, latent, 1, 1),), mean_square)


def graph(large: bool) -> Case:
    nodes, count, inputs, hidden = (1000, 8000, 64, 128) if large else (6, 11, 4, 8)
    edges = torch.randint(0, nodes, (2, count))
    return Case(GraphNetwork(inputs, hidden), (torch.randn(nodes, inputs), edges), classes)


def deepar(large: bool) -> Case:
    B, T, hidden = (32, 20, 128) if large else (3, 5, 6)
    return Case(DeepAR(hidden), (torch.randn(B, T), torch.randn(B, T)), likelihood)


MODELS: dict[str, Build] = {
    "lstm": lstm, "gru": gru, "autoencoder": autoencoder, "vae": vae, "generator": generator, "graph": graph,
    "deepar": deepar}
