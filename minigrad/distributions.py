"""Distributions to draw from and to compute logarithms of probabilities with, called as PyTorch's are.

Parameters are Tensors or numbers that broadcast; one object stands for as many distributions as their common shape has
elements. Samples are drawn without a gradient (`sample`), or as functions of the parameters, where there are such
(`rsample`).
"""
from __future__ import annotations

import math
from typing import Any

from minigrad.errors import MinigradError, ShapeError
from minigrad.mixins.base import as_count, as_shape, as_tensor, broadcast_shapes
from minigrad.mixins.ranges import check_indices
from minigrad.tensor import Tensor

_EPS = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Distribution:
    """`batch_shape`: the shape of its parameters; samples are [*sample_shape, *batch_shape]."""

    batch_shape: tuple[Any, ...]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Values drawn at random, without a gradient."""
        raise NotImplementedError

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability, or of its density, of values that broadcast with `batch_shape`."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The mean of -log_prob, [*batch_shape]."""
        raise NotImplementedError


def _one_of(name: str, probs: Any, logits: Any) -> Tensor:
    if (probs is None) == (logits is None):
        raise MinigradError(f"[{name}] expected either probs or logits, got {'none' if probs is None else 'both'}")
    given = logits if probs is None else probs
    found = given if isinstance(given, Tensor) else Tensor(given)
    return found if found.dtype.is_float else found.float()


def _clamped(probs: Tensor) -> Tensor:
    eps = _EPS.get(probs.dtype.name, 2.0**-23)
    return probs.clip(eps, 1 - eps)


def _of(name: str, parameter: Tensor, value: Any) -> Tensor:
    """`value` as a Tensor beside the parameters."""
    return as_tensor(name, value) if isinstance(value, Tensor) else Tensor(value, device=parameter.device)


class Categorical(Distribution):
    """Classes 0..K-1 with probabilities in proportion to `probs` [..., K], or to exp(logits). Samples are int32.

    Raises MinigradError unless one of both is given, ShapeError for a number.
    """

    def __init__(self, probs: Any = None, logits: Any = None):
        given = _one_of("Categorical", probs, logits)
        if not given.ndim:
            raise ShapeError("[Categorical] expected probabilities or logits [..., K], got a number")
        self.probs = given.softmax(-1) if probs is None else given / given.sum(-1, keepdim=True)
        self.logits = given.log_softmax(-1) if probs is None else _clamped(self.probs).log()
        self.batch_shape = given.shape[:-1]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Classes drawn at random, int32 [*sample_shape, *batch_shape]."""
        extra, k = as_shape((tuple(sample_shape),)), self.probs.shape[-1]
        shape, count = (*extra, *self.batch_shape), as_count("sample", "how many", math.prod(extra))
        if 0 in shape:
            return Tensor.zeros(*shape, dtype="int32", device=self.probs.device)
        drawn = self.probs.detach().reshape(-1, k).multinomial(count, replacement=True)
        return drawn.transpose(0, 1).reshape(*shape).int()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability of classes, integers that broadcast with `batch_shape`."""
        given, value = value, _of("log_prob", self.logits, value).int()
        check_indices("log_prob", value, self.logits.shape[-1], given=given)
        shape = broadcast_shapes("log_prob", value.shape, self.batch_shape)
        logits = self.logits.expand(*shape, self.logits.shape[-1])
        return logits.gather(-1, value.expand(*shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """-sum p log p, where a class of probability 0 adds nothing."""
        return -_weighted(self.probs, self.logits).sum(-1)

    @property
    def mode(self) -> Tensor:
        """The likeliest class."""
        return self.probs.argmax(-1)


def _weighted(probs: Tensor, x: Tensor) -> Tensor:
    """probs * x, 0 where probs is, with gradients that are finite there."""
    there = probs > 0
    return probs * there.where(x, 0.0)


def _divergence(probs: Tensor, others: Tensor, x: Tensor) -> Tensor:
    """The part of a divergence from what happens with `probs` to the same with `others`, of log ratio x: infinite where
    it happens in one and cannot in the other, whatever x of a clamped probability says."""
    never = (probs > 0) & (others == 0)
    return never.where(math.inf, _weighted(probs, never.where(0.0, x)))


class Bernoulli(Distribution):
    """1 with probability `probs`, or sigmoid(logits), else 0. Samples are floats."""

    def __init__(self, probs: Any = None, logits: Any = None):
        given = _one_of("Bernoulli", probs, logits)
        self.probs = given.sigmoid() if probs is None else given
        self.logits = given if probs is None else _clamped(given).log() - (-_clamped(given)).log1p()
        self.batch_shape = given.shape

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Zeros and ones drawn at random, [*sample_shape, *batch_shape]."""
        p = self.probs.detach()
        u = Tensor.rand(*as_shape((tuple(sample_shape),)), *self.batch_shape, dtype=p.dtype, device=p.device)
        return (u < p).cast(p.dtype)

    def log_prob(self, value: Any) -> Tensor:
        """value * log p + (1 - value) * log (1 - p)."""
        return _of("log_prob", self.logits, value) * self.logits - self.logits.softplus()

    def entropy(self) -> Tensor:
        """-p log p - (1 - p) log (1 - p)."""
        return self.logits.softplus() - self.probs * self.logits

    @property
    def mean(self) -> Tensor:
        """The probabilities: those of 1."""
        return self.probs


class Normal(Distribution):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: Any, scale: Any):
        loc, scale = (t if isinstance(t, Tensor) else Tensor(float(t)) for t in (loc, scale))
        self.batch_shape = broadcast_shapes("Normal", loc.shape, scale.shape)
        self.loc, self.scale = loc.expand(*self.batch_shape), scale.expand(*self.batch_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """loc + scale * what is drawn: gradients go to both."""
        shape = (*as_shape((tuple(sample_shape),)), *self.batch_shape)
        return self.loc + self.scale * Tensor.randn(*shape, dtype=self.loc.dtype, device=self.loc.device)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Numbers drawn at random, [*sample_shape, *batch_shape], without a gradient."""
        return self.rsample(sample_shape).detach()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        z = (_of("log_prob", self.loc, value) - self.loc) / self.scale
        return -0.5 * z.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Any) -> Tensor:
        """The probability of less."""
        z = (_of("cdf", self.loc, value) - self.loc) / self.scale
        return 0.5 * (1 + (z * math.sqrt(0.5)).erf())

    def entropy(self) -> Tensor:
        """0.5 * log(2 * pi * e * scale**2)."""
        return self.scale.log() + 0.5 * (1 + math.log(2 * math.pi))

    @property
    def mean(self) -> Tensor:
        """The mean, `loc`."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation, `scale`."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The variance, the square of `scale`."""
        return self.scale.square()


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean of log p - log q over p, of two of one kind; infinite where q cannot be what p can. Raises MinigradError
    for others."""
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return _divergence(p.probs, q.probs, p.logits - q.logits).sum(-1)
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio = (p.scale / q.scale).square()
        return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        ones = _divergence(p.probs, q.probs, (-q.logits).softplus() - (-p.logits).softplus())
        return ones + _divergence(1 - p.probs, 1 - q.probs, q.logits.softplus() - p.logits.softplus())
    raise MinigradError(f"[kl_divergence] expected two distributions of one kind, got {type(p).__name__} and "
                        f"{type(q).__name__}")


__all__ = ["Bernoulli", "Categorical", "Distribution", "Normal", "kl_divergence"]
