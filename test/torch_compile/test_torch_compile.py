"""torch.compile with minigrad as its backend: memory, types, shapes, mutation, random numbers, what torch runs."""
from __future__ import annotations

import copy
import gc
import tomllib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compile")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402

from minigrad import Tensor, random  # noqa: E402
from minigrad.runtime.host import address_of  # noqa: E402
from minigrad.torch_compile import backend  # noqa: E402
from minigrad.torch_compile import graph as graphs  # noqa: E402
from minigrad.torch_compile.shared import to_minigrad, to_torch  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend=backend, **options)


def same(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    torch.testing.assert_close(compiled(function, **options)(*args), function(*args))


def test_the_entry_point_names_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["minigrad"].partition(":")
    assert getattr(import_module(module), name) is backend


# Memory

def test_memory_is_shared_both_ways() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    shared = to_minigrad(x)
    x[0, 0] = 7
    assert shared.tensor.numpy()[0, 0] == 7 and to_minigrad(x) is shared
    y = (Tensor(np.ones((2, 3), np.float32)) * 3).realize()
    theirs = to_torch(y)
    assert theirs.data_ptr() == address_of(y.lazydata.storage)
    del y
    gc.collect()
    assert [(Tensor(np.full((2, 3), k, np.float32)) * 2).realize().numpy()[0, 0] for k in (1, 2, 3)] == [2, 4, 6]
    assert (theirs == 3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool])
def test_types_keep_their_bits(dtype: Any) -> None:
    x = (torch.randn(3, 4) * 3).to(dtype)
    assert torch.equal(to_torch((to_minigrad(x).tensor.reshape(4, 3).T.contiguous()).realize()), x.reshape(4, 3).T)


def test_tensors_of_any_layout() -> None:
    x = torch.randn(4, 6, 2)
    for view in (x.permute(2, 0, 1), x[:, ::2], x[:1].expand(4, 6, 2), x[1:], x.transpose(0, 1)[1]):
        shared = to_minigrad(view)
        order = range(view.ndim) if shared.order is None else shared.order
        assert np.array_equal(shared.tensor.numpy(), view.permute(*order).numpy())
    turned = x.permute(2, 0, 1)
    shared = to_minigrad(turned)
    x[0, 0, 0] = 9
    assert shared.order == (1, 2, 0) and shared.tensor.numpy()[0, 0, 0] == 9


def test_parameters_are_read_anew_and_results_last() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    scale, kept = compiled(lambda x: x * weight), []
    with torch.no_grad():
        for change in (lambda: None, lambda: weight.data.fill_(2), lambda: weight.copy_(torch.full((3,), 3.0)),
                       lambda: setattr(weight, "data", torch.full((3,), 4.0))):
            change()
            kept += [scale(torch.full((3,), k)) for k in (1.0, 2.0)]
    assert [float(t[0]) for t in kept] == [1, 2, 2, 4, 3, 6, 4, 8]


def test_results_are_no_views_unless_torchs_are() -> None:
    x = torch.randn(5)
    before = x.clone()
    results = compiled(lambda x: (x.clone(), x + 0, x * 1, x.float() * 2, x.view(5, 1)))(x)
    for t in results[:4]:
        t.add_(1)
    assert torch.equal(x, before)
    results[4].add_(1)
    assert torch.equal(x, before + 1)


