"""Tokenizers from the files that models come with: GGUF, tokenizer.json, tokenizer.model and llama2.c's."""
from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.llama.tokenizer import SPACE, Kind, SentencePieceTokenizer, Tokenizer, sentencepiece_model
from examples.llama.tokenizer_bpe import gguf_bpe, json_tokenizer
from minigrad.errors import FormatError
from minigrad.state import gguf_load
from minigrad.state.fields import Fields, wrong

LARGEST_SCORE = 3.4e38  # of float32, in which SentencePiece keeps them


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file, chosen by its name's ending, or in a folder that holds one of the usual files."""
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "tokenizer.model") if (path / name).is_file()]
        found += sorted(path.glob("tok*.bin"))
        if not found:
            raise FormatError(f"{path}: expected tokenizer.model or tokenizer.json in the folder, found neither; "
                              "copy it there or name it with --tokenizer")
        path = found[0]
    if not path.is_file():
        raise FormatError(f"{path}: there is no such tokenizer; expected a file or a folder with one; "
                          "name it with --tokenizer")
    if path.suffix == ".gguf":
        return gguf_tokenizer(gguf_load(path)[0], path)
    if path.suffix == ".json":
        return json_tokenizer(path)
    if path.suffix == ".bin":
        return llama2c_tokenizer(path)
    return SentencePieceTokenizer.load(path)


def gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata. Raises FormatError for kinds other than "llama" and "gpt2"."""
    prefix = "tokenizer.ggml."
    fields = Fields({key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)},
                    f"{path}: its tokenizer")
    kind = fields.text("model")
    if kind not in ("llama", "gpt2"):
        raise FormatError(f"{path}: the tokenizer is of kind {kind!r}; expected 'llama' or 'gpt2'; "
                          "name another with --tokenizer")
    pieces = fields.items("tokens", str)
    if not pieces:
        raise wrong(fields.source, "'tokens'", "pieces of text", pieces)
    kinds = fields.items("token_type", int, length=len(pieces), default=[int(Kind.NORMAL)] * len(pieces))
    if not set(kinds) <= set(map(int, Kind)):
        raise wrong(fields.source, "'token_type'", f"kinds from 1 to {len(Kind)}", kinds)

    def token(name: str, default: int = -1) -> int:
        return fields.count(name, 0, len(pieces) - 1) if name in fields else default

    bos, eos = token("bos_token_id"), token("eos_token_id")
    named = {key: pieces[number] for key, number in (("bos_token", bos), ("eos_token", eos)) if number >= 0}
    if kind == "llama":
        scores = fields.items("scores", float, int, length=len(pieces))
        if not all([abs(score) <= LARGEST_SCORE for score in scores]):  # nor NaN
            raise wrong(fields.source, "'scores'", "numbers of float32", scores)
        model = sentencepiece_model(pieces, scores, kinds, bos if fields.flag("add_bos_token", True) else -1, eos,
                                    token("unknown_token_id", 0), fields.flag("add_space_prefix", True),
                                    fields.flag("remove_extra_whitespaces", False))
        tokenizer = SentencePieceTokenizer(model, str(path), ends=[token("eot_token_id")])
        tokenizer.named |= named
        return tokenizer
    return gguf_bpe(fields, pieces, kinds, named, bos)


def llama2c_tokenizer(path: Path) -> Tokenizer:
    """llama2.c's vocabulary: i32 longest piece, then f32 score, i32 length and the bytes of each piece, spaces as such.
    """
    data, at = path.read_bytes(), 4
    pieces: list[str] = []
    scores: list[float] = []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at) if at + 8 <= len(data) else (0.0, -1)
        if length < 0 or at + 8 + length > len(data):
            raise FormatError(f"{path}: truncated or corrupt: piece {len(pieces)} ends behind the file's {len(data)} "
                              "bytes; expected a tokenizer of llama2.c; get it again")
        if not abs(score) <= LARGEST_SCORE:
            raise wrong(path, f"the score of piece {len(pieces)}", "a number", score)
        scores.append(score)
        pieces.append(data[at + 8:at + 8 + length].decode(errors="surrogateescape").replace(" ", SPACE))
        at += 8 + length
    if len(pieces) < 259:
        raise FormatError(f"{path}: expected a tokenizer of llama2.c (3 control pieces, 256 bytes and more), got "
                          f"{len(pieces)} pieces; get it again")
    pieces[:3] = ["<unk>", "<s>", "</s>"]  # written there with line ends around them
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL] + [Kind.BYTE] * 256 + [Kind.NORMAL] * (len(pieces) - 259)
    # Training texts were joined by BOS alone, so it ends a story too.
    return SentencePieceTokenizer(sentencepiece_model(pieces, scores, kinds, 1, 2, 0), str(path), ends=[1])
