"""The memory that a model will take, from the headers of its files before anything is loaded."""
from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

from minigrad.errors import FormatError, MinigradError
from minigrad.state import gguf_load
from minigrad.state.fields import MAX_COUNT, Fields, read_json
from minigrad.state.quantized import KINDS

BITS = {"float32": 32.0, "float16": 16.0, "bfloat16": 16.0, "Q8_0": 8.5, "Q4_1": 5.0, "Q4_0": 4.5}
"""Bits of a weight in each type that matrices can be converted to."""
CACHE_BITS = {"float16": 16.0, "float32": 32.0, "int8": 8.5}
"""Bits of a number in each type that keys and values can be kept in, with the scales of rows of 32 of int8."""
BESIDE = 200 << 20
"""Bytes for Python, compiled programs and intermediate results."""
_SMALLEST_CONTEXT = 256


class TooLarge(MinigradError):
    """The model does not fit the memory."""


@dataclass(frozen=True)
class Needs:
    """Bytes of the weights as they will be computed with, the number of elements of matrices among them, bytes of keys
    and values of one token (0: not known), and the tokens that the cache will hold.
    """

    weights: int
    elements: int
    token: int
    context: int

    @property
    def cache(self) -> int:
        return self.token * self.context

    @property
    def total(self) -> int:
        return self.weights + self.cache + BESIDE

    def __str__(self) -> str:
        cache = f", keys and values of {self.context} tokens {size(self.cache)}" if self.token else ""
        return f"weights {size(self.weights)}{cache}: about {size(self.total)} of memory"

    def converted(self, dtype: str) -> Needs:
        """With the matrices in another type."""
        return replace(self, weights=int(self.elements * BITS[dtype] / 8))


def needs_of(path: Path, context: int, dtype: str | None, cache: str = "float32") -> Needs | None:
    """The needs of the model in a file or folder, with matrices as `dtype` (None: as they are) and keys and values as
    `cache`; None where its headers do not say, or are wrong: loading says it.
    """
    try:
        found = _gguf_needs(path, context) if path.suffix == ".gguf" else _folder_needs(path, context)
    except (FormatError, OSError):
        return None
    if found is None:
        return None
    found = replace(found, token=int(found.token * CACHE_BITS[cache] / 8))
    return found if dtype is None else found.converted(dtype)


def check(needs: Needs, free: int | None) -> None:
    """Raises TooLarge where more is needed than is `free`; it says by how much, and what would fit."""
    if free is None or needs.total <= free:
        return
    ways = []
    room = (free - needs.weights - BESIDE) // needs.token if needs.token else 0
    if room >= _SMALLEST_CONTEXT:
        ways.append(f"--context {2 ** int(math.log2(room))}")
    fitting = [dtype for dtype in BITS if BITS[dtype] * needs.elements / 8 < needs.weights
               and needs.converted(dtype).total <= free]
    if fitting:
        ways.append(f"--weights-dtype {max(fitting, key=BITS.__getitem__)}")
    raise TooLarge(f"the model does not fit: {needs}, and {size(free)} are free, {size(needs.total - free)} too few; "
                   f"what fits: {' or '.join(ways) or 'a smaller model'}")


def free_memory() -> int | None:
    """Bytes that can be taken, of the machine, of the control group and of the limit of the process (`ulimit -v`); None
    where the system does not say.
    """
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit.isdecimal():
            found.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError, IndexError):
        pass
    found += _left_of_limit()
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    return min(found, default=None)


def _left_of_limit() -> list[int]:
    try:
        import resource
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return []
    return [] if most == resource.RLIM_INFINITY else [max(0, most - used)]


def size(nbytes: float) -> str:
    """For people: 1.2 GB."""
    unit = "GB" if nbytes >= 1e9 else "MB"
    return f"{nbytes / (1e9 if unit == 'GB' else 1e6):.{1 if unit == 'GB' else 0}f} {unit}"


def _gguf_needs(path: Path, context: int) -> Needs:
    """Of a token, the numbers that are kept, as of `_folder_needs`."""
    metadata, stored = gguf_load(path)
    weights = elements = 0
    for tensor in stored.values():
        count = math.prod(tensor.shape)
        kept = tensor.kind.name in (*KINDS, "F16", "BF16", "F32") and len(tensor.shape) in (2, 3)
        weights += tensor.raw.nbytes if kept else 4 * count  # others are computed with in float32
        elements += count if len(tensor.shape) > 1 else 0
    fields = Fields(metadata, path)
    prefix = fields.text("general.architecture")
    listed = fields.content.get(f"{prefix}.attention.head_count_kv")
    per_layer = listed if isinstance(listed, list | tuple) else None  # hybrids have layers without a cache
    heads = fields.count(f"{prefix}.attention.head_count", 0)
    if not heads:  # nothing is kept of a token
        return Needs(weights, elements, 0, context)
    layers = fields.count(f"{prefix}.block_count") // fields.count(f"{prefix}.full_attention_interval", default=1)
    keys = sum(per_layer) if per_layer is not None else layers * fields.count(
        f"{prefix}.attention.head_count_kv", default=heads)
    width = fields.count(f"{prefix}.embedding_length")
    head = fields.count(f"{prefix}.attention.key_length", default=width // heads)
    most = fields.count(f"{prefix}.context_length", default=context)
    return Needs(weights, elements, 2 * keys * head, min(context, most))


def _folder_needs(path: Path, context: int) -> Needs | None:
    """Of Hugging Face's and Meta's folders, and of single files: weights are taken to be all that is in them."""
    folder = path if path.is_dir() else path.parent
    files = [path] if path.is_file() else [file for pattern in ("*.safetensors", "consolidated.*.pth")
                                           for file in folder.glob(pattern)]
    names = {"config.json": ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                             "max_position_embeddings", "torch_dtype"),
             "params.json": ("dim", "n_layers", "n_heads", "n_kv_heads", "max_seq_len", "")}
    found = next((name for name in names if (folder / name).is_file()), None)
    weights = sum([file.stat().st_size for file in files])
    if found is None or path.suffix == ".bin":
        return Needs(weights, weights // 4, 0, context) if files else None
    fields = read_json(folder / found)
    fields = fields.inner("text_config") if "text_config" in fields else fields
    width, layers, heads, keys, most, dtype = names[found]
    stored = 4 if dtype and fields.text("dtype", fields.text(dtype, "float32")) == "float32" else 2
    count = fields.count(heads)
    head = fields.count("head_dim", default=fields.count(width) // count)
    kinds = fields.content.get("layer_types")
    attending = fields.count(layers) if not isinstance(kinds, list) else len(
        [kind for kind in kinds if kind in ("full_attention", "sliding_attention")])
    token = 2 * attending * fields.count(keys, default=count) * head
    return Needs(weights, weights // stored, token, min(context, fields.count(most, default=MAX_COUNT)))