def test_channels_last_stays() -> None:
    conv, x = torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last)
    found, expected = compiled(conv)(x), conv(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


# What functions do

def test_arguments_are_changed_in_place() -> None:
    def change(x: Any, y: Any) -> Any:
        x.add_(1)
        x[0] = 5
        y.mul_(x)
        return x.sum()

    ours = torch.randn(4), torch.randn(4)
    theirs = copy.deepcopy(ours)
    torch.testing.assert_close(compiled(change)(*ours), change(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_types_are_promoted_as_torch_does() -> None:
    def mixed(a: Any, b: Any, c: Any) -> Any:
        return (a + b, a * 2.5, b // 2, b / 2, c & (a > 0), c.sum(), a.double() + a, b.max(0), torch.arange(3) + b[:3],
                None, 3, {"k": [c.float() + b]}, a + torch.tensor(2.0, dtype=torch.float64), a.half() + a.bfloat16())
    same(mixed, torch.randn(4), torch.tensor([1, 2, -3, 4]), torch.tensor([True, False, True, True]))


def test_sizes_may_be_dynamic() -> None:
    linear = torch.nn.Linear(4, 3)

    def loss(x: Any) -> Any:
        y = linear(x)
        return (y.reshape(x.shape[0] * 3) * x.shape[0]).square().sum() + torch.cat([y, y.new_zeros(2, 3)]).amax()

    step = compiled(loss, dynamic=True)
    for count in (3, 5, 9):
        x = torch.randn(count, 4, requires_grad=True)
        found = torch.autograd.grad(step(x), [x, linear.weight])
        torch.testing.assert_close(found, torch.autograd.grad(loss(x), [x, linear.weight]), rtol=1e-5, atol=1e-4)


def test_empty_tensors() -> None:
    same(lambda x: (x.sum(), x * 2, torch.cat([x, x])), torch.zeros(0, 3))


def test_random_numbers_follow_torchs_seed_and_leave_ours() -> None:
    drop, x = compiled(lambda x: F.dropout(x, 0.3) + torch.rand_like(x) * 0), torch.ones(1000, requires_grad=True)
    Tensor.manual_seed(5)
    before = random.seed(), random.counter()
    torch.manual_seed(1)
    first, second = drop(x), drop(x)
    torch.manual_seed(1)
    again = drop(x)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert 0.2 < float((first == 0).float().mean()) < 0.4
    again.sum().backward()
    torch.testing.assert_close(x.grad, again.detach())
    assert (random.seed()[0], random.counter()) == (before[0][0], before[1])


def test_all_that_draws_is_drawn() -> None:
    def draws(x: Any) -> Any:
        return (torch.rand(500), torch.randn(500), torch.randint(3, 7, (500,)), torch.randperm(50),
                torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 4), torch.bernoulli(x * 0 + 0.25))
    u, z, k, p, v, w, j, b = compiled(draws, options={"strict": True})(torch.zeros(500))
    assert 0 <= u.min() and u.max() < 1 and 0.4 < u.mean() < 0.6 and 0.4 < v.mean() < 0.6
    assert abs(z.mean()) < 0.2 and 0.8 < z.std() < 1.2 and abs(w.mean()) < 0.2
    assert sorted(set(k.tolist())) == [3, 4, 5, 6] and sorted(set(j.tolist())) == [0, 1, 2, 3]
    assert sorted(p.tolist()) == list(range(50)) and 0.15 < b.mean() < 0.35 and k.dtype is torch.int64


def test_half_types_train() -> None:
    linear, x = torch.nn.Linear(8, 5).to(torch.bfloat16), torch.randn(3, 8).to(torch.bfloat16)
    found = torch.autograd.grad(compiled(lambda x: F.gelu(linear(x)).sum())(x), list(linear.parameters()))
    expected = torch.autograd.grad(F.gelu(linear(x)).sum(), list(linear.parameters()))
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_graphs_break_where_torchs_do() -> None:
    def breaks(x: Any) -> Any:
        y = x.relu()
        torch._dynamo.graph_break()
        return y * 2 if y.sum() > 0 else y
    same(breaks, torch.ones(3))
    same(breaks, -torch.ones(3))


def test_what_minigrad_does_not_have_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_warned", set())

    def spectrum(x: Any) -> Any:
        return torch.linalg.eigvalsh(x @ x.T) + torch.linalg.eigvalsh(x.T @ x)

    x = torch.randn(4, 4)
    with pytest.warns(RuntimeWarning, match=r"_linalg_eigh\.default: is not in the table of operators; torch") as w:
        same(spectrum, x)
    said = [str(m.message).split(":")[0] for m in w]
    assert len(said) == len(set(said))
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match=r"Unsupported: \[torch.compile\] aten\._linalg_eigh\.default"):
        compiled(spectrum, options={"strict": True})(x)


def test_options_and_devices_that_are_not_there() -> None:
    with pytest.raises(BackendCompilerFailed, match="expected no mode and the options strict, got options fast"):
        compiled(lambda x: x + 1, options={"fast": 1})(torch.ones(2))
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="expected tensors on the cpu, got some on meta"):
        compiled(lambda x: x + 1)(torch.ones(2, device="meta"))
