"""Networks that make images."""
# mypy: ignore-errors
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bench.frameworks import Program, normal, trained


def style_transfer(m: Any, size: int = 64, batch: int = 2, width: int = 16) -> Program:
    """A transformer of images (reflection pads, instance norm, upsampling) under the losses of a fixed network."""
    class Conv(m.nn.Module):
        def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, upsample: int = 1):
            super().__init__()
            self.upsample = upsample
            self.pad = m.nn.ReflectionPad2d(kernel // 2)
            self.conv = m.nn.Conv2d(inputs, outputs, kernel, stride)

        def forward(self, x: Any) -> Any:
            x = x if self.upsample == 1 else m.F.interpolate(x, scale_factor=self.upsample, mode="nearest")
            return self.conv(self.pad(x))

    def block(*args: Any, **options: Any) -> Any:
        return m.nn.Sequential(Conv(*args, **options), m.nn.InstanceNorm2d(args[1], affine=True), m.nn.ReLU())

    class Residual(m.nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.body = m.nn.Sequential(block(channels, channels, 3), Conv(channels, channels, 3),
                                        m.nn.InstanceNorm2d(channels, affine=True))

        def forward(self, x: Any) -> Any:
            return x + self.body(x)

    w = width
    net = m.nn.Sequential(
        block(3, w, 9), block(w, 2 * w, 3, 2), block(2 * w, 4 * w, 3, 2), *[Residual(4 * w) for _ in range(3)],
        block(4 * w, 2 * w, 3, upsample=2), block(2 * w, w, 3, upsample=2), Conv(w, 3, 9))
    stages = m.nn.ModuleList([
        m.nn.Sequential(m.nn.Conv2d(3, 32, 3, padding=1), m.nn.ReLU(), m.nn.Conv2d(32, 32, 3, padding=1), m.nn.ReLU()),
        m.nn.Sequential(m.nn.MaxPool2d(2), m.nn.Conv2d(32, 64, 3, padding=1), m.nn.ReLU()),
        m.nn.Sequential(m.nn.MaxPool2d(2), m.nn.Conv2d(64, 64, 3, padding=1), m.nn.ReLU())])
    for p in stages.parameters():
        p.requires_grad_(False)

    def features(x: Any) -> list[Any]:
        found = []
        for stage in stages:
            x = stage(x)
            found.append(x)
        return found

    def gram(x: Any) -> Any:
        n, c, h, w = x.shape
        flat = x.view(n, c, h * w)
        return flat.bmm(flat.transpose(1, 2)) / (c * h * w)

    def loss_of(x: Any, style: Any) -> Any:
        y = net(x)
        ours, content = features(y), features(x)
        loss = m.F.mse_loss(ours[1], content[1])
        for a, b in zip(ours, features(style), strict=True):
            loss = loss + 100 * m.F.mse_loss(gram(a), gram(b))
        smooth = (y[:, :, 1:] - y[:, :, :-1]).abs().mean() + (y[:, :, :, 1:] - y[:, :, :, :-1]).abs().mean()
        return loss + 1e-3 * smooth

    step = trained(m.optim.Adam(net.parameters(), lr=1e-3), loss_of)
    return Program([net, stages], step, lambda rng: (normal(rng, batch, 3, size, size),
                                                     normal(rng, batch, 3, size, size)))


def dcgan(m: Any, batch: int = 8, noise: int = 64, width: int = 16) -> Program:
    """A step of the discriminator on real and generated images of 64x64, and one of the generator."""
    w = width

    def up(inputs: int, outputs: int, stride: int = 2, padding: int = 1) -> list[Any]:
        return [m.nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False), m.nn.BatchNorm2d(outputs),
                m.nn.ReLU(True)]

    def down(inputs: int, outputs: int) -> list[Any]:
        return [m.nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), m.nn.BatchNorm2d(outputs),
                m.nn.LeakyReLU(0.2, inplace=True)]

    generator = m.nn.Sequential(*up(noise, 8 * w, 1, 0), *up(8 * w, 4 * w), *up(4 * w, 2 * w), *up(2 * w, w),
                                m.nn.ConvTranspose2d(w, 3, 4, 2, 1, bias=False), m.nn.Tanh())
    critic = m.nn.Sequential(
        m.nn.Conv2d(3, w, 4, 2, 1, bias=False), m.nn.LeakyReLU(0.2, inplace=True), *down(w, 2 * w),
        *down(2 * w, 4 * w), *down(4 * w, 8 * w), m.nn.Conv2d(8 * w, 1, 4, 1, 0, bias=False), m.nn.Sigmoid())
    loss_of = m.nn.BCELoss()
    critics = m.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    generators = m.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step(real: Any, z: Any) -> Any:
        critics.zero_grad()
        answer = critic(real).view(-1)
        on_real = loss_of(answer, m.M.ones_like(answer))
        on_real.backward()
        fake = generator(z)
        answer = critic(fake.detach()).view(-1)
        on_fake = loss_of(answer, m.M.zeros_like(answer))
        on_fake.backward()
        critics.step()
        generators.zero_grad()
        answer = critic(fake).view(-1)
        on_both = loss_of(answer, m.M.ones_like(answer))
        on_both.backward()
        generators.step()
        return (on_real + on_fake + on_both).detach()

    return Program([generator, critic], step, lambda rng: (normal(rng, batch, 3, 64, 64),
                                                           normal(rng, batch, noise, 1, 1)))


