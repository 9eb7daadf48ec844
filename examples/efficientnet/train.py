"""Trains an image classifier on a folder of photos or a named data set.

    python examples/efficientnet/train.py --data photos --model lite0 --pretrained --epochs 8
    python examples/efficientnet/train.py --data mnist --model cnn
    python examples/efficientnet/train.py --resume                 # goes on after a crash, bit for bit

A folder of photos has a folder for each class, or such folders in train/, validation/ and test/. What comes out is in
--output: model.safetensors (for classify.py --weights), log.csv, steps.csv, curves.png, tensorboard's events (if
installed), and checkpoints.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples import training as common
    from examples.efficientnet.model import EfficientNet
    from examples.zoo.mobilenet import MobileNetV2
    from examples.zoo.resnet import resnet18
    from examples.zoo.vit import VisionTransformer
else:  # from the repository, or installed as minigrad_examples
    from .. import training as common  # noqa: TID252  (whatever the package is called)
    from ..zoo.mobilenet import MobileNetV2  # noqa: TID252
    from ..zoo.resnet import resnet18  # noqa: TID252
    from ..zoo.vit import VisionTransformer  # noqa: TID252
    from .model import EfficientNet

import minigrad
from minigrad import Tensor, distributed, jit, nn
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    CachedDataset,
    DataLoader,
    DistributedSampler,
    FashionMNIST,
    ImageFolder,
    random_split,
)
from minigrad.data import augment as aug
from minigrad.errors import ConfigError
from minigrad.nn.swa_utils import AveragedModel
from minigrad.state import get_parameters, get_state_dict, safe_save

SETS: dict[str, Any] = {"mnist": MNIST, "fashion-mnist": FashionMNIST, "cifar10": CIFAR10, "cifar100": CIFAR100}
MODELS = ("cnn", *(f"b{k}" for k in range(8)), "lite0", "lite1", "lite2", "resnet18", "mobilenet_v2", "vit_s")
OPTIMIZERS: dict[str, Any] = {"sgd": lambda groups, lr: nn.optim.SGD(groups, lr, momentum=0.9, nesterov=True),
              "adam": nn.optim.Adam, "adamw": nn.optim.AdamW, "rmsprop": nn.optim.RMSprop}
MEAN, STD = 127.0, 128.0


def parser_of_options() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="mnist", help=f"a folder of photos, or {', '.join(SETS)} (default mnist)")
    add("--root", help="folder of a named data set (default: the cache, fetched once)")
    add("--cache", help="file to keep decoded photos in (default: decode them in each epoch)")
    add("--model", default="cnn", choices=MODELS, metavar="MODEL", help=f"{', '.join(MODELS)} (default cnn)")
    add("--pretrained", action="store_true", help="start from ImageNet weights (lite0, lite1, lite2)")
    add("--size", type=int, default=0, help="of images (default: of a named set its own, else the model's)")
    add("--load-size", type=int, default=0, help="size photos are read at, before crops (default: 8/7 of --size)")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=64, help="images in a step (default 64)")
    add("--accumulate", type=int, default=1, help="parts of a batch whose gradients are added up (default 1)")
    add("--optimizer", choices=[*OPTIMIZERS], default="adamw")
    add("--lr", type=float, default=2e-3, help="the largest learning rate (default 0.002)")
    add("--schedule", choices=("cosine", "step", "constant"), default="cosine")
    add("--warmup", type=float, default=1.0, help="epochs in which the rate grows (default 1)")
    add("--weight-decay", type=float, default=0.01, help="of weights, not of norms and biases (default 0.01)")
    add("--clip", type=float, default=0.0, help="largest norm of all gradients (default 0: none)")
    add("--ema", type=float, default=0.0, help="decay of the averaged weights, such as 0.999 (default 0: none)")
    add("--crop", choices=("resized", "pad", "none"), help="random crop (default: resized for photos, else pad)")
    add("--scale", type=float, default=0.35, help="least share of the area that a resized crop keeps (default 0.35)")
    add("--flip", type=float, help="probability of a mirror image (default 0.5, 0 for mnist)")
    add("--jitter", type=float, default=0.0, help="amount of changes in brightness, contrast and saturation")
    add("--randaugment", type=float, default=0.0, help="magnitude 0..10 of two random operations (default 0: none)")
    add("--erasing", type=float, default=0.0, help="probability of erasing a rectangle")
    add("--mixup", type=float, default=0.0, help="alpha of mixup, such as 0.2")
    add("--cutmix", type=float, default=0.0, help="alpha of cutmix, such as 1")
    add("--smoothing", type=float, default=0.0, help="of labels, such as 0.1")
    add("--drop-path", type=float, default=0.0, help="probability of leaving out the last block (EfficientNet)")
    add("--sync-bn", action="store_true", help="batch norm by the batches of all processes (mpirun)")
    add("--steps", type=int, default=0, help="end after so many steps (default 0: all epochs)")
    common.add_common(parser, "runs/images")
    return parser


class CNN(nn.Module):
    """Five convolutions for small images, 140,000 parameters."""

    def __init__(self, channels: int, classes: int):
        sizes = [(channels, 32), (32, 32), (32, 64), (64, 64), (64, 128)]
        self.convs = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in sizes]
        self.norms = [nn.BatchNorm2d(b) for _, b in sizes]
        self.classifier = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        for k, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x)).relu()
            x = x.max_pool2d(2) if k in (1, 3) else x
        return self.classifier(x.mean((2, 3)))


def build(name: str, classes: int, channels: int, size: int, drop_path: float, pretrained: bool) -> Any:
    """The model of a name, for images of `size`. Raises ConfigError for options that it does not have."""
    if pretrained and not name.startswith("lite"):
        raise ConfigError("--pretrained: expected lite0, lite1 or lite2, whose ImageNet weights are published, got "
                          f"{name}")
    if name[:-1] in ("b", "lite"):
        made = EfficientNet(int(name[-1]), 1000 if pretrained else classes, lite=name[:-1] == "lite",
                            drop_path=drop_path)
        if pretrained:
            made.load_from_pretrained()
            made.classifier = nn.Linear(int(made.classifier.weight.shape[1]), classes)
        return made
    if drop_path:
        raise ConfigError(f"--drop-path: expected an EfficientNet, got {name}")
    if name == "cnn":
        return CNN(channels, classes)
    if name == "vit_s":
        return VisionTransformer(size, classes=classes)
    return (resnet18 if name == "resnet18" else MobileNetV2)(classes)


def data_of(o: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """(data sets train, validation and perhaps test; names of classes; size of images)."""
    if o.data in SETS:
        parts = {name: SETS[o.data](o.root, train=name == "train") for name in ("train", "validation")}
        return parts, parts["train"].classes, o.size or int(parts["train"].data.shape[-1])
    size = o.size or (EfficientNet(int(o.model[-1]), 1, lite="lite" in o.model).image_size
                      if o.model[:-1] in ("b", "lite") else 224)
    load = o.load_size or size * 8 // 7
    root = Path(o.data).expanduser()
    folders = {name: path for name, path in (("train", root / "train"), ("test", root / "test"), *(
        ("validation", root / f) for f in ("val", "valid", "validation"))) if path.is_dir()}
    sets: dict[str, Any] = {name: ImageFolder(path, load) for name, path in (folders or {"train": root}).items()}
    classes = sets["train"].classes
    if o.cache:
        sets = {name: CachedDataset(part, f"{o.cache}.{name}") for name, part in sets.items()}
    if "validation" not in sets:
        sets["train"], sets["validation"] = random_split(sets["train"], [0.9, 0.1], o.seed)
    return sets, classes, size


class Trainer:
    """A run: its data, model, optimizer and schedule, and the captured steps."""

    def __init__(self, o: argparse.Namespace):
        self.o, self.folder = o, Path(o.output)
        if o.batch % o.accumulate:
            raise ConfigError(f"--accumulate: expected a divisor of --batch {o.batch}, got {o.accumulate}")
        batch = common.share_of_batch(o.batch, o.accumulate)
        minigrad.manual_seed(o.seed)
        self.sets, self.classes, self.size = data_of(o)
        first = self.sets["train"][0][0]
        self.photos, self.channels = o.data not in SETS, int(first.shape[0]) if o.model == "cnn" else 3
        order = DistributedSampler(self.sets["train"], seed=o.seed, drop_last=True)
        self.loader = DataLoader(self.sets["train"], batch, sampler=order, drop_last=True, num_workers=o.workers,
                                 generator=o.seed, keys=True, pin_memory=True, persistent_workers=bool(o.workers))
        self.steps_per_epoch = len(self.loader) // o.accumulate
        if not self.steps_per_epoch:
            raise ConfigError(f"--batch: expected at most the {len(self.sets['train'])} images there are, got "
                              f"{o.batch}")
        self.total = o.epochs * self.steps_per_epoch
        self.model = build(o.model, len(self.classes), self.channels, self.size, o.drop_path, o.pretrained)
        if o.sync_bn:
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        distributed.broadcast(get_parameters(self.model))
        common.own_random_numbers()
        self.autocast, self.scaler = common.precision(o.precision)
        tensors = get_parameters(self.model)
        decayed = [p for p in tensors if not p.requires_grad or p.ndim > 1]
        others = [p for p in tensors if p.requires_grad and p.ndim <= 1]
        self.optimizer: Any = OPTIMIZERS[o.optimizer]([{"params": decayed, "weight_decay": o.weight_decay},
                                                       {"params": others, "weight_decay": 0.0}], lr=o.lr)
        factor = common.rate_factor(o.schedule, round(o.warmup * self.steps_per_epoch), self.total, 0.01)
        self.schedule = nn.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.ema = AveragedModel(self.model, self._averaged, use_buffers=True) if o.ema else None
        self.progress: dict[str, Any] = {"step": 0, "loss": 0.0, "correct": 0, "seen": 0, "seconds": 0.0, "waited": 0.0}
        self.objects = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule,
                        "loader": self.loader, "progress": self.progress,
                        **({} if self.ema is None else {"ema": self.ema}),
                        **({} if self.scaler is None else {"scaler": self.scaler})}
        self.stopped = False
        self.step, self.part, self.measure = jit(self._step), jit(self._part), jit(self._measure)

    def _averaged(self, old: Tensor, new: Tensor, count: Tensor) -> Tensor:
        decay = ((count + 1) / (count + 10)).minimum(self.o.ema)  # short runs forget where they began
        return old * decay + new * (1 - decay)

    # What is captured

    def augmented(self, x: Tensor, labels: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(images as the model takes them, labels as probabilities) of a batch of uint8 images."""
        o = self.o
        crop = o.crop or ("resized" if self.photos else "pad")
        if crop == "resized":
            x = aug.random_resized_crop(x, keys, self.size, (o.scale, 1.0))
        else:
            x = aug.random_crop(x, keys, self.size, padding=self.size // 14 if crop == "pad" else 0)
        flip = (0.0 if o.data == "mnist" else 0.5) if o.flip is None else o.flip
        x = aug.random_flip(x, keys, flip) if flip else x
        x = x if x.shape[1] == self.channels else x.expand(-1, self.channels, -1, -1)
        x = aug.color_jitter(x, keys, o.jitter, o.jitter, o.jitter) if o.jitter else x
        x = aug.rand_augment(x, keys, 2, o.randaugment) if o.randaugment else x
        x = aug.random_erase(x, keys, o.erasing, fill=MEAN) if o.erasing else x
        y = aug.one_hot(labels, len(self.classes), o.smoothing)
        x, y = aug.mixup_or_cutmix(x, y, keys, o.mixup, o.cutmix) if o.mixup or o.cutmix else (x, y)
        return aug.normalize(x, MEAN, STD), y

    def _backward(self, x: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        """[loss, correct answers], after the gradients of a part of a batch were added."""
        with Tensor.train():
            images, y = self.augmented(x, labels, keys)
            with self.autocast():
                logits = self.model(images)
            loss = logits.float().cross_entropy(y)
            part = loss / self.o.accumulate
            (part if self.scaler is None else self.scaler.scale(part)).backward()
        found = Tensor.stack(loss.detach() / distributed.size(), (logits.argmax(1) == labels).sum().float())
        return distributed.all_reduce(found)

    def _part(self, x: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        return self._backward(x, labels, keys)

    def _step(self, x: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        """The last part of a batch, and the update."""
        result = self._backward(x, labels, keys)
        common.update(self.optimizer, self.schedule, self.scaler, self.o.clip)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        return result

    def _measure(self, x: Tensor, labels: Tensor) -> Tensor:
        """[sum of losses, correct answers] in inference; labels of -1 do not count."""
        x = x if x.shape[1] == self.channels else x.expand(-1, self.channels, -1, -1)
        with self.autocast():
            logits = self.evaluated(aug.normalize(aug.center_crop(x, self.size), MEAN, STD)).float()
        losses = -(logits.log_softmax(1) * aug.one_hot(labels, len(self.classes))).sum()
        return Tensor.stack(losses, (logits.argmax(1) == labels).sum().float())

    # Epochs

    @property
    def evaluated(self) -> Any:
        """The model, or that of the averaged weights where there are such."""
        return self.model if self.ema is None else self.ema

    def evaluate(self, part: str) -> tuple[float, float]:
        """(mean loss, accuracy) of a data set, of the averaged weights if there are any."""
        distributed.broadcast(get_parameters(self.model if self.ema is None else self.ema.module))
        loss, correct, batch = 0.0, 0.0, common.share_of_batch(self.o.batch)
        own = range(distributed.rank(), len(self.sets[part]), distributed.size())
        loader: Iterable[Any] = DataLoader(self.sets[part], batch, sampler=own, num_workers=self.o.workers)
        with common.inference(self.evaluated):
            for x, labels in tqdm(loader, desc=part, leave=False, disable=bool(distributed.rank()) or None):
                spare = batch - len(labels)  # one shape, one capture
                if spare:
                    x, labels = x.pad((0, 0, 0, 0, 0, 0, 0, spare)), labels.pad((0, spare), value=-1)
                    Tensor.realize(x, labels)
                found = self.measure(x, labels).tolist()
                loss, correct = loss + found[0], correct + found[1]
        loss, correct = distributed.all_reduce(Tensor([loss, correct], dtype="float64")).tolist()
        return loss / len(self.sets[part]), correct / len(self.sets[part])

    def train(self) -> int:
        """All epochs, or what is left of them; 130 where somebody stopped it."""
        o, p = self.o, self.progress
        if not (o.resume and common.go_on(o.output, self.objects)):
            common.save(self.folder, 0, self.objects, o.keep)
        self.log = common.Table(self.folder / "log.csv", ("epoch", "train_loss", "train_accuracy", "validation_loss",
                                                   "validation_accuracy", "lr", "seconds", "waited"),
                         p["step"] // self.steps_per_epoch)
        self.losses = common.Table(self.folder / "steps.csv", ("step", "loss"), p["step"])
        self.event = common.events(self.folder)
        last = min(self.total, o.steps or self.total)
        with common.Stop() as stop:
            while p["step"] < last:
                self.epoch(last, stop)
                common.save(self.folder, p["step"], self.objects, o.keep)
                if self.stopped:
                    common.say(f"stopped after step {p['step']}; --resume goes on")
                    return 130
        test = self.evaluate("test") if "test" in self.sets else None
        if not distributed.rank():
            self.finish(test)
        return 0

    def epoch(self, last: int, stop: common.Stop) -> None:
        """The rest of an epoch, and its line in the log."""
        o, p = self.o, self.progress
        number = p["step"] // self.steps_per_epoch
        end = min(last, (number + 1) * self.steps_per_epoch)
        if p["step"] % self.steps_per_epoch == 0:
            self.loader.set_epoch(number)
        started, before = time.perf_counter(), dict(p)
        with tqdm(total=self.steps_per_epoch, initial=p["step"] % self.steps_per_epoch, leave=False,
                  disable=bool(distributed.rank()) or None, desc=f"epoch {number + 1}/{o.epochs}", unit="step") as bar:
            for count, (x, labels, keys) in enumerate(self.loader):
                whole = (count + 1) % o.accumulate == 0
                loss, correct = (self.step if whole else self.part)(x, labels, keys).tolist()
                images = len(labels) * distributed.size()
                p["loss"] += common.finite(loss, p["step"], o.output) * images
                p["correct"], p["seen"] = p["correct"] + int(correct), p["seen"] + images
                if not whole:
                    continue
                self.losses.add(p["step"], loss)
                p["step"] += 1
                p["seconds"] = before["seconds"] + time.perf_counter() - started
                p["waited"] = before["waited"] + self.loader.waited
                bar.update()
                bar.set_postfix_str(f"loss {p['loss'] / p['seen']:.4f}, accuracy {p['correct'] / p['seen']:.2%}, "
                                    f"{(p['seen'] - before['seen']) / (time.perf_counter() - started):.0f} images/s")
                self.stopped = stop.asked
                if p["step"] == end or self.stopped:
                    break
                if p["step"] % o.save_every == 0:
                    common.save(self.folder, p["step"], self.objects, o.keep)
        if p["step"] % self.steps_per_epoch == 0:
            self.report(number)

    def report(self, number: int) -> None:
        """The line of an epoch that is over; the sums begin anew."""
        p = self.progress
        loss, accuracy, waiting = p["loss"] / p["seen"], p["correct"] / p["seen"], p["waited"] / p["seconds"]
        found = self.evaluate("validation")
        rate = self.schedule.get_last_lr()[0]
        self.log.add(number, loss, accuracy, *found, rate, p["seconds"], p["waited"])
        for name, value in (("train/loss", loss), ("train/accuracy", accuracy), ("validation/loss", found[0]),
                            ("validation/accuracy", found[1]), ("lr", rate)):
            self.event(name, value, number + 1)
        slow = f"; --workers {2 if not self.o.workers else self.o.workers + 1} may help" if waiting > 0.05 else ""
        common.say(f"epoch {number + 1}/{self.o.epochs}: loss {loss:.4f}, accuracy {accuracy:.2%}; validation loss "
                   f"{found[0]:.4f}, accuracy {found[1]:.2%}; {p['seconds']:.1f} s, {p['seen'] / p['seconds']:.0f} "
                   f"images/s, {waiting:.1%} of it waiting for data{slow}")
        p.update(loss=0.0, correct=0, seen=0, seconds=0.0, waited=0.0)

    def finish(self, test: tuple[float, float] | None) -> None:
        """The weights in a file of their own, the curves, and what was found on the test set, if there is one."""
        tensors = get_state_dict(self.model if self.ema is None else self.ema.module)
        facts = {"model": self.o.model, "classes": self.classes, "size": self.size, "channels": self.channels,
                 "load_size": (self.o.load_size or self.size * 8 // 7) if self.photos else self.size}
        path = self.folder / "model.safetensors"
        with common.writing(path):
            safe_save(tensors, path, {"minigrad": json.dumps(facts)}, durable=True)
        rows, steps = common.read_table(self.folder / "log.csv"), common.read_table(self.folder / "steps.csv")
        at = [int(r["epoch"]) + 1.0 for r in rows]
        losses = common.smoothed([float(r["loss"]) for r in steps], 50)
        lines = {"loss": {"training": ([int(r["step"]) / self.steps_per_epoch for r in steps], losses),
                          "validation": (at, [float(r["validation_loss"]) for r in rows])},
                 "accuracy": {name: (at, [float(r[f"{key}_accuracy"]) for r in rows])
                              for name, key in (("training", "train"), ("validation", "validation"))}}
        drawn = common.curves(self.folder / "curves.png", lines)
        if test is not None:
            print("test: loss {:.4f}, accuracy {:.2%}".format(*test), flush=True)
        print(f"{sum(float(r['seconds']) for r in rows):.0f} s of training; weights in {path}"
              f"{', curves in curves.png' if drawn else ''}", flush=True)


def run(arguments: list[str]) -> int:
    return common.run(parser_of_options(), Trainer, arguments)


def main() -> int:
    return finish("train", "--debug" in sys.argv, lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
