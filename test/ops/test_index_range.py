"""Indices out of range: every operation that takes an index tensor, with negative ones, with ones in range and with
ones outside, of every integer type, against PyTorch. What it accepts means the same here, gradients too; what it
refuses raises an IndexError where no value has to be read, and always under `check_indices`."""
# mypy: disable-error-code="arg-type,attr-defined,call-arg,union-attr,no-any-return,index,operator"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, needs_torch, one_in

from minigrad import Tensor, config, jit, nn
from minigrad.distributions import Categorical
from minigrad.errors import CaptureError, ConfigError, MinigradError
from minigrad.nn import functional as ours

try:
    import torch
    from torch.nn import functional as theirs
except ImportError:
    pass

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
N = 5  # the length of the axis that is indexed
X = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
BATCHES = ([0, 3, -1, -4], [4, -5], [2], [5], [-6], [100], [-100])  # the elements of one batch are different places
TYPES = ("int8", "int16", "int32", "int64", "uint8")
# An operation gets x [N, 3], an index [k], a source [k, 3] and the functional namespace that belongs to them.
Run = Callable[[Any, Any, Any, Any], Any]


def wide(i: Any) -> Any:
    return i.reshape(-1, 1).expand(i.shape[0], 3)


def written(x: Any, key: Any, value: Any) -> Any:
    y = x * 1
    y[key] = value
    return y


READ: list[tuple[str, Run]] = [
    ("getitem", lambda x, i, s, f: x[i]),
    ("getitem", lambda x, i, s, f: x.transpose(0, 1)[:, i]),
    ("getitem", lambda x, i, s, f: x[i, i % 3]),
    ("getitem", lambda x, i, s, f: x[None, i.reshape(-1, 1), 1:]),
    ("getitem", lambda x, i, s, f: x.transpose(0, 1)[1, i]),
    ("take", lambda x, i, s, f: x[:, 0].take(i)),
    ("take_along_dim", lambda x, i, s, f: x.take_along_dim(wide(i), 0)),
    ("take_along_dim", lambda x, i, s, f: x.take_along_dim(i.reshape(-1, 1), -2)),
    ("take_along_dim", lambda x, i, s, f: x[:, 0].take_along_dim(i)),
    ("gather", lambda x, i, s, f: x.gather(0, wide(i))),
    ("gather", lambda x, i, s, f: x.transpose(0, 1).gather(-1, wide(i).transpose(0, 1))),
    ("index_select", lambda x, i, s, f: x.index_select(0, i)),
    ("index_select", lambda x, i, s, f: x.transpose(0, 1).index_select(1, i)),
    ("embedding", lambda x, i, s, f: f.embedding(i.reshape(1, -1), x)),
    ("embedding", lambda x, i, s, f: f.embedding(i, x, padding_idx=2)),
    ("embedding_bag", lambda x, i, s, f: f.embedding_bag(i.reshape(1, -1), x)),
    ("embedding_bag", lambda x, i, s, f: f.embedding_bag(i.reshape(1, -1), x, mode="max", padding_idx=2)),
]
WRITTEN: list[tuple[str, Run]] = [
    ("setitem", lambda x, i, s, f: written(x, i, s)),
    ("setitem", lambda x, i, s, f: written(x, (i, 1), s[:, 0])),
    ("setitem", lambda x, i, s, f: written(x, (slice(None), i % 3), 2.0) if i.shape[0] == 1 else x * 1),
    ("index_put", lambda x, i, s, f: x.index_put((i,), s)),
    ("index_put", lambda x, i, s, f: x.index_put((i, i % 3), s[:, 0], accumulate=True)),
    ("put", lambda x, i, s, f: (x[:, 0] * 1).put(i, s[:, 0]) if f is ours else (x[:, 0] * 1).put_(i, s[:, 0])),
    ("scatter", lambda x, i, s, f: x.scatter(0, wide(i), s)),
    ("scatter", lambda x, i, s, f: x.scatter(0, wide(i), 7.0)),
    ("scatter", lambda x, i, s, f: x.transpose(0, 1).scatter(1, wide(i).transpose(0, 1), s.transpose(0, 1))),
    ("scatter_add", lambda x, i, s, f: x.scatter_add(0, wide(i), s)),
    ("scatter_reduce", lambda x, i, s, f: x.scatter_reduce(0, wide(i), s, "amax")),
    ("scatter_reduce", lambda x, i, s, f: x.scatter_reduce(0, wide(i), s, "mean", include_self=False)),
    ("index_add", lambda x, i, s, f: x.index_add(0, i, s, alpha=2)),
    ("index_copy", lambda x, i, s, f: x.index_copy(0, i, s)),
    ("index_fill", lambda x, i, s, f: x.index_fill(0, i, 2.0)),
    ("index_fill", lambda x, i, s, f: x.transpose(0, 1).index_fill(-1, i, s[0, 0].detach())),
    ("index_reduce", lambda x, i, s, f: x.index_reduce(0, i, s, "amin")),
]
CLASSES: list[tuple[str, Run]] = [
    ("cross_entropy", lambda x, i, s, f: f.cross_entropy(s @ x.transpose(0, 1), i)),
    ("cross_entropy", lambda x, i, s, f: f.cross_entropy(s @ x.transpose(0, 1), i, x[:, 0].detach().exp(),
                                                         ignore_index=-6)),
    ("cross_entropy", lambda x, i, s, f: f.cross_entropy(s @ x.transpose(0, 1), i, ignore_index=-1,
                                                         label_smoothing=0.1)),
    ("nll_loss", lambda x, i, s, f: f.nll_loss(s @ x.transpose(0, 1), i)),
    ("nll_loss", lambda x, i, s, f: f.nll_loss(s @ x.transpose(0, 1), i, ignore_index=100, reduction="none")),
    ("one_hot", lambda x, i, s, f: f.one_hot(i, N) * x[:, 0]),
    ("multi_margin_loss", lambda x, i, s, f: f.multi_margin_loss(s @ x.transpose(0, 1), i)),
    ("multilabel_margin_loss", lambda x, i, s, f: f.multilabel_margin_loss(x[:, 0], i.reshape(-1, 1).expand(
        i.shape[0], N)[0])),
    ("max_unpool2d", lambda x, i, s, f: f.max_unpool1d(s[:1, :1], i[:1].reshape(1, 1), N)),
]
TABLE = READ + WRITTEN + CLASSES


