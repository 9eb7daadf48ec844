"""DataLoader: PyTorch's arguments and meaning, the same batches from any number of workers, and its position."""
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor
from minigrad.data import (
    ArrayDataset,
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    get_worker_info,
)
from minigrad.errors import ConfigError, DeviceError, MinigradError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")


class Squares(Dataset):
    """Samples with a part of each kind, and numbers drawn from Python's and numpy's generators."""

    def __init__(self, count: int = 23):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full((2, 3), index, np.float32), "pair": (index * index, float(index)), "name": f"n{index}",
                "drawn": (random.random(), np.random.rand())}


def plain(batch: Any) -> Any:
    """A batch as lists and numbers."""
    if isinstance(batch, Tensor | np.ndarray):
        return batch.tolist()
    if isinstance(batch, dict):
        return {k: plain(v) for k, v in batch.items()}
    return [plain(v) for v in batch] if isinstance(batch, list | tuple) else batch


def batches(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same_batches(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "generator": 7, "keys": True}
    alone, together = DataLoader(Squares(), **options), DataLoader(Squares(), num_workers=workers, **options)
    for _ in range(2):
        assert batches(alone) == batches(together)


def test_epochs_differ_and_runs_repeat() -> None:
    def run() -> list[Any]:
        minigrad.manual_seed(5)
        loader = DataLoader(Squares(), 5, shuffle=True)
        return [batches(loader) for _ in range(3)]

    first = run()
    assert first == run()
    assert first[0] != first[1] != first[2]
    assert sorted(v for b in first[1] for v in b["pair"][1]) == list(range(23))


def test_the_programs_own_generators_stay_as_they_were() -> None:
    random.seed(1)
    np.random.seed(1)
    wanted = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    for _ in DataLoader(Squares(), 4):
        pass
    assert (random.random(), np.random.rand()) == wanted


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 4, 5, 6])
def test_it_goes_on_from_any_position(workers: int, taken: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    loader = DataLoader(Squares(), generator=3, **options)
    list(loader)
    loop = iter(loader)
    for _ in range(taken):
        next(loop)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [batches(loop), *[batches(loader) for _ in range(2)]]
    other = DataLoader(Squares(), **options)
    other.load_state_dict(state)
    assert [batches(other) for _ in range(3)] == rest
    assert len(rest[0]) == 6 - taken


def test_the_position_after_an_epoch_is_the_start_of_the_next() -> None:
    loader = DataLoader(Squares(), 4, generator=3, shuffle=True)
    list(loader)
    assert loader.state_dict() == {"seed": 3, "epoch": 1, "batch": 0, "batch_size": 4, "batches": 6}
    for k, _ in enumerate(loader, 1):
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, k)


def test_a_position_of_another_loader_is_refused() -> None:
    state = DataLoader(Squares(), 4).state_dict()
    with pytest.raises(ConfigError, match=r"expected batches of 4 samples, as when the position was saved, got 5"):
        DataLoader(Squares(), 5).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"expected 6 batches in an epoch, .* got 5"):
        DataLoader(Squares(20), 4).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"expected seed, epoch, .* got epoch"):
        DataLoader(Squares(), 4).load_state_dict({"epoch": 1})


