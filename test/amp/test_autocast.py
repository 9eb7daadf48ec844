"""`autocast` beside PyTorch's on a CPU: types of results, gradients, captures."""
import numpy as np
import pytest

import minigrad
from minigrad import Tensor, amp, autograd, jit, nn
from minigrad.dtype import bfloat16, float16, float32, float64
from minigrad.errors import DeviceError, DTypeError

RANDOM = np.random.default_rng(7)
OPERATIONS = [
    ("matmul", lambda F, x, w, y: x @ w),
    ("linear", lambda F, x, w, y: F.linear(x, w.T)),
    ("addition", lambda F, x, w, y: x @ w + y),
    ("softmax", lambda F, x, w, y: (x @ w).softmax(-1)),
    ("relu", lambda F, x, w, y: (x @ w).relu()),
    ("layer_norm", lambda F, x, w, y: F.layer_norm(x @ w, (5,), y[0], y[0])),
    ("mse_loss", lambda F, x, w, y: F.mse_loss(x @ w, y)),
    ("l1_loss", lambda F, x, w, y: F.l1_loss(x @ w, y)),
    ("smooth_l1_loss", lambda F, x, w, y: F.smooth_l1_loss(x @ w, y)),
    ("binary_cross_entropy_with_logits", lambda F, x, w, y: F.binary_cross_entropy_with_logits(x @ w, y.sigmoid())),
    ("prod", lambda F, x, w, y: (x @ w).prod()),
    ("sum", lambda F, x, w, y: (x @ w).sum()),
    ("attention", lambda F, x, w, y: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])),
    ("conv2d", lambda F, x, w, y: F.conv2d(x[None, None], w[None, None])),
    ("conv1d", lambda F, x, w, y: F.conv1d(x[None], w.T[:, :, None][:, :3], None)),
    ("prelu", lambda F, x, w, y: F.prelu(x, y[0, :1])),
]


def arrays() -> list[np.ndarray]:
    return [RANDOM.standard_normal(s).astype(np.float32) for s in ((3, 4), (4, 5), (3, 5))]


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name,run", OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_types_and_values_are_those_of_torch(name, run, half):
    torch = pytest.importorskip("torch", reason="needs torch to compare with")
    x, w, y = arrays()
    w = w if name not in ("conv2d", "conv1d") else w[:2, :3] if name == "conv2d" else np.tile(w, (1, 1))[:3]
    if name == "conv1d":
        x = x[:3]
    ours = [Tensor(a, requires_grad=True) for a in (x, w, y)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, w, y)]
    with minigrad.autocast("cpu", dtype=half):
        got = run(nn.functional, *ours)
    with torch.autocast("cpu", dtype=getattr(torch, half)):
        expected = run(torch.nn.functional, *theirs)
    assert str(expected.dtype) == f"torch.{got.dtype}"
    np.testing.assert_allclose(got.float().numpy(), expected.detach().float().numpy(), rtol=3e-2, atol=3e-2)
    got.float().sum().backward()
    expected.float().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            assert a.grad.dtype is float32
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=6e-2, atol=6e-2)


def test_contexts_nest_and_decorate():
    x = Tensor.randn(4, 4)
    with amp.autocast():
        assert (x @ x).dtype is bfloat16 and amp.is_autocast_enabled() and amp.get_autocast_dtype() is bfloat16
        with amp.autocast(dtype=float16):
            assert (x @ x).dtype is float16
        with amp.autocast(enabled=False):
            assert (x @ x).dtype is float32 and not amp.is_autocast_enabled("cpu")
        assert (x @ x).dtype is bfloat16
    assert (x @ x).dtype is float32

    @amp.autocast(dtype="float16")
    def product(a):
        return a @ a

    assert product(x).dtype is float16 and product(x).dtype is float16 and (x @ x).dtype is float32


def test_float64_and_integers_stay():
    x = Tensor.randn(3, 3, dtype=float64)
    with minigrad.autocast():
        assert (x @ x).dtype is float64
        assert (Tensor.ones(3, 3, dtype="int32") @ Tensor.ones(3, 3, dtype="int32")).dtype.is_int
        assert minigrad.cat([x.float() @ x.float(), x.float()]).dtype is float32


def test_a_layer_is_another_inside():
    layer, x = nn.Linear(4, 3), Tensor.randn(2, 4)
    for _ in range(2):
        assert layer(x).dtype is float32
        with minigrad.autocast():
            assert layer(x).dtype is bfloat16


def test_norms_keep_a_half_type_and_their_statistics_do_not():
    norm, x = nn.BatchNorm2d(3), Tensor.randn(4, 3, 5, 5) + 100
    with Tensor.train():
        assert norm(x.bfloat16()).dtype is bfloat16
    mean = x.bfloat16().float().numpy().mean((0, 2, 3))
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.1 * mean, rtol=1e-6)
    assert norm(x.bfloat16()).dtype is bfloat16
    assert nn.GroupNorm(1, 3)(x.half()).dtype is float16


def test_a_capture_knows_the_context():
    layer = nn.Linear(8, 8)
    step = jit(lambda x: layer(x))
    x = Tensor.randn(2, 8).realize()
    for _ in range(3):
        assert step(x).dtype is float32
        with minigrad.autocast():
            assert step(x).dtype is bfloat16
    assert step.captures == 2 and step.replays == 4


def test_custom_functions_see_the_context_of_their_forward():
    seen = []

    class Product(autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type="cpu")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @amp.custom_bwd(device_type="cpu")
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            seen.append((gradient @ b.T).dtype)
            return gradient.float() @ b.T, a.T @ gradient.float()

    class Wide(autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type="cpu", cast_inputs=float32)
        def forward(ctx, a):
            seen.append((a @ a).dtype)
            return a * 2

        @staticmethod
        @amp.custom_bwd(device_type="cpu")
        def backward(ctx, gradient):
            return gradient * 2

    a, b = (Tensor.randn(4, 4, requires_grad=True) for _ in range(2))
    with amp.autocast():
        y = Product.apply(a, b)
        wide = Wide.apply(a @ b)
    assert y.dtype is bfloat16 and wide.dtype is float32
    y.float().sum().backward()
    assert seen == [float32, bfloat16] and a.grad.dtype is float32


def test_errors_and_devices_that_are_none_here():
    with pytest.raises(DTypeError, match="expected bfloat16 or float16, got float64"):
        amp.autocast(dtype=float64)
    with pytest.raises(DeviceError, match="expected a device type such as 'cpu'"):
        amp.autocast("tpu9")
    with pytest.warns(UserWarning, match="no device type 'cuda' here"), minigrad.cuda.amp.autocast():
        assert (Tensor.randn(2, 2) @ Tensor.randn(2, 2)).dtype is float32
    assert not amp.is_autocast_available("cuda") and amp.is_autocast_available("cpu")
