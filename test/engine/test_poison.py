"""Poisoned memory: what kernels touch beyond their operands is seen, and right programs give the numbers that they give
without it."""
from typing import Any

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config, jit, realize
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.engine.compile import compile_kernels
from minigrad.engine.poison import launch_watched
from minigrad.engine.storage import Owned, allocate
from minigrad.errors import InternalError
from minigrad.expr import evaluate
from minigrad.nn import functional as F
from minigrad.runtime.device import Launch
from minigrad.runtime.registry import get_device

ADD = """
kernel add(out o0: f32[64], p0: f32[64])
  for i0<64:
    o0[i0] = p0[i0] + 1.0
"""
COMPILED = [name for name in devices() if name != "NUMPY"]


def run(device: str, written: int, read: int) -> np.ndarray:
    """The kernel over buffers of so many elements; returns what it wrote."""
    where = get_device(device)
    with config(device=device, poison=True):
        compiled = compile_kernels([parse_kernel(ADD)], where)[0]
        out, source = allocate(where, 4 * written), allocate(where, 4 * read)
        where.copy_in(source, np.zeros(read, np.float32))
        stage = compiled.staged.stages[0]
        arguments: Any = (out, source, *[evaluate(e, {}) for e in stage.dims])
        launch_watched(where, [Launch(compiled.executables[0], arguments, evaluate(stage.extent, {}))])
        return values(out)


def values(buffer: Owned) -> np.ndarray:
    found = np.empty(buffer.nbytes // 4, np.float32)
    buffer.device.copy_out(buffer, found)
    return found


@pytest.mark.parametrize("device", COMPILED)
def test_what_is_beyond_operands(device: str) -> None:
    assert (run(device, 64, 64) == 1).all()
    found = run(device, 64, 48)
    assert (found[:48] == 1).all()
    assert np.isnan(found[48:]).all()
    with pytest.raises(InternalError, match=r"add.*got 64 bytes behind argument 0 of 192 bytes, the first at 192"):
        run(device, 48, 64)


@pytest.mark.parametrize("device", COMPILED)
def test_memory_is_nan_before_it_is_written(device: str) -> None:
    with config(poison=True):
        assert np.isnan(values(allocate(get_device(device), 400))).all()


@pytest.mark.parametrize("device", COMPILED)
def test_programs_give_the_same_numbers(device: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 11), (5, 3, 3, 3), (5, 40))]

    def step(x: Tensor, w: Tensor, table: Tensor) -> list[Tensor]:
        y = F.max_pool2d(F.conv2d(x, w, padding=1), 3, stride=2).flatten(2).softmax(-1).transpose(1, 2) @ table
        return [y, *y.square().sum().gradient(x, w, table)]

    def results(poison: bool, captured: bool) -> list[bytes]:
        with config(device=device, poison=poison):
            run = jit(step) if captured else step
            for _ in range(3):
                found = run(*[Tensor(a, requires_grad=True) for a in arrays])
                Tensor.realize(*found)
            return [t.numpy().tobytes() for t in found]

    assert results(False, False) == results(True, False) == results(True, True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int16"])
def test_vectors_of_which_one_lane_is_stored_write_that_alone(dtype: str) -> None:
    """LLVM made 32 bits of the last element of a row, of a bfloat16 too."""
    random = np.random.default_rng(4)

    def numbers(*shape: int) -> Tensor:
        return Tensor(random.integers(-9, 9, shape).astype(np.float32), device="CPU").cast(dtype).realize()

    with config(device="CPU", poison=True, disk_cache=False):
        for width in (14, 17, 30, 33):
            x, y = numbers(2, 3, width), numbers(2, 1, 1, 2)
            planes, total = x.reshape(1, 2, 3, width).conv2d(y, padding=(1, 2), groups=2), x.float().sum(1).cast(dtype)
            realize(planes, total)
            np.testing.assert_array_equal(total.float().numpy(), x.float().numpy().sum(1))
            assert not planes.float().numpy()[:, :, [0, 4]].any()
