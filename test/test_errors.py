"""User mistakes fail where they are written, with the op and the shapes in the message."""
# Wrong types are passed on purpose.
# mypy: disable-error-code="arg-type,type-var,misc,operator,index,dict-item"
from collections.abc import Callable

import numpy as np
import pytest

from minigrad import Tensor, Variable, jit, nn
from minigrad.errors import DeviceError, DTypeError, FormatError, MinigradError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")


def x(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


def w() -> Tensor:
    return Tensor([1.0], requires_grad=True)


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
    (lambda: x(2, 3)[-4], ShapeError, "[getitem] expected an index in -2..1 along axis 0 of [2, 3], got -4"),
    (lambda: x(5).split(0), ShapeError, "[split] expected a size as an integer of 1 or more, got 0"),
    (lambda: Tensor([1, [2]]), ShapeError, "[Tensor] expected nested lists of equal lengths, got lists of different"),
    (lambda: x(2, 3)[0, 0, 0], ShapeError, "[getitem] expected at most 2 indices and one ..., got 3 for [2, 3]"),
    (lambda: x(2, 3)[::0], ShapeError, "[getitem] expected a step other than 0"),
    (lambda: x(2, 3)[x(3) > 0], ShapeError, "[getitem] expected a mask [2] from axis 0 of [2, 3], got [3]"),
    (lambda: x(2, 3)[x(2)], DTypeError, "[getitem] expected integer indices or a bool mask, got float32"),
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
    (lambda: x(2, 3).chunk(0), ShapeError, "[chunk] expected chunks as an integer of 1 or more, got 0"),
    (lambda: x(2, 3).to(3), DeviceError, "[device] expected a device's name such as 'CPU', got 3"),
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
    (lambda: Tensor.einsum("ii", x(2, 3)), ShapeError, "[einsum] expected one length of 'i' in 'ii', got [2, 3]"),
    (lambda: Tensor.einsum("ij,jk", x(2, 3)), ShapeError, "[einsum] expected one term per operand"),
    (lambda: i(3) << 1.5, DTypeError, "[shl] expected an integer type, got float32"),
    (lambda: x(3) & x(3), DTypeError, "[and] expected an integer or bool type, got float32"),
    (lambda: (x(3) > 0) - (x(3) > 0), DTypeError, "[sub] expected a number type, got bool and bool"),
    (lambda: x(3).cast("float31"), DTypeError, "[dtype] expected one of bool, int8, int16, int32"),
    (lambda: x(3).bitcast("float64"), ShapeError, "[bitcast] expected a last axis of a multiple of 2, as a"),
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
    (lambda: Variable("n", 1, 4).bind("x"), ShapeError, "[Variable.bind] expected a value of 'n' in 1..4, got 'x'"),
    (lambda: Variable("n", "a", 4), ShapeError, "[Variable] expected a name and two integers, got 'n', 'a' and 4"),
    (lambda: Variable("n", 1, 4).bind(5), ShapeError, "[Variable.bind] expected a value of 'n' in 1..4, got 5"),
    (lambda: x(3)[:Variable("n", 5, 9).bind(5)], ShapeError, "[slice] expected 0 <= start <= stop <= length"),
    (lambda: x(2, 3).pad((1, 1, 1)), ShapeError,
     "[pad] expected (before, after) for last axes of [2, 3], got (1, 1, 1)"),
    (lambda: x(2).dropout(1.5), ShapeError, "[dropout] expected a probability in 0..1, got 1.5"),
    (lambda: x(2).gelu("fast"), DTypeError, "[gelu] expected approximate 'tanh' or 'none', got 'fast'"),
    (lambda: x(2, 3).permute("a", 0), ShapeError, "[permute] expected an order of 2 axes for [2, 3], got ('a', 0)"),
    (lambda: x(2, 3).flatten(1, 0), ShapeError, "[flatten] expected start_dim at or before end_dim, got 1 and 0"),
    (lambda: x(2, 3).unflatten(0, (2, -1, -1)), ShapeError,
     "[unflatten] expected sizes whose product is 2, at most one of them -1, got (2, -1, -1)"),
    (lambda: x(2, 3).unflatten(0, 5), ShapeError, "[unflatten] expected sizes whose product is 2, at most one"),
    (lambda: x(2, 3).pad(3), ShapeError, "[pad] expected integers (left, right, top, ...) or one (before, after) per"),
    (lambda: x(2, 3).pad(((1, 1), (1,))), ShapeError, "[pad] expected integers (left, right, top, ...) or one (before"),
    (lambda: x(2, 3).pad((1, 1), value="a"), DTypeError, "[pad] expected value as a number, got 'a'"),
    (lambda: x(2, 3).shrink(3), ShapeError, "[shrink] expected 2 ranges (start, stop) for [2, 3], got 3"),
    (lambda: x(2, 3).repeat_interleave(-1), ShapeError,
     "[repeat_interleave] expected repeats as an integer of 0 or more, got -1"),
    (lambda: x(2).cat(np.zeros(2)), DTypeError, "[cat] expected a Tensor, got ndarray"),
    (lambda: x(2).stack(3), DTypeError, "[stack] expected a Tensor, got int"),
    (lambda: x(5).split([7, -2]), ShapeError, "[split] expected sizes as an integer of 0 or more, got -2"),
    (lambda: x(5).split("a"), ShapeError, "[split] expected sizes as an integer of 0 or more, got 'a'"),
    (lambda: x(5).unfold(0, 2, 0), ShapeError, "[unfold] expected step as an integer of 1 or more, got 0"),
    (lambda: x(5).narrow(0, "a", 1), ShapeError, "[narrow] expected start as an integer, got 'a'"),
    (lambda: x(5).roll("a", 0), ShapeError, "[roll] expected shifts as an integer, got 'a'"),
    (lambda: x(5).softmax(1), ShapeError, "[softmax] expected distinct axes in -1..0, got 1"),
    (lambda: x(2, 0).argmax(1), ShapeError, "[argmax] expected at least one element along axis 1, got [2, 0]"),
    (lambda: x(5).tril(), ShapeError, "[tril] expected at least 2 axes and an integer diagonal, got [5] and 0"),
    (lambda: x(2, 3)["a":], DTypeError, "[getitem] expected a slice of integers, got slice('a', None, None)"),
    (lambda: x(2, 3).gather(0, 0.5), DTypeError, "[gather] expected a Tensor, got float"),
    (lambda: x(2, 3).take(x(2)), DTypeError, "[take] expected an integer index, got float32"),
    (lambda: x(2, 3).index_select(0, [[1]]), ShapeError, "[index_select] expected an index of one axis, got [1, 1]"),
    (lambda: i(3).one_hot(-1), ShapeError, "[one_hot] expected num_classes as an integer of 1 or more, got -1"),
    (lambda: x(3).size(7), ShapeError, "[size] expected an axis in -1..0, got 7"),
    (lambda: x(3).cast(None), DTypeError, "[dtype] expected one of bool, int8, int16"),
    (lambda: x(3).masked_fill(3, 0), DTypeError, "[masked_fill] expected a Tensor, got int"),
    (lambda: 3 @ x(3), ShapeError, "[matmul] expected operands of at least one axis, got [] and [3]"),
    (lambda: x(3).linear(3), DTypeError, "[linear] expected a Tensor, got int"),
    (lambda: x(1, 3, 8, 8).conv2d(x(4, 3, 3, 3), bias=x(3)), ShapeError, "[conv2d] expected a bias [4], got [3]"),
    (lambda: x(1, 3, 8, 8).conv2d(x(4, 3, 3, 3), padding="same"), ShapeError,
     "[conv2d] expected padding as one int, 2 or 4 of them, got 'same'"),
    (lambda: x(1, 3, 8, 8).conv_transpose2d(x(3, 4, 3, 3), padding=9), ShapeError,
     "[conv_transpose2d] expected strides and dilations of 1 or more and sizes of 0 or more, got stride 1, dilation 1"),
    (lambda: x(4).max_pool2d(), ShapeError, "[max_pool2d] expected one size per axis of a window, got (2, 2) for [4]"),
    (lambda: x(2, 3).interpolate((1, 2, 3)), ShapeError,
     "[interpolate] expected one size for each of the last axes of [2, 3], got (1, 2, 3)"),
    (lambda: x(2, 3).batchnorm(None, None, x(2), x(3)), ShapeError,
     "[batchnorm] expected [3] per channel of [2, 3], got [2]"),
    (lambda: x(2, 3).cross_entropy(3), DTypeError, "[cross_entropy] expected a Tensor, got int"),
    (lambda: x(2, 3).cross_entropy([0, 1], label_smoothing=2), ShapeError,
     "[cross_entropy] expected a label_smoothing in 0..1, got 2"),
    (lambda: x(2, 3).nll_loss([0, 1, 2]), ShapeError, "[nll_loss] expected log-probabilities [N, C, ...] and classes"),
    (lambda: x(2).dropout("a"), DTypeError, "[dropout] expected p as a number, got 'a'"),
    (lambda: x(3).scaled_dot_product_attention(x(3), x(3)), ShapeError,
     "[scaled_dot_product_attention] expected at least 2 axes, got [3], [3], [3]"),
    (lambda: x(2, 3).scaled_dot_product_attention(x(2, 3), 3), DTypeError,
     "[scaled_dot_product_attention] expected a Tensor, got int"),
    (lambda: Tensor.einsum(3, x(2)), ShapeError, "[einsum] expected a formula such as 'ij,jk->ik' and tensors, got 3"),
    (lambda: Tensor.einsum("...ij->ij", x(2)), ShapeError, "[einsum] expected one term per operand and one letter per"),
    (lambda: Tensor.full((2,), "a"), DTypeError, "[full] expected fill_value as a number, got 'a'"),
    (lambda: Tensor.arange(float("nan")), ShapeError, "[arange] expected finite numbers, got 0, nan and 1"),
    (lambda: Tensor.arange("a"), DTypeError, "[arange] expected start, end and step as a number, got 'a'"),
    (lambda: Tensor.linspace(0, 1, 1.5), ShapeError, "[linspace] expected steps as an integer of 0 or more, got 1.5"),
    (lambda: Tensor.eye("a"), ShapeError, "[eye] expected n as an integer of 0 or more, got 'a'"),
    (lambda: Tensor.uniform(3, low=2, high=1), ShapeError, "[uniform] expected low <= high, got 2 and 1"),
    (lambda: Tensor.randint(3, low="a"), ShapeError, "[randint] expected low < high, at most 2**32 apart, got 'a'"),
    (lambda: Tensor.kaiming_uniform(), ShapeError, "[init] expected a shape [out, in, ...] of at least one axis"),
    (lambda: Tensor.manual_seed("a"), MinigradError, "[manual_seed] expected a seed in 0..2**64-1, got 'a'"),
    (lambda: Tensor([2**70]), DTypeError, "[Tensor] expected a number in uint64's 0..18446744073709551615, got 1"),
    (lambda: Tensor([2**63, -1]), DTypeError, "[Tensor] expected integers that one type holds, got -1 beside"),
    (lambda: Tensor([300], dtype="uint8"), DTypeError, "[Tensor] expected a number in uint8's 0..255, got 300"),
    (lambda: i(2).masked_fill(i(2) > 0, 2**31), DTypeError, "[masked_fill] expected a number in int32's -2147483648"),
    (lambda: i(2).cast("int8") % 300, DTypeError, "[mod] expected an integer that int8 can hold, got 300"),
    (lambda: Tensor([1j]), DTypeError, "[Tensor] expected numbers, nested lists of them or an array, got list of comp"),
    (lambda: i(2) + 2**70, DTypeError, "[add] expected an integer that int64 can hold, got 1180591620717411303424"),
    (lambda: x(2).replace(3), DTypeError, "[replace] expected a Tensor, got int"),
    (lambda: x(2).realize([x(2)]), DTypeError, "[realize] expected Tensors one by one, got"),
    (lambda: x(2).backward(3), DTypeError, "[backward] expected a Tensor, got int"),
    (lambda: x(2).gradient(3), DTypeError, "[gradient] expected a Tensor, got int"),
    (lambda: Tensor.from_blob([1, 2]), DTypeError, "[from_blob] expected a numpy array, got list"),
    (lambda: jit(3), MinigradError, "[jit] expected a function and a limit of 0 or more, got 3 and 8"),
    (lambda: nn.Linear("a", 3), DTypeError, "[Linear] expected in_features as an integer, got 'a'"),
    (lambda: nn.Linear(3, 2)(None), DTypeError, "[Linear] expected a Tensor, got NoneType"),
    (lambda: nn.Conv2d(3, 4, "a"), ShapeError, "[Conv2d] expected one integer or 2 of them, got 'a'"),
    (lambda: nn.Conv2d("a", 4, 3), DTypeError, "[Conv2d] expected in_channels as an integer, got 'a'"),
    (lambda: x(2, 3).transpose(np.array([0, 1])), ShapeError, "[transpose] expected an axis in -2..1, got array"),
    (lambda: x(2, 3).permute(int, 0), ShapeError, "[permute] expected an order of 2 axes for [2, 3], got"),
    (lambda: x(2, 3).sum(dtype=x(2)), DTypeError, "[dtype] expected one of"),
    (lambda: x(3).reshape(None, None), ShapeError, "[shape] expected dims as integers, got [3, None]"),
    (lambda: x(1, 1, 4, 4).max_pool2d(np.ones(2)), ShapeError, "[max_pool2d] expected one integer or 2 of them, got"),
    (lambda: x(2, 2).addmm("a", x(2, 2)), DTypeError, "[addmm] expected a Tensor, got str"),
    (lambda: x(2, 2).equal(3), DTypeError, "[equal] expected a Tensor, got int"),
    (lambda: x(2, 2).rot90(1, 3), ShapeError, "[rot90] expected k as an integer and two axes, got 1 and 3"),
    (lambda: x(4).tensor_split(None), ShapeError, "[tensor_split] expected an integer or a list of them, got None"),
    (lambda: x(4, 4).pad((5, 1), mode="circular"), ShapeError, "got 'circular' and (5, 1) for axis 1 of [4, 4]"),
    (lambda: x().cross_entropy(x()), ShapeError, "[cross_entropy] expected logits [N, C, ...] or [C], got shape []"),
    (lambda: nn.Conv2d(3, 4, 3)(np.ones((1, 3, 4, 4))), DTypeError, "[Conv2d] expected a Tensor, got ndarray"),
    (lambda: nn.BatchNorm2d(3)([1, 2]), DTypeError, "[BatchNorm2d] expected a Tensor, got list"),
    (lambda: nn.ReLU()(3), DTypeError, "[ReLU] expected a Tensor, got int"),
    (lambda: nn.MaxPool2d(2)("a"), DTypeError, "[MaxPool2d] expected a Tensor, got str"),
    (lambda: nn.RMSNorm(3)(x()), ShapeError, "[RMSNorm] expected [..., 3], got []"),
    (lambda: nn.optim.SGD(nn.Linear(2, 2)), MinigradError,
     "[SGD] expected Tensors, such as nn.state.get_parameters(model), got Linear"),
    (lambda: nn.optim.SGD({"a": x(2)}), MinigradError, "[SGD] expected Tensors, such as nn.state.get_parameters"),
    (lambda: nn.optim.SGD([w()], lr="a"), DTypeError, "[SGD] expected the learning rate as a number, got 'a'"),
    (lambda: nn.optim.SGD([w()], lr=x(2)), ShapeError, "[SGD] expected one number, got a Tensor of [2]"),
    (lambda: nn.optim.SGD([w()], momentum="a"), DTypeError, "[SGD] expected momentum as a number, got 'a'"),
    (lambda: nn.optim.Adam([w()], betas=(0.9, 2)), MinigradError, "[Adam] expected two betas in 0..1, below 1, got"),
    (lambda: nn.state.load_state_dict(nn.Linear(2, 2), None), FormatError,
     "[load_state_dict] expected a dictionary of tensors by name, got NoneType"),
    (lambda: nn.state.safe_save({"a": 3}, "unused"), DTypeError,
     "[safe_save] expected a dictionary of Tensors by name, got a int as 'a'"),
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


def test_integers_of_numpy_are_integers() -> None:
    two, one = np.int64(2), np.int32(1)
    y, image, weight = (Tensor.arange(n).float().reshape(*shape) for n, shape in (
        (12, (4, 3)), (72, (1, 2, 6, 6)), (18, (2, 1, 3, 3))))
    for ours, theirs in [
        (y.reshape(two, -one), y.reshape(2, -1)), (y.expand(two, -one, np.int8(3)), y.expand(2, -1, 3)),
        (y.pad((one, two)), y.pad((1, 2))), (y.pad((one, one), mode="reflect"), y.pad((1, 1), mode="reflect")),
        (y.shrink(((one, two), None)), y.shrink(((1, 2), None))), (y.split(two)[one], y.split(2)[1]),
        (y.chunk(two)[1], y.chunk(2)[1]), (y.unfold(0, two, one), y.unfold(0, 2, 1)), (y.roll(one, 0), y.roll(1, 0)),
        (y.tensor_split([one, two])[1], y.tensor_split([1, 2])[1]), (y.diagonal(one), y.diagonal(1)),
        (y.permute(one, np.int64(0)), y.permute(1, 0)), (y.repeat_interleave(two, 1), y.repeat_interleave(2, 1)),
        (y.rearrange("(a b) c -> a b c", a=two), y.reshape(2, 2, 3)),
        (image.max_pool2d(two, two, padding=one), image.max_pool2d(2, 2, padding=1)),
        (image.conv2d(weight, stride=two, padding=one, groups=two),
         image.conv2d(weight, stride=2, padding=1, groups=2)),
    ]:
        assert ours.shape == theirs.shape and ours.tolist() == theirs.tolist()
