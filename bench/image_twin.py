"""Small pictures and photos trained by minigrad and torch in turn, epoch by epoch: one program (bench/frameworks.py),
equal first weights, batches, mirror images and schedule.

    python -m bench.image_twin mnist ../shared/data/mnist [--epochs 1] [--seeds 3] [--batch 128] [--threads 2]
    python -m bench.image_twin clothing ../shared/data/clothing128 --epochs 5 --seeds 1 --batch 32

`mnist` and `fashion-mnist` train the CNN of examples/efficientnet/train.py; `clothing` EfficientNet-Lite0 from its
ImageNet weights, for which SAME padding is written out. Adam with a one-cycle schedule; torch in its channels-last
layout, ours captured. Prints a row for each epoch, and in the end accuracies over seeds and the ratio of times.
"""
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.frameworks import Ours, torch_framework
from examples.efficientnet.model import STAGES, EfficientNet, same_padding
from minigrad import Tensor, config, jit
from minigrad.data import MNIST, FashionMNIST, ImageFolder
from minigrad.state import get_state_dict

Arrays = tuple[np.ndarray, np.ndarray]
Build = Callable[[Any], Any]
"""A model for one of the frameworks."""

NAMED = {"mnist": MNIST, "fashion-mnist": FashionMNIST}


def cnn(f: Any, classes: int = 10) -> Any:
    """The model of examples/efficientnet/train.py for MNIST."""
    layers: list[Any] = []
    for k, (a, b) in enumerate(((1, 32), (32, 32), (32, 64), (64, 64), (64, 128))):
        layers += [f.nn.Conv2d(a, b, 3, padding=1, bias=False), f.nn.BatchNorm2d(b), f.nn.ReLU()]
        layers += [f.nn.MaxPool2d(2)] if k in (1, 3) else []
    return f.nn.Sequential(*layers, f.nn.AdaptiveAvgPool2d(1), f.nn.Flatten(), f.nn.Linear(128, classes))


def lite0(f: Any, classes: int = 10, size: int = 128) -> Any:
    """EfficientNet-Lite0 for images of one size; its state has the order of examples/efficientnet/model.py's."""
    nn = f.nn

    def conv(a: int, b: int, kernel: int, stride: int, groups: int, at: int) -> list[Any]:
        before, after = same_padding(at, kernel, stride)
        pads = [nn.ZeroPad2d((before, after, before, after))] if after else []
        return [*pads, nn.Conv2d(a, b, kernel, stride, groups=groups, bias=False),
                nn.BatchNorm2d(b, eps=1e-3, momentum=0.01)]

    class Block(nn.Module):  # type: ignore[name-defined]
        def __init__(self, a: int, b: int, stage: Any, stride: int, at: int):
            super().__init__()
            hidden = a * stage.expansion
            wide = [*conv(a, hidden, 1, 1, 1, at), nn.ReLU6()] if stage.expansion > 1 else []
            self.parts = nn.Sequential(*wide, *conv(hidden, hidden, stage.kernel, stride, hidden, at), nn.ReLU6(),
                                       *conv(hidden, b, 1, 1, 1, at))
            self.residual = a == b and stride == 1

        def forward(self, x: Any) -> Any:
            return x + self.parts(x) if self.residual else self.parts(x)

    layers, channels, at = [*conv(3, 32, 3, 2, 1, size), nn.ReLU6()], 32, -(-size // 2)
    for stage in STAGES:
        for k in range(stage.repeats):
            stride = 1 if k else stage.stride
            layers.append(Block(channels, stage.out_channels, stage, stride, at))
            channels, at = stage.out_channels, -(-at // stride)
    return nn.Sequential(*layers, *conv(channels, 1280, 1, 1, 1, at), nn.ReLU6(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(1280, classes))


def state(model: Any) -> dict[str, Any]:
    """A model's tensors by name, without counts of batches."""
    return {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}


def pretrained(like: list[np.ndarray]) -> list[np.ndarray]:
    """The ImageNet weights in the order of a state, but for the classifier, which stays."""
    model = EfficientNet(0, 1000, lite=True)
    model.load_from_pretrained()
    found = [t.numpy() for name, t in get_state_dict(model).items()
             if not name.startswith("classifier") and not name.endswith("num_batches_tracked")]
    found += like[len(found):]
    if [a.shape for a in found] != [a.shape for a in like]:
        raise SystemExit("expected the state of EfficientNet-Lite0 in its order")
    return found


class Side:
    """A model with these weights, its optimizer and schedule: torch's where torch is given, else ours."""

    def __init__(self, torch: Any, build: Build, weights: list[np.ndarray], lr: float, steps: int):
        self.torch = torch
        self.f = f = torch_framework(torch) if torch else Ours
        self.model = build(f)
        self.model.load_state_dict(dict(zip(state(self.model), map(f.tensor, weights), strict=True)), strict=False)
        if torch:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = f.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.02)
        self.schedule = f.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=lr, total_steps=steps)
        self.step = self._step if torch else jit(self._step)
        self.infer = self.model if torch else jit(self.model)

    def images(self, x: np.ndarray) -> Any:
        made = self.f.tensor(x)
        return made.contiguous(memory_format=self.torch.channels_last) if self.torch else made

    def _step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.f.F.cross_entropy(self.model((x.float() - 127) / 128), y, label_smoothing=0.1)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def epoch(self, data: Arrays, order: np.ndarray, flips: np.ndarray) -> float:
        """The seconds of an epoch."""
        start = time.perf_counter()
        self.model.train()
        for at, flip in zip(order, flips, strict=True):
            x = data[0][at]
            x = np.ascontiguousarray(np.where(flip[:, None, None, None], x[..., ::-1], x)) if flip.any() else x
            self.step(self.images(x), self.f.tensor(data[1][at])).item()
        return time.perf_counter() - start

    def accuracy(self, data: Arrays, batch: int = 124) -> float:
        """The share of right answers."""
        self.model.eval()
        right = 0
        with (self.torch or Tensor).no_grad():
            for at in range(0, len(data[1]), batch):
                x = self.images(np.ascontiguousarray(data[0][at:at + batch])).float()
                right += int((self.infer((x - 127) / 128).numpy().argmax(1) == data[1][at:at + batch]).sum())
        return right / len(data[1])


def arrays(kind: str, folder: str) -> tuple[Arrays, Arrays]:
    """(images in uint8 as [N, C, H, W], labels) of the training and the test set."""
    def whole(part: Any) -> Arrays:
        pairs = [part[k] for k in range(len(part))]
        return (np.stack([np.asarray(x) for x, _ in pairs]).astype(np.uint8),
                np.array([int(y) for _, y in pairs], np.int64))

    if kind in NAMED:
        return whole(NAMED[kind](folder, train=True)), whole(NAMED[kind](folder, train=False))
    return whole(ImageFolder(Path(folder) / "train", 128)), whole(ImageFolder(Path(folder) / "test", 128))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.image_twin", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", choices=[*NAMED, "clothing"])
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", action="store_true", help="clothing without the ImageNet weights")
    o = parser.parse_args()
    import torch

    torch.set_num_threads(o.threads)
    with config(threads=o.threads):
        compare(o, torch)


