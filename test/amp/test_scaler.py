"""`GradScaler`: scales, skipped steps and state, eager and captured, beside PyTorch's."""
import numpy as np
import pytest

import minigrad
from minigrad import Tensor, jit, nn
from minigrad.amp import GradScaler
from minigrad.errors import DTypeError, MinigradError

RANDOM = np.random.default_rng(3)


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    made = [(RANDOM.standard_normal((4, 6)).astype(np.float32), RANDOM.integers(0, 3, 4)) for _ in range(8)]
    for bad in (3, 4):
        made[bad][0][0, 0] = np.inf
    return made


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_and_scales_are_those_of_torch(captured, momentum):
    torch = pytest.importorskip("torch", reason="needs torch to compare with")
    theirs = torch.nn.Linear(6, 3)
    ours = nn.Linear(6, 3)
    ours.weight.assign(theirs.weight.detach().numpy())
    ours.bias.assign(theirs.bias.detach().numpy())
    optimizer = nn.optim.SGD([ours.weight, ours.bias], lr=0.1, momentum=momentum)
    peer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum)
    settings = {"init_scale": 1024.0, "growth_interval": 2}
    scaler, beside = GradScaler("cpu", **settings), torch.amp.GradScaler("cpu", **settings)

    def step(x, y):
        optimizer.zero_grad()
        loss = ours(x).cross_entropy(y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run = jit(step) if captured else step
    for x, y in batches():
        run(Tensor(x), Tensor(y))
        peer.zero_grad()
        beside.scale(torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))).backward()
        beside.step(peer)
        beside.update()
        assert scaler.state_dict() == beside.state_dict()
        np.testing.assert_allclose(ours.weight.numpy(), theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert not captured or run.replays > 4


def test_a_skipped_step_leaves_all_state_of_adam():
    weight = Tensor.randn(5, requires_grad=True)
    optimizer, scaler = nn.optim.Adam([weight], lr=0.1), GradScaler()
    for bad in (False, True, False):
        before = [t.numpy() for t in (weight, *optimizer.means, *optimizer.variances, *optimizer.times)]
        optimizer.zero_grad()
        scaler.scale((weight * (float("nan") if bad else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        after = [t.numpy() for t in (weight, *optimizer.means, *optimizer.variances, *optimizer.times)]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)) == bad
    assert optimizer.times[0].item() == 2


def test_gradients_can_be_clipped_after_unscale():
    weight = Tensor.ones(4, requires_grad=True)
    optimizer, scaler = nn.optim.SGD([weight], lr=1.0), GradScaler(init_scale=2.0**20)
    scaler.scale((weight * 10).sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_allclose(weight.numpy(), np.full(4, 0.5), rtol=1e-5)


def test_running_statistics_move_in_a_skipped_step():
    norm = nn.BatchNorm(3)
    optimizer, scaler = nn.optim.SGD([norm.weight, norm.bias], lr=0.1), GradScaler()
    with Tensor.train():
        loss = norm(Tensor.randn(4, 3)).sum() * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    assert (norm.running_mean.numpy() != 0).all() and (norm.weight.numpy() == 1).all()


def test_two_optimizers_are_skipped_apart():
    a, b = (Tensor.ones(2, requires_grad=True) for _ in range(2))
    first, second, scaler = nn.optim.SGD([a], lr=0.5), nn.optim.SGD([b], lr=0.5), GradScaler()
    scaler.scale((a * float("inf") + b).sum()).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert a.numpy().tolist() == [1, 1] and b.numpy().tolist() == [0.5, 0.5] and scaler.get_scale() == 2.0**15


def test_state_goes_on():
    scaler, other = GradScaler(init_scale=8.0, growth_interval=5), GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(MinigradError, match="expected _growth_tracker, backoff_factor"):
        other.load_state_dict({"scale": 1.0, "growth_factor": 2.0})


def test_errors():
    weight = Tensor.ones(2, requires_grad=True)
    optimizer, scaler = nn.optim.SGD([weight], lr=0.5), GradScaler()
    with pytest.raises(MinigradError, match="expected step\\(\\) or unscale_\\(\\) before"):
        scaler.update()
    with pytest.raises(MinigradError, match="expected an optimizer with gradients, got none"):
        scaler.step(optimizer)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(MinigradError, match="expected one call since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(MinigradError, match="expected one step since the last update"):
        scaler.step(optimizer)
    half = Tensor.ones(2, dtype="float16", requires_grad=True)
    half.sum().backward()
    with pytest.raises(DTypeError, match="keep the parameters in float32"):
        GradScaler().unscale_(nn.optim.SGD([half], lr=0.5))
    with pytest.raises(MinigradError, match="expected init_scale above 0"):
        GradScaler(growth_factor=1.0)


def test_it_may_do_nothing():
    weight = Tensor.ones(2, requires_grad=True)
    optimizer = nn.optim.SGD([weight], lr=0.5)
    with pytest.warns(UserWarning, match="no device 'cuda' here"):
        scaler = minigrad.cuda.amp.GradScaler()
    loss = weight.sum()
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.numpy().tolist() == [0.5, 0.5]
