"""Memory shared with numpy and torch by DLPack and `np.asarray`: whose it is, how long it lives, who may write it."""
from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, dtypes, jit
from minigrad.errors import CaptureError, DTypeError, SharingError

pytestmark = pytest.mark.usefixtures("on_cpu")

NAMES = [d.name for d in dtypes.ALL if d is not dtypes.bfloat16]
SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 5)]


def values(shape: tuple[int, ...], name: str) -> np.ndarray:
    counted = np.arange(int(np.prod(shape)))
    return (counted % 2 if name == "bool" else counted).astype(name).reshape(shape)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_numpy_reads_a_tensor_and_a_tensor_reads_numpy_without_a_copy(name: str, shape: tuple[int, ...]) -> None:
    array = values(shape, name)
    x = minigrad.from_dlpack(array)
    back, seen = np.from_dlpack(x), np.asarray(x)
    for out in (back, seen, x.numpy()):
        assert out.dtype == array.dtype and out.shape == shape and np.array_equal(out, array)
    if array.size:
        assert address(back) == address(seen) == address(array) and not seen.flags.writeable
        assert np.shares_memory(np.from_dlpack(Tensor(array)), array) is False


@pytest.mark.parametrize("name", ["bfloat16", *NAMES])
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_both_ways(name: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(values(shape, "float32" if name == "bfloat16" else name)).to(getattr(torch, name))
    x = minigrad.from_dlpack(given)
    assert x.dtype.name == name and x.shape == shape and x.tolist() == given.tolist()
    for back in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(minigrad.to_dlpack(x))):
        assert back.dtype is given.dtype and back.shape == given.shape and back.tolist() == given.tolist()
        assert back.data_ptr() == given.data_ptr() or not given.numel()


def test_the_old_protocol_and_the_new_one() -> None:
    x = Tensor([1.0, 2.0])
    assert '"dltensor"' in repr(x.__dlpack__()) and '"dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(x.__dlpack__(max_version=(1, 0)))

    class Old:
        def __dlpack__(self, stream: Any = None) -> Any:
            return np.arange(3.0).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    assert minigrad.from_dlpack(Old()).tolist() == [0, 1, 2]
    with pytest.raises(SharingError, match="before version 1"):
        minigrad.from_dlpack(Old(), copy=False)
    capsule = np.arange(3.0).__dlpack__()
    with pytest.raises(SharingError, match="a capsule"):
        for _ in range(2):  # the second time it was taken

            class Once(Old):
                def __dlpack__(self, stream: Any = None) -> Any:
                    return capsule

            minigrad.from_dlpack(Once())


def test_strides_and_copies() -> None:
    array = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    for part in (array[1:], array[2:3, 1:4], array.T, array[::2, ::-1], np.broadcast_to(array[0], (3, 6))):
        assert minigrad.from_dlpack(part.copy() if not part.flags.writeable else part).tolist() == part.tolist()
    assert np.shares_memory(np.from_dlpack(minigrad.from_dlpack(array[1:])), array)
    with pytest.raises(SharingError, match="row-major"):
        minigrad.from_dlpack(array.T, copy=False)
    x = minigrad.from_dlpack(array, copy=True)
    array[:] = -1
    assert x[0].tolist() == [0, 1, 2, 3, 4, 5]
    lazy = Tensor([1.0, 2.0]) * 2
    copied = np.from_dlpack(lazy, copy=True)
    copied[:] = 7
    assert lazy.tolist() == [2, 4]


def test_read_only_memory_stays_read_only() -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    x = minigrad.from_dlpack(array)
    assert x.tolist() == [0, 1, 2, 3] and not np.from_dlpack(x).flags.writeable
    with pytest.raises(SharingError, match="read-only"):
        x.__dlpack__()
    x += 1
    assert array.tolist() == [0, 1, 2, 3] and x.tolist() == [1, 2, 3, 4] and np.from_dlpack(x).flags.writeable


