"""Values that are kept in memory because the loops of the kernel that uses them would compute them badly."""
# Tests know their dims are ints.
# mypy: disable-error-code="misc"
import pytest
from support.scheduler import ready

from minigrad import Tensor
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph, numel
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


@pytest.mark.parametrize("kernel, stride, dilation", [(3, 2, 1), (5, 2, 1), (3, 1, 1), (2, 2, 1), (3, 1, 2), (3, 3, 1)])
@pytest.mark.parametrize("times", [1, 5, 10])
def test_products_of_windows_are_summed_where_they_are_made(kernel: int, stride: int, dilation: int,
                                                             times: int) -> None:
    """However much is computed of their operands, which are kept instead: there are as many times more products as
    taps."""
    x, w = ready(4, 6, 24, 24), ready(6, 1, kernel, kernel)
    w.requires_grad = True
    for _ in range(times):
        numbers = ready(1, 6, 1, 1)
        x = (x + numbers).sigmoid() * numbers - x.sin()
    y = x.conv2d(w, stride=stride, padding=kernel // 2, dilation=dilation, groups=6)
    for _ in range(times):
        numbers = ready(1, 6, 1, 1)
        y = (y + numbers).sigmoid() * numbers - y.sin()
    made = scheduled(*y.square().sum().gradient(w))
    stored = [numel(p.shape) for s in made.steps if s.kernel for p in s.kernel.params if p.mode != "in"]
    assert max(stored) <= numel(x.shape)
