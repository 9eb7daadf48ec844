"""The fuzzer itself: networks are the same each time, a fault is found and made small, the end of a process is told."""
import os
import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")

from fuzz import run  # noqa: E402
from fuzz.campaign import shapes  # noqa: E402
from fuzz.check import check  # noqa: E402
from fuzz.draw import draw  # noqa: E402
from fuzz.network import Network, Op, from_json  # noqa: E402
from fuzz.script import script  # noqa: E402
from fuzz.shrink import shrink  # noqa: E402
from fuzz.watch import Worker  # noqa: E402

from minigrad import Tensor  # noqa: E402
from minigrad.nn import functional  # noqa: E402


def test_a_seed_is_always_the_same_network() -> None:
    for seed in range(20):
        network = draw(seed, ("CPU", "CL"))
        assert network == draw(seed, ("CPU", "CL")) == from_json(network.to_json())


class Faulty:
    """Layers of which one is wrong in a part of its elements."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name)

    def silu(self, x: Tensor) -> Tensor:
        return x.silu() * (x > 2).where(1.001, 1.0)


FAULTY = Network((
    Op("buffer", (), {"shape": (2, 3, 9, 11)}),
    Op("conv", (0,), {"out": 4, "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1,
                      "bias": True}),
    Op("activation", (1,), {"name": "F.silu"}),
    Op("join", (1, 2), {"name": "add"}),
    Op("pool", (3,), {"name": "avg", "kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil": False}),
    Op("softmax", (4,), {"name": "softmax", "dim": 1}),
), (5,), seed=1, wanted="all", calls=3)


def test_a_fault_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(FAULTY).kind == "right"
    monkeypatch.setitem(run.OURS, "F", Faulty())
    outcome = check(FAULTY)
    assert outcome.kind == "wrong"
    small = shrink(FAULTY, lambda network: check(network).like(outcome), shapes)
    assert [op.kind for op in small.ops] == ["buffer", "activation"]
    assert (small.calls, small.wanted) == (0, "values")
    assert small.ops[0].args["shape"][0] == 1
    found: dict[str, Any] = {}
    exec(script(small), found)
    found["test_network"]()  # the layer is right there


def test_the_end_of_a_process_is_told() -> None:
    worker = Worker({}, patience=60)
    try:
        os.kill(worker._start().pid, signal.SIGSEGV)
        network, outcome = worker.run({"network": FAULTY.to_json()})
        assert (network, outcome.kind, outcome.key) == (FAULTY.to_json(), "crash", "crash SIGSEGV")
    finally:
        worker.stop()
