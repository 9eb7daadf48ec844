"""Chains of launches: which launches join, that they compute what launches one by one do, and how few are queued."""
import os
from typing import Any

import numpy as np
import pytest
from conftest import drivers, each_driver, quirks

from minigrad import Tensor, Variable, config, jit, nn, optim
from minigrad.engine.prepared import PreparedPlan
from minigrad.errors import CompileError
from minigrad.nn.state import get_parameters
from minigrad.program import Program
from minigrad.runtime.device import Launch
from minigrad.runtime.host import address_of
from minigrad.runtime.opencl import Executable, OpenCL, open_device
from minigrad.runtime.opencl_chain import CHUNKS, LONGEST, SAVED, Planned, Table, chain_program, chains_of, chunk_of
from minigrad.runtime.opencl_quirks import GROUPS_GO_ON

pytestmark = each_driver


@pytest.fixture(params=[name for name in drivers() if GROUPS_GO_ON in quirks(name)])
def device(request) -> OpenCL:
    return open_device(request.param.partition(":")[2])


class Loaded(Executable):
    """What is asked of an executable where nothing runs."""

    def __init__(self, name: str, group: int = 0, scratch: int = 0):
        self.program = Program(name, "opencl", "", ("buffer:4",), scratch, group)
        self.types = [None, np.int64, np.int64]


def planned(executable: Any, count: int, memory: int = 0, work: float = 1.0) -> list[Planned]:
    return [Planned(executable, (memory,), work, False) for _ in range(count)]


def test_short_launches_of_programs_that_run_often_are_joined():
    a, b = Loaded("a"), Loaded("b")
    once, long = Loaded("once"), planned(Loaded("long"), 4, work=2 * LONGEST)
    launches = [*planned(a, 20), *planned(once, 1), *planned(a, 2), *planned(b, 20), *long, *planned(b, 1)]
    assert chains_of(launches, 100) == [range(0, 20), range(21, 43)]
    assert chains_of(planned(a, SAVED), 100) == []  # one too few to pay
    for other in (Loaded("grouped", group=64), Loaded("own memory", scratch=8)):
        assert chains_of(planned(other, 100), 100) == []