def vae(m: Any, batch: int = 128, hidden: int = 400, latent: int = 20) -> Program:
    """Images of 28x28 through a latent normal distribution; its noise is given."""
    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.mean, self.log_variance = (
                m.nn.Linear(784, hidden), m.nn.Linear(hidden, latent), m.nn.Linear(hidden, latent))
            self.fc3, self.fc4 = m.nn.Linear(latent, hidden), m.nn.Linear(hidden, 784)

        def forward(self, x: Any, noise: Any) -> Any:
            h = m.F.relu(self.fc1(x.view(-1, 784)))
            mean, log_variance = self.mean(h), self.log_variance(h)
            z = mean + noise * m.M.exp(0.5 * log_variance)
            return m.M.sigmoid(self.fc4(m.F.relu(self.fc3(z)))), mean, log_variance

    model = Model()

    def loss_of(x: Any, noise: Any) -> Any:
        again, mean, log_variance = model(x, noise)
        likelihood = m.F.binary_cross_entropy(again, x.view(-1, 784), reduction="sum")
        return likelihood - 0.5 * m.M.sum(1 + log_variance - mean.pow(2) - log_variance.exp())

    step = trained(m.optim.Adam(model.parameters(), lr=1e-3), loss_of)
    return Program([model], step, lambda rng: (rng.random((batch, 1, 28, 28), np.float32),
                                               normal(rng, batch, latent)))


def diffusion(m: Any, batch: int = 8, size: int = 32, width: int = 32) -> Program:
    """A U-Net that predicts noise: embedded times, residual blocks with group norm, attention, upsampling."""
    times = 4 * width

    class Block(m.nn.Module):
        def __init__(self, inputs: int, outputs: int):
            super().__init__()
            self.norm1, self.conv1 = m.nn.GroupNorm(8, inputs), m.nn.Conv2d(inputs, outputs, 3, padding=1)
            self.time = m.nn.Linear(times, outputs)
            self.norm2, self.conv2 = m.nn.GroupNorm(8, outputs), m.nn.Conv2d(outputs, outputs, 3, padding=1)
            self.skip = m.nn.Conv2d(inputs, outputs, 1) if inputs != outputs else m.nn.Identity()

        def forward(self, x: Any, t: Any) -> Any:
            h = self.conv1(m.F.silu(self.norm1(x)))
            h = h + self.time(m.F.silu(t))[:, :, None, None]
            return self.skip(x) + self.conv2(m.F.silu(self.norm2(h)))

    class Attention(m.nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.norm = m.nn.GroupNorm(8, channels)
            self.qkv, self.out = m.nn.Conv2d(channels, 3 * channels, 1), m.nn.Conv2d(channels, channels, 1)

        def forward(self, x: Any) -> Any:
            n, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, c, h * w).transpose(2, 3).unbind(1)
            y = m.F.scaled_dot_product_attention(q, k, v)
            return x + self.out(y.transpose(1, 2).reshape(n, c, h, w))

    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            w = width
            self.time = m.nn.Sequential(m.nn.Linear(w, times), m.nn.SiLU(), m.nn.Linear(times, times))
            self.first = m.nn.Conv2d(3, w, 3, padding=1)
            self.down1, self.shrink1 = Block(w, w), m.nn.Conv2d(w, w, 3, 2, 1)
            self.down2, self.shrink2 = Block(w, 2 * w), m.nn.Conv2d(2 * w, 2 * w, 3, 2, 1)
            self.middle1, self.attention, self.middle2 = Block(2 * w, 2 * w), Attention(2 * w), Block(2 * w, 2 * w)
            self.grow2, self.up2 = m.nn.Conv2d(2 * w, 2 * w, 3, padding=1), Block(4 * w, w)
            self.grow1, self.up1 = m.nn.Conv2d(w, w, 3, padding=1), Block(2 * w, w)
            self.norm, self.last = m.nn.GroupNorm(8, w), m.nn.Conv2d(w, 3, 3, padding=1)

        def embedded(self, t: Any) -> Any:
            half = width // 2
            rates = m.M.exp(m.M.arange(half) * (-math.log(10000) / half))
            angles = t.float()[:, None] * rates[None]
            return self.time(m.cat([angles.sin(), angles.cos()], dim=1))

        def forward(self, x: Any, t: Any) -> Any:
            t = self.embedded(t)
            x = self.first(x)
            a = self.down1(x, t)
            b = self.down2(self.shrink1(a), t)
            h = self.middle2(self.attention(self.middle1(self.shrink2(b), t)), t)
            h = self.grow2(m.F.interpolate(h, scale_factor=2, mode="nearest"))
            h = self.up2(m.cat([h, b], dim=1), t)
            h = self.grow1(m.F.interpolate(h, scale_factor=2, mode="nearest"))
            return self.last(m.F.silu(self.norm(self.up1(m.cat([h, a], dim=1), t))))

    model = Model()
    kept = m.tensor(np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)).astype(np.float32))

    def loss_of(x: Any, noise: Any, t: Any) -> Any:
        share = kept[t].view(-1, 1, 1, 1)
        return m.F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)

    step = trained(m.optim.AdamW(model.parameters(), lr=2e-4), loss_of)
    return Program([model], step, lambda rng: (normal(rng, batch, 3, size, size), normal(rng, batch, 3, size, size),
                                               rng.integers(0, 1000, batch)))
