"""The memory of many conversations: keys and values in pages that they share, states of recurrent layers in slots.

Each row of a step is a token of some conversation. What a row finds does not depend on the other rows, to the last bit:
a row looks at its pages one by one, and then at what it found in each of them, in order. Memory and time follow the
pages that rows have, not the longest conversation.
"""
from __future__ import annotations

import numpy as np

from examples.llama.caches import Inputs, KeyValues, Matrices, Position, Rows, Step
from examples.llama.config import Config, Recurrence
from examples.llama.model import capped
from minigrad import Tensor, scan

PAGE = 32
"""Tokens of a page."""

LEAST = -1e30
"""Stands for the largest score where a row sees none of a page."""


def rows_of(position: Position) -> Rows:
    """The rows of a step."""
    if not isinstance(position, Rows):
        raise TypeError("expected rows of several conversations, got the position in one")
    return position


def zeros(*shape: int, dtype: str = "float32") -> Tensor:
    """Memory of its own: lazy zeros of one shape would be one value, which a step that writes to them cannot keep."""
    return Tensor(np.zeros(shape, dtype))


class PagedMemory:
    """So many pages, each for `PAGE` tokens of all layers, and so many slots for the states of conversations."""

    def __init__(self, pages: int, slots: int):
        self.pages, self.slots = pages, slots
        self.in_pages: list[Tensor] = []
        self.in_slots: list[Tensor] = []

    def key_values(self, config: Config, window: int | None) -> KeyValues:
        made = PagedKeyValues(config, window, self.pages)
        self.in_pages += made.tensors()
        return made

    def inputs(self, before: int, channels: int, whole: bool) -> Inputs:
        made = SlotInputs(self.slots, before, channels)
        self.in_slots += made.tensors()
        return made

    def matrices(self, sizes: Recurrence) -> Matrices:
        made = SlotMatrices(self.slots, sizes)
        self.in_slots += made.tensors()
        return made


class Pages:
    """Rows of tokens, [pages * PAGE, kv_heads, head_size] in a type. As int8 a row is a multiple of its scale, the
    127th part of its largest magnitude."""

    def __init__(self, config: Config, pages: int):
        shape = (pages * PAGE, config.kv_heads)
        self.tensors = [zeros(*shape, config.head_size, dtype=config.cache)]
        if config.cache == "int8":
            self.tensors.append(zeros(*shape, 1, dtype="float16"))

    def put(self, places: Tensor, rows: Tensor) -> None:
        """Keeps new rows, [n, kv_heads, head_size]."""
        for scales in self.tensors[1:]:
            new = (rows.abs().max(-1, keepdim=True) / 127).half()
            scales[places] = new
            rows = (rows / (new == 0).where(1.0, new.float())).round()
        self.tensors[0][places] = rows.contiguous().cast(self.tensors[0].dtype)

    def get(self, pages: Tensor) -> Tensor:
        """The rows of pages [m], float32 [m, kv_heads, PAGE, head_size]."""
        rows, *scales = [t.reshape(-1, PAGE, *t.shape[1:])[pages].float().transpose(1, 2) for t in self.tensors]
        return rows * scales[0] if scales else rows


