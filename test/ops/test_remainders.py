"""Remainders of floats are exact, whatever the quotient, and quotients fit them, on every device."""
from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, config
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.render.llvm import render_llvm
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.runtime.llvm_jit import Unit
from minigrad.runtime.registry import get_device

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 3.0, 7.0, -7.0, 2.5, 1e10, 1e-40, np.inf, -np.inf, np.nan]


def operands(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all bits, usual ones, multiples, and special ones with each other and with others."""
    rng, dtype = np.random.default_rng(seed), np.dtype(kind)
    ends = np.finfo(dtype)
    special = np.array([*SPECIAL, ends.tiny, ends.max, ends.smallest_subnormal, -ends.smallest_subnormal]).astype(dtype)

    def any_bits() -> np.ndarray:
        return rng.integers(0, 256, 1500 * dtype.itemsize, np.uint8).view(dtype)

    usual, divisor = rng.standard_normal(1500).astype(dtype), any_bits()
    pairs = [(any_bits(), any_bits()), ((usual * 100).astype(dtype), usual[::-1]), (usual, divisor),
             ((usual * rng.integers(-50, 50, 1500)).astype(dtype), usual),
             (np.repeat(special, len(special)), np.tile(special, len(special))),
             (rng.choice(special, 1500), any_bits()), (any_bits(), rng.choice(special, 1500))]
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def expected(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(fmod, remainder, floor_divide) by C's fmod, and numpy's quotient of float32 or wider."""
    wide = np.promote_types(a.dtype, np.float32)
    rest = np.fmod(a, b)
    signed = np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return rest, signed, np.floor_divide(a.astype(wide), b.astype(wide)).astype(a.dtype)


def same(got: np.ndarray, want: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    right = ((got == want) & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))
    wrong = np.argwhere(~right)[:3, 0]
    assert right.all(), [(a[i], b[i], got[i], want[i]) for i in wrong]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("device", devices())
def test_remainders_and_quotients(device: str, kind: str) -> None:
    if kind == "float64" and "fp64" not in get_device(device).target.features:
        pytest.skip(f"{device} has no float64")
    a, b = operands(kind, 5)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    results = (x.fmod(y), x % y, x // y)
    results[0].realize(*results[1:])
    for got, want in zip(results, expected(a, b), strict=True):
        same(got.numpy(), want, a, b)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_every_way_of_a_processor(kind: str, fma: bool, lanes: int) -> None:
    """With and without multiply-adds, in vectors and alone."""
    host = host_target(shared_jit(), 1)
    target = replace(host, features=host.features - {"fma"} if not fma else host.features)
    a, b = operands({"f32": "float32", "f64": "float64"}[kind], 7)
    a, b = a[:len(a) // 8 * 8].copy(), b[:len(a) // 8 * 8].copy()
    loop = "for l in 0..8 vector" if lanes == 8 else "for l in 0..8 serial"
    program = render_llvm(parse_function(
        f"func rems_{kind}_{fma}_{lanes}(in x: {kind}[n], in z: {kind}[n], out y: {kind}[n], n: index in 8..99999)\n"
        f"  for i in 0..n // 8 parallel:\n    {loop}:\n      y[8*i + l] = rem(x[8*i + l], z[8*i + l])\n"), target)
    ((address,),) = shared_jit().addresses([Unit((program.name,), program.source)])
    y = np.empty_like(a)
    words = [v.ctypes.data for v in (a, b, y)] + [len(y)]
    table = (ctypes.c_uint64 * len(words))(*words)
    entry: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(address)
    entry(ctypes.addressof(table), 0, len(y) // 8, None)
    same(y, np.fmod(a, b), a, b)


@needs_torch
def test_numbers_and_gradients_as_pytorchs() -> None:
    import torch

    rng = np.random.default_rng(11)
    a, b = (rng.standard_normal(200) * 10).astype(np.float32), rng.standard_normal(200).astype(np.float32)
    for name in ("remainder", "fmod"):
        x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
        p, q = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
        weight = rng.standard_normal(200).astype(np.float32)
        got = (getattr(x, name)(y) * Tensor(weight)).sum().gradient(x, y)
        want = torch.autograd.grad((getattr(torch, name)(p, q) * torch.tensor(weight)).sum(), (p, q))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g.numpy(), w.numpy())
    with config(device="CPU"):
        one, wide = Tensor([1.0]), Tensor([1.0], dtype="float64")
        assert [(one // 0.1).item(), (1e10 % Tensor([3.0])).item(), 0 <= (one % 1e-40).item() < 1e-40] == [9, 1, True]
        assert [(wide // 0.1).item(), (wide % 0.1).item()] == [1.0 // 0.1, 1.0 % 0.1]
