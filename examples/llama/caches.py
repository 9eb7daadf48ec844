"""The memory of a model: keys and values of the tokens so far, last inputs of convolutions, recurrent states.

A model is given a `Memory`, which makes what each of its layers keeps: `Conversation` holds one of them, that of the
server many (server/paged.py). A call has the new tokens' `position`, which the memory alone looks at.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from examples.llama.config import Config, Recurrence
from minigrad import Tensor, scan
from minigrad.expr import Index, emax, emin

Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, Tensor]]
"""(matrices of heads, what there is of a token) -> (matrices after it, result)."""


@dataclass(frozen=True)
class Rows:
    """New tokens of several conversations, one in each of n rows: `positions` [n] are their own, `slots` [n] the places
    of the conversations' states, `places` [n] where keys and values go. `one`: they are those of one conversation, in
    order.

    A row looks at tokens in pages: m pairs of a row and a page are the number of the row, `owners` [m], that of the
    page, `pages` [m], and the position of its first token, `starts` [m]. `pairs` [n, most] are the numbers of each
    row's pairs in order, and -1 behind them. All int32.
    """

    positions: Tensor
    slots: Tensor
    places: Tensor
    owners: Tensor
    pages: Tensor
    starts: Tensor
    pairs: Tensor
    one: bool = False


Position = Index | Rows
"""The place of new tokens: the first one's position in the one conversation, or that of each."""


class KeyValues(Protocol):
    """The keys and values of a layer."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, position: Position, sinks: Tensor | None) -> Tensor:
        """Keeps new keys and values, [kv_heads, n, head_size]; what queries [heads, n, head_size] find, alike."""

    def tensors(self) -> list[Tensor]:
        """The Tensors that a call changes."""


class Inputs(Protocol):
    """The last inputs of a convolution over tokens."""

    def taps(self, x: Tensor, position: Position) -> list[Tensor]:
        """x [n, channels] and what came before: for each place in the window, the first one first, [n, channels]."""

    def tensors(self) -> list[Tensor]:
        """The Tensors that a call changes."""


class Matrices(Protocol):
    """The matrices of a recurrent layer's heads, [heads, key, value]. They cannot go back."""

    def scanned(self, step: Step, tokens: tuple[Tensor, ...], position: Position) -> Tensor:
        """The results of the step of each token, [n, heads, value]; tokens [n, heads, ...]."""

    def tensors(self) -> list[Tensor]:
        """The Tensors that a call changes."""


class Memory(Protocol):
    """Makes what layers keep."""

    def key_values(self, config: Config, window: int | None) -> KeyValues:
        """Of attention to all tokens, or to the last `window`."""

    def inputs(self, before: int, channels: int, whole: bool) -> Inputs:
        """Of a convolution that sees so many tokens before; `whole`: the conversation can go back."""

    def matrices(self, sizes: Recurrence) -> Matrices:
        """Of a recurrent layer."""


class Conversation:
    """The memory of one conversation of at most `capacity` tokens."""

    def __init__(self, capacity: int):
        self.capacity = capacity

    def key_values(self, config: Config, window: int | None) -> KeyValues:
        return OwnKeyValues(config, window, self.capacity)

    def inputs(self, before: int, channels: int, whole: bool) -> Inputs:
        return AllInputs(before, channels, self.capacity) if whole else LastInputs(before, channels)

    def matrices(self, sizes: Recurrence) -> Matrices:
        return OwnMatrices(sizes)


def index_of(position: Position) -> Index:
    """The position of the first token of the one conversation."""
    if isinstance(position, Rows):
        raise TypeError("expected the position of the first token: this memory holds one conversation")
    return position


