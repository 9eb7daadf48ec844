"""Values that are kept in memory because the loops of the kernel that uses them would compute them badly."""
# Tests know their dims are ints.
# mypy: disable-error-code="misc"
import pytest
from support.scheduler import ready

from minigrad import Tensor
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import Schedule, schedule

pytestmark = pytest.mark.usefixtures("on_cpu")


def scheduled(*tensors: Tensor) -> Schedule:
    return schedule(build_graph([t.node for t in tensors]), frozenset(), get_device("CPU").target)


def sizes(x: Tensor) -> Tensor:
    return (x[:, :129].square() + x[:, 129:].exp()).sqrt()


def test_what_a_convolution_of_few_positions_reads_is_computed_before() -> None:
    x, w = ready(1, 258, 1, 4), ready(128, 129, 1, 3)
    made = scheduled(sizes(x).conv2d(w, padding=(0, 1)))
    assert len(made.steps) == 2 and "recomputing costs" in "".join(r for s in made.steps for r in s.reasons)
    assert len(scheduled(sizes(x).conv2d(ready(1, 129, 1, 3), padding=(0, 1))).steps) == 1, "one output channel"
