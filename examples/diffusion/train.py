"""Trains a small flow-matching model on Fashion-MNIST: pictures of clothing by class.

    python examples/diffusion/train.py --data fashion-mnist     # a folder with the set's four files; fetched if none
    python examples/diffusion/train.py --resume                 # goes on after a crash, bit for bit
    python examples/diffusion/sheet.py --model runs/flow/model.safetensors

What comes out is in --output: model.safetensors (averaged weights in float16), sheet.png, log.csv, steps.csv,
curves.png, tensorboard's events (if installed), and checkpoints.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import minigrad
from examples import training as common
from examples.diffusion.flow import FlowUNet, Sizes, draw, save_flow
from examples.diffusion.pictures import write_sheet
from minigrad import Tensor, distributed, jit, nn
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.data import DataLoader, FashionMNIST, RandomSampler
from minigrad.errors import ConfigError
from minigrad.nn.swa_utils import AveragedModel


def parser_of_options() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", help="folder of Fashion-MNIST (default: the cache, fetched once)")
    add("--width", type=int, default=64, help="channels of the widest layers (default 64: 1.06 M parameters)")
    add("--batch", type=int, default=64, help="images in a step (default 64)")
    add("--steps", type=int, default=5000)
    add("--lr", type=float, default=2e-3, help="the largest learning rate (default 0.002)")
    add("--warmup", type=int, default=100, help="steps in which the rate grows (default 100)")
    add("--weight-decay", type=float, default=0.01)
    add("--clip", type=float, default=1.0, help="largest norm of all gradients (default 1, 0: none)")
    add("--ema", type=float, default=0.999, help="decay of the averaged weights (default 0.999)")
    add("--unnamed", type=float, default=0.1, help="share of images whose class is not told (default 0.1)")
    add("--evaluate-every", type=int, default=500, help="steps between validations and sheets (default 500)")
    add("--evaluate-batches", type=int, default=16, help="batches of a validation, the same each time (default 16)")
    common.add_common(parser, "runs/flow")
    return parser


class Trainer(common.StepTrainer):
    """A run: its images, model, optimizer and schedule, and the captured step."""

    def __init__(self, o: argparse.Namespace):
        self.o, self.folder = o, Path(o.output)
        if o.width < 8 or o.width % 8:
            raise ConfigError(f"--width: expected a multiple of 8, got {o.width}")
        minigrad.manual_seed(o.seed)
        images, held = FashionMNIST(o.data), FashionMNIST(o.data, train=False)
        self.names = images.classes
        batch = common.share_of_batch(o.batch)
        order = RandomSampler(images, replacement=True, num_samples=o.steps * batch,
                              generator=o.seed + distributed.rank())
        self.loader = DataLoader(images, batch, sampler=order, num_workers=o.workers, generator=o.seed)
        self.held = DataLoader(held, o.batch, sampler=range(min(len(held), o.evaluate_batches * o.batch)),
                               drop_last=True)
        self.model = FlowUNet(Sizes(len(self.names), o.width))
        distributed.broadcast(self.model.parameters())
        common.own_random_numbers()
        self.autocast, self.scaler = common.precision(o.precision)
        self.optimizer: Any = nn.optim.AdamW(self.model.parameters(), lr=o.lr, weight_decay=o.weight_decay)
        self.schedule = nn.optim.lr_scheduler.LambdaLR(
            self.optimizer, common.rate_factor("cosine", o.warmup, o.steps, 0.01))
        self.ema = AveragedModel(self.model, self._averaged)
        self.progress: dict[str, Any] = {"step": 0, "seconds": 0.0, "waited": 0.0}
        self.objects = {"model": self.model, "ema": self.ema, "optimizer": self.optimizer, "schedule": self.schedule,
                        "loader": self.loader, "progress": self.progress,
                        **({} if self.scaler is None else {"scaler": self.scaler})}
        self.step, self.measure = jit(self._step), jit(self._measure)

    def _averaged(self, old: Tensor, new: Tensor, count: Tensor) -> Tensor:
        decay = ((count + 1) / (count + 10)).minimum(self.o.ema)  # short runs forget where they began
        return old * decay + new * (1 - decay)

    def _loss(self, model: Any, pixels: Tensor, classes: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        """The mean squared error of velocities at times [N] between noise and images."""
        images, t = pixels.float() / 127.5 - 1, times.reshape(-1, 1, 1, 1)
        with self.autocast():
            found = model(noise * (1 - t) + images * t, times, classes)
        return ((found.float() - (images - noise)) ** 2).mean()

    def _step(self, pixels: Tensor, classes: Tensor) -> Tensor:
        with Tensor.train():
            count = pixels.shape[0]
            times = Tensor.randn(count).sigmoid()  # more of them in the middle, where the most is to be decided
            told = (Tensor.rand(count) < self.o.unnamed).where(len(self.names), classes)
            loss = self._loss(self.model, pixels, told, times, Tensor.randn(*pixels.shape))
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        common.update(self.optimizer, self.schedule, self.scaler, self.o.clip)
        self.ema.update_parameters(self.model)
        return distributed.all_reduce(loss.detach(), "mean")

    def _measure(self, pixels: Tensor, classes: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        return self._loss(self.ema, pixels, classes, times, noise)

    def validation(self) -> float:
        """The mean loss of the averaged weights on test images, with the same times and noise each time."""
        random = np.random.default_rng(1)
        losses = []
        with common.inference(self.ema):
            for pixels, classes in self.held:
                times = Tensor(random.random(len(classes), np.float32))
                noise = Tensor(random.standard_normal(pixels.shape, np.float32))
                losses.append(self.measure(pixels, classes, times, noise).item())
        return float(np.mean(losses))

    def report(self, loss: float) -> None:
        p, found = self.progress, self.validation()
        self.keep(loss, found)
        common.say(f"step {p['step']}: loss {loss:.4f}, validation loss {found:.4f}; {p['seconds']:.1f} s of training")
        if not distributed.rank():
            self.write()

    def write(self) -> None:
        """The averaged weights in a file of their own, and a sheet of what they draw."""
        count, path = 6, self.folder / "model.safetensors"
        with common.writing(path):
            save_flow(self.ema.module, self.names, path)
        with common.inference(self.ema):
            classes = [number for number in range(len(self.names)) for _ in range(count)]
            images = draw(self.ema.module, classes, 20, 2.0, self.o.seed)
        write_sheet(images.reshape(len(self.names), count, 28, 28), self.names, self.folder / "sheet.png")

    def finish(self) -> None:
        """The curves, and where the weights are."""
        self.draw_losses()
        print(f"weights in {self.folder / 'model.safetensors'}, a sheet in sheet.png", flush=True)


def run(arguments: list[str]) -> int:
    return common.run(parser_of_options(), Trainer, arguments)


def main() -> int:
    return finish("train", "--debug" in sys.argv, lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
