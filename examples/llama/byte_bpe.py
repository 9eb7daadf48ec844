"""Byte-level BPE, the kind of GPT-2, LLaMA 3 and SmolLM: text is cut into words, and the bytes of each are merged by
rank.
"""
from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

from examples.llama.tokenizer import Tokenizer
from minigrad.errors import FormatError

_GPT2 = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
_LLAMA3 = (r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{DIGITS}"
           r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_DIGIT = re.compile(r"[0-9]|[^0-9]+")

# How each kind of vocabulary cuts text: patterns applied one inside the other, over the shadow that `_shadow` makes.
SPLITS: dict[str, tuple[re.Pattern, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (_DIGIT, _GPT2),
    "llama-bpe": (re.compile(_LLAMA3.replace("DIGITS", "1,3"), re.ASCII),),
    "qwen2": (re.compile(_LLAMA3.replace("DIGITS", "1"), re.ASCII),),
}


def _byte_names() -> list[str]:
    """The printable character that stands for each byte in GPT-2's vocabulary files."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in names]
    names |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


BYTE_NAMES = _byte_names()
_NAME_BYTES = {name: byte for byte, name in enumerate(BYTE_NAMES)}


@lru_cache(maxsize=65536)
def _shadow_character(character: str) -> str:
    """An ASCII character of the same class: the vocabularies' patterns ask for Unicode's letters, numbers and spaces.

    ASCII stands for itself; other letters become "A" and "a" is in no contraction, numbers "0", white space a tab.
    """
    category = unicodedata.category(character)
    if category[0] in "LN":
        return "a" if category[0] == "L" else "0"
    return "\t" if character.isspace() else "!"


def _shadow(text: str) -> str:
    if text.isascii():
        return text.translate(_CONTROLS)
    return "".join([c if c < "\x80" else _shadow_character(c) for c in text]).translate(_CONTROLS)


_CONTROLS = {code: "!" for code in range(0x1C, 0x20)}  # Python counts these separators as spaces, Unicode does not


def split_words(text: str, patterns: Iterable[re.Pattern]) -> list[str]:
    """`text` cut into the words that `patterns` match, the later ones inside the matches of the earlier; nothing is
    lost.
    """
    spans, shadow = [(0, len(text))], _shadow(text)
    for pattern in patterns:
        spans = [(start + match.start(), start + match.end()) for start, end in spans
                 for match in pattern.finditer(shadow[start:end])]
    return [text[start:end] for start, end in spans]


class ByteBPETokenizer(Tokenizer):
    """`vocabulary` maps pieces (in GPT-2's byte names) to ids, `merges` lists pairs of pieces, best first.

    `special` are control tokens by name, `added` further tokens in plain text, matched before words are cut; `split`
    names a row of SPLITS; with `whole_words` a word that is a piece is taken whole, whatever the merges say (LLaMA 3).
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], special: dict[str, int],
                 split: str, bos: int | None = None, eos: int | None = None, whole_words: bool = False,
                 added: Mapping[str, int] | None = None):
        if split not in SPLITS:
            raise FormatError(f"the tokenizer cuts words as {split!r}; expected one of {', '.join(SPLITS)}; "
                              "use a model with one of these")
        self.vocabulary, self.special, self.bos, self.whole_words = vocabulary, special, bos, whole_words
        self.missing = frozenset(byte for byte, name in enumerate(BYTE_NAMES) if name not in vocabulary)
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        unknown = next((a + b for a, b in self.ranks if a + b not in vocabulary), None)
        if unknown is not None:
            raise FormatError(f"the tokenizer merges into {unknown!r}, which is not in its vocabulary; get it again")
        self.patterns = SPLITS[split]
        self.added = dict(added or {})
        longest_first = sorted(self.added, key=len, reverse=True)
        self.added_pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self.added else None
        self.pieces = {token: piece for piece, token in vocabulary.items()}
        self.plain = {token: text.encode() for text, token in self.added.items()}
        self.size = 1 + max([*self.pieces, *self.plain, *special.values()], default=-1)
        self.control = frozenset(special.values())
        self.ends = self._find_ends(eos)
        self._encode_word = lru_cache(maxsize=16384)(self._merge_word)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for part in self.added_pattern.split(text) if self.added_pattern else [text]:
            if part in self.added:
                tokens.append(self.added[part])
            else:
                tokens += [token for word in split_words(part, self.patterns) for token in self._encode_word(word)]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        if token in self.plain:
            return self.plain[token]
        if token in self.control or token not in self.pieces:
            return b""
        return bytes([_NAME_BYTES[c] for c in self.pieces[token] if c in _NAME_BYTES])

    def _merge_word(self, word: str) -> tuple[int, ...]:
        # A byte that the vocabulary does not have is left out, as the reference implementations do.
        symbols = [BYTE_NAMES[byte] for byte in word.encode(errors="replace") if byte not in self.missing]
        if self.whole_words and (token := self.vocabulary.get("".join(symbols))) is not None:
            return (token,)
        return tuple([self.vocabulary[symbol] for symbol in merge(symbols, self.ranks)])


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
