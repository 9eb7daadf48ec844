"""Decoded samples in a mapped file; text as windows of tokens; CIFAR from binary files."""
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.data import (
    CIFAR10,
    CIFAR100,
    CachedDataset,
    Characters,
    DataLoader,
    Dataset,
    ImageFolder,
    RandomSampler,
    Subset,
    TextTokens,
)
from minigrad.errors import FormatError, OutOfRangeError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")


class Counted(Dataset):
    """Samples that count how often they are read."""

    targets = [3, 1, 4, 1, 5]

    def __init__(self) -> None:
        self.reads = [0] * 5

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.reads[index] += 1
        return np.full((2, 3), index, np.uint8), self.targets[index]


def test_a_sample_is_read_once_and_then_from_the_file(tmp_path: Path) -> None:
    source = Counted()
    cached = CachedDataset(source, tmp_path / "c", changed="1")
    for _ in range(2):
        assert [(int(a[0, 0]), t) for a, t in (cached[k] for k in range(5))] == [*enumerate(source.targets)]
    assert source.reads == [2, 1, 1, 1, 1]  # the first one also says the shape
    again = Counted()
    assert (CachedDataset(again, tmp_path / "c", changed="1").take([4, 0])[0][:, 0, 0] == [4, 0]).all()
    assert again.reads == [1, 0, 0, 0, 0]
    CachedDataset(again, tmp_path / "c", changed="2")[4]
    assert again.reads == [2, 0, 0, 0, 1]  # other samples, another file


def test_what_is_half_written_is_read_anew(tmp_path: Path) -> None:
    cached = CachedDataset(Counted(), tmp_path / "c", changed="1")
    cached.take(range(5))
    data = bytearray((tmp_path / "c").read_bytes())
    data[-1] ^= 255  # of sample 4
    (tmp_path / "d").write_bytes(data)
    source = Counted()
    broken = CachedDataset(source, tmp_path / "d", changed="1")
    assert (broken[4][0] == 4).all() and (broken[3][0] == 3).all() and source.reads == [1, 0, 0, 0, 1]
    (tmp_path / "d").write_bytes(data[:-3])
    assert (CachedDataset(source, tmp_path / "d", changed="1")[3][0] == 3).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_through_a_cache(tmp_path: Path, workers: int) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: nothing reads photos")
    for k in range(6):
        (tmp_path / "f" / f"c{k % 2}").mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((5, 4, 3), k * 40, np.uint8)).save(tmp_path / "f" / f"c{k % 2}" / f"{k}.png")
    folder = ImageFolder(tmp_path / "f", 4)
    cached = CachedDataset(folder, tmp_path / "c")
    for data in (cached, Subset(cached, [5, 0, 2])):
        want = [(x.numpy().tolist(), y.tolist()) for x, y in DataLoader(
            folder if data is cached else Subset(folder, [5, 0, 2]), 2)]
        for _ in range(2):
            assert [(x.numpy().tolist(), y.tolist()) for x, y in DataLoader(data, 2, num_workers=workers)] == want
    assert all(cached.sums)  # what workers read is there for all
    os.utime(folder.samples[0][0], ns=(1, 1))
    assert not any(CachedDataset(folder, tmp_path / "c").sums)


def test_samples_that_do_not_fit_are_named(tmp_path: Path) -> None:
    class Odd(Counted):
        def __getitem__(self, index: int) -> Any:
            return np.zeros((2, 3 + index), np.uint8), 0

    with pytest.raises(ShapeError, match=r"samples uint8 \[2, 3\] as the first, got uint8 \[2, 4\] at 1; give images"):
        CachedDataset(Odd(), tmp_path / "c", changed="1")[1]
    with pytest.raises(ShapeError, match="an array and a number, got int"):
        CachedDataset([1, 2], tmp_path / "c")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="cannot keep 0 MB of decoded samples there"):
        CachedDataset(Counted(), tmp_path / "file" / "c", changed="1")


# Text


