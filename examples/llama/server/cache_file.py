"""The cache of an engine in a file: pages that are known, so that what they hold is not fed again after a restart.

Copies of recurrent states are not among them: of a model that has such states nothing is written.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.llama.server.engine import BatchEngine
from examples.llama.server.paged import PAGE
from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.state import safe_load, safe_save


def save_cache(engine: BatchEngine, path: Path) -> int:
    """Writes the known pages to a safetensors file, between two steps; returns how many."""
    written = 0

    def write() -> None:
        nonlocal written
        known = [] if engine.batch.stateful else engine.pages.known()
        place = {page: k for k, (page, _, _) in enumerate(known)}
        kept = {"before": np.array([place.get(before, -1) for _, before, _ in known], np.int32),
                "tokens": np.array([tokens for _, _, tokens in known], np.int32).reshape(-1, PAGE)}
        pages = np.array([page for page, _, _ in known], np.int32)
        for k, tensor in enumerate(engine.batch.memory.in_pages if len(pages) else []):
            kept[f"pages.{k}"] = tensor.reshape(-1, PAGE, *tensor.shape[1:])[Tensor(pages)].numpy()
        safe_save({name: Tensor(values) for name, values in kept.items()}, path)
        written = len(known)

    engine.between(write)
    return written


def load_cache(engine: BatchEngine, path: Path) -> int:
    """Takes up as many pages of a file as there is room for; returns how many. Raises FormatError where they are not of
    this model's shape, OSError where the file cannot be read."""
    found = {name: tensor.numpy() for name, tensor in safe_load(path).items()}
    memory = engine.batch.memory
    taken: list[int] = []

    def take() -> None:
        if not {"before", "tokens"} <= found.keys():
            raise FormatError(f"{path}: expected a cache that an engine has written; remove it")
        before, tokens = found["before"], found["tokens"]
        count = len(before)
        shapes = {f"pages.{k}": ((count, PAGE, *tensor.shape[1:]), tensor.dtype.np)
                  for k, tensor in enumerate(memory.in_pages if count else [])}
        if tokens.shape != (count, PAGE) or not np.all(before < np.arange(count)) or any(
                [name not in found or (found[name].shape, found[name].dtype) != what for name, what in shapes.items()]):
            raise FormatError(f"{path}: the cache is of another model or another --cache-type; remove it")
        for k in range(count):
            if before[k] >= len(taken):
                break
            behind = None if before[k] < 0 else taken[before[k]]
            page = engine.pages.restore(behind, tokens[k].tolist())
            if page is None:
                break
            taken.append(page)
        if not taken:
            return
        places = (np.array(taken)[:, None] * PAGE + np.arange(PAGE)).reshape(-1).astype(np.int32)
        for k, tensor in enumerate(memory.in_pages):
            tensor[Tensor(places)] = Tensor(found[f"pages.{k}"][:len(taken)].reshape(-1, *tensor.shape[1:]))
        Tensor.realize(*memory.in_pages)

    engine.between(take)
    return len(taken)
