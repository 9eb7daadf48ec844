"""The text of layers when they are printed: as PyTorch prints them."""
from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from minigrad.errors import present

_POOL = "kernel_size= stride/kernel_size= padding="
_NORM = "num_features eps= momentum= affine= bias= track_running_stats="
_CONVOLUTION = "kernel_size:= stride:= padding:? dilation:? output_padding:? groups? bias? padding_mode?"
_RECURRENT = "input_size hidden_size proj_size? num_layers? bias? batch_first? dropout? bidirectional?"
_TABLE = "num_embeddings embedding_dim padding_idx? max_norm? norm_type? scale_grad_by_freq? sparse?"

SHOWN = {
    "Linear": "in_features= out_features= bias=",
    "Bilinear": "in1_features= in2_features= out_features= bias=", "Embedding": _TABLE,
    "EmbeddingBag": "num_embeddings embedding_dim max_norm? norm_type? scale_grad_by_freq? mode= padding_idx?",
    "Conv": f"in_channels out_channels {_CONVOLUTION}", "ConvTranspose": f"in_channels out_channels {_CONVOLUTION}",
    "MaxPool": f"{_POOL} dilation= ceil_mode=", "AvgPool": _POOL, "AvgPool1d": _POOL.replace("=", ":="),
    "MaxUnpool": _POOL.replace("=", ":="), "LPPool": "norm_type= kernel_size= stride= ceil_mode=",
    "AdaptiveAvgPool": "output_size=", "AdaptiveMaxPool": "output_size=",
    "BatchNorm": _NORM, "InstanceNorm": _NORM,
    "GroupNorm": "num_groups num_channels eps= affine= bias=",
    "SyncBatchNorm": _NORM,
    "LayerNorm": "normalized_shape: eps= elementwise_affine= bias=", "LocalResponseNorm": "size alpha= beta= k=",
    "RMSNorm": "normalized_shape: eps= elementwise_affine=",
    "RNN": _RECURRENT, "LSTM": _RECURRENT, "GRU": _RECURRENT, "LSTMCell": "input_size hidden_size bias?",
    "GRUCell": "input_size hidden_size bias?", "RNNCell": "input_size hidden_size bias? nonlinearity?",
    "Dropout": "p= inplace=", "AlphaDropout": "p= inplace=", "FeatureAlphaDropout": "p= inplace=",
    "ELU": "alpha= inplace?", "CELU": "alpha= inplace?", "GELU": "approximate=", "GLU": "dim=", "Hardshrink": "lambd",
    "Softshrink": "lambd", "Hardtanh": "min_val= max_val= inplace?", "LeakyReLU": "negative_slope= inplace?",
    "PReLU": "num_parameters=", "RReLU": "lower= upper= inplace?", "Softplus": "beta= threshold=", "Softmax": "dim=",
    "Softmin": "dim=", "LogSoftmax": "dim=", "Threshold": "threshold= value= inplace?",
    "ReLU": "inplace?", "ReLU6": "inplace?", "SELU": "inplace?", "SiLU": "inplace?", "Mish": "inplace?",
    "ZeroPad": "padding::", "ReflectionPad": "padding::", "ReplicationPad": "padding::", "CircularPad": "padding::",
    "ConstantPad": "padding::= value=", "Flatten": "start_dim= end_dim=", "Unflatten": "dim= unflattened_size=",
    "PixelShuffle": "upscale_factor=", "PixelUnshuffle": "downscale_factor=", "ChannelShuffle": "groups=",
    "Upsample": "size? scale_factor? mode=", "Unfold": "kernel_size= dilation= padding= stride=",
    "Fold": "output_size= kernel_size= dilation= padding= stride="}
"""The text between the brackets: arguments by name. `name=` is written with its name, `name?` so and without quotes
where it is not the default, `name:` as one number per axis and `name::` as two, `name/other` as the other one where
there is none of that name."""

_WEIGHTED = ("affine", "elementwise_affine")


def arguments_of(layer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that a layer was made with, by name with defaults filled in, and the defaults."""
    lazy = getattr(type(layer), "plain", None)  # what it will be, with the channels of its input as first argument
    signature = inspect.signature((lazy or type(layer)).__init__)
    args, options = layer._made_with
    bound = signature.bind_partial(layer, *([0] if lazy else []), *args, **options)
    bound.apply_defaults()
    return bound.arguments, {p.name: p.default for p in signature.parameters.values()}


def text_of_layer(layer: Any) -> str:
    """The text between the brackets of a layer of this library or of a class made from one."""
    for kind in type(layer).__mro__:
        name = kind.__name__
        spec = SHOWN.get(name, SHOWN.get(re.sub(r"[123]d$", "", name)))
        if spec is not None:
            axes = int(name[-2]) if re.search(r"[123]d$", name) else 1
            given, defaults = arguments_of(layer)
            words = [_word(word, axes, vars(layer) | given, defaults) for word in spec.split()]
            return ", ".join([w for w in words if w])
    return ""


def _word(word: str, axes: int, given: dict[str, Any], defaults: dict[str, Any]) -> str:
    names, counts, sign = present(re.fullmatch(r"([\w/]+)(:*)([=?]?)", word), f"[text] {word}").groups()
    name, _, other = names.partition("/")
    if name not in given and not other and name != "bias":
        return ""
    value = given.get(name)
    value = given.get(other) if value is None and other else value
    usual = defaults.get(name)
    if counts:
        value, usual = (v if isinstance(v, str) else tuple(v) if isinstance(v, (tuple, list)) else
                        (v,) * axes * len(counts) for v in (value, usual))
    if name == "inplace":
        value = bool(value)
    if name == "bias":  # which is there only beside a weight
        value = given.get(name, True)
        value = value is not None and value is not False and all(given.get(w, True) for w in _WEIGHTED)
    if sign == "?" and value == usual:
        return ""
    return f"{name}={value}" if sign == "?" else f"{name}={value!r}" if sign else repr(value)


def structure(name: str, extra: str, parts: Iterable[tuple[str, str]]) -> str:
    """`name(extra)`, with the texts of parts on lines of their own."""
    lines = [*([extra] if extra else []), *[f"({part}): {text}" for part, text in parts]]
    if len(lines) == bool(extra) and "\n" not in extra:
        return f"{name}({extra})"
    return f"{name}(\n  " + "\n".join(lines).replace("\n", "\n  ") + "\n)"


def text_of_part(part: Any) -> str:
    """The text of a layer, or of a list or dictionary with layers in it."""
    if isinstance(part, (list, tuple)) and not hasattr(part, "modules"):
        return structure(type(part).__name__, "", [(str(k), text_of_part(p)) for k, p in enumerate(part)])
    if isinstance(part, dict) and not hasattr(part, "modules"):
        return structure(type(part).__name__, "", [(str(k), text_of_part(p)) for k, p in part.items()])
    return repr(part) if hasattr(part, "extra_repr") or hasattr(part, "modules") else \
        f"{type(part).__name__}()"


def folded(parts: list[Any]) -> list[tuple[str, str]]:
    """The parts of a list by number; equal ones that follow each other are one line: (0-2): 3 x Linear(...)."""
    texts, found = [text_of_part(p) for p in parts], []
    start = 0
    for k, text in enumerate(texts):
        if k + 1 == len(texts) or texts[k + 1] != text:
            many = k > start
            found.append((f"{start}-{k}" if many else str(k), f"{k + 1 - start} x {text}" if many else text))
            start = k + 1
    return found