def test_refusals() -> None:
    w = Tensor([1.0], requires_grad=True)
    with pytest.raises(BufferError, match="requires_grad"):
        w.__dlpack__()
    assert np.from_dlpack(w.detach()).tolist() == [1]
    with pytest.raises(SharingError, match="no stream"):
        Tensor([1.0]).__dlpack__(stream=1)
    with pytest.raises(SharingError, match="expected the host"):
        Tensor([1.0]).__dlpack__(dl_device=(2, 0))
    with pytest.raises(DTypeError, match="__dlpack__"):
        minigrad.from_dlpack([1.0])
    with pytest.raises(DTypeError, match="complex"):
        minigrad.from_dlpack(np.ones(2, np.complex64))
    with pytest.raises(ValueError, match="copy=False"):
        Tensor([1.0]).__array__(np.float64, copy=False)
    with pytest.raises(CaptureError):
        jit(lambda x: np.from_dlpack(x * 2))(Tensor([1.0]))
    with pytest.raises(CaptureError):
        jit(lambda x: np.asarray(x * 2))(Tensor([1.0]))


def test_torch_refuses_what_it_refuses() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((BufferError, RuntimeError)):
        minigrad.from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises((SharingError, DTypeError)):
        minigrad.from_dlpack(torch.ones(2, dtype=torch.complex64))


# Who may write


@pytest.mark.parametrize("view", [np.from_dlpack, np.asarray])
def test_what_was_lent_keeps_its_values(view: Any) -> None:
    """In-place operations, optimizers' updates and captures give the tensor memory of its own meanwhile."""
    x = Tensor(np.arange(5, dtype=np.float32)).realize()
    seen = view(x)
    x += 1
    x.realize()
    assert seen.tolist() == [0, 1, 2, 3, 4] and x.tolist() == [1, 2, 3, 4, 5]

    @jit
    def step(by: Tensor) -> Tensor:
        x.assign(x * 2 + by)
        return x.sum()

    by, expected = Tensor([1.0]).realize(), x.numpy()
    held = []
    for k in range(14):
        step(by)
        expected = expected * 2 + 1
        if k in (5, 6, 9, 12):
            held.append((view(x), expected))
    for seen, then in held:
        assert np.array_equal(seen, then)
    assert np.array_equal(x.numpy(), expected)


@pytest.mark.parametrize("donate", [False, True])
def test_a_captures_results_are_not_written_again_while_they_are_lent(donate: bool) -> None:
    step = jit(lambda t: t * 2 + 1, donate=donate)
    xs = [Tensor(np.full(9, k, np.float32)).realize() for k in range(8)]
    seen = []
    for x in xs:
        seen.append(np.asarray(step(x)) if donate else np.from_dlpack(step(x)))
    assert [s[0] for s in seen] == [2 * k + 1 for k in range(8)]


def test_memory_of_a_dead_tensor_is_not_handed_out_while_it_is_lent() -> None:
    seen = [np.from_dlpack(Tensor(np.full(1000, k, np.float32))) for k in range(20)]
    more = [Tensor(np.full(1000, -1, np.float32)).realize() for _ in range(20)]
    assert [s.min() == s.max() == k for k, s in enumerate(seen)] == [True] * 20 and len(more) == 20


def test_an_owners_memory_is_never_written() -> None:
    array = np.arange(4.0, dtype=np.float32)
    x = minigrad.from_dlpack(array)
    x[1] = 9
    x.realize()
    x.mul_(2).realize()
    assert array.tolist() == [0, 1, 2, 3] and x.tolist() == [0, 18, 4, 6]
    y = minigrad.from_dlpack(array)

    @jit
    def step() -> Tensor:
        y.add_(1)
        return y * 1

    assert [step()[0].item() for _ in range(10)] == list(range(1, 11)) and array.tolist() == [0, 1, 2, 3]


def test_writes_of_others_show() -> None:
    """In the tensor, in results that are computed later, and in captures that read it as a constant."""
    array = np.ones((64, 64), np.float32)
    own = Tensor(np.ones((64, 64), np.float32)).realize()
    lent = np.from_dlpack(own)
    for w, memory in ((minigrad.from_dlpack(array), array), (own, lent)):
        apply = jit(lambda x, w=w: x @ (w * 2))
        x = Tensor(np.ones((64, 64), np.float32)).realize()
        assert [apply(x)[0, 0].item() for _ in range(10)] == [128] * 10
        late = w * 3
        memory[:] = 2
        assert w[0, 0].item() == 2 and late[0, 0].item() == 6 and apply(x)[0, 0].item() == 256


