"""What has made captured functions silently wrong elsewhere. In every case a replay equals eager execution bit for bit.

`same(make, calls)` makes the function and its state twice, runs the calls once with `jit` off and once captured, and
compares everything that is returned and everything that `state` holds after each call.
"""
import copy
import functools
import gc
import pickle
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, Variable, config, jit, nn, ownership
from minigrad.capture.arguments import tensors_in
from minigrad.errors import MinigradError
from minigrad.optim import SGD

rng = np.random.default_rng(5)


@pytest.fixture(params=["counted", "not counted"], autouse=True)
def references(request, monkeypatch):
    """Everything holds where references cannot be counted too."""
    if request.param == "not counted":
        monkeypatch.setattr(ownership, "_own", None)


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor((rng.standard_normal(shape) * 4).astype(dtype), device="CPU").realize()


def copy_of(t: Tensor) -> Tensor:
    return Tensor(t.numpy(), dtype=t.dtype, device=t.device).realize()


def same(make: Callable[[], tuple[Any, list[Tensor]]], calls: list[tuple]) -> Any:
    """`make()` gives a jitted function and the Tensors of its state, the same at every time. Returns the function."""
    runs: list[list[bytes]] = []
    for captured in (False, True):
        minigrad.manual_seed(11)
        f, state = make()
        seen: list[bytes] = []
        with config(jit=captured):
            for arguments in calls:
                fresh = tuple(copy_of(a) if isinstance(a, Tensor) else a for a in arguments)
                found = f(*fresh)
                grads = [t.grad for t in state if t.grad is not None]
                seen += [t.numpy().tobytes() for t in (*tensors_in(found), *state, *grads, *tensors_in(fresh))]
                del found, fresh, grads
        runs.append(seen)
    assert runs[0] == runs[1]
    return f


def test_shapes_change() -> None:
    """Another shape is another capture, and the first one is still good afterwards."""
    f = same(lambda: (jit(lambda x: (x * 2).sum(axis=0)), []),
             [(tensor(3, 4),), (tensor(3, 4),), (tensor(5, 4),), (tensor(3, 4),), (tensor(5, 4),)])
    assert f.captures == 2