class PagedKeyValues:
    """The keys and values of a layer."""

    def __init__(self, config: Config, window: int | None, pages: int):
        self.config, self.window = config, window
        self.keys, self.values = Pages(config, pages), Pages(config, pages)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, position: Position, sinks: Tensor | None) -> Tensor:
        config, rows = self.config, rows_of(position)
        given, n = query.shape[1], rows.places.shape[0]
        if given is not n:  # a row that is known to be alone: attention to it is computed as if there were more
            query, key, value = [x.pad((None, (0, 1), None))[:, :n] for x in (query, key, value)]
        heads, size = config.heads, config.head_size
        m, each = rows.owners.shape[0], config.heads // config.kv_heads
        self.keys.put(rows.places, key.transpose(0, 1))
        self.values.put(rows.places, value.transpose(0, 1))

        # Of each page its scores, the largest of them, and the sum of values by exp(score - largest).
        scale = config.head_size ** -0.5 if config.attention_scale is None else config.attention_scale
        query = query.transpose(0, 1).reshape(n, config.kv_heads, each, size)[rows.owners]
        scores = query.matmul(self.keys.get(rows.pages).transpose(-1, -2)) * scale
        scores = capped(scores, config.attention_cap)
        scores = self.seen(rows).reshape(m, 1, 1, PAGE).where(scores, -float("inf"))
        largest = scores.max(-1, keepdim=True).maximum(LEAST)
        weights = (scores - largest).exp()
        found = weights.matmul(self.values.get(rows.pages)).reshape(m, heads, size)
        total, largest = weights.sum(-1).reshape(m, heads), largest.reshape(m, heads)

        # Of each row all its pages.
        at, there = rows.pairs.maximum(0), (rows.pairs >= 0).unsqueeze(2)
        tops = there.where(largest[at], LEAST)  # [n, most, heads]
        top = tops.max(1, keepdim=True)
        if sinks is not None:
            top = top.maximum(sinks)
        shares = there.where((tops - top).exp(), 0.0)
        whole = (shares * total[at]).sum(1)
        if sinks is not None:
            whole = whole + (sinks - top.squeeze(1)).exp()
        return ((shares.unsqueeze(3) * found[at]).sum(1) / whole.unsqueeze(2)).transpose(0, 1)[:, :given]

    def seen(self, rows: Rows) -> Tensor:
        """True for the tokens of each page that its row looks at, [m, PAGE]."""
        positions, n = rows.positions, rows.places.shape[0]
        if positions.shape[0] is not n:
            positions = positions.pad(((0, 1),))[:n]
        behind = positions[rows.owners] - rows.starts
        ages = behind.unsqueeze(1) - Tensor.arange(PAGE)
        return ages >= 0 if self.window is None else (ages >= 0) & (ages < self.window)

    def tensors(self) -> list[Tensor]:
        return [*self.keys.tensors, *self.values.tensors]


class SlotInputs:
    """The last inputs of a convolution, [slots, before, channels]. At position 0 they are zeros."""

    def __init__(self, slots: int, before: int, channels: int):
        self.before = before
        self.last = zeros(slots, before, channels)

    def taps(self, x: Tensor, position: Position) -> list[Tensor]:
        rows, n = rows_of(position), x.shape[0]
        if rows.one:
            slot = rows.slots[:1]
            so_far = (rows.positions[:1] > 0).unsqueeze(1).where(self.last[slot][0], 0).cat(x, dim=0)
            self.last[slot] = so_far[n:n + self.before].unsqueeze(0)
            return [so_far[k:k + n] for k in range(self.before + 1)]
        before = (rows.positions > 0).reshape(n, 1, 1).where(self.last[rows.slots], 0)
        self.last[rows.slots] = before[:, 1:].cat(x.unsqueeze(1), dim=1)
        return [*[before[:, k] for k in range(self.before)], x]

    def tensors(self) -> list[Tensor]:
        return [self.last]


class SlotMatrices:
    """The matrices of recurrent layers' heads, [slots, heads, key, value]. At position 0 they are zeros."""

    def __init__(self, slots: int, sizes: Recurrence):
        self.matrices = zeros(slots, sizes.heads, sizes.key, sizes.value)

    def scanned(self, step: Step, tokens: tuple[Tensor, ...], position: Position) -> Tensor:
        rows, n = rows_of(position), tokens[0].shape[0]
        if rows.one:
            slot = rows.slots[:1]
            first = (rows.positions[:1] > 0).reshape(1, 1, 1).where(self.matrices[slot][0], 0)
            last, results = scan(step, first, tokens)
            self.matrices[slot] = last.unsqueeze(0)
            return results
        before = (rows.positions > 0).reshape(n, 1, 1, 1).where(self.matrices[rows.slots], 0)
        heads, *sizes = before.shape[1:]
        after, results = step(before.reshape(n * heads, *sizes),
                              tuple([token.reshape(n * heads, *token.shape[2:]) for token in tokens]))
        self.matrices[rows.slots] = after.reshape(n, heads, *sizes)
        return results.reshape(n, heads, -1)

    def tensors(self) -> list[Tensor]:
        return [self.matrices]