class Count(IterableDataset):
    """0, 1, ... in turns of the workers."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(13) if info is None else range(info.id, 13, info.num_workers))


@pytest.mark.parametrize("workers, wanted", [
    (0, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]),
    (2, [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12], [9, 11]]),
    (5, [[0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8], [4, 9]]),
])
@pytest.mark.parametrize("persistent", [False, True])
def test_samples_one_after_the_other(workers: int, wanted: list[list[int]], persistent: bool) -> None:
    loader = DataLoader(Count(), 4, num_workers=workers, persistent_workers=persistent and workers > 0)
    assert batches(loader) == wanted
    assert batches(loader) == wanted
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert batches(loader) == wanted[1:]
    whole = DataLoader(Count(), 4, num_workers=workers, drop_last=True)
    assert batches(whole) == [b for b in wanted if len(b) == 4]


class Pair(NamedTuple):
    first: Any
    second: Any


SAMPLES = {
    "numbers": [1, 2, 3], "floats": [1.5, 2.0, 3.0], "flags": [True, False, True], "texts": ["a", "b", "c"],
    "arrays": [np.arange(3) + k for k in range(3)], "pairs": [(k, float(k)) for k in range(3)],
    "lists": [[k, [k, k]] for k in range(3)], "named": [Pair(k, np.ones(2, np.float32)) for k in range(3)],
    "dictionaries": [{"a": k, "b": {"c": np.float32(k)}} for k in range(3)], "bytes": [b"x", b"y", b"z"],
    "half": [np.zeros((0, 2), np.float16)] * 3, "zero axes": [np.array(3, np.int16)] * 3,
}


@needs_torch
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", SAMPLES)
def test_batches_are_those_of_torch(kind: str, workers: int) -> None:
    import torch
    from torch.utils.data import DataLoader as TorchLoader

    def described(value: Any) -> Any:
        if isinstance(value, Tensor | torch.Tensor):
            return str(value.dtype).removeprefix("torch."), list(value.shape), value.tolist()
        if isinstance(value, dict):
            return {k: described(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value).__name__, [described(v) for v in value]
        return value

    for options in ({"batch_size": 2}, {"batch_size": 2, "drop_last": True}, {"batch_size": None}):
        ours = DataLoader(SAMPLES[kind], num_workers=workers, **options)
        theirs: Any = TorchLoader(SAMPLES[kind], **options)
        assert [described(b) for b in ours] == [described(b) for b in theirs]
        assert len(ours) == len(theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_fn_decides_what_a_batch_is(workers: int) -> None:
    made = list(DataLoader([1, 2, 3], 2, collate_fn=lambda s: (np.array(s), Tensor(s), "x"), num_workers=workers))
    assert isinstance(made[0], tuple) and isinstance(made[0][0], np.ndarray) and isinstance(made[0][1], Tensor)
    assert plain(made) == [[[1, 2], [1, 2], "x"], [[3], [3], "x"]]
    half = next(iter(DataLoader([1.5], 1, collate_fn=lambda s: Tensor(s, dtype="bfloat16"), num_workers=workers)))
    assert half.dtype is minigrad.bfloat16 and half.tolist() == [1.5]


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_of_ones_own(workers: int) -> None:
    data = ArrayDataset(np.arange(10) * 10)
    assert batches(DataLoader(data, 3, sampler=[4, 2, 0, 9], num_workers=workers)) == [[[40, 20, 0]], [[90]]]
    lists = BatchSampler(SequentialSampler(data), 4, True)
    assert batches(DataLoader(data, batch_sampler=lists, num_workers=workers)) == [[[0, 10, 20, 30]],
                                                                                   [[40, 50, 60, 70]]]
    assert batches(DataLoader({"b": 1, "a": 2}, batch_size=None, sampler=["a", "b"], num_workers=workers)) == [2, 1]
    drawn = DataLoader(data, 4, sampler=RandomSampler(data, replacement=True, num_samples=6), generator=1)
    assert [len(b[0]) for b in batches(drawn)] == [4, 2]
    assert batches(drawn) != batches(drawn)


def test_workers_know_who_they_are() -> None:
    class Info(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[int, int, int]:
            info = get_worker_info()
            assert info is not None and info.dataset is self
            return info.id, info.num_workers, random_module_value[0]

    random_module_value = [0]

    def init(number: int) -> None:
        random_module_value[0] = number + 40

    assert batches(DataLoader(Info(), 1, num_workers=2, worker_init_fn=init)) == [
        [[0], [2], [40]], [[1], [2], [41]], [[0], [2], [40]], [[1], [2], [41]]]
    assert get_worker_info() is None


def test_workers_stay_where_they_are_asked_to() -> None:
    import os

    class Process(Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return os.getpid()

    def processes(persistent: bool) -> list[set[int]]:
        loader = DataLoader(Process(), 2, num_workers=2, persistent_workers=persistent)
        next(iter(loader))  # a loop that is left early
        return [{v for b in batches(loader) for v in b} for _ in range(2)]

    first, second = processes(True)
    assert first == second and len(first) == 2
    first, second = processes(False)
    assert not first & second


def test_a_batch_ahead_and_large_batches() -> None:
    sizes = [10, 100_000, 3, 1_000_000]
    data = [np.full(n, k, np.uint8) for k, n in enumerate(sizes)]
    for ahead in (False, True):
        loader = DataLoader(data, batch_size=None, num_workers=1, pin_memory=ahead)
        assert [(b.shape, int(b.numpy().min()), int(b.numpy().max())) for b in loader] == [
            ((n,), k, k) for k, n in enumerate(sizes)]


@pytest.mark.parametrize("options, message", [
    ({"batch_size": 0}, "expected batch_size of 1 or more, or None, got 0"),
    ({"num_workers": -1}, "expected num_workers of 0 or more, got -1"),
    ({"timeout": 1}, "expected num_workers of 1 or more beside"),
    ({"prefetch_factor": 2}, "expected num_workers of 1 or more beside"),
    ({"num_workers": 1, "prefetch_factor": 0}, "expected prefetch_factor of 1 or more, got 0"),
    ({"sampler": [0], "shuffle": True}, "expected a sampler or shuffle, got both"),
    ({"batch_sampler": [[0]], "batch_size": 4}, "expected a batch_sampler without"),
    ({"batch_size": None, "drop_last": True}, "expected a batch_size beside drop_last"),
    ({"dataset": 3}, r"expected a data set with len\(\) and \[\], or an IterableDataset, got int"),
    ({"dataset": Count(), "shuffle": True}, "expected no shuffle"),
    ({"generator": "x", "shuffle": True}, "expected generator to be a seed"),
])
def test_arguments_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iter(DataLoader(**{"dataset": [1, 2], **options}))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_do_not_fit_together(workers: int) -> None:
    with pytest.raises(ShapeError, match=r"expected samples of one shape, got \[2\] and \[3\]"):
        list(DataLoader([np.zeros(2), np.zeros(3)], 2, num_workers=workers))
    with pytest.raises(ShapeError, match=r"equally many parts, got \[1, 2\]"):
        list(DataLoader([(1, 2), (1,)], 2, num_workers=workers))
    with pytest.raises(ShapeError, match="got a object; collate_fn may take others"):
        list(DataLoader([object()], 1, num_workers=workers))


NUMBERS: list[Any] = [True, 0, 1, -7, 2**40, 0.5, -2.0**100, float("inf"), np.float32(0.25), np.int8(3), np.bool_(True),
                      np.array(2), np.array(1.5, np.float16)]


@pytest.mark.parametrize("first", NUMBERS, ids=repr)
def test_no_number_of_a_batch_is_cut(first: Any) -> None:
    """Whichever comes first: that of numbers of two types is one that holds both."""
    for second in NUMBERS:
        for made in (default_collate([first, second]), default_collate([(first,), (second,)])[0],
                     default_collate([{"a": first}, {"a": second}])["a"], default_collate([Tensor(first), second])):
            assert [float(v) for v in made.tolist()] == [float(first), float(second)]
            assert made.dtype.is_float == any(np.asarray(v).dtype.kind == "f" for v in (first, second))
    for other in ("a", None, [1], 1j):
        with pytest.raises(ShapeError, match="expected numbers, arrays and Tensors alone, got a"):
            default_collate([first, other])
    with pytest.raises(ShapeError, match="expected integers that int64 holds, got 9223372036854775808"):
        default_collate([1, 2**63])


class Broken(Dataset):
    """Raises `error` for sample 3."""

    def __init__(self, error: Exception):
        self.error = error

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise self.error
        return index


class Awkward(Exception):
    """An error that cannot be made again from what it keeps."""

    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("error, kind, message", [
    (KeyError("k"), KeyError, "k"), (ShapeError("[x] expected 1"), ShapeError, r"^\[x\] expected 1$"),
    (Awkward(1, 2), MinigradError, r"(?m)^\[DataLoader\] worker 1: Awkward: 1 and 2$"),
])
def test_errors_of_samples_arrive(error: Exception, kind: type[Exception], message: str) -> None:
    loader = DataLoader(Broken(error), 2, num_workers=2)
    got = []
    with pytest.raises(kind, match=message) as caught:
        for batch in loader:
            got.append(plain(batch))
    assert got == [[0, 1]]
    if not isinstance(error, MinigradError):
        assert "in __getitem__" in caught.value.__notes__[0]


def test_a_late_batch_is_an_error() -> None:
    import time

    with pytest.raises(DeviceError, match=r"expected a batch from worker 0 \(process \d+\) within 0.1 seconds"):
        list(DataLoader([0], 1, collate_fn=lambda s: time.sleep(20), num_workers=1, timeout=0.1))


def test_what_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(MinigradError, match="expected batches that can be sent from worker 0"):
        list(DataLoader([0], 1, collate_fn=lambda s: lambda: s, num_workers=1))


def test_workers_that_are_started_anew() -> None:
    data = ArrayDataset(np.arange(6))
    assert batches(DataLoader(data, 3, num_workers=1, multiprocessing_context="spawn")) == [[[0, 1, 2]], [[3, 4, 5]]]
