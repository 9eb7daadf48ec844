"""Text to token ids and back: what every tokenizer offers, and SentencePiece vocabularies.

SentencePiece's own algorithm does the work for all vocabularies of its kind: those in GGUF files, in tokenizer.json and
in llama2.c's files are given to it as the model file they once were.
"""
from __future__ import annotations

import codecs
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path

from minigrad.errors import FormatError
from minigrad.state.fields import brief

SPACE = "\u2581"  # how SentencePiece writes a space inside a piece
_END_NAMES = ("</s>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")


class Kind(IntEnum):
    """The kind of a piece, numbered as in SentencePiece models and in GGUF."""

    NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Tokenizer(ABC):
    """`special` maps the names of control tokens to ids; `bos` starts a text (None: nothing does); `ends` stop an
    answer.

    `leading_space` says that the first piece of a text carries a space that is not in the text. `named` are the names
    that chat templates ask for (bos_token...), `strip_after` those of control tokens that take the white space after
    them.
    """

    size: int
    special: dict[str, int]
    bos: int | None
    ends: frozenset[int]
    leading_space: bool = False
    named: dict[str, str]
    strip_after: frozenset[str] = frozenset()

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of plain text: no token is added, and the names of control tokens in it are ordinary characters."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a token stands for, maybe part of a character; none for control tokens."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        decoder = StreamDecoder(self)
        return "".join([decoder.add(token) for token in tokens]) + decoder.finish()

    def _find_ends(self, *tokens: int | None) -> frozenset[int]:
        """The given ids and every control token with a usual name for an end."""
        named = [self.special[name] for name in _END_NAMES if name in self.special]
        return frozenset([token for token in tokens if token is not None and token >= 0] + named)


class StreamDecoder:
    """Text of tokens as they come: an incomplete UTF-8 character is held back until its last byte is there.

    With `continues`, the tokens follow earlier text, so a space at their start is meant.
    """

    def __init__(self, tokenizer: Tokenizer, continues: bool = False):
        self.tokenizer = tokenizer
        self.strip = tokenizer.leading_space and not continues
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The characters that `token` completes; often none."""
        data = self.tokenizer.token_bytes(token)
        if data and self.strip:
            data, self.strip = data.removeprefix(b" "), False
        return self.decoder.decode(data)

    def finish(self) -> str:
        """The text that is left when no more tokens come: U+FFFD for an incomplete character."""
        return self.decoder.decode(b"", final=True)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (serialised ModelProto) run by the `sentencepiece` package."""

    def __init__(self, model: bytes, source: str, bos: int | None = None, ends: Sequence[int] = ()):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise FormatError(f'{source}: its tokenizer needs sentencepiece: pip install "minigrad[chat]"') from None
        try:
            processor = self.processor = SentencePieceProcessor(model_proto=model or b"an empty file")
            self.size = processor.get_piece_size()
            self.pieces: list[str] = processor.id_to_piece(list(range(self.size)))
        except (RuntimeError, UnicodeDecodeError) as error:
            reason = brief(str(error).splitlines()[-1])
            raise FormatError(f"{source}: expected a SentencePiece model: {reason}; get the tokenizer again") from None
        self.special = {piece: i for i, piece in enumerate(self.pieces) if processor.is_control(i)}
        self.bos = bos if bos is not None else processor.bos_id() if processor.bos_id() >= 0 else None
        self.ends = self._find_ends(processor.eos_id(), *ends)
        named = {"bos_token": processor.bos_id(), "eos_token": processor.eos_id(), "unk_token": processor.unk_id()}
        self.named = {key: self.pieces[token] for key, token in named.items() if token >= 0}
        # A word encodes with the prefix iff the model adds one.
        self.leading_space = self.decodes_to(processor.encode("a")) == b" a"

    @staticmethod
    def load(path: Path) -> SentencePieceTokenizer:
        """A tokenizer.model file."""
        return SentencePieceTokenizer(path.read_bytes(), str(path))

    def encode(self, text: str) -> list[int]:
        return self.processor.encode(text)

    def decodes_to(self, tokens: Iterable[int]) -> bytes:
        return b"".join([self.token_bytes(token) for token in tokens])

    def token_bytes(self, token: int) -> bytes:
        if self.processor.is_control(token):
            return b""
        piece = self.pieces[token]
        if self.processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])  # <0x0A>
        return piece.replace(SPACE, " ").encode()


def sentencepiece_model(pieces: Sequence[str], scores: Sequence[float], kinds: Sequence[int], bos: int, eos: int,
                        unknown: int, add_prefix: bool = True, squeeze: bool = False) -> bytes:
    """The ModelProto (protobuf) of a BPE vocabulary: pieces with scores and kinds, nothing normalised but the spaces;
    with `squeeze`, of several only one is kept, and none at the start and the end.

    https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto gives the fields' numbers.
    """
    out = bytearray()
    for index, (piece, score, kind) in enumerate(zip(pieces, scores, kinds, strict=True)):
        kind = Kind.UNKNOWN if index == unknown else kind if kind != Kind.UNKNOWN else Kind.UNUSED
        entry = _bytes(1, _utf8(piece)) + b"\x15" + struct.pack("<f", score) + _int(3, kind)
        out += _bytes(1, entry)
    has_bytes = any(kind == Kind.BYTE for kind in kinds)
    trainer = (_int(3, 2) + _int(4, len(pieces)) + _int(35, has_bytes) + _int(40, unknown) + _int(41, bos)
               + _int(42, eos) + _int(43, -1) + _bytes(45, _utf8(pieces[unknown])))
    for field, token in ((46, bos), (47, eos)):
        if token >= 0:
            trainer += _bytes(field, _utf8(pieces[token]))
    normalizer = _bytes(1, b"identity") + _int(3, add_prefix) + _int(4, squeeze) + _int(5, True)
    return bytes(out + _bytes(2, trainer) + _bytes(3, normalizer))


def _utf8(piece: str) -> bytes:
    return piece.encode(errors="surrogateescape")


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are written as their 64-bit complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
