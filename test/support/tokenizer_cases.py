"""Contents of tokenizer.json files with most of the options of Hugging Face's tokenizers.

Two small vocabularies: one of byte names (GPT-2's kind), one of characters with bytes for the others (LLaMA 2's kind).
"""
from __future__ import annotations

from typing import Any

from examples.llama.tokenizer import SPACE
from examples.llama.tokenizer_bpe import BYTE_NAMES

TEXT = ("Hello  the llama!\n\n It's 12345 [TOK]o, don't WE'LL na\u00efve \u03a3\u0391\u03a3 \ufb01ne\u00a0\u00bd "
        "\u2167 e\u0301 \u65e5\u672c \U0001f999\u200d <s> the ")
WORDS = ("the", " the", "Hello", " It", "'s", " don", "'t", "12", "123", "ll", "'LL", " ll", "ama", "!\n", "\n\n",
         "\u00ef", "\u03a3", " \u03a3", "hello", "llama")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = {**BYTES, "use_regex": False}
LONG = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
SHORT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders",
              "post_processor": "processors"}
_OFF = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def byte_names(word: str) -> str:
    """The printable characters that stand for the bytes of a word."""
    return "".join([BYTE_NAMES[byte] for byte in word.encode()])


def step(kind: str, **options: Any) -> dict[str, Any]:
    return {"type": kind, **options}


def sequence(part: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", _SEQUENCES[part]: list(steps)}


def split(expression: str, behavior: str = "Isolated", invert: bool = False, kind: str = "Regex") -> dict[str, Any]:
    return step("Split", pattern={kind: expression}, behavior=behavior, invert=invert)


def token(number: int, content: str, **options: bool) -> dict[str, Any]:
    return {"id": number, "content": content, **_OFF, **options}


def learnt(alphabet: list[str], words: list[str]) -> tuple[dict[str, int], list[str]]:
    """A vocabulary with these words, and merges that join each from the left."""
    vocabulary, merges = {piece: number for number, piece in enumerate(alphabet)}, []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append(f"{word[:end - 1]} {word[end - 1]}")
    return vocabulary, merges


def file_of(vocabulary: dict[str, int], merges: list[str], model: dict[str, Any], parts: dict[str, Any],
            changes: dict[str, Any]) -> dict[str, Any]:
    """A whole tokenizer.json. `changes` replaces parts of it; "model" those of its model, "add" are further tokens."""
    changes = dict(changes)
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **model,
             "vocab": vocabulary, "merges": merges, **changes.pop("model", {})}
    added = [token(vocabulary["<s>"], "<s>", special=True)]
    added += [{**t, "id": len(model["vocab"]) + k} for k, t in enumerate(changes.pop("add", ()))]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, **parts, "model": model, **changes}


def byte_file(**changes: Any) -> dict[str, Any]:
    """Bytes by their names, but for one, words cut as GPT-2 cuts them."""
    alphabet = ["<s>", *BYTE_NAMES]
    alphabet.remove(BYTE_NAMES[0xE6])  # is left out
    vocabulary, merges = learnt(alphabet, [byte_names(word) for word in WORDS])
    return file_of(vocabulary, merges, {}, {"pre_tokenizer": BYTES, "decoder": BYTES}, changes)


BLANKS = sequence("normalizer", step("Prepend", prepend=SPACE), step("Replace", pattern={"String": " "}, content=SPACE))
_UNDO = (step("Replace", pattern={"String": SPACE}, content=" "), step("ByteFallback"), step("Fuse"))
WRITTEN = sequence("decoder", *_UNDO, step("Strip", content=" ", start=1, stop=0))


def character_file(**changes: Any) -> dict[str, Any]:
    """Characters, bytes for those that are not there, spaces written as SentencePiece writes them."""
    alphabet = ["<unk>", "<s>", *[f"<0x{byte:02X}>" for byte in range(256)], SPACE, "\n", *map(chr, range(33, 127))]
    vocabulary, merges = learnt(alphabet, [word.replace(" ", SPACE) for word in WORDS if word.isascii()])
    model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return file_of(vocabulary, merges, model, {"normalizer": BLANKS, "decoder": WRITTEN}, changes)