def test_a_constant_that_is_lent_after_a_capture_is_read_anew() -> None:
    w, x = Tensor(np.ones((64, 64), np.float32)).realize(), Tensor(np.ones((64, 64), np.float32)).realize()
    apply = jit(lambda x: x @ (w * 2))
    assert [apply(x)[0, 0].item() for _ in range(10)] == [128] * 10
    memory = np.from_dlpack(w)
    for k in (2, 3, 4, 5, 6, 7):
        memory[:] = k
        assert apply(x)[0, 0].item() == 128 * k


# How long it lives


def test_the_owner_may_die_before_the_tensor_and_after_it() -> None:
    class Array(np.ndarray):
        pass

    owner = np.arange(1000.0).view(Array)
    gone = weakref.ref(owner)
    x = minigrad.from_dlpack(owner)
    del owner
    gc.collect()
    assert gone() is not None and x.sum().item() == 499500
    y = np.from_dlpack(x)
    del x
    gc.collect()
    assert y.sum() == 499500
    del y
    gc.collect()
    assert gone() is None


def test_capsules_that_nobody_takes_let_go() -> None:
    x = Tensor(np.arange(1000.0, dtype=np.float32)).realize()
    gone = weakref.ref(x.node.storage)
    capsules = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0)), x.__dlpack__(max_version=(1, 0), copy=True)]
    del x
    assert gone() is not None
    capsules.clear()
    assert gone() is None


def test_round_trips_leak_nothing() -> None:
    torch = pytest.importorskip("torch")
    psutil = pytest.importorskip("psutil")
    array, process = np.ones(1 << 16, np.float32), psutil.Process()
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def trips(count: int) -> None:
        for _ in range(count):
            x = minigrad.from_dlpack(array)
            y = minigrad.from_dlpack(torch.from_dlpack(x))
            z = minigrad.from_dlpack(np.from_dlpack(y * 2))
            np.asarray(z)
            z.__dlpack__()
            z.__dlpack__(max_version=(1, 0))
            alive.update([x.node.storage, y.node.storage, z.node.storage])

    trips(50)
    before = process.memory_info().rss
    trips(1000)
    assert len(alive) == 0 and process.memory_info().rss - before < 8 << 20  # one kept array a trip would be 262 MB


# Devices


def test_between_devices() -> None:
    x = Tensor([1.0, 2.0], device="NUMPY")
    assert x.__dlpack_device__() == (1, 0) and np.from_dlpack(x).tolist() == [1, 2]
    assert minigrad.from_dlpack(np.ones(2), device="NUMPY").device == "NUMPY"
    y = minigrad.from_dlpack(x)
    assert y.device == "NUMPY" and y.tolist() == [1, 2] and minigrad.from_dlpack(x, device="CPU").device == "CPU"
    with pytest.raises(SharingError, match="copy=False"):
        minigrad.from_dlpack(x, device="CPU", copy=False)


def test_memory_of_opencl_is_copied_or_refused() -> None:
    pytest.importorskip("pyopencl")
    try:
        x = (Tensor([1.0, 2.0], device="CL:pocl") * 2).realize()
    except minigrad.errors.DeviceError as e:
        pytest.skip(str(e))
    kind, index = x.__dlpack_device__()
    assert kind == 4 and index >= 0
    with pytest.raises(SharingError, match=r"x.to\('CPU'\)"):
        x.__dlpack__()
    with pytest.raises(SharingError, match=r"x.to\('CPU'\)"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    assert np.from_dlpack(x, device="cpu").tolist() == [2, 4] and np.asarray(x).tolist() == [2, 4]
    half = (Tensor([1.0, 2.0], device="CL:pocl", dtype="bfloat16")).__dlpack__(dl_device=(1, 0))
    assert '"dltensor"' in repr(half)
    assert minigrad.from_dlpack(x).device == x.device
    assert minigrad.from_dlpack(np.ones(2, np.float32), device="CL:pocl").tolist() == [1, 1]
    with pytest.raises(SharingError, match="copy=False"):
        minigrad.from_dlpack(np.ones(2, np.float32), device="CL:pocl", copy=False)
