"""Losses, random numbers, and Fourier transforms."""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.values import DTYPES, element_of


def likelihood(n: Node, x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """The negative log likelihood of classes, for x [N, C, ...] and target [N, ...]."""
    ignored, reduction = n.attribute("ignore_index"), n.choice("reduction", "mean", ("mean", "sum", "none"))
    live = None if ignored is None else target != ignored
    index = target if live is None else live.where(target, 0)
    loss = -x.gather(1, index.long().unsqueeze(1)).squeeze(1)
    each = loss.ones_like() if weight is None else weight.index_select(0, index.long().reshape(-1)).reshape(*loss.shape)
    each = each if live is None else live.where(each, 0)
    loss = loss * each
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / each.sum()


def nll_loss(n: Node) -> Tensor:
    """The loss of log likelihoods."""
    return likelihood(n, n.tensor(0), n.tensor(1), n.tensor(2, None))


def softmax_loss(n: Node) -> list[Tensor]:
    """The loss of scores, and the log likelihoods."""
    logs = n.tensor(0).log_softmax(1)
    return [likelihood(n, logs, n.tensor(1), n.tensor(2, None)), logs]


def random(n: Node) -> Tensor:
    """Random numbers of a shape, or of the shape of the input."""
    like = n.op.endswith("Like")
    sizes = tuple(n.tensor(0).shape) if like else tuple(n.required("shape"))
    dtype = DTYPES[n.attribute("dtype", element_of(n.values[0]) if like else 1)]
    if "Normal" in n.op:
        x = Tensor.randn(*sizes, device=n.device) * n.attribute("scale", 1.0) + n.attribute("mean", 0.0)
    else:
        low, high = n.attribute("low", 0.0), n.attribute("high", 1.0)
        x = Tensor.rand(*sizes, device=n.device) * (high - low) + low
    return x.cast(dtype)


def bernoulli(n: Node) -> Tensor:
    """1 with the probability that the input has, else 0."""
    x = n.tensor(0)
    dtype = DTYPES[n.attribute("dtype", element_of(x))]
    return (Tensor.rand(*x.shape, device=x.device) < x.float()).cast(dtype)


def multinomial(n: Node) -> Tensor:
    """Classes drawn by their unnormalised log likelihoods."""
    drawn = n.tensor(0).softmax(-1).multinomial(n.attribute("sample_size", 1), replacement=True)
    return drawn.cast(DTYPES[n.attribute("dtype", 6)])


def fourier(x: Any, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform [..., K, 2] of x [..., n, 1 or 2], as products with cosines and sines."""
    size, whole = x.shape[-2], length // 2 + 1 if onesided and not inverse else length
    if size > length:
        x = x[..., :length, :]
    elif size < length:
        x = x.pad((0, 0, 0, length - size))
    real, imaginary = x[..., 0], x[..., 1] if x.shape[-1] == 2 else None
    if inverse and onesided:  # the other half is the mirror image
        raise ValueError("onesided is for the forward transform")
    angle = 2 * np.pi / length * (np.outer(np.arange(length), np.arange(whole)) % length)
    cos = Tensor(np.cos(angle).astype(x.dtype.name), device=x.device)
    sin = Tensor((np.sin(angle) * (1 if inverse else -1)).astype(x.dtype.name), device=x.device)
    a, b = real @ cos, real @ sin
    if imaginary is not None:
        a, b = a - imaginary @ sin, b + imaginary @ cos
    y = a.stack(b, dim=-1)
    return y / length if inverse else y


def dft(n: Node) -> Tensor:
    """The discrete Fourier transform of an axis."""
    x = n.tensor(0)
    axis = int(n.scalar(2, -2)) if n.opset >= 20 else n.attribute("axis", 1)
    axis %= x.ndim
    length = int(n.scalar(1, 0)) or x.shape[axis]
    inverse, onesided = bool(n.attribute("inverse", 0)), bool(n.attribute("onesided", 0))
    if inverse and onesided:
        return _real(x.moveaxis(axis, -2), int(n.scalar(1, 0)) or 2 * (x.shape[axis] - 1)).moveaxis(-2, axis)
    return fourier(x.moveaxis(axis, -2), length, inverse, onesided).moveaxis(-2, axis)


def _real(x: Tensor, length: int) -> Tensor:
    """The real signal [..., length, 1] of half of its spectrum."""
    half = length // 2 + 1
    x = x[..., :half, :]
    mirrored = x[..., 1:length - half + 1, :].flip(-2)
    mirrored = mirrored[..., :1].cat(-mirrored[..., 1:], dim=-1)
    return fourier(x.cat(mirrored, dim=-2), length, True, False)[..., :1]


def stft(n: Node) -> Tensor:
    """The transforms of windows of a signal [N, L, 1 or 2]."""
    x, step, window = n.tensor(0), int(n.scalar(1)), n.tensor(2, None)
    x = x.unsqueeze(-1) if x.ndim == 2 else x
    size = int(n.scalar(3, 0)) or (window.shape[0] if window is not None else x.shape[1])
    frames = x.unfold(1, size, step).transpose(-1, -2)
    frames = frames if window is None else frames * window.reshape(-1, 1)
    return fourier(frames, size, False, bool(n.attribute("onesided", 1)))


def mel_weights(n: Node) -> Any:
    """The matrix from bins of a spectrum to mel bands."""
    bands, length, rate, low, high = (n.scalar(i) for i in range(5))
    bins = length // 2 + 1
    mel = [2595 * np.log10(1 + f / 700) for f in (low, high)]
    edges = 700 * (10 ** (np.linspace(mel[0], mel[1], int(bands) + 2, endpoint=False) / 2595) - 1)
    place = np.floor((length + 1) * edges / rate).astype(int)
    result = np.zeros((bins, bands))
    for i in range(bands):
        start, middle, end = place[i:i + 3]
        result[middle, i] = 1.0 if middle == start else result[middle, i]
        result[start:middle + 1, i] = np.arange(middle - start + 1) / (middle - start) if middle > start else 1.0
        result[middle:end, i] = (end - np.arange(middle, end)) / (end - middle) if end > middle else 0
    return n.constant(result).cast(DTYPES[n.attribute("output_datatype", 1)])


TABLE: dict[str, Operator] = {
    "NegativeLogLikelihoodLoss": nll_loss, "SoftmaxCrossEntropyLoss": softmax_loss, "Bernoulli": bernoulli,
    **{f"Random{kind}{like}": random for kind in ("Normal", "Uniform") for like in ("", "Like")},
    "Multinomial": multinomial, "DFT": dft, "STFT": stft, "MelWeightMatrix": mel_weights,
}