def torch_run(run: Run, batch: list[int]) -> tuple[np.ndarray, ...] | None:
    """(the result, gradients by x and by the source) of PyTorch, None for what it refuses."""
    x, s = torch.tensor(X, requires_grad=True), torch.tensor(X[:len(batch)] * 2, requires_grad=True)
    try:
        y = run(x, torch.tensor(batch), s, theirs)
    except (IndexError, RuntimeError):
        return None
    (y * torch.arange(1, y.numel() + 1).reshape(y.shape)).sum().backward()
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in (x, s)]
    return (y.detach().numpy(), *[g.numpy() for g in grads])


def our_run(run: Run, batch: Any, dtype: str, device: str) -> tuple[np.ndarray, ...]:
    x = Tensor(X, device=device, requires_grad=True)
    index = Tensor(np.array(batch, dtype), device=device)
    s = Tensor(X[:len(batch)] * 2, device=device, requires_grad=True)
    y = run(x, index, s, ours)
    weights = Tensor(np.arange(1, np.prod(y.shape) + 1, dtype=np.float32).reshape(y.shape), device=device)
    (y * weights).sum().backward()
    grads = [np.zeros_like(t.numpy()) if t.grad is None else t.grad.numpy() for t in (x, s)]
    return y.numpy(), *grads


def accepted(run: Run) -> list[list[int]]:
    """The batches with the numbers that PyTorch takes."""
    return [[n for n in batch if torch_run(run, [n]) is not None] for batch in BATCHES]


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name, run", TABLE)
@one_in(5, CPU_DRIVERS)
def test_what_pytorch_accepts_means_the_same(name: str, run: Run, device: str) -> None:
    """With and without checks, in every type that holds the numbers: all of them on NUMPY, two elsewhere."""
    for batch in filter(None, accepted(run)):
        for dtype in TYPES if device == "NUMPY" else ("int8", "int64"):
            if dtype == "uint8" and min(batch) < 0:
                continue
            with config(check_indices=dtype in ("int8", "uint8")):
                for got, want in zip(our_run(run, batch, dtype, device), torch_run(run, batch), strict=True):
                    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=f"{batch} {dtype}")


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name, run", TABLE)
def test_what_pytorch_refuses_raises_under_check_indices(name: str, run: Run, device: str) -> None:
    """Naming the operation, the index and the length of the axis; a constant does without it."""
    for n in [n for batch in BATCHES for n in batch if torch_run(run, [n]) is None]:
        for dtype in TYPES[:4] if n < 0 else TYPES:
            with config(check_indices=True):
                refuses(name, n, lambda: our_run(run, [n], dtype, device))  # noqa: B023
        x, s = Tensor(X, device=device), Tensor(X[:1], device=device)
        refuses(name, n, lambda: run(x, Tensor.full((1,), n, device=device), s, ours))  # noqa: B023


