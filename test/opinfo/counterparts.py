"""The functions of minigrad that entries of OpInfo stand for: found by name, or in a table where name or call
differ."""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import minigrad
from minigrad import Tensor, linalg
from minigrad.nn import functional as F

Call = Callable[..., Any]


def _by_name(method: Call) -> Call:
    """A reduction that gives values and indices where its axis is given by name."""
    def call(x: Tensor, *args: Any, **options: Any) -> Any:
        if args and not isinstance(args[0], Tensor):
            options = dict(zip(("dim", "keepdim"), args, strict=False)) | options
            args = ()
        return method(x, *args, **options)
    return call


TABLE: dict[str, Call | None] = {
    "where": lambda x, condition, other: condition.where(x, other),
    "max": _by_name(Tensor.max), "min": _by_name(Tensor.min),
    "median": _by_name(Tensor.median), "nanmedian": _by_name(Tensor.nanmedian),
    "bool": Tensor.bool, "float": Tensor.float, "int": Tensor.int,
    "__rdiv__": Tensor.__rtruediv__,
    "rsub": lambda x, other, alpha=1: other - x * alpha,
    "einsum": lambda tensors, formula: Tensor.einsum(formula, *tensors),
    "trapz": Tensor.trapezoid,
    "normal_number_mean": lambda std, mean, *size, **options: Tensor.normal(mean, std, *size, **options),
    "polygamma": Tensor.polygamma, "special.polygamma": Tensor.polygamma,
    "nn.functional.embedding": lambda table, indices, **options: F.embedding(indices, table, **options),
    "nn.functional.embedding_bag": lambda table, indices, **options: F.embedding_bag(indices, table, **options),
    "uniform": Tensor.uniform_, "normal_in_place": Tensor.normal_, "exponential": Tensor.exponential_,
    "cauchy": Tensor.cauchy_, "geometric": Tensor.geometric_, "log_normal": Tensor.log_normal_,
    "fill": lambda x, value: x.clone().fill_(value), "zero_": lambda x: x.clone().zero_(),
    "linalg_lstsq_grad_oriented": lambda *args, **options: linalg.lstsq(*args, **options)[:2],
    "linalg_pinv_singular": lambda left, right: linalg.pinv(left.dot(right.transpose(-1, -2))),
    "gradient": None,  # Tensor.gradient is that of autograd
    "to_sparse": None,
}
"""By formatted name (`max_binary`) or name, where what is found under it is none, or is called in another
way; None: nothing here stands for it."""

INDICES = {"argmax", "argmin", "argsort", "sort", "topk", "kthvalue", "mode", "median", "nanmedian", "max", "min",
           "cummax", "cummin", "aminmax", "searchsorted", "bucketize", "nonzero", "nonzero_static", "argwhere",
           "unique", "unique_consecutive", "bincount", "count_nonzero", "msort", "multinomial", "randint", "arange",
           "tril_indices", "triu_indices", "nn.functional.max_pool1d", "nn.functional.max_pool2d",
           "nn.functional.max_pool3d", "nn.functional.adaptive_max_pool1d", "nn.functional.adaptive_max_pool2d",
           "nn.functional.adaptive_max_pool3d", "nn.functional.fractional_max_pool2d", "nn.functional.one_hot",
           "nn.functional.fractional_max_pool3d", "randperm", "full"}
"""Operations whose results are positions or counts, or Python's integers: int32 here where PyTorch has int64."""

BESIDE_VALUES = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 0, "median": 0, "nanmedian": 0, "cummax": 0,
                 "cummin": 0, "max": 0, "min": 0}
"""Operations of indices, or values with them, which of equal elements may name any one; and the place of the axis."""

RANDOM = {"bernoulli", "cauchy", "empty", "empty_like", "exponential", "geometric", "log_normal", "multinomial",
          "new_empty", "normal", "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
          "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
          "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
          "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"}
"""Operations whose values are drawn, or do not matter: shapes and types are compared."""