def test_dtypes_change() -> None:
    """An int32 argument after a float32 one of the same shape."""
    f = same(lambda: (jit(lambda x: x // 3 + x), []),
             [(tensor(6),), (tensor(6, dtype="int32"),), (tensor(6),), (tensor(6, dtype="int32"),)])
    assert f.captures == 2


def test_devices_change() -> None:
    """The same function on two devices. NUMPY has no plans, so that it runs there eagerly."""
    f = jit(lambda x: (x + 1).exp())
    for _ in range(2):
        for device in ("CPU", "NUMPY"):
            x = Tensor([0.0, 1.0], device=device)
            np.testing.assert_allclose(f(x).numpy(), np.exp([1.0, 2.0]), rtol=1e-6)
            assert f(x).device == device


def test_python_scalars_change() -> None:
    """A number is a static value: each one is a capture, 2 and 2.0 and True are different ones."""
    f = same(lambda: (jit(lambda x, k: x * k), []),
             [(tensor(5), k) for k in (2, 3, 2, 2.0, True, 3)])
    assert f.captures == 4


def test_two_captures_of_one_function() -> None:
    """Two `jit`s of one Python function share nothing but the function."""
    def body(x: Tensor, w: Tensor) -> Tensor:
        return w.assign(w + x) * 1

    one, two = jit(body), jit(body)
    v, w = tensor(4), tensor(4)
    before = v.numpy(), w.numpy()
    for k in range(3):
        a, b = one(Tensor.full((4,), 1.0), v).numpy(), two(Tensor.full((4,), 10.0), w).numpy()
        np.testing.assert_allclose(a, before[0] + (k + 1), rtol=1e-6)
        np.testing.assert_allclose(b, before[1] + 10 * (k + 1), rtol=1e-6)
    assert one.replays and two.replays


def test_nested_capture() -> None:
    """A captured function called in another one is part of that capture."""
    def make() -> tuple[Any, list[Tensor]]:
        inner = jit(lambda x: x.exp() - 1)
        return jit(lambda x: inner(x) + inner(x * 2)), []

    assert same(make, [(tensor(7),)] * 3).captures == 1


def test_the_input_is_returned() -> None:
    """The very Tensor, not a copy of what it held at capture."""
    f = jit(lambda x: x)
    for _ in range(3):
        x = tensor(4)
        assert f(x) is x


def test_a_view_of_the_input_is_returned() -> None:
    """A view has the new input's values, also after the input was overwritten."""
    same(lambda: (jit(lambda x: x.reshape(2, 6)[1]), []), [(tensor(3, 4),) for _ in range(3)])
    f = jit(lambda x: x.transpose(0, 1))
    for _ in range(3):
        x = tensor(2, 3)
        before = x.numpy()
        view = f(x)
        x.assign(x * 0).realize()
        assert view.numpy().tobytes() == np.ascontiguousarray(before.T).tobytes()


def test_the_same_tensor_is_returned_twice() -> None:
    """It is one Tensor at every replay too."""
    f = jit(lambda x: (lambda y: (y, [y]))(x + 1))
    for _ in range(3):
        y, (z,) = f(tensor(3))
        assert y is z


def test_an_input_is_assigned() -> None:
    """The caller's Tensor changes at every call; no other argument of an earlier call does."""
    def body(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + y)
        return x * 2

    same(lambda: (jit(body), []), [(tensor(5), tensor(5)) for _ in range(4)])


def test_a_slice_is_assigned_in_a_loop() -> None:
    """Rows of one buffer, one after the other, each computed from the one before."""
    def make() -> tuple[Any, list[Tensor]]:
        table = Tensor.zeros(6, 4).contiguous().realize()

        def body(x: Tensor) -> Tensor:
            table[0] = x
            for k in range(1, 6):
                table[k] = table[k - 1] * 0.5 + x
            return table.sum(axis=1)

        return jit(body), [table]

    same(make, [(tensor(4),) for _ in range(4)])


def test_a_buffer_is_read_before_and_after_it_is_assigned() -> None:
    """The old value and the new one, each where it was meant."""
    def make() -> tuple[Any, list[Tensor]]:
        w = Tensor([1.0, 2.0, 3.0]).realize()

        def body(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            before = w + x
            w.assign(w * 2)
            between = w - x
            w.assign(between + before)
            return before, between, w + 0

        return jit(body), [w]

    same(make, [(tensor(3),) for _ in range(4)])


@pytest.mark.parametrize("calls_per_step", [1, 2, 3])
def test_gradients_accumulate_across_calls(calls_per_step: int) -> None:
    """backward adds to what is there, and starts anew after zero_grad."""
    def make() -> tuple[Any, list[Tensor]]:
        w = Tensor(np.arange(6, dtype=np.float32).reshape(3, 2), requires_grad=True).realize()
        optimizer = SGD([w], lr=0.25, momentum=0.5)

        @jit
        def accumulate(x: Tensor) -> Tensor:
            loss = (x @ w).square().mean()
            loss.backward()
            return loss.realize()

        @jit
        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        count = [0]

        def call(x: Tensor) -> Tensor:
            loss = accumulate(x)
            count[0] += 1
            if count[0] % calls_per_step == 0:
                update()
            return loss

        return call, [w, *optimizer.buffers]

    same(make, [(tensor(4, 3),) for _ in range(7)])


def test_random_numbers_advance() -> None:
    """Each replay draws new numbers, the same ones that eager execution would draw."""
    def make() -> tuple[Any, list[Tensor]]:
        return jit(lambda x: (x + Tensor.rand(50), Tensor.randn(3) * x[0])), []

    f = same(make, [(tensor(50),)] * 4)
    a, b = f(Tensor.zeros(50).contiguous())[0].numpy(), f(Tensor.zeros(50).contiguous())[0].numpy()
    assert (a != b).any()


def test_an_exception_during_capture() -> None:
    """The failing call leaves no capture behind, and no half-done state: the next call captures as if it were first."""
    def make() -> tuple[Any, list[Tensor]]:
        w = Tensor([1.0, 1.0]).realize()
        fail = [True]

        def body(x: Tensor) -> Tensor:
            w.assign(w + x)
            if fail[0]:
                fail[0] = False
                raise ValueError("on purpose")
            return w * 3

        f = jit(body)

        def call(x: Tensor) -> Tensor:
            try:
                return f(x)
            except ValueError:
                return x

        return call, [w]

    same(make, [(tensor(2),) for _ in range(4)])


def test_a_freed_input() -> None:
    """The arguments of the capture are gone, their memory is somebody else's by now."""
    f = jit(lambda x, y: x * y + y)
    for k in range(5):
        x, y = tensor(1000), tensor(1000)
        expected = (x * y + y).numpy()
        assert f(x, y).numpy().tobytes() == expected.tobytes()
        del x, y
        gc.collect()
        others = [Tensor.full((1000,), float(k)).contiguous().realize() for _ in range(4)]
        assert all((o.numpy() == k).all() for o in others)
    assert f.captures == 1 and f.replays == 4


def test_a_freed_tensor_of_the_surroundings() -> None:
    """A Tensor that the function read by a name, exchanged for another one: never the old memory."""
    scale = [tensor(4)]

    @jit
    def f(x: Tensor) -> Tensor:
        return x * scale[0]

    for _ in range(4):
        scale[0] = tensor(4)
        gc.collect()
        x = tensor(4)
        assert f(x).numpy().tobytes() == (x * scale[0]).numpy().tobytes()


def test_a_symbolic_length_from_one_to_its_bound() -> None:
    """One capture serves every length of a Variable, its ends included; those at length 1 keep their own plan."""
    whole = tensor(12, 3)

    def make() -> tuple[Any, list[Tensor]]:
        def body(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
            part = x[:n]
            return part.sum(axis=0), (part * 2).exp().sum()

        return jit(body), []

    f = same(make, [(whole, Variable("n", 1, 12).bind(n)) for n in (1, 2, 5, 12, 11, 1, 12)])
    assert f.captures == 1


def test_threads_call_one_captured_function() -> None:
    """Many threads, each with its own arguments: each gets the result of its own."""
    w = tensor(32, 32)
    f = jit(lambda x: (x @ w).softmax())
    inputs = [tensor(8, 32) for _ in range(8)]
    expected = [(x @ w).softmax().numpy().tobytes() for x in inputs]
    f(inputs[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(10):
            if f(inputs[k]).numpy().tobytes() != expected[k]:
                wrong.append(k)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not wrong


def test_threads_have_functions_and_states_of_their_own() -> None:
    """While one thread captures, which looks at all Tensors, the others go on."""
    wrong: list[Any] = []

    def work(k: int) -> None:
        w = Tensor(np.full(8, k, np.float32), device="CPU").realize()
        f = jit(lambda x: (w.assign(w + x) * 2).sum())
        total = 8.0 * k
        for i in range(12):
            total += 8 * i
            found = f(Tensor(np.full(8, i, np.float32), device="CPU").realize()).item()
            if found != 2 * total:
                wrong.append((k, i, found, 2 * total))
                return

    for _ in range(4):
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("computed", [False, True])
def test_another_thread_changes_a_tensor_during_capture(computed: bool) -> None:
    """That is no part of what the function does."""
    w, x = tensor(3), tensor(3)
    want = w.numpy() + 1
    inside, done = threading.Event(), threading.Event()

    def body(x: Tensor) -> Tensor:
        y = x * 2
        inside.set()
        assert done.wait(60)
        return y

    def other() -> None:
        inside.wait(60)
        w.assign(w + 1)
        if computed:
            w.realize()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    f = jit(body)
    for _ in range(4):
        f(x)
    thread.join()
    np.testing.assert_array_equal(w.numpy(), want)
    assert f.captures <= 2 and f.replays >= 2


def test_an_object_that_is_called() -> None:
    """Its attributes are noticed, as those of a method's object are; so is what a partial function reads."""
    class Scaled:
        def __init__(self) -> None:
            self.scale = 2.0

        def __call__(self, x: Tensor, more: float = 1.0) -> Tensor:
            return x * (self.scale * more)

    scaled, x = Scaled(), tensor(5)
    for f in (jit(scaled), jit(functools.partial(scaled, more=1.0))):
        for scale in (2.0, 2.0, 3.0, 2.0, 3.0):
            scaled.scale = scale
            assert f(x).numpy().tobytes() == (x * scale).numpy().tobytes()
        assert f.captures == 2


def test_generators() -> None:
    """One would be used up after the first call."""
    def parts(x: Tensor) -> Any:
        yield x * 2

    with pytest.raises(MinigradError, match=r"\[jit\] expected a function that ends before its results are used"):
        jit(parts)
    f = jit(lambda x: {"parts": map(lambda v: v * 2, [x])})
    for _ in range(3):
        x = tensor(3)
        assert [v.tolist() for v in f(x)["parts"]] == [(x * 2).tolist()]
    assert f.replays == 0 and "returns a map" in f.last_reason


@jit
def captured(x: Tensor) -> Tensor:
    return x * 2


def test_copies_have_captures_of_their_own() -> None:
    """A copied model's step changes the copy."""
    class Model:
        def __init__(self) -> None:
            self.w = Tensor([1.0, 2.0], device="CPU").realize()
            self.step = jit(self._step)

        def _step(self, x: Tensor) -> Tensor:
            return self.w.assign(self.w + x) * 1

    model, x = Model(), Tensor([1.0, 1.0], device="CPU").realize()
    for _ in range(3):
        model.step(x)
    other = copy.deepcopy(model)
    for k in range(3):
        assert other.step(x).tolist() == [5.0 + k, 6.0 + k]
    assert model.w.tolist() == [4.0, 5.0] and model.step(x).tolist() == [5.0, 6.0]
    assert copy.deepcopy(captured) is captured and pickle.loads(pickle.dumps(captured)) is captured


def test_results_without_elements() -> None:
    """Lists of results, of which some have no memory."""
    same(lambda: (jit(lambda x: (x * 2, x.sum(axis=0), x.cat(x))), []),
         [(tensor(n, 3),) for n in (0, 0, 2, 2, 0, 2)])


def test_a_value_read_inside_is_refused() -> None:
    """It would be a constant of the capture. The error names the call and its line."""
    f = jit(lambda x: x * x.sum().item())
    with pytest.raises(MinigradError, match=r"item\(\).*test_capture_hazards\.py"):
        f(tensor(3))


def test_an_argument_is_the_gradient_of_another_tensor() -> None:
    """A replay leaves it there, and its handle alone, whichever argument it is and whatever the others are."""
    f = jit(lambda x, y: (x @ y).contiguous().realize(), limit=100)
    x, y, z, graded = (tensor(4, 4) for _ in range(4))
    values = {id(t): t.numpy() for t in (x, y, z)}
    for gradient in (y, x, z):
        graded.grad = gradient
        for a, b in [(x, y)] * 4 + [(y, x)] * 3 + [(x, x)] * 3 + [(x, y), (z, y), (y, z), (x, y), (y, x)]:
            np.testing.assert_allclose(f(a, b).numpy(), values[id(a)] @ values[id(b)], rtol=1e-5, atol=1e-5)
            assert graded.grad is gradient
        for t in (x, y, z):
            np.testing.assert_array_equal(t.numpy(), values[id(t)])


class _Body(nn.Module):
    def __init__(self) -> None:
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x))


class _Net(nn.Module):
    def __init__(self) -> None:
        self.body = _Body()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * 2


def test_the_mode_of_a_module_changes() -> None:
    net, x = _Net(), Tensor(rng.standard_normal((6, 3)).astype(np.float32))
    run = jit(lambda x: net(x))
    for _ in range(3):
        assert (run(x).numpy() == 0).any()
        for part in (net, net.body):  # all of it, and a part alone
            part.eval()
            for _ in range(3):
                assert run(x).numpy().tobytes() == net(x).numpy().tobytes()
            part.train()
    assert run.captures <= 6


def test_a_module_that_the_function_makes_or_switches() -> None:
    net, x = _Net(), Tensor(rng.standard_normal((6, 3)).astype(np.float32))

    def switched(x: Tensor) -> Tensor:
        net.train()
        net(x)
        return net.eval()(x)

    made, both = jit(lambda x: _Net().eval()(x)), jit(switched, limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it runs eagerly
        for _ in range(4):
            made(x)
            both(x)
            np.testing.assert_allclose(both(x).numpy(), net(x).numpy(), rtol=1e-6)
    assert made.captures <= 2 and made.replays >= 2