def refuses(name: str, n: int, run: Callable[[], Any]) -> None:
    with pytest.raises(IndexError, match=f"for an axis of {N}, got {n}( at|$)") as caught:
        run()
    assert isinstance(caught.value, MinigradError) and str(caught.value).startswith(f"[{name}] expected indices in ")


# As lists and arrays: f(x [N, 3], index, rows [1, 3])
LISTED: list[tuple[str, Callable[[Tensor, Any, Tensor], Any]]] = [
    ("getitem", lambda x, i, s: x[i]), ("getitem", lambda x, i, s: x[i, 1:]),
    ("setitem", lambda x, i, s: written(x, i, 0)), ("setitem", lambda x, i, s: written(x, (i, 1), s[:, 0])),
    ("take", lambda x, i, s: x[:, 0].take(i)), ("put", lambda x, i, s: x[:, 0].put(i, s[:, 0])),
    ("index_put", lambda x, i, s: x.index_put((i,), s)), ("index_fill", lambda x, i, s: x.index_fill(0, i, 1)),
    ("gather", lambda x, i, s: x[:, 0].gather(0, i)), ("index_select", lambda x, i, s: x.index_select(0, i)),
    ("scatter", lambda x, i, s: x[:, 0].scatter(0, i, 1)), ("embedding", lambda x, i, s: x.embedding(i)),
    ("scatter_add", lambda x, i, s: x[:, 0].scatter_add(0, i, s[:, 0])),
    ("scatter_reduce", lambda x, i, s: x[:, 0].scatter_reduce(0, i, s[:, 0], "prod")),
    ("index_add", lambda x, i, s: x.index_add(0, i, s)), ("index_copy", lambda x, i, s: x.index_copy(0, i, s)),
    ("index_reduce", lambda x, i, s: x.index_reduce(0, i, s, "prod")),
    ("cross_entropy", lambda x, i, s: (s @ x.T).cross_entropy(i)), ("nll_loss", lambda x, i, s: (s @ x.T).nll_loss(i)),
    ("cross_entropy", lambda x, i, s: (s @ x.T).sparse_categorical_crossentropy(i, -100)),
    ("multi_margin_loss", lambda x, i, s: (s @ x.T).multi_margin_loss(i)),
    ("max_unpool2d", lambda x, i, s: s[:, :1].max_unpool2d(np.array(i).reshape(1, 1), (N,))),
    ("log_prob", lambda x, i, s: Categorical(logits=x[:, 0]).log_prob(i)),
]
FROM_THE_END = {"getitem", "setitem", "take", "put", "index_put", "index_fill"}


@pytest.mark.parametrize("name, run", LISTED)
def test_lists_and_arrays_are_looked_at_without_check_indices(name: str, run: Callable[..., Any]) -> None:
    with config(device="NUMPY"):
        x, s = Tensor(X), Tensor(X[:1])
        for n in (5, -6, -1, 4, -5):
            for index in ([n], np.array([n], np.int8), np.array([n])):
                if n == 4 or (n < 0 and name in FROM_THE_END and n > -6):
                    assert np.isfinite(run(x, index, s).numpy()).all()
                else:
                    refuses(name, n, lambda: run(x, index, s))  # noqa: B023


