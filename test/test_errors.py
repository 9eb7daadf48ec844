"""User mistakes fail where they are written, with the op and the shapes in the message."""
# Wrong types are passed on purpose.
# mypy: disable-error-code="arg-type,type-var"
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from minigrad import Tensor, Variable, config
from minigrad.errors import DeviceError, DTypeError, MinigradError, ShapeError


@pytest.fixture(autouse=True)
def on_numpy() -> Iterator[None]:
    with config(device="NUMPY"):
        yield


def x(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


def i(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.int32))


ROWS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: x(2, 3) + x(4), ShapeError, "[add] expected shapes that broadcast, got [2, 3] and [4]"),
    (lambda: x(2, 3) @ x(4, 5), ShapeError,
     "[matmul] expected [..., M, K] and [..., K, N] with equal K, got [2, 3] and [4, 5]"),
    (lambda: x(2, 3).reshape(4, 2), ShapeError, "[reshape] expected 6 elements like [2, 3], got [4, 2] with 8"),
    (lambda: x(2, 3).reshape(4, -1), ShapeError, "[reshape] expected a shape with 6 elements like [2, 3], got [4, -1]"),
    (lambda: x(2, 3).reshape(-1, -1), ShapeError, "[reshape] expected dims of 0 or more and at most one -1"),
    (lambda: x(2, 3).permute(0, 0), ShapeError, "[permute] expected an order of 2 axes for [2, 3], got (0, 0)"),
    (lambda: x(2, 3).expand(2, 4), ShapeError, "[expand] expected a shape that [2, 3] broadcasts to, got [2, 4]"),
    (lambda: x(2, 3).sum(2), ShapeError, "[sum] expected distinct axes in -2..1, got 2"),
    (lambda: x(2, 3).sum((0, 0)), ShapeError, "[sum] expected distinct axes in -2..1, got (0, 0)"),
    (lambda: x(0, 3).max(0), ShapeError, "[max] expected at least one element to reduce, got [0, 3] over axes (0,)"),
    (lambda: x(2, 3)[2], ShapeError, "[getitem] expected an index in -2..1 along axis 0 of [2, 3], got 2"),
    (lambda: x(2, 3)[0, 0, 0], ShapeError, "[getitem] expected at most 2 indices and one ..., got 3 for [2, 3]"),
    (lambda: x(2, 3)[::0], ShapeError, "[getitem] expected a step other than 0"),
    (lambda: x(2, 3)[x(2) > 0], DTypeError, "[getitem] expected integer indices, got a bool mask"),
    (lambda: x(2, 3)[x(2)], DTypeError, "[getitem] expected integer indices, got float32"),
    (lambda: x(2, 3)["a"], DTypeError, "[getitem] expected ints, slices, None, ..., tensors or Variables, got str"),
    (lambda: x(2, 3).__setitem__(0, x(2)), ShapeError, "[setitem] expected a value that broadcasts to [3], got [2]"),
    (lambda: x(2, 3).assign(x(4)), ShapeError, "[assign] expected shapes that broadcast, got [2, 3] and [4]"),
    (lambda: x(3).assign(x(2, 3)), ShapeError, "[assign] expected a value that broadcasts to [3], got [2, 3]"),
    (lambda: x(2, 3).sum("a"), ShapeError, "[sum] expected an integer or several as axis, got 'a'"),
    (lambda: x(2, 3).transpose(0, 1.5), ShapeError, "[transpose] expected an axis in -2..1, got 1.5"),
    (lambda: Tensor.zeros(2, 1.5), ShapeError, "[shape] expected dims as integers, got [2, 1.5]"),
    (lambda: x(2, 3).linear(x(4, 5)), ShapeError, "[linear] expected [..., 4] for a weight [4, 5], got [2, 3]"),
    (lambda: Tensor.einsum("ij,jk->ik", x(2, 3), x(4, 5)), ShapeError,
     "[einsum] expected one length of 'j' in 'ij,jk->ik', got [2, 3] and [4, 5]"),
    (lambda: Tensor.cat([]), ShapeError, "[cat] expected tensors or a list of at least one, got []"),
    (lambda: x(2, 3).chunk(0), ShapeError, "[chunk] expected at least 1 chunk, got 0"),
    (lambda: x(2, 3).to(x(1).dtype), DeviceError, "[device] expected a device's name such as 'CPU', got float32"),
    (lambda: x(2, 3).cat(x(3, 3), dim=1), ShapeError,
     "[cat] expected shapes equal beside axis 1, got [2, 3] and [3, 3]"),
    (lambda: x(2).stack(x(3)), ShapeError, "[stack] expected equal shapes, got [2] and [3]"),
    (lambda: x(5).split([2, 2]), ShapeError, "[split] expected sizes that add up to 5, got [2, 2]"),
    (lambda: x(1, 3, 8, 8).conv2d(x(4, 2, 3, 3)), ShapeError,
     "[conv2d] expected x [N, Cin, ...] and weight [Cout, Cin/1, ...], got [1, 3, 8, 8] and [4, 2, 3, 3]"),
    (lambda: x(1, 2, 2, 2).conv2d(x(4, 2, 3, 3)), ShapeError,
     "[conv2d] expected a window that fits, got length 2 with kernel 3, stride 1, dilation 1, padding (0, 0), for x ["),
    (lambda: x(1, 2, 4, 4).max_pool2d(5), ShapeError,
     "[max_pool2d] expected a window that fits, got length 4 with kernel 5"),
    (lambda: x(3, 4).gather(0, i(2)), ShapeError, "[gather] expected an index of rank 2 and an axis below it"),
    (lambda: x(3, 4).gather(0, x(2, 4)), DTypeError, "[gather] expected an integer index, got float32"),
    (lambda: x(3, 4).scatter(0, i(2), x(2, 9)), ShapeError,
     "[scatter] expected a source of at least the index's shape [2], got [2, 9]"),
    (lambda: x(3, 4).scatter(0, i(2, 9), x(2, 9)), ShapeError, "[scatter] expected an index no longer than [3, 4]"),
    (lambda: x(3, 4).cross_entropy(i(4)), ShapeError,
     "[cross_entropy] expected class indices [3] for logits [3, 4], got [4]"),
    (lambda: x(2, 3, 4).scaled_dot_product_attention(x(2, 5, 6), x(2, 5, 4)), ShapeError,
     "[scaled_dot_product_attention] expected q [..., L, E], k [..., S, E], v [..., S, F], got [2, 3, 4], [2, 5, 6]"),
    (lambda: Tensor.einsum("ij,jk", x(2, 3)), ShapeError, "[einsum] expected one term per operand"),
    (lambda: i(3) << 1.5, DTypeError, "[shl] expected an integer type, got float32"),
    (lambda: x(3) & x(3), DTypeError, "[and] expected an integer or bool type, got float32"),
    (lambda: (x(3) > 0) - (x(3) > 0), DTypeError, "[sub] expected a number type, got bool and bool"),
    (lambda: x(3).cast("float31"), DTypeError, "unknown dtype 'float31'; expected one of bool, int8"),
    (lambda: x(3).bitcast("float64"), DTypeError, "[bitcast] expected a type of 32 bits like float32, got float64"),
    (lambda: x(3).item(), ShapeError, "[item] expected one element, got shape [3]"),
    (lambda: bool(x(3)), ShapeError, "[bool] expected one element, got shape [3]; use .any() or .all()"),
    (lambda: len(x()), DTypeError, "[len] expected a tensor with axes, got one of shape []"),
    (lambda: Tensor([[1, 2], [3]]), ShapeError, "[Tensor] expected nested lists of equal lengths"),
    (lambda: Tensor("text"), DTypeError, "[Tensor] expected numbers, nested lists of them or an array, got str"),
    (lambda: Tensor.zeros(2, -1), ShapeError, "[full] expected dims of 0 or more, got [2, -1]"),
    (lambda: Tensor.arange(3, 0, 0), ShapeError, "[arange] expected a step other than 0"),
    (lambda: Tensor.randint(3, low=5, high=5), ShapeError,
     "[randint] expected low < high, at most 2**32 apart, got 5 and 5"),
    (lambda: Tensor.rand(3, dtype="int32"), DTypeError, "[rand] expected a float type, got int32"),
    (lambda: Tensor.manual_seed(-1), MinigradError, "[manual_seed] expected a seed in 0..2**64-1, got -1"),
    (lambda: Tensor.zeros(2, device="GPU"), DeviceError, "GPU"),
    (lambda: x(2) + Tensor.zeros(2, device="CPU"), DeviceError,
     "[add] expected operands on one device, got NUMPY, CPU"),
    (lambda: Variable("n", 1, 4).bind(5), ShapeError, "[Variable.bind] expected a value of 'n' in 1..4, got 5"),
    (lambda: x(3)[:Variable("n", 5, 9).bind(5)], ShapeError, "[slice] expected 0 <= start <= stop <= length"),
    (lambda: x(2, 3).pad((1, 1, 1)), ShapeError,
     "[pad] expected (before, after) for last axes of [2, 3], got (1, 1, 1)"),
    (lambda: x(2).dropout(1.5), ShapeError, "[dropout] expected a probability in 0..1, got 1.5"),
    (lambda: x(2).gelu("fast"), DTypeError, "[gelu] expected approximate 'tanh' or 'none', got 'fast'"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[2][:40])
def test_message(row: tuple[Callable[[], object], type[Exception], str]) -> None:
    run, kind, message = row
    with pytest.raises(kind) as caught:
        run()
    assert message in str(caught.value)


def test_unbound_variable_at_realize() -> None:
    y = x(8)[:Variable("n", 1, 8)] + 1
    with pytest.raises(MinigradError, match="bind"):
        y.realize()
