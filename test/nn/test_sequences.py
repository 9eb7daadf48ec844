"""Sequences of unequal lengths through recurrent layers, and layers whose weights are computed, against torch."""
# mypy: disable-error-code="arg-type,attr-defined,union-attr"
from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, Variable, jit, nn
from minigrad.errors import MinigradError, ShapeError

torch = pytest.importorskip("torch", reason="torch is the second opinion here")
X = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(np.float32)
LENGTHS = [3, 5, 1, 5]


pytestmark = pytest.mark.usefixtures("on_cpu")


def as_there(model: Any, theirs: Any) -> Any:
    """`model` with the weights of torch's."""
    model.load_state_dict({k: Tensor(t.detach().numpy()) for k, t in theirs.state_dict().items()})
    return model


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_end_where_sequences_do(kind: str) -> None:
    """Outputs, last states and gradients, though there is no number behind the ends; captured too."""
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    theirs = getattr(torch.nn, kind)(3, 4, **options)
    ours = as_there(getattr(nn, kind)(3, 4, **options), theirs)
    values = X.copy()
    for k, n in enumerate(LENGTHS):
        values[k, n:] = np.nan

    def run(rnn: Any, model: Any, x: Any) -> Any:
        packed = rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
        output, state = model(packed)
        padded, _lengths = rnn.pad_packed_sequence(output, batch_first=True, padding_value=0.5, total_length=6)
        states = state if isinstance(state, tuple) else (state,)
        sum([(s * s).sum() for s in (padded, *states)]).backward()
        return padded, *states, x.grad, *[p.grad for p in model.parameters()]

    x = torch.tensor(values, requires_grad=True)
    wanted = [t.detach().numpy() for t in run(torch.nn.utils.rnn, theirs, x)]
    for captured in (False, True):
        def found(x: Tensor) -> Any:
            ours.zero_grad()
            return run(nn.utils.rnn, ours, x)

        f = jit(found) if captured else found
        for _ in range(3):
            results = f(Tensor(values, requires_grad=True))
        for mine, other in zip(results, wanted, strict=True):
            np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_lengths_may_be_symbolic(kind: str) -> None:
    """States and gradients are torch's, and all lengths run one plan."""
    theirs = getattr(torch.nn, kind)(3, 5, bidirectional=True, batch_first=True)
    ours, n, traced = as_there(getattr(nn, kind)(3, 5, bidirectional=True, batch_first=True), theirs), \
        Variable("n", 1, 6), list[int]()

    @jit
    def run(x: Tensor) -> Any:
        traced.append(1)
        steps, last = ours(x)
        last = last[0] if kind == "LSTM" else last
        return steps, last, last.square().sum().gradient(ours.weight_hh_l0, ours.weight_ih_l0_reverse, ours.bias_hh_l0)

    for length in (2, 6, 1, 3, 4, 5):
        steps, last, slopes = run(Tensor(X)[:, :n.bind(length)])
        there, state = theirs(torch.tensor(X[:, :length]))
        state = state[0] if kind == "LSTM" else state
        theirs.zero_grad()
        state.square().sum().backward()
        np.testing.assert_allclose(steps.numpy()[:, :length], there.detach().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last.numpy(), state.detach().numpy(), rtol=1e-4, atol=1e-5)
        for found, weight in zip(slopes, ("weight_hh_l0", "weight_ih_l0_reverse", "bias_hh_l0"), strict=True):
            np.testing.assert_allclose(found.numpy(), getattr(theirs, weight).grad.numpy(), rtol=1e-3, atol=1e-5)
    assert len(traced) <= 3


def test_forms_of_sequences() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(Tensor(X), Tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    theirs = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(X), torch.tensor(LENGTHS), batch_first=True,
                                                     enforce_sorted=False)
    assert np.array_equal(packed.data.numpy(), theirs.data.numpy())
    assert packed.batch_sizes == theirs.batch_sizes.tolist()
    padded, lengths = nn.utils.rnn.pad_packed_sequence(packed)
    assert padded.shape == (5, 4, 3) and lengths.tolist() == LENGTHS
    parts = nn.utils.rnn.unpad_sequence(padded, lengths)
    again = nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)
    assert np.array_equal(again.data.numpy(), packed.data.numpy())
    for run, message in (
            (lambda: nn.utils.rnn.pack_padded_sequence(Tensor(X), LENGTHS, True), "lengths in decreasing order"),
            (lambda: nn.utils.rnn.pack_padded_sequence(Tensor(X), [7, 1, 1, 1], True), "lengths of at most 6, got 7"),
            (lambda: nn.utils.rnn.pack_padded_sequence(Tensor(X), [6, 6], True), "a length for each of 4 sequences"),
            (lambda: nn.utils.rnn.pad_packed_sequence(packed, total_length=4), "a total_length of at least 5, got 4")):
        with pytest.raises(ShapeError, match=message):
            run()


@pytest.mark.filterwarnings("ignore")
def test_weights_over_their_norms() -> None:
    """Three steps of training and one of inference, eager and captured; a copy, and back to plain parameters."""
    def model(n: Any) -> Any:
        return n.Sequential(n.utils.spectral_norm(n.Conv1d(3, 4, 3)), n.Tanh(),
                            n.utils.weight_norm(n.ConvTranspose1d(4, 5, 2), dim=1), n.Tanh(),
                            n.utils.spectral_norm(n.ConvTranspose1d(5, 2, 2), n_power_iterations=2),
                            n.utils.weight_norm(n.Linear(6, 3), dim=None))

    theirs = model(torch.nn)
    start = copy.deepcopy(theirs.state_dict())
    x = X.transpose(0, 2, 1).copy()

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    theirs.train()
    other = torch.optim.SGD(theirs.parameters(), lr=0.5)
    wanted = [step(theirs, other, torch.tensor(x)).item() for _ in range(4)]
    for captured in (False, True):
        ours = model(nn)
        assert set(ours.state_dict()) == set(start)
        ours.load_state_dict({k: Tensor(t.numpy()) for k, t in start.items()})
        ours.train()
        optimizer = nn.optim.SGD(ours.parameters(), lr=0.5)
        eager: Any = functools.partial(step, ours, optimizer)
        run = jit(eager) if captured else eager
        np.testing.assert_allclose([run(Tensor(x)).item() for _ in range(4)], wanted, rtol=1e-5)
        for k, t in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[k].numpy(), t.numpy(), rtol=1e-4, atol=1e-5, err_msg=k)
    y = ours.eval()(Tensor(x)).numpy()
    np.testing.assert_allclose(y, theirs.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    plain = copy.deepcopy(ours)
    nn.utils.remove_spectral_norm(plain[0]), nn.utils.remove_weight_norm(plain[2])
    np.testing.assert_allclose(plain(Tensor(x)).numpy(), y, rtol=1e-5, atol=1e-6)
    assert type(plain[0]) is nn.Conv1d and list(plain[0].state_dict()) == ["bias", "weight"]
    assert [n for n, _ in ours[0].named_buffers()] == ["weight_u", "weight_v"] and isinstance(ours[0], nn.Conv1d)
    with pytest.raises(MinigradError, match=r"\[weight_norm\] expected a layer with a Tensor 'weight', got Tanh"):
        nn.utils.weight_norm(nn.Tanh())
    with pytest.raises(MinigradError, match=r"\[remove_weight_norm\] expected a layer whose 'weight' is computed"):
        nn.utils.remove_weight_norm(nn.Linear(2, 2))
