"""One process alone: every function does nothing and imports no MPI, and mistakes are named all the same."""
import sys
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, distributed, nn
from minigrad.config import Processes, from_environment, processes
from minigrad.data import DataLoader, DistributedSampler
from minigrad.distributed.messages import combine, described, spread_out
from minigrad.dtype import float32_to_bfloat16
from minigrad.errors import ConfigError, DTypeError, MinigradError
from minigrad.ops.exchange import exchanged


def test_functions_are_free() -> None:
    distributed.init()
    assert (distributed.rank(), distributed.size(), distributed.local_rank()) == (0, 1, 0)
    assert distributed.get_rank() == 0 and distributed.get_world_size() == 1 and not distributed.is_initialized()
    t = Tensor([1.0, 2.0], requires_grad=True)
    node = t.node
    assert distributed.reduced(t) is t and distributed.all_reduce(t) is t and t.node is node
    distributed.broadcast(t)
    distributed.barrier()
    assert distributed.all_gather(t).tolist() == [[1.0, 2.0]]
    (t * 3).sum().backward()
    assert t.grad is not None
    gradient = t.grad.node
    distributed.average_gradients([t])
    assert t.grad.node is gradient and "mpi4py" not in sys.modules


def wrong(value: Any) -> Any:
    """A value of a type that the function does not take."""
    return value


@pytest.mark.parametrize("call, error, message", [
    (lambda t: distributed.all_reduce(t, "median"), MinigradError, "expected op to be sum, mean, prod, max or min"),
    (lambda t: distributed.all_reduce(wrong([1.0])), DTypeError, "expected a Tensor, got list"),
    (lambda t: distributed.all_reduce(Tensor([1]), "mean"), DTypeError, "expected floats for a mean, got int32"),
    (lambda t: distributed.all_reduce(t * 2), MinigradError, "reduced"),
    (lambda t: distributed.reduced(t, wrong(3)), MinigradError, "expected op to be"),
    (lambda t: distributed.broadcast(t, src=1), MinigradError, "expected src to be a rank in 0..0, got 1"),
    (lambda t: distributed.broadcast([t, wrong(2)]), DTypeError, "expected Tensors, got int"),
    (lambda t: distributed.all_gather(wrong(2.0)), DTypeError, "expected a Tensor, got float"),
    (lambda t: distributed.average_gradients([t], bucket_mb=0), ConfigError, "expected a bucket_mb above 0, got 0"),
    (lambda t: distributed.average_gradients([wrong(3)]), DTypeError, "expected Tensors, got int"),
    (lambda t: nn.SyncBatchNorm(3, process_group=wrong(7)), MinigradError, "expected process_group=None"),
    (lambda t: DistributedSampler([1, 2], 2, 2), ConfigError, "expected a rank in 0..1, got 2"),
    (lambda t: DistributedSampler([1, 2], 0), ConfigError, "expected a num_replicas of 1 or more, got 0")])
def test_mistakes(call: object, error: type[Exception], message: str) -> None:
    assert callable(call)
    with pytest.raises(error, match=message.replace("(", r"\(").replace("..", r"\.\.")):
        call(Tensor([1.0, 2.0], requires_grad=True))


def test_exchanges_of_one_process_are_identities() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    nodes = exchanged([(x * 2).node, (x + 1).node], "sum", 0)
    a, b = (Tensor.over(n) for n in nodes)
    assert (a + b).tolist() == [[1.0, 4.0, 7.0], [10.0, 13.0, 16.0]]


def test_what_mpirun_says() -> None:
    assert processes({}) == (0, 1, 0, 1) == Processes()
    assert processes({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}) == (3, 4, 1, 2)
    assert processes({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}) == (1, 2, 0, 1)
    assert processes({"PMI_RANK": "x", "PMI_SIZE": "4"}).size == 1
    alone = from_environment({"HOME": "/"}).threads
    crowd = {"PMI_RANK": "0", "PMI_SIZE": "4096", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "4096", "HOME": "/"}
    assert from_environment(crowd).threads == 1 <= alone


def test_samplers_share_without_mpi() -> None:
    parts = [[*DistributedSampler(range(10), 4, r, shuffle=False)] for r in range(4)]
    assert parts == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    kept = [[*DistributedSampler(range(10), 4, r, shuffle=False, drop_last=True)] for r in range(4)]
    assert kept == [[0, 4], [1, 5], [2, 6], [3, 7]]
    sampler = DistributedSampler(range(10))  # the only process: everything
    loader = DataLoader(np.arange(10), 5, sampler=sampler)
    first = [b.tolist() for b in loader]
    loader.set_epoch(0)
    assert [b.tolist() for b in loader] == first and sorted([k for b in first for k in b]) == list(range(10))
    loader.set_epoch(1)
    assert [b.tolist() for b in loader] != first


def test_batch_norm_alone_is_that_of_the_batch() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 2)).astype(np.float32)
    norm, sync = nn.BatchNorm2d(3), nn.SyncBatchNorm(3)
    model = {"a": [nn.BatchNorm2d(3)], "b": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))}
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model) is model
    assert [type(part) for part in (model["a"][0], model["b"][1])] == [nn.SyncBatchNorm] * 2
    with Tensor.train():
        assert norm(Tensor(x)).tolist() == sync(Tensor(x)).tolist() == model["a"][0](Tensor(x)).tolist()
    assert repr(nn.SyncBatchNorm(3, eps=0.1)).startswith("SyncBatchNorm(3, eps=0.1")


@pytest.mark.parametrize("how, function", [("sum", np.add), ("prod", np.multiply), ("max", np.maximum)])
def test_values_are_combined_in_the_order_of_ranks(how: str, function: np.ufunc) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64", "float16", "int32"):
        parts = [(rng.standard_normal(11) * 9).astype(dtype) for _ in range(3)]
        wide = [p.astype(np.float32) if dtype == "float16" else p for p in parts]
        wanted = function(function(wide[0], wide[1]), wide[2]).astype(dtype)
        into = [np.empty(4, dtype), np.empty(0, dtype), np.empty(7, dtype)]
        combine(parts, dtype, how, into)
        assert np.concatenate(into).tobytes() == wanted.tobytes()
    bits = [float32_to_bfloat16(rng.standard_normal(5).astype(np.float32)) for _ in range(2)]
    combine(bits, "bfloat16", how, [bits[0]])
    assert bits[0].dtype == np.uint16


def test_elements_are_spread_out() -> None:
    into = [np.zeros(3), np.zeros(0), np.zeros(4)]
    spread_out(np.arange(3.0) + 2, into, 2)
    assert np.concatenate(into).tolist() == [0, 0, 2, 3, 4, 0, 0]


def test_descriptions_tell_shapes_apart() -> None:
    one, other = np.zeros((2, 3)), np.zeros((3, 2))
    assert described([one], "float64", "sum") == "sum of float64 [2, 3]"
    assert described([one, other] * 50, "float64", "sum") != described([other, one] * 50, "float64", "sum")
    assert len(described([one] * 1000, "float64", "sum")) < 192