def compare(o: argparse.Namespace, torch: Any) -> None:
    """Trains both sides for each seed."""
    build, flip = cnn if o.data in NAMED else lite0, 0.0 if o.data == "mnist" else 0.5
    train, test = arrays(o.data, o.folder)
    steps = len(train[1]) // o.batch
    found: dict[str, list[float]] = {"minigrad": [], "torch": []}
    seconds: dict[str, list[float]] = {"minigrad": [], "torch": []}
    for seed in range(o.seeds):
        torch.manual_seed(seed)
        weights = [v.detach().numpy() for v in state(build(torch_framework(torch))).values()]
        weights = pretrained(weights) if o.data == "clothing" and not o.scratch else weights
        sides = {name: Side(framework, build, weights, o.lr, o.epochs * steps)
                 for name, framework in (("minigrad", None), ("torch", torch))}
        rng = np.random.default_rng(seed)
        for epoch in range(o.epochs):
            order = rng.permutation(len(train[1]))[:steps * o.batch].reshape(steps, o.batch)
            flips = rng.random(order.shape) < flip
            row = {name: (side.epoch(train, order, flips), side.accuracy(test)) for name, side in sides.items()}
            for name, (spent, _) in row.items():
                seconds[name].append(spent)
            print(f"seed {seed} epoch {epoch + 1}: " + ", ".join(
                f"{name} {s:.1f} s, {100 * a:.2f}%" for name, (s, a) in row.items()), flush=True)
        for name, (_, share) in row.items():
            found[name].append(100 * share)
    for name, shares in found.items():
        print(f"{name}: {statistics.mean(shares):.2f}% of the test set ({min(shares):.2f} to {max(shares):.2f}), "
              f"least epoch {min(seconds[name]):.1f} s, median {statistics.median(seconds[name]):.1f}")
    print(f"torch's time over ours: least {min(seconds['torch']) / min(seconds['minigrad']):.2f}, median "
          f"{statistics.median(seconds['torch']) / statistics.median(seconds['minigrad']):.2f}")


if __name__ == "__main__":
    main()
