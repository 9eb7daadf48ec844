"""Data sets made from arrays and from others, samplers, and the random numbers of samples."""
import numpy as np
import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor
from minigrad.data import (
    ArrayDataset,
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    keys_of,
    random_split,
)
from minigrad.data.keys import permutation, uniform
from minigrad.errors import ConfigError, MinigradError, OutOfRangeError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")
DATA = ArrayDataset(np.arange(10) ** 2, [str(k) for k in range(10)])


def test_samples_and_batches_of_arrays() -> None:
    assert len(DATA) == 10 and DATA[3] == (9, "3")
    squares, names = DATA.take([4, 1, 1])
    assert squares.tolist() == [16, 1, 1] and names.tolist() == ["4", "1", "1"]
    changed = ArrayDataset(np.arange(4), transform=lambda x: x + 100)
    assert changed[2] == (102,) and changed.take([0, 3])[0].tolist() == [100, 103]
    x, y = TensorDataset(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([0, 1]))[1]
    assert x.tolist() == [3, 4] and y.unsqueeze(0).tolist() == [1] and y.dtype.name == "int32"

    class Mine(ArrayDataset):
        def __getitem__(self, index: int) -> tuple[int, ...]:
            return (-super().__getitem__(index)[0],)

    assert not Mine([1, 2]).takes and Mine([1, 2]).take([0, 1])[0].tolist() == [-1, -2]
    with pytest.raises(ShapeError, match=r"expected arrays of one length, got shapes \[2\], \[3, 1\]"):
        ArrayDataset(np.zeros(2), np.zeros((3, 1)))
    with pytest.raises(ShapeError, match="expected at least one array"):
        ArrayDataset()


def test_parts_and_wholes() -> None:
    part = Subset(DATA, [7, 2])
    assert len(part) == 2 and part[0] == (49, "7") and part.takes and part.take([1, 0])[0].tolist() == [4, 49]
    assert Subset([5, 6, 7], [2])[0] == 7 and Subset([5, 6], [1]).take([0]).tolist() == [6]
    whole = DATA + part + [(1, "x")]
    assert len(whole) == 13 and whole[11] == (4, "2") and whole[12] == whole[-1] == (1, "x")
    for index in (13, -14):
        with pytest.raises(OutOfRangeError, match=f"expected an index below 13, got {index}"):
            whole[index]
    with pytest.raises(ShapeError, match="at least one data set"):
        ConcatDataset([])
    with pytest.raises(MinigradError, match="expected a method __getitem__"):
        Dataset()[0]


def test_random_parts_share_nothing() -> None:
    parts = random_split(DATA, [5, 3, 2], generator=1)
    assert sorted(v for p in parts for v, _ in (p[k] for k in range(len(p)))) == [k * k for k in range(10)]
    assert [len(p) for p in random_split(range(11), [0.5, 0.3, 0.2])] == [6, 3, 2]
    same = [[p[k] for k in range(len(p))] for p in random_split(DATA, [5, 3, 2], generator=1)]
    assert [[p[k] for k in range(len(p))] for p in parts] == same
    with pytest.raises(ShapeError, match=r"expected lengths that add up to 10, or fractions to 1, got \[5, 4\]"):
        random_split(DATA, [5, 4])


@needs_torch
@pytest.mark.filterwarnings("ignore:Length of split:UserWarning")
@pytest.mark.parametrize("lengths", [[0.5, 0.5], [0.35, 0.35, 0.3], [1.0], [0.1] * 10])
@pytest.mark.parametrize("total", [0, 1, 7, 10, 23])
def test_lengths_of_parts_are_those_of_torch(lengths: list[float], total: int) -> None:
    from torch.utils.data import random_split as torch_split

    if total:
        theirs = [len(p) for p in torch_split(range(total), lengths)]
        assert [len(p) for p in random_split(range(total), lengths)] == theirs


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_orders_are_permutations(count: int) -> None:
    assert sorted(permutation(3, 1, count).tolist()) == list(range(count))


def test_keys_are_functions_of_seed_epoch_and_index() -> None:
    keys = keys_of(5, 2, range(1000))
    assert np.array_equal(keys_of(5, 2, [999, 3]), keys[[999, 3]]) and len(set(keys.tolist())) == 1000
    others = [keys_of(6, 2, range(1000)), keys_of(5, 3, range(1000)), keys_of(2, 5, range(1000))]
    assert all(not np.intersect1d(keys, other).size for other in others)
    bits = np.unpackbits(keys.view(np.uint8)).reshape(1000, 64).mean(0)
    assert (abs(bits - 0.5) < 0.08).all()  # five standard deviations
    drawn = uniform(1, 1, 10_000, 1)
    assert 0 <= drawn.min() and drawn.max() < 1 and abs(drawn.mean() - 0.5) < 0.015


def test_samplers() -> None:
    assert list(SequentialSampler(DATA)) == list(range(10))
    minigrad.manual_seed(1)
    order = RandomSampler(DATA)
    first, second = list(order), list(order)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    order.set_epoch(0)
    assert list(order) == first and len(order) == 10
    assert sorted(RandomSampler(DATA, num_samples=20, generator=1)) == sorted([*range(10), *range(10)])
    drawn = list(RandomSampler(DATA, True, 5000, generator=1))
    assert (abs(np.bincount(drawn, minlength=10) - 500) < 110).all()
    assert sorted(SubsetRandomSampler([3, 1, 4], generator=2)) == [1, 3, 4]
    lists = BatchSampler(SequentialSampler(DATA), 4, False)
    assert list(lists) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] and len(lists) == 3
    assert len(BatchSampler(SequentialSampler(DATA), 4, True)) == 2
    with pytest.raises(ConfigError, match="expected a positive number of samples, got 0"):
        BatchSampler(SequentialSampler(DATA), 0, True)


def test_weights_say_how_likely() -> None:
    drawn = list(WeightedRandomSampler([0, 1, 3, 0], 8000, generator=1))
    counts = np.bincount(drawn, minlength=4)
    assert counts[[0, 3]].tolist() == [0, 0] and abs(counts[2] / 8000 - 0.75) < 0.03
    once = [list(WeightedRandomSampler([1, 5, 0, 1], 2, False, generator=k)) for k in range(300)]
    assert all(len({*o, 2}) == 3 for o in once) and sum(1 in o for o in once) > 240
    for weights, count, replacement in (([-1, 2], 1, True), ([0, 0], 1, True), ([1, 0], 2, False)):
        with pytest.raises(ShapeError, match="expected weights of 0 or more"):
            WeightedRandomSampler(weights, count, replacement)


@pytest.mark.parametrize("total", [0, 1, 9, 10])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_the_samples(total: int, shuffle: bool) -> None:
    for drop_last in (False, True):
        shares = [list(DistributedSampler(range(total), 3, rank, shuffle, drop_last=drop_last)) for rank in range(3)]
        assert len({len(s) for s in shares}) == 1
        together = [i for s in shares for i in s]
        assert set(together) == set(range(total)) if not drop_last else len(set(together)) == len(together)
    with pytest.raises(ConfigError, match=r"expected a rank in 0..2, got 3"):
        DistributedSampler(range(4), 3, 3)
