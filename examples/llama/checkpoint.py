"""The form that every checkpoint is brought to: a `Config`, and tensors under the names of `model.py`.

The rotary embedding of our model pairs elements of a head that are `head_size / 2` apart (Hugging Face's order). Meta,
llama2.c, and GGUF for some families, keep the two of a pair side by side, so the rows of their query and key matrices
are reordered, once.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.llama.config import Config
from examples.llama.families import Family
from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.state import QuantizedTensor
from minigrad.state.fields import brief

Weight = Tensor | QuantizedTensor
DTYPES = ("float32", "float16", "bfloat16", "Q8_0", "Q4_0", "Q4_1")
"""Types that weight matrices can be converted to."""
KEPT = ("router", "convolution", "shared_scale")
"""Small matrices, which stay as they are."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file or folder. `source` is where a tokenizer may be.

    `metadata` is a GGUF file's own; of other kinds only its "tokenizer.chat_template" is there, where they have one.
    """

    config: Config
    tensors: dict[str, Weight]
    source: Path
    metadata: dict[str, Any]


IGNORED = ("rotary_emb.inv_freq", "attn_rot_embd.weight", "masked_bias")
"""Ends of names of tensors that some files have and nobody needs."""


def check_layers(layers: int, stored: Mapping[str, Any], source: Path) -> None:
    """Raises FormatError for more layers than the tensors that are `stored` in `source` can be."""
    if layers > len(stored):
        raise FormatError(f"{source}: expected several tensors for each of {layers} layers, got {len(stored)} in all; "
                          "download the model again")


def names_of(family: Family, kind: int, layers: int, stored: Mapping[str, Any], prefixes: tuple[str, str, str],
             source: Path) -> dict[str, str]:
    """Our name -> the name in a checkpoint of this kind, for every tensor of the model that is `stored`. `prefixes` are
    those of a layer, of the other tensors and of the output matrix.

    Raises FormatError for more layers than there can be, and for tensors of a layer that the family does not have.
    """
    check_layers(layers, stored, source)
    of_layer, outer, output = prefixes
    found = {ours: (output if ours == "output" else outer) + theirs[kind] for ours, theirs in family.outer.items()}
    for layer in range(layers):
        for ours, theirs in family.names.items():
            found[f"layers.{layer}.{ours}"] = f"{of_layer}{layer}.{theirs[kind]}"
    known = set(found.values())
    for name in stored:
        if name.startswith(of_layer) and name not in known and not name.endswith(IGNORED):
            number = name.removeprefix(of_layer).split(".")[0]
            if number.isdecimal() and len(number) < 9 and int(number) < layers:
                raise FormatError(f"{source}: the tensor {brief(name)} has no place in a model of the family "
                                  f"{family.architecture!r}, as it is written here; use another model")
    return {ours: theirs for ours, theirs in found.items() if theirs in stored}


def _adjacent_to_halves(weight: Weight, heads: int) -> Weight:
    """Rows [heads, pairs, 2] of a query or key matrix, or of a bias, -> [heads, 2, pairs], the order of our rotary
    embedding."""
    if isinstance(weight, QuantizedTensor):
        return weight.take_rows(np.arange(weight.shape[0]).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1))
    rows, *rest = weight.shape
    split = weight.reshape(heads, rows // heads // 2, 2, *rest)
    return split.transpose(1, 2).reshape(rows, *rest).contiguous()


def converted(tensors: Mapping[str, Weight], dtype: str) -> dict[str, Weight]:
    """The same tensors with every matrix in `dtype`, one of DTYPES; vectors and small matrices stay as they are."""
    found: dict[str, Weight] = {}
    for name, weight in tensors.items():
        if len(weight.shape) in (2, 3) and not name.endswith((*KEPT, "_bias")) and not (
                isinstance(weight, QuantizedTensor) and weight.kind == dtype):
            plain = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight
            weight = plain.cast(dtype).contiguous().realize() if dtype[0] != "Q" else QuantizedTensor.quantize(
                plain, dtype)
        found[name] = weight
    return found


def taken(weight: Weight, rows: np.ndarray) -> Weight:
    """Some rows of a matrix, in this order."""
    if isinstance(weight, QuantizedTensor):
        return weight.take_rows(rows)
    return weight[Tensor(rows.astype(np.int32))].realize()


def parted(tensors: dict[str, Weight], config: Config) -> dict[str, Weight]:
    """The same tensors with the matrices of recurrent layers apart that some files have as one: for each group of heads
    its query, key, values and gates, and what its heads correct and forget."""
    sizes = config.recurrence
    for layer in range(config.layers if sizes else 0):
        prefix = f"layers.{layer}.delta_"
        whole, few = tensors.pop(f"{prefix}qkvz", None), tensors.pop(f"{prefix}ba", None)
        if sizes is None or (whole is None and few is None):
            continue
        each, values = sizes.heads // sizes.groups, sizes.heads * sizes.value
        if whole is not None and whole.shape[:1] == (sizes.channels + values,):
            rows = np.arange(sizes.channels + values).reshape(sizes.groups, -1)
            at = np.cumsum([sizes.key, sizes.key, each * sizes.value])
            query, key, value, gate = [part.reshape(-1) for part in np.split(rows, at, axis=1)]
            tensors[f"{prefix}qkv"] = taken(whole, np.concatenate([query, key, value]))
            tensors[f"{prefix}gate"] = taken(whole, gate)
        if few is not None and few.shape[:1] == (2 * sizes.heads,):
            pairs = np.arange(2 * sizes.heads).reshape(sizes.groups, 2, each)
            for kind, name in enumerate(("beta", "alpha")):
                tensors[prefix + name] = taken(few, pairs[:, kind].reshape(-1))
    return tensors


def reorder(tensors: dict[str, Weight], config: Config) -> dict[str, Weight]:
    """The same tensors with queries and keys from side-by-side pairs in our order."""
    for layer in range(config.layers):
        for name, heads in (("query", config.heads), ("key", config.kv_heads)):
            for full, shape in ((f"layers.{layer}.{name}", (heads * config.head_size, config.width)),
                                (f"layers.{layer}.{name}_bias", (heads * config.head_size,))):
                if full in tensors and tensors[full].shape == shape:
                    tensors[full] = _adjacent_to_halves(tensors[full], heads)
    return tensors
