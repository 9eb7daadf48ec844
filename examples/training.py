"""Parts of the training examples: options that a run goes on with, logs, curves, Ctrl-C, precision."""
from __future__ import annotations

import argparse
import csv
import errno
import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm.auto import tqdm

import minigrad
from minigrad import Tensor, distributed, nn, random
from minigrad.errors import ConfigError, FormatError
from minigrad.state import checkpoint
from minigrad.state.mapped import atomic_file

FREE = ("resume", "output", "workers", "device", "debug", "save_every", "keep", "root", "cache")
"""Options that a resumed run may change: none of them changes a number."""


def add_common(parser: argparse.ArgumentParser, output: str) -> None:
    """Options of every training example."""
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default 0)")
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--workers", type=int, default=0, help="processes that read samples (default 0: none)")
    parser.add_argument("--output", default=output, help=f"folder of checkpoints, logs and curves (default {output})")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --output, with its "
                                                              "options")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints (default 200)")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep (default 3)")
    parser.add_argument("--device", help="CPU, CL, CL:<name> (default: MINIGRAD_DEVICE, else CPU)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def options_of(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a run: those given, of a resumed run also those that it began with, else the defaults.

    A new run keeps them in options.json of its folder. Raises ConfigError where a resumed run is given others, or a new
    one a folder that has the checkpoints of another.
    """
    options = parser.parse_args(arguments)
    defaults = vars(parser.parse_args([]))
    parser.set_defaults(**dict.fromkeys(defaults))
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    parser.set_defaults(**defaults)
    path = Path(options.output) / "options.json"
    if not options.resume and distributed.rank():  # rank 0 looks at the folder and keeps them
        return options
    if not options.resume:
        if next(path.parent.glob("checkpoint-*.safetensors"), None) is not None:
            raise ConfigError(f"{options.output}: has the checkpoints of a run; --resume goes on with it, another "
                              "--output starts a new one")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as out:
                out.write(json.dumps(vars(options), indent=1).encode())
        return options
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise FormatError(f"{path}: expected the options of a run to go on with, found none; leave out --resume to "
                          "start one") from None
    for name, value in given.items():
        if name in begun and name not in FREE and begun[name] != value:
            raise ConfigError(f"--{name.replace('_', '-')}: expected {begun[name]}, with which the run in "
                              f"{options.output} began, got {value}; leave it out, or start a new run in another "
                              "--output")
    return argparse.Namespace(**{**vars(options), **begun, **given})


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context in which a file of a run is written. Raises FormatError where it cannot be, with its name and the
    reason, such as a full disk."""
    try:
        yield
    except OSError as error:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
        goes_on = next(path.parent.glob("checkpoint-*.safetensors"), None) is not None
        raise FormatError(f"{path}: cannot write it: {reason}"
                          + ("; --resume goes on from the last checkpoint" if goes_on else "")) from None


def share_of_batch(batch: int, parts: int = 1) -> int:
    """The samples of a batch that one process takes at once. Raises ConfigError where `parts` of it for each process
    are not equally large."""
    if batch % (parts * distributed.size()):
        of = f"{distributed.size()} processes" + (f" of {parts} parts each" if parts > 1 else "")
        raise ConfigError(f"--batch: expected a multiple of {parts * distributed.size()} for {of}, got {batch}")
    return batch // parts // distributed.size()


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """A context in which a model in training behaves as in inference: norms go by running statistics, dropout leaves
    nothing out. A Module is in the mode that it was given last, others are in that of `Tensor.train(...)`."""
    is_module = isinstance(model, nn.Module)
    if is_module:
        model.eval()
    try:
        with Tensor.train(False), Tensor.no_grad():
            yield
    finally:
        if is_module:
            model.train()


def own_random_numbers() -> None:
    """Gives each process but the first a seed of its own, which follows from the one that all have."""
    if distributed.rank():
        seed, count = random.seed()[0], random.counter()
        minigrad.manual_seed((seed + distributed.rank() * 0x9E3779B97F4A7C15) % (1 << 64))
        random.rewind(count)


def save(folder: Path, step: int, objects: dict[str, Any], keep: int) -> None:
    """A checkpoint, by the first process alone."""
    if not distributed.rank():
        checkpoint.save(folder, step, objects, keep)


def say(text: str) -> None:
    """Prints a line, once for all processes."""
    if not distributed.rank():
        print(text, flush=True)


class Stop:
    """A context in which Ctrl-C and SIGTERM only say that the run should end after the present step; the second Ctrl-C
    ends it at once."""

    def __init__(self) -> None:
        self.noted = False

    @property
    def asked(self) -> bool:
        """True where any process was asked to stop. All must ask for it, at the same time."""
        if distributed.size() == 1:
            return self.noted
        return distributed.all_reduce(Tensor([float(self.noted)]), "max").item() > 0

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            raise KeyboardInterrupt
        self.noted = True


class Table:
    """A CSV file that grows by rows, and with which a resumed run goes on: rows whose first column is `before` or more
    are dropped when it is opened. The first process alone writes it."""

    def __init__(self, path: Path, columns: Sequence[str], before: int):
        self.path, self.columns = path, list(columns)
        if distributed.rank():
            return
        kept = [row for row in read_table(path) if int(row[self.columns[0]]) < before]
        with writing(path), atomic_file(path) as out:
            lines = [",".join(self.columns), *[",".join(row[c] for c in self.columns) for row in kept], ""]
            out.write("\n".join(lines).encode())

    def add(self, *values: float) -> None:
        """Writes a row; floats as they are read back equal."""
        if distributed.rank():
            return
        with writing(self.path), open(self.path, "a", encoding="utf-8") as out:
            out.write(",".join(repr(v) for v in values) + "\n")


def read_table(path: Path) -> list[dict[str, str]]:
    """The whole rows of a CSV file; none if there is no file."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as lines:
        return [row for row in csv.DictReader(lines) if None not in row.values() and None not in row]


def events(folder: Path) -> Callable[[str, float, int], None]:
    """Writes numbers for tensorboard, if it is installed: each at once, as a thread that does so later has nobody to
    tell of a full disk. The first process alone does."""
    if distributed.rank():
        return lambda name, value, step: None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        return lambda name, value, step: None
    path = folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"

    def write(event: Any) -> None:
        with writing(path), open(path, "ab") as out:
            RecordWriter(out).write(event.SerializeToString())

    write(Event(wall_time=time.time(), file_version="brain.Event:2"))
    return lambda name, value, step: write(Event(wall_time=time.time(), step=step, summary=Summary(
        value=[Summary.Value(tag=name, simple_value=value)])))


def curves(path: Path, panels: dict[str, dict[str, tuple[list[float], list[float]]]]) -> bool:
    """A picture with a panel for each title, of lines by name, (x, y); False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    for place, (title, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), place + 1, title=title)
        for name, (x, y) in lines.items():
            axes.plot(x, y, label=name)
        axes.grid(alpha=0.3)
        axes.legend()
    with writing(path):
        figure.savefig(path, dpi=120)
    return True


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Means of each value and up to window - 1 before it."""
    return [math.fsum(values[max(0, k - window + 1):k + 1]) / min(k + 1, window) for k in range(len(values))]


def rate_factor(kind: str, warmup: int, total: int, least: float) -> Callable[[Tensor], Tensor]:
    """The factor of the learning rate after a count of steps: from 0 to 1 in `warmup` steps, then `kind`: to
    `least` in a half period of the cosine (cosine) or by a tenth at 60 and 80% (step), or 1 (constant)."""
    def factor(count: Tensor) -> Tensor:
        up = ((count + 1) * (1 / max(warmup, 1))).minimum(1.0)
        done = ((count - warmup) * (1 / max(total - warmup, 1))).clip(0.0, 1.0)
        if kind == "cosine":
            return up * (least + (1 - least) * 0.5 * (1 + (done * math.pi).cos()))
        if kind == "step":
            return up * (done < 0.6).where(1.0, (done < 0.8).where(0.1, 0.01))
        return up

    return factor


def precision(name: str) -> tuple[Callable[[], AbstractContextManager[Any]], Any]:
    """(a maker of the context that the forward pass runs in, a gradient scaler for float16 or None)."""
    if name == "float32":
        return nullcontext, None
    return partial(minigrad.autocast, dtype=name), minigrad.amp.GradScaler() if name == "float16" else None


def update(optimizer: Any, schedule: Any, scaler: Any, clip: float) -> None:
    """A step of the optimizer and of its schedule, by the means of the gradients of all processes, of norm `clip` at
    most (0: any), which are gone then. `scaler` is that of `precision`."""
    distributed.average_gradients(optimizer.params)
    if scaler is not None and clip:
        scaler.unscale_(optimizer)
    if clip:
        nn.utils.clip_grad_norm_(optimizer.params, clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    schedule.step()
    optimizer.zero_grad()


def go_on(folder: str, objects: dict[str, Any]) -> bool:
    """Gives objects the state of the newest whole checkpoint, and says which; False where there is none."""
    found = checkpoint.load(folder, objects)
    if found is None:
        say(f"{folder}: no checkpoint yet, from the start")
        return False
    for problem in found.problems:
        say(f"passed over: {problem}")
    say(f"going on after step {found.step} ({found.path.name})")
    own_random_numbers()
    return True


def finite(loss: float, step: int, folder: str) -> float:
    """`loss`. Raises ConfigError where it is no number, with what to do."""
    if math.isfinite(loss):
        return loss
    raise ConfigError(f"the loss is {loss} at step {step}; the checkpoints before it are in {folder}; try a lower "
                      "--lr, a longer --warmup or --clip 1")


class StepTrainer:
    """A run of so many steps, with a validation after every few of them. What derives from it sets its options `o`,
    `folder`, `loader`, `progress` of step, seconds and waited, and the `objects` of a checkpoint; its `step` of a batch
    gives the loss."""

    o: argparse.Namespace
    folder: Path
    loader: Any
    progress: dict[str, Any]
    objects: dict[str, Any]
    step: Callable[..., Tensor]

    def report(self, loss: float) -> None:
        """Validates, and says and keeps what was found."""
        raise NotImplementedError

    def finish(self) -> None:
        """Writes what a run is for."""
        raise NotImplementedError

    def train(self) -> int:
        """All steps, or what is left of them; 130 where somebody stopped it."""
        o, p = self.o, self.progress
        if not (o.resume and go_on(o.output, self.objects)):
            save(self.folder, 0, self.objects, o.keep)
        self.log = Table(self.folder / "log.csv", ("step", "validation_loss", "seconds"), p["step"] + 1)
        self.losses = Table(self.folder / "steps.csv", ("step", "loss"), p["step"])
        self.event = events(self.folder)
        with Stop() as stop, tqdm(total=o.steps, initial=p["step"], leave=False, unit="step",
                                  disable=bool(distributed.rank()) or None) as bar:
            started, before = time.perf_counter(), dict(p)
            for batch in self.loader if p["step"] < o.steps else ():
                loss = finite(self.step(*batch).item(), p["step"], o.output)
                self.losses.add(p["step"], loss)
                p["step"] += 1
                bar.update()
                bar.set_postfix_str(f"loss {loss:.4f}")
                due = p["step"] % o.evaluate_every == 0 or p["step"] == o.steps
                if due:
                    p["seconds"] = before["seconds"] + time.perf_counter() - started
                    p["waited"] = before["waited"] + self.loader.waited
                    self.report(loss)
                    started, before = time.perf_counter(), {**p, "waited": p["waited"] - self.loader.waited}
                stopped = stop.asked
                if due or stopped or p["step"] % o.save_every == 0:
                    save(self.folder, p["step"], self.objects, o.keep)
                if stopped and p["step"] < o.steps:
                    say(f"stopped after step {p['step']}; --resume goes on")
                    return 130
        if not distributed.rank():
            self.finish()
        return 0

    def keep(self, loss: float, found: float) -> None:
        """Adds a validation to the log and to tensorboard's events."""
        p = self.progress
        self.log.add(p["step"], found, p["seconds"])
        self.event("train/loss", loss, p["step"])
        self.event("validation/loss", found, p["step"])

    def draw_losses(self) -> None:
        """The curves of both losses."""
        rows, steps = read_table(self.folder / "log.csv"), read_table(self.folder / "steps.csv")
        curves(self.folder / "curves.png", {"loss": {
            "training": ([float(r["step"]) for r in steps], smoothed([float(r["loss"]) for r in steps], 50)),
            "validation": ([float(r["step"]) for r in rows], [float(r["validation_loss"]) for r in rows])}})


def run(parser: argparse.ArgumentParser, trainer: Callable[[argparse.Namespace], Any], arguments: list[str]) -> int:
    """Trains by the options of a command; the status to exit with."""
    options = options_of(parser, arguments)
    with minigrad.config(**({"device": options.device} if options.device else {})):
        distributed.init()
        return trainer(options).train()