def metaspace(scheme: str, split: bool, **changes: Any) -> dict[str, Any]:
    return character_file(normalizer=None, pre_tokenizer=step("Metaspace", replacement=SPACE, prepend_scheme=scheme,
                                                              split=split), **changes)


def normalized(kind: str, **options: Any) -> dict[str, Any]:
    return byte_file(normalizer=step(kind, **options))


def cut(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return byte_file(pre_tokenizer=sequence("pre_tokenizer", *steps), **changes)


def template(*names: str) -> dict[str, Any]:
    """`names` with "A" for the text."""
    single = [{"Sequence" if n == "A" else "SpecialToken": {"id": n, "type_id": 0}} for n in names]
    return step("TemplateProcessing", single=single, pair=single,
                special_tokens={"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}})


def _without(vocabulary: dict[str, int], start: str) -> dict[str, int]:
    return {piece: number for piece, number in vocabulary.items() if not piece.startswith(start)}


_CHARACTERS = character_file()["model"]["vocab"]

RIGHT: dict[str, dict[str, Any]] = {
    "gpt-2": byte_file(),
    "prefix space": byte_file(pre_tokenizer={**BYTES, "add_prefix_space": True}),
    "one word": byte_file(pre_tokenizer=BYTES_ONLY),
    "smollm": cut(step("Digits", individual_digits=True), BYTES),
    "runs of digits": cut(step("Digits", individual_digits=False), BYTES),
    "prefix of each part": cut(step("Digits", individual_digits=True), {**BYTES, "add_prefix_space": True}),
    "llama 3": cut(split(LONG), BYTES_ONLY, model={"ignore_merges": True}),
    "qwen 2": cut(split(LONG.replace("{1,3}", "")), BYTES_ONLY, normalizer=step("NFC")),
    "what is not matched removed": cut(split(LONG, "Removed", True), BYTES_ONLY),
    "gpt-2 by expression": cut(split(SHORT), BYTES_ONLY),
    "added": byte_file(add=[token(0, "[TOK]"), token(0, " don"), token(0, "[TOK]o")]),
    "added, normalized": byte_file(normalizer=step("Lowercase"), add=[
        token(0, "[TOK]", normalized=True), token(0, "LLama", normalized=True), token(0, "It's")]),
    "padding of batches": byte_file(padding={"strategy": "BatchLongest", "direction": "Right", "pad_id": 0,
                                             "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "<s>"}),
    "no dropout": byte_file(model={"dropout": 0.0}),
    **{kind: normalized(kind) for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")},
    "Strip": normalized("Strip", strip_left=True, strip_right=True),
    "Strip left": normalized("Strip", strip_left=True, strip_right=False),
    "Replace": normalized("Replace", pattern={"String": "l"}, content="LL"),
    "Prepend": normalized("Prepend", prepend="> "),
    "several normalizers": byte_file(normalizer=sequence("normalizer", step("NFKC"), sequence(
        "normalizer", step("Lowercase"), step("Strip", strip_left=False, strip_right=True)))),
    "a template": byte_file(post_processor=sequence("post_processor", BYTES, template("<s>", "A"))),
    "a template without tokens": byte_file(post_processor=template("A")),
    "llama 2": character_file(),
    "metaspace first": metaspace("first", False),
    "metaspace always": metaspace("always", True),
    "metaspace never": metaspace("never", True),
    "metaspace first, added": metaspace("first", True, add=[token(0, "[TOK]"), token(0, "lama", normalized=True)]),
    "whole words": metaspace("always", True, model={"ignore_merges": True}),
    "written, added": character_file(add=[token(0, "[TOK]"), token(0, "lama")]),
    "written, added, normalized": character_file(add=[token(0, "[TOK]", normalized=True), token(0, "lama")]),
    "unknown, each": character_file(model={"byte_fallback": False, "fuse_unk": False}),
    "unknown, fused": character_file(model={"byte_fallback": False}),
    "unknown, left out": character_file(model={"byte_fallback": False, "unk_token": None}),
    "some bytes": character_file(model={"vocab": _without(_CHARACTERS, "<0xE")}),
    "some bytes, each": character_file(model={"vocab": _without(_CHARACTERS, "<0xC"), "fuse_unk": False}),
    "no space stripped": character_file(decoder=sequence("decoder", *_UNDO)),
}
