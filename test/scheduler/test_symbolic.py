"""Symbolic dims: bound values, names, plans that are shared, and what is refused."""
import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in

from minigrad import Tensor, Variable
from minigrad.engine.stats import stats
from minigrad.errors import ShapeError


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["n", "p", "i0", "d0", "r0", "t0", "o0", "if"])
@one_in(4, CPU_DRIVERS)
def test_names_do_not_matter(device: str, name: str) -> None:
    data = np.arange(40, dtype=np.float32).reshape(20, 2)
    v = Variable(name, 1, 20)
    for k in (3, 20):
        y = (Tensor(data, device=device)[:v.bind(k)] * 2).sum(0)
        np.testing.assert_allclose(y.numpy(), data[:k].sum(0) * 2)


def test_another_value_compiles_nothing() -> None:
    x = Tensor(np.ones((64, 8), np.float32), device="CPU").realize()
    n = Variable("n", 2, 64)
    np.testing.assert_allclose((x[:n.bind(5)] @ x[:n.bind(5)].transpose(0, 1)).sum().numpy(), 200)
    before = stats.snapshot()
    for k in (2, 17, 64):
        total = (x[:n.bind(k)] @ x[:n.bind(k)].transpose(0, 1)).sum()
        np.testing.assert_allclose(total.numpy(), 8 * k * k)
    made = stats - before
    assert made.programs == 0 and made.schedules == 0


def test_lazy_values_keep_their_binding() -> None:
    x = Tensor(np.arange(10, dtype=np.float32), device="CPU")
    n = Variable("n", 1, 10)
    first, second = x[:n.bind(3)].sum(), x[:n.bind(6)].sum()
    assert second.item() == 15 and first.item() == 3


def test_one_value_per_realize() -> None:
    x = Tensor(np.ones(10, np.float32), device="CPU")
    n = Variable("n", 1, 10)
    with pytest.raises(ShapeError, match="expected one value of 'n' per realize, got"):
        (x[:n.bind(3)].sum() + x[:n.bind(6)].sum()).numpy()


def test_unbound_and_out_of_range() -> None:
    x = Tensor(np.ones(10, np.float32), device="CPU")
    n = Variable("n", 1, 10)
    with pytest.raises(ShapeError, match=r"expected a value for 'n'; use n.bind\(value\)"):
        x[:n].sum().numpy()
    with pytest.raises(ShapeError, match=r"expected a value of 'n' in 1..10, got 11"):
        n.bind(11)


STRIPS = {
    "rows": (lambda x, w: Tensor.einsum("nsk,km->nsm", x[:, :9], w), (30, 12, 60), (60, 40)),
    "columns": (lambda x, w: Tensor.einsum("nsk,km->mns", x[:, :9], w), (30, 12, 60), (60, 64)),
    "images": (lambda x, w: x.conv2d(w), (30, 40, 6, 6), (64, 40, 1, 1)),
    "padded images": (lambda x, w: x.conv2d(w, padding=1), (30, 10, 6, 6), (64, 10, 3, 3)),
}


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("case", STRIPS)
def test_products_of_strips_whose_number_is_symbolic(case: str, dtype: str) -> None:
    """Rows or columns are several variables, of which the outer one's extent is known at run time."""
    make, *shapes = STRIPS[case]
    rng = np.random.default_rng(3)
    x, w = (Tensor(rng.integers(-8, 9, s).astype(np.float32), device="CPU").cast(dtype).realize() for s in shapes)
    n = Variable("n", 1, 30)
    for k in (30, 17, 1):
        got, expected = (make(x[:v], w).cast("int32").numpy() for v in (n.bind(k), k))
        np.testing.assert_array_equal(got, expected)
