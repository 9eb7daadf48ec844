"""Trains a GPT on the characters of a text, and lets it write.

    python examples/gpt/train.py --data text.txt               # 4 layers, 128 wide, 2,000 steps
    python examples/gpt/train.py --resume                      # goes on after a crash, bit for bit
    python examples/gpt/train.py --output runs/gpt --sample 500 --prompt "ROMEO:"

What comes out is in --output: model.safetensors, log.csv, steps.csv, curves.png, tensorboard's events (if installed),
and checkpoints.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

if __spec__ is None:  # run as a script: examples and minigrad are found from the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples import training as common
    from examples.gpt.model import GPT, Sizes, sample
else:  # from the repository, or installed as minigrad_examples
    from .. import training as common  # noqa: TID252  (whatever the package is called)
    from .model import GPT, Sizes, sample

import minigrad
from minigrad import Tensor, distributed, jit, nn
from minigrad.cli.outcome import OneLineParser, finish
from minigrad.data import Characters, DataLoader, RandomSampler, TextTokens
from minigrad.errors import ConfigError, FormatError, ShapeError
from minigrad.state import get_state_dict, load_state_dict, safe_load, safe_save
from minigrad.state.safe import safe_metadata


def parser_of_options() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="input.txt", help="a text file; its last tenth is for validation (default input.txt)")
    add("--block", type=int, default=64, help="characters seen at once (default 64)")
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=4)
    add("--width", type=int, default=128)
    add("--dropout", type=float, default=0.0)
    add("--batch", type=int, default=12)
    add("--steps", type=int, default=2000)
    add("--lr", type=float, default=1e-3)
    add("--warmup", type=int, default=100, help="steps in which the rate grows (default 100)")
    add("--weight-decay", type=float, default=0.1, help="of matrices (default 0.1)")
    add("--clip", type=float, default=1.0, help="largest norm of all gradients (default 1, 0: none)")
    add("--evaluate-every", type=int, default=500, help="steps between validations (default 500)")
    add("--evaluate-batches", type=int, default=64, help="batches of a validation, the same each time (default 64)")
    add("--sample", type=int, default=300, help="characters to write at the end, or alone from a trained model")
    add("--prompt", default="\n", help="what it goes on from (default a new line)")
    add("--temperature", type=float, default=0.8)
    add("--top", type=int, default=0, help="draw from so many likeliest characters (default 0: all)")
    common.add_common(parser, "runs/gpt")
    return parser


class Trainer(common.StepTrainer):
    """A run: its text, model, optimizer and schedule, and the captured step."""

    def __init__(self, o: argparse.Namespace):
        self.o, self.folder = o, Path(o.output)
        minigrad.manual_seed(o.seed)
        text = read_text(o.data)
        self.vocabulary = Characters(text)
        tokens = self.vocabulary.encode(text)
        cut = len(tokens) * 9 // 10
        try:
            training, held = TextTokens(tokens[:cut], o.block), TextTokens(tokens[cut:], o.block)
        except ShapeError as error:
            raise ConfigError(f"--data: the text is too short for --block {o.block}: {error}") from None
        batch = common.share_of_batch(o.batch)
        order = RandomSampler(training, replacement=True, num_samples=o.steps * batch,
                              generator=o.seed + distributed.rank())
        self.loader = DataLoader(training, batch, sampler=order, num_workers=o.workers, generator=o.seed)
        count = o.evaluate_batches * o.batch
        self.held = DataLoader(held, o.batch, sampler=RandomSampler(held, replacement=True, num_samples=count,
                                                                    generator=1))
        self.sizes = Sizes(len(self.vocabulary), o.block, o.layers, o.heads, o.width, o.dropout)
        self.model = GPT(self.sizes)
        distributed.broadcast(self.model.parameters())
        common.own_random_numbers()
        self.autocast, self.scaler = common.precision(o.precision)
        parameters = list(self.model.parameters())
        self.optimizer: Any = nn.optim.AdamW(
            [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": o.weight_decay},
             {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}], lr=o.lr, betas=(0.9, 0.99))
        self.schedule = nn.optim.lr_scheduler.LambdaLR(
            self.optimizer, common.rate_factor("cosine", o.warmup, o.steps, 0.1))
        self.progress: dict[str, Any] = {"step": 0, "seconds": 0.0, "waited": 0.0}
        self.objects = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule,
                        "loader": self.loader, "progress": self.progress,
                        **({} if self.scaler is None else {"scaler": self.scaler})}
        self.step, self.measure = jit(self._step), jit(self._measure)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.autocast():
            logits = self.model(x)
        return logits.float().reshape(-1, self.sizes.vocabulary).cross_entropy(y.reshape(-1))

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            loss = self._loss(x, y)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        common.update(self.optimizer, self.schedule, self.scaler, self.o.clip)
        return distributed.all_reduce(loss.detach(), "mean")

    def _measure(self, x: Tensor, y: Tensor) -> Tensor:
        return self._loss(x, y)

    def validation(self) -> float:
        """The mean loss of the same batches each time."""
        self.held.set_epoch(0)
        with common.inference(self.model):
            return float(np.mean([self.measure(x, y).item() for x, y in self.held]))

    def report(self, loss: float) -> None:
        p, found = self.progress, self.validation()
        self.keep(loss, found)
        common.say(f"step {p['step']}: loss {loss:.4f}, validation loss {found:.4f}; {p['seconds']:.1f} s of training, "
                   f"{p['waited'] / p['seconds']:.1%} of it waiting for data")

    def finish(self) -> None:
        """The weights in a file of their own, the curves, and a sample."""
        facts = {"sizes": dataclasses.asdict(self.sizes), "characters": self.vocabulary.characters}
        path = self.folder / "model.safetensors"
        with common.writing(path):
            safe_save(get_state_dict(self.model), path, {"minigrad": json.dumps(facts)}, durable=True)
        self.draw_losses()
        print(f"weights in {path}", flush=True)
        write(self.model, self.vocabulary, self.o)


def read_text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else "no UTF-8"
        raise FormatError(f"{path}: cannot read it: {reason}; expected a text file") from None


def write(model: GPT, vocabulary: Characters, o: argparse.Namespace) -> None:
    """Prints a sample."""
    if o.sample:
        start = [int(t) for t in vocabulary.encode(o.prompt)]
        model.eval()
        print(vocabulary.decode(sample(model, start, o.sample, o.temperature, o.top, o.seed)), flush=True)


def trained(path: Path) -> tuple[GPT, Characters]:
    """The model and the vocabulary in a file that a run left."""
    try:
        facts = json.loads(safe_metadata(path)["minigrad"])
        model, vocabulary = GPT(Sizes(**facts["sizes"])), Characters(facts["characters"])
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{path}: expected the model of a run of this program, got another file") from None
    load_state_dict(model, safe_load(path))
    return model, vocabulary


def run(arguments: list[str]) -> int:
    parser = parser_of_options()
    asked = parser.parse_args(arguments)
    with minigrad.config(**({"device": asked.device} if asked.device else {})):
        distributed.init()
        path = Path(asked.output) / "model.safetensors"
        if path.is_file() and not asked.resume:
            write(*trained(path), asked)
            return 0
        return Trainer(common.options_of(parser, arguments)).train()


def main() -> int:
    return finish("train", "--debug" in sys.argv, lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
