"""Checkpoints: a resumed run equals one that was not stopped, bit for bit, and what is not whole is passed over."""
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, jit, nn
from minigrad.data import ArrayDataset, DataLoader
from minigrad.errors import FormatError
from minigrad.nn.swa_utils import AveragedModel, get_ema_avg_fn
from minigrad.random import counter, manual_seed
from minigrad.state import checkpoint, get_state_dict, mapped

pytestmark = pytest.mark.usefixtures("on_cpu")


class Run:
    """A small training run with everything that goes on: random numbers, loader, schedule, average, optimizer."""

    def __init__(self) -> None:
        manual_seed(3)
        rng = np.random.default_rng(0)
        data = ArrayDataset(rng.normal(size=(22, 4)).astype(np.float32), rng.integers(0, 3, 22))
        self.loader = DataLoader(data, 5, shuffle=True, generator=1)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm(6), nn.Dropout(0.3), nn.Linear(6, 3))
        self.optimizer = nn.optim.AdamW([{"params": [self.model[0].weight], "weight_decay": 0.1},
                                         {"params": nn.state.get_parameters(self.model)[1:]}], lr=0.01)
        self.schedule = nn.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=20)
        self.average = AveragedModel(self.model, get_ema_avg_fn(0.9), use_buffers=True)
        self.progress: dict[str, Any] = {"step": 0, "sum": 0.0}
        self.objects = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule,
                        "average": self.average, "loader": self.loader, "progress": self.progress}
        self.step = jit(self._step)

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        with Tensor.train():
            loss = self.model(x).cross_entropy(y)
            loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.average.update_parameters(self.model)
        return loss

    def go(self, until: int, folder: Path | None = None, every: int = 1) -> list[float]:
        losses: list[float] = []
        while self.progress["step"] < until:
            for x, y in self.loader:
                losses.append(self.step(x, y).item())
                self.progress["step"] += 1
                self.progress["sum"] += losses[-1]
                if folder is not None and self.progress["step"] % every == 0:
                    checkpoint.save(folder, self.progress["step"], self.objects, keep=50)
                if self.progress["step"] == until:
                    break
        return losses

    def bytes(self) -> dict[str, bytes]:
        return {name: t.numpy().tobytes() for part in (self.model, self.average)
                for name, t in get_state_dict(part).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float], Run]:
    """A run of 13 steps, two and a half epochs, with a checkpoint after each."""
    folder, run = tmp_path_factory.mktemp("whole"), Run()
    return folder, run.go(13, folder), run


@pytest.mark.parametrize("at", [1, 4, 5, 7, 12])
def test_a_resumed_run_is_the_run(whole: tuple[Path, list[float], Run], tmp_path: Path, at: int) -> None:
    folder, losses, first = whole
    shutil.copy(folder / f"checkpoint-{at:09}.safetensors", tmp_path)
    run = Run()
    found = checkpoint.load(tmp_path, run.objects)
    assert found is not None and (found.step, found.problems) == (at, ()) and found.values["progress"]["step"] == at
    assert run.go(13) == losses[at:] and run.bytes() == first.bytes() and run.progress == first.progress


def test_broken_files_are_passed_over_for_the_one_before(whole: tuple[Path, list[float], Run], tmp_path: Path) -> None:
    folder, losses, _ = whole
    for at in (4, 5, 6, 7):
        shutil.copy(folder / f"checkpoint-{at:09}.safetensors", tmp_path)
    cut, changed, empty = (tmp_path / f"checkpoint-{at:09}.safetensors" for at in (7, 6, 5))
    cut.write_bytes(cut.read_bytes()[:-9])
    data = bytearray(changed.read_bytes())
    data[-3] ^= 1
    changed.write_bytes(data)
    empty.write_bytes(b"")
    run = Run()
    found = checkpoint.load(tmp_path, run.objects)
    assert found is not None and found.step == 4
    assert [p.split(": ")[0] for p in found.problems] == [str(p) for p in (cut, changed, empty)]
    assert all("\n" not in p for p in found.problems) and "checksum" in found.problems[1]
    assert run.go(13) == losses[4:]
    (tmp_path / "checkpoint-000000004.safetensors").write_bytes(b"no")
    before = run.bytes()
    with pytest.raises(FormatError, match="no checkpoint is whole"):
        checkpoint.load(tmp_path, run.objects)
    assert run.bytes() == before


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    checkpoint.save(tmp_path, 0, run.objects)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mapped.os, "fsync", full)
    with pytest.raises(FormatError, match=r"cannot write a checkpoint: no space left on the disk; the last one, "
                                          r"checkpoint-000000000.safetensors, is kept"):
        checkpoint.save(tmp_path, 1, run.objects)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000000000.safetensors"]


def test_a_short_history_is_kept_and_rests_of_killed_writers_are_not(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    (tmp_path / "checkpoint-000000001.safetensors.77.88.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    for step in (0, 5, 10, 1_000_000_000_0):
        checkpoint.save(tmp_path, step, {"model": model}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint-000000010.safetensors", "checkpoint-10000000000.safetensors", "notes.txt"]
    found = checkpoint.load(tmp_path, {"model": model})
    assert found is not None and found.step == 10_000_000_000


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    values: dict[str, Any] = {"float": 0.1, "nan": float("nan"), "inf": -float("inf"), "int": 2**70, "none": None,
                              "yes": True, "text": "ä", "list": [1, [2.5]], "numbers": {0: "a", 1: {2: "b"}},
                              "half": Tensor([1.5, 2], dtype="bfloat16"), "array": np.arange(3, dtype=np.int8),
                              "number": np.float32(0.1), "empty": Tensor.zeros(0, 3)}
    checkpoint.save(tmp_path, 1, {"values": values})
    target: dict[str, Any] = {"old": 1}
    assert checkpoint.load(tmp_path, {"values": target}) is not None
    assert repr({k: v for k, v in target.items() if not isinstance(v, Tensor)}) == repr(
        {k: float(v) if k == "number" else v for k, v in values.items() if not isinstance(v, Tensor | np.ndarray)})
    assert target["half"].dtype.name == "bfloat16" and target["half"].tolist() == [1.5, 2]
    assert target["array"].dtype.name == "int8" and target["array"].tolist() == [0, 1, 2]
    assert target["empty"].shape == (0, 3)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    manual_seed(9)
    Tensor.rand(3).realize()
    checkpoint.save(tmp_path, 0, {})
    at, want = counter(), Tensor.rand(5).tolist()
    manual_seed(1)
    checkpoint.load(tmp_path, {})
    assert counter() == at and Tensor.rand(5).tolist() == want


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / "none", {}) is None and checkpoint.load(tmp_path, {}) is None
    with pytest.raises(FormatError, match=r"values.x: expected Tensors, numbers and texts .*, got a object"):
        checkpoint.save(tmp_path, 0, {"values": {"x": object()}})
    with pytest.raises(FormatError, match="a step of 0 or more and at least one to keep, got -1 and 3"):
        checkpoint.save(tmp_path, -1, {})
    checkpoint.save(tmp_path, 0, {"model": nn.Linear(2, 2)})
    with pytest.raises(FormatError, match="expected the state of model, optimizer, got that of model"):
        checkpoint.load(tmp_path, {"model": nn.Linear(2, 2), "optimizer": {}})
    other = tmp_path / "other"
    other.mkdir()
    nn.state.safe_save({"x": Tensor([1.0])}, other / "checkpoint-000000001.safetensors")
    with pytest.raises(FormatError, match="expected a checkpoint of a training run"):
        checkpoint.load(other, {})
