"""Operators over strings. These are known arrays (dtype object); no kernel sees one."""
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid


def is_text(value: Any) -> bool:
    """True for an array of strings."""
    return isinstance(value, np.ndarray) and (value.dtype.kind in "US" or (value.dtype == object and all(
        isinstance(v, (str, bytes)) for v in value.reshape(-1).tolist())))


def texts(n: Node, index: int) -> np.ndarray:
    """Input `index`, which has to be strings."""
    value: Any = n.values[index] if n.has(index) else None
    if not is_text(value):
        raise Invalid(f"input {index}: expected strings, got {getattr(value, 'dtype', type(value).__name__)}")
    flat = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in value.reshape(-1)]
    return array_of(flat, value.shape)


def array_of(strings: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """An array of strings."""
    result = np.empty(len(strings), object)
    result[:] = strings
    return result.reshape(shape)


def concat(n: Node) -> np.ndarray:
    """Each string of the first input followed by that of the second."""
    return np.asarray(texts(n, 0) + texts(n, 1), object)


def split(n: Node) -> list[np.ndarray]:
    """The parts of each string, filled up with empty ones, and how many there are."""
    x, most = texts(n, 0), n.attribute("maxsplit")
    parts = [v.split(n.attribute("delimiter") or None, -1 if most is None else most) for v in x.reshape(-1)]
    counts = [len(p) for p in parts]
    longest = max(counts, default=0)
    filled = [v for p in parts for v in [*p, *[""] * (longest - len(p))]]
    return [array_of(filled, (*x.shape, longest)), np.array(counts, np.int64).reshape(x.shape)]


def normalize(n: Node) -> np.ndarray:
    """The strings but for stop words, in one case."""
    x, change = texts(n, 0), n.choice("case_change_action", "NONE", ("NONE", "LOWER", "UPPER"))
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise Invalid(f"expected strings [C] or [1, C], got {list(x.shape)}")
    stop, exact = set(n.attribute("stopwords", [])), n.attribute("is_case_sensitive", 0)
    stop = stop if exact else {s.lower() for s in stop}
    kept = [s for s in x.reshape(-1) if (s if exact else s.lower()) not in stop] or [""]
    kept = [{"NONE": s, "LOWER": s.lower(), "UPPER": s.upper()}[change] for s in kept]
    return array_of(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


def equal(n: Node) -> Any:
    """True where two inputs are the same."""
    if is_text(n.values[0]):
        return np.asarray(texts(n, 0) == texts(n, 1), bool)
    x, y = n.tensor(0), n.tensor(1)
    return x == y


def tf_idf(n: Node) -> Tensor:
    """The times that each n-gram of a pool is in a row [C] or in rows [N, C], with up to some numbers between parts."""
    pool, x = _pool(n)
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    shortest, longest, skip = n.required("min_gram_length"), n.required("max_gram_length"), n.required("max_skip_count")
    starts, indexes = [*n.required("ngram_counts"), len(pool)], np.array(n.required("ngram_indexes"), np.int64)
    counts, weights = [], n.attribute("weights")
    for size, (start, end) in enumerate(pairwise(starts), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % size:
            raise Invalid(f"expected ngram_counts that divide a pool of {len(pool)}, got {starts[:-1]}")
        grams = n.constant(pool[start:end].reshape(1, 1, -1, size))
        counts.append(_found(rows, grams, size, skip if size > 1 else 0) if shortest <= size <= longest and end > start
                      else Tensor.zeros(rows.shape[0], (end - start) // size, device=rows.device))
    every = counts[0].cat(*counts[1:], dim=1)
    mode = n.choice("mode", "", ("TF", "IDF", "TFIDF"))
    every = (every > 0).float() if mode == "IDF" else every
    if mode != "TF" and weights is not None:
        every = every * n.constant(np.array(weights, np.float32))
    if len(indexes) != every.shape[1] or indexes.min(initial=0) < 0 or indexes.max(initial=0) > 2**24:
        raise Invalid(f"expected {every.shape[1]} ngram_indexes of 0 or more, got {len(indexes)}")
    y = Tensor.zeros(rows.shape[0], int(indexes.max()) + 1, device=rows.device)
    y = y.index_add(1, n.constant(indexes), every)
    return y if x.ndim == 2 else y.reshape(-1)


def _pool(n: Node) -> tuple[np.ndarray, Tensor]:
    """The pool and the input as integers: strings are numbered, others than the pool's -1."""
    strings, value = n.attribute("pool_strings"), n.values[0]
    if strings is None:
        x = n.tensor(0).cast(dtypes.int64)
        pool = np.array(n.required("pool_int64s"), np.int64)
    else:
        ids = {s: i for i, s in enumerate(strings)}
        given = texts(n, 0)
        x = n.constant(np.array([ids.get(s, -1) for s in given.reshape(-1)], np.int64).reshape(given.shape))
        pool = np.array([ids[s] for s in strings], np.int64)
    if x.ndim not in (1, 2):
        raise Invalid(f"expected [C] or [N, C], got {list(getattr(value, 'shape', ()))}")
    return pool, x


def _found(rows: Tensor, grams: Tensor, size: int, skip: int) -> Tensor:
    """The number of times that each of `grams` [1, 1, P, size] is in rows [N, C]: [N, P]."""
    length = int(rows.shape[1])
    total = Tensor.zeros(rows.shape[0], grams.shape[2], device=rows.device)
    for step in range(1, skip + 2):
        width = length - (size - 1) * step
        if width <= 0:
            break
        same = None
        for j in range(size):
            here = rows[:, j * step:j * step + width].unsqueeze(-1) == grams[..., j]
            same = here if same is None else same & here
        total = total if same is None else total + same.float().sum(1)
    return total


TABLE: dict[str, Operator] = {"StringConcat": concat, "StringSplit": split, "StringNormalizer": normalize,
                              "Equal": equal, "TfIdfVectorizer": tf_idf}