def test_a_chain_has_as_many_memories_as_a_kernel_takes():
    a = Loaded("a")
    launches = [Planned(a, (k // 5,), 1.0, False) for k in range(100)]
    assert chains_of(launches, 4) == [range(k, k + 20) for k in range(0, 100, 20)]
    assert chains_of(launches, 100) == [range(100)]


def test_chunks_cover_the_extent_and_short_launches_are_whole():
    assert chunk_of(1000, 1.0, 2) == 1000 and chunk_of(3, 1e9, 2) == 1
    assert chunk_of(1000, 1e9, 2) == -(-1000 // (2 * CHUNKS))


def test_chunks_of_neighbours_that_run_beside_each_other_wait_for_the_same():
    a = Loaded("a")
    launches = [Planned(a, (0,), 1e9, k in (1, 2)) for k in range(6)]
    table = Table(launches, [range(4), range(4, 6)], 1)
    for k, extent in enumerate([5, 0, 3, 9, 2, 2]):
        table.set_extent(k, extent)
    table.count_chunks()
    first, last, before = table.words[:, 0].tolist(), table.words[:, 1].tolist(), table.words[:, 2].tolist()
    chunks = [-(-extent // max(chunk_of(extent, 1e9, 1), 1)) for extent in (5, 0, 3, 9, 2, 2)]
    a0, a2, a3, a4 = chunks[0], chunks[2], chunks[3], chunks[4]
    assert first == [0, a0, a0, a0 + a2, 0, a4]
    assert last == [a0, a0, a0 + a2, a0 + a2 + a3, a4, a4 + chunks[5]]
    assert before == [0, 0, 0, a0 + a2, 0, a4]


TURN = Program("turn", "opencl", """
__kernel void turn(__global int *restrict y, long y_offset, __global const int *restrict x, long x_offset,
                   int plus, float times, uchar flag, double wide, ulong huge, long extent)
{
  long p = get_global_id(0);
  if (p >= extent) return;
  y[y_offset + p] = x[x_offset + extent - 1 - p] * 3 + plus + (int)times + flag + (int)wide + (int)(huge >> 60);
}
""", ("buffer:4", "buffer:4", "i32", "f32", "b8", "f64", "u64"))


@pytest.mark.parametrize("groups", [1, 2, 7])
def test_each_launch_sees_what_those_before_it_wrote(device, monkeypatch, groups):
    """Hundreds of launches, each of which reverses what the one before wrote, by any number of groups."""
    monkeypatch.setattr(device, "groups_at_once", groups)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(groups))
    turn, = device.load([TURN])
    count, n, work = 300, 1000, LONGEST
    buffers = [device.alloc(4 * n + 64), device.alloc(4 * n + 64)]
    launches = [Launch(turn, (*buffers, 1, 2.5, True, -7.0, 2**64 - 1), n, work=work) for _ in range(count)]
    kept = device.keep(launches, [(k % 2, 1 - k % 2) for k in range(count)])
    assert len(kept.work()) == 1
    addresses = [address_of(b) + 8 for b in buffers]
    for k in range(count):
        kept.set_addresses([[kept.place(k, 0)], [kept.place(k, 1)]], addresses[::1 - k % 2 * 2])
        kept.set_number([kept.place(k, 2)], -k)
        kept.set_extent(k, n - k % 3)
    x = np.arange(n + 16, dtype=np.int32)
    for _ in range(3):
        for buffer in buffers:
            device.copy_in(buffer, x)
        expected = [x.copy(), x.copy()]
        for k in range(count):
            m = n - k % 3
            with np.errstate(over="ignore"):
                expected[k % 2][2:2 + m] = expected[1 - k % 2][2:2 + m][::-1] * 3 + np.int32(2 + 1 - 7 + 15 - k)
        kept.run()
        for buffer, want in zip(buffers, expected, strict=True):
            got = np.empty(n + 16, np.int32)
            device.copy_out(buffer, got)
            np.testing.assert_array_equal(got, want)


def prepared_of(function: Any) -> PreparedPlan:
    """That of the one plan of a captured function."""
    step, = function._own._kept[0].recording.steps
    return step.prepared


def deep(device: str, layers: int = 13) -> object:
    random = np.random.default_rng(2)
    weights = [Tensor(random.standard_normal((48, 48), np.float32) / 7, device=device) for _ in range(layers)]
    position = Variable("position", 0, 30)
    caches = [Tensor.zeros(32, 48, device=device).contiguous().realize() for _ in range(layers)]

    @jit
    def step(x: Tensor, at: Any) -> Tensor:
        for cache, weight in zip(caches, weights, strict=True):
            x = x @ weight
            cache[at:at + 1] = x
            x = (cache[:at + 1].sum(0, keepdim=True) + x).tanh()
        Tensor.realize(x, *caches)
        return x

    return lambda x, at: step(Tensor(x, device=device), position.bind(at)), step, caches


def test_a_replay_in_chains_equals_one_launch_by_launch(device, monkeypatch):
    inputs = np.random.default_rng(3).standard_normal((8, 1, 48), np.float32)
    found = []
    for groups in (device.groups_at_once, 0):
        monkeypatch.setattr(device, "groups_at_once", groups)
        call, step, caches = deep(device.name)
        kept = [call(x, at) for at, x in enumerate(inputs)]
        found.append([*[k.numpy() for k in kept], *[c.numpy() for c in caches]])
        launches = prepared_of(step).kept
        assert len(launches.launches) >= 26 and any(c.steady is not None for c in step._own._kept)
        assert len(launches.work()) <= 4 if groups else len(launches.work()) == len(launches.launches)
    for chained, alone in zip(*found, strict=True):
        np.testing.assert_array_equal(chained, alone)


def test_the_updates_of_an_optimizer_are_one_launch(device, monkeypatch):
    random = np.random.default_rng(4)
    x, y = random.standard_normal((4, 8), np.float32), random.integers(0, 8, 4).astype(np.int32)
    found = []
    for groups in (device.groups_at_once, 0):
        monkeypatch.setattr(device, "groups_at_once", groups)
        Tensor.manual_seed(5)
        with config(device=device.name):
            layers = [nn.Linear(8, 8) for _ in range(12)]
        optimizer = optim.SGD(get_parameters(layers), lr=0.1)

        @jit
        def step(x: Tensor, y: Tensor, layers: list = layers, optimizer: optim.SGD = optimizer) -> Tensor:
            with Tensor.train():
                for layer in layers:
                    x = layer(x).tanh()
                loss = x.cross_entropy(y)
                optimizer.zero_grad()
                loss.backward()
                Tensor.realize(loss, *optimizer.schedule_step())
            return loss

        tensors = Tensor(x, device=device.name), Tensor(y, device=device.name)
        losses = [step(*tensors).numpy() for _ in range(4)]
        found.append([*losses, *[p.numpy() for p in get_parameters(layers)]])
        launches = prepared_of(step).kept
        if groups:
            assert len(launches.work()) * 4 < len(launches.launches)
    for chained, alone in zip(*found, strict=True):
        np.testing.assert_array_equal(chained, alone)


def test_launches_run_alone_where_a_chain_does_not_compile(device, monkeypatch):
    def refuse(*_: object) -> None:
        raise CompileError("[load] no", "source")

    monkeypatch.setattr(device, "chain_kernels", refuse)
    call, step, _ = deep(device.name)
    first = [call(np.ones((1, 48), np.float32), 3).numpy() for _ in range(3)]
    assert prepared_of(step).kept.chains == [] and len(prepared_of(step).kept.work()) >= 26
    assert np.array_equal(first[1], first[2])


def test_equal_sources_of_a_chain_are_one(device):
    text = chain_program([TURN], 3, 16).source
    assert text.count("static void turn_item(") == 1 and "get_global_id" not in text
    assert chain_program([TURN], 3, 16) == chain_program([TURN], 3, 16) != chain_program([TURN], 4, 16)
