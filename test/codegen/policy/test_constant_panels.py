"""Constant matrices in panels: which kernels read them so, what those compute, and by which plans."""
# mypy: disable-error-code="arg-type,type-var"
import numpy as np
import pytest
from support.packed import AVX2, AVX512, tensor
from support.stream import last_kernel

from minigrad import Tensor
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.panels import Panelled, panelled
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.steps import Plan
from minigrad.target import Target

ALONG, ACROSS = "as linear layers have it, along the sum", "transposed"
rng = np.random.default_rng(3)


def product(rows: int, lies: str, steps: int = 256, columns: int = 256) -> Tensor:
    """rows x [rows, steps] times a weight of so many columns, which is p1 of the kernel."""
    return tensor(rows, steps) @ (tensor(columns, steps).T if lies is ALONG else tensor(steps, columns))


def in_panels(result: Tensor, target: Target) -> Panelled | None:
    return panelled(last_kernel(result, target), frozenset({"p1"}), target)


def plan_of(kernel: Kernel, target: Target) -> Plan:
    plan = stages_of(kernel, target).stages[0].plan
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize("rows, policy, width", [(16, "stream", 16), (17, "panels", 64), (64, "panels", 64),
                                                   (100, "panels", 64), (128, "panels", 64)])
def test_weights_that_each_call_would_copy(rows: int, policy: str, width: int) -> None:
    """Before: `stage p1`, a copy at each call. After: panels where they lie, in the same order."""
    result = product(rows, ALONG).gelu()
    assert [s.operand for s in plan_of(last_kernel(result, AVX512), AVX512).stages] == ["p1"]
    made = in_panels(result, AVX512)
    assert made is not None and made.pack.params[0].shape == (256 // width, 256, width)
    plan = plan_of(made.kernel, AVX512)
    assert plan.pattern == policy and not plan.stages


@pytest.mark.parametrize("result", [
    lambda: product(129, ALONG), lambda: product(64, ALONG, 2304), lambda: product(64, ALONG, 300, 250),
    lambda: product(64, ALONG, 64, 64), lambda: product(1, ACROSS), lambda: product(2, ALONG),
    lambda: (tensor(64, 256) @ tensor(256, 256).T).softmax(),
])
def test_what_would_gain_nothing_stays(result) -> None:
    assert in_panels(result(), AVX512) is None


def test_a_matrix_that_is_read_both_ways_stays() -> None:
    w = tensor(256, 256)
    assert in_panels(tensor(64, 256) @ w.T * (w.sum() + 1), AVX512) is None
    kernel = last_kernel(tensor(64, 256) @ w.T, AVX512)
    assert panelled(kernel, frozenset({"p0"}), AVX512) is None and panelled(kernel, frozenset(), AVX512) is None


@pytest.mark.parametrize("target", [AVX512, AVX2])
@pytest.mark.parametrize("lies", [ALONG, ACROSS])
@pytest.mark.parametrize("rows", [4, 16, 64])
def test_panels_compute_the_same(rows: int, lies: str, target: Target) -> None:
    kernel = last_kernel(product(rows, lies).relu() + tensor(256), target)
    made = panelled(kernel, frozenset({"p1"}), target)
    if (rows, lies) in ((4, ALONG), (64, ACROSS)) or (rows, lies, target) == (16, ALONG, AVX512):
        assert made is None
        return
    assert made is not None
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.params}
    packed = {"p0": arrays["p1"], "o0": np.zeros(made.pack.params[0].shape, np.float32)}
    interpret_kernel(made.pack, packed)
    others = {**{name: a.copy() for name, a in arrays.items()}, "p1": packed["o0"]}
    scalars = {s.name: 0.5 for s in kernel.scalars}
    interpret_kernel(kernel, arrays, scalars)
    interpret_kernel(made.kernel, others, scalars)
    np.testing.assert_array_equal(others["o0"], arrays["o0"])