@pytest.mark.parametrize("device", devices())
def test_small_types_index_long_axes(device: str) -> None:
    """-1 of int8 is the last of 300, and 200 of uint8 is not cut to the largest int8."""
    numbers = np.arange(300, dtype=np.float32)
    x = Tensor(numbers, device=device)
    for dtype, n, want in (("int8", -1, 299), ("int16", -300, 0), ("uint8", 200, 200), ("uint16", 299, 299)):
        i = Tensor(np.array([n], dtype), device=device)
        assert x[i].item() == x.take(i).item() == x.take_along_dim(i, 0).item() == want
        pair = x.reshape(300, 1).expand(300, 2)[i, Tensor([-1], dtype="int8", device=device)]
        assert pair.item() == want
        for y in (x.index_fill(0, i, -7), x.put(i, Tensor([-7.0], device=device)), written(x, i, -7)):
            np.testing.assert_array_equal(y.numpy(), np.where(numbers == want, -7, numbers))


@pytest.mark.parametrize("device", devices())
def test_unchecked_indices_are_taken_for_the_nearest_in_range(device: str) -> None:
    """They touch no memory but the tensor's, in int64 beyond 32 bits too."""
    x = Tensor(X, device=device)
    far = np.array([5, -6, 1 << 40, -(1 << 40), (1 << 32) + 1, 2])
    near = np.clip(far, -N, N - 1)
    index, first = Tensor(far, device=device), np.clip(far, 0, N - 1)
    np.testing.assert_array_equal(x[index].numpy(), X[near])
    np.testing.assert_array_equal(x[:, 0].take(index).numpy(), X[near, 0])
    np.testing.assert_array_equal(x[index, index].numpy(), X[near, np.clip(far, -3, 2)])
    for got in (x.index_select(0, index), x.embedding(index), x.gather(0, wide(index))):
        np.testing.assert_array_equal(got.numpy(), X[first])
    want = X.copy()
    np.add.at(want, first, 1)
    np.testing.assert_allclose(x.index_add(0, index, Tensor.ones(6, 3, device=device)).numpy(), want, rtol=1e-6)


@needs_torch
def test_values_of_index_fill_and_fill_have_gradients() -> None:
    """Of `index_fill` PyTorch's own fails for negative indices."""
    weights = np.arange(1, 16, dtype=np.float32).reshape(N, 3)
    cases: list[Callable[[Any, Any, Any], Any]] = [
        lambda x, v, f: x.index_fill(0, f([1, 4]), v), lambda x, v, f: (x * 2).fill_(v),
        lambda x, v, f: (x * 2).index_fill_(1, f([0]), v * 3), lambda x, v, f: x.masked_fill(x > 0, v)]
    for device in devices():
        for run in cases:
            found = []
            for make in (torch.tensor, Tensor):
                with config(device=device):
                    x, v = make(X, requires_grad=True), make(2.5, requires_grad=True)
                    y = run(x, v, make)
                    (y * make(weights)).sum().backward()
                    found.append([y, x.grad, v.grad])
            for got, want in zip(found[1], found[0], strict=True):
                zero = np.zeros_like(X)
                np.testing.assert_allclose(zero if got is None else got.numpy(), zero if want is None else
                                           want.detach().numpy(), rtol=1e-6)
            assert found[1][2] is not None
    v = Tensor(2.0, requires_grad=True)
    Tensor(X).index_fill(0, Tensor([-1]), v).sum().backward()
    assert v.grad.item() == 3


# Python's integers: f(x [N, 3], rows [1, 3], index)
INTS: list[tuple[Callable[[Any, Any, int], Any], bool]] = [
    (lambda x, s, n: x[n], False), (lambda x, s, n: x[:, n], False), (lambda x, s, n: written(x, n, 0.0), False),
    (lambda x, s, n: x.select(0, n), False), (lambda x, s, n: x.select_scatter(s[0], 0, n), False),
    (lambda x, s, n: x.narrow(0, n, 1), False), (lambda x, s, n: x.narrow(1, n, 0), False),
    (lambda x, s, n: x.transpose(0, 1).select_scatter(s[0, :1].expand(3), -1, n), False),
    (lambda x, s, n: x.slice_scatter(x[:2] * 2, 0, n, n + 2), True),
    (lambda x, s, n: x.diagonal_scatter(s[0], n), True), (lambda x, s, n: x.diagonal(n), True),
]


