"""Tokenizers: golden cases of llama.cpp, round trips through every file format, streaming."""
from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_cases import BYTES, learnt, token

from examples.llama.tokenizer import (
    SPACE,
    Kind,
    SentencePieceTokenizer,
    StreamDecoder,
    Tokenizer,
    sentencepiece_model,
)
from examples.llama.tokenizer_bpe import BYTE_NAMES, SPLITS
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from minigrad.errors import FormatError
from minigrad.state import gguf_load

SEPARATOR = "\n__ggml_vocab_test__\n"
TEXTS = ["", " ", "Hello world", " Hello\n\n  world\t!", "w048 7tuijk dsdfhu", "нещо на Български",
         "한국어", "🦙 is a llama", "I'll I'LL we've", "3333333 and 12.5", "ﬁn \u00a0x \u3000y ½ ²",
         "\x1c\x1d", "<s> and <|im_end|> and </s>", "e\u0301"]


def golden_cases(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    lines = (folder / f"ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").split("\n")
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", ["phi-3", "gpt-2"])
def test_golden_cases(data_dir: Path, name: str) -> None:
    tokenizer = load_tokenizer(data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
    cases = golden_cases(data_dir / "tokenizers", name)
    assert len(cases) == 47
    assert [tokenizer.encode(text) for text, _ in cases] == [tokens for _, tokens in cases]
    assert [tokenizer.decode(tokens) for _, tokens in cases] == [text for text, _ in cases]


@pytest.mark.parametrize("file", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_our_model_proto_is_the_original_model(data_dir: Path, file: str) -> None:
    """A vocabulary taken apart and written again encodes everything as the SentencePiece file it came from."""
    original = load_tokenizer(data_dir / "tokenizers" / file)
    assert isinstance(original, SentencePieceTokenizer)
    p = original.processor
    kinds = [Kind.UNKNOWN if p.is_unknown(i) else Kind.CONTROL if p.is_control(i) else Kind.BYTE if p.is_byte(i)
             else Kind.NORMAL for i in range(original.size)]
    model = sentencepiece_model([p.id_to_piece(i) for i in range(original.size)],
                                [p.get_score(i) for i in range(original.size)], kinds, 1, 2, 0)
    ours = SentencePieceTokenizer(model, "ours")
    for text in [*TEXTS, *(text for text, _ in golden_cases(data_dir / "tokenizers", "phi-3"))]:
        assert ours.encode(text) == original.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert (ours.bos, ours.ends, ours.special) == (original.bos, original.ends, original.special)


def test_sentencepiece_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(FormatError, match=r'^a.model: .* needs sentencepiece: pip install "minigrad\[chat\]"$'):
        SentencePieceTokenizer(b"", "a.model")


def test_llama2c_vocabulary(data_dir: Path) -> None:
    folder = data_dir / "llm" / "stories260K"
    tokenizer = load_tokenizer(folder / "tok512.bin")
    golden = json.loads((folder / "golden_greedy.json").read_text())
    assert tokenizer.decode(golden["greedy_ids"]) == golden["text"]
    assert tokenizer.encode(golden["text"]) == golden["greedy_ids"][1:]
    assert (tokenizer.size, tokenizer.bos, tokenizer.ends) == (512, 1, {1, 2})
    assert load_tokenizer(folder).encode("Once") == tokenizer.encode("Once")
    assert tokenizer.decode(tokenizer.encode("日本")) == "日本"  # by bytes


def test_tokenizer_json_of_byte_level_bpe(data_dir: Path, tmp_path: Path) -> None:
    metadata, _ = gguf_load(data_dir / "tokenizers" / "ggml-vocab-gpt-2.gguf")
    pieces, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    content = {"model": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)},
                         "merges": [line.split(" ") for line in merges]},
               "pre_tokenizer": BYTES, "decoder": BYTES,
               "added_tokens": [token(50256, "<|endoftext|>", special=True), token(50257, "llama")]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    tokenizer = load_tokenizer(tmp_path)
    for text, tokens in golden_cases(data_dir / "tokenizers", "gpt-2"):
        assert tokenizer.encode(text) == tokens
    assert tokenizer.encode("a llama!") == [*tokenizer.encode("a "), 50257, *tokenizer.encode("!")]
    assert tokenizer.decode(tokenizer.encode("a llama!")) == "a llama!"
    assert tokenizer.bos is None and tokenizer.ends == {50256}


def test_tokenizer_json_of_sentencepiece(data_dir: Path, tmp_path: Path) -> None:
    original = load_tokenizer(data_dir / "tokenizers" / "tokenizer.model.v1")
    assert isinstance(original, SentencePieceTokenizer)
    p = original.processor
    vocabulary = {p.id_to_piece(i): i for i in range(original.size)}
    splits = [(-p.get_score(i), i, piece[:at], piece[at:]) for piece, i in vocabulary.items()
              for at in range(1, len(piece))]
    merges = [(first, second) for _, _, first, second in sorted(splits) if first in vocabulary and second in vocabulary]
    added = [token(i, name, special=True) for i, name in enumerate(["<unk>", "<s>", "</s>"])]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": True, "unk_token": "<unk>"}
    normalizers = [{"type": "Prepend", "prepend": SPACE},
                   {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    content = {"model": model, "added_tokens": added, "decoder": {"type": "ByteFallback"},
               "normalizer": {"type": "Sequence", "normalizers": normalizers}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text)


SPLIT_CASES = [
    ("gpt-2", "I'll be  here, 123 times!\n\n", ["I", "'ll", " be", " ", " here", ",", " 123", " times", "!", "\n\n"]),
    ("gpt-2", "I'LL naïve x\u00a0y ½", ["I", "'", "LL", " naïve", " x", "\u00a0", "y", " ½"]),
    ("smollm", "in 2024!", ["in", " ", "2", "0", "2", "4", "!"]),
    ("llama-bpe", "I'LL pay 12345\n\n  now...\n", ["I", "'LL", " pay", " ", "123", "45", "\n\n", " ", " now", "...\n"]),
    ("qwen2", "x=12", ["x", "=", "1", "2"]),
    ("gpt-4o", "aBigDOG's 1234/\n", ["a", "Big", "DOG's", " ", "123", "4", "/\n"]),
    ("tekken", "aBig 12", ["a", "Big", " ", "1", "2"]),
    ("tekken", "DOG's 1/\n\n ok", ["DOG", "'s", " ", "1", "/\n\n", " ok"]),
    ("qwen35", "I'LL 12 क्या_j e\u0301t !\n", ["I", "'LL", " ", "1", "2", " क्या", "_j", " e\u0301t", " !\n"]),
]


@pytest.mark.parametrize("split, text, words", SPLIT_CASES)
def test_words(split: str, text: str, words: list[str]) -> None:
    """A vocabulary of bytes and of these words: a piece for each shows where the text was cut."""
    names = ["".join([BYTE_NAMES[byte] for byte in word.encode()]) for word in words]
    pieces, merges = learnt(list(BYTE_NAMES), names)
    tokenizer = bytes_tokenizer(list(pieces), split, merges)
    assert [tokenizer.token_bytes(token).decode() for token in tokenizer.encode(text)] == words


@pytest.mark.parametrize("split", [name for names in SPLITS for name in names.split()])
def test_whole_words_and_the_start_of_texts(split: str) -> None:
    """As llama.cpp has them where a file does not say: these kinds take a word that is a piece whole, though no merges
    make it, and begin texts with BOS."""
    whole = split in ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral", "tekken")
    pieces = [*BYTE_NAMES, "dog", "<s>"]
    for said, starts in ((None, whole), (True, True), (False, False)):
        told = {} if said is None else {"tokenizer.ggml.add_bos_token": said}
        tokenizer = bytes_tokenizer(pieces, split, [], told | {"tokenizer.ggml.bos_token_id": 257})
        words = [tokenizer.token_bytes(token) for token in tokenizer.encode("dog")]
        assert words == ([b"dog"] if whole else [b"d", b"o", b"g"]) and (tokenizer.bos == 257) == starts


@pytest.mark.parametrize("split", [name for names in SPLITS for name in names.split()])
def test_cutting_loses_nothing(split: str) -> None:
    tokenizer = bytes_tokenizer(BYTE_NAMES, split, [])
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def bytes_tokenizer(pieces: list[str], split: str, merges: list[str], more: dict[str, Any] | None = None) -> Tokenizer:
    prefix = "tokenizer.ggml."
    return gguf_tokenizer({prefix + "model": "gpt2", prefix + "tokens": pieces, prefix + "merges": merges,
                           prefix + "pre": split, **(more or {})}, Path("a.gguf"))


def test_streams_hold_back_half_characters(data_dir: Path) -> None:
    for file, text in (("ggml-vocab-gpt-2.gguf", "a 🦙 né"), ("ggml-vocab-phi-3.gguf", "a 🦙 né")):
        tokenizer = load_tokenizer(data_dir / "tokenizers" / file)
        decoder = StreamDecoder(tokenizer)
        parts = [decoder.add(token) for token in tokenizer.encode(text)]
        assert "".join(parts) == text and "" in parts and decoder.finish() == ""
        assert all("\ufffd" not in part for part in parts)
        for half in tokenizer.encode("🦙")[:-1]:
            decoder.add(half)
        assert decoder.finish() == "\ufffd"


def test_a_continued_stream_keeps_its_first_space(data_dir: Path) -> None:
    tokenizer = load_tokenizer(data_dir / "tokenizers" / "tokenizer.model.v1")
    tokens = tokenizer.encode("word")
    assert StreamDecoder(tokenizer).add(tokens[0]) == "word"
    assert StreamDecoder(tokenizer, continues=True).add(tokens[0]) == " word"


# Bad input


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"expected tokenizer.model or tokenizer.json in the folder, found neither"):
        load_tokenizer(tmp_path)
    with pytest.raises(FormatError, match="there is no such tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(FormatError, match="expected a SentencePiece model"):
        load_tokenizer(tmp_path)


BAD_JSON = [
    ("{", "expected JSON"),
    ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', r"puts pieces together by \[\]; expected ByteLevel"),
    ('{"model": {"vocab": {}, "merges": ["abc"]}, "decoder": {"type": "ByteLevel"}}', "expected a tokenizer: "),
    ('{"model": {"vocab": {"a": 0}, "merges": ["a a"]}, "decoder": {"type": "ByteLevel"}}', "expected a tokenizer: "),
    ('{"model": {"vocab": {"a": 1e30}, "merges": []}, "decoder": {"type": "ByteLevel"}}', "the id of 'a'"),
    ('{"added_tokens": [{"id": -1}], "model": {}, "decoder": {"type": "ByteLevel"}}', "an added token: expected 'id'"),
]


@pytest.mark.parametrize("text, message", BAD_JSON)
def test_bad_tokenizer_json(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_bad_llama2c_vocabulary(data_dir: Path, tmp_path: Path) -> None:
    whole = (data_dir / "llm" / "stories260K" / "tok512.bin").read_bytes()
    for data, message in ((whole[:-1], "piece 511 ends behind"), (whole[:2000], "ends behind|expected a tokenizer"),
                          (struct.pack("<ifi", 5, 0.0, 1) + b"a", "got 1 pieces")):
        (tmp_path / "tok.bin").write_bytes(data)
        with pytest.raises(FormatError, match=message):
            load_tokenizer(tmp_path / "tok.bin")


def test_bad_gguf_vocabulary() -> None:
    path = Path("model.gguf")
    with pytest.raises(FormatError, match="of kind 'bert'; expected 'llama' or 'gpt2'"):
        gguf_tokenizer({"tokenizer.ggml.model": "bert"}, path)
    with pytest.raises(FormatError, match="expected 'scores' to be a list of 1 of float"):
        gguf_tokenizer({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}, path)
    with pytest.raises(FormatError, match="it cuts words as 'strange'; expected one of gpt-2"):
        strange = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.pre": "strange"}
        gguf_tokenizer(strange, path)
