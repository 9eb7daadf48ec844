"""Byte-pair encoding: words are cut into characters, and neighbours are merged by rank.

    text -> sections between added tokens -> normalised -> words -> symbols -> merged symbols -> ids

What normalises, cuts and decodes are functions: those of GPT-2's kind are in `byte_bpe.py`, those that a tokenizer.json
names in `tokenizer_json.py`.
"""
from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from examples.llama.tokenizer import Tokenizer
from minigrad.errors import FormatError

Cut = Callable[[str, bool], list[str]]
"""A text, and whether it is the start of what was asked for, to words."""

LONGEST_KNOWN = 64
"""Characters of words that are remembered with their tokens: some tokenizers take a whole text as one."""


@dataclass(frozen=True)
class Rules:
    """The steps from text to words, and from pieces to bytes.

    Characters that the vocabulary lacks are written as bytes <0x0A> with `byte_fallback`, if it has these; otherwise
    they are the piece `unknown`, one for all neighbours with `fuse_unknown`, or left out where that is None. With
    `whole_words` a word that is a piece is taken whole, whatever the merges say.
    """

    normalize: Callable[[str], str]
    cut: Cut
    piece_bytes: Callable[[str], bytes]
    leading_space: bool = False
    unknown: str | None = None
    fuse_unknown: bool = False
    byte_fallback: bool = False
    whole_words: bool = False


class BPETokenizer(Tokenizer):
    """`vocabulary` maps pieces to ids, `merges` lists pairs of pieces, best first.

    `special` are control tokens by name, `added` further tokens that are found in plain text before it is normalised,
    `late` those that are found after it.
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], special: dict[str, int],
                 rules: Rules, bos: int | None = None, eos: int | None = None,
                 added: Mapping[str, int] | None = None, late: Mapping[str, int] | None = None):
        self.vocabulary, self.special, self.bos, self.rules = vocabulary, special, bos, rules
        self.leading_space = rules.leading_space
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        lost = next((a + b for a, b in self.ranks if a + b not in vocabulary), None)
        if lost is not None:
            raise FormatError(f"the tokenizer merges into {lost!r}, which is not in its vocabulary; get it again")
        if rules.unknown is not None and rules.unknown not in vocabulary:
            raise FormatError(f"the tokenizer's unk_token {rules.unknown!r} is not in its vocabulary; get it again")
        if "" in {**special, **(added or {}), **(late or {})}:
            raise FormatError("the tokenizer has an added token without text; get it again")
        self.added, self.late = _Added(added or {}), _Added({rules.normalize(t): i for t, i in (late or {}).items()})
        self.pieces = {token: piece for piece, token in vocabulary.items()}
        self.plain = {token: _utf8(text) for text, token in self.added.tokens.items()}
        self.plain |= {token: rules.piece_bytes(text) for text, token in self.late.tokens.items()}
        self.size = 1 + max([*self.pieces, *self.plain, *special.values()], default=-1)
        self.control = frozenset(special.values())
        self.ends = self._find_ends(eos)
        self._known_word = lru_cache(maxsize=16384)(self._merge_word)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for start, raw, known in self.added.sections(text):
            if known is not None:
                tokens.append(known)
                continue
            for at, section, token in self.late.sections(self.rules.normalize(raw)):
                if token is not None:
                    tokens.append(token)
                    continue
                for word in self.rules.cut(section, start == at == 0):
                    tokens += self._known_word(word) if len(word) <= LONGEST_KNOWN else self._merge_word(word)
        return tokens

    def token_bytes(self, token: int) -> bytes:
        if token in self.plain:
            return self.plain[token]
        if token in self.control or token not in self.pieces:
            return b""
        return self.rules.piece_bytes(self.pieces[token])

    def _merge_word(self, word: str) -> tuple[int, ...]:
        if self.rules.whole_words and (token := self.vocabulary.get(word)) is not None:
            return (token,)
        return tuple([self.vocabulary[symbol] for symbol in merge(self._symbols(word), self.ranks)])

    def _symbols(self, word: str) -> list[str]:
        """The pieces of single characters, and what stands for those that are no pieces."""
        symbols: list[str] = []
        unknown, waiting = self.rules.unknown, False
        for character in word:
            if character in self.vocabulary:
                symbols += [unknown] if waiting and unknown is not None else []
                symbols.append(character)
                waiting = False
                continue
            names = [f"<0x{byte:02X}>" for byte in _utf8(character)] if self.rules.byte_fallback else []
            if names and all([name in self.vocabulary for name in names]):
                symbols += names  # before an unknown one that waits, as the reference implementation does
            elif unknown is not None:
                symbols += [unknown] if waiting and not self.rules.fuse_unknown else []
                waiting = True
        return [*symbols, unknown] if waiting and unknown is not None else symbols


class _Added:
    """Tokens that are found in text: the first one, and the longest where several start there."""

    def __init__(self, tokens: Mapping[str, int]):
        self.tokens = dict(tokens)
        names = sorted(self.tokens, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, names))) if names else None

    def sections(self, text: str) -> Iterator[tuple[int, str, int | None]]:
        """Start, text and id of what is such a token, and those of what stands between, which has none."""
        at = 0
        for match in self.pattern.finditer(text) if self.pattern else ():
            if match.start() > at:
                yield at, text[at:match.start()], None
            yield match.start(), match[0], self.tokens[match[0]]
            at = match.end()
        if at < len(text):
            yield at, text[at:], None


def _utf8(text: str) -> bytes:
    """The UTF-8 bytes of a text. Lone surrogates, which are no characters, become question marks."""
    return text.encode(errors="replace")


def merge(symbols: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Joins neighbouring symbols, always the pair of lowest rank, leftmost first, until no pair has a rank.

    A heap of candidate pairs over a linked list: n log n for a word of n bytes.
    """
    symbols = list(symbols)
    after = [*range(1, len(symbols)), -1]
    before = list(range(-1, len(symbols) - 1))
    heap: list[tuple[int, int, str, str]] = []

    def offer(left: int) -> None:
        if left >= 0 and after[left] >= 0:
            pair = (symbols[left], symbols[after[left]])
            if (rank := ranks.get(pair)) is not None:
                heapq.heappush(heap, (rank, left, *pair))

    for index in range(len(symbols)):
        offer(index)
    while heap:
        _, left, first, second = heapq.heappop(heap)
        right = after[left]
        if right < 0 or symbols[left] != first or symbols[right] != second:
            continue  # one of the two was merged since
        symbols[left], symbols[right] = first + second, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left])
        offer(left)
    return [symbol for symbol in symbols if symbol]
