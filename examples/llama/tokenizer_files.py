"""Tokenizers from the files that models come with: GGUF, tokenizer.json, tokenizer.model and llama2.c's."""
from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from examples.llama.byte_bpe import ByteBPETokenizer
from examples.llama.tokenizer import SPACE, Kind, SentencePieceTokenizer, Tokenizer, sentencepiece_model
from minigrad.errors import FormatError
from minigrad.state import gguf_load

# GGUF's names for ways of cutting words -> ours, where they differ.
_GGUF_SPLITS = {"default": "gpt-2", "gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}
_SPLIT_OF_PATTERN = {r"\p{N}{1,3}": "llama-bpe", r"\p{N}": "qwen2"}


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file, chosen by its name's ending, or in a folder that holds one of the usual files."""
    if path.is_dir():
        found = [path / name for name in ("tokenizer.model", "tokenizer.json") if (path / name).is_file()]
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


def gguf_tokenizer(metadata: dict[str, Any], path: Path) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata. Raises FormatError for kinds other than "llama" and "gpt2"."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("llama", "gpt2"):
        raise FormatError(f"{path}: the tokenizer is of kind {kind!r}; expected 'llama' or 'gpt2'; "
                          "name another with --tokenizer")

    def entry(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}", default)

    pieces = entry("tokens", [])
    kinds = entry("token_type", [Kind.NORMAL] * len(pieces))
    bos, eos = entry("bos_token_id"), entry("eos_token_id")
    if not pieces or len(kinds) != len(pieces):
        raise FormatError(f"{path}: the tokenizer has {len(pieces)} pieces and {len(kinds)} kinds; expected as many of "
                          "both; download the model again")
    if kind == "llama":
        scores = entry("scores", [])
        if len(scores) != len(pieces):
            raise FormatError(f"{path}: the tokenizer has {len(pieces)} pieces and {len(scores)} scores; expected as "
                              "many of both; download the model again")
        if not entry("add_bos_token", True):
            bos = None
        model = sentencepiece_model(pieces, scores, kinds, -1 if bos is None else bos, -1 if eos is None else eos,
                                    entry("unknown_token_id", 0), entry("add_space_prefix", True))
        return SentencePieceTokenizer(model, str(path), ends=[entry("eot_token_id", -1)])
    split = entry("pre", "default")
    return ByteBPETokenizer(
        {piece: token for token, piece in enumerate(pieces)},
        [_pair(line, path) for line in entry("merges", [])],
        {piece: token for token, piece in enumerate(pieces) if kinds[token] == Kind.CONTROL},
        _GGUF_SPLITS.get(split, split), bos if entry("add_bos_token", split == "llama-bpe") else None, eos,
        whole_words=split == "llama-bpe",
        added={piece: token for token, piece in enumerate(pieces) if kinds[token] == Kind.USER_DEFINED})


def _pair(line: Any, path: Path) -> tuple[str, str]:
    """'a b' (or ['a', 'b'], as newer tokenizer.json files have it) -> ('a', 'b')."""
    parts = line.split(" ") if isinstance(line, str) else line
    if not isinstance(parts, list) or len(parts) != 2:
        raise FormatError(f"{path}: the tokenizer has the merge {line!r}; expected two pieces; get it again")
    return parts[0], parts[1]


def json_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json: byte-level BPE, or SentencePiece's vocabulary in that form (byte_fallback)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        model, added = content["model"], content.get("added_tokens") or []
        vocabulary, merges = model["vocab"], model["merges"]
        special = {token["content"]: token["id"] for token in added if token["special"]}
        plain = {token["content"]: token["id"] for token in added if not token["special"]}
        if model.get("type", "BPE") != "BPE" or not isinstance(vocabulary, dict):
            raise FormatError(f"{path}: the tokenizer is of type {model.get('type')!r}; expected BPE")
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: expected a tokenizer.json of a BPE tokenizer, got {type(error).__name__}: {error}; "
                          "get it again") from None
    bos, eos = _bos_and_eos(path)
    pairs = [_pair(line, path) for line in merges]
    if model.get("byte_fallback"):
        return _json_sentencepiece(path, vocabulary, pairs, special, plain, model.get("unk_token") or "<unk>", bos, eos)
    return ByteBPETokenizer(vocabulary, pairs, special,
                            _split_kind(content.get("pre_tokenizer"), path), special.get(bos or ""),
                            special.get(eos or ""), bool(model.get("ignore_merges")), plain)


def _bos_and_eos(path: Path) -> tuple[str | None, str | None]:
    """The names of the tokens that tokenizer_config.json beside it lists; BOS only where it is to be added."""
    config = path.with_name("tokenizer_config.json")
    if not config.is_file():
        return None, None
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        names = [settings.get(key) for key in ("bos_token", "eos_token")]
    except (ValueError, AttributeError) as error:
        raise FormatError(f"{config}: expected a JSON object: {error}; get it again") from None
    bos, eos = [name["content"] if isinstance(name, dict) else name for name in names]
    # LLaMA's tokenizers add BOS unless told not to; those of GPT-2's kind add none unless told to.
    usual = str(settings.get("tokenizer_class")).startswith("Llama") or bos == "<|begin_of_text|>"
    return (bos if settings.get("add_bos_token", usual) else None), eos


def _json_sentencepiece(path: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]], special: dict[str, int],
                        plain: dict[str, int], unknown: str, bos: str | None, eos: str | None) -> Tokenizer:
    """The SentencePiece model that was converted: merges were listed by the scores of what they make, best first."""
    everything = {**vocabulary, **special, **plain}
    pieces = sorted(everything, key=lambda piece: everything[piece])
    if [everything[piece] for piece in pieces] != list(range(len(pieces))) or unknown not in everything:
        raise FormatError(f"{path}: expected ids from 0 without gaps and the piece {unknown!r}; get it again")

    def kind(piece: str) -> Kind:
        if piece in special or piece in plain:
            return Kind.CONTROL if piece in special else Kind.USER_DEFINED
        return Kind.BYTE if len(piece) == 6 and piece.startswith("<0x") else Kind.NORMAL

    ranks: dict[str, int] = {}
    for rank, (first, second) in enumerate(merges):
        ranks.setdefault(first + second, rank)
    scores = [-float(ranks.get(piece, len(merges))) for piece in pieces]
    model = sentencepiece_model(pieces, scores, [kind(piece) for piece in pieces],
                                everything.get(bos or "<s>", -1), everything.get(eos or "</s>", -1),
                                everything[unknown])
    return SentencePieceTokenizer(model, str(path))


def _split_kind(pre_tokenizer: Any, path: Path) -> str:
    """Our name for what a tokenizer.json's `pre_tokenizer` does. Raises FormatError for anything else."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {}])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = str((steps[0].get("pattern") or {}).get("Regex"))
        for number, kind in _SPLIT_OF_PATTERN.items():
            if f"|{number}|" in pattern and r"[^\r\n\p{L}\p{N}]?\p{L}+" in pattern:
                return kind
    raise FormatError(f"{path}: the tokenizer cuts words by {kinds}; expected the way of GPT-2, SmolLM, LLaMA 3 or "
                      "Qwen 2; use a model with one of these")


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
