"""The training examples: they learn, go on after kill -9 bit for bit, and say in one line what is wrong."""
import csv
import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kills import killed, ran, resumed

import minigrad
from examples.efficientnet import train as images
from examples.gpt import train as text
from examples.training import Stop, Table, curves, events, options_of, rate_factor, read_table, smoothed
from minigrad import Tensor
from minigrad.data import read_image
from minigrad.errors import ConfigError, FormatError
from minigrad.state.safe import safe_load, safe_metadata

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed: nothing reads photos")
SCRIPT = "examples/efficientnet/train.py"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of ten photos, each of its own colour."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, name in enumerate(("blue", "green", "red")):
        (root / name).mkdir()
        for k in range(10):
            pixels = rng.integers(0, 120, (16, 16, 3), np.uint8)
            pixels[..., 2 - number] += 120
            Image.fromarray(pixels).save(root / name / f"{k}.png")
    return root


def options(photos: Path, *more: str) -> list[str]:
    return ["--data", str(photos), "--model", "cnn", "--size", "12", "--load-size", "14", "--epochs", "2",
            "--batch", "8", "--ema", "0.9", "--erasing", "0.3", "--mixup", "0.2", "--clip", "1", "--lr", "0.01", *more]


def test_a_folder_of_photos_becomes_a_model(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    plain = ["--data", str(photos), "--model", "cnn", "--size", "12", "--load-size", "14", "--epochs", "4",
             "--batch", "8", "--lr", "0.01", "--cache", str(tmp_path / "cache")]
    assert images.run([*plain, "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "epoch 4/4: loss" in printed and "waiting for data" in printed and "s of training; weights in" in printed
    rows = read_table(out / "log.csv")
    assert [int(r["epoch"]) for r in rows] == list(range(4)) and float(rows[-1]["train_accuracy"]) > 0.8
    assert len(read_table(out / "steps.csv")) == 4 * 3
    assert (out / "curves.png").is_file() or importlib.util.find_spec("matplotlib") is None
    facts = json.loads(safe_metadata(out / "model.safetensors")["minigrad"])
    assert facts["classes"] == ["blue", "green", "red"] and facts["size"] == 12

    from examples.efficientnet import classify

    path = str(photos / "red" / "3.png")
    (lines,) = classify.classify([path], weights=str(out / "model.safetensors")).values()
    model = images.build("cnn", 3, 3, 12, 0.0, False).eval()
    minigrad.nn.state.load_state_dict(model, minigrad.nn.state.safe_load(out / "model.safetensors"))
    x = (read_image(path, 14)[None, :, 1:13, 1:13].astype(np.float32) - 127) / 128
    chances = model(Tensor(x)).softmax(1)[0].tolist()
    best = sorted(zip(chances, facts["classes"], strict=True), reverse=True)
    assert lines == [f"{p:7.2%}  {name}" for p, name in best]


@pytest.mark.parametrize("ema", ["0", "0.9"])
def test_norms_are_evaluated_by_running_statistics(ema: str, photos: Path, tmp_path: Path) -> None:
    """The loss is that of the model in eval(), image by image, and the model is in training again afterwards."""
    given = options(photos, "--ema", ema, "--output", str(tmp_path))
    trainer = images.Trainer(options_of(images.parser_of_options(), given))
    x, y, keys = next(iter(trainer.loader))
    trainer.step(x, y, keys)
    loss, accuracy = trainer.evaluate("validation")
    assert trainer.model.training and trainer.evaluated.training
    model, found = trainer.evaluated.eval(), []
    for pixels, label in (trainer.sets["validation"][k] for k in range(len(trainer.sets["validation"]))):
        image = (Tensor(pixels[None, :, 1:13, 1:13]).float() - 127) / 128
        found.append((model(image).log_softmax(1)[0, int(label)].item(), int(model(image).argmax(1).item()) == label))
    np.testing.assert_allclose((loss, accuracy), (-np.mean([f[0] for f in found]), np.mean([f[1] for f in found])),
                               rtol=1e-5)


class Flat(minigrad.nn.Module):
    """A model without batch norm, whose gradients of parts add up to those of the whole."""

    def __init__(self, channels: int, classes: int):
        self.layer = minigrad.nn.Linear(channels * 12 * 12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def test_accumulated_gradients_are_those_of_the_whole_batch(photos: Path, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CNN", Flat)
    found = []
    for parts in ("1", "2", "4"):
        out = tmp_path / parts
        assert images.run(options(photos, "--accumulate", parts, "--optimizer", "sgd", "--mixup", "0", "--ema", "0",
                                  "--output", str(out))) == 0
        found.append(minigrad.nn.state.safe_load(out / "model.safetensors")["layer.weight"].numpy())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-6)


def test_runs_killed_at_any_moment_end_with_equal_weights(photos: Path, tmp_path: Path) -> None:
    command = [SCRIPT, *options(photos, "--save-every", "2", "--workers", "1", "--accumulate", "2")]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, printed = ran(resumed(command, whole, False))
    assert status == 0, printed
    for after in (1, 4):
        assert killed(resumed(command, broken, after > 1), broken, after)
    status, printed = ran(resumed([SCRIPT], broken, True))  # its options are known
    assert status == 0 and "going on after step" in printed, printed
    for name in ("model.safetensors", "steps.csv"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name
    kept = [{k: v for k, v in r.items() if k not in ("seconds", "waited")} for r in read_table(whole / "log.csv")]
    assert kept == [{k: v for k, v in r.items() if k not in ("seconds", "waited")}
                    for r in read_table(broken / "log.csv")]


def test_a_stopped_run_saves_and_goes_on(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert images.run(options(photos, "--output", str(whole))) == 0
    add = Table.add

    def stopping(self: Table, *values: float) -> None:
        add(self, *values)
        if self.path.name == "steps.csv" and values[0] == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "add", stopping)
        assert images.run(options(photos, "--output", str(out))) == 130
    assert "stopped after step 4; --resume goes on" in capsys.readouterr().out
    assert images.run(["--resume", "--output", str(out)]) == 0
    assert (whole / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_what_is_wrong_is_one_line(photos: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    assert images.run(options(photos, "--steps", "1", "--output", out)) == 0
    for arguments, words in (
            (options(photos, "--output", out), "has the checkpoints of a run; --resume goes on with it"),
            (["--resume", "--lr", "0.5", "--output", out], "--lr: expected 0.01, with which .* began, got 0.5"),
            (["--resume", "--output", str(tmp_path / "none")], "expected the options of a run to go on with"),
            (options(photos, "--lr", "1e30", "--clip", "0", "--output", str(tmp_path / "nan")),
             "the loss is (nan|inf) at step .; the checkpoints before it are in"),
            (options(photos, "--accumulate", "3", "--output", str(tmp_path / "a")), "a divisor of --batch 8, got 3"),
            (options(photos, "--pretrained", "--output", str(tmp_path / "b")), "--pretrained: expected lite0"),
            (options(photos, "--drop-path", "0.1", "--output", str(tmp_path / "c")), "an EfficientNet, got cnn"),
            (options(photos, "--batch", "64", "--output", str(tmp_path / "d")), "at most the 27 images .*, got 64"),
            (["--data", str(tmp_path / "nowhere"), "--output", str(tmp_path / "e")], "expected a folder")):
        with pytest.raises((ConfigError, FormatError), match=words) as caught:
            images.run(arguments)
        assert "\n" not in str(caught.value)
    assert list((tmp_path / "nan").glob("checkpoint-*"))


def test_a_broken_photo_is_named(photos: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in photos.rglob("*.png"):
        target = copy / path.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (copy / "green" / "4.png").write_bytes((photos / "green" / "4.png").read_bytes()[:60])
    with pytest.raises(FormatError, match=r"green/4.png: not .*; expected an image file such as JPEG or PNG"):
        images.run(options(copy, "--output", str(tmp_path / "run"), "--save-every", "1"))
    assert list((tmp_path / "run").glob("checkpoint-*"))


def test_a_gpt_learns_goes_on_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log. " * 30)
    small = ["--data", str(tmp_path / "text.txt"), "--layers", "1", "--heads", "2", "--width", "16", "--block", "8",
             "--batch", "8", "--steps", "40", "--warmup", "4", "--lr", "0.02", "--evaluate-every", "20",
             "--evaluate-batches", "2", "--save-every", "7", "--dropout", "0.1", "--sample", "12", "--prompt", "the "]
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert text.run([*small, "--output", str(whole)]) == 0
    printed = capsys.readouterr().out
    assert "step 40: loss" in printed and "\nthe " in printed
    losses = [float(r["loss"]) for r in read_table(whole / "steps.csv")]
    assert len(losses) == 40 and losses[-1] < 0.7 * losses[0]
    add = Table.add

    def dying(self: Table, *values: float) -> None:
        add(self, *values)
        if self.path.name == "steps.csv" and values[0] == 23:
            raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(Table, "add", dying)
        text.run([*small, "--output", str(out)])
    assert text.run(["--resume", "--output", str(out)]) == 0
    assert "going on after step 21" in capsys.readouterr().out
    for name in ("model.safetensors", "steps.csv"):
        assert (whole / name).read_bytes() == (out / name).read_bytes()
    assert text.run(["--output", str(out), "--sample", "5", "--prompt", "cat", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("cat")
    with pytest.raises(FormatError, match=r"expected one of \d+ characters, got 'Q'"):
        text.run(["--output", str(out), "--prompt", "Q"])
    with pytest.raises(FormatError, match="cannot read it: no such file"):
        text.run(["--data", str(tmp_path / "none.txt"), "--output", str(tmp_path / "x")])


# Parts


@pytest.mark.parametrize("kind, want", [("cosine", [1 / 3, 2 / 3, 1, 1, 0.55, 0.1]),
                                        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]),
                                        ("step", [1 / 3, 2 / 3, 1, 1, 1, 0.01])])
def test_rates(kind: str, want: list[float]) -> None:
    factor = rate_factor(kind, 3, 13, 0.1)
    got = [factor(Tensor(float(k))).item() for k in (0, 1, 2, 3, 8, 13)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_tables_go_on_and_drop_half_written_rows(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ("step", "loss"), 0)
    for k in range(4):
        table.add(k, 0.1 * k)
    with open(tmp_path / "t.csv", "a") as out:
        out.write("4")
    table = Table(tmp_path / "t.csv", ("step", "loss"), 3)
    table.add(3, 0.1 * 3)
    with open(tmp_path / "t.csv", newline="") as lines:
        assert list(csv.reader(lines)) == [["step", "loss"], *[[str(k), repr(0.1 * k)] for k in range(4)]]


def fill(path: Path) -> None:
    """Makes a file one of a disk that is full."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here, which is a full disk")
    path.unlink()
    path.symlink_to("/dev/full")


def test_a_full_disk_is_one_line_with_the_file(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ("step", "loss"), 0)
    table.add(0, 0.5)
    fill(tmp_path / "t.csv")
    with pytest.raises(FormatError, match=r"t\.csv: cannot write it: no space left on the disk$"):
        table.add(1, 0.25)
    (tmp_path / "checkpoint-000000001.safetensors").write_bytes(b"")
    with pytest.raises(FormatError, match=r"no space left on the disk; --resume goes on from the last checkpoint$"):
        table.add(1, 0.25)


def test_events_are_read_by_tensorboard_and_written_at_once(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader",
                                 reason="tensorboard is not installed: no events are written")
    add = events(tmp_path)
    add("train/loss", 0.5, 3)
    add("train/loss", 0.25, 4)
    (path,) = tmp_path.glob("events.out.tfevents.*")
    found = [(e.step, v.tag, v.tensor.float_val[0] if v.HasField("tensor") else v.simple_value)
             for e in loader.EventFileLoader(str(path)).Load() for v in e.summary.value]
    assert found == [(3, "train/loss", 0.5), (4, "train/loss", 0.25)]
    fill(path)
    with pytest.raises(FormatError, match=r"tfevents.*: cannot write it: no space left on the disk"):
        add("train/loss", 0.1, 5)


def test_the_second_interrupt_ends_at_once() -> None:
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_options_of_a_resumed_run_are_those_it_began_with(tmp_path: Path) -> None:
    out = ["--output", str(tmp_path / "o")]
    begun = options_of(images.parser_of_options(), ["--lr", "0.3", *out])
    again: Any = options_of(images.parser_of_options(), ["--resume", "--workers", "2", *out])
    assert (begun.lr, again.lr, again.workers, again.resume) == (0.3, 0.3, 2, True)


def test_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: nothing is drawn")
    assert curves(tmp_path / "c.png", {"loss": {"a": ([1, 2], [3, 4])}, "accuracy": {"b": ([], [])}})
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    assert smoothed([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_types_train_a_gpt(precision: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("to be or not to be, that is the question\n" * 40)
    run = ["--data", str(tmp_path / "t.txt"), "--layers", "1", "--heads", "2", "--width", "16", "--block", "8",
           "--batch", "4", "--steps", "30", "--warmup", "2", "--lr", "0.01", "--clip", "1", "--precision", precision]
    assert text.run([*run, "--output", str(tmp_path / "o")]) == 0
    losses = [float(r["loss"]) for r in read_table(tmp_path / "o" / "steps.csv")]
    assert len(losses) == 30 and losses[-1] < losses[0] - 0.5
    (weights,) = [p for p in (tmp_path / "o").glob("model.safetensors")]
    assert {t.dtype.name for t in safe_load(weights).values()} == {"float32"}


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "vit_s"])
def test_models_of_the_zoo_have_the_classes_asked_for(model: str) -> None:
    made = images.build(model, 3, 3, 32, 0.0, False)
    assert made(Tensor.zeros(2, 3, 32, 32)).shape == (2, 3)