WRONG: dict[str, str] = {
    "addcdiv": "second gradients of quotients with divisors near 0 are off by 2e-5 of the result",
    "as_strided_partial_views": "what a view's storage holds beside it is not there",
    "cov": "gradients by weights of bfloat16 are differences of nearly equal numbers: off by 3e-5 around 0",
    "erfinv": "the second gradient is off by 2e-6 of the result in float32",
    "linalg_norm_subgradients_at_zero": "the second gradient at 0 is 0, PyTorch's NaN, which its tests expect to be "
                                        "wrong; that of 'nuc' there is any one",
    "index_reduce_prod": "second gradients where a factor is 0 count the product of the others as a constant",
    "linalg_multi_dot": "second gradients in float32 are off by 2e-6 of the result in a long chain",
    "msort": "equal elements keep their order, so that gradients go to others of them than in PyTorch",
    "nn_functional_adaptive_max_pool2d": "the gradient is shared among equal elements", **dict.fromkeys((
        "nn_functional_adaptive_max_pool3d", "nn_functional_max_pool1d", "nn_functional_max_pool2d",
        "nn_functional_max_pool3d"), "as adaptive_max_pool2d"),
    "nn_functional_batch_norm": "an empty tensor without channels is refused",
    "nn_functional_ctc_loss": "the gradient is that by the argument; PyTorch's is that by the logits of a log_softmax "
                              "before it, behind which both are the same",
    "nn_functional_local_response_norm": "means of squares of integers are not cut to integers",
    "nn_functional_normalize": "second gradients with p = 0.5, which are 0, are off by 1e-4",
    "nn_functional_poisson_nll_loss": "PyTorch's gradient by a target is NaN where Stirling's term is not taken",
    "nn_functional_scaled_dot_product_attention": "gradients of bfloat16 take the result as it was rounded",
    "pow": "large powers in float32 are off by 2e-6 of the result",
    "scatter_reduce_prod": "as index_reduce_prod",
    "sum_to_size": "of a bool of shape [] to [] PyTorch gives int64, of other shapes to themselves bool",
}
"""Entries that are not right in all samples, and why, by formatted name."""

_NUMBERS = "a number may stand for a tensor here"
TAKEN: dict[str, str] = {
    **dict.fromkeys(("clamp_max", "clamp_min", "atan2", "fmax", "fmin", "ldexp", "logaddexp", "maximum", "minimum",
                     "logical_and", "logical_or", "logical_xor", "heaviside", "lcm", "gcd", "hypot", "rsub"), _NUMBERS),
    "isclose": _NUMBERS + ", and types are promoted",
    "masked_fill": "the value may be any tensor that broadcasts",
    "mean": "integers give float32",
}
"""Entries of which inputs are taken that PyTorch refuses, and why."""

SIGNS = {"linalg.eigh", "linalg.svd", "svd"}
"""Operations whose vectors have free signs: what OpInfo makes of them for gradients is compared."""

_PACKAGES = ("linalg", "special", "fft", "masked")


def counterpart(entry: Any) -> Call | None:
    """The function that is called in place of an entry's `op`, with the same arguments; None where there is none."""
    for name in (entry.formatted_name, entry.name):
        if name in TABLE:
            return TABLE[name]
    *packages, name = entry.name.split(".")
    if packages == ["nn", "functional"]:
        return getattr(F, name, None)
    if packages:
        return _of_package(packages, name)
    found = getattr(minigrad, name, None)
    if callable(found) and not isinstance(found, ModuleType):
        return found
    found = getattr(Tensor, name, None)
    if isinstance(found, property):
        return found.fget
    return found if callable(found) else None


def _of_package(packages: list[str], name: str) -> Call | None:
    """A function of `minigrad.linalg` and its like, or the method of Tensor with that name."""
    if packages[0] not in _PACKAGES or len(packages) > 1:
        return None
    try:
        module = import_module(f"minigrad.{packages[0]}")
    except ImportError:
        module = None
    found = getattr(module, name, None)
    if found is None and packages[0] in ("linalg", "special"):
        found = getattr(Tensor, name, None)
    return found if callable(found) else None
