"""A step of many conversations: rows of tokens in, logits out, by one captured program whatever their number is."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.llama.caches import Rows
from examples.llama.checkpoint import Weight
from examples.llama.config import Config
from examples.llama.memory import CACHE_BITS, size
from examples.llama.model import Llama
from examples.llama.server.paged import PAGE, PagedMemory
from minigrad import Tensor, Variable, jit
from minigrad.errors import MinigradError
from minigrad.expr import Index, evaluate

WHOLE = 16
"""The pages of a row are taken to be a multiple of this: sums over them run in so many parts at most, and which part a
page belongs to must not depend on how many pages other rows have."""


@dataclass(frozen=True)
class Piece:
    """Tokens of one conversation, the first of them at `position`; `pages` are its own, in order, those that these
    tokens go to as well, and `slot` that of its state. `wanted`: logits are asked for after the last one. `given`: the
    tokens are of a prompt."""

    tokens: Sequence[int]
    position: int
    pages: Sequence[int]
    slot: int
    wanted: bool
    given: bool = True


class _Inputs:
    """The operands of a step of at most `rows` tokens of conversations of at most `most` pages: one array of int32, so
    that it is one copy to the device."""

    def __init__(self, rows: int, most: int):
        self.rows, self.most, self.pairs = rows, -(-most // WHOLE) * WHOLE, rows * most
        sizes = {"tokens": rows, "positions": rows, "slots": rows, "places": rows, "wanted": rows,
                 "owners": self.pairs, "pages": self.pairs, "starts": self.pairs, "pairs": rows * self.most}
        ends = np.cumsum([*sizes.values()]).tolist()
        self.parts = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        self.size = ends[-1]
        self.dims = {name: Variable(name, 1, hi) for name, hi in
                     (("rows", rows), ("pairs", self.pairs), ("most", self.most), ("wanted", rows))}

    def packed(self, pieces: Sequence[Piece]) -> tuple[np.ndarray, dict[str, int]]:
        """The array of some pieces, and the numbers of rows, of pairs, of a row's most pages and of wanted rows."""
        made = np.zeros(self.size, np.int32)
        part = {name: made[at] for name, at in self.parts.items()}
        table = part["pairs"].reshape(self.rows, self.most)
        table[:] = -1
        row = pair = most = wanted = 0
        for piece in pieces:
            pages = np.asarray(piece.pages, np.int32)
            n, end = len(piece.tokens), piece.position + len(piece.tokens)
            positions = np.arange(piece.position, end, dtype=np.int32)
            here = slice(row, row + n)
            part["tokens"][here], part["positions"][here], part["slots"][here] = piece.tokens, positions, piece.slot
            part["places"][here] = pages[positions // PAGE] * PAGE + positions % PAGE
            for k, position in enumerate(positions.tolist(), row):
                count = position // PAGE + 1
                these = slice(pair, pair + count)
                part["owners"][these], part["pages"][these] = k, pages[:count]
                part["starts"][these] = np.arange(0, count * PAGE, PAGE)
                table[k, :count] = np.arange(pair, pair + count)
                pair, most = pair + count, max(most, count)
            row += n
            if piece.wanted:
                part["wanted"][wanted] = row - 1
                wanted += 1
        most = -(-most // WHOLE) * WHOLE
        return made, {"rows": row, "pairs": pair, "most": most, "wanted": max(wanted, 1)}

    def bound(self, counts: dict[str, int]) -> dict[str, Index]:
        """The numbers as dims of Tensors."""
        return {name: self.dims[name].bind(count) for name, count in counts.items()}

    def unpacked(self, packed: Tensor, counts: dict[str, Index], one: bool, alone: bool) -> tuple[Tensor, Rows, Tensor]:
        """Tokens, where they are, and the rows that are wanted. `alone`: there is a single row, as is known."""
        part = {name: packed[at] for name, at in self.parts.items()}
        n, m, most = counts["rows"], counts["pairs"], counts["most"]
        here = slice(0, 1 if alone else n)
        rows = Rows(part["positions"][here], part["slots"][here], part["places"][:n], part["owners"][:m],
                    part["pages"][:m], part["starts"][:m],
                    part["pairs"].reshape(self.rows, self.most)[:n, :most], one)
        return part["tokens"][here], rows, part["wanted"][:counts["wanted"]]


class Batch:
    """A model with the memory of many conversations: of `pages` pages and `slots` slots, of at most `rows` rows a step.

    Three captured programs: of any rows; of one row, which is used where it gives the same bits; and, of a model with
    states, of a piece of one prompt: such a piece is a call of its own, and a loop over its tokens, of which the
    rounding differs from that of rows. Whatever else comes in one call, and in pieces of which size, changes no bit.
    """

    def __init__(self, config: Config, tensors: dict[str, Weight], context: int, pages: int, slots: int, rows: int):
        self.memory = PagedMemory(pages, slots)
        self.model = Llama(config, tensors, context, self.memory)
        self.context, self.pages, self.slots, self.rows = self.model.capacity, pages, slots, rows
        most = -(-self.context // PAGE)
        self._inputs = _Inputs(rows, most)
        self.captured: dict[tuple[bool, bool, bool], Any] = {}
        """Steps by (of one conversation, of a single row, for hidden states)."""
        self.single = False

    @property
    def stateful(self) -> bool:
        """True where conversations have states besides keys and values: one's prompt is a call of its own then."""
        return bool(self.memory.in_slots)

    def run(self, pieces: Sequence[Piece]) -> np.ndarray:
        """Feeds pieces of different conversations; the logits after those that are wanted, float32 [wanted,
        vocabulary]."""
        return self._call(pieces, hidden=False)[:sum([piece.wanted for piece in pieces])]

    def hidden(self, piece: Piece) -> np.ndarray:
        """Feeds a piece; the last hidden states of its tokens, float32 [n, width]."""
        return self._call([piece], hidden=True)

    def _call(self, pieces: Sequence[Piece], hidden: bool) -> np.ndarray:
        one = self.stateful and pieces[0].given
        alone = self.single and not hidden and not one and sum([len(piece.tokens) for piece in pieces]) == 1
        packed, counts = self._inputs.packed(pieces)
        return self._step(one, alone, hidden)(Tensor(packed), self._inputs.bound(counts)).numpy()

    def _step(self, one: bool, alone: bool, hidden: bool) -> Callable[..., Tensor]:
        """The captured step."""
        def step(packed: Tensor, counts: dict[str, Index]) -> Tensor:
            tokens, rows, wanted = self._inputs.unpacked(packed, counts, one, alone)
            found = self.model.hidden(tokens, rows)
            if not hidden:
                found = self.model.logits(found if alone else found[wanted])
            Tensor.realize(found, *self.model.caches())
            return found

        key = one, alone, hidden
        if key not in self.captured:
            self.captured[key] = jit(step)
        return self.captured[key]

    def warm_up(self, done: Callable[[], Any] = lambda: None) -> None:
        """Compiles the programs, and finds out whether that of one row has the bits of that of many."""
        random, vocabulary = np.random.default_rng(0), self.model.config.vocabulary
        pages = list(range(min(self.pages, 4)))
        count = min(len(pages) * PAGE, self.context)
        tokens = random.integers(0, vocabulary, count).tolist()
        self.single = False
        for start in range(0, count - 1, self.rows):
            self.run([Piece(tokens[start:min(start + self.rows, count - 1)], start, pages, 0, True)])
        same = True
        saved = self.save_slot(0)
        for position in dict.fromkeys((count - 1, count // 2, 0)) if not self.stateful else (count - 1,) * 2:
            found = []
            for self.single in (False, True):
                self.load_slot(0, saved)
                found.append(self.run([Piece(tokens[position:position + 1], position, pages, 0, True, given=False)]))
            same = same and np.array_equal(found[0], found[1])
            done()
        self.single = same

    def save_slot(self, slot: int) -> list[np.ndarray]:
        """The state of a conversation, one array for each layer's part."""
        return [tensor[slot].numpy() for tensor in self.memory.in_slots]

    def load_slot(self, slot: int, saved: Sequence[np.ndarray]) -> None:
        """Puts a state into a slot."""
        for tensor, values in zip(self.memory.in_slots, saved, strict=True):
            tensor[slot] = Tensor(values)
        if saved:
            Tensor.realize(*self.memory.in_slots)

    def page_bytes(self) -> int:
        """Bytes of a page in all layers."""
        return sum([evaluate(tensor.nbytes(), {}) for tensor in self.memory.in_pages]) // self.pages


def pages_for(config: Config, cache_bytes: int, context: int, slots: int) -> int:
    """The pages that so many bytes hold, at most what all slots can use, at least one. Raises MinigradError where one
    conversation of the whole context does not fit."""
    attending = len([layer for layer in range(config.layers) if config.kind(layer).mixer == "attention"])
    row = config.head_size + 2 if config.cache == "int8" else config.head_size * CACHE_BITS[config.cache] / 8
    token = int(2 * attending * config.kv_heads * row)
    least, most = -(-context // PAGE), slots * -(-context // PAGE)
    found = min(most, cache_bytes // (token * PAGE)) if token else most
    if found < least:
        raise MinigradError(f"a cache of {size(cache_bytes)} does not hold one conversation of {context} tokens, which "
                            f"takes {size(least * PAGE * token)}; give it more memory or a shorter context")
    return found