@needs_torch
@pytest.mark.parametrize("run, shapes", INTS)
def test_integers_of_python(run: Callable[..., Any], shapes: bool) -> None:
    """`shapes`: PyTorch's error is one of shapes rather than of an index."""
    for n in range(-7, 8):
        x, s = torch.tensor(X), torch.tensor(X[:1] * 2)
        try:
            want = run(x, s, n)
        except (IndexError, RuntimeError):
            with pytest.raises(MinigradError if shapes else IndexError), config(device="NUMPY"):
                run(Tensor(X), Tensor(X[:1] * 2), n)
            continue
        with config(device="NUMPY"):
            np.testing.assert_array_equal(run(Tensor(X), Tensor(X[:1] * 2), n).numpy(), want.numpy())


# Axes: f(x [N, 3], axis), which raises an IndexError for axes -4, 3 and 7
AXES: list[Callable[[Any, int], Any]] = [
    lambda x, a: x.sum(a), lambda x, a: x.mean((0, a)), lambda x, a: x.softmax(a), lambda x, a: x.argmax(a),
    lambda x, a: x.max(dim=a), lambda x, a: x.var(dim=a), lambda x, a: x.cumsum(dim=a), lambda x, a: x.sort(a),
    lambda x, a: x.topk(1, a), lambda x, a: x.median(dim=a), lambda x, a: x.size(a), lambda x, a: x.stride(a),
    lambda x, a: x.transpose(0, a), lambda x, a: x.permute(0, a), lambda x, a: x.squeeze(a), lambda x, a: x.roll(1, a),
    lambda x, a: x.unsqueeze(a), lambda x, a: x.flatten(0, a), lambda x, a: x.unflatten(a, (1, -1)),
    lambda x, a: x.flip(a), lambda x, a: x.movedim(0, a), lambda x, a: x.unbind(a), lambda x, a: x.split(1, a),
    lambda x, a: x.chunk(2, a), lambda x, a: x.tensor_split(2, a), lambda x, a: x.narrow(a, 0, 1),
    lambda x, a: x.select(a, 0), lambda x, a: x.diff(dim=a), lambda x, a: x.unfold(a, 1, 1),
    lambda x, a: x.diagonal(0, 0, a), lambda x, a: x.rot90(1, (0, a)), lambda x, a: x.repeat_interleave(2, a),
    lambda x, a: x.gather(a, x.int()), lambda x, a: x.scatter(a, x.int(), 1.0), lambda x, a: x.index_select(a, x.int()),
    lambda x, a: x.index_fill(a, x[0].int(), 1.0), lambda x, a: x.index_add(a, x[0].int(), x),
    lambda x, a: x.take_along_dim(x.int(), a), lambda x, a: x.logsumexp(a), lambda x, a: x.glu(a),
    lambda x, a: x.select_scatter(x, a, 0), lambda x, a: x.slice_scatter(x, a), lambda x, a: x.quantile(0.5, a),
    lambda x, a: x.unique(dim=a), lambda x, a: x.unique_consecutive(dim=a), lambda x, a: x.norm(dim=a),
    lambda x, a: type(x).cat((x, x), a), lambda x, a: type(x).stack((x, x), a), lambda x, a: x.swapaxes(0, a),
    lambda x, a: x.all(a), lambda x, a: x.prod(a), lambda x, a: x.mode(a), lambda x, a: x.kthvalue(1, a),
    lambda x, a: x.logcumsumexp(a), lambda x, a: x.cummax(a), lambda x, a: x.renorm(2, a, 1.0),
    lambda x, a: x.count_nonzero(a), lambda x, a: x.std_mean(a), lambda x, a: x.tensordot(x, ([a], [0])),
    lambda x, a: nn.Softmax(a)(x), lambda x, a: nn.Flatten(0, a)(x), lambda x, a: nn.CosineSimilarity(a)(x, x),
]


@pytest.mark.parametrize("run", AXES)
def test_an_axis_out_of_range_is_an_index_error(run: Callable[[Tensor, int], Any]) -> None:
    for a in (-4, 3, 7):
        with pytest.raises(IndexError, match=r"^\[\w+\] expected (an axis|distinct axes) in ") as caught:
            run(Tensor(X), a)
        assert isinstance(caught.value, MinigradError)


