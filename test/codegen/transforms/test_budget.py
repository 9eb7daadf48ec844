"""Loops shortened for drivers that end them early: the text, the count, and what the device computes."""
import numpy as np
import pytest
from conftest import devices, quirks

from examples.efficientnet.model import EfficientNet
from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.passes import stages_of
from minigrad.codegen.render.opencl import render_opencl
from minigrad.codegen.transforms.budget import MAX_COPIES, iterations, limit_iterations
from minigrad.errors import DeviceError
from minigrad.nn.state import get_parameters
from minigrad.runtime.opencl_quirks import LOOP_BUDGET
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

HEAD = "func f(in a: f32[64], inout y: f32[64], n: index in 0..12)\n"


def parsed(text: str) -> Function:
    function = parse_function(HEAD + text)
    verify_function(function)
    return function


def same_meaning(before: Function, after: Function) -> None:
    verify_function(after)
    results = []
    for f in (before, after):
        for n in (0, 1, 7, 12):
            y = np.arange(64, dtype=np.float32)
            interpret_function(f, {"a": np.linspace(-1, 1, 64, dtype=np.float32), "y": y}, dims={"n": n})
            results.append(y)
    for i in range(4):
        np.testing.assert_array_equal(results[i], results[4 + i])


def test_the_rest_is_done_one_by_one():
    before = parsed("  for k in 0..10 serial:\n    let t = a[k]\n    y[0] = y[0] + t\n")
    after = limit_iterations(before, 4)
    assert print_function(after) == HEAD + """\
  for k_b in 0..2 serial:
    for k_u in 0..4 unroll:
      let t_2 = a[4*k_b+k_u]
      y[0] = y[0] + t_2
  for k[0..9] in 8..10 serial:
    let t = a[k]
    y[0] = y[0] + t
"""
    same_meaning(before, after)
    assert iterations(after.body) == 4


def test_nested_loops_count_together():
    before = parsed("""\
  for p in 0..4 parallel:
    for i in 0..5 serial:
      for j in 0..6 serial:
        y[p] = y[p] + a[6*i+j]
""")
    assert iterations(before.body) == 5 + 30
    assert limit_iterations(before, 35) is before
    after = limit_iterations(before, 20)
    assert iterations(after.body) == 5 + 5 * 3
    same_meaning(before, after)
    flat = limit_iterations(before, 5)
    assert iterations(flat.body) == 0
    same_meaning(before, flat)


def test_lengths_known_at_run_time():
    before = parsed("  for k[0..11] in 0..n serial:\n    y[k] = y[k] + a[n+k]\n")
    after = limit_iterations(before, 6)
    assert iterations(after.body) <= 6
    same_meaning(before, after)


def test_no_limit():
    before = parsed("  for k in 0..60 serial:\n    y[0] = y[0] + a[k]\n")
    assert limit_iterations(before, 0) is before
    assert iterations(limit_iterations(before, 1).body) == 0
    assert MAX_COPIES == 64


def rows(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 7 - 3).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("length", [70_001, 300_007])
def test_long_sums_per_row(device, length):
    """Integers, so that the sums are exact in any order."""
    a = rows(20, length)
    x = Tensor(a, device=device)
    np.testing.assert_array_equal(x.sum(1).numpy(), a.sum(1))
    np.testing.assert_array_equal(x[0].sum().numpy(), a[0].sum())
    np.testing.assert_array_equal(x.argmax(1).numpy(), a.argmax(1))


@pytest.mark.parametrize("device", devices())
def test_matmul_of_many_rows(device):
    a, b = rows(260, 300), rows(300, 270)
    np.testing.assert_array_equal((Tensor(a, device=device) @ Tensor(b, device=device)).numpy(), a @ b)


@pytest.mark.parametrize("device", [name for name in devices() if LOOP_BUDGET in quirks(name)])
def test_what_cannot_be_shortened_is_refused(device):
    x = Tensor(np.zeros((17, 1), np.float32), device=device).expand(17, 1 << 24)
    with pytest.raises(DeviceError, match=r"\[render\] \w+: expected at most 65535 iterations in one work-item"):
        x.sum(1).realize()


def test_a_training_step_of_b2_fits() -> None:
    """The benchmark's default network at its own size: rendering raises where a stage exceeds llvmpipe's budget."""
    target = Target("llvmpipe", "opencl", "llvmpipe", 4, 64, 2, local_memory=32 << 10, max_group=1024,
                    max_iterations=65535)
    with config(device="CPU"):
        model = EfficientNet(2, has_se=False)
        images = Tensor(np.zeros((1, 3, 260, 260), np.float32)).realize()
        Tensor.realize(*get_parameters(model))
        with Tensor.train():
            model(images).sum().backward()
    gradients = [p.grad.node for p in get_parameters(model) if p.grad is not None]
    steps = schedule(build_graph(gradients), frozenset(), target).steps
    functions = dict.fromkeys(s.function for step in steps for s in stages_of(step.kernel, target).stages)
    assert len(functions) > 100
    for function in functions:
        render_opencl(function, target)
