"""Short-time Fourier transforms and their inverses against torch, with gradients."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support.beside_torch import check, normal
from support.places import i

from minigrad import Tensor, config
from minigrad.errors import ShapeError

try:
    import torch
except ImportError:
    torch = None

SIGNALS = normal(2, 75)
HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(16) / 16)).astype(np.float32)
OPTIONS: list[dict[str, Any]] = [
    {"n_fft": 16, "hop_length": 5}, {"n_fft": 16, "window": HANN}, {"n_fft": 16, "center": False, "hop_length": 4},
    {"n_fft": 20, "win_length": 16, "window": HANN, "hop_length": 7}, {"n_fft": 16, "onesided": False},
    {"n_fft": 15, "hop_length": 3, "normalized": True}, {"n_fft": 17, "win_length": 12, "hop_length": 4},
]


def transformed(x: Any, pad_mode: str = "reflect", window: Any = None, **options: Any) -> Any:
    if window is not None:
        options["window"] = i(x, window)
    if isinstance(x, Tensor):
        return x.stft(pad_mode=pad_mode, **options)
    return torch.view_as_real(torch.stft(x, pad_mode=pad_mode, return_complex=True, **options))


def restored(x: Any, window: Any = None, **options: Any) -> Any:
    if window is not None:
        options["window"] = i(x, window)
    return x.istft(**options) if isinstance(x, Tensor) else torch.istft(torch.view_as_complex(x), **options)


@needs_torch
@pytest.mark.filterwarnings("ignore:A window was not provided")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_as_torch(options: dict[str, Any], device: str) -> None:
    with config(device=device):
        x = SIGNALS if "normalized" not in options else SIGNALS[0]
        check(lambda x: transformed(x, **options), lambda x: transformed(x, **options), x, tolerance=2e-5)
        if device == "NUMPY":
            check(lambda x: transformed(x, pad_mode="constant", **options),
                  lambda x: transformed(x, pad_mode="constant", **options), x, tolerance=2e-5)
        if options.get("center", True):
            spectra = normal(*transformed(Tensor(x), **options).shape)
            if "onesided" in options:
                spectra = transformed(Tensor(x), **options).numpy()
            for length in ({}, {"length": 50}):
                ours = restored(Tensor(spectra), **options, **length).numpy()
                theirs = restored(torch.tensor(spectra), **options, **length).numpy()
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_there_and_back() -> None:
    with config(device="CPU"):
        x, window = Tensor(SIGNALS, requires_grad=True), Tensor.hann_window(16)
        spectra = x.stft(16, 4, window=window)
        assert spectra.shape == (2, 9, 19, 2)
        back = spectra.istft(16, 4, window=window, length=75)
        np.testing.assert_allclose(back.numpy(), SIGNALS, atol=2e-6)
        assert back.shape == (2, 75) and spectra.istft(16, 4, window=window, length=90).numpy()[:, 88:].any() == 0
        np.testing.assert_allclose(back.sum().gradient(x)[0].numpy(), np.ones((2, 75)), atol=1e-5)
        wide = Tensor(SIGNALS.astype(np.float64)).stft(16)
        exact = np.fft.rfft(np.pad(SIGNALS.astype(np.float64), ((0, 0), (8, 8)), "reflect")[:, :16])
        np.testing.assert_allclose(wide.numpy()[:, :, 0, 0], exact.real, atol=1e-13)
        np.testing.assert_allclose(wide.numpy()[:, :, 0, 1], exact.imag, atol=1e-13)


@pytest.mark.parametrize("run, message", [
    (lambda x: x.stft(16, center=False), "[stft] expected signals of at least 16 elements, got [2, 9]"),
    (lambda x: x.int().stft(4), "[stft] expected signals [L] or [N, L] of floats, got int32 [2, 9]"),
    (lambda x: x.stft(4, win_length=5), "[stft] expected a win_length of at most n_fft 4, got 5"),
    (lambda x: x.stft(4, window=Tensor.ones(3)), "[stft] expected a window [4], got [3]"),
    (lambda x: x.stft(4, 0), "[stft] expected hop_length as an integer of 1 or more, got 0"),
    (lambda x: x.stft(4, return_complex=True), "[stft] expected return_complex=False"),
    (lambda x: x.istft(4, return_complex=True), "[istft] expected return_complex=False"),
    (lambda x: x.istft(4), "[istft] expected spectra [..., 3, T, 2] of floats, got float32 [2, 9]"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(ShapeError) as caught:
        run(Tensor.ones(2, 9))
    assert message in str(caught.value)