def test_windows_of_tokens(tmp_path: Path) -> None:
    tokens = np.arange(20, dtype=np.uint16) * 3
    tokens.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", tokens)
    for given in (tokens, Tensor(tokens.astype(np.int32)), tmp_path / "t.bin", str(tmp_path / "t.npy")):
        data = TextTokens(given, 6)
        assert len(data) == 14 and data[2][0].dtype == np.int32
        assert data[13][0].tolist() == tokens[13:19].tolist() and data[-1][1].tolist() == tokens[14:20].tolist()
        x, y = data.take([0, 5])
        assert x.tolist() == [tokens[:6].tolist(), tokens[5:11].tolist()] and y[1].tolist() == tokens[6:12].tolist()
        with pytest.raises(OutOfRangeError, match="an index below 14, got 14"):
            data[14]
    with pytest.raises(ShapeError, match=r"more than 20 tokens, integers \[N\], got uint16 \[20\]"):
        TextTokens(tokens, 20)
    with pytest.raises(ShapeError, match="got float32"):
        TextTokens(np.ones(9, np.float32), 2)
    with pytest.raises(FormatError, match="expected a file of tokens"):
        TextTokens(tmp_path / "none.bin", 2)


def test_the_same_windows_from_any_number_of_workers() -> None:
    data = TextTokens(np.arange(100), 5)
    found = []
    for workers in (0, 2):
        loader = DataLoader(data, 4, sampler=RandomSampler(data, replacement=True, num_samples=18), num_workers=workers,
                            generator=5)
        found.append([(x.tolist(), y.tolist()) for x, y in loader])
    assert found[0] == found[1] and len(found[0]) == 5


def test_characters() -> None:
    vocabulary = Characters("hello")
    assert (len(vocabulary), vocabulary.characters) == (4, "ehlo")
    assert vocabulary.encode("hole").tolist() == [1, 3, 2, 0] and vocabulary.decode([1, 3, 2, 0]) == "hole"
    with pytest.raises(FormatError, match="one of 4 characters, got 'x'"):
        vocabulary.encode("ox")


# CIFAR


def rows(count: int, labels: int, classes: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (count, labels + 3072), np.uint8)
    found[:, labels - 1] %= classes
    return found


@pytest.mark.parametrize("kind, labels, classes", [(CIFAR10, 1, 10), (CIFAR100, 2, 100)])
def test_cifar_from_files_and_from_the_archive(tmp_path: Path, kind: Any, labels: int, classes: int) -> None:
    folder = tmp_path / kind.folder
    folder.mkdir()
    parts = {name: rows(4, labels, classes, k) for k, name in enumerate([*kind.parts[True], *kind.parts[False]])}
    for name, part in parts.items():
        (folder / name).write_bytes(part.tobytes())
    train, test = kind(tmp_path), kind(folder, train=False, download=False)
    assert len(train) == 4 * len(kind.parts[True]) and len(test) == 4 and len(kind.classes) == classes
    image, label = test[2]
    want = parts[kind.parts[False][0]][2]
    assert image.shape == (3, 32, 32) and image.tobytes() == want[labels:].tobytes() and label == want[labels - 1]
    other = tmp_path / "other"
    other.mkdir()
    with tarfile.open(other / kind.archive, "w:gz") as archive:
        archive.add(folder, kind.folder)
    assert (kind(other, download=False).data == train.data).all()
    with pytest.raises(FormatError, match=r"expected .* there, found none; download=True fetches it"):
        kind(tmp_path / "none", download=False)
    (folder / kind.parts[False][0]).write_bytes(b"123")
    with pytest.raises(FormatError, match=f"rows of {labels + 3072} bytes, got 3 bytes"):
        kind(tmp_path, train=False)
    (other / kind.folder / kind.parts[False][0]).unlink()
    (other / kind.archive).write_bytes(b"no archive")
    with pytest.raises(FormatError, match="expected the archive of CIFAR"):
        kind(other, train=False)
