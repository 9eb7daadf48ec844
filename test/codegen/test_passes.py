"""The list of passes: what each returns is checked before the next one, and an error names the pass that is wrong."""
from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from support.golden_plans import TARGETS, find
from support.packed import tensor
from support.stages import CASES, kernels
from support.window import depthwise

from minigrad import Tensor, config, scan
from minigrad.codegen import checks, passes
from minigrad.codegen.ir import nodes as ir
from minigrad.codegen.kernel.nodes import Block, Kernel, Nest, Steps, Store
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.dtype import int32
from minigrad.errors import InternalError
from minigrad.target import Target
from minigrad.value import const

TREE = ast.parse(Path(passes.__file__).read_text(encoding="utf-8"))
FOLDERS = "ir.inline", "lowering", "transforms"


def listed() -> list[str]:
    """The passes in the list: what `run` is given, and what is in the tuples of those that split nests."""
    found = [node.args[0].id for node in ast.walk(TREE) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name) and node.func.id == "run" and isinstance(node.args[0], ast.Name)]
    found += [name.id for node in ast.walk(TREE) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
              and ast.unparse(node.targets[0]) == "splits" for name in node.value.elts if isinstance(name, ast.Name)]
    return sorted({*found} - {"split"})


def broken(made: Any) -> Any:
    """A form that breaks a rule of its kind: it stores to what there is not."""
    match made:
        case tuple():
            return broken(made[0]), *made[1:]
        case list():
            return [broken(x) for x in made]
        case Kernel() if made.block is not None:
            return replace(made, block=broken(made.block))
        case Block() | Steps():
            return replace(made, body=tuple(map(broken, made.body)))
        case Kernel():
            return made.with_nests(tuple(map(broken, made.nests)))
        case Nest():
            return replace(made, body=tuple([broken(s) if isinstance(s, Nest | Store) else s for s in made.body]))
        case Store():
            return replace(made, param="nowhere")
        case ir.Function():
            return replace(made, body=(*made.body, ir.Store("nowhere", 0, const(0, int32))))
    raise TypeError(made)


SLICE = parse_kernel("kernel k(out o0: f32[8], p0: f32[32])\n  for i0<8:\n    o0[i0] = p0[i0+4]\n")


def compiled() -> Iterator[tuple[Kernel, Target]]:
    """Kernels that go through all passes together."""
    avx2, gpu, pocl = (TARGETS[name] for name in ("avx2", "gpu", "pocl"))
    yield SLICE, avx2
    yield kernels(CASES["matmul"](), avx2)[0], avx2
    yield kernels(CASES["matmul"](), gpu)[0], gpu
    yield parse_kernel(find("1152x7x7->1152 k3 s1 depthwise forward batch 8", "avx2").kernel), avx2
    yield kernels(CASES["matmul"](), pocl)[0], pocl
    yield kernels(depthwise("data", 16, 14, stride=2), avx2)[-1], avx2
    yield kernels(recurrence(), avx2)[-1], avx2


def recurrence() -> Tensor:
    """A loop with a carried state."""
    with Tensor.no_grad():
        (last,), _ = scan(lambda state, xs: ((state[0] * xs[0] + 1.0,), ()), (tensor(20),), (tensor(5, 20),))
    return last


def compile_all() -> None:
    for kernel, target in compiled():
        for stage in passes.stages_of(kernel, target).stages:
            passes.render(stage.function, target)


def forget_all() -> None:
    passes.forget_stages()
    passes.render.cache_clear()


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    forget_all()
    yield
    forget_all()


@pytest.mark.parametrize("name", listed())
def test_a_fault_in_a_pass_is_found_before_the_next_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step: Callable[..., Any] = getattr(passes, name)

    @wraps(step)
    def wrong(*args: Any) -> Any:
        return broken(step(*args))

    monkeypatch.setattr(passes, name, wrong)
    with config(verify=True), pytest.raises(InternalError, match=rf"^\[verify\] after {name}: .*nowhere"):
        compile_all()


def test_every_pass_is_followed_by_a_check_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    check = checks.check

    def counted(step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        run[step.__name__] += 1
        return original(step, *args, **options)

    def seen(step: str, *args: Any) -> None:
        checked[step] += 1
        check(step, *args)

    original = passes.run
    monkeypatch.setattr(passes, "run", counted)
    monkeypatch.setattr(checks, "check", seen)
    with config(verify=True):
        compile_all()
    assert sorted(run) == listed() and all(checked[name] >= run[name] for name in run)
    checked.clear()
    forget_all()
    with config(verify=False):
        compile_all()
    assert not checked


def test_no_pass_goes_by_another_way() -> None:
    """What the folders of passes have is called by `run` alone."""
    theirs = {alias.asname or alias.name for node in TREE.body if isinstance(node, ast.ImportFrom)
              for alias in node.names if any(f".{folder}" in f"{node.module}" for folder in FOLDERS)}
    called = {node.func.id for node in ast.walk(TREE) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert theirs <= set(listed()) and not theirs & called


def test_drafts_are_forgotten_with_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search begins with is planned anew, as when a microkernel is added."""
    kernel, target = kernels(tensor(19, 23) @ tensor(23, 37), TARGETS["avx2"])[0], TARGETS["avx2"]
    before = passes.drafted(kernel, target)
    monkeypatch.setattr(passes, "choose_plans", lambda nests, target: [])
    assert passes.drafted(kernel, target) is before
    passes.forget_stages()
    assert not passes.drafted(kernel, target)[0]
    passes.forget_stages()
