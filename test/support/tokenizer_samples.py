"""Small valid tokenizers of every format, as parts with fields that can be changed, and what reads and uses one."""
from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.file_samples import Part, Sample, gguf_part, json_part, tokenizer
from support.tokenizer_cases import (
    BLANKS,
    BYTES,
    BYTES_ONLY,
    LONG,
    TEXT,
    WRITTEN,
    learnt,
    sequence,
    split,
    step,
    template,
    token,
)

from examples.llama import templates
from examples.llama.tokenizer import SPACE, Kind, StreamDecoder, sentencepiece_model
from examples.llama.tokenizer_files import load_tokenizer

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
PIECES, MERGES = learnt([*SPECIAL, SPACE, "\u0120", *"abdeghlmnort[]TOK", "<0x0A>", "<0xC3>"], ["the", "ll", "ama"])
SETTINGS = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>", "add_bos_token": True,
            "tokenizer_class": "LlamaTokenizer"}


def json_file(model: dict[str, Any], **parts: Any) -> Sample:
    added = [token(number, name, special=True) for number, name in enumerate(SPECIAL)]
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        *added, token(len(PIECES), "[TOK]"), token(len(PIECES) + 1, "lama", normalized=True)], **parts,
        "model": {"type": "BPE", "dropout": None, **model, "vocab": dict(PIECES), "merges": list(MERGES)}}
    return {"tokenizer.json": json_part(content), "tokenizer_config.json": json_part(dict(SETTINGS))}


def byte_json() -> Sample:
    cuts = sequence("pre_tokenizer", step("Digits", individual_digits=True), split(LONG), BYTES_ONLY)
    normalizer = sequence("normalizer", step("NFC"), step("Strip", strip_left=True, strip_right=False))
    return json_file({"ignore_merges": True}, pre_tokenizer=cuts, decoder=BYTES, normalizer=normalizer,
                     post_processor=sequence("post_processor", BYTES, template("<s>", "A")))


def character_json() -> Sample:
    spaces = step("Metaspace", replacement=SPACE, prepend_scheme="first", split=True)
    return json_file({"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, normalizer=BLANKS,
                     pre_tokenizer=spaces, decoder=WRITTEN, post_processor=None)


SCORED = [*PIECES, *[piece for byte in range(256) if (piece := f"<0x{byte:02X}>") not in PIECES]]
"""SentencePiece needs all bytes, or none."""


def kinds(pieces: Iterable[str]) -> list[int]:
    named = {"<unk>": Kind.UNKNOWN, "[": Kind.USER_DEFINED, **dict.fromkeys(SPECIAL[1:], Kind.CONTROL)}
    return [int(named.get(piece, Kind.BYTE if piece.startswith("<0x") else Kind.NORMAL)) for piece in pieces]


def scores() -> list[float]:
    return [-float(number) for number in range(len(SCORED))]


def gguf(kind: str, pieces: Iterable[str], **further: tuple[int, Any]) -> Sample:
    fields: dict[str, tuple[int, Any]] = {
        "model": (8, kind), "tokens": (9, (8, list(pieces))), "token_type": (9, (5, kinds(pieces))),
        "bos_token_id": (4, 1), "eos_token_id": (4, 2), "unknown_token_id": (4, 0), "add_bos_token": (7, True),
        **further}
    return {"tokenizer.gguf": gguf_part([(f"tokenizer.ggml.{key}", *value) for key, value in fields.items()], {})}


TOKENIZERS = {
    "tokenizer.json of bytes": byte_json,
    "tokenizer.json of characters": character_json,
    "tokenizer in gguf, gpt2": lambda: gguf("gpt2", PIECES, pre=(8, "llama-bpe"), merges=(9, (8, list(MERGES)))),
    "tokenizer in gguf, llama": lambda: gguf("llama", SCORED, scores=(9, (6, scores())), eot_token_id=(4, 4),
                                             add_space_prefix=(7, True), remove_extra_whitespaces=(7, False)),
    "tokenizer.model": lambda: {"tokenizer.model": Part(sentencepiece_model(
        SCORED, scores(), kinds(SCORED), 1, 2, 0), bytes)},
    "tokenizer of llama2c": lambda: {"tok.bin": Part(tokenizer(), bytes)},
}


def read_tokenizer(folder: Path) -> None:
    """Texts to tokens, every token to text, and a conversation."""
    gguf = folder / "tokenizer.gguf"
    made = load_tokenizer(gguf if gguf.is_file() else folder)
    made.decode(made.encode(TEXT))
    decoder, number = StreamDecoder(made), random.Random(0)
    for known in [*range(min(made.size, 300)), *made.ends, *([made.bos] if made.bos is not None else [])]:
        decoder.add(known)
    decoder.add(number.randrange(made.size))
    decoder.finish()
    messages = [{"role": "user", "content": "Hello <|im_end|> the llama"}]
    templates.Template(templates.CHATML, made).tokens(messages)