class OwnKeyValues:
    """The keys and values of one conversation."""

    def __init__(self, config: Config, window: int | None, capacity: int):
        self.config, self.window = config, window
        self.keys, self.values = [Cache(config.kv_heads, capacity, config.head_size, config.cache) for _ in range(2)]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, position: Position, sinks: Tensor | None) -> Tensor:
        config, position, n = self.config, index_of(position), query.shape[1]
        end = position + n
        self.keys.put(position, key)
        self.values.put(position, value)

        # Token i may look at positions 0 to position + i, or at the last `window` of them.
        start = 0 if self.window is None else emax(position + 1 - self.window, 0)
        stop = end if self.window is None else start + emin(end, n + self.window - 1)
        return query.scaled_dot_product_attention(
            self.keys.get(start, stop), self.values.get(start, stop), is_causal=True, causal_offset=position - start,
            enable_gqa=True, window=self.window, scale=config.attention_scale, softcap=config.attention_cap,
            sinks=sinks)

    def tensors(self) -> list[Tensor]:
        return [*self.keys.tensors, *self.values.tensors]


class Cache:
    """Rows of all tokens so far, [kv_heads, capacity, head_size], in a type; from T on they are not yet written. As
    int8 a row is a multiple of its scale, the 127th part of its largest magnitude."""

    def __init__(self, heads: int, capacity: int, size: int, dtype: str):
        self.rows = Tensor.zeros(heads, capacity, size, dtype=dtype).contiguous()
        self.tensors = [self.rows]
        if dtype == "int8":
            self.tensors.append(Tensor.zeros(heads, capacity, 1, dtype="float16").contiguous())

    def put(self, position: Index, rows: Tensor) -> None:
        """Keeps new rows, [kv_heads, n, head_size]."""
        end = position + rows.shape[1]
        for scales in self.tensors[1:]:
            new = (rows.abs().max(-1, keepdim=True) / 127).half()
            scales[:, position:end] = new
            rows = (rows / (new == 0).where(1.0, new.float())).round()
        self.rows[:, position:end] = rows.cast(self.rows.dtype)

    def get(self, start: Index, stop: Index) -> Tensor:
        """Rows from `start` on before `stop`, float32."""
        rows, *scales = [t[:, start:stop].float() for t in self.tensors]
        return rows * scales[0] if scales else rows


class AllInputs:
    """The inputs of all tokens so far behind zeros, so that a conversation can go back; [before + capacity, channels].
    """

    def __init__(self, before: int, channels: int, capacity: int):
        self.before = before
        self.cached = Tensor.zeros(before + capacity, channels).contiguous()

    def taps(self, x: Tensor, position: Position) -> list[Tensor]:
        position, n = index_of(position), x.shape[0]
        first = position + self.before
        self.cached[first:first + n] = x
        return [self.cached[position + k:position + k + n] for k in range(self.before + 1)]

    def tensors(self) -> list[Tensor]:
        return [self.cached]


class LastInputs:
    """The last inputs, [before, channels]. At position 0 they are zeros, whatever is in memory."""

    def __init__(self, before: int, channels: int):
        self.before = before
        self.last = Tensor.zeros(before, channels).contiguous()

    def taps(self, x: Tensor, position: Position) -> list[Tensor]:
        n = x.shape[0]
        all_so_far = started(index_of(position)).where(self.last, 0).cat(x, dim=0)
        self.last.assign(all_so_far[n:n + self.before])
        return [all_so_far[k:k + n] for k in range(self.before + 1)]

    def tensors(self) -> list[Tensor]:
        return [self.last]


class OwnMatrices:
    """The matrices of one conversation. At position 0 they are zeros, whatever is in memory."""

    def __init__(self, sizes: Recurrence):
        self.matrices = Tensor.zeros(sizes.heads, sizes.key, sizes.value).contiguous()

    def scanned(self, step: Step, tokens: tuple[Tensor, ...], position: Position) -> Tensor:
        matrices, results = scan(step, started(index_of(position)).where(self.matrices, 0), tokens)
        self.matrices.assign(matrices)
        return results

    def tensors(self) -> list[Tensor]:
        return [self.matrices]


def started(position: Index) -> Tensor:
    """True where there are tokens before `position`, [1]."""
    return Tensor.arange(1) + position > 0
