"""Byte-level BPE, the kind of GPT-2, LLaMA 3 and SmolLM: text is cut into words, and the bytes of each are merged by
rank.
"""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

from examples.llama.bpe import BPETokenizer, Rules
from minigrad.errors import FormatError

_GPT2 = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
_LLAMA3 = (r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{DIGITS}"
           r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DIGIT, DIGITS = re.compile(r"[0-9]|[^0-9]+"), re.compile(r"[0-9]+|[^0-9]+")

# How each kind of vocabulary cuts text: patterns applied one inside the other, over the shadow that `_shadow` makes.
SPLITS: dict[str, tuple[re.Pattern, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (DIGIT, _GPT2),
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
_ASCII_NAMES = dict(enumerate(BYTE_NAMES[:128]))


@lru_cache(maxsize=65536)
def _shadow_character(character: str) -> str:
    """An ASCII character of the same class: the vocabularies' patterns ask for Unicode's letters, numbers and spaces.

    ASCII stands for itself; other letters become "a", which is in no contraction, numbers "0", white space a tab. The
    long s is an "s" where case does not matter, as in LLaMA 3's contractions.
    """
    if character == "\u017f":
        return "S"
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


def byte_names(word: str) -> str:
    """The printable characters that stand for the bytes of a word."""
    if word.isascii():
        return word.translate(_ASCII_NAMES)
    return "".join([BYTE_NAMES[byte] for byte in word.encode(errors="replace")])


def named_bytes(piece: str) -> bytes:
    """The bytes that a piece stands for; its own where it is not written in their names."""
    found = [_NAME_BYTES.get(character, -1) for character in piece]
    return piece.encode(errors="replace") if -1 in found else bytes(found)


class ByteBPETokenizer(BPETokenizer):
    """A vocabulary in GPT-2's byte names, whose words are cut as `split`, a row of SPLITS, says.

    Bytes that the vocabulary does not have are left out. With `whole_words` a word that is a piece is taken whole,
    whatever the merges say (LLaMA 3).
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], special: dict[str, int],
                 split: str, bos: int | None = None, eos: int | None = None, whole_words: bool = False,
                 added: Mapping[str, int] | None = None):
        if split not in SPLITS:
            raise FormatError(f"the tokenizer cuts words as {split!r}; expected one of {', '.join(SPLITS)}; "
                              "use a model with one of these")

        def cut(text: str, _: bool) -> list[str]:
            return [byte_names(word) for word in split_words(text, SPLITS[split])]

        super().__init__(vocabulary, merges, special, Rules(str, cut, named_bytes, whole_words=whole_words), bos, eos,
                         added)