def test_what_else_is_an_index_error() -> None:
    x, mask = Tensor(X), Tensor([True, False])
    for run in (lambda: x[0, 0, 0], lambda: x[mask], lambda: x[..., 0, 0, 0], lambda: Tensor(1.0).size(0),
                lambda: nn.Embedding(3, 2, padding_idx=3), lambda: ours.embedding(Tensor([0]), x, padding_idx=-6),
                lambda: Tensor([-1]).bincount(), lambda: Tensor([-1]).one_hot(), lambda: Tensor(1.0)[0]):
        with pytest.raises(IndexError) as caught:
            run()
        assert isinstance(caught.value, MinigradError)
    assert [row.item() for row in Tensor([1, 2])] == [1, 2]  # iteration does not rely on IndexError


@pytest.mark.parametrize("device", devices())
def test_sequences_of_labels_and_bags_are_checked(device: str) -> None:
    """Labels beyond a target's length, and rows with `ignore_index`, count for nothing."""
    with config(device=device, check_indices=True):
        logs = Tensor.zeros(4, 2, 3).log_softmax(-1)
        lengths = Tensor([4, 4])
        assert np.isfinite(logs.ctc_loss(Tensor([[1, 2], [1, -1]]), lengths, Tensor([2, 1])).item())
        for wrong in (-1, 3):
            with pytest.raises(IndexError, match=rf"\[ctc_loss\] .*got {wrong} at \[1, 1\]"):
                logs.ctc_loss(Tensor([[1, 2], [1, wrong]]), lengths, Tensor([2, 2]))
        with pytest.raises(IndexError, match=r"\[embedding_bag\] .*got 3 at \[1\]"):
            nn.EmbeddingBag(3, 2)(Tensor([0, 3]), Tensor([0]))
        with pytest.raises(IndexError, match=r"\[embedding_bag\] .*for an axis of 3, got 9 at \[1\]"):
            nn.EmbeddingBag(3, 2)(Tensor([0, 1]), Tensor([0, 9]))
        with pytest.raises(IndexError, match=r"\[embedding\] .*got 7 at \[0, 1\]"):
            nn.Embedding(3, 2)(Tensor([[0, 7]]))
        assert np.isfinite(nn.CrossEntropyLoss()(Tensor(X), Tensor([0, -100, 2, 1, 0])).item())
        with pytest.raises(IndexError, match=r"\[cross_entropy\] .*got -99 at \[1\]"):
            nn.CrossEntropyLoss()(Tensor(X), Tensor([0, -99, 2, 1, 0]))
        with pytest.raises(IndexError, match=r"\[masked_scatter\] .*for an axis of 2, got 2 at \[2\]"):
            Tensor.zeros(3).masked_scatter(Tensor([True, True, True]), Tensor([1.0, 2.0]))
        with pytest.raises(IndexError, match=r"\[repeat_interleave\] "):
            Tensor([1.0, 2.0]).repeat_interleave(Tensor([1, 1]), output_size=3)


def test_functions_under_jit_run_eagerly_while_indices_are_checked() -> None:
    table = Tensor(X)
    step = jit(lambda i: table.embedding(i) * 2)
    good, bad = Tensor([0, 4]).realize(), Tensor([0, 5]).realize()
    for _ in range(3):
        step(good)
    np.testing.assert_array_equal(step(bad).numpy(), X[[0, 4]] * 2)
    captures = step.captures
    with config(check_indices=True):
        for _ in range(2):
            np.testing.assert_array_equal(step(good).numpy(), X[[0, 4]] * 2)
            with pytest.raises(IndexError, match=r"\[embedding\] expected indices in 0..4 for an axis of 5, got 5"):
                step(bad)
    assert step.captures == captures

    @jit
    def inside(i: Tensor) -> Tensor:
        with config(check_indices=True):
            return table.embedding(i)

    with pytest.raises(CaptureError, match="expected check_indices to be set where the function under jit is called"):
        inside(good)
    with pytest.raises(ConfigError):
        config(check_indices=1)


def test_lengths_that_are_symbolic_are_those_of_the_present_value() -> None:
    from minigrad import Variable

    x = Tensor(np.arange(8, dtype=np.float32))
    part = x[:Variable("n", 1, 8).bind(3)]
    with config(check_indices=True):
        assert part.gather(0, Tensor([2])).item() == 2
        with pytest.raises(IndexError, match="for an axis of 3, got 3"):
            part.gather(0, Tensor([3]))
